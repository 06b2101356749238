"""One run of one rank: its lanes, its position, and its changes.

Iterators and loaders wrap a session. Ranks divide the positions of an indexed pipeline. Any other
pipeline runs as lanes, each with its own cursor, and a rank owns whole lanes.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ...arguments import check_choice, check_int, check_position, join_first
from ...errors import MALFORMED_INPUT_ERRORS, ConfigError, PenstockError, StateError
from ...schedule import Schedule
from ...types import Ints, Json, Path, is_in_memory
from ..base.cursors import is_cursor_at, make_cursor_error, parse_cursor_int
from ..base.machine import clear_in_children
from ..base.progress import Progress
from ..base.shown import counted
from ..changes.adopt import FindProgress, MixPosition, describe_mixtures, find_mixture_progress
from ..changes.edits import (
    Edit,
    Exclude,
    changed,
    edit_from_json,
    find_masked_sources,
    mask_from,
    own_pass,
)
from ..changes.masking import require_maskable
from ..changes.next_pass import require_reweighed_passes
from ..changes.reweigh import Place, ends, refused_inside, reweighed
from ..steps.batch import rows_of_lanes, tail_group, tail_of
from ..steps.compiled import Compiled
from ..steps.digests import code_notes, compared, unidentified
from ..steps.mix import bind_mixtures, find_mixtures
from ..steps.one_source import with_steps_of
from ..steps.packed import packs_of
from ..steps.planned_batches import Stages, rows_by_step
from ..steps.read_shards import without_witnesses
from ..steps.step import Builder, Step
from ..streams.budget import Budget
from ..streams.execution import LARGEST_SAMPLE_UNIT, Execution
from ..streams.job import Executor
from ..streams.journal import (
    Entries,
    Journal,
    describe_missing_journals,
    journal_from_json,
    journal_to_json,
)
from ..streams.rank_sharding import make_rank_sharding
from ..streams.stream import Stream
from .adoption import Adoption
from .delivery import Delivery
from .rank_stream import (
    RankStream,
    compute_lane_share,
    find_repeated_sources,
    open_items,
    open_lanes,
    open_positions,
    require_same_past,
)
from .run_options import RunOptions
from .state_writer import StateWriter
from .states import (
    MISMATCHES,
    OnMismatch,
    SavedState,
    StateSection,
    check_lanes,
    decode_state,
    log_notes,
    make_other_pipeline_error,
    merge_states,
)
from .step_log import (
    GivenBefore,
    StepLog,
    StepRecord,
    first_record,
    given_before_from_json,
    merge_equal,
    records_from_json,
)

T = TypeVar("T")


class RunSection(StateSection, Protocol):
    """Section that a package outside the engine adds to the states of a run.

    A run whose items are delivered out of order needs one, for the items below its position that
    are not finished (`penstock.leases`). The section is a part of the run: if a load fails,
    the run keeps its old section.
    """

    def to_json(self, session: Session) -> Json | None:
        """Return the content of the section now; None omits it from the state."""
        ...

    def load(self, state: SavedState, session: Session, adopting: bool) -> RunSection:
        """Return the section of this rank after a load.

        Args:
            state: the state of all ranks, as `merge` returned it, or one without the section.
            session: the run, already at the position of the state.
            adopting: whether another pipeline saved the state.

        Raises:
            StateError: if the section is corrupted, or does not fit the run.
        """
        ...


class Session:
    """A run: items in order, a state after each, and changes.

    Two hooks serve packages that deliver items out of order: `section` adds a section to the
    state, and `begin_items`, `reopen_items` and `reopen_lane` deliver whole items, also again.
    """

    def __init__(
        self,
        compiled: Compiled,
        setting: RunOptions,
        executor: Executor | None,
        section: RunSection | None = None,
        stages: Stages | None = None,
    ) -> None:
        if stages is None and rows_by_step(compiled.tree):
            raise ConfigError(
                "batch(global_batch_size=Schedule(...)) is read by a Loader; give the dataset to "
                "penstock.Loader"
            )
        self.stages = stages
        self._base = self.compiled = compiled
        self.tree, self.setting, self.executor = compiled.tree, setting, executor
        self.group = tail_group(self.tree)
        self.sharding = make_rank_sharding(
            setting.rank, setting.world_size, self.group, setting.remainder, setting.workers
        )
        self.lanes: int = 1 if self.group else setting.lanes or setting.world_size
        self._record = first_record(self.sharding, tail_of(self.tree))
        self.records: tuple[StepRecord, ...] = (self._record,)
        self.given_before: tuple[GivenBefore, ...] = ()
        # given: items of a loader's epoch that is shorter than a pass; ended: passes that ended here;
        # _planned_from: the step at which the run began to follow its stages
        self.epoch = self.given = self._before = self.ended = self._planned_from = 0
        self.changes: tuple[Edit, ...] = ()
        self.adopted: tuple[str, ...] = ()  # fingerprints of the pipelines with which the run began
        self.journal = Journal(setting.on_error, setting.max_errors)
        self.notes, self.section = list[str](), section
        self.budget = Budget(setting.max_prefetch_bytes)
        self._items = 0
        self._counts = Counter[str](), Counter[str]()
        self._warned = False
        self._warned_of_lanes = False
        self._unchanged: dict[str, Any] | None = (
            None  # the attributes before a change that is being made
        )
        self._set_open(*self._open_at(None))

    @property
    def base(self) -> Step:
        """The tree without the changes of the run."""
        return self._base.tree

    @property
    def compiled_base(self) -> Compiled:
        """The compiled tree without the changes of the run."""
        return self._base

    @property
    def description(self) -> Json:
        """The description of the pipeline."""
        return self._base.description

    @property
    def lane_share(self) -> tuple[int, int]:
        """The share of the lanes that this rank reads, as a rank and a number of ranks."""
        return compute_lane_share(self.lanes, self.setting.rank, self.setting.world_size)

    @property
    def reads_all_lanes(self) -> bool:
        """True if each of several ranks reads the whole run, because they cannot divide its lanes."""
        return not self.group and self.lane_share[1] < self.setting.world_size

    def reopen(self, cursor: Json) -> None:
        """Open the current tree again, at a cursor."""
        self._change(lambda: self._replace_open(*self._open_at(cursor)))

    def _change(self, change: Callable[[], T]) -> T:
        """Make a change completely, or not at all if it raises or is interrupted.

        A signal handler that requests the state during the change receives the state before it.
        """
        self.out.require_idle("a change of the position or the weights")
        before = {**vars(self)}
        if self._unchanged is None:
            self._unchanged = before
        try:
            self._cross_border()
            crossed = self.out
            found = change()
            self._unchanged = before["_unchanged"]
        except BaseException:
            self.__dict__ = before
            raise
        for out in {id(out): out for out in (before["out"], crossed)}.values():
            if out is not self.out:
                out.stream.close()
        return found

    def _open_at(
        self, cursor: Json, check: Callable[[RankStream], None] | None = None
    ) -> tuple[RankStream, Delivery]:
        """Open the current tree at a cursor; `check` receives the open stream."""
        if self.stages is not None:
            self.sharding = replace(self.sharding, stop=self._find_stage_end(cursor))
        opened = self._open(self.setting.window, self.executor)
        wide = (
            max(256, LARGEST_SAMPLE_UNIT // self.group)
            if self.group
            else 256 * (self.lanes // self.lane_share[1])
        )
        out = self._delivery(opened.stream, opened.builder, wide, self.setting.max_items)
        out.seek(self.epoch, opened.first_cursor(self.epoch) if cursor is None else cursor)
        if check:
            check(opened)
        if not is_cursor_at(out.cursor(), cursor):
            raise make_cursor_error(cursor, "a position of this pipeline")
        return opened, out

    def _replace_open(self, opened: RankStream, out: Delivery) -> None:
        """Continue with an open stream in the place of the present one, as part of a change, which
        closes the present one.
        """
        self._items, self._counts = self.items, self.count_by_source()
        out.bytes += self.out.bytes
        self._set_open(opened, out)

    def _set_open(self, opened: RankStream, out: Delivery) -> None:
        self._run, self.out, self.leaves = opened, out, opened.builder.leaves
        self._writer = StateWriter(opened)
        if self.executor:
            clear_in_children(out)

    def _open(self, window: int = 0, executor: Executor | None = None) -> RankStream:
        found = self.compiled = self.compiled.of(self.tree)
        execution = self._execution(found, window, executor)
        if self.group:
            return open_positions(found.builder, execution, self.sharding, self.setting)
        return open_lanes(found.builder, execution, self.lanes, self.setting)

    def _execution(self, found: Compiled, window: int, executor: Executor | None) -> Execution:
        leaves, most = found.builder.leaves, self.setting.max_items
        return Execution(self.journal, leaves, self.budget, executor, window, most, found.profiler)

    def _delivery(
        self, stream: Stream, builder: Builder, width: int, limit: int | None
    ) -> Delivery:
        room, packs = self.budget.max_bytes // 4, packs_of(builder.op(builder.root))
        cropping = [pack for pack in packs if pack.truncates]
        return Delivery(stream, builder.leaves, width, limit, room, self.setting.form, cropping)

    def close(self) -> None:
        self.out.stream.close()

    @property
    def items(self) -> int:
        """The number of items delivered since the run was opened here."""
        return self._items + self.out.items

    @property
    def step(self) -> int:
        """The number of global steps of the run, including those before it was opened here."""
        return self._before + self.items

    @property
    def samples(self) -> Counter[str]:
        """The delivered samples by source since the run was opened here."""
        return self.count_by_source()[0]

    def count_by_source(self) -> tuple[Counter[str], Counter[str]]:
        """Return delivered samples and cropped tokens by source since the run was opened here."""
        names = [leaf.name for leaf in self.leaves]
        samples, cropped = (
            before + Counter(dict(zip(names, counts, strict=True)))
            for before, counts in zip(
                self._counts, self.out.count_by_source().tolist(), strict=True
            )
        )
        return samples, cropped

    def warn_of_unidentified(self) -> None:
        """Warn once, on the first rank, about sources whose identity a resume cannot check."""
        names = [] if self._warned or self.setting.rank else unidentified(self.leaves)
        self._warned = True
        if names:
            logging.getLogger("penstock").warning(
                "the order in which %s %s samples is unknown, and a resume is exact only if it "
                "is the same every time; seed the shuffle in the function, and say so by "
                "from_iterable(..., identity='v1')",
                join_first(names), "gives its" if len(names) == 1 else "give their",
            )  # fmt: skip

    def identify_objects(self) -> None:
        """Digest lists of objects before their samples are read: methods that load lazily or count
        change them."""
        for leaf in self.leaves:
            if is_in_memory(leaf.source):
                leaf.source.identify_objects()

    def warn_of_lanes(self) -> None:
        """Warn about the cost if each rank reads all lanes; once, on the first rank."""
        if not self.reads_all_lanes or self._warned_of_lanes or self.setting.rank:
            return
        self._warned_of_lanes, ranks = True, self.setting.world_size
        logging.getLogger("penstock").warning(
            "%d ranks cannot share out %s, so each rank reads and computes all samples of the "
            "run and keeps its rows of each step; to share the work, start a run with lanes= a "
            "multiple of the number of ranks",
            ranks, counted(self.lanes, "lane"),
        )  # fmt: skip

    def start(self) -> None:
        """Compute the next item now, so that workers continue with those after it."""
        with suppress(StopIteration):
            self.out.fill()

    def require_pass(self) -> None:
        """Raise `ConfigError` if the run has ended.

        A limited run ends with its first pass if its batches change, or if samples were excluded.
        """
        if self.stages is not None and self.ended and self.step == self.planned_steps:
            raise ConfigError(
                "the run has ended: the steps of batch(global_batch_size=Schedule(...)) are planned "
                "up to its limit; give it a longer .limit(rows), and load the state with "
                "on_mismatch='adopt'"
            )
        excluded = {
            each.source for each in self.changes if isinstance(each, Exclude) and each.since
        }
        if (
            self.epoch
            and excluded
            and (repeated := find_repeated_sources(self._run.builder) & excluded)
        ):
            raise ConfigError(
                f"the run excluded samples of {min(repeated)!r} from a position on, and a slice, a "
                "limit or a shorter input beside it gives the same samples in every pass, so it "
                "ended with its first pass; "
                "start a new run from ds.plan.exclude(...).dataset"
            )

    def next_pass(self, passes: int = 1) -> None:
        """Go to the beginning of the next pass, or of a later one; planned steps have one pass."""
        if self.stages is not None:
            self.given, self.ended = 0, self.ended + 1
            return

        def change() -> None:
            self.epoch, self.given, self.ended = self.epoch + passes, 0, self.ended + 1
            if not self.group:
                self.tree = self._apply_changes(self.changes)
            self._replace_open(*self._open_at(None))

        self._change(change)

    def rows(self) -> int | None:
        """Return the number of rows of this pass, of an indexed pipeline."""
        passes = self._run.passes
        return None if passes is None else passes.size(self.epoch)

    @property
    def pass_start(self) -> int:
        """The first row of this pass of an indexed pipeline, counted over all passes."""
        passes = self._run.passes
        return 0 if passes is None else passes.start(self.epoch)

    @property
    def row(self) -> int:
        """The first undelivered row of an indexed pipeline, counted over all passes."""
        return self.pass_start + parse_cursor_int(self.out.cursor())

    def seek(self, item: int, counted: bool = True) -> None:
        """Go to an item of the pass: at once if it is indexed, else by reading up to it."""
        item = check_int(item, "seek({})", 0)
        check_position(item, self.group or 1)
        row, rows = item * (self.group or 1), self.rows()
        row = row if rows is None else min(row, rows)

        def reads_up_to_it() -> None:
            self._replace_open(*self._open_at(None))
            with Progress("read up to an item", item, "items") as progress, suppress(StopIteration):
                for _ in progress.each(range(item)):
                    self.out.next()
            self.out.reset_counts()
            self._before = item - self.items

        self._change(
            (lambda: self._go_to_row(self.epoch, row, counted)) if self.group else reads_up_to_it
        )

    def go_to_step(self, step: int, row: int, counted: bool) -> None:
        """Go to the row, counted over all passes, at which a global step begins."""
        passes = self._run.passes
        found = None if passes is None else passes.at(row)
        if self.stages is not None and found is not None and found.epoch:
            raise ConfigError(f"seek({step}): the run ends after {self.planned_steps} steps")

        def change() -> None:
            self.given = 0
            if found is None:
                self._go_to_row(0, row, counted)
            else:
                self._go_to_row(found.epoch, row - found.start, counted)

        self._change(change)

    def _go_to_row(self, epoch: int, place: int, counted: bool) -> None:
        """Go to a row of a pass, as part of a change; `counted` logs the jump."""
        passes = self._run.passes
        before = self.step_log.record_at(self.row) if self.stages else self._record
        row = place if passes is None else passes.start(epoch) + place
        self._begin_stage(self.step_log.next_step(row))
        if counted:
            self._log_jump(row, before)
        # Rows that come again train on no removed document.
        if masks := mask_from(self.changes, row):
            self.changes += masks
            self.tree = self._apply_changes(self.changes)
        self.epoch = epoch
        self._replace_open(*self._open_at(place))
        self._before = self.step_log.next_step(row) - self.items

    @property
    def step_log(self) -> StepLog:
        """The global steps of a run of positions."""
        if self.stages is None:
            return StepLog(self.records, self._run.passes)
        return self._planned_log.until_end(self._run.passes)

    @property
    def planned_steps(self) -> int | None:
        """The number of steps of a run whose batches change; None if it does not end."""
        return None if self._run.passes is None else self.step_log.records[-1].step

    @property
    def _planned_log(self) -> StepLog:
        """The planned steps of a run, also those after its end."""
        assert self.stages is not None
        return StepLog(self.records, None).with_planned(self.stages.rows, self._planned_from)

    # ------------------------------------------------------------ batches that change by step

    def _begin_stage(self, step: int) -> None:
        """Take the batches of a step, as part of a change."""
        if self.stages is None:
            return
        self._base = self.stages.at(step).remembered(self.description)
        self.tree = self._apply_changes(self.changes)
        self.group, setting = tail_group(self.tree), self.setting
        self.sharding = make_rank_sharding(
            setting.rank, setting.world_size, self.group, setting.remainder, setting.workers
        )
        self._record = first_record(self.sharding, tail_of(self.tree))

    def _find_stage_end(self, cursor: Json) -> int | None:
        """Return the row at which the stage of a position ends; None in the last one."""
        assert self.stages is not None
        log = self._planned_log
        end = self.stages.end_of(log.next_step(0 if cursor is None else parse_cursor_int(cursor)))
        return None if end is None else log.first_row(end)

    def begin_next_stage(self) -> bool:
        """Take other batches if the run stands where they begin; return whether it does."""
        if self.sharding.stop is None or self.row != self.sharding.stop:
            return False
        self._change(lambda: None)
        return True

    def _cross_border(self) -> None:
        """Take other batches if the run stands where they begin, before any other change."""
        if self.sharding.stop is None or (row := self.row) != self.sharding.stop:
            return
        self._begin_stage(self.step_log.next_step(row))
        self.records = StepLog(self.records, None).continue_with(self._record, row).records
        self._replace_open(*self._open_at(row))

    def _log_jump(self, row: int, record: StepRecord) -> None:
        """Log that rows are skipped, or that the run goes back and delivers some again.

        Args:
            row: the row to which the run goes.
            record: the steps that the run took before.
        """
        now, log = self.row, self.step_log
        if row > now:
            self.records = log.skip(record, now, row).records
        if row >= now:
            return
        self.records = log.go_back(self._record, row).records
        step = self.step_log.next_step(row)
        self._planned_from = min(self._planned_from, step)
        before = [replace(one, step=min(one.step, step)) for one in self.given_before]
        if records := log.records_within(row, now):
            at = now - self.pass_start
            before.append(GivenBefore(step, row, self.epoch, at, len(self.changes), records))
        self.given_before = merge_equal(before)

    def _apply_changes(self, changes: Sequence[Edit]) -> Step:
        """Return the tree with changes. Streams draw by the mixture of the pass they are in."""
        return changed(self.base, changes, 0 if self.group else self.epoch)

    # ------------------------------------------------------------ items out of order

    def begin_items(self) -> None:
        """Deliver whole items from here on, each on one rank, instead of steps of all ranks.

        Raises:
            ConfigError: if the run is in the middle of an item.
        """
        cursor, group, rows = self.out.cursor(), self.sharding.group, self.rows()
        row = parse_cursor_int(cursor)
        if row % group and row != rows:
            raise ConfigError(
                f"the run is at row {row}, in the middle of an item of {group} rows, so lease() "
                "cannot begin here; use batches of the size that the run has used so far"
            )

        def change() -> None:
            self.sharding = replace(self.sharding, remainder="keep", keeps_groups=True)
            self._replace_open(*self._open_at(cursor))
            record = replace(self._record, gives="items")
            self.records = self.step_log.continue_with(record, self.row).records

        self._change(change)

    def reopen_items(self, epoch: int, items: Ints) -> Delivery:
        """Deliver items of a pass again, in this order; the run keeps its position."""
        builder, execution = self._open_again(epoch)
        stream = open_items(builder, execution, epoch, items)
        return self._delivery(stream, builder, len(items), None)

    def reopen_lane(self, epoch: int, lane: int, cursor: Json) -> Delivery:
        """Deliver one lane of a pass again, from a cursor of the lane; the run keeps its position."""
        builder, execution = self._open_again(epoch)
        alone = replace(self.setting, rank=lane, world_size=self.lanes)
        stream = open_lanes(builder, execution, self.lanes, alone).stream
        delivery = self._delivery(stream, builder, 1, None)
        delivery.seek(epoch, {"at": {str(lane): cursor}, "turn": lane, "ended": []})
        return delivery

    def _open_again(self, epoch: int) -> tuple[Builder, Execution]:
        """Compile the tree of a pass."""
        same = self.group or epoch == self.epoch
        found = self.compiled.of(self.tree if same else changed(self.base, self.changes, epoch))
        return found.builder, self._execution(found, self.setting.window, self.executor)

    # ------------------------------------------------------------ states

    def state(self) -> dict[str, Any]:
        """Return the state after the last delivered item, as small plain JSON."""
        return self.capture_state()()

    def capture_state(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the present state later; costs next to nothing."""
        text = self.capture_text()
        return lambda: json.loads(text())

    def capture_text(self) -> Callable[[], str]:
        """Return a function that returns the present state later, as JSON text."""
        if self._unchanged is not None:
            session = Session.__new__(Session)
            session.__dict__.update(self._unchanged)
            return session.capture_text()
        writer, setting, base, group = self._writer, self.setting, self._base, self.group
        opened, cursor, lanes = self._run, self.out.capture_cursor(), self.lanes
        records = self.step_log.records if self.stages else self.records
        changes, adopted, before = self.changes, self.adopted, self.given_before
        journal = writer.capture_journal(self.journal.entries)
        body: dict[str, Any] = {"epoch": self.epoch, "step": self.step, "given": self.given}
        content = self.section and self.section.to_json(self)
        if self.section is not None and content is not None:
            body[self.section.key] = content

        def describe() -> dict[str, Any]:
            fixed: dict[str, Any] = {
                "fingerprint": base.fingerprint,
                "pipeline": base.description,
                "adopted": [*adopted],
                "data": base.data,
                "code": base.code,
                "mixtures": describe_mixtures(opened.builder),
                "changes": [change.to_json() for change in changes],
                "journal": journal_to_json(journal),
            }
            if group:
                fixed["records"] = [record.to_json() for record in records]
                fixed["passes"] = opened.passes and opened.passes.to_json()
            else:
                fixed["lanes"] = lanes
            if before:
                fixed["given_before"] = [one.to_json() for one in before]
            if setting.on_error == "quarantine" and setting.world_size > 1:
                fixed["journal_of"] = [setting.rank, setting.world_size]
            return fixed

        parts = (base, changes, records, adopted, before, journal, setting, lanes)
        return lambda: writer.write(parts, describe, body, cursor())

    def load(self, states: Any, on_mismatch: OnMismatch) -> None:
        """Continue from a state; if anything is wrong, the run stays unchanged."""
        check_choice(on_mismatch, MISMATCHES, "load_state_dict(on_mismatch={})")

        def change() -> None:
            try:
                self._load(states, on_mismatch == "adopt")
            except StateError:
                raise
            except MALFORMED_INPUT_ERRORS as error:
                if not isinstance(error, PenstockError):
                    raise StateError(
                        f"the state does not fit this pipeline: {error!r}; the state is damaged, "
                        "load an earlier one"
                    ) from error
                odd = self.changes and isinstance(error, ConfigError)
                what = "the changes in the state do" if odd else "the state does"
                raise StateError(f"{what} not fit this pipeline: {error}") from error

        self._change(change)

    def _load(self, states: Any, adopt: bool) -> None:
        bodies = [
            decode_state(state)
            for state in (states if isinstance(states, list | tuple) else [states])  # pyright: ignore[reportUnknownVariableType]
        ]
        if not bodies:
            raise StateError(
                "the list of states is empty; pass one state, or the states of all ranks"
            )
        body, cursors = merge_states(bodies, self.section)
        changes = tuple(edit_from_json(change) for change in body.changes)
        if self.stages is not None:
            if body.epoch:
                raise StateError(
                    f"the state is in pass {body.epoch}, and steps that a Schedule plans have one "
                    "pass; load it into a loader whose batches have one size"
                )
            self._begin_stage(body.step)
            self._planned_from = body.step
            log = StepLog(records_from_json(body.records), None).until(body.position)
            self.records = log.continue_with(self._record, body.position).records
        home = self._base.remembered(body.pipeline)
        lanes = None if self.group else (body.lanes or 1, self.lanes)
        saved, home = home, with_steps_of(self.base, home, lanes)
        self.epoch, self.given, self.adopted = body.epoch, body.given, tuple(body.adopted)
        other = body.fingerprint != home.fingerprint or body.pipeline != home.description
        if other and not adopt and home is saved:
            raise make_other_pipeline_error(body.pipeline, self.description)
        self.adopted += (body.fingerprint,) if other else ()
        notes = compared(body.data, self.leaves, self._base.data, adopt)
        notes += [] if adopt else code_notes(body.code, self._base.code)
        notes += describe_missing_journals([one.journal_of for one in bodies])
        require_maskable(home.tree, home.builder, find_masked_sources(changes))
        self._base, regrouped = home, home is not saved
        noted = journal_from_json(body.journal)
        self.journal = Journal(self.setting.on_error, self.setting.max_errors, noted)
        adoption = Adoption(home.tree, body, cursors, changes, bool(self.group))
        try:
            if other:
                places = self._mixture_positions(body, cursors)
                changes, cursors = adoption.continue_pass(places, regrouped)
            if adopt and self.group:
                changes = adoption.with_other_rows(changes)
            opened, out, cursor = self._open_changed(body, cursors, changes, adopt)
        except StateError:
            later, until = adoption.begin_pass() if adopt else (None, 0)
            if later is None:
                raise
            opened, out, cursor = self._open_changed(body, cursors, later, adopt)
            if until:
                notes.append(
                    f"the run follows the new pipeline from pass {until} on; ask the plan of an "
                    "earlier state about the passes before"
                )
        for check in opened.witnesses:
            _check_witness(check)
        if self.group:
            start = 0 if opened.passes is None else opened.passes.start(self.epoch)
            position = start + parse_cursor_int(cursor)
            log = StepLog(records_from_json(body.records), opened.passes).until(position)
            self.records = log.continue_with(self._record, position).records
            self.given_before = given_before_from_json(body.given_before)
            if self.given_before and self.adopted != tuple(body.adopted):
                self.given_before = ()
                notes.append(
                    "the run was adopted, so steps that it gave before it went back are no "
                    "longer counted"
                )
        self.notes = log_notes(notes)
        if self.section is not None:
            self.section = self.section.load(body, self, other)
        self._replace_open(opened, out)
        self._before = body.step - self.items

    def _open_changed(
        self, body: SavedState, cursors: Mapping[int, Json], changes: tuple[Edit, ...], adopt: bool
    ) -> tuple[RankStream, Delivery, Json]:
        """Open the tree with changes at the position of a state; return its cursor too."""
        self.changes, self.tree = changes, self._apply_changes(changes)
        cursor = self._cursor_of_rank(body, cursors)
        if adopt:
            cursor = without_witnesses(cursor)

        def require(opened: RankStream) -> None:
            if adopt:
                opened.require_last(self.epoch, cursor, body, self._base.data)
            else:
                opened.require_same(self.epoch, cursor, body)

        opened, out = self._open_at(cursor, require)
        return opened, out, cursor

    def _cursor_of_rank(self, body: SavedState, cursors: Mapping[int, Json]) -> Json:
        """Return the cursor of this rank in a state.

        A run keeps its lanes; a loader without `lanes=` takes those of the state.
        """
        if not self.group and self.setting.lanes is None and body.lanes is not None:
            self.lanes = body.lanes
        rank, ranks = self.lane_share
        mine = range(rank, 0 if self.group else self.lanes, ranks)
        check_lanes(body, cursors, self.lanes, mine)
        if self.group:
            return cursors[0]
        items = {body.lane_items.get(lane, body.items) for lane in mine}
        cursor: dict[str, Json] = {
            "at": {str(lane): cursors[lane] for lane in mine},
            "turn": items.pop() if len(items) == 1 else body.items,
            "ended": sorted({lane for lane in body.ended if lane in mine}),  # as they are written
        }
        if body.drawn is not None and (limit := rows_of_lanes(self.tree).limit) is not None:
            cursor["drawn"] = len(range(rank, min(body.drawn, limit), ranks))
        return cursor

    def _mixture_positions(self, body: SavedState, cursors: Mapping[int, Json]) -> FindProgress:
        """Return a function that returns the positions of the mixtures of a tree at these cursors."""

        def find_progress(tree: Step) -> Mapping[Path, MixPosition]:
            if self.group:
                return find_mixture_progress(tree, body.epoch, parse_cursor_int(cursors[0]))
            # The lanes of all ranks.
            setting = replace(self.setting, window=0, rank=0, world_size=1)
            probe = Session(Compiled(tree), setting, None)
            cursor = probe._cursor_of_rank(body, cursors)
            found = dict[Path, MixPosition]()
            for path in find_mixtures(tree):
                with suppress(ConfigError):  # it is not drawn from in its own order
                    found[path] = probe._mixture_position(path, body.epoch, cursor)
            return found

        return find_progress

    def _mixture_position(self, path: Path, epoch: int, cursor: Json) -> MixPosition:
        """Return the first position of a mixture that was not delivered up to a cursor.

        Prefetched items do not count: lanes are opened again there, without prefetch.
        """
        if self.group:
            found = find_mixture_progress(self.tree, epoch, parse_cursor_int(cursor)).get(path)
            return refused_inside() if found is None else found
        opened = self._open()
        try:
            opened.stream.seek(epoch, cursor)
            lanes = opened.first_undrawn(path, epoch)
        finally:
            opened.stream.close()
        if own_pass(self.base, path):
            mixed = bind_mixtures(opened.builder).get(path)
            if mixed and mixed.passes:
                start, size = mixed.passes.start(epoch), mixed.passes.size(epoch)
                lanes = [min(at - start, size) for at in lanes]
            return MixPosition(epoch, max(lanes), min(lanes))
        position = MixPosition(0, max(lanes), min(lanes))
        return refused_inside() if ends(opened.builder, path) else position

    # ------------------------------------------------------------ changes and failures

    def add_changes(self, edits: Sequence[Edit], entries: Entries | None = None) -> None:
        """Continue at this position with more changes, which keep what was delivered.

        `entries` is the journal from there on, if it changes.
        """
        cursor, changes = self.out.cursor(), (*self.changes, *edits)

        def apply() -> None:
            if entries is not None:
                self.journal = Journal(self.setting.on_error, self.setting.max_errors, entries)
            self.tree = self._apply_changes(changes)
            opened, out = self._open_at(cursor)
            self.changes = changes
            self._replace_open(opened, out)

        self._change(apply)

    def set_weights(self, weights: Mapping[str, float] | Schedule, at: int | None) -> int:
        """Change the weights of a mixture from a position on; return that position."""
        cursor = self.out.cursor()
        # What all ranks see alike.
        alone = (
            not self.sharding.keeps_groups
            if self.group and self.setting.world_size > 1
            else self.lane_share[1] == 1
        )

        def reached(path: Path) -> Place:
            position = self._mixture_position(path, self.epoch, cursor)
            return position.epoch, position.at

        position, change = reweighed(
            self.base, self.changes, weights, at, alone, self._run.builder, reached
        )
        changes = (*self.changes, change)
        require_reweighed_passes(self.base, changes, max(self.epoch, change.epoch))
        past = self._run.capture_past(self.epoch, cursor)

        def changes_weights() -> None:
            self.tree = self._apply_changes(changes)
            opened, out = self._open_at(cursor)
            require_same_past(past, opened.capture_past(self.epoch, cursor))
            self.changes = changes
            self._replace_open(opened, out)

        self._change(changes_weights)
        return position


def _check_witness(check: Callable[[], None]) -> None:
    """Raise `StateError` if a stream does not repeat its samples.

    Other errors are raised again when the stream is read.
    """
    try:
        check()
    except StateError:
        raise
    except Exception:
        return
