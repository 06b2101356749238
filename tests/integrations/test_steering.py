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
from example_counts import rounds
from helpers import through_json
from penstock.integrations.losses import mean_by_source, sum_by_source
from penstock.integrations.scaling_laws import LossCurve, ScalingLaw
from penstock.integrations.steering import (
    ADO,
    Controller,
    DoReMi,
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
    reference = dict.fromkeys(NAMES, 1.5)
    return {
        "odm": OnlineMixing,
        "ratio": lambda: LossRatio(EQUAL, reference, strength=2),
        "doremi": lambda: DoReMi(reference, rate=0.1),
        "ado": lambda: ADO(EQUAL, warmup=3, refit=4),
    }[name]()


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
@pytest.mark.parametrize("name", ["odm", "ratio", "doremi", "ado"])
def test_a_run_is_resumed_on_other_ranks_and_replayed_without_the_controller(name: str) -> None:
    whole, log, _ = run(name, 1, range(60))
    assert len(log) > 8
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


# ---------------------------------------------------------------- DoReMi


def test_doremi_multiplies_by_the_exponential_of_the_excess() -> None:
    rng = np.random.default_rng(1)
    doremi, weights = DoReMi(rate=0.7, smoothing=0.01), dict.fromkeys(NAMES, 1 / 3)
    wanted, total = np.full(3, 1 / 3), np.zeros(3)
    for _ in range(50):
        excess = rng.normal(0.2, 0.5, 3)
        weights = doremi.propose(weights, dict(zip(NAMES, excess.tolist(), strict=True)))
        wanted = wanted * np.exp(0.7 * np.maximum(excess, 0))
        wanted = 0.99 * wanted / wanted.sum() + 0.01 / 3
        total += wanted
        np.testing.assert_allclose([*weights.values()], wanted, rtol=1e-9)
    np.testing.assert_allclose([*doremi.average.values()], total / 50, rtol=1e-9)


def test_doremi_keeps_the_excess_of_a_source_without_a_loss() -> None:
    one, other = DoReMi({"a": 1.0, "b": 1.0}), DoReMi({"a": 1.0, "b": 1.0})
    weights = {"a": 0.5, "b": 0.5}
    one.propose(weights, {"a": 2.0, "b": 1.0})
    other.load_state_dict(through_json(one.state_dict()))
    again = one.propose(weights, {"b": 1.0})
    assert again == other.propose(weights, {"a": 2.0, "b": float("nan")}) and again["a"] > 0.7
    assert one.average == other.average
    with pytest.raises(ps.ConfigError, match="the reference has no loss of 'c'"):
        one.propose({"a": 0.5, "c": 0.5}, {"c": 1.0})


# ---------------------------------------------------------------- ADO

LAWS = {
    "code": ScalingLaw(1.0, 3.0, 0.5),
    "text": ScalingLaw(2.0, 4.0, 0.2),
    "math": ScalingLaw(0.5, 5.0, 0.35),
}


def follow_paper(prior: dict[str, float], rounds: range, smallest: float = 0.01) -> list[Any]:
    """Return the weights of the paper for known laws, in a run that begins with the prior."""
    mu = np.asarray([*prior.values()]) / sum(prior.values())
    recent, mean, weights, found = mu, mu, mu, list[Any]()
    for n in range(1, rounds.stop):
        recent = 0.1 * weights + 0.9 * recent
        if n >= rounds.start:
            speed = np.asarray([law.power * (law.loss(n) - law.floor) / n for law in LAWS.values()])
            preferred = mu * speed * recent**0.5
            preferred = np.maximum(preferred / preferred.sum(), smallest)
            preferred = preferred / preferred.sum()
            weights = 0.1 * preferred + 0.9 * mean
            mean = mean + (preferred - mean) / (n + 1)
        found.append(weights)
    return found


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_ado_follows_its_paper_for_known_power_laws(noise: float) -> None:
    prior = {"code": 2.0, "text": 1.0, "math": 1.0}
    rng, total = np.random.default_rng(3), 4.0
    ado, weights = ADO(prior, warmup=20, refit=10), {n: w / total for n, w in prior.items()}
    for n, wanted in enumerate(follow_paper(prior, range(30, 600)), 1):
        measured = {
            name: law.loss(n) * float(np.exp(noise * rng.normal())) for name, law in LAWS.items()
        }
        weights = ado.propose(weights, measured) or weights
        np.testing.assert_allclose(
            [*weights.values()], wanted, atol=0.04 if noise else 2e-3, err_msg=f"round {n}"
        )
    # Code has the steepest law at first; later text, whose small power lasts, gains on it.
    assert ado.scaling_laws.keys() == LAWS.keys()
    speeds = {name: law.speed(600) * 600 for name, law in LAWS.items()}
    assert max(speeds, key=speeds.__getitem__) == "text"
    paths = follow_paper(prior, range(30, 600))
    assert paths[599 - 1][1] > paths[40][1] and weights["text"] > 0.25


def toy_run(log: list[Any] | None = None) -> tuple[Keys, list[Any], list[dict[str, float]]]:
    """Train on packed rows with losses that follow the laws; replay a log instead, if given."""
    rng = np.random.default_rng(0)
    sources = dict[str, ps.Dataset]()
    for number, name in enumerate(NAMES):
        ends = np.cumsum([0, *rng.integers(2, 12, 60)])
        tokens = np.full(int(ends[-1]), number, np.int32)
        sources[name] = ps.from_tokens(tokens, ends, name=name).shuffle().repeat()
    rows = ps.mix(sources, EQUAL, seed=1).pack(24, provenance=True).batch(4)
    keys, weights = Keys(), list[dict[str, float]]()
    with ps.Loader(rows) as loader:
        steering = Steering(loader, ADO(EQUAL, warmup=5, refit=5), EQUAL, floor=0.02, every=2)
        if log is not None:
            replay(loader, log)
        for step, batch in zip(range(120), loader, strict=False):
            keys.append(loader.keys())
            if log is not None:
                continue
            # Every token has the loss of its source, at the round of the controller.
            curve = [LAWS[name].loss(step // 2 + 1) for name in rows.sources]
            losses = np.asarray([*curve, 0.0])[batch["source_ids"]]
            sums = sum_by_source(losses, batch["source_ids"], len(rows.sources))
            steering(mean_by_source(sums, rows.sources))
            weights.append(dict(steering.weights))
        return keys, steering.log, weights


def test_ado_steers_a_packed_run_that_replays_without_it() -> None:
    keys, log, weights = toy_run()
    assert len(log) > 40 and toy_run(log)[0] == keys
    prior = dict.fromkeys(LAWS, 1.0)
    for round_, wanted in enumerate(follow_paper(prior, range(10, 60)), 1):
        np.testing.assert_allclose(
            [weights[2 * round_ - 1][name] for name in LAWS], wanted, atol=2e-3
        )
    drawn = [[key[0] for step in keys[a:b] for key in step] for a, b in ((0, 20), (90, 120))]
    before, after = ([names.count(name) / len(names) for name in LAWS] for names in drawn)
    assert max(abs(share - 1 / 3) for share in before) < 0.03
    np.testing.assert_allclose(after, [weights[-1][name] for name in LAWS], atol=0.05)
    assert toy_run()[1] == log


def test_ado_goes_on_from_a_small_state() -> None:
    prior = dict.fromkeys(NAMES, 1.0)
    one, weights = ADO(prior, warmup=5, refit=7), dict.fromkeys(NAMES, 1 / 3)
    other = ADO(prior, warmup=5, refit=7)
    last = rounds(250, 500)  # a fit takes the longer the more there is behind it
    for n in range(1, last + 50):
        signals = {name: law.loss(n) for name, law in LAWS.items() if (n + len(name)) % 3}
        proposed = one.propose(weights, signals)
        if n == last:
            state = through_json(one.state_dict())
            assert len(str(state)) < 40_000
            other.load_state_dict(state)
        elif n > last:
            assert other.propose(weights, signals) == proposed
        weights = proposed or weights
    assert through_json(other.state_dict()) == through_json(one.state_dict())
    with pytest.raises(ps.ConfigError, match="the state has the sources code, text, math"):
        ADO({"a": 1.0}).load_state_dict(one.state_dict())


def test_ado_gives_a_source_without_losses_the_middle_speed() -> None:
    ado, weights = ADO(dict.fromkeys("abc", 1.0), warmup=2, refit=5), dict.fromkeys("abc", 1 / 3)
    for n in range(1, 100):
        signals = {"a": 1 + n**-0.5, "b": 1 + n**-0.1, "c": float("nan")}
        proposed = ado.propose(weights, signals)
        assert proposed is None or n >= 7
        weights = proposed or weights
    assert ado.scaling_laws.keys() == {"a", "b"} and abs(fsum(weights.values()) - 1) < 1e-12
    low, high = sorted((weights["a"], weights["b"]))
    assert low < weights["c"] < high


def test_curves_that_no_law_fits() -> None:
    curve = LossCurve()
    for n in range(1, 4):
        curve.add(n, 2.0)
    assert curve.fit() is None
    curve.add(4, 2.0)
    assert curve.fit() == ScalingLaw(2.0, 0.0, 0.01)
    rising = LossCurve()
    for n in range(1, 50):
        rising.add(n, 1 + n / 10)
    law = rising.fit()
    assert law is not None and law.speed(50) == 0
    rising.add(50, 0.0)
    assert rising.fit() is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DoReMi(rate=-1.0), r"DoReMi\(rate=-1.0\): give a number from 0"),
        (lambda: DoReMi(smoothing=2), r"DoReMi\(smoothing=2\): give a number from 0 to 1"),
        (lambda: ADO({}), "ADO.prior"),
        (lambda: ADO({"a": 0.0, "b": 1.0}), "a weight above 0"),
        (lambda: ADO(EQUAL, warmup=0), r"ADO\(warmup=0\)"),
        (lambda: ADO(EQUAL, refit=0), r"ADO\(refit=0\)"),
        (lambda: ADO(EQUAL, preference=1.5), r"ADO\(preference=1.5\)"),
        (lambda: ADO(EQUAL, memory=float("nan")), r"ADO\(memory=nan\)"),
        (lambda: ADO(EQUAL, credit=-1), r"ADO\(credit=-1\)"),
        (lambda: ADO(EQUAL, smallest=0.5), r"ADO\(smallest=0.5\): give a number from 0 to 0.33"),
        (lambda: ADO(EQUAL).propose({"a": 1.0}, {}), "the prior has code, text, math"),
    ],
)
def test_wrong_options_of_controllers_are_named(make: Any, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=said):
        make()
