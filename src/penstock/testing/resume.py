"""Conformance tests of saving and loading: any position, any object, any world size."""

from __future__ import annotations

import copy
import json as codec
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .asserts import (
    MAX_RECORDED_SAMPLES,
    PASS_END,
    RunFactory,
    SampleEquality,
    assert_same_events,
    describe_difference,
    record_run,
)

StateGetter = Callable[[Any], Any]
StateLoader = Callable[[Any, Any], Any]


class _LiveRun:
    """One run under test, which knows the owner of its state.

    An object with `state_dict` is a loader: after a pass, its next `iter` is the next pass.
    Otherwise the iterator owns the state and stays ended.
    """

    def __init__(
        self, make: RunFactory, state: StateGetter | None, load: StateLoader | None, json: bool
    ) -> None:
        self.made: Any = make()
        self.owns = state is None and load is None and hasattr(self.made, "state_dict")
        self.it: Iterator[Any] | None = None if self.owns else iter(self.made)
        self.save_with, self.load_with, self.json = state, load, json

    def next(self) -> Any:
        if self.it is None:
            self.it = iter(self.made)
        try:
            return next(self.it)
        except StopIteration:
            if self.owns:
                self.it = None
            return PASS_END

    def rest(self, events: int) -> Iterator[Any]:
        return (self.next() for _ in range(events))

    def save(self) -> tuple[Any, Any]:
        """Return the state to load, and the original, to detect later changes."""
        owner: Any = self.made if self.owns else self.it
        raw: Any = self.save_with(owner) if self.save_with else owner.state_dict()
        if not self.json:
            return copy.deepcopy(raw), raw
        try:
            return codec.dumps(raw, allow_nan=False), raw
        except (TypeError, ValueError) as error:
            raise AssertionError(
                f"the state is not JSON: {error} (json=False compares it as it is)"
            ) from None

    def load(self, saved: Any) -> None:
        state = codec.loads(saved) if self.json else copy.deepcopy(saved)
        owner: Any = self.made if self.owns else self.it
        if self.load_with:
            self.load_with(owner, state)
        else:
            owner.load_state_dict(state)
        if self.owns:
            self.it = None


class _ResumeTrial:
    """An uninterrupted run with the state before every event, and ways to resume it."""

    def __init__(
        self,
        open_run: Callable[[], _LiveRun],
        events: list[Any],
        states: list[Any],
        same: SampleEquality | None,
    ) -> None:
        self.open, self.events, self.states, self.same = open_run, events, states, same
        self.json = open_run().json

    def check(self, live: _LiveRun, at: int, *, states: bool, events: int | None = None) -> None:
        """Compare events from position `at` on, and states at and after it."""
        last = len(self.events) if events is None else min(at + events, len(self.events))
        for number in range(at, last + 1):
            if states and (number < at + 40 or number == last):
                self.check_state(live, number, at)
            if number < last:
                assert_same_events(
                    [live.next()], self.events[number : number + 1], self.same, number
                )

    def check_state(self, live: _LiveRun, number: int, at: int) -> None:
        got, want = live.save()[0], self.states[number]
        if got == want:
            return
        message = describe_difference(codec.loads(got), codec.loads(want)) if self.json else ""
        when = "right after the load" if number == at else f"at position {number}"
        text = message or f"{got!r} instead of {want!r}"
        raise AssertionError(f"the state {when} is not the one of the uninterrupted run: {text}")

    def fresh(self, at: int, states: bool) -> None:
        live = self.open()
        live.load(self.states[at])
        self.check(live, at, states=states)

    def used(self, at: int, states: bool) -> None:
        other = (7 * at + 3) % len(self.states)
        live = self.open()
        for _ in live.rest(1 + at % 3):
            pass
        live.load(self.states[other])
        live.next()
        live.load(self.states[at])
        self.check(live, at, states=states)
        live.load(self.states[at])
        self.check(live, at, states=states, events=2)

    def twice(self, at: int, states: bool) -> None:
        live = self.open()
        live.load(self.states[at])
        live.load(self.states[at])
        self.check(live, at, states=states, events=2)

    def chain(self, at: int, states: bool) -> None:
        saved = self.states[at]
        for link in range(3):
            live = self.open()
            live.load(saved)
            if link:
                self.check(live, at, states=False, events=1)
                at = min(at + 1, len(self.events))
            saved = live.save()[0]
        live = self.open()
        live.load(saved)
        self.check(live, at, states=states)


