"""Count the size and the shape of the engine: code lines, members of its step protocols, dispatch.

Code lines are lines without blanks, comments and docstrings, after formatting at 120 columns
without magic commas: a plain name does not cost lines because it wraps. A member is a method, property or
attribute of a step protocol; an override defines it again in a subclass, or sets it in `__init__`. A dispatch is a
comparison of a `kind` with names, or an `isinstance` or `case` of a step class outside the file
that defines the class.

    python tools/engine_size.py            the figures of this checkout
    python tools/engine_size.py --json     the same as JSON
    python tools/engine_size.py --check    fail on each figure of the engine over its limit
    python tools/engine_size.py --root DIR count another checkout
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROTOCOLS = ("Step", "Op")
"""Base classes of the steps of the engine, and of their compiled forms."""
FORMAT = ("--line-length=120", "--config=format.skip-magic-trailing-comma=true")
SMALL_FILE = 30  # code lines
LARGEST_FILES = 10

LIMITS = {
    "engine code lines": 20_647,
    "largest file of the engine": 605,
    "small files of the engine": 18,
    "protocol members": 85,
    "overrides": 386,
    "comparisons of kinds": 2,
    "checks of step classes": 7,
}
"""The most that `--check` allows. CONTRIBUTING.md says when a limit may rise."""

Module = tuple[str, ast.Module]


def read_formatted(package: Path) -> dict[str, str]:
    """Return the modules of a package by path, formatted alike."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "package"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--isolated", *FORMAT, str(copy)]
        subprocess.run(ruff, check=True)
        return {
            path.relative_to(copy).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(copy.rglob("*.py"))
        }


def count_code_lines(source: str) -> int:
    """Return the number of lines with code.

    >>> count_code_lines('''"Docstring."
    ... x = 1  # comment
    ...
    ... # comment
    ... y = [
    ...     2,
    ... ]
    ... ''')
    4
    """
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    )
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


# ------------------------------------------------------------------------------ step classes


def _get_name(node: ast.AST) -> str:
    """Return the last part of a dotted or subscripted name; "" for any other expression."""
    if isinstance(node, ast.Subscript):
        return _get_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _iter_union(node: ast.AST) -> Iterator[str]:
    """Iterate over the class names in `A`, `A | B`, `(A, B)` and `Union[A, B]`."""
    if isinstance(node, ast.BinOp):
        yield from _iter_union(node.left)
        yield from _iter_union(node.right)
    elif isinstance(node, ast.Tuple):
        for entry in node.elts:
            yield from _iter_union(entry)
    elif isinstance(node, ast.Subscript) and _get_name(node) == "Union":
        yield from _iter_union(node.slice)
    elif name := _get_name(node):
        yield name


def _iter_members(body: ast.ClassDef) -> Iterator[str]:
    """Iterate over the methods and attributes that a class defines, without dunders."""
    names, statements = set[str](), list[ast.stmt](body.body)
    for node in body.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            statements += node.body if node.name == "__init__" else []
    for node in statements:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                entries = target.elts if isinstance(target, ast.Tuple) else [target]
                names.update(map(_get_name, entries))
    yield from sorted(name for name in names if name and not name.startswith("__"))


