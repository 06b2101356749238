"""The Ray utilities of EasyData, on a cluster of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.compat import easydata as ed

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,  # a Ray cluster
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> ed.JsonShardedSource:
    for shard in range(2):
        rows = ps.from_sequence([{"text": "one two", "id": f"{shard}-{i}"} for i in range(3)])
        rows.write(tmp_path / f"{shard}.jsonl")
    return ed.JsonShardedSource(f"{tmp_path}/*.jsonl")


IDS = [f"{shard}-{i}" for shard in range(2) for i in range(3)]


def test_actors_tokenize_in_the_order_of_the_source(
    source: ed.JsonShardedSource, tmp_path: Path
) -> None:
    # Rows came in the order in which actors finished.
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(f"{tmp_path}/tokenizer.json")
    rows = list(ed.tokenize_with_ray(source, f"{tmp_path}/tokenizer.json", num_workers=1))
    assert rows == [{"id": i, "input_ids": [1, 2], "attention_mask": [1, 1]} for i in IDS]


def count_rows(rows: list[Any]) -> list[Any]:
    return [len(rows), rows[0]["id"]]


def test_actors_process_shards(source: ed.JsonShardedSource) -> None:
    counts = ed.parallel_process_shards(source, count_rows, num_workers=1)
    assert list(counts) == [3, "0-0", 3, "1-0"]


def test_actors_prepare_the_batches_of_a_pipeline(source: ed.JsonShardedSource) -> None:
    parts = [ed.DatasetConfig(source.shard_names)]
    config = ed.PipelineConfig(parts, ray=ed.RayConfig(enabled=True, num_workers=1))
    with ed.Pipeline(config).source().build() as loader:
        assert [row["id"] for row in loader] == IDS
