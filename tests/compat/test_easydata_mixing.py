"""`block_mixture_interleave`, schedules and mixed sources: proportions, stop rules, states, ranks, workers."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node

import penstock as ps
from example_counts import rounds
from helpers import slow_if, through_json
from penstock.compat.easydata import (
    HFDatasetShardedSource,
    MixedShardedSource,
    MixStageConfig,
    WeightSchedulePoint,
    WeightScheduler,
    block_mixture_interleave,
)
from penstock.sources.hub import HubStream
from penstock.testing import assert_covers, assert_resumes, assert_same_run

A, B = 50, 70


def table(name: str, rows: int) -> Dataset:
    return Dataset.from_dict({"text": [f"{name}{i}" for i in range(rows)], "id": list(range(rows))})


TABLES = {"a": table("a", A), "b": table("b", B)}
STREAMS = {name: dataset.to_iterable_dataset(num_shards=4) for name, dataset in TABLES.items()}


def texts(rows: Any, most: int | None = None) -> list[str]:
    return [row["text"] for row in islice(rows, most)]


def mixed(inputs: Any = TABLES, **options: Any) -> Any:
    return block_mixture_interleave(inputs, {"a": 0.3, "b": 0.7}, **{"block_size": 10, **options})


def counted(weights: dict[str, float], block: int, rows: int) -> Counter[str]:
    inputs = {name: [{"source": name}] for name in weights}
    return Counter(
        row["source"]
        for row in block_mixture_interleave(inputs, weights, block_size=block).take(rows)
    )


# ---------------------------------------------------------------- the face is the core


def test_the_face_gives_what_the_core_gives() -> None:
    core = ps.mix(
        {n: ps.from_sequence(t) for n, t in TABLES.items()},
        {"a": 0.3, "b": 0.7},
        seed=42,
        block_size=10,
    )
    face, plain = mixed(), iter(core)
    rows = iter(face)
    for _ in range(60):
        assert next(rows) == next(plain)
    assert face.state_dict()["examples_iterable"]["penstock"] == plain.state_dict()


def test_the_face_over_streams_gives_what_the_core_gives() -> None:
    inputs = {name: ps.from_iterable(HubStream(stream)) for name, stream in STREAMS.items()}
    core = ps.mix(inputs, {"a": 0.3, "b": 0.7}, seed=42, block_size=10)
    assert_same_run(lambda: mixed(STREAMS), lambda: ps.Loader(core, lanes=1), steps=300)


def test_a_mixed_source_gives_what_the_core_gives() -> None:
    source = MixedShardedSource(sources(), {"a": 0.3, "b": 0.7}, block_size=10, seed=42)
    core = ps.mix(
        {n: ps.from_sequence(t) for n, t in TABLES.items()},
        {"a": 0.3, "b": 0.7},
        seed=42,
        block_size=10,
    )
    rows = [
        {k: v for k, v in row.items() if k != "__source__"}
        for row in islice(source.open_shard("mixed_shard_0"), 200)
    ]
    assert rows == list(core.limit(200))


def test_the_result_is_a_dataset_that_trainers_take() -> None:
    data = mixed()
    assert isinstance(data, IterableDataset) and isinstance(data, torch.utils.data.IterableDataset)
    assert data.column_names == ["text", "id"]
    steps = (
        data.map(lambda row: {"up": row["text"].upper()})
        .filter(lambda row: row["id"] % 2 == 0)
        .take(20)
    )
    assert [row["up"] for row in steps] == [
        t.upper() for t in texts(data, 100) if int(t[1:]) % 2 == 0
    ][:20]
    assert next(iter(data.with_format("torch")))["id"].dtype == torch.int64
    assert mixed({"a": table("a", 3), "b": Dataset.from_dict({"other": [1]})}).column_names is None


def test_streams_tables_lists_and_functions_in_one_mixture() -> None:
    class Rows:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter([{"text": "d0"}, {"text": "d1"}])

    def made() -> Iterator[dict[str, Any]]:
        yield {"text": "e0"}

    inputs = {"a": STREAMS["a"], "b": TABLES["b"], "c": [{"text": "c0"}], "d": Rows(), "e": made}
    found = texts(block_mixture_interleave(inputs, block_size=10, stop="all_exhausted"))
    assert_covers(found, [*texts(TABLES["a"]), *texts(TABLES["b"]), "c0", "d0", "d1", "e0"])


def test_rows_of_every_format_are_those_of_the_dataset() -> None:
    lists = Dataset.from_dict(
        {"x": [[i, i + 1] for i in range(40)], "y": [None if i % 3 else "y" for i in range(40)]}
    )
    variants = [
        lists,
        lists.select(range(30, 0, -1)),
        lists.select_columns(["y"]),
        lists.with_format(columns=["y"]),
    ]
    for data in variants:
        assert list(ps.from_sequence(data)) == list(data)
        assert list(ps.from_sequence(data).shuffle(seed=3)) == [
            data[i] for i in shuffled(len(data))
        ]
    assert list(ps.from_iterable(HubStream(lists.to_iterable_dataset(num_shards=3)))) == list(lists)
    arrays = list(ps.from_sequence(lists.with_format("numpy")))
    assert arrays[3]["x"].tolist() == [3, 4]
    assert [t.num_rows for t in ps.from_sequence(lists.with_format("arrow")).limit(9)] == [1] * 9


def shuffled(n: int) -> list[int]:
    return list(ps.from_sequence(range(n)).shuffle(seed=3))


# ---------------------------------------------------------------- proportions


def test_a_small_weight_gets_its_share() -> None:
    # Rounding each block down leaves a weight below 1 / block_size without a row, for ever.
    assert counted({"big": 0.9998, "small": 0.0002}, 1000, 20_000)["small"] in (3, 4, 5)


def test_twelve_equal_sources_in_blocks_of_ten() -> None:
    # Rounding down gives eleven of them nothing and the first everything.
    assert set(counted({f"s{i}": 1 / 12 for i in range(12)}, 10, 1_200).values()) <= {99, 100, 101}


@pytest.mark.parametrize("share", [0.29, 0.57, 0.58, 0.07])
def test_shares_that_floats_round_down(share: float) -> None:
    # int(0.29 * 100) is 28.
    assert counted({"a": share, "b": 1 - share}, 100, 1_000)["a"] == round(share * 1_000)


def test_every_block_is_exact() -> None:
    found = [t[0] for t in texts(mixed(), 500)]
    assert all(found[i : i + 10].count("a") == 3 for i in range(0, 500, 10))
    assert len({"".join(found[i : i + 10]) for i in range(0, 500, 10)}) > 20, (
        "blocks differ in their order"
    )


def test_neighbouring_seeds_are_unrelated() -> None:
    # With a generator of seed + block, seed 43 is seed 42 one block on.
    one, two = ("".join(t[0] for t in texts(mixed(seed=seed), 2_000)) for seed in (42, 43))
    blocks = [[run[i : i + 10] for i in range(0, 2_000, 10)] for run in (one, two)]
    for lag in range(-3, 4):
        pairs = zip(blocks[0][max(lag, 0) :], blocks[1][max(-lag, 0) :], strict=False)
        assert sum(x == y for x, y in pairs) < 20


def test_no_seed_is_a_seed() -> None:
    # Two runs without a seed were different, and a seed of 0 was taken for none.
    assert_same_run(lambda: mixed(seed=None), lambda: mixed(seed=0), steps=200)
    one, two = (MixedShardedSource(sources(), block_size=10) for _ in range(2))
    assert_same_run(
        lambda: one.open_shard("mixed_shard_0"), lambda: two.open_shard("mixed_shard_0"), steps=200
    )


# ---------------------------------------------------------------- stop rules


@pytest.mark.parametrize("streams", [0, 1])
def test_stop_rules_end_where_they_say(streams: int) -> None:
    # "all_exhausted" went on for ever without a row, or stopped early; any unknown word meant "first_exhausted".
    for a, b in [(1, 1), (3, 10), (28, 100), (30, 100), (10, 10), (7, 1)]:
        tables = {"a": table("a", a), "b": table("b", b)}
        inputs = {n: t.to_iterable_dataset() for n, t in tables.items()} if streams else tables
        every = [*texts(tables["a"]), *texts(tables["b"])]
        for block in (1, 10, 64):
            for weight in (0.1, 0.5):
                runs = {
                    stop: texts(
                        block_mixture_interleave(
                            inputs, {"a": weight, "b": 1 - weight}, block, stop=stop
                        ),
                        5_000,
                    )
                    for stop in ("first_exhausted", "all_exhausted", "all_exhausted_oversample")
                }
                assert_covers(runs["all_exhausted"], every)
                assert max(Counter(runs["first_exhausted"]).values()) == 1
                ended = [
                    n
                    for n, size in (("a", a), ("b", b))
                    if sum(t[0] == n for t in runs["first_exhausted"]) == size
                ]
                assert ended, "no input was given whole"
                assert set(runs["all_exhausted_oversample"]) == set(every)
                assert len(runs["all_exhausted_oversample"]) < 5_000


def test_restart_goes_on_and_keeps_the_order_of_each_source() -> None:
    rows = texts(mixed(), 1_000)
    for name, size in (("a", A), ("b", B)):
        assert [int(t[1:]) for t in rows if t[0] == name] == [
            i % size for i in range(sum(t[0] == name for t in rows))
        ]


@pytest.mark.parametrize("stop", ["RESTART", "all", ""])
def test_an_unknown_stop_word_is_refused(stop: str) -> None:
    with pytest.raises(ps.ConfigError, match="choose 'restart'"):
        mixed(stop=stop)


def test_what_cannot_be_mixed_is_refused_by_name() -> None:
    with pytest.raises(ps.ConfigError, match=r"give \{name: dataset"):
        block_mixture_interleave([TABLES["a"]])  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigError, match="'empty' is empty"):
        block_mixture_interleave({"a": TABLES["a"], "empty": []})
    with pytest.raises(ps.ConfigError, match="'b' is missing"):
        block_mixture_interleave(TABLES, {"a": 1})
    with pytest.raises(ps.ConfigError, match="all weights are 0"):
        block_mixture_interleave(TABLES, {"a": 0, "b": 0})
    with pytest.raises(ps.ConfigError, match="read only once"):
        block_mixture_interleave({"a": iter([{"x": 1}])})
    for bad in ("text", {"x": [1]}, 7):
        with pytest.raises(ps.ConfigError, match="'a' is a"):
            block_mixture_interleave({"a": bad})
    with pytest.raises(ps.ConfigError, match="has no source"):
        MixedShardedSource({})


def test_a_source_of_weight_0_is_never_opened() -> None:
    def never() -> Iterator[Any]:
        raise AssertionError("opened")
        yield

    assert (
        len(
            list(
                block_mixture_interleave({"a": TABLES["a"], "n": never}, {"a": 1, "n": 0}).take(100)
            )
        )
        == 100
    )


# ---------------------------------------------------------------- states


class Owner:
    """A Hugging Face dataset as the kit wants it: an iterator that has the state. (Hugging Face's own state follows
    from the first row on; until then it is the one that was loaded, or none.)"""

    def __init__(self, data: Any) -> None:
        self.data, self.rows = data, iter(data)
        self.waiting: Any = ps.Loader(ps.Dataset(data._ex_iterable.tree), lanes=1).state_dict()

    def __iter__(self) -> Owner:
        return self

    def __next__(self) -> Any:
        self.waiting = None
        return next(self.rows)

    def state_dict(self) -> Any:
        return self.waiting or self.data.state_dict()["examples_iterable"]["penstock"]

    def load_state_dict(self, state: Any) -> None:
        inner = {**self.data.state_dict()["examples_iterable"], "penstock": state}
        self.data.load_state_dict({"examples_iterable": inner, "epoch": 0})
        self.rows, self.waiting = iter(self.data), state


class Iterated:
    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Owner:
        return Owner(self.make())


INPUTS = {"tables": TABLES, "streams": STREAMS, "both": {"a": STREAMS["a"], "b": TABLES["b"]}}
QUICK = [("tables", "restart"), ("streams", "all_exhausted"), ("both", "restart")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "inputs,stop",
    [
        pytest.param(
            INPUTS[name], stop, id=f"{name}-{stop}", marks=slow_if((name, stop) not in QUICK)
        )
        for name in INPUTS
        for stop in ("restart", "all_exhausted")
    ],
)
def test_resumes_at_every_position(inputs: Any, stop: str) -> None:
    small = {
        n: d.take(9) if isinstance(d, IterableDataset) else d.select(range(9))
        for n, d in inputs.items()
    }
    assert_resumes(
        lambda: Iterated(lambda: mixed(small, stop=stop)), steps=rounds(6, 20), at_most=rounds(1, 3)
    )


def test_a_state_is_loaded_into_a_new_process() -> None:
    data, rows = mixed(), iter(mixed())
    want = texts(data, 400)
    rows = iter(data)
    texts(rows, 137)
    saved = json.dumps(data.state_dict())
    assert len(saved) < 2_500
    again = pickle.loads(pickle.dumps(data))
    again.load_state_dict(json.loads(saved))
    assert texts(again, 263) == want[137:]


def test_a_state_behind_other_steps_is_exact() -> None:
    def steps() -> Any:
        return (
            mixed().map(lambda row: {"n": row["id"] + 1}).filter(lambda row: row["n"] % 2).take(120)
        )

    want = texts(steps())
    for at in (0, 1, 37, 119, 120):
        data = steps()
        assert texts(data, at) == want[:at]
        state = through_json(data.state_dict())
        other = steps()
        other.load_state_dict(state)
        assert texts(other) == want[at:], at


def test_after_the_end_there_is_nothing_left() -> None:
    data = mixed(stop="all_exhausted")
    assert len(list(data)) == A + B
    again = mixed(stop="all_exhausted")
    again.load_state_dict(data.state_dict())
    assert list(again) == []


def test_a_state_of_another_mixture_is_refused() -> None:
    data = mixed()
    texts(data, 5)
    other = block_mixture_interleave(TABLES, {"a": 0.5, "b": 0.5}, block_size=10)
    other.load_state_dict(data.state_dict())
    with pytest.raises(ps.StateError, match="weights"):
        next(iter(other))


def test_resuming_reads_nothing_of_what_came_before() -> None:
    class Meter:
        """A list that counts what is read from it."""

        reads = 0

        def __len__(self) -> int:
            return 1_000

        def __getitem__(self, i: int) -> dict[str, int]:
            Meter.reads += 1
            return {"x": i}

    def make() -> Any:
        return block_mixture_interleave({"a": Meter(), "b": Meter()})

    data, again = make(), make()
    rows = list(islice(data, 5_001))
    state, want = data.state_dict(), next(islice(make(), 5_001, None))
    Meter.reads, sampled = 0, 2 * 2 * 8  # to identify each of the two inputs, 8 rows are read twice
    again.load_state_dict(state)
    assert next(iter(again)) == want
    assert Meter.reads <= sampled + 2 and len(rows) == 5_001


# ---------------------------------------------------------------- ranks and workers


def steps(rows: list[str], world: int) -> list[list[str]]:
    """Return the rows that the ranks take together, step by step."""
    return [sorted(rows[i : i + world]) for i in range(0, len(rows), world)]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 7, 8, 64])
def test_ranks_share_out_one_sequence(world: int) -> None:
    want = texts(mixed(), 12 * world)
    ranks = [texts(split_dataset_by_node(mixed(), rank, world), 12) for rank in range(world)]
    assert [sorted(turn) for turn in zip(*ranks, strict=True)] == steps(want, world)


def test_one_state_for_any_number_of_ranks() -> None:
    want = texts(mixed(), 200)
    ranks = [split_dataset_by_node(mixed(), rank, 4) for rank in range(4)]
    for rank in ranks:
        texts(rank, 10)
    state = ranks[2].state_dict()
    found = []
    for rank in range(8):
        data = split_dataset_by_node(mixed(), rank, 8)
        data.load_state_dict(state)
        found.append(texts(data, 20))
    assert [sorted(turn) for turn in zip(*found, strict=True)] == steps(want[40:200], 8)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_over_streams_share_out_one_sequence(world: int) -> None:
    want = texts(mixed(STREAMS, stop="all_exhausted"))
    rows = [
        texts(split_dataset_by_node(mixed(STREAMS, stop="all_exhausted"), r, world))
        for r in range(world)
    ]
    assert_covers([t for rank in rows for t in rank], want)
    assert rows[0] == want[::world]


def test_lanes_deal_streams_out() -> None:
    def make() -> Any:
        return mixed(STREAMS, stop="all_exhausted", lanes=4)

    whole = texts(make())
    assert_covers(whole, [*texts(TABLES["a"]), *texts(TABLES["b"])])
    halves = [texts(split_dataset_by_node(make(), rank, 2)) for rank in range(2)]
    assert_covers([t for half in halves for t in half], whole)
    assert [len(half) for half in halves] == [60, 60]
    assert make().shard(9, 7).num_shards >= 1 and list(make().shard(9, 7)) == []
    with pytest.raises(ps.ConfigError, match="4 lanes cannot be sharded into 3"):
        make().shard(3, 1)


# Workers fork, which JAX warns of where other tests have loaded it into this process.
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_a_torch_loader_share_out_the_rows() -> None:
    for inputs in (TABLES, STREAMS):
        data = mixed(inputs, stop="all_exhausted", lanes=2)
        batches = torch.utils.data.DataLoader(data, batch_size=5, num_workers=2)
        assert_covers(
            [t for batch in batches for t in batch["text"]],
            [*texts(TABLES["a"]), *texts(TABLES["b"])],
        )


# ---------------------------------------------------------------- schedules


def points(*given: tuple[int, float]) -> list[WeightSchedulePoint]:
    return [WeightSchedulePoint(step, {"code": share, "text": 1 - share}) for step, share in given]


def test_the_weights_that_the_page_prints() -> None:
    scheduler = WeightScheduler(
        points((0, 0.2), (10_000, 0.5), (50_000, 0.8)), interpolation="linear"
    )
    assert repr(scheduler.get_weights(0)) == "{'code': 0.2, 'text': 0.8}"
    assert repr(scheduler.get_weights(5_000)) == "{'code': 0.35, 'text': 0.65}"
    assert repr(scheduler.get_weights(10_000)) == "{'code': 0.5, 'text': 0.5}"
    assert repr(scheduler.get_weights(30_000)) == "{'code': 0.65, 'text': 0.35}"
    assert scheduler.get_weights(10**9) == {"code": 0.8, "text": pytest.approx(0.2)}
    assert scheduler.dataset_names == ["code", "text"]


def test_interpolations() -> None:
    made = {
        kind: WeightScheduler(points((10, 0.5), (0, 0.2)), kind)
        for kind in ("step", "linear", "cosine")
    }
    assert [made[kind].get_weights(5)["code"] for kind in made] == [0.2, 0.35, 0.35]
    cosine = WeightScheduler(points((0, 0.2), (10_000, 0.5)), "cosine")
    assert cosine.get_weights(2_500)["code"] == pytest.approx(0.24393398282201786, abs=1e-12)
    # An unknown word was taken for "linear".
    with pytest.raises(ps.ConfigError, match="interpolation"):
        WeightScheduler(points((0, 0.2)), "cubic")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="sum to"):
        WeightSchedulePoint(0, {"a": 0.5, "b": 0.6})
    with pytest.raises(ps.ConfigError, match="'b' is -0.5"):
        WeightSchedulePoint(0, {"a": 1.5, "b": -0.5})
    with pytest.raises(ps.ConfigError, match="at least one point"):
        WeightScheduler([])


def test_a_schedule_counts_samples() -> None:
    inputs = {"code": [{"s": 1}], "text": [{"s": 0}]}
    scheduler = WeightScheduler(points((0, 0.2), (100, 0.8)))
    rows = list(
        islice(
            MixedShardedSource(inputs, weight_scheduler=scheduler, block_size=10).open_shard(
                "mixed_shard_0"
            ),
            200,
        )
    )
    found = np.asarray([row["s"] for row in rows]).reshape(-1, 10).sum(1)
    assert found.tolist() == [2] * 10 + [8] * 10


def test_a_ramp_gives_what_its_area_says() -> None:
    # Weights read at the start of each block only, without carrying the rest, gave 3,350.
    inputs = {"code": [{"s": 1}], "text": [{"s": 0}]}
    scheduler = WeightScheduler(points((0, 0.2), (10_000, 0.5)), "linear")
    source = MixedShardedSource(inputs, weight_scheduler=scheduler, block_size=100)
    found = sum(row["s"] for row in islice(source.open_shard("mixed_shard_0"), 10_000))
    assert abs(found - 3_500) <= 20


def test_sources_that_are_not_in_the_schedule_are_refused_by_name() -> None:
    # They got weight 0 without a word, or weights that are no numbers.
    scheduler = WeightScheduler(points((0, 0.2)))
    with pytest.raises(ps.ConfigError, match=r"missing \['math'\]"):
        MixedShardedSource({"code": [1], "text": [1], "math": [1]}, weight_scheduler=scheduler)
    with pytest.raises(ps.ConfigError, match=r"unknown \['text'\]"):
        MixedShardedSource({"code": [1]}, weight_scheduler=scheduler)
    with pytest.raises(
        ps.ConfigError, match=r"Weight keys must match source names: missing \['text'\]"
    ):
        MixedShardedSource(
            {"code": [1], "text": [1]}, weights={"code": 1}, weight_scheduler=scheduler
        )


@pytest.mark.parametrize("weights", [0.5, [0.5, 0.5], ...])
def test_weights_that_are_not_by_name_are_refused(weights: Any) -> None:
    calls = {
        "MixedShardedSource": lambda: MixedShardedSource(sources(), weights),
        "MixStageConfig": lambda: MixStageConfig(weights=weights),
        "WeightSchedulePoint": lambda: WeightSchedulePoint(step=0, weights=weights),
    }
    for location, call in calls.items():
        with pytest.raises(
            ps.ConfigError, match=f"{location}.*: the weights are a .*give a mapping"
        ):
            call()


def sources() -> dict[str, HFDatasetShardedSource]:
    return {name: HFDatasetShardedSource(dataset) for name, dataset in TABLES.items()}
