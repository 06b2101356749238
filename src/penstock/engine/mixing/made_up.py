"""A mixture whose shares count trained samples: each lost draw is followed by one more of its
source.

If a sample of a source is lost (filtered, failed), the next draw without a lease is one of its
source, put in before the mixture continues. Therefore the samples that were trained, are in flight
or are owed are always a prefix of the mixture: the shares of trained samples are within 2 of their
weights, and of the samples in flight or owed. The draws put in are a log of positions and sources,
so the order remains a function of the position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ...errors import StateError
from ...types import Ints
from ..base.integers import find_distinct_values
from .events import MadeUp
from .mixture import Mixture

ShareOf: TypeAlias = Literal["drawn", "settled"]

SHARE_OF: tuple[ShareOf, ...] = get_args(ShareOf)


@dataclass(frozen=True, eq=False)
class Corrected:
    """A mixture with draws put in."""

    mixture: Mixture
    made: MadeUp

    @property
    def names(self) -> tuple[str, ...]:
        return self.mixture.names

    @property
    def size(self) -> int | None:
        return self.mixture.size

    @property
    def passes(self) -> Ints:
        return self.mixture.passes

    # ------------------------------------------------------------ questions

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        """The source of each position, and which of its draws (0, 1, 2, ...) it is."""
        source, k = np.empty((2, len(positions)), np.int64)
        put, sources = self._put
        early = positions < self.made.at
        source[early], k[early] = self._early(positions[early])
        place = np.searchsorted(put, positions)
        mine = ~early & (np.append(put, -1)[place] == positions)
        rest = ~early & ~mine
        source[rest], k[rest] = self.mixture.at(positions[rest] - self._before - place[rest])
        source[mine] = sources[place[mine]]
        k[mine] = [self._drawn(j) for j in place[mine].tolist()]
        k[rest] += self._made(source[rest], positions[rest])
        return source, k

    def counts(self, position: int, /) -> Ints:
        """Draws of each source before a position."""
        if position < self.made.at:
            return self.mixture.counts(0) if position == 0 else self._untold(position)
        many = int(np.searchsorted(self._put[0], position))
        found = self.mixture.counts(position - self._before - many) + self._counts
        return found + np.bincount(self._put[1][:many], minlength=len(found))

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of sources, -1 for those that are never made."""
        out, base = np.full(len(k), -1), k - self._counts[source]
        put, drawn = (
            self._put[0],
            np.asarray([self._drawn(j) for j in range(len(self._put[0]))], np.int64),
        )
        for one in map(int, find_distinct_values(source)):
            here, own = np.flatnonzero(source == one), self._own(one)
            place = np.searchsorted(drawn[own], k[here])
            base[here] -= place
            out[here] = np.append(put[own], -1)[place]
            out[here[np.append(drawn[own], -1)[place] != k[here]]] = -1
        rest = np.flatnonzero(out < 0)
        found = self.mixture.places(source[rest], base[rest])
        if self.made.at and (found < self.made.at - self._before).any():
            self._untold(0)
        out[rest] = found + self._before + np.searchsorted(self._slots, found, "right")
        return out

    def weights_at(self, position: int) -> dict[str, float]:
        """The weights in force at a position, of sum 1."""
        many = int(np.searchsorted(self._put[0], position))
        return self.mixture.weights_at(max(position - self._before - many, 0))

    # ------------------------------------------------------------ changes

    def lost(self, names: Sequence[str], frontier: int, needed: Ints) -> MadeUp:
        """Return the draws put in for the losses of these sources, in this order, from `frontier`
        on.

        No rank has leased positions from `frontier` on. Of those before it, only the `needed` ones
        are still known.
        """
        put, sources = self._put
        taken = int(np.searchsorted(put, frontier))
        counts = self._counts + np.bincount(sources[:taken], minlength=len(self.names))
        owed = [self.names[i] for i in map(int, sources[taken:])] + list(names)
        told = find_distinct_values(np.append(needed, frontier - 1) if frontier else needed)
        source, k = self.at(told)
        named = [self.names[i] for i in map(int, source)]
        return MadeUp(
            frontier,
            dict(zip(self.names, counts.tolist(), strict=True)),
            tuple(enumerate(owed, frontier)),
            tuple(zip(told.tolist(), named, k.tolist(), strict=True)),
        )

    # ------------------------------------------------------------ inside

    @cached_property
    def _counts(self) -> Ints:
        """The draws of each source put in before `made.at`."""
        return np.asarray([self.made.counts.get(name, 0) for name in self.names], np.int64)

    @cached_property
    def _before(self) -> int:
        """All of them."""
        return int(self._counts.sum())

    @cached_property
    def _put(self) -> tuple[Ints, Ints]:
        """The positions of the draws put in later, and their sources."""
        number = {name: i for i, name in enumerate(self.names)}
        if strange := {*self.made.counts, *(name for _, name in self.made.draws)} - number.keys():
            raise StateError(
                f"the state has made-up draws of {sorted(strange)}, which the mixture does not "
                "have; restore these inputs"
            )
        places = np.asarray([place for place, _ in self.made.draws], np.int64)
        return places, np.asarray([number[name] for _, name in self.made.draws], np.int64)

    @cached_property
    def _slots(self) -> Ints:
        """Before which position of the mixture each of them is put."""
        return self._put[0] - self._before - np.arange(len(self._put[0]))

    @cached_property
    def _owns(self) -> dict[int, Ints]:
        return {}

    def _own(self, source: int) -> Ints:
        """Which of them are of a source."""
        if source not in self._owns:
            self._owns[source] = np.flatnonzero(self._put[1] == source)
        return self._owns[source]

    @cached_property
    def _draws(self) -> dict[int, int]:
        return {}

    def _drawn(self, j: int) -> int:
        """Which draw of its source the `j`-th of them is."""
        if j not in self._draws:
            source, slot = int(self._put[1][j]), int(self._slots[j])
            earlier = int(np.searchsorted(self._own(source), j))
            self._draws[j] = int(self.mixture.counts(slot)[source] + self._counts[source]) + earlier
        return self._draws[j]

    def _made(self, source: Ints, positions: Ints) -> Ints:
        """How many were put in of each of these sources before these positions."""
        out = self._counts[source]
        for one in map(int, find_distinct_values(source)):
            here = source == one
            out[here] += np.searchsorted(self._put[0][self._own(one)], positions[here])
        return out

    def _early(self, positions: Ints) -> tuple[Ints, Ints]:
        known = self.made.known
        places = np.asarray([place for place, *_ in known], np.int64)
        found = np.searchsorted(places, positions)
        if (missing := np.append(places, -1)[found] != positions).any():
            self._untold(int(positions[missing][0]))
        sources = np.asarray([self.names.index(known[i][1]) for i in found.tolist()], np.int64)
        return sources, np.asarray([known[i][2] for i in found.tolist()], np.int64)

    def _untold(self, position: int) -> Any:
        raise StateError(
            f"position {position} is before {self.made.at}, and the state does not store the "
            "made-up draws before that position; use the log: ds.plan.replay(log)"
        )


def from_log(records: Sequence[Any]) -> MadeUp:
    """The draws put in over a whole run, as the records of its lives tell, one after the other."""
    found = dict[int, str]()
    for record in records:
        match record:
            case {"from": int(start)}:
                found = {position: name for position, name in found.items() if position < start}
            case {"position": int(position), "source": str(name)} if (
                position >= 0 and position not in found
            ):
                found[position] = name
            case _:
                raise StateError(
                    f"{str(record)[:80]} is not a record of a log of settled items, or is there "
                    "twice; pass the log as it was written"
                )
    return MadeUp(0, {}, tuple(sorted(found.items())))


def fits_log(made: MadeUp, log: MadeUp) -> bool:
    """Whether what a state tells of the draws put in is a part of a log."""
    before = Counter(name for position, name in log.draws if position < made.at)
    return Counter(made.counts) == before and {*made.draws} <= {*log.draws}
