"""Ctrl-C at any moment, caught by the caller who goes on (a notebook): nothing is lost, doubled, left behind or stuck."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

import penstock as ps
from example_counts import rounds
from leak_check import our_threads
from penstock.compat.grain.prefetch import PrefetchIterator
from penstock.engine.streams.stream import BufferedStream
from penstock.sources.lru import LRUCache
from signals import Handler, alarms, children, handled, interrupted

EXECUTORS = [("inline", 0), ("threads", 2), ("processes", 2)]
PIPELINES: dict[str, Callable[[], ps.Dataset]] = {
    "map": lambda: ps.from_sequence(range(9)).shuffle(seed=1).map(str),
    "mixture": lambda: ps.mix(
        {"a": ps.from_sequence(range(4)), "b": ps.from_sequence(range(50, 53))},
        stop="all_exhausted",
    ).map(str),
    "filter": lambda: ps.from_sequence(range(18)).filter(odd).map(str).batch(3, collate=list),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "pass": {},
    "epoch": {"epoch_length": 4},
    "pad": {"remainder": "pad"},
}
STRIDE = rounds(151, 1)  # of the moments at which is interrupted


def odd(x: int) -> bool:
    return bool(x % 2)


class Moments:
    """Interrupts calls at one moment after the other, until they return; every `stride`-th one."""

    def __init__(self, stride: int = STRIDE) -> None:
        self.stride, self.k, self.thrown = stride, 1, 0

    def __call__(self, call: Callable[[], Any]) -> Any:
        try:
            found = interrupted(self.k, call)
        except KeyboardInterrupt:
            self.k += self.stride
            self.thrown += 1
            raise
        self.k = 1 + (self.k + self.thrown) % self.stride
        return found


def lives(
    loader: ps.Loader, passes: int, by: Callable[[Callable[[], Any]], Any]
) -> list[tuple[Any, Any]]:
    """Items and the states behind them, going on after every interrupt; a state is not changed by one."""
    found = list[tuple[Any, Any]]()
    for _ in range(passes):
        it, state = iter(loader), loader.state_dict()
        while True:
            try:
                item = by(it.__next__)
            except KeyboardInterrupt:
                if loader.state_dict()["epoch"] == state["epoch"]:  # else the pass has ended
                    assert loader.state_dict() == state
                continue
            except StopIteration:
                break
            found.append((item, state := loader.state_dict()))
        found.append(("end", loader.state_dict()))
    return found


def at_once(call: Callable[[], Any]) -> Any:
    return call()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize(("executor", "workers"), EXECUTORS[:2])
def test_an_interrupt_at_any_moment_of_next_leaves_the_loader_where_it_was(
    executor: Any, workers: int, make: Callable[[], ps.Dataset], options: dict[str, Any]
) -> None:
    if options.get("remainder") and make is PIPELINES["filter"]:
        pytest.skip("only an indexed dataset is padded")
    given: dict[str, Any] = {"lanes": 1} if make is PIPELINES["filter"] else {}
    with ps.Loader(make(), **options, **given) as loader:
        want = lives(loader, 2, at_once)
    moments = Moments()
    with ps.Loader(make(), executor=executor, workers=workers, **options, **given) as loader:
        assert lives(loader, 2, moments) == want
    assert moments.thrown
    assert not our_threads()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_a_signal_handler_that_saves_the_state_gets_the_one_before_or_behind_the_item(
    make: Callable[[], ps.Dataset], options: dict[str, Any]
) -> None:
    if options.get("remainder") and make is PIPELINES["filter"]:
        pytest.skip("only an indexed dataset is padded")
    given: dict[str, Any] = {"lanes": 1} if make is PIPELINES["filter"] else {}
    with ps.Loader(make(), **options, **given) as loader:
        want = lives(loader, 2, at_once)
    for k in range(1, 16_000, rounds(397, 5)):
        states = list[Any]()
        with ps.Loader(make(), **options, **given) as loader:
            handler = Handler(
                k, lambda loader=loader, states=states: states.append(loader.state_dict())
            )
            start = loader.state_dict()
            assert lives(loader, 2, partial(handled, handler)) == want
        if not states:
            break
        assert states[0] in (start, *(state for _, state in want))
    else:
        pytest.fail("the handler ran in every run: there are more places than were tried")


def attempt(call: Callable[[], Any], given: list[Any], errors: list[Exception]) -> None:
    try:
        given.append(call())
    except ps.ConfigError as error:
        errors.append(error)


@pytest.mark.parametrize("call", ["seek", "load", "set_weights", "next", "next of an iterator"])
def test_a_signal_handler_that_moves_the_run_is_refused_while_an_item_is_made(call: str) -> None:
    ds = ps.mix(
        {"a": ps.from_sequence(range(40)), "b": ps.from_sequence(range(50, 90))},
        stop="all_exhausted",
    )
    with ps.Loader(ds.map(str)) as loader:
        want = list(loader)
        next(iter(loader))
        state = loader.state_dict()
    refused = 0
    for k in range(1, 2000, rounds(97, 3)):
        with ps.Loader(ds.map(str), workers=k % 3) as loader:
            it = ps.DatasetIterator(ds.map(str)) if "of an" in call else iter(loader)
            calls: dict[str, Callable[[], Any]] = {
                "next": it.__next__,
                "next of an iterator": it.__next__,
                "seek": lambda loader=loader: loader.seek(5),
                "load": lambda loader=loader: loader.load_state_dict(state),
                "set_weights": lambda loader=loader: loader.set_weights({"a": 2, "b": 1}),
            }
            errors, given = list[Exception](), list[Any]()
            handler = Handler(k, partial(attempt, calls[call], given, errors))
            found = [handled(handler, it.__next__) for _ in range(4)]
        if not handler.raised:
            break
        if errors:
            assert "during next() of the same run" in str(errors[0])
            assert found == want[:4]
            refused += 1
        elif "next" in call:
            assert sorted(found + given) == sorted(want[:5])
        elif call in ("seek", "load"):
            start = 5 if call == "seek" else 1
            assert any(found[n:] == want[start : start + 4 - n] for n in range(5))
    assert refused


def test_a_stream_whose_seek_is_interrupted_is_read_from_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = ps.from_iterable(lambda: range(20), identity="1").filter(odd)
    with ps.Loader(ds, lanes=2) as loader:
        want = list(loader)
    seek, missing = BufferedStream.seek, 0

    def interrupted_once(tap: BufferedStream, epoch: int, cursor: Any) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            raise KeyboardInterrupt
        seek(tap, epoch, cursor)

    monkeypatch.setattr(BufferedStream, "seek", interrupted_once)
    for number in range(1, 9):
        missing, found, passes = 0, list[int](), 0
        with ps.Loader(ds, lanes=2) as loader:
            missing = number
            while passes < 2:
                with suppress(KeyboardInterrupt):
                    for item in loader:
                        found.append(item)
                    passes += 1
        assert found == want * 2


@pytest.mark.parametrize(("executor", "workers"), EXECUTORS)
def test_real_signals_lose_nothing_and_the_next_item_is_there_at_once(
    executor: Any, workers: int
) -> None:
    want = list(ps.from_sequence(range(rounds(300, 4000))).shuffle(seed=1))
    ds = ps.from_sequence(range(len(want))).shuffle(seed=1).map(slowly)
    found, thrown, longest, late = list[int](), 0, 0.0, time.monotonic()
    with ps.Loader(ds, executor=executor, workers=workers) as loader, alarms(3, 0.004) as alarmed:
        it = iter(loader)
        before = children()
        while True:
            try:
                found.append(alarmed(it.__next__) if thrown < rounds(40, 400) else next(it))
            except KeyboardInterrupt:
                thrown += 1
                # What came behind a return is lost with it, and the cursor says so.
                missed = loader.state_dict()["at"] - len(found)
                assert missed in (0, 1)
                found += want[len(found) :][:missed]
                late = time.monotonic()
                continue
            except StopIteration:
                break
            longest = max(longest, time.monotonic() - late)
            late = time.monotonic()
        assert sorted(children()) == sorted(before) or executor == "processes"
        assert len(children()) <= len(before) + workers
    assert found == want and thrown
    assert longest < 10
    assert not our_threads() and len(children()) <= len(before)


def slowly(x: int) -> int:
    time.sleep(0.0002)
    return x


@pytest.mark.parametrize(("executor", "workers"), EXECUTORS[:2])
def test_closing_that_is_interrupted_is_closed_by_another_call(executor: Any, workers: int) -> None:
    k = 1
    while True:
        loader = ps.Loader(ps.from_sequence(range(9)).map(str), executor=executor, workers=workers)
        next(iter(loader))
        try:
            interrupted(k, loader.close)
            break
        except KeyboardInterrupt:
            loader.close()
            assert not our_threads()
        k += rounds(5, 1)
    assert not our_threads()


# A pair of sockets that is interrupted before it has a name is closed by the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(("executor", "workers"), EXECUTORS)
def test_a_loader_whose_making_is_interrupted_leaves_nothing(executor: Any, workers: int) -> None:
    ds, before = ps.from_sequence(range(9)).map(str), children()
    for k in range(1, 4000, rounds(400, 13)):
        try:
            interrupted(k, lambda: ps.Loader(ds, executor=executor, workers=workers)).close()
        except KeyboardInterrupt:
            pass
    gc.collect()
    until = time.monotonic() + 10
    while (our_threads() or children() != before) and time.monotonic() < until:
        time.sleep(0.01)
    assert not our_threads() and children() == before


def test_iter_state_and_seek_may_be_interrupted_too() -> None:
    ds = ps.from_sequence(range(40)).shuffle(seed=1).map(str)
    want = list(ds)
    with ps.Loader(ds, workers=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
        calls = (
            lambda: loader.seek(30),
            lambda: loader.load_state_dict(later),
            loader.state_dict,
            lambda: iter(loader),
        )
        with ps.Loader(ds) as other:
            other.seek(20)
            later = other.state_dict()
        for call in calls:
            for k in range(1, 1000, rounds(60, 7)):
                try:
                    interrupted(k, call)
                except KeyboardInterrupt:
                    if call not in calls[:2]:
                        assert loader.state_dict() == state
                place = loader.state_dict()["at"]
                assert place in (1, 20, 30)
                assert next(iter(loader)) == want[place]
                loader.load_state_dict(state)


def test_an_iterator_and_what_is_made_ahead_survive_it() -> None:
    ds = ps.from_sequence(range(12)).shuffle(seed=1).map(str)
    want = list(ds)

    def taken(it: Iterator[str]) -> list[str]:
        found, moments = list[str](), Moments()
        while True:
            try:
                found.append(moments(it.__next__))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                assert moments.thrown
                return found

    with closing(ps.DatasetIterator(ds, workers=2)) as it:
        assert taken(it) == want
    with closing(PrefetchIterator(iter(ds), 4)) as ahead:
        assert taken(ahead) == want
        assert ahead.state_dict() == it.state_dict()


def test_what_is_under_way_is_counted_once_more_after_an_interrupt() -> None:
    moments, ds = Moments(), ps.from_sequence(range(12)).map(str)
    with ps.Loader(ds, workers=2) as loader:
        lives(loader, 1, moments)
        assert loader.stats()["under_way"] == loader.stats()["under_way_bytes"] == 0
    assert moments.thrown


def test_a_cache_is_not_stuck_where_its_maker_was_interrupted() -> None:
    def get(held: LRUCache) -> str:
        return held.get("key", lambda: (1, "made"))

    for k in range(1, 100):
        held = LRUCache(limit=10)
        try:
            interrupted(k, partial(get, held))
        except KeyboardInterrupt:
            assert get(held) == "made"
