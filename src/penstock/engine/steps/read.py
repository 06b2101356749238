"""`ps.read(...)` and all other sources: the leaves of a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import getitem
from typing import Any, Self, cast

import numpy as np

from ...errors import DataError, GivenUpError, StateError
from ...types import Digest, Ints, Json, Path, Shards, Source, is_blocks, is_in_memory, is_source
from ..base.fallback import log_fallback
from ..base.rows import ProvenanceRows
from ..base.seams import world
from ..base.shown import Shown, attempt, counted, shorten_name
from ..base.sizes import sum_lengths
from ..streams.function_call import Leaf, as_sample_error, make_sample_failure
from ..streams.profiler import TimedSource
from .op import Before, Op, Scope
from .paths import format_path
from .read_shards import ShardsOp
from .seek import At
from .step import Builder, ShowTree, Step
from .tally import Tally, repeat_positions
from .tokens import Lengths

_MANY = 32  # sources of lists, of each of which a few thousand samples have only some


def blocks_of(source: Source, indices: Ints) -> Sequence[Any]:
    """Samples of a source: as columns where it has them."""
    return source.block(indices) if is_blocks(source) else source.read(indices)


def read_any(sources: Sequence[object]) -> Callable[[Ints, Ints], list[Any]] | None:
    """Reads samples of ranges, or of many lists, tuples and ranges, in the order asked, given the
    number of the source and the index of each; None where a source is anything else, or to call
    each for what it gives is as fast.

    >>> from penstock.sources import Memory
    >>> read_any([Memory(range(5, 9)), Memory(range(4))])(np.array([1, 0, 1]), np.array([0, 2, 1]))
    [0, 7, 1]
    >>> read_any([Memory(range(5, 9)), Memory("ab")]) is None
    True
    """
    seqs = [items for each in sources if is_in_memory(each) and (items := each.items()) is not None]
    if len(seqs) < max(len(sources), 1):
        return None
    ranges = [seq for seq in seqs if isinstance(seq, range)]
    if len(ranges) < len(seqs):
        if len(seqs) < _MANY:
            return None
        return lambda source, index: [
            *map(getitem, [seqs[i] for i in source.tolist()], index.tolist())
        ]
    starts, steps = (
        np.asarray(each) for each in zip(*[(seq.start, seq.step) for seq in ranges], strict=True)
    )
    return lambda source, index: (index * steps[source] + starts[source]).tolist()


class ReadOp(Op):
    """An indexed source at work; or its order when it had another number of `rows`, the first
    ones."""

    def __init__(self, named: Leaf, source: Source, rows: int | None = None) -> None:
        self.named, self.source = named, source
        self._present = len(source)
        self._size = self._present if rows is None else rows
        self.former = rows is not None

    @property
    def size(self) -> int:
        return self._size

    def locate(self, positions: Ints) -> ProvenanceRows:
        epoch = positions // self._size
        index = positions - epoch * self._size
        if self.former and (index >= self._present).any():
            raise StateError(
                "an earlier pass drew samples that their source no longer has; load the state with "
                "the data it was saved with"
            )
        number = np.empty_like(index)
        number.fill(self.named.number)
        return ProvenanceRows(number, epoch, index, np.zeros_like(index))

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        assert self.source is not None
        try:
            found = blocks_of(self.source, rows.index)
        except Exception as error:
            if len(rows) == 1 or isinstance(error, GivenUpError):
                raise make_sample_failure(rows, 0, self._cause(error)) from error
            each = [self._one(rows, i) for i in range(len(rows))]  # finds out which one it was
            log_fallback(self.named.name, error)
            return each
        if len(found) != len(rows):
            raise DataError(
                f"read() gave {len(found)} samples for {len(rows)} indices; return one sample "
                "for each index",
                where=self.named.name,
            )
        return found

    def _one(self, rows: ProvenanceRows, i: int) -> Any:
        assert self.source is not None
        try:
            return self.source.read(rows.index[i : i + 1])[0]
        except Exception as error:
            raise make_sample_failure(rows, i, self._cause(error)) from error

    def _cause(self, error: Exception) -> Exception:
        """Return what an error is; items of an object, unlike rows of a file, may be files of their
        own."""
        return as_sample_error(error) if is_in_memory(self.source) else error

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        mine = index[index < self._size if self.named.number == leaf else slice(0)]
        return repeat_positions(mine, self._size, low, high)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        tally.samples[self.named.number] += (stop - start) * times

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        epoch, place = divmod(position, max(self._size, 1))
        leaf = self.named.number
        out[leaf] += (epoch and epoch * self._total(lengths)) * times
        out[leaf] += lengths.until(leaf, place) * times

    def _total(self, lengths: Lengths) -> int:
        if self.former:
            return lengths.until(self.named.number, min(self._size, self._present))
        return lengths.total(self.named.number)

    def holding(self, token: int, lengths: Lengths) -> At:
        leaf = self.named.number
        if not (total := self._total(lengths)):
            return At(0, 0)
        epoch, rest = divmod(token, total)
        place, before = lengths.holding(leaf, rest)
        return At(epoch * self._size + place, epoch * total + before)

    def count_distinct(self, out: Ints) -> None:
        out[self.named.number] = self._size

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        yield self.named.number, None if packed else (among or self).ending, above

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        return iter(())

    @property
    def leaf(self) -> int:
        return self.named.number

    @property
    def leaves(self) -> tuple[int, ...]:
        return (self.named.number,)

    @property
    def has_steady_counts(self) -> bool:
        return True

    @property
    def repeats(self) -> bool:
        return True


@dataclass(frozen=True)
class Read(Step):
    """Read an indexed source, or shards, one after the other."""

    source: Source | Shards
    name: str = ""

    @property
    def children(self) -> tuple[Step, ...]:
        return ()

    def with_children(self, children: tuple[Step, ...], /) -> Self:
        return self

    def describe(self) -> dict[str, Json]:
        return {"read": self.name, **cast("dict[str, Json]", self.source.describe())}

    def show_root(self, name: str, lines: int, show_tree: ShowTree) -> Shown:
        source: Any = self.source
        rows = "a stream"
        if attempt(lambda: is_source(source) or hasattr(source, "__len__"), True):
            rows = attempt(lambda: counted(len(source), "row"), "rows unknown")
        return Shown(f"{shorten_name(name or self.name or 'data')} ({rows})")

    @cached_property
    def reason_not_indexed(self) -> str | None:
        if is_source(self.source):
            return None
        return f"the source {self.name or 'stream'!r} can only be read in sequence"

    @cached_property
    def repeats_source(self) -> bool:
        return True

    @property
    def is_order(self) -> bool:
        return True

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        return (self.name,)

    def token_sources(self, path: Path, complete: bool = False) -> Iterator[tuple[str, object]]:
        yield format_path(path) or self.name or "data", self.source

    @cached_property
    def lengths_known(self) -> bool:
        return is_source(self.source) and self.source.lengths() is not None

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        return identify_counter(getattr(self.source, "counts", None) or self.source)

    def mean_tokens(self) -> float | None:
        lengths = self.source.lengths() if is_source(self.source) else None
        if lengths is None or not len(lengths):
            return None
        return sum_lengths(lengths) / len(lengths)

    def ordered_sources(self, builder: Builder, path: Path) -> frozenset[str]:
        return frozenset({builder.leaf(self, path).name})

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        builder.add_leaf(self, path, self.name, self.source)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        leaf = builder.leaf(self, path)
        profiler = builder.timing and builder.timing.profiler
        if not is_source(self.source):
            return ShardsOp(leaf, profiler)
        source = TimedSource(self.source, leaf.name, profiler) if profiler else self.source
        return ReadOp(leaf, source, builder.rows.get(leaf.name))


def single_source(step: Step, path: Path = ()) -> tuple[Read, Path] | None:
    """Return the source below functions and orders, with its path; None below any other step."""
    if step.forms_groups:
        return None
    while step.only_input is not None:
        if "fold" in step.describe():
            return None
        ((step, path),) = step.child_paths(path)
    return (step, path) if isinstance(step, Read) else None


def identify_counter(counter: Any) -> tuple[str, str] | None:
    """Return the identity of a token counter: its name, and its code if others share the name."""
    name = getattr(counter, "counted", None)
    if name is None:
        return None
    return name, "" if getattr(counter, "lasting", True) else world.digests.digest_code(counter)


# ---------------------------------------------------------------- numbers of samples

NUMBERS = 1 << 48
"""The number of samples of a stream that can be numbered: no run sees the end."""


class Numbers:
    """The numbers below `NUMBERS` as a source; described like a range of the user."""

    def __len__(self) -> int:
        return NUMBERS

    def read(self, indices: Ints, /) -> list[int]:
        """Return the indices."""
        return indices.tolist()

    def lengths(self) -> None:
        """Return `None`: numbers have no sizes."""

    def digest(self) -> Digest:
        """Return the digest of a range."""
        return {"values": world.digests.digest_memory(range(NUMBERS)) or ""}

    def describe(self) -> Json:
        """Return the description of a range."""
        return {"type": "builtins.range", "rows": NUMBERS}


def make_counter() -> Read:
    """Return the source that numbers the samples of a stream.

    It is in no key, because nothing numbers samples of indexed inputs.
    """
    return Read(Numbers(), "index")


def is_counter(step: Step) -> bool:
    """Return whether a step is a counter of samples."""
    return isinstance(step, Read) and isinstance(step.source, Numbers)
