"""Shares of what was trained, on several ranks: reports, draws that all put in alike, and the bound."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

import penstock as ps
from helpers import through_json

LOST = {"easy": 0.9, "hard": 0.1, "mid": 0.5}
ASKED = {"easy": 0.5, "hard": 0.2, "mid": 0.3}


def tasks() -> ps.Dataset:
    flows = {
        name: ps.from_sequence([f"{name}{i}" for i in range(40)], name=name).shuffle()
        for name in LOST
    }
    return ps.mix(flows, ASKED, seed=7, count="settled").map(lambda x: x.rstrip("0123456789"))


class Run:
    """64 in flight over some ranks, which report after every step."""

    def __init__(self, ranks: int, seed: int, saved: Any = None) -> None:
        self.random, self.ranks = random.Random(seed), ranks
        self.loaders = [ps.Loader(tasks(), rank=rank, world_size=ranks) for rank in range(ranks)]
        self.flight, self.settled, self.furthest = (
            [dict[str, str]() for _ in self.loaders],
            dict[str, list[Any]](),
            0.0,
        )
        self.log = list[Any]()
        if saved:
            states, self.settled, self.log = through_json(saved)
            for loader in self.loaders:
                loader.load_state_dict(states)

    def step(self, told: bool = True) -> None:
        for loader, flight in zip(self.loaders, self.flight, strict=True):
            if room := 64 // self.ranks - len(flight):
                for uid, value in loader.lease(room):
                    assert uid not in self.settled and not any(uid in each for each in self.flight)
                    flight[uid] = value
        for loader, flight in zip(self.loaders, self.flight, strict=True):
            for uid in self.random.sample([*flight], min(len(flight), self.random.randint(1, 9))):
                name = flight.pop(uid)
                lost = self.random.random() < LOST[name]
                loader.settle(
                    uid, self.random.choice(["filtered", "failed"]) if lost else "trained"
                )
                self.settled[uid] = [name, not lost]
        counts = Counter(name for name, trained in self.settled.values() if trained)
        off = max(abs(counts[name] - ASKED[name] * counts.total()) for name in ASKED)
        self.furthest = max(self.furthest, off)
        if told:
            reports = through_json([loader.settled_report() for loader in self.loaders])
            self.random.shuffle(reports)
            for loader in self.loaders:
                loader.compensate(reports)

    def save(self) -> Any:
        logs = [loader.settled_log() for loader in self.loaders]
        assert all(log == logs[0] for log in logs)
        self.log += logs[0]
        return [[loader.state_dict() for loader in self.loaders], self.settled, self.log]


@pytest.mark.parametrize("ranks", [2, 3])
def test_trained_counts_keep_their_shares_on_several_ranks(ranks: int) -> None:
    run = Run(ranks, 1)
    for _ in range(40):
        run.step()
    assert run.furthest <= 64 + 2
    states, _, log = run.save()
    for state in states:
        made = [change for change in state["changes"] if change["event"]["event"] == "made_up"]
        assert len(json.dumps([state["settling"], made])) < 4096
    again = tasks().plan.replay(through_json(log)).dataset
    for uid, (name, _) in run.settled.items():
        assert again[int(uid[2:])] == name


def test_any_ranks_go_on_where_any_ranks_were_and_all_know_what_was_lost() -> None:
    """Also where states were saved between a loss and the reports."""
    saved, dice = None, random.Random(5)
    for life, ranks in enumerate([2, 3, 1, 2, 4, 3]):
        run = Run(ranks, life, saved)
        for _ in range(12):
            run.step()
        run.step(told=dice.random() < 0.5)
        assert run.furthest <= 64 + 2
        saved = run.save()
    states, settled, log = through_json(saved)
    again, alone = tasks().plan.replay(log).dataset, ps.Loader(tasks())
    for uid, (name, _) in settled.items():
        assert again[int(uid[2:])] == name
    alone.load_state_dict(states)
    rest = {item.uid: item.value for item in alone.lease(200)}
    assert not rest.keys() & settled.keys()
    assert sorted(int(uid[2:]) for uid in rest.keys() | settled.keys()) == [
        *range(len(rest) + len(settled))
    ]


def test_without_reports_ranks_draw_by_what_they_drew() -> None:
    """Without reports, ranks exceed the bound that reports guarantee."""
    untold = Run(2, 3)
    for _ in range(80):
        untold.step(told=False)
    assert untold.furthest > 64 + 2


def test_reports_of_other_moments_are_refused() -> None:
    pair = [ps.Loader(tasks(), rank=rank, world_size=2) for rank in range(2)]
    for loader in pair:
        loader.settle(loader.lease(4)[0].uid, "filtered")
    early = [loader.settled_report() for loader in pair]
    for wrong in (
        [],
        early[:1],
        [*early, early[0]],
        [early[0]] * 2,
        [{}, {}],
        [{**early[0], "at": -1}, early[1]],
    ):
        with pytest.raises(ps.ConfigError, match="compensate"):
            pair[0].compensate(wrong)
    for loader in pair:
        loader.compensate(early)
        assert loader.settled_report()["lost"] == []
    with pytest.raises(ps.StateError, match="different times"):
        pair[0].compensate(early)
    early = [loader.settled_report() for loader in pair]
    pair[1].lease(1)
    with pytest.raises(ps.ConfigError, match="after its report"):
        pair[1].compensate(early)
    pair[0].compensate([early[0], pair[1].settled_report()])
    lone = [loader.settled_report() for loader in pair]
    pair[0].settle("0:" + str(lone[0]["open"][0]), "failed")  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType]
    reports = [loader.settled_report() for loader in pair]
    pair[0].compensate(reports)
    with pytest.raises(ps.StateError, match="other changes"):  # rank 1 was not given them
        ps.Loader(tasks()).load_state_dict([loader.state_dict() for loader in pair])


def test_on_one_rank_reports_say_nothing_new() -> None:
    loader = ps.Loader(tasks())
    loader.settle(loader.lease(3)[1].uid, "failed")
    before = loader.state_dict()
    loader.compensate([loader.settled_report()])
    assert loader.state_dict() == before
    with pytest.raises(ps.ConfigError, match=r"compensate\(\) needs mix"):
        ps.Loader(ps.from_sequence("ab")).compensate([])
