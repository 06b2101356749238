"""The library gives what docs/semantics.md says: random pipelines against the list model, then every sentence."""

from __future__ import annotations

from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note

import penstock as ps
from allowed_orders import allowed
from example_counts import examples
from helpers import numbers
from observed_orders import Orders, model, plain, run
from oracle import again, indexed
from penstock.testing import build, pipelines, show

FEW = 40  # samples of a pass that are compared


@examples(300)
@given(pipelines())
def test_random_pipelines_give_what_the_page_says(recipe: Any) -> None:
    note(show(recipe))
    ds = build(recipe)
    orders = Orders(recipe)
    for k in range(2 if again(recipe) else 1):
        found, whole = run(ds, k, FEW)
        inner = recipe[1] if recipe[0] == "seed" else recipe
        if inner[0] == "pack" and inner[3] != "concat_split":
            wrong = allowed(inner, k, [plain(x) for x in found], whole, orders) if whole else ""
            assert not wrong, f"pass {k}: {wrong}"
        else:
            assert [plain(x) for x in found] == model(recipe, k, FEW, orders), f"pass {k}"
    assert [plain(x) for x in ds_head(ds)] == [plain(x) for x in run(ds, 0, FEW)[0]], (
        "iter(ds) is pass 0"
    )


def ds_head(ds: ps.Dataset) -> list[Any]:
    it = iter(ds)
    found = [x for x, _ in zip(it, range(FEW), strict=False)]
    it.close()
    return found


@examples(150)
@given(pipelines(endless=False))
def test_indexed_pipelines_agree_with_their_iteration(recipe: Any) -> None:
    note(show(recipe))
    ds = build(recipe)
    if not indexed(recipe):
        if recipe[0] == "pack":  # where the lengths are known it is indexed
            return
        for ask in (lambda: len(ds), lambda: ds[0], lambda: ds[0:1]):
            with pytest.raises(ps.errors.IndexedError):
                ask()
        return
    samples = [plain(x) for x in ds]
    assert len(ds) == len(samples)
    assert [plain(ds[i]) for i in range(len(ds))] == samples
    assert [plain(ds[i]) for i in range(-len(ds), 0)] == samples
    for cut in (
        slice(1, None, 2),
        slice(None, None, -1),
        slice(-3, None),
        slice(5, 2),
        slice(0, 100),
    ):
        assert [plain(x) for x in ds[cut]] == samples[cut], cut
    for i in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError):
            ds[i]


def kinds(recipe: Any) -> set[str]:
    """Every step in a recipe."""
    if not isinstance(recipe, tuple):
        return set()
    own = {recipe[0]} if recipe and isinstance(recipe[0], str) else set()
    return own.union(*(kinds(part) for part in recipe))


# ---------------------------------------------------------------- sentence by sentence


def epochs(ds: ps.Dataset, n: int) -> list[list[Any]]:
    return [[plain(x) for x in run(ds, k, 1000)[0]] for k in range(n)]


def test_shuffle_is_new_in_every_pass() -> None:
    passes = epochs(numbers(20).shuffle(seed=1), 4)
    assert all(sorted(p) == list(range(20)) for p in passes)
    assert len({tuple(p) for p in passes}) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_repeat_takes_the_passes_of_its_input_in_turn(stream: bool) -> None:
    ds = numbers(9).shuffle(seed=1)
    ds = ds.filter(is_kept) if stream else ds
    single = epochs(ds, 6)
    assert epochs(ds.repeat(2), 3) == [
        single[0] + single[1],
        single[2] + single[3],
        single[4] + single[5],
    ]


