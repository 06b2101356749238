"""Run the quick tests of the files that differ from a branch, in about 30 seconds.

    python tools/changed_tests.py [--base main] [--jobs 2] [--list]

A module has the tests of its name, else those of its folder that import it, else its folder.
A page of the docs runs as in `tests/test_docs.py`. The rules of the tree always run. It is a check
between two edits, not the gate: run `make test` before you send the change.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 30


def list_changes(base: str) -> list[str]:
    """Return the paths that differ from the common ancestor with a branch, also new ones.

    Args:
        base: The branch; if there is none of that name, the last commit counts.
    """

    def git(*arguments: str) -> str:
        ended = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return ended.stdout if ended.returncode == 0 else ""

    start = git("merge-base", base, "HEAD").strip() or "HEAD"
    changed = git("diff", "--name-only", start).splitlines()
    return sorted({*changed, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def find_tests(path: str, root: Path = ROOT) -> list[str]:
    """Return the arguments for pytest that test a file: files, and the id of a page.

    >>> find_tests("src/penstock/engine/orders/shuffle.py")
    ['tests/engine/orders']
    >>> find_tests("docs/mixing.md")
    ['tests/test_docs.py::test_page_runs[mixing]']
    >>> find_tests("docs/pictures/plan.svg")
    []

    Args:
        path: The file, relative to the root.
        root: The root of the repository.
    """
    parts = Path(path).parts
    if parts[0] == "tests" and parts[-1].startswith("test_") and (root / path).exists():
        return [path]
    if path.endswith(".md") and parts[0] in ("docs", "README.md") and (root / path).exists():
        page = Path(path).relative_to("docs") if parts[0] == "docs" else Path(path)
        return [f"tests/test_docs.py::test_page_runs[{page.with_suffix('').as_posix()}]"]
    if parts[0] == "tools" and path.endswith(".py"):
        tests = [f"tests/test_{parts[-1]}", f"tests/tools/test_{parts[-1]}"]
        return [test for test in tests if (root / test).exists()]
    if parts[0] == "examples":
        return ["tests/test_examples.py"]
    if parts[:2] != ("src", "penstock") or not path.endswith(".py"):
        return []
    folder = Path("tests", *parts[2:-1])
    while not (root / folder).is_dir():
        folder = folder.parent
    named = folder / f"test_{parts[-1]}"
    if (root / named).exists():
        return [named.as_posix()]
    module = re.escape(".".join(parts[1:]).removesuffix(".py").removesuffix(".__init__"))
    package, _, name = module.rpartition("\\.")
    imports = re.compile(rf"{module}\b|from {package} import [^\n]*\b{name}\b")
    tests = [
        test.relative_to(root).as_posix()
        for test in sorted((root / folder).glob("test_*.py"))
        if imports.search(test.read_text(encoding="utf-8"))
    ]
    if not tests and folder != Path("tests"):
        tests = [folder.as_posix()]
    return tests


def module_pattern(paths: Iterable[str]) -> str:
    """Return the expression that selects the docstrings of modules for `pytest -k`.

    >>> module_pattern(["src/penstock/engine/orders/shuffle.py", "README.md"])
    'penstock.engine.orders.shuffle'

    Args:
        paths: Changed files, relative to the root.
    """
    modules = [
        path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in paths
        if path.startswith("src/penstock/") and path.endswith(".py")
    ]
    return " or ".join(modules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests.

    Args:
        arguments: The command line; that of the process if `None`.

    Returns:
        The exit status: that of the first pytest that fails, else 0.
    """
    parser = argparse.ArgumentParser(description="Run the quick tests of changed files.")
    parser.add_argument("--base", default="main", help="the branch to compare with")
    parser.add_argument("--jobs", default="2", help="processes")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    options = parser.parse_args(arguments)
    changed = list_changes(options.base)
    tests = list(dict.fromkeys(test for path in changed for test in find_tests(path)))
    if options.list:
        print(*tests, sep="\n")
        return 0
    print(f"{len(changed)} changed files, tests: {' '.join(tests) or 'none of their own'}")
    runs = list[list[str]]()
    if tests:
        runs.append([*tests, "-n", options.jobs, "--dist", "worksteal"])
    if pattern := module_pattern(changed):
        runs.append(["tests/test_doctests.py", "-k", pattern])
    runs.append(["tests/test_house.py"])
    started = time.monotonic()
    for run in runs:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *run]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ}).returncode
        if status not in (0, 5):  # 5: nothing was selected
            return status
    took = time.monotonic() - started
    print(f"{took:.0f} s{'' if took <= SECONDS else f', more than {SECONDS} s'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
