"""Protocols and types for extensions: sources, formats, orders, mixing rules and folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

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
    `penstock.engine.base.columnar`), or as a list if columns are impossible.
    """

    def block(self, indices: Ints, /) -> Sequence[Any]: ...


@runtime_checkable
class Shards(Protocol):
    """Sequential access: named shards that can be opened at a row."""

    def names(self) -> Sequence[str]: ...
    def open(self, name: str, row: int, /) -> Iterator[Any]: ...
    def describe(self) -> Json: ...


@cache
def _is_source_type(kind: type) -> bool:
    return issubclass(kind, Source)


def is_source(source: Source | Shards) -> TypeGuard[Source]:
    """Return whether a source has random access.

    Cached by type, as protocol checks are slow.
    """
    return _is_source_type(type(source))


@cache
def _is_columnar_type(kind: type) -> bool:
    return issubclass(kind, ByColumns)


def is_blocks(source: Source) -> TypeGuard[ByColumns]:
    """Return whether a source has columnar access.

    Cached by type, as protocol checks are slow.
    """
    return _is_columnar_type(type(source))


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
    """A function with a batched form: `many` maps a list of samples to a list of results."""

    def __call__(self, sample: Any, /) -> Any: ...
    def many(self, samples: list[Any], /) -> list[Any]: ...


Transform: TypeAlias = Callable[..., Any]
"""A user's pure function: equal input gives equal output, in any thread, at every call."""


@dataclass(frozen=True)
class Sizer:
    """Size of a sample: a measured length, plus `extra`, rounded up to a `multiple`.

    With `by_length` the size follows from the length of the sample, without reading it.
    """

    measure: Callable[[Any], int]
    extra: int = 0
    by_length: bool = True
    multiple: int = 1

    def of(self, sample: Any) -> int:
        """Return the size of a sample.

        Args:
            sample: the sample to measure.
        """
        return -(-(int(self.measure(sample)) + self.extra) // self.multiple) * self.multiple

    def counted(self, lengths: Ints) -> Ints:
        """Return the sizes of samples, given their lengths.

        Args:
            lengths: lengths as the source knows them.
        """
        return -(-(lengths + self.extra) // self.multiple) * self.multiple