def test_repeat_each_gives_every_sample_some_times_in_a_row() -> None:
    ds = numbers(7).shuffle(seed=1).random_map(lambda x, rng: (x, int(rng.integers(1000))))
    one, many = epochs(ds, 3), epochs(ds.repeat_each(3), 3)
    assert many == [[x for x in each for _ in range(3)] for each in one]
    assert epochs(numbers(4).repeat_each(2).map_with_index(lambda i, x: (i, x)), 1) == [
        [*enumerate([0, 0, 1, 1, 2, 2, 3, 3])]
    ]
    endless = numbers(3).repeat().repeat_each(2)
    assert (
        list(endless[:8]) == [0, 0, 1, 1, 2, 2, 0, 0] and sum(endless.plan.counts(7).values()) == 7
    )
    left = ds.repeat_each(3).plan.exclude([(ds.plan.sources[0], one[0][0][0])]).dataset
    assert all(a == b == c for a, b, c in zip(*[iter([x for x, _ in left])] * 3, strict=True))
    with pytest.raises(ps.IndexedError, match="flat_map"):
        numbers(3).filter(bool).repeat_each(2)
    with pytest.raises(ps.ConfigError, match="repeat_each"):
        numbers(3).repeat_each(0)


def test_repeat_without_reshuffle_keeps_the_first_order_but_not_the_random_numbers() -> None:
    ds = numbers(9).shuffle(seed=1).random_map(lambda x, rng: (x, float(rng.random())))
    found = list(ds.repeat(3, reshuffle=False))
    places = [x for x, _ in found]
    assert places[:9] == places[9:18] == places[18:] == [x for x, _ in ds]
    assert len({noise for _, noise in found}) == 27


def test_a_slice_is_of_the_first_pass_in_every_pass() -> None:
    ds = numbers(12).shuffle(seed=1)
    first = epochs(ds, 1)[0]
    for cut, want in (
        (ds[2:9:3], first[2:9:3]),
        (ds.slice(2, 9, 3), first[2:9:3]),
        (ds.limit(5), first[:5]),
        (ds.shard(1, 3), first[1::3]),
        (ds[::-1], first[::-1]),
        (ds.skip(5), first[5:]),
        (ds.select([7, 0, 7, -1]), [first[i] for i in (7, 0, 7, -1)]),
    ):
        assert epochs(cut, 3) == [want] * 3


def test_shards_are_the_whole() -> None:
    ds = numbers(11).shuffle(seed=3)
    shards = [list(ds.shard(i, 4)) for i in range(4)]
    assert sorted(x for shard in shards for x in shard) == list(range(11))


def test_zip_gives_tuples_and_stops_with_the_shortest() -> None:
    assert list(numbers(3).zip(numbers(2, "b"), numbers(5, "c"))) == [(0, 0, 0), (1, 1, 1)]
    assert [type(x) for x in numbers(1).zip(numbers(1, "b"))] == [tuple]


def test_concat_is_one_pass_after_the_other_in_every_pass() -> None:
    a, b = numbers(5).shuffle(seed=1), numbers(4, "b").shuffle(seed=2)
    assert epochs(a.concat(b), 2) == [
        x + y for x, y in zip(epochs(a, 2), epochs(b, 2), strict=True)
    ]


@pytest.mark.parametrize("ds", [
    numbers(9).shuffle(seed=1),
    numbers(9).shuffle_buffer(4),
    numbers(9).filter(lambda x: x != 5).shuffle_buffer(4),
    numbers(9).shuffle(seed=1).random_map(lambda x, rng: (x, float(rng.random()))),
])  # fmt: skip
def test_what_follows_a_step_does_not_change_its_order(ds: ps.Dataset) -> None:
    two = epochs(ds, 2)
    first = list(ds)
    assert list(ds.limit(4)) == first[:4]
    assert list(ds.map_with_index(lambda i, x: x)) == first
    assert list(ds.repeat(2))[: len(first)] == first
    assert epochs(ds.repeat(2), 1) == [two[0] + two[1]]
    assert [x for x, _ in ds.zip(numbers(9, "z"))] == first
    assert list(numbers(2, "z").concat(ds))[2:] == first
    assert list(ds.map_with_index(lambda i, x: x).shuffle_buffer(3)) == list(
        ds.map(lambda x: x).shuffle_buffer(3)
    )


