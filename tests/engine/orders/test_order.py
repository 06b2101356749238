"""Orders: what one pass gives, that `up` inverts `down`, and that passes differ where they should."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.orders import (
    BlockShuffle,
    BucketShuffle,
    Pick,
    Repeat,
    Replay,
    Shuffle,
    Slice,
    Stride,
)
from penstock.types import Ints

KEYS = st.integers(0, (1 << 64) - 1)
SIZES = st.one_of(
    st.integers(1, 40), st.sampled_from([63, 64, 65, 255, 256, 257, 1023, 1024, 1025])
)
PASSES = st.one_of(st.integers(0, 5), st.sampled_from([1 << 20, 1 << 40]))


def one_pass(order: Any, below: int | None, key: int = 0, epoch: int = 0) -> Ints:
    """The positions below of one pass of an order."""
    n = order.size(below)
    return order.down(np.arange(n, dtype=np.int64) + epoch * n, below, key)[0]


def blocks() -> st.SearchStrategy[BlockShuffle]:
    return st.builds(BlockShuffle, st.integers(1, 9), st.integers(1, 9))


SHUFFLES = st.one_of(
    st.just(Shuffle()),
    blocks(),
    st.builds(BucketShuffle, st.integers(1, 9), st.sampled_from([1, 2, 5, 1024])),
)


# ---------------------------------------------------------------- shuffles


@examples(200)
@given(SHUFFLES, SIZES, KEYS, PASSES)
def test_a_pass_of_a_shuffle_is_a_permutation_of_that_pass(
    order: Any, n: int, key: int, epoch: int
) -> None:
    down, laps = order.down(np.arange(n) + epoch * n, n, key)
    assert laps is None
    assert down.dtype == np.int64
    assert sorted(down.tolist()) == list(range(epoch * n, (epoch + 1) * n))
    assert order.size(n) == n


@examples(200)
@given(SHUFFLES, SIZES, KEYS, PASSES)
def test_up_inverts_down_and_down_inverts_up(order: Any, n: int, key: int, epoch: int) -> None:
    positions = (
        np.arange(3 * n)[::-1] + epoch * n
    )  # three passes at once, backwards: no call depends on its company
    assert (order.up(order.down(positions, n, key)[0], n, key) == positions).all()
    assert (order.down(order.up(positions, n, key), n, key)[0] == positions).all()


@examples(100)
@given(SHUFFLES, SIZES, KEYS, st.data())
def test_a_position_does_not_depend_on_its_company(
    order: Any, n: int, key: int, data: st.DataObject
) -> None:
    some = np.asarray(data.draw(st.lists(st.integers(0, 4 * n - 1), max_size=20)), np.int64)
    together = order.down(some, n, key)[0].tolist()
    assert together == [int(order.down(some[i : i + 1], n, key)[0][0]) for i in range(len(some))]


@pytest.mark.parametrize(
    "order", [Shuffle(), BlockShuffle(4, 8), BlockShuffle(100, 2), BlockShuffle(1, 1)], ids=str
)
def test_passes_and_keys_differ(order: Any) -> None:
    n = 200
    passes = {tuple((one_pass(order, n, key=5, epoch=e) - e * n).tolist()) for e in range(30)}
    keys = {tuple(one_pass(order, n, key=k).tolist()) for k in range(30)}
    assert len(passes) == len(keys) == 30
    assert tuple(range(n)) not in passes


@pytest.mark.parametrize(
    "order",
    [Shuffle(), BlockShuffle(3, 2), Repeat(2), Repeat(None), Replay(2), Stride(0, 3)],
    ids=str,
)
def test_nothing_and_one_sample(order: Any) -> None:
    nothing = np.zeros(0, np.int64)
    assert order.down(nothing, 0, 7)[0].tolist() == []
    assert order.up(nothing, 0, 7).tolist() == []
    assert order.size(0) in (0, None)
    assert order.down(np.zeros(1, np.int64), 1, 7)[0].tolist() == [0]
    assert order.up(np.zeros(1, np.int64), 1, 7).tolist() == [0]


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.shuffle(seed=1, block=(2, 2)),
        lambda ds: ds.repeat(2),
        lambda ds: ds.repeat(2, reshuffle=False),
        lambda ds: ds[::2],
        lambda ds: ds[::-1],
        lambda ds: ds.shard(0, 2),
        lambda ds: ds.limit(5),
        lambda ds: ds.skip(0),
        lambda ds: ds.select([0, 0][: 2 * len(ds)]),
    ],
    ids=[
        "shuffle",
        "blocks",
        "repeat",
        "replay",
        "slice",
        "backwards",
        "shard",
        "limit",
        "skip",
        "select",
    ],
)
def test_datasets_of_nothing_and_of_one_sample(n: int, step: Any) -> None:
    ds = step(ps.from_sequence(["x"] * n))
    again = list(ds)
    assert again == ["x"] * len(ds)
    assert len(ds) in ((0,) if n == 0 else (1, 2))
    assert list(step(ps.from_sequence(["x"] * n)).map(str)) == again


# ---------------------------------------------------------------- blocks


@examples(200)
@given(blocks(), SIZES, KEYS, PASSES)
def test_a_window_of_positions_touches_a_window_of_blocks(
    order: BlockShuffle, n: int, key: int, epoch: int
) -> None:
    down = one_pass(order, n, key, epoch) - epoch * n
    whole, span = n // order.rows, order.rows * order.window
    touched = Counter[int]()
    for start in range(0, n, span):
        found = down[start : start + span]
        here = {row // order.rows for row in found.tolist()}
        assert len(here - {whole}) <= order.window, f"positions {start}.. read {sorted(here)}"
        for block in here - {whole}:
            rows = sorted(row for row in found.tolist() if row // order.rows == block)
            assert rows == list(range(block * order.rows, (block + 1) * order.rows)), (
                "a block is read in one window"
            )
        touched.update(here)
    assert set(touched.values()) <= {1}, "no block is read in two windows"


@examples(200)
@given(blocks(), SIZES, KEYS)
def test_the_tail_comes_in_the_last_window(order: BlockShuffle, n: int, key: int) -> None:
    whole, span = n // order.rows, order.rows * order.window
    tail = range(whole * order.rows, n)
    assume(len(tail))
    places = order.up(np.asarray(tail), n, key)
    assert (places >= (n - 1) // span * span).all(), (
        f"the rows {list(tail)} stand at {places.tolist()}"
    )


def test_blocks_move_and_rows_in_windows_move() -> None:
    order, n = BlockShuffle(10, 4), 1000
    down = one_pass(order, n, key=3)
    firsts = [int(down[start : start + 40].min()) // 10 for start in range(0, n, 40)]
    assert firsts != sorted(firsts), "the blocks stand in their old order"
    inside = [down[start : start + 40].tolist() for start in range(0, n, 40)]
    assert all(window != sorted(window) for window in inside)
    steps = np.abs(np.diff(down[:40] // 10))
    assert (steps > 0).sum() > 10, (
        "the rows of a window are mixed over its blocks, not block by block"
    )


def test_windows_of_one_pass_are_permuted_differently() -> None:
    order, n = BlockShuffle(8, 1), 64
    patterns = {
        tuple((one_pass(order, n, key=3)[start : start + 8] % 8).tolist())
        for start in range(0, n, 8)
    }
    assert len(patterns) == 8


# ---------------------------------------------------------------- slices


@examples(200)
@given(
    st.integers(0, 30),
    st.integers(-35, 35),
    st.integers(-35, 35),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
)
def test_a_slice_is_that_of_a_range_in_every_pass(n: int, a: int, b: int, c: int) -> None:
    places = range(n)[a:b:c]
    order = Slice(places.start, len(places), places.step)
    assert order.size(n) == len(places)
    positions = np.arange(3 * len(places))
    down, laps = order.down(positions, n, 0)
    assert down.tolist() == list(places) * 3
    assert laps is not None
    assert laps.tolist() == [lap for lap in range(3) for _ in places]
    assert list(ps.from_sequence(range(n))[a:b:c].repeat(2)) == list(places) * 2


@examples(200)
@given(
    st.integers(0, 30),
    st.integers(-35, 35),
    st.integers(-35, 35),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
)
def test_up_of_a_slice_finds_its_places_and_no_others(n: int, a: int, b: int, c: int) -> None:
    places = list(range(n)[a:b:c])
    found = range(n)[a:b:c]
    up = Slice(found.start, len(found), found.step).up(np.arange(3 * n), n, 0)
    assert up.tolist() == [places.index(p) if p in places else -1 for p in range(3 * n)]


@examples(100)
@given(st.integers(1, 30), st.integers(0, 3), st.integers(1, 5), st.integers(0, 3))
def test_a_sliced_shuffle_gives_the_same_set_in_every_pass(
    n: int, a: int, c: int, seed: int
) -> None:
    ds = ps.from_sequence(range(n)).shuffle(seed=seed)[a::c]
    loader = ps.Loader(ds)
    first, second = list(loader), list(loader)
    assert first == second == list(ps.from_sequence(range(n)).shuffle(seed=seed))[a::c]
    assert len(set(first)) == len(range(n)[a::c])


# ---------------------------------------------------------------- repeats


@examples(100)
@given(SIZES, st.integers(1, 4), KEYS)
def test_repeat_goes_on_and_replay_goes_back(n: int, epochs: int, key: int) -> None:
    positions = np.arange(2 * epochs * n)
    again, laps = Repeat(epochs).down(positions, n, key)
    assert again.tolist() == positions.tolist()
    assert laps is None
    assert Repeat(epochs).up(again, n, key).tolist() == positions.tolist()
    replayed, laps = Replay(epochs).down(positions, n, key)
    assert replayed.tolist() == list(range(n)) * 2 * epochs
    assert laps is not None
    assert laps.tolist() == [lap for lap in range(2 * epochs) for _ in range(n)]
    up = Replay(epochs).up(positions, n, key)
    assert up.tolist() == [*range(n), *[-1] * (n * (2 * epochs - 1))]


@pytest.mark.parametrize("kind", [Repeat, Replay])
def test_the_size_of_a_repeat(kind: Any) -> None:
    assert [kind(epochs).size(below) for epochs, below in [(3, 5), (0, 5), (3, 0), (None, 5), (3, None)]] == [
        15, 0, 0, None, None,
    ]  # fmt: skip


# ---------------------------------------------------------------- strides


@examples(200)
@given(st.integers(0, 60), st.integers(1, 13), st.integers(0, 4))
def test_strides_share_out_every_pass(n: int, count: int, epoch: int) -> None:
    shares = [one_pass(Stride(first, count), n, epoch=epoch) for first in range(count)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(epoch * n, (epoch + 1) * n))
    for first, share in enumerate(shares):
        assert share.tolist() == list(range(epoch * n, (epoch + 1) * n))[first::count]
        assert Stride(first, count).size(n) == len(share)


@examples(200)
@given(st.integers(1, 60), st.integers(1, 13), st.data())
def test_up_of_a_stride_finds_its_own_and_no_others(
    n: int, count: int, data: st.DataObject
) -> None:
    order = Stride(data.draw(st.integers(0, count - 1)), count)
    size = order.size(n)
    assert size is not None
    positions = np.arange(3 * size)
    below = order.down(positions, n, 0)[0]
    assert order.up(below, n, 0).tolist() == positions.tolist()
    up = order.up(np.arange(3 * n), n, 0)
    assert np.flatnonzero(up >= 0).tolist() == below.tolist()


def test_a_stride_of_an_endless_flow() -> None:
    order = Stride(2, 5)
    assert order.size(None) is None
    assert order.down(np.arange(4), None, 0)[0].tolist() == [2, 7, 12, 17]
    assert order.up(np.arange(18), None, 0).tolist() == [
        0 if p == 2 else 1 if p == 7 else 2 if p == 12 else 3 if p == 17 else -1 for p in range(18)
    ]


# ---------------------------------------------------------------- what states tell


def test_orders_describe_themselves_differently() -> None:
    orders = [
        Shuffle(), BlockShuffle(2, 3), BlockShuffle(3, 2), Slice(0, 3), Slice(1, 3), Slice(0, 4), Slice(0, 3, 2),
        Repeat(2), Repeat(None), Replay(2), Replay(None), Stride(0, 2), Stride(1, 2), Stride(0, 3),
    ]  # fmt: skip
    described = [str(order.describe()) for order in orders]
    assert len(set(described)) == len(orders)


# ---------------------------------------------------------------- places by number, and all but the first


@examples(100)
@given(st.lists(st.integers(0, 19), min_size=1, max_size=30), st.integers(0, 3))
def test_every_place_of_a_repeat_is_found(places: list[int], lap: int) -> None:
    order = Pick(np.asarray(places))
    positions = np.arange(len(places)) + lap * len(places)
    below, laps = order.down(positions, 20, 7)
    assert below.tolist() == places and laps is not None and set(laps.tolist()) == {lap}
    assert order.up(np.arange(20), 20, 7).tolist() == [
        places.index(i) if i in places else -1 for i in range(20)
    ]
    assert order.every(np.arange(20)).tolist() == sorted(
        range(len(places)), key=lambda place: (places[place], place)
    )
    plan = ps.from_sequence(range(20), name="a").shuffle(seed=1).select(places).plan
    found = {i: plan.find("a", i, within=range(3 * len(places))) for i in range(20)}
    keys = [sample.index for position in range(3 * len(places)) for sample in plan.at(position)]
    assert found == {i: [at for at, index in enumerate(keys) if index == i] for i in range(20)}


def test_selected_rows_are_told_by_a_digest() -> None:
    many = ps.from_sequence(range(10**6)).select(np.arange(10**6)[::-1])
    it = iter(many)
    next(it)
    assert len(json.dumps(it.state_dict())) < 2_000
    assert len(pickle.dumps(many.select([0, 1]))) < 9 * 10**6
    again = iter(ps.from_sequence(range(10**6)).select(range(10**6)))
    with pytest.raises(ps.StateError, match="digest"):
        again.load_state_dict(it.state_dict())


def test_selected_rows_do_not_depend_on_where_they_are_put() -> None:
    rows = ps.from_sequence(range(50), name="a").shuffle(seed=3)
    some = rows.select([4, 4, 9])
    mixed = ps.mix({"x": some, "y": rows.skip(10)}, stop="all_exhausted", seed=5)
    assert sorted(mixed) == sorted([*some, *list(rows)[10:]])
    assert list(some.repeat(2)) == list(some) * 2
    assert mixed.plan.counts(len(mixed)) == {"x": 3, "y": 40}


def test_a_document_is_left_out_wherever_it_was_selected() -> None:
    ds = ps.from_sequence(range(9), name="a").select([3, 1, 3, 2, 5, 3, 0])
    left = ds.plan.exclude([("a", 3)]).dataset
    assert list(ps.Loader(left))[:4] == [1, 2, 5, 0]


def test_samples_that_come_again_are_of_one_epoch_all_the_same() -> None:
    lengths = ps.from_tokens(np.arange(60), np.arange(0, 61, 6), name="t").select([1, 1, 3])
    packed = lengths.pack(6)
    assert [row["tokens"][0] for row in packed] == [6, 6, 18]
    assert ps.mix({"t": lengths}, unit="tokens", stop="all_exhausted").plan.counts(3) == {"t": 3}


def test_a_reversed_slice_over_a_shuffled_mixture_is_counted_from_its_end() -> None:
    inputs = {"a": ps.from_sequence(range(30)), "b": ps.from_sequence(range(10))}
    ds = ps.mix(inputs, {"a": 3, "b": 1}, stop="all_exhausted").shuffle(seed=1)[::-1]
    for position in (1, 3, 10, 17, 45):
        tally = Counter(sample.source for sample in ds.plan.at(slice(0, position)))
        assert ds.plan.counts(position) == {name: tally[name] for name in "ab"}


def test_what_never_ends_can_be_skipped_into() -> None:
    endless = ps.mix(
        {"a": ps.from_sequence(range(7)).shuffle(), "b": ps.from_sequence(range(5))}, seed=2
    )
    later = endless.skip(1_000)
    assert [later[i] for i in range(20)] == [endless[i] for i in range(1_000, 1_020)]
    assert later.plan.find("a", 3, within=range(40)) == [
        at - 1_000 for at in endless.plan.find("a", 3, within=range(1_000, 1_040))
    ]


@pytest.mark.parametrize("n", [0, 1, 3, 20, 500])
def test_limit_and_skip_are_the_whole(n: int) -> None:
    for ds in (
        ps.from_sequence(range(1_000)).filter(
            lambda x: x % 3 == 0
        ),  # two thirds of the lanes have nothing
        ps.from_sequence(range(10)).filter(lambda x: x % 2),
        ps.from_iterable(lambda: iter(range(50))),
        ps.from_sequence(range(50)).shuffle(seed=1),
    ):
        assert list(ds.limit(n)) + list(ds.skip(n)) == list(ds)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stream_is_skipped_into_on_all_ranks_and_lanes(ranks: int) -> None:
    ds = ps.from_sequence(range(400)).flat_map(lambda x: [x, x])  # every lane has its share
    loaders = [
        ps.Loader(ds.skip(24), lanes=4, rank=rank, world_size=ranks, remainder="keep")
        for rank in range(ranks)
    ]
    found = [x for row in zip(*loaders, strict=True) for x in row]
    assert found == list(ps.Loader(ds, lanes=4))[24:]


# ---------------------------------------------------------------- nothing, and too far


@pytest.mark.parametrize(
    "empty", [lambda ds: ds[9:], lambda ds: ds.limit(0), lambda ds: ds.shard(8, 9).limit(0)]
)
def test_a7_nothing_is_repeated_to_nothing(empty: Any) -> None:
    """`val = ds[n:]; val.repeat()` gave samples from outside of the slice."""
    none, some = empty(ps.from_sequence(range(9))), ps.from_sequence(range(3))
    for ds in (
        none.repeat(3), none.repeat(2, reshuffle=False), none.shuffle(seed=1).repeat(2), none.repeat(2).batch(2),
        none.repeat(2).zip(some), none.repeat(2).map(str).repeat(2), none.repeat(2)[:5],
    ):  # fmt: skip
        assert len(ds) == 0 and list(ds) == []
        with pytest.raises(IndexError):
            ds[0]
    assert list(none.repeat(2).concat(some, none)) == [0, 1, 2]
    for endless in (
        none.repeat,
        none.shuffle(seed=1).repeat,
        none.batch(2).repeat,
        none.repeat(2).repeat,
    ):
        with pytest.raises(ps.ConfigError, match="the dataset is empty"):
            endless()
    with pytest.raises(ps.ConfigError, match="'a' is empty"):
        ps.mix({"a": none.repeat(2), "b": some})
    with pytest.raises(ps.DataError, match="a whole pass gave no sample"):
        next(iter(none.filter(bool).repeat()))


@pytest.mark.parametrize("far", [1 << 60, 1 << 62, 1 << 63, 1 << 70])
def test_a15_positions_that_are_counted_no_more_are_refused(far: int) -> None:
    a, b = ps.from_sequence(range(10), name="a"), ps.from_sequence(range(7), name="b")
    store = ps.from_tokens(np.arange(60), np.arange(0, 61, 6))
    for ds in (
        a, a.repeat(), a.repeat().batch(8), a.repeat().zip(b.repeat()), ps.mix({"a": a, "b": b}), a.concat(b),
        ps.mix({"a": a, "b": b}, stop="first_exhausted"), a.shuffle()[:7].repeat(), store.pack(7),
    ):  # fmt: skip
        plan = ds.plan
        for ask in (
            lambda ds=ds: ds[far],
            lambda ds=ds: ds.__getitems__([0, far]),
            lambda plan=plan: plan.at(far),
            lambda plan=plan: plan.at(slice(far, far + 2)),
            lambda plan=plan: plan.at(step=far // 4, world_size=4),
            lambda plan=plan: plan.counts(far),
            lambda plan=plan: plan.table(far, far + 1),
            lambda plan=plan: plan.find(plan.sources[0], 1, within=range(far, far + 1)),
            lambda plan=plan: plan.skip(range(far, far + 1)),
            lambda ds=ds: iter(ds).seek(far),
        ):
            with pytest.raises(IndexError):
                ask()
    for ask in (lambda: a.repeat()[:far], lambda: a.repeat().limit(far), lambda: a.repeat(far)):
        with pytest.raises(IndexError, match=r"positions are counted up to 2\^60"):
            ask()
    with pytest.raises(ps.ConfigError, match="a whole number of at most 16777216"):
        a.batch(far)
    with pytest.raises(IndexError, match="of 8 samples each"):
        a.repeat().batch(8)[(1 << 60) - 1]
    with ps.Loader(ps.mix({"a": a, "b": b})) as loader, pytest.raises(IndexError):
        loader.set_weights({"a": 1, "b": 2}, at=far)
