"""Bugs that were seen in other data loaders, each as a case that must not happen here.

The names and numbers are those of the public reports; what is tested is our behaviour in the same situation.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import numbers, through_json
from observed_orders import run
from penstock.testing import assert_covers, assert_elastic, assert_resumes, recipes


def resumed(make: Any, state: Any) -> Any:
    it = iter(make())
    it.load_state_dict(through_json(state))
    return it


# ---------------------------------------------------------------- saving and loading


def test_hf_state_saved_right_after_a_load_is_the_loaded_one() -> None:
    def make() -> ps.Dataset:
        return numbers(50).map(recipes.double).filter(recipes.most)

    it = iter(make())
    taken = list(islice(it, 7))
    state = it.state_dict()
    again = resumed(make, state)
    assert through_json(again.state_dict()) == through_json(state)
    third = resumed(make, again.state_dict())
    assert taken + list(third) == list(make())


def test_hf_8308_the_second_and_the_tenth_resume_go_on() -> None:
    def make() -> ps.Dataset:
        return numbers(60).shuffle(seed=1).filter(recipes.most).batch(2, collate=list)

    found: list[Any] = []
    state = iter(make()).state_dict()
    for link in range(10):
        it = resumed(make, state)
        found += list(islice(it, 1 + link % 3))
        state = it.state_dict()
    assert found + list(resumed(make, state)) == list(make())


def test_hf_8145_a_resume_inside_a_chunk_skips_nothing() -> None:
    def make() -> ps.Dataset:
        return numbers(5000).map(recipes.double)

    want = list(make())
    for at in (1, 799, 800, 801, 1023, 1024, 1025, 4999):
        it = iter(make())
        assert list(islice(it, at)) == want[:at]
        assert list(resumed(make, it.state_dict())) == want[at:]


@pytest.mark.parametrize("buffer", [10, 100, 5000])
def test_hf_the_content_of_a_shuffle_buffer_survives(buffer: int) -> None:
    def make() -> ps.Dataset:
        return numbers(300).shuffle_buffer(buffer)

    for at in (1, 150, 299):
        it = iter(make())
        taken = list(islice(it, at))
        assert_covers(taken + list(resumed(make, it.state_dict())), range(300))


def test_hf_7447_epochs_after_a_resume_are_whole() -> None:
    def make() -> ps.Loader:
        return ps.Loader(numbers(20).shuffle(seed=1).filter(recipes.most))

    with make() as whole:
        want = [list(whole) for _ in range(3)]
    with make() as first:
        taken = list(islice(first, 5))
        state = through_json(first.state_dict())
    with make() as second:
        second.load_state_dict(state)
        assert [taken + list(second), list(second), list(second)] == want


def test_hf_a_state_saved_after_exhaustion_does_not_start_the_epoch_again() -> None:
    it = iter(numbers(5))
    assert list(it) == [0, 1, 2, 3, 4]
    ended = resumed(lambda: numbers(5), it.state_dict())
    assert list(ended) == [] and list(ended) == []
    with ps.Loader(numbers(5).shuffle(seed=1)) as loader:
        assert len(list(loader)) == 5
        state = through_json(loader.state_dict())
        second = list(loader)
    with ps.Loader(numbers(5).shuffle(seed=1)) as other:
        other.load_state_dict(state)
        assert list(other) == second


def test_torchdata_1437_a_state_of_the_end_of_an_epoch_neither_drops_nor_repeats_one() -> None:
    def make(workers: int) -> ps.Loader:
        return ps.Loader(numbers(12).shuffle(seed=1).batch(4, collate=list), workers=workers)

    with make(0) as loader:
        want = [list(loader) for _ in range(4)]
    for workers in (0, 2):
        with make(workers) as loader:
            states = []
            for epoch in range(3):
                assert list(loader) == want[epoch]
                states.append(through_json(loader.state_dict()))
        for epoch, state in enumerate(states):
            with make(2 - workers) as other:
                other.load_state_dict(state)
                assert list(other) == want[epoch + 1]


def test_torchdata_1437_a_state_one_step_after_a_resume_on_many_workers_is_complete() -> None:
    def make() -> ps.Loader:
        return ps.Loader(numbers(40).shuffle(seed=1).batch(3, collate=list), workers=4)

    with make() as loader:
        want = list(loader)
    found: list[Any] = []
    state = None
    for _ in range(4):
        with make() as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += list(islice(loader, 1))
            state = through_json(loader.state_dict())
    assert found == want[:4]


def test_torchdata_none_is_an_item_and_no_sign_of_the_end() -> None:
    values = [None, 0, None, False, (), None]
    assert_resumes(lambda: ps.from_sequence(values))
    assert_resumes(
        lambda: ps.from_iterable(lambda: iter(values)).filter(lambda x: True).shuffle_buffer(3)
    )
    with ps.Loader(ps.from_sequence(values), workers=2) as loader:
        assert list(loader) == values
    with ps.Loader(ps.from_sequence(values), world_size=2, rank=0) as loader:
        one = list(loader)
    with ps.Loader(ps.from_sequence(values), world_size=2, rank=1) as loader:
        pairs = zip(one, loader, strict=True)
        assert [sorted(map(repr, pair)) for pair in pairs] == [
            sorted(map(repr, values[i : i + 2])) for i in (0, 2, 4)
        ]


def test_torchdata_another_number_of_workers_resumes() -> None:
    def make(workers: int) -> ps.Loader:
        return ps.Loader(numbers(30).shuffle(seed=1).map(recipes.double), workers=workers)

    with make(0) as loader:
        want = list(loader)
    state, found = None, []
    for workers in (2, 1, 3, 0, 2):
        with make(workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += list(islice(loader, 4))
            state = through_json(loader.state_dict())
    assert found == want[:20]


@pytest.mark.parametrize("block", [None, (4, 2)])
def test_grain_1178_a_window_shuffle_restored_at_any_step_into_a_new_iterator(block: Any) -> None:
    def make() -> ps.Dataset:
        ds = numbers(23)
        return ds.shuffle_buffer(5) if block is None else ds.shuffle(seed=1, block=block)

    want = list(make())
    for at in range(24):
        it = iter(make())
        list(islice(it, at))
        assert list(resumed(make, it.state_dict())) == want[at:]


def test_grain_keys_of_a_state_survive_json() -> None:
    ds = ps.mix({str(i): numbers(6, str(i)) for i in range(12)}, stop="all_exhausted").filter(
        recipes.most
    )
    for make in (lambda: iter(ds), lambda: ps.Loader(ds, lanes=12)):
        live = make()
        list(islice(iter(live), 20))
        state = live.state_dict()
        assert through_json(state) == state, (
            "JSON changes the state: keys that are no strings, or tuples"
        )


def test_grain_a_missing_state_of_one_lane_is_refused_not_lost() -> None:
    ds = numbers(60).filter(recipes.most)

    def make(rank: int, world: int) -> ps.Loader:
        return ps.Loader(ds, lanes=4, rank=rank, world_size=world, remainder="keep")

    ranks = [make(r, 4) for r in range(4)]
    for rank in ranks:
        list(islice(rank, 3))
    states = [through_json(rank.state_dict()) for rank in ranks]
    for left_out in range(4):
        other = make(0, 1)
        before = other.state_dict()
        with pytest.raises(ps.errors.StateError):
            other.load_state_dict([s for i, s in enumerate(states) if i != left_out])
        assert other.state_dict() == before, "a load that failed changed the loader"
    whole = make(0, 1)
    whole.load_state_dict(states)
    first = [
        x
        for group in zip(*[list(islice(make(r, 4), 3)) for r in range(4)], strict=True)
        for x in group
    ]
    assert_covers(first + list(whole), [x for x in range(60) if recipes.most(x)])


def test_grain_states_of_different_steps_are_refused() -> None:
    ds = numbers(60).filter(recipes.most)
    ranks = [ps.Loader(ds, lanes=2, rank=r, world_size=2, remainder="keep") for r in range(2)]
    for rank, steps in zip(ranks, (3, 5), strict=True):
        list(islice(rank, steps))
    with pytest.raises(ps.errors.StateError):
        ps.Loader(ds, lanes=2).load_state_dict([rank.state_dict() for rank in ranks])


def test_grain_1129_dropping_the_remainder_drops_it_once_not_per_worker() -> None:
    ds = numbers(103).batch(10, drop_remainder=True, collate=list)
    for workers in (0, 1, 3, 4):
        with ps.Loader(ds, workers=workers) as loader:
            assert_covers([x for batch in loader for x in batch], range(100))


def test_grain_953_a_seek_backwards_gives_the_same_again() -> None:
    it = iter(
        numbers(40)
        .shuffle(seed=1)
        .random_map(recipes.noisy)
        .shuffle_buffer(7)
        .batch(3, collate=list)
    )
    states, want = [], []
    for x in it:
        want.append(x)
        states.append(through_json(it.state_dict()))
    for at in (9, 2, 12, 0, 5):
        it.load_state_dict(states[at])
        assert list(it) == want[at + 1 :]


def test_llm_foundry_1277_a_resume_counts_rows_not_documents() -> None:
    def make(method: Any, workers: int) -> ps.Loader:
        ds = numbers(80).shuffle(seed=1).map(recipes.document).pack(16, method=method)
        return ps.Loader(ds.batch(2, collate=list), workers=workers)

    for method in ("concat_split", "first_fit", "best_fit"):
        with make(method, 0) as loader:
            want = [[recipes.number(x) for x in loader] for _ in range(2)]
        for at in (0, 1, 5, len(want[0])):
            with make(method, 3) as loader:
                taken = [recipes.number(x) for x in islice(loader, at)]
                state = through_json(loader.state_dict())
            with make(method, 1) as loader:
                loader.load_state_dict(state)
                assert taken + [recipes.number(x) for x in loader] == want[0]
                assert [recipes.number(x) for x in loader] == want[1]


def test_mosaicml_700_a_resume_at_the_last_sample_and_in_the_second_epoch() -> None:
    def make() -> ps.Loader:
        return ps.Loader(numbers(7).shuffle(seed=1))

    with make() as loader:
        stream = [list(loader), list(loader), list(loader)]
    for epoch in range(2):
        for at in (6, 7):
            with make() as loader:
                for _ in range(epoch):
                    list(loader)
                list(islice(loader, at))
                state = through_json(loader.state_dict())
                live = [list(loader), list(loader)]
            with make() as other:
                other.load_state_dict(state)
                assert [list(other), list(other)] == live
            rest = [x for part in live for x in part]
            flat = [x for part in stream[epoch:] for x in part]
            assert rest == flat[at : at + len(rest)]


def test_litdata_213_a_loop_left_early_can_be_saved_resumed_and_gone_on_with() -> None:
    def make(workers: int) -> ps.Loader:
        return ps.Loader(numbers(30).shuffle(seed=1), workers=workers)

    want = list(numbers(30).shuffle(seed=1))
    for workers in (0, 2):
        with make(workers) as loader:
            found = []
            for x in loader:
                found.append(x)
                if len(found) == 11:
                    break
            state = through_json(loader.state_dict())
            for x in loader:
                found.append(x)
                if len(found) == 20:
                    break
            assert found == want[:20]
        with make(workers) as other:
            other.load_state_dict(state)
            assert list(other) == want[11:]


def test_energon_the_state_counts_what_was_delivered_not_what_was_prefetched() -> None:
    with ps.Loader(numbers(100).shuffle(seed=1), workers=3, prefetch=30) as loader:
        taken = list(islice(loader, 3))
        state = through_json(loader.state_dict())
    with ps.Loader(numbers(100).shuffle(seed=1)) as other:
        other.load_state_dict(state)
        assert taken + list(other) == list(numbers(100).shuffle(seed=1))


def test_a_saved_state_does_not_change_when_the_run_goes_on() -> None:
    it = iter(numbers(30).shuffle_buffer(6).batch(2, collate=list))
    next(it)
    state = it.state_dict()
    text = json.dumps(state)
    list(it)
    assert json.dumps(state) == text


@pytest.mark.parametrize("damage", ["", "gone", "other", "older", "text"])
def test_a_foreign_or_damaged_state_is_refused_and_nothing_has_moved(damage: str) -> None:
    ds = numbers(30).shuffle(seed=1)
    with ps.Loader(ds) as loader:
        want = list(islice(loader, 10))[5:]
    it = iter(ds)
    list(islice(it, 5))
    state = through_json(it.state_dict())
    bad: Any = state
    if damage == "gone":
        bad = dict(list(state.items())[1:])
    elif damage == "other":
        other = iter(numbers(31).shuffle(seed=1))
        next(other)
        bad = other.state_dict()
    elif damage == "older":
        bad = {k: (-1 if k == "version" else v) for k, v in state.items()}
    elif damage == "text":
        bad = "a state"
    if damage:
        with pytest.raises(ps.errors.StateError):
            it.load_state_dict(bad)
    assert list(islice(it, 5)) == want


# ---------------------------------------------------------------- ranks, seeds, orders


def test_hf_7868_interleaved_sources_are_split_over_ranks_not_repeated() -> None:
    flows = {
        n: numbers(20, n).shuffle(seed=1).map_with_index(lambda i, x, n=n: (n, x)) for n in "ab"
    }
    ds = ps.mix(flows, stop="all_exhausted")
    for world in (2, 3, 4):
        found = [
            x
            for r in range(world)
            for x in ps.Loader(ds, rank=r, world_size=world, remainder="keep")
        ]
        assert_covers(found, [(n, i) for n in "ab" for i in range(20)])
    laned = ds.filter(lambda x: True)
    found = [
        x
        for r in range(2)
        for x in ps.Loader(laned, rank=r, world_size=2, lanes=2, remainder="keep")
    ]
    assert_covers(found, [(n, i) for n in "ab" for i in range(20)])


def test_hf_5696_a_shuffle_without_a_seed_is_the_same_on_all_ranks() -> None:
    found = [x for r in range(3) for x in ps.Loader(numbers(30).shuffle(), rank=r, world_size=3)]
    assert_covers(found, range(30))


def test_hf_7156_mixing_does_not_reset_the_shuffle_of_its_inputs() -> None:
    ds = ps.mix({"a": numbers(10).shuffle(seed=1)}, block_size=1)
    with ps.Loader(ds) as loader:
        stream = list(islice(loader, 30))
    assert len({tuple(stream[i : i + 10]) for i in (0, 10, 20)}) == 3
    assert all(sorted(stream[i : i + 10]) == list(range(10)) for i in (0, 10, 20))


def test_pytorch_5059_random_numbers_belong_to_the_sample_not_to_the_worker() -> None:
    ds = numbers(64).random_map(lambda x, rng: float(rng.random()))
    streams = []
    for workers in (0, 1, 4):
        with ps.Loader(ds, workers=workers) as loader:
            streams.append([list(loader), list(loader)])
    assert streams[0] == streams[1] == streams[2]
    assert len({x for epoch in streams[0] for x in epoch}) == 128
    ranks = [list(ps.Loader(ds, rank=r, world_size=4)) for r in range(4)]
    steps = [sorted(group) for group in zip(*ranks, strict=True)]
    assert steps == [sorted(streams[0][0][i : i + 4]) for i in range(0, 64, 4)]


def test_grain_seed_and_epoch_are_not_added() -> None:
    for a, b in ((42, 43), (0, 1), (6, 7)):
        assert (
            run(numbers(40).shuffle(seed=a), 1, 40)[0] != run(numbers(40).shuffle(seed=b), 0, 40)[0]
        )
    assert list(numbers(40).shuffle(seed=1)) != list(numbers(40, "b").shuffle(seed=1)), (
        "two sources, one order"
    )


@pytest.mark.parametrize("n", [2**k + d for k in range(1, 15) for d in (-1, 0, 1)])
def test_a_permutation_of_two_to_the_k_and_one_more_is_one(n: int) -> None:
    found = np.sort(np.asarray(list(numbers(n).shuffle(seed=5)), np.int64))
    assert (found == np.arange(n)).all()


def test_grain_1200_a_slice_stays_a_slice_when_it_is_repeated() -> None:
    ds = numbers(20).shuffle(seed=1)
    part, rest = ds[:5], ds[5:]
    kept = set(part)
    assert kept.isdisjoint(rest)
    for again in (part.repeat(4), part.repeat(4, reshuffle=False), part.shuffle(seed=3).repeat(4)):
        assert Counter(again) == Counter(dict.fromkeys(kept, 4))
    with ps.Loader(part) as loader:
        assert [set(loader) for _ in range(3)] == [kept] * 3
    assert set(islice(ps.mix({"part": part}, block_size=1), 50)) == kept
    assert kept.isdisjoint(islice(ps.mix({"rest": rest}, block_size=1), 100))


def test_levanter_1248_a_source_that_cannot_be_read_is_an_error_not_a_smaller_mixture() -> None:
    class Broken:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            raise OSError("the disk is gone")

    ds = ps.mix(
        {"good": numbers(10), "bad": ps.from_sequence(Broken(), name="bad")}, stop="all_exhausted"
    )
    with pytest.raises(OSError, match="the disk is gone"):
        list(ds)
    with pytest.raises(ps.errors.ConfigError, match="bad"):
        ps.mix({"good": numbers(10), "bad": numbers(0)})


def test_webdataset_an_empty_source_is_refused_by_name() -> None:
    with pytest.raises(ps.errors.PenstockError, match="empty"):
        list(islice(ps.mix({"good": numbers(3), "empty": numbers(9).filter(lambda x: False)}), 400))


def test_energon_99_percent_bad_samples_do_not_pass() -> None:
    def bad(x: int) -> int:
        if x % 100:
            raise ValueError(f"sample {x} is broken")
        return x

    with (
        pytest.raises(ps.errors.PenstockError),
        ps.Loader(numbers(1000).map(bad), on_error="quarantine", max_errors=50) as loader,
    ):
        list(loader)


def test_grain_weights_are_not_truncated_and_small_sources_not_starved() -> None:
    names = [f"s{i}" for i in range(30)]
    weights = {n: 1 + i % 7 for i, n in enumerate(names)}
    ds = ps.mix({n: numbers(50, n).map(lambda x, n=n: n) for n in names}, weights, block_size=1)
    from penstock.testing import assert_mixture

    assert_mixture(islice(ds, 3000), weights)


@pytest.mark.parametrize("make", [
    lambda: numbers(25).shuffle(seed=1),
    lambda: ps.mix({"a": numbers(9).shuffle(seed=1), "b": numbers(15, "b")}, stop="all_exhausted", block_size=4),
])  # fmt: skip
def test_indexed_pipelines_are_elastic(make: Any) -> None:
    assert_elastic(lambda r, w: ps.Loader(make(), rank=r, world_size=w), worlds=(1, 2, 3, 4, 6))


@pytest.mark.parametrize("batches", [
    lambda ds, w: ds.batch(3, collate=list),
    lambda ds, w: ds.batch(12 // w, collate=list),
    lambda ds, w: ds.batch(12 // w, collate=list, drop_remainder=True).map(list),
    lambda ds, w: ds.batch(2, collate=list).batch(2, collate=list).map(lambda pairs: [x for pair in pairs for x in pair]),
])  # fmt: skip
def test_batches_are_elastic(batches: Any) -> None:
    ds = numbers(131).shuffle(seed=1)
    assert_elastic(
        lambda r, w: ps.Loader(batches(ds, w), rank=r, world_size=w),
        worlds=(1, 2, 3, 4, 6),
        rows=list,
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: numbers(120).shuffle(seed=1).filter(recipes.most).flat_map(recipes.twice),
    lambda: numbers(300).map(recipes.document).filter(recipes.most).pack(9),
])  # fmt: skip
def test_lanes_are_elastic(make: Any) -> None:
    def loader(rank: int, world: int) -> ps.Loader:
        return ps.Loader(make(), rank=rank, world_size=world, lanes=12, remainder="keep")

    assert_elastic(loader, worlds=(1, 2, 3, 4, 6), steps=60)
