"""Evaluations of trainers on one and two ranks: padded, each row counted once, with the right length."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from example_counts import pick_cases
from helpers import wait_for_ranks

pytest.importorskip("torch")

from integrations.evaluating import BATCH, ROWS

pytestmark = pytest.mark.slow  # trainers in processes of their own

SCRIPT = Path(__file__).parent / "evaluating.py"


def evaluate(trainer: str, world: int, folder: Path) -> list[Any]:
    """Return the report of each rank of an evaluation."""
    pytest.importorskip(trainer)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [folder / f"{rank}.json" for rank in range(world)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                str(SCRIPT),
                trainer,
                str(rank),
                str(world),
                str(port),
                str(path),
            ],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, path in enumerate(paths)
    ]
    wait_for_ranks(ranks)
    return [json.loads(path.read_text()) for path in paths]


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


@pytest.mark.parametrize("world", [1, 2])
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
