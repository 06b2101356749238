"""List the keys of the formats that `penstock convert` reads, by what becomes of them.

The lists come from the converters: keys that their code reads, and their tables of keys that are
harmless, lost or noted, with the reasons.

    python tools/conversion_keys.py             the number of keys of each format
    python tools/conversion_keys.py --json      all keys
    python tools/conversion_keys.py --markdown  the tables of docs/converting.md
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
from collections.abc import Iterable, Mapping
from types import ModuleType

from penstock.compat.mixtures import KINDS

_HELPERS = {
    "axolotl": ("axolotl_prompts",),
    "handbook": ("trl", "trl_prompts"),
    "llamafactory": ("llamafactory_prompts",),
    "llm-foundry": ("foundry_prompts",),
    "megatron-shell": ("megatron",),
    "open-instruct": ("handbook",),
    "python": ("marin", "titan"),
    "trl": ("trl_prompts",),
}
"""Format -> other modules of its converter."""
_OF_OTHER_FORMATS = {
    "handbook": ("datasets", "dataset_name", "dataset_config", "data_files", "data_dir"),
    "open-instruct": (
        "columns", "config", "dataset_mixture", "datasets", "id", "split", "test_split_size", "weight",
    ),
}  # fmt: skip
"""Format -> keys that a shared module reads for other formats."""
_READING = frozenset(
    "get text texts number weight count integer flag part parts dataset local".split()
)
"""Methods of a section that carry the key of their first argument over."""
_SHARED_KEYS = {
    "seed_of": ("seed", "data_seed"),
    "per_rank": ("gradient_accumulation_steps",),
    "settle_accelerator": ("accelerator_config",),
    "settle_deepspeed": ("deepspeed",),
}
"""Shared functions, with the keys that they read."""
_SHARED_ARGUMENTS = {
    "length": (1, 3),
    "count_or_default": (1,),
    "hold_out": (1,),
    "plain_split": (1,),
    "per_rank_batch": (2,),
    "_key": (1,),
    "shared": (2,),
}
"""Shared functions, with the positions of their arguments that are keys."""

Outcomes = dict[str, dict[str, list[str]]]
"""Outcome -> reason, "" for keys without one -> keys."""


def collect_keys(kind: str) -> Outcomes:
    """Return the keys of a format by outcome and reason.

    Args:
        kind: the format, a key of `KINDS`.
    """
    modules = [KINDS[kind]]
    modules += [
        importlib.import_module(f"penstock.compat.mixtures.{name}")
        for name in _HELPERS.get(kind, ())
    ]
    carried, harmless = set[str](), set[str]()
    lost, noted = dict[str, set[str]](), dict[str, set[str]]()
    for module in modules:
        _scan(module, carried, lost, noted)
        for name, value in vars(module).items():
            if "HARMLESS" in name and name.startswith("_"):
                harmless |= {*_flatten(value)}
            for label, reasons in (("REPORTED", lost), ("NOTED", noted)):
                if label in name and name.startswith("_") and isinstance(value, Mapping):
                    for reason, keys in value.items():
                        reasons.setdefault(str(reason), set()).update(_flatten(keys))
    for key in _OF_OTHER_FORMATS.get(kind, ()):
        carried.discard(key)
    harmless -= carried | {key for keys in (*lost.values(), *noted.values()) for key in keys}
    return {
        "carried": {"": sorted(carried)},
        "harmless": {"": sorted(harmless)},
        "lost": {reason: sorted(keys) for reason, keys in lost.items() if keys},
        "noted": {reason: sorted(keys) for reason, keys in noted.items() if keys},
    }


def _flatten(value: object) -> Iterable[str]:
    """Yield the texts in nested lists and mappings of keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _flatten(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from _flatten(item)


def _scan(
    module: ModuleType,
    carried: set[str],
    lost: dict[str, set[str]],
    noted: dict[str, set[str]],
) -> None:
    """Add the keys that the code of a module names in calls."""
    constants = {name: value for name, value in vars(module).items() if isinstance(value, str)}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.For):
            loops = [(node.target, node.iter)]
        elif isinstance(node, ast.GeneratorExp | ast.ListComp | ast.DictComp):
            loops = [(loop.target, loop.iter) for loop in node.generators]
        else:
            loops = []
        for target, values in loops:
            if _reads(node, target):
                carried.update(_list_keys(values, module))
        if not isinstance(node, ast.Call):
            continue
        texts = [_text(argument, constants) for argument in node.args]
        if isinstance(node.func, ast.Name):
            carried.update(_SHARED_KEYS.get(node.func.id, ()))
            positions = _SHARED_ARGUMENTS.get(node.func.id, ())
            carried.update(key for at in positions if at < len(texts) and (key := texts[at]))
            if (
                node.func.id in ("_keys", "_first") and len(node.args) > 1
            ):  # of Megatron, in two spellings
                carried.update(_list_keys(node.args[1], module))
            if node.func.id == "length" and len(texts) < 4:
                carried.add("max_steps")
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _READING and node.args:
            first = node.args[0]
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            keys = [_text(choice, constants) for choice in choices]
            carried.update(key for key in keys if key and not set(key) & set(" .{"))
        elif isinstance(node.func, ast.Attribute) and texts and texts[0]:
            method, key = node.func.attr, texts[0]
            if (
                method in ("report", "report_at", "note")
                and len(texts) > 1
                and texts[1]
                and not set(key) & set(" .{")
            ):
                reasons = noted if method == "note" else lost
                reasons.setdefault(texts[1], set()).add(key)


