"""Grain's API on Penstock: what the page promises, what the core guarantees, and Grain's own defects."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
import penstock.compat.grain as grain
from example_counts import pick_cases, rounds
from helpers import through_json
from penstock.compat.grain.options import Run
from penstock.compat.grain.prefetch import PrefetchIterator
from penstock.engine.runtime.iterator import DatasetIterator
from penstock.errors import ConfigError, DataError, StateError
from penstock.testing import assert_covers, assert_resumes, assert_same_run

ex = grain.experimental
INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
THREADS = grain.ReadOptions(num_threads=3, prefetch_buffer_size=8)


def threaded(n: int, options: grain.ReadOptions | None = THREADS) -> grain.IterDataset:
    return grain.MapDataset.source(list(range(n))).to_iter_dataset(options)


class Docs:
    """Sequences of 1 to 7 tokens."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": np.full(i * 5 % 7 + 1, i), "y": np.full(i * 5 % 7 + 1, -i)}


def pipelines(options: grain.ReadOptions | None) -> dict[str, grain.IterDataset]:
    """One of every kind whose state is more than a number."""
    ints = grain.MapDataset.source(list(range(100))).seed(3).shuffle()
    docs = grain.MapDataset.source(Docs()).seed(1).shuffle().to_iter_dataset(options)
    stream = ints.to_iter_dataset(options)
    parts = [
        grain.MapDataset.range(a, a + n).to_iter_dataset(options)
        for a, n in ((0, 30), (100, 3), (200, 40))
    ]
    lengths: Any = {"length_struct": {"x": 16, "y": 16}}
    return {
        "map": ints.map(lambda x: -x).batch(2).to_iter_dataset(options),
        "filter": ints.filter(lambda x: x % 3).to_iter_dataset(options).batch(1),
        "mix": grain.IterDataset.mix(parts[::2], [0.7, 0.3]).random_map(
            lambda x, rng: x + rng.random(), seed=1
        ),
        "window": ex.WindowShuffleIterDataset(stream, window_size=7, seed=42),
        "interleave": ex.InterleaveIterDataset(parts, cycle_length=2),
        "flat": stream.flat_map(Twice()),
        "index": stream.map_with_index(lambda i, x: (i, x)),
        "repeat": ex.RepeatIterDataset(ex.LimitIterDataset(stream, 25), 3),
        "rebatch": ex.RebatchIterDataset(stream.batch(7), 3),
        "zip": ex.ZipIterDataset([stream, stream.map(str)]),
        "first fit": ex.FirstFitPackIterDataset(docs, num_packing_bins=4, **lengths),
        "best fit": ex.BestFitPackIterDataset(
            docs, num_packing_bins=4, shuffle_bins=False, **lengths
        ),
        "concat split": ex.ConcatThenSplitIterDataset(docs, **lengths),
        "grain order": grain.MapDataset.range(40, order="grain")
        .seed(1)
        .shuffle()
        .repeat()
        .to_iter_dataset(options),
    }


class Twice(grain.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: Any) -> list[Any]:
        return [element] * (element % 3)


NAMES = list(pipelines(None))


# ---------------------------------------------------------------- resuming


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_resumes_at_every_step(name: str) -> None:
    def run() -> Any:
        ds = pipelines(INLINE)[name]
        return ex.LimitIterDataset(ds, 60) if name == "grain order" else ds

    assert_resumes(run, steps=40, at_most=rounds(2, 40))


