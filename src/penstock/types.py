"""Protocols and types for extensions: sources, formats, orders, mixing rules and folds."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
"""Positions, indices, counts: always int64, always vectors."""

Indices: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Indices from a user: a list, a range, or an array of any integer dtype."""

Flags: TypeAlias = npt.NDArray[np.bool_]
"""Boolean vectors."""

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""Plain JSON values; cursors consist of them."""


MAX_POSITION = 1 << 60
"""Limit of positions, draws, passes, steps and cursors; also the position of what never happens.

Four positions can be added in 64 bits.
"""

MAX_EXACT_FLOAT_INT = 1 << 53
"""Limit up to which float64 represents every integer."""


class Sizes(Protocol):
    """Lengths of all samples: an integer array, or an object with the same indexing.

    Indices are slices and arrays.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, indices: Any, /) -> Any: ...


@runtime_checkable
class Source(Protocol):
    """Random access to samples.

    - `read` receives many indices at once (any order, repeats allowed, each in `[0, len)`) and
      returns their samples in that order.
    - `lengths` returns the size of every sample (such as its tokens) without reading a sample, or
      `None` if sizes are unknown. Packing is planned ahead for sources with lengths.
    - `describe` identifies the content of the source, for fingerprints; never its location.
    """

    def __len__(self) -> int: ...
    def read(self, indices: Ints, /) -> list[Any]: ...
    def lengths(self) -> Sizes | None: ...
    def describe(self) -> Json: ...


@runtime_checkable
class ByColumns(Protocol):
    """Columnar access to a source, so that batches are stacked without building rows.

    `block` returns the samples of `read` as a sequence over columns (see
    `penstock.arrays.columnar`), or as a list if columns are impossible.
    """

    def block(self, indices: Ints, /) -> Sequence[Any]: ...


@runtime_checkable
class Shards(Protocol):
    """Sequential access: named shards that can be opened at a row."""

    def names(self) -> Sequence[str]: ...
    def open(self, name: str, row: int, /) -> Iterator[Any]: ...
    def describe(self) -> Json: ...


Digest: TypeAlias = Mapping[str, str]
"""Digests of the content of a source, by the name of the part that they identify."""

DataLocation: TypeAlias = Literal["process", "machine", "elsewhere"]
"""The location of the readers: this process, this machine, or other machines."""


UNKNOWN_DIGEST = "-"
"""Replaces the digest of a row that cannot be read, or that differs between reads."""


class Digests(Protocol):
    """Digests of values and of rows, by which a saved state recognises its data.

    - `digest_memory` digests arrays, bytes, texts and lists; `None` for objects of other types.
    - `digest_lists` digests a few lists of texts or of integers, as `digest_memory` does.
    - `digest_value` returns eight hex digits of a sample, `UNKNOWN_DIGEST` if it cannot be read.
    - `digest_code` digests the code of a function, with the version of Python.
    """

    def digest_memory(self, value: Any, /) -> str | None: ...
    def digest_lists(self, lists: Sequence[list[str] | list[int]], /) -> str: ...
    def digest_value(self, value: Any, /) -> str: ...
    def digest_code(self, fn: Any, /) -> str: ...


SourceFacts: TypeAlias = Mapping[str, str | int]
"""The length of a source, and its digests by the name of the part that they identify."""


class DataComparison(Protocol):
    """Recognises the data of a saved state.

    - `describe_sources` returns the facts of each source, for a state.
    - `compare_sources` compares them with the facts in a state. It returns notes on harmless
      differences, or on all with `adopt`, and raises `StateError` for other data.
    """

    def describe_sources(
        self, sources: Mapping[str, Source | Shards], /
    ) -> dict[str, SourceFacts]: ...
    def compare_sources(
        self,
        saved: Mapping[str, SourceFacts],
        sources: Mapping[str, Source | Shards],
        now: Mapping[str, SourceFacts],
        adopt: bool,
        /,
    ) -> list[str]: ...


@runtime_checkable
class HasDigest(Protocol):
    """A source or shards that identify their content; a resume compares the digests."""

    def digest(self) -> str | Digest: ...


