"""Copies ahead: hidden in the steps, and no part of any state."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples

STEP = 0.02


class Copied:
    """An item on the stand-in device."""

    def __init__(self, item: Any) -> None:
        self.item = item


class StandIn:
    """A device whose copies take a set time each, one after the other on a thread of its own."""

    copies, implied_rank = True, None

    def __init__(
        self, takes: float = 0.0, fails: Callable[[Any], bool] = lambda item: False
    ) -> None:
        self.takes, self.fails, self.begun = takes, fails, list[Any]()
        self.engine = ThreadPoolExecutor(1)

    def values(self, items: list[Any]) -> list[Any]:
        return items

    def _moved(self, item: Any) -> Copied:
        time.sleep(self.takes)
        return Copied(item)

    def copy(self, item: Any) -> Callable[[], Any]:
        self.begun.append(item)
        if self.fails(item):
            raise MemoryError("the device is full")
        return self.engine.submit(self._moved, item).result


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StandIn]]:
    """Makes a stand-in, to which every loader copies from then on."""
    made = list[StandIn]()

    def use(*args: Any) -> StandIn:
        made.append(StandIn(*args))
        monkeypatch.setattr("penstock.loader._load_form", lambda *_: made[-1])
        return made[-1]

    yield use
    for each in made:
        each.engine.shutdown()


def numbers() -> ps.Dataset:
    return ps.from_sequence(range(60), name="n").shuffle(seed=1)


FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "batches": lambda: numbers().batch(4, collate=list),
    "samples": numbers,
    "filtered": lambda: numbers().filter(lambda x: x % 3).batch(4, collate=list),
    "mixed": lambda: ps.mix({"a": numbers(), "b": numbers()}, {"a": 2, "b": 1}, seed=3).batch(
        4, collate=list
    ),
}


def facts(loader: ps.Loader) -> Any:
    stats = loader.stats()
    given = {name: stats[name] for name in ("epoch", "items", "samples", "errors")}
    return loader.state_dict(), loader.keys(), loader.valid.tolist(), given


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FLOWS)
def test_all_that_is_told_is_of_the_last_item_given(name: str, workers: int, device: Any) -> None:
    plain = ps.Loader(FLOWS[name]().pipe(lambda ds: ds if name != "mixed" else ds.limit(20)))
    device()
    with ps.Loader(
        FLOWS[name]().pipe(lambda ds: ds if name != "mixed" else ds.limit(20)), workers=workers
    ) as loader:
        for _ in range(2):
            for copied, item in zip(loader, plain, strict=True):
                assert copied.item == item
                assert facts(loader) == facts(plain)


@pytest.mark.parametrize("name", FLOWS)
def test_a_state_goes_on_with_the_next_item_at_every_place(name: str, device: Any) -> None:
    make = FLOWS[name]
    want = [item for item, _ in zip(ps.Loader(make()), range(30), strict=False)]
    device()
    with ps.Loader(make()) as running:
        items = iter(running)
        for at in range(8):
            with ps.Loader(make()) as again:
                again.load_state_dict(running.state_dict())
                rest = iter(again)
                assert [next(rest).item for _ in range(2)] == want[at : at + 2]
            assert next(items).item == want[at]


def test_weights_hold_from_the_item_that_was_given_last(device: Any) -> None:
    plain = ps.Loader(FLOWS["mixed"]())
    device()
    with ps.Loader(FLOWS["mixed"]()) as loader:
        items, others = iter(loader), iter(plain)
        for step in range(30):
            if step in (7, 8, 15):
                weights = {"a": 1, "b": step}
                assert loader.set_weights(weights) == plain.set_weights(weights)
            if step == 20:
                loader.seek(3)
                plain.seek(3)
            assert next(items).item == next(others)
            assert facts(loader) == facts(plain)


@examples(30)
@given(
    st.lists(st.sampled_from(["next", "state", "seek", "weights", "stop"]), max_size=25),
    st.integers(0, 2),
)
def test_whatever_is_done_to_it_it_gives_what_one_without_copies_gives(
    deeds: list[str], workers: int
) -> None:
    form = StandIn()
    plain = ps.Loader(FLOWS["mixed"]())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.loader._load_form", lambda *_: form)
        loader = ps.Loader(FLOWS["mixed"](), workers=workers)
    with loader:
        items, others = iter(loader), iter(plain)
        for n, deed in enumerate(deeds):
            match deed:
                case "next":
                    assert next(items).item == next(others)
                case "state":
                    loader.load_state_dict(loader.state_dict())
                    plain.load_state_dict(plain.state_dict())
                case "seek":
                    loader.seek(n)
                    plain.seek(n)
                case "weights":
                    assert loader.set_weights({"a": n + 1, "b": 1}) == plain.set_weights(
                        {"a": n + 1, "b": 1}
                    )
                case _:
                    items, others = iter(loader), iter(plain)
            assert facts(loader) == facts(plain)
    form.engine.shutdown()


def test_an_error_comes_at_its_place_and_the_same_item_again_after_it(device: Any) -> None:
    bad = {7}

    def fragile(x: int) -> int:
        if x in bad:
            raise ValueError("bad")
        return x

    stand_in = device()
    with ps.Loader(ps.from_sequence(range(12)).map(fragile)) as loader:
        items = iter(loader)
        assert [next(items).item for _ in range(7)] == list(range(7))
        for _ in range(3):
            with pytest.raises(ValueError, match="bad"):
                next(items)
        bad.clear()
        stand_in.fails = lambda item: item == 9
        assert [next(items).item for _ in range(2)] == [7, 8]
        for _ in range(2):
            with pytest.raises(MemoryError, match="the device is full"):
                next(items)
        stand_in.fails = lambda item: False
        assert [copied.item for copied in items] == [9, 10, 11]


def test_no_more_than_two_items_are_copied_ahead(device: Any) -> None:
    stand_in = device()
    with ps.Loader(numbers()) as loader:
        for given_now, _ in enumerate(loader, 1):
            assert len(stand_in.begun) <= given_now + 2
    assert len(stand_in.begun) == 60


def test_an_empty_pass_and_a_loader_that_is_closed(device: Any) -> None:
    device()
    assert list(ps.Loader(ps.from_sequence([]))) == []
    before = threading.active_count()
    loader = ps.Loader(numbers())
    items = iter(loader)
    next(items)
    loader.close()
    loader.close()
    assert threading.active_count() <= before + 1, "the stand-in's own thread is left"
    with pytest.raises(ps.ConfigError, match="closed"):
        next(items)


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns, where another test has loaded it
def test_a_forked_child_does_not_wait_for_a_thread_that_is_not_there(device: Any) -> None:
    device()
    with ps.Loader(numbers()) as loader:
        items = iter(loader)
        next(items)
        if (pid := os.fork()) == 0:
            code = 1
            try:
                next(items)
            except ps.ConfigError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0


def steps_with(form: StandIn, steps: int) -> float:
    """The middle time of a step of work and of fetching what the next one works on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.loader._load_form", lambda *_: form)
        loader = ps.Loader(ps.from_sequence(range(64)).batch(4, collate=list).repeat())
    times = list[float]()
    with loader:
        items = iter(loader)
        next(items)
        began = time.perf_counter()
        for _ in range(steps):
            time.sleep(STEP)  # the step; not for something to happen
            next(items)
            now = time.perf_counter()
            times.append(now - began)
            began = now
    form.engine.shutdown()
    return median(times)


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_copies_take_no_time_of_the_steps(share: float) -> None:
    ratio = 9.0
    for _ in range(5):  # of a machine that does other things too, one quiet second is enough
        there = steps_with(StandIn(), 25)
        ratio = min(ratio, steps_with(StandIn(share * STEP), 25) / there)
        if ratio <= 1.03:
            return
    assert ratio <= 1.03, f"a step takes {ratio:.3f} of a step on data that is there"


def test_waiting_for_a_copy_is_waiting(device: Any) -> None:
    device(0.05)
    with ps.Loader(numbers()) as loader:
        for _ in zip(range(6), loader, strict=False):
            pass
        stats = loader.stats()
    assert stats["waited_s"] - stats["first_s"] > 0.1, (
        stats
    )  # five copies, with nothing done meanwhile


def test_what_is_taken_is_not_copied_and_says_so(device: Any) -> None:
    device()
    with ps.Loader(numbers()) as loader, pytest.raises(ps.ConfigError, match="leave out device="):
        loader.lease(1)
