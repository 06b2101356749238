"""The house: imports go down, only seams touch the world, files are small, the import is light, names have examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

import penstock
from penstock.sources.paths import KINDS, FormatName

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"
FILES = sorted(SOURCE.rglob("*.py"))

# Imports go down, and on one floor only to the left. A folder is one unit: its files may import each other.
FLOORS = {
    "words": ("types", "errors", "base", "stores"),
    "parts": ("schedule", "orders", "folds", "mixing", "pack", "text", "sources"),
    "run": ("streams", "ops", "graph", "runtime"),
    "load": ("plan", "dataset", "inputs", "loader", "tuning", "writing", "mixture_files"),
    "frames": ("media", "tasks", "frames"),
    "faces": ("testing", "compat", "report", "demo", "cli", "__main__"),
}
PLACES = {unit: place for place, unit in enumerate(unit for floor in FLOORS.values() for unit in floor)}

LONG_FILES = {
    "schedule.py": "the docstrings say what every argument is",
    "dataset.py": "one class with one method for every step, by what steps do; two thirds of it are docstrings",
    "loader.py": "one class with what a run can be asked for; half of it is docstrings",
}
LIMIT = 350

# What touches the world. Only the seams and what a person runs by hand (the command line, the demo) may.
WORLD = {"time", "os", "threading", "random", "secrets", "pickle", "marshal", "multiprocessing", "subprocess", "socket"}
FREE = ("cli", "demo")
SEAMS = {SOURCE / "base" / f"{name}.py" for name in ("seams", "machine", "hands")}
# Processes, sockets and shared memory are what these are about; nothing in them decides on an item.
PROCESSES = {SOURCE / "runtime" / "executors" / f"{name}.py" for name in ("processes", "member", "worker", "wire")}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}

HEAVY = ("torch", "jax", "datasets", "pandas", "hypothesis", "rich", "typer", "tokenizers", "matplotlib")


def unit_of(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its own name."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def place_of(unit: str) -> int:
    assert unit in PLACES, f"{unit} stands on no floor: give it a place in tests/test_house.py"
    return PLACES[unit]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, absolute, wherever in the file the import stands."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if full in MODULES else base


def inner(path: Path) -> set[Path]:
    """The files of the package that a file imports."""
    return {MODULES[name] for name in imported(path) if name in MODULES}


def test_there_is_something_to_hold() -> None:
    assert {"__init__.py", "dataset.py", "loader.py"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_down(path: Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":
        return
    for target in inner(path):
        below = unit_of(target)
        if below == "__init__":
            assert unit in FLOORS["faces"], f"{module_of(path)} imports the public package; only the faces may"
        elif below != unit:
            assert place_of(below) < place_of(unit), f"{module_of(path)} imports {module_of(target)}, not below it"


CORE = ("base", "orders", "folds", "mixing", "pack", "streams", "ops", "graph", "runtime")


def test_a_name_means_one_thing_in_the_core() -> None:
    defined: dict[str, list[str]] = {}
    for path in FILES:
        if unit_of(path) in CORE or path.parent == SOURCE:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(module_of(path))
    twice = {name: places for name, places in defined.items() if len(places) > 1}
    assert not twice, f"names with several meanings: {twice}"


def test_few_files_stand_at_the_root() -> None:
    root = sorted(path.name for path in SOURCE.glob("*.py"))
    assert len(root) <= 12, f"{len(root)} modules at the root, {', '.join(root)}: find a room for the new one"


def test_no_import_cycle() -> None:
    # A module outside a folder that imports the folder imports its __init__ first; that edge is in `inner`.
    graph = {module_of(path): {module_of(target) for target in inner(path)} - {module_of(path)} for path in FILES}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    "path", [path for path in FILES if unit_of(path) not in FREE and path not in PROCESSES | SEAMS], ids=module_of
)
def test_only_the_seams_touch_the_world(path: Path) -> None:
    for name in imported(path):
        top = name.partition(".")[0]
        assert top not in WORLD or name == "os.path", (
            f"{module_of(path)} imports {name}; go through penstock.base.seams, or machine"
        )
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno} calls {called}"
            assert not called.endswith("yaml.load"), f"{path.name}:{node.lineno}: data is not code, use yaml.safe_load"
            assert not called.startswith(("np.random.seed", "np.random.rand")), (
                f"{path.name}:{node.lineno}: global random"
            )


NODES = {"Read", "Reorder", "Mix", "Each", "Hold", "Head", "Rest", "Again"}
# Writing a mixture file is going back over what a tree was made of, and says of every step whether a file can hold it.
TAKES_TREES_APART = {"mixture_files/unbuild.py"}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_only_the_graph_matches_over_kinds_of_nodes(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    if name.startswith("graph/") or name in TAKES_TREES_APART:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.MatchClass):
            asked = {ast.unparse(node.cls)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = set(ast.unparse(node.args[1]).split(" | "))
        else:
            continue
        assert not asked & NODES, f"{name}:{node.lineno} asks of which kind a node is: that belongs in graph/"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_are_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    name = path.relative_to(SOURCE).as_posix()
    if name in LONG_FILES:
        assert lines > LIMIT, f"{name} is short again: take it out of LONG_FILES"
    else:
        assert lines <= LIMIT, f"{name} has {lines} lines: split it, or give the reason in LONG_FILES"


def test_the_map_shows_every_room() -> None:
    docs, rooms = ROOT / "docs", list(PLACES)
    text, picture = ((docs / name).read_text(encoding="utf-8") for name in ("house.md", "house.svg"))
    assert re.findall(r"\*\*`(\w+)`\*\*", text) == rooms, "docs/house.md: a paragraph for every room, floor by floor"
    drawn = re.findall(r'class="room"[^>]*>(\w+)<', picture)
    assert sorted(drawn) == sorted(rooms), "docs/house.svg: a box for every room"
    assert all((SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file() for room in rooms)


def test_the_pages_inside_name_files_that_exist() -> None:
    for page in ("house.md", "position.md"):
        for name in re.findall(r"`(?:src/penstock/)?([\w/]+\.py)`", (ROOT / "docs" / page).read_text(encoding="utf-8")):
            assert (SOURCE / name).is_file() or (ROOT / name).is_file(), f"docs/{page} names {name}"


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # users compile once
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("used", "unwanted"), [("penstock.errors", (*HEAVY, "numpy", "pyarrow")), ("penstock.mix, penstock.Loader", HEAVY)]
)
def test_import_is_light(used: str, unwanted: tuple[str, ...]) -> None:
    loaded = fresh(f"import sys, penstock; {used}; print(*(name for name in {unwanted!r} if name in sys.modules))")
    assert loaded == "", f"import penstock; {used}: loads {loaded}"


def test_import_is_fast() -> None:
    # Measured against what it stands on, in the same interpreter, so that a slow machine is not a failure.
    code = (
        "import time\n"
        "a = time.process_time()\n"
        "import numpy, pyarrow, pyarrow.parquet, pyarrow.ipc, pyarrow.csv\n"
        "b = time.process_time()\n"
        "import penstock; penstock.mix, penstock.Loader\n"
        "print(b - a, time.process_time() - b)"
    )
    times = [[float(word) for word in fresh(code).split()] for _ in range(3)]
    base, own = (min(column) for column in zip(*times, strict=True))
    assert own < 2 * base, (
        f"import penstock takes {own:.2f} s of the processor on top of {base:.2f} s for numpy and pyarrow"
    )


@pytest.mark.parametrize("name", sorted(penstock.__all__))
def test_public_names_have_an_example(name: str) -> None:
    thing = getattr(penstock, name)
    if isinstance(thing, str | int) or inspect.ismodule(thing):
        return
    text = inspect.getdoc(thing) or ""
    assert text, f"penstock.{name} has no docstring"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return
    found = doctest.DocTestFinder(recurse=False).find(thing, name)
    assert any(test.examples for test in found), f"the docstring of penstock.{name} has no example (>>>)"


@pytest.mark.parametrize("name", sorted(set(dir(penstock.Dataset))))
def test_public_methods_are_documented(name: str) -> None:
    if name.startswith("_"):
        return
    text = inspect.getdoc(getattr(penstock.Dataset, name)) or ""
    assert text, f"Dataset.{name} has no docstring"
    assert ">>>" in text, f"the docstring of Dataset.{name} has no example (>>>)"


def test_all_is_sorted_and_true() -> None:
    assert list(penstock.__all__) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert hasattr(penstock, name) and name in dir(penstock)
    assert penstock.types.is_source, "a module of the package is imported when it is first used, too"
    with pytest.raises(AttributeError, match=r"write ps.Loader\(ds\)"):
        _ = getattr(penstock, "DataLoader")  # noqa: B009 - type checkers know that it is not there
    for name in ("__wrapped__", "_hidden", "not a name", "nothing"):
        assert not hasattr(penstock, name)


def test_types_are_shipped() -> None:
    assert (Path(inspect.getfile(penstock)).parent / "py.typed").is_file()


def test_core_needs_little() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {requirement.split(">")[0] for requirement in project["dependencies"]} == {"numpy", "pyarrow"}


def test_every_module_imports() -> None:
    for name in MODULES:
        if not name.endswith("__main__"):
            importlib.import_module(name)


def called() -> Iterator[tuple[str, str, inspect.Signature]]:
    """What users call: its name, its docstring and what it takes."""
    kinds = (penstock.Dataset, penstock.Loader, type(penstock.from_sequence("a").plan), penstock.DatasetIterator)
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if not (inspect.isclass(thing) and issubclass(thing, Exception)):
            yield name, inspect.getdoc(thing) or "", inspect.signature(thing)
    for kind in (*kinds, penstock.Schedule):
        for name, method in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", inspect.getdoc(method) or "", inspect.signature(method)


CALLED = {name: (text, signature.parameters) for name, text, signature in called()}
# Texts that are names of the user's, and what any object may be.
TEXTS = {"name", "group_by", "source", "column", "lengths", "split", "mask", "uid", "key"}
ANYTHING = {("from_sequence", "seq")}


@pytest.mark.parametrize("name", sorted(CALLED))
def test_arguments_are_typed_and_documented(name: str) -> None:
    text, parameters = CALLED[name]
    for argument, parameter in parameters.items():
        said = str(parameter.annotation)
        if argument == "self":
            continue
        assert said != "Any" or (name, argument) in ANYTHING, f"{name}({argument}): say what it is"
        assert said.removesuffix(" | None") != "str" or argument in TEXTS, f"{name}({argument}): a Literal, if a choice"
        assert parameter.kind != parameter.VAR_KEYWORD or said == "P.kwargs", f"{name}(**{argument}): spell them out"
        assert re.search(rf"^ +\**{argument}: ", text, re.MULTILINE), f"the docstring of {name} does not say {argument}"


def test_choices_are_defined_once() -> None:
    known = {*KINDS, "energon"}
    assert set(get_args(FormatName)) == known
