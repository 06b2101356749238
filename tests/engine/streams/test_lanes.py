"""Lanes: the default, shares of positions, shards and buffers, limits, ends, and what is said where ranks would part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import pick_cases
from helpers import through_json
from penstock.engine.mixing.rules import By
from penstock.engine.steps.mix import Mix
from penstock.testing import recipes


def numbers(n: int, name: str = "n") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def endless() -> ps.Dataset:
    mixed = ps.mix(
        {"a": numbers(50, "a").shuffle(), "b": numbers(70, "b").shuffle()}, {"a": 0.4, "b": 0.6}
    )
    return mixed.filter(recipes.most)


def kept(_: Any) -> bool:
    return True


def steps(loaders: list[Any], n: int) -> list[list[int]]:
    """Return the samples that all ranks together receive in each of the next steps."""
    runs = [iter(loader) for loader in loaders]
    return [sorted(x for run in runs for x in next(run)) for _ in range(n)]


def ranks(ds: ps.Dataset, world_size: int, **options: Any) -> list[ps.Loader]:
    return [
        ps.Loader(ds, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def test_a_run_begun_on_one_rank_goes_on_on_others_without_a_word_of_lanes() -> None:
    def batches(world: int) -> ps.Dataset:
        return endless().batch(12 // world, collate=list)

    with ps.Loader(batches(1)) as alone:
        want = steps([alone], 24)
    found, states = list[list[int]](), list[Any]()
    for world in (1, 2, 4, 6, 3, 1):
        loaders = ranks(batches(world), world)
        for loader in loaders if states else ():
            loader.load_state_dict(states)
        found += steps(loaders, 4)
        states = [through_json(loader.state_dict()) for loader in loaders]
        assert [state["lanes"] for state in states] == [1] * world
    assert found == want


def test_the_readmes_pipeline_runs_on_two_ranks_as_it_stands() -> None:
    def tokens(x: int) -> Any:
        return np.full(3 + x % 40, x, np.int32)

    ds = ps.mix(
        {"a": numbers(400, "a").shuffle(), "b": numbers(900, "b").shuffle()},
        {"a": 0.3, "b": 0.7},
        seed=42,
    )
    train = ds.map(tokens).pack(64)
    alone = [row["tokens"].tolist() for row in islice(ps.Loader(train, lanes=2), 96)]
    pair = [iter(loader) for loader in ranks(train.batch(4), 2)]
    rows = [next(run)["tokens"].tolist() for _ in range(12) for run in pair]
    dealt = [
        row
        for first, second in zip(rows[::2], rows[1::2], strict=True)
        for row in _in_turn(first, second)
    ]
    assert dealt == alone


def _in_turn(first: list[Any], second: list[Any]) -> list[Any]:
    return [row for pair in zip(first, second, strict=True) for row in pair]


def test_a_default_loader_gives_what_iterating_gives() -> None:
    ds = endless().shuffle_buffer(100).batch(5, collate=list)
    with ps.Loader(ds) as loader:
        assert list(islice(loader, 60)) == list(islice(iter(ds), 60))


def test_a_loader_without_lanes_takes_those_of_the_state() -> None:
    with ps.Loader(endless(), lanes=6) as loader:
        before = list(islice(loader, 20))
        state = loader.state_dict()
        rest = list(islice(loader, 40))
    with ps.Loader(endless()) as again:
        again.load_state_dict(state)
        assert list(islice(again, 40)) == rest and len(before) == 20
    with ps.Loader(endless(), lanes=4) as other, pytest.raises(ps.StateError, match="6 lanes"):
        other.load_state_dict(state)


class Shelves:
    """Shards of numbers that count how often each is opened."""

    def __init__(self, shards: int, rows: int) -> None:
        self.shards, self.rows, self.opened = shards, rows, Counter[str]()

    def names(self) -> list[str]:
        return [f"shard-{i}" for i in range(self.shards)]

    def open(self, name: str, row: int, /) -> Iterator[int]:
        self.opened[name] += 1
        first = int(name[6:]) * self.rows
        return iter(range(first + row, first + self.rows))

    def describe(self) -> Any:
        return {"shelves": self.shards, "rows": self.rows}


def test_each_shard_is_opened_by_one_lane() -> None:
    shelves = Shelves(4, 30)
    found = [
        list(loader)
        for loader in ranks(ps.from_iterable(shelves, name="s"), 2, lanes=4, remainder="keep")
    ]
    assert shelves.opened == {f"shard-{i}": 1 for i in range(4)}
    assert sorted(found[0]) == [*range(30), *range(60, 90)] and sorted(found[0] + found[1]) == list(
        range(120)
    )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_fewer_shards_than_lanes_are_read_once_a_rank(
    world: int, caplog: pytest.LogCaptureFixture
) -> None:
    shelves = Shelves(2, 100)
    found = [
        list(loader)
        for loader in ranks(ps.from_iterable(shelves, name="s"), world, lanes=6, remainder="keep")
    ]
    assert shelves.opened == {"shard-0": world, "shard-1": world}
    assert found == [list(range(rank, 200, world)) for rank in range(world)]
    assert len(caplog.records) == (world > 1) and all(
        "2 shards, fewer than" in r.getMessage() for r in caplog.records
    )


def test_one_reader_resumes_from_the_cursors_of_its_lanes() -> None:
    def make() -> ps.Dataset:
        return ps.from_iterable(Shelves(3, 50), name="s").filter(recipes.most).repeat()

    with ps.Loader(make()) as loader:
        want = list(islice(loader, 400))
    for at in (0, 1, 47, 130, 260):
        with ps.Loader(make()) as loader:
            got = list(islice(loader, at))
            state = through_json(loader.state_dict())
        with ps.Loader(make()) as loader:
            loader.load_state_dict(state)
            assert got + list(islice(loader, 400 - at)) == want


@pytest.mark.parametrize("top", [lambda ds: ds, lambda ds: ds.batch(4, collate=list)])
def test_a_finite_pass_over_several_ranks_is_refused_with_the_remedies(top: Any) -> None:
    ds = top(numbers(100).filter(recipes.most))
    with pytest.raises(ps.ConfigError, match=r"repeat\(\).*epoch_length=n.*remainder='keep'"):
        ps.Loader(ds, rank=0, world_size=2)
    kept = [x for loader in ranks(ds, 2, remainder="keep") for x in loader]
    flat = [y for x in kept for y in (x if isinstance(x, list) else [x])]
    assert sorted(flat) == [x for x in range(100) if recipes.most(x)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_epoch_length_gives_every_rank_as_many_items(world: int) -> None:
    ds = numbers(40).filter(recipes.most)
    loaders = ranks(ds, world, epoch_length=24)
    for _ in range(4):
        assert [len(list(loader)) for loader in loaders] == [24 // world] * world


@pytest.mark.parametrize("lanes", [None, 1, 5])
def test_a_limit_of_a_stream_gives_the_same_items_in_every_pass_and_place(
    lanes: int | None,
) -> None:
    limited = numbers(200).shuffle().filter(recipes.most).random_map(recipes.noisy).limit(7)
    with ps.Loader(limited, lanes=lanes) as loader:
        first, second = list(loader), list(loader)
    assert first == second and len(first) == 7
    with ps.Loader(limited.repeat(3), lanes=lanes) as loader:
        assert Counter(loader) == Counter(dict.fromkeys(first, 3))
    with ps.Loader(limited.concat(numbers(3, "z").map(lambda x: -x - 1)), lanes=lanes) as loader:
        assert Counter(loader) == Counter([*first, -1, -2, -3])


def test_a_limit_of_a_stream_that_ends_is_that_of_the_run_on_every_world_size() -> None:
    limited = numbers(10).filter(recipes.even).limit(3)  # one of two lanes gives nothing
    for world in (1, 2):
        given = [
            list(ps.Loader(limited, lanes=2, rank=r, world_size=world, remainder="keep"))
            for r in range(world)
        ]
        assert sorted(x for rank in given for x in rank) == [0, 2, 4]


@pytest.mark.parametrize("caps", [2, {"a": 1, "b": 2, "c": 3}])
@pytest.mark.parametrize("laps", [1, 3])
def test_what_is_read_once_a_rank_goes_on_where_it_stood_in_any_pass(caps: Any, laps: int) -> None:
    def made() -> ps.Dataset:
        inputs = {
            "a": ps.from_iterable(partial(iter, range(4)), name="a"),
            "b": numbers(10, "b"),
            "c": numbers(5, "c"),
        }
        return (
            ps.mix(inputs, {"a": 4, "b": 2, "c": 1}, seed=0, max_epochs=caps)
            .repeat(laps)
            .map(recipes.mapping)
            .with_source()
        )

    def key(x: Any) -> Any:
        return x["__source__"], x["__epoch__"], x["__index__"]

    with ps.Loader(made(), lanes=6) as loader:
        passes = [[key(x) for x in loader] for _ in range(3)]
    for found in passes:  # nothing twice, nothing lost
        assert Counter(found) == Counter(dict.fromkeys(found, 1))
        assert Counter((name, i) for name, _, i in found) == Counter(
            {
                (name, i): (2 if caps == 2 else caps[name]) * laps
                for name, n in (("a", 4), ("b", 10), ("c", 5))
                for i in range(n)
            }
        )
    for k, cut in ((0, 3), (1, 0), (1, 1), (1, 4), (2, 2)):
        loaders = [
            ps.Loader(made(), lanes=6, rank=r, world_size=3, remainder="keep") for r in range(3)
        ]
        for loader in loaders:
            for _ in range(k):
                list(loader)
        given = [
            key(x)
            for steps in zip(*(islice(loader, cut) for loader in loaders), strict=True)
            for x in steps
        ]
        states = [loader.state_dict() for loader in loaders]
        with ps.Loader(made(), lanes=6) as loader:
            loader.load_state_dict(states)
            given += [key(x) for x in loader]
        assert given == passes[k], (k, cut)


@pytest.mark.parametrize("lanes", [2, 3, 5, 8, 16])
def test_every_source_has_its_share_on_every_lane(lanes: int) -> None:
    weights = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    mixed = ps.mix({name: numbers(1_000, name) for name in weights}, weights).filter(lambda x: True)
    for loader in ranks(mixed, lanes, lanes=lanes):
        with loader:
            n = sum(1 for _ in islice(loader, 2_000))
            given = loader.stats()["samples"]
        for name, weight in weights.items():
            assert abs(given[name] - n * weight) <= 4 * (n * weight * (1 - weight)) ** 0.5, (
                name,
                given,
            )


@pytest.mark.parametrize("lanes", [1, 2, 5, 48])
def test_lanes_make_the_draws_of_the_mixture_round_by_round(lanes: int) -> None:
    """Also under schedules, and where weights change during the run: steps are those of the run on every lane."""
    weights = ps.Schedule(
        [(0, {"a": 1, "b": 0, "c": 2}), (300, {"a": 1, "b": 5, "c": 0})], "linear", start={"b": 96}
    )
    inputs = {name: numbers(n, name) for name, n in (("a", 7), ("b", 50), ("c", 400))}
    indexed = ps.mix(inputs, weights, seed=3)
    streams = ps.mix({name: flow.filter(kept) for name, flow in inputs.items()}, weights, seed=3)
    with ps.Loader(indexed) as one, ps.Loader(streams, lanes=lanes) as loader:
        for part in (10, 3, 9):
            _ = list(islice(one, part * lanes)), list(islice(loader, part * lanes))
            assert loader.stats()["samples"] == one.stats()["samples"]
        new = {"a": 1, "b": 1, "c": 8}
        at = loader.set_weights(new)
        assert at == one.set_weights(new) == 22 * lanes
        _ = list(islice(one, 30 * lanes)), list(islice(loader, 30 * lanes))
        assert loader.stats()["samples"] == one.stats()["samples"]


@dataclass(frozen=True)
class TwoToOne:
    """Two of the first, one of the second; so many in all."""

    total: int

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        return self.total

    def at(self, positions: Any, /) -> tuple[Any, Any]:
        turn, place = np.divmod(positions, 3)
        return np.where(place < 2, 0, 1), np.where(place < 2, 2 * turn + place, turn)

    def describe(self) -> dict[str, Any]:
        return {"rule": "two to one"}


def test_a_rule_of_ones_own_is_that_of_the_run_in_lanes() -> None:
    inputs = tuple(numbers(400, name).filter(kept).tree for name in "ab")
    ds = ps.Dataset(Mix(inputs, ("a", "b"), By(TwoToOne(100))))
    for lanes in (1, 4, 7):
        with ps.Loader(ds, lanes=lanes) as loader:
            assert Counter(loader.keys()[0][0] for _ in loader) == {"a": 67, "b": 33}


@pytest.mark.parametrize("taken", [1, 7, 60])
def test_a12_weights_change_after_the_last_delivered_step_for_any_number_of_workers(
    taken: int,
) -> None:
    def changed(workers: int) -> tuple[int, list[int], Any]:
        with ps.Loader(endless().flat_map(recipes.twice), workers=workers) as loader:
            before = list(islice(loader, taken))
            at = loader.set_weights({"a": 1, "b": 3}, at=None)
            return at, before + list(islice(loader, 200)), loader.state_dict()

    assert changed(0) == changed(1) == changed(4)


@pytest.mark.parametrize("taken", range(1, 14))
def test_weights_change_behind_the_sample_whose_pieces_are_being_given(taken: int) -> None:
    rows = {name: ps.from_sequence(range(1000), name=name).filter(recipes.most) for name in "ab"}
    with ps.Loader(ps.mix(rows).flat_map(lambda x: [x] * 3), lanes=1) as loader:
        assert len(list(islice(loader, taken))) == taken
        assert loader.set_weights({"a": 1, "b": 3}) == -(-taken // 3)


def test_a_pass_without_a_sample_is_an_error_where_the_flow_would_go_on() -> None:
    with pytest.raises(ps.errors.DataError, match="a whole pass gave no sample"):
        next(iter(numbers(9).filter(lambda x: False).repeat()))
    assert list(numbers(9).filter(lambda x: False)) == []


def test_a_small_source_has_samples_for_every_rank_when_it_is_repeated() -> None:
    ds = numbers(5).filter(recipes.most).repeat()
    for loader in ranks(ds, 6):
        with loader:
            assert set(islice(loader, 200)) == {x for x in range(5) if recipes.most(x)}


FEW: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "buffer": lambda ds: ds.shuffle_buffer(2).repeat(),
    "passes of passes": lambda ds: ds.shuffle_buffer(2).repeat(2).repeat(),
    "batches": lambda ds: ds.batch(2, collate=list).repeat(),
    "limit": lambda ds: ds.shuffle_buffer(2).limit(3).repeat(),
}


@pytest.mark.parametrize("flow", FEW)
def test_lanes_that_had_all_of_a_pass_when_they_were_saved_go_on_with_the_next(flow: str) -> None:
    """They ask for nothing more of it, and yet where it ends says which items of the next are whose."""
    for n, (lanes, world) in product((1, 3, 8), ((4, 1), (4, 2), (3, 3))):
        ds = FEW[flow](ps.from_iterable(partial(iter, tuple(range(n))), name="few"))
        for rank in range(world):
            run = ps.Loader(ds, rank=rank, world_size=world, lanes=lanes)
            states, given = list[Any](), list[Any]()
            for item in islice(run, 12):
                given.append(item)
                states.append(through_json(run.state_dict()))
            # Also the last, which is after a pass of any of these lengths.
            for done, state in pick_cases([*enumerate(states, 1)][::-1], 3):
                again = ps.Loader(ds, rank=rank, world_size=world, lanes=lanes)
                again.load_state_dict(state)
                assert list(islice(again, 12 - done)) == given[done:], (n, lanes, world, rank, done)


@pytest.mark.parametrize("size", [7, 12])
@pytest.mark.parametrize("lanes", [2, 3, 5])
def test_lanes_share_out_the_positions_of_all_passes_one_after_the_other(
    lanes: int, size: int
) -> None:
    with ps.Loader(ps.from_sequence(range(size)).filter(lambda x: True), lanes=lanes) as loader:
        passes = [list(loader) for _ in range(4)]
    assert [sorted(found) for found in passes] == [list(range(size))] * 4
    for k, found in enumerate(passes):
        in_order = [x for lane in range(lanes) for x in found if (k * size + x) % lanes == lane]
        of_lanes = [
            sorted(x for x in found if (k * size + x) % lanes == lane) for lane in range(lanes)
        ]
        assert in_order == [x for lane in of_lanes for x in lane], (
            "a lane keeps the order of the source"
        )