@runtime_checkable
class Growing(Protocol):
    """A source that may grow; `digest_of` identifies its first `rows` rows."""

    def digest_of(self, rows: int, /) -> Digest: ...


@runtime_checkable
class Opaque(Protocol):
    """Shards of a user's function; `unknown` is true if nothing identifies their order."""

    @property
    def unknown(self) -> bool: ...


@runtime_checkable
class InMemory(Protocol):
    """A source over an object of the user.

    - `items` returns the samples themselves if indexing them takes nanoseconds, else `None`.
    - `identify_objects` takes the digest of objects before functions change their attributes.
    - `sample_digest` identifies an object without a digest by a few rows.
    - `reread_digest` reads these rows again, to detect rows that change from read to read.
    """

    def items(self) -> list[Any] | tuple[Any, ...] | range | None: ...
    def identify_objects(self) -> None: ...
    def sample_digest(self) -> Digest: ...
    def reread_digest(self) -> str: ...


@runtime_checkable
class CachesIntegers(Protocol):
    """A source with a cache for integers that are derived from it, such as sums of its lengths.

    `cached_integers` returns the integers of a key, which one process of a machine makes; `None`
    if there is no cache for them.
    """

    def __len__(self) -> int: ...
    def cached_integers(
        self, key: Mapping[str, Json], make: Callable[[], Ints], /
    ) -> Sizes | None: ...


@runtime_checkable
class IdentifiesLengths(CachesIntegers, Protocol):
    """A source that identifies its lengths exactly, for integers that follow from several sources.

    `lengths_version` is `None` if nothing identifies them. Objects of the user do not have it: two
    objects may have one digest and other lengths.
    """

    def lengths_version(self) -> Json: ...


LOSS_MASKS: Mapping[str, int] = {"loss_mask": 0, "labels": -100}
"""Features that say which tokens carry loss, and the value of tokens that do not."""


@dataclass(frozen=True)
class LossCounts:
    """The tokens of documents that carry loss by their masks: vectors with an entry a document.

    - `count`: the number of such tokens after the first token of the document, which is not predicted.
    - `first`: the index of the first of these; -1 without any.
    - `lead`: true if the first token of the document carries loss too, once BOS precedes it.
    - `masks`: the features of `LOSS_MASKS` that say so; a token carries loss if all of them do.
    """

    count: Ints
    first: Ints
    lead: Flags
    masks: tuple[str, ...]

    def take(self, rows: Ints) -> LossCounts:
        """Return the counts of some documents."""
        return replace(self, count=self.count[rows], first=self.first[rows], lead=self.lead[rows])

    @staticmethod
    def of(flags: Flags, bounds: Ints, masks: tuple[str, ...]) -> LossCounts:
        """Return the counts of documents that lie end to end.

        Args:
            flags: true for each token that carries loss.
            bounds: where each document begins, and where the last one ends.
            masks: the features that say so.

        >>> LossCounts.of(np.array([1, 0, 1, 0], bool), np.array([0, 3, 3, 4]), ()).count.tolist()
        [1, 0, 0]
        """
        starts, stops = bounds[:-1], bounds[1:]
        lead = np.zeros(len(starts), np.bool_)
        lead[stops > starts] = flags[starts[stops > starts]]
        places = np.flatnonzero(flags)
        low = np.searchsorted(places, starts + lead)
        count = (np.searchsorted(places, stops) - low).astype(np.int64)
        first = np.full(len(starts), -1, np.int64)
        first[count > 0] = places[low[count > 0]] - starts[count > 0]
        return LossCounts(count, first, lead, masks)


@runtime_checkable
class HasLossCounts(Protocol):
    """A source that knows how many tokens of each document carry loss, without reading documents.

    `loss_counts` returns `None` if all tokens do. It raises `ConfigError` if only reading tells.
    """

    def loss_counts(self) -> LossCounts | None: ...


