"""Numbers of loss tokens in a Trainer: on two processes a step equals one computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from example_counts import pick_cases
from jax_ranks import free_port

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from integrations.forked_ranks import run_script
from integrations.loss_counts import ACCUMULATED, STEPS, train_by_hand

pytestmark = pytest.mark.slow  # two processes import transformers

SCRIPT = Path(__file__).with_name("loss_counts.py")


@pytest.mark.parametrize("way", pick_cases(["gathered", "planned"], 2))
def test_the_trainer_gets_the_number_of_all_ranks_and_accumulated_batches(
    way: str, tmp_path: Path
) -> None:
    run_script(SCRIPT, free_port(), way, tmp_path)
    expected = np.asarray(train_by_hand())
    found = [json.loads((tmp_path / f"{way}-{rank}.json").read_text()) for rank in range(2)]
    assert found[0][0] == found[1][0] and len(found[0][0]) == STEPS and ACCUMULATED > 1
    for _, gathers, table in found:
        assert gathers >= STEPS if way == "gathered" else True
        np.testing.assert_allclose(np.asarray(table), expected, atol=1e-5)
    if way == "planned":
        assert found[0][1] < STEPS