def test_map_with_index_counts_the_pass_of_its_input() -> None:
    ds = numbers(3).repeat(2).map_with_index(lambda i, x: (i, x))
    assert epochs(ds, 2) == [[(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]] * 2


def test_random_map_is_keyed_by_seed_source_stage_epoch_and_index() -> None:
    def draw(x: int, rng: np.random.Generator) -> float:
        return float(rng.random())

    ds = numbers(6).random_map(draw)
    with ps.Loader(ds) as loader:
        first, second = list(loader), list(loader)
    assert first == list(ds) == [ds[i] for i in range(6)]
    again = ds.random_map(lambda x, rng: float(rng.random()))  # the same function at another stage
    everything = (
        first + second + list(ds.seed(5)) + list(numbers(6, "b").random_map(draw)) + list(again)
    )
    assert len(set(everything)) == len(everything)
    assert list(numbers(6).map(lambda x: (x,)).random_map(draw)) == first, (
        "another stage disturbs the random numbers of this one"
    )
    pieces = numbers(6).flat_map(lambda x: [x, x]).flat_map(lambda x: [x, x]).random_map(draw)
    assert len({*first, *pieces}) == 6 + 24, "a piece is drawn like another one, or like the whole"
    shuffled = numbers(6).shuffle(seed=1)
    by_index = dict(zip(list(numbers(6)), first, strict=True))
    assert [by_index[x] for x in shuffled] == list(shuffled.random_map(draw)), (
        "the key is the index in the source"
    )


def test_skip_drops_a_sample_and_a_batch_is_filled_up() -> None:
    def odd(x: int) -> int:
        if x % 2 == 0:
            raise ps.Skip
        return x

    ds = numbers(10).map(odd, may_skip=True)
    assert list(ds) == [1, 3, 5, 7, 9]
    assert list(ds.batch(2, collate=list)) == [[1, 3], [5, 7], [9]]
    assert list(ds.batch(2, drop_remainder=True, collate=list)) == [[1, 3], [5, 7]]
    with pytest.raises(ps.ConfigError, match="may_skip=True"):
        list(numbers(10).map(odd))


def test_none_is_a_sample() -> None:
    values = [None, 1, None, None]
    assert list(ps.from_sequence(values)) == values
    assert list(ps.from_iterable(lambda: iter(values))) == values
    assert list(ps.from_sequence(values).batch(3, collate=list)) == [[None, 1, None], [None]]
    assert sorted(map(str, ps.from_sequence(values).shuffle_buffer(2))) == sorted(map(str, values))
    assert list(ps.from_sequence(values).filter(lambda x: x is None)) == [None] * 3
    assert (
        list(ps.mix({"a": ps.from_sequence(values)}, stop="all_exhausted", block_size=1)) == values
    )


def test_rebatch_cuts_rows_over_the_borders_of_batches() -> None:
    ds = numbers(10).batch(4)
    assert [plain(b) for b in ds.rebatch(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert [plain(b) for b in ds.rebatch(3, drop_remainder=True)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]
    assert epochs(ds.rebatch(3), 2) == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]] * 2


def test_groups_of_similar_length_come_out_whole_and_the_rest_shortest_first() -> None:
    texts = ["a" * n for n in (9, 1, 5, 1, 9, 5, 5, 1)]
    ds = ps.from_sequence(texts).bucket_by_length([3, 7], 2, collate=list)
    assert [[len(x) for x in group] for group in ds] == [[1, 1], [9, 9], [5, 5], [1], [5]]


def test_batches_by_tokens_hold_as_many_neighbours_as_fit() -> None:
    ds = ps.from_sequence(["a" * n for n in (3, 3, 4, 9, 1, 1, 10)]).batch_by_tokens(
        10, collate=list
    )
    assert [[len(x) for x in group] for group in ds] == [[3, 3, 4], [9, 1], [1], [10]]


def test_with_source_names_the_sample_and_leaves_the_input_alone() -> None:
    rows = [{"x": i} for i in range(5)]
    ds = ps.from_sequence(rows, name="code").shuffle(seed=1)
    for k in range(2):
        found = run(ds.with_source(), k, 10)[0]
        assert [r["__index__"] for r in found] == [r["x"] for r in found]
        assert {r["__source__"] for r in found} == {"code"}
        assert {r["__epoch__"] for r in found} == {k}
    assert rows == [{"x": i} for i in range(5)]
    assert [r["__epoch__"] for r in ds.repeat(2).with_source()] == [0] * 5 + [1] * 5
    assert list(ds.map(lambda r: r).with_source()) == list(ds.with_source())


def test_seed_changes_steps_that_have_none_of_their_own() -> None:
    own, none = numbers(30).shuffle(seed=7), numbers(30).shuffle()
    assert list(own.seed(5)) == list(own)
    assert list(none.seed(5)) != list(none)
    assert list(numbers(30).shuffle_buffer(8).seed(5)) != list(
        numbers(30).shuffle_buffer(8).seed(6)
    )


def test_pipe_is_a_call() -> None:
    assert list(numbers(4).pipe(lambda ds: ds.map(lambda x: -x))) == [0, -1, -2, -3]


# ---------------------------------------------------------------- mixing


def mixture(
    stop: Any, lengths: dict[str, int], weights: dict[str, float], **options: Any
) -> list[str]:
    ds = ps.mix(
        {n: ps.from_sequence([(n, i) for i in range(k)], name=n) for n, k in lengths.items()},
        weights, stop=stop, **options,
    )  # fmt: skip
    return [name for name, _ in run(ds, 0, 500)[0]]


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_a_larger_block_permutes_the_interleave_and_keeps_its_counts(block: int) -> None:
    options: dict[str, Any] = {
        "weights": {"a": 3, "b": 2, "c": 1},
        "lengths": {"a": 40, "b": 50, "c": 11},
    }
    for stop in ("all_exhausted", "restart", "all_exhausted_oversample"):
        plain_, permuted = (
            mixture(stop, **options, block_size=1),
            mixture(stop, **options, block_size=block),
        )
        for t in range(0, min(len(plain_), len(permuted)) + 1, block):
            assert sorted(permuted[:t]) == sorted(plain_[:t]), (stop, t)
        if stop != "restart":
            assert sorted(permuted) == sorted(plain_)


def test_an_input_of_weight_zero_is_never_opened() -> None:
    def explode() -> Any:
        raise RuntimeError("opened")

    for stop in ("first_exhausted", "all_exhausted", "all_exhausted_oversample"):
        ds = ps.mix(
            {"a": numbers(4), "b": ps.from_iterable(explode, name="b")}, {"a": 1, "b": 0}, stop=stop
        )
        assert sorted(ds) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "caps,want", [(0.5, (5, 3)), (1, (10, 7)), (1.5, (15, 10)), ({"a": 0.25, "b": 2}, (2, 14))]
)
def test_caps_are_exact_to_the_sample(caps: Any, want: tuple[int, int]) -> None:
    for block in (1, 10, 1000):
        found = mixture(
            "restart", {"a": 10, "b": 7}, {"a": 1, "b": 3}, max_epochs=caps, block_size=block
        )
        assert (found.count("a"), found.count("b")) == want


