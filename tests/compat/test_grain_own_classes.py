"""Datasets and iterators that users derive from Grain's classes, and the rest of Grain's names."""

from __future__ import annotations

import asyncio
import importlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock.compat.grain as grain
from penstock.compat.grain.order import LaterShuffle
from penstock.errors import ConfigError
from penstock.testing import assert_resumes

ex = grain.experimental


class Unbatch(grain.IterDataset):
    """Takes batches apart; its state has the one of the dataset below."""

    def __init__(self, parent: grain.IterDataset) -> None:
        super().__init__(parent)

    def __iter__(self) -> grain.DatasetIterator:
        return UnbatchIterator(iter(self._parent))


class UnbatchIterator(grain.DatasetIterator):
    def __init__(self, parent: Any) -> None:
        super().__init__(parent)
        self.index, self.batch = 0, None
        self.before = self._parent.get_state()

    def __next__(self) -> Any:
        if self.batch is None:
            self.batch = next(self._parent)
        value = self.batch[self.index]
        self.index += 1
        if self.index == len(self.batch):
            self.index, self.batch, self.before = 0, None, self._parent.get_state()
        return value

    def get_state(self) -> dict[str, Any]:
        return {"parent": self.before, "index": self.index}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self.before, self.index, self.batch = state["parent"], state["index"], None


class Neighbours(grain.MapDataset):
    """Sums of neighbours, pass by pass."""

    def __len__(self) -> int:
        return len(self._parent) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, place = divmod(index, len(self))
        first = epoch * len(self._parent) + place
        return self._parent[first] + self._parent[first + 1]


def numbers(n: int = 30) -> grain.MapDataset:
    return grain.MapDataset.range(n).seed(7).shuffle()


def test_an_iter_dataset_of_a_user_resumes_within_a_pipeline() -> None:
    def pipeline() -> grain.IterDataset:
        options = grain.ReadOptions(0, 0)
        own = Unbatch(numbers().batch(4).to_iter_dataset(options))
        return ex.WindowShuffleIterDataset(own.map(lambda x: x + 1), window_size=5, seed=3).batch(4)

    assert sorted(x for batch in pipeline() for x in batch.tolist()) == list(range(1, 31))
    assert_resumes(pipeline, json=True)
    own = Unbatch(numbers().batch(4).to_iter_dataset())
    it = iter(own)
    assert isinstance(it, UnbatchIterator)
    state, first = it.get_state(), [next(it) for _ in range(9)]
    it.set_state(state)
    assert [next(it) for _ in range(9)] == first
    assert own.parents[0].parents[0].parents and isinstance(own.lineage.seeds[0][0], int)
    mixed = grain.IterDataset.mix([own, grain.MapDataset.range(90, 94).to_iter_dataset()])
    assert_resumes(lambda: mixed)


def test_a_map_dataset_of_a_user_has_random_access_and_passes() -> None:
    own = Neighbours(numbers())
    repeated = own.repeat(2)
    assert [repeated[i] for i in range(58)] == [own[i] for i in range(58)]
    assert list(own) == [own[i] for i in range(29)] != [own[i] for i in range(29, 58)]
    assert [x.tolist() for x in own[3:9].batch(4)] == [
        [own[i] for i in range(3, 7)],
        [own[i] for i in (7, 8)],
    ]
    small = Neighbours(numbers(9))
    options = grain.ReadOptions(0, 0)
    assert_resumes(lambda: small.shuffle(seed=3).repeat(2).to_iter_dataset(options))
    for abstract in (grain.MapDataset, grain.IterDataset, grain.DatasetIterator):
        with pytest.raises(TypeError, match="abstract"):
            abstract()  # pyright: ignore[reportAbstractUsage]


