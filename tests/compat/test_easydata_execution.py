"""Packers, loaders, writers, caches and stages of EasyData."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.compat import easydata as ed
from penstock.compat.easydata import (
    AsyncDataLoader,
    CacheMetadata,
    DatasetCache,
    DatasetConfig,
    DiskCache,
    FirstFitPacker,
    GreedyPacker,
    LoadStageConfig,
    MixStageConfig,
    PackedSequence,
    PackedShardedSource,
    PackStageConfig,
    PipelineConfig,
    PipelineContext,
    PoolPacker,
    PrefetchIterator,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
    TreeCacheManager,
)

ROWS = [{"x": i} for i in range(10)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer of whole words: one=2, two=3, three=4."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate("<unk> <pad> one two three".split())}
    built = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=built, unk_token="<unk>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    rows = ps.from_sequence([{"text": text, "id": i} for i, text in enumerate(("one", "one two"))])
    rows.write(tmp_path / "texts.jsonl")
    return f"{tmp_path}/texts.jsonl"


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("kind", [PoolPacker, FirstFitPacker])
def test_packers_lose_no_token(kind: Any) -> None:
    # A document that filled several rows lost all but the last, and one over a row came out too long.
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 9, rng.integers(1, 20)).tolist() for _ in range(50)]
    packer = kind(8, eos_token_id=9)
    rows = [row for doc in documents for row in packer.add(doc, "web")] + packer.flush_all()
    greedy = GreedyPacker(8, eos_token_id=9)
    rows_greedy = [row for doc in documents for row in greedy.add_long(doc, "web")]
    last = greedy.flush_final()
    assert last is not None and greedy.flush_final() is None
    made: list[Any]
    for made in (rows, [*rows_greedy, last]):
        assert all(row.input_ids.shape == row.attention_mask.shape == (8,) for row in made)
        tokens = np.concatenate([row.input_ids[row.attention_mask == 1] for row in made])
        assert sorted(tokens) == sorted([*np.concatenate(documents), *[9] * 50])
        assert all(
            (row.segment_ids > 0).tolist() == (row.attention_mask == 1).tolist() for row in made
        )
        assert all(len(row.source_ids) == row.num_segments for row in made)


def test_a_greedy_packer_returns_a_row_at_a_time() -> None:
    # Goldens of EasyDeL, up to the number of the first segment, 0, and the mask of full rows.
    packer, rows = GreedyPacker(8, eos_token_id=9), list[PackedSequence]()
    for document in ([1, 2, 3], [4, 5], [6, 7, 8, 1, 2], [3]):
        if (row := packer.add(document)) is not None:
            rows.append(row)
    assert [row.input_ids.tolist() for row in rows] == [[1, 2, 3, 9, 4, 5, 9, 6]]
    assert rows[0].to_dict()["segment_ids"].tolist() == [1, 1, 1, 1, 2, 2, 2, 3]
    last = packer.flush_final()
    assert last is not None and last.input_ids.tolist() == [7, 8, 1, 2, 9, 3, 9, 0]
    with pytest.raises(ps.DataError, match="completes 3 rows of 8.*add_long"):
        packer.add(range(30))


def test_packed_sources() -> None:
    rows = [{"tokens": [1, 2, 3]}, {"tokens": [4, 5]}, {"tokens": [6]}]
    packed = PackedShardedSource(rows, 4, 9, input_field="tokens", shuffle=False)
    assert packed.shard_names == ["packed_shard_0"]
    assert [row["input_ids"].tolist() for row in packed] == [
        [1, 2, 3, 9],
        [4, 5, 9, 6],
        [9, 0, 0, 0],
    ]
    constant = ed.pack_constant_length(iter(rows), lambda row: row["tokens"], 4, 9, 1, False, 1)
    assert [row["input_ids"].tolist() for row in constant()] == [[1, 2, 3, 9], [4, 5, 9, 6]]
    shuffled = ed.pack_pre_tokenized(rows * 9, 4, 9, 4, True, 2)
    assert len(list(shuffled())) == len(list(shuffled())) == 20


# ---------------------------------------------------------------- loaders


def test_a_loader_is_read_by_for_and_async_for() -> None:
    loader = AsyncDataLoader(ROWS, batch_size=4, drop_last=False)

    async def read() -> list[Any]:
        return [batch["x"].tolist() async for batch in loader]

    expected = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert asyncio.run(read()) == [batch["x"].tolist() for batch in loader] == expected
    assert loader.is_exhausted and loader.get_output_sharding() is None
    assert loader.get(1)["x"].tolist() == expected[1]
    batches = asyncio.run(loader.abatch([2, 0]))
    assert [batch["x"].tolist() for batch in batches] == [expected[2], expected[0]]


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_loader_resumes(epoch: int) -> None:
    def make() -> AsyncDataLoader:
        return AsyncDataLoader(ROWS, 2, shuffle_buffer_size=5, seed=3)

    def read(batches: Any) -> list[list[int]]:
        return [batch["x"].tolist() for batch in batches]

    first = make()
    orders = [read(first) for _ in range(epoch)]
    batches = iter(first)
    seen = read(islice(batches, 2))
    state = json.loads(json.dumps(first.state_dict()))
    rest = read(batches)
    resumed = make()
    resumed.load_state_dict(state)
    assert read(resumed) == rest
    # Every pass had the order of the first.
    following = read(first)
    assert read(resumed) == following
    orders += [seen + rest, following]
    assert len({json.dumps(order) for order in orders}) == len(orders)
    assert all(sorted(x for xs in order for x in xs) == [*range(10)] for order in orders)
    assert first.state_dict() and make().state_dict()


def test_a_loop_that_is_left_begins_the_next_pass() -> None:
    loader = AsyncDataLoader(ROWS, 2)
    assert [next(iter(loader))["x"].tolist() for _ in range(2)] == [[0, 1], [0, 1]]
    endless = AsyncDataLoader(ps.from_sequence(ROWS).repeat(), 2)
    assert [next(iter(endless))["x"].tolist() for _ in range(2)] == [[0, 1], [0, 1]]


def test_a_pipeline_is_read_by_async_for(texts: str) -> None:
    loader = ed.Pipeline(PipelineConfig([DatasetConfig(texts)])).source().build()

    async def read() -> list[int]:
        return [row["id"] async for row in loader]

    with loader:
        assert asyncio.run(read()) == [0, 1] and loader.is_exhausted
        assert isinstance(loader, ps.Loader) and isinstance(loader, ed.AsyncDataset)
        with pytest.raises(TypeError, match=r"call seek\(1\)"):
            asyncio.run(loader.aget(1))


class Counting(ed.AsyncDataset[int]):
    async def aget(self, index: int) -> int:
        return index

    async def __aiter__(self) -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def test_an_endless_dataset_is_read_step_by_step() -> None:
    # The synchronous iterator collected all items in a list first.
    assert list(islice(iter(Counting()), 3)) == [0, 1, 2] and Counting().get(5) == 5


def test_a_prefetched_iterator_ends_with_its_source() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("lost")

    before = threading.active_count()
    assert list(PrefetchIterator(iter(range(9)), buffer_size=2)) == [*range(9)]
    with pytest.raises(OSError, match="lost"), PrefetchIterator(failing()) as items:
        list(items)
    closed = PrefetchIterator(iter(range(100)))
    next(closed)
    closed.close()
    # A loop that was left kept a blocked thread for ever.
    assert threading.active_count() <= before


def test_batches_of_an_iterator() -> None:
    sizes = [len(batch["x"]) for batch in ed.batch_iterator(iter(ROWS), 4, drop_last=False)]
    assert sizes == [4, 4, 2] and ed.collate_batch([]) == {}
    lists = list(ed.create_data_iterator(ROWS, 4, seed=1))
    assert sorted(row["x"] for rows in lists for row in rows) == [*range(10)]
    assert lists == list(ed.create_data_iterator(ROWS, 4, seed=1, prefetch=False)) != [ROWS]
    assert list(ed.create_data_iterator(ROWS, 1, shuffle=False)) == ROWS


def test_batches_are_sharded_over_a_mesh() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = ed.ShardingSpec(mesh, {"x": PartitionSpec("data")})
    assert isinstance(spec.apply({"x": np.arange(4)})["x"], jax.Array)
    assert ed.ShardingSpec().apply({"x": 1}) == {"x": 1}
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    (batch, *_) = AsyncDataLoader(ROWS, 4, sharding_map={"x": sharding})
    assert batch["x"].sharding == sharding


# ---------------------------------------------------------------- files and caches


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_writers(form: str, tmp_path: Path) -> None:
    stats = ed.save_dataset(ROWS, tmp_path / "a", form, num_shards=3)
    assert (stats.num_examples, stats.num_shards) == (10, 3)
    assert stats.total_bytes == sum(Path(path).stat().st_size for path in stats.output_paths)
    assert list(ps.read(stats.output_paths)) == ROWS
    assert ed.save_iterator(iter(ROWS), tmp_path / "b", form).num_examples == 10
    with pytest.raises(ps.ConfigError, match="of an earlier write_rows"):
        ed.create_writer(tmp_path / "a", form).write(ROWS)
    assert ed.create_writer(tmp_path / "a", form, overwrite=True).write(ROWS).num_shards == 1
    with pytest.raises(ps.ConfigError, match="is endless"):
        ed.save_dataset(ps.from_sequence(ROWS).repeat(), tmp_path / "c", form)


def test_sizes_are_binary() -> None:
    sizes = {"500MB": 524_288_000, "1GB": 1_073_741_824, "100KB": 102_400, "7": 7, "2 TB": 1 << 41}
    assert {text: ed.parse_size(text) for text in sizes} == sizes


def test_caches_store_json_and_rows(tmp_path: Path) -> None:
    cache = TreeCacheManager(tmp_path, memory_size=1, compression="zstd")
    metadata = CacheMetadata(config_hash="c", source_hash="s", num_examples=2)
    cache.put("json", {"a": [1, None]}, metadata)
    cache.put("rows", ps.from_sequence(ROWS))
    fresh = TreeCacheManager(tmp_path)
    assert fresh.get("json") == ({"a": [1, None]}, metadata)
    found = fresh.get("rows")
    assert found is not None and list(found[0]) == ROWS
    assert fresh.stats["memory"]["misses"] == 2 and fresh.contains("json")
    assert fresh.get_or_compute("json", lambda: 1) == {"a": [1, None]}
    assert fresh.get_or_compute("json", lambda: 1, validate_fn=lambda m: m.is_valid_for("d")) == 1
    fresh.invalidate()
    assert fresh.get("json") is None and not fresh.contains("rows")


def test_nothing_is_pickled(tmp_path: Path) -> None:
    # Values were pickles, so a folder of another user could run code.
    with pytest.raises(ps.ConfigError, match="JSON values and rows, and this function is neither"):
        DiskCache(tmp_path).put("key", len.__call__ and (lambda: 1))
    (tmp_path / "own.txt").write_text("kept")
    DiskCache(tmp_path).invalidate()
    assert (tmp_path / "own.txt").exists()
    with pytest.raises(ps.ConfigError, match="compression='lz4'"):
        DiskCache(tmp_path, compression="lz4")


def test_values_on_disk_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.stores import storage

    cache = DiskCache(tmp_path, expiry_seconds=60)
    cache.put("key", 1)
    assert cache.contains("key")
    now = storage.read_wall_time()
    monkeypatch.setattr(storage, "read_wall_time", lambda: now + 61)
    assert cache.get("key") is None and cache.get_metadata("key") is None


def test_tables_are_cached_by_datasets(tmp_path: Path) -> None:
    import datasets

    cache = DatasetCache(tmp_path)
    cache.put("key", datasets.Dataset.from_list(ROWS))
    assert cache.get("key").to_list() == ROWS and cache.get("other") is None
    cache.invalidate()
    assert not cache.contains("key")
    with pytest.raises(ps.ConfigError, match="not a list"):
        cache.put("key", ROWS)


# ---------------------------------------------------------------- pipelines and stages


def test_stages_are_the_methods_of_a_pipeline(texts: str, tokenizer: str, tmp_path: Path) -> None:
    config = PipelineConfig(
        [DatasetConfig(texts, name=name, tokenizer=tokenizer) for name in "ab"],
        mix=MixStageConfig(stop_strategy="all_exhausted"),
        pack=PackStageConfig(True, 4, 9, shuffle_packed=False),
        save=SaveStageConfig(True, f"{tmp_path}/out"),
        load=LoadStageConfig(2, prefetch_enabled=False),
    )
    context = PipelineContext(config)
    sources: Any = {str(part.name): ed.create_source(part) for part in config.datasets}
    stages = [ed.TokenizeStage(), ed.MixStage(), ed.PackStage(), ed.SaveStage()]
    assert [stage.name for stage in stages] == ["tokenize", "mix", "pack", "save"]
    for stage in stages:
        sources = stage.process(sources, context)
    assert stages[-1].get_metrics() == {
        "mixed_num_shards": 1,
        "mixed_save_path": f"{tmp_path}/out",
    }
    loader = ed.LoadStage().process(sources, context)["mixed"]
    pipeline = ed.Pipeline(config).source().tokenize().mix().pack()
    expected = pipeline.load().build()
    assert pipeline.get_stages() == ["source", "tokenize", "mix", "pack", "load"]
    pairs = [*zip(loader, expected, strict=True)]
    assert pairs and all((a["input_ids"] == b["input_ids"]).all() for a, b in pairs)
    with pytest.raises(ps.ConfigError, match="'mix' has no datasets"):
        ed.MixStage().process({}, context)
    with pytest.raises(ps.ConfigError, match="called before"):
        pipeline.source()


def test_methods_take_settings_of_their_own(texts: str, tokenizer: str) -> None:
    pipeline = ed.create_pipeline([{"data_files": texts}], tokenizer, seed=1)
    stage = TokenizeStageConfig(max_length=1, remove_columns=["attention_mask"])
    (rows,) = pipeline.source().tokenize(stage).get_data().values()
    assert [{name: row[name].tolist() for name in row} for row in rows] == [{"input_ids": [2]}] * 2
    assert pipeline.get_context().seed == 1
    names = PipelineConfig([DatasetConfig(texts)], mix=MixStageConfig({"other": 1.0}))
    assert names.validate() == ["the weights: there is no dataset 'other'"]


def test_rows_are_padded_to_the_maximum_length(texts: str, tokenizer: str) -> None:
    config = TokenizerConfig(tokenizer, max_length=3, padding="max_length")
    made = PipelineConfig([DatasetConfig(texts, tokenizer=config)])
    (rows,) = ed.Pipeline(made).source().tokenize().get_data().values()
    assert [row["input_ids"].tolist() for row in rows] == [[2, 1, 1], [2, 3, 1]]
    assert [row["attention_mask"].tolist() for row in rows] == [[1, 0, 0], [1, 1, 0]]
    with pytest.raises(ps.ConfigError, match="padding='left'"):
        TokenizerConfig(tokenizer, padding="left")


def test_tokens_are_saved(texts: str, tokenizer: str, tmp_path: Path) -> None:
    ed.tokenize_and_save(texts, tokenizer, f"{tmp_path}/a", "jsonl", max_length=1)
    assert [row["input_ids"] for row in ps.read(f"{tmp_path}/a")] == [[2], [2]]
    config = TokenizerConfig(tokenizer)
    source = ed.tokenize_dataset_config(
        ed.JsonShardedSource(texts), DatasetConfig("t", tokenizer=config)
    )
    stats = ed.pretokenize(source, ed.DropFields(["attention_mask"]), f"{tmp_path}/b")
    assert stats.num_examples == 2 and [*ps.read(f"{tmp_path}/b")[1]] == ["input_ids"]
    manager = ed.TokenizerManager()
    loaded = manager.get_tokenizer(config)
    assert manager.get_tokenizer(config) is loaded
    assert manager.tokenize_text(loaded, "three", config)["input_ids"] == [4]
    batched = ed.batched_tokenize_iterator(
        ed.JsonShardedSource(texts), loaded, config, batch_size=1, additional_fields=["id"]
    )
    assert [(row["id"], row["input_ids"].tolist()) for row in batched] == [(0, [2]), (1, [2, 3])]
    with pytest.raises(ps.ConfigError, match="no tokenizer"):
        ed.tokenize_dataset_config(source, DatasetConfig("t"))
    with pytest.raises(ps.ConfigError, match=r"num_proc=4.*penstock.write"):
        ed.pretokenize(source, ed.DropFields([]), f"{tmp_path}/c", num_proc=4)


def test_files_are_pushed_to_the_hub(
    texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    calls = list[Any]()

    class Api:
        def __init__(self, token: str | None) -> None:
            calls.append(token)

        def create_repo(self, **options: Any) -> None:
            calls.append(options)

        def upload_file(self, **options: Any) -> None:
            calls.append(options["path_in_repo"])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    save = SaveStageConfig(
        True, str(tmp_path / "out"), push_to_hub=True, hub_repo_id="me/d", hub_token="secret"
    )
    parts = [DatasetConfig(texts, name="a", num_shards=2)]
    ed.Pipeline(PipelineConfig(parts, save=save)).source().save()
    assert calls[0] == "secret" and calls[1]["repo_id"] == "me/d"
    both = PipelineConfig(
        [DatasetConfig(texts), DatasetConfig(texts)], save=SaveStageConfig(True, f"{tmp_path}/two")
    )
    with ed.Pipeline(both).source().save().build() as loader:
        assert len(list(loader)) == 4
    assert calls[2:] == ["a/shard-00000.parquet", "a/shard-00001.parquet"]
    with pytest.raises(ps.ConfigError, match="give hub_repo_id"):
        SaveStageConfig(push_to_hub=True)


def test_the_context_has_a_cache(tmp_path: Path) -> None:
    for kind, expected in (
        ("memory", ed.MemoryCache),
        ("disk", DiskCache),
        ("hierarchical", TreeCacheManager),
    ):
        cache = ed.CacheStageConfig(cache_type=kind, cache_dir=str(tmp_path))
        context = PipelineContext(PipelineConfig([DatasetConfig("a")], cache=cache))
        assert type(context.cache_manager) is expected
    off = PipelineConfig([DatasetConfig("a")], cache=ed.CacheStageConfig(enabled=False))
    with pytest.raises(ps.ConfigError, match="no cache"):
        _ = PipelineContext(off).cache_manager


def test_helpers() -> None:
    attempts = list[int]()

    @ed.with_retry(max_retries=2, initial_delay=0)
    def fail_once() -> int:
        attempts.append(1)
        if len(attempts) < 2:
            raise OSError
        return len(attempts)

    assert fail_once() == 2 and ed.glob_files("no/such/*.json") == []
    assert ed.wrap_format_callback(lambda row: None)({"a": 1}) == {"a": 1}
    with pytest.raises(ps.ConfigError, match="PENSTOCK_CACHE"):
        ed.get_cached_filesystem("s3", "x")
