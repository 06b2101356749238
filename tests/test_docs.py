"""The code in the README and in the docs runs, page by page, and shows what it gives.

A comment after a bare expression is its value. A block `output` is what the block before it prints. A block with a
title is a file. On the pages that make their own data (`SELF_CONTAINED`), commands of `penstock` run too, and every
printed line is shown; `...` stands for any text.

Every other page runs in a folder of its own with a little data in `data/`:

- `data/code/*.parquet`: 2 files, 60 rows of `text` and `path`
- `data/text/*.jsonl.gz`: 2 files, 90 rows of `text`
- `data/pairs.arrow`: 40 rows of `instruction` and `answer`
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import imports_a_framework, slow_if

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SELF_CONTAINED = {
    ROOT / "README.md",
    DOCS / "quickstart.md",
    DOCS / "operations.md",
    DOCS / "troubleshooting.md",
    *(DOCS / "tasks").glob("*.md"),
}
FENCE = re.compile(r"^```(.*)$")
TITLE = re.compile(r'title="([^"]+)"')
LANGUAGES = {"python", "text", "json", "console", "toml", "yaml", "output", "mermaid"}


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


def require_equal_output(shown: str, printed: str, where: str) -> None:
    """Compare what a page shows with what its code printed; `...` stands for any text."""
    shown, printed = (
        "".join(line.rstrip() + "\n" for line in text.strip().splitlines())
        for text in (shown, printed)
    )
    assert doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), (
        f"{where}: the page shows\n{shown}\nit is\n{printed}"
    )


def run_commands(session: str, where: str) -> None:
    """Run the commands of `penstock` in a console session, and compare what they print."""
    for command, shown in re.findall(
        r"^\$ (penstock .*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE
    ):
        completed = subprocess.run(
            [sys.executable, "-m", "penstock", *shlex.split(command, comments=True)[1:]],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PENSTOCK_PROGRESS": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        require_equal_output(shown, completed.stdout, f"{where}: {command}")


def make_data(folder: Path) -> None:
    """Write the data that pages of the guide read."""
    for name in ("data/code", "data/text"):
        (folder / name).mkdir(parents=True)
    for part in range(2):
        rows = [
            {"text": f"def f{i}():\n    return {i}\n" * (1 + i % 5), "path": f"f{i}.py"}
            for i in range(30)
        ]
        pq.write_table(
            pa.Table.from_pylist(rows), folder / f"data/code/part-{part}.parquet", row_group_size=10
        )
        with gzip.open(folder / f"data/text/part-{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"text": f"Page {i}. " * (1 + i % 7)}) + "\n" for i in range(45)
            )
    pairs = [{"instruction": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(40)]
    table = pa.Table.from_pylist(pairs)
    with (
        pa.OSFile(str(folder / "data/pairs.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=16)


def case(page: Path) -> Any:
    """A page, marked slow if it imports a framework or begins a cluster."""
    code = "\n".join(code for _, language, code in blocks(page) if language == "python")
    is_slow = imports_a_framework(code) or 'executor="ray"' in code
    name = page.relative_to(DOCS).with_suffix("").as_posix() if DOCS in page.parents else page.stem
    return pytest.param(page, id=name, marks=slow_if(is_slow))


@pytest.mark.parametrize("page", [case(page) for page in PAGES])
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if page not in SELF_CONTAINED:
        make_data(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for first, info, code in blocks(page):
        language, where = info.split(" ")[0], f"{page.name}, line {first}"
        assert language in LANGUAGES, f"{where}: say what the block is: {sorted(LANGUAGES)}"
        if title := TITLE.search(info):
            Path(title.group(1)).write_text(code, encoding="utf-8")
        elif language == "output":
            require_equal_output(code, printed, where)
            printed = ""
        elif page in SELF_CONTAINED:
            assert not printed, f"{where}: the block before it prints, show it in a block `output`"
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                run(code, names, page.name, first)
            printed = output.getvalue()
        elif language == "console" and page in SELF_CONTAINED:
            run_commands(code, where)
    assert not printed or page not in SELF_CONTAINED, (
        f"{page.name}: show what the last block prints"
    )


def test_a_wrong_value_is_found() -> None:
    run("x = 2\nx + 1  # 3\n", {}, "here", 1)
    with pytest.raises(AssertionError, match="line 12: the page says 4, it is 3"):
        run("x = 2\n\nx + 1  # 4\n", {}, "here", 10)


def test_a_wrong_output_is_found() -> None:
    require_equal_output("a\n...\nd", "a\nb\nc\nd\n", "here")
    with pytest.raises(AssertionError, match="here: the page shows"):
        require_equal_output("a", "b", "here")


def test_promises_name_tests_that_exist() -> None:
    text = (DOCS / "promises.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", text)
    assert sum(bool(test) for _, test in tests) > 10
    for file, test in tests:
        assert (ROOT / file).exists(), f"there is no {file}"
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"there is no {test} in {file}"
        )


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
