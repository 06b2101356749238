"""Documents as ranges of a few large arrays, sliced only when a part is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...types import Ints

Array = npt.NDArray[Any]


@runtime_checkable
class SpanSource(Protocol):
    """Source whose documents are ranges of large arrays; `spans` returns None otherwise."""

    def spans(self, indices: Ints, /) -> DocumentSpans | None: ...


class DocumentSpans(Sequence[Array]):
    """Document `i` is `stores[which[i]][begins[i]:ends[i]]`.

    >>> two = DocumentSpans([np.arange(9)], np.array([0, 0]), np.array([1, 4]), np.array([4, 6]))
    >>> two[1], two.cut(np.array([1, 0]), np.array([3, 1]))
    (array([4, 5]), [array([2, 3]), array([4])])
    """

    __slots__ = ("begins", "ends", "stores", "which")

    def __init__(self, stores: list[Array], which: Ints, begins: Ints, ends: Ints) -> None:
        self.stores, self.which, self.begins, self.ends = stores, which, begins, ends

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Array]: ...
    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        if isinstance(index, slice):
            some = self.some(index)
            return some.cut(np.zeros_like(some.begins), some.ends - some.begins)
        return self.stores[int(self.which[index])][int(self.begins[index]) : int(self.ends[index])]

    def some(self, part: slice) -> DocumentSpans:
        """Return the spans of some documents."""
        return DocumentSpans(self.stores, self.which[part], self.begins[part], self.ends[part])

    def cut(self, starts: Ints, stops: Ints) -> list[Array]:
        """Return the tokens `starts:stops` of every document."""
        lows, highs = (self.begins + starts).tolist(), (self.begins + stops).tolist()
        if len(self.stores) == 1:
            store = self.stores[0]
            return [store[a:b] for a, b in zip(lows, highs, strict=True)]
        stores = map(self.stores.__getitem__, self.which.tolist())
        return [store[a:b] for store, a, b in zip(stores, lows, highs, strict=True)]

    @property
    def plain(self) -> bool:
        """Return whether all stores hold vectors of integers, or vectors of one other dtype."""
        return {*map(type, self.stores)} == {np.ndarray} and are_alike(self.stores)


def are_alike(arrays: Sequence[Array]) -> bool:
    """Return whether all arrays are vectors of integers, or of one other dtype."""
    dtypes = {array.dtype for array in arrays}
    return {array.ndim for array in arrays} == {1} and (
        len(dtypes) == 1 or {dtype.kind for dtype in dtypes} <= {*"iu"}
    )


def join_spans(parts: Sequence[DocumentSpans], order: Ints) -> DocumentSpans:
    """Concatenate spans and scatter them: `order` has the target of each document."""
    if len(parts) == 1:
        return parts[0]
    stores = [store for part in parts for store in part.stores]
    firsts = np.cumsum([0, *(len(part.stores) for part in parts[:-1])])
    columns = (
        np.concatenate([part.which + first for part, first in zip(parts, firsts, strict=True)]),
        np.concatenate([part.begins for part in parts]),
        np.concatenate([part.ends for part in parts]),
    )
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return DocumentSpans(stores, *(column[back] for column in columns))
