"""Eight processes as a 2 x 2 x 2 mesh of data, context and tensor parallel ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from integrations.forked_ranks import run_script

pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # eight processes of torch

HERE = Path(__file__).parent
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cube")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """Return the results of all ranks, in their order; tp is the innermost dimension."""
    run_script(HERE / "torch_cube.py", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(8)]


def test_peers_receive_equal_rows_and_every_row_comes_once(found: Found) -> None:
    for name in ("first", "rest", "rows", "images"):
        assert all(given[name] == found[rank // 4 * 4][name] for rank, given in enumerate(found))
        assert found[0][name] != found[4][name]
    steps = [
        sorted(found[0][name][i] + found[4][name][i])
        for name in ("first", "rest")
        for i in range(len(found[0][name]))
    ]
    assert len(steps) == 8
    order = list(ps.from_sequence(range(64)).shuffle(seed=1))
    assert steps == [sorted(order[i : i + 8]) for i in range(0, 64, 8)]


def test_a_run_resumes_on_another_mesh(found: Found) -> None:
    for pair in range(4):  # dp = 4, tp = 2
        assert found[2 * pair]["resumed"] == found[2 * pair + 1]["resumed"]
    for i, (mine, other) in enumerate(zip(found[0]["rest"], found[4]["rest"], strict=True)):
        assert sorted(x for rank in (0, 2, 4, 6) for x in found[rank]["resumed"][i]) == sorted(
            mine + other
        )


def test_slices_of_context_ranks_add_up_to_the_batch(found: Found) -> None:
    for dp in range(2):
        ranks = found[4 * dp : 4 * dp + 4]
        assert ranks[0]["slices"] == ranks[1]["slices"] != ranks[2]["slices"] == ranks[3]["slices"]
        assert len(ranks[0]["rows"]) > 1
        for batch, *parts in zip(
            ranks[0]["rows"], ranks[0]["slices"], ranks[2]["slices"], strict=True
        ):
            for name in ("input_ids", "labels", "position_ids"):
                both = np.concatenate([part[name] for part in parts], axis=1)
                assert np.array_equal(np.sort(both), np.sort(batch[name]))
            for name in ("cu_seqlens", "cu_seqlens_padded"):
                total = np.add(*[part[f"slice_{name}"] for part in parts])
                assert total.tolist() == batch[name]


def test_one_reader_decodes_each_image_once(found: Found, folder: Path) -> None:
    assert [given["reads"] for given in found] == [True, False, False, False] * 2
    images = [image for rank in (0, 4) for batch in found[rank]["images"] for image in batch]
    assert sorted(images) == list(range(24))
    assert sorted(map(int, (folder / "decoded").read_text().split())) == list(range(24))
