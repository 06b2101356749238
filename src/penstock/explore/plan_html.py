"""The plan of a dataset, with its picture and table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..engine.base.shown import attempt, shorten_name
from ..engine.plan import Exhaustion
from ..engine.steps.step import Step, iter_steps
from ..plan import Plan
from ..types import is_source
from .cells import show_table

if TYPE_CHECKING:
    from .run_counts import RunCounts

D = TypeVar("D")

_POINTS, _MIN_POINTS, _CELLS = 40, 12, 1_200  # along the run, and in all sources
_SOURCES = 100  # more make no picture that can be read
_STEPS = 500  # plans of more steps take long to count
_PACKED_ROWS = 200_000  # documents of packed rows, whose lengths are summed
_ORDERED_ROWS = 50_000  # samples of shuffled mixtures, which are counted one by one
_MIN_HORIZON, _MAX_HORIZON = 100, 1 << 40  # of an endless plan, in positions
_WIDTH, _HEIGHT = 760, 150  # pixels


class DatasetPlan(Plan[D]):
    """The plan of a dataset; in a notebook it shows what each source gives, as a picture and a table."""

    def _repr_html_(self) -> str:
        return super()._repr_html_() + attempt(self._show_shares, "")

    def _show_shares(self) -> str:
        """Return the picture and the table; empty if they would take long or read lengths of files."""
        if not _is_cheap(self.tree) or not 0 < len(self.sources) <= _SOURCES:
            return ""
        stop = self.size or self._find_horizon()
        if not stop:
            return ""
        counts, events = self._count_run(stop), self._find_events(stop)
        return self._draw(counts, events) + _list_sources(counts, events)

    def _find_horizon(self) -> int:
        """Return the positions until each source was given once, of an endless plan."""
        repeats = [one.repeats for one in self.exhaustion().values() if one.repeats is not None]
        return min(max([*repeats, _MIN_HORIZON, self.position]), _MAX_HORIZON)

    def _count_run(self, stop: int) -> RunCounts:
        from .run_counts import RunCounts

        points = min(stop, _POINTS, max(_CELLS // len(self.sources), _MIN_POINTS))
        grid = np.unique(np.linspace(0, stop, points + 1).astype(np.int64))
        samples = [list(self.counts(int(position)).values()) for position in grid]
        sizes = self._distinct_samples.tolist()
        names = [shorten_name(name) for name in self.sources]
        return RunCounts(names, sizes, grid, np.asarray(samples, np.int64))

    def _find_events(self, stop: int) -> list[Exhaustion]:
        """Return the first repeat and the end of each source before a position."""

        def find_before(position: int | None) -> int | None:
            return position if position is not None and position < stop else None

        return [
            Exhaustion(find_before(one.repeats), find_before(one.ends))
            for one in self.exhaustion(stop).values()
        ]

    def _draw(self, counts: RunCounts, events: Sequence[Exhaustion]) -> str:
        from ..errors import install_command
        from .charts import has_renderer, render_svg
        from .run_counts import EventStrip

        stop, position = int(counts.steps[-1]), self.position
        if not has_renderer():
            return f"<p>A chart needs: {install_command('plot')}</p>"
        now = [(position, "position of the run")] if 0 < position < stop else []
        repeats, ends = [one.repeats for one in events], [one.ends for one in events]
        strip = EventStrip((), repeats, ends, now)
        title = f"{stop:,} positions" + (", one pass" if self.size else "")
        return render_svg(counts, title, strip, _WIDTH, _HEIGHT)


def _list_sources(counts: RunCounts, events: Sequence[Exhaustion]) -> str:
    samples = counts.counts[-1].tolist()
    total = max(1, sum(samples))
    rows = [
        [
            name,
            f"{size:,}" if size else "",
            f"{count / total:.2%}",
            f"{count:,}",
            f"{count / size:,.2f}" if size else "",
            *("" if at is None else f"{at:,}" for at in (event.repeats, event.ends)),
        ]
        for name, size, count, event in zip(
            counts.names, counts.sizes, samples, events, strict=True
        )
    ]
    names = ["source", "size", "share", "samples", "epochs", "first repeat", "ends"]
    return show_table(names, rows, f"The first {int(counts.steps[-1]):,} positions")


def _is_cheap(root: Step) -> bool:
    """Return True if counting is arithmetic, or visits few rows one by one."""
    steps = [step for step, _ in iter_steps(root)]
    if len(steps) > _STEPS:
        return False
    packed = sum(_count_rows(step) for step in steps if step.needs_lengths)
    ordered = sum(_count_rows(step) for step in steps if _orders_mixture(step))
    return packed <= _PACKED_ROWS and ordered <= _ORDERED_ROWS


def _orders_mixture(step: Step) -> bool:
    """Return True for an order over several sources, such as a shuffle of a mixture."""
    return step.is_order and sum(not below.children for below, _ in iter_steps(step)) > 1


def _count_rows(step: Step) -> int:
    sources: list[Any] = [getattr(below, "source", None) for below, _ in iter_steps(step)]
    return sum(len(source) for source in sources if is_source(source))
