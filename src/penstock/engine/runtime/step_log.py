"""The global steps of a run: the rows that each took, and the rank that received each row.

Ranks, batches and the handling of a short last step may change during a run. The state stores a
`StepRecord` for each range of steps of one kind, and every answer about a step comes from these
records: also which steps `seek` skipped, and which rows `lease` delivered item by item. Rows are
counted over all passes.

When a run goes back, its step numbers restart from there, and a `GivenBefore` stores what it had
delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from ...arguments import check_position
from ...errors import StateError
from ...types import MAX_POSITION, Ints, Json
from ..base.batch_size import BatchSize, least_rows, rows_given
from ..base.cursors import parse_cursor_int
from ..base.passes import Passes
from ..base.step_plan import RowsByStep
from ..steps.batch import Tail
from ..streams.rank_sharding import REMAINDERS, RankSharding, Remainder, deal_to_all_ranks

Gives: TypeAlias = Literal["steps", "items", "nothing"]

_ROWS = 1 << 16  # rows that are dealt together


class _EqualPasses(NamedTuple):
    """Passes of `rows` rows and `steps` steps each, from a step that begins at row `row` on."""

    step: int
    row: int
    rows: int
    steps: int


@dataclass(frozen=True)
class StepRecord:
    """Steps of one kind: from `step` on, which begins at `row`, a step has `rows` rows.

    Args:
        step: the first step.
        row: the first row of that step.
        rows: the rows of a step, equally many on each rank.
        ranks: the number of ranks.
        remainder: the handling of rows at the end of a pass that fill no step: they are left out
            ("drop"), filled up from the beginning of the pass ("pad"), or a short step ("keep").
        batches: the batches that a rank makes of its rows, innermost first.
        gives: "steps" of a loop; "items" if `lease` delivered all items of a pass, each whole;
            "nothing" if `seek` skipped the steps.
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
        """The fewest rows at the end of a pass that make a step; 0 if a short step is filled up."""
        return {"drop": self.rows, "pad": 0, "keep": least_rows(self.batches)}[self.remainder]

    def is_of(self, other: StepRecord) -> bool:
        """Return whether both records describe steps of one kind."""
        return replace(self, step=0, row=0) == replace(other, step=0, row=0)

    def with_rows(self, step: int, row: int, rows: int) -> StepRecord:
        """Return the record of steps with another number of rows, from a step and row on."""
        (batch,) = self.batches
        batches = (replace(batch, n=rows // self.ranks),)
        return replace(self, step=step, row=row, rows=rows, batches=batches)

    def to_json(self) -> dict[str, Json]:
        """Return the record as a state stores it."""
        return {
            "step": self.step,
            "row": self.row,
            "rows": self.rows,
            "ranks": self.ranks,
            "remainder": self.remainder,
            "batches": [[batch.n, batch.drop_remainder] for batch in self.batches],
            **({} if self.gives == "steps" else {"gives": self.gives}),
        }

    def count_steps(self, rows: int) -> int:
        """Return the number of steps in rows up to the end of a pass."""
        whole, left = divmod(rows, self.rows)
        return whole + (left >= max(self.least, 1))

    def equal_passes(self, passes: Passes | None) -> list[_EqualPasses]:
        """Return the rest of the pass in which the steps begin, and the passes after it."""
        if passes is None:
            return [_EqualPasses(self.step, self.row, MAX_POSITION, MAX_POSITION)]
        here, out = passes.at(self.row), list[_EqualPasses]()
        step, left = self.step, here.stop - self.row
        out.append(_EqualPasses(step, self.row, left, self.count_steps(left)))
        step += self.count_steps(left)
        epochs = [here.epoch + 1, *(epoch for epoch in passes.epochs if epoch > here.epoch + 1)]
        for epoch, later in zip(epochs, [*epochs[1:], None], strict=True):
            size = passes.size(epoch)
            out.append(_EqualPasses(step, passes.start(epoch), size, self.count_steps(size)))
            step += self.count_steps(size) * ((later or epoch) - epoch)
        return out

    def first_row(self, step: int, passes: Passes | None) -> tuple[int, int]:
        """Return the row at which a step begins, and the end of its pass; for a step of any size."""
        found = self.equal_passes(passes)
        first, row, size, each = found[bisect_right(found, step, key=lambda one: one.step) - 1]
        if not each:
            raise self._make_no_step_error(step, size)
        epoch, place = divmod(step - first, each)
        return row + epoch * size + place * self.rows, row + (epoch + 1) * size

    def first_rows(self, steps: Ints, passes: Passes | None) -> tuple[Ints, Ints]:
        """Return the row at which each step begins, and the end of its pass."""
        first, row, size, each = np.asarray(self.equal_passes(passes), np.int64).T
        i = np.searchsorted(first, steps, side="right") - 1
        if (none := each[i] == 0).any():
            raise self._make_no_step_error(int(steps[none][0]), int(size[i][none][0]))
        epoch, place = np.divmod(steps - first[i], each[i])
        begin = row[i] + epoch * size[i]
        return begin + place * self.rows, begin + size[i]

    def _make_no_step_error(self, step: int, rows: int) -> IndexError:
        return IndexError(
            f"step {step}: a pass has {rows} rows, fewer than a step of {self.rows}; ask by position"
        )

    def step_at(self, row: int, passes: Passes | None) -> int:
        """Return the first step that begins at a row or after it."""
        found = self.equal_passes(passes)
        step, start, size, each = found[
            max(bisect_right(found, row, key=lambda one: one.row) - 1, 0)
        ]
        epoch, place = divmod(row - start, max(size, 1))
        return step + epoch * each + min(-(-place // self.rows), each)

    def deal(self, starts: Ints, rows: int) -> tuple[Ints, Ints]:
        """Deal the rows of steps to the ranks.

        Args:
            starts: the first row of each step.
            rows: the number of rows in each of them.

        Returns:
            The offsets of the rows that become part of an item, int64[steps, n]: rank after rank,
            ascending on each rank. And the rank of each of the n columns.
        """
        offsets, ranks = deal_to_all_ranks(starts, rows, self.group)
        if rows == self.rows:
            return offsets, ranks
        mine = np.bincount(ranks, minlength=1)  # batches may drop rows that fill none of them
        kept = np.asarray(
            [rows_given(self.batches, n) if n < self.group else n for n in mine.tolist()]
        )
        given = np.flatnonzero(_count_within(ranks) < kept[ranks])
        return offsets[:, given], ranks[given]


def first_record(spread: RankSharding, tail: Tail) -> StepRecord:
    """Return the record of a run that begins on these ranks."""
    batches = tuple(BatchSize(batch.n, batch.drop_remainder) for batch in tail.batches)
    return StepRecord(0, 0, spread.size, spread.world_size, spread.remainder, batches)


class AssignedSteps(NamedTuple):
    """Rows of steps with one assignment to ranks:

    `rows[i]` are those of `steps[i]`, rank after rank.

    `ranks` and `places` say, for each column of `rows`, the rank and the row of the rank's item.
    """

    steps: Ints
    rows: Ints
    ranks: Ints
    places: Ints


class RowsGiven(NamedTuple):
    """Rows that a part of a run delivered: `stretches` without `left_out`, and `repeated` again."""

    stretches: list[range]
    left_out: Ints
    repeated: Ints


@dataclass(frozen=True)
class StepLog:
    """The records of a run, each until the next begins, and the passes of its rows.

    `passes` is None if the rows never end.
    """

    records: tuple[StepRecord, ...]
    passes: Passes | None

    # ------------------------------------------------------------ steps and rows

    def record_of(self, step: int) -> StepRecord:
        """Return the record of a step."""
        return next(record for record in reversed(self.records) if record.step <= step)

    def record_at(self, row: int) -> StepRecord:
        """Return the record of the step that a row belongs to."""
        return next(record for record in reversed(self.records) if record.row <= row)

    def first_row(self, step: int) -> int:
        """Return the row at which a step begins."""
        return self.record_of(step).first_row(step, self.passes)[0]

    def step_of(self, row: int) -> int:
        """Return the step of a row; of a row that fills no step, the step before."""
        return self.record_at(row).step_at(row + 1, self.passes) - 1

    def next_step(self, row: int) -> int:
        """Return the first step that a run at a row has not taken."""
        present = self.record_at(row)
        return present.step_at(row, self.passes)

    def rows(self, step: int) -> range:
        """Return the rows of a step, up to the end of its pass.

        Raises:
            IndexError: the step is too far away, or its pass has no step.
        """
        rows = self.padded_rows(step)
        check_position(rows.stop)
        end = rows.stop if self.passes is None else self.passes.at(rows.start).stop
        return range(rows.start, min(rows.stop, end))

    def padded_rows(self, step: int) -> range:
        """Return the rows of a step; beyond the end of the pass if the step is filled up."""
        record = self.record_of(step)
        first, end = record.first_row(step, self.passes)
        if self.passes is not None and not record.least:
            return range(first, first + record.rows)
        later = (later.row for later in self.records if later.step > step)
        return range(first, min(first + record.rows, end, next(later, end)))

    def padded_rows_of(self, steps: range) -> tuple[Ints, Ints, Ints]:
        """Return the first row of each step, the row after its last, and the number of its record."""
        columns = [self._padded_rows(number, steps) for number in range(len(self.records))]
        starts, stops, records = (np.concatenate(column) for column in zip(*columns, strict=True))
        return starts, stops, records

    def _padded_rows(self, number: int, steps: range) -> tuple[Ints, Ints, Ints]:
        """Return first rows, stops and record numbers for the steps of one record."""
        record, later = self.records[number], self.records[number + 1 : number + 2]
        low = max(record.step, steps.start)
        high = min([steps.stop, *(record.step for record in later)])
        asked = np.arange(low, max(low, high), dtype=np.int64)
        if not len(asked):
            return asked, asked, asked
        first, end = record.first_rows(asked, self.passes)
        stop = first + record.rows
        if self.passes is None or record.least:
            stop = np.minimum(stop, end)
            for next_record in later:
                stop = np.minimum(stop, next_record.row)
        return first, stop, np.full(len(first), number)

    def steps_of_row(self, row: int) -> list[int]:
        """Return the steps that delivered a row.

        None if it was left out or skipped, two if it also filled up the last step of its pass.
        """
        steps = {self.step_of(row)}
        if self.passes is not None:
            end = self.passes.at(row).stop
            if self.record_at(end - 1).remainder == "pad":
                steps.add(self.step_of(end - 1))
        return sorted(step for step in steps if step >= 0 and self._gives_row(step, row))

    def _gives_row(self, step: int, row: int) -> bool:
        rows, record = self.padded_rows(step), self.record_of(step)
        if row in rows and len(rows) == record.rows:
            return record.gives != "nothing"
        return bool(np.isin(row, self.rows_given(step)))

    # ------------------------------------------------------------ rows and ranks

    def deal(self, steps: range) -> Iterator[AssignedSteps]:
        """Yield the rows of steps as the ranks receive them, some steps at a time.

        Steps that were skipped have none. Rows that fill up a step are from the beginning of its
        pass.
        """
        if not steps:
            return
        check_position(self.padded_rows(steps[-1]).stop)
        most = max(1, _ROWS // max(record.rows for record in self.records))
        for low in range(steps.start, steps.stop, most):
            starts, stops, records = self.padded_rows_of(range(low, min(low + most, steps.stop)))
            sizes = stops - starts
            kinds = np.flatnonzero(np.diff(records) | np.diff(sizes)) + 1
            for some in np.split(np.arange(len(starts)), kinds):
                record = self.records[int(records[some[0]])]
                if record.gives == "nothing":
                    continue
                offsets, ranks = record.deal(starts[some], int(sizes[some[0]]))
                rows = self._wrap(starts[some, None] + offsets, starts[some, None])
                yield AssignedSteps(low + some, rows, ranks, _count_within(ranks))

    def rows_given(self, step: int) -> Ints:
        """Return the rows that all ranks receive in a step, in order; rows that fill it up last."""
        record, rows = self.record_of(step), self.padded_rows(step)
        check_position(rows.stop)
        if record.gives == "nothing":
            return np.zeros(0, np.int64)
        start = np.asarray([rows.start])
        offsets, _ = record.deal(start, len(rows))
        return self._wrap(start + np.sort(offsets[0]), start)

    def given_before(self, step: int) -> RowsGiven:
        """Return what was delivered before a step."""
        record = self.record_of(step)
        stop = record.row if record.step == step else self.first_row(step)
        check_position(stop)
        return self.given_in(range(stop))

    def given_in(self, within: range) -> RowsGiven:
        """Return what was delivered of the rows in a range that begins with a step."""
        stretches, none = list[range](), np.zeros(0, np.int64)
        left_out, repeated = [none], [none]
        ends = [*(record.row for record in self.records[1:]), within.stop]
        for record, end in zip(self.records, ends, strict=True):
            stretch = range(max(within.start, record.row), min(within.stop, end))
            if not stretch or record.gives == "nothing":
                continue
            stretches.append(stretch)
            for each in self.passes.within(stretch.start, stretch.stop) if self.passes else ():
                if each.stop > stretch.stop:
                    break
                out, again = self._given_at_end(record, each.start, each.stop)
                left_out.append(out[out >= stretch.start])
                repeated.append(again)
        return RowsGiven(stretches, np.concatenate(left_out), np.concatenate(repeated))

    def _given_at_end(self, record: StepRecord, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the rows left out at the end of a pass, and those of its beginning delivered
        again.
        """
        none = np.zeros(0, np.int64)
        if record.gives == "items":
            return np.arange(start + rows_given(record.batches, stop - start), stop), none
        short = (stop - max(record.row, start)) % record.rows
        first = stop - short
        if not short or short < max(record.least, 1):
            return np.arange(first, stop), none
        if record.remainder == "pad":
            return none, self._wrap(np.arange(stop, first + record.rows), np.asarray([first]))
        offsets, _ = record.deal(np.asarray([first]), short)
        return np.setdiff1d(np.arange(short), offsets[0]) + first, none

    def _wrap(self, rows: Ints, starts: Ints) -> Ints:
        """Continue rows beyond the end of a pass at its beginning; `starts` begin their steps."""
        if self.passes is None:
            return rows
        epoch, place = self.passes.split(starts)
        begin = starts - place
        return (rows - begin) % np.maximum(self.passes.sizes_of(epoch), 1) + begin

    # ------------------------------------------------------------ logs of changed runs

    def until(self, row: int) -> StepLog:
        """Return the log without the steps planned after those that hold a row."""
        return replace(self, records=tuple(each for each in self.records if each.row <= row))

    def with_planned(self, rows: RowsByStep, start: int = 0) -> StepLog:
        """Return the log with the later steps of a plan, of an endless run.

        Args:
            rows: the plan.
            start: the step at which the run began to follow it. The steps before have records.
        """
        records = list(self.records)
        for step, many in rows:
            if step > max(start, (last := records[-1]).step):
                row = last.row + (step - last.step) * last.rows
                records.append(last.with_rows(step, row, many))
        return replace(self, records=tuple(records))

    def until_end(self, passes: Passes | None) -> StepLog:
        """Return the log of a run of planned steps that gives nothing after its first pass.

        Args:
            passes: the passes of its rows; None if they never end.
        """
        if passes is None:
            return self
        end = passes.size(0)
        records = [record for record in self.records if record.row < max(end, 1)]
        last = records[-1]
        step = last.step + last.count_steps(end - last.row)
        return StepLog((*records, replace(last, step=step, row=end, gives="nothing")), passes)

    def continue_with(self, record: StepRecord, row: int) -> StepLog:
        """Return the log of a run that continues at a row with steps of the kind of a record."""
        *before, last = self.records
        if last.is_of(record) and not self._splits_step(row):
            return self
        row = max(row, last.row)
        if last.row != row:
            step = last.step_at(row, self.passes)
            return replace(self, records=(*self.records, replace(record, step=step, row=row)))
        former = replace(self, records=tuple(before))
        if before and before[-1].is_of(record) and former.continue_with(record, row) == former:
            return former
        return replace(self, records=(*before, replace(record, step=last.step, row=row)))

    def _splits_step(self, row: int) -> bool:
        """Return whether no step can begin at a row, because it is inside a short last step.

        A change may have moved the end of the pass.
        """
        last = self.records[-1]
        if (step := last.step_at(row, self.passes) - 1) < last.step:
            return False
        rows = self.rows(step)
        return rows.start < row < rows.stop

    def go_back(self, record: StepRecord, row: int) -> StepLog:
        """Return the log of a run that goes back to a row, at which a step begins."""
        kept = tuple(record for record in self.records if record.row <= row)
        return replace(self, records=kept).continue_with(record, row)

    def skip(self, record: StepRecord, start: int, stop: int) -> StepLog:
        """Return the log of a run at row `start` that continues from a later one.

        Steps that were planned between them are skipped in their size.
        """
        log = self.until(start)
        for later in (each for each in self.records if start < each.row <= stop):
            log = log._skip(record, start, later.row).continue_with(later, later.row)
            record, start = later, later.row
        return log if start == stop else log._skip(record, start, stop)

    def _skip(self, record: StepRecord, start: int, stop: int) -> StepLog:
        skipped = self.continue_with(replace(record, gives="nothing"), start)
        return skipped.continue_with(record, stop)

    def records_within(self, start: int, stop: int) -> tuple[StepRecord, ...]:
        """Return the records of the steps in a range of rows; none if nothing was delivered."""
        ends = [*(record.row for record in self.records[1:]), stop]
        found = tuple(
            record
            for record, end in zip(self.records, ends, strict=True)
            if record.row < stop and end > start
        )
        return found if any(record.gives != "nothing" for record in found) else ()


def _count_within(ranks: Ints) -> Ints:
    """Number the rows of each rank."""
    return np.arange(len(ranks)) - np.searchsorted(ranks, ranks)


@dataclass(frozen=True)
class GivenBefore:
    """Samples that a run delivered from a row on before it went back there.

    Args:
        step: they were delivered before this step and every later one.
        row: the first of their rows.
        epoch: the pass in which the run was.
        at: its position in that pass.
        changes: the number of changes made by then.
        records: the steps that it took.
        times: how often it did so.
    """

    step: int
    row: int
    epoch: int
    at: int
    changes: int
    records: tuple[StepRecord, ...]
    times: int = 1

    def rows_given(self, passes: Passes | None) -> RowsGiven:
        """Return the rows that were delivered."""
        start = 0 if passes is None else passes.start(self.epoch)
        return StepLog(self.records, passes).given_in(range(self.row, start + self.at))

    def to_json(self) -> dict[str, Json]:
        """Return the entry as a state stores it."""
        numbers: dict[str, Json] = {name: getattr(self, name) for name in _NUMBERS}
        times: dict[str, Json] = {} if self.times == 1 else {"times": self.times}
        return {**numbers, "records": [record.to_json() for record in self.records], **times}


_NUMBERS = ("step", "row", "epoch", "at", "changes")


def merge_equal(entries: Iterable[GivenBefore]) -> tuple[GivenBefore, ...]:
    """Return entries that differ, each with the sum of the times of all equal to it."""
    times = dict[GivenBefore, int]()
    for entry in entries:
        once = replace(entry, times=1)
        times[once] = times.get(once, 0) + entry.times
    return tuple(replace(entry, times=number) for entry, number in times.items())


# ------------------------------------------------------------ in a state


def records_from_json(saved: Any) -> tuple[StepRecord, ...]:
    """Decode the records of a state.

    Raises:
        StateError: they are no log of steps.
    """
    try:
        records = _decode_records(saved)
        fit = records[0].step == records[0].row == 0
    except (TypeError, ValueError, KeyError):
        fit, records = False, ()
    if not fit:
        raise StateError(
            f"the state's 'records' are not a log of steps ({str(saved)[:80]}); the state is "
            "damaged, load an earlier one"
        )
    return records


def given_before_from_json(saved: Any) -> tuple[GivenBefore, ...]:
    """Decode what a state stores of samples that were delivered before the run went back.

    Raises:
        StateError: the entries cannot be decoded.
    """
    try:
        return tuple(map(_decode_given_before, saved))
    except (TypeError, ValueError, KeyError, AttributeError, StateError) as error:
        raise StateError(
            f"the state's 'given_before' cannot be read ({str(saved)[:80]}); the state is "
            "damaged, load an earlier one"
        ) from error


def _decode_given_before(entry: Any) -> GivenBefore:
    step, row, epoch, at, changes = (parse_cursor_int(entry[name]) for name in _NUMBERS)
    if not (times := parse_cursor_int(entry.get("times", 1))):
        raise ValueError(entry)
    return GivenBefore(step, row, epoch, at, changes, _decode_records(entry["records"]), times)


def _decode_records(saved: Any) -> tuple[StepRecord, ...]:
    log = tuple(map(_decode_record, saved))
    steps, rows = [record.step for record in log], [record.row for record in log]
    if not log or steps != sorted(steps) or rows != sorted(rows):
        raise ValueError(saved)
    return log


def _decode_record(saved: Any) -> StepRecord:
    step, row, rows, ranks = numbers = [saved[name] for name in ("step", "row", "rows", "ranks")]
    batches = tuple(BatchSize(n, drop) for n, drop in saved["batches"])
    remainder, gives = saved["remainder"], saved.get("gives", "steps")
    sizes = [batch.n for batch in batches]
    fit = (
        all(type(n) is int and n >= 0 for n in numbers)
        and all(type(n) is int and n > 0 for n in sizes)
        and all(type(batch.drop_remainder) is bool for batch in batches)
        and remainder in REMAINDERS
        and gives in get_args(Gives)
        and ranks
        and rows == ranks * int(np.prod(sizes, dtype=object))
        and len(saved) == len(numbers) + 2 + ("gives" in saved)
    )
    if not fit:
        raise ValueError(saved)
    return StepRecord(
        step, row, rows, ranks, cast("Remainder", remainder), batches, cast("Gives", gives)
    )
