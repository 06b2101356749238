"""Packing of documents whose features have rows of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_choice, check_int, check_padding
from ..arrays.dtypes import (
    TOKEN_DTYPE,
    InexactError,
    cast_array,
    cast_scalar,
    choose_packed_dtype,
    make_exact_array,
)
from ..engine.packing.options import METHODS, DType, Method, check_dtype
from ..engine.packing.row import RowBuilder, Span
from ..errors import ConfigError, DataError
from ..types import Fold, Item, Part
from .feature_folds import Bins, EndToEnd, FeatureCapacity, iter_row_documents, length_of


def build_feature_packing(
    lengths: Mapping[str, int],
    method: Method,
    max_segments: int | None,
    unpacked: Sequence[str],
    pad: float | Mapping[str, float],
    align: int | Mapping[str, int],
    open_rows: int | None,
    dtype: DType | Mapping[str, DType] = None,
) -> tuple[Fold, FeatureRows]:
    """Check the options of `Dataset.pack_features`, and return its fold and its row builder."""
    step = "pack_features"
    if not isinstance(lengths, Mapping) or not lengths:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{step}({lengths!r}): give a length for each feature, such as "
            "{'inputs': 512, 'targets': 128}"
        )
    check_choice(method, METHODS, step + "(method={})")
    names = tuple(lengths)
    if isinstance(unpacked, str) or set(names) & set(unpacked):
        raise ConfigError(
            f"{step}: unpacked={unpacked!r} must be a tuple of names, none of them in {list(names)}"
        )
    capacity = FeatureCapacity(
        names, tuple(check_int(lengths[name], f"{step}({name!r}: {{}})", 1) for name in names)
    )
    aligns = tuple(
        check_int(value, step + "(align={})", 1)
        for value in _expand_setting("align", align, capacity, 1)
    )
    for feature_dtype in _expand_setting("dtype", dtype, capacity, None):
        check_dtype(feature_dtype, step)
    padding = _expand_setting("pad", pad, capacity, 0)
    check_padding(padding, step + "(pad={})")
    rows = FeatureRows(
        capacity,
        unpacked,
        align=aligns,
        padding=padding,
        exact=True,
        dtype=dtype,
        integers=TOKEN_DTYPE,
    )
    if method == "concat_split":
        if max_segments is not None or open_rows is not None or set(aligns) != {1}:
            raise ConfigError(
                f"{step}: max_segments, open_rows and align are for first_fit and best_fit"
            )
        return EndToEnd(capacity, (True,) * len(names)), rows
    limit = None if max_segments is None else check_int(max_segments, step + "(max_segments={})", 1)
    bins = check_int(64 if open_rows is None else open_rows, step + "(open_rows={})", 1)
    return Bins(capacity, bins, aligns, method == "best_fit", limit), rows


def _expand_setting(
    option: str, setting: Any, capacity: FeatureCapacity, default: Any
) -> tuple[Any, ...]:
    """Return a setting for each feature, from one value for all or a mapping of some."""
    if not isinstance(setting, Mapping):
        return (setting,) * len(capacity.names)
    if unknown := set(setting) - set(capacity.names):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        raise ConfigError(
            f"pack_features: {option} names {sorted(unknown)}, and the features are "  # pyright: ignore[reportUnknownArgumentType]
            f"{list(capacity.names)}; name features only"
        )
    return tuple(setting.get(name, default) for name in capacity.names)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]


class FeatureRows(RowBuilder):
    """Builder of a row's arrays from the pieces of a group.

    Features in `meta` are packed without segments and positions, or listed if the row has no room
    for them. With `exact`, other features are an error. `bos` replaces the first token of every
    piece. Vectors of integers become `integers`; without it a row has the dtypes of its first
    document, as in Grain. `dtype` is one for all features, or a mapping of some.
    """

    def __init__(
        self,
        capacity: FeatureCapacity,
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
        self.capacity, self.meta, self.bos, self.exact = (
            capacity,
            frozenset(meta),
            dict(bos or {}),
            exact,
        )
        self.align, self.padding = (
            align or (1,) * len(capacity.names),
            padding or (0,) * len(capacity.names),
        )
        self.listed = tuple(name for name in meta if name not in capacity.names)
        self.cut = [name not in self.meta for name in capacity.names]
        settings = f"listed {[*self.listed]}, whole {sorted(self.meta)}, align {[*self.align]}, pad {[*self.padding]}"
        dtypes = {
            name: np.dtype(asked).name
            for name in capacity.names
            if (asked := _get_dtype_option(dtype, name)) is not None
        }
        self.__qualname__ = f"rows({settings}, bos {sorted(self.bos.items())}{f', dtype {dtypes}' if dtypes else ''})"

    def __call__(self, group: Sequence[Item | Part]) -> dict[str, Any]:
        pieces = [*iter_row_documents(group, self.cut)]
        elements: list[Mapping[str, Any]] = [item.value for item, _ in pieces]
        listed = self._named(elements) if self.exact else self.listed
        out = dict[str, Any]()
        for i, name in enumerate(self.capacity.names):
            values = [element[name] for element in elements]
            out[name], ids, places = self._column(i, values, [spans[i] for _, spans in pieces])
            if name not in self.meta:
                out[f"{name}_segment_ids"], out[f"{name}_positions"] = ids, places
        return out | {name: [e[name] for e in elements if name in e] for name in listed}

    def _named(self, elements: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the listed features, with those of `with_source()`; check for unknown ones."""
        rest = {
            name: None
            for element in elements
            for name in element
            if name not in self.capacity.names
        }
        if extra := [
            name for name in rest if name not in self.listed and not name.startswith("__")
        ]:
            raise DataError(
                f"packing: features {extra} have no length; give one, drop them before, or name "
                "them in unpacked="
            )
        return tuple(dict.fromkeys((*self.listed, *rest)))

    def _column(
        self, i: int, values: Sequence[Any], spans: Sequence[Span | None]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        name, size = self.capacity.names[i], self.capacity.sizes[i]
        pieces = [
            self._piece(name, n, value, span)
            for n, (value, span) in enumerate(zip(values, spans, strict=True), 1)
        ]
        kind = self._dtype(name, values, pieces)
        shape = next((piece for piece in pieces if length_of(piece)), pieces[0]).shape[1:]
        column = np.full((size, *shape), self._cast_fill(i, self.padding[i], kind), kind)
        ids, places = np.zeros(size, np.int32), np.zeros(size, np.int32)
        begin = 0
        for segment, piece in enumerate(pieces, 1):
            begin = -(-begin // self.align[i]) * self.align[i]
            length = length_of(piece)
            end = begin + length
            if length:
                try:
                    piece = cast_array(piece, kind)
                except OverflowError as error:
                    wide = "int64" if piece.dtype.kind in "iu" else str(piece.dtype)
                    raise _make_segment_error(
                        f"feature {name!r}: {error}; pass dtype={wide!r}", segment
                    ) from None
                if piece.shape[1:] != shape or not np.can_cast(piece.dtype, kind, "same_kind"):
                    raise _make_segment_error(
                        f"feature {name!r} is {piece.dtype}{[*piece.shape]}, and the first in its "
                        f"row is {kind}{[size, *shape]}; give all documents one kind of dtype, and "
                        "one shape after the first axis",
                        segment,
                    )
                column[begin:end] = piece
            if name in self.bos and length:
                column[begin] = self._cast_fill(i, self.bos[name], kind)
            ids[begin:end], places[begin:end] = segment, np.arange(length)
            begin = end
        return column, ids, places

    def _piece(self, name: str, segment: int, value: Any, span: Span | None) -> npt.NDArray[Any]:
        try:
            return make_exact_array(value if span is None else value[span[0] : span[1]])
        except InexactError as error:
            raise _make_segment_error(f"feature {name!r}: {error}", segment) from None

    def _dtype(
        self, name: str, values: Sequence[Any], pieces: list[npt.NDArray[Any]]
    ) -> np.dtype[Any]:
        if self.integers is None:
            return next((piece for piece in pieces if length_of(piece)), pieces[0]).dtype
        typed = (
            pieces
            if any(map(length_of, pieces))
            else [make_exact_array(value[:1]) for value in values]
        )
        if (
            place := next((i for i, piece in enumerate(typed) if piece.dtype.kind in "OSUmM"), None)
        ) is not None:
            shown = f"{type(values[place]).__name__} of {typed[place].dtype}"
            raise _make_segment_error(
                f"feature {name!r} is a {shown}, not a sequence of numbers: leave it out of "
                "lengths",
                place + 1,
            )
        try:
            return choose_packed_dtype(typed, _get_dtype_option(self.dtype, name), self.integers)
        except InexactError as error:
            message = f"feature {name!r}: {error}; give all sources one type, or pass dtype="
            raise _make_segment_error(message, error.index + 1) from None

    def _cast_fill(self, i: int, value: Any, dtype: np.dtype[Any]) -> Any:
        """Convert padding or BOS to the dtype of the feature."""
        try:
            return cast_scalar(value, dtype)
        except OverflowError as error:
            raise DataError(
                f"feature {self.capacity.names[i]!r} cannot hold its padding {value}: {error}"
            ) from None


def _get_dtype_option(dtype: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", dtype).get(name) if isinstance(dtype, Mapping) else dtype


def _make_segment_error(message: str, segment: int) -> DataError:
    return DataError(message, where=f"segment {segment} of a row", part=(segment - 1,))
