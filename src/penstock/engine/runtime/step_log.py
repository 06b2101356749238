"""The log of a run's global steps: which rows each took, and which rank had which of them.

Ranks, batches and what becomes of a last, short step may change during a run. The state
keeps a list of records, one for each stretch of steps of one kind, and every answer about a step
comes from it. So it says which steps a `seek` jumped over, and which rows `lease` gave item by item.
Rows are counted over all passes.

When a run goes back, its step numbers restart from there. What it gave before is kept as a
`GivenBefore`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from ...errors import StateError
from ...types import MAX_POSITION, Ints, Json
from ..base.batch_size import BatchSize, least_rows, rows_given
from ..base.cursors import parse_cursor_int
from ..base.passes import Passes
from ..steps.batch import Tail
from ..streams.deal import REMAINDERS, Remainder, Spread, dealt_to_all

Gives: TypeAlias = Literal["steps", "items", "nothing"]

_ROWS = 1 << 16  # rows that are dealt out together


class PassSteps(NamedTuple):
    """Passes of `rows` rows and `steps` steps each, from a step that begins at row `row` on."""

    step: int
    row: int
    rows: int
    steps: int


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
    batches: tuple[BatchSize, ...] = ()
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

    def stretches(self, passes: Passes | None) -> list[PassSteps]:
        """Return the steps of this kind: the rest of the pass in which they begin, and the passes
        after it."""
        if passes is None:
            return [PassSteps(self.step, self.row, MAX_POSITION, MAX_POSITION)]
        here, out = passes.at(self.row), list[PassSteps]()
        step, left = self.step, here.stop - self.row
        out.append(PassSteps(step, self.row, left, self.in_pass(left)))
        step += self.in_pass(left)
        epochs = [here.epoch + 1, *(epoch for epoch in passes.epochs if epoch > here.epoch + 1)]
        for epoch, later in zip(epochs, [*epochs[1:], None], strict=True):
            size = passes.size(epoch)
            out.append(PassSteps(step, passes.start(epoch), size, self.in_pass(size)))
            step += self.in_pass(size) * ((later or epoch) - epoch)
        return out

    def first_row(self, step: int, passes: Passes | None) -> tuple[int, int]:
        """Return the row at which a step begins, and the end of its pass."""
        found = self.stretches(passes)
        first, row, size, each = found[bisect_right(found, step, key=lambda one: one.step) - 1]
        if not each:
            raise self._no_step(step, size)
        epoch, place = divmod(step - first, each)
        return row + epoch * size + place * self.rows, row + (epoch + 1) * size

    def first_rows(self, steps: Ints, passes: Passes | None) -> tuple[Ints, Ints]:
        """Return the same of many steps."""
        first, row, size, each = np.asarray(self.stretches(passes), np.int64).T
        i = np.searchsorted(first, steps, side="right") - 1
        if (none := each[i] == 0).any():
            raise self._no_step(int(steps[none][0]), int(size[-1]))
        epoch, place = np.divmod(steps - first[i], each[i])
        begin = row[i] + epoch * size[i]
        return begin + place * self.rows, begin + size[i]

    def _no_step(self, step: int, rows: int) -> IndexError:
        return IndexError(
            f"step {step}: a pass has {rows} rows, fewer than a step of {self.rows}; ask by position"
        )

    def steps_to(self, row: int, passes: Passes | None) -> int:
        """The steps up to a row, a begun one included."""
        found = self.stretches(passes)
        step, start, size, each = found[
            max(bisect_right(found, row, key=lambda one: one.row) - 1, 0)
        ]
        epoch, place = divmod(row - start, max(size, 1))
        return step + epoch * each + min(-(-place // self.rows), each)

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
    batches = tuple(BatchSize(batch.n, batch.drop_remainder) for batch in tail.batches)
    return StepRecord(0, 0, spread.size, spread.world_size, spread.remainder, batches)


def logged(
    log: Sequence[StepRecord], row: int, now: StepRecord, passes: Passes | None
) -> tuple[StepRecord, ...]:
    """The log of a run that goes on from a row with steps of another kind."""
    last = log[-1]
    if last.is_of(now) and not _splits_step(log, row, passes):
        return tuple(log)
    row = max(row, last.row)
    if last.row == row:
        before = tuple(log[:-1])
        if before and before[-1].is_of(now) and logged(before, row, now, passes) == before:
            return before
        return (*before, replace(now, step=last.step, row=row))
    return (*log, replace(now, step=last.steps_to(row, passes), row=row))


def _splits_step(log: Sequence[StepRecord], row: int, passes: Passes | None) -> bool:
    """Return whether no step can begin with a row: the pass was changed when its last step was a
    short one."""
    last = log[-1]
    if (step := last.steps_to(row, passes) - 1) < last.step:
        return False
    made = rows_of_step(log, step, passes)
    end = made.stop if passes is None else min(made.stop, passes.at(made.start).stop)
    return made.start < row < end


def record_of(log: Sequence[StepRecord], step: int) -> StepRecord:
    """The record that tells of a step."""
    return next(record for record in reversed(log) if record.step <= step)


def rows_of_step(log: Sequence[StepRecord], step: int, passes: Passes | None) -> range:
    """The rows of a step. Where it was filled up they go beyond the end of the pass: on from its
    beginning."""
    record = record_of(log, step)
    first, end = record.first_row(step, passes)
    if passes is not None and not record.least:
        return range(first, first + record.rows)
    later = next((later.row for later in log if later.step > step), end)
    return range(first, min(first + record.rows, end, later))


def rows_of_steps(
    log: Sequence[StepRecord], steps: range, passes: Passes | None
) -> tuple[Ints, Ints, Ints]:
    """Return the first and last row of many steps, and the number of their record."""
    found = [_rows_of_steps(log, number, steps, passes) for number in range(len(log))]
    starts, stops, records = (np.concatenate(column) for column in zip(*found, strict=True))
    return starts, stops, records


def _rows_of_steps(
    log: Sequence[StepRecord], number: int, steps: range, passes: Passes | None
) -> tuple[Ints, Ints, Ints]:
    """Return the same for steps of one record."""
    record, later = log[number], log[number + 1] if number + 1 < len(log) else None
    low = max(record.step, steps.start)
    high = steps.stop if later is None else min(later.step, steps.stop)
    asked = np.arange(low, max(low, high), dtype=np.int64)
    if not len(asked):
        return asked, asked, asked
    first, end = record.first_rows(asked, passes)
    stop = first + record.rows
    if passes is None or record.least:
        stop = np.minimum(stop, end if later is None else np.minimum(end, later.row))
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


def dealt_steps(
    log: Sequence[StepRecord], steps: range, passes: Passes | None
) -> Iterator[DealtSteps]:
    """Yield the rows of steps as they are given to the ranks, some steps at a time; none of steps
    that gave nothing."""
    most = max(1, _ROWS // max(record.rows for record in log))
    for low in range(steps.start, steps.stop, most):
        starts, stops, records = rows_of_steps(log, range(low, min(low + most, steps.stop)), passes)
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


def wrapped(dealt: Ints, starts: Ints, passes: Passes | None) -> Ints:
    """Rows of steps that begin at `starts`: what lies beyond the end of the pass comes from its
    beginning."""
    if passes is None:
        return dealt
    epoch, place = passes.split(starts)
    begin = starts - place
    return (dealt - begin) % np.maximum(passes.sizes_of(epoch), 1) + begin


class RowsGiven(NamedTuple):
    """The rows that a stretch of a run gave: some stretches of rows, but for those that were
    `left_out`, and with some `repeated`.
    """

    stretches: list[range]
    left_out: Ints
    repeated: Ints


def rows_given_in(log: Sequence[StepRecord], within: range, passes: Passes | None) -> RowsGiven:
    """Return what was given of the rows in a range, which begins with a step."""
    stretches, left_out, repeated = list[range](), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for record, later in zip(log, [*log[1:], None], strict=True):
        stop = within.stop if later is None else min(within.stop, later.row)
        stretch = range(max(within.start, record.row), stop)
        if not stretch or record.gives == "nothing":
            continue
        stretches.append(stretch)
        for each in passes.within(stretch.start, stop) if passes else ():
            if each.stop > stop:
                break
            # What lies before the end of the pass and fills no step or item.
            if record.gives == "items":
                given = each.start + rows_given(record.batches, each.size)
                left_out.append(np.arange(max(given, stretch.start), each.stop))
                continue
            short = (each.stop - max(record.row, each.start)) % record.rows
            first = np.asarray([each.stop - short])
            if not short:
                continue
            if short < max(record.least, 1):
                left_out.append(np.arange(each.stop - short, each.stop))
            elif record.remainder == "pad":
                beyond = np.arange(each.stop, each.stop - short + record.rows)
                repeated.append(wrapped(beyond, first, passes))
            else:
                offsets, _ = record.dealt(first, short)
                left_out.append(np.setdiff1d(np.arange(short), offsets[0]) + each.stop - short)
    return RowsGiven(stretches, np.concatenate(left_out), np.concatenate(repeated))


def steps_of_row(log: Sequence[StepRecord], row: int, passes: Passes | None) -> list[int]:
    """Return the steps that gave a row: none where it was left out or jumped over, two where it
    filled up the last step of its pass.
    """
    record = next(record for record in reversed(log) if record.row <= row)
    asked = [record.steps_to(row + 1, passes) - 1]
    if passes is not None:
        end = passes.at(row).stop
        closing = next(record for record in reversed(log) if record.row < end)
        if closing.remainder == "pad":
            asked.append(closing.steps_to(end, passes) - 1)
    return sorted({step for step in asked if step >= 0 and _holds(log, step, row, passes)})


def _holds(log: Sequence[StepRecord], step: int, row: int, passes: Passes | None) -> bool:
    taken = rows_of_step(log, step, passes)
    if record_of(log, step).gives == "nothing":
        return False
    if row in taken and len(taken) == record_of(log, step).rows:
        return True
    (dealt,) = dealt_steps(log, range(step, step + 1), passes)
    return bool(np.isin(row, wrapped(dealt.rows, dealt.starts[:, None], passes)))


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

    def rows_given(self, passes: Passes | None) -> RowsGiven:
        """Return what was given."""
        start = 0 if passes is None else passes.start(self.epoch)
        return rows_given_in(self.records, range(self.row, start + self.at), passes)

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
    log: Sequence[StepRecord], row: int, now: StepRecord, passes: Passes | None
) -> tuple[StepRecord, ...]:
    """Return the log of a run that goes back to a row, at which a step begins."""
    return logged([record for record in log if record.row <= row], row, now, passes)


def log_beyond(
    log: Sequence[StepRecord], start: int, stop: int, now: StepRecord, passes: Passes | None
) -> tuple[StepRecord, ...]:
    """Return the log of a run at a row that continues from a later one."""
    return logged(logged(log, start, replace(now, gives="nothing"), passes), stop, now, passes)


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
    batches = tuple(BatchSize(n, drop) for n, drop in saved["batches"])
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
