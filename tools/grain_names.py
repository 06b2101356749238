"""List the public names, arguments and methods of Grain that `penstock.compat.grain` has.

Reads both packages as installed. A name counts once, in the module that defines its public path; an
argument counts for each function, constructor and public method of a name.

    python tools/grain_names.py             totals, and all that is missing
    python tools/grain_names.py --json      the same as JSON
    python tools/grain_names.py --table     the table of docs/from_grain.md
    python tools/grain_names.py --check     fail on anything missing without a reason
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

MODULES = (
    "",
    "checkpoint",
    "constants",
    "experimental",
    "multiprocessing",
    "samplers",
    "sharding",
    "sources",
    "transforms",
    "python",
    "python.experimental",
)
"""Public modules of Grain, below the package."""

PRIVATE = (
    "_src.core.config",
    "_src.core.constants",
    "_src.core.sharding",
    "_src.core.transforms",
    "_src.python.checkpoint.handler",
    "_src.python.data_loader",
    "_src.python.data_sources",
    "_src.python.dataset.base",
    "_src.python.dataset.dataset",
    "_src.python.dataset.sources.parquet_dataset",
    "_src.python.dataset.sources.tfrecord_dataset",
    "_src.python.dataset.transformations.packing",
    "_src.python.dataset.transformations.prefetch",
    "_src.python.dataset.transformations.source",
    "_src.python.ipc.shared_memory_array",
    "_src.python.load",
    "_src.python.operations",
    "_src.python.options",
    "_src.python.record",
    "_src.python.samplers",
)
"""Private modules that public projects import."""

_SLICED = "workers are threads of one process, which divide no files among themselves"
_SEGMENTS = "arrays are memory-mapped files, without segments of `multiprocessing`"

REASONS = {
    "experimental.InterleaveIterDataset.set_slice": _SLICED,
    "experimental.ParquetIterDataset.set_slice": _SLICED,
    "multiprocessing.SharedMemoryArray.close_shm_async": _SEGMENTS,
    "multiprocessing.SharedMemoryArray.from_shared_memory": _SEGMENTS,
}
"""Missing members that stay missing, with the reason; a method stands for its arguments."""


def find_reason(member: str) -> str:
    """Return the reason why a member is missing; empty without one."""
    return REASONS.get(member.partition("(")[0], "")


@dataclass
class Comparison:
    """Members of Grain, and those that the compatibility package lacks.

    A module is written as its path, a name as `module.name`, an argument as `name(argument)` and a
    method as `name.method`.
    """

    modules: list[str] = field(default_factory=list[str])
    names: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])
    methods: list[str] = field(default_factory=list[str])
    missing: set[str] = field(default_factory=set[str])

    def groups(self) -> dict[str, list[str]]:
        """Return the members by kind."""
        return {
            "modules": self.modules,
            "names": self.names,
            "arguments": self.arguments,
            "methods": self.methods,
        }


def list_names(module: ModuleType) -> list[str]:
    """Return the public names of a module, without modules."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    )


def list_arguments(value: Any) -> list[str]:
    """Return the names of the arguments of a callable."""
    if not callable(value) or getattr(value, "_is_protocol", False):
        return []
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not parameter.name.startswith("_")
    ]


def accepts(value: Any, argument: str) -> bool:
    """Return whether a callable takes an argument."""
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return callable(value)
    return argument in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def list_methods(value: Any, counted: set[int]) -> list[str]:
    """Return the public methods and properties of a class, without those of other public classes."""
    if not inspect.isclass(value):
        return []
    names = set[str]()
    for kind in inspect.getmro(value):
        if kind is not value and id(kind) in counted:
            break
        for owner in (kind, *inspect.getmro(type(kind))):
            if owner.__module__.split(".")[0] == "grain":
                names |= {name for name in vars(owner) if not name.startswith("_")}
    return sorted(name for name in names if hasattr(value, name))


def compare(theirs: str, ours: str) -> Comparison:
    """Compare two packages by name."""
    result, seen = Comparison(), set[int]()
    for path in (*MODULES, *PRIVATE):
        result.modules.append(path or theirs)
        module = importlib.import_module(f"{theirs}.{path}".rstrip("."))
        try:
            other: Any = importlib.import_module(f"{ours}.{path}".rstrip("."))
        except ImportError:
            result.missing.add(path)
            other = None
        if path in PRIVATE:
            continue
        for name in list_names(module):
            value, label = getattr(module, name), f"{path}.{name}".lstrip(".")
            first = id(value) not in seen or not callable(value)
            seen.add(id(value))
            result.names.append(label)
            if other is None or not hasattr(other, name):
                result.missing.add(label)
                found = None
            else:
                found = getattr(other, name)
            if first:
                _compare_members(result, label, value, found, seen)
    return result


def _compare_members(
    result: Comparison, label: str, value: Any, found: Any, counted: set[int]
) -> None:
    for argument in list_arguments(value):
        result.arguments.append(f"{label}({argument})")
        if found is None or not accepts(found, argument):
            result.missing.add(f"{label}({argument})")
    for name in list_methods(value, counted):
        result.methods.append(f"{label}.{name}")
        has = found is not None and (
            hasattr(found, name) or name in getattr(found, "__annotations__", {})
        )
        if not has:
            result.missing.add(f"{label}.{name}")
        method = getattr(value, name)
        for argument in list_arguments(method):
            if argument in ("self", "cls"):
                continue
            result.arguments.append(f"{label}.{name}({argument})")
            if not has or not accepts(getattr(found, name, None), argument):
                result.missing.add(f"{label}.{name}({argument})")


def count_present(comparison: Comparison) -> Iterator[tuple[str, int, int]]:
    """Yield each kind of member, the number present, and the number of all."""
    for kind, members in comparison.groups().items():
        yield kind, sum(member not in comparison.missing for member in members), len(members)


def format_table(comparison: Comparison) -> str:
    """Return the numbers as a Markdown table, with the reasons for what is missing."""
    lines = ["| | of Grain | here |", "|---|---:|---:|"]
    lines += [f"| {kind} | {total} | {here} |" for kind, here, total in count_present(comparison)]
    absent = sorted(comparison.missing)
    if absent:
        lines += ["", "| missing | reason |", "|---|---|"]
        lines += [f"| `{member}` | {find_reason(member)} |" for member in absent]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--table", action="store_true", help="print a Markdown table")
    parser.add_argument("--check", action="store_true", help="fail on anything without a reason")
    options = parser.parse_args(arguments)
    comparison = compare("grain", "penstock.compat.grain")
    counts = list(count_present(comparison))
    if options.json:
        numbers = {kind: {"present": here, "all": total} for kind, here, total in counts}
        print(json.dumps({"counts": numbers, "missing": sorted(comparison.missing)}, indent=2))
    elif options.table:
        print(format_table(comparison))
    else:
        for kind, here, total in counts:
            print(f"{kind:10} {here:4} of {total}")
        for member in sorted(comparison.missing):
            print(f"  {member:60} {find_reason(member)}".rstrip())
    unexplained = [member for member in sorted(comparison.missing) if not find_reason(member)]
    if options.check and unexplained:
        print(f"without a reason: {', '.join(unexplained)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
