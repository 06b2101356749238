"""Building of packed rows: one copy of the tokens, and no Python code per token.

`build_rows` makes every row, of any documents and any packing; it is the only place that does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ...arrays.dtypes import (
    InexactError,
    cast_array,
    cast_scalar,
    choose_packed_dtype,
    make_exact_array,
)
from ...errors import DataError
from ...types import LOSS_MASKS, Ints, Part
from ..base.event_counts import EVENT_COUNTS
from ..base.spans import DocumentSpans, are_alike
from ..grouping.concat_split import Piece
from .plan import PlannedPieces

_LOG = logging.getLogger("penstock")

Array: TypeAlias = npt.NDArray[Any]
Span: TypeAlias = tuple[int, int]
Inserts: TypeAlias = list[tuple[int, Array]]
"""Arrays to insert among pieces, in order: at `2 * i` before piece `i`, at `2 * i + 1` after it."""

ADDED_COLUMNS = frozenset({"segment_ids", "positions"})
"""The columns that packing adds to every row."""

SOURCE_COLUMNS = frozenset({"source_ids", "segment_sources"})
"""The columns with the source of each token and document, which packing adds on request."""

_ALIKE = "let all sources give arrays of tokens, or mappings with the same features"
_BLOCK_TOKENS = (
    1 << 15
)  # tokens in one array; larger arrays would be freshly mapped memory each time
_RAMP = np.arange(1 << 16, dtype=np.int32)
_RAMP.setflags(write=False)


class RowBuilder:
    """Function that builds a row from the pieces that a fold grouped."""

    def __call__(self, parts: Sequence[Piece], /) -> dict[str, Any]:
        raise NotImplementedError


class SourceColumns(Protocol):
    """A function of groups of documents that adds columns with their sources.

    `build_with_sources` also receives the number of the source of each document, flat and in the
    order of the documents of all values. `document_level` is the number of levels of groups above a
    document. Without `provenance` the function is called like any other.
    """

    provenance: bool
    document_level: ClassVar[int]

    def build_with_sources(self, values: Sequence[Any], sources: Array, /) -> list[Any]: ...


@dataclass(frozen=True)
class Missing:
    """Placeholder of an unreadable document; `like` is a document of the same form."""

    like: Any


@dataclass(frozen=True)
class RowFormat:
    """Length and contents of rows; the options are those of `Packing`."""

    length: int
    features: Sequence[str] | None = None
    unpacked: Sequence[str] = ()
    pad: Any = 0
    bos: Any = None
    eos: Any = None
    dtype: Any = None
    multiple: int = 1
    max_segments: int | None = None
    provenance: bool = False
    truncates: bool = False

    @property
    def extra(self) -> int:
        """The number of tokens that BOS and EOS add to a document."""
        return (self.bos is not None) + (self.eos is not None)

    @property
    def added_columns(self) -> frozenset[str]:
        """The columns that packing adds to a row."""
        return ADDED_COLUMNS | SOURCE_COLUMNS if self.provenance else ADDED_COLUMNS


class Pieces(NamedTuple):
    """Pieces of documents, row after row.

    Piece `i` has the tokens `starts[i]:stops[i]` of `documents[i]`, with BOS and EOS. `sizes` has
    the measured sizes of documents, 0 if only a plan knows them. Row `r` has the pieces
    `bounds[r]:bounds[r + 1]`. `missing` marks the documents that cannot be read.
    """

    documents: Sequence[Any]
    sizes: Ints
    starts: Ints
    stops: Ints
    bounds: Ints
    missing: npt.NDArray[np.bool_]


def build_rows(
    groups: Sequence[Sequence[Piece]],
    form: RowFormat,
    sizes: Sequence[int],
    sources: Array | None = None,
) -> list[dict[str, Any]] | None:
    """Copy the documents of rows into stacks of `sizes` rows: arrays `[rows, length, ...]`.

    An unpacked feature is a list with a list for each row. An unreadable document becomes padding.
    With `sources`, the source of each piece, rows get the columns of sources too.

    Returns:
        The columns of each stack; None if several rows must be built one by one, because they could
        differ in their dtypes or because one of them is invalid. The dtypes of a row depend on its
        own documents only.

    Raises:
        DataError: if a single row cannot be built.

    >>> from penstock.types import Item, Part
    >>> row = [Item(0, 3, [7, 8, 9]), Part(Item(1, 5, [1, 2, 3, 4, 5]), 3, 5)]
    >>> [stack] = build_rows([row], RowFormat(6), [1])
    >>> stack["tokens"].tolist(), stack["segment_ids"].tolist(), stack["positions"].tolist()
    ([[7, 8, 9, 4, 5, 0]], [[1, 1, 1, 2, 2, 0]], [[0, 1, 2, 3, 4, 0]])
    """
    if not groups:
        return []
    blocks = _split_into_blocks(sizes, form.length)
    try:
        edges = [0, *accumulate(edges[-1] for edges in blocks)]
        columns = _build_columns(groups, form, edges, sources)
    except DataError:
        if len(groups) == 1:
            raise
        return None  # the error of a single row names its segment
    if columns is None:
        return None
    return [
        {name: column[number][a:b] for name, column in columns.items()}
        for number, edges in enumerate(blocks)
        for a, b in pairwise(edges)
    ]


def _split_into_blocks(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return the row offsets of stacks, in blocks of similar numbers of tokens."""
    blocks = list[list[int]]()
    for size in sizes:
        if not blocks or blocks[-1][-1] * length >= _BLOCK_TOKENS:
            blocks.append([0])
        blocks[-1].append(blocks[-1][-1] + size)
    return blocks


