"""A training run and everything that is done to it: steps, saves, other weights, samples left out, another mixture,
interrupts. The plan is held against what comes, and every input goes through its own order."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
from amounts import done, examples
from penstock.errors import ConfigError, PenstockError
from test_one_function import check_inverse, check_sums, through_json, told
from trees import Interrupt, Key, Tree, build, changed, fuse, fused, grown, numbers, ordered, show

AHEAD = 12  # steps of the plan that are looked at
LETTERS = "abc"
NOT_ADOPTED = ("cannot be changed within a pass", "the end of the mixture", "weight", "packed", "known lengths")
REFUSED = ("left out", "own order", "later pass", "within one pass", "known lengths")


@st.composite
def mixtures(draw: st.DrawFn) -> Tree:
    """A tree that is a mixture, most of the time with nothing but rows above it."""
    return grown(draw, kinds=("mix",)).tree


@st.composite
def sources(draw: st.DrawFn) -> Tree:
    return ordered(draw, "d", False).tree


def top(tree: Tree) -> Tree | None:
    """The mixture on whose rows a tree only maps; None where something else stands above it."""
    while tree[0] in ("map", "random_map", "batch"):
        if dict(tree[3]).get("drop_remainder"):
            return None
        tree = tree[1]
    return tree if tree[0] == "mix" else None


def documents_too(part: Tree) -> Tree:
    return ("documents", *part[1:]) if part[0] == "numbers" else part


def own_order(name: str, flow: Tree, rows: int) -> list[list[Key]]:
    """What an input gives when it is drawn from again and again, draw by draw."""
    plan = ps.mix({name: build(flow)}, seed=2).plan
    return told(plan, 0, rows)


class Planned(RuleBasedStateMachine):
    @initialize(tree=mixtures(), size=st.integers(1, 3))
    def start(self, tree: Tree, size: int) -> None:
        done["planned runs"] += 1
        self.tree, self.size = tree, size
        self.ds = self.made()
        if self.ds.plan.size == 0:
            self.tree = self.tree[1] if self.tree[0] not in ("mix",) else self.tree
            self.ds = self.made()
        note(show(self.tree))
        self.loader, self.it = ps.Loader(self.ds), None
        self.known = list[list[Key]]()  # what every step gave, and on which of them we are
        self.at = 0
        self.since = 0  # the step at which the last mixture took over, and the keys that each input had given by then
        self.used = Counter[str]()
        self.adopted = False
        self.edited = False
        self.states = [(through_json(self.loader.state_dict()), 0)]

    def made(self) -> ps.Dataset:
        return build(self.tree).map(fused).batch(self.size, collate=list)

    def plan(self) -> Any:
        return self.ds.plan.after(through_json(self.loader.state_dict()))

    def one(self) -> list[Key] | None:
        """The keys of the next step, of the next pass if need be."""
        for _ in range(3):
            if self.it is None:
                self.it = iter(self.loader)
            if next(self.it, None) is not None:
                return self.loader.keys()
            self.it = None
        return None

    @property
    def end(self) -> int:
        """A pass after the one in which another mixture took over is that mixture's own: nothing is said of it."""
        return (self.plan().size if self.adopted else None) or 1 << 60

    @property
    def log(self) -> list[list[Key]]:
        return self.known[: self.at]

    def had(self, keys: list[Key]) -> None:
        if self.at < len(self.known):
            assert keys == self.known[self.at], "another time it was something else"
        else:
            self.known.append(keys)
        self.at += 1

    def from_here(self) -> None:
        """The future is another one from here on."""
        del self.known[self.at :]
        self.states = [(through_json(self.loader.state_dict()), self.at)]

    def first_pass(self) -> bool:
        size = self.ds.plan.size
        return size is None or (self.at < size and self.loader.state_dict()["epoch"] == 0)

    # ------------------------------------------------------------ what is done to it

    @rule(steps=st.integers(1, 6))
    def take(self, steps: int) -> None:
        for keys in told(self.plan(), self.at, min(self.at + steps, self.end)):
            found = self.one()
            assert found == keys, (self.at, found, keys)
            self.had(keys)

    @rule(calls=st.integers(1, 9), error=st.just(Interrupt))
    def interrupt(self, calls: int, error: Any) -> None:
        """Somebody presses Ctrl-C while an item is made; the next call gives the item."""
        if self.at >= self.end:
            return
        want = told(self.plan(), self.at, self.at + 1)[0]
        before = through_json(self.loader.state_dict())
        fuse.set(calls, error())
        try:
            found = self.one()
        except error:
            now = through_json(self.loader.state_dict())
            assert now == before or now["epoch"] == before["epoch"] + 1
            found = self.one()
        finally:
            fuse.set(0, None)
        assert found == want
        self.had(want)

    @rule()
    def save(self) -> None:
        self.states.append((through_json(self.loader.state_dict()), self.at))

    @rule(i=st.integers(0, 9))
    def load(self, i: int) -> None:
        """Any state since the last edit."""
        state, self.at = self.states[i % len(self.states)]
        self.loader.load_state_dict(state)
        self.it = None

    @precondition(first_pass)
    @rule(weights=st.tuples(*[st.sampled_from([0, 1, 2, 5, 0.5])] * 3), ahead=st.integers(0, 9))
    def set_weights(self, weights: tuple[float, ...], ahead: int) -> None:
        mix = self.mixture()
        asked = {name: weight for (name, *_), weight in zip(mix[1], weights, strict=False)}
        if not any(asked.values()):
            asked = dict.fromkeys(asked, 1)
        if sum(m[0] == "mix" and {n for n, *_ in m[1]} == set(asked) for m in self.parts()) > 1:
            return
        try:
            self.loader.set_weights(asked)
        except ConfigError as error:
            assert any(why in str(error) for why in ("packed", "weight", "the end of the mixture")), error
            return
        self.from_here()

    @precondition(first_pass)
    @rule(pick=st.integers(0, 99))
    def exclude(self, pick: int) -> None:
        plan = self.plan()
        source = plan.sources[pick % len(plan.sources)]
        try:
            self.edit(plan.exclude([(source, pick % plan._rows(plan._leaf(source)))]))
        except ConfigError as error:
            assert any(why in str(error) for why in REFUSED), error

    @precondition(first_pass)
    @rule(ahead=st.integers(0, 6), many=st.integers(1, 4))
    def skip(self, ahead: int, many: int) -> None:
        plan = self.plan()
        low = max(self.at, plan.position) + ahead
        if plan.size is not None and low + many > plan.size:
            return
        try:
            self.edit(plan.skip(range(low, low + many)))
        except ConfigError as error:
            assert any(why in str(error) for why in REFUSED), error

    @precondition(first_pass)
    @rule(
        change=st.sampled_from(["weights", "removed", "added", "grown"]), weight=st.sampled_from([1, 3]), more=sources()
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
            case "grown" if flow[0] == "numbers":
                inputs[0] = (name, ("numbers", flow[1] + 3, flow[2]), weight)
            case _:
                return
        if any(part[0] == "pack" for part in self.parts()):
            inputs = [(name, changed(flow, documents_too), w) for name, flow, w in inputs]
        state, before = through_json(self.loader.state_dict()), (self.tree, self.ds)
        self.tree = changed(self.tree, lambda part: ("mix", tuple(inputs), *mix[2:]) if part == mix else part)
        self.ds = self.made()
        found = ps.Loader(self.ds)
        try:
            found.load_state_dict(state, on_mismatch="adopt")
        except PenstockError as error:
            self.tree, self.ds = before
            found.close()
            assert any(why in str(error) for why in NOT_ADOPTED), error
            return
        self.loader.close()
        self.loader, self.it = found, None
        for name, mine in self.by_input().items():
            self.used[name] += len(mine)
        self.adopted = True
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
        self.loader.load_state_dict(through_json(plan.state))
        self.it, self.edited = None, True
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

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        plan = self.plan()
        stop = min(self.at + AHEAD, self.end)
        if not self.since and plan.size != 0:
            check_inverse(plan, 0, stop)
            check_sums(plan, (self.at, stop))
        self.every_input_goes_through_its_own_order()
        self.loader.close()

    def every_input_goes_through_its_own_order(self) -> None:
        mix, size = top(self.tree), self.ds.plan.size
        if mix is None or self.edited or (size is not None and self.at > size):
            return
        for name, flow, _ in mix[1]:
            mine, used = self.by_input().get(name, []), self.used[name]
            want = [key for keys in own_order(name, flow, used + len(mine) + 1) for key in keys]
            assert mine == want[used : used + len(mine)], (name, mine, want, used)


def test_a_run_is_what_its_plan_says_whatever_is_done_to_it() -> None:
    run_state_machine_as_test(Planned, settings=examples(40))


def test_a_run_that_lost_an_input_can_be_saved_at_once() -> None:
    """What came last is of an input that the mixture which took over does not have."""
    flows = {"a": numbers(9, "a"), "b": numbers(9, "b")}
    with ps.Loader(ps.mix(flows, {"a": 9, "b": 1})) as loader:
        next(iter(loader))
        assert loader.keys() == [("a", 0, 0)]
        state = loader.state_dict()
    with ps.Loader(ps.mix({"b": flows["b"]})) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        loader.load_state_dict(through_json(loader.state_dict()))
        assert next(iter(loader)) == 0