@pytest.mark.parametrize("name", NAMES)
def test_restored_at_every_of_60_steps_with_another_number_of_threads(name: str) -> None:
    whole = iter(pipelines(INLINE)[name])
    items, states = list[Any](), [whole.get_state()]
    for item in islice(whole, 60):
        items.append(item)
        states.append(whole.get_state())
    ahead = ex.ThreadPrefetchIterDataset(pipelines(THREADS)[name], prefetch_buffer_size=3)
    it = iter(ahead.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    for at in pick_cases(range(len(items)), 3):
        it.set_state(through_json(states[at]))
        assert it.get_state() == states[at]
        last = min(at + 3, len(items))
        assert_same_run(lambda: islice(it, 3), lambda: items[at:last], steps=last - at)  # noqa: B023
        assert it.get_state() == states[last]
    it.close()


def test_first_element_after_a_restore_costs_the_same_everywhere() -> None:
    reads = list[int]()

    class Counted:
        def __len__(self) -> int:
            return 1 << 40

        def __getitem__(self, i: int) -> int:
            reads.append(i)
            return i

    def opened() -> Any:
        return iter(
            ex.WindowShuffleIterDataset(
                grain.MapDataset.source(Counted()).seed(1).shuffle().to_iter_dataset(INLINE),
                window_size=8,
                seed=2,
            )
        )

    it, costs = opened(), list[int]()
    for steps in (1, 500):
        for _ in range(steps):
            next(it)
        state, again = it.get_state(), opened()
        reads.clear()
        again.set_state(state)
        next(again)
        costs.append(len(reads))
    assert costs[1] <= costs[0] + 8


def test_state_is_that_of_the_last_element_given_out() -> None:
    ds = ex.ThreadPrefetchIterDataset(threaded(50), prefetch_buffer_size=10)
    ahead, inline = iter(ds), iter(threaded(50, INLINE))
    for _ in range(20):
        assert next(ahead) == next(inline)
        assert ahead.get_state() == inline.get_state()
    ahead.close()


# ---------------------------------------------------------------- the face is thin


def test_face_is_core() -> None:
    data = list(range(200))
    a, b = ps.from_sequence(data), ps.from_sequence(data[:50])
    ga, gb = grain.MapDataset.source(data), grain.MapDataset.source(data[:50])
    pairs: list[tuple[Any, ps.Dataset]] = [
        (ga.seed(45).shuffle(), a.shuffle(45)),
        (ga[3:90:4], a[3:90:4]),
        (ga.seed(1).shuffle().repeat(2), a.shuffle(1).repeat(2)),
        (grain.MapDataset.mix([ga, gb], [0.7, 0.3]),
         ps.mix({"0": a, "1": b}, {"0": 0.7, "1": 0.3}, block_size=1, stop="first_exhausted")),
        (grain.MapDataset.concatenate([ga, gb]), a.concat(b)),
        (ex.WindowShuffleMapDataset(ga, window_size=10, seed=4), a.shuffle(4, window=10)),
    ]  # fmt: skip
    there = grain.MapDataset.range(3).to_iter_dataset().core.tree.fn  # pyright: ignore[reportAttributeAccessIssue]
    for face, core in pairs:
        left, right = (
            iter(face.to_iter_dataset(INLINE)),
            DatasetIterator(core.filter(there), lanes=1),
        )
        for _ in range(20):
            assert next(left) == next(right)
            assert left.get_state() == right.state_dict()
    streams: list[tuple[Any, ps.Dataset]] = [
        (
            ex.InterleaveIterDataset([ga, gb], cycle_length=1),
            a.filter(there).interleave(b.filter(there), width=1),
        ),
        (
            ex.WindowShuffleIterDataset(ga.to_iter_dataset(), window_size=9, seed=1),
            a.filter(there).shuffle(1, window=9),
        ),
    ]
    for face, core in streams:
        left, right = iter(face), DatasetIterator(core, lanes=1)
        for _ in range(20):
            assert next(left) == next(right)
            assert left.get_state() == right.state_dict()


@pytest.mark.parametrize("threads", [0, 1, 3, 16])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_stream_does_not_depend_on_threads_and_workers(threads: int, workers: int) -> None:
    """Grain's stream changes with its workers: filters, mixtures and batches are made per worker, elements get lost."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=20)

    def made(o: grain.ReadOptions) -> grain.IterDataset:
        kept = grain.MapDataset.source(list(range(60))).filter(lambda x: x % 5).to_iter_dataset(o)
        other = grain.MapDataset.source(list(range(100, 130))).to_iter_dataset(o)
        return grain.IterDataset.mix([kept, other], [2, 1]).batch(4)

    ds = made(options).mp_prefetch(
        grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=10)
    )
    assert_same_run(lambda: ds, lambda: made(INLINE))


# ---------------------------------------------------------------- semantics of maps


@pytest.mark.parametrize(("order", "length"), [("penstock", 6_726), ("grain", 6_728)])
def test_length_of_a_mixture_depends_on_the_order(order: Any, length: int) -> None:
    inputs = [grain.MapDataset.range(n, order=order) for n in (4_708, 60_000)]
    assert len(grain.MapDataset.mix(inputs, weights=[0.7, 0.3])) == length


def test_index_beyond_the_length_is_the_next_pass() -> None:
    ds = grain.MapDataset.range(10).seed(1).shuffle()
    assert sorted(ds[i] for i in range(10, 20)) == list(range(10))
    assert [ds[i] for i in range(10)] != [ds[i] for i in range(10, 20)]
    assert ds[-1] == ds[9]
    with pytest.raises(IndexError):
        grain.MapDataset.range(0)[0]


@pytest.mark.parametrize("bounds", [(5,), (2, 9), (9, 2, -3), (0, 0)])
def test_range_is_the_builtin(bounds: tuple[int, ...]) -> None:
    assert list(grain.MapDataset.range(*bounds)) == list(range(*bounds))


def test_missing_elements() -> None:
    calls = list[Any]()
    ds = grain.MapDataset.range(6).filter(lambda x: x % 2).map(lambda x: calls.append(x) or x * 10)
    assert [ds[i] for i in range(6)] == [None, 10, None, 30, None, 50]
    assert list(ds) == [10, 30, 50] and None not in calls
    assert len(ds) == 6
    indexed = grain.MapDataset.range(4).filter(lambda x: x % 2).map_with_index(lambda i, x: (i, x))
    assert list(indexed) == [(1, 1), (3, 3)]
    assert list(ds.to_iter_dataset(allow_nones=True)) == [None, 10, None, 30, None, 50]
    assert list(ds.to_iter_dataset(allow_nones=True).filter(lambda x: x > 10)) == [
        30,
        50,
    ]  # Grain's crashes
    with pytest.raises(ConfigError, match="to_iter_dataset"):
        ds.batch(2)
    assert [b.tolist() for b in ds.to_iter_dataset().batch(2)] == [[10, 30], [50]]


def test_repeat() -> None:
    ds = grain.MapDataset.range(5).seed(1).shuffle().random_map(lambda x, rng: (x, rng.random()))
    assert len(ds.repeat()) == sys.maxsize and len(grain.MapDataset.range(0).repeat()) == 0
    again = [ds.repeat(2, reseed_each_epoch=False)[i] for i in range(10)]
    assert again[:5] == again[5:]
    fresh = [ds.repeat(2)[i] for i in range(10)]
    assert fresh[:5] == again[:5] and not {r for _, r in fresh[:5]} & {r for _, r in fresh[5:]}
    for wrong in (
        lambda: ds.repeat(0),
        lambda: ds.repeat(-1),
        lambda: ds.repeat().repeat(),
        lambda: ds.repeat().shuffle(),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_seeds() -> None:
    ds = grain.MapDataset.range(30)
    for wrong in (-1, 1 << 32):
        with pytest.raises(ConfigError, match="between 0 and"):
            ds.shuffle(seed=wrong)
    for step in (ds.shuffle, lambda: ds.random_map(lambda x, rng: x)):
        with pytest.raises(ConfigError, match="needs a seed"):
            step()
    assert list(ds.seed(1).shuffle()) != list(ds.seed(2).shuffle())
    mixed = grain.MapDataset.mix([ds.seed(1), ds.seed(2)]).shuffle()
    assert len(set(mixed)) > 20


def test_inserting_a_step_does_not_change_a_shuffle() -> None:
    """Grain's seeds come from the depth in the graph."""
    ds = grain.MapDataset.range(30).seed(1)
    assert list(ds.map(lambda x: x).shuffle()) == list(ds.shuffle())


def test_neighbouring_seeds_are_unrelated() -> None:
    """In Grain seed 42, pass 1 is seed 43, pass 0."""
    a, b = (grain.MapDataset.range(40).shuffle(seed=seed) for seed in (42, 43))
    assert [a[40 + i] for i in range(40)] != [b[i] for i in range(40)]


def test_window_shuffle_of_a_map_loses_nothing_at_the_end() -> None:
    """Grain's last window reaches over the end: some are lost, some come twice."""
    ds = ex.WindowShuffleMapDataset(grain.MapDataset.range(10), window_size=4, seed=1)
    assert_covers([ds[i] for i in range(10)], range(10))
    assert sorted(ds[i] for i in range(4, 8)) == [4, 5, 6, 7]
    assert [ds[i] for i in range(10)] != [ds[10 + i] for i in range(10)]


def test_slices_of_shuffled_data_do_not_leak() -> None:
    """Grain #1200: shuffle, slice, repeat gave elements from outside the slice."""
    ds = grain.MapDataset.range(20).seed(1).shuffle()
    train, held = ds[:15].repeat(3), ds[15:].repeat(3)
    assert not set(islice(train, 45)) & set(islice(held, 15))


@pytest.mark.parametrize("weights", [[1.0, 1.005], [1, 1.999], [0.7, 0.3]])
def test_weights_are_not_cut_off(weights: list[float]) -> None:
    """Grain's mixtures are up to a percent off: 1 to 1.005 becomes 1 to 1."""
    ds = grain.MapDataset.mix([grain.MapDataset.source([k]).repeat() for k in (0, 1)], weights)
    n = 20_000
    share = sum(islice(ds.core, n)) / n
    assert abs(share - weights[1] / sum(weights)) * n <= 2


def test_weights_in_dicts_belong_to_their_keys() -> None:
    """Grain gives them to the wrong dataset where the keys are in another order, depending on whether JAX is there."""
    parts = {
        name: grain.MapDataset.source([name]).repeat().to_iter_dataset(INLINE)
        for name in ("b", "a")
    }
    one = list(islice(grain.IterDataset.mix(parts, {"a": 9, "b": 1}), 100))
    other = list(islice(grain.IterDataset.mix(dict(sorted(parts.items())), {"b": 1, "a": 9}), 100))
    assert one == other and one.count("a") == 90
    with pytest.raises(ConfigError, match="one weight for each"):
        grain.IterDataset.mix(parts, {"a": 9, "c": 1})


def test_mixtures_that_cannot_be() -> None:
    ds = grain.MapDataset.range(3)
    for weights in ([1, 0], [1, -1], [1], [1, float("nan")]):
        with pytest.raises(ConfigError):
            grain.MapDataset.mix([ds, ds], weights)
    with pytest.raises(ConfigError, match="input 1 is empty"):
        grain.MapDataset.mix([ds, grain.MapDataset.range(0)])
    with pytest.raises(ConfigError, match="endless"):
        grain.MapDataset.concatenate([ds.repeat(), ds])


def test_selection_and_concatenation() -> None:
    a, b = grain.MapDataset.range(3), grain.MapDataset.range(10, 12)
    assert list(grain.MapDataset.select_from_datasets([a, b], [(1, 0), (0, 2), (0, 4)])) == [
        10,
        2,
        1,
    ]
    both = grain.MapDataset.concatenate([a.shuffle(seed=1), b])
    assert sorted(both[i] for i in range(5, 10)) == [0, 1, 2, 10, 11]


def test_transformations() -> None:
    class Plus(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return element + 1

    class Odd(grain.transforms.Filter):
        def filter(self, element: Any) -> bool:
            return element % 2 == 1

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return element + int(rng.integers(1))

    class Numbered(grain.transforms.MapWithIndex):
        def map_with_index(self, index: int, element: Any) -> Any:
            return element * 100 + index

    steps = [Plus(), Noise(), Numbered()]
    maps = grain.MapDataset.range(4).seed(1).apply(steps)
    assert list(maps) == [100, 201, 302, 403]
    batches = (
        grain.MapDataset.range(4)
        .seed(1)
        .to_iter_dataset()
        .apply([*steps, Odd(), grain.transforms.Batch(2)])
    )
    assert [b.tolist() for b in batches] == [[201, 403]]
    flat = grain.MapDataset.source([0, 1, 2]).apply(Twice())
    assert (
        len(flat) == 6
        and [flat[i] for i in range(6)] == [None, None, 1, None, 2, 2]
        and list(flat) == [1, 2, 2]
    )
    assert list(ex.FlatMapIterDataset(threaded(4), Twice())) == [1, 2, 2]
    with pytest.raises(ConfigError, match="not a int"):
        maps.map(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="not a transformation"):
        maps.apply(len)  # pyright: ignore[reportArgumentType]


def test_flat_map_that_gives_too_many() -> None:
    class Many(Twice):
        def flat_map(self, element: Any) -> list[Any]:
            return [element] * 3

    with pytest.raises(DataError, match="max_fan_out of 2"):
        grain.MapDataset.range(2).apply(Many())[0]


def test_batches_of_trees() -> None:
    ds = grain.MapDataset.source(
        [{"a": [i, (i, "x" * i)], "b": np.full(2, i)} for i in range(3)]
    ).batch(2)
    first = ds[0]
    assert first["a"][0].tolist() == [0, 1] and first["a"][1][1].tolist() == ["", "x"]
    assert first["b"].tolist() == [[0, 0], [1, 1]] and len(ds[1]["b"]) == 1
    with pytest.raises(DataError, match="different structures"):
        grain.MapDataset.source([{"a": 1}, {"b": 1}]).batch(2)[0]
    assert grain.MapDataset.range(4).batch(2, batch_fn=sum)[1] == 5


def test_zip_strict() -> None:
    a, b = threaded(3), threaded(4)
    assert list(ex.ZipIterDataset([a, a])) == [(i, i) for i in range(3)]
    with pytest.raises(DataError, match="input 0 is shorter than input 1"):
        list(ex.ZipIterDataset([a, b]))
    with pytest.raises(ConfigError, match="different lengths"):
        ex.ZipMapDataset([grain.MapDataset.range(2), grain.MapDataset.range(3)])


def test_packing_rows() -> None:
    docs = grain.MapDataset.source(Docs()).to_iter_dataset(INLINE)
    rows = list(
        ex.FirstFitPackIterDataset(
            docs, length_struct={"x": 8, "y": 8}, num_packing_bins=3, meta_features=["y"]
        )
    )
    assert list(rows[0]) == ["x", "x_segment_ids", "x_positions", "y"]
    pieces = [
        (int(row["x"][row["x_segment_ids"] == s][0]), int((row["x_segment_ids"] == s).sum()))
        for row in rows
        for s in range(1, row["x_segment_ids"].max() + 1)
    ]
    assert sorted(pieces) == [(i, i * 5 % 7 + 1) for i in range(90)]
    cut = list(ex.ConcatThenSplitIterDataset(
        docs, length_struct={"x": 8}, meta_features=["y"], bos_features=["x"], bos_token_id=-9,
        bos_handling=ex.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS))  # fmt: skip
    assert all(row["x_positions"][0] == 0 and row["x"][0] == -9 for row in cut)
    assert [int((row["x"] == -9).sum()) for row in cut] == [
        int(row["x_segment_ids"].max()) for row in cut
    ]
    with pytest.raises(DataError):
        list(ex.FirstFitPackIterDataset(docs, length_struct={"x": 4, "y": 4}, num_packing_bins=3))


# ---------------------------------------------------------------- failures


class Broken:
    """Fails on 5 until it is mended."""

    def __init__(self) -> None:
        self.mended = False

    def __call__(self, x: int) -> int:
        if x == 5 and not self.mended:
            raise KeyError("five")
        return x


def failing(kind: str, fn: Any) -> Any:
    source = grain.MapDataset.source(list(range(12)))
    match kind:
        case "inline":
            return source.map(fn).to_iter_dataset(INLINE)
        case "threads":
            return source.map(fn).to_iter_dataset(THREADS)
        case "mix":
            other = grain.MapDataset.source([100] * 12).to_iter_dataset(INLINE)
            return grain.IterDataset.mix([source.map(fn).to_iter_dataset(INLINE), other])
        case _:
            return ex.ThreadPrefetchIterDataset(
                source.map(fn).to_iter_dataset(THREADS), prefetch_buffer_size=4
            )


@pytest.mark.parametrize("kind", ["inline", "threads", "mix", "prefetch"])
def test_an_exception_then_on_we_go(kind: str) -> None:
    """Grain, after an exception: skips the element and dies later (threads), or stops for good (mix)."""
    fn, seen = Broken(), list[int]()
    it = iter(failing(kind, fn))
    with pytest.raises(KeyError):
        while True:
            seen.append(next(it))
    state = it.get_state()
    for _ in range(3):
        with pytest.raises(KeyError):
            next(it)  # again and again: an element is never passed over in silence
        assert it.get_state() == state
    fn.mended = True
    while True:
        try:
            seen.append(next(it))
        except KeyError:  # found out before it was mended
            continue
        except StopIteration:
            break
    assert [x for x in seen if x < 100] == list(range(12))
    it.set_state(state)
    assert next(x for x in it if x < 100) == 5
    it.close()


def test_foreign_states_are_refused() -> None:
    """Grain takes the state of a mixture of two for one of three."""
    two, three = (grain.IterDataset.mix([threaded(9, INLINE)] * n) for n in (2, 3))
    it, other = iter(two), iter(three)
    next(it)
    next(other)
    before = other.get_state()
    with pytest.raises(StateError, match="2"):
        other.set_state(it.get_state())
    assert other.get_state() == before
    with pytest.raises(StateError, match="is one of Grain, which .* does not convert"):
        other.set_state({"next_index": 4})
    with pytest.raises(StateError, match="not a state of Penstock"):
        other.set_state({"index": 4})
    ahead = iter(ex.ThreadPrefetchIterDataset(three, prefetch_buffer_size=3))
    next(ahead)
    next(ahead)
    with pytest.raises(StateError):
        ahead.set_state(it.get_state())
    assert list(ahead) == list(three)[2:]
    ahead.close()


def test_close() -> None:
    """Grain's close hangs where the producer waits for room."""
    names = {thread.name for thread in threading.enumerate()}
    it = iter(ex.ThreadPrefetchIterDataset(threaded(1000), prefetch_buffer_size=2))
    next(it)
    it.close()
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)
    assert {thread.name for thread in threading.enumerate()} <= names


def test_reading_ahead_is_bounded() -> None:
    reads = list[int]()
    source = grain.MapDataset.source(list(range(1000))).map(lambda x: reads.append(x) or x)
    it = iter(source.to_iter_dataset(grain.ReadOptions(4, 30)))
    for i in range(200):
        next(it)
        # What is given out in one piece was computed, too, and on a busy machine the next piece.
        assert len(reads) <= i + 1 + 30 + 2 * 30
    it.close()
    assert Run.of(grain.ReadOptions(0, 500)) == Run.of(grain.ReadOptions(4, 0)) == Run()
    assert Run.of(grain.ReadOptions()) == Run(16, 500)
    for wrong in (
        lambda: grain.ReadOptions(-1),
        lambda: grain.MultiprocessingOptions(num_workers=-1),
    ):
        with pytest.raises(ConfigError):
            wrong()


def test_start_prefetch() -> None:
    for ds in (
        threaded(9),
        threaded(9, INLINE),
        ex.ThreadPrefetchIterDataset(threaded(9), prefetch_buffer_size=2),
    ):
        it = iter(ds)
        state = it.get_state()
        it.start_prefetch()
        assert it.get_state() == state and list(it) == list(range(9))
        it.start_prefetch()
        assert list(it) == []
        it.close()


def test_ahead_keeps_what_its_function_failed_on() -> None:
    fails = iter([True, False])

    def put(x: int) -> int:
        if x == 2 and next(fails):
            raise OSError("device")
        return x

    it = PrefetchIterator(iter(ps.from_sequence(range(4))), 2, put)
    assert [next(it), next(it)] == [0, 1]
    with pytest.raises(OSError, match="device"):
        next(it)
    assert list(it) == [2, 3]
    it.close()
    with pytest.raises(ConfigError):
        PrefetchIterator(iter(ps.from_sequence(range(4))), 0)


# ---------------------------------------------------------------- files, checkpoints, devices


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for k in range(3):
        pq.write_table(
            pa.table({"x": list(range(100 * k, 100 * k + 20)), "y": ["a"] * 20}),
            tmp_path / f"{k}.parquet",
            row_group_size=6,
        )
    return [str(tmp_path / f"{k}.parquet") for k in range(3)]


def test_parquet_hierarchical_shuffle(files: list[str]) -> None:
    names = grain.MapDataset.source(files)
    opened = names.map(grain.parquet_dataset.ParquetIterDataset)
    ds = ex.WindowShuffleIterDataset(
        ex.InterleaveIterDataset(opened, cycle_length=3), window_size=10, seed=42
    )
    assert_covers([row["x"] for row in ds], [100 * k + i for k in range(3) for i in range(20)])
    assert [row["x"] for row in islice(ex.ParquetIterDataset(files), 4)] == [0, 100, 200, 1]
    assert_resumes(lambda: ex.ParquetIterDataset(files[0], columns=["x"]), every=5)
    assert next(iter(ex.ParquetIterDataset(files[1], columns=["x"]))) == {"x": 100}
    with pytest.raises(ConfigError, match="map names to datasets"):
        ex.InterleaveIterDataset(names, cycle_length=3)
    with pytest.raises(ConfigError, match="empty or endless"):
        ex.InterleaveIterDataset(opened.repeat(), cycle_length=3)


def test_orbax(tmp_path: Path) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    it = iter(grain.MapDataset.source(list(range(100))).seed(seed=45).shuffle().to_iter_dataset())
    for _ in range(4):
        next(it)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.save(step=4, args=grain.checkpoint.CheckpointSave(it), force=True)
        manager.wait_until_finished()
        file = tmp_path / "run/4/default/process_0-of-1.json"
        assert json.loads(file.read_text()) == it.get_state()
        want = [next(it) for _ in range(4)]
        assert manager.restore(4, args=grain.checkpoint.CheckpointRestore(it)) is it
        assert [next(it) for _ in range(4)] == want
        file.rename(file.with_name("process_0-of-2.json"))
        with pytest.raises(ValueError, match="process_0-of-2.json"):
            manager.restore(4, args=grain.checkpoint.CheckpointRestore(it))
    it.close()


DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import threading
import numpy as np
import penstock.compat.grain as grain
from penstock.compat.grain import experimental as ex
import sys
assert "jax" not in sys.modules
import jax
devices = jax.devices()
assert len(devices) == 8
mesh = jax.sharding.Mesh(np.array(devices), axis_names=("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

read = threading.Semaphore(0)
def reading(i):
    read.release()
    return np.full((16, 4), i)

source = grain.MapDataset.source(list(range(24))).map(reading)
plain = source.to_iter_dataset(grain.ReadOptions(0, 0))
ds = ex.device_put(ds=plain, device=sharding, cpu_buffer_size=3, device_buffer_size=2).map(lambda x: x + 1)

it, out, known = iter(ds), [], 0
for step in range(24):
    out.append(next(it))
    while known < min(step + 3, 24):  # the training step: without overlap these samples are never read
        assert read.acquire(timeout=120)
        known += 1
it.close()
assert [int(x[0, 0]) for x in out] == list(range(1, 25))
assert all(x.sharding == sharding for x in out)

it, whole = iter(ds), iter(plain)
for _ in range(5):
    next(it), next(whole)
assert it.get_state() == whole.get_state()
again = iter(ds)
again.set_state(it.get_state())
assert int(next(again)[0, 0]) == 6
it.close(), again.close()
try:
    ds.batch(2)
except ValueError as error:
    assert "device_put" in str(error)
else:
    raise AssertionError
one = next(iter(ex.device_put(plain, devices[3], cpu_buffer_size=0, device_buffer_size=0)))
assert one.devices() == {devices[3]}
"""


@pytest.mark.slow  # a process with JAX devices
def test_device_put_overlaps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_import_does_not_load_jax() -> None:
    code = "import sys, penstock.compat.grain; print(*(m for m in ('jax', 'orbax', 'torch', 'grain') if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == ""


# ---------------------------------------------------------------- options


def test_performance_config() -> None:
    """Grain spends the budget twice, gives nothing to elements larger than it, and reads hundreds to look at five."""
    reads = list[int]()

    class Images:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, i: int) -> Any:
            reads.append(i)
            return {"image": np.zeros(1 << 20, np.uint8), "label": i}

    ds = grain.MapDataset.source(Images())
    found = ex.pick_performance_config(
        ds=ds, ram_budget_mb=64, max_workers=None, max_buffer_size=None
    )
    assert len(reads) == 5
    read, work = found.read_options, found.multiprocessing_options
    assert read.num_threads == 16 and read.prefetch_buffer_size == 31
    assert 1 <= work.num_workers <= 31
    tiny = ex.pick_performance_config(
        ds=ds.to_iter_dataset(), ram_budget_mb=1, max_workers=8, max_buffer_size=9
    )
    assert (tiny.read_options.prefetch_buffer_size, tiny.multiprocessing_options.num_workers) == (
        1,
        1,
    )
    assert next(iter(ds.to_iter_dataset(read_options=read).mp_prefetch(work)))["label"] == 0