def _build_columns(
    groups: Sequence[Sequence[Piece]], form: RowFormat, blocks: list[int], sources: Array | None
) -> dict[str, list[Any]] | None:
    """Build the columns of blocks of rows; `blocks` has the row offsets of blocks."""
    pieces = _gather_pieces(groups)
    _, _, starts, stops, bounds, missing = pieces
    takes = stops - starts
    room = form.length - np.add.reduceat(takes, bounds[:-1])
    if room.min() < 0:
        raise DataError(
            f"these parts have {form.length - int(room.min())} tokens, a row has room for "
            f"{form.length}"
        )
    any_missing = bool(missing.any())
    columns, listed = _collect_columns(pieces, form)
    out = {name: [rows[a:b] for a, b in pairwise(blocks)] for name, rows in listed.items()}
    lead, lengths, counts, tails = "", takes, takes, takes
    for name, values in columns.items():
        measured = _measure_lengths(name, values)
        if any_missing:
            measured[missing] = 0
        if not lead:
            lead, lengths = name, measured
            _check_sizes(lengths, pieces, form)
            counts = np.minimum(stops, lengths + form.extra) - starts
            if any_missing:
                counts[missing] = 0
            tails = takes - counts
            tails[bounds[1:] - 1] += room
        elif not np.array_equal(measured, lengths):
            raise _make_length_error(name, measured, lead, lengths)
        column = _build_feature(
            name, values, pieces, lengths, tails, form, blocks, is_lead=name == lead
        )
        if column is None:
            return None
        out[name] = column
    longest = int(stops.max())
    ramp = _RAMP if longest <= len(_RAMP) else np.arange(longest, dtype=np.int32)
    ramps = [ramp[a:b] for a, b in zip(starts.tolist(), (starts + counts).tolist(), strict=True)]
    # The number of a document in its row: the number over all rows, minus the documents before.
    number = np.cumsum(~missing, dtype=np.int32)
    number -= np.repeat(number[bounds[:-1]] - ~missing[bounds[:-1]], np.diff(bounds))
    pads = _pad_after(tails, np.zeros(int(tails.max()), np.int32))
    after = np.flatnonzero(tails) + 1
    if len(after):
        counts = np.insert(counts, after, tails[after - 1])
    ends = bounds + np.searchsorted(after, bounds, side="right")
    edges, shape = [*pairwise(ends[blocks].tolist())], (-1, form.length)

    def spread(values: Array, padding: int) -> list[Array]:
        """Repeat the value of each piece over its tokens, and a value over padding."""
        if len(after):
            values = np.insert(values, after, padding)
        return [values[a:b].repeat(counts[a:b]).reshape(shape) for a, b in edges]

    if sources is not None:
        out["source_ids"] = spread(sources, -1)
        if form.max_segments is not None:
            listed = np.full((len(groups), form.max_segments), -1, sources.dtype)
            row = np.repeat(np.arange(len(groups)), np.diff(bounds))
            listed[row[~missing], number[~missing] - 1] = sources[~missing]
            out["segment_sources"] = [listed[a:b] for a, b in pairwise(blocks)]
    _count_untrained(out, pieces, lengths, form, blocks)
    out["segment_ids"] = spread(number, 0)
    out["positions"] = _join_pieces(ramps, pads, pieces.bounds, blocks, shape, ramp.dtype)
    return out