def test_weights_are_relative_and_default_to_equal() -> None:
    found = mixture("restart", {"a": 9, "b": 9}, {"a": 30, "b": 10}, block_size=1)[:400]
    assert abs(found.count("a") - 300) <= 2
    ds = ps.mix(
        {"a": numbers(100).map(lambda x: "a"), "b": numbers(400, "b").map(lambda x: "b")},
        block_size=1,
    )
    assert abs([x for x, _ in zip(ds, range(300), strict=False)].count("a") - 150) <= 2


def test_temperature_takes_a_root_of_the_lengths() -> None:
    ds = ps.mix(
        {"a": numbers(100).map(lambda x: "a"), "b": numbers(400, "b").map(lambda x: "b")},
        temperature=2,
        block_size=1,
    )
    assert abs([x for x, _ in zip(ds, range(300), strict=False)].count("a") - 100) <= 2


def test_a_schedule_changes_the_weights_over_the_run() -> None:
    ds = ps.mix(
        {"a": numbers(9).map(lambda x: "a"), "b": numbers(9, "b").map(lambda x: "b")},
        ps.Schedule([(0, {"a": 1, "b": 0}), (100, {"a": 1, "b": 3})]),
        block_size=1,
    )
    found = [x for x, _ in zip(ds, range(300), strict=False)]
    assert found[:98].count("b") <= 2
    assert abs(found.count("b") - 150) <= 3


