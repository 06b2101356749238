"""Replacement draws of `mix(count="settled")`: each lost draw is followed by one more of its source.

If a sample of a source is lost (filtered, failed), the next draw without a lease is one of its
source, inserted before the mixture continues. Therefore the samples that were trained, are in
flight or wait for a replacement are always a prefix of the mixture. The shares of trained samples
differ from their weights by at most 2, and by the samples in flight or waiting. The inserted draws
are a log of positions and sources, so the order remains a function of the position.

The engine knows only the hook: a `DrawChange` of the mixture, which states save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from .engine.base.integers import find_distinct_values
from .engine.changes.edits import ChangedDraws, Edit
from .engine.mixing import Mixture
from .engine.mixing.rules import DrawChange, Drawing
from .engine.steps.mix import Mix, find_mixtures, mixture_below_functions
from .engine.steps.step import Step
from .errors import ConfigError, StateError
from .types import MAX_POSITION, Ints, Json

ShareOf: TypeAlias = Literal["drawn", "settled"]

SHARE_OF: tuple[ShareOf, ...] = get_args(ShareOf)


@dataclass(frozen=True)
class Replacements(DrawChange, kind="made_up"):
    """The replacement draws of a mixture: what a state stores of them.

    Attributes:
        at: the position before which only some draws are known.
        counts: the number of replacements of each source before `at`.
        draws: the position and source of each replacement from `at` on, in order.
        known: position, source and number of the draws before `at` that the run still needs.
    """

    at: int = 0
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    draws: tuple[tuple[int, str], ...] = ()
    known: tuple[tuple[int, str, int], ...] = ()

    def apply_to(self, mixture: Mixture, /) -> Drawing:
        return ReplacedDraws(mixture, self) if self.at or self.draws else mixture

    def describe(self) -> dict[str, Json]:
        return {"count": "settled"}

    def to_json(self) -> dict[str, Json]:
        draws, known = dict[str, list[Json]](), dict[str, list[Json]]()
        for position, name in self.draws:
            draws.setdefault(name, []).append(position)
        for position, name, k in self.known:
            known.setdefault(name, []).append([position, k])
        return {
            "event": "made_up",
            "at": self.at,
            "counts": dict(self.counts),
            "draws": draws,
            "known": known,
        }

    @classmethod
    def from_json(cls, saved: Any, /) -> Replacements:
        at = _parse_position(saved["at"])
        counts = {str(name): _parse_position(count) for name, count in saved["counts"].items()}
        draws = sorted(
            (_parse_position(position), str(name))
            for name, positions in saved["draws"].items()
            for position in positions
        )
        known = sorted(
            (_parse_position(position), str(name), _parse_position(k))
            for name, pairs in saved["known"].items()
            for position, k in pairs
        )
        before, after = [position for position, *_ in known], [position for position, _ in draws]
        distinct = len({*before, *after}) == len(before) + len(after)
        if not distinct or max(before, default=-1) >= at or min(after, default=at) < at:
            raise ValueError("the replacement draws are not in order")
        if sum(counts.values()) > at:
            raise ValueError("there are more replacement draws than draws")
        return Replacements(at, counts, tuple(draws), tuple(known))


def _parse_position(saved: Any) -> int:
    if type(saved) is not int or not 0 <= saved < MAX_POSITION:
        raise ValueError(f"{saved!r} is no position or count")
    return saved


@dataclass(frozen=True, eq=False)
class ReplacedDraws:
    """The draws of a mixture with replacements inserted."""

    mixture: Mixture
    replacements: Replacements

    @property
    def names(self) -> tuple[str, ...]:
        return self.mixture.names

    @property
    def size(self) -> int | None:
        return self.mixture.size

    @property
    def passes(self) -> Ints:
        return self.mixture.passes

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        """Return the source of each position, and the number of its draw."""
        source, k = np.empty((2, len(positions)), np.int64)
        known, later = positions < self.replacements.at, self._positions
        source[known], k[known] = self._known_draws(positions[known])
        i = np.searchsorted(later, positions)
        inserted = ~known & (np.append(later, -1)[i] == positions)
        rest = ~known & ~inserted
        source[rest], k[rest] = self.mixture.at(positions[rest] - self._total_before - i[rest])
        k[rest] += self._count_replacements(source[rest], positions[rest])
        source[inserted] = self._sources[i[inserted]]
        k[inserted] = [self._draw_number(j) for j in i[inserted].tolist()]
        return source, k

    def counts(self, position: int, /) -> Ints:
        """Return the draws of each source before a position."""
        if position == 0:
            return self.mixture.counts(0)
        self._require_known(position)
        inserted = int(np.searchsorted(self._positions, position))
        counts = self.mixture.counts(position - self._total_before - inserted) + self._before
        return counts + np.bincount(self._sources[:inserted], minlength=len(counts))

    def positions_of(self, source: Ints, k: Ints, /) -> Ints:
        """Return the positions of draws of sources, -1 for those that are never made."""
        out, own_draw = np.full(len(k), -1), k - self._before[source]
        for i in map(int, find_distinct_values(source)):
            wanted, inserted = np.flatnonzero(source == i), self._of_source(i)
            numbers = np.asarray([self._draw_number(j) for j in inserted.tolist()], np.int64)
            j = np.searchsorted(numbers, k[wanted])
            own_draw[wanted] -= j
            is_inserted = np.append(numbers, -1)[j] == k[wanted]
            out[wanted[is_inserted]] = self._positions[inserted[j[is_inserted]]]
        rest = np.flatnonzero(out < 0)
        own = self.mixture.positions_of(source[rest], own_draw[rest])
        if (own < self.replacements.at - self._total_before).any():
            self._require_known(0)
        shift = np.searchsorted(self._own_positions, own, "right")
        out[rest] = own + self._total_before + shift
        return out

    def weights_at(self, position: int) -> dict[str, float]:
        """Return the weights in force at a position, of sum 1."""
        inserted = int(np.searchsorted(self._positions, position))
        return self.mixture.weights_at(max(position - self._total_before - inserted, 0))

    def replace_lost(self, names: Sequence[str], frontier: int, needed: Ints) -> Replacements:
        """Return the replacements after these sources lost draws, in this order.

        Args:
            names: the source of each lost draw.
            frontier: the first position that no rank has leased.
            needed: the positions before the frontier that the run still needs.
        """
        taken = int(np.searchsorted(self._positions, frontier))
        counts = self._before + np.bincount(self._sources[:taken], minlength=len(self.names))
        waiting = [self.names[i] for i in map(int, self._sources[taken:])] + list(names)
        known = find_distinct_values(np.append(needed, frontier - 1) if frontier else needed)
        source, k = self.at(known)
        known_names = [self.names[i] for i in map(int, source)]
        return Replacements(
            frontier,
            dict(zip(self.names, counts.tolist(), strict=True)),
            tuple(enumerate(waiting, frontier)),
            tuple(zip(known.tolist(), known_names, k.tolist(), strict=True)),
        )

    @cached_property
    def _before(self) -> Ints:
        """The number of replacements of each source before the known positions."""
        counts = self.replacements.counts
        return np.asarray([counts.get(name, 0) for name in self.names], np.int64)

    @cached_property
    def _total_before(self) -> int:
        return int(self._before.sum())

    @cached_property
    def _positions(self) -> Ints:
        """The positions of the later replacements."""
        return np.asarray([position for position, _ in self.replacements.draws], np.int64)

    @cached_property
    def _sources(self) -> Ints:
        """The sources of the later replacements."""
        number = {name: i for i, name in enumerate(self.names)}
        names = [name for _, name in self.replacements.draws]
        if unknown := {*self.replacements.counts, *names} - number.keys():
            raise StateError(
                f"the state has replacement draws of {sorted(unknown)}, which the mixture does not "
                "have; restore these inputs"
            )
        return np.asarray([number[name] for name in names], np.int64)

    @cached_property
    def _own_positions(self) -> Ints:
        """The position of the mixture before which each later replacement is inserted."""
        return self._positions - self._total_before - np.arange(len(self._positions))

    @cached_property
    def _by_source(self) -> dict[int, Ints]:
        return {}

    def _of_source(self, source: int) -> Ints:
        """Return the numbers of the later replacements of a source."""
        if source not in self._by_source:
            self._by_source[source] = np.flatnonzero(self._sources == source)
        return self._by_source[source]

    @cached_property
    def _draw_numbers(self) -> dict[int, int]:
        return {}

    def _draw_number(self, j: int) -> int:
        """Return the number, among the draws of its source, of the `j`-th later replacement."""
        if j not in self._draw_numbers:
            source = int(self._sources[j])
            drawn = self.mixture.counts(int(self._own_positions[j])) + self._before
            earlier = int(np.searchsorted(self._of_source(source), j))
            self._draw_numbers[j] = int(drawn[source]) + earlier
        return self._draw_numbers[j]

    def _count_replacements(self, source: Ints, positions: Ints) -> Ints:
        """Count the replacements of each of these sources before each of these positions."""
        out = self._before[source]
        for i in map(int, find_distinct_values(source)):
            mine = source == i
            out[mine] += np.searchsorted(self._positions[self._of_source(i)], positions[mine])
        return out

    def _known_draws(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the source and draw of positions that the state stores one by one."""
        known = self.replacements.known
        places = np.asarray([position for position, *_ in known], np.int64)
        i = np.searchsorted(places, positions)
        if (missing := np.append(places, -1)[i] != positions).any():
            self._require_known(int(positions[missing][0]))
        draws = [known[j] for j in map(int, i)]
        source = np.asarray([self.names.index(name) for _, name, _ in draws], np.int64)
        return source, np.asarray([k for *_, k in draws], np.int64)

    def _require_known(self, position: int) -> None:
        if position < self.replacements.at:
            raise StateError(
                f"position {position} is before {self.replacements.at}, and the state does not "
                "store the replacement draws before that position; use the log: "
                "ds.plan.replay(log)"
            )


