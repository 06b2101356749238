"""How many rows the global steps of a run took: a log, since ranks and batches may change while it goes on.

Rows are counted over all passes. An entry says from which step on, at which row, steps took so many rows, and how many
made a last, short step at the end of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from ..errors import StateError
from ..graph.tail import Tail
from ..streams.deal import Spread
from ..types import Ints, Json


@dataclass(frozen=True)
class Size:
    """From `step` on, which begins at row `position`, a step takes `size` rows; `least` or more that are left over at
    the end of a pass make one too, with 0 one that is filled up.
    """

    step: int
    position: int
    size: int
    least: int

    def to_json(self) -> Json:
        return [self.step, self.position, self.size, self.least]

    def in_pass(self, rows: int) -> int:
        """The steps that so many rows up to the end of a pass give."""
        whole, left = divmod(rows, self.size)
        return whole + (left >= max(self.least, 1))

    def first_row(self, step: int, rows: int | None) -> int:
        """The row at which a step begins, of a run whose passes have `rows`."""
        steps = step - self.step
        if rows is None:
            return self.position + steps * self.size
        here = rows - self.position % rows  # to the end of the pass in which the entry was made
        if steps < self.in_pass(here):
            return self.position + steps * self.size
        passes, place = divmod(steps - self.in_pass(here), self.in_pass(rows))
        return self.position + here + passes * rows + place * self.size

    def steps_to(self, position: int, rows: int | None) -> int:
        """The steps up to a row, a begun one included."""
        more = position - self.position
        if rows is None:
            return self.step + -(-more // self.size)
        here = rows - self.position % rows
        if more <= here:
            return self.step + min(-(-more // self.size), self.in_pass(here))
        passes, place = divmod(more - here, rows)
        whole = self.in_pass(rows)
        return self.step + self.in_pass(here) + passes * whole + min(-(-place // self.size), whole)


def size_of(spread: Spread, tail: Tail) -> Size:
    """The steps of a run that begins on these ranks."""
    least = {"drop": spread.size, "pad": 0, "keep": tail.least}[spread.remainder]
    return Size(0, 0, spread.size, least)


def logged(log: Sequence[Size], position: int, now: Size, rows: int | None) -> tuple[Size, ...]:
    """The log of a run that goes on from a row with steps of another size."""
    last = log[-1]
    if (last.size, last.least) == (now.size, now.least) and not _within(log, position, rows):
        return tuple(log)
    position = max(position, last.position)  # passes may have got shorter: then no step is told any more
    if last.position == position:
        return (*log[:-1], Size(last.step, position, now.size, now.least))
    return (*log, Size(last.steps_to(position, rows), position, now.size, now.least))


def _within(log: Sequence[Size], position: int, rows: int | None) -> bool:
    """Whether a row is none with which a step may begin: the pass was changed when its last step was a short one."""
    last = log[-1]
    if rows is not None and not last.in_pass(rows):
        return False
    if (step := last.steps_to(position, rows) - 1) < last.step:
        return False
    made = rows_of_step(log, step, rows)
    end = made.stop if rows is None else min(made.stop, (made.start // rows + 1) * rows)
    return made.start < position < end


def rows_of_step(log: Sequence[Size], step: int, rows: int | None) -> range:
    """The rows of a step. Where it was filled up they go beyond the end of the pass: on from its beginning."""
    entry = next(entry for entry in reversed(log) if entry.step <= step)
    if rows is not None and not entry.in_pass(rows):
        raise IndexError(f"step {step}: a pass of {rows} rows gives no step of {entry.size}")
    first = entry.first_row(step, rows)
    if rows is None or not entry.least:
        return range(first, first + entry.size)
    then = next((later.position for later in log if later.step > step), first + entry.size)
    return range(first, min(first + entry.size, (first // rows + 1) * rows, then))


def rows_of_steps(log: Sequence[Size], steps: range, rows: int | None) -> tuple[Ints, Ints, Ints]:
    """As `rows_of_step` of many: where each step begins and ends, and how many rows a whole one would take there."""
    found = [_rows_of_steps(log, number, steps, rows) for number in range(len(log))]
    starts, stops, whole = (np.concatenate(column) for column in zip(*found, strict=True))
    return starts, stops, whole


def _rows_of_steps(log: Sequence[Size], number: int, steps: range, rows: int | None) -> tuple[Ints, Ints, Ints]:
    """Of one entry."""
    entry, later = log[number], log[number + 1] if number + 1 < len(log) else None
    low, high = max(entry.step, steps.start), steps.stop if later is None else min(later.step, steps.stop)
    after = np.arange(low, max(low, high), dtype=np.int64) - entry.step
    first = entry.position + after * entry.size
    if rows is not None and len(after):
        if not entry.in_pass(rows):
            raise IndexError(f"step {low}: a pass of {rows} rows gives no step of {entry.size}")
        here = rows - entry.position % rows
        passes, place = np.divmod(after - entry.in_pass(here), entry.in_pass(rows))
        later_passes = entry.position + here + passes * rows + place * entry.size
        first = np.where(after < entry.in_pass(here), first, later_passes)
    stop = first + entry.size
    if rows is not None and entry.least:
        stop = np.minimum(stop, (first // rows + 1) * rows)
        stop = stop if later is None else np.minimum(stop, later.position)
    return first, stop, np.full(len(first), entry.size)


def sizes_from_json(saved: Any) -> tuple[Size, ...]:
    """The log that a state tells."""
    try:
        log = tuple(Size(*entry) for entry in saved)
        fit = all(type(n) is int and n >= 0 for entry in log for n in astuple(entry))
        fit = fit and all(0 < entry.size >= entry.least for entry in log)
        steps, places = [entry.step for entry in log], [entry.position for entry in log]
        fit = fit and steps[:1] == places[:1] == [0] and steps == sorted(steps) and places == sorted(places)
    except TypeError:
        fit, log = False, ()
    if not fit:
        raise StateError(f"the state's 'sizes' are no log of steps ({str(saved)[:80]}); it is damaged")
    return log