def assert_resumes(
    make: RunFactory,
    *,
    steps: int | None = None,
    every: int = 1,
    json: bool = True,
    equal_states: bool = True,
    at_most: int = 64,
    same: SampleEquality | None = None,
    state: StateGetter | None = None,
    load: StateLoader | None = None,
) -> None:
    """Assert that a run resumed at any position continues like the uninterrupted run.

    One run is recorded with its state before every sample, at its end and after it. Then positions
    are resumed in four ways: in a new object, in a used object that was rewound, by loading twice,
    and in a chain of three resumes. Samples and states must be equal up to the end, and into the
    next pass if there is one. The cost is quadratic in the length: use small data.

    Args:
        make: Returns a new run: a loader with `state_dict`, or an iterable whose iterator has it.
        steps: Length of the run (default: to the end of the second pass, at most 1,000 samples).
        every: Resume at every n-th position only.
        json: Send states through JSON.
        equal_states: Compare states too.
        at_most: Maximum number of positions.
        same: Comparison of two samples, in position of equality.
        state: Returns the state of an iterator, if it has no `state_dict`.
        load: Loads a state into an iterator.

    Raises:
        AssertionError: A resumed run differs; the message names position and way.

    >>> import penstock as ps
    >>> assert_resumes(lambda: ps.from_sequence(range(5)).shuffle(seed=1).batch(2))

    >>> class Forgetful:
    ...     def __init__(self):
    ...         self.position, self.half = 0, 0
    ...     def __iter__(self):
    ...         return self
    ...     def __next__(self):
    ...         self.position, self.half = self.position + 1, self.half + self.position
    ...         return self.half
    ...     def state_dict(self):
    ...         return {"position": self.position}
    ...     def load_state_dict(self, state):
    ...         self.position, self.half = state["position"], 0
    >>> assert_resumes(Forgetful, steps=5)
    Traceback (most recent call last):
    ...
    AssertionError: resumed at position 2 of 5 in a fresh object: sample 2: 2 instead of 3
    """

    def open_run() -> _LiveRun:
        return _LiveRun(make, state, load, json)

    events = list(open_run().rest(steps)) if steps is not None else _run_to_end(open_run())
    states, raws = _save_states(open_run(), events, same)
    trial = _ResumeTrial(open_run, events, states, same)
    ways = {
        "in a fresh object": trial.fresh,
        "in a used object": trial.used,
        "loading twice": trial.twice,
        "three times in a row": trial.chain,
    }
    for name, way in ways.items():  # report the simplest way that fails
        for at in _choose_positions(events, every, at_most):
            try:
                way(at, equal_states)
            except AssertionError as error:
                raise AssertionError(
                    f"resumed at position {at} of {len(events)} {name}: {error}"
                ) from None
    for at, (saved, raw) in enumerate(zip(states, raws, strict=True)):
        now = codec.dumps(raw) if json else raw
        if now != saved:
            raise AssertionError(
                f"the state saved at position {at} was changed later: it shares memory with the run"
            )


def _run_to_end(live: _LiveRun) -> list[Any]:
    events: list[Any] = []
    ends = 0
    while len(events) < MAX_RECORDED_SAMPLES and ends < 2:
        events.append(live.next())
        ends += events[-1] is PASS_END
    return events


def _save_states(
    live: _LiveRun, events: list[Any], same: SampleEquality | None
) -> tuple[list[Any], list[Any]]:
    """Return the states before, between and after the events; saving must not disturb the run."""
    states: list[Any] = []
    raws: list[Any] = []
    for number in range(len(events) + 1):
        saved, raw = live.save()
        if live.save()[0] != saved:
            raise AssertionError(f"two states saved at position {number} are not equal")
        states.append(saved)
        raws.append(raw)
        if number < len(events):
            try:
                assert_same_events([live.next()], events[number : number + 1], same, number)
            except AssertionError as error:
                raise AssertionError(f"saving its state changes the run: {error}") from None
    return states, raws


def _choose_positions(events: Sequence[Any], every: int, at_most: int) -> list[int]:
    """Return positions to resume at: evenly spread, with the ends and their neighbours."""
    edges = {0, len(events)} | {
        i + d for i, e in enumerate(events) if e is PASS_END for d in (-1, 0, 1)
    }
    usual = range(0, len(events) + 1, every)
    step = max(1, math.ceil(len(usual) / max(1, at_most)))
    return sorted(set(usual[::step]) | {e for e in edges if 0 <= e <= len(events)})


# ---------------------------------------------------------------- ranks


