"""Questions about any step of a dataset, answered from its description alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from ...errors import ConfigError
from ...schedule import COUNTED, Counted
from ...types import Ints, is_source
from ..base.hints import chosen, guided
from ..base.ints import whole, within_reach
from ..base.progress import Progress
from ..base.sizes import total
from ..graph.tokens import stored_dtypes
from ..ops.op import Op
from ..ops.pack import passes_of
from ..ops.tally import Tally
from ..runtime.step_log import RowsGiven, StepRecord, record_of, rows_given_in, steps_of_row
from .ends import exhaustions, far
from .located import Located, packs_of
from .packing import PackedShares, packing_of
from .records import Difference, Exhaustion, differs
from .seen import Seen, seen, seen_in_all
from .steps import log_of, rows_of, told_of

_SCAN = 1 << 14  # positions of two plans that are compared together
_MANY = 1 << 10  # places that are found together
_FAR = 1 << 18  # how far endless plans are compared if nobody says


@guided
class Questions(Located):
    """What can be asked of a flow besides: where samples come up, what was seen, sums,
    differences."""

    # ------------------------------------------------------------ one sample

    def find(
        self,
        source: str,
        index: int,
        within: range | None = None,
        *,
        steps: range | None = None,
        world_size: int | None = None,
    ) -> list[int]:
        """All positions within a range (the first pass) at which a sample is delivered, over all
        its epochs; or all global steps in which it is.

        A packed document that is cut has several. The first question about a pack plans its pass.
        Of what never ends, and without a range, it is the first position, or none if the sample
        never comes.

        Args:
            source: its name, as in `plan.sources`.
            index: of the sample in its source.
            within: the positions to look at, `range(start, stop)`; without it the first pass.
            steps: global steps in their place: those of the run, each once.
            world_size: on how many ranks, for steps of a plan that is of no run.

        Raises:
            ConfigError: for a source that is not there.
            IndexError: for an index that is not there.

        >>> import penstock as ps
        >>> plan = ps.from_sequence(range(100), name="numbers").shuffle(seed=1).repeat().batch(10).plan
        >>> [17 in [sample.index for sample in plan.at(p)] for p in plan.find("numbers", 17, within=range(30))]
        [True, True, True]
        >>> plan.find("numbers", 17) == plan.find("numbers", 17, within=range(10))
        True
        >>> [step * 2 <= p < step * 2 + 2 for p, step in zip(
        ...     plan.find("numbers", 17, range(30)), plan.find("numbers", 17, steps=range(15), world_size=2))]
        [True, True, True]
        """
        if steps is not None:
            return self._steps_of(
                source, index, steps, within, log_of(self.flow, self._records, world_size, "find")
            )
        if within is None and self.size is None:
            return list(islice(self.finds(source, index), 1))
        leaf, index = self._sample(source, index)
        within = self._range(within, "plan.find")
        if (passes := passes_of(self._op)) and self.size:
            first, last = within.start // self.size, -(-within.stop // self.size)
            passes.check(first * passes.size, last * passes.size)
        if told := told_of(self._op):
            told.check(within.start, within.stop, self.size)
        found = self._op.find(leaf, np.asarray([index]), within.start, within.stop)
        return (
            self._replaced.find(leaf, index, found, within) if self._entries else found
        ).tolist()

    def finds(
        self,
        source: str,
        index: int,
        within: range | None = None,
        *,
        steps: range | None = None,
        world_size: int | None = None,
    ) -> Iterator[int]:
        """Yield the positions or steps of `find` in order, as they are found: for ranges that hold
        very many, and for what never ends.

        Args:
            source: its name, as in `plan.sources`.
            index: of the sample in its source.
            within: the positions to look at, `range(start, stop)`; without it the first pass, or
                all there ever are.
            steps: global steps in their place.
            world_size: on how many ranks, for steps of a plan that is of no run.

        >>> import penstock as ps
        >>> places = ps.from_sequence("abcd", name="letters").repeat().plan.finds("letters", 2, range(10**12))
        >>> [next(places), next(places)]
        [2, 6]
        """
        places, unit = (
            (self._range(within, "plan.finds"), "positions") if steps is None else (steps, "steps")
        )
        at, some = places.start, _MANY
        with Progress("look for a sample", len(places), unit) as progress:
            while at < places.stop:
                part = range(at, min(at + some, places.stop))
                if steps is None:
                    found = self.find(source, index, part)
                else:
                    found = self.find(source, index, within, steps=part, world_size=world_size)
                yield from found
                progress.tell(at - places.start)
                at, some = at + some, some * 2 if len(found) < _MANY else some

    # ------------------------------------------------------------ what was seen

    def seen(
        self, position: int | None = None, *, step: int | None = None, world_size: int | None = None
    ) -> Seen:
        """Which documents were given before a position, and how often each: unique documents and
        tokens, repeats.

        Four bytes a document of all sources are taken. Where sources are drawn from in orders of
        their own only their draws are looked at, whole passes once; packed rows are gone through. A
        document that is split over rows counts with its first token; `best_fit` may give a row with
        a later part before.

        Args:
            position: how many positions are looked at; by default what the run delivered. Of items
                that were leased (`Loader.lease`) that is what was settled.
            step: a global step instead: what was given before it was (the last time). Rows that
                fill no step count as
                often as they were given: never ("drop"), or once more ("pad"); so do steps that
                    `Loader.seek` jumped
                over, and those that it went back over.
            world_size: on how many ranks, for a plan that is of no run.

        Raises:
            IndexError: for a negative position.

        >>> import penstock as ps
        >>> plan = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 1, "b": 1}).plan
        >>> plan.seen(10).documents, plan.seen(10).repeats("b")
        ({'a': 4, 'b': 2}, {2: 1, 3: 1})
        """
        if step is None and position is not None:
            none = np.zeros(0, np.int64)
            within_reach(stop := whole(position, "plan.seen({})", 0))
            return self._seen(self._op, RowsGiven([range(stop)], none, none))
        if step is None and self._open_rows is None:
            step, world_size = self.next_step, None
        given = self._settled() if step is None else self._rows_before(step, world_size, "seen")
        before = [
            (plan._seen(plan._rows_op, rows), times) for plan, rows, times in self._before(step)
        ]
        return seen_in_all(self._seen(self._rows_op, given), before)

    def _seen(self, op: Op, given: RowsGiven) -> Seen:
        locate = self._replaced.locate
        return seen(
            op,
            self._builder.leaves,
            self._marks,
            given,
            lambda places: locate(places, op),
            bool(self._entries),
        )

    # ------------------------------------------------------------ sums

    def counts(
        self,
        position: int | None = None,
        unit: Counted = "samples",
        *,
        step: int | None = None,
        world_size: int | None = None,
    ) -> dict[str, int]:
        """Samples (or tokens) of each source in all positions before this one, or in all global
        steps before one.

        A packed document that is cut counts in the row in which it begins. `unit="tokens"` names
        the sources whose lengths are known. Its numbers are exact for packed rows, and at the end
        of a source's pass; within a pass they take its mean length.

        Args:
            position: how many positions are counted.
            unit: "samples" or "tokens".
            step: a global step instead: what was given before it, as `seen` counts it.
            world_size: on how many ranks, for a plan that is of no run.

        Raises:
            ConfigError: for tokens, if no source knows its lengths, and unless one of position and
                step is given.
            IndexError: for a negative position.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 3, "b": 1})
        >>> ds.plan.counts(1_000_000_000_000)
        {'a': 750000000000, 'b': 250000000000}
        """
        chosen(unit, COUNTED, "plan.counts(unit={})")
        if step is not None and position is None:
            given = self._rows_before(step, world_size, "counts")
            parts = [(self, given, 1), *self._before(step)]
            found = [
                (plan._counted(plan._given_in_steps(rows), unit), times)
                for plan, rows, times in parts
            ]
            return {
                name: sum(counts.get(name, 0) * times for counts, times in found)
                for name in found[0][0]
            }
        if position is not None and step is None:
            return self._counted(self._given(position), unit)
        raise ConfigError("plan.counts: give a position, or step=")

    def _counted(self, tally: Tally, unit: Counted) -> dict[str, int]:
        if unit == "samples":
            return dict(zip(self.sources, tally.samples.tolist(), strict=True))
        return self._tokens(tally)

    def packing(self) -> PackedShares:
        """How full packed rows are, how many there are, and how many documents are split or cut:
        from lengths alone, and of one window, without packing the whole. Of `batch_by_tokens` and
        `bucket_by_length`, how full batches are when they are padded.

        Raises:
            ConfigError: if nothing is packed, or not from known lengths.

        >>> import penstock as ps, numpy as np
        >>> store = ps.from_tokens(np.arange(90), np.arange(0, 91, 9))
        >>> told = store.pack(16, "best_fit", overflow="never").plan.packing()
        >>> told.rows, told.tokens, told.fill, told.split
        (10, 90, 0.5625, 0.0)
        """
        packs = packs_of(self._op)
        if not packs:
            raise ConfigError(
                "plan.packing(): nothing is packed here from lengths that are known beforehand"
            )
        stored = {name: str(dtype) for name, dtype in stored_dtypes(self.flow).items()}
        return replace(packing_of(packs[0]), stored=stored)

    def epochs(self, position: int) -> dict[str, float]:
        """How often each source has been seen before a position: samples delivered over the samples
        it has to give.

        Args:
            position: how many positions are counted.

        Raises:
            IndexError: for a negative position.

        >>> import penstock as ps
        >>> ps.from_sequence("abcd", name="letters").repeat().plan.epochs(10)
        {'letters': 2.5}
        """
        counts = self._given(position).samples
        return {
            name: count / max(once, 1)
            for name, count, once in zip(
                self.sources, counts.tolist(), self._once.tolist(), strict=True
            )
        }

    def exhausts(self, horizon: int | None = None) -> dict[str, Exhaustion]:
        """When each source first repeats, and when it ends while others go on; None for never, or
        not before `horizon`.

        A source repeats once all of it was given. A mixture that ends earlier and is repeated
        (`first_exhausted`, a limit) begins its sources again before that.

        Of a dataset that ends, one pass is looked at. Of packed rows it is told which is the first
        with a document of the second pass of its source, and after which there is no token of it
        any more.

        Args:
            horizon: the position up to which it is looked; for endless datasets.

        Raises:
            ConfigError: for an endless dataset that arithmetic does not count (each pass is packed
                on its own, a rule tells no counts), if a source does not repeat in the first
                positions; a horizon says how far to look.

        >>> import penstock as ps
        >>> flows = {"a": ps.from_sequence("a" * 8), "b": ps.from_sequence("bb")}
        >>> ps.mix(flows, {"a": 1, "b": 1}, max_epochs={"b": 2}).plan.exhausts()
        {'a': Exhaustion(repeats=12, ends=None), 'b': Exhaustion(repeats=4, ends=8)}
        """

        def sums(position: int, most: int | None) -> Ints:
            tally = self._tally(position, most)
            return np.stack((tally.samples, tally.tokens if self._marks else tally.samples))

        return dict(
            zip(
                self.sources,
                exhaustions(self._op, sums, self._once, horizon, self.sources),
                strict=True,
            )
        )

    # ------------------------------------------------------------ two plans

    def diff(self, other: Questions, within: range | None = None) -> Difference:
        """Where two plans first hold different samples, and what each source gives in both.

        Looks at positions within a range: by default a pass of the shorter one, or 2^18 positions
            where both are
        endless.

        Args:
            other: the plan to compare with.
            within: the positions to look at, `range(start, stop)`.

        Raises:
            ConfigError: for a range with steps, or below 0.

        >>> import penstock as ps
        >>> flows = {"a": ps.from_sequence("a" * 8), "b": ps.from_sequence("b" * 8)}
        >>> one, two = (ps.mix(flows, {"a": 1, "b": w}).plan for w in (1, 3))
        >>> print(one.diff(two, within=range(8)))
        first difference at position 2: a[1] (pass 0) here, b[1] (pass 0) there
        samples by source in positions 0 to 8, here and there:
          a  4  2  -2
          b  4  6  +2
        """
        if within is None:
            within = range(
                min([size for size in (self.size, other.size) if size is not None], default=_FAR)
            )
        within = self._range(within, "plan.diff")
        first = None
        starts = range(within.start, within.stop, _SCAN)
        with Progress("compare plans", len(starts)) as progress:
            for start in progress.each(starts):
                stop = min(start + _SCAN, within.stop)
                if (
                    first := differs(self.at(slice(start, stop)), other.at(slice(start, stop)))
                ) is not None:
                    break
        here, there = (
            tuple(s.key for s in plan.at(first)) if first is not None else ()
            for plan in (self, other)
        )
        drawn, others = self._drawn(within), other._drawn(within)
        pairs = {name: (drawn.get(name, 0), others.get(name, 0)) for name in {**drawn, **others}}
        return Difference(
            within, first, here, there, {name: (a, b) for name, (a, b) in pairs.items() if a != b}
        )

    def _drawn(self, within: range) -> dict[str, int]:
        """Samples of each source in a range of positions."""
        before, until = self.counts(within.start), self.counts(within.stop)
        return {name: until[name] - count for name, count in before.items()}

    # ------------------------------------------------------------ inside

    @cached_property
    def _once(self) -> Ints:
        out = np.zeros(len(self.sources), np.int64)
        self._op.once(out)
        return out

    def _sample(self, source: str, index: int) -> tuple[int, int]:
        """The number of a source, and that of a sample in it."""
        leaf = self._leaf(source)
        rows, index = self._rows(leaf), whole(index, "plan.find: the index {}")
        if not 0 <= index < rows:
            raise IndexError(f"sample {index} of {source!r}, which has {rows}")
        return leaf, index

    def _steps_of(
        self,
        source: str,
        index: int,
        steps: range,
        within: range | None,
        log: tuple[StepRecord, ...],
    ) -> list[int]:
        """The steps in which a sample is given."""
        if within is not None:
            raise ConfigError("plan.find: give positions or steps, not both")
        if not isinstance(steps, range) or steps.step != 1 or steps.start < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"plan.find(steps={steps!r}): a range of steps from 0 on, one by one")
        op, (leaf, index) = self._rows_op, self._sample(source, index)
        if not steps:
            return []
        first, stop = rows_of(op, log, steps.start).start, rows_of(op, log, steps[-1]).stop
        if op.size:  # the beginning of a pass may fill up its last step
            first = first // op.size * op.size
        found = op.find(leaf, np.asarray([index]), first, stop)
        if self._entries:
            found = self._replaced_rows.find(leaf, index, found, range(first, stop))
        taken = {step for row in found.tolist() for step in steps_of_row(log, row, op.size)}
        return sorted(step for step in taken if step in steps)

    @property
    def next_step(self) -> int:
        """The first global step that the run has not taken."""
        return 0

    @cached_property
    def _open_rows(self) -> Ints | None:
        """The rows below the position that are not settled, of a run that is taken from; None of
        any other."""
        return None

    def _settled(self) -> RowsGiven:
        """Return what is settled of a run that is taken from."""
        given = rows_given_in(
            log_of(self.flow, self._records, None), range(self._row), self._rows_op.size
        )
        open_rows = np.zeros(0, np.int64) if self._open_rows is None else self._open_rows
        return given._replace(left_out=np.concatenate([given.left_out, open_rows]))

    def _before(self, step: int | None) -> Sequence[tuple[Questions, RowsGiven, int]]:
        """Return what was given before a step was, before the run went back there or farther; by
        which plan, and how many times.
        """
        return []

    def _rows_before(self, step: int, world_size: int | None, asked: str) -> RowsGiven:
        """The rows that were given in the steps before one."""
        op, log = self._rows_op, log_of(self.flow, self._records, world_size, f"{asked}(step=)")
        step = whole(step, f"plan.{asked}(step={{}})", 0)
        if step:
            rows_of(op, log, step - 1)  # refuses what cannot be told
        return rows_given_in(
            log, range(record_of(log, step).first_row(step, op.size) if step else 0), op.size
        )

    def _given_in_steps(self, rows: RowsGiven) -> Tally:
        tally, replaced = Tally(len(self.sources), self._marks), self._replaced_rows
        for stretch in rows.stretches:
            self._rows_op.count(tally, stretch.start, stretch.stop)
            if self._entries:
                tally.samples += replaced.more(stretch.stop) - replaced.more(stretch.start)
        for places, many in ((rows.left_out, -1), (rows.repeated, 1)):
            tally.add(replaced.locate(places), many)
        return tally

    def _range(self, within: range | None, asked: str) -> range:
        if within is None:
            return range(
                far(lambda position: self._tally(position).tokens)
                if self.size is None
                else self.size
            )
        if not isinstance(within, range) or within.step != 1 or within.start < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"{asked}(within={within!r}): a range of positions from 0 on, one by one"
            )
        within_reach(within.stop)
        return within

    def _given(self, position: int) -> Tally:
        """The tally of what a run gives before a position."""
        tally = self._tally(position)
        if self._entries:
            tally.samples += self._replaced.more(position)
        return tally

    def _tally(self, position: int, most: int | None = None) -> Tally:
        position = whole(position, "the plan before position {}")
        if position < 0 or (self.size == 0 and position):
            raise IndexError(
                f"position {position} of a plan of {self.size}: positions count from 0"
            )
        within_reach(position)
        tally = Tally(len(self.sources), self._marks, most)
        self._op.count(tally, 0, position)
        return tally

    def _tokens(self, tally: Tally) -> dict[str, int]:
        out = dict[str, int]()
        for leaf, samples, packed in zip(
            self._builder.leaves, tally.samples.tolist(), tally.tokens.tolist(), strict=True
        ):
            lengths = leaf.source.lengths() if is_source(leaf.source) else None
            if lengths is not None:
                out[leaf.name] = (
                    packed if self._marks else samples * total(lengths) // max(len(lengths), 1)
                )
        if not out:
            raise ConfigError(
                "plan.counts(unit='tokens'): no source knows the lengths of its samples without "
                "reading"
            )
        return out
