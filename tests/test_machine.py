"""A loader under everything a training run does to it: steps, saves, loads back in time, ends, crashes, other ranks.

The judge is the first uninterrupted run on one rank, and that is judged by the list model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock as ps
from allowed_orders import allowed
from example_counts import done, examples
from helpers import through_json
from leak_check import our_threads
from observed_orders import Orders, model, plain, run
from oracle import again, endless, indexed
from penstock.stores.storage import override_world, write_atomically
from penstock.testing import (
    Crash,
    CrashingDisk,
    SimulatedScheduler,
    build,
    pipelines,
    recipes,
    show,
)
from penstock.testing.asserts import describe_difference
from penstock.testing.recipes import number
from shared_processes import shared_processes
from trees import Fuse, Interrupt
from usage import USES, Use, built

END = object()
PASSES = 3
FEW = 45  # samples of an endless pass


@dataclass(frozen=True)
class Topology:
    """Topology of a run; `ranks` is an index into the possible numbers of ranks."""

    ranks: int = 0
    workers: int = 0
    executor: str = "threads"
    simulation: int | None = None


topologies = st.builds(
    Topology,
    ranks=st.integers(0, 3),
    workers=st.integers(0, 3),
    executor=st.sampled_from(("threads", "threads", "inline", "processes")),
    simulation=st.none() | st.integers(0, 1000),
)


def rows_of(ds: ps.Dataset, k: int, most: int, **options: Any) -> list[tuple[int, list[Any]]]:
    """The number of rows of each item of a pass, and the keys of their samples."""
    with ps.Loader(ds, **options) as loader:
        for _ in range(k):
            for _ in loader:
                pass
        return [(len(loader.valid), loader.keys()) for _ in islice(loader, most)]


def whole(recipe: Any) -> Any:
    """Return the recipe whose last batches keep their incomplete rows."""
    match recipe:
        case ("batch", below, n, _):
            return ("batch", whole(below), n, False)
        case ("map" | "map_batched" | "random_map" | "with_source" | "seed", below, *rest):
            return (recipe[0], whole(below), *rest)
        case _:
            return recipe


def keys_of(rows: Iterable[tuple[int, list[Any]]]) -> Counter[Any]:
    return Counter(key for _, keys in rows for key in keys)


@dataclass
class Fused:
    """The recipes' innermost function, with a fuse."""

    fuse: Fuse

    def __call__(self, x: Any) -> Any:
        return self.fuse(number(x))


def standing(states: list[Any]) -> list[dict[str, Any]]:
    """States but for how many steps each rank has counted."""
    return [
        {name: value for name, value in state.items() if name not in ("step", "check")}
        for state in states
    ]


