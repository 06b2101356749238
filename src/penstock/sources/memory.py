"""Sources that are already there: sequences, arrays, token stores, and functions that make
iterators."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.progress import Progress
from ..engine.base.sizes import ByIndex, Spaced
from ..engine.base.spans import Spans
from ..errors import ConfigError, DataError
from ..types import Ints, Json, Sizes
from .chain import by_part, starts_of
from .hub import can_skip, described_rows, slicer
from .identity import Digest, aside, content, keyed, sampled
from .rows import rows_of
from .unify import Conform

_PASSED = 64  # rows of a stream passed over before it is told
_RUN = 4  # neighbours from which on a slice is worth it
_CHEAP, _FEW = (
    64,
    8,
)  # rows of a sample: of tables and arrays, and of objects whose reading may cost much
_SCANNED = 1 << 30  # bytes of tokens in memory that are looked through when a pipeline is described
_SCALARS = "biufcOUS"  # kinds of arrays whose elements have a Python type


class Memory:
    """Any object with `__len__` and `__getitem__` or `read` as a source, read in the fastest way it
    offers.

    Ranges and one-dimensional arrays give Python scalars, arrays of more dimensions give rows that
    are views, Hugging Face datasets and others with `__getitems__` are asked for many rows at once,
    pyarrow tables give rows as dicts, tensors and array stores (anything with `shape` and `dtype`)
    are indexed with a list. Where the object has `lengths` (an array or a method), or tells those
    of an array of indices (`length_of`), the source knows them; they may be what a function makes
    of the samples that has the same `counted`, a text. Memory-mapped arrays are pickled by file
    name.

    >>> Memory(range(10, 20)).read(np.array([3, 0]))
    [13, 10]
    """

    def __init__(self, seq: Any) -> None:
        asked = ("__len__",) if _reads(seq) else ("__len__", "__getitem__")
        lacks = [name for name in asked if not callable(getattr(seq, name, None))]
        if lacks:
            reason = f"it has no {' and no '.join(lacks)}. For iterators use from_iterable"
            raise ConfigError(f"{_name(seq)} is no sequence: {reason}")
        if getattr(seq, "ndim", None) == 0:
            raise ConfigError(
                f"{_name(seq)} is no sequence: it is one value, an array without an axis"
            )
        if isinstance(seq, Mapping) or hasattr(seq, "dtypes"):  # as frames and series have
            reason = "its keys are names or labels. For columns give pyarrow.table(columns), for a series its to_list()"
            raise ConfigError(f"{_name(seq)} is no sequence of samples: {reason}")
        _refuse_mask(seq)
        self._seq = seq
        self._read = _reader(seq)
        self._rows = len(seq)
        self._digest: Digest | None = None
        self._sample: Digest | None = None

    def __len__(self) -> int:
        return self._rows

    @property
    def plain(self) -> list[Any] | tuple[Any, ...] | range | None:
        """The object, where one of its items is a matter of nanoseconds."""
        return self._seq if self._read in (_from_range, _mapped) else None

    def __getstate__(self) -> Any:
        return _to_filename(self._seq)

    def __setstate__(self, state: Any) -> None:
        self.__init__(_from_filename(state))

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`."""
        return self._read(self._seq, indices)

    @property
    def counted(self) -> str | None:
        """What makes as many tokens of the samples as are known of them."""
        return getattr(self._seq, "counted", None)

    def lengths(self) -> Sizes | None:
        """The sizes of all samples, where the object has them: int64[len], or what is indexed like
        that."""
        tell: Callable[[Ints], Ints] | None = getattr(self._seq, "length_of", None)
        if tell is not None:
            return ByIndex(tell, self._rows)
        found = getattr(self._seq, "lengths", None)
        found = found() if callable(found) else found
        if found is None:
            return None
        lengths = np.asarray(found)
        if (
            lengths.shape != (self._rows,)
            or lengths.dtype.kind not in "iu"
            or bool((lengths < 0).any())
        ):
            raise DataError(
                f"it gives lengths of shape {lengths.shape} and type {lengths.dtype}: {self._rows} "
                "integers, none "
                "negative, are needed",
                where=_name(self._seq),
            )
        return lengths.astype(np.int64, copy=False)

    def digest(self) -> Digest:
        """What the object holds, as far as it is arrays, bytes, text and numbers, or says so itself
        (`digest`)."""
        if self._digest is None:
            own = getattr(self._seq, "digest", None)
            found = str(own()) if callable(own) else content(self._seq)
            self._digest = {} if found is None else {"values": found}
        return self._digest

    def identify_objects(self) -> None:
        """Take the digest of a list that holds objects now, before functions change their
        attributes."""
        items: Any = self._seq
        if isinstance(items, list | tuple):
            items = cast("Sequence[Any]", items)
            if any(_holds_objects(items[place]) for place in keyed(len(items), _CHEAP).tolist()):
                self.digest()

    def digest_of(self, rows: int, /) -> Digest:
        """Return the contents of the first rows; nothing for objects that describe themselves."""
        if callable(getattr(self._seq, "digest", None)):
            return {}
        return (
            {"values": content(self._seq[:rows]) or ""}
            if self.digest()
            else self._rows_digest(rows)
        )

    def sample_digest(self) -> Digest:
        """Digests of a few rows, and the fingerprint that a Hugging Face dataset has."""
        if self._sample is None:
            fingerprint = getattr(self._seq, "_fingerprint", None) if _is_hub(self._seq) else None
            known = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else {}
            self._sample = {**known, **self._rows_digest(self._rows)}
        return self._sample

    def rows_again(self) -> str:
        """Digests of the same few rows, which are read anew."""
        return self._rows_digest(self._rows)["rows"]

    def _rows_digest(self, rows: int) -> Digest:
        """Digests of a few of the first rows. They are read from a copy: what objects note as they
        are read, open files and generators of random numbers, is then not that of the run.
        """
        if _is_hub(self._seq):
            return {"rows": sampled(described_rows(self._seq), rows, _CHEAP)}
        cheap = self._read is _array_like or type(self._seq).__module__.startswith("pyarrow")
        if cheap:
            return {"rows": sampled(partial(self._read, self._seq), rows, _CHEAP)}
        seq = aside(self._seq)
        return {
            "rows": sampled(
                partial(self._read, seq), rows, _FEW, lambda: partial(self._read, aside(seq))
            )
        }

    def describe(self) -> Json:
        """The type of the object and its number of rows."""
        return {"type": _name(self._seq), "rows": self._rows}


