"""In-memory sources: sequences, arrays, token stores, and functions that return iterators."""

from __future__ import annotations

import hashlib
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..engine.base.progress import Progress
from ..engine.base.sizes import OffsetLengths
from ..engine.base.spans import DocumentSpans
from ..errors import ConfigError, DataError
from ..types import Digest, Ints, Json, LossCounts, Sizes
from .cached_integers import VersionedLengths, load_or_make_integers, read_lengths_version
from .chain import compute_offsets, read_by_part
from .digests import (
    MAX_WHOLE_ARRAY_BYTES,
    copy_for_reading,
    digest_data,
    digest_few_rows,
    digest_memory,
    sample_fixed_indices,
)
from .hub import (
    can_skip,
    has_array_format,
    make_slice_reader,
    make_stored_row_reader,
    requires_single_rows,
)
from .loss_counts import iter_chunks_of, measure_loss_counts
from .rows import build_rows
from .unify import SchemaConverter

_SKIPPED_PER_REPORT = 64  # rows of a stream that are skipped between two progress reports
_MIN_SLICE_ROWS = 4  # neighbours from which on a slice is faster than a list of indices
_CHEAP, _FEW = 64, 8  # rows read for a digest: of tables and arrays, and of costly objects
_MAX_SCANNED_BYTES = (
    1 << 30
)  # largest array of tokens, in bytes, that a description of a pipeline scans
_SCALAR_DTYPE_KINDS = "biufcOUS"  # kinds of arrays whose elements have a Python type


