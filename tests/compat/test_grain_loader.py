"""`DataLoader` in Grain's order, compared with Grain; operations on records; samplers of a user."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock.compat.grain as ours
import penstock.compat.grain.python as old
from penstock.errors import ConfigError, StateError
from penstock.testing import assert_resumes


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("grain", reason="Grain is not installed")


def add_noise(element: Any, rng: np.random.Generator) -> Any:
    return element * 1000 + int(rng.integers(1000))


def make_loader(grain: Any, case: random.Random, workers: int = 0, **options: Any) -> Any:
    """Return a random loader of either package."""

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return add_noise(element, rng)

    class Double(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return 2 * element

    class Third(grain.transforms.Filter):
        def filter(self, element: Any) -> bool:
            return element % 3 != 0

    n, shards = case.randrange(40, 90), case.randrange(1, 4)
    shard = grain.sharding.ShardOptions(case.randrange(shards), shards, case.random() < 0.5)
    of_loader = grain.sharding.ShardOptions(case.randrange(2), 2) if case.random() < 0.4 else None
    operations: list[Any] = [
        case.choice([Noise, Double, Third, Noise])() for _ in range(case.randrange(4))
    ]
    if case.random() < 0.3:
        sampler = grain.samplers.SequentialSampler(n, shard, seed=case.randrange(99))
    else:
        endless = not any(isinstance(operation, Third) for operation in operations)
        epochs = case.choice([None if endless else 4, 1, 2, 3])
        shuffles = case.random() < 0.7
        sampler = grain.samplers.IndexSampler(n, shard, shuffles, epochs, case.randrange(99))
    if case.random() < 0.6:
        batch = grain.transforms.Batch(case.randrange(1, 5), case.random() < 0.5)
        operations.insert(len(operations), batch)
    return grain.DataLoader(
        data_source=range(n),
        sampler=sampler,
        operations=operations,
        worker_count=workers,
        shard_options=of_loader,
        read_options=grain.ReadOptions(0, 0),
        **options,
    )


def take(it: Iterator[Any], count: int) -> list[Any]:
    out = list[Any]()
    for value in it:
        out.append(np.asarray(value).tolist())
        if len(out) == count:
            break
    return out


@pytest.mark.parametrize("seed", range(24))
def test_equals_grain_and_continues_from_its_states(seed: int, theirs: Any) -> None:
    wanted = iter(make_loader(theirs, random.Random(seed)))
    loader = make_loader(ours, random.Random(seed), order="grain")
    before = take(wanted, seed % 7)
    state = wanted.get_state()
    rest = take(wanted, 25)
    it = iter(loader)
    assert take(it, len(before)) == before if before else True
    assert take(it, 25) == rest
    taken_over = iter(loader)
    taken_over.set_state(state)
    assert take(taken_over, 3) == rest[:3]
    again = iter(loader)
    again.set_state(taken_over.get_state())
    assert take(again, 22) == rest[3:]


def test_states_of_grain_that_do_not_fit(theirs: Any) -> None:
    state = iter(make_loader(theirs, random.Random(1))).get_state()
    with pytest.raises(StateError, match="order='grain'"):
        iter(make_loader(ours, random.Random(1))).set_state(state)
    with pytest.raises(StateError, match="worker_count"):
        iter(make_loader(ours, random.Random(1), workers=2, order="grain")).set_state(state)
    with pytest.raises(StateError, match="the sampler"):
        iter(make_loader(ours, random.Random(2), order="grain")).set_state(state)
    with pytest.raises(StateError, match="a list"):
        iter(make_loader(ours, random.Random(1))).set_state(b"[]")


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_take_every_nth_record_as_in_grain(workers: int) -> None:
    """Grain's processes filter and batch their own records, and deliver in turn."""
    loader = make_loader(ours, random.Random(8), workers=workers, order="grain")
    parts = list[list[Any]]()
    alone = make_loader(ours, random.Random(8), order="grain")
    for worker in range(workers):
        alone._records = make_loader(ours, random.Random(8), order="grain")._records[
            worker::workers
        ]
        parts.append(take(iter(alone._make()), 20))
    turns = [part[i] for i in range(20) for part in parts if i < len(part)]
    assert take(iter(loader), 20) == turns[:20]
    assert_resumes(lambda: ours.experimental.LimitIterDataset(loader.dataset, 12))


