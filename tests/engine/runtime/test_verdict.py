"""The verdict, from figures: nothing here depends on how fast the machine is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.engine.runtime.verdict import RunTimes, make_verdict
from penstock.engine.streams.profiler import WorkTime

busy = RunTimes("threads", 2, 4, 3.8, 10.0, 40, 0.25, 5.0, None)
NOTES = (
    WorkTime("map(tokenize)", "web", 900, 7.1, 7.0),
    WorkTime("read", "code", 300, 2.0, 0.1),
    WorkTime("map(f)", "web", 9, 0.9, 0.9),
)


@pytest.mark.parametrize(
    ("workers", "cores", "spent", "waited", "want"),
    [
        (2, 2, 10.0, 9.0, True),
        (4, 8, 9.0, 6.0, True),
        (2, 2, 19.0, 9.0, False),  # they run side by side
        (2, 2, 1.0, 9.0, False),  # they wait for storage
        (2, 2, 10.0, 2.0, False),  # nobody waits for them
        (1, 2, 10.0, 9.0, False),  # alone
        (2, 1, 10.0, 9.0, False),  # there is one core
    ],
)
def test_when_threads_take_turns(
    workers: int, cores: int, spent: float, waited: float, want: bool
) -> None:
    facts = RunTimes("threads", workers, cores, waited, 10.0, 1, 1.0, spent, None)
    assert facts.is_lock_bound is want
    assert ("hold the interpreter" in str(make_verdict(facts))) is want
    assert not replace(facts, executor="processes").is_lock_bound


def test_a_run_that_waits_is_bound_by_the_step_and_source_that_take_most() -> None:
    found = make_verdict(replace(busy, notes=NOTES))
    assert found.bound and found.waits == pytest.approx(0.38)
    assert (found.step, found.source) == ("map(tokenize)", "web")
    assert str(found) == (
        "The run is bound by its data: it waits 38% of its time for data (40 times, at most 0.25 s). Of the work 71% is "
        "map(tokenize) of 'web', 20% is reading 'code', 9% is map(f) of 'web'. 2 of 4 cores have a worker: more would "
        "help."
    )


def test_a_run_that_does_not_wait_is_not() -> None:
    found = make_verdict(replace(busy, waited=0.2, stalls=0, notes=NOTES))
    assert not found.bound and found.step == "map(tokenize)"
    assert str(found).startswith(
        "The run is not bound by its data: it waits 2% of its time for data. Of the work"
    )
    assert "would help" not in str(found)


def test_a_step_over_all_sources_is_told_with_their_shares() -> None:
    notes = [
        WorkTime("map(f)", name, 10, seconds, seconds)
        for name, seconds in zip("abcd", (4.0, 3.0, 2.0, 1.0), strict=True)
    ]
    found = make_verdict(replace(busy, notes=notes))
    assert (found.step, found.source) == ("map(f)", None)
    assert "100% is map(f) ('a' 40%, 'b' 30%, 'c' 20%, ...)" in str(found)
    found = make_verdict(
        replace(
            busy, notes=[WorkTime("map(f)", "a", 1, 8.0, 8.0), WorkTime("map(f)", "b", 1, 1.0, 1.0)]
        )
    )
    assert (found.step, found.source) == ("map(f)", "a")
    assert make_verdict(replace(busy, notes=[WorkTime("batch(8)", "", 1, 1.0, 1.0)])).source is None


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            replace(
                busy, executor="inline", workers=0, notes=[WorkTime("map(f)", "a", 1, 1.0, 1.0)]
            ),
            "workers=4 would work ahead",
        ),
        (
            replace(busy, executor="inline", workers=0, notes=[WorkTime("read", "a", 1, 1.0, 0.1)]),
            "workers=8 would wait",
        ),
        (
            replace(busy, notes=[WorkTime("read", "a", 1, 1.0, 0.1)]),
            "more than 2 workers would help.",
        ),
        (
            replace(busy, executor="processes", notes=[WorkTime("read", "a", 1, 1.0, 0.1)]),
            "threads are enough",
        ),
        (replace(busy, workers=4), "Every core has a worker"),
        (
            replace(busy, waited=9.0, spent=10.0),
            "executor='processes') may be up to 2 times as fast",
        ),
        (busy, "Loader(profile=True) says where the time goes"),
    ],
)
def test_what_would_help(facts: RunTimes, said: str) -> None:
    assert said in str(make_verdict(facts))


def test_nothing_is_said_of_nothing() -> None:
    found = make_verdict(replace(busy, waited=0.0, elapsed=0.0))
    assert not found.bound and found.step is None and "Nothing can be said" in str(found)
    assert make_verdict(replace(busy, notes=[])).step is None
