"""Windows of joined tokens: the plain samples of nanoGPT and Megatron."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...engine.base import seams
from ...engine.base.dtypes import TOKENS, narrowed
from ...errors import ConfigError, DataError
from ...stores import Range, Reach, Stores
from ...types import Ints, Json
from ..cached_facts import cached_fact
from ..chain import Chain, starts_of
from ..columnar import Arrow
from ..identity import Digest, Known
from ..memory import Tokens
from ..single_column import SingleColumn
from .file import TokenFile


@runtime_checkable
class Joined(Protocol):
    """What can give the tokens of its documents end to end: an array, or what gives one for a
    slice."""

    def joined(self) -> Any: ...


class Windows:
    """Window `i` is tokens `i * length` to `(i + 1) * length`, both included, of the joined
    documents of a store.

    Neighbours share one token: the last label of one is the first input of the next. What fills no
        window is left out.
    Tokens have the dtype that is asked for; a window of a store of that dtype is a view where it
    lies in one file.

    >>> store = Tokens(np.arange(8, dtype=np.uint16), [0, 3, 8])
    >>> Windows(store, 3).read(np.array([1, 0]))
    [array([3, 4, 5, 6], dtype=int32), array([0, 1, 2, 3], dtype=int32)]
    """

    def __init__(self, store: Chain | Tokens, length: int, dtype: np.dtype[Any] = TOKENS) -> None:
        self._store, self._length, self.dtype = store, length, dtype
        self._pieces: Sequence[Any] = store.files if isinstance(store, Chain) else [store]
        if (
            len(self._pieces)
            and isinstance(self._pieces[0], Arrow)
            and isinstance(store, Chain)
            and store.column
        ):
            self._pieces = [SingleColumn(file, store.column) for file in self._pieces]
        if len(self._pieces) and not isinstance(self._pieces[0], Joined):
            raise ConfigError(
                f"windows: {store!r} is no token store: pack its documents, ds.pack({length})"
            )
        self._starts = starts_of(_totals(store, self._pieces))

    def __len__(self) -> int:
        return max(0, (int(self._starts[-1]) - 1) // self._length)

    @property
    def store(self) -> Chain | Tokens:
        """The store that the windows are of."""
        return self._store

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """The windows at `indices`."""
        self.ahead(indices, now=True)
        first, size = indices * self._length, self._length + 1
        pieces = np.searchsorted(self._starts, first, side="right") - 1
        last = np.searchsorted(self._starts, first + self._length, side="right") - 1
        places = (first - self._starts[pieces]).tolist()
        joined: dict[int, Any] = {
            piece: self._pieces[piece].joined() for piece in np.unique(pieces).tolist()
        }
        found: list[npt.NDArray[Any]] = []
        for piece, place, stop in zip(pieces.tolist(), places, last.tolist(), strict=True):
            window = joined[piece][place : place + size]
            whole = window if piece == stop else self._over(window, range(piece + 1, stop + 1))
            found.append(self._typed(whole, piece, place))
        return found

    def _typed(self, window: npt.NDArray[Any], piece: int, place: int) -> npt.NDArray[Any]:
        """The window in the dtype of the windows; an error where that does not hold an id of it."""
        if window.dtype.kind not in "iu":
            return window
        try:
            return narrowed(window, self.dtype).astype(self.dtype, copy=False)
        except OverflowError as error:
            where = str(self._store.paths[piece]) if isinstance(self._store, Chain) else "tokens"
            raise DataError(
                f"{error}; pass dtype='int64' to windows", where=f"{where}, token {place}"
            ) from None

    def _over(self, window: npt.NDArray[Any], pieces: range) -> npt.NDArray[Any]:
        """A window that begins like this and goes on in other files."""
        found = [window]
        for piece in pieces:
            if self._starts[piece] < self._starts[piece + 1]:
                found.append(
                    self._pieces[piece].joined()[: self._length + 1 - sum(map(len, found))]
                )
        return np.concatenate(found)

    def foresees(self, reach: Reach, /) -> int:
        """How many windows may be fetched ahead, none where it is of no use to those who read."""
        rows = self._store.foresees(reach) if isinstance(self._store, Chain) else 0
        return max(1, rows * len(self) // len(self._store)) if rows else 0

    def ahead(self, indices: Ints, /, now: bool = False) -> bool:
        """Begin to fetch what windows need that are read soon or now; whether there was room for
        that."""
        store = seams.world.store
        if not self.foresees("process") or not isinstance(store, Stores):
            return True
        first = indices * self._length
        pieces, ranges = np.searchsorted(self._starts, first, side="right") - 1, list[Range]()
        for piece in np.unique(pieces).tolist():
            file = cast(object, self._pieces[piece])
            if isinstance(file, TokenFile):
                starts = first[pieces == piece] - self._starts[piece]
                whole = int(self._starts[piece + 1] - self._starts[piece])
                ranges += file.ranges_between(starts, np.minimum(starts + self._length + 1, whole))
        return store.ahead(ranges, now)

    def lengths(self) -> Ints:
        """The tokens of every window, all the same: int64[len]."""
        return np.full(len(self), self._length + 1)

    def digest(self) -> Digest:
        """What the store holds."""
        found = cast("Known", self._store).digest()
        return {"values": found} if isinstance(found, str) else found

    def describe(self) -> Json:
        """The length of the windows, and what they are of."""
        found: dict[str, Json] = {
            "type": "windows",
            "length": self._length,
            "of": self._store.describe(),
        }
        return found if self.dtype == TOKENS else {**found, "dtype": self.dtype.name}


def _totals(store: Chain | Tokens, pieces: Sequence[Any]) -> list[int]:
    """The tokens of every piece; those of files are cached_fact, so that a later process opens none
    for that."""

    def made() -> list[int]:
        return [len(piece.joined()) for piece in pieces]

    if not isinstance(store, Chain):
        return made()
    what = json.dumps(["joined tokens", store.describe(), store.asked])
    return cached_fact(store.paths, store.stats, what, made, store.cache)
