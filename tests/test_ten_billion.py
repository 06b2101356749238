"""A packed run over more documents than anybody has lengths of in memory: sums made once, then any step at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_counts import rounds
from penstock.engine.steps import block_totals

pytestmark = pytest.mark.slow  # two million documents

MANY = rounds(2_000_000, 10**10)


def script() -> Any:
    path = Path(__file__).parent.parent / "tools" / "ten_billion.py"
    spec = importlib.util.spec_from_file_location("ten_billion", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("method", ["concat_split", "best_fit"])
def test_any_step_of_the_second_pass(method: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.getbasetemp() / "ten_billion"  # one for both
    many, step = script(), MANY * 600 // 8192 * 5 // 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setattr(block_totals, "MIN_CACHED_SAMPLES", MANY // 8)
        found = many.dataset(MANY, False, method).repeat()
        row = found.plan.at(step)
        tokens_in_row = sum(sample.stop - sample.start for sample in row)
        assert tokens_in_row == 8192 if method == "concat_split" else 8000 < tokens_in_row <= 8192
        assert {sample.epoch for sample in row} <= {0, 1, 2}
        assert step in found.plan.find(
            row[0].source, row[0].index, within=range(step - 1, step + 2)
        )

        looked_up, length_of = 0, many.Hashed.length_of

        def counted(self: Any, index: Any) -> Any:
            nonlocal looked_up
            looked_up += len(index)
            return length_of(self, index)

        patch.setattr(many.Hashed, "length_of", counted)
        again = many.dataset(MANY, False, method).repeat()
        assert [sample.key for sample in again.plan.at(step)] == [sample.key for sample in row]
        assert looked_up < 200_000, "the sums were found, and no pass is looked at"
        tokens = again[step]["tokens"]
        assert np.asarray(tokens)[0] == row[0].index
