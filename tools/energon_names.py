"""List the public API of Megatron-Energon, and the parts of it that the compatibility package has.

Four columns: the names that `megatron.energon` exports, its submodules, the arguments of those
names, and the public methods and properties of its classes. An argument counts as present if a
call with it binds; a setting that raises `ConfigError` does not count, so the script asks
`penstock.compat.energon` for the settings that it rejects.

    python tools/energon_names.py              the counts, and every missing entry
    python tools/energon_names.py --json       the same as JSON
    python tools/energon_names.py --markdown   the table of docs/from_energon.md
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

THEIRS, OURS = "megatron.energon", "penstock.compat.energon"
COLUMNS = ("names", "submodules", "arguments", "methods")

Report = dict[str, tuple[int, list[str]]]
"""Column -> the number of entries, and the missing ones."""


def list_submodules(package: str) -> list[str]:
    """Return the submodules of a package, relative to it.

    Args:
        package: name of the package.
    """
    module = importlib.import_module(package)
    return [
        entry.name.removeprefix(f"{package}.")
        for entry in pkgutil.walk_packages(module.__path__, f"{package}.")
    ]


def list_arguments(value: Any) -> list[str]:
    """Return the names of the public arguments of a function or class.

    Args:
        value: the function or class.
    """
    if not callable(value) or (inspect.isclass(value) and issubclass(value, BaseException | dict)):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.VAR_KEYWORD
        and (parameter.name.startswith("__") or not parameter.name.startswith("_"))
    ]


def list_methods(value: Any) -> list[str]:
    """Return the public methods and properties of a class, without fields.

    Args:
        value: the class.
    """
    if not inspect.isclass(value) or issubclass(value, BaseException | dict):
        return []
    fields = getattr(value, "__dataclass_fields__", {})
    return [name for name in dir(value) if not name.startswith("_") and name not in fields]


def accepts(value: Any, argument: str, rejected: Mapping[str, Iterable[str]]) -> bool:
    """Return whether a function or class takes an argument by name.

    Args:
        value: the function or class.
        argument: name of the argument.
        rejected: names of settings that raise, by function or class.
    """
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return False
    if argument in rejected.get(getattr(value, "__name__", ""), ()):
        return False
    if argument in parameters:
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def compare() -> Report:
    """Return the entries of each column, and the missing ones."""
    theirs, ours = importlib.import_module(THEIRS), importlib.import_module(OURS)
    rejected: Mapping[str, Iterable[str]] = getattr(ours, "REJECTED_SETTINGS", {})
    report: Report = {}
    names = list(theirs.__all__)
    report["names"] = (len(names), [name for name in names if not hasattr(ours, name)])
    modules = list_submodules(THEIRS)
    report["submodules"] = (len(modules), [name for name in modules if not is_importable(name)])
    arguments, methods = list[tuple[str, bool]](), list[tuple[str, bool]]()
    for name in names:
        value, own = getattr(theirs, name), getattr(ours, name, None)
        for argument in list_arguments(value):
            present = own is not None and accepts(own, argument, rejected)
            arguments.append((f"{name}({argument})", present))
        for method in list_methods(value):
            methods.append((f"{name}.{method}", own is not None and hasattr(own, method)))
    for column, entries in (("arguments", arguments), ("methods", methods)):
        report[column] = (len(entries), [entry for entry, present in entries if not present])
    return report


def is_importable(submodule: str) -> bool:
    """Return whether the compatibility package has a submodule.

    Args:
        submodule: its name, relative to the package.
    """
    try:
        importlib.import_module(f"{OURS}.{submodule}")
    except ImportError:
        return False
    return True


def format_markdown(report: Report) -> str:
    """Return the table of the documentation.

    Args:
        report: the entries of each column.
    """
    lines = ["| | here | in Energon |", "|---|---|---|"]
    lines += [
        f"| {column} | {report[column][0] - len(report[column][1])} | {report[column][0]} |"
        for column in COLUMNS
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description="Compare Energon's public API with this package.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    options = parser.parse_args()
    report = compare()
    if options.json:
        print(
            json.dumps({name: {"all": n, "missing": list_} for name, (n, list_) in report.items()})
        )
    elif options.markdown:
        print(format_markdown(report))
    else:
        for column in COLUMNS:
            count, missing = report[column]
            print(f"{column}: {count - len(missing)} of {count}")
            for entry in missing:
                print(f"  {entry}")


if __name__ == "__main__":
    main()
