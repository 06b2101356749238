"""Packing documents of several features, each with rows of a length of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from ...types import Fold, Item, Part
from ..base.dtypes import TOKENS, InexactError, exact_array, narrowed, packed_dtype
from ..base.hints import chosen
from ..base.ints import held, whole
from ..grouping.bins import Bins, EndToEnd, FeatureRoom, length_of, pieces_of
from .options import METHODS, DType, Method, check_dtype
from .row import Span


def feature_packing(
    lengths: Mapping[str, int],
    method: Method,
    max_segments: int | None,
    unpacked: Sequence[str],
    pad: float | Mapping[str, float],
    align: int | Mapping[str, int],
    open_rows: int | None,
    dtype: DType | Mapping[str, DType] = None,
) -> tuple[Fold, FeatureRows]:
    """The fold and the builder of `Dataset.pack_features`, its options checked."""
    step = "pack_features"
    if not isinstance(lengths, Mapping) or not lengths:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{step}({lengths!r}): a length for each feature, such as {{'inputs': 512, 'targets': "
            f"128}}"
        )
    chosen(method, METHODS, step + "(method={})")
    names = tuple(lengths)
    if isinstance(unpacked, str) or set(names) & set(unpacked):
        raise ConfigError(
            f"{step}: unpacked={unpacked!r} must be a tuple of names, none of them in {list(names)}"
        )
    room = FeatureRoom(
        names, tuple(whole(lengths[name], f"{step}({name!r}: {{}})", 1) for name in names)
    )
    aligns = tuple(
        whole(each, step + "(align={})", 1) for each in _of_each("align", align, room, 1)
    )
    for each in _of_each("dtype", dtype, room, None):
        check_dtype(each, step)
    padding = _of_each("pad", pad, room, 0)
    rows = FeatureRows(
        room, unpacked, align=aligns, padding=padding, exact=True, dtype=dtype, integers=TOKENS
    )
    if method == "concat_split":
        if max_segments is not None or open_rows is not None or set(aligns) != {1}:
            raise ConfigError(
                f"{step}: max_segments, open_rows and align are for first_fit and best_fit"
            )
        return EndToEnd(room, (True,) * len(names)), rows
    most = None if max_segments is None else whole(max_segments, step + "(max_segments={})", 1)
    held = whole(64 if open_rows is None else open_rows, step + "(open_rows={})", 1)
    return Bins(room, held, aligns, method == "best_fit", most), rows


def _of_each(option: str, given: Any, room: FeatureRoom, default: Any) -> tuple[Any, ...]:
    """A setting of each feature: one for all, or a mapping of some."""
    if not isinstance(given, Mapping):
        return (given,) * len(room.names)
    if unknown := set(given) - set(room.names):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise ConfigError(
            f"pack_features: {option} names {sorted(unknown)}, and the features are "  # pyright: ignore[reportUnknownArgumentType]
            f"{list(room.names)}"
        )
    return tuple(given.get(name, default) for name in room.names)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]


class FeatureRows:
    """The arrays of a row, from the pieces that a fold put together.

    Features in `meta` are packed without segments and positions, or listed where they have no room
    of their own; with `exact`, documents must have no others. The first token of every piece
    becomes that of `bos`. Vectors of integers become `integers`; without that, a row has the dtypes
    of its first document, as in Grain. `dtype` is one for all features or a mapping of some.
    """

    def __init__(
        self,
        room: FeatureRoom,
        meta: Sequence[str],
        *,
        align: Sequence[int] | None = None,
        padding: Sequence[Any] | None = None,
        bos: Mapping[str, int] | None = None,
        exact: bool = False,
        dtype: DType | Mapping[str, DType] = None,
        integers: np.dtype[Any] | None = None,
    ) -> None:
        self.dtype, self.integers = dtype, integers
        self.room, self.meta, self.bos, self.exact = room, frozenset(meta), dict(bos or {}), exact
        self.align, self.padding = (
            align or (1,) * len(room.names),
            padding or (0,) * len(room.names),
        )
        self.listed = tuple(name for name in meta if name not in room.names)
        self.cut = [name not in self.meta for name in room.names]
        told = f"listed {[*self.listed]}, whole {sorted(self.meta)}, align {[*self.align]}, pad {[*self.padding]}"
        dtypes = {
            name: np.dtype(asked).name
            for name in room.names
            if (asked := _of(dtype, name)) is not None
        }
        self.__qualname__ = (
            f"rows({told}, bos {sorted(self.bos.items())}{f', dtype {dtypes}' if dtypes else ''})"
        )

    def __call__(self, group: Sequence[Item | Part]) -> dict[str, Any]:
        pieces = [*pieces_of(group, self.cut)]
        elements: list[Mapping[str, Any]] = [item.value for item, _ in pieces]
        listed = self._named(elements) if self.exact else self.listed
        out = dict[str, Any]()
        for i, name in enumerate(self.room.names):
            values = [element[name] for element in elements]
            out[name], ids, places = self._column(i, values, [spans[i] for _, spans in pieces])
            if name not in self.meta:
                out[f"{name}_segment_ids"], out[f"{name}_positions"] = ids, places
        return out | {name: [e[name] for e in elements if name in e] for name in listed}

    def _named(self, elements: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The features that are listed, those of `with_source()` too; any that nobody named is
        refused."""
        rest = {
            name: None for element in elements for name in element if name not in self.room.names
        }
        if extra := [
            name for name in rest if name not in self.listed and not name.startswith("__")
        ]:
            raise DataError(
                f"packing: there is no length for {extra}; drop them before, or name them unpacked"
            )
        return tuple(dict.fromkeys((*self.listed, *rest)))

    def _column(
        self, i: int, values: Sequence[Any], spans: Sequence[Span | None]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        name, size = self.room.names[i], self.room.sizes[i]
        pieces = [
            self._piece(name, n, value, span)
            for n, (value, span) in enumerate(zip(values, spans, strict=True), 1)
        ]
        kind = self._dtype(name, values, pieces)
        shape = next((piece for piece in pieces if length_of(piece)), pieces[0]).shape[1:]
        column = np.full((size, *shape), self._held(i, self.padding[i], kind), kind)
        ids, places = np.zeros(size, np.int32), np.zeros(size, np.int32)
        begin = 0
        for segment, piece in enumerate(pieces, 1):
            begin = -(-begin // self.align[i]) * self.align[i]
            length = length_of(piece)
            end = begin + length
            if length:
                try:
                    piece = narrowed(piece, kind)
                except OverflowError as error:
                    wide = "int64" if piece.dtype.kind in "iu" else str(piece.dtype)
                    raise _part(
                        f"feature {name!r}: {error}; pass dtype={wide!r}", segment
                    ) from None
                if piece.shape[1:] != shape or not np.can_cast(piece.dtype, kind, "same_kind"):
                    raise _part(
                        f"feature {name!r} is {piece.dtype}{[*piece.shape]}, the first of its row "
                        f"{kind}{[size, *shape]}: all must have one kind of dtype and one shape "
                        "behind the first axis",
                        segment,
                    )
                column[begin:end] = piece
            if name in self.bos and length:
                column[begin] = self._held(i, self.bos[name], kind)
            ids[begin:end], places[begin:end] = segment, np.arange(length)
            begin = end
        return column, ids, places

    def _piece(self, name: str, segment: int, value: Any, span: Span | None) -> npt.NDArray[Any]:
        try:
            return exact_array(value if span is None else value[span[0] : span[1]])
        except InexactError as error:
            raise _part(f"feature {name!r}: {error}", segment) from None

    def _dtype(
        self, name: str, values: Sequence[Any], pieces: list[npt.NDArray[Any]]
    ) -> np.dtype[Any]:
        if self.integers is None:
            return next((piece for piece in pieces if length_of(piece)), pieces[0]).dtype
        told = (
            pieces if any(map(length_of, pieces)) else [exact_array(value[:1]) for value in values]
        )
        if (
            place := next((i for i, piece in enumerate(told) if piece.dtype.kind in "OSUmM"), None)
        ) is not None:
            shown = f"{type(values[place]).__name__} of {told[place].dtype}"
            raise _part(
                f"feature {name!r} is a {shown}, not a sequence of numbers: leave it out of "
                "lengths",
                place + 1,
            )
        try:
            return packed_dtype(told, _of(self.dtype, name), self.integers)
        except InexactError as error:
            message = f"feature {name!r}: {error}; give all sources one type, or pass dtype="
            raise _part(message, error.place + 1) from None

    def _held(self, i: int, value: Any, dtype: np.dtype[Any]) -> Any:
        """Padding, or what stands before a document; an error where the dtype of the feature does
        not have it."""
        try:
            return held(value, dtype)
        except OverflowError as error:
            raise DataError(
                f"feature {self.room.names[i]!r} cannot hold its padding {value}: {error}"
            ) from None


def _of(dtype: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", dtype).get(name) if isinstance(dtype, Mapping) else dtype


def _part(message: str, segment: int) -> DataError:
    return DataError(message, where=f"segment {segment} of a row", part=(segment - 1,))
