"""The page of EasyData about mixing, section by section in words of our own: what it shows works, what it says holds."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.compat.easydata import (
    CompositeShardedSource,
    DatasetConfig,
    DatasetMixture,
    HFDatasetShardedSource,
    MixedShardedSource,
    MixStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    TextDatasetInform,
    WeightSchedulePoint,
    WeightScheduler,
    block_mixture_interleave,
    build_dataset,
)

NAMES = ("code", "text", "math")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the page opens by name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.chdir(tmp_path)
    for folder in ("code_data", "text_data", "data1", "data2"):
        Path(folder).mkdir()
        pq.write_table(
            pa.table({"text": [f"{folder} word " * (1 + i % 9) for i in range(60)]}),
            f"{folder}/0.parquet",
        )
    Path("data2/a.json").write_text(
        "".join(json.dumps({"content": f"line {i}"}) + "\n" for i in range(20))
    )
    words = Tokenizer(
        models.WordLevel(
            {"<unk>": 0, "<pad>": 1, "word": 2, "code_data": 3, "text_data": 4}, "<unk>"
        )
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>"
    )
    fast.save_pretrained("meta-llama/Llama-2-7b")
    return tmp_path


def rows(name: str, n: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": [f"{name}{i}" for i in range(n)]})


def begins(given: Any, n: int) -> Counter[str]:
    return Counter(row["text"][:4] for row in islice(given, n))


def sharded() -> dict[str, HFDatasetShardedSource]:
    return {
        "code": HFDatasetShardedSource(rows("code", 30)),
        "text": HFDatasetShardedSource(rows("text", 50)),
    }


def test_quick_start() -> None:
    mixed = block_mixture_interleave(
        datasets={
            "code": rows("code", 500).to_iterable_dataset(num_shards=2),
            "text": rows("text", 500).to_iterable_dataset(),
            "math": rows("math", 100),
        },
        weights={"code": 0.4, "text": 0.5, "math": 0.1},
        block_size=1000,
        seed=42,
        stop="restart",
    )
    assert begins(mixed, 3_000) == {"code": 1_200, "text": 1_500, "math": 300}
    assert isinstance(mixed, datasets.IterableDataset)


def test_equal_weights() -> None:
    mixed = block_mixture_interleave(datasets={n: rows(n, 9) for n in NAMES[:2]}, weights=None)
    assert begins(mixed, 1_000) == {"code": 500, "text": 500}


def test_rows_tell_their_source() -> None:
    mixed = MixedShardedSource(
        sharded(), weights={"code": 0.3, "text": 0.7}, block_size=1000, seed=42
    )
    found = Counter(
        row["__source__"] for row in islice(mixed.open_shard(mixed.shard_names[0]), 1_000)
    )
    assert found == {"code": 300, "text": 700}


@pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
def test_weights_change_over_the_run(interpolation: Any) -> None:
    points = [(0, 0.2), (1_000, 0.5), (5_000, 0.8)]
    schedule = [WeightSchedulePoint(step=s, weights={"code": w, "text": 1 - w}) for s, w in points]
    scheduler = WeightScheduler(schedule=schedule, interpolation=interpolation)
    mixed = MixedShardedSource(sources=sharded(), weight_scheduler=scheduler, block_size=100)
    found = [
        row["__source__"] == "code" for row in islice(mixed.open_shard(mixed.shard_names[0]), 6_000)
    ]
    assert sum(found[:100]) in range(20, 23) and sum(found[5_000:]) == 800
    assert sum(found[1_000:1_100]) in range(49, 53)


def test_three_ways_to_stop() -> None:
    def given(stop: Any) -> list[str]:
        mixed = MixedShardedSource(sharded(), stop_strategy=stop, block_size=10)
        return [row["text"] for row in islice(mixed.open_shard(mixed.shard_names[0]), 1_000)]

    assert len(given("restart")) == 1_000
    assert len(given("first_exhausted")) in range(58, 63)
    assert sorted(given("all_exhausted")) == sorted(
        [f"code{i}" for i in range(30)] + [f"text{i}" for i in range(50)]
    )


def test_the_pipeline(page: Path) -> None:
    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                name=name, data_files=f"{name}_data/*.parquet", tokenizer="meta-llama/Llama-2-7b"
            )
            for name in ("code", "text")
        ],
        mix=MixStageConfig(
            weights={"code": 0.3, "text": 0.7}, block_size=1000, stop_strategy="restart"
        ),
    )
    found = Counter[str]()
    with Pipeline.from_config(config).source().tokenize().mix().load().build() as loader:
        for batch in islice(loader, 125):
            assert (
                batch["input_ids"].shape == batch["attention_mask"].shape
                and len(batch["input_ids"]) == 8
            )
            found.update(batch["__source__"].tolist())
            first = batch["input_ids"][:, 0]
            assert ((first == 3) == (batch["__source__"] == "code")).all()
    assert found == {"code": 300, "text": 700}


def test_settings_with_weights_and_a_schedule() -> None:
    config = MixStageConfig(
        weights={"code": 0.3, "text": 0.7},
        weight_schedule=[
            WeightSchedulePoint(step=s, weights={"code": w, "text": 1 - w})
            for s, w in ((0, 0.2), (9, 0.5))
        ],
        weight_schedule_type="linear",
        block_size=1000,
        stop_strategy="restart",
        seed=42,
    )
    assert config.schedule is not None and config.schedule.weights(0)["code"] == 0.2


def test_sources_one_after_the_other(page: Path) -> None:
    combined = CompositeShardedSource(
        [ParquetShardedSource("data1/*.parquet"), ParquetShardedSource("data2/*.parquet")]
    )
    found = [
        row["text"][:5] for shard in combined.shard_names for row in combined.open_shard(shard)
    ]
    assert found == ["data1"] * 60 + ["data2"] * 60


def test_the_legacy_mixture(page: Path) -> None:
    informs = [
        TextDatasetInform(type="parquet", data_files="data1/*.parquet", content_field="text"),
        TextDatasetInform(type="json", data_files="data2/*.json", content_field="content"),
    ]
    mixture = DatasetMixture(
        informs=informs,
        mixture_weights={"ds1": 0.7, "ds2": 0.3},
        block_mixture=True,
        mixture_block_size=100,
        streaming=True,
        seed=42,
    )
    assert begins(build_dataset(mixture), 1_000) == {"data": 700, "line": 300}


def test_equal_seeds_are_equal_runs() -> None:
    one, two, three = (
        block_mixture_interleave({n: rows(n, 40) for n in NAMES}, seed=s) for s in (42, 42, 123)
    )
    first = list(one.take(500))
    assert first == list(two.take(500)) and first != list(three.take(500))
