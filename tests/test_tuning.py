"""Options that are found by trying. What is planted takes a core no time, so a busy machine finds the same."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from typing import Any

import numpy as np
import psutil
import pytest

import penstock as ps
from helpers import through_json
from penstock.tuning import TuningTrial

MS = 10


def light(x: int) -> int:
    return x + 1


def sleeps(x: int) -> int:
    time.sleep(MS / 1000)
    return x


def waits(x: int) -> int:
    """For so long that a machine with other work to do can have hundreds of them a second."""
    time.sleep(10 * MS / 1000)
    return x


def holds(x: int) -> int:
    """Keeps the interpreter to itself, as pure Python does, but without a core; for so long that the turns which other
    programs take between two of them hardly count.
    """
    ctypes.PyDLL(None).usleep(5000 * MS)
    return x


def numbers(fn: Any, n: int = 100_000) -> ps.Dataset:
    return ps.from_sequence(range(n), name="numbers").shuffle(seed=1).map(fn)


def chosen(options: dict[str, Any], **more: Any) -> Any:
    """The choice that has these options; a machine with other work to do measures wrongly, but not every time."""
    for _ in range(5):
        choice = ps.autotune(**more)
        if choice.options == options:
            return choice
    pytest.fail(f"never {options}: {choice}")


def alive() -> tuple[int, int, int]:
    gc.collect()  # what was shared with workers is let go of with the last item that lies in it
    me = psutil.Process()
    return len(me.children(recursive=True)), threading.active_count(), me.num_fds()


def test_next_to_nothing_is_computed_inline() -> None:
    choice = chosen(
        {"executor": "inline", "workers": 0}, dataset=numbers(light).batch(2), seconds=1
    )
    assert len(choice.trials) == 1 and "which is negligible" in str(choice)


@pytest.mark.slow  # measures for seconds
def test_waiting_is_done_by_many_threads() -> None:
    before = alive()
    choice = ps.autotune(numbers(waits), seconds=10, max_workers=8)
    assert choice.options["executor"] == "threads" and choice.options["workers"] == 8
    assert {trial.executor for trial in choice.trials} == {"inline", "threads"}
    assert [trial.workers for trial in choice.trials][:4] == [0, 2, 4, 8]
    rates = [trial.rate for trial in choice.trials]
    assert rates[3] > 3 * rates[0] and f"{rates[3]:,.1f} items/s" in str(choice)
    assert alive() == before


@pytest.mark.slow  # measures for seconds
def test_functions_that_hold_the_interpreter_get_processes() -> None:
    before = alive()
    choice = chosen(
        {"executor": "processes", "workers": 2}, dataset=numbers(holds), seconds=4, max_workers=2
    )
    assert "times as fast as threads" in choice.why
    assert max(trial.memory for trial in choice.trials) > 40 << 20
    assert alive() == before


@pytest.mark.slow  # measures for seconds
def test_what_takes_more_memory_than_there_is_for_it_is_not_chosen() -> None:
    options = {"executor": "threads", "workers": 1, "prefetch_bytes": 10 << 20}
    choice = chosen(options, dataset=numbers(holds), seconds=4, max_workers=2, ram_budget=20 << 20)
    assert any(trial.executor == "processes" and trial.memory > 20 << 20 for trial in choice.trials)
    large = ps.from_sequence(range(10_000)).map(
        lambda x: (time.sleep(0.001), np.ones(1 << 23))[1]
    )  # larger than what is kept for later
    gc.collect()  # what other tests left is not given back in the middle of the measurement
    choice = ps.autotune(large, seconds=0.5, max_workers=2, ram_budget=1)
    assert "exceeds the memory budget" in choice.why and choice.options["workers"] == 1


def test_functions_that_cannot_be_sent_stay_on_threads() -> None:
    key = threading.Lock()

    def locked(x: int) -> int:
        with key:
            time.sleep(MS / 1000)
        return x

    choice = ps.autotune(numbers(locked), seconds=1, max_workers=2)
    assert choice.options == {"executor": "threads", "workers": 1}
    assert {trial.executor for trial in choice.trials} == {"inline", "threads"}


@pytest.mark.slow
def test_a_choice_changes_nothing_but_the_speed() -> None:
    ds = numbers(sleeps, 40).filter(lambda x: x % 3).batch(4)
    want = [(item.tolist(), state) for item, state in run(ps.Loader(ds))]
    choice = ps.autotune(ds.repeat(), seconds=0.5, max_workers=4)
    options = through_json(choice.options)
    assert options == choice.options and set(options) <= {
        "executor",
        "workers",
        "prefetch",
        "prefetch_bytes",
    }
    assert [(item.tolist(), state) for item, state in run(ps.Loader(ds, **options))] == want


def run(loader: ps.Loader) -> list[tuple[Any, Any]]:
    with loader:
        return [(item, loader.state_dict()) for item in loader]


seen = list[int]()


def noted(x: int) -> int:
    seen.append(x)
    time.sleep(0.001)
    return x


def test_trials_begin_where_a_run_stands() -> None:
    ds = ps.from_sequence(range(100_000)).map(noted)
    loader = ps.Loader(ds)
    loader.seek(70_000)
    seen.clear()
    ps.autotune(ds, seconds=3, max_workers=2, state=loader.state_dict())
    assert seen[0] == 70_000 and max(seen) < 90_000
    assert len(set(seen)) > 0.8 * len(seen)  # each trial goes on where the one before ended
    assert next(iter(loader)) == 70_000


def test_a_loader_with_options_of_its_own() -> None:
    made = list[dict[str, Any]]()

    def make(**options: Any) -> ps.Loader:
        made.append(options)
        return ps.Loader(
            numbers(sleeps).filter(bool).repeat(), rank=1, world_size=2, lanes=8, **options
        )

    choice = ps.autotune(make, seconds=1, max_workers=2)
    assert choice.options["executor"] == "threads" and choice.options["workers"] == 2
    assert [(options["executor"], options["workers"]) for options in made][:2] == [
        ("inline", 0),
        ("threads", 2),
    ]


@pytest.mark.slow
def test_small_data_is_gone_through_again_and_none_is_refused() -> None:
    assert ps.autotune(numbers(sleeps, 3), seconds=0.5, max_workers=2).options["workers"] in (1, 2)
    with pytest.raises(ps.ConfigError, match="no items to measure"):
        ps.autotune(numbers(sleeps, 0), seconds=0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": 0}, "seconds=0"),
        ({"max_workers": 0}, "max_workers=0"),
        ({"ram_budget": 0}, "ram_budget=0"),
    ],
)
def test_figures_that_cannot_be_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ps.ConfigError, match=said):
        ps.autotune(numbers(light), **options)


def test_a_loader_is_no_dataset_to_measure() -> None:
    with pytest.raises(ps.ConfigError, match="Loader is not a dataset; give the dataset"):
        ps.autotune(ps.Loader(numbers(light)))  # pyright: ignore[reportArgumentType]


def wrong(x: int) -> int:
    raise ValueError("no")


def test_errors_of_the_data_are_raised_and_leave_nothing() -> None:
    before = alive()
    with pytest.raises(ValueError, match="no"):
        ps.autotune(numbers(wrong), seconds=0.5)
    assert alive() == before


def test_a_trial_in_words() -> None:
    assert str(TuningTrial("processes", 2, 16, 1234.5, 86_000_000)).split() == [
        "processes,", "2", "workers,", "prefetch=16", "1,234.5", "items/s", "86", "MB",
    ]  # fmt: skip
