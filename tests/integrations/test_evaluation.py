"""Evaluations of trainers on one and two ranks: padded, each row counted once, with the right length."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from example_counts import pick_cases
from jax_ranks import free_port

pytest.importorskip("torch")

from integrations.evaluating import BATCH, ROWS
from integrations.forked_ranks import run_script

pytestmark = pytest.mark.slow  # trainers in processes of their own

SCRIPT = Path(__file__).parent / "evaluating.py"


def evaluate(trainer: str, world: int, folder: Path) -> list[Any]:
    """Return the report of each rank of an evaluation."""
    pytest.importorskip(trainer)
    run_script(SCRIPT, trainer, world, free_port(), folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize(
    "trainer,world",
    pick_cases([(name, n) for name in ("lightning", "accelerate") for n in (2, 1)], 2),
)
def test_every_row_counts_once_in_every_evaluation(
    trainer: str, world: int, tmp_path: Path
) -> None:
    reports = evaluate(trainer, world, tmp_path)
    mean = sum(i**2 for i in range(ROWS)) / ROWS
    for report in reports:
        assert report["len"] == math.ceil(ROWS / (BATCH * world))
        assert report["means"] == pytest.approx([mean] * len(report["means"]))
    assert [len(report["evaluations"]) for report in reports] == [3] * world
    for parts in zip(*(report["evaluations"] for report in reports), strict=True):
        assert sorted(row for part in parts for row in part) == list(range(ROWS))
    for report in reports:  # the same each time
        assert report["evaluations"] == [report["evaluations"][0]] * 3


@pytest.mark.parametrize("world", pick_cases([2, 1], 2))
def test_metrics_and_predictions_of_the_trainer_have_no_added_rows(
    world: int, tmp_path: Path
) -> None:
    rows = range(ROWS)
    for report in evaluate("transformers", world, tmp_path):
        assert sorted(report["predicted"]) == [*rows]
        for metrics in report["metrics"]:
            assert sorted(metrics["ids"]) == [*rows]
            assert metrics["labels"] == [2 * i for i in metrics["ids"]]
            assert metrics["pairs"] == [[i, -i] for i in metrics["ids"]]
