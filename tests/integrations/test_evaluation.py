"""Evaluations of trainers on one and two ranks: padded, each row counted once, with the right length."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import wait_for_ranks

pytest.importorskip("torch")

from integrations.evaluating import BATCH, ROWS

pytestmark = pytest.mark.slow  # trainers in processes of their own

SCRIPT = Path(__file__).parent / "evaluating.py"


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("trainer", ["lightning", "accelerate"])
def test_every_row_counts_once_in_every_evaluation(
    trainer: str, world: int, tmp_path: Path
) -> None:
    pytest.importorskip(trainer)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [tmp_path / f"{rank}.json" for rank in range(world)]
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
    reports = [json.loads(path.read_text()) for path in paths]
    mean = sum(i**2 for i in range(ROWS)) / ROWS
    for report in reports:
        assert report["len"] == math.ceil(ROWS / (BATCH * world))
        assert report["means"] == pytest.approx([mean] * len(report["means"]))
    assert [len(report["evaluations"]) for report in reports] == [3] * world
    for parts in zip(*(report["evaluations"] for report in reports), strict=True):
        assert sorted(row for part in parts for row in part) == list(range(ROWS))
    for report in reports:  # the same each time
        assert report["evaluations"] == [report["evaluations"][0]] * 3
