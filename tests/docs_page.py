"""Run a page of the docs, and compare what it shows with what its code gives, or write that into it.

    PYTHONPATH=src python tests/docs_page.py docs/quickstart.md            compare
    PYTHONPATH=src python tests/docs_page.py --write docs/quickstart.md    replace the outputs that differ

A comment after a bare expression is its value. A block `output` is what the `python` block before it prints. A block
with a title is a file. Commands of `penstock` run too: what a page shows of them is compared, and each ends with exit
code 0, or with 1 if that stands for a finding. On pages that make their own data (`SELF_CONTAINED`), every printed line is shown. In an output, `...` stands
for any text; such outputs are never replaced.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SELF_CONTAINED = {
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "quickstart.md",
    DOCS / "operations.md",
    DOCS / "troubleshooting.md",
    *(DOCS / "tasks").glob("*.md"),
}
FINDING_COMMANDS = {
    "cache",
    "convert",
    "demo",
    "diff",
    "leaks",
    "lint",
    "replay",
    "verify",
}  # these end with 1
LANGUAGES = {"python", "text", "json", "console", "toml", "yaml", "output"}
FENCE = re.compile(r"^```(.*)$")
TITLE = re.compile(r'title="([^"]+)"')
COMMAND = re.compile(r"^\$ (penstock .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the fenced blocks of a page: line of the first row, language and options, code."""
    info: str | None = None
    rows: list[str] = []
    first = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if fence and info is None:
            info, rows, first = fence.group(1), [], number + 1
        elif fence:
            assert info is not None
            yield first, info, "".join(f"{row}\n" for row in rows)
            info = None
        else:
            rows.append(line)
    assert info is None, f"{page.name}: a block is not closed"


def trailing_comments(code: str) -> dict[int, str]:
    """Return the comments of a block by line."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {
        token.start[0]: token.string[1:].strip()
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def run(code: str, names: dict[str, Any], where: str, first: int) -> None:
    """Run a block; a comment on the last line of a bare expression is its value."""
    comments = trailing_comments(code)
    for node in ast.parse(code, where).body:
        ast.increment_lineno(node, first - 1)
        comment = comments.get((node.end_lineno or 0) - first + 1)
        if isinstance(node, ast.Expr) and comment is not None:
            value = eval(compile(ast.Expression(node.value), where, "eval"), names)
            assert repr(value) == comment, (
                f"{where}, line {node.lineno}: the page says {comment}, it is {value!r}"
            )
        else:
            exec(compile(ast.Module([node], []), where, "exec"), names)


def without_trailing_space(text: str) -> str:
    """Normalize an output: no space at the ends of lines, no empty lines around it."""
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").rstrip().splitlines())


def is_shown(shown: str, printed: str) -> bool:
    """Compare what a page shows with what its code printed."""
    return doctest.OutputChecker().check_output(
        without_trailing_space(shown), without_trailing_space(printed), doctest.ELLIPSIS
    )


def require_equal_output(shown: str, printed: str, where: str) -> None:
    """Raise `AssertionError` if a page does not show what its code printed."""
    assert is_shown(shown, printed), f"{where}: the page shows\n{shown}\nit is\n{printed}"


def run_command(command: str) -> tuple[str, int]:
    """Run a command of `penstock`; return what it prints, and its exit code."""
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", *shlex.split(command, comments=True)[1:]],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PENSTOCK_PROGRESS": "0",
            "COLUMNS": "120",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.stdout, ended.returncode


def run_page(page: Path, write: bool = False) -> None:
    """Run a page in the current folder.

    Args:
        page: the file of the page.
        write: replace outputs that differ, instead of raising.

    Raises:
        AssertionError: the page shows something else than its code gives.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    lines = page.read_text(encoding="utf-8").splitlines()
    printed, replacements = "", list[tuple[int, int, str]]()
    for first, info, code in blocks(page):
        language, where = info.split(" ")[0], f"{page.name}, line {first}"
        assert language in LANGUAGES, f"{where}: say what the block is: {sorted(LANGUAGES)}"
        actual = code
        if title := TITLE.search(info):
            Path(title.group(1)).write_text(code, encoding="utf-8")
        elif language == "output":
            actual, printed = code if is_shown(code, printed) else printed, ""
        elif page in SELF_CONTAINED:
            assert not printed, f"{where}: the block before it prints, show it in a block `output`"
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                run(code, names, page.name, first)
            printed = output.getvalue()
        elif language == "console":
            for command, shown in COMMAND.findall(code):
                text, exit_code = run_command(command)
                exit_codes = (0, 1) if command.split()[1] in FINDING_COMMANDS else (0,)
                assert exit_code in exit_codes, f"{where}: {command} fails:\n{text}"
                if (page in SELF_CONTAINED or shown) and not is_shown(shown, text):
                    before = f"$ {command}\n"
                    actual = actual.replace(before + shown, before + without_trailing_space(text))
        if actual != code and (not write or "..." in code):
            require_equal_output(code, actual, where)
        if actual != code:
            replacements.append((first - 1, first - 1 + code.count("\n"), actual))
    assert not printed or page not in SELF_CONTAINED, (
        f"{page.name}: show what its last block prints"
    )
    for start, stop, text in reversed(replacements):
        lines[start:stop] = without_trailing_space(text).splitlines()
    if replacements:
        page.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Run the pages named on the command line, each in an empty folder."""
    pages = [Path(name).resolve() for name in sys.argv[1:] if name != "--write"]
    for page in pages:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run_page(page, write="--write" in sys.argv)


if __name__ == "__main__":
    main()
