"""Token units: means of lengths that are known, however deep; what must be measured is measured once, and kept."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import through_json
from penstock.engine.steps.mean_lengths import mean_length, tokens_of


def store(sizes: Any, name: str = "store") -> ps.Dataset:
    sizes = np.asarray(sizes)
    return ps.from_tokens(
        np.zeros(int(sizes.sum()), np.int32), np.concatenate([[0], np.cumsum(sizes)]), name=name
    )


SIZES = np.random.default_rng(2).integers(1, 60, 500)
EVEN = np.full(300, 7)


@pytest.mark.parametrize(
    ("ds", "mean"),
    [
        (store(SIZES).shuffle(), SIZES.mean()),
        (store(SIZES).shuffle(block=(8, 4)).repeat(3), SIZES.mean()),
        (store(SIZES).repeat(), SIZES.mean()),
        (store(SIZES)[100:400:3], SIZES[100:400:3].mean()),
        (store(SIZES)[::-1][:50].repeat(reshuffle=False), SIZES[-50:].mean()),
        (store(SIZES).with_source(lambda x, *_: x), SIZES.mean()),
        (store(SIZES).concat(store(EVEN, "even")), np.concatenate([SIZES, EVEN]).mean()),
        (store(SIZES).zip(store(EVEN, "even")), SIZES[:300].mean() + 7),
        (store(SIZES).repeat().zip(store(EVEN, "even").repeat()), SIZES.mean() + 7),
        (store(SIZES).pack(64), 64),
        (store(SIZES).shuffle().pack(64, method="best_fit"), 64),
        (
            ps.mix({"a": store(SIZES), "b": store(EVEN)}, stop="all_exhausted"),
            np.concatenate([SIZES, EVEN]).mean(),
        ),
        (ps.mix({"a": store(SIZES), "b": store(EVEN)}, {"a": 1, "b": 3}), (SIZES.mean() + 21) / 4),
        # Half of the tokens each: mean length is the harmonic mean.
        (
            ps.mix({"a": store(SIZES), "b": store(EVEN)}, unit="tokens"),
            2 / (1 / SIZES.mean() + 1 / 7),
        ),
    ],
)
def test_means_are_exact_however_deep(ds: ps.Dataset, mean: float) -> None:
    assert ds.tree.mean_tokens() == pytest.approx(mean, rel=1e-9)


def test_the_mean_of_a_slice_is_that_of_its_own_rows() -> None:
    ds = store(SIZES).shuffle(seed=5)[:40]
    assert ds.tree.mean_tokens() == np.mean([len(sample) for sample in ds])
    mixed = ps.mix({"a": store(SIZES).shuffle(), "b": store(EVEN)}, {"a": 2, "b": 1}, seed=4).limit(
        90
    )
    assert mixed.tree.mean_tokens() == pytest.approx(np.mean([len(sample) for sample in mixed]))


@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.shuffle(),
        lambda ds: ds[20:],
        lambda ds: ds.shuffle().limit(3_000).repeat(),
        lambda ds: ps.mix({"x": ds, "y": ds.shuffle(seed=9)}, seed=3),
        lambda ds: ds.concat(ds[:100]),
    ],
)
def test_a2_token_weights_use_lengths_however_deep(step: Any) -> None:
    """.5/.3/.2 asked gave .445/.417/.138 where something stood over the store."""
    rng = np.random.default_rng(0)
    asked = {"a": 0.5, "b": 0.3, "c": 0.2}
    sizes = [np.maximum(1, rng.lognormal(mu, 2, 4_000)).astype(int) for mu in (3.0, 4.0, 5.0)]
    flows = {name: step(store(each, name)) for name, each in zip("abc", sizes, strict=True)}
    ds = ps.mix(flows, asked, unit="tokens", seed=1)
    builder, each = ds.compiled.builder, np.zeros(len(ds.compiled.builder.leaves), np.int64)
    ds.compiled.op.tokens(1_000_000, builder.lengths, each)
    tokens = np.bincount(["abc".index(leaf.name[0]) for leaf in builder.leaves], each)
    off = np.abs(tokens - tokens.sum() * np.asarray([0.5, 0.3, 0.2]))
    assert (off < max(each.max() for each in sizes)).all()


class Counting:
    """Doubles a document, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, doc: Any) -> Any:
        self.calls += 1
        return np.concatenate([doc, doc])