def assert_elastic(
    make: Callable[[int, int], Iterable[Any]],
    worlds: Sequence[int] = (1, 2, 3),
    switch_at: Sequence[int] | None = None,
    steps: int | None = None,
    same: SampleEquality | None = None,
    rows: Callable[[Any], Iterable[Any]] | None = None,
) -> None:
    """Assert that any world size gives the same global steps, also after a change of it.

    The ranks of each world run in lock-step. Their items in a step must be, in any order, the next
    items of `make(0, 1)`. Each world is then stopped, its states are sent through JSON, and all of
    them are loaded on every rank of each other world. At the end of a pass, less than a step may be
    dropped. Pipelines of lanes need the same `lanes=` on all world sizes, and `steps` before the
    end of the first lane.

    Args:
        make: Returns the loader of `(rank, world_size)`.
        worlds: World sizes.
        switch_at: Numbers of items after which to stop, rounded up to full
            rounds (default: after one round, and half-way).
        steps: Number of items to compare (default: the first pass, at most 1,000).
        same: Comparison of two samples, in position of equality.
        rows: Splits an item into rows, if world sizes group rows differently.

    Raises:
        AssertionError: A world gives other items.

    >>> import penstock as ps
    >>> ds = ps.from_sequence(range(20)).shuffle(seed=1)
    >>> assert_elastic(lambda r, w: ps.Loader(ds, rank=r, world_size=w), worlds=(1, 2, 3))
    """
    split_rows = rows or _wrap_item
    items = list(record_run(make(0, 1), steps))
    expected: list[Any] = [
        row for item in items for row in (split_rows(item) if item is not PASS_END else (PASS_END,))
    ]
    for world in worlds:
        try:
            _compare_steps(
                [iter(make(r, world)) for r in range(world)], expected, 0, same, split_rows
            )
        except AssertionError as error:
            raise AssertionError(f"on {world} ranks: {error}") from None
    for old_world in worlds:
        for new_world in worlds:
            full_round = math.lcm(old_world, new_world)
            stops = switch_at if switch_at is not None else (1, len(items) // 2)
            for stop in sorted({-(-s // full_round) * full_round for s in stops}):
                if new_world != old_world and stop <= sum(e is not PASS_END for e in items):
                    _resume_on_other_ranks(
                        make, old_world, new_world, stop, expected, same, split_rows
                    )


RowSplitter = Callable[[Any], Iterable[Any]]


def _wrap_item(item: Any) -> tuple[Any]:
    return (item,)


def _resume_on_other_ranks(
    make: Any, before: int, after: int, stop: int, want: list[Any], same: SampleEquality | None, apart: RowSplitter
) -> None:  # fmt: skip
    ranks = [make(r, before) for r in range(before)]
    try:
        position = _compare_steps(
            [iter(rank) for rank in ranks], want, 0, same, apart, stop // before
        )
        states = codec.dumps([rank.state_dict() for rank in ranks])
        others = [make(r, after) for r in range(after)]
        for other in others:
            other.load_state_dict(codec.loads(states))
        _compare_steps([iter(other) for other in others], want, position, same, apart)
    except AssertionError as error:
        raise AssertionError(f"{before} ranks until sample {stop}, then {after}: {error}") from None


def _iter_rank_steps(ranks: list[Iterator[Any]], apart: RowSplitter) -> Iterator[list[Any]]:
    """Yield the items of all ranks in each step; `[END]` if all reach the end together."""
    while True:
        items = [next(rank, PASS_END) for rank in ranks]
        active = [i for i, item in enumerate(items) if item is not PASS_END]
        if active and len(active) < len(items):
            ended = next(i for i, item in enumerate(items) if item is PASS_END)
            raise AssertionError(
                f"rank {active[0]} continues after rank {ended} has ended: the ranks would hang"
            )
        yield [row for item in items for row in apart(item)] if active else [PASS_END]
        if not active:
            return


def _compare_steps(
    ranks: list[Iterator[Any]],
    want: list[Any],
    position: int,
    same: SampleEquality | None,
    apart: RowSplitter,
    max_steps: int = 1 << 62,
) -> int:
    """Compare steps with the expected rows, in any order; return the position after them."""
    step = len(ranks)
    for rows in islice(_iter_rank_steps(ranks, apart), max_steps):
        if position + len(rows) > len(want) and not _contains_pass_end(want):
            break
        next_rows = want[position : position + len(rows)]
        if _contains_pass_end(rows) and _contains_pass_end(want[position : position + step]):
            break  # the remaining rows do not fill a step
        assert_same_events(_order_rows(rows, next_rows, same), next_rows, same, position)
        position, step = position + len(rows), max(step, len(rows))
        if position == len(want):
            break
    return position


def _contains_pass_end(events: list[Any]) -> bool:
    """Return True if a pass ends among the events (compared by identity, as for arrays)."""
    return any(event is PASS_END for event in events)


def _order_rows(rows: list[Any], expected: list[Any], same: SampleEquality | None) -> list[Any]:
    """Return the rows of a step in the expected order; replace missing rows by others."""
    remaining, ordered = list(rows), list[Any]()
    for row in expected:
        position = next(
            (
                i
                for i, candidate in enumerate(remaining)
                if not describe_difference(candidate, row, same)
            ),
            None,
        )
        ordered.append(remaining[0] if position is None else remaining.pop(position))
    return ordered