class Memory:
    """A source over any object with `__len__` and either `__getitem__` or `read`.

    The source reads in the fastest way that the object offers:

    - Ranges and one-dimensional arrays return Python scalars; other arrays return views of rows.
    - Hugging Face datasets, and others with `__getitems__`, read many rows at once.
    - pyarrow tables and record batches return rows as dicts.
    - Tensors and array stores (with `shape` and `dtype`) take a list of indices.

    Lengths are known if the object has `lengths` (an array or a method), or `length_of`, which takes an
    array of indices. They may count tokens that a function makes of the samples; then the object and
    the function have equal texts `counted`. Memory-mapped arrays are pickled by file name.

    Args:
        seq: The object. It must not change while the source exists.

    Raises:
        ConfigError: The object has no `len`, or neither `[i]` nor `read`. Also for mappings, data
            frames, arrays without an axis and masked arrays.

    >>> Memory(range(10, 20)).read(np.array([3, 0]))
    [13, 10]
    """

    def __init__(self, seq: Any) -> None:
        required = ("__len__",) if _has_only_read(seq) else ("__len__", "__getitem__")
        missing = [name for name in required if not callable(getattr(seq, name, None))]
        if missing:
            reason = f"it has no {' and no '.join(missing)}. For iterators use from_iterable"
            raise ConfigError(f"{_get_qualified_name(seq)} is no sequence: {reason}")
        if getattr(seq, "ndim", None) == 0:
            raise ConfigError(
                f"{_get_qualified_name(seq)} is no sequence: it is one value, an array without an axis"
            )
        if isinstance(seq, Mapping) or hasattr(seq, "dtypes"):  # as frames and series have
            reason = (
                "its keys are names or labels. A data frame is read by ps.read(frame). For columns "
                "give pyarrow.table(columns), for a series its to_list(), for a DatasetDict one of "
                "its splits"
            )
            raise ConfigError(f"{_get_qualified_name(seq)} is no sequence of samples: {reason}")
        _refuse_mask(seq)
        self._seq = seq = _as_table(seq)
        self._read = _choose_reader(seq)
        self._rows = len(seq)
        self._digest: Digest | None = None
        self._sample: Digest | None = None
        self._loss: tuple[LossCounts | None] | None = None

    def __len__(self) -> int:
        return self._rows

    def items(self) -> list[Any] | tuple[Any, ...] | range | None:
        """Return the object itself if indexing it takes nanoseconds, else `None`."""
        return self._seq if self._read in (_read_range, _read_with_map) else None

    def __getstate__(self) -> Any:
        return _replace_by_filename(self._seq)

    def __setstate__(self, state: Any) -> None:
        self.__init__(_map_from_filename(state))

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`."""
        return self._read(self._seq, indices)

    @property
    def counted(self) -> str | None:
        """The identity of the token counter whose counts `lengths` returns, if any."""
        return getattr(self._seq, "counted", None)

    def lengths(self) -> Sizes | None:
        """Return the sizes of all samples, or `None` if the object does not know them.

        Returns:
            int64[len], or an object that is indexed like it.

        Raises:
            DataError: The object returns lengths of another shape or type, or negative ones.
        """
        length_of: Callable[[Ints], Ints] | None = getattr(self._seq, "length_of", None)
        if length_of is not None:
            digest = getattr(self._seq, "digest", None)
            version = str(digest()) if callable(digest) else ""
            return VersionedLengths(length_of, self._rows, version)
        attribute = getattr(self._seq, "lengths", None)
        attribute = attribute() if callable(attribute) else attribute
        if attribute is None:
            return None
        lengths = np.asarray(attribute)
        if (
            lengths.shape != (self._rows,)
            or lengths.dtype.kind not in "iu"
            or bool((lengths < 0).any())
        ):
            raise DataError(
                f"it returns lengths of shape {lengths.shape} and type {lengths.dtype}: return "
                f"{self._rows} integers, none negative",
                where=_get_qualified_name(self._seq),
            )
        return lengths.astype(np.int64, copy=False)

    def loss_counts(self) -> LossCounts | None:
        """Return how many tokens of each sample carry loss, by its masks; read all samples once.

        `None` if samples have no masks.
        """
        if self._loss is None:
            chunks = iter_chunks_of(self.read, len(self))
            self._loss = (measure_loss_counts(chunks, _get_qualified_name(self._seq)),)
        return self._loss[0]

    cached_integers = load_or_make_integers

    def digest(self) -> Digest:
        """Return a digest of the object, from its own `digest` method or from its values.

        Values that count are arrays, bytes, texts and numbers.
        """
        if self._digest is None:
            digest_method = getattr(self._seq, "digest", None)
            value = str(digest_method()) if callable(digest_method) else digest_data(self._seq)
            self._digest = {} if value is None else {"values": value}
        return self._digest

    def identify_objects(self) -> None:
        """Take the digest of a list of objects now, before functions change their attributes."""
        items: Any = self._seq
        if isinstance(items, list | tuple):
            items = cast("Sequence[Any]", items)
            if any(
                _holds_objects(items[index])
                for index in sample_fixed_indices(len(items), _CHEAP).tolist()
            ):
                self.digest()

    def digest_of(self, rows: int, /) -> Digest:
        """Return a digest of the first rows; empty for objects with a `digest` method."""
        if callable(getattr(self._seq, "digest", None)):
            return {}
        return (
            {"values": digest_data(self._seq[:rows]) or ""}
            if self.digest()
            else self._rows_digest(rows)
        )

    def sample_digest(self) -> Digest:
        """Return digests of a few rows, and the fingerprint of a Hugging Face dataset."""
        if self._sample is None:
            fingerprint = (
                getattr(self._seq, "_fingerprint", None) if _is_hub_dataset(self._seq) else None
            )
            digest = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else {}
            self._sample = {**digest, **self._rows_digest(self._rows)}
        return self._sample

    def reread_digest(self) -> str:
        """Read the rows of `sample_digest` again, to detect rows that change from read to read.

        Returns:
            Digests of the rows, equal to the value of "rows" in `sample_digest` if none has
            changed.
        """
        return self._rows_digest(self._rows)["rows"]

    def _rows_digest(self, rows: int) -> Digest:
        """Return digests of a few of the first rows, read from a copy of the object.

        The copy keeps the run independent of side effects of reading: open files, counters, and random
        generators.
        """
        if _is_hub_dataset(self._seq):
            return {"rows": digest_few_rows(make_stored_row_reader(self._seq), rows, _CHEAP)}
        is_cheap = self._read is _read_by_index_list or type(self._seq).__module__.startswith(
            "pyarrow"
        )
        if is_cheap:
            return {"rows": digest_few_rows(partial(self._read, self._seq), rows, _CHEAP)}
        seq = copy_for_reading(self._seq)
        return {
            "rows": digest_few_rows(
                partial(self._read, seq),
                rows,
                _FEW,
                lambda: partial(self._read, copy_for_reading(seq)),
            )
        }

    def describe(self) -> Json:
        """Return the type of the object and its number of rows."""
        return {"type": _get_qualified_name(self._seq), "rows": self._rows}


def _holds_objects(sample: Any, depth: int = 2) -> bool:
    """Return whether a sample is or contains an object with attributes.

    Arrays, tensors and images do not count.
    """
    if depth and isinstance(sample, dict):
        return any(
            _holds_objects(value, depth - 1) for value in cast("dict[Any, Any]", sample).values()
        )
    if depth and isinstance(sample, list | tuple):
        return any(
            _holds_objects(value, depth - 1) for value in cast("Sequence[Any]", sample)[:_CHEAP]
        )
    sample_type = type(cast(object, sample))
    return (
        hasattr(sample, "__dict__")
        and not hasattr(sample_type, "__array__")
        and not hasattr(sample_type, "__array_interface__")
    )


class Tokens:
    """Documents in one flat array: document `i` is `tokens[offsets[i]:offsets[i + 1]]`.

    Documents are views, never copies. Memory-mapped arrays are pickled by file name. Lengths are known,
    so packing can be planned ahead.

    Args:
        tokens: Vector of token ids of any dtype, possibly memory-mapped.
        offsets: Integers that do not decrease, one more than there are documents. Tokens before the
            first and after the last offset belong to no document.

    Raises:
        ConfigError: `tokens` or `offsets` is no vector, `offsets` is empty or has no integers, or
            `tokens` is a masked array.
        DataError: The offsets decrease, or exceed the tokens.

    >>> store = Tokens(np.arange(6, dtype=np.uint16), np.array([0, 4, 4, 6]))
    >>> store.read(np.array([2, 1])), store.lengths()[:]
    ([array([4, 5], dtype=uint16), array([], dtype=uint16)], array([4, 0, 2]))
    """

    def __init__(self, tokens: npt.NDArray[Any], offsets: npt.ArrayLike) -> None:
        _refuse_mask(tokens)
        self._arguments = (tokens, offsets)
        self._digest: Digest | None = None
        self._ids: tuple[int, int] | None = None
        # A plain array over the same memory: slicing a np.memmap costs ten times as much.
        self._tokens, bounds = np.asarray(tokens), np.asarray(offsets)
        if (
            self._tokens.ndim != 1
            or bounds.ndim != 1
            or bounds.dtype.kind not in "iu"
            or not bounds.size
        ):
            raise ConfigError(
                "Tokens needs a flat array of tokens and one integer offset more than there are "
                f"documents; got shapes {self._tokens.shape} and {bounds.shape}, offsets of type "
                f"{bounds.dtype}"
            )
        self._offsets: Ints = bounds.astype(np.int64, copy=False)
        if (decreasing := np.flatnonzero(self._offsets[1:] < self._offsets[:-1])).size:
            raise DataError(
                f"document {int(decreasing[0])} ends before it begins: the offsets must not decrease",
                where="offsets",
            )
        if int(self._offsets[0]) < 0 or int(self._offsets[-1]) > len(self._tokens):
            raise DataError(
                f"they reach from {int(self._offsets[0])} to {int(self._offsets[-1])}, but there "
                f"are {len(self._tokens)} tokens",
                where="offsets",
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getstate__(self) -> Any:
        return tuple(_replace_by_filename(array) for array in self._arguments)

    def __setstate__(self, state: Any) -> None:
        self.__init__(*(_map_from_filename(array) for array in state))

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """Return the documents at `indices`, as views."""
        tokens, starts, stops = (
            self._tokens,
            self._offsets[indices].tolist(),
            self._offsets[indices + 1].tolist(),
        )
        return [tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def spans(self, indices: Ints, /) -> DocumentSpans:
        """Return the documents at `indices` as spans of the array."""
        return DocumentSpans(
            [self._tokens],
            np.zeros(len(indices), np.int64),
            self._offsets[indices],
            self._offsets[indices + 1],
        )

    def lengths(self) -> Sizes:
        """Return the number of tokens of every document, computed from the offsets."""
        return OffsetLengths(self._offsets)

    def loss_counts(self) -> None:
        """Return `None`: all tokens carry loss."""

    def token_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the tokens."""
        return self._tokens.dtype

    def token_range(self) -> tuple[int, int] | None:
        """Return the smallest and largest token; `None` for mapped, large or empty arrays."""
        tokens = self.joined()
        if (
            isinstance(self._arguments[0], np.memmap)
            or not 0 < tokens.nbytes <= _MAX_SCANNED_BYTES
            or tokens.dtype.kind not in "iu"
        ):
            return None
        self._ids = self._ids or (int(tokens.min()), int(tokens.max()))
        return self._ids

    def joined(self) -> npt.NDArray[Any]:
        """Return the tokens of all documents, concatenated, as a view."""
        return self._tokens[int(self._offsets[0]) : int(self._offsets[-1])]

    cached_integers, lengths_version = load_or_make_integers, read_lengths_version

    def digest(self) -> Digest:
        """Return a digest of the tokens and of the offsets."""
        self._digest = self._digest or self.digest_of(len(self))
        return self._digest

    def digest_of(self, rows: int, /) -> Digest:
        """Return a digest of the first documents."""
        bounds = self._offsets[: rows + 1]
        offsets = digest_data(bounds) or ""
        if bounds.nbytes <= MAX_WHOLE_ARRAY_BYTES:
            data = np.ascontiguousarray(bounds).tobytes()
            offsets = hashlib.blake2b(data, digest_size=8).hexdigest()
        return {
            "offsets": offsets,
            "tokens": digest_data(self._tokens[int(bounds[0]) : int(bounds[-1])]) or "",
        }

    def describe(self) -> Json:
        """Return the number of documents and tokens, and the dtype of the tokens."""
        total = int(self._offsets[-1] - self._offsets[0])
        return {
            "type": "tokens",
            "rows": len(self),
            "tokens": total,
            "dtype": str(self._tokens.dtype),
        }


class Iterable:
    """The samples of a function that returns iterators, as one shard named `stream`.

    The function must return the same samples every time. To go to a row, the source calls `skip` of the
    returned object, which Hugging Face iterable datasets have. Otherwise it generates the rows before
    and discards them.

    Args:
        factory: Function that returns a new iterator.
        identity: Version of the samples, chosen by the user.

    Raises:
        ConfigError: `factory` is not callable, for example an iterator, which cannot restart.

    >>> list(Iterable(lambda: "abc").open("stream", 1))
    ['b', 'c']
    """

    def __init__(self, factory: Callable[[], Any], identity: str | int | None = None) -> None:
        if not callable(factory):
            if isinstance(factory, list | tuple):
                raise ConfigError(
                    f"from_iterable: a {type(factory).__name__} is no function: write "
                    "ps.from_sequence(samples), which has random access"
                )
            raise ConfigError(
                f"{_get_qualified_name(factory)} is no function: give one that makes a new iterator each time, "
                "as in from_iterable(lambda: open_my_data())"
            )
        self._factory, self.identity = factory, identity

    def names(self) -> Sequence[str]:
        """Return the name of the only shard."""
        return ["stream"]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """Return an iterator over the samples from `row` on."""
        iterable: Any = self._factory()
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ConfigError(
                f"from_iterable({_get_qualified_name(self._factory)}): the function must return an "
                f"iterable, not {type(iterable).__name__}"
            )
        if row and can_skip(iterable):
            return iter(iterable.skip(row))
        samples = iter(iterable)
        skipped = 0
        with Progress("go to a row of a stream", row, "samples") as progress:
            while skipped < row and (
                count := sum(1 for _ in islice(samples, min(_SKIPPED_PER_REPORT, row - skipped)))
            ):
                skipped += count
                progress.more(count)
        if skipped < row:
            raise DataError(
                f"it ended after {skipped} samples, before row {row} of the saved state: the "
                "function must yield the same samples every time",
                where=_get_qualified_name(self._factory),
            )
        return samples

    def digest(self) -> Digest:
        """Return the identity that the user gave, if any."""
        return (
            {"shards": digest_memory(self.names()) or ""}
            if self.identity is None
            else {"identity": str(self.identity)}
        )

    @property
    def unknown(self) -> bool:
        """True if nothing identifies the order of the samples."""
        return self.identity is None

    def describe(self) -> Json:
        """Return the type of the source; nothing else is known about a function."""
        return {"type": "iterable"}


def _refuse_mask(array: Any) -> None:
    if "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray):
        raise ConfigError(
            "a masked array would lose its mask: give its `filled()` values, zipped with its mask"
        )


# Ways to read; `_choose_reader` chooses one for each object.

_ReadRows = Callable[[Any, Ints], list[Any]]


def _choose_reader(seq: Any) -> _ReadRows:
    if isinstance(seq, range):
        return (
            _read_range
            if -(1 << 62) < seq.start < 1 << 62 and abs(seq.step) * len(seq) < 1 << 62
            else _read_one_by_one
        )
    if isinstance(seq, np.ndarray):
        array = cast("npt.NDArray[Any]", seq)
        return (
            _make_scalar_reader(array)
            if array.ndim == 1 and array.dtype.kind in _SCALAR_DTYPE_KINDS
            else _make_row_view_reader(array)
        )
    if callable(getattr(seq, "__getitems__", None)):
        return _make_hub_reader(seq) if _is_hub_dataset(seq) else _read_with_getitems
    if type(seq).__module__.startswith("pyarrow") and hasattr(seq, "to_batches"):
        return _make_table_reader(seq)
    if hasattr(seq, "shape") and hasattr(seq, "dtype"):
        return _read_by_index_list
    if _has_only_read(seq):
        return _call_read
    return _read_with_map if type(seq) in (list, tuple) else _read_one_by_one


def _read_range(seq: range, indices: Ints) -> list[int]:
    return (indices * seq.step + seq.start).tolist()


def _make_scalar_reader(array: npt.NDArray[Any]) -> _ReadRows:
    plain = np.asarray(array)
    return lambda _, indices: plain[indices].tolist()


def _make_row_view_reader(array: npt.NDArray[Any]) -> _ReadRows:
    plain = np.asarray(array)
    return lambda _, indices: [plain[index] for index in indices.tolist()]


def _read_with_map(seq: Any, indices: Ints) -> list[Any]:
    return list(map(seq.__getitem__, indices.tolist()))


def _read_one_by_one(seq: Any, indices: Ints) -> list[Any]:
    return [seq[index] for index in indices.tolist()]


def _read_with_getitems(seq: Any, indices: Ints) -> list[Any]:
    samples = list(seq.__getitems__(indices.tolist()))
    if len(samples) != len(indices):
        raise DataError(
            f"__getitems__ returned {len(samples)} samples for {len(indices)} indices",
            where=_get_qualified_name(seq),
        )
    return samples


def _has_only_read(seq: Any) -> bool:
    """Return whether to read an object with its method `read`.

    An object that has items as well, such as `mmap`, may read bytes.
    """
    return callable(getattr(seq, "read", None)) and not hasattr(seq, "__getitem__")


def _call_read(seq: Any, indices: Ints) -> list[Any]:
    return list(seq.read(indices))


def _is_hub_dataset(seq: Any) -> bool:
    return type(seq).__module__.startswith("datasets.") and type(seq).__name__ == "Dataset"


def _make_hub_reader(seq: Any) -> _ReadRows:
    """Return a reader of a Hugging Face dataset that reads neighbours as one slice.

    A slice takes a fraction of the time of a list of indices. A row never depends on the rows that
    are read with it. A single row of arrays is read as a list of one, because `seq[0]` may have
    other dtypes.
    """
    read_slice = make_slice_reader(seq)
    if requires_single_rows(seq):
        return _read_one_by_one
    read_single = _read_with_getitems if has_array_format(seq) else _read_one_by_one

    def read(seq: Any, indices: Ints) -> list[Any]:
        if not len(indices):
            return []
        boundaries = [
            0,
            *(np.flatnonzero(indices[1:] - indices[:-1] != 1) + 1).tolist(),
            len(indices),
        ]
        if len(boundaries) * _MIN_SLICE_ROWS > len(indices):
            return (
                read_single(seq, indices)
                if len(indices) == 1
                else _read_with_getitems(seq, indices)
            )
        samples = list[Any]()
        for start, stop in pairwise(boundaries):
            rows = read_slice(int(indices[start]), int(indices[stop - 1]) + 1)
            if rows is None:
                return _read_one_by_one(seq, indices)
            samples += rows
        return samples

    return read


def _read_by_index_list(seq: Any, indices: Ints) -> list[Any]:
    """Read tensors and array stores with a list of indices.

    The list is sorted and unique, because some stores require that.
    """
    unique, inverse = np.unique(indices, return_inverse=True)
    is_jax = type(seq).__module__.partition(".")[0].startswith("jax")  # JAX rejects lists
    samples = list(seq[unique if is_jax else unique.tolist()])
    if len(samples) != len(unique):
        raise DataError(
            f"it returned {len(samples)} samples for {len(unique)} indices",
            where=_get_qualified_name(seq),
        )
    return [samples[number] for number in inverse.tolist()]


def _as_table(seq: Any) -> Any:
    """Return a record batch as a table, because its `[i]` is a column; other objects as they are.

    Raises:
        ConfigError: Two columns have one name.
    """
    if not (type(seq).__module__.startswith("pyarrow") and hasattr(seq, "column_names")):
        return seq
    names: list[str] = seq.column_names
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(
            f"{_get_qualified_name(seq)} has the column {repeated[0]!r} more than once, so a row "
            "would lose a value: rename one with table.rename_columns(...)"
        )
    return seq if hasattr(seq, "to_batches") else import_arrow().Table.from_batches([seq])


def _make_table_reader(table: Any) -> _ReadRows:
    batches: list[Any] = [
        *map(
            SchemaConverter(table.schema, None, Path(_get_qualified_name(table))),
            table.to_batches(),
        )
    ]
    starts = compute_offsets([batch.num_rows for batch in batches])
    return lambda _, indices: read_by_part(
        starts, indices, lambda part, rows: build_rows(batches[part], rows, views=True)
    )


def _get_qualified_name(value: Any) -> str:
    qualified = cast(
        Any,
        value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value),
    )
    return f"{qualified.__module__}.{qualified.__qualname__}"


class _MappedArray(tuple[Any, ...]):
    """File, dtype, shape, offset and memory order of a memory-mapped array."""


def _replace_by_filename(array: Any) -> Any:
    """Replace a memory-mapped array by its file name and offset, for pickling.

    >>> _replace_by_filename("abc")
    'abc'
    """
    # A slice of a mapping reports the offset of the full mapping, so slices are pickled by value.
    if not isinstance(array, np.memmap):
        return array
    mapping = cast(Any, array)
    if not isinstance(mapping.base, mmap.mmap) or mapping.mode == "c" or not mapping.filename:
        return mapping
    order = "C" if mapping.flags.c_contiguous else "F"
    return _MappedArray(
        (str(mapping.filename), mapping.dtype, mapping.shape, mapping.offset, order)
    )


def _map_from_filename(state: Any) -> Any:
    """Map the file again that `_replace_by_filename` replaced the array by."""
    if isinstance(state, _MappedArray):
        name, dtype, shape, offset, order = state
        array: Any = np.memmap(name, dtype, "r", offset, shape, order)
        return array
    return state
