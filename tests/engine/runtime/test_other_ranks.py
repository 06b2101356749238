"""A run resumes exactly on any number of ranks: where they cannot share out its lanes, each reads the whole run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from oracle import endless, indexed
from penstock.testing import build, pipelines, recipes, show
from shared_processes import shared_processes

Keys = Counter[tuple[str, int, int]]


def numbers(n: int = 60, name: str = "numbers") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name).shuffle(seed=2)


def mixed() -> ps.Dataset:
    parts = {
        "a": numbers(50, "a").filter(recipes.most),
        "b": numbers(70, "b").map(lambda x: -x, may_skip=True),
    }
    return ps.mix(parts, {"a": 0.4, "b": 0.6}, seed=3)


def packed(method: Any) -> ps.Dataset:
    documents = numbers().map(lambda x: {"tokens": [x] * (x % 7 + 1)})
    options: Any = {} if method == "concat_split" else {"open_rows": 4}
    return documents.pack(8, method, **options).repeat()


MAKES: dict[str, Callable[[], ps.Dataset]] = {
    "filter": lambda: numbers().filter(lambda x: x % 3 > 0).repeat(),
    "flat_map": lambda: numbers().flat_map(lambda x: [(x, i) for i in range(x % 4)]).repeat(),
    "buffer": lambda: mixed().shuffle_buffer(20, seed=5),
    "random": lambda: mixed().random_map(lambda x, rng: (x, int(rng.integers(1000)))),
    "cut": lambda: packed("concat_split"),
    "whole": lambda: packed("best_fit"),
    "stream": lambda: ps.from_iterable(
        lambda: iter(range(90)), name="stream", identity="v1"
    ).repeat(),
    "limit": lambda: mixed().limit(480),
    "interleave": lambda: ps.interleave(
        ps.from_sequence(range(40), name="a"), ps.from_sequence(range(40, 80), name="b"), width=2
    ).repeat(),
}


def job(
    make: Callable[[], ps.Dataset], world: int, rows: int | None = 12, **options: Any
) -> list[ps.Loader]:
    def dataset() -> ps.Dataset:
        return make() if rows is None else make().batch(global_batch_size=rows, collate=list)

    return [ps.Loader(dataset(), rank=rank, world_size=world, **options) for rank in range(world)]


def keys_of_steps(loaders: Sequence[ps.Loader], steps: int) -> list[Keys]:
    """The samples that all ranks together are given in each of the next steps."""
    runs, found = [iter(loader) for loader in loaders], list[Keys]()
    for _ in range(steps):
        step = Keys()
        for loader, run in zip(loaders, runs, strict=True):
            next(run)
            step.update(loader.keys())
        found.append(step)
    return found


def states_of(loaders: Sequence[ps.Loader]) -> list[Any]:
    states = [through_json(loader.state_dict()) for loader in loaders]
    for loader in loaders:
        loader.close()
    return states


def over(
    make: Callable[[], ps.Dataset], worlds: Sequence[int], steps: int = 3, **options: Any
) -> list[Keys]:
    """The steps of a run that moves from one number of ranks to the next."""
    found, states = list[Keys](), list[Any]()
    for world in worlds:
        loaders = job(make, world, **options)
        try:
            for loader in loaders if states else ():
                loader.load_state_dict(states)
            found += keys_of_steps(loaders, steps)
            states = states_of(loaders)
        finally:
            for loader in loaders:
                loader.close()
    return found


def uninterrupted(make: Callable[[], ps.Dataset], lanes: int, steps: int) -> list[Keys]:
    loaders = job(make, 1, lanes=lanes)
    found = keys_of_steps(loaders, steps)
    loaders[0].close()
    return found


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("worlds,workers", [((1, 2, 3, 1), 0), ((3, 2, 4), 0), ((1, 3, 2), 2)])
def test_a_run_goes_on_over_any_ranks(name: str, worlds: Sequence[int], workers: int) -> None:
    found = over(
        MAKES[name], worlds, 2, workers=workers, remainder="keep" if name == "limit" else "drop"
    )
    assert found == uninterrupted(MAKES[name], worlds[0], len(found))


@examples(40)
@given(recipe=pipelines(3), data=st.data())
def test_random_pipelines_go_on_over_any_ranks(recipe: Any, data: st.DataObject) -> None:
    assume(not indexed(recipe))
    note(show(recipe))

    def make() -> ps.Dataset:
        return build(recipe) if endless(recipe) else build(recipe).repeat()

    worlds = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=2, max_size=4), "worlds")
    workers = data.draw(st.integers(0, 2), "workers")
    try:
        want = uninterrupted(make, worlds[0], 2 * len(worlds))
        found = over(make, worlds, 2, workers=workers)
    except ps.errors.DataError as error:  # also where the lanes of one rank have no sample
        assume("gave no sample" not in str(error))
        raise
    assert found == want


@examples(100)
@given(data=st.data())
def test_lanes_that_end_resume_in_their_order_on_equal_ranks(data: st.DataObject) -> None:
    rows, divisor = data.draw(st.integers(1, 40), "rows"), data.draw(st.integers(2, 5), "divisor")
    ranks, each = data.draw(st.integers(1, 3), "ranks"), data.draw(st.integers(1, 4), "lanes")
    shape = data.draw(st.sampled_from(["samples", "batches", "buffer", "rows"]), "shape")

    def make() -> ps.Dataset:
        ds = numbers(rows).filter(lambda x: x % divisor > 0)
        if shape == "rows":
            return ds.map(lambda x: {"tokens": [x] * (x % 7 + 1)}).pack(8, "first_fit")
        if shape == "batches":
            return ds.batch(2, collate=list)
        return ds.shuffle_buffer(5) if shape == "buffer" else ds

    def deliver(loader: ps.Loader, steps: int | None = None) -> list[Any]:
        """Return the samples of the next steps, or of all that are left."""
        return [loader.keys() for _ in islice(loader, steps)]

    def start() -> list[ps.Loader]:
        return job(make, ranks, None, lanes=ranks * each, remainder="keep")

    want = [deliver(loader) for loader in start()]
    for stop in range(min(map(len, want))):
        loaders = start()
        begun = [deliver(loader, stop) for loader in loaders]
        states = states_of(loaders)
        later = start()
        for loader in later:
            loader.load_state_dict(states)
        rest = [deliver(loader) for loader in later]
        assert [a + b for a, b in zip(begun, rest, strict=True)] == want


def test_a_stream_that_ends_has_no_padding() -> None:
    rows = ps.from_sequence([{"x": i} for i in range(11)])
    kept = rows.filter(lambda row: row["x"] % 3 != 1)
    for ds in (kept.batch(3), kept.batch(3, drop_remainder=True), kept):
        with pytest.raises(ps.errors.ConfigError, match="remainder='pad' fills .* by Loader"):
            ps.Loader(ds, remainder="pad")
    loader = ps.Loader(rows.batch(3), remainder="pad")
    assert [batch["valid"].tolist() for batch in loader][-1] == [True, True, False]


@pytest.mark.slow
def test_processes_go_on_over_any_ranks() -> None:
    def make() -> ps.Dataset:
        return numbers().filter(recipes.most).shuffle_buffer(9).repeat()

    with shared_processes():
        found = over(make, (1, 2, 3), workers=1, executor="processes")
    assert found == uninterrupted(make, 1, len(found))


def test_the_ranks_of_one_step_stand_alike_and_the_state_of_any_goes_on(tmp_path: Path) -> None:
    loaders = job(MAKES["whole"], 3, lanes=1)
    before = keys_of_steps(loaders, 4)
    for loader in loaders:
        ps.save(tmp_path, loader)
    states = states_of(loaders)
    assert states[0] == states[1] == states[2]
    want = uninterrupted(MAKES["whole"], 1, 8)
    assert before == want[:4]
    (alone,) = job(MAKES["whole"], 1)
    alone.load_state_dict(states[2])
    assert keys_of_steps([alone], 4) == want[4:]
    pair = job(MAKES["whole"], 2)
    assert [ps.restore(tmp_path, loader) for loader in pair] == [4, 4]
    assert keys_of_steps(pair, 4) == want[4:]


def test_every_rank_has_its_share_of_every_source() -> None:
    for loader in job(MAKES["interleave"], 2, 8, lanes=1):
        sources = Counter(key[0] for _ in islice(loader, 30) for key in loader.keys())
        assert min(sources.values()) > 40, sources


def test_what_it_costs_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    loaders = job(MAKES["filter"], 2, lanes=3)
    for _ in range(2):
        keys_of_steps(loaders, 1)
    (record,) = caplog.records
    assert (
        record.levelno == logging.WARNING
        and "2 ranks cannot share out 3 lanes" in record.getMessage()
    )
    caplog.clear()
    keys_of_steps(job(MAKES["filter"], 2), 1)
    keys_of_steps([ps.Loader(numbers().batch(3), rank=rank, world_size=2) for rank in range(2)], 1)
    assert not caplog.records


def test_passes_of_a_given_length_go_on_over_any_ranks() -> None:
    def make() -> ps.Dataset:
        return numbers().filter(lambda x: x % 3 > 0)

    def given_in(world: int, states: Any, passes: int) -> tuple[list[Counter[int]], Any]:
        loaders = job(make, world, None, epoch_length=24)
        for loader in loaders if states else ():
            loader.load_state_dict(states)
        found = [
            sum((Counter(loader) for loader in loaders), Counter[int]()) for _ in range(passes)
        ]
        return found, states_of(loaders)

    want, _ = given_in(1, None, 6)
    found, states = list[Counter[int]](), None
    for world in (1, 2, 3):
        some, states = given_in(world, states, 2)
        found += some
    assert found == want


def test_the_rest_of_a_pass_is_shared_out_as_it_is() -> None:
    def make() -> ps.Dataset:
        return numbers().filter(lambda x: x % 3 > 0)

    for at in range(0, 40, 5):
        run = ps.Loader(make())
        before, state = list(islice(run, at)), run.state_dict()
        loaders = job(make, 3, None, remainder="keep")
        for loader in loaders:
            loader.load_state_dict(state)
        rest = [list(loader) for loader in loaders]
        assert sorted([*before, *(x for some in rest for x in some)]) == sorted(
            x for x in range(60) if x % 3
        )
        assert max(map(len, rest)) - min(map(len, rest)) <= 1


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("limit", [None, 23])
def test_a_run_is_saved_after_the_last_short_step_of_a_pass(
    tmp_path: Path, lanes: int, limit: int | None
) -> None:
    def make() -> ps.Dataset:
        kept = numbers(59).filter(lambda x: x % 7 > 0)
        return kept if limit is None else kept.repeat().limit(limit)

    loaders = job(make, 3, 9, lanes=lanes, remainder="keep")
    runs, before = [iter(loader) for loader in loaders], list[list[int]]()
    for _ in range(6 if limit is None else 3):
        before += [next(run) for run in runs]
    assert len({len(batch) for batch in before[-3:]}) > 1
    for loader in loaders:
        ps.save(tmp_path, loader)
    states = states_of(loaders)
    for world in (1, 2, 3):
        for some in [states, *(states if lanes == 1 else [])]:
            again = job(make, world, 12 if world == 2 else 9, remainder="keep")
            for loader in again:
                loader.load_state_dict(some)
            assert [list(loader) for loader in again] == [[]] * world
            assert sorted(x for loader in again for batch in loader for x in batch) == sorted(
                x for batch in before for x in batch
            )
        again = job(make, world, 12 if world == 2 else 9, remainder="keep")
        assert {ps.restore(tmp_path, loader) for loader in again} == {len(before) // 3}
        assert [list(loader) for loader in again] == [[]] * world


def test_a_limit_holds_over_any_ranks_that_restore_from_a_folder(tmp_path: Path) -> None:
    def make() -> ps.Dataset:
        return mixed().limit(37).batch(1, collate=list)

    (alone,) = job(make, 1, None, lanes=4)
    want, found = [x for batch in alone for x in batch], list[int]()
    for world in (4, 3, 2, 1, 4, 4, 1, 4, 2):
        loaders = job(make, world, None, remainder="keep")
        for loader in loaders if found else ():
            ps.restore(tmp_path, loader)
        found += [
            x for loader in loaders for (x,) in islice(loader, 2 if len(found) < 33 else None)
        ]
        assert sorted(found) == sorted(want[: len(found)])
        if len(found) == 37:
            return
        for loader in loaders:
            ps.save(tmp_path, loader)
    raise AssertionError(len(found))


@pytest.mark.parametrize("world", [2, 3])
def test_a_limit_is_that_of_the_run_whichever_states_a_rank_is_given(
    tmp_path: Path, world: int
) -> None:
    def make() -> ps.Dataset:
        return mixed().limit(37)

    loaders = job(make, world, 2 * world, remainder="keep")
    before = [
        x
        for batches in zip(*(islice(loader, 3) for loader in loaders), strict=True)
        for b in batches
        for x in b
    ]
    for loader in loaders:
        ps.save(tmp_path, loader)
    states = states_of(loaders)

    def rest(load: Callable[[ps.Loader], Any]) -> int:
        again = job(make, world, 2 * world, remainder="keep")
        for loader in again:
            load(loader)
        return sum(len(batch) for loader in again for batch in loader)

    assert rest(lambda loader: ps.restore(tmp_path, loader)) == 37 - len(before)
    assert rest(lambda loader: loader.load_state_dict(states[loader.rank])) == 37 - len(before)
    assert rest(lambda loader: loader.load_state_dict([*states, *states])) == 37 - len(before)


def test_a_folder_of_ranks_with_lanes_is_adopted_by_another_mixture(tmp_path: Path) -> None:
    def make(b: int) -> ps.Dataset:
        return ps.mix({name: numbers(50, name) for name in "ab"}, {"a": 1, "b": b}, seed=3).filter(
            recipes.most
        )

    loaders = job(lambda: make(1), 2)
    keys_of_steps(loaders, 3)
    for loader in loaders:
        ps.save(tmp_path, loader)
    states, found = states_of(loaders), list[list[Keys]]()
    for world in (2, 1, 3):
        restored, loaded = job(lambda: make(4), world), job(lambda: make(4), world)
        for one, other in zip(restored, loaded, strict=True):
            ps.restore(tmp_path, one, on_mismatch="adopt")
            other.load_state_dict(states, on_mismatch="adopt")
        found += [keys_of_steps(restored, 3), keys_of_steps(loaded, 3)]
    assert all(keys == found[0] for keys in found)


def test_weights_change_alike_on_all_ranks() -> None:
    def make() -> ps.Dataset:
        return ps.mix({name: numbers(500, name).filter(recipes.most) for name in "ab"}, seed=3)

    (alone,), loaders = job(make, 1), job(make, 3, lanes=1)
    want, found = keys_of_steps([alone], 2), keys_of_steps(loaders, 2)
    at = alone.set_weights({"a": 1, "b": 9})
    assert {loader.set_weights({"a": 1, "b": 9}) for loader in loaders} == {at}
    want += keys_of_steps([alone], 3)
    found += keys_of_steps(loaders, 3)
    states = states_of(loaders)
    pair = job(make, 2)
    for loader in pair:
        loader.load_state_dict(states)
    assert found == want and keys_of_steps(pair, 4) == keys_of_steps([alone], 4)


def test_journals_of_bad_samples_go_on_over_any_ranks() -> None:
    def refuse(x: int) -> int:
        if x % 7 == 3:
            raise ValueError("no such number")
        return x

    def make() -> ps.Dataset:
        return numbers().map(refuse).filter(recipes.most).repeat()

    (alone,) = job(make, 1, on_error="quarantine")
    want = keys_of_steps([alone], 9)
    assert over(make, (1, 2, 3), 3, on_error="quarantine") == want


def test_items_are_taken_by_ranks_that_share_the_lanes_only() -> None:
    def make() -> ps.Dataset:
        return numbers().filter(recipes.most).repeat()

    with pytest.raises(
        ps.ConfigError,
        match=r"cannot share out the 1 lane of the run; start the run with lanes=",
    ):
        job(make, 2, None, lanes=1)[0].lease(1)
    (alone,) = job(make, 1, None)
    alone.lease(3)
    with pytest.raises(ps.StateError, match="1 lane, which 2 ranks cannot share out"):
        job(make, 2, None)[0].load_state_dict(alone.state_dict())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 8])
def test_no_more_is_decoded_before_the_first_batch_than_it_takes_twice(
    world: int, workers: int
) -> None:
    decoded = [0]

    def decode(x: int) -> Any:
        decoded[0] += 1
        time.sleep(0.001 if workers else 0)
        return np.full(16 + x * 37 % 64, x, np.int32)

    images = ps.from_sequence(range(4000)).shuffle().map(decode).pack(512).repeat().batch(4)
    samples = 0
    for rank in range(world):
        with ps.Loader(
            images, rank=rank, world_size=world, workers=workers, executor="threads"
        ) as loader:
            next(iter(loader))
            samples += len(set(loader.keys()))
    assert samples < decoded[0] + world * 4 and decoded[0] <= 2 * samples


def test_a_few_documents_fill_their_rows_with_the_default_loader() -> None:
    rng = np.random.default_rng(0)
    chats = [np.ones(int(n), np.int32) for n in np.clip(rng.lognormal(5.5, 0.8, 2400), 16, 2048)]
    rows = list(ps.Loader(ps.from_sequence(chats).map(lambda x: x).pack(2048, "best_fit")))
    assert np.mean([np.mean(row["segment_ids"] > 0) for row in rows]) > 0.99


@pytest.mark.parametrize("rows", [12, 24])
@pytest.mark.parametrize("worlds", [(2, 2), (2, 4), (3, 1), (4, 6), (1, 3)])
def test_ranks_end_at_one_step_where_a_limit_ends_an_endless_stream(
    worlds: tuple[int, int], rows: int
) -> None:
    def make() -> ps.Dataset:
        return mixed().limit(480)

    first, then = worlds
    want = uninterrupted(lambda: mixed(), 12, 480 // rows) if rows == 12 else None
    loaders = job(make, first, rows, lanes=12)
    found = keys_of_steps(loaders, 3)
    states = states_of(loaders)
    loaders = job(make, then, rows)
    for loader in loaders:
        loader.load_state_dict(states)
    found += keys_of_steps(loaders, 480 // rows - 3)
    assert want is None or found == want
    assert sum(map(Counter.total, found)) == 480
    assert [next(iter(loader), None) for loader in loaders] == [None] * then


def test_ranks_do_not_share_a_limit_that_leaves_part_of_a_step() -> None:
    message = "82 rows fill no whole number of steps of 8 rows; limit a multiple of 8"
    with pytest.raises(ps.ConfigError, match=message):
        ps.Loader(mixed().limit(82).batch(4), rank=0, world_size=2)