def test_the_second_pass_of_a_mixture_begins_new_passes_of_its_inputs() -> None:
    def rows(name: str, n: int) -> ps.Dataset:
        return ps.from_sequence([{"n": name}] * n, name=name).with_source()

    for stop in ("first_exhausted", "all_exhausted", "all_exhausted_oversample"):
        ds = ps.mix(
            {"a": rows("a", 3), "b": rows("b", 10)}, {"a": 1, "b": 1}, stop=stop, block_size=1
        )
        seen: set[Any] = set()
        for k in range(3):
            begun = {(x["n"], x["__epoch__"]) for x in run(ds, k, 100)[0]}
            assert not begun & seen, (stop, k)
            seen |= begun


def test_a_mixture_takes_each_input_in_its_own_order() -> None:
    a, b = numbers(7).shuffle(seed=1), numbers(5, "b").shuffle(seed=2).map(lambda x: 100 + x)
    ds = ps.mix({"a": a, "b": b}, {"a": 2, "b": 1}, stop="all_exhausted_oversample", seed=9)
    found = list(ds)
    for name, own in (("a", a), ("b", b)):
        ours = [x for x in found if (x < 100) == (name == "a")]
        alone = list(islice(ps.mix({name: own}, seed=4, block_size=1), len(ours)))
        assert ours == alone, (
            "what else is in the mixture, its weights and its seed change nothing in an input"
        )
        passes = [
            sorted(alone[k : k + len(own)]) for k in range(0, len(alone) - len(own) + 1, len(own))
        ]
        assert passes == [sorted(own)] * len(passes)


# ---------------------------------------------------------------- packing and lanes


def test_long_documents_are_split_refused_or_cut() -> None:
    docs = [{"tokens": np.arange(1, n + 1)} for n in (3, 11, 4)]
    ds = ps.from_sequence(docs)
    for method in ("first_fit", "best_fit"):
        split = [plain(r) for r in ds.pack(5, method=method, long="split")]
        assert sum(sum(i > 0 for i in r["segment_ids"]) for r in split) == 18
        kept = [plain(r) for r in ds.pack(5, method=method, long="truncate")]
        assert sum(sum(i > 0 for i in r["segment_ids"]) for r in kept) == 12
        with pytest.raises(ps.errors.PenstockError, match="11"):
            list(ds.pack(5, method=method, long="error"))


def test_positions_go_on_where_a_document_is_split() -> None:
    docs = [{"tokens": np.arange(10, 10 + n)} for n in (3, 4)]
    rows = [plain(r) for r in ps.from_sequence(docs).pack(5)]
    assert [r["tokens"] for r in rows] == [[10, 11, 12, 10, 11], [12, 13, 0, 0, 0]]
    assert [r["segment_ids"] for r in rows] == [[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]]
    assert [r["positions"] for r in rows] == [[0, 1, 2, 0, 1], [2, 3, 0, 0, 0]]


@pytest.mark.parametrize("lanes", [2, 3, 48])
def test_lanes_deal_out_the_last_indexed_step_and_batches_take_their_outputs_in_turn(
    lanes: int,
) -> None:
    shares = [[x for x in range(i, 240, lanes) if is_kept(x)] for i in range(lanes)]
    turns = [
        x for row in zip_longest(*shares) for x in row if x is not None
    ]  # who ended is passed over
    ds = numbers(240).filter(is_kept)
    assert run(ds, 0, 300, lanes=lanes)[0] == turns
    assert list(chain(*run(ds.batch(7, collate=list), 0, 300, lanes=lanes)[0])) == turns
    assert run(ds.limit(5), 0, 300, lanes=lanes)[0] == turns[:5]


def is_kept(x: int) -> bool:
    return x % 5 != 0