class Reversed:
    """A sampler of a user."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __getitem__(self, index: int) -> ours.RecordMetadata:
        if not 0 <= index < self.n:
            raise IndexError(index)
        return ours.RecordMetadata(index, self.n - 1 - index, np.random.default_rng(index))

    def __repr__(self) -> str:
        return f"Reversed({self.n})"


def test_sampler_of_a_user() -> None:
    def loader(**options: Any) -> ours.DataLoader:
        return ours.DataLoader(data_source="abcdefg", sampler=Reversed(7), **options)

    shard = ours.sharding.ShardOptions(1, 2)
    assert list(loader(shard_options=ours.sharding.NoSharding())) == [*"gfedcba"]
    assert list(loader(shard_options=shard)) == [*"fdb"]
    assert_resumes(lambda: loader(shard_options=shard), json=True)
    with pytest.raises(ConfigError, match="no shard_options"):
        loader()

    class Draw(ours.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return element, int(rng.integers(100))

    drawn = list(loader(shard_options=shard, operations=[Draw()]))
    assert [tuple(pair) for pair in drawn] == [
        (letter, int(np.random.default_rng(i).integers(100)))
        for letter, i in zip("fdb", (1, 3, 5), strict=True)
    ]


def test_operations() -> None:
    def pairs(records: Iterator[Any]) -> Iterator[Any]:
        for record in records:
            other = next(records, None)
            if other is not None:
                yield old.Record(other.metadata, (record.data, other.data))

    def loader(*operations: Any) -> old.DataLoader:
        sampler = old.IndexSampler(11, num_epochs=2, seed=3)
        return old.DataLoader(data_source=range(11), sampler=sampler, operations=operations)

    native = [
        old.MapOperation(lambda x: x + 1),
        old.FilterOperation(lambda x: x % 2),
        old.BatchOperation(2),
    ]
    assert [batch.tolist() for batch in loader(*native)] == [[1, 3], [5, 7], [9, 11]] * 2
    assert list(loader(pairs))[:3] == [(0, 1), (2, 3), (4, 5)]
    assert_resumes(lambda: loader(*native, pairs), json=True)
    drawn = list(loader(old.RandomMapOperation(add_noise)))
    assert len(set(drawn)) == 22
    called = list(native[2](iter([old.Record(old.RecordMetadata(i, i), i) for i in range(3)])))
    assert [record.data.tolist() for record in called] == [[0, 1], [2]]
    assert called[1].metadata == old.RecordMetadata(2)
    with pytest.raises(ConfigError, match="no transformation and no operation"):
        loader(3)


def test_pack_and_batch_equals_grain(theirs: Any) -> None:
    lengths = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 1, 2]

    def rows(grain: Any) -> list[Any]:
        source = [{"x": np.arange(n) + 1, "y": np.ones((n, 2), np.float32)} for n in lengths]
        pack = grain.experimental.PackAndBatchOperation({"x": 7, "y": 8}, 2)
        sampler = grain.samplers.SequentialSampler(12, grain.sharding.NoSharding())
        return list(grain.DataLoader(data_source=source, sampler=sampler, operations=[pack]))

    got, wanted = rows(ours), rows(theirs)
    assert len(got) == len(wanted)
    for row, other in zip(got, wanted, strict=True):
        for part, same in zip(row, other, strict=True):
            for name in ("x", "y"):
                np.testing.assert_array_equal(part[name], same[name])
                assert part[name].dtype == same[name].dtype


def test_states_are_bytes_of_json() -> None:
    loader = make_loader(ours, random.Random(3))
    it = iter(loader)
    next(it)
    state = it.get_state()
    assert isinstance(state, bytes) and json.loads(state) == it.state_dict()
    rest = take(it, 5)
    assert take(ours.DataLoaderIterator(loader, state), 5) == rest
    assert repr(loader._sampler) in ("",) or str(it).startswith("DataLoaderIterator(state=")
    it.close()
