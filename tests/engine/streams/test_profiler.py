"""Times by step and by source; measuring them changes no sample."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import penstock as ps
from example_counts import examples
from penstock.engine.streams.profiler import Profiler, WorkTime
from penstock.testing import build, pipelines


def test_notes_are_summed_by_step_and_source() -> None:
    clock = Profiler()
    clock.record("map(f)", ["a", "b", "c"], np.asarray([0, 2, 0]), [1.0, 2.0, 3.0], 3.0)
    clock.record("map(f)", ["c"], np.asarray([0]), [7.0], 0.5)
    assert clock.totals() == [
        WorkTime("map(f)", "c", 2, 9.0, 1.5),
        WorkTime("map(f)", "a", 2, 4.0, 2.0),
    ]
    assert clock.totals() == clock.totals()


def test_a_clock_in_another_process_begins_anew() -> None:
    clock = Profiler()
    clock.record("map(f)", ["a"], np.asarray([0]), [1.0], 1.0)
    one, two = pickle.loads(pickle.dumps((clock, clock)))
    assert one is two and one.totals() == []
    one.record("map(f)", ["a"], np.asarray([0]), [1.0], 1.0)
    clock.add(one.take_records())
    assert clock.totals() == [WorkTime("map(f)", "a", 2, 2.0, 2.0)] and one.totals() == []


def test_threads_lose_no_note() -> None:
    clock, taken = Profiler(), list[WorkTime]()

    def work() -> None:
        for _ in range(2_000):
            clock.record("map(f)", ["a"], np.asarray([0]), [1.0], 0.0)
            taken.extend(clock.take_records())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.add(taken)
    assert [note.items for note in clock.totals()] == [8_000]


def plus(x: Any) -> Any:
    return x + 1


def several(x: int) -> list[int]:
    return [x] * (x % 3)


def odd(x: int) -> bool:
    return x % 2 == 1


def drawn(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


def placed(i: int, x: Any) -> Any:
    return x


def all_of(xs: list[int]) -> list[int]:
    return [x + 1 for x in xs]


numbers = ps.from_sequence(range(60), name="web")
STEPS = {
    "map(plus)": (lambda: numbers.map(plus), 60),
    "map(all_of)": (lambda: numbers.map(all_of, batched=7), 60),
    "random_map(drawn)": (lambda: numbers.random_map(drawn), 60),
    "map_with_index(placed)": (lambda: numbers.map_with_index(placed), 60),
    "filter(odd)": (lambda: numbers.filter(odd), 60),
    "flat_map(several)": (lambda: numbers.flat_map(several), 60),
    "map(plus, may_skip=True)": (lambda: numbers.map(plus, may_skip=True), 60),
    "batch(4)": (lambda: numbers.batch(4), 15),
    "pack(16)": (lambda: numbers.map(lambda x: np.arange(x % 5 + 1)).pack(16), None),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_timed_as_it_is_written(name: str, workers: int) -> None:
    make, count = STEPS[name]
    with ps.Loader(make(), workers=workers, profile=True) as loader:
        list(loader)
        time = {
            (row["step"].partition(" at ")[0], row["source"]): row for row in loader.stats()["time"]
        }
    assert time["read", "web"]["items"] == 60 and time["read", "web"]["seconds"] > 0
    found = time[name, "web"]
    assert (
        found["seconds"] > 0
        and found["processor"] >= 0
        and found["items"] == (count or found["items"])
    )


def test_a_function_of_the_user_is_told_with_its_place() -> None:
    line = plus.__code__.co_firstlineno
    with ps.Loader(numbers.map(plus).batch(4), profile=True) as loader:
        list(loader)
        assert {row["step"] for row in loader.stats()["time"]} == {
            "read", f"map(plus) at test_profiler.py:{line}", "batch(4)",
        }  # fmt: skip


@pytest.mark.parametrize("shards", [False, True])
def test_time_is_told_by_source(shards: bool) -> None:
    def source(n: int, name: str) -> ps.Dataset:
        return (
            ps.from_iterable(lambda: range(n), name=name)
            if shards
            else ps.from_sequence(range(n), name=name)
        )

    parts = {name: source(20 * n, name) for n, name in enumerate("abc", 1)}
    ds = ps.mix(parts, {"a": 1, "b": 2, "c": 3}, stop="all_exhausted").map(plus)
    with ps.Loader(ds.batch(7), profile=True) as loader:
        list(loader)
        items = {
            (row["step"].partition(" at ")[0], row["source"]): row["items"]
            for row in loader.stats()["time"]
        }
    assert {name: items["map(plus)", name] for name in "abc"} == {"a": 20, "b": 40, "c": 60}
    assert {name: items["read", name] for name in "abc"} == {"a": 20, "b": 40, "c": 60}
    assert items["batch(7)", ""] >= 1  # of several


def test_a_mixture_of_plain_and_mapped_sources_reads_each_sample_once() -> None:
    ds = ps.mix({"code": numbers, "web": numbers.map(plus)}, stop="all_exhausted").batch(4)
    with ps.Loader(ds, profile=True) as loader:
        list(loader)
        reads = {
            row["source"]: row["items"] for row in loader.stats()["time"] if row["step"] == "read"
        }
    assert reads == {"code": 60, "web": 60}


def test_nothing_is_timed_where_nobody_asks() -> None:
    with ps.Loader(numbers.map(plus).batch(4)) as loader:
        list(loader)
        assert loader.stats()["time"] == []


@examples(30)
@given(pipelines(endless=False))
def test_measuring_changes_no_item_and_no_state(recipe: Any) -> None:
    def run(**options: Any) -> list[Any]:
        with ps.Loader(build(recipe), **options) as loader:
            return [
                (repr(item), loader.keys(), loader.state_dict())
                for item, _ in zip(loader, range(40), strict=False)
            ]

    want = run()
    assert run(profile=True) == want
    assert run(profile=True, workers=2) == want


def spoiled(x: int) -> int:
    if x % 7 == 3:
        raise ValueError(f"no {x}")
    return x


def test_bad_samples_are_named_and_replaced_alike() -> None:
    def run(**options: Any) -> Any:
        with ps.Loader(numbers.map(spoiled).batch(5), on_error="quarantine", **options) as loader:
            return [item.tolist() for item in loader], loader.journal

    assert run(profile=True) == run() == run(profile=True, workers=2)
    with (
        pytest.raises(ValueError, match="no 3") as found,
        ps.Loader(numbers.map(spoiled), profile=True) as loader,
    ):
        list(loader)
    assert any("web[3]" in note for note in found.value.__notes__)


def test_a_change_of_weights_and_a_new_pass_go_on_counting() -> None:
    ds = ps.mix({"a": numbers.map(plus), "b": numbers}, stop="all_exhausted").batch(5)
    with ps.Loader(ds, profile=True) as loader:
        for _ in range(2):
            steps = iter(loader)
            next(steps)
            loader.set_weights({"a": 1, "b": 3})
            list(steps)
        time = {
            (row["step"].partition(" at ")[0], row["source"]): row["items"]
            for row in loader.stats()["time"]
        }
    assert time["map(plus)", "a"] >= 120 and time["read", "b"] >= 120


def test_notes_do_not_pile_up() -> None:
    ds = ps.from_iterable(lambda: range(20_000), name="web")
    with ps.Loader(ds, profile=True, lanes=1) as loader:
        list(loader)
        clock: Any = loader._session.compiled.profiler  # pyright: ignore[reportPrivateUsage]
        assert not clock.take_records() and [note.items for note in clock.totals()] == [20_000]
