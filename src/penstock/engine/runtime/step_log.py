"""The log of a run's global steps: which rows each took, and which rank had which of them.

Ranks, batches and what becomes of a last, short step may change during a run. The state
keeps a list of records, one for each stretch of steps of one kind, and every answer about a step
comes from it. So it says which steps a `seek` jumped over, and which rows `lease` gave item by item.
Rows are counted over all passes.

When a run goes back, its step numbers restart from there. What it gave before is kept as a
`GivenBefore`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from ...errors import StateError
from ...types import Ints, Json
from ..base.cursors import parse_cursor_int
from ..graph.nodes import Batch
from ..graph.tail import Tail, least_rows, rows_given
from ..streams.deal import REMAINDERS, Remainder, Spread, dealt_to_all

Gives: TypeAlias = Literal["steps", "items", "nothing"]

_ROWS = 1 << 16  # rows that are dealt out together


@dataclass(frozen=True)
class StepRecord:
    """From `step` on, which begins at `row`, a step takes `rows` rows, as many on each of `ranks`.

    `batches` are those that a rank makes of its rows, innermost first. What is left at the end of a
    pass and fills no step is left out ("drop"), filled up from the beginning of the pass ("pad"),
    or dealt out as it is ("keep").

    `gives` is "steps" of a `for`; "items" where `lease` gave all items of a pass, whole; "nothing"
    of steps that a `seek` jumped over.
    """

    step: int
    row: int
    rows: int
    ranks: int
    remainder: Remainder
    batches: tuple[Batch, ...] = ()
    gives: Gives = "steps"

    @property
    def group(self) -> int:
        """The rows of one rank."""
        return self.rows // self.ranks

    @cached_property
    def least(self) -> int:
        """The fewest rows at the end of a pass that make a step; 0 where any number does, as it is
        filled up."""
        return {"drop": self.rows, "pad": 0, "keep": least_rows(self.batches)}[self.remainder]

    def is_of(self, other: StepRecord) -> bool:
        """Return whether both records describe steps of one kind."""
        return replace(self, step=0, row=0) == replace(other, step=0, row=0)

    def to_json(self) -> dict[str, Json]:
        """The record as it lies in a state."""
        return {
            "step": self.step,
            "row": self.row,
            "rows": self.rows,
            "ranks": self.ranks,
            "remainder": self.remainder,
            "batches": [[batch.n, batch.drop_remainder] for batch in self.batches],
            **({} if self.gives == "steps" else {"gives": self.gives}),
        }

    # ------------------------------------------------------------ steps and rows

    def in_pass(self, rows: int) -> int:
        """The steps that so many rows up to the end of a pass give."""
        whole, left = divmod(rows, self.rows)
        return whole + (left >= max(self.least, 1))

    def first_row(self, step: int, rows: int | None) -> int:
        """The row at which a step begins, of a run whose passes have `rows`."""
        steps = step - self.step
        if rows is None:
            return self.row + steps * self.rows
        if not self.in_pass(rows):
            return self.row
        here = rows - self.row % rows  # to the end of the pass in which the record was made
        if steps < self.in_pass(here):
            return self.row + steps * self.rows
        passes, place = divmod(steps - self.in_pass(here), self.in_pass(rows))
        return self.row + here + passes * rows + place * self.rows

    def steps_to(self, row: int, rows: int | None) -> int:
        """The steps up to a row, a begun one included."""
        more = row - self.row
        if rows is None:
            return self.step + -(-more // self.rows)
        if not self.in_pass(rows):
            return self.step
        here = rows - self.row % rows
        if more <= here:
            return self.step + min(-(-more // self.rows), self.in_pass(here))
        passes, place = divmod(more - here, rows)
        whole = self.in_pass(rows)
        return self.step + self.in_pass(here) + passes * whole + min(-(-place // self.rows), whole)

    def dealt(self, starts: Ints, rows: int) -> tuple[Ints, Ints]:
        """The offsets of the rows that come to be in an item, of steps of `rows` rows that begin at
        `starts`: rank after rank, each rank's in ascending order, int64[steps, rows]; and the rank
        of each of these places.
        """
        offsets, ranks = dealt_to_all(starts, rows, self.group)
        if rows == self.rows:
            return offsets, ranks
        mine = np.bincount(ranks, minlength=1)  # batches may drop what fills none of them
        kept = np.asarray(
            [rows_given(self.batches, n) if n < self.group else n for n in mine.tolist()]
        )
        given = np.flatnonzero(_within(ranks) < kept[ranks])
        return offsets[:, given], ranks[given]


def first_record(spread: Spread, tail: Tail) -> StepRecord:
    """The record of a run that begins on these ranks."""
    batches = tuple(Batch(batch.n, batch.drop_remainder) for batch in tail.batches)
    return StepRecord(0, 0, spread.size, spread.world_size, spread.remainder, batches)


def logged(
    log: Sequence[StepRecord], row: int, now: StepRecord, rows: int | None
) -> tuple[StepRecord, ...]:
    """The log of a run that goes on from a row with steps of another kind."""
    last = log[-1]
    if last.is_of(now) and not _splits_step(log, row, rows):
        return tuple(log)
    row = max(row, last.row)  # passes may have got shorter: then no step is told any more
    if last.row == row:
        before = tuple(log[:-1])
        if before and before[-1].is_of(now) and logged(before, row, now, rows) == before:
            return before
        return (*before, replace(now, step=last.step, row=row))
    return (*log, replace(now, step=last.steps_to(row, rows), row=row))


def _splits_step(log: Sequence[StepRecord], row: int, rows: int | None) -> bool:
    """Return whether no step can begin with a row: the pass was changed when its last step was a
    short one."""
    last = log[-1]
    if rows is not None and not last.in_pass(rows):
        return False
    if (step := last.steps_to(row, rows) - 1) < last.step:
        return False
    made = rows_of_step(log, step, rows)
    end = made.stop if rows is None else min(made.stop, (made.start // rows + 1) * rows)
    return made.start < row < end


def record_of(log: Sequence[StepRecord], step: int) -> StepRecord:
    """The record that tells of a step."""
    return next(record for record in reversed(log) if record.step <= step)


def rows_of_step(log: Sequence[StepRecord], step: int, rows: int | None) -> range:
    """The rows of a step. Where it was filled up they go beyond the end of the pass: on from its
    beginning."""
    record = record_of(log, step)
    if rows is not None and not record.in_pass(rows):
        raise IndexError(
            f"step {step}: a pass has {rows} rows, fewer than a step of {record.rows}; ask by "
            "position"
        )
    first = record.first_row(step, rows)
    if rows is not None and not record.least:
        return range(first, first + record.rows)
    then = next((later.row for later in log if later.step > step), first + record.rows)
    return range(
        first, min(first + record.rows, then if rows is None else (first // rows + 1) * rows, then)
    )


def rows_of_steps(
    log: Sequence[StepRecord], steps: range, rows: int | None
) -> tuple[Ints, Ints, Ints]:
    """Return the first and last row of many steps, and the number of their record."""
    found = [_rows_of_steps(log, number, steps, rows) for number in range(len(log))]
    starts, stops, records = (np.concatenate(column) for column in zip(*found, strict=True))
    return starts, stops, records


def _rows_of_steps(
    log: Sequence[StepRecord], number: int, steps: range, rows: int | None
) -> tuple[Ints, Ints, Ints]:
    """Return the same for steps of one record."""
    record, later = log[number], log[number + 1] if number + 1 < len(log) else None
    low, high = (
        max(record.step, steps.start),
        steps.stop if later is None else min(later.step, steps.stop),
    )
    after = np.arange(low, max(low, high), dtype=np.int64) - record.step
    first = record.row + after * record.rows
    if rows is not None and len(after):
        if not record.in_pass(rows):
            raise IndexError(
                f"step {low}: a pass has {rows} rows, fewer than a step of {record.rows}; ask "
                "by position"
            )
        here = rows - record.row % rows
        passes, place = np.divmod(after - record.in_pass(here), record.in_pass(rows))
        later_passes = record.row + here + passes * rows + place * record.rows
        first = np.where(after < record.in_pass(here), first, later_passes)
    stop = first + record.rows
    if rows is None or record.least:
        stop = stop if rows is None else np.minimum(stop, (first // rows + 1) * rows)
        stop = stop if later is None else np.minimum(stop, later.row)
    return first, stop, np.full(len(first), number)


# ------------------------------------------------------------ who had which row


class DealtSteps(NamedTuple):
    """The rows of some steps that are dealt alike: `rows[i]` are those of `steps[i]`, rank after
    rank.

    `starts` are the rows at which the steps begin. `ranks` and `places` say, for each column of
    `rows`, the rank and which row of the rank's item it is. Rows that fill up the last step of a
    pass lie beyond its end: see `wrapped`.
    """

    steps: Ints
    starts: Ints
    rows: Ints
    ranks: Ints
    places: Ints


def dealt_steps(log: Sequence[StepRecord], steps: range, rows: int | None) -> Iterator[DealtSteps]:
    """Yield the rows of steps as they are given to the ranks, some steps at a time; none of steps
    that gave nothing."""
    most = max(1, _ROWS // max(record.rows for record in log))
    for low in range(steps.start, steps.stop, most):
        starts, stops, records = rows_of_steps(log, range(low, min(low + most, steps.stop)), rows)
        sizes = stops - starts
        kinds = np.flatnonzero(np.diff(records) | np.diff(sizes)) + 1
        for some in np.split(np.arange(len(starts)), kinds):
            if log[int(records[some[0]])].gives == "nothing":
                continue
            offsets, ranks = log[int(records[some[0]])].dealt(starts[some], int(sizes[some[0]]))
            yield DealtSteps(
                low + some, starts[some], starts[some, None] + offsets, ranks, _within(ranks)
            )


def _within(ranks: Ints) -> Ints:
    """Which of its rank's rows each is."""
    return np.arange(len(ranks)) - np.searchsorted(ranks, ranks)