def _count_untrained(
    columns: Mapping[str, list[Any]],
    pieces: Pieces,
    lengths: Ints,
    form: RowFormat,
    blocks: list[int],
) -> None:
    """Count and log the documents of rows in which no token carries loss.

    A document that continues in another row does not count. Its first token is never predicted.
    """
    joined = {
        name: np.concatenate(columns[name])
        for name in LOSS_MASKS
        if name in columns and isinstance(columns[name][0], np.ndarray)
    }
    if (found := find_learned(joined)) is None:
        return
    name, learned = found
    takes = pieces.stops - pieces.starts
    offset = np.cumsum(takes) - takes
    first = np.repeat(offset[pieces.bounds[:-1]], np.diff(pieces.bounds))
    row = np.repeat(np.arange(len(pieces.bounds) - 1), np.diff(pieces.bounds))
    begin = row * form.length + offset - first
    places = np.flatnonzero(learned)
    none = np.searchsorted(places, begin + takes) == np.searchsorted(places, begin + 1)
    is_whole = (pieces.starts == 0) & (form.truncates | (pieces.stops >= lengths + form.extra))
    report_untrained(int((none & is_whole & ~pieces.missing).sum()), name)


def find_learned(columns: Mapping[str, Any]) -> tuple[str, npt.NDArray[np.bool_]] | None:
    """Return the column that says which tokens carry loss, and whether each does."""
    for name, none in LOSS_MASKS.items():
        if isinstance(column := columns.get(name), np.ndarray) and column.ndim == 2:
            return name, column != none
    return None


def report_untrained(number: int, name: str) -> None:
    """Count documents without a token to train on, and log each total with one more digit."""
    if not number:
        return
    EVENT_COUNTS.add("untrained", number)
    total = EVENT_COUNTS.totals(["untrained"])["untrained"]
    if total == number or len(str(total)) > len(str(total - number)):
        _LOG.warning(
            "%s documents so far have no token to train on in their rows (%s): leave them out by "
            "filter(), or give rows that hold their answers",
            f"{total:,}",
            name,
        )


def _pad_after(tails: Ints, padding: Array) -> Inserts:
    """Return the padding of `tails` entries after pieces."""
    after = np.flatnonzero(tails)
    counts = tails[after].tolist()
    return [(2 * i + 1, padding[:n]) for i, n in zip(after.tolist(), counts, strict=True)]


def _join_pieces(
    pieces: list[Array],
    inserts: Inserts,
    bounds: Ints,
    blocks: list[int],
    shape: tuple[int, ...],
    kind: np.dtype[Any],
) -> list[Array]:
    """Join the pieces of each block of rows, and the arrays inserted between them."""
    out, arrays, done = list[Array](), list[Array](), 0
    for place, array in inserts:
        after = (place + 1) // 2
        arrays += pieces[done:after]
        arrays.append(array)
        done = after
    arrays += pieces[done:]
    ends = bounds + np.searchsorted([place for place, _ in inserts], 2 * bounds)
    for (first, last), (a, b) in zip(
        pairwise(blocks), pairwise(ends[blocks].tolist()), strict=True
    ):
        joined = np.empty(((last - first) * shape[1], *shape[2:]), kind)
        np.concatenate(arrays[a:b], out=joined, casting="same_kind")
        out.append(joined.reshape(shape))
    return out


