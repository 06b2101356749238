"""Dtypes in which sources store tokens, where known without reading, compared with the dtype of the
rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...sources import JoinedFiles, SelectedRows
from ...sources.kinds import CompositeType
from ...sources.memory import Tokens
from ...sources.tokens import Windows
from ...sources.tokens.file import MeasuredFile
from ...types import Path
from ..mixing.rules import Weighted
from ..orders import FixedSet
from ..packing import FeatureRows, PackedBatches, Packing
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
        case Map(Hold(Hold(below)), PackedBatches()) | Map(Hold(below), Packing() | FeatureRows()):
            told = {name: _dtype(source) for name, source in _sources(below, ())}
            return {name: dtype for name, dtype in told.items() if dtype is not None}
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
        if (
            dtype.kind not in "iu"
            or not isinstance(source, Tokens)
            or np.can_cast(source.dtype, dtype)
        ):
            continue
        low, high = source.ids() or (0, 0)
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


def _dtype(source: object) -> np.dtype[Any] | None:
    """The dtype in which a source gives tokens; None where only reading tells."""
    match source:
        case np.dtype():
            return source
        case Tokens():
            return source.dtype
        case Windows():
            return _dtype(source.store)
        case SelectedRows():
            return _dtype(source.chain)
        case JoinedFiles():
            first = source.files[0] if len(source.files) else None
            if isinstance(first, MeasuredFile):
                return first.dtype
            lists = {
                name: kind.parts[0][1]
                for name, kind in source.types.items()
                if isinstance(kind, CompositeType)
                and kind.of == "list"
                and source.column in (None, name)
            }
            only = lists.popitem()[1] if len(lists) == 1 else None
            return (
                np.dtype(only)
                if isinstance(only, str) and only.lstrip("u").startswith("int")
                else None
            )
        case _:
            return None