def _holds_objects(sample: Any, depth: int = 2) -> bool:
    """Return whether a sample is or holds an object with attributes; arrays, tensors and images are
    none."""
    if depth and isinstance(sample, dict):
        return any(
            _holds_objects(value, depth - 1) for value in cast("dict[Any, Any]", sample).values()
        )
    if depth and isinstance(sample, list | tuple):
        return any(
            _holds_objects(value, depth - 1) for value in cast("Sequence[Any]", sample)[:_CHEAP]
        )
    kind = type(cast(object, sample))
    return (
        hasattr(sample, "__dict__")
        and not hasattr(kind, "__array__")
        and not hasattr(kind, "__array_interface__")
    )


class Tokens:
    """Documents that lie end to end in one flat array: document `i` is `tokens[offsets[i]:offsets[i
    + 1]]`.

    Documents are views, never copies; the arrays may be memory-mapped, and are then pickled by file
    name. Lengths are known, so packing can be planned ahead.

    >>> store = Tokens(np.arange(6, dtype=np.uint16), np.array([0, 4, 4, 6]))
    >>> store.read(np.array([2, 1])), store.lengths()[:]
    ([array([4, 5], dtype=uint16), array([], dtype=uint16)], array([4, 0, 2]))
    """

    def __init__(self, tokens: npt.NDArray[Any], offsets: npt.ArrayLike) -> None:
        _refuse_mask(tokens)
        self._kept = (tokens, offsets)
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
                "documents; got shapes "
                f"{self._tokens.shape} and {bounds.shape}, offsets of type {bounds.dtype}"
            )
        self._offsets: Ints = bounds.astype(np.int64, copy=False)
        if (back := np.flatnonzero(self._offsets[1:] < self._offsets[:-1])).size:
            raise DataError(
                f"document {int(back[0])} ends before it begins: the offsets must not decrease",
                where="offsets",
            )
        if int(self._offsets[0]) < 0 or int(self._offsets[-1]) > len(self._tokens):
            raise DataError(
                f"they reach from {int(self._offsets[0])} to {int(self._offsets[-1])}, but there "
                "are "
                f"{len(self._tokens)} tokens",
                where="offsets",
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getstate__(self) -> Any:
        return tuple(_to_filename(array) for array in self._kept)

    def __setstate__(self, state: Any) -> None:
        self.__init__(*(_from_filename(array) for array in state))

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """The documents at `indices`, as views."""
        tokens, starts, stops = (
            self._tokens,
            self._offsets[indices].tolist(),
            self._offsets[indices + 1].tolist(),
        )
        return [tokens[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def spans(self, indices: Ints, /) -> Spans:
        """The documents at `indices`, as places in the array."""
        return Spans(
            [self._tokens],
            np.zeros(len(indices), np.int64),
            self._offsets[indices],
            self._offsets[indices + 1],
        )

    def lengths(self) -> Sizes:
        """The number of tokens of every document, as what lies between offsets."""
        return Spaced(self._offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self._tokens.dtype

    def ids(self) -> tuple[int, int] | None:
        """The least and the largest id; None of arrays that are mapped from a file, large, or
        empty."""
        tokens = self.joined()
        if (
            isinstance(self._kept[0], np.memmap)
            or not 0 < tokens.nbytes <= _SCANNED
            or tokens.dtype.kind not in "iu"
        ):
            return None
        self._ids = self._ids or (int(tokens.min()), int(tokens.max()))
        return self._ids

    def joined(self) -> npt.NDArray[Any]:
        """The tokens of all documents end to end, as a view."""
        return self._tokens[int(self._offsets[0]) : int(self._offsets[-1])]

    def digest(self) -> Digest:
        """What the tokens are, and where documents begin."""
        self._digest = self._digest or self.digest_of(len(self))
        return self._digest

    def digest_of(self, rows: int, /) -> Digest:
        """The same of the first documents."""
        bounds = self._offsets[: rows + 1]
        offsets = hashlib.blake2b(np.ascontiguousarray(bounds).tobytes(), digest_size=8).hexdigest()
        return {
            "offsets": offsets,
            "tokens": content(self._tokens[int(bounds[0]) : int(bounds[-1])]) or "",
        }

    def describe(self) -> Json:
        """The number of documents and tokens, and the type of the tokens."""
        total = int(self._offsets[-1] - self._offsets[0])
        return {
            "type": "tokens",
            "rows": len(self),
            "tokens": total,
            "dtype": str(self._tokens.dtype),
        }


class Iterable:
    """What a function yields, as one shard named `stream`. The function must give the same samples
    every time.

    `identity` is what the user says that the samples are, a version.

    Going to a row uses the `skip` method of what the function returns, if it has one (Hugging Face
    iterable datasets do); otherwise the rows before it are made again and thrown away.

    >>> list(Iterable(lambda: "abc").open("stream", 1))
    ['b', 'c']
    """

    def __init__(self, factory: Callable[[], Any], identity: str | int | None = None) -> None:
        if not callable(factory):
            raise ConfigError(
                f"{_name(factory)} is no function: give one that makes a new iterator each time, "
                "as in "
                "from_iterable(lambda: open_my_data())"
            )
        self._factory, self.identity = factory, identity

    def names(self) -> Sequence[str]:
        """The only shard."""
        return ["stream"]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """The samples from `row` on."""
        made = self._factory()
        if row and can_skip(made):
            return iter(made.skip(row))
        samples = iter(made)
        passed = 0
        with Progress("go to a row of a stream", row, "samples") as progress:
            while passed < row and (
                more := sum(1 for _ in islice(samples, min(_PASSED, row - passed)))
            ):
                passed += more
                progress.more(more)
        if passed < row:
            raise DataError(
                f"it ended after {passed} samples, where row {row} was to be found again: the "
                "function must yield the "
                "same samples every time",
                where=_name(self._factory),
            )
        return samples

    def digest(self) -> Digest:
        """The identity that the user gave."""
        return (
            {"shards": content(self.names()) or ""}
            if self.identity is None
            else {"identity": str(self.identity)}
        )

    @property
    def unknown(self) -> bool:
        """True if nothing identifies the order of the function's samples."""
        return self.identity is None

    def describe(self) -> Json:
        """That it is a stream: nothing more is known of it."""
        return {"type": "iterable"}


def _refuse_mask(array: Any) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise ConfigError(
            "a masked array would lose its mask: give its `filled()` values, zipped with its mask"
        )


# ---------------------------------------------------------------- ways to read, one chosen per
# object

_Read = Callable[[Any, Ints], list[Any]]


def _reader(seq: Any) -> _Read:
    if isinstance(seq, range):
        return (
            _from_range
            if -(1 << 62) < seq.start < 1 << 62 and abs(seq.step) * len(seq) < 1 << 62
            else _one_by_one
        )
    if isinstance(seq, np.ndarray):
        array = cast("npt.NDArray[Any]", seq)
        return (
            _from_array(array)
            if array.ndim == 1 and array.dtype.kind in _SCALARS
            else _views(array)
        )
    if callable(getattr(seq, "__getitems__", None)):
        return _in_runs(seq) if _is_hub(seq) else _many
    if type(seq).__module__.startswith("pyarrow") and hasattr(seq, "to_batches"):
        return _table(seq)
    if hasattr(seq, "shape") and hasattr(seq, "dtype"):
        return _array_like
    if _reads(seq):
        return _asked
    return _mapped if type(seq) in (list, tuple) else _one_by_one


def _from_range(seq: range, indices: Ints) -> list[int]:
    return (indices * seq.step + seq.start).tolist()


def _from_array(array: npt.NDArray[Any]) -> _Read:
    plain = np.asarray(array)
    return lambda _, indices: plain[indices].tolist()


def _views(array: npt.NDArray[Any]) -> _Read:
    plain = np.asarray(array)
    return lambda _, indices: [plain[index] for index in indices.tolist()]


def _mapped(seq: Any, indices: Ints) -> list[Any]:
    return list(map(seq.__getitem__, indices.tolist()))


def _one_by_one(seq: Any, indices: Ints) -> list[Any]:
    return [seq[index] for index in indices.tolist()]


def _many(seq: Any, indices: Ints) -> list[Any]:
    found = list(seq.__getitems__(indices.tolist()))
    if len(found) != len(indices):
        raise DataError(
            f"__getitems__ gave {len(found)} samples for {len(indices)} indices", where=_name(seq)
        )
    return found


def _reads(seq: Any) -> bool:
    """Whether it is asked for many samples at once by a `read`; what has items as well (`mmap`) may
    mean bytes."""
    return callable(getattr(seq, "read", None)) and not hasattr(seq, "__getitem__")


def _asked(seq: Any, indices: Ints) -> list[Any]:
    return list(seq.read(indices))


def _is_hub(seq: Any) -> bool:
    return type(seq).__module__.startswith("datasets.") and type(seq).__name__ == "Dataset"


def _in_runs(seq: Any) -> _Read:
    """A Hugging Face dataset: neighbours in one slice, which takes a fraction of the time of a list
    of indices."""
    neighbours = slicer(seq)

    def read(seq: Any, indices: Ints) -> list[Any]:
        if not len(indices):
            return []
        cuts = [0, *(np.flatnonzero(indices[1:] - indices[:-1] != 1) + 1).tolist(), len(indices)]
        if len(cuts) * _RUN > len(indices):
            return _one_by_one(seq, indices) if len(indices) == 1 else _many(seq, indices)
        out = list[Any]()
        for start, stop in pairwise(cuts):
            rows = neighbours(int(indices[start]), int(indices[stop - 1]) + 1)
            if rows is None:
                return _one_by_one(seq, indices)
            out += rows
        return out

    return read


def _array_like(seq: Any, indices: Ints) -> list[Any]:
    """Tensors and stores on disk, by a list of indices; sorted and without repeats, as some of them
    insist on that."""
    wanted, places = np.unique(indices, return_inverse=True)
    jax = type(seq).__module__.partition(".")[0].startswith("jax")  # which takes no lists
    found = list(seq[wanted if jax else wanted.tolist()])
    if len(found) != len(wanted):
        raise DataError(f"it gave {len(found)} samples for {len(wanted)} indices", where=_name(seq))
    return [found[place] for place in places.tolist()]


def _table(table: Any) -> _Read:
    batches: list[Any] = [*map(Conform(table.schema, None, Path(_name(table))), table.to_batches())]
    starts = starts_of([batch.num_rows for batch in batches])
    return lambda _, indices: by_part(
        starts, indices, lambda part, rows: rows_of(batches[part], rows, views=True)
    )


def _name(thing: Any) -> str:
    named = cast(
        Any,
        thing if hasattr(thing, "__qualname__") and hasattr(thing, "__module__") else type(thing),
    )
    return f"{named.__module__}.{named.__qualname__}"


class _MappedArray(tuple[Any, ...]):
    """File, dtype, shape, offset and memory order of a memory-mapped array."""


def _to_filename(array: Any) -> Any:
    """Replace a memory-mapped array by its file name and offset, for pickling.

    >>> _to_filename("abc")
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


def _from_filename(state: Any) -> Any:
    """Map the file again that `_to_filename` replaced the array by."""
    if isinstance(state, _MappedArray):
        name, dtype, shape, offset, order = state
        array: Any = np.memmap(name, dtype, "r", offset, shape, order)
        return array
    return state