uses = st.lists(st.sampled_from(USES), min_size=1, max_size=3)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.seams, self.loaders, self.its = ExitStack(), [], None
        self.disk = CrashingDisk(seed=1)
        self.threads = our_threads()
        self.k = self.at = 0
        self.fuse = Fuse()
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(recipes, "number", Fused(self.fuse))

    @initialize(
        recipe=pipelines(3),
        lanes=st.sampled_from((1, 1, 2, 4, 6)),
        topology=topologies,
        turns=uses,
        top=st.booleans(),
    )
    def start(self, recipe: Any, lanes: int, topology: Topology, turns: Any, top: bool) -> None:
        below = recipe[1] if recipe[0] == "seed" else recipe
        if top and not (
            below[0] == "pack" and below[3] != "concat_split"
        ):  # nothing may follow these
            recipe = ("map", ("batch", recipe, 2, False), recipes.double)
        note(show(recipe))
        done["machine runs"] += 1
        self.ds, self.lanes, self.endless = (
            build(recipe),
            lanes,
            endless(recipe),
        )  # never used by anything else
        self.indexed = indexed(recipe)
        self.worlds = [1, 2, 3, 4, 6]
        count = PASSES if again(recipe) else 1
        most = FEW if self.endless else 1000
        runs = [run(self.ds, k, most, lanes=lanes) for k in range(count)]
        self.want = [found for found, _ in runs]
        self.rows = [
            rows_of(self.ds, k, len(found), lanes=lanes) for k, found in enumerate(self.want)
        ]
        # Lanes whose rows are batched last: how the rows of a step come to be in batches depends on the ranks.
        self.batched = not self.indexed and self.ds.tree.in_tail
        self.all = [Counter[Any]()] * count
        self.keeps = whole(recipe) == recipe
        if self.batched and not self.endless:
            keeping = build(whole(recipe))
            self.all = [keys_of(rows_of(keeping, k, 1000, lanes=lanes)) for k in range(count)]
        if self.indexed:  # a pass without a whole step is refused
            steps = min(sum(count == rows[0][0] for count, _ in rows) for rows in self.rows)
            self.worlds = [w for w in self.worlds if w == 1 or w <= steps]
        self.even = [self.lanes_even(k) for k in range(count)]
        if lanes == 1 or self.indexed:
            self.judge(recipe, runs)
        self.ds = built(
            recipe, Use(turns)
        )  # from here on the run is of a dataset that was used on the way
        self.open(topology)
        self.states = [(self.save_all(), 0, 0)]

    def lanes_even(self, k: int) -> int:
        """Count the samples of pass `k` until a lane ends; then the order depends on the ranks."""
        if self.indexed or self.endless or (self.lanes == 1 and not self.batched):
            return len(self.want[k])
        options: Any = {"lanes": self.lanes, "world_size": self.lanes, "remainder": "keep"}
        if self.batched:
            lanes = [rows_of(self.ds, k, 1000, rank=r, **options) for r in range(self.lanes)]
            assert self.rest_of(k, 0, sum(map(keys_of, lanes), Counter()))
            full = max(count for count, _ in self.rows[k]) if self.rows[k] else 1
            return min(sum(count == full for count, _ in lane) for lane in lanes) * self.lanes
        found = [run(self.ds, k, 1000, rank=r, **options)[0] for r in range(self.lanes)]
        assert sorted(map(repr, [x for lane in found for x in lane])) == sorted(
            map(repr, self.want[k])
        )
        return min(map(len, found)) * self.lanes

    def rest_of(self, k: int, at: int, found: Counter[Any]) -> bool:
        """Return true if these rows are the rest of a pass of batched lanes after `at` items.

        Nothing is lost or doubled, except batches that a rank cannot fill.
        """
        rest = self.all[k] - keys_of(self.rows[k][:at])
        return found == rest if self.keeps else found <= rest

    def judge(self, recipe: Any, runs: list[tuple[list[Any], bool]]) -> None:
        orders = Orders(recipe)
        for k, (found, whole) in enumerate(runs):
            if recipe[0] == "pack" and recipe[3] != "concat_split":
                assert not whole or not allowed(recipe, k, [plain(x) for x in found], whole, orders)
            elif not (recipe[0] == "seed" and recipe[1][0] == "pack"):
                assert [plain(x) for x in found] == model(
                    recipe, k, len(found) + 1 if whole else FEW, orders
                )

    # ------------------------------------------------------------ the simulated job

    def open(self, topology: Topology) -> None:
        self.close()
        self.topology = topology
        self.world = self.worlds[topology.ranks % len(self.worlds)]
        if topology.simulation is not None:
            self.seams.enter_context(override_world(sched=SimulatedScheduler(topology.simulation)))
        usual: Any = {
            "workers": topology.workers,
            "executor": topology.executor,
            "lanes": self.lanes,
        }
        usual |= {} if self.indexed else {"remainder": "keep"}
        self.loaders = [
            ps.Loader(self.ds, rank=r, world_size=self.world, **usual) for r in range(self.world)
        ]
        self.its = None
        self.k = self.at = 0

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()
        self.loaders = []
        self.seams.close()

    def save_all(self) -> list[Any]:
        return [through_json(loader.state_dict()) for loader in self.loaders]

    def load_all(self, states: Any, k: int, at: int) -> None:
        for loader in self.loaders:
            loader.load_state_dict(states)
        self.its, self.k, self.at = None, k, at

    def round(self) -> bool:
        """One sample on every rank; false at the end of the pass, which all ranks must reach in the same round."""
        if self.its is None:
            self.its = [iter(loader) for loader in self.loaders]
        if self.even[self.k] < (
            self.at + self.world
            if self.batched
            else min(self.at + self.world, len(self.want[self.k]))
        ):
            return self.tail()
        found = [self.one(it) for it in self.its]
        if self.batched or (self.indexed and self.world > 1):
            return self.dealt(found)
        want = self.want[self.k][self.at :]
        if self.endless and len(want) < self.world:
            raise AssertionError("the machine took more than it knows")
        if self.lanes % self.world:
            return self.of_the_whole_run(found, want)
        # Whose turn it is at a place that is no multiple of the world: either convention, but the same sequence.
        turns = [found[t:] + found[:t] for t in sorted({0, self.at % self.world})]
        for turn in turns:
            count = sum(x is not END for x in turn)
            whole = count == self.world or count == len(want)
            if (
                whole
                and all(x is not END for x in turn[:count])
                and not describe_difference(turn[:count], want[:count])
            ):
                break
        else:
            raise AssertionError(
                f"pass {self.k} at {self.at} on {self.world} ranks: {found} instead of {want[: self.world]}"
            )
        return self.came(found, count)

    def of_the_whole_run(self, found: list[Any], want: list[Any]) -> bool:
        """A round of ranks that cannot share out the lanes: they share the next samples of the run."""
        given = [x for x in found if x is not END]
        assert len(given) in (self.world, len(want))
        assert sorted(map(repr, given)) == sorted(map(repr, want[: len(given)]))
        return self.came(found, len(given))

    def came(self, found: list[Any], count: int) -> bool:
        self.at += count
        if count == self.world:
            return True
        for it, x in zip(self.its or [], found, strict=True):
            assert x is END or next(it, END) is END, "a rank goes on after another has ended"
        self.its, self.k, self.at = None, self.k + 1, 0
        return False

    def one(self, it: Any) -> Any:
        """The next sample of a rank; where somebody interrupts it, it is asked again.

        An interrupt of an earlier rule may wait in what was computed ahead, so there can be several.
        """
        for _ in range(10):
            try:
                return next(it, END)
            except Interrupt:
                continue
        raise AssertionError("interrupted more often than anybody did")

    def rest(self, it: Any) -> Iterator[Any]:
        while True:
            yield self.one(it)

    def dealt(self, found: list[Any]) -> bool:
        """Return true if the ranks share the rows of a full step; without one they end together."""
        rows = self.rows[self.k][self.at : self.at + self.world]
        if len(rows) < self.world or rows[-1][0] < self.rows[self.k][0][0]:
            assert all(x is END for x in found)
            self.its, self.k, self.at = None, self.k + 1, 0
            return False
        given = [(len(loader.valid), loader.keys()) for loader in self.loaders]
        assert all(count == rows[0][0] for count, _ in given)
        assert sorted(key for _, keys in given for key in keys) == sorted(
            key for _, keys in rows for key in keys
        )
        self.at += self.world
        return True

    def tail(self) -> bool:
        """The rest of a pass whose lanes end one after the other: nothing lost, nothing doubled."""
        if self.batched:
            found = Counter[Any]()
            for loader, it in zip(self.loaders, self.its or [], strict=True):
                while self.one(it) is not END:
                    found.update(loader.keys())
            assert self.rest_of(self.k, self.at, found), "the rest of the lanes, in batches"
            self.its, self.k, self.at = None, self.k + 1, 0
            return False
        found = [
            repr(x)
            for it in self.its or []
            for x in takewhile(lambda x: x is not END, self.rest(it))
        ]
        assert sorted(found) == sorted(map(repr, self.want[self.k][self.at :])), (
            "the rest of the lanes"
        )
        self.its, self.k, self.at = None, self.k + 1, 0
        return False

    def known(self) -> bool:
        """Return true if the first run gave the items of the next round."""
        if self.endless:
            return self.at + self.world <= len(self.want[0])
        return self.k < len(self.want)

    # ------------------------------------------------------------ what a run does to it

    @rule(rounds=st.integers(0, 7))
    def take(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.known() or not self.round():
                break

    @rule(calls=st.integers(1, 12))
    def interrupt(self, calls: int) -> None:
        """Somebody interrupts while the functions of the pipeline are at work, at one of their calls."""
        self.fuse.set(calls, Interrupt())
        if self.known():
            self.round()
        self.fuse.set(0, None)

    @rule()
    def leave_the_loop(self) -> None:
        """`break`, and another `for` later."""
        self.its = None

    @rule()
    def save(self) -> None:
        states = self.save_all()
        assert states == self.save_all(), "saving twice gives two states"
        self.states.append((states, self.k, self.at))

    @rule(turn=st.sampled_from(USES))
    def use(self, turn: Any) -> None:
        """Somebody uses the dataset beside the run: the loaders go on, and later ones are of what that returned."""
        self.ds = Use([turn])(self.ds)

    @rule(i=st.integers(0, 99), one=st.integers(0, 9), topology=st.none() | topologies)
    def load(self, i: int, one: int, topology: Topology | None) -> None:
        """Any state, also an old one, on new objects or (without a topology) on the used; also from one rank alone."""
        states, k, at = self.states[i % len(self.states)]
        if topology is not None:
            self.open(topology)
        alone = self.indexed and one < len(states)
        self.load_all(states[one] if alone else states, k, at)
        if len(states) == self.world:
            now = self.save_all()
            assert standing(now) == standing(states if not alone else [now[0]] * self.world), (
                "the state right after a load is another one"
            )
            if (
                not alone
            ):  # a rank that ended before the others counts the steps of the run from there on
                assert {state["step"] for state in now} == {max(state["step"] for state in states)}

    @precondition(lambda self: self.known())
    @rule()
    def end_of_epoch(self) -> None:
        while self.known() and self.round():
            pass

    @rule(effect=st.integers(1, 6), topology=topologies)
    def crash(self, effect: int, topology: Topology) -> None:
        """The job dies while it writes its state; another one finds the old state or the new one, and goes on."""
        path = Path("/run/state.json")
        try:
            old = self.disk.read(path)
        except FileNotFoundError:
            old = None
        new = json.dumps([self.save_all(), self.k, self.at]).encode()
        self.disk.fail_at, self.disk.how = self.disk.effects + effect, "kill"
        died = False
        try:
            with override_world(disk=self.disk):
                write_atomically(path, new)
        except Crash:
            died = True
        self.disk.crash()
        try:
            found = self.disk.read(path)
        except FileNotFoundError:
            found = None
        assert found in (old, new) if died else found == new
        self.open(topology)
        if found is not None:
            states, k, at = json.loads(found)
            self.load_all(states, k, at)

    @rule(pick=st.integers(0, 99), bad=st.sampled_from(("empty", "text", "list", "cut", "odd")))
    def bad_state(self, pick: int, bad: str) -> None:
        """A damaged state is refused, and the loader stays where it was."""
        loader = self.loaders[pick % self.world]
        good = through_json(loader.state_dict())
        keys = sorted(good)
        broken: Any = {
            "empty": {},
            "text": "state",
            "list": [],
            "cut": {k: v for k, v in good.items() if k != keys[pick % len(keys)]},
            "odd": good | {keys[pick % len(keys)]: {"?": [None]}},
        }[bad]
        with pytest.raises(ps.errors.StateError):
            loader.load_state_dict(broken)
        assert through_json(loader.state_dict()) == good

    @invariant()
    def no_thread_too_many(self) -> None:
        real = (
            self.loaders
            and self.topology.simulation is None
            and self.topology.executor == "threads"
        )
        most = self.topology.workers * self.world if real else 0
        assert len(our_threads() - self.threads) <= most

    def teardown(self) -> None:
        self.patched.undo()
        self.close()


@pytest.mark.hypothesis  # `make soak` runs what is marked so
def test_machine() -> None:
    with shared_processes():
        run_state_machine_as_test(Machine, settings=examples(350))


# ---------------------------------------------------------------- faults


@examples(60)
@given(pipelines(3, endless=False), st.integers(0, 1000))
def test_no_order_of_tasks_changes_the_run(recipe: Any, seed: int) -> None:
    note(show(recipe))
    want = run(build(recipe), 0, 500)[0]
    with (
        override_world(sched=SimulatedScheduler(seed, twice=0.5)),
        ps.Loader(build(recipe), workers=3, prefetch=5) as loader,
    ):
        assert not describe_difference(list(loader), want)


@examples(40)
@given(pipelines(2, endless=False), st.integers(0, 1000))
def test_a_task_that_fails_stops_the_run_or_is_done_again_but_drops_nothing(
    recipe: Any, seed: int
) -> None:
    """In few lanes: a pass ends when all were asked without a failure, which for 48 may not come in 1,000 tries."""
    note(show(recipe))
    found: list[Any] = []
    state = None
    with ps.Loader(build(recipe), lanes=4) as loader:
        want = list(loader)
    with (
        override_world(sched=SimulatedScheduler(seed, fail=0.2)),
        ps.Loader(build(recipe), workers=2, lanes=4) as loader,
    ):
        for _ in range(1000):
            try:
                if state is not None:  # a load may fail too; it is tried again
                    loader.load_state_dict(state)
                    state = None
                for x in loader:
                    found.append(x)
                break
            except OSError:
                state = state or through_json(loader.state_dict())
    assert not describe_difference(found, want)


@pytest.mark.parametrize("how", ["error", "full", "kill"])
def test_whatever_fails_in_a_save_the_old_or_the_new_state_is_there(how: Any) -> None:
    path = Path("/run/state.json")
    loader = ps.Loader(ps.from_sequence(range(20)).shuffle(seed=1))
    list(islice(loader, 3))
    old = json.dumps(loader.state_dict()).encode()
    list(islice(loader, 3))
    new = json.dumps(loader.state_dict()).encode()
    for seed in range(20):
        for effect in range(1, 20):
            disk = CrashingDisk(seed)
            with override_world(disk=disk):
                write_atomically(path, old)
                disk.fail_at, disk.how = disk.effects + effect, how
                try:
                    write_atomically(path, new)
                except (OSError, Crash):
                    pass
                else:
                    break
            if how != "kill":
                assert disk.read(path) in (old, new)
                assert disk.paths() == [path], "a temporary file was left behind"
            disk.crash()
            assert disk.read(path) in (old, new)
        else:
            raise AssertionError("a save has too many effects")
        disk.crash()
        assert disk.read(path) == new
