"""Building of packed rows: one copy of the tokens, and no Python code per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ...types import Part
from ..base.dtypes import InexactError, cast_array, choose_packed_dtype, make_exact_array
from ..base.integers import cast_scalar
from ..grouping.concat_split import Piece

Array: TypeAlias = npt.NDArray[Any]
Span: TypeAlias = tuple[int, int]

ADDED_COLUMNS = frozenset({"segment_ids", "positions"})
"""The columns that packing adds to a row."""

CACHED_RAMP = np.arange(1 << 16, dtype=np.int32)
CACHED_RAMP.setflags(write=False)


class RowBuilder:
    """Function that builds a row from the pieces that a fold grouped."""

    def __call__(self, parts: Sequence[Piece], /) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class Missing:
    """Placeholder of an unreadable document: its size, and another document with its form."""

    size: int
    like: Any


def build_row(
    parts: Sequence[Piece],
    length: int,
    *,
    features: Sequence[str] | None = None,
    unpacked: Sequence[str] = (),
    pad: Any = 0,
    bos: Any = None,
    eos: Any = None,
    dtype: Any = None,
    multiple: int = 1,
) -> dict[str, Any]:
    """Copy the documents of one row into arrays of `length`; the options are those of `Packing`.

    >>> from penstock.types import Item, Part
    >>> row = build_row([Item(0, 3, [7, 8, 9]), Part(Item(1, 5, [1, 2, 3, 4, 5]), 3, 5)], 6)
    >>> row["tokens"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist()
    ([7, 8, 9, 4, 5, 0], [1, 1, 1, 2, 2, 0], [0, 1, 2, 3, 4, 0])
    """
    docs: list[Any] = []
    known: list[int] = []
    takes: list[int] = []
    spans: list[Span] = []
    for part in parts:
        item, start, stop = part if isinstance(part, Part) else (part, 0, part.size)
        docs.append(item.value)
        known.append(item.size)
        takes.append(stop - start)
        spans.append((start, stop))
    rest = length - sum(takes)
    if rest < 0:
        raise DataError(f"these parts have {length - rest} tokens, a row has room for {length}")
    holes = [i for i, doc in enumerate(docs) if isinstance(doc, Missing)]
    shown = [doc.like if isinstance(doc, Missing) else doc for doc in docs] if holes else docs
    columns, row = _collect_columns(shown, features, unpacked)
    _fill_holes(columns, docs, holes)
    lead, sizes, extra = "", known, (bos is not None) + (eos is not None)
    counts, tails = list[int](), list[int]()
    for name, values in columns.items():
        lengths = _measure_lengths(name, values)
        if not lead:
            lead, sizes = name, lengths
            if lengths != known:
                _check_sizes(lengths, spans, known, extra, multiple)
            counts = [
                min(stop, size + extra) - start
                for (start, stop), size in zip(spans, sizes, strict=True)
            ]
            tails = [take - count for take, count in zip(takes, counts, strict=True)]
            tails[-1] += rest
        elif lengths != sizes:
            raise _make_length_error(name, lengths, lead, sizes)
        fill = _get_feature_setting(pad, name, 0)
        ends = (
            _resolve_end_token(bos, name, fill, name == lead),
            _resolve_end_token(eos, name, fill, name == lead),
        )
        row[name] = _pack_feature(
            name,
            values,
            spans,
            sizes,
            length,
            tails,
            fill,
            ends,
            _get_feature_setting(dtype, name, None),
        )
    ramps = [
        _slice_ramp(start, start + count) for (start, _), count in zip(spans, counts, strict=True)
    ]
    row["segment_ids"] = _build_segment_ids(len(parts)).repeat(
        [count for pair in zip(counts, tails, strict=True) for count in pair]
    )
    if any(tails):
        ramps = [
            part
            for ramp, tail in zip(ramps, tails, strict=True)
            for part in (ramp, np.zeros(tail, np.int32))
        ]
    row["positions"] = np.concatenate(ramps)
    if holes:
        _mask_holes(
            row, {name: _get_feature_setting(pad, name, 0) for name in columns}, holes, takes
        )
    return row


def _fill_holes(columns: dict[str, list[Any]], docs: list[Any], holes: list[int]) -> None:
    """Put documents of the right length and form into holes; `_mask_holes` removes their content."""
    for values in columns.values():
        for i in holes:
            shown = np.asarray(values[i])
            values[i] = np.resize(shown, (docs[i].size, *shown.shape[1:]))


def _mask_holes(
    row: dict[str, Any], fills: dict[str, Any], holes: list[int], takes: list[int]
) -> None:
    """Replace missing documents by padding, and renumber the other segments."""
    ends = np.cumsum(takes)
    for i in holes:
        hole = slice(ends[i] - takes[i], ends[i])
        for name, fill in (*fills.items(), ("segment_ids", 0), ("positions", 0)):
            row[name][hole] = cast_scalar(fill, row[name].dtype)
        row["segment_ids"][ends[i] :] -= row["segment_ids"][ends[i] :] > 0
    for name, listed in row.items():
        if isinstance(listed, list):
            entries = cast("list[Any]", listed)
            row[name] = [entry for i, entry in enumerate(entries) if i not in holes]


def _collect_columns(
    docs: list[Any], features: Sequence[str] | None, unpacked: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return documents by column: the features to pack, and the features to list."""
    first = docs[0]
    # Checked first: isinstance(array, Mapping) takes as long as copying the array.
    if isinstance(first, np.ndarray) or not isinstance(first, Mapping):
        if features is not None or unpacked:
            raise DataError(
                "features= and unpacked= name entries of mappings, but a document is a "
                f"{_get_type_name(first)}"
            )
        return {"tokens": docs}, {}
    keys = list(cast("Mapping[str, Any]", first))
    # The provenance of with_source() is always listed, one entry per segment.
    unpacked = [
        *unpacked,
        *(
            key
            for key in keys
            if key.startswith("__") and key not in {*unpacked, *(features or ())}
        ),
    ]
    names = list(features) if features is not None else [key for key in keys if key not in unpacked]
    wanted = {*names, *unpacked}
    if not names or ADDED_COLUMNS & wanted:
        clash = "packing adds columns of that name" if names else "nothing is left to pack"
        raise DataError(
            f"documents with {_format_names(wanted)}: {clash}; rename or drop them before pack"
        )
    try:
        if max([len(doc) for doc in docs]) == len(wanted):
            listed = {name: [doc[name] for doc in docs] for name in unpacked}
            return {name: [doc[name] for doc in docs] for name in names}, listed
    except (KeyError, TypeError, IndexError):
        pass
    raise _make_keys_error(docs, wanted, features is None)


def _measure_lengths(name: str, values: list[Any]) -> list[int]:
    try:
        return [len(value) for value in values]
    except TypeError:
        raise _make_unpackable_error(name, values) from None


def _check_sizes(
    sizes: list[int], spans: list[Span], known: list[int], extra: int, multiple: int
) -> None:
    for segment, (size, (_, stop), expected) in enumerate(zip(sizes, spans, known, strict=True)):
        # The size is 0 in plans from lengths alone.
        size = -(-(size + extra) // multiple) * multiple
        if stop > size or expected not in (0, size):
            raise _make_segment_error(
                f"the document has {size} tokens, but was measured as {max(stop, expected)}; check "
                "that the stored lengths belong to this data",
                segment,
            )


def _pack_feature(
    name: str,
    values: list[Any],
    spans: list[Span],
    sizes: list[int],
    length: int,
    tails: list[int],
    pad: Any,
    ends: tuple[Any, Any],
    dtype: Any,
) -> Array:
    """Build one feature of the row: the pieces of all documents, and the padding."""
    try:
        lead = ends[0] is not None
        pieces = [
            _slice_piece(name, i, value, spans[i], sizes[i], lead) for i, value in enumerate(values)
        ]
        typed = (
            pieces if any(map(len, pieces)) else [make_exact_array(value[:1]) for value in values]
        )
        kind = choose_packed_dtype(typed, dtype)
        if kind.kind not in "biufc":
            raise TypeError(f"{kind} is no dtype of numbers")
        shape = next((piece for piece in typed if len(piece)), typed[0]).shape[1:]
        parts = [
            [_cast_piece(name, i, piece, kind)] if len(piece) else []
            for i, piece in enumerate(pieces)
        ]
        if ends != (None, None):
            before, after = (
                None if end is None else np.full((1, *shape), cast_scalar(end, kind), kind)
                for end in ends
            )
            parts = _add_end_tokens(parts, spans, sizes, before, after)
        if any(tails):
            parts = _add_padding(parts, tails, np.full((1, *shape), cast_scalar(pad, kind), kind))
        out = np.empty((length, *shape) if shape else length, kind)
        np.concatenate([part for pieces in parts for part in pieces], out=out, casting="same_kind")
    except InexactError as error:
        raise _make_segment_error(
            f"feature {name!r}: {error}; give all sources one type, or pass dtype=", error.index
        ) from error
    except DataError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise _make_unpackable_error(name, values, error) from error
    return out


def _slice_piece(name: str, segment: int, value: Any, span: Span, size: int, lead: bool) -> Array:
    """Return the part of a document in a row, without BOS and EOS; `lead` says if BOS is added."""
    start, stop = max(span[0] - lead, 0), min(span[1] - lead, size)
    try:
        return make_exact_array(
            value if stop - start >= size else value[start:stop] if start < stop else value[:0]
        )
    except InexactError as error:
        raise _make_segment_error(f"feature {name!r}: {error}", segment) from None


def _cast_piece(name: str, segment: int, piece: Array, kind: np.dtype[Any]) -> Array:
    """Convert the integers of a piece to the dtype of the row; an error names the document."""
    try:
        return cast_array(piece, kind)
    except OverflowError as error:
        wide = "uint64" if piece.dtype == np.uint64 and piece.max() >> 63 else "int64"
        wide = wide if piece.dtype.kind in "iu" else str(piece.dtype)
        raise _make_segment_error(
            f"feature {name!r}: {error}; pass dtype={wide!r} to pack", segment
        ) from None


def _add_end_tokens(
    parts: list[list[Array]],
    spans: list[Span],
    sizes: list[int],
    before: Array | None,
    after: Array | None,
) -> list[list[Array]]:
    """Add BOS and EOS to the pieces of documents; a split document has each of them once."""
    extended: list[list[Array]] = []
    for pieces, (start, stop), size in zip(parts, spans, sizes, strict=True):
        first = [before] if before is not None and start == 0 else []
        last = [after] if after is not None and stop > (before is not None) + size else []
        extended.append([*first, *pieces, *last])
    return extended


def _add_padding(pieces: list[list[Any]], tails: list[int], padding: Array) -> list[Any]:
    """Add `tails` entries of padding after the pieces of documents."""
    return [
        [*parts, padding.repeat(tail, axis=0)] if tail else parts
        for parts, tail in zip(pieces, tails, strict=True)
    ]


def _resolve_end_token(setting: Any, name: str, pad: Any, lead: bool) -> Any:
    """Return the value of a feature at BOS or EOS: its own value, or its padding; None if unset."""
    if setting is None or isinstance(setting, dict):
        return _get_feature_setting(setting, name, pad)
    return setting if lead else pad


def _get_feature_setting(setting: Any, name: str, default: Any) -> Any:
    """Return the setting of one feature, from one value for all or a dict."""
    return (
        cast("dict[str, Any]", setting).get(name, default) if isinstance(setting, dict) else setting
    )


def _slice_ramp(start: int, stop: int) -> Array:
    return (
        CACHED_RAMP[start:stop]
        if stop <= len(CACHED_RAMP)
        else np.arange(start, stop, dtype=np.int32)
    )


@lru_cache(maxsize=1024)
def _build_segment_ids(segments: int) -> npt.NDArray[np.int32]:
    """Return 1, 0, 2, 0, ...: the number of each document, and 0 for the padding after it."""
    ids = np.zeros(2 * segments, np.int32)
    ids[::2] = np.arange(1, segments + 1)
    return ids


# ---------------------------------------------------------------- errors of documents


def _make_unpackable_error(
    name: str, values: list[Any], error: Exception | None = None
) -> DataError:
    """Return the error for a feature that cannot be packed."""
    for segment, value in enumerate(values):
        try:
            array = np.asarray(value)
        except ValueError:
            return _make_segment_error(
                f"feature {name!r} is a ragged list: name it in unpacked= or drop it before pack",
                segment,
            )
        if array.ndim == 0 or array.dtype.kind not in "biufc":
            shown = (
                _get_type_name(value)
                if array.ndim == 0
                else f"{_get_type_name(value)} of {array.dtype}"
            )
            message = f"feature {name!r} is a {shown}, not a sequence of numbers: name it in unpacked= to get a list"
            return _make_segment_error(f"{message} of them, or drop it before pack", segment)
    return DataError(f"feature {name!r} does not fit into one row (see dtype= and pad=): {error}")


def _make_length_error(name: str, lengths: list[int], lead: str, sizes: list[int]) -> DataError:
    segment = next(i for i, (a, b) in enumerate(zip(lengths, sizes, strict=True)) if a != b)
    message = f"feature {name!r} has {lengths[segment]} entries, {lead!r} has {sizes[segment]}: "
    return _make_segment_error(
        message + "name a feature that is no sequence of tokens in unpacked=", segment
    )


def _make_keys_error(docs: list[Any], wanted: set[str], guessed: bool) -> DataError:
    for segment, doc in enumerate(docs):
        if not isinstance(doc, Mapping):
            return _make_segment_error(f"a {_get_type_name(doc)} among mappings", segment)
        keys = set(cast("Mapping[str, Any]", doc))
        if wanted - keys:
            return _make_segment_error(
                f"the document lacks {_format_names(wanted - keys)}, it has {_format_names(keys)}",
                segment,
            )
        if keys - wanted:
            remedy = (
                "the first document of the row has not"
                if guessed
                else "name them in features= or unpacked="
            )
            return _make_segment_error(
                f"the document has also {_format_names(keys - wanted)}: {remedy}, or drop them",
                segment,
            )
    return DataError(f"documents whose {_format_names(wanted)} cannot be read")


def _make_segment_error(message: str, segment: int) -> DataError:
    return DataError(message, where=f"segment {segment + 1} of a row", part=(segment,))


def _format_names(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _get_type_name(value: Any) -> str:
    return type(value).__name__
