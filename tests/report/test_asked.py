"""The requested amounts are integrals of weights; runs of endless sources deliver them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.report import open_target, shares


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Three sources whose documents are of very different lengths."""
    found, rng = tmp_path_factory.mktemp("asked"), np.random.default_rng(0)
    for name, low, high in (("a", 2, 5), ("b", 40, 80), ("c", 10, 30)):
        lengths = rng.integers(low, high, 300).tolist()
        pq.write_table(
            pa.table({"ids": [list(range(n)) for n in lengths]}), found / f"{name}.parquet"
        )
    return found


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
@pytest.mark.parametrize("interpolation", ["step", "linear"])
def test_packed_plans_with_a_schedule(
    folder: Path, unit: str, method: str, interpolation: str
) -> None:
    (folder / "m.yaml").write_text(
        f"unit: {unit}\nhorizon: {{steps: 200}}\nbatch: {{size: 2}}\npack: {{length: 64, method: {method}}}\n"
        f"schedule: {{unit: steps, interpolation: {interpolation}, points: "
        "{0: {a: 1, b: 1, c: 0}, 100: {a: 0, b: 1, c: 3}}}\n"
        f"sources: {{{', '.join(f'{name}: {{path: {name}.parquet, lengths: ids}}' for name in 'abc')}}}\n"
    )
    target = open_target(folder / "m.yaml")
    rows = {row.source: row for row in shares.rows(target, target.horizon(None))}
    assert target.indexed == (method != "first_fit")
    off = (
        0.03 if method == "best_fit" else 0.008
    )  # the horizon cuts a window, whose rows are shuffled
    assert all(row.share == pytest.approx(row.requested, abs=off) for row in rows.values())
    if (
        unit == "tokens"
    ):  # half the run a and b alike, then b and c one to three; or on a ramp from here to there
        wanted = (0.25, 0.375, 0.375) if interpolation == "step" else (0.125, 0.3125, 0.5625)
        assert [rows[name].requested for name in "abc"] == pytest.approx(wanted, abs=0.01)