def test_a_step_with_another_iterator() -> None:
    """A subclass of one of our steps with its own `__iter__` is a stream of its own."""

    class Twice(ex.LimitIterDataset):
        def __iter__(self) -> grain.DatasetIterator:
            return UnbatchIterator(iter(self._parent.map(lambda x: [x, x])))

    limited = Twice(numbers().to_iter_dataset(), 2)
    twice = [x for x in numbers() for _ in range(2)]
    assert list(limited.map(lambda x: x)) == twice


def test_iterators_are_saved_by_orbax_of_version_1(tmp_path: Path) -> None:
    class Folder:
        async def await_creation(self) -> Path:
            return tmp_path

    async def save(it: Any) -> None:
        await (await it.save(Folder()))

    async def load(it: Any) -> None:
        await (await it.load(tmp_path))

    loader = grain.load(range(9), num_epochs=1)
    for made in (iter(numbers().to_iter_dataset()), iter(loader)):
        next(made)
        asyncio.run(save(made))
        assert json.loads((tmp_path / "process_0-of-1.json").read_text())
        rest = list(made)
        asyncio.run(load(made))
        assert list(made) == rest


def test_thread_prefetch_of_any_iterator() -> None:
    it = ex.ThreadPrefetchDatasetIterator(UnbatchIterator(iter(numbers().batch(4))), 3)
    first = [next(it) for _ in range(5)]
    state, rest = it.get_state(), list(it)
    it.set_state(state)
    assert list(it) == rest and first + rest == list(numbers())
    it.start_prefetch()
    it.close()
    with pytest.raises(ConfigError, match="closed"):
        next(it)
    inline = ex.ThreadPrefetchDatasetIterator(UnbatchIterator(iter(numbers().batch(4))), 0)
    assert list(inline) == first + rest
    with pytest.raises(ConfigError):
        ex.ThreadPrefetchDatasetIterator(inline, -1)


@pytest.mark.parametrize("n", [64, 65])
def test_elastic_states_fit_any_shards_and_batches(n: int) -> None:
    ds = grain.MapDataset.range(n).seed(3).shuffle().repeat()

    def open_shards(count: int, batch: int) -> list[Any]:
        shards = [grain.sharding.ShardOptions(i, count) for i in range(count)]
        return [ex.ElasticIterator(ds, batch, shard) for shard in shards]

    def step(shards: list[Any]) -> list[int]:
        parts = [next(shard).tolist() for shard in shards]
        return [x for row in zip(*parts, strict=True) for x in row]

    two, four, wanted = open_shards(2, 8), open_shards(4, 12), [ds[i] for i in range(128)]
    seen = [x for _ in range(4) for x in step(two)]
    states = [shard.get_state() for shard in two]
    assert states == [{"global_next_index": 32}] * 2
    for shard in four:
        shard.set_state(states[0])
    seen += [x for _ in range(3) for x in step(four)]
    assert seen == wanted[:68] and four[3].get_state() == {"global_next_index": 68}
    with pytest.raises(ConfigError, match="cannot share"):
        open_shards(3, 8)
    with pytest.raises(ConfigError, match="filter"):
        ex.ElasticIterator(ds.filter(bool), 8, grain.sharding.NoSharding())


def test_shared_arrays() -> None:
    array = grain.multiprocessing.SharedMemoryArray((2, 3), np.int32)
    array[:] = 7
    other = pickle.loads(pickle.dumps(array))
    assert other.tolist() == [[7] * 3] * 2 and other.metadata == array.metadata
    other[0, 0] = 1
    assert array[0, 0] == 1
    part = pickle.loads(pickle.dumps(np.asarray(array[:1])))
    assert part.tolist() == [[1, 7, 7]]
    path = Path(array.metadata.name)
    array.unlink_on_del()
    del array, other
    assert not path.exists()
    kept = grain.multiprocessing.SharedMemoryArray((1,))
    kept.metadata.close_and_unlink_shm()
    assert not Path(kept.metadata.name).exists()


