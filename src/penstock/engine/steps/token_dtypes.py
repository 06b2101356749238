"""Dtypes in which sources store tokens, where known without reading, compared with the dtype of the
rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...types import TokenSource
from ..packing import PackedBatches, RowBuilder
from .step import Step


def stored_dtypes(step: Step) -> dict[str, np.dtype[Any]]:
    """Return the dtype in which each source below the packing stores tokens, where it is known."""
    builders = [fn for fn in step.functions if isinstance(fn, PackedBatches | RowBuilder)]
    if not builders:
        dtypes = dict[str, np.dtype[Any]]()
        for child in step.children:
            dtypes |= stored_dtypes(child)
        return dtypes
    levels = 3 if isinstance(builders[0], PackedBatches) else 2  # functions and groups
    for _ in range(levels):
        (step,) = step.children
    known = ((name, _stored_dtype(source)) for name, source in step.token_sources(()))
    return {name: dtype for name, dtype in known if dtype is not None}


def said_of(stored: Mapping[str, object]) -> str:
    """Return stored dtypes in words.

    >>> said_of({"books": "uint16", "web": "int32", "code": "uint16"})
    'uint16 (books, code) and int32 (web)'
    """
    names = dict[str, list[str]]()
    for name, dtype in stored.items():
        names.setdefault(str(dtype), []).append(name)
    return " and ".join(f"{dtype} ({', '.join(each)})" for dtype, each in names.items())


def require_ids_fit(tree: Step, dtype: np.dtype[Any], step: str) -> None:
    """Raise `ConfigError` if a fully read source in memory holds an id that a dtype cannot hold."""
    for name, source in tree.token_sources((), complete=True):
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


def _stored_dtype(source: object) -> np.dtype[Any] | None:
    """Return the dtype in which a source gives tokens; None if only reading tells."""
    if isinstance(source, TokenSource):
        return source.token_dtype()
    return cast("np.dtype[Any]", source) if isinstance(source, np.dtype) else None
