"""Fixed-length windows of concatenated tokens: the samples of nanoGPT and Megatron."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...arrays.dtypes import TOKEN_DTYPE, cast_array
from ...errors import ConfigError, DataError
from ...stores import ByteRange, CompositeStore, storage
from ...types import DataLocation, Digest, Ints, Json
from .. import derived_files
from ..cached_integers import load_or_make_integers, read_lengths_version
from ..chain import JoinedFiles, compute_offsets
from ..columnar import Arrow
from ..memory import Tokens
from ..single_column import MappedColumn
from .file import TokenFile


@runtime_checkable
class JoinedTokens(Protocol):
    """A store that returns the tokens of its documents, concatenated, as an array or by slices."""

    def joined(self) -> Any: ...


class Windows:
    """Windows of the concatenated documents of a store.

    Window `i` is tokens `i * length` to `(i + 1) * length`, both included. Neighbours share one token:
    the last label of one window is the first input of the next. Tokens after the last full window are
    dropped. A window is a view if it lies in one file and `dtype` is the dtype of the store.

    Args:
        store: Token store.
        length: Labels per window.
        dtype: dtype of the windows.

    >>> store = Tokens(np.arange(8, dtype=np.uint16), [0, 3, 8])
    >>> Windows(store, 3).read(np.array([1, 0]))
    [array([3, 4, 5, 6], dtype=int32), array([0, 1, 2, 3], dtype=int32)]
    """

    def __init__(
        self, store: JoinedFiles | Tokens, length: int, dtype: np.dtype[Any] = TOKEN_DTYPE
    ) -> None:
        self._store, self._length, self.dtype = store, length, dtype
        self._pieces: Sequence[Any] = store.files if isinstance(store, JoinedFiles) else [store]
        if (
            len(self._pieces)
            and isinstance(self._pieces[0], Arrow)
            and isinstance(store, JoinedFiles)
            and store.column
        ):
            self._pieces = [MappedColumn(file, store.column) for file in self._pieces]
        if len(self._pieces) and not isinstance(self._pieces[0], JoinedTokens):
            raise ConfigError(
                f"windows: {store!r} is no token store: pack its documents, ds.pack({length})"
            )
        self._starts = compute_offsets(_count_file_tokens(store, self._pieces))

    def __len__(self) -> int:
        return max(0, (int(self._starts[-1]) - 1) // self._length)

    @property
    def store(self) -> JoinedFiles | Tokens:
        """The token store."""
        return self._store

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """Return the windows at `indices`."""
        self.prefetch(indices, now=True)
        first, size = indices * self._length, self._length + 1
        pieces = np.searchsorted(self._starts, first, side="right") - 1
        last = np.searchsorted(self._starts, first + self._length, side="right") - 1
        offsets = (first - self._starts[pieces]).tolist()
        joined: dict[int, Any] = {
            piece: self._pieces[piece].joined() for piece in np.unique(pieces).tolist()
        }
        windows: list[npt.NDArray[Any]] = []
        for piece, offset, stop in zip(pieces.tolist(), offsets, last.tolist(), strict=True):
            window = joined[piece][offset : offset + size]
            full = window if piece == stop else self._completed(window, range(piece + 1, stop + 1))
            windows.append(self._typed(full, piece, offset))
        return windows

    def _typed(self, window: npt.NDArray[Any], piece: int, offset: int) -> npt.NDArray[Any]:
        """Return the window in the requested dtype; raise `DataError` if an id does not fit."""
        if window.dtype.kind not in "iu":
            return window
        try:
            return cast_array(window, self.dtype).astype(self.dtype, copy=False)
        except OverflowError as error:
            location = (
                str(self._store.paths[piece]) if isinstance(self._store, JoinedFiles) else "tokens"
            )
            raise DataError(
                f"{error}; pass dtype='int64' to windows", where=f"{location}, token {offset}"
            ) from None

    def _completed(self, window: npt.NDArray[Any], pieces: range) -> npt.NDArray[Any]:
        """Complete a window with the beginning of the next files."""
        parts = [window]
        for piece in pieces:
            if self._starts[piece] < self._starts[piece + 1]:
                parts.append(
                    self._pieces[piece].joined()[: self._length + 1 - sum(map(len, parts))]
                )
        return np.concatenate(parts)

    def prefetch_capacity(self, reach: DataLocation, /) -> int:
        """Return how many windows may be prefetched; 0 if readers could not use them."""
        rows = self._store.prefetch_capacity(reach) if isinstance(self._store, JoinedFiles) else 0
        return max(1, rows * len(self) // len(self._store)) if rows else 0

    def prefetch(self, indices: Ints, /, now: bool = False) -> bool:
        """Prefetch the bytes of windows that are read soon, or `now`; return false if full."""
        store = storage.world.store
        if not self.prefetch_capacity("process") or not isinstance(store, CompositeStore):
            return True
        first = indices * self._length
        pieces, ranges = np.searchsorted(self._starts, first, side="right") - 1, list[ByteRange]()
        for piece in np.unique(pieces).tolist():
            file = cast(object, self._pieces[piece])
            if isinstance(file, TokenFile):
                starts = first[pieces == piece] - self._starts[piece]
                piece_size = int(self._starts[piece + 1] - self._starts[piece])
                ranges += file.ranges_between(
                    starts, np.minimum(starts + self._length + 1, piece_size)
                )
        return store.prefetch(ranges, now)

    def lengths(self) -> Ints:
        """Return the tokens of every window, which are equal: int64[len]."""
        return np.full(len(self), self._length + 1)

    def loss_counts(self) -> None:
        """Return `None`: all tokens carry loss."""

    def token_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of the stored tokens, if it is known without reading."""
        return self._store.token_dtype()

    def token_range(self) -> None:
        """Return `None`: a window checks its tokens when it is read."""

    cached_integers, lengths_version = load_or_make_integers, read_lengths_version

    def digest(self) -> Digest:
        """Return the digest of the store."""
        return self._store.digest()

    def describe(self) -> Json:
        """Return the length of the windows and the description of the store."""
        description: dict[str, Json] = {
            "type": "windows",
            "length": self._length,
            "of": self._store.describe(),
        }
        return (
            description if self.dtype == TOKEN_DTYPE else {**description, "dtype": self.dtype.name}
        )


def _count_file_tokens(store: JoinedFiles | Tokens, pieces: Sequence[Any]) -> list[int]:
    """Return the tokens of every file; cached, so that later processes open no file for this."""

    def compute() -> list[int]:
        return [len(piece.joined()) for piece in pieces]

    if not isinstance(store, JoinedFiles):
        return compute()
    what = json.dumps(["joined tokens", store.describe(), store.open_arguments])
    stats = [*store.stats, *store.stat_companions(store.paths)]
    return derived_files.load_fact(store.paths, stats, what, compute, store.cache)
