"""The whole contract on one page: what a source, an order, a schedule and a fold are."""

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
"""Places that a user names: a list, a range, an array of any kind of integers."""

Flags: TypeAlias = npt.NDArray[np.bool_]

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""What a cursor is made of."""


class Sizes(Protocol):
    """The length of every sample: an array of integers, or what is indexed like one by slices and
    arrays."""

    def __len__(self) -> int: ...
    def __getitem__(self, where: Any, /) -> Any: ...


@runtime_checkable
class Source(Protocol):
    """Random access to samples. The indexed leaf of every pipeline.

    `read` takes many indices at once (any order, repeats allowed, each in `[0, len)`) and returns
    their samples in that order. `lengths` gives the size of every sample (tokens, say) without
    reading one (an array, or what is indexed like one), or `None` where nobody knows; what knows
    its lengths can be packed ahead of time. `describe` names what the source *is*, for
    fingerprints; never where it lies.
    """

    def __len__(self) -> int: ...
    def read(self, indices: Ints, /) -> list[Any]: ...
    def lengths(self) -> Sizes | None: ...
    def describe(self) -> Json: ...


@runtime_checkable
class ByColumns(Protocol):
    """A source that can also give its samples as columns (see `penstock.engine.base.columnar`), so
    that batches of them are
    stacked without a row having been made: a sequence of what `read` gives, or a list where that
        cannot be."""

    def block(self, indices: Ints, /) -> Sequence[Any]: ...


@runtime_checkable
class Shards(Protocol):
    """Sequential access: named shards, each of which can be opened at a row."""

    def names(self) -> Sequence[str]: ...
    def open(self, name: str, row: int, /) -> Iterator[Any]: ...
    def describe(self) -> Json: ...


@cache
def _reads(kind: type) -> bool:
    return issubclass(kind, Source)


def is_source(source: Source | Shards) -> TypeGuard[Source]:
    """Whether a leaf has random access. Looked up by type, because protocols are slow to ask."""
    return _reads(type(source))


@cache
def _blocks(kind: type) -> bool:
    return issubclass(kind, ByColumns)


def is_blocks(source: Source) -> TypeGuard[ByColumns]:
    """Whether a source gives columns. Looked up by type, because protocols are slow to ask."""
    return _blocks(type(source))


class Format(Protocol):
    """A format of files that another package brings to `read`, as an entry point of the group
    `penstock.formats`.

    `files` names the data files of a folder that is one dataset in this format, in their order, and
    none for any other folder; `open` makes a source of one file: anything with `len` and `[i]`, or
    `read(indices)`. Both are given a `pathlib.Path`. The name of the entry point is the name of the
    format, and the ending of its files and folders.
    """

    def files(self, folder: Any, /) -> Sequence[Any]: ...
    def open(self, path: Any, /) -> Any: ...


class Order(Protocol):
    """A pure map from positions to positions of the flow below, both unbounded.

    `size` is the length of one pass, `None` for endless; `below` is the length of a pass of the
    flow below. `key` is the randomness of this node: 64 bits, hashed from the seed, the sources,
        and the kind and the
    name or number of the step. `down` returns the positions below and how many passes were made
    without reordering ("laps"): None but for slices and repeats. `up` is the way back.
    `penstock.testing.assert_order` checks one of your own.
    """

    def size(self, below: int | None, /) -> int | None: ...
    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]: ...
    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints: ...
    def describe(self) -> Json: ...


class Mixing(Protocol):
    """A mixing rule of one's own: which input each position draws from, and which of its draws that
    is.

    Pure and vectorised, like an order. `size` is the length of one pass, given those of the inputs
    (None: endless, or not known). Positions go on counting from one pass to the next, and so do the
    draws of every input, which are numbered in the order of their names.

    A rule may have `counts(position)` as well, the draws of each input before a position, and
    `places(source, k)`, the positions of draws of inputs, -1 for none: a plan then need not go
    through all positions.
    """

    def size(self, sizes: Sequence[int | None], /) -> int | None: ...
    def at(self, positions: Ints, /) -> tuple[Ints, Ints]: ...
    def describe(self) -> Json: ...


class Item(NamedTuple):
    """One sample as a fold sees it: its number in the fold's input, its size, its value."""

    number: int
    size: int
    value: Any


class Part(NamedTuple):
    """A piece `value[start:stop]` of an item; folds that split give these out."""

    item: Item
    start: int
    stop: int


Path: TypeAlias = tuple[str | int, ...]
"""A place in a tree: the names of the mixtures' inputs on the way there, and numbers for inputs
that have no name."""

Carry: TypeAlias = Any
"""What a fold remembers: a tree of tuples, lists, dicts, plain JSON values, `Item` and `Part`.
Never changed in place: `step` returns a new one."""


class Fold(Protocol):
    """Decides who goes together. Three pure functions; saving and loading are not its business.

    `step` takes the carry and the next item and returns the new carry and the groups that became
    ready, each a list of `Item` or `Part`. `flush` gives the groups that remain at the end of a
    pass. `key` is the fold's own randomness (most ignore it).

    Where the lengths of all samples are known, groups are planned from them, and the value of an
    item is None. A fold that looks at values has `reads_values = True`; its groups are made as
    samples are read.

    A fold may have `restored(carry)` as well: given a carry from a state, it returns it with all
    that follows from the items made anew, and raises ValueError where it is none of the fold's. A
    state that differs from it is refused.
    """

    def init(self, key: int, /) -> Carry: ...
    def step(
        self, carry: Carry, item: Item, /
    ) -> tuple[Carry, Sequence[Sequence[Item | Part]]]: ...
    def flush(self, carry: Carry, /) -> Sequence[Sequence[Item | Part]]: ...
    def describe(self) -> Json: ...


@runtime_checkable
class Vectorised(Protocol):
    """A function that can also take a list of samples at once, and then gives the list of
    results."""

    def __call__(self, sample: Any, /) -> Any: ...
    def many(self, samples: list[Any], /) -> list[Any]: ...


Transform: TypeAlias = Callable[..., Any]
"""A user's function. Pure: the same input gives the same output, in any thread, any number of
times."""


@dataclass(frozen=True)
class Sizer:
    """How large a sample is: measured on it, or, with `by_length`, known from its length alone, to
    which `extra` is added, and which then counts up to a `multiple`.
    """

    measure: Callable[[Any], int]
    extra: int = 0
    by_length: bool = True
    multiple: int = 1

    def of(self, sample: Any) -> int:
        """The size of a sample."""
        return -(-(int(self.measure(sample)) + self.extra) // self.multiple) * self.multiple

    def counted(self, lengths: Ints) -> Ints:
        """The sizes of samples of these lengths."""
        return -(-(lengths + self.extra) // self.multiple) * self.multiple
