"""Shares of what was trained: draws put in for what was lost, their log, and the same order from it."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.mixing import Mixture
from penstock.replacements import ReplacedDraws, Replacements, read_log

NAMES = ("a", "b", "c")


def mixture(weights: list[int]) -> Mixture:
    return Mixture(NAMES, dict(zip(NAMES, weights, strict=True)), (7, None, 3), key=5)


def model(mix: Mixture, log: list[tuple[int, str]], n: int) -> list[tuple[int, int]]:
    """The first draws of a mixture with these put in, one by one."""
    base = iter(mix.at(np.arange(n))[0].tolist())
    put, drawn, out = dict(log), [0, 0, 0], list[tuple[int, int]]()
    for position in range(n):
        source = NAMES.index(put[position]) if position in put else next(base)
        out.append((source, drawn[source]))
        drawn[source] += 1
    return out


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
    st.dictionaries(st.integers(0, 60), st.sampled_from(NAMES), max_size=30),
    st.integers(0, 60),
    st.sets(st.integers(0, 59), max_size=8),
)
@examples(150)
def test_every_question_is_answered_by_one_order(
    weights: list[int], log: dict[int, str], at: int, needed: set[int]
) -> None:
    mix, draws = mixture(weights), sorted(log.items())
    whole, expected = ReplacedDraws(mix, Replacements(0, {}, tuple(draws))), model(mix, draws, 90)
    short = whole.replace_lost([], at, np.asarray(sorted(p for p in needed if p < at), np.int64))
    drawings = [(whole, 0)]
    pending = [place for place, _ in draws if place >= at]
    if pending == [
        *range(at, at + len(pending))
    ]:  # `lost` puts all that is owed next: where it is, nothing changes
        read = Replacements.from_json(through_json(short.to_json()))
        assert read == short
        drawings.append((ReplacedDraws(mix, read), at))
    for drawing, first in drawings:
        places = np.random.default_rng(1).permutation(np.arange(first, 90))
        source, k = drawing.at(places)
        assert [*zip(source.tolist(), k.tolist(), strict=True)] == [
            expected[p] for p in places.tolist()
        ]
        assert drawing.positions_of(source, k).tolist() == places.tolist()
        for position in range(first, 90, 7):
            drawn = Counter(source for source, _ in expected[:position])
            assert drawing.counts(position).tolist() == [drawn[i] for i in range(3)]
    known: list[int] = sorted({*(p for p in needed if p < at), *([at - 1] if at else [])})
    early = ReplacedDraws(mix, short)
    if known:
        source, k = early.at(np.asarray(known))
        assert [*zip(source.tolist(), k.tolist(), strict=True)] == [expected[int(p)] for p in known]
    for position in {*range(at)} - {*known}:
        with pytest.raises(ps.StateError, match=r"plan.replay\(log\)"):
            early.at(np.asarray([position]))


def test_before_what_is_told_only_the_beginning_is_known() -> None:
    mix = mixture([2, 1, 1])
    drawing = ReplacedDraws(mix, Replacements(5, {"a": 1}, ((6, "b"),)))
    assert drawing.counts(0).tolist() == [0, 0, 0]
    assert int(drawing.counts(5).sum()) == 5
    for position in range(1, 5):
        with pytest.raises(ps.StateError, match=f"^position {position} is before 5"):
            drawing.counts(position)
    for position in range(5):
        with pytest.raises(ps.StateError, match=f"^position {position} is before 5"):
            drawing.at(np.asarray([position]))
    source, k = drawing.at(np.arange(5, 40))
    assert drawing.positions_of(source, k).tolist() == [*range(5, 40)]
    with pytest.raises(ps.StateError, match="^position 0 is before 5"):
        drawing.positions_of(np.asarray([0]), np.asarray([0]))


def test_a_log_of_several_lives_is_read_in_order() -> None:
    log: list[Any] = [
        {"from": 0}, {"position": 3, "source": "a"}, {"position": 9, "source": "b"}, {"position": 10, "source": "a"},
        {"from": 9}, {"position": 9, "source": "b"}, {"position": 12, "source": "c"},
    ]  # fmt: skip
    assert read_log(log).draws == ((3, "a"), (9, "b"), (12, "c"))
    for wrong in (
        {"position": 12, "source": "a"},
        {"position": -1, "source": "a"},
        {"at": 3},
        5,
        {"position": 13},
    ):
        with pytest.raises(ps.StateError, match="not a record"):
            read_log([*log, wrong])


# ------------------------------------------------------------ runs

LOST = {"easy": 0.9, "hard": 0.1, "mid": 0.5}
ASKED = {"easy": 0.5, "hard": 0.2, "mid": 0.3}


def tasks(count: Any = "settled") -> ps.Dataset:
    flows = {
        name: ps.from_sequence([f"{name}{i}" for i in range(40)], name=name).shuffle()
        for name in LOST
    }
    return ps.mix(flows, ASKED, seed=7, count=count).map(lambda x: x.rstrip("0123456789"))


class Run:
    """64 in flight, finished in random order, lost as often as their source says."""

    def __init__(self, make: Any, seed: int, in_flight: int = 64) -> None:
        self.random, self.in_flight, self.make = random.Random(seed), in_flight, make
        self.loader, self.flight = ps.Loader(make()), dict[str, Any]()
        self.given, self.trained, self.furthest = dict[str, Any](), Counter[str](), 0.0
        self.log, self.largest = list[dict[str, Any]](), 0

    def step(self) -> None:
        for uid, value in self.loader.lease(n) if (n := self.in_flight - len(self.flight)) else []:
            assert self.given.setdefault(uid, value) == value
            self.flight[uid] = value
        for uid in self.random.sample([*self.flight], self.random.randint(1, 9)):
            name = self.flight.pop(uid)
            lost = self.random.random() < LOST[name]
            self.loader.settle(
                uid, self.random.choice(["filtered", "failed"]) if lost else "trained"
            )
            self.trained[name] += not lost
            total = self.trained.total()
            off = max(abs(self.trained[name] - ASKED[name] * total) for name in ASKED)
            self.furthest = max(self.furthest, off)

    def checkpoint(self) -> Any:
        """The log comes first: what it tells too much the next life takes back."""
        self.log += self.loader.settled_log() if self.loader._leases else []  # pyright: ignore[reportPrivateUsage]
        state = self.loader.state_dict()
        made = [change for change in state["changes"] if change["event"]["event"] == "made_up"]
        self.largest = max(self.largest, len(json.dumps([state["settling"], made])))
        return through_json([state, dict(self.trained), self.given])

    def back(self, saved: Any) -> None:
        """Killed, and begun again from a checkpoint."""
        self.loader, self.flight = ps.Loader(self.make()), {}
        state, trained, self.given = through_json(saved)
        self.trained = Counter(trained)
        self.loader.load_state_dict(state)


@pytest.mark.parametrize("seed", range(2))
def test_trained_counts_keep_their_shares_whatever_is_lost(seed: int) -> None:
    run, saved = Run(tasks, seed), None
    for turn in range(300):
        run.step()
        if turn % 10 == 3:
            saved = run.checkpoint()
        if turn % 25 == 24:  # what happened since the last checkpoint is undone
            run.back(saved)
    saved = run.checkpoint()
    plain = Run(lambda: tasks("drawn"), seed)
    for _ in range(300):
        plain.step()
    assert run.furthest <= 64 + 2 < plain.furthest
    assert run.largest < 4096
    log = through_json(run.log)
    again, plan = tasks().plan.replay(log).dataset, tasks().plan.for_state(saved[0]).replay(log)
    places = sorted(int(uid[2:]) for uid in run.given)
    assert places == [*range(len(places))]
    assert [again[place] for place in places] == [run.given[f"0:{place}"] for place in places]
    loader = ps.Loader(again)
    assert [value for _, value in zip(places, loader, strict=False)] == [
        again[place] for place in places
    ]
    for place in places[::97]:
        (sample,) = plan.at(f"0:{place}")
        assert sample.source == again[place]
    assert sum(plan.counts(len(places)).values()) == len(places)


def test_what_was_given_is_what_the_plan_of_the_state_says() -> None:
    ds = ps.mix(
        {name: ps.from_sequence([(name, i) for i in range(5)], name=name) for name in "ab"},
        count="settled",
    )
    loader = ps.Loader(ds)
    first = loader.lease(6)
    for item in first[:4]:
        loader.settle(item.uid, "filtered" if item.value[0] == "a" else "trained")
    plan = ds.plan.for_state(loader.state_dict())
    told = [(sample.source, sample.index) for place in range(4, 14) for sample in plan.at(place)]
    assert told == [item.value for item in [*first[4:], *loader.lease(8)]]
    with pytest.raises(ps.StateError, match=r"replay\(log\)"):
        plan.at(0)
    assert plan.find("a", 3, within=range(6, 20)) == [
        p for p in range(6, 20) if plan.at(p)[0].key[::2] == ("a", 3)
    ]
    loader.settle("0:4", "requeue")
    assert loader.lease(1) == [first[4]]
    other = ds.plan.replay([{"from": 0}, {"position": 2, "source": "b"}]).dataset
    assert [other[i][0] for i in range(3)][2] == "b"
    with pytest.raises(ps.StateError, match="another run"):
        plan.replay([{"from": 0}, {"position": 2, "source": "b"}])


def test_what_cannot_be_counted_so_is_refused() -> None:
    flows = {name: ps.from_sequence(name * 9) for name in "ab"}
    wrong: list[dict[str, Any]] = [
        {"stop": "first_exhausted"},
        {"max_epochs": 2},
        {"unit": "tokens"},
    ]
    for options in wrong:
        with pytest.raises(ps.ConfigError, match="settled"):
            ps.mix(flows, count="settled", **options)
    with pytest.raises(ps.ConfigError, match="settled"):
        ps.mix({**flows, "c": ps.from_sequence("ccc").filter(bool).repeat()}, count="settled")
    with pytest.raises(ps.ConfigError, match="count"):
        ps.mix(flows, count="trained")  # pyright: ignore[reportArgumentType]
    ds = ps.mix(flows, count="settled")
    for other in (ds.batch(2), ds.limit(9), ps.mix({"x": ds, "y": flows["a"]}), ds.repeat_each(2)):
        with pytest.raises(ps.ConfigError, match="only functions above"):
            ps.Loader(other).lease(1)
    with pytest.raises(ps.ConfigError, match="keeps its weights"):
        ps.Loader(ds).set_weights({"a": 1, "b": 2})
    with pytest.raises(ps.ConfigError, match="settled_log"):
        ps.Loader(flows["a"]).settled_log()
    with pytest.raises(ps.ConfigError, match="replay"):
        flows["a"].plan.replay([])
    loader = ps.Loader(ds)
    loader.lease(2)
    loader.settle("0:0", "failed")
    loader.settle("0:1", "trained")
    with pytest.raises(ps.StateError):
        ps.Loader(ps.mix(flows)).load_state_dict(loader.state_dict())
    with pytest.raises(ps.StateError, match="cannot be adopted"):
        ps.Loader(ps.mix(flows)).load_state_dict(loader.state_dict(), on_mismatch="adopt")
    assert [*zip(range(3), ps.Loader(ds), strict=False)] == [
        *enumerate([x for _, x in ps.Loader(ps.mix(flows)).lease(3)])
    ]


@pytest.mark.parametrize("wrong", [
    {"at": -1}, {"at": "x"}, {"counts": {"a": 99}}, {"counts": {"zz": 1}}, {"draws": {"a": [0]}}, {"draws": {"a": [4, 4]}},
    {"draws": {"zz": [9]}}, {"known": {"a": [[9, 0]]}}, {"known": {"a": [3]}}, {"draws": [1]}, {"known": None},
])  # fmt: skip
def test_a_state_that_tells_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    from penstock.engine.runtime.seal import seal, unseal

    ds = ps.mix({name: ps.from_sequence(name * 9) for name in "ab"}, count="settled")
    loader = ps.Loader(ds)
    loader.lease(4)
    loader.settle("0:0", "failed")
    body = unseal(loader.state_dict())
    body["changes"][0]["event"] |= wrong
    with pytest.raises(ps.StateError):
        ps.Loader(ds).load_state_dict(seal(body))


def test_weights_move_on_only_with_the_draws_of_the_mixture_itself() -> None:
    ramp = ps.Schedule([(0, {"a": 1, "b": 0, "c": 0}), (20, {"a": 0, "b": 1, "c": 0})])
    mix = Mixture(NAMES, ramp, (None, None, None), key=5)
    drawing = ReplacedDraws(mix, Replacements(0, {}, ((3, "c"), (7, "c"), (8, "a"))))
    for position, own in ((0, 0), (3, 3), (4, 3), (7, 6), (8, 6), (9, 6), (12, 9), (30, 27)):
        assert drawing.weights_at(position) == mix.weights_at(own), position
