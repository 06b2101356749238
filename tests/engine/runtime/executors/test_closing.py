"""Closing waits for nobody: a function on a thread goes on alone, is named, and its thread is gone when it returns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

import penstock as ps
from leak_check import our_threads
from penstock.compat.grain.prefetch import PrefetchIterator

LONG = 60.0  # seconds after which a function gives up that nobody lets go on


class Gate:
    """A function that waits from the second sample on, and knows whether it was let go on."""

    def __init__(self) -> None:
        self.begun, self.open, self.gave_up = threading.Event(), threading.Event(), False

    def __call__(self, x: int) -> int:
        if x:
            self.begun.set()
            self.gave_up |= not self.open.wait(LONG)
        return x


def let_go(gate: Gate) -> None:
    """The functions return, and their threads are gone."""
    assert not gate.gave_up, "closing waited for the function"
    gate.open.set()
    for thread in our_threads():
        thread.join(LONG)
    assert not our_threads()


def test_a_function_on_a_thread_is_named_and_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where positions took long to find, nothing is begun behind a sample that is ready: by this clock they never do.
    monkeypatch.setattr("penstock.engine.base.seams.LocalSched.now", lambda _: 0.0)
    gate, calls = Gate(), list[int]()

    def counted(x: int) -> int:
        calls.append(x)
        return gate(x)

    loader = ps.Loader(ps.from_sequence(range(50), name="web").map(counted), workers=2)
    assert next(iter(loader)) == 0
    assert gate.begun.wait(LONG)
    before = loader.state_dict()
    loader.close()
    assert our_threads(), "the function is still at work"
    assert loader.state_dict() == before
    said = [record.getMessage() for record in caplog.records]
    assert said and all(
        "closed while a thread is at" in line and "(pass 0)" in line for line in said
    )
    assert any("web[1]" in line for line in said)
    some = len(calls)
    let_go(gate)
    assert len(calls) == some, "its thread takes no more work"


def test_workers_that_are_closed_at_rest_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    loader = ps.Loader(ps.from_sequence(range(50)).map(str), workers=2)
    assert list(islice(loader, 7)) == [*map(str, range(7))]
    loader.close()
    assert not caplog.records and not our_threads()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C is not ignored, as it is in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_an_interrupt_while_functions_hang_leaves_the_state_right(executor: Any) -> None:
    gate = Gate()
    ds = ps.from_sequence(range(50)).map(gate if executor == "threads" else hang)
    main = threading.main_thread().ident
    assert main is not None
    loader = ps.Loader(ds, workers=2, executor=executor)
    with pytest.raises(KeyboardInterrupt), loader:
        for item in loader:
            assert item == 0
            before = loader.state_dict()
            threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    assert loader.state_dict() == before
    let_go(gate)
    again = ps.Loader(ps.from_sequence(range(50)).map(int))
    again.load_state_dict(before, on_mismatch="adopt")
    assert list(again) == [*range(1, 50)]


def hang(x: int) -> int:
    if x:
        threading.Event().wait()
    return x


def test_what_is_made_ahead_on_a_thread_is_not_waited_for() -> None:
    gate = Gate()
    with closing(PrefetchIterator(iter(ps.from_sequence(range(9)).map(gate)), 2)) as ahead:
        assert next(ahead) == 0
        assert gate.begun.wait(LONG)
    let_go(gate)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_another_thread_closes_while_next_waits_says_so(workers: int) -> None:
    begun, release = threading.Event(), threading.Event()

    def wait(x: int) -> int:
        begun.set()
        release.wait(30)
        return x

    def close() -> None:
        begun.wait(30)
        closer = threading.Timer(0.05, release.set)
        closer.start()
        loader.close()
        closer.join()

    loader = ps.Loader(ps.from_sequence(range(9)).map(wait), workers=workers)
    other = threading.Thread(target=close)
    other.start()
    with pytest.raises(ps.ConfigError, match="the loader is closed"):
        list(loader)
    other.join()
