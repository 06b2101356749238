"""Real data from what every machine with Python has: source code, prose, and pairs of question and
answer.

Nothing is downloaded and nothing is imported to look at it; signatures and docstrings are read from
the sources.
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

PIECE = 2_000  # characters; a text is cut at the first good place after this many
LIMIT = 4 * PIECE  # and at the end of any line after this many
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
PROSE_NAMES = ("license", "licence", "copying", "notice", "authors", "readme", "metadata")

Row = Mapping[str, str]


@dataclass(frozen=True)
class Made:
    """One source as it was written: how many samples, bytes of text and files."""

    name: str
    format: str
    samples: int
    text_bytes: int
    files: int


def build(folder: Path) -> Iterator[Made]:
    """Write `code/*.parquet`, `prose/*.jsonl` and `pairs/*.arrow` under `folder`, one source at a
    time."""
    sources = dict(_sources())
    yield _write(folder / "code", "Parquet", _code(sources), files=6)
    yield _write(folder / "prose", "JSONL", _prose(), files=3)
    yield _write(folder / "pairs", "Arrow", _pairs(sources), files=2)


# ---------------------------------------------------------------- what there is


def _sources() -> Iterator[tuple[str, str]]:
    """Name and text of every source file of the standard library, by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED.isdisjoint(relative.parts):
            text = _text(path)
            if text:
                yield relative.as_posix(), text


def _text(path: Path) -> str:
    """The file's text; empty where it is missing, not readable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _code(sources: Mapping[str, str]) -> Iterator[Row]:
    for name, text in sources.items():
        for line, piece in pieces(text, starts=("def ", "class ", "async ", "@")):
            yield {"path": name, "line": str(line), "text": piece}


def _prose() -> Iterator[Row]:
    seen: set[str] = set()
    for title, text in _texts():
        # Half of all packages ship the same licence; once is enough.
        if text in seen:
            continue
        seen.add(text)
        for _, piece in pieces(text, starts=None):
            yield {"title": title, "text": piece}


def _texts() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield f"Python: {topic}", text
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(path for kind in ("*.txt", "*.rst", "*.md") for path in root.rglob(kind)):
        if SKIPPED.isdisjoint(path.relative_to(root).parts):
            yield f"Python: {path.relative_to(root).as_posix()}", _text(path)
    packages = {dist.name: dist for dist in metadata.distributions()}
    for name, dist in sorted(packages.items()):
        for file in sorted(dist.files or [], key=str):
            if file.name.lower().startswith(PROSE_NAMES) and file.suffix in (
                "",
                ".txt",
                ".md",
                ".rst",
            ):
                yield f"{name}: {file.name}", _text(Path(str(file.locate())))


def pieces(text: str, starts: tuple[str, ...] | None) -> Iterator[tuple[int, str]]:
    """Cut a text before a line that starts a definition, or (`None`) after an empty line: (first
    line, piece)."""
    held: list[str] = []
    first, size = 1, 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        good = line.startswith(starts) if starts else bool(held) and not held[-1].strip()
        # A decorator belongs to what it decorates.
        if (good and size >= PIECE and not held[-1].startswith("@")) or size >= LIMIT:
            yield first, "".join(held)
            held, first, size = [], number, 0
        held.append(line)
        size += len(line)
    if "".join(held).strip():
        yield first, "".join(held)


def _pairs(sources: Mapping[str, str]) -> Iterator[Row]:
    for name, text in sources.items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escapes in old files
                tree = ast.parse(text)
        except SyntaxError:
            continue
        yield from documented(tree.body, module)


def documented(body: Sequence[ast.stmt], path: str) -> Iterator[Row]:
    """A pair for every function and class with a docstring, methods too."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        full = f"{path}.{node.name}"
        answer = ast.get_docstring(node)
        if answer and len(answer) >= 20:
            call = full if isinstance(node, ast.ClassDef) else f"{full}({ast.unparse(node.args)})"
            yield {"instruction": f"What does `{call}` do?", "answer": answer}
        if isinstance(node, ast.ClassDef):
            yield from documented(node.body, full)


# ---------------------------------------------------------------- how it is written


def _write(folder: Path, format: str, rows: Iterable[Row], files: int) -> Made:
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
    return Made(folder.name, format, len(samples), size, len(parts))


def _write_parquet(path: Path, table: pa.Table) -> None:
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table, row_group_size=256)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=512)
