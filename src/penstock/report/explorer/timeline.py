"""Shares of sources over a run, computed a part at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.arguments import check_position
from penstock.engine.steps.packed import top_pack
from penstock.errors import ConfigError

from ..shares import convert_to_tokens
from ..target import Target
from .budget import TimeBudget

DEFAULT_POINTS = 96
MAX_POINTS = 240
DEFAULT_BANDS = 12
MAX_BANDS = 40
_CACHED_STEPS = 2_048

Floats: TypeAlias = npt.NDArray[np.float64]
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class TimelineQuery:
    """A part of a run, and the sources to show.

    Attributes:
        first: The first step.
        stop: The step to stop before; None for the end of the run.
        points: The number of intervals.
        bands: The number of sources with the largest shares to show; the others are one band.
        pinned: Sources to show whatever their shares are.
        groups: Show each group as one band.
        unfolded: Groups to show source by source.
    """

    first: int = 0
    stop: int | None = None
    points: int = DEFAULT_POINTS
    bands: int = DEFAULT_BANDS
    pinned: Sequence[str] = ()
    groups: bool = False
    unfolded: Sequence[str] = ()


@dataclass(frozen=True)
class Band:
    """A band of the picture: a source, a group or the rest."""

    name: str
    kind: str
    members: list[int] = field(default_factory=list[int])


class Timeline:
    """Counts of a run at its steps, with a cache of bounded size.

    Args:
        target: The opened mixture.
        steps: The length of the run.
    """

    def __init__(self, target: Target, steps: int) -> None:
        self._target, self.steps = target, steps
        self._cache = OrderedDict[int, tuple[Floats, Floats]]()
        self._names = list(target.plan.sources)

    def compute(self, query: TimelineQuery, budget: TimeBudget | None = None) -> Json:
        """Return the shares of the bands in each interval of the query.

        An answer that would take longer than the budget holds fewer intervals, and
        `complete: false`; the same query then returns more of them.

        Args:
            query: The part of the run.
            budget: The time that the query may take.

        Returns:
            `steps` (the borders of the intervals), and for each band `requested` and `share`.
        """
        first, stop = self._clip(query.first, query.stop)
        points = max(1, min(query.points, MAX_POINTS, stop - first))
        grid = sorted({first + (stop - first) * i // points for i in range(points + 1)})
        budget = budget or TimeBudget()
        for step in _order_coarsely(grid):
            self._load(step, budget, step in (first, stop))
        known = [step for step in grid if step in self._cache]
        counts = np.stack([self._cache[step][0] for step in known])
        wanted = np.stack([self._cache[step][1] for step in known])
        bands = self._choose_bands(query, counts[-1] - counts[0])
        delivered, requested = np.diff(counts, axis=0), np.diff(wanted, axis=0)
        sums = np.maximum(delivered.sum(axis=1), 1e-300), np.maximum(requested.sum(axis=1), 1e-300)
        total = max(float((counts[-1] - counts[0]).sum()), 1e-300)
        return {
            "first": first,
            "stop": stop,
            "unit": self._target.unit,
            "by": "tokens" if self._target.by_tokens else "samples",
            "steps": known,
            "complete": len(known) == len(grid),
            "bands": [
                {
                    "name": band.name,
                    "kind": band.kind,
                    "sources": len(band.members),
                    "total": float((counts[-1] - counts[0])[band.members].sum()) / total,
                    "share": _round_values(delivered[:, band.members].sum(axis=1) / sums[0]),
                    "requested": _round_values(requested[:, band.members].sum(axis=1) / sums[1]),
                }
                for band in bands
            ],
        }

    def _clip(self, first: int, stop: int | None) -> tuple[int, int]:
        stop = self.steps if stop is None else stop
        if self._target.end is not None:
            stop = min(stop, self._target.end)
        first = max(0, min(first, max(stop - 1, 0)))
        check_position(self._target.row(max(stop, first + 1)))
        return first, max(stop, first + 1)

    def _load(self, step: int, budget: TimeBudget, is_needed: bool) -> None:
        """Count the samples before a step, unless they are known or the time is spent."""
        if step in self._cache:
            self._cache.move_to_end(step)
            return
        if budget.is_spent and not is_needed:
            return
        target = self._target
        unit = "tokens" if target.by_tokens else "samples"
        counts = np.fromiter(target.rows.counts(step=step, unit=unit).values(), np.float64)
        self._cache[step] = counts, self._sum_requested(step, counts)
        if len(self._cache) > _CACHED_STEPS:
            self._cache.popitem(last=False)

    @cached_property
    def _is_constant(self) -> bool:
        """True if the requested shares are the same over the whole run."""
        steps = np.unique(np.linspace(1, max(self.steps, 1), 5).astype(np.int64)).tolist()
        shares = [[*self._target.requested_shares(step).values()] for step in steps]
        return all(np.allclose(one, shares[0], atol=1e-9) for one in shares)

    @cached_property
    def _constant_shares(self) -> Floats:
        return self._share_at(max(self.steps, 1))

    def _share_at(self, step: int) -> Floats:
        shares = self._target.requested_shares(step)
        if self._target.by_tokens:
            shares = convert_to_tokens(self._target, shares)
        return np.fromiter(shares.values(), np.float64)

    def _sum_requested(self, step: int, counts: Floats) -> Floats:
        """Return the amounts that the weights request before a step."""
        shares = self._constant_shares if self._is_constant else self._share_at(max(step, 1))
        return shares * counts.sum()

    def _choose_bands(self, query: TimelineQuery, amounts: Floats) -> list[Band]:
        groups = self._target.groups
        bands, left = list[Band](), list[int]()
        unfolded = {*query.unfolded}
        for number, name in enumerate(self._names):
            if query.groups and name in groups and groups[name] not in unfolded:
                continue
            left.append(number)
        if query.groups:
            for group in dict.fromkeys(groups.values()):
                if group not in unfolded:
                    members = [i for i, name in enumerate(self._names) if groups.get(name) == group]
                    bands.append(Band(group, "group", members))
        limit = max(1, min(query.bands, MAX_BANDS))
        pinned = [i for i in left if self._names[i] in query.pinned][:MAX_BANDS]
        by_amount = sorted(left, key=lambda i: -amounts[i])
        shown = {*pinned, *by_amount[: len(left) if len(left) <= limit + 1 else limit]}
        bands += [Band(self._names[i], "source", [i]) for i in left if i in shown]
        if rest := [i for i in left if i not in shown]:
            bands.append(Band(f"{len(rest):,} others", "rest", rest))
        return bands

    # ------------------------------------------------------------ marks

    @cached_property
    def marks(self) -> list[Json]:
        """Events of the run by step: stages, first repeats, ends and changes of the run."""
        target = self._target
        marks = [
            _make_mark(step, "stage", name, f"stage {name} begins") for step, name in target.stages
        ]
        if target.rows.position:
            step = target.rows.next_step
            marks.append(_make_mark(step, "state", None, f"the state is before step {step:,}"))
        marks += self._list_repeats()
        marks += self._list_changes()
        return sorted((mark for mark in marks if mark["step"] <= self.steps), key=_get_step)

    def _list_repeats(self) -> Iterator[Json]:
        from ..shares import rows

        try:
            found = rows(self._target, self.steps)
        except ConfigError:  # the mixture can only be counted one by one
            return
        for row in found:
            if row.first_repeat is not None:
                text = f"{row.source} repeats for the first time"
                yield _make_mark(row.first_repeat, "repeat", row.source, text)
            if row.ends is not None:
                text = f"{row.source} is used up"
                yield _make_mark(row.ends, "end", row.source, text)

    def _list_changes(self) -> Iterator[Json]:
        target = self._target
        if not target.rows.position:
            return
        for change in cast("list[Json]", target.rows.state.get("changes", [])):
            if (described := _describe_change(change)) is not None:
                position, text, is_draw = described
                row = self._find_row(position) if is_draw else position
                yield _make_mark(target.step(row), "change", None, text)
        for record in target.log.records[1:]:
            text = f"steps of {record.rows:,} rows on {record.ranks:,} ranks"
            yield _make_mark(record.step, "change", None, text)

    def _find_row(self, draw: int) -> int:
        """Return the first row that holds a draw of the mixture or a later one."""
        pack = top_pack(self._target.rows.compiled.op)
        row = draw if pack is None else pack.find_row(draw)
        return self._target.row(self.steps) if row is None else row


def _order_coarsely(grid: Sequence[int]) -> list[int]:
    """Return steps with both ends first, then the middle, the quarters and so on.

    >>> _order_coarsely([0, 1, 2, 3, 4])
    [0, 4, 2, 1, 3]
    """
    last = len(grid) - 1
    places, spacing = [0, last], 1 << max(last - 1, 0).bit_length()
    while spacing > 1:
        spacing //= 2
        places += range(spacing, last, 2 * spacing)
    return [grid[place] for place in dict.fromkeys(places)]


def _get_step(mark: Json) -> int:
    return int(mark["step"])


def _make_mark(step: int, kind: str, source: str | None, text: str) -> Json:
    return {"step": step, "kind": kind, "source": source, "text": text}


def _describe_change(change: Json) -> tuple[int, str, bool] | None:
    """Return where a change of a run begins, the change in words, and True if that is a draw.

    Other changes begin at a row. Changes of inner mixtures have no known row, and are left out.
    """
    if "skip" in change:
        count = int(change["count"])
        return int(change["skip"]), f"{count:,} rows skipped", False
    if "exclude" in change or "mask" in change:
        kind = "exclude" if "exclude" in change else "mask"
        row = change.get("row")
        indices = change.get("indices", ())
        text = f"{len(indices):,} samples of {change[kind]} removed"
        return None if row is None else (int(row), text, False)
    event = change.get("event")
    if not isinstance(event, dict) or change.get("path"):
        return None
    event = cast("Json", event)
    names = {"set_weights": "other weights", "adopt": "another mixture adopted"}
    text = names.get(str(event.get("event")), "the mixture changes")
    return int(event.get("at", 0)), text, True


def _round_values(values: Floats) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
