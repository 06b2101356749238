"""Threads that hang are named: which step, over which sample of which source."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import penstock as ps

START = 10.0  # seconds within which anything that was begun comes to its end


class Gate:
    """A function that hangs over one sample, until somebody has read in the log that it does."""

    def __init__(self, bad: int) -> None:
        self.bad, self.told = bad, threading.Event()

    def __call__(self, x: int) -> int:
        if x == self.bad:
            assert self.told.wait(START)
        return x


class Reads(logging.Handler):
    """Opens a gate when the log says that something hangs there. On a busy machine others may take their time, too."""

    def __init__(self, told: threading.Event, where: str) -> None:
        super().__init__()
        self.told, self.where, self.lines = told, where, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if self.where in record.getMessage():
            self.lines.append(record.getMessage())
            self.told.set()


def hangs(ds: ps.Dataset, gate: Gate, where: str) -> list[Any]:
    """Return the items of a run that hangs somewhere; assert that the log reports it once."""
    log, reads = logging.getLogger("penstock"), Reads(gate.told, where)
    log.addHandler(reads)
    try:
        with ps.Loader(ds, workers=2, timeout=0.05) as loader:
            items = list(loader)
    finally:
        log.removeHandler(reads)
    assert len(reads.lines) == 1 and "longer than timeout=0.05 s" in reads.lines[0]
    return items


@pytest.mark.parametrize("bad", [0, 17, 59])
def test_a_function_that_hangs_is_named_once_with_source_and_key(bad: int) -> None:
    gate = Gate(bad)
    parts = {"web": ps.from_sequence(range(60)).map(gate), "code": ps.from_sequence(range(60))}
    items = hangs(ps.mix(parts, stop="all_exhausted"), gate, f"map(Gate) over web[{bad}] (pass 0)")
    assert sorted(items) == sorted([*range(60)] * 2)


def test_a_source_that_hangs_is_named() -> None:
    gate = Gate(30)

    class Slow:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, i: int) -> int:
            return gate(i)

    assert hangs(ps.from_sequence(Slow(), name="web"), gate, "reading 'web'") == [*range(60)]


def test_a_function_over_many_samples_that_hangs_is_named() -> None:
    gate = Gate(40)

    def decode(xs: list[int]) -> list[int]:
        return [gate(x) for x in xs]

    ds = ps.from_sequence(range(60), name="web").map(decode, batched=5)
    assert hangs(
        ds, gate, f"decode) at test_threads.py:{decode.__code__.co_firstlineno} over web["
    ) == [*range(60)]


def test_a_timeout_of_the_function_s_own_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    def asks(x: int) -> int:
        raise TimeoutError("no answer")

    with (
        pytest.raises(TimeoutError, match="no answer"),
        ps.Loader(ps.from_sequence(range(3)).map(asks), workers=1, timeout=30) as loader,
    ):
        list(loader)
    assert "longer" not in caplog.text


def test_what_takes_its_time_but_goes_on_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    with ps.Loader(
        ps.from_sequence(range(500)).map(str).batch(3, collate=list), workers=2, timeout=60
    ) as loader:
        assert sum(map(len, loader)) == 500
    assert not caplog.records
