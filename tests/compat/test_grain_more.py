"""The rest of Grain's API: positions, threads, padded batches, specs, shards, annotations."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import penstock.compat.grain as grain
from penstock.errors import ConfigError

ex = grain.experimental


def numbers(n: int = 20, options: grain.ReadOptions | None = None) -> grain.IterDataset:
    return grain.MapDataset.range(n).to_iter_dataset(options)


PIPELINES = {
    "map": numbers(),
    "batch": grain.MapDataset.range(60).batch(3).to_iter_dataset(),
    "filter": numbers(60).filter(lambda x: x % 3 == 0),
    "mix": grain.IterDataset.mix([numbers(), numbers()], [0.5, 0.5]),
    "ahead": ex.ThreadPrefetchIterDataset(numbers().map(str), prefetch_buffer_size=3),
    "threads": ex.multithread_prefetch(numbers(), 2, 3),
}


@pytest.mark.parametrize("name", list(PIPELINES))
def test_positions_of_a_pass(name: str) -> None:
    ds = PIPELINES[name]
    whole = [np.asarray(x).tolist() for x in ds]
    it = iter(ds)
    for at in (4, 0, 11):
        ex.set_next_index(it, at)
        assert ex.get_next_index(it) == at
        assert [np.asarray(next(it)).tolist() for _ in range(3)] == whole[at : at + 3]
        assert ex.get_next_index(it) == at + 3
    state = it.get_state()
    it.set_state(state)
    with pytest.raises(ConfigError, match="restored state does not include"):
        ex.get_next_index(it)
    assert np.asarray(next(it)).tolist() == whole[14]
    it.close()


def test_start_prefetch_does_not_wait() -> None:
    """A pipeline that takes its time until the first element must not hold up whoever starts it."""
    begun = threading.Event()
    ds = (
        numbers()
        .map(lambda x: begun.wait() and x)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    )
    it = iter(ds)
    it.start_prefetch()
    begun.set()
    state = it.get_state()
    assert next(it) == 0
    it.set_state(state)
    assert next(it) == 0
    it.close()


def test_padded_batches() -> None:
    ds = grain.MapDataset.range(5).map(lambda i: {"x": np.full(2, i), "n": (i,)})
    padded = ds.batch(3, batch_fn=partial(ex.batch_and_pad, batch_size=3, pad_value=-1))
    assert padded[1]["x"].tolist() == [[3, 3], [4, 4], [-1, -1]] and padded[1]["n"][0].tolist() == [
        3,
        4,
        -1,
    ]
    assert (
        padded[0]["x"].tolist() == ds.batch(3)[0]["x"].tolist() and padded[1]["x"].dtype == np.int64
    )
    for values in ([], [1, 2, 3]):
        with pytest.raises(ConfigError, match="give 1 to"):
            ex.batch_and_pad(values, batch_size=2)


def test_specs() -> None:
    ds = grain.MapDataset.source([{"x": np.zeros((2, 3), np.float32), "y": 1}] * 4)
    spec = ex.get_element_spec(ds.batch(2).to_iter_dataset())
    assert spec["x"] == ex.ShapeDtypeStruct((2, 2, 3), np.dtype("float32"))
    assert ex.get_element_spec(ds)["y"] == ex.ShapeDtypeStruct((), np.dtype("int64"))
    with pytest.raises(ConfigError, match="is empty"):
        ex.get_element_spec(grain.MapDataset.range(0))


def test_index_shuffle() -> None:
    assert [ex.index_shuffle(i, 9, 3329053876, 4) for i in range(10)] == [
        1,
        7,
        6,
        9,
        0,
        8,
        4,
        5,
        3,
        2,
    ]
    for wrong in ((10, 9, 1, 4), (-1, 9, 1, 4), (0, 9, 1, 6)):
        with pytest.raises(ConfigError):
            ex.index_shuffle(*wrong)


def test_the_check_of_a_pipeline_finds_one_that_does_not_resume() -> None:
    ex.assert_equal_output_after_checkpoint(PIPELINES["mix"])
    seen = list[int]()
    forgetful = numbers().map(lambda x: seen.append(x) or len(seen))
    with pytest.raises(AssertionError):
        ex.assert_equal_output_after_checkpoint(forgetful)
    with pytest.raises(AssertionError, match="no elements"):
        ex.assert_equal_output_after_checkpoint(numbers(0))


def test_shards() -> None:
    ds = grain.MapDataset.range(10)
    parts = [grain.sharding.ShardOptions(i, 3) for i in range(3)]
    assert sorted(x for part in parts for x in ds[part.shard_index :: part.shard_count]) == list(
        range(10)
    )
    alone: Any = grain.sharding.NoSharding()
    assert (alone.shard_index, alone.shard_count, alone.drop_remainder) == (0, 1, False)
    assert isinstance(alone, grain.sharding.ShardOptions)
    for wrong in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(ConfigError, match="an index from 0"):
            grain.sharding.ShardOptions(*wrong)


def test_shards_of_jax_processes() -> None:
    pytest.importorskip("jax")
    shard = grain.sharding.ShardByJaxProcess(drop_remainder=True)
    assert (shard.shard_index, shard.shard_count, shard.drop_remainder) == (0, 1, True)


def test_sources() -> None:
    source = grain.sources.RangeDataSource(10, 2, -3)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert list(grain.MapDataset.source(source)) == [10, 7, 4]
    assert repr(source) == "RangeDataSource(start=10, stop=2, step=-3)"
    with pytest.raises(ConfigError, match="step=0"):
        grain.sources.RangeDataSource(0, 1, 0)


def test_names_for_annotations_and_old_names() -> None:
    def batches(ds: grain.MapDataset[int]) -> grain.IterDataset[np.ndarray[Any, Any]]:
        return ex.apply_transformations(ds, [grain.transforms.Batch(2)]).to_iter_dataset()

    assert repr(grain.IterDataset[int]).endswith("IterDataset[int]")
    assert [batch.tolist() for batch in batches(grain.MapDataset.range(3))] == [[0, 1], [2]]


def test_interleaving_on_threads() -> None:
    parts = [grain.MapDataset.range(10 * k, 10 * k + 7) for k in range(5)]
    plain = ex.InterleaveIterDataset(parts, cycle_length=2)
    ahead = ex.InterleaveIterDataset(
        parts, cycle_length=2, num_make_iter_threads=2, make_iter_buffer_size=1, iter_buffer_size=4
    )
    assert (ahead.run.threads, ahead.run.prefetch, plain.run.threads) == (2, 12, 0)
    assert list(ahead) == list(plain)


def test_seeds_of_random_maps_can_be_long() -> None:
    def noisy(seed: int, order: Any) -> list[int]:
        source = grain.MapDataset.range(5, order=order)
        return list(source.random_map(lambda x, rng: x + int(rng.integers(1 << 40)), seed=seed))

    for order in ("penstock", "grain"):
        assert noisy(893247023984, order) != noisy(893247023985, order)
    with pytest.raises(ConfigError, match="seed -1"):
        noisy(-1, "penstock")


def test_older_names() -> None:
    import penstock.compat.grain.python as old

    assert (
        old.MapTransform is grain.transforms.Map
        and old.experimental is ex
        and old.MapDataset is grain.MapDataset
    )
    assert {name for name in old.__all__ if not name.startswith("PyGrain")} <= vars(old).keys()
    with pytest.raises(AttributeError, match="no attribute 'TFDS'"):
        old.TFDS  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    pytest.importorskip("orbax.checkpoint")
    assert old.PyGrainCheckpointSave is grain.checkpoint.CheckpointSave
    assert old.PyGrainCheckpointRestore is grain.checkpoint.CheckpointRestore


# ---------------------------------------------------------------- DataLoader


class Noise(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element * 1000 + int(rng.integers(1000))


def loader(workers: int = 0, shard: int = 0, **options: Any) -> grain.DataLoader:
    sampler = grain.samplers.IndexSampler(
        num_records=21,
        shard_options=grain.sharding.ShardOptions(shard, 2),
        shuffle=True,
        num_epochs=2,
        seed=5,
    )
    operations = [Noise(), grain.transforms.Batch(4)]
    return grain.DataLoader(
        data_source=range(30),
        sampler=sampler,
        operations=operations,
        worker_count=workers,
        **options,
    )


def test_data_loader() -> None:
    from penstock.testing import assert_resumes

    rows = [[int(x) for batch in loader(shard=shard) for x in batch] for shard in range(2)]
    assert [sorted(x // 1000 for x in part) for part in rows] == [
        sorted([*range(11)] * 2),
        sorted([*range(11, 21)] * 2),
    ]
    assert [x // 1000 for x in rows[0][:11]] not in (
        [*range(11)],
        [x // 1000 for x in rows[0][11:]],
    )
    assert len(set(rows[0])) == 22  # a random number of its own for every sample of every epoch
    read_options = grain.ReadOptions(2, 9)
    threaded = [int(x) for batch in loader(3, read_options=read_options) for x in batch]
    assert threaded == rows[0]
    assert_resumes(lambda: loader(), json=True)


def test_data_loader_in_grains_order() -> None:
    sampler = grain.samplers.IndexSampler(10, shuffle=True, seed=3329053876, num_epochs=1)
    assert list(grain.DataLoader(data_source=range(10), sampler=sampler, order="grain")) == [
        1, 7, 6, 9, 0, 8, 4, 5, 3, 2]  # fmt: skip


def test_samplers() -> None:
    ShardOptions, sequential = grain.sharding.ShardOptions, grain.samplers.SequentialSampler
    for drop, want in (
        (True, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        (False, [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),
    ):
        shards = [ShardOptions(i, 3, drop) for i in range(3)]
        assert [
            list(grain.DataLoader(data_source=range(10), sampler=sequential(10, s))) for s in shards
        ] == want
        parts = [list(grain.load(range(10), num_epochs=1, shard_options=s)) for s in shards]
        assert [len(part) for part in parts] == ([3, 3, 3] if drop else [4, 3, 3])
        assert [x for part in parts for x in part] == list(range(9 if drop else 10))
    endless = iter(grain.load(range(3)))
    assert [next(endless) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    own = grain.DataLoader(
        data_source=range(4), sampler=sequential(4), shard_options=ShardOptions(1, 2)
    )
    assert list(own) == [1, 3]
    settings: list[dict[str, Any]] = [{"num_records": 0}, {"num_epochs": 0}, {"shuffle": True}]
    for wrong in settings:
        with pytest.raises(ConfigError):
            grain.samplers.IndexSampler(**{"num_records": 3, **wrong})
    with pytest.raises(ConfigError, match="at least one record"):
        sequential(0)
    with pytest.raises(ConfigError, match="5 records, but the source only 4"):
        grain.DataLoader(data_source=range(4), sampler=sequential(5))
    with pytest.raises(ConfigError, match="use an IndexSampler"):
        grain.DataLoader(data_source=range(4), sampler=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="needs a seed"):
        grain.DataLoader(data_source=range(4), sampler=sequential(4), operations=[Noise()])


def test_a_batch_of_slow_samples_is_read_by_all_threads() -> None:
    """Neither is a batch left to one thread, nor does the first one wait for all that could be ahead of it."""
    reads, given = dict[int, int](), threading.Event()

    class Slow:
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, i: int) -> int:
            time.sleep(0.004)
            reads[i] = threading.get_ident()
            assert i < 32 * 6 or given.wait(120)
            return i

    it = iter(grain.MapDataset.source(Slow()).to_iter_dataset(grain.ReadOptions(8, 500)).batch(32))
    assert next(it).tolist() == list(range(32))
    assert len({reads[i] for i in range(32)}) > 3
    given.set()
    it.close()


@pytest.mark.parametrize(
    ("order", "shape"),
    [("grain", "stride")]
    + [("penstock", shape) for shape in ("stride", "replayed", "batches", "mixture", "slices")],
)
def test_the_plan_finds_samples_of_an_endless_stride(order: Any, shape: str) -> None:
    """Before, `find` ended in an AssertionError: a stride has no passes to search."""
    one = grain.MapDataset.range(10, order=order).shuffle(seed=1)
    endless = one.repeat()
    ds = {
        "stride": endless[3::2],
        "replayed": one.repeat(reseed_each_epoch=False)[::4],
        "batches": endless.batch(3)[1::2],
        "mixture": grain.MapDataset.mix(
            [endless, grain.MapDataset.range(7, order=order).repeat()], [1, 2]
        )[1::2],
        "slices": endless[2:30:2].repeat()[::3],
    }[shape]
    plan = ds.core.plan
    name = plan.sources[0]
    given = [plan.at(position) for position in range(60)]
    for index in (2, 7):
        expected = [
            position
            for position, item in enumerate(given)
            if any((sample.source, sample.index) == (name, index) for sample in item)
        ]
        assert plan.find(name, index, range(60)) == expected
        assert plan.find(name, index, range(11, 47)) == [p for p in expected if 11 <= p < 47]
        if expected and order != "grain":
            assert plan.find(name, index) == expected[:1]
