"""Canonical JSON, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from ...types import Json

_CANONICAL_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def encode_canonical_text(tree: Json) -> str:
    """Encode a JSON value canonically, with sorted keys."""
    return _CANONICAL_ENCODER.encode(tree)


def encode_canonical_json(tree: Json) -> bytes:
    """Encode a JSON value canonically, as bytes."""
    return encode_canonical_text(tree).encode()


def compute_fingerprint(description: Json) -> str:
    """Return the digest of a description: sixteen hex digits."""
    return hashlib.blake2b(encode_canonical_json(description), digest_size=8).hexdigest()


_PLAIN = frozenset({str, int, bool, type(None)})


def normalize_json(tree: Any) -> Json:
    """Return a JSON value with equal numbers in one spelling: 1.0 and NumPy's 1 become 1."""
    if type(tree) in _PLAIN:
        return tree
    if isinstance(tree, dict) or isinstance(tree, Mapping):  # other mappings take long to check
        entries = cast("Mapping[str, Any]", tree)
        return {
            name: value if type(value) in _PLAIN else normalize_json(value)
            for name, value in entries.items()
        }
    if isinstance(tree, list | tuple):
        return [
            value if type(value) in _PLAIN else normalize_json(value)
            for value in cast("list[Any]", tree)
        ]
    plain: Any = cast(Any, tree).item() if isinstance(tree, np.generic) else tree
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def list_differences(saved: Json, now: Json, where: str = "") -> list[str]:
    """Return the differences of two descriptions of pipelines, one line for each place."""
    if not (isinstance(saved, Mapping) and isinstance(now, Mapping)):
        same = encode_canonical_json(saved) == encode_canonical_json(now)
        change = f"{where or 'pipeline'}: saved {_shorten(saved)}, now {_shorten(now)}"
        return [] if same else [change]
    from difflib import SequenceMatcher

    lines, empty = list[str](), dict[str, Json]()
    was, new = _split_steps(saved), _split_steps(now)
    kinds = [[*(",".join(sorted(step)) for step in steps[:-1]), "last"] for steps in (was, new)]
    for _, i, j, k, m in SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
        for old, other in zip_longest(was[i:j], new[k:m], fillvalue=empty):
            if not where and "read" in old and old["read"] == other.get("read"):
                where = str(old["read"] or "data")  # the only source
            before, after = _name_step(old), _name_step(other)
            if before[0] != after[0]:
                at = f"{where}." if where else ""
                lines += [f"{at}{text}" for text in _describe_change(before, after)]
                continue
            if before[0] in ("limit", "skip"):
                lines += list_differences({before[0]: before[1]}, {before[0]: after[1]}, where)
                continue
            for name in [*old, *(name for name in other if name not in old)]:
                place = f"{where}.{name}" if where else str(name)
                if name not in old:
                    lines.append(f"{place}: new, {_shorten(other[name])}")
                elif name not in other:
                    lines.append(f"{place}: removed, was {_shorten(old[name])}")
                else:
                    lines += list_differences(old[name], other[name], place)
    return lines


_METHODS = {
    "all but": "plan.exclude", "gap": "plan.skip", "skips": "plan.skip", "stride": "shard",
    "replay": "repeat", "weighted": "mix", "flat": "flat_map", "random": "random_map",
    "concat_split": "part", "first_fit": "part", "best_fit": "part",
    "collate": "part", "_only": "part", "join_parts": "part",
    "block shuffle": "shuffle", "window shuffle": "shuffle", "bucket shuffle": "shuffle",
}  # fmt: skip
"""Descriptions of steps whose method has another name; "part" is described by the step around it."""


def _name_step(step: Mapping[str, Json]) -> tuple[str, Json]:
    """Return the method that makes a step, and the argument to show; "" for no step."""
    if step.get("order") == "slice":
        start, count, stride = step.get("start"), step.get("count"), step.get("step")
        return ("shard", "") if stride != 1 else ("skip", start) if start else ("limit", count)
    for key in ("pack", "order", "fold", "mix", "batch", "filter", "flat", "map", "random", "read"):
        value = step.get(key)
        if key in step and not (isinstance(value, Mapping) and "of" in value):
            name = value if isinstance(value, str) else key
            if key in ("pack", "order", "fold", "mix"):
                return _METHODS.get(name, name), ""
            part = _METHODS.get(name) == "part"
            return "part" if part else _METHODS.get(key, key), "" if value == "any" else value
    is_inputs = bool(step) and all(isinstance(value, Mapping) for value in step.values())
    return ("inputs", ", ".join(step)) if is_inputs else ("", "")


def _describe_change(before: tuple[str, Json], after: tuple[str, Json]) -> Iterator[str]:
    """Yield a line for each of two steps that are not of one kind."""
    for (name, value), found in ((before, "only"), (after, "not")):
        if name in ("limit", "skip"):
            saved, now = (value, "none") if found == "only" else ("none", value)
            yield f"{name}: saved {saved}, now {now}"
        elif name not in ("", "part"):
            yield f"{name}({value}): {found} in the saved run"


def _split_steps(description: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Split a description into its steps, from the last one up to its source or its inputs."""
    steps, below = list[dict[str, Json]](), description
    while isinstance(below, Mapping):
        steps.append({name: value for name, value in below.items() if name != "of"})
        below = below.get("of")
    return steps


def _shorten(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