def test_what_is_measured_is_measured_once_and_said(caplog: pytest.LogCaptureFixture) -> None:
    double = Counting()
    with caplog.at_level(logging.WARNING, "penstock"):
        ds = ps.mix(
            {"a": store(EVEN, "a"), "b": store(EVEN, "b").map(double)}, unit="tokens", seed=1
        )
    assert [record.getMessage() for record in caplog.records] == [
        "mix: the lengths of 'b' are not known, so 256 of its samples were read: 14.0 tokens each on average; the "
        "states of the run store this figure"
    ]
    assert double.calls == 256
    assert ds.plan.counts(3_000) == {"a": 2_000, "b": 1_000}
    with ps.Loader(ds) as loader:
        loader.set_weights({"a": 1, "b": 3})
        ds.plan.for_state(loader.state_dict()).at(7)
        assert double.calls == 256 and len(caplog.records) == 1


def test_the_state_keeps_what_was_measured() -> None:
    """A function that gives other lengths in another process must not move a run under way."""

    def made(times: int) -> ps.Dataset:
        def doc(x: Any) -> Any:
            return np.repeat(x, times)

        return ps.mix(
            {"a": store(EVEN, "a"), "b": store(EVEN, "b").map(doc)}, unit="tokens", seed=1
        )

    def keys(loader: ps.Loader, n: int) -> list[Any]:
        steps = iter(loader)
        return [loader.keys() for _ in range(n) if next(steps) is not None]

    with ps.Loader(made(2)) as loader:
        keys(loader, 40)
        state = through_json(loader.state_dict())
        rest = keys(loader, 60)
    assert state["pipeline"]["lengths"] == {"a": 7, "b": 14}
    with ps.Loader(made(5)) as other:
        other.load_state_dict(state)
        assert keys(other, 60) == rest
        assert other.state_dict()["pipeline"] == state["pipeline"]
    plan = made(5).plan.for_state(state)
    assert [[sample.key for sample in plan.at(p)] for p in range(40, 100)] == rest


def test_schedules_may_count_tokens_also_when_set_in_a_run() -> None:
    flows = {"a": store(EVEN, "a").shuffle(), "b": store(2 * EVEN, "b").shuffle()}
    later = ps.Schedule([(0, {"a": 1, "b": 0}), (7_000, {"a": 0, "b": 1})], unit="tokens")
    assert ps.mix(flows, later).plan.counts(1_100) == {"a": 1_000, "b": 100}
    ds = ps.mix(flows, {"a": 1, "b": 1}, unit="tokens")
    with ps.Loader(ds) as loader:
        loader.set_weights(later, at=0)
        assert ds.plan.for_state(loader.state_dict()).counts(1_100) == {"a": 1_000, "b": 100}


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted_oversample"])
def test_means_of_mixtures_whose_passes_differ(stop: Any) -> None:
    """Before, the passes of 2^40 draws were added up one by one, without end."""
    flows = {"a": store(SIZES[:30], "a").shuffle(), "b": store(SIZES[:50], "b").shuffle()}
    ending = ps.mix(flows, {"a": 2, "b": 1}, stop=stop)
    inner = ps.mix({"ending": ending, "c": store(EVEN, "c")}, {"ending": 1, "c": 1}, unit="tokens")
    mean = inner.tree.mean_tokens()
    assert mean is not None
    totals = inner.plan.counts(20_000)
    drawn = {"ending/a": SIZES[:30].mean(), "ending/b": SIZES[:50].mean(), "c": 7}
    expected = sum(totals[name] * length for name, length in drawn.items()) / 20_000
    assert mean == pytest.approx(expected, rel=0.05)
    outer = ps.mix({"inner": inner, "d": store(EVEN, "d")}, {"inner": 1, "d": 1}, unit="tokens")
    assert len(outer.plan.at(5)) == 1


def test_tokens_of_samples() -> None:
    assert (
        tokens_of([1, 2, 3], "x")
        == tokens_of((1, 2, 3), "x")
        == tokens_of({"id": 3, "ids": [1, 2, 3]}, "x")
        == 3
    )
    assert tokens_of((np.arange(3), {"ids": [1, 2]}), "x") == 5
    for sample in ({"id": 3}, 4):
        with pytest.raises(ps.ConfigError, match="'x'"):
            tokens_of(sample, "x")
    assert mean_length("x", store([0, 0]).tree) == 1.0
    assert ps.from_sequence("ab").tree.mean_tokens() is None
    assert store(EVEN).zip(ps.from_sequence("abc")).tree.mean_tokens() is None


def test_a_function_that_fails_on_a_measured_sample_raises_its_error() -> None:
    def fail(x: int) -> int:
        raise ValueError(f"no {x}")

    with pytest.raises(ValueError, match="no 1") as error:
        ps.mix({"a": ps.from_sequence([1, 2]).map(fail)}, unit="tokens")[0]
    assert error.value.__notes__ == ["penstock: mix: while the lengths of 'a' are measured"]