def _gather_pieces(groups: Sequence[Sequence[Piece]]) -> Pieces:
    """Return the pieces of rows; neighbours of one plan need no Python code for each."""
    first, last = groups[0], groups[-1]
    if isinstance(first, PlannedPieces) and isinstance(last, PlannedPieces):
        planned = [
            group
            for group in groups
            if isinstance(group, PlannedPieces) and group.columns is first.columns
        ]
        # After a change of weights the next row may be of another plan, or earlier in this one.
        if len(planned) == len(groups) and all(a.stop == b.start for a, b in pairwise(planned)):
            values, starts, stops, _ = first.columns
            part = slice(first.start, last.stop)
            documents = values.some(part) if isinstance(values, DocumentSpans) else values[part]
            bounds = np.asarray([*(row.start for row in planned), last.stop]) - first.start
            sizes = np.zeros(last.stop - first.start, np.int64)
            return Pieces(
                documents, sizes, starts[part], stops[part], bounds, _find_missing(documents)
            )
    documents, spans, bounds = list[Any](), list[tuple[int, int, int]](), [0]
    for group in groups:
        for piece in group:
            item, start, stop = piece if isinstance(piece, Part) else (piece, 0, piece.size)
            documents.append(item.value)
            spans.append((item.size, start, stop))
        bounds.append(len(documents))
    sizes, starts, stops = np.asarray(spans, np.int64).reshape(-1, 3).T
    return Pieces(documents, sizes, starts, stops, np.asarray(bounds), _find_missing(documents))


def _find_missing(documents: Sequence[Any]) -> npt.NDArray[np.bool_]:
    if isinstance(documents, DocumentSpans):
        return np.zeros(len(documents), np.bool_)
    return np.fromiter((type(doc) is Missing for doc in documents), np.bool_, len(documents))


