"""Plans print the steps at which a run begins its stages, whatever unit these count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.report import open_target

HORIZONS = {
    "{loss_tokens: 8000}": ("50%", "{loss_tokens: 3000}"),
    "{samples: 600}": ("50%", "{samples: 201}"),
    "{tokens: 20000}": ("50%", "{tokens: 7001}"),
    "{steps: 60}": ("50%", "{steps: 21}"),
    "{epochs: 0.6}": ("50%",),
}
PACKS = (
    "",
    "pack: {length: 128}",
    "pack: {length: 128, method: best_fit, rows: 16}",
    "pack: {length: 128, method: best_fit, overflow: crop}",
    "pack: {length: 128, method: first_fit}",
)
CASES = [
    (horizon, until, pack)
    for horizon, untils in HORIZONS.items()
    for until in untils
    for pack in PACKS
    if "loss" not in horizon or pack in PACKS[:3]  # other rows have no such horizon
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder, rng = tmp_path_factory.mktemp("borders"), np.random.default_rng(0)
    for name, least in (("early", 0), ("late", 1)):  # one source has empty documents
        sizes = rng.integers(least, 90, 400).tolist()
        masks = [(rng.random(size) < 0.5).tolist() for size in sizes]
        table = pa.table({"ids": [[7] * size for size in sizes], "loss_mask": masks})
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(("horizon", "until", "pack"), CASES)
def test_a_stage_begins_with_the_first_step_of_its_samples(
    folder: Path, horizon: str, until: str, pack: str
) -> None:
    target = open_target(write(folder, horizon, until, pack))
    if not target.indexed:
        assert target.stages == []
        return
    steps = range(target.horizon(None))
    drawn = next(
        step for step in steps if any(one.source == "late" for one in target.rows.at(step=step))
    )
    assert target.stages == [(0, "first"), (drawn, "second")]
    assert drawn > 0 and target.borders(len(steps))[1].row == target.row(drawn)


def test_stages_that_begin_in_one_step_stand_in_one_line(folder: Path) -> None:
    pack = "pack: {length: 128, method: best_fit, rows: 256}"  # packed together
    target = open_target(write(folder, "{steps: 60}", "50%", pack))
    assert [(one.step, one.name) for one in target.borders(60)] == [(0, "first, second")]


def write(folder: Path, horizon: str, until: str, pack: str) -> Path:
    path = folder / "mixture.yaml"
    path.write_text(f"""
unit: samples
horizon: {horizon}
sources:
  early: {{path: early.parquet, lengths: ids, weight: 1}}
  late: {{path: late.parquet, lengths: ids, weight: 0}}
stages:
  - {{name: first, until: {until}}}
  - {{name: second, weights: {{early: 0, late: 1}}}}
{pack}
global_batch_size: 4
""")
    return path