@runtime_checkable
class TokenSource(Protocol):
    """A source that may store tokens.

    - `token_dtype` returns the dtype of the stored tokens, `None` if only reading tells.
    - `token_range` returns the smallest and largest token, `None` if unknown without reading files.
    """

    def token_dtype(self) -> np.dtype[Any] | None: ...
    def token_range(self) -> tuple[int, int] | None: ...


class RowFiles(Protocol):
    """The files of the rows of a source.

    `file_rows` returns the number of the file of each row, and the index of the row in that file.
    """

    @property
    def paths(self) -> Sequence[pathlib.Path]: ...
    def file_rows(self, indices: Ints, /) -> tuple[Ints, Ints]: ...


@runtime_checkable
class FileSource(Protocol):
    """A source that is read from files.

    - `row_files` returns the files of the rows, `None` if a row has no file of its own.
    - `column_alone` returns the same rows with one column, `None` if there is no such column.
    - `split_by_hash` returns the rows outside a share of the hashes of a column, and those inside;
      `None` if the rows have no columns.
    """

    def row_files(self) -> RowFiles | None: ...
    def column_alone(self, column: str, /) -> Source | None: ...
    def split_by_hash(self, column: str, share: float, /) -> tuple[Source, Source] | None: ...


@cache
def _implements(kind: type, protocol: type) -> bool:
    """Return whether a class implements a protocol; cached, as protocol checks are slow."""
    return issubclass(kind, protocol)


def is_source(source: object) -> TypeGuard[Source]:
    """Return whether a source has random access."""
    return _implements(type(source), Source)


def is_blocks(source: object) -> TypeGuard[ByColumns]:
    """Return whether a source has columnar access."""
    return _implements(type(source), ByColumns)


def has_digest(source: object) -> TypeGuard[HasDigest]:
    """Return whether a source identifies its content."""
    return _implements(type(source), HasDigest)


def is_unidentified(source: object) -> bool:
    """Return whether nothing identifies the samples of a source, such as a user's function.

    Args:
        source: a source or shards.

    >>> is_unidentified([1, 2])
    False
    """
    return bool(getattr(source, "unknown", False))  # `Opaque`, whose protocol check is slow


def is_in_memory(source: object) -> TypeGuard[InMemory]:
    """Return whether a source is an object of the user."""
    return _implements(type(source), InMemory)


class Format(Protocol):
    """File format plugin for `read`: an entry point of the group `penstock.formats`.

    - `files` returns the data files of a folder that is one dataset in this format, in their order;
      for any other folder an empty sequence.
    - `open` opens a file as a source: an object with `len` and `[i]`, or with `read(indices)`.

    Both receive a `pathlib.Path`. The name of the entry point is the name of the format, and the
    suffix of its files and folders.
    """

    def files(self, folder: Any, /) -> Sequence[Any]: ...
    def open(self, path: Any, /) -> Any: ...


class Order(Protocol):
    """Pure map from positions to positions of the input, both unbounded.

    - `size` returns the length of one pass, or `None` if endless. `below` is the length of a pass
      of the input.
    - `down` returns the positions in the input, and the replay number of each position: `None`,
      except for slices and repeats, which replay the same samples.
    - `up` is the inverse of `down`.
    - `key` is the randomness of the step: 64 bits, hashed from the seed, the sources, and the kind
      and the name or number of the step.

    `penstock.testing.assert_order` checks a custom order.
    """

    def size(self, below: int | None, /) -> int | None: ...
    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]: ...
    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints: ...
    def describe(self) -> Json: ...


class Mixing(Protocol):
    """Custom mixing rule: maps each position to an input and a draw of that input.

    Pure and vectorised, like an order. `size` returns the length of one pass from the lengths of
    the inputs (`None`: endless or unknown). Inputs are numbered in the order of their names.
    Positions, and the draws of each input, continue counting from one pass to the next.

    Two optional methods save a plan from scanning all positions: `counts(position)` returns the
    draws of each input before a position, and `places(source, k)` the positions of draws, or -1.
    """

    def size(self, sizes: Sequence[int | None], /) -> int | None: ...
    def at(self, positions: Ints, /) -> tuple[Ints, Ints]: ...
    def describe(self) -> Json: ...


