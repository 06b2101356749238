"""List the public API of `easydel.data`, and the parts of it that the compatibility package has.

EasyDeL needs an accelerator stack to import, so `--record` reads its source without running it, and
stores names, signatures and defaults in `tools/easydata_api.json`. All other commands compare
`penstock.compat.easydata` with that file. A field counts if a value other than its default has an
effect; a field in `REFUSED_FIELDS` raises `ConfigError` and counts as refused.

    python tools/easydata_names.py              the counts, and every missing entry
    python tools/easydata_names.py --json       the same as JSON
    python tools/easydata_names.py --markdown   the table of docs/from_easydata.md
    python tools/easydata_names.py --refused    the table of refused fields
    python tools/easydata_names.py --record DIR read the folder `easydel` of an unpacked wheel
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

OURS = "penstock.compat.easydata"
API = Path(__file__).with_name("easydata_api.json")
COLUMNS = ("names", "submodules", "names of submodules", "methods", "arguments", "fields")
CONFIG_CLASSES = ("Config", "Inform", "DatasetMixture", "WeightSchedulePoint")
"""Endings of the names of configuration classes."""


# ---------------------------------------------------------------- recording


class Source(NamedTuple):
    """The classes and functions of a package, read without importing it."""

    classes: Mapping[str, ast.ClassDef]
    functions: Mapping[str, ast.FunctionDef]

    def lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """Yield a class and its bases within the package."""
        definition = self.classes[name]
        yield definition
        for base in definition.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name) and inner.id in self.classes:
                yield from self.lineage(inner.id)

    def methods(self, name: str) -> list[str]:
        """Return the public methods and properties of a class."""
        names = {
            item.name
            for definition in self.lineage(name)
            for item in definition.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            and not item.name.startswith("_")
        }
        return sorted(names)

    def fields(self, name: str) -> dict[str, Any]:
        """Return the fields of a dataclass, and their defaults as text."""
        if not self.classes[name].decorator_list:
            return {}
        fields = dict[str, Any]()
        for definition in reversed([*self.lineage(name)]):
            for item in definition.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    default = None if item.value is None else ast.unparse(item.value)
                    if not item.target.id.startswith("_"):
                        fields[item.target.id] = default
        return fields

    def arguments(self, name: str) -> list[str]:
        """Return the arguments of a function, or of the constructor of a class."""
        definition: Any = self.functions.get(name)
        if name in self.classes:
            constructors = [
                item
                for base in self.lineage(name)
                for item in base.body
                if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            ]
            definition = constructors[0] if constructors else None
        if definition is None:
            return []
        arguments = [*definition.args.args, *definition.args.kwonlyargs]
        return [argument.arg for argument in arguments if argument.arg != "self"]


def read_exports(path: Path) -> list[str]:
    """Return the names in `__all__` of a module; without it, its public definitions."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for item in body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__all__":
            return sorted(ast.literal_eval(item.value))
    definitions = (ast.ClassDef, ast.FunctionDef)
    return sorted(
        item.name
        for item in body
        if isinstance(item, definitions) and not item.name.startswith("_")
    )


