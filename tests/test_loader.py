"""The loader: one run whatever the hands, states, weights changed on the way, bad samples, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import seams

LANES = 12


def numbers(n: int, start: int = 0) -> ps.Dataset:
    return ps.from_sequence(range(start, start + n))


def mixture(weights: Any = None, **options: Any) -> ps.Dataset:
    inputs = {"a": numbers(500).shuffle(), "b": numbers(300, 10_000).shuffle(), "c": numbers(70, 20_000).shuffle()}
    return ps.mix(inputs, weights or {"a": 5, "b": 3, "c": 2}, block_size=10, seed=3, **options)


def indexed() -> ps.Dataset:
    return mixture().map(lambda x: x * 2).batch(3, collate=list)


def by_lanes() -> ps.Dataset:
    kept = mixture().filter(lambda x: x % 7).flat_map(lambda x: [x] * (x % 3))
    return kept.map(lambda x: [x] * (x % 5 + 1)).pack(16).batch(2)


PIPELINES = pytest.mark.parametrize("make", [indexed, by_lanes])


def shown(batch: Any) -> str:
    return json.dumps(batch, default=lambda array: array.tolist())


def lockstep(make: Any, ranks: int, steps: int, states: Any = None, workers: int = 0) -> tuple[list[str], list[Any]]:
    """Items of all ranks, round and round, and every rank's state (through JSON) at the end."""
    loaders = [ps.Loader(make(), rank=r, world_size=ranks, lanes=LANES, workers=workers) for r in range(ranks)]
    try:
        if states is not None:
            for loader in loaders:
                loader.load_state_dict(states)
        runs = [iter(loader) for loader in loaders]
        items = [shown(next(run)) for _ in range(steps) for run in runs]
        return items, [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    finally:
        for loader in loaders:
            loader.close()


@PIPELINES
def test_any_number_of_threads_gives_one_run(make):
    whole = [shown(x) for x in islice(make(), 60)]
    for workers in (0, 1, 2, 4):
        with ps.Loader(make(), workers=workers) as loader:
            assert [shown(x) for x in islice(loader, 60)] == whole
    with ps.Loader(make(), workers=2, executor="inline") as loader:
        assert [shown(x) for x in islice(loader, 60)] == whole


@PIPELINES
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_world_sizes_give_one_global_sequence(make, ranks):
    whole, _ = lockstep(make, 1, 120)
    assert lockstep(make, ranks, 120 // ranks, workers=ranks % 3)[0] == whole


@PIPELINES
def test_world_size_changes_in_the_middle(make):
    whole, _ = lockstep(make, 1, 120)
    first, states = lockstep(make, 2, 20)
    second, states = lockstep(make, 3, 10, states, workers=2)
    third, _ = lockstep(make, 1, 50, states)
    assert first + second + third == whole


def test_one_state_of_an_indexed_run_serves_all_ranks():
    whole, _ = lockstep(indexed, 1, 60)
    first, states = lockstep(indexed, 3, 8)
    rest, _ = lockstep(indexed, 4, 9, states[1])
    assert first + rest == whole
    assert len({json.dumps(state) for state in states}) == 1


def test_a_world_size_that_lanes_cannot_serve_is_refused_with_those_they_can():
    with pytest.raises(ps.ConfigError, match=r"12 lanes.*5 ranks.*1, 2, 3, 4, 6, 12"):
        ps.Loader(by_lanes(), rank=0, world_size=5, lanes=LANES)


def test_a_missing_rank_is_named_by_its_lanes():
    _, states = lockstep(by_lanes, 3, 4)
    with ps.Loader(by_lanes(), lanes=LANES) as loader, pytest.raises(ps.StateError, match=r"lanes \[1, 4, 7, 10\]"):
        loader.load_state_dict([states[0], states[2]])


def test_passes_follow_each_other_and_a_state_at_the_end_goes_on_with_the_next():
    make = lambda: numbers(10).shuffle().batch(4, collate=list)  # noqa: E731
    with ps.Loader(make()) as loader:
        passes = [list(loader) for _ in range(3)]
        assert all(sorted(chain(*p)) == list(range(10)) for p in passes)
        assert passes[0] != passes[1] != passes[2]
    with ps.Loader(make()) as loader:
        assert list(loader) == passes[0]
        state = loader.state_dict()
    with ps.Loader(make()) as loader:
        loader.load_state_dict(state)
        assert [list(loader), list(loader)] == passes[1:]


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(("make", "lanes"), [(indexed, 1), (by_lanes, 1), (by_lanes, 4)])
def test_weights_set_in_a_run_are_saved_resumed_and_replayed(make, lanes):
    ramp = ps.Schedule([(0, {"a": 1, "b": 1, "c": 1}), (400, {"a": 1, "b": 9, "c": 0})], "linear")
    with ps.Loader(make(), lanes=lanes) as loader:
        run, items, saved, places = iter(loader), [], None, []
        for step in range(80):
            if step == 13:
                places.append(loader.set_weights({"a": 1, "b": 0, "c": 9}))
            if step == 31:
                places.append(loader.set_weights(ramp))
            if step == 50:
                saved = json.dumps(loader.state_dict())
            items.append(shown(next(run)))
        end = loader.state_dict()
    with ps.Loader(make(), lanes=lanes, workers=2) as resumed:
        resumed.load_state_dict(json.loads(str(saved)))
        assert [shown(x) for x in islice(resumed, 30)] == items[50:]
        assert json.dumps(resumed.state_dict()) == json.dumps(end)
    with ps.Loader(make(), lanes=lanes) as replayed:  # the log alone, moved to the beginning
        start = {**replayed.state_dict(), "changes": end["changes"]}
        replayed.load_state_dict(_sealed(start))
        assert [shown(x) for x in islice(replayed, 80)] == items
    assert places == sorted(places)


def _sealed(state: dict[str, Any]) -> dict[str, Any]:
    from penstock.cursor import seal

    return seal({k: v for k, v in state.items() if k not in ("penstock", "version", "order", "check")})


def test_all_ranks_switch_weights_on_one_sample():
    def run(ranks: int) -> list[str]:
        loaders = [ps.Loader(indexed(), rank=r, world_size=ranks, workers=r % 2) for r in range(ranks)]
        runs, items = [iter(loader) for loader in loaders], []
        for step in range(48 // ranks):
            if step * ranks == 24:
                assert len({loader.set_weights({"a": 0, "b": 1, "c": 9}) for loader in loaders}) == 1
            items += [shown(next(run)) for run in runs]
        for loader in loaders:
            loader.close()
        return items

    assert run(1) == run(2) == run(4)


def test_the_past_cannot_be_changed():
    with ps.Loader(indexed()) as loader:
        list(islice(loader, 10))
        with pytest.raises(ps.ConfigError, match="30 samples were drawn"):
            loader.set_weights({"a": 1, "b": 1, "c": 1}, at=29)
        with pytest.raises(ps.ConfigError, match="fits 0 of the mixtures"):
            ps.Loader(ps.mix({"m": mixture(), "n": numbers(3)})).set_weights({"x": 1})
        with pytest.raises(ps.ConfigError, match="no mixture"):
            ps.Loader(numbers(5)).set_weights({"a": 1})


@pytest.mark.parametrize("packed", [False, True])
def test_adopting_other_weights_and_a_new_source_leaves_every_source_where_it_was(packed):
    def make(weights: dict[str, float], *names: str) -> ps.Dataset:
        starts = {"a": 0, "b": 10_000, "d": 30_000}
        mixed = ps.mix({n: numbers(400, starts[n]).shuffle() for n in names}, weights, block_size=10)
        return mixed.map(lambda x: [x] * 3).pack(7).batch(2) if packed else mixed.batch(4, collate=list)

    def draws(loader: ps.Loader, steps: int) -> list[tuple[str, int, int]]:
        keys = []
        for _ in islice(loader, steps):
            for key in loader.keys():
                keys += [key] if keys[-1:] != [key] else []  # a document may go on in the next row
        return keys

    def joined(first: list[Any], second: list[Any]) -> list[Any]:
        return first + second[first[-1] == second[0] :]

    with ps.Loader(make({"a": 1, "b": 3}, "a", "b")) as loader:
        before, state = draws(loader, 20), loader.state_dict()
        whole = joined(before, draws(loader, 20))
    with ps.Loader(make({"a": 5, "b": 1, "d": 4}, "a", "b", "d")) as loader:
        with pytest.raises(ps.StateError, match=r"weights.a: saved 1, now 5"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, on_mismatch="adopt")
        after = draws(loader, 40)
        again = loader.state_dict()
        rest = [shown(x) for x in islice(loader, 10)]
    drawn = joined(before, after)
    for name in "ab":
        kept = [key for key in drawn if key[0] == name]
        assert kept == list(dict.fromkeys(kept)), "nothing is drawn twice"
        alone = [key for key in whole if key[0] == name]
        assert kept[: len(alone)] == alone[: len(kept)], "the source goes on in its own order"
    assert sum(key[0] == "d" for key in after) > len(after) * 0.3
    with ps.Loader(make({"a": 5, "b": 1, "d": 4}, "a", "b", "d")) as loader:
        loader.load_state_dict(json.loads(json.dumps(again)))
        assert [shown(x) for x in islice(loader, 10)] == rest


# ---------------------------------------------------------------- samples that fail


def skip_tens(x: int) -> int:
    if x % 10 == 3:
        raise ps.Skip
    return x


def skip_all(x: object) -> object:
    raise ps.Skip


def refuse(x: int) -> int:
    if x % 10 == 3:
        raise ValueError(f"cannot read {x}")
    return x


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_names_the_sample_and_stays_before_it(workers):
    with ps.Loader(numbers(20).map(refuse).batch(2, collate=list), workers=workers) as loader:
        run = iter(loader)
        assert next(run) == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="cannot read 3") as caught:
                next(run)
            assert "data[3] (pass 0)" in caught.value.__notes__[0]
        assert loader.state_dict()["at"] == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_map_that_may_skip_drops_samples_and_batches_are_filled_up(workers):
    ds = numbers(25).map(skip_tens, may_skip=True).batch(4, collate=list)
    with ps.Loader(ds, workers=workers) as loader:
        assert list(chain(*loader)) == [x for x in range(25) if x % 10 != 3]
        assert loader.journal == []


def test_skip_anywhere_else_is_refused_and_the_remedy_named():
    for ds in (numbers(9).map(skip_tens), numbers(9).filter(skip_tens), numbers(9).batch(2).map(skip_all)):
        for on_error in ("raise", "quarantine"):
            with ps.Loader(ds, on_error=on_error) as loader, pytest.raises(ps.ConfigError, match=r"may_skip=True"):
                list(loader)
    with pytest.raises(ps.ConfigError, match=r"may_skip=True"):
        numbers(9).map(skip_tens)[3]
    with pytest.raises(ps.errors.IndexedError, match=r"map\(may_skip=True\)"):
        len(numbers(9).map(skip_tens, may_skip=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_quarantine_takes_the_next_index_of_the_same_source_and_resumes_so(workers):
    make = lambda: mixture().map(refuse).batch(8, collate=list)  # noqa: E731
    clean = [[x + (x % 10 == 3) for x in batch] for batch in islice(mixture().batch(8, collate=list), 60)]
    with ps.Loader(make(), workers=workers, on_error="quarantine", max_errors=500) as loader:
        run = iter(loader)
        head = [next(run) for _ in range(25)]
        state = json.loads(json.dumps(loader.state_dict()))
        assert head + [next(run) for _ in range(35)] == clean
        assert all(e["used"] == e["index"] + 1 and e["source"] in "abc" for e in loader.journal)
        journal = loader.journal
    with ps.Loader(make(), on_error="quarantine", max_errors=500) as loader:
        loader.load_state_dict(state)
        assert list(islice(loader, 35)) == clean[25:]
        given = [e for e in journal if e in loader.journal]
        assert given


def test_too_many_errors_stop_the_run():
    with ps.Loader(numbers(100).map(refuse), on_error="quarantine", max_errors=4) as loader:
        with pytest.raises(ps.DataError, match=r"5 samples failed, more than max_errors=4"):
            list(loader)


# ---------------------------------------------------------------- states that do not fit


def state_of(make: Any) -> dict[str, Any]:
    with ps.Loader(make()) as loader:
        list(islice(loader, 5))
        return loader.state_dict()


@PIPELINES
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: None, "a mapping, not a NoneType"),
        (lambda s: {}, "not a state of Penstock"),
        (lambda s: {"next_index": 4}, "next_index"),
        (lambda s: {**s, "version": 0}, "version 0.*resume with the release that wrote it"),
        (lambda s: {**s, "order": 99}, "order 99"),
        (lambda s: {k: v for k, v in s.items() if k != "at"}, "damaged"),
        (lambda s: {**s, "epoch": 7}, "damaged"),
        (lambda s: {**s, "check": "0"}, "damaged"),
        (lambda s: [], "empty list"),
        (lambda s: _sealed({**s, "epoch": -1}), "-1.*position"),
        (lambda s: _sealed({**s, "at": "here"}), "here"),
    ],
)
def test_bad_states_are_refused_and_leave_the_loader_where_it_was(make, spoil, message):
    state = state_of(make)
    with ps.Loader(make()) as loader:
        list(islice(loader, 3))
        before = json.dumps(loader.state_dict())
        with pytest.raises(ps.StateError, match=message):
            loader.load_state_dict(spoil(state))
        assert json.dumps(loader.state_dict()) == before
        whole = [shown(x) for x in islice(make(), 6)]
        assert [shown(x) for x in islice(loader, 3)] == whole[3:]


def test_a_foreign_pipeline_is_refused_with_the_differences():
    state = state_of(indexed)
    other = mixture({"a": 1, "b": 1, "c": 1}).map(lambda x: x * 2).batch(5, collate=list)
    with ps.Loader(other) as loader, pytest.raises(ps.StateError) as caught:
        loader.load_state_dict(state)
    for line in ("batch: saved 3, now 5", "weights.a: saved 5, now 1", "on_mismatch='adopt'"):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers=-1"),
        ({"executor": "fibres"}, "'inline' or 'threads'"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"rank": 0}, "both or neither"),
        ({"rank": 3, "world_size": 3}, "0 to world_size - 1"),
        ({"lanes": 0}, "lanes=0"),
        ({"on_error": "ignore"}, "'raise' or 'quarantine'"),
        ({"max_errors": -1}, "max_errors=-1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ps.ConfigError, match=message):
        ps.Loader(numbers(5), **options)


def test_a_closed_loader_says_so_and_closing_twice_is_fine():
    loader = ps.Loader(numbers(5), workers=2)
    loader.close()
    loader.close()
    with pytest.raises(ps.ConfigError, match="closed"):
        next(iter(loader))


def test_stats_count_samples_by_source():
    with ps.Loader(mixture().batch(10, collate=list)) as loader:
        list(islice(loader, 30))
        assert loader.stats()["samples"] == {"a": 150, "b": 90, "c": 60}
        assert loader.stats()["items"] == 30
        assert len(loader.keys()) == 10


# ---------------------------------------------------------------- epochs of a chosen length


@pytest.mark.parametrize("dataset", [numbers(7).shuffle().repeat(), numbers(7).filter(lambda x: x != 3).repeat()])
def test_epochs_of_a_chosen_length_go_on_where_the_last_one_ended(dataset: ps.Dataset) -> None:
    want = list(islice(dataset, 15))
    loader = ps.Loader(dataset, epoch_length=5)
    assert [list(loader) for _ in range(3)] == [want[:5], want[5:10], want[10:]]
    for stop in range(16):
        first, again = ps.Loader(dataset, epoch_length=5), ps.Loader(dataset, workers=2, epoch_length=5)
        given = list(islice(chain.from_iterable(first for _ in range(9)), stop))
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        # What is left of the epoch, also if that is nothing, and then whole ones.
        left = 5 - stop % 5 if stop % 5 or not stop else 0
        assert given == want[:stop] and list(again) == want[stop : stop + left]
        again.close()
    with pytest.raises(ps.ConfigError, match="epoch_length=0"):
        ps.Loader(dataset, epoch_length=0)


def test_the_end_of_a_pass_ends_an_epoch_too() -> None:
    loader = ps.Loader(numbers(7), epoch_length=5)
    assert [list(loader) for _ in range(3)] == [[0, 1, 2, 3, 4], [5, 6], [0, 1, 2, 3, 4]]


def test_epochs_are_counted_by_rank() -> None:
    dataset = numbers(100).repeat()
    ranks = [ps.Loader(dataset, epoch_length=3, rank=rank, world_size=2) for rank in range(2)]
    assert [list(rank) for rank in ranks] == [[0, 2, 4], [1, 3, 5]]


def test_lanes_draw_from_a_mixture_in_orders_of_their_own() -> None:
    # Otherwise all ranks get batches of one source at a time.
    streams = {name: numbers(1000).map(lambda _, name=name: name).filter(bool).repeat() for name in "ab"}
    loader = ps.Loader(ps.mix(streams, {"a": 6, "b": 4}, block_size=10), lanes=4)
    steps = [list(islice(loader, 4)) for _ in range(50)]
    together = sum(len(set(step)) == 1 for step in steps)
    assert together < 20, "by chance it is about one in six"
    for lane in range(4):
        drawn = [step[lane] for step in steps]
        assert all(drawn[i : i + 10].count("a") == 6 for i in range(0, 50, 10))
    assert len({tuple(step[lane] for step in steps) for lane in range(4)}) == 4


@pytest.mark.parametrize(
    ("method", "options"), [("concat_split", {}), ("first_fit", {"open_rows": 4}), ("best_fit", {"window": 16})]
)
def test_weights_set_under_a_pack_that_was_planned(method: str, options: dict[str, int]) -> None:
    def tokens(seed: int, n: int) -> ps.Dataset:
        lengths = np.random.default_rng(seed).integers(1, 20, n)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return ps.from_tokens(np.arange(offsets[-1]), offsets).shuffle()

    flows = {"a": tokens(1, 900), "b": tokens(2, 900)}
    ds = ps.mix(flows, {"a": 1, "b": 1}, stop="all_exhausted", block_size=10).pack(64, method, **options).batch(2)
    assert len(ds) > 60

    def keys(loader: ps.Loader, steps: int) -> list[Any]:
        return [loader.keys() for _, _ in zip(range(steps), loader, strict=False)]

    with ps.Loader(ds) as plain, ps.Loader(ds) as loader:
        before = keys(plain, 30)
        assert keys(loader, 12) == before[:12]
        at = loader.set_weights({"a": 9, "b": 1})
        state = loader.state_dict()
        rest = keys(loader, 30)
    shares = [sum(source == "a" for step in rest[4:20] for source, _, _ in step), sum(map(len, rest[4:20]))]
    assert 0.8 * shares[1] < shares[0], (at, shares)
    with ps.Loader(ds, workers=2) as resumed:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert keys(resumed, 30) == rest
    with ps.Loader(ds) as replayed:
        replayed.set_weights({"a": 9, "b": 1}, at=at)
        assert keys(replayed, 42) == before[:12] + rest


# ---------------------------------------------------------------- how far ahead


class _Clock:
    """A scheduler whose time passes only where a function says so, and whose hands work at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def spawn(self, workers: int) -> _Clock:
        return self

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(task())
        return done

    def close(self) -> None: ...


def test_cheap_steps_do_not_pile_up_dear_samples() -> None:
    # Collating costs next to nothing, so more and more batches were made ahead: twenty thousand decoded images.
    clock, made = _Clock(), list[int]()

    def dear(x: int) -> list[int]:
        clock.time += 0.001
        made.append(x)
        return [x]

    with seams.pretend(sched=clock):
        batches = numbers(100_000).flat_map(dear).batch(32, collate=list)
        with ps.Loader(batches.filter(bool), workers=4) as loader:
            for given, _ in enumerate(islice(loader, 60), 1):
                assert len(made) - 32 * given <= 2 * 8 * 32


@pytest.mark.parametrize("workers", [0, 2])
def test_two_threads_over_one_loader_get_every_item_once(workers: int) -> None:
    ds = ps.from_sequence(range(3_000)).shuffle(seed=1).filter(lambda x: x % 7).shuffle_buffer(10)
    want = sorted(ds)
    with ps.Loader(ds, workers=workers) as loader, ThreadPoolExecutor(2) as pool:
        rows = iter(loader)
        got = [pool.submit(list[int], rows) for _ in range(2)]
        assert sorted([x for part in got for x in part.result()]) == want
        assert loader.stats()["epoch"] == 1


def test_a_loader_with_workers_is_refused_behind_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.Loader(ps.from_sequence(range(9)), workers=1) as loader:
        rows = iter(loader)
        next(rows)
        monkeypatch.setattr("penstock.loader.process", lambda: -1)
        with pytest.raises(ps.ConfigError, match="open one in each process"):
            next(rows)