class Item(NamedTuple):
    """A sample as input of a fold: its number in the fold's input, its size, its value."""

    number: int
    size: int
    value: Any


class Part(NamedTuple):
    """A piece `value[start:stop]` of an item, emitted by folds that split."""

    item: Item
    start: int
    stop: int


Path: TypeAlias = tuple[str | int, ...]
"""Path to a node of a tree: names of mixture inputs, and numbers for inputs without a name."""

Carry: TypeAlias = Any
"""State of a fold: a tree of tuples, lists, dicts, plain JSON values, `Item` and `Part`.

Immutable: `step` returns a new carry."""


class Fold(Protocol):
    """Grouping rule of three pure functions; the framework saves and loads its carry.

    - `init` returns the first carry of a pass. `key` is the randomness of the fold.
    - `step` receives the carry and the next item, and returns the new carry and the completed
      groups, each a list of `Item` or `Part`.
    - `flush` returns the groups that remain at the end of a pass.

    If the lengths of all samples are known, groups are planned from them, and the value of an item
    is `None`. A fold that needs values sets `reads_values = True`; its groups are built while
    samples are read.

    The optional method `restored(carry)` validates a carry from a state. It returns the carry with
    every derived field recomputed from the items, and raises `ValueError` if the carry is invalid.
    A state that differs from the result is an error.
    """

    def init(self, key: int, /) -> Carry: ...
    def step(
        self, carry: Carry, item: Item, /
    ) -> tuple[Carry, Sequence[Sequence[Item | Part]]]: ...
    def flush(self, carry: Carry, /) -> Sequence[Sequence[Item | Part]]: ...
    def describe(self) -> Json: ...


@runtime_checkable
class Vectorised(Protocol):
    """A function with a batched form: `many` maps a list of samples to a list of results.

    In `map(fn, may_skip=True)`, `many` returns a `ps.Skip()` in the place of a dropped sample. If
    `many` raises, its samples are retried one by one, to find the bad one.
    """

    def __call__(self, sample: Any, /) -> Any: ...
    def many(self, samples: list[Any], /) -> list[Any]: ...


@runtime_checkable
class CountingFunction(Protocol):
    """A function that counts what it does. `loader.stats()` shows its `stats`, a named tuple.

    A function around it names it as `__wrapped__`, as `functools.wraps` does.
    """

    @property
    def stats(self) -> NamedTuple: ...


Transform: TypeAlias = Callable[..., Any]
"""A user's pure function: equal input gives equal output, in any thread, at every call."""


class UntrainedRule(Protocol):
    """Finds the documents without a token that carries loss in their rows.

    - `is_untrained` looks at a document.
    - `find_untrained` takes loss counts and lengths of documents.
    """

    def is_untrained(self, document: Any, /) -> bool: ...
    def find_untrained(self, counts: LossCounts, lengths: Ints, /) -> Flags: ...


@dataclass(frozen=True)
class Sizer:
    """Size of a sample: a measured length, plus `extra`, rounded up to a `multiple`, at most `most`.

    With `by_length` the size follows from the length of the sample, without reading it. Samples that
    are `untrained` have the size 0, so no group holds them.
    """

    measure: Callable[[Any], int]
    extra: int = 0
    by_length: bool = True
    multiple: int = 1
    most: int | None = None
    untrained: UntrainedRule | None = None

    def of(self, sample: Any) -> int:
        """Return the size of a sample.

        Args:
            sample: the sample to measure.
        """
        if self.untrained is not None and self.untrained.is_untrained(sample):
            return 0
        size = -(-(int(self.measure(sample)) + self.extra) // self.multiple) * self.multiple
        return size if self.most is None else min(size, self.most)

    def counted(self, lengths: Ints) -> Ints:
        """Return the sizes of samples, given their lengths.

        Args:
            lengths: lengths as the source knows them.
        """
        sizes = lengths + self.extra
        if self.multiple > 1:
            sizes = -(-sizes // self.multiple) * self.multiple
        return sizes if self.most is None else np.minimum(sizes, self.most)
