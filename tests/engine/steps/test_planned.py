"""A training run and everything that is done to it: steps, saves, other weights, samples left out, another mixture,
interrupts, rows that cannot be read. The plan is held against what comes, and every input goes through its own order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from typing import Any

import pytest
from hypothesis import note
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
from example_counts import done, examples
from penstock.errors import ConfigError, DataError, PenstockError, StateError
from test_one_function import check_inverse, check_sums, through_json, told
from trees import (
    Interrupt,
    Key,
    Spoiled,
    Tree,
    bad,
    build,
    changed,
    fuse,
    fused,
    grown,
    numbers,
    ordered,
    show,
)

AHEAD = 12  # steps of the plan that are looked at
LETTERS = "abc"
NOT_ADOPTED = (
    "cannot be changed within a pass",
    "a position up to",
    "the end of the mixture",
    "weight",
    "known lengths",
    "read in lanes",
    "lengths of the samples, which are not known",
    "a window of documents",
    "gives its samples again",
    "still needs draws from input",
    "the run excluded samples of",
)
HOPELESS = (
    "tried as a replacement and are bad too",
    "pack passes that hold the same documents",
)
NOT_CHANGED = (
    "packed",
    "weight",
    "the end of the mixture",
    "shuffled as a whole, repeated by a slice",
    "the former lengths of",
    "where a position up to",  # the pass would end before what was delivered
)
REFUSED = (
    "left out",
    "changes the order of",
    "later pass",
    "within one pass",
    "known lengths",
    "the past cannot change",
    "the end of the mixture",
    "the former lengths of",
    "altered the length of a pass",
)


@st.composite
def mixtures(draw: st.DrawFn) -> Tree:
    """A tree that is a mixture, most of the time with nothing but rows above it."""
    return grown(draw, kinds=("mix",)).tree


@st.composite
def sources(draw: st.DrawFn) -> Tree:
    return ordered(draw, "d", "").tree


def top(tree: Tree) -> Tree | None:
    """The mixture on whose rows a tree only maps; None where something else stands above it."""
    while tree[0] in ("map", "random_map", "batch"):
        if dict(tree[3]).get("drop_remainder"):
            return None
        tree = tree[1]
    return tree if tree[0] == "mix" else None


def documents_too(part: Tree) -> Tree:
    return ("documents", *part[1:]) if part[0] == "numbers" else part


def flat(rows: list[list[Key]]) -> list[Key]:
    return [key for keys in rows for key in keys]


def spoiled_too(part: Tree) -> Tree:
    return ("spoiled", *part[1:]) if part[0] == "numbers" else part


def own_order(name: str, flow: Tree, rows: int) -> list[list[Key]]:
    """Return the draws of one input in their order, over as many passes as needed."""
    plan = ps.mix({name: build(flow)}, seed=2).plan
    return told(plan, 0, rows)


Topology = tuple[int, int]
"""Ranks, and rows a rank and step."""

topologies = st.tuples(st.sampled_from([1, 1, 2, 3]), st.integers(1, 3))


class Planned(RuleBasedStateMachine):
    """Everything is counted in rows, of which a step takes as many as there are ranks and rows a batch."""

    @initialize(tree=mixtures(), topology=topologies, spoiled=st.booleans())
    def start(self, tree: Tree, topology: Topology, spoiled: bool) -> None:
        done["planned runs"] += 1
        self.tree = changed(tree, spoiled_too) if spoiled else tree
        self.asked: tuple[str, ps.Dataset] | None = None
        self.answer: Any = None
        self.dead = False  # at a row that cannot be given, and none in its place
        self.adopted = False
        self.edited = self.excluded = False
        self.rows = self.made(1)
        if self.rows.plan.size == 0:
            self.tree = self.tree[1] if self.tree[0] not in ("mix",) else self.tree
            self.rows = self.made(1)
        note(show(self.tree))
        self.loaders = list[ps.Loader]()
        self.open(topology)
        self.known = list[list[Key]]()  # what every row was, and on which of them we are
        self.at = 0
        self.steps = list[tuple[int, list[Key]]]()  # where each step began, and what it gave
        self.since = 0  # the row at which the last mixture took over, and the keys that each input had given by then
        self.used = Counter[str]()
        self.states = [(self.saved(), 0, list(self.steps))]

    def made(self, size: int) -> ps.Dataset:
        return build(self.tree).map(fused).batch(size, collate=list)

    def open(self, topology: Topology) -> None:
        """Open new loaders.

        More ranks fill the last step of a pass from its beginning. The plan predicts that only for
        rows that are not batches already, and for the mixture that made the pass.
        """
        world, size = topology
        if (
            top(self.tree) is None
            or "batch" in self.above()
            or (self.adopted and self.rows.plan.size is not None)
        ):
            world = 1
        ds, options = self.made(size), {"on_error": "quarantine", "max_errors": 1000}
        self.loaders = [
            ps.Loader(
                ds, rank=rank, world_size=world, remainder="pad" if world > 1 else "keep", **options
            )
            for rank in range(world)
        ]
        self.its: list[Iterator[Any] | None] = [None] * world
        self.size = world * size

    def above(self) -> list[str]:
        """The steps above the mixture."""
        tree, found = self.tree, list[str]()
        while tree[0] != "mix":
            found.append(tree[0])
            tree = tree[1]
        return found

    def saved(self) -> list[Any]:
        return [through_json(loader.state_dict()) for loader in self.loaders]

    def go_to(self, states: Any, **options: Any) -> None:
        for loader in self.loaders:
            loader.load_state_dict(states, **options)
        self.its = [None] * len(self.loaders)

    def plan(self) -> Any:
        """The plan of the rows of the run; asked again in the same place it is the same object."""
        states = json.dumps([loader.state_dict() for loader in self.loaders])
        if self.asked != (states, self.rows):
            self.asked, self.answer = (
                (states, self.rows),
                self.rows.plan.for_state(json.loads(states)),
            )
        return self.answer

    def spoils(self, keys: list[Key]) -> bool:
        """Return true if some of these rows cannot be read."""
        leaves = self.rows.plan._builder.leaves
        spoiled = {
            leaf.name for leaf in leaves if isinstance(getattr(leaf.source, "_seq", None), Spoiled)
        }
        return any(name in spoiled and bad(index) for name, _, index in keys)

    def one(self, rank: int) -> list[Key] | None:
        """The keys of a rank's next step, of the next pass if need be."""
        for _ in range(3):
            it = self.its[rank] = self.its[rank] or iter(self.loaders[rank])
            if next(it, None) is not None:
                return self.loaders[rank].keys()
            self.its[rank] = None
        return None

    @property
    def end(self) -> int:
        """A pass after the one in which another mixture took over is that mixture's own: nothing is said of it."""
        plan = self.plan()
        try:
            plan.at(step=1 << 12)
        except StateError:  # weights were set that change how long a pass is
            return plan.size
        except IndexError:
            pass
        return (plan.size if self.adopted else None) or 1 << 60

    @property
    def log(self) -> list[list[Key]]:
        return self.known[: self.at]

    def from_here(self) -> None:
        """The future is another one from here on."""
        del self.known[self.at :]
        self.states = [(self.saved(), self.at, list(self.steps))]

    def first_pass(self) -> bool:
        size = self.rows.plan.size
        first = size is None or (self.at < size and self.loaders[0].state_dict()["epoch"] == 0)
        return first and not self.dead

    # ------------------------------------------------------------ steps

    def coming(self) -> tuple[list[list[Key]], list[list[Key]]]:
        """Return the plan's prediction of the next step: its rows, and the rows that fill it."""
        plan, at = self.plan(), self.at
        size, stop = plan.size, min(at + self.size, self.end)
        more = list[list[Key]]()
        if self.dead or at >= stop or size == 0:
            return [], []
        if (passes := plan.compiled.op.passes) is not None:
            _, first, size = passes.at(at)
            stop = min(stop, first + size)
            if len(self.loaders) > 1 and stop < at + self.size:
                begin = told(plan, first, first + size)
                more = [begin[i % size] for i in range(at + self.size - stop)]
        return told(plan, at, stop), more

    def step(self, take: Callable[[int], list[Key] | None] | None = None) -> bool:
        """One step of all ranks, which is what the plan says. What cannot be read is not known before it was tried:
        then it is what the plan says afterwards.
        """
        try:
            rows, more = self.coming()
            if not rows:
                return False
            found = [self.keys_of(rank, take or self.one) for rank in range(len(self.loaders))]
        except (DataError, StateError) as error:
            assert any(why in str(error) for why in HOPELESS), error
            self.dead = True
            assert self.asked is not None
            self.go_to(json.loads(self.asked[0]))
            return False
        want, start = flat([*rows, *more]), self.at
        found = flat(found)
        if self.spoils(want):
            assert len(found) == len(want) and not self.spoils(found)
            plan, stop = self.plan(), self.at + len(rows)
            passes = plan.compiled.op.passes
            _, first, size = (0, 0, 1) if passes is None else passes.at(self.at)
            rows = told(plan, self.at, stop)
            more = [told(plan, first + i % size, first + i % size + 1)[0] for i in range(len(more))]
            want = flat([*rows, *more])
        assert (found == want) if len(self.loaders) == 1 else (sorted(found) == sorted(want)), (
            self.at,
            found,
            want,
        )
        for row in rows:
            if self.at < len(self.known):
                assert row == self.known[self.at], "another time it was something else"
            else:
                self.known.append(row)
            self.at += 1
        self.steps.append((start, want))
        return True

    def keys_of(self, rank: int, take: Callable[[int], list[Key] | None]) -> list[Key]:
        found = take(rank)
        assert found is not None, f"rank {rank} has ended"
        return found

    # ------------------------------------------------------------ what is done to it

    @rule(steps=st.integers(1, 6))
    def take(self, steps: int) -> None:
        for _ in range(steps):
            if not self.step():
                break

    @rule(calls=st.integers(1, 9), error=st.just(Interrupt))
    def interrupt(self, calls: int, error: Any) -> None:
        """Somebody presses Ctrl-C while an item is made; the next call gives the item."""

        def take(rank: int) -> list[Key] | None:
            before = through_json(self.loaders[rank].state_dict())
            try:
                return self.one(rank)
            except error:
                now = through_json(self.loaders[rank].state_dict())
                at_once = {"journal": [], "check": ""}  # what was found out on the way is kept
                assert now | at_once == before | at_once or now["epoch"] == before["epoch"] + 1
                return self.one(rank)

        fuse.set(calls, error())
        try:
            self.step(take)
        finally:
            fuse.set(0, None)

    @rule()
    def save(self) -> None:
        self.states.append((self.saved(), self.at, list(self.steps)))

    @rule(i=st.integers(0, 9))
    def load(self, i: int) -> None:
        """Any state since the last edit."""
        states, self.at, steps = self.states[i % len(self.states)]
        self.go_to(states)
        self.steps = list(steps)

    @rule(topology=topologies)
    def go_on_with(self, topology: Topology) -> None:
        """Other ranks, and other batches."""
        states, before = self.saved(), self.loaders
        self.open(topology)
        self.go_to(states)
        for loader in before:
            loader.close()

    @precondition(first_pass)
    @rule(weights=st.tuples(*[st.sampled_from([0, 1, 2, 5, 0.5])] * 3), ahead=st.integers(0, 9))
    def set_weights(self, weights: tuple[float, ...], ahead: int) -> None:
        mix = self.mixture()
        asked = {name: weight for (name, *_), weight in zip(mix[1], weights, strict=False)}
        if not any(asked.values()):
            asked = dict.fromkeys(asked, 1)
        if self.at == self.plan().size:
            return  # a pass may get longer after its last, short step: the log of steps tells that from the next load on
        if sum(m[0] == "mix" and {n for n, *_ in m[1]} == set(asked) for m in self.parts()) > 1:
            return
        try:
            assert len({loader.set_weights(asked) for loader in self.loaders}) == 1
        except (ConfigError, StateError) as error:
            assert any(why in str(error) for why in NOT_CHANGED), error
            return
        self.from_here()

    @precondition(first_pass)
    @rule(pick=st.integers(0, 99))
    def exclude(self, pick: int) -> None:
        plan = self.plan()
        source = plan.sources[pick % len(plan.sources)]
        try:
            self.edit(plan.exclude([(source, pick % plan._rows(plan._leaf(source)))]))
            self.excluded = True
        except (ConfigError, StateError) as error:
            assert any(why in str(error) for why in REFUSED), error

    @precondition(first_pass)
    @rule(ahead=st.integers(0, 6), many=st.integers(1, 4))
    def skip(self, ahead: int, many: int) -> None:
        plan = self.plan()
        low = max(self.at, plan.position) + ahead
        if plan.size is not None and (low + many > plan.size or many == plan.size):
            return
        try:
            self.edit(plan.skip(range(low, low + many)))
        except (ConfigError, StateError) as error:
            assert any(why in str(error) for why in REFUSED), error

    @precondition(first_pass)
    @rule(
        change=st.sampled_from(["weights", "removed", "added", "grown"]),
        weight=st.sampled_from([1, 3]),
        more=sources(),
    )
    def adopt(self, change: str, weight: int, more: Tree) -> None:
        """Another mixture takes over: each input that both have goes on at its next sample."""
        mix = self.mixture()
        inputs = list(mix[1])
        name, flow, _ = inputs[0]
        match change:
            case "weights":
                inputs[0] = (name, flow, weight)
            case "removed" if len(inputs) > 1:
                del inputs[0]
            case "added" if len(inputs) < 4 and "d" not in [name for name, *_ in inputs]:
                inputs.append(("d", more, weight))
            case "grown" if flow[0] in ("numbers", "spoiled"):
                inputs[0] = (name, (flow[0], flow[1] + 3, flow[2]), weight)
            case _:
                return
        if any(
            part[0] == "pack" or (part[0] == "mix" and ("unit", "tokens") in part[3])
            for part in self.parts()
        ):
            inputs = [(name, changed(flow, documents_too), w) for name, flow, w in inputs]
        states, before = (
            self.saved(),
            (self.tree, self.rows, self.adopted, self.loaders, self.its, self.size),
        )
        self.tree = changed(
            self.tree, lambda part: ("mix", tuple(inputs), *mix[2:]) if part == mix else part
        )
        try:
            self.rows, self.adopted = self.made(1), True
        except (IndexError, ps.IndexedError, ConfigError) as error:
            # A row that was selected is there no longer; tokens that nobody counted; nothing is left to repeat.
            empty = ("is empty", "fewer than that; leave it out", "less than one of its")
            assert not isinstance(error, ConfigError) or any(e in str(error) for e in empty), error
            self.tree = before[0]
            return
        self.open((len(self.loaders), self.size // len(self.loaders)))
        found = self.loaders
        try:
            self.go_to(states, on_mismatch="adopt")
            if any("follows the new pipeline" in note for note in found[0].warnings):
                raise ps.StateError("no plan describes the past of a run that begins with a pass")
        except PenstockError as error:
            moved = "shuffle" in self.above() and (
                self.excluded or self.rows.plan.size != before[1].plan.size
            )
            self.tree, self.rows, self.adopted, self.loaders, self.its, self.size = before
            packs = any(part[0] == "pack" for part in self.parts())
            # A mixture that is gone through again is not changed in a later pass, and an input of which samples are
            # left out grows in its first. What is shuffled stands elsewhere where the mixture ends elsewhere. Below a
            # slice, a mixture that ends elsewhere gives other samples.
            passes = (
                {"repeat", "slice"} & {*self.above()}
                or (self.excluded and change == "grown")
                or moved
                or packs
            )
            allowed = (
                *NOT_ADOPTED,
                "no plan describes the past",
                "the mixture would have another length",
                *["packed"] * packs,
                *["the last delivered samples of this pass"] * bool(passes),
            )
            assert any(why in str(error) for why in allowed), error
            return
        finally:
            for loader in before[3] if self.loaders is found else found:
                loader.close()
        for name, mine in self.by_input().items():
            self.used[name] += len(mine)
        self.since, self.edited = self.at, self.edited or change == "grown"
        self.from_here()

    def by_input(self) -> dict[str, list[Key]]:
        """The keys that each input of the mixture gave since it took over."""
        found = dict[str, list[Key]]()
        for keys in self.log[self.since :]:
            for key in keys:
                found.setdefault(key[0][0], []).append(key)
        return found

    def edit(self, plan: Any) -> None:
        if plan.size == 0:
            return
        self.go_to(through_json(plan.state))
        self.edited = True
        self.from_here()

    # ------------------------------------------------------------ what must hold

    def parts(self) -> list[Tree]:
        found = list[Tree]()
        changed(self.tree, lambda part: (found.append(part), part)[1])
        return found

    def mixture(self) -> Tree:
        return next(part for part in reversed(self.parts()) if part[0] == "mix")

    @invariant()
    def the_plan_knows_the_past_and_the_future(self) -> None:
        plan = self.plan()
        assert told(plan, self.since, self.at) == self.log[self.since :]
        for number in {len(self.steps) - 1, len(self.steps) // 2} & set(range(len(self.steps))):
            start, keys = self.steps[number]
            if start >= self.since:
                assert sorted(sample.key for sample in plan.at(step=number)) == sorted(keys), number

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        plan = self.plan()
        stop = self.at if self.dead else min(self.at + AHEAD, self.end)
        try:
            if not self.since and plan.size != 0:
                check_inverse(plan, 0, stop)
                check_sums(plan, (self.at, stop))
        except DataError as error:
            assert any(why in str(error) for why in HOPELESS), error
        self.every_input_goes_through_its_own_order()
        for loader in self.loaders:
            loader.close()

    def every_input_goes_through_its_own_order(self) -> None:
        mix, size = top(self.tree), self.rows.plan.size
        if (
            mix is None
            or self.edited
            or any(part[0] == "spoiled" for part in self.parts())
            or any(name == "unique_fraction" and value for name, value in mix[3])  # fewer rows
            or (size is not None and self.at > size)
        ):
            return
        for name, flow, _ in mix[1]:
            mine, used = self.by_input().get(name, []), self.used[name]
            want = [key for keys in own_order(name, flow, used + len(mine) + 1) for key in keys]
            assert mine == want[used : used + len(mine)], (name, mine, want, used)


def test_an_exclusion_changes_no_tuple_that_took_the_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shuffled = ("shuffle", ("documents", 5, "bca"), (), (("seed", None),))
    inner = (("a", ("numbers", 11, "baa"), 1), ("b", ("documents", 4, "bab"), 1))
    first = (
        "mix",
        inner,
        0,
        (("stop", "first_exhausted"), ("block_size", 1), ("max_epochs", None)),
    )
    ends = ("shuffle", ("slice", ("documents", 11, "bcc"), (8, 11, 1), ()), (), (("seed", None),))
    parts = ("zip", (shuffled, ("documents", 5, "bcb"), ("shuffle", ends, (), (("seed", None),))))
    blocks = (
        "shuffle",
        ("slice", ("documents", 12, "bbb"), (0, 12, 1), ()),
        (),
        (("seed", 1), ("block", (1, 3))),
    )
    tuples = ("zip", (first, ("concat", (("documents", 6, "bba"), blocks)), parts))
    own = ("shuffle", ("shard", ("documents", 2, "c"), (0, 2), ()), (), (("seed", None),))
    last = ("shuffle", own, (), (("seed", 1), ("block", (3, 1))))
    a = ("shuffle", ("documents", 5, "a"), (), (("seed", None),))
    tree = (
        "mix",
        (("a", a, 1), ("b", tuples, 2), ("c", last, 1)),
        0,
        (("stop", "restart"), ("block_size", 1)),
    )
    monkeypatch.setitem(globals(), "note", lambda said: None)
    machine = Planned()
    machine.start(tree=tree, spoiled=True, topology=(1, 3))
    try:
        machine.interrupt(calls=8, error=Interrupt)
        for many in (3, 2):
            machine.skip(ahead=0, many=many)
        for calls, picks in ((4, [10]), (6, [74, 52]), (4, [83, 88]), (None, [20])):
            for pick in picks:
                machine.exclude(pick=pick)
                machine.the_plan_knows_the_past_and_the_future()
            if calls is not None:
                machine.interrupt(calls=calls, error=Interrupt)
    finally:
        machine.teardown()


def test_an_exclusion_changes_no_row_of_one_source_that_was_given() -> None:
    """Passes that an exclusion makes differ are planned, and those that are all alike are not: the rows are the same."""
    documents = {
        name: ps.from_tokens(range(40), range(0, 41, each), name=name)
        for name, each in (("a", 4), ("b", 5))
    }
    ds = ps.mix(
        {name: each.shuffle() for name, each in documents.items()}, stop="all_exhausted", seed=2
    )
    ds = ds.pack(9, "best_fit", group_by="__source__", rows=20)
    with ps.Loader(ds) as loader:
        past = [loader.keys() for _ in islice(loader, 4)]
        plan = ds.plan.for_state(loader.state_dict())
    for index in range(5):
        edited = plan.exclude([("a", index)])
        assert told(edited, 0, 4) == past
        with ps.Loader(ds) as loader:
            loader.load_state_dict(through_json(edited.state))
            assert [loader.keys() for _ in islice(loader, 3)] == told(edited, 4, 7)


@pytest.mark.parametrize("passes", ["alike", "changed", "skipped", "limited", "batched"])
def test_an_earlier_end_of_the_pass_packs_no_row_again_that_was_given(passes: str) -> None:
    """The last window of a pass is packed with what fills no other: which one that is may not change."""
    ends = {
        name: [0, *accumulate(sizes)]
        for name, sizes in (("a", [1, 5, 5, 4, 2]), ("d", [1, 5, 5, 4, 3, 5, 5, 2, 4]))
    }
    flows = {name: ps.from_tokens(range(each[-1]), each, name=name) for name, each in ends.items()}
    ds = ps.mix(flows, {"a": 1, "d": 1}, stop="all_exhausted", seed=2).pack(5, "best_fit", rows=5)
    match passes:
        case "skipped":
            ds = ds.plan.skip(range(3, 4)).dataset
        case "limited":
            ds = ds.limit(11)
        case "batched":
            ds = ds.batch(2)
        case _:
            pass
    refused = done = 0
    for taken in range(1, len(ds)):
        with ps.Loader(ds) as loader:
            run = iter(loader)
            if passes == "changed":
                loader.set_weights({"a": 1, "d": 2})
            for _ in range(taken):
                next(run)
            plan = ds.plan.for_state(loader.state_dict())
            past, coming = told(plan, 0, taken), told(plan, taken, plan.size or 0)
            try:
                loader.set_weights({"a": 2, "d": 0})
            except ConfigError as error:
                if "packed again" in str(error) or "another length" in str(error):
                    refused += 1
                    assert [loader.keys() for _ in run] == coming
            else:
                done += 1
                plan = ds.plan.for_state(loader.state_dict())
                assert told(plan, 0, taken) == past
                assert [loader.keys() for _ in run] == told(plan, taken, plan.size or 0)
    assert refused and (done or passes == "skipped")  # skipped rows fix the length of a pass


def test_what_is_left_out_brings_nothing_before_what_was_given() -> None:
    """By shares of tokens a document comes the sooner the shorter it is, also one that takes the place of another."""
    ends = {
        name: [0, *accumulate(sizes)]
        for name, sizes in (("a", [9, 1, 8, 2, 7, 1]), ("b", [3, 12, 1, 5]))
    }
    flows = {
        name: ps.from_tokens(range(each[-1]), each, name=name).repeat()
        for name, each in ends.items()
    }
    ds = ps.mix(flows, {"a": 1, "b": 2}, unit="tokens", seed=2)
    refused = accepted = 0
    with ps.Loader(ds) as loader:
        past = list[Any]()
        for _ in islice(loader, 24):
            past.append(loader.keys())
            plan = ds.plan.for_state(loader.state_dict())
            for name, index in ((one, i) for one in ends for i in range(len(ends[one]) - 1)):
                try:
                    edited = plan.exclude([(name, index)])
                except ConfigError as error:
                    assert "the past cannot change" in str(error)
                    refused += 1
                else:
                    assert told(edited, 0, len(past)) == past
                    accepted += 1
    assert 0 < refused < accepted / 4


@pytest.mark.hypothesis  # `make soak` runs what is marked so
def test_a_run_is_what_its_plan_says_whatever_is_done_to_it() -> None:
    run_state_machine_as_test(Planned, settings=examples(150))


def test_a_run_that_lost_an_input_can_be_saved_at_once() -> None:
    """The last draw belongs to an input that the new mixture does not have."""
    flows = {"a": numbers(9, "a"), "b": numbers(9, "b")}
    with ps.Loader(ps.mix(flows, {"a": 9, "b": 1})) as loader:
        next(iter(loader))
        assert loader.keys() == [("a", 0, 0)]
        state = loader.state_dict()
    with ps.Loader(ps.mix({"b": flows["b"]})) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        loader.load_state_dict(through_json(loader.state_dict()))
        assert next(iter(loader)) == 0