def find_step_classes(
    engine: Sequence[Module], protocols: Sequence[str]
) -> tuple[dict[str, str], list[str], int]:
    """Return the file of each step class, the members of the protocols, and their overrides."""
    classes = {
        node.name: (path, node)
        for path, tree in engine
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    missing = [name for name in protocols if name not in classes]
    if missing:
        raise SystemExit(f"the engine has no class {', '.join(missing)}; correct PROTOCOLS")
    steps, before = set(protocols), set[str]()
    while steps != before:
        before = set(steps)
        steps |= {
            name
            for name, (_, node) in classes.items()
            if any(_get_name(base) in before for base in node.bases)
        }
    members = [
        (protocol, name) for protocol in protocols for name in _iter_members(classes[protocol][1])
    ]
    member_names = {name for _, name in members}
    overrides = sum(
        name in member_names
        for step in steps - set(protocols)
        for name in _iter_members(classes[step][1])
    )
    return {name: classes[name][0] for name in steps}, sorted(map(".".join, members)), overrides


# ------------------------------------------------------------------------------ dispatch


def _is_word(node: ast.AST) -> bool:
    # NumPy's kinds are single letters.
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 1


def _compares_kind(node: ast.AST) -> bool:
    """Return whether a node compares something called `kind` with the name of a kind."""
    if isinstance(node, ast.Match):
        return _get_name(node.subject) == "kind"
    if isinstance(node, ast.MatchClass):
        patterns = [*node.patterns, *node.kwd_patterns]
        return any(
            isinstance(entry, ast.MatchValue) and _is_word(entry.value)
            for pattern in patterns
            for entry in ast.walk(pattern)
        )
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return False
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        entries = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
        return _get_name(left) == "kind" and any(map(_is_word, entries))
    return any(
        _get_name(one) == "kind" and _is_word(other)
        for one, other in ((left, right), (right, left))
    )


def _iter_checked_classes(node: ast.AST) -> Iterator[str]:
    """Iterate over the class names that an `isinstance` or a `case` asks for."""
    if isinstance(node, ast.MatchClass):
        yield _get_name(node.cls)
    elif isinstance(node, ast.Call) and _get_name(node.func) in ("isinstance", "issubclass"):
        if len(node.args) == 2:
            yield from _iter_union(node.args[1])


def find_dispatch(modules: Sequence[Module], steps: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return where kinds are compared, and where step classes are checked in another file."""
    kinds, checks = list[str](), list[str]()
    for path, tree in modules:
        for node in ast.walk(tree):
            line = getattr(node, "lineno", 0)
            if _compares_kind(node):
                kinds.append(f"{path}:{line}")
            checked = set(_iter_checked_classes(node))
            checks += [
                f"{path}:{line} {name}" for name in sorted(checked) if steps.get(name, path) != path
            ]
    return sorted(kinds), sorted(checks)


# ------------------------------------------------------------------------------ report


def measure(root: Path = ROOT, protocols: Sequence[str] = PROTOCOLS) -> dict[str, Any]:
    """Return all figures of a checkout."""
    package = root / "src" / "penstock"
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }
    if not sources:
        raise SystemExit(f"no Python files below {package}; give the root of a checkout")
    modules = [(path, ast.parse(text)) for path, text in sources.items()]
    engine = [module for module in modules if module[0].startswith("engine/")]
    rest = [module for module in modules if not module[0].startswith("engine/")]
    lines = {path: count_code_lines(text) for path, text in read_formatted(package).items()}
    steps, members, overrides = find_step_classes(engine, protocols)
    (kinds, checks), (kinds_outside, checks_outside) = (
        find_dispatch(part, steps) for part in (engine, rest)
    )
    folders, engine_folders = Counter[str](), Counter[str]()
    for path, count in lines.items():
        top, _, inner = path.partition("/")
        folders[top if inner else "(root)"] += count
        if top == "engine":
            engine_folders[inner.partition("/")[0] if "/" in inner else "(root)"] += count
    in_engine = {path: count for path, count in lines.items() if path.startswith("engine/")}
    small = {path: count for path, count in lines.items() if 0 < count < SMALL_FILE}
    return {
        "package": {
            "lines": sum(lines.values()),
            "files": len(lines),
            "folders": dict(folders.most_common()),
        },
        "engine": {
            "lines": sum(in_engine.values()),
            "files": len(in_engine),
            "folders": dict(engine_folders.most_common()),
        },
        "largest": dict(Counter(lines).most_common(LARGEST_FILES)),
        "largest of the engine": dict(Counter(in_engine).most_common(LARGEST_FILES)),
        "small": {
            "limit": SMALL_FILE,
            "package": len(small),
            "engine": {path: count for path, count in small.items() if path in in_engine},
        },
        "protocols": {"names": list(protocols), "members": members, "overrides": overrides},
        "dispatch": {
            "kinds": kinds,
            "steps": checks,
            "kinds outside the engine": kinds_outside,
            "steps outside the engine": checks_outside,
        },
    }


def summarize(figures: dict[str, Any]) -> dict[str, int]:
    """Return the figures that have limits."""
    return {
        "engine code lines": figures["engine"]["lines"],
        "largest file of the engine": max(figures["largest of the engine"].values()),
        "small files of the engine": len(figures["small"]["engine"]),
        "protocol members": len(figures["protocols"]["members"]),
        "overrides": figures["protocols"]["overrides"],
        "comparisons of kinds": len(figures["dispatch"]["kinds"]),
        "checks of step classes": len(figures["dispatch"]["steps"]),
    }


def check(figures: dict[str, Any]) -> list[str]:
    """Return a message for each figure over its limit."""
    return [
        f"{name}: {value:,}, and the limit is {LIMITS[name]:,}; remove code, or merge what is double"
        for name, value in summarize(figures).items()
        if value > LIMITS[name]
    ]


def format_figures(figures: dict[str, Any]) -> str:
    """Return the figures as text."""

    def table(counts: dict[str, int]) -> list[str]:
        return [f"  {count:>7,}  {name}" for name, count in counts.items()]

    package, engine, dispatch = figures["package"], figures["engine"], figures["dispatch"]
    protocols, small = figures["protocols"], figures["small"]
    return "\n".join(
        [
            f"package: {package['lines']:,} code lines in {package['files']} files",
            *table(package["folders"]),
            f"engine: {engine['lines']:,} code lines in {engine['files']} files",
            *table(engine["folders"]),
            "largest files of the engine",
            *table(figures["largest of the engine"]),
            "largest files of the package",
            *table(figures["largest"]),
            f"files under {small['limit']} code lines: {small['package']}, of them "
            f"{len(small['engine'])} in the engine",
            f"members of {', '.join(protocols['names'])}: {len(protocols['members'])}, overridden "
            f"{protocols['overrides']} times",
            f"comparisons of kinds: {len(dispatch['kinds'])} in the engine, "
            f"{len(dispatch['kinds outside the engine'])} outside",
            f"checks of step classes in other files: {len(dispatch['steps'])} in the engine, "
            f"{len(dispatch['steps outside the engine'])} outside",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="fail on a figure over its limit")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to count")
    parser.add_argument("--protocols", nargs="+", default=PROTOCOLS, help="base classes of steps")
    options = parser.parse_args(arguments)
    figures = measure(options.root, options.protocols)
    if options.check:
        problems = check(figures)
        print("\n".join(problems), end="\n" if problems else "")
        return bool(problems)
    print(json.dumps(figures, indent=2) if options.json else format_figures(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
