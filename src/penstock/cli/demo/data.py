"""Real data of any machine with Python: source code, prose, and question-answer pairs.

Nothing is downloaded or imported; signatures and docstrings are parsed from source files.
"""

from __future__ import annotations

import ast
import json
import shutil
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

PIECE_LENGTH = 2_000  # characters after which a text is cut at the next boundary
MAX_PIECE_LENGTH = 4 * PIECE_LENGTH  # characters after which a text is cut at any line end
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
PROSE_NAMES = ("license", "licence", "copying", "notice", "authors", "readme", "metadata")

TextRow = Mapping[str, str]


@dataclass(frozen=True)
class WrittenSource:
    """A written source: number of samples, bytes of text, and files."""

    name: str
    format: str
    samples: int
    text_bytes: int
    files: int


def build(folder: Path) -> Iterator[WrittenSource]:
    """Write `code/*.parquet`, `prose/*.jsonl` and `pairs/*.arrow` below `folder`, one by one."""
    sources = dict(_iter_stdlib_sources())
    yield _write_source(folder / "code", "Parquet", _iter_code_rows(sources), files=6)
    yield _write_source(folder / "prose", "JSONL", _iter_prose_rows(), files=3)
    yield _write_source(folder / "pairs", "Arrow", _iter_pair_rows(sources), files=2)


# ---------------------------------------------------------------- reading


def _iter_stdlib_sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of the standard library's source files, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.isdisjoint(relative.parts):
            text = _read_text(path)
            if text:
                yield relative.as_posix(), text


def _read_text(path: Path) -> str:
    """Return the text of a file, or "" if it is missing, unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _iter_code_rows(sources: Mapping[str, str]) -> Iterator[TextRow]:
    for name, text in sources.items():
        for line, piece in pieces(text, starts=("def ", "class ", "async ", "@")):
            yield {"path": name, "line": str(line), "text": piece}


def _iter_prose_rows() -> Iterator[TextRow]:
    seen: set[str] = set()
    for title, text in _iter_prose_texts():
        # Many packages ship the same licence text.
        if text in seen:
            continue
        seen.add(text)
        for _, piece in pieces(text, starts=None):
            yield {"title": title, "text": piece}


def _iter_prose_texts() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield f"Python: {topic}", text
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(path for kind in ("*.txt", "*.rst", "*.md") for path in root.rglob(kind)):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            yield f"Python: {path.relative_to(root).as_posix()}", _read_text(path)
    packages = {dist.name: dist for dist in metadata.distributions()}
    for name, dist in sorted(packages.items()):
        for file in sorted(dist.files or [], key=str):
            if file.name.lower().startswith(PROSE_NAMES) and file.suffix in (
                "",
                ".txt",
                ".md",
                ".rst",
            ):
                yield f"{name}: {file.name}", _read_text(Path(str(file.locate())))


def pieces(text: str, starts: tuple[str, ...] | None) -> Iterator[tuple[int, str]]:
    """Cut a text before definitions or (`None`) after empty lines; yield first line and piece."""
    lines: list[str] = []
    first, size = 1, 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        is_boundary = line.startswith(starts) if starts else bool(lines) and not lines[-1].strip()
        # Keep a decorator with its function.
        if (
            is_boundary and size >= PIECE_LENGTH and not lines[-1].startswith("@")
        ) or size >= MAX_PIECE_LENGTH:
            yield first, "".join(lines)
            lines, first, size = [], number, 0
        lines.append(line)
        size += len(line)
    if "".join(lines).strip():
        yield first, "".join(lines)


def _iter_pair_rows(sources: Mapping[str, str]) -> Iterator[TextRow]:
    for name, text in sources.items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old files
                tree = ast.parse(text)
        except SyntaxError:
            continue
        yield from iter_documented_pairs(tree.body, module)


def iter_documented_pairs(body: Sequence[ast.stmt], path: str) -> Iterator[TextRow]:
    """Yield a pair for every function, method and class with a docstring."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        full = f"{path}.{node.name}"
        answer = ast.get_docstring(node)
        if answer and len(answer) >= 20:
            call = full if isinstance(node, ast.ClassDef) else f"{full}({ast.unparse(node.args)})"
            yield {"instruction": f"What does `{call}` do?", "answer": answer}
        if isinstance(node, ast.ClassDef):
            yield from iter_documented_pairs(node.body, full)


# ---------------------------------------------------------------- writing


def _write_source(folder: Path, format: str, rows: Iterable[TextRow], files: int) -> WrittenSource:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    samples = list(rows)
    share = max(1, -(-len(samples) // files))
    parts = [samples[start : start + share] for start in range(0, len(samples), share)]
    for number, part in enumerate(parts):
        name = folder / f"part-{number:03}"
        if format == "Parquet":
            _write_parquet(name.with_suffix(".parquet"), pa.Table.from_pylist(part))
        elif format == "Arrow":
            _write_arrow(name.with_suffix(".arrow"), pa.Table.from_pylist(part))
        else:
            name.with_suffix(".jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in part), encoding="utf-8"
            )
    size = sum(len(value) for row in samples for value in row.values())
    return WrittenSource(folder.name, format, len(samples), size, len(parts))


def _write_parquet(path: Path, table: pa.Table) -> None:
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table, row_group_size=256)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=512)
