"""The code in the README and in the docs runs, page by page, and a value written beside an expression is what it gives.

Every page runs in a folder of its own with a little data in `data/`:

- `data/code/*.parquet`: 2 files, 60 rows of `text` and `path`
- `data/text/*.jsonl.gz`: 2 files, 90 rows of `text`
- `data/pairs.arrow`: 40 rows of `instruction` and `answer`
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import imports_a_framework, slow_if

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(.*)$")
LANGUAGES = {"python", "text", "json", "console", "toml", "yaml"}


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Every fenced block of a page: line of its first row, language, code."""
    language: str | None = None
    held: list[str] = []
    first = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence and language is None:
            language, held, first = fence.group(1), [], number + 1
        elif fence:
            assert language is not None
            yield first, language, "\n".join(held) + "\n"
            language = None
        else:
            held.append(line)
    assert language is None, f"{page.name}: a block is not closed"


def remarks(code: str) -> dict[int, str]:
    """Line -> comment at its end."""
    words = tokenize.generate_tokens(io.StringIO(code).readline)
    return {
        word.start[0]: word.string[1:].strip() for word in words if word.type == tokenize.COMMENT
    }


def run(code: str, names: dict[str, Any], where: str, first: int) -> None:
    """Run a block; where a bare expression has a comment on its last line, that is its value."""
    said = remarks(code)
    for node in ast.parse(code, where).body:
        ast.increment_lineno(node, first - 1)
        remark = said.get((node.end_lineno or 0) - first + 1)
        if isinstance(node, ast.Expr) and remark is not None:
            value = eval(compile(ast.Expression(node.value), where, "eval"), names)
            assert repr(value) == remark, (
                f"{where}, line {node.lineno}: the page says {remark}, it is {value!r}"
            )
        else:
            exec(compile(ast.Module([node], []), where, "exec"), names)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder the pages are run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("data/code", "data/text"):
        (tmp_path / name).mkdir(parents=True)
    for part in range(2):
        rows = [
            {"text": f"def f{i}():\n    return {i}\n" * (1 + i % 5), "path": f"f{i}.py"}
            for i in range(30)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows),
            tmp_path / f"data/code/part-{part}.parquet",
            row_group_size=10,
        )
        with gzip.open(
            tmp_path / f"data/text/part-{part}.jsonl.gz", "wt", encoding="utf-8"
        ) as file:
            file.writelines(
                json.dumps({"text": f"Page {i}. " * (1 + i % 7)}) + "\n" for i in range(45)
            )
    pairs = [{"instruction": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(40)]
    table = pa.Table.from_pylist(pairs)
    with (
        pa.OSFile(str(tmp_path / "data/pairs.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=16)
    return tmp_path


def case(page: Path) -> Any:
    """A page, marked slow if it imports a framework."""
    code = "\n".join(code for _, language, code in blocks(page) if language == "python")
    return pytest.param(page, id=page.stem, marks=slow_if(imports_a_framework(code)))


@pytest.mark.parametrize("page", [case(page) for page in PAGES])
def test_page_runs(page: Path, data: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for first, language, code in blocks(page):
        assert language in LANGUAGES, (
            f"{page.name}, line {first - 1}: say what the block is: {sorted(LANGUAGES)}"
        )
        if language == "python":
            run(code, names, page.name, first)


def test_a_wrong_value_is_found() -> None:
    run("x = 2\nx + 1  # 3\n", {}, "here", 1)
    with pytest.raises(AssertionError, match="line 12: the page says 4, it is 3"):
        run("x = 2\n\nx + 1  # 4\n", {}, "here", 10)


def test_promises_name_tests_that_exist() -> None:
    named = re.findall(
        r"\[`(test_\w+)`\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert len(named) > 10
    for test, file in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"there is no {test} in {file}"
        )


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
