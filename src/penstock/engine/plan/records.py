"""The answers of a plan: small frozen records, and columns for many samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ...errors import ConfigError
from ...types import Flags, Ints


class Address(NamedTuple):
    """The address of an item in every run of a pipeline: its pass, and its number in the pass."""

    epoch: int
    item: int

    @property
    def uid(self) -> str:
        """The address as text.

        >>> Address(0, 17).uid, parse_uid("0:17", "settle({!r})")
        ('0:17', Address(epoch=0, item=17))
        """
        return f"{self.epoch}:{self.item}"


def parse_uid(uid: str, call: str) -> Address:
    """Parse `Address.uid`; an error names the `call`, formatted with the uid."""
    epoch, _, item = uid.partition(":") if isinstance(uid, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
    if (
        epoch.isdecimal()
        and item.isdecimal()
        and (address := Address(int(epoch), int(item))).uid == uid
    ):
        return address
    raise ConfigError(
        f"{call.format(uid)}: this is not a uid; give the uid of an item from lease(), such as "
        "'0:17'"
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a position.

    `start` and `stop` are its tokens in a packed row, counted with BOS and EOS; None if nothing is
    packed. A `masked` document is padding there (`plan.exclude`).

    >>> Sample(12, "wiki", 0, 3_141).key
    ('wiki', 0, 3141)
    """

    position: int
    source: str
    epoch: int
    index: int
    start: int | None = None
    stop: int | None = None
    masked: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        """Source, epoch and index, as in `Loader.keys()`."""
        return self.source, self.epoch, self.index


RemovalKind: TypeAlias = Literal["replaced", "masked"]


@dataclass(frozen=True, slots=True)
class Removal:
    """A sample that a run excludes, and what became of it.

    A "replaced" sample is drawn no more: the next one of its source takes its place. A "masked"
    document keeps its place in rows as padding. No row from `row` on trains on either: the next
    row, or the one after the last begun copy of a replaced sample. Rows are counted over all
    passes; in a stream, `row` counts the items that the run had delivered.
    """

    source: str
    index: int
    how: RemovalKind
    row: int | None


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of many positions as columns, in the order of delivery.

    `source` is an index into `names`. `start`, `stop` and `masked` are as in `Sample`, or None.

    >>> import penstock as ps
    >>> found = ps.from_sequence("abcd", name="letters").batch(2).plan.at(slice(0, 2))
    >>> found.position.tolist(), found.index.tolist(), [sample.source for sample in found][:1]
    ([0, 0, 1, 1], [0, 1, 2, 3], ['letters'])
    """

    names: tuple[str, ...]
    position: Ints
    source: Ints
    epoch: Ints
    index: Ints
    start: Ints | None = None
    stop: Ints | None = None
    masked: Flags | None = None

    def __len__(self) -> int:
        return len(self.position)

    def __iter__(self) -> Iterator[Sample]:
        names = map(self.names.__getitem__, self.source.tolist())
        columns: list[Any] = [
            self.position.tolist(),
            list(names),
            self.epoch.tolist(),
            self.index.tolist(),
        ]
        if self.start is not None and self.stop is not None:
            columns += [self.start.tolist(), self.stop.tolist()]
        elif self.masked is not None:
            columns += [[None] * len(self), [None] * len(self)]
        if self.masked is not None:
            columns.append(self.masked.tolist())
        return (Sample(*row) for row in zip(*columns, strict=True))

    def table(self) -> Any:
        """The columns as a `pyarrow.Table`; the source as a dictionary of names.

        >>> import penstock as ps
        >>> ps.from_sequence("abcd", name="letters").plan.at(slice(0, 4)).table().column_names
        ['position', 'source', 'epoch', 'index']
        """
        import pyarrow as pa

        arrow: Any = pa
        source = arrow.DictionaryArray.from_arrays(
            self.source.astype(np.int32), arrow.array(self.names, arrow.string())
        )
        columns = {
            "position": self.position,
            "source": source,
            "epoch": self.epoch,
            "index": self.index,
        }
        if self.start is not None and self.stop is not None:
            columns |= {"start": self.start, "stop": self.stop}
        if self.masked is not None:
            columns["masked"] = self.masked
        return arrow.table(columns)


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """First repeat and end of a source, as positions; None for never.

    `repeats` is the first position with a sample of the source after all of it was delivered,
    `ends` the first position after its last sample.
    """

    repeats: int | None
    ends: int | None


@dataclass(frozen=True)
class Difference:
    """The difference of two plans over a range of positions. `str()` formats it for people.

    `first` is the first position with other samples, None if there is none; `here` and `there` are
    its keys. `counts` has, for every source that differs, its samples in the range in both plans.
    """

    within: range
    first: int | None
    here: tuple[tuple[str, int, int], ...]
    there: tuple[tuple[str, int, int], ...]
    counts: dict[str, tuple[int, int]]

    def __bool__(self) -> bool:
        return self.first is not None or bool(self.counts)

    def __str__(self) -> str:
        low, high = f"{self.within.start:,}", f"{self.within.stop:,}"
        if not self:
            return f"no difference in positions {low} to {high}"
        lines = list[str]()
        if self.first is not None:
            lines.append(
                f"first difference at position {self.first:,}: {_keys(self.here)} here, "
                f"{_keys(self.there)} there"
            )
        if self.counts:
            lines.append(f"samples by source in positions {low} to {high}, here and there:")
            wide = max(map(len, self.counts))
            lines += [
                f"  {name:{wide}}  {a:,}  {b:,}  {b - a:+,}" for name, (a, b) in self.counts.items()
            ]
        return "\n".join(lines)


def _keys(keys: tuple[tuple[str, int, int], ...]) -> str:
    shown = [f"{source}[{index}] (pass {epoch})" for source, epoch, index in keys[:3]]
    return (
        ", ".join(shown) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        if keys
        else "nothing"
    )


def find_difference(a: Samples, b: Samples) -> int | None:
    """Return the first position with other samples in two stretches from one position on."""
    number = {name: i for i, name in enumerate(a.names)}
    renamed = np.asarray([number.get(name, -1) for name in b.names], np.int64)[b.source]
    many = min(len(a), len(b))
    same = np.ones(many, np.bool_)
    for mine, theirs in (
        (a.position, b.position),
        (a.source, renamed),
        (a.epoch, b.epoch),
        (a.index, b.index),
    ):
        same &= mine[:many] == theirs[:many]
    if a.start is not None and b.start is not None and a.stop is not None and b.stop is not None:
        same &= (a.start[:many] == b.start[:many]) & (a.stop[:many] == b.stop[:many])
    if not same.all():
        first = int(np.flatnonzero(~same)[0])
        return int(min(a.position[first], b.position[first]))
    if len(a) == len(b):
        return None
    return int((a if len(a) > len(b) else b).position[many])