def record(package: Path) -> dict[str, Any]:
    """Return the API of `easydel.data`.

    Args:
        package: the folder `easydel` of an unpacked wheel.
    """
    data = package / "data"
    files = [*sorted(data.rglob("*.py")), package / "trainers/prompt_transforms.py"]
    classes, functions = dict[str, ast.ClassDef](), dict[str, ast.FunctionDef]()
    for file in files:
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.ClassDef):
                classes[item.name] = item
            elif isinstance(item, ast.FunctionDef):
                functions[item.name] = item
    classes["CPOPreprocessTransform"] = classes["DPOPreprocessTransform"]
    source = Source(classes, functions)
    submodules = {
        ".".join(file.relative_to(data).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files[:-1]
        if file != data / "__init__.py"
    }
    names = read_exports(data / "__init__.py")
    exported = [name for name in names if name in classes]
    return {
        "names": names,
        "submodules": {name: read_exports(file) for name, file in submodules.items()},
        "methods": {name: source.methods(name) for name in exported if source.methods(name)},
        "arguments": {name: source.arguments(name) for name in names if source.arguments(name)},
        "fields": {name: source.fields(name) for name in exported if source.fields(name)},
    }


# ---------------------------------------------------------------- comparing


def compare() -> dict[str, tuple[int, list[str]]]:
    """Return the number of entries of each column, and the missing ones."""
    api, ours = json.loads(API.read_text(encoding="utf-8")), importlib.import_module(OURS)
    methods = [(name, item) for name, items in api["methods"].items() for item in items]
    arguments = [(name, item) for name, items in api["arguments"].items() for item in items]
    fields = [(name, item) for name, items in api["fields"].items() for item in items]
    members = [(name, item) for name, items in api["submodules"].items() for item in items]
    present: dict[str, list[tuple[str, bool]]] = {
        "names": [(name, hasattr(ours, name)) for name in api["names"]],
        "submodules": [(name, import_submodule(name) is not None) for name in api["submodules"]],
        "names of submodules": [
            (f"{module}.{name}", hasattr(import_submodule(module), name))
            for module, name in members
        ],
        "methods": [
            (f"{name}.{item}", hasattr(getattr(ours, name, None), item)) for name, item in methods
        ],
        "arguments": [
            (f"{name}({item})", accepts(getattr(ours, name, None), item))
            for name, item in arguments
        ],
        "fields": [
            (f"{name}.{item}", accepts(getattr(ours, name, None), item)) for name, item in fields
        ],
    }
    return {
        column: (len(entries), [entry for entry, is_present in entries if not is_present])
        for column, entries in present.items()
    }


def import_submodule(name: str) -> Any:
    """Return a submodule of the compatibility package; None if there is none."""
    try:
        return importlib.import_module(f"{OURS}.{name}")
    except ModuleNotFoundError:
        return None


def accepts(value: Any, argument: str) -> bool:
    """Return whether a function or class takes an argument by name."""
    if value is None:
        return False
    parameters = inspect.signature(value).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return argument in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def list_refused() -> Mapping[str, Mapping[str, Any]]:
    """Return the refused fields of the compatibility package, by class."""
    return getattr(importlib.import_module(OURS), "REFUSED_FIELDS", {})


def count_refused() -> tuple[int, int]:
    """Return the refused fields of configuration classes, and the number of all their fields."""
    fields = json.loads(API.read_text(encoding="utf-8"))["fields"]
    classes = {name: items for name, items in fields.items() if name.endswith(CONFIG_CLASSES)}
    refused = sum(
        item in list_refused().get(name, ()) for name, items in classes.items() for item in items
    )
    return refused, sum(map(len, classes.values()))


# ---------------------------------------------------------------- printing


def format_markdown() -> str:
    """Return the table of counts of the documentation."""
    report = compare()
    lines = ["| | here | in EasyData |", "|---|---|---|"]
    lines += [
        f"| {column} | {report[column][0] - len(report[column][1])} | {report[column][0]} |"
        for column in COLUMNS
    ]
    refused, fields = count_refused()
    lines.append(f"| configuration fields with an effect | {fields - refused} | {fields} |")
    return "\n".join(lines)


def format_refused() -> str:
    """Return the table of refused fields of the documentation."""
    lines = ["| field | instead |", "|---|---|"]
    for kind, items in list_refused().items():
        for name, refusal in items.items():
            lines.append(f"| `{kind}.{name}` | {refusal.remedy} |")
    return "\n".join(lines)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description="Compare EasyData's public API with this package.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    parser.add_argument("--refused", action="store_true", help="print the refused fields")
    parser.add_argument("--record", type=Path, metavar="DIR", help="read the folder easydel")
    options = parser.parse_args()
    if options.record:
        API.write_text(json.dumps(record(options.record), indent=1) + "\n", encoding="utf-8")
    elif options.markdown or options.refused:
        print(format_markdown() if options.markdown else format_refused())
    elif options.json:
        report = compare()
        print(
            json.dumps({name: {"all": n, "missing": list_} for name, (n, list_) in report.items()})
        )
    else:
        for column, (count, missing) in compare().items():
            print(f"{column}: {count - len(missing)} of {count}")
            for entry in missing:
                print(f"  {entry}")


if __name__ == "__main__":
    main()
