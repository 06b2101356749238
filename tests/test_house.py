"""Rules of the source tree: import floors, seams, light imports, examples and typed arguments of public names.

Each file is parsed once. Each rule is one test that reports every violation with its file and line.
"""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, get_args

import pytest

import penstock
from helpers import FRAMEWORKS
from penstock.sources.paths import ALL_FORMATS, FormatName

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"

# A folder or a module of the root may import those before it.
UNITS = (
    *("types", "errors", "arguments", "schedule", "arrays"),
    *("engine", "stores", "text", "sources"),
    *(
        "replacements",
        "leases",
        "saves",
        "plan",
        "explore",
        "writing",
        "dataset",
        "inputs",
        "loader",
        "tuning",
        "mixture_files",
    ),
    *("media", "tasks", "integrations", "testing", "compat", "report", "cli", "__main__"),
)
ENGINE = (
    "base",
    "orders",
    "grouping",
    "mixing",
    "packing",
    "streams",
    "steps",
    "changes",
    "runtime",
    "plan",
)
MAY_IMPORT_THE_PUBLIC_PACKAGE = UNITS[UNITS.index("testing") :]

# Modules that touch the system. Only the seams, the executors and what a person runs by hand may import them.
SYSTEM = {
    "time",
    "os",
    "threading",
    "random",
    "secrets",
    "pickle",
    "marshal",
    "multiprocessing",
    "subprocess",
    "socket",
}
MAY_TOUCH_THE_SYSTEM = {
    *(f"engine/base/{name}.py" for name in ("seams", "machine", "thread_pool")),
    *(
        f"engine/runtime/executors/{name}.py"
        for name in ("pool", "processes", "worker", "connection", "serialization", "shared_memory")
    ),
    *("stores/storage.py", "stores/network.py", "sources/seeding.py"),
    "compat/energon/allowed.py",  # loads pickles that the caller allows by name
    "integrations/shared_reader.py",  # connects the processes of a node
}
RUN_BY_HAND = ("cli",)
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}

HEAVY = (
    "torch",
    "jax",
    "datasets",
    "pandas",
    "hypothesis",
    "rich",
    "typer",
    "tokenizers",
    "matplotlib",
)


# ---------------------------------------------------------------- the files, each parsed once


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = {module_of(path): name for name, path in FILES.items()}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def unit_of(name: str) -> str:
    """The folder of a file, or its own name at the root."""
    return name.partition("/")[0].removesuffix(".py")