def wrapped(dealt: Ints, starts: Ints, rows: int | None) -> Ints:
    """Rows of steps that begin at `starts`: what lies beyond the end of the pass comes from its
    beginning."""
    if rows is None:
        return dealt
    begin = starts // rows * rows
    return (dealt - begin) % rows + begin


class RowsGiven(NamedTuple):
    """The rows that a stretch of a run gave: some stretches of rows, but for those that were
    `left_out`, and with some `repeated`.
    """

    stretches: list[range]
    left_out: Ints
    repeated: Ints


def rows_given_in(log: Sequence[StepRecord], within: range, rows: int | None) -> RowsGiven:
    """Return what was given of the rows in a range, which begins with a step."""
    stretches, left_out, repeated = list[range](), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for record, later in zip(log, [*log[1:], None], strict=True):
        stop = within.stop if later is None else min(within.stop, later.row)
        stretch = range(max(within.start, record.row), stop)
        if not stretch or record.gives == "nothing":
            continue
        stretches.append(stretch)
        if rows is None:
            continue
        # The ends of passes up to there, and what lies before each and fills no step or item.
        for over in range((stretch.start // rows + 1) * rows, stop + 1, rows):
            if record.gives == "items":
                left_out.append(
                    np.arange(
                        max(over - rows + rows_given(record.batches, rows), stretch.start), over
                    )
                )
                continue
            short = (over - max(record.row, over - rows)) % record.rows
            first = np.asarray([over - short])
            if not short:
                continue
            if short < max(record.least, 1):
                left_out.append(np.arange(over - short, over))
            elif record.remainder == "pad":
                beyond = np.arange(over, over - short + record.rows)
                repeated.append(wrapped(beyond, first, rows))
            else:
                offsets, _ = record.dealt(first, short)
                left_out.append(np.setdiff1d(np.arange(short), offsets[0]) + over - short)
    return RowsGiven(stretches, np.concatenate(left_out), np.concatenate(repeated))


def steps_of_row(log: Sequence[StepRecord], row: int, rows: int | None) -> list[int]:
    """Return the steps that gave a row: none where it was left out or jumped over, two where it
    filled up the last step of its pass.
    """
    record = next(record for record in reversed(log) if record.row <= row)
    asked = [record.steps_to(row + 1, rows) - 1]
    if rows is not None:
        end = (row // rows + 1) * rows
        closing = next(record for record in reversed(log) if record.row < end)
        if closing.remainder == "pad":
            asked.append(closing.steps_to(end, rows) - 1)
    return sorted({step for step in asked if step >= 0 and _holds(log, step, row, rows)})


def _holds(log: Sequence[StepRecord], step: int, row: int, rows: int | None) -> bool:
    taken = rows_of_step(log, step, rows)
    if record_of(log, step).gives == "nothing":
        return False
    if row in taken and len(taken) == record_of(log, step).rows:
        return True
    (dealt,) = dealt_steps(log, range(step, step + 1), rows)
    return bool(np.isin(row, wrapped(dealt.rows, dealt.starts[:, None], rows)))


# ------------------------------------------------------------ a run that is sent elsewhere


@dataclass(frozen=True)
class GivenBefore:
    """Samples that a run gave from a row on before it went back there.

    It stood at row `at` of pass `epoch`, with its first `changes` made. `records` are the steps it
    took. It was given before `step` was, and before every later step; so many `times`.
    """

    step: int
    row: int
    epoch: int
    at: int
    changes: int
    records: tuple[StepRecord, ...]
    times: int = 1

    def rows_given(self, rows: int | None) -> RowsGiven:
        """Return what was given."""
        return rows_given_in(
            self.records, range(self.row, self.epoch * (rows or 0) + self.at), rows
        )

    def to_json(self) -> dict[str, Json]:
        """Return it as it lies in a state."""
        numbers: dict[str, Json] = {name: getattr(self, name) for name in _NUMBERS}
        times: dict[str, Json] = {} if self.times == 1 else {"times": self.times}
        return {**numbers, "records": [record.to_json() for record in self.records], **times}


def joined_equal(entries: Iterable[GivenBefore]) -> tuple[GivenBefore, ...]:
    """Return entries that differ, each with the times of all that are equal to it."""
    times = dict[GivenBefore, int]()
    for entry in entries:
        once = replace(entry, times=1)
        times[once] = times.get(once, 0) + entry.times
    return tuple(replace(entry, times=number) for entry, number in times.items())


def log_from(
    log: Sequence[StepRecord], row: int, now: StepRecord, rows: int | None
) -> tuple[StepRecord, ...]:
    """Return the log of a run that goes back to a row, at which a step begins."""
    return logged([record for record in log if record.row <= row], row, now, rows)


def log_beyond(
    log: Sequence[StepRecord], start: int, stop: int, now: StepRecord, rows: int | None
) -> tuple[StepRecord, ...]:
    """Return the log of a run at a row that continues from a later one."""
    return logged(logged(log, start, replace(now, gives="nothing"), rows), stop, now, rows)


def records_within(log: Sequence[StepRecord], start: int, stop: int) -> tuple[StepRecord, ...]:
    """Return the records of the steps in a range of rows; none where they gave nothing."""
    laters = [*(record.row for record in log[1:]), stop]
    found = tuple(
        record
        for record, later in zip(log, laters, strict=True)
        if record.row < stop and later > start
    )
    return found if any(record.gives != "nothing" for record in found) else ()


# ------------------------------------------------------------ in a state


def records_from_json(saved: Any) -> tuple[StepRecord, ...]:
    """The log that a state tells."""
    try:
        log = _log_from_json(saved)
        fit = log[:1] and log[0].step == log[0].row == 0
    except (TypeError, ValueError, KeyError):
        fit, log = False, ()
    if not fit:
        raise StateError(
            f"the state's 'records' are not a log of steps ({str(saved)[:80]}); the state is "
            "damaged, load an earlier one"
        )
    return log


def given_before_from_json(saved: Any) -> tuple[GivenBefore, ...]:
    """Return what a state tells of steps that were given before the run went back."""
    try:
        found = list[GivenBefore]()
        for entry in saved:
            step, row, epoch, at, changes = (parse_cursor_int(entry[name]) for name in _NUMBERS)
            if not (times := parse_cursor_int(entry.get("times", 1))):
                raise ValueError(entry)
            found.append(
                GivenBefore(step, row, epoch, at, changes, _log_from_json(entry["records"]), times)
            )
    except (TypeError, ValueError, KeyError, AttributeError, StateError) as error:
        raise StateError(
            f"the state's 'given_before' cannot be read ({str(saved)[:80]}); the state is "
            "damaged, load an earlier one"
        ) from error
    return tuple(found)


_NUMBERS = ("step", "row", "epoch", "at", "changes")


def _log_from_json(saved: Any) -> tuple[StepRecord, ...]:
    log = tuple(map(_record_from_json, saved))
    steps, rows = [record.step for record in log], [record.row for record in log]
    if not log or steps != sorted(steps) or rows != sorted(rows):
        raise ValueError(saved)
    return log


def _record_from_json(saved: Any) -> StepRecord:
    step, row, rows, ranks = numbers = [saved[name] for name in ("step", "row", "rows", "ranks")]
    batches = tuple(Batch(n, drop) for n, drop in saved["batches"])
    remainder, gives = saved["remainder"], saved.get("gives", "steps")
    sizes = [batch.n for batch in batches]
    fit = all(type(n) is int and n >= 0 for n in numbers) and all(
        type(n) is int and n > 0 for n in sizes
    )
    fit = (
        fit
        and all(type(batch.drop_remainder) is bool for batch in batches)
        and remainder in REMAINDERS
    )
    fit = fit and gives in get_args(Gives)
    if (
        not fit
        or not ranks
        or rows != ranks * int(np.prod(sizes, dtype=object))
        or len(saved) != len(numbers) + 2 + ("gives" in saved)
    ):
        raise ValueError(saved)
    return StepRecord(
        step, row, rows, ranks, cast("Remainder", remainder), batches, cast("Gives", gives)
    )
