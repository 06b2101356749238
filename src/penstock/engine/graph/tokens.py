"""Dtypes in which sources store tokens, where known without reading, compared with the dtype of the
rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...types import Path, TokenSource
from ..mixing.rules import Weighted
from ..orders import FixedSet
from ..packing import PackedBatches, RowBuilder
from ..steps.function_step import FunctionStep
from ..steps.map import Map
from .nodes import (
    Again,
    Flow,
    Head,
    Hold,
    Mix,
    Read,
    Reorder,
    Rest,
    inputs_of,
    only_input,
    shown_as,
    under,
)


def stored_dtypes(flow: Flow) -> dict[str, np.dtype[Any]]:
    """Return the dtype in which each source below the packing of a flow gives tokens, where that is
    known."""
    match flow:
        case Map(Hold(Hold(below)), PackedBatches()) | Map(Hold(below), RowBuilder()):
            return {
                name: dtype
                for name, source in _sources(below, ())
                if (dtype := _stored_dtype(source)) is not None
            }
        case Mix(flows):
            found = dict[str, np.dtype[Any]]()
            for each in flows:
                found |= stored_dtypes(each)
            return found
        case _:
            below = only_input(flow)
            return {} if below is None else stored_dtypes(below)


def said_of(stored: Mapping[str, object]) -> str:
    """Return stored dtypes in words.

    >>> said_of({"books": "uint16", "web": "int32", "code": "uint16"})
    'uint16 (books, code) and int32 (web)'
    """
    names = dict[str, list[str]]()
    for name, dtype in stored.items():
        names.setdefault(str(dtype), []).append(name)
    return " and ".join(f"{dtype} ({', '.join(each)})" for dtype, each in names.items())


def require_ids_fit(flow: Flow, dtype: np.dtype[Any], step: str) -> None:
    """Raise `ConfigError` if a fully read source in memory holds an id that a dtype cannot hold."""
    for name, source in _sources(flow, (), whole=True):
        if dtype.kind not in "iu" or not isinstance(source, TokenSource):
            continue
        stored = source.token_dtype()
        if stored is None or np.can_cast(stored, dtype):
            continue
        low, high = source.token_range() or (0, 0)
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            wide = "uint64" if high >> 63 else "int64"
            raise ConfigError(
                f"{step}: the source {name!r} holds the id {high if high > limits.max else low}, "
                f"which does not fit into {dtype}; pass dtype={wide!r}"
            )


def _sources(flow: Flow, path: Path, whole: bool = False) -> Iterator[tuple[str, object]]:
    """Return the sources whose documents reach a step unchanged, or the token dtype of a function.

    With `whole`, only sources whose documents all reach it.
    """
    match flow:
        case Read(source, name):
            yield shown_as(path) or name or "data", source
        case Mix(_, _, rule):
            weights = (
                dict(rule.weights)
                if isinstance(rule, Weighted) and isinstance(rule.weights, tuple)
                else {}
            )
            for (below, place), name in zip(inputs_of(flow, path), flow.names, strict=True):
                if weights.get(name, 1) or not whole:
                    yield from _sources(below, place, whole)
        case Map(below, fn) if (made := getattr(fn, "token_dtype", None)) is not None:
            yield from ((name, made) for name, _ in _sources(below, path))
        case Reorder(below, order) if not (whole and isinstance(order, FixedSet)):
            yield from _sources(below, under(flow, path), whole)
        case FunctionStep(below, keeps_values=True) | Head(below) | Rest(below) if not whole:
            yield from _sources(below, path)
        case Again(below):
            yield from _sources(below, path, whole)
        case _:
            return


def _stored_dtype(source: object) -> np.dtype[Any] | None:
    """Return the dtype in which a source gives tokens; None if only reading tells."""
    if isinstance(source, TokenSource):
        return source.token_dtype()
    return cast("np.dtype[Any]", source) if isinstance(source, np.dtype) else None
