"""Descriptions of pipelines as plain JSON, for fingerprints, saved states and comparisons.

Names, lengths, settings and functions' names go in; paths, workers and prefetching do not, for they
may not change the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...types import Json
from ..base.canonical_json import encode_canonical_json
from ..mixing.rules import Weighted
from ..packing import PackedBatches, Packing
from ..steps.function_step import FunctionStep, describe_function, describe_keys
from ..steps.map import Map
from .nodes import Again, Batch, Flow, Head, Hold, Mix, Read, Reorder, Rest
from .tail import has_tail


def describe(flow: Flow) -> dict[str, Json]:
    """The description of a tree."""
    match flow:
        case Read():
            return _own(flow)
        case Mix(flows, names):
            return {
                **_own(flow),
                "of": {name: describe(child) for name, child in zip(names, flows, strict=True)},
            }
        case (
            Reorder(below)
            | FunctionStep(below)
            | Hold(below)
            | Head(below)
            | Rest(below)
            | Again(below)
        ):
            return {**_own(flow), "of": describe(below)}


def _own(flow: Flow) -> dict[str, Json]:
    """What a node is, without what lies below it."""
    return cast("dict[str, Json]", _normal(_told(flow)))


def _told(flow: Flow) -> dict[str, Any]:
    match flow:
        case Read(source, name):
            return {"read": name, **cast("dict[str, Json]", source.describe())}
        case Reorder(_, order, seed, name):
            return {**describe_keys(seed, name), **cast("dict[str, Json]", order.describe())}
        case Map(_, PackedBatches(packing)) | Map(_, Packing() as packing):
            return {"pack": packing.describe()}
        case FunctionStep():
            return flow.describe()
        case Hold(_, Batch(n, drop, over_ranks)):
            return {
                "batch": n,
                "drop_remainder": drop,
                **({"over_ranks": True} if over_ranks else {}),
            }
        case Hold(_, fold, size, seed, name):
            assert not isinstance(fold, Batch)
            measured = {} if size is None else {"size": describe_function(size.measure)}
            return {
                **describe_keys(seed, name),
                **cast("dict[str, Json]", fold.describe()),
                **measured,
            }
        case Head(_, n):
            return {"limit": n}
        case Rest(_, n):
            return {"skip": n}
        case Again(_, epochs):
            return {"repeat": epochs}
        case Mix(_, _, rule):
            return rule.describe()


def identity(flow: Flow) -> dict[str, Json]:
    """Describe a tree without the sizes of its last batches, which may change during a run."""
    match flow:
        case Hold(below, Batch()):
            return {"batch": "any", "of": identity(below)}
        case FunctionStep(below) if has_tail(flow):
            return {**_own(flow), "of": identity(below)}
        case _:
            return describe(flow)


def with_lengths(flow: Flow, node: Any) -> Flow:
    """The tree with the mean lengths that a description tells of."""
    if isinstance(flow, Read):
        return flow
    if not isinstance(flow, Mix):
        return replace(flow, flow=with_lengths(flow.flow, node["of"]))
    flows = tuple(
        with_lengths(child, node["of"][name])
        for name, child in zip(flow.names, flow.flows, strict=True)
    )
    rule = flow.rule
    if isinstance(rule, Weighted) and rule.lengths is not None:
        rule = replace(
            rule, lengths=tuple((name, float(node["lengths"][name])) for name in flow.names)
        )
    return replace(flow, flows=flows, rule=rule)


_PLAIN = frozenset({str, int, bool, type(None)})


def _normal(tree: Any) -> Json:
    """Equal numbers in one spelling: 1.0 and NumPy's numbers as well."""
    if type(tree) in _PLAIN:
        return tree
    if isinstance(tree, dict) or isinstance(tree, Mapping):  # what is no dict takes long to ask
        found = cast("Mapping[str, Any]", tree)
        return {
            name: each if type(each) in _PLAIN else _normal(each) for name, each in found.items()
        }
    if isinstance(tree, list | tuple):
        return [each if type(each) in _PLAIN else _normal(each) for each in cast("list[Any]", tree)]
    plain: Any = cast(Any, tree).item() if isinstance(tree, np.generic) else tree
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def difference(saved: Json, now: Json, where: str = "") -> list[str]:
    """How two descriptions differ, one line for each place."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        lines = list[str]()
        if not where and "read" in saved and saved["read"] == now.get("read"):
            where = str(
                saved["read"] or "data"
            )  # the only source; those of a mixture have its names
        for name in [*saved, *(name for name in now if name not in saved)]:
            place = where if name == "of" else f"{where}.{name}" if where else str(name)
            if name not in saved:
                lines.append(f"{place or 'input'}: new, {_short(now[name])}")
            elif name not in now:
                lines.append(f"{place or 'input'}: removed, was {_short(saved[name])}")
            else:
                lines += difference(saved[name], now[name], place)
        return lines
    return (
        []
        if encode_canonical_json(saved) == encode_canonical_json(now)
        else [f"{where or 'pipeline'}: saved {_short(saved)}, now {_short(now)}"]
    )


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