def test_record_files(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    paths = [str(tmp_path / f"{name}.array_record") for name in "ab"]
    for path in paths:
        writer = module.ArrayRecordWriter(path, "group_size:1")
        for i in range(5):
            writer.write(f"{Path(path).stem}{i}".encode())
        writer.close()
    source = grain.sources.ArrayRecordDataSource(paths, reader_options={"index_storage": "x"})
    assert len(source) == 10 and source[6] == b"b1" and source.paths == paths
    assert sorted(grain.MapDataset.source(source).shuffle(seed=1)) == sorted(
        source[i] for i in range(10)
    )

    class Part:
        filename, skip, take, examples_in_shard = paths[1], 1, 2, 5

    with grain.sources.ArrayRecordDataSource([f"{paths[0]}[1:3]", Part()]) as parts:
        assert [parts[i] for i in range(len(parts))] == [b"a1", b"a2", b"b1", b"b2"]
    with pytest.raises(ConfigError, match="no paths"):
        grain.sources.ArrayRecordDataSource([])


def test_small_names() -> None:
    assert grain.constants.INDEX in grain.constants.META_FEATURES
    grain.config.update("py_debug_mode", True)
    with pytest.raises(ConfigError, match="choose one of"):
        grain.config.update("nothing", 1)
    with pytest.raises(ConfigError, match="elements="):
        grain.sources.SharedMemoryDataSource(name="x")
    source = grain.sources.SharedMemoryDataSource([1, 2], name="x")
    assert list(grain.MapDataset.source(source)) == [1, 2] and "x" in repr(source)
    with pytest.raises(ConfigError, match="no threshold"):
        options = ex.DatasetOptions(filter_raise_threshold_ratio=0.5)
        ex.WithOptionsIterDataset(numbers().to_iter_dataset(), options)
    calls = list[Any]()
    ds = numbers().to_iter_dataset()
    options = grain.MultiprocessingOptions(2, enable_profiling=True)
    ready = ds.mp_prefetch(options, worker_init_fn=lambda i, n: calls.append((i, n)))
    assert list(ready) == list(numbers()) and calls == [(0, 1)]
    assert ds.mp_prefetch(grain.MultiprocessingOptions(0)) is ds
    assert isinstance(ex.ShapeDtypeStruct((1,), np.int32), ex.ShapeDtypeStructProtocol)

    class Noise(grain.transforms.TfRandomMap):
        def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return element * 100 + int(rng.integers(100))

    noisy = list(numbers().apply(Noise()))
    assert [x // 100 for x in noisy] == list(numbers()) and len({x % 100 for x in noisy}) > 5


def test_paths_of_private_modules() -> None:
    """Public projects import from these paths."""
    root = "penstock.compat.grain._src"
    sharding: Any = importlib.import_module(f"{root}.core.sharding")
    assert sharding.even_split(7, grain.sharding.ShardOptions(1, 2)) == (4, 7)
    loader: Any = importlib.import_module(f"{root}.python.data_loader")
    assert loader._determine_worker_count(3) == 3
    dataset: Any = importlib.import_module(f"{root}.python.dataset.dataset")
    assert dataset.MapDataset is grain.MapDataset
    older: Any = importlib.import_module("penstock.compat.grain.python.experimental")
    assert older.ZipIterDataset is ex.ZipIterDataset


def frame(data: bytes) -> bytes:
    from penstock.sources.crc32c import compute_crc32c

    def mask(part: bytes) -> bytes:
        value = int(
            compute_crc32c(np.frombuffer(part, np.uint8), np.array([0]), np.array([len(part)]))[0]
        )
        return (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    length = len(data).to_bytes(8, "little")
    return length + mask(length) + data + mask(data)


def test_tfrecord_files(tmp_path: Path) -> None:
    from penstock.compat.grain.tfrecord_dataset import RecordIterator

    path, records = tmp_path / "x.tfrecord", [b"one", b"", b"three" * 9]
    path.write_bytes(b"".join(map(frame, records)))
    ds = ex.TFRecordIterDataset(str(path))
    assert list(ds) == records
    assert_resumes(lambda: ds.map(len))

    class GivenOptions(ex.TFRecordIterDataset):
        def __iter__(self) -> grain.DatasetIterator:
            return RecordIterator(self._path)

    own = GivenOptions(str(path))
    assert list(own.map(len)) == [3, 0, 45]
    assert_resumes(lambda: own.map(len))
    path.write_bytes(path.read_bytes()[:-3])
    it: Iterator[Any] = iter(own)
    assert next(it) == b"one"
    with pytest.raises(ValueError, match="cut off or damaged"):
        list(it)


def test_parquet_with_arguments_of_arrow(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": list(range(10)), "y": ["a"] * 10}), path, row_group_size=4)
    plain, arrow = (
        ex.ParquetIterDataset(str(path)),
        ex.ParquetIterDataset(str(path), memory_map=True),
    )
    assert list(plain) == list(arrow) and len(list(arrow)) == 10
    assert_resumes(lambda: arrow)


def test_slices_of_shuffled_data_have_a_new_order_in_every_pass() -> None:
    shuffled = grain.MapDataset.range(40).shuffle(seed=3)
    parts = [shuffled[i::2] for i in range(2)]
    passes = [[[part.repeat()[e * 20 + i] for i in range(20)] for e in range(4)] for part in parts]
    for i in range(2):
        assert passes[i][0] == [shuffled[j] for j in range(i, 40, 2)]
        assert {tuple(sorted(run)) for run in passes[i]} == {tuple(sorted(passes[i][0]))}
        assert len({tuple(run) for run in passes[i]}) == 4
    batches = parts[0].map(lambda x: x).batch(5).repeat(3)
    assert [x for batch in batches for x in batch.tolist()] == [
        x for run in passes[0][:3] for x in run
    ]
    plain = grain.MapDataset.range(9)[2:6].repeat(2)
    assert list(plain) == [2, 3, 4, 5] * 2
    assert_resumes(lambda: batches.to_iter_dataset())
    order, positions = LaterShuffle(3), np.arange(100)
    there, _ = order.down(positions, 20, 0)
    assert order.up(there, 20, 0).tolist() == positions.tolist()


def test_an_empty_input_gives_an_empty_mixture() -> None:
    def stream(n: int) -> grain.IterDataset:
        return grain.MapDataset.range(n).to_iter_dataset().map(lambda x: x)

    for sizes in ((0, 5), (5, 0), (5, 5, 0)):
        assert list(grain.IterDataset.mix([stream(n) for n in sizes])) == []
    assert list(grain.IterDataset.mix([stream(5)])) == [0, 1, 2, 3, 4]


def test_registered_trees_of_jax_are_stacked() -> None:
    jax = pytest.importorskip("jax")

    class Pair:
        def __init__(self, x: Any, y: Any) -> None:
            self.x, self.y = x, y

    jax.tree_util.register_pytree_node(
        Pair, lambda pair: ((pair.x, pair.y), None), lambda _, parts: Pair(*parts)
    )
    ds = grain.MapDataset.range(4).map(lambda i: {"pair": Pair(np.ones(2) * i, {"z": i})})
    batch = ds.batch(2)[1]["pair"]
    assert isinstance(batch, Pair) and batch.x.tolist() == [[2, 2], [3, 3]]
    assert batch.y["z"].tolist() == [2, 3]
    arrays = grain.MapDataset.range(4).map(lambda i: jax.numpy.ones(2) * i).batch(4)[0]
    assert isinstance(arrays, np.ndarray) and arrays.shape == (4, 2)
    mixed = grain.MapDataset.range(2).map(lambda i: Pair(i, (i,) * (i + 1)))
    with pytest.raises(ValueError, match="different structures"):
        mixed.batch(2)[0]
