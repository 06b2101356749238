"""Samples at the positions and in the steps of a dataset, from its description alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, overload

import numpy as np

from ...arguments import check_int, check_position, join_first, suggest_names, validate_arguments
from ...errors import ConfigError
from ...types import Ints, is_source
from ..base.rows import HOLE, ProvenanceRows
from ..base.shown import Shown, Shows
from ..runtime.step_log import StepLog, StepRecord, first_record
from ..steps.batch import batches_of_rank, tail_of
from ..steps.compiled import Compiled
from ..steps.op import Op
from ..steps.packed import packs_of
from ..steps.planned_batches import rows_by_step
from ..steps.show import length, shown
from ..steps.step import Builder, Step
from ..streams.journal import JournalEntry, SampleDraw
from ..streams.rank_sharding import make_rank_sharding
from .journaled_rows import JournaledRows
from .records import Address, Sample, Samples, parse_uid
from .step_samples import StepReader


def check_asked(
    method: str, step: object, world_size: int | None, position: object | None = None
) -> None:
    """Raise `ConfigError` for a position beside a step, or ranks without a step."""
    if step is not None and position is not None:
        raise ConfigError(f"plan.{method}: give either a position or a step")
    if step is None and world_size is not None:
        raise ConfigError(
            f"plan.{method}(world_size={world_size!r}): ranks share steps, and positions are the "
            "same for any number of them; ask about a step, or leave out world_size"
        )


@validate_arguments
class PlanLookup(Shows):
    """Answers about one position, a stretch of positions, or a step."""

    def __init__(
        self,
        compiled: Compiled,
        entries: Mapping[SampleDraw, JournalEntry] | None = None,
        records: tuple[StepRecord, ...] | None = None,
    ) -> None:
        compiled.tree.require_indexed(
            "the plan",
            "take the plan of the dataset before that step, such as the mixture: it knows the "
            "draws",
        )
        self._compiled, self._entries, self._records = compiled, entries or {}, records

    @property
    def tree(self) -> Step:
        """The tree that the plan describes."""
        return self._compiled.tree

    @property
    def compiled(self) -> Compiled:
        """The compiled tree, with the changes of the plan.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").batch(2).plan.compiled.op.size
        2
        """
        return self._compiled

    def _shown(self) -> Shown:
        return shown(f"Plan{length(self._compiled)}", self.tree)

    # ------------------------------------------------------------ one position

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, as in `Loader.keys()`."""
        return tuple(leaf.name for leaf in self._builder.leaves)

    @property
    def position(self) -> int:
        """The first position that was not delivered yet."""
        return 0

    @property
    def size(self) -> int | None:
        """The number of positions in a pass; None if the dataset is endless."""
        return self._compiled.size

    @overload
    def at(self, position: int | str, /) -> tuple[Sample, ...]: ...
    @overload
    def at(self, position: slice, /) -> Samples: ...
    @overload
    def at(self, /, *, step: int, world_size: int | None = None) -> tuple[Sample, ...]: ...
    def at(
        self,
        position: int | str | slice | None = None,
        /,
        *,
        step: int | None = None,
        world_size: int | None = None,
    ) -> tuple[Sample, ...] | Samples:
        """Return the samples of a position, in order; of a slice of positions as columns.

        A global `step` of a run is everything that all ranks deliver together, in the order of
        positions. The plan of a run (`plan.for_state(state)`) knows the rows of its steps. For any
        other plan give the number of ranks; each rank takes one item a step.

        Args:
            position: the number of an item, counted from 0 over all passes; the uid of a leased
                item; or a slice of positions.
            step: a global step instead.
            world_size: the number of ranks, for a plan without a run.

        Raises:
            ConfigError: not exactly one of position and step is given.
            IndexError: the position is negative.

        >>> import penstock as ps
        >>> ds = ps.from_sequence("abcdef", name="letters").batch(2)
        >>> [sample.index for sample in ds.plan.at(2)], [sample.index for sample in ds.plan.at(step=0, world_size=2)]
        ([4, 5], [0, 1, 2, 3])
        """
        check_asked("at", step, world_size, position)
        if step is not None:
            return tuple(self._of_step(check_int(step, "plan.at(step={})", 0), world_size))
        if isinstance(position, slice):
            return self._samples(self._resolve_slice(position))
        if isinstance(position, str):
            position = self._position_of(parse_uid(position, "plan.at({!r})"))
        place = check_int(position, "plan.at({}) takes a position, a slice of positions, or step=")
        check_position(place)
        return tuple(self._samples(np.asarray([place])))

    def _position_of(self, address: Address) -> int:
        """Return the position of an item in its pass."""
        passes = self._op.passes
        if (address.epoch and passes is None) or (
            passes is not None and address.item >= passes.size(address.epoch)
        ):
            raise IndexError(
                f"{address.uid}: the plan has no such item; use the plan of the dataset that gave "
                "it"
            )
        return address.item if passes is None else passes.start(address.epoch) + address.item

    def table(self, start: int, stop: int) -> Any:
        """Return positions `start` to `stop - 1` as a `pyarrow.Table`.

        Its columns are position, source, epoch and index; for packed documents also their tokens.

        Args:
            start: the first position.
            stop: the position after the last.

        >>> import penstock as ps
        >>> ps.from_sequence("abcd", name="letters").plan.table(1, 3).to_pylist()[0]
        {'position': 1, 'source': 'letters', 'epoch': 0, 'index': 1}
        """
        return self.at(slice(start, stop)).table()

    def _read_steps(self, steps: range, world_size: int | None = None) -> StepReader:
        """Return the traversal of a range of global steps, for an audit."""
        if not isinstance(steps, range) or steps.step != 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            remedy = "give a range of steps, one by one"
            if isinstance(steps, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                remedy = f"write plan.audit(range({steps}, {steps + 1}))"
            raise ConfigError(f"plan.audit({steps!r}): {remedy}")
        if steps.start < 0:
            raise IndexError(f"step {steps.start}: steps count from 0; give a step from 0 on")
        op, log = self._rows_op, self._log_for("audit", world_size)
        return StepReader(
            log, steps, lambda rows: self._replaced.locate(rows, op), self._tokens_taken
        )

    # ------------------------------------------------------------ inside

    @property
    def _builder(self) -> Builder:
        return self._compiled.builder

    @cached_property
    def _op(self) -> Op:
        return self._compiled.op

    @cached_property
    def _marks(self) -> list[int]:
        return [pack.node for pack in packs_of(self._op)]

    def _leaf(self, source: str) -> int:
        names = self.sources
        if source in names:
            return names.index(source)
        raise ConfigError(
            f"the plan has no source {source!r}{suggest_names(source, names) or f'; it has {join_first(names)}'}"
        )

    def _rows(self, leaf: int) -> int:
        source = self._builder.leaves[leaf].source
        return len(source) if is_source(source) else 0

    def _resolve_slice(self, positions: slice) -> Ints:
        start, stop, step = positions.start or 0, positions.stop, positions.step or 1
        if stop is None:
            stop = self.size
        if stop is None or start < 0 or stop < 0 or step < 1:
            raise ConfigError(
                f"plan.at({start}:{positions.stop}:{step}): give positions from 0 on in ascending "
                "order, and a stop if the dataset is endless"
            )
        check_position(max(start, stop))
        return np.arange(start, stop, step)

    def _samples(self, positions: Ints) -> Samples:
        if len(positions) and (positions[0] < 0 or self.size == 0):
            total = "an endless plan" if self.size is None else f"a plan of {self.size}"
            raise IndexError(
                f"position {positions[0]} of {total}: positions count from 0, on over all passes; "
                "give a position from 0 on"
            )
        return self._samples_of(self._replaced.locate(positions), positions)

    def _samples_of(self, rows: ProvenanceRows, shown: Ints) -> Samples:
        places = np.repeat(shown, np.diff(rows.firsts()))
        start, stop = self._tokens_taken(rows)
        masked = rows.marks[HOLE] > 0 if HOLE in rows.marks else None
        return Samples(self.sources, places, rows.leaf, rows.epoch, rows.index, start, stop, masked)

    @cached_property
    def _replaced(self) -> JournaledRows:
        return JournaledRows(self._op, self._builder.leaves, self._entries, self.position)

    @property
    def _row(self) -> int:
        """Return the first row that was not delivered yet, counted over all passes."""
        return 0

    @cached_property
    def _replaced_rows(self) -> JournaledRows:
        return JournaledRows(self._rows_op, self._builder.leaves, self._entries, self._row)

    @cached_property
    def _rows_op(self) -> Op:
        """The part of the tree below the last batches, which gives the rows of a run."""
        op = self._op
        while op.tail:
            (op,) = op.inputs
        return op

    @property
    def step_log(self) -> StepLog:
        """The global steps of the run; without a run, those of one rank."""
        return self._log_for("records", None)

    def _log_for(self, method: str, world_size: int | None) -> StepLog:
        """Return the log of the run, or of a new run on these ranks; errors name the method."""
        log = StepLog(self._records_for(method, world_size), self._rows_op.passes)
        return log.until_end(log.passes) if rows_by_step(self.tree) else log

    def _records_for(self, method: str, world_size: int | None) -> tuple[StepRecord, ...]:
        if self._records is not None and world_size is not None:
            raise ConfigError(
                f"plan.{method}: the run stores the number of ranks of its steps; leave out "
                "world_size"
            )
        if self._records is not None:
            return self._records
        where = f"plan.{method.partition('(')[0]}(world_size={{}})"
        ranks = 1 if world_size is None else check_int(world_size, where, 1)
        tail = tail_of(batches_of_rank(self.tree, ranks, drop=True))
        record = first_record(make_rank_sharding(0, ranks, tail.group, "drop"), tail)
        return StepLog((record,), None).with_planned(rows_by_step(self.tree) or ()).records

    def _of_step(self, step: int, world_size: int | None) -> Samples:
        """Return the samples of a global step, with the positions of their items."""
        rows = self._log_for("at(step=)", world_size).rows_given(step)
        return self._samples_of(self._replaced.locate(rows, self._rows_op), self._items_of(rows))

    def _items_of(self, rows: Ints) -> Ints:
        """Return the positions of the items that hold rows."""
        if rows_by_step(self.tree):  # an item is a global step
            log = self.step_log
            return np.asarray([log.step_of(row) for row in rows.tolist()], np.int64)
        group, below, passes = tail_of(self.tree).group, self._rows_op.passes, self._op.passes
        if below is None or passes is None:
            return rows // group
        epoch, place = below.split(rows)
        return passes.starts_of(epoch) + place // group

    def _tokens_taken(self, rows: ProvenanceRows) -> tuple[Ints | None, Ints | None]:
        if not self._marks:
            return None, None
        none = np.zeros(len(rows.leaf), np.int64)
        start, stop = none, none
        for node in self._marks:
            start, stop = start + rows.marks.get(node, none), stop + rows.marks.get(~node, none)
        return start, stop
