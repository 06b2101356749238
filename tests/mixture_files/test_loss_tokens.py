"""`loss_tokens` in mixture files: unit, amounts, schedule, stages and horizon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.mixture_files import lint
from penstock.report import open_target
from penstock.text import CausalLM

SOURCES = (
    "sources: {a: {path: a.parquet, lengths: tokens, weight: 1},"
    " b: {path: b.parquet, lengths: tokens, weight: 3}}\n"
)


@pytest.fixture
def masks(data: Path) -> dict[str, list[np.ndarray]]:
    """Two sources of 300 documents; few tokens of `a` carry loss, and most of `b`."""
    found = dict[str, list[np.ndarray]]()
    for seed, (name, share) in enumerate((("a", 0.2), ("b", 0.9))):
        rng = np.random.default_rng(seed)
        found[name] = [rng.random(n) < share for n in rng.integers(1, 30, 300).tolist()]
        tokens = [list(range(len(mask))) for mask in found[name]]
        table = pa.table({"tokens": tokens, "loss_mask": found[name]})
        pq.write_table(table, data / f"{name}.parquet")
    return found


def count_loss(ds: ps.Dataset, masks: Any, number: int) -> dict[str, int]:
    held = dict.fromkeys("ab", 0)
    for sample in ds.plan.at(slice(0, number)):
        held[sample.source] += int(masks[sample.source][sample.index][1:].sum())
    return held


def test_weights_are_those_of_the_mixture(masks: Any, write: Any) -> None:
    path = write(f"unit: loss_tokens\n{SOURCES}")
    held = count_loss(ps.load(path), masks, 3_000)
    assert held["b"] / sum(held.values()) == pytest.approx(0.75, abs=0.01)
    assert [problem for problem in lint(path) if problem.severity == "error"] == []
    packed = write(f"unit: loss_tokens\n{SOURCES}pack: {{length: 64, eos: 0}}", "packed.yaml")
    target = open_target(packed)
    requested = target.requested_shares(1_000)
    counts = target.rows.counts(step=1_000)
    total = sum(counts.values())
    assert {n: c / total for n, c in counts.items()} == pytest.approx(requested, abs=0.02)


def test_amounts_are_converted(masks: Any, write: Any) -> None:
    means = {
        name: (np.mean([len(mask) for mask in rows]), np.mean([mask[1:].sum() for mask in rows]))
        for name, rows in masks.items()
    }
    sources = SOURCES.replace("weight: 1", "tokens: 10k").replace("weight: 3", "epochs: 2")
    ds = ps.load(write(f"unit: loss_tokens\n{sources}"))
    rule: Any = ds.tree
    weights = dict(rule.rule.weights)
    assert weights["a"] == pytest.approx(10_000 / means["a"][0] * means["a"][1])
    assert weights["b"] == pytest.approx(600 * means["b"][1])


@pytest.mark.parametrize(
    "pack", ["", "pack: {length: 64}\n", "pack: {length: 64, method: best_fit}\n"]
)
def test_the_horizon_ends_with_the_document_that_reaches_it(
    pack: str, masks: Any, write: Any
) -> None:
    path = write(f"unit: loss_tokens\n{SOURCES}{pack}horizon: {{loss_tokens: 20k}}")
    ds = ps.load(path)
    documents = ps.load(write(f"unit: loss_tokens\n{SOURCES}", "documents.yaml"))
    size = len(ds)
    if not pack:
        assert sum(count_loss(documents, masks, size - 1).values()) < 20_000
        assert sum(count_loss(documents, masks, size).values()) >= 20_000
        return
    loader = ps.Loader(ds.batch(global_batch_size=1).map(CausalLM()))
    assert loader.loss_tokens(steps=size) == pytest.approx(
        20_000, rel=0.3 if "best" in pack else 0.1
    )
    assert open_target(path).horizon(None) == size
    if "best" not in pack:
        held = ds.plan.counts(size)
        drawn = sum(held.values())
        assert sum(count_loss(documents, masks, drawn).values()) >= 20_000
        assert sum(count_loss(documents, masks, drawn - 20).values()) < 20_000


def test_stages_and_schedules_count_loss(masks: Any, write: Any) -> None:
    stages = (
        "horizon: {loss_tokens: 20k}\nstages:\n"
        "  - {until: 50%, weights: {a: 1, b: 1}}\n  - {weights: {a: 0}}\n"
    )
    until = stages.replace("50%", "{loss_tokens: 10k}")
    points = (
        "horizon: {loss_tokens: 20k}\nschedule: {unit: loss_tokens, points: "
        "{0: {a: 1, b: 1}, 10000: {a: 0, b: 1}}}\n"
    )
    sources = SOURCES.replace(", weight: 1", "").replace(", weight: 3", "")
    found = [
        ps.load(write(f"unit: loss_tokens\n{sources}{rest}", f"{i}.yaml"))
        for i, rest in enumerate((stages, until, points))
    ]
    orders = [[(s.source, s.index) for s in ds.plan.at(slice(0, len(ds)))] for ds in found]
    assert orders[0] == orders[1] == orders[2]
    last = max(i for i, (name, _) in enumerate(orders[0]) if name == "a")
    assert sum(count_loss(found[0], masks, last).values()) == pytest.approx(10_000, rel=0.03)


def test_stages_in_steps_of_packed_rows(masks: Any, write: Any) -> None:
    text = (
        f"unit: loss_tokens\n{SOURCES}pack: {{length: 64, eos: 0}}\nglobal_batch_size: 4\n"
        "horizon: {steps: 100}\nstages:\n  - {until: 50%, weights: {a: 1, b: 1}}\n"
        "  - {weights: {a: 0}}\n"
    )
    ds = ps.load(write(text))
    last = max(step for step in range(100) if any(s.source == "a" for s in ds.plan.at(step)))
    assert abs(last - 50) <= 2


def test_what_is_not_known_is_named(data: Path, masks: Any, write: Any) -> None:
    sources = SOURCES.replace(", lengths: tokens", "")
    with pytest.raises(ps.ConfigError, match="mix.unit='loss_tokens'.: the lengths of"):
        ps.load(write(f"unit: loss_tokens\n{sources}"))
    with pytest.raises(ps.ConfigError, match="horizon: loss_tokens: the lengths of"):
        ps.load(write(f"{sources}horizon: {{loss_tokens: 9k}}"))
    with pytest.raises(ps.ConfigError, match="horizon: loss_tokens needs rows that the plan knows"):
        ps.load(
            write(
                f"{sources}pack: {{length: 64, features: [tokens]}}\nhorizon: {{loss_tokens: 9k}}"
            )
        )
