"""Faults planted in runs, and what `blame` says of the steps in which they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.report import Target, open_target
from penstock.report.blame import blame

STEPS, BAD = 400, range(200, 230)
PLANTS = ("bad", "shard", "long")


def documents(path: Path, rng: np.random.Generator, rows: int, longest: int = 90) -> None:
    tokens = [rng.integers(0, 1000, int(size)).tolist() for size in rng.integers(5, longest, rows)]
    pq.write_table(pa.table({"tokens": tokens}), path)


def run(folder: Path, plants: tuple[str, ...], pack: bool) -> Path:
    """Write a run of twenty sources with planted causes of loss spikes in some of its steps.

    The causes are an unintended source, a shard that repeats, and documents fifteen times as long.
    """
    rng, lines = np.random.default_rng(5), ["seed: 3", f"horizon: {{steps: {STEPS}}}", "sources:"]
    more = "columns: [tokens], lengths: tokens"
    for i in range(17):
        documents(folder / f"s{i}.parquet", rng, int(rng.integers(80, 400)))
        lines.append(f"  s{i}: {{path: s{i}.parquet, {more}}}")
    points = {"s0": 2.0, **{f"s{i}": 1.0 for i in range(1, 17)}}
    bump = {}
    if "bad" in plants:
        documents(folder / "bad.parquet", rng, 900)
        lines.append(f"  bad: {{path: bad.parquet, {more}}}")
        points["bad"], bump["bad"] = 0.02, 6.0
    if "shard" in plants:  # its rows come in their order, a file after the other
        (folder / "shards").mkdir()
        for part in range(60):
            documents(folder / "shards" / f"{part:02d}.parquet", rng, 11)
            if 30 <= part <= 34:
                data = (folder / "shards" / "30.parquet").read_bytes()
                (folder / "shards" / f"{part}.parquet").write_bytes(data)
        lines.append(f"  shards: {{path: shards, {more}, shuffle: none}}")
        points["shards"] = 1.0
    if "long" in plants:
        tokens = [
            rng.integers(0, 1000, int(size) * (15 if 330 <= row < 390 else 1)).tolist()
            for row, size in enumerate(rng.integers(5, 60, 680))
        ]
        pq.write_table(pa.table({"tokens": tokens}), folder / "long.parquet")
        lines.append(f"  long: {{path: long.parquet, {more}, shuffle: none}}")
        points["long"] = 1.0
    said = lambda weights: "{" + ", ".join(f"{k}: {v}" for k, v in weights.items()) + "}"  # noqa: E731
    lines += ["schedule:", "  unit: steps", "  interpolation: step", "  points:"]
    lines += [
        f"    {at}: {said(w)}"
        for at, w in ((0, points), (BAD.start, points | bump), (BAD.stop, points))
    ]
    lines += ["pack: {length: 256}"] if pack else []
    path = folder / "run.yaml"
    path.write_text(
        "\n".join([*lines, "batch: {size: 32}" if not pack else "batch: {size: 4}", ""])
    )
    return path


def where(target: Target, source: str, rows: range) -> range:
    """The steps in which rows of a source that is not shuffled come."""
    found = [
        step for row in (rows[0], rows[-1]) for step in target.plan.find(source, row, range(STEPS))
    ]
    return range(min(found), max(found) + 1)


@pytest.fixture(scope="module", params=["in their order", "packed"])
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return open_target(run(tmp_path_factory.mktemp("faulty"), PLANTS, request.param == "packed"))


def test_each_fault_is_found_in_the_first_three_lines(faulty: Target) -> None:
    (bad, *_) = blame(faulty, BAD)
    assert bad.source == "bad" and bad.kind == "share" and bad.here > 10 * bad.usual
    first = blame(faulty, where(faulty, "shards", range(330, 385)))[:3]
    shard = next(one for one in first if one.source == "shards")
    assert "are repeated within these steps" in shard.text and "30.parquet" in shard.text
    first = blame(faulty, where(faulty, "long", range(330, 390)))[:3]
    burst = next(one for one in first if one.source == "long")
    assert burst.kind in ("length", "share") and "times as long as usual" in burst.text
    if not faulty.packed:  # then all three lie in the same steps
        first = blame(faulty, where(faulty, "shards", range(330, 385)))[:3]
        kinds = {one.source: one.kind for one in first}
        assert kinds == {"bad": "share", "long": "length", "shards": "repeats"}


def test_little_is_said_of_steps_like_all_others(tmp_path: Path) -> None:
    target = open_target(run(tmp_path, (), pack=False))
    assert all(one.bits < 0.1 for one in blame(target, range(150, 200)))
    assert blame(target, range(STEPS)) == [], "there is nothing to compare the whole run with"
