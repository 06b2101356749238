"""Training under jax.distributed: the samples that torch gets, and the same losses after SIGKILL on other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_flow
from jax_ranks import ROOT, crew, environment

pytestmark = pytest.mark.slow  # processes of jax.distributed that are killed

STEPS, KILLED = 12, 7


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    for name, unit in (
        ("code", "def f{0}(x): return x + {0}\n"),
        ("text", "Page {0} says a little. "),
    ):
        rows = [{"text": unit.format(i) * (1 + i % 3)} for i in range(70)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mixture.yaml").write_text(jax_flow.MIXTURE)
    return folder / "mixture.yaml"


@pytest.fixture(scope="module")
def undisturbed(mixture: Path) -> list[Any]:
    """For two processes, every step: its number, its loss and its samples."""
    return crew(2, "jax_tasks", "training", asked(mixture, "whole"))


def asked(mixture: Path, name: str, killed: int | None = None) -> dict[str, Any]:
    return {
        "mixture": str(mixture),
        "folder": str(mixture.parent / name),
        "steps": STEPS,
        "killed": killed,
    }


def of_a_step(ranks: list[Any]) -> Any:
    """The samples of all ranks, by step."""
    return [sorted(key for _, _, keys in step for key in keys) for step in zip(*ranks, strict=True)]


def test_torch_gets_the_same_samples_at_every_step(mixture: Path, undisturbed: list[Any]) -> None:
    running = [
        subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "jax_flow.py"),
                str(mixture),
                str(rank),
                str(mixture.parent / "meet"),
                str(STEPS),
            ],
            stdout=subprocess.PIPE,
            env=environment(1),
            text=True,
        )
        for rank in range(2)
    ]
    said = [json.loads(each.communicate(timeout=300)[0]) for each in running]
    assert [each.returncode for each in running] == [0, 0]
    assert said == [[keys for _, _, keys in rank] for rank in undisturbed]
    assert {key[0] for keys in said[0] for key in keys} == {"code", "text"}


def test_killed_and_resumed_on_another_number_of_processes(
    mixture: Path, undisturbed: list[Any]
) -> None:
    losses = [loss for _, loss, _ in undisturbed[0]]
    assert losses == [loss for _, loss, _ in undisturbed[1]]
    assert losses[-1] < losses[0] - 0.5  # it learns
    before = crew(2, "jax_tasks", "training", asked(mixture, "killed", KILLED), killed=True)
    assert before == [rank[: KILLED + 1] for rank in undisturbed]
    (after,) = crew(1, "jax_tasks", "training", asked(mixture, "killed"), devices=2)
    first = after[0][0]
    assert first in (3, 6), "from the last checkpoint that was complete"
    assert of_a_step([after]) == of_a_step(undisturbed)[first:]
    np.testing.assert_allclose([loss for _, loss, _ in after], losses[first:], rtol=1e-5)