def _collect_columns(
    pieces: Pieces, form: RowFormat
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Return documents by column: the features to pack, and the features to list."""
    docs, features, unpacked = pieces.documents, form.features, form.unpacked
    if isinstance(docs, DocumentSpans):
        first: Any = None
    else:
        docs = [doc.like if type(doc) is Missing else doc for doc in docs]
        first = docs[0]
    # Checked first: isinstance(array, Mapping) takes as long as copying the array.
    if isinstance(first, np.ndarray) or not isinstance(first, Mapping):
        if features is not None or unpacked:
            raise DataError(
                "features= and unpacked= name entries of mappings, but a document is a "
                f"{_get_type_name(docs[0])}"
            )
        return {"tokens": docs if first is None else _list_tokens(docs)}, {}
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
    if not names or form.added_columns & wanted:
        clash = "packing adds columns of that name" if names else "nothing is left to pack"
        raise DataError(
            f"documents with {_format_names(wanted)}: {clash}; rename or drop them before pack"
        )
    if wanted == {"tokens"}:
        arrays = np.ndarray, list
        docs = [{"tokens": doc} if issubclass(type(doc), arrays) else doc for doc in docs]
    try:
        if max([len(doc) for doc in docs]) == len(wanted):
            rows = [range(a, b) for a, b in pairwise(pieces.bounds.tolist())]
            there = ~pieces.missing
            listed = {
                name: [[docs[i][name] for i in row if there[i]] for row in rows]
                for name in unpacked
            }
            return {name: [doc[name] for doc in docs] for name in names}, listed
    except (KeyError, TypeError, IndexError):
        pass
    raise _make_keys_error(docs, wanted, features is None)


def _list_tokens(docs: Sequence[Any]) -> list[Any]:
    """Return the tokens of arrays, and of mappings of tokens alone beside them."""
    tokens = list[Any](docs)
    for segment, doc in enumerate(docs):
        if isinstance(doc, dict):
            keys = {*cast("dict[str, Any]", doc)}
            if keys != {"tokens"}:
                message = f"a mapping with {_format_names(keys)} among arrays of tokens: {_ALIKE}"
                raise _make_segment_error(message, segment)
            tokens[segment] = doc["tokens"]
    return tokens


def _measure_lengths(name: str, values: Sequence[Any]) -> Ints:
    if isinstance(values, DocumentSpans):
        return values.ends - values.begins
    if len(values) and isinstance(values[0], str | bytes):  # their length is not one of tokens
        raise _make_unpackable_error(name, values)
    try:
        return np.fromiter(map(len, values), np.int64, len(values))
    except TypeError:
        raise _make_unpackable_error(name, values) from None


def _check_sizes(lengths: Ints, pieces: Pieces, form: RowFormat) -> None:
    """Raise `DataError` if a document does not have the size that it was packed by."""
    sizes = -(-(lengths + form.extra) // form.multiple) * form.multiple
    known, stops = pieces.sizes, pieces.stops
    wrong = (stops > sizes) | ((known != 0) & (known != sizes))
    wrong[pieces.missing] = False
    if wrong.any():
        segment = int(wrong.argmax())
        raise _make_segment_error(
            f"the document has {sizes[segment]} tokens, but was measured as "
            f"{max(stops[segment], known[segment])}; check that the stored lengths belong to this "
            "data",
            segment,
        )


@cache
def _warn_of_two_ends(eos: int) -> None:
    _LOG.warning(
        "pack(eos=%d): a document ends with the token %d already, and gets another one; "
        "remove eos from pack, or from the tokens",
        eos,
        eos,
    )


def _build_feature(
    name: str,
    values: Sequence[Any],
    pieces: Pieces,
    lengths: Ints,
    tails: Ints,
    form: RowFormat,
    blocks: list[int],
    *,
    is_lead: bool,
) -> list[Array] | None:
    """Build one feature of all rows; None if rows could have different dtypes."""
    rows, there = len(pieces.bounds) - 1, ~pieces.missing
    pad = get_feature_setting(form.pad, name, 0)
    bos = get_end_value(form.bos, name, pad, is_lead)
    eos = get_end_value(form.eos, name, pad, is_lead)
    starts = np.maximum(pieces.starts - (bos is not None), 0)
    stops = np.maximum(np.minimum(pieces.stops - (bos is not None), lengths), starts)
    try:
        arrays, alike = _slice_documents(name, values, starts, stops)
        filled = stops > starts
        if rows > 1 and not (alike and filled.all()):
            return None
        typed: Sequence[Array] = arrays
        if alike and filled[0]:
            typed = arrays[:1]
        elif not filled.any():
            typed = [make_exact_array(value[:1]) for value in values]
        kind = choose_packed_dtype(typed, get_feature_setting(form.dtype, name, None))
        if kind.kind not in "biufc":
            raise TypeError(f"{kind} is no dtype of numbers")
        shape = next((array for array in typed if len(array)), typed[0]).shape[1:]
        inserts: Inserts = []
        if eos is not None:
            end = np.full((1, *shape), cast_scalar(eos, kind), kind)
            ended = there & (pieces.stops > lengths + (bos is not None))
            if is_lead and ended.any() and (last := arrays[int(ended.argmax())]).ndim == 1:
                if len(last) and last[-1] == eos:
                    _warn_of_two_ends(int(eos))
            inserts += [(2 * i + 1, end) for i in np.flatnonzero(ended).tolist()]
        if tails.any():
            padding = np.full((int(tails.max()), *shape), cast_scalar(pad, kind), kind)
            inserts += _pad_after(tails, padding)
        if bos is not None:
            begin = np.full((1, *shape), cast_scalar(bos, kind), kind)
            begun = there & (pieces.starts == 0)
            inserts += [(2 * i, begin) for i in np.flatnonzero(begun).tolist()]
        inserts.sort(key=itemgetter(0))  # stable: EOS comes before padding
        if not filled.all():
            arrays = [array if len(array) else np.empty((0, *shape), kind) for array in arrays]
        arrays = _cast_pieces(name, arrays, kind)
        shape = (-1, form.length, *shape)
        return _join_pieces(arrays, inserts, pieces.bounds, blocks, shape, kind)
    except InexactError as error:
        raise _make_segment_error(
            f"feature {name!r}: {error}; give all sources one type, or pass dtype=", error.index
        ) from error
    except DataError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise _make_unpackable_error(name, values, error) from error


def _slice_documents(
    name: str, values: Sequence[Any], starts: Ints, stops: Ints
) -> tuple[list[Array], bool]:
    """Slice documents; return also whether all are integers, or of one dtype, and of one shape."""
    if isinstance(values, DocumentSpans) and values.plain:
        return values.cut(starts, stops), True
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    arrays = list[Array]()
    if set(map(type, values)) == {np.ndarray}:
        arrays = [value[start:stop] for value, (start, stop) in zip(values, spans, strict=True)]
        return arrays, are_alike(arrays)
    for segment, (value, (start, stop)) in enumerate(zip(values, spans, strict=True)):
        is_whole = stop - start == len(value)
        try:
            arrays.append(make_exact_array(value if is_whole else value[start:stop]))
        except InexactError as error:
            raise _make_segment_error(f"feature {name!r}: {error}", segment) from None
    return arrays, are_alike(arrays)


def _cast_pieces(name: str, pieces: list[Array], kind: np.dtype[Any]) -> list[Array]:
    """Convert pieces to the dtype of the row where NumPy alone could change a number."""
    dtypes = {piece.dtype for piece in pieces}
    if dtypes == {kind} or (kind.kind in "iu" and all(np.can_cast(one, kind) for one in dtypes)):
        return pieces
    if len(dtypes) == 1 and len(pieces) > 1:
        with suppress(OverflowError):  # the error of a single piece names its segment
            joined = cast_array(np.concatenate(pieces), kind)
            return np.split(joined, np.cumsum([*map(len, pieces[:-1])]))
    return [_cast_piece(name, i, piece, kind) for i, piece in enumerate(pieces)]


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


def get_end_value(setting: Any, name: str, pad: Any, lead: bool) -> Any:
    """Return the value of a feature at BOS or EOS: its own value, or its padding; None if unset."""
    if setting is None or isinstance(setting, dict):
        return get_feature_setting(setting, name, pad)
    return setting if lead else pad


def get_feature_setting(setting: Any, name: str, default: Any) -> Any:
    """Return the setting of one feature, from one value for all or a dict."""
    return (
        cast("dict[str, Any]", setting).get(name, default) if isinstance(setting, dict) else setting
    )


# ---------------------------------------------------------------- errors of documents


def _make_unpackable_error(
    name: str, values: Sequence[Any], error: Exception | None = None
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
        if array.ndim != np.ndim(values[0]):
            axes = (
                f"has {array.ndim} axes, and {np.ndim(values[0])} in the first document of its row"
            )
            return _make_segment_error(
                f"feature {name!r} {axes}: give all one shape by a map", segment
            )
    return DataError(f"feature {name!r} does not fit into one row (see dtype= and pad=): {error}")


def _make_length_error(name: str, lengths: Ints, lead: str, sizes: Ints) -> DataError:
    segment = int((lengths != sizes).argmax())
    message = f"feature {name!r} has {lengths[segment]} entries, {lead!r} has {sizes[segment]}: "
    return _make_segment_error(
        message + "use pack_features(), or name what holds no tokens in unpacked=", segment
    )


def _make_keys_error(docs: Sequence[Any], wanted: set[str], guessed: bool) -> DataError:
    for segment, doc in enumerate(docs):
        if not isinstance(doc, Mapping):
            message = f"a {_get_type_name(doc)} among mappings with {_format_names(wanted)}"
            return _make_segment_error(f"{message}: {_ALIKE}", segment)
        keys = set(cast("Mapping[str, Any]", doc))
        if wanted - keys:
            return _make_segment_error(
                f"the document lacks {_format_names(wanted - keys)}, it has {_format_names(keys)}: "
                "give every document the same features by a map, or drop them before pack",
                segment,
            )
        if keys - wanted:
            more, remedy = " also", "name them in features= or unpacked="
            if guessed:
                more, remedy = "", "the first document of its row has none: give them to all"
            return _make_segment_error(
                f"the document has{more} {_format_names(keys - wanted)}: {remedy}, or drop them "
                "before pack",
                segment,
            )
    return DataError(f"documents whose {_format_names(wanted)} cannot be read")


def _make_segment_error(message: str, segment: int) -> DataError:
    return DataError(message, where=f"segment {segment + 1} of a row", part=(segment,))


def _format_names(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _get_type_name(value: Any) -> str:
    return type(value).__name__
