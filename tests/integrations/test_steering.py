"""Controllers: limits hold, every change is logged, and a run is resumed and replayed without them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from math import fsum, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import through_json
from penstock.integrations.steering import (
    Controller,
    FileWatched,
    LossRatio,
    OnlineMixing,
    Steering,
    limit_weights,
    replay,
)

NAMES: tuple[str, ...] = ("code", "text", "math")
EQUAL: dict[str, float] = dict.fromkeys(NAMES, 1.0)
Keys = list[list[tuple[str, int, int]]]


def mixture(batch: int) -> ps.Dataset:
    sources = {
        name: ps.from_sequence(range(n), name=name).shuffle()
        for name, n in zip(NAMES, (40, 90, 17), strict=True)
    }
    return ps.mix(sources, EQUAL, seed=5).batch(batch)


def losses(step: int) -> dict[str, float]:
    """Return the losses that a training would measure, equal on every rank."""
    return {name: 2 + sin(step / 7 + place) for place, name in enumerate(NAMES)}


def made(name: str) -> Controller:
    return (
        OnlineMixing() if name == "odm" else LossRatio(EQUAL, dict.fromkeys(NAMES, 1.5), strength=2)
    )


def run(
    name: str, ranks: int, steps: range, state: Mapping[str, Any] | None = None
) -> tuple[Keys, list[Any], list[dict[str, Any]]]:
    """The samples of every global step, the log, and the states after the last step."""
    per_rank, log, saved = list[Keys](), list[Any](), list[dict[str, Any]]()
    for rank in range(ranks):
        with ps.Loader(mixture(12 // ranks), rank=rank, world_size=ranks) as loader:
            steering = Steering(
                loader, made(name), EQUAL, floor=0.05, cap=0.8, largest_step=0.1, every=3
            )
            if state is not None:
                loader.load_state_dict(state["loader"])
                steering.load_state_dict(state["steering"])
            keys, batches = Keys(), iter(loader)
            for step in steps:
                next(batches)
                keys.append(loader.keys())
                steering(losses(step))
            per_rank.append(keys)
            log = steering.log
            saved.append(
                through_json({"loader": loader.state_dict(), "steering": steering.state_dict()})
            )
    together = [
        sorted(key for keys in per_rank for key in keys[step]) for step in range(len(steps))
    ]
    return together, log, saved


@pytest.mark.slow
@pytest.mark.parametrize("name", ["odm", "ratio"])
def test_a_run_is_resumed_on_other_ranks_and_replayed_without_the_controller(name: str) -> None:
    whole, log, _ = run(name, 1, range(60))
    assert len(log) > 10
    first, _, saved = run(name, 2, range(31))
    second, resumed_log, _ = run(name, 3, range(31, 60), saved[0])
    assert first + second == whole and resumed_log == log
    with ps.Loader(mixture(12)) as loader:
        replay(loader, log)
        replayed = list[list[tuple[str, int, int]]]()
        for _ in islice(loader, 60):
            replayed.append(sorted(loader.keys()))
        state = loader.state_dict()
    assert replayed == whole
    plan = mixture(12).plan.for_state(state)
    for step in (0, 30, 59):
        assert sorted((one.source, one.epoch, one.index) for one in plan.at(step)) == whole[step]


def test_limits_hold_whatever_is_proposed() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        count = int(rng.integers(1, 9))
        floor, cap, step = (
            rng.uniform(0, 1 / count),
            rng.uniform(1 / count, 1),
            rng.uniform(0.001, 0.5),
        )
        names = [str(number) for number in range(count)]
        even = dict.fromkeys(names, 1 / count)
        before = limit_weights(
            dict(zip(names, rng.random(count), strict=True)), even, floor, cap, 1.0
        )
        proposed = dict(zip(names, (rng.exponential(1, count) ** 3).tolist(), strict=True))
        new = limit_weights(proposed, before, floor, cap, step)
        assert abs(fsum(new.values()) - 1) < 1e-8
        assert all(floor - 1e-8 <= share <= cap + 1e-8 for share in new.values())
        assert all(abs(new[name] - before[name]) <= step + 1e-8 for name in new)
    assert limit_weights({"a": 3, "b": 1}, {"a": 0.5, "b": 0.5}, 0, 1, 1) == {"a": 0.75, "b": 0.25}
    for wrong in ({"a": -1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}, {"a": float("nan"), "b": 1.0}):
        with pytest.raises(ps.ConfigError, match="weights of at least 0"):
            limit_weights(wrong, {"a": 0.5, "b": 0.5}, 0, 1, 1)


def test_the_bandit_draws_from_what_is_hard_and_forgets_nothing() -> None:
    odm, weights = OnlineMixing(), dict.fromkeys(NAMES, 1 / 3)
    for _ in range(200):
        weights = odm.propose(weights, {"code": 4.0, "text": 1.0, "math": 1.0})
    assert weights["code"] > weights["text"] > 0.02 and abs(fsum(weights.values()) - 1) < 1e-12


def test_a_file_that_is_edited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "weights.json"
    with ps.Loader(mixture(4)) as loader:
        steering = Steering(loader, FileWatched(str(path)), EQUAL)
        batches = iter(loader)
        next(batches)
        steering()
        path.write_text('{"code": 1, "text"')  # half written
        with caplog.at_level(logging.WARNING, "penstock"):
            steering()
        assert "weights not read" in caplog.text and steering.log == []
        path.write_text('{"code": 1, "text": 0, "math": 1}')
        steering()
        steering()
        assert steering.log == [(4, {"code": 0.5, "text": 0.0, "math": 0.5})]
        path.write_text('{"at": 40, "weights": {"code": 0, "text": 1, "math": 0}}')
        steering()
        names = [[key[0] for key in loader.keys()] for _ in islice(batches, 20)]
        assert not {"text"} & {name for step in names[:9] for name in step} and set(names[-1]) == {
            "text"
        }


def test_ranks_begin_together_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text('{"code": 1, "text": 0, "math": 0}')
    with ps.Loader(mixture(4), rank=0, world_size=2) as loader:
        next(iter(loader))
        with pytest.raises(ps.ConfigError, match="`at` is missing"):
            Steering(loader, FileWatched(str(path)), EQUAL)()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"floor": 0.5}, "cannot sum to 1"),
        ({"cap": 0.2}, "cannot sum to 1"),
        ({"largest_step": 0.0}, "is not above 0"),
        ({"every": 0}, "is not above 0"),
    ],
)
def test_limits_that_nothing_can_keep(options: dict[str, Any], said: str) -> None:
    with ps.Loader(mixture(4)) as loader, pytest.raises(ps.ConfigError, match=said):
        Steering(loader, OnlineMixing(), EQUAL, **options)


def test_what_is_wrong_is_named() -> None:
    class Odd:
        def propose(
            self, weights: Mapping[str, float], signals: Mapping[str, float]
        ) -> Mapping[str, float]:
            return {"other": 1.0}

    with ps.Loader(mixture(4)) as loader:
        next(iter(loader))
        with pytest.raises(ps.ConfigError, match="give weights for code, text, math, not other"):
            Steering(loader, Odd(), EQUAL)()
        with pytest.raises(
            ps.ConfigError, match="unknown source 'cod'; the sources are code, text, math"
        ):
            Steering(loader, OnlineMixing(), EQUAL)({"cod": 1.0})
        with pytest.raises(ps.ConfigError, match="smoothing"):
            OnlineMixing(1.0)
        steering = Steering(loader, OnlineMixing(), EQUAL)
        steering({"code": float("nan")})  # a loss that is none counts for nothing
        assert abs(fsum(steering.weights.values()) - 1) < 1e-8


def test_weights_are_no_smoothing() -> None:
    weights: Any = {"a": 1.0}
    with pytest.raises(ps.ConfigError, match="pass weights to Steering"):
        OnlineMixing(weights)