# ---------------------------------------------------------------- pipelines and logs


def counts_settled_items(tree: Step) -> bool:
    """Return whether the shares of the mixture count settled items.

    Raises:
        ConfigError: if other steps than functions are above such a mixture.
    """

    def is_settled(mix: Mix | None) -> bool:
        rule = mix and mix.weighted
        return rule is not None and isinstance(rule.draw_change, Replacements)

    if not any(map(is_settled, find_mixtures(tree).values())):
        return False
    if not is_settled(mixture_below_functions(tree)):
        raise ConfigError(
            "lease() of mix(count='settled') allows only functions above the mixture; batch the "
            "samples after training on them, and put shuffles and other orders into the inputs"
        )
    return True


def replay_log(tree: Step, edits: Sequence[Edit], log: Sequence[Any]) -> tuple[Edit, ...]:
    """Return the changes of a run with all replacement draws of its log.

    Raises:
        StateError: if the log is invalid, or of another run.
    """
    if not counts_settled_items(tree):
        raise ConfigError(
            "plan.replay: the mixture does not count settled items; use mix(count='settled')"
        )
    replacements, others = read_log(log), list[Edit]()
    for edit in edits:
        if not isinstance(edit, ChangedDraws) or not isinstance(edit.event, Replacements):
            others.append(edit)
        elif not _is_part_of(edit.event, replacements):
            raise StateError(
                "the log is of another run, or incomplete, because the state has other "
                "replacement draws; pass the whole log of this run"
            )
    return (*others, ChangedDraws((), replacements))


def read_log(records: Sequence[Any]) -> Replacements:
    """Return the replacement draws of a whole run, from the records of its processes in order."""
    names = dict[int, str]()
    for record in records:
        match record:
            case {"from": int(start)}:
                names = {position: name for position, name in names.items() if position < start}
            case {"position": int(position), "source": str(name)} if (
                position >= 0 and position not in names
            ):
                names[position] = name
            case _:
                raise StateError(
                    f"{str(record)[:80]} is not a record of a log of settled items, or is there "
                    "twice; pass the log as it was written"
                )
    return Replacements(draws=tuple(sorted(names.items())))


def _is_part_of(saved: Replacements, log: Replacements) -> bool:
    """Return whether the replacements in a state are a part of those of a log."""
    before = Counter(name for position, name in log.draws if position < saved.at)
    return Counter(saved.counts) == before and {*saved.draws} <= {*log.draws}
