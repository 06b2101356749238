"""Questions about any step of a dataset, answered from its description alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Literal, TypeAlias, get_args

import numpy as np

from ...arguments import check_choice, check_int, check_position, validate_arguments
from ...errors import ConfigError
from ...types import MAX_POSITION, Ints, is_source
from ..base.progress import Progress
from ..base.sizes import sum_lengths
from ..runtime.step_log import RowsGiven
from ..steps.op import Op
from ..steps.packed import packs_of
from ..steps.tally import Tally, Uncountable, limited_search
from ..steps.token_dtypes import stored_dtypes
from .exhaustion import compute_horizon, find_exhaustions
from .lookup import PlanLookup, check_asked
from .packing import PackedShares, compare_methods, measure_packing
from .records import Difference, Exhaustion, find_difference
from .seen import Seen, count_seen, sum_seen

PlanUnit: TypeAlias = Literal["samples", "tokens"]

_MANY = 1 << 10  # places that are found together
_LISTED = 1 << 16  # repeats of a sample listed at once if no range is given
_LISTED_IN_VAIN = 1 << 17  # and in all, without a hit
_ENDLESS_RANGE = 1 << 18  # how far endless plans are compared without a range


@validate_arguments
class Questions(PlanLookup):
    """Questions about sources: positions of a sample, samples seen, sums, differences."""

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
        """Return the positions of the first pass, or of a range, that hold a sample.

        A packed document that is split has several positions. The first question about a packed
        dataset plans its pass. For an endless dataset without a range, the result is the first
        position, or nothing if the sample never comes.

        Args:
            source: the name of the source, as in `plan.sources`.
            index: the index of the sample in its source.
            within: the positions to search, `range(start, stop)`; the first pass by default.
            steps: the global steps to search instead; each step of the run counts once.
            world_size: the number of ranks, for a plan without a run.

        Raises:
            ConfigError: the source does not exist, or passes of an endless dataset differ and none
                of many has the sample: give a range.
            IndexError: the index does not exist.

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
            return self._steps_of(source, index, steps, within, world_size)
        check_asked("find", None, world_size)
        if within is None and self.size is None:
            return list(islice(self.iter_find(source, index), 1))
        leaf, index = self._sample(source, index)
        within = self._range(within, "plan.find")
        found = self._op.find(leaf, np.asarray([index]), within.start, within.stop)
        return (
            self._replaced.find(leaf, index, found, within) if self._entries else found
        ).tolist()

    def iter_find(
        self,
        source: str,
        index: int,
        within: range | None = None,
        *,
        steps: range | None = None,
        world_size: int | None = None,
    ) -> Iterator[int]:
        """Yield the positions or steps of `find` in order, for long ranges and endless datasets.

        Args:
            source: the name of the source, as in `plan.sources`.
            index: the index of the sample in its source.
            within: the positions to search, `range(start, stop)`; the first pass by default, or all
                positions of an endless dataset.
            steps: the global steps to search instead.
            world_size: the number of ranks, for a plan without a run.

        >>> import penstock as ps
        >>> places = ps.from_sequence("abcd", name="letters").repeat().plan.iter_find("letters", 2, range(10**12))
        >>> [next(places), next(places)]
        [2, 6]
        """
        places = self._range(within, "plan.iter_find") if steps is None else steps
        check_asked("find", steps, world_size)
        if within is None and steps is None and self.size is None:
            yield from self._find_endless(source, index, places.stop)
            return
        at, some = places.start, _MANY
        with Progress("look for a sample", len(places)) as progress:
            while at < places.stop:
                part = range(at, min(at + some, places.stop))
                if steps is None:
                    found = self.find(source, index, part)
                else:
                    found = self.find(source, index, within, steps=part, world_size=world_size)
                yield from found
                progress.tell(at - places.start)
                at, some = at + some, some * 2 if len(found) < _MANY else some

    def _find_endless(self, source: str, index: int, stop: int) -> Iterator[int]:
        """Yield all positions of a sample; stop the search when repeats must be listed in vain."""
        at, some, listed = 0, _MANY, 0
        with Progress("look for a sample", stop, "positions") as progress:
            while at < stop:
                try:
                    with limited_search(_LISTED if some > 1 else MAX_POSITION) as budget:
                        found = self.find(source, index, range(at, min(at + some, stop)))
                except Uncountable:
                    some = max(some // 8, 1)
                    continue
                yield from found
                at, some = at + some, some * 2 if len(found) < _MANY else some
                progress.tell(at)
                listed = 0 if found else listed + budget.listed
                if listed > _LISTED_IN_VAIN:
                    raise ConfigError(
                        f"plan.find({source!r}, {index}): the sample is in none of the {at:,} "
                        "positions searched, and later passes may differ; give a range to search, "
                        f"such as within=range({10 * at})"
                    )

    # ------------------------------------------------------------ what was seen

    def seen(
        self, position: int | None = None, *, step: int | None = None, world_size: int | None = None
    ) -> Seen:
        """Count the documents before a position: unique documents and tokens, and repeats.

        Takes four bytes of memory for each document. Sources with an order of their own need only
        their draws, whole passes once; packed rows are visited one by one. A document that is split
        over rows counts with its first token; `best_fit` may deliver a row with a later part before
        it.

        Args:
            position: the number of positions; by default everything that the run delivered. For
                leased items (`Loader.lease`), everything that was settled.
            step: a global step instead: everything before its (last) delivery. Rows that fill no
                step count as often as they were delivered: never with "drop", once more with
                "pad". So do steps that `Loader.seek` skipped or repeated.
            world_size: the number of ranks, for a plan without a run.

        Raises:
            ConfigError: the position is no whole number of at least 0.

        >>> import penstock as ps
        >>> plan = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 1, "b": 1}).plan
        >>> plan.seen(10).documents, plan.seen(10).repeats("b")
        ({'a': 4, 'b': 2}, {2: 1, 3: 1})
        """
        check_asked("seen", step, world_size, position)
        if position is not None:
            none = np.zeros(0, np.int64)
            check_position(stop := check_int(position, "plan.seen({})", 0))
            return self._seen(self._op, RowsGiven([range(stop)], none, none))
        if step is None and self._open_rows is None:
            step, world_size = self.next_step, None
        given = (
            self._settled_rows() if step is None else self._rows_before(step, world_size, "seen")
        )
        before = [
            (plan._seen(plan._rows_op, rows), times) for plan, rows, times in self._before(step)
        ]
        return sum_seen(self._seen(self._rows_op, given), before)

    def _seen(self, op: Op, given: RowsGiven) -> Seen:
        locate = self._replaced.locate
        return count_seen(
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
        unit: PlanUnit = "samples",
        *,
        step: int | None = None,
        world_size: int | None = None,
    ) -> dict[str, int]:
        """Count the samples or tokens of each source before a position, or before a global step.

        A packed document that is split counts in the row in which it begins. With `unit="tokens"`
        the result has the sources whose lengths are known. Token counts are exact for packed rows
        and at the end of a pass over a source; within a pass they use its mean length.

        Args:
            position: the number of positions to count.
            unit: "samples" or "tokens".
            step: a global step instead: everything before its delivery, counted as in `seen`.
            world_size: the number of ranks, for a plan without a run.

        Raises:
            ConfigError: no source knows its lengths, or not exactly one of position and step is
                given.
            IndexError: the position is negative.

        >>> import penstock as ps
        >>> ds = ps.mix({"a": ps.from_sequence("aaaa"), "b": ps.from_sequence("bb")}, {"a": 3, "b": 1})
        >>> ds.plan.counts(1_000_000_000_000)
        {'a': 750000000000, 'b': 250000000000}
        """
        check_choice(unit, get_args(PlanUnit), "plan.counts(unit={})")
        check_asked("counts", step, world_size, position)
        if step is not None:
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
        if position is None:
            raise ConfigError("plan.counts: give a position or a step")
        return self._counted(self._given(position), unit)

    def _counted(self, tally: Tally, unit: PlanUnit) -> dict[str, int]:
        tally.require_inputs()
        if unit == "samples":
            return dict(zip(self.sources, tally.samples.tolist(), strict=True))
        return self._tokens(tally)

    def packing(self, *, compare: bool = False) -> PackedShares:
        """Describe packed rows: how many, how full, and how many documents are split or cut.

        Computed from the lengths of one window, without packing the dataset, and from the masks of
        its documents. For `batch_by_tokens` and `bucket_by_length` it describes padded batches.

        Args:
            compare: pack the same documents by every method too, see `PackedShares.methods`. That
                takes seconds for long passes.

        Raises:
            ConfigError: nothing is packed, or the lengths are unknown.

        >>> import penstock as ps, numpy as np
        >>> store = ps.from_tokens(np.arange(90), np.arange(0, 91, 9))
        >>> told = store.pack(16, "best_fit", overflow="never").plan.packing()
        >>> told.rows, told.tokens, told.fill, told.split
        (10, 90, 0.5625, 0.0)
        """
        packs = packs_of(self._op)
        if not packs:
            raise ConfigError(
                "plan.packing(): the dataset has no pack() of lengths that are known beforehand; "
                "add one, with lengths="
            )
        stored = {name: str(dtype) for name, dtype in stored_dtypes(self.tree).items()}
        untrained = self._measure_untrained()
        shares = replace(measure_packing(packs[0]), stored=stored, untrained=untrained)
        return (
            replace(shares, methods=compare_methods(packs[0], self.sources)) if compare else shares
        )

    def _measure_untrained(self) -> Mapping[str, float]:
        """Return the share of documents of each source in which no token carries loss."""
        return {}

    def epochs(self, position: int) -> dict[str, float]:
        """Return how often each source was seen before a position: samples delivered over its size.

        Args:
            position: the number of positions to count.

        Raises:
            IndexError: the position is negative.

        >>> import penstock as ps
        >>> ps.from_sequence("abcd", name="letters").repeat().plan.epochs(10)
        {'letters': 2.5}
        """
        tally = self._given(position)
        tally.require_inputs()
        return {
            name: count / max(once, 1)
            for name, count, once in zip(
                self.sources, tally.samples.tolist(), self._distinct_samples.tolist(), strict=True
            )
        }

    def exhaustion(self, horizon: int | None = None) -> dict[str, Exhaustion]:
        """Return when each source first repeats, and when it ends.

        None stands for never, or after `horizon`.

        A source repeats once all of its samples were delivered. A mixture that ends earlier and is
        repeated (`first_exhausted`, a limit) restarts its sources before that.

        For a finite dataset the answer covers one pass. For packed rows, a source repeats at the
        first row with a document of its second pass, and ends after the last row with one of its
        tokens.

        Args:
            horizon: the last position to look at, for endless datasets.

        Raises:
            ConfigError: arithmetic cannot count an endless dataset (every pass is packed
                separately, or a mixing rule has no counts) and a source does not repeat soon: give
                a horizon.

        >>> import penstock as ps
        >>> sources = {"a": ps.from_sequence("a" * 8), "b": ps.from_sequence("bb")}
        >>> ps.mix(sources, {"a": 1, "b": 1}, max_epochs={"b": 2}).plan.exhaustion()
        {'a': Exhaustion(repeats=12, ends=None), 'b': Exhaustion(repeats=4, ends=8)}
        """

        if horizon is not None:
            horizon = check_int(horizon, "plan.exhaustion(horizon={})", 0)

        def sums(position: int, most: int | None) -> Ints:
            tally = self._tally(position, most)
            return np.stack((tally.samples, tally.tokens if self._marks else tally.samples))

        return dict(
            zip(
                self.sources,
                find_exhaustions(self._op, sums, self._distinct_samples, horizon, self.sources),
                strict=True,
            )
        )

    # ------------------------------------------------------------ two plans

    def diff(self, other: Questions, within: range | None = None) -> Difference:
        """Return the first position at which two plans differ, and how their counts differ.

        Compares a pass of the shorter plan by default, or 2^18 positions if both are endless.

        Args:
            other: the plan to compare with.
            within: the positions to compare, `range(start, stop)`.

        Raises:
            ConfigError: the range has a step, or negative positions; or `other` is no plan.

        >>> import penstock as ps
        >>> sources = {"a": ps.from_sequence("a" * 8), "b": ps.from_sequence("b" * 8)}
        >>> one, two = (ps.mix(sources, {"a": 1, "b": w}).plan for w in (1, 3))
        >>> print(one.diff(two, within=range(8)))
        first difference at position 2: a[1] (pass 0) here, b[1] (pass 0) there
        samples by source in positions 0 to 8, here and there:
          a  4  2  -2
          b  4  6  +2
        """
        if not isinstance(other, Questions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"plan.diff: {type(other).__name__} is no plan; give the plan of a dataset, ds.plan"
            )
        if within is None:
            within = range(
                min(
                    [size for size in (self.size, other.size) if size is not None],
                    default=_ENDLESS_RANGE,
                )
            )
        within = self._range(within, "plan.diff")
        first = self._find_difference(other, within)
        here, there = (
            tuple(s.key for s in plan.at(first)) if first is not None else ()
            for plan in (self, other)
        )
        drawn, others = self._count_in(within), other._count_in(within)
        pairs = {name: (drawn.get(name, 0), others.get(name, 0)) for name in {**drawn, **others}}
        return Difference(
            within, first, here, there, {name: (a, b) for name, (a, b) in pairs.items() if a != b}
        )

    def _find_difference(self, other: Questions, within: range) -> int | None:
        """Return the first position of a range with other samples; looks all of them up at once."""
        part = slice(within.start, within.stop)
        return find_difference(self.at(part), other.at(part))

    def _count_in(self, within: range) -> dict[str, int]:
        """Count the samples of each source in a range of positions."""
        before, until = self.counts(within.start), self.counts(within.stop)
        return {name: until[name] - count for name, count in before.items()}

    # ------------------------------------------------------------ inside

    @cached_property
    def _distinct_samples(self) -> Ints:
        out = np.zeros(len(self.sources), np.int64)
        self._op.count_distinct(out)
        return out

    def _sample(self, source: str, index: int) -> tuple[int, int]:
        """Return the number of a source, and the index of a sample in it."""
        leaf = self._leaf(source)
        rows, index = self._rows(leaf), check_int(index, "plan.find: the index {}")
        if not 0 <= index < rows:
            raise IndexError(f"{source!r} has no sample {index}; give an index below {rows}")
        return leaf, index

    def _steps_of(
        self, source: str, index: int, steps: range, within: range | None, world_size: int | None
    ) -> list[int]:
        """Return the steps that deliver a sample."""
        log = self._log_for("find", world_size)
        if within is not None:
            raise ConfigError("plan.find: give positions or steps, not both")
        if not isinstance(steps, range) or steps.step != 1 or steps.start < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"plan.find(steps={steps!r}): give a range of steps from 0 on, one by one"
            )
        op, (leaf, index) = self._rows_op, self._sample(source, index)
        if not steps:
            return []
        first, stop = log.rows(steps.start).start, log.rows(steps[-1]).stop
        if (
            op.passes and op.passes.at(first).stop <= stop
        ):  # its beginning may fill up its last step
            first = op.passes.at(first).start
        found = op.find(leaf, np.asarray([index]), first, stop)
        if self._entries:
            found = self._replaced_rows.find(leaf, index, found, range(first, stop))
        taken = {step for row in found.tolist() for step in log.steps_of_row(row)}
        return sorted(step for step in taken if step in steps)

    @property
    def next_step(self) -> int:
        """Return the first global step that the run has not made."""
        return 0

    @cached_property
    def _open_rows(self) -> Ints | None:
        """Return the leased rows below the position; None for a run without leases."""
        return None

    def _settled_rows(self) -> RowsGiven:
        """Count what is settled in a run with leases."""
        given = self.step_log.given_in(range(self._row))
        open_rows = np.zeros(0, np.int64) if self._open_rows is None else self._open_rows
        return given._replace(left_out=np.concatenate([given.left_out, open_rows]))

    def _before(self, step: int | None) -> Sequence[tuple[Questions, RowsGiven, int]]:
        """Yield the plans and counts before a step, for every time the run delivered it."""
        return []

    def _rows_before(self, step: int, world_size: int | None, asked: str) -> RowsGiven:
        """Return the rows that the steps before a step delivered."""
        log = self._log_for(f"{asked}(step=)", world_size)
        return log.given_before(check_int(step, f"plan.{asked}(step={{}})", 0))

    def _given_in_steps(self, rows: RowsGiven) -> Tally:
        tally, replaced = Tally(len(self.sources), self._marks), self._replaced_rows
        for stretch in rows.stretches:
            self._rows_op.count(tally, stretch.start, stretch.stop)
            if self._entries:
                tally.samples += replaced.count_extra(stretch.stop) - replaced.count_extra(
                    stretch.start
                )
        for places, many in ((rows.left_out, -1), (rows.repeated, 1)):
            tally.add(replaced.locate(places), many)
        return tally

    def _range(self, within: range | None, asked: str) -> range:
        if within is None:
            return range(
                compute_horizon(lambda position: self._tally(position).tokens)
                if self.size is None
                else self.size
            )
        if not isinstance(within, range) or within.step != 1 or within.start < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"{asked}(within={within!r}): give a range of positions from 0 on, one by one, such as "
                "range(0, 10)"
            )
        check_position(within.stop)
        return within

    def _given(self, position: int) -> Tally:
        """Count everything that a run delivers before a position."""
        tally = self._tally(position)
        if self._entries:
            tally.samples += self._replaced.count_extra(position)
        return tally

    def _tally(self, position: int, most: int | None = None) -> Tally:
        position = check_int(position, "the plan before position {}")
        if position < 0 or (self.size == 0 and position):
            total = "an endless plan" if self.size is None else f"a plan of {self.size}"
            raise IndexError(
                f"position {position} of {total}: positions count from 0; give a position from 0 on"
            )
        check_position(position)
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
                    packed
                    if self._marks
                    else samples * sum_lengths(lengths) // max(len(lengths), 1)
                )
        if not out:
            raise ConfigError(
                "plan.counts(unit='tokens'): no source knows the lengths of its samples without "
                "reading; give read(lengths=...), or count samples"
            )
        return out