def modules_in(name: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The line and absolute name of every module that these nodes of a file import."""
    module = module_of(FILES[name])
    package = (module if name.endswith("__init__.py") else module.rpartition(".")[0]).split(".")
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.stmt | ast.ExceptHandler) and not is_function and not is_for_types:
            yield child
            yield from at_import(child)


@cache
def imports(name: str) -> list[tuple[int, str]]:
    """The line and name of every module that a file imports, also inside functions."""
    return list(modules_in(name, ast.walk(tree(name))))


@cache
def nodes(name: str) -> list[ast.Call | ast.MatchClass]:
    return [node for node in ast.walk(tree(name)) if isinstance(node, ast.Call | ast.MatchClass)]


def report(violations: list[str]) -> None:
    """Fail with all violations, one a line."""
    assert not violations, "\n" + "\n".join(violations)


# ---------------------------------------------------------------- rules of the source


def upward_imports() -> dict[str, set[str]]:
    """The imports that do not point down: for every file, the folders or modules that it imports."""
    found: dict[str, set[str]] = {}
    for name in FILES:
        if name == "__init__.py":
            continue
        unit = unit_of(name)
        for _, module in imports(name):
            target = MODULES.get(module)
            if target == "__init__.py" and unit not in MAY_IMPORT_THE_PUBLIC_PACKAGE:
                found.setdefault(name, set()).add("penstock")
            if target is None or target == "__init__.py":
                continue
            below = unit_of(target)
            if below != unit and UNITS.index(below) > UNITS.index(unit):
                found.setdefault(name, set()).add(below)
            elif below == unit == "engine" and "/" in name.removeprefix("engine/"):
                inner, target = (path.split("/")[1] for path in (name, target))
                if inner != target and ENGINE.index(target) > ENGINE.index(inner):
                    found.setdefault(name, set()).add(f"engine/{target}")
    return found


def test_imports_go_down() -> None:
    units = {unit_of(name) for name in FILES} - {"__init__"}
    assert units == set(UNITS), "give every folder and module its place in UNITS"
    folders = {name.split("/")[0] for name in FILES if "/" in name}
    assert len(folders) <= 15, f"{len(folders)} folders at the top"
    report(
        [
            f"{name}:1: imports {', '.join(sorted(targets))}, which is above it"
            for name, targets in upward_imports().items()
        ]
    )


def test_no_import_cycle() -> None:
    # An import of a folder imports its __init__ first; `imports` has that edge.
    graph = {
        name: {MODULES[module] for _, module in imports(name) if module in MODULES} - {name}
        for name in FILES
    }
    assert list(TopologicalSorter(graph).static_order())


def test_a_name_means_one_thing_in_the_core() -> None:
    defined: dict[str, list[str]] = {}
    for name in FILES:
        if (unit_of(name) == "engine" and not name.startswith("engine/plan/")) or "/" not in name:
            for node in tree(name).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith(
                    "_"
                ):
                    defined.setdefault(node.name, []).append(f"{name}:{node.lineno}")
    report(
        [
            f"{', '.join(places)}: all define {name}"
            for name, places in defined.items()
            if len(places) > 1
        ]
    )


def test_only_the_seams_touch_the_system() -> None:
    violations = list[str]()
    for name in FILES:
        if unit_of(name) in RUN_BY_HAND or name in MAY_TOUCH_THE_SYSTEM:
            continue
        for line, module in imports(name):
            if module.partition(".")[0] in SYSTEM and module != "os.path":
                violations.append(
                    f"{name}:{line}: imports {module}; use penstock.engine.base.seams or machine"
                )
        for node in nodes(name):
            function = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if function in FORBIDDEN_CALLS:
                violations.append(f"{name}:{node.lineno}: calls {function}")
            if function.endswith("yaml.load"):
                violations.append(f"{name}:{node.lineno}: use yaml.safe_load, data is not code")
            if function.startswith(("np.random.seed", "np.random.rand")):
                violations.append(f"{name}:{node.lineno}: uses global random state")
    report(violations)


def step_classes() -> dict[str, str]:
    """Return the file of each class that derives from the base of all steps."""
    files, names = {"Step": "engine/steps/step.py"}, set[str]()
    while names != set(files):
        names = set(files)
        for name in FILES:
            if name.startswith("engine/steps/"):
                for node in tree(name).body:
                    if isinstance(node, ast.ClassDef):
                        bases = {ast.unparse(base) for base in node.bases}
                        files |= {node.name: name} if bases & names else {}
    return files


def test_only_the_file_of_a_step_checks_for_its_class() -> None:
    steps, violations = step_classes(), list[str]()
    assert {"Read", "Mix", "Map", "Batch", "Group", "Zip"} <= steps.keys()
    for name in FILES:
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree(name))
            if isinstance(node, ast.ImportFrom) and "steps" in (node.module or "") + name
            for alias in node.names
        }
        for node in nodes(name):
            if isinstance(node, ast.MatchClass):
                classes = {ast.unparse(node.cls)}
            elif ast.unparse(node.func) in ("isinstance", "issubclass"):
                classes = set(re.split(r"[^.\w]+", ast.unparse(node.args[1])))
            else:
                continue
            if checked := sorted(
                each for each in classes & steps.keys() & imported if steps[each] != name
            ):
                violations.append(
                    f"{name}:{node.lineno}: checks for {', '.join(checked)}; give Step a method"
                )
    report(violations)


def test_few_files_are_at_the_root() -> None:
    root = [name for name in FILES if "/" not in name]
    assert len(root) <= 14, (
        f"{len(root)} modules at the root ({', '.join(root)}): put the new one into a folder"
    )
    folders = {name.split("/")[0] for name in FILES if "/" in name}
    assert len(folders) <= 15, f"{len(folders)} folders at the top: {', '.join(sorted(folders))}"


# ---------------------------------------------------------------- the docs of the source


def test_the_architecture_page_describes_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"\*\*`(\w+)`\*\*", text)) == UNITS, (
        "docs/architecture.md: a paragraph for each, in order"
    )
    assert tuple(re.findall(r"^\| `(\w+)` \| [^`]", text, re.MULTILINE)) == ENGINE, (
        "a line for each folder of engine/"
    )
    assert {path.name for path in (SOURCE / "engine").iterdir() if path.is_dir()} - {
        "__pycache__"
    } == set(ENGINE)


def load_tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_pictures_of_imports_are_those_of_today() -> None:
    for path, picture in load_tool("import_picture").draw_all().items():
        assert path.read_text(encoding="utf-8") == picture, "run python tools/import_picture.py"


def test_the_architecture_page_gives_a_reason_for_each_import_in_the_engine() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \| \w", text, re.MULTILINE)
    edges = load_tool("import_picture").collect_edges(SOURCE / "engine", list(ENGINE))
    order = {name: number for number, name in enumerate(ENGINE)}
    assert listed == sorted(edges, key=lambda edge: (order[edge[0]], order[edge[1]]))


def test_the_pages_about_the_source_name_files_that_exist() -> None:
    violations = list[str]()
    for page in ("architecture.md", "position.md"):
        for line, text in enumerate(
            (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines(), 1
        ):
            for name in re.findall(r"`(?:src/penstock/)?([\w/]+\.py)`", text):
                if name not in FILES and not (ROOT / name).is_file():
                    violations.append(f"docs/{page}:{line}: there is no {name}")
    report(violations)


NO_MEMBERS = {"penstock.formats", "penstock.items", "penstock.waited_seconds"}
"""A group of entry points, and metrics."""


def test_dotted_names_in_the_source_exist() -> None:
    violations = list[str]()
    for name, path in FILES.items():
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for dotted in re.findall(r"`(penstock(?:\.\w+)+)(?:\(.*?\))?`", text):
                try:
                    if dotted not in NO_MEMBERS:
                        pkgutil.resolve_name(dotted)
                except (ImportError, AttributeError):
                    violations.append(f"{name}:{line}: there is no {dotted}")
    report(violations)


# ---------------------------------------------------------------- imports


def fresh(code: str, *arguments: str) -> str:
    """The output of a new interpreter."""
    env = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }  # users compile once
    done = subprocess.run(
        [sys.executable, *arguments, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    code = """
import sys, penstock
penstock.errors
print([name for name in (*{heavy}, "numpy", "pyarrow") if name in sys.modules])
penstock.mix, penstock.Loader
print([name for name in {heavy} if name in sys.modules])
"""
    assert fresh(code.replace("{heavy}", repr(HEAVY))) == "[]\n[]"


@pytest.mark.slow  # measures time, three times
def test_import_is_fast() -> None:
    # Compared with NumPy and pyarrow in the same interpreter, so that a slow machine is not a failure.
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
        f"import penstock takes {own:.2f} s of CPU on top of {base:.2f} s for numpy and pyarrow"
    )


IMPORT_ALL = """
import importlib, sys, traceback
failed = {}
for name in {names}:
    try:
        importlib.import_module(name)
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        failed.setdefault(f"{frame.filename}:{frame.lineno}: {error!r}", []).append(name)
sys.exit("\\n".join(f"{where} when importing {', '.join(names)}" for where, names in failed.items()) or 0)
"""


def needs_a_framework() -> set[str]:
    """The files whose import imports a framework, directly or through others."""
    graph = {
        name: {module for _, module in modules_in(name, at_import(tree(name)))} for name in FILES
    }
    needing = {
        name
        for name, modules in graph.items()
        if {module.partition(".")[0] for module in modules} & set(FRAMEWORKS)
    }
    while (
        more := {
            name for name in graph if {MODULES.get(module) for module in graph[name]} & needing
        }
        - needing
    ):
        needing |= more
    return needing


def test_every_module_imports() -> None:
    heavy = needs_a_framework()
    light = [
        module for module, name in MODULES.items() if name not in heavy and name != "__main__.py"
    ]
    assert len(light) > 0.9 * len(FILES)
    fresh(IMPORT_ALL.replace("{names}", repr(light)), "-W", "error")


@pytest.mark.slow  # imports every framework
def test_every_module_that_needs_a_framework_imports() -> None:
    fresh(
        IMPORT_ALL.replace(
            "{names}", repr([module_of(FILES[name]) for name in sorted(needs_a_framework())])
        )
    )


# ---------------------------------------------------------------- public names


def public() -> Iterator[tuple[str, Any]]:
    """Every public function and class that is no exception, and every public method."""
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if not isinstance(value, str | int) and not inspect.ismodule(value):
            yield name, value
    kinds = (
        penstock.Dataset,
        penstock.Loader,
        type(penstock.from_sequence("a").plan),
        penstock.DatasetIterator,
    )
    for kind in (*kinds, penstock.Schedule):
        for name, value in inspect.getmembers(kind):
            if not name.startswith("_") and (callable(value) or kind is penstock.Dataset):
                yield f"{kind.__name__}.{name}", value


PUBLIC = dict(public())
# Strings that users choose freely, and arguments that take any object.
FREE_TEXT = {
    "name",
    "group_by",
    "source",
    "column",
    "lengths",
    "split",
    "mask",
    "uid",
    "key",
    "rest",
}
ANY_OBJECT = {("from_sequence", "seq")}


def place(value: Any) -> str:
    """Return the file and line that define a public name."""
    value = inspect.unwrap(getattr(value, "fget", value))
    try:
        return (
            f"{Path(inspect.getfile(value)).relative_to(SOURCE)}:{inspect.getsourcelines(value)[1]}"
        )
    except (TypeError, OSError, ValueError):
        return "?"


def test_public_names_have_an_example() -> None:
    violations = list[str]()
    for name, value in PUBLIC.items():
        text = inspect.getdoc(value) or ""
        if not text:
            violations.append(f"{place(value)}: {name} has no docstring")
        elif inspect.isclass(value) and issubclass(value, Exception):
            continue
        elif "." not in name:
            tests = doctest.DocTestFinder(recurse=False).find(value, name)
            if not any(test.examples for test in tests):
                violations.append(f"{place(value)}: the docstring of {name} has no example (>>>)")
        elif name.startswith("Dataset.") and ">>>" not in text:
            violations.append(f"{place(value)}: the docstring of {name} has no example (>>>)")
    report(violations)


def test_arguments_are_typed_and_documented() -> None:
    violations = list[str]()
    for name, value in PUBLIC.items():
        if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        text = inspect.getdoc(value) or ""
        for argument, parameter in inspect.signature(value).parameters.items():
            annotation = str(parameter.annotation)
            if argument == "self":
                continue
            wrong = {
                "say what it is": annotation == "Any" and (name, argument) not in ANY_OBJECT,
                "use a Literal, if it is a choice": annotation.removesuffix(" | None") == "str"
                and argument not in FREE_TEXT,
                "spell the keywords out": parameter.kind == parameter.VAR_KEYWORD
                and annotation != "P.kwargs",
                "the docstring leaves it out": not re.search(
                    rf"^ +\**{argument}: ", text, re.MULTILINE
                ),
            }
            violations += [
                f"{place(value)}: {name}({argument}): {why}"
                for why, is_so in wrong.items()
                if is_so
            ]
    report(violations)


def test_docstrings_describe_arguments_that_exist() -> None:
    violations = list[str]()
    for name in FILES:
        for node in ast.walk(tree(name)):
            if not isinstance(node, ast.FunctionDef):
                continue
            section = re.search(
                r"^Args:\n((?:    .*\n?|\n)*)", ast.get_docstring(node) or "", re.MULTILINE
            )
            documented = re.findall(r"^    \*{0,2}(\w+):", section[1], re.M) if section else []
            arguments = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            violations += [
                f"{name}:{node.lineno}: {node.name} has no argument {argument!r}"
                for argument in documented
                if argument not in arguments
            ]
    report(violations)


def test_all_is_sorted_and_true() -> None:
    assert list(penstock.__all__) == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert hasattr(penstock, name) and name in dir(penstock)
    assert penstock.types.is_source, (
        "a module of the package is imported when it is first used, too"
    )
    with pytest.raises(AttributeError, match=r"write ps.Loader\(ds\)"):
        _ = getattr(penstock, "DataLoader")  # noqa: B009 - type checkers know that it is not there
    for name in ("__wrapped__", "_hidden", "not a name", "nothing"):
        assert not hasattr(penstock, name)


def test_choices_are_defined_once() -> None:
    assert set(get_args(FormatName)) == {*ALL_FORMATS, "energon"}


def test_the_package_is_typed_and_needs_little() -> None:
    assert (SOURCE / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {requirement.split(">")[0] for requirement in project["dependencies"]} == {
        "numpy",
        "pyarrow",
    }
