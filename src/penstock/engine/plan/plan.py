"""The plan of a dataset or of a run: questions and changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Self, TypeAlias, TypeVar

import numpy as np

from ...arguments import check_position, validate_arguments
from ...errors import ConfigError, StateError
from ...types import MAX_POSITION, Ints, Json
from ..base.canonical_json import list_differences
from ..changes.edits import Edit, Exclude, Skipped, changed, edit_from_json, find_source_position
from ..changes.masking import find_maskable_sources
from ..orders import Gap, Skips
from ..runtime.seal import seal
from ..runtime.states import SavedState, StateSection, decode_state, log_notes, merge_states
from ..runtime.step_log import RowsGiven, StepRecord, given_before_from_json, records_from_json
from ..steps.batch import change_rows, tail_group, tail_of
from ..steps.compiled import Compiled
from ..steps.digests import compared
from ..steps.map import Map
from ..steps.map_with_index import MapWithIndex
from ..steps.mask import DocumentMask
from ..steps.mix import find_histories
from ..steps.one_source import global_step_of
from ..steps.packed import packed_before, packs_of, replanned_passes
from ..steps.planned_batches import rows_by_step
from ..steps.random_map import RandomMap
from ..steps.reorder import Reorder
from ..steps.reorder_gaps import pass_over_skips
from ..steps.step import Step
from ..steps.with_source import WithSource
from ..streams.journal import Entries, journal_from_json, journal_to_json, without_replacements
from .edit import group_by_source, list_removals, split_by_first_row
from .questions import Questions
from .records import Removal, Sample

D = TypeVar("D")

Keys: TypeAlias = Iterable[tuple[str, int] | tuple[str, int, int] | Sample]
"""Samples by source and index, perhaps with an epoch between."""

_MAPS = {Map.KEY, MapWithIndex.KEY, RandomMap.KEY, WithSource.KEY}  # steps that move no sample


@validate_arguments
class Plan(Questions, Generic[D]):
    """Answers about every position of a dataset without reading data: `ds.plan`.

    A position is the number of an item of the dataset: of a batch, a packed row, or a sample if
    nothing is grouped. Passes follow one another: in a dataset of `n` items, position `n` is the
    first item of the second pass. Every answer is computed from the description, at position 10^12
    as fast as at 0.

    Args:
        base: the compiled tree; users call `ds.plan`.
        wrap: makes a dataset of a tree.
        edits: the changes made during the run.
        body: the state of the run, if the plan belongs to one.
        records: the steps of the run, if the state does not contain them.
        section: reads the section that states of the run may have.
        maskable: the sources whose documents the run can mask; by default those that the tree says.

    Raises:
        IndexedError: the dataset has no positions.

    >>> import penstock as ps
    >>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 3, "b": 1})
    >>> [sample.key for sample in ds.batch(4).plan.at(1)]
    [('a', 0, 3), ('b', 0, 1), ('a', 1, 0), ('a', 1, 1)]
    >>> ds.plan.find("b", 1, within=range(1_000_000_000_000, 1_000_000_000_010))
    [1000000000006]
    """

    def __init__(
        self,
        base: Compiled,
        wrap: Callable[[Step], D],
        edits: tuple[Edit, ...] = (),
        body: SavedState | None = None,
        records: tuple[StepRecord, ...] | None = None,
        section: StateSection | None = None,
        maskable: frozenset[str] | None = None,
    ) -> None:
        super().__init__(
            base.of(changed(base.tree, edits)),
            journal_from_json(body.journal if body else []),
            records if body is None else records_from_json(body.records),
        )
        self._base, self._wrap, self._edits, self._body = base, wrap, edits, body
        self._section, self._known_maskable = section, maskable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self._base, self._wrap, self._edits, self._body, self._records, self._section,
            self._known_maskable,
        )  # fmt: skip

    def _copy(
        self,
        base: Compiled,
        edits: tuple[Edit, ...],
        body: SavedState | None,
        records: tuple[StepRecord, ...] | None = None,
        maskable: frozenset[str] | None = None,
    ) -> Self:
        maskable = maskable or self._known_maskable
        return type(self)(base, self._wrap, edits, body, records, self._section, maskable)

    def _for_states(self, states: Sequence[Mapping[str, Any]]) -> Self:
        """Return the plan of the run that saved states, one of each rank, with its changes."""
        body, _ = merge_states([decode_state(state) for state in states], self._section)
        pipeline = body.pipeline
        base = self._base.remembered(pipeline)
        while pipeline != base.description and isinstance(pipeline, dict) and _MAPS & {*pipeline}:
            pipeline = pipeline.get("of")
            base = self._base.remembered(pipeline)
        if pipeline != base.description:
            now = (base.description, base.tree.description())  # without sizes of batches, and with
            differences = min((list_differences(body.pipeline, one) for one in now), key=len)
            lines = "\n".join(f"  {line}" for line in differences[:20])
            asked = "use the plan of the pipeline that saved it"
            if not tail_of(base.tree).batches and body.records is not None:
                rows = records_from_json(body.records)[-1].rows
                asked += (
                    f"; if its loader made the batches, use ds.batch(global_batch_size={rows}).plan"
                )
            raise StateError(f"the state is of another pipeline:\n{lines}\n{asked}")
        # Answers from other data would name samples that the run never had.
        log_notes(compared(body.data, base.builder.leaves, base.data, adopt=False))
        body = replace(body, journal=journal_to_json(journal_from_json(body.journal)))
        edits = tuple(map(edit_from_json, body.changes))
        return self._copy(base, edits, body, maskable=self._maskable)

    def replay(self, log: Iterable[Mapping[str, Json]]) -> Self:
        """Return the plan of a run of `mix(count="settled")`, with every replacement draw it made.

        `.dataset` repeats the run without the trainer.

        Args:
            log: the records of `Loader.settled_log()`, of all processes of the run in their order.

        Raises:
            ConfigError: the dataset has no `mix(count="settled")`.
            StateError: the log is invalid, or belongs to another run.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("a"), "b": ps.from_sequence("b")}, count="settled")
        >>> [ds.plan.replay([{"from": 0}, {"position": 1, "source": "a"}]).at(p)[0].source for p in range(4)]
        ['a', 'a', 'b', 'a']
        """
        section = self._section
        if section is None:
            raise ConfigError("plan.replay: the plan is of no run with leases; use ds.plan")
        edits = section.replay(self._base.tree, self._edits, list(log))
        return self._copy(self._base, edits, self._body, self._records)

    def rows(self, world_size: int | None = None) -> Self:
        """Return the plan whose positions are rows: samples or packed rows before the last batches.

        Its steps are those of the run, or those of a new run on so many ranks.

        Args:
            world_size: the number of ranks, for a plan without a run; 1 by default.

        >>> import penstock as ps
        >>> plan = ps.from_sequence("abcdef", name="letters").batch(2).plan
        >>> plan.size, plan.rows().size, [sample.index for sample in plan.rows(world_size=2).at(step=0)]
        (3, 6, [0, 1, 2, 3])
        """
        records = self._records_for("rows", world_size)
        base = self._base.of(tail_of(self._base.tree).rows)
        return self._copy(base, self._edits, self._body, records, self._maskable)

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """Describe the global steps of the run: one record for each stretch of equal steps.

        Without a run, they are the steps of one rank.
        """
        return self.step_log.records

    @property
    def position(self) -> int:
        """Return the first position that the run has not delivered; 0 without a run."""
        if self._body is None:
            return 0
        if rows_by_step(self._base.tree):
            return self.next_step
        items = -(-self._body.position // (tail_group(self._base.tree) or 1))
        passes = self._op.passes
        return items if passes is None else passes.start(self._epoch) + items

    @property
    def _epoch(self) -> int:
        """Return the pass in which the run stands."""
        return self._body.epoch if self._body else 0

    @property
    def size(self) -> int | None:
        """The number of positions in a pass, the current one of a run; None if it is endless."""
        if self._op.passes is None:
            return None
        if rows_by_step(self._base.tree):
            return self.step_log.records[-1].step
        return self._op.passes.size(self._epoch)

    @property
    def _row(self) -> int:
        """Return the first row that the run has not delivered, counted over all passes."""
        if self._body is None:
            return 0
        passes = self._rows_op.passes
        start = 0 if passes is None else passes.start(self._epoch)
        return start + self._body.position

    @property
    def next_step(self) -> int:
        """Return the first global step that the run has not made; 0 without a run."""
        return self.step_log.next_step(self._row)

    @cached_property
    def _open_rows(self) -> Ints | None:
        section, body, passes = self._section, self._body, self._rows_op.passes
        if section is None or body is None or section.key not in body.sections:
            return None
        group, items = section.open_items(body)
        starts = [0 if passes is None else passes.start(epoch) for epoch, _ in items]
        ends = [MAX_POSITION if passes is None else passes.start(epoch + 1) for epoch, _ in items]
        firsts = np.asarray(starts, np.int64) + np.asarray([n for _, n in items], np.int64) * group
        rows = (firsts[:, None] + np.arange(group)).ravel()
        return rows[rows < np.repeat(np.asarray(ends, np.int64), group)]  # the last may be short

    def _before(self, step: int | None) -> Sequence[tuple[Questions, RowsGiven, int]]:
        found = list[tuple[Questions, RowsGiven, int]]()
        for given in given_before_from_json(self._body.given_before if self._body else []):
            if step is None or given.step <= step:
                there = self._body and replace(self._body, epoch=given.epoch, at=given.at)
                plan = self._copy(self._base, self._edits[: given.changes], there)
                found.append((plan, given.rows_given(plan._rows_op.passes), given.times))
        return found

    def _rows_at(self, item: int) -> range:
        """Return the rows of an item."""
        if self.size == 0:
            raise IndexError(
                f"position {item} of a plan of 0: a pass has fewer rows than an item takes; make "
                "smaller items"
            )
        if rows_by_step(self._base.tree):
            return self.step_log.rows(item)
        group = tail_of(self._base.tree).group
        passes = self._op.passes
        below = self._rows_op.passes
        if passes is None or below is None:
            return range(item * group, (item + 1) * group)
        found = passes.at(item)
        first = below.start(found.epoch) + (item - found.start) * group
        return range(first, min(first + group, below.start(found.epoch + 1)))

    @property
    def state(self) -> dict[str, Any]:
        """Return the state of the run with the changes of this plan, to load into a loader."""
        if self._body is None:
            raise ConfigError(
                "the plan does not belong to a run; use ds.plan.for_state(state), or start a run "
                "from ds.plan.skip(...).dataset"
            )
        changes = {"changes": [edit.to_json() for edit in self._edits]} if self._edits else {}
        return seal({**self._body.to_json(), **changes})

    @property
    def dataset(self) -> D:
        """Return the dataset with the changes of this plan, for a new run."""
        return self._wrap(self.tree)

    def skip(self, positions: range | None = None, *, steps: range | None = None) -> Self:
        """Leave out positions that were not delivered yet, or global steps of a run.

        Later positions move up, and the pass of the positions becomes shorter. Without a run, every
        pass of the dataset becomes shorter.

        Args:
            positions: positions at or after the position of the run.
            steps: global steps of the run, instead of positions.

        Raises:
            ConfigError: the positions were delivered, are a whole pass of a run, or are no valid
                range.

        >>> import penstock as ps
        >>> list(ps.from_sequence(range(10)).batch(2, collate=list).plan.skip(range(1, 4)).dataset)
        [[0, 1], [8, 9]]
        """
        asked = positions if steps is None else steps
        if not isinstance(asked, range) or (positions is not None and steps is not None):
            raise ConfigError(
                f"plan.skip({asked!r}): give a range of positions, such as range(100, 110), or "
                "steps=range(...)"
            )
        if asked.step != 1 or asked.start < 0 or asked.stop < asked.start:
            raise ConfigError(f"plan.skip({asked}): give a range one by one, forwards, from 0 on")
        if not asked:
            return self
        first, last = (
            (self._rows_at(end) if steps is None else self.step_log.rows(end))
            for end in (asked[0], asked[-1])
        )
        passes, low, high = self._rows_op.passes, first.start, last.stop
        check_position(high)
        if low < self._row:
            start = self.position if steps is None else self.next_step
            kind = "positions" if steps is None else "steps"
            raise ConfigError(
                f"plan.skip({asked}): the past cannot change; give {kind} from {start} on"
            )
        if passes is not None and high > passes.at(low).stop:
            raise ConfigError(
                f"plan.skip({asked}): the range crosses the end of a pass; give a range within "
                "one pass"
            )
        if self._body is None:
            return self._skip_in_each_pass(low, high)
        if steps is None and (rows := global_step_of(self.tree)) is not None:
            begin = self.step_log.rows(self.step_log.next_step(low)).start
            if begin != low or (high - low) % rows:
                raise ConfigError(
                    f"plan.skip({asked}): mix(one_source_per='global_step') gives each step one "
                    "source, and the range is no whole number of steps; give steps=range(...)"
                )
        if passes is not None and high - low == passes.at(low).size:
            raise ConfigError(
                f"plan.skip({asked}): the range is a whole pass; end the pass by "
                "Loader.seek(step), to the first step of the next pass"
            )
        edited = self._edited(Skipped(low, high - low))
        edited._require_whole_lengths(asked)
        return edited

    def _require_whole_lengths(self, skipped: range) -> None:
        """Raise `ConfigError` if rows change their length within a step of the run."""
        skips = Skips.of(
            (edit.start, edit.count) for edit in self._edits if isinstance(edit, Skipped)
        )

        def row_below(row: int) -> int:
            return int(skips.down(np.asarray([row]), None, 0)[0][0])

        for pack in packs_of(self._rows_op):
            for until, _ in getattr(pack.fold, "earlier", ()):
                row = bisect_left(range(until + 1), until, key=row_below)
                log = self.step_log
                if row > self._row and log.rows(log.next_step(row)).start != row:
                    raise ConfigError(
                        f"plan.skip({skipped}): a later row length would begin within a step, because "
                        "the schedule also changes the batch; exclude the samples of these steps "
                        "instead: plan.exclude(keys)"
                    )

    def _skip_in_each_pass(self, start: int, stop: int) -> Self:
        """Leave out rows of every pass of a dataset."""
        if (passes := self._rows_op.passes) is not None and passes.at(start).epoch:
            raise ConfigError(
                f"plan.skip: row {start} is in pass {passes.at(start).epoch}, and only positions "
                "of the first pass can be skipped before a run; for a later pass, edit the plan of "
                "a run that has not reached it: ds.plan.for_state(state)"
            )
        tree = change_rows(self._base.tree, lambda rows: Reorder(rows, Gap(start, stop - start)))
        return self._copy(self._base.of(tree), self._edits, None, self._records)

    def exclude(self, keys: Keys) -> Self:
        """Exclude samples from the position of the run on.

        The next samples of the same source replace them. `removals` lists what became of each.

        A key is (source, index), as in `Loader.keys()`, or a `Sample`. The source of every draw
        stays the same, and so does the number of steps, unless rows are packed.

        Documents in rows of `pack` or `Padded` are masked from the next row on: they become padding
        (`segment_ids` 0, loss mask 0), and no other document moves. A mask holds until the next
        documents replace them, or for good where the order cannot change: below a slice or a
        shuffle of several sources, for example.

        Args:
            keys: (source, index), (source, epoch, index) or `Sample`.

        Raises:
            ConfigError: a source does not exist, or its order cannot be changed here and no step
                can mask its samples.
            IndexError: an index does not exist.

        >>> import penstock as ps
        >>> "".join(ps.from_sequence("abcdef", name="letters").repeat().plan.exclude([("letters", 1)]).dataset[:8])
        'acdefacd'
        """
        sizes = {name: self._rows(self._leaf(name)) for name in self.sources}
        left = {
            source: tuple(sorted({*indices} - self._removed(source)))
            for source, indices in group_by_source(keys, sizes).items()
        }
        left = {source: indices for source, indices in left.items() if indices}
        if not left:
            return self
        masks = {
            source: DocumentMask(source, self._row, indices)
            for source, indices in left.items()
            if self._body is not None and source in self._maskable
        }
        try:
            return self._replace_samples(left, masks)._release(self, left)
        except ConfigError:
            if not masks:
                raise
        plan = self  # one source after the other: those that cannot be replaced are masked
        for source, indices in left.items():
            try:
                plan = plan._replace_samples({source: indices}, masks)
            except ConfigError:
                if source not in masks:
                    raise
                plan = plan._edited(masks[source])
        return plan._release(self, left)

    def _release(self, before: Plan[D], left: Mapping[str, tuple[int, ...]]) -> Self:
        """Return the plan whose next bad samples are replaced by others than these."""
        draws = before._replaced_rows.find_undelivered(left)
        if self._body is None or not draws:
            return self
        journal = journal_to_json(without_replacements(self._entries, draws))
        body = replace(self._body, journal=journal)
        return self._copy(self._base, self._edits, body, self._records)

    def find_exclusions(
        self, state: Mapping[str, Any], keys: Keys
    ) -> tuple[tuple[Edit, ...], Entries]:
        """Return the changes by which `exclude` leaves out samples of the run with this state.

        The second value is the journal of the run from there on.

        Args:
            state: the state of one rank.
            keys: the samples.
        """
        plan = self._for_states([state])
        found = plan.exclude(keys)
        return found._edits[len(plan._edits) :], found._entries

    @cached_property
    def _maskable(self) -> frozenset[str]:
        """The sources whose documents the run can mask."""
        if self._known_maskable is not None:
            return self._known_maskable
        return find_maskable_sources(self._base.tree, self._base.builder)

    def _removed(self, source: str) -> set[int]:
        """Return the samples of a source that the run excludes already."""
        return {removal.index for removal in self.removals if removal.source == source}

    @cached_property
    def removals(self) -> tuple[Removal, ...]:
        """The excluded samples of the run: replaced by others or masked, and from which row on.

        >>> import penstock as ps
        >>> plan = ps.from_sequence("abcdef", name="letters").plan
        >>> plan.exclude([("letters", 1)]).removals
        (Removal(source='letters', index=1, how='replaced', row=0),)
        """
        return list_removals(self._edits)

    def _replace_samples(
        self, left: Mapping[str, tuple[int, ...]], masks: Mapping[str, DocumentMask]
    ) -> Self:
        """Return the plan without samples; until others replace them, documents are masked.

        Raises:
            ConfigError: the order of a source cannot be changed here.
        """
        edits, (rows, row) = list[Edit](), pass_over_skips(self._rows_op, self._row)
        for source, indices in left.items():
            since = find_source_position(rows, self._leaf(source), source, row)
            edits.append(Exclude(source, since, indices, replanned_passes(rows, row), self._row))
            if self._row and source in masks:
                edits.append(masks[source])
        found = self._edited(*edits)
        if not self._has_the_past_of(found):
            raise ConfigError(
                f"plan.exclude({', '.join(left)}): the past cannot change, and delivered shares of "
                "tokens and packed rows depend on all samples of these sources; exclude the samples "
                "some steps later, or exclude others"
            )
        parts = [
            part
            for edit in edits
            for part in (
                split_by_first_row(edit, found._replaced_rows, self._leaf(edit.source))
                if isinstance(edit, Exclude) and edit.source not in masks
                else [edit]
            )
        ]
        return found if parts == edits else self._edited(*parts)

    def _has_the_past_of(self, other: Plan[D]) -> bool:
        """Compare with another plan: delivered samples and changes of mixtures are equal."""
        at, mine = self._row, find_histories(self.compiled.builder, indexed=True)
        try:  # the op first: it knows the mixtures, and refuses now to leave out all of a source
            _, theirs = other.compiled.op, find_histories(other.compiled.builder, indexed=True)
        except IndexError:  # a mixture that was taken over ends before that
            return False
        if any(
            path in mine and mine[path].goes_on and not found.goes_on
            for path, found in theirs.items()
        ):
            return False
        return not at or self.rows()._past(at) == other.rows()._past(at)

    def _past(self, at: int) -> list[Any]:
        """Return how many samples of each source came before a position, and the last of them.

        Inputs that left the mixture, and passes of another length, are not included.
        """
        last, told = packed_before(self._op, at) or range(at - 1, at), list[Any]()
        for ask in (
            lambda: self._given(at).samples.tolist(),
            lambda: [*self.at(slice(last.start, last.stop))],
        ):
            with suppress(StateError):
                told.append(ask())
        return told

    def _edited(self, *edits: Edit) -> Self:
        return self._copy(self._base, (*self._edits, *edits), self._body, self._records)