def _reads(loop: ast.AST, target: ast.expr) -> bool:
    """Return whether a loop reads the key that its variable holds, or chooses a key to read."""
    if not isinstance(target, ast.Name):
        return False
    element = getattr(loop, "elt", None)
    chooses = isinstance(element, ast.Name) and element.id == target.id
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in _READING or (chooses and node.func.attr == "has"))
        and bool(node.args)
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id == target.id
        for node in ast.walk(loop)
    )


def _list_keys(values: ast.expr, module: ModuleType) -> list[str]:
    """Return the texts of a tuple in the code, or of a constant of the module."""
    if isinstance(values, ast.Name):
        constant = getattr(module, values.id, ())
        return (
            [key for key in constant if isinstance(key, str)] if isinstance(constant, tuple) else []
        )
    items = values.elts if isinstance(values, ast.Tuple | ast.List) else []
    return [
        item.value
        for item in items
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _text(node: ast.expr, constants: Mapping[str, str]) -> str | None:
    """Return the text of an expression: a constant, a name of one, or the parts of an f-string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
        ]
        return "".join(parts)
    return None


def format_markdown() -> str:
    """Return a section with a table for each format."""
    lines = list[str]()
    for kind in KINDS:
        lines += [f"### {kind}", "", "| outcome | keys |", "|---|---|"]
        for outcome, reasons in collect_keys(kind).items():
            for reason, keys in reasons.items():
                if keys:
                    label = f"{outcome}: {reason}" if reason else outcome
                    shown = ", ".join(f"`{key}`" for key in keys)
                    lines.append(f"| {label.replace('|', ' or ')} | {shown} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    """Print the keys."""
    parser = argparse.ArgumentParser(description="List the keys of foreign formats by outcome.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the docs")
    options = parser.parse_args()
    if options.markdown:
        print(format_markdown())
        return
    keys = {kind: collect_keys(kind) for kind in KINDS}
    if options.json:
        print(json.dumps(keys))
        return
    for kind, outcomes in keys.items():
        counts = {
            outcome: len({key for group in reasons.values() for key in group})
            for outcome, reasons in outcomes.items()
        }
        print(kind, *(f"{count} {outcome}" for outcome, count in counts.items()), sep=", ")


if __name__ == "__main__":
    main()
