"""Plans answer within moments: far out, for small sources, after edits, with a journal."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps

SECONDS = 5  # of the processor, for one question; most take a thousandth
FAR = (10**6, 10**7, (1 << 50) + 12_345)


def rows(n: int, name: str) -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def documents(n: int, name: str) -> ps.Dataset:
    ends = np.cumsum([0, *np.random.default_rng(n).integers(1, 60, n)])
    return ps.from_tokens(np.zeros(ends[-1], np.uint16), ends, name=name)


def mixed(made: Callable[[int, str], ps.Dataset], *sizes: int, **options: Any) -> ps.Dataset:
    inputs = {f"s{i:02d}": made(n, f"s{i:02d}").shuffle(seed=1) for i, n in enumerate(sizes)}
    weights = {name: float(1 + 7919 * i % 97) for i, name in enumerate(inputs)}
    return ps.mix(inputs, weights, seed=3, **options)


FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "three rows": lambda: rows(3, "a").repeat(),
    "three rows, shuffled": lambda: rows(3, "a").shuffle(seed=1).repeat(),
    "blocks of three rows": lambda: rows(3, "a").shuffle(block=(2, 2), seed=1).repeat(),
    "a slice": lambda: rows(1_000, "a").slice(0, 3).shuffle(seed=1).repeat(),
    "repeats": lambda: rows(3, "a").repeat_each(3).shuffle(seed=1).repeat(),
    "batches": lambda: rows(3, "a").shuffle(seed=1).repeat().batch(8),
    "a zip": lambda: rows(3, "a").repeat().zip(rows(1_000, "b").shuffle(seed=1).repeat()),
    "few beside many": lambda: mixed(rows, 3, 100_000).batch(8),
    "a cap": lambda: mixed(rows, 3, 100_000, max_epochs={"s00": 4}),
    "many": lambda: mixed(rows, *range(3, 603, 25)).shuffle(window=50, seed=5),
    "by tokens": lambda: mixed(documents, *range(5, 65, 3), unit="tokens"),
    "packed": lambda: mixed(documents, *range(5, 65, 3), unit="tokens").pack(64).batch(4),
    "packed whole": lambda: mixed(documents, 3, 1_000).pack(64, method="best_fit").batch(4),
}


@contextmanager
def in_moments(what: str) -> Generator[None]:
    """A question that must not go on for ever, whatever else the machine has to do."""

    def over(*_: object) -> None:
        raise AssertionError(f"{what} took more than {SECONDS} s of the processor")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def ask(plan: Any, far: int, what: str) -> None:
    """Every question, and that the answers agree."""
    name, far = plan.sources[0], far if plan.size is None else max(0, min(far, plan.size - 500))
    with in_moments(f"{what}: counts({far})"):
        before, after = plan.counts(far), plan.counts(far + 100)
    with in_moments(f"{what}: at({far})"):
        found = plan.at(slice(far, far + 100))
    if not plan._marks:  # of packed rows a document is counted once, and has many pieces
        here = [sample.source for sample in found]
        assert {name: here.count(name) for name in plan.sources} == {
            k: after[k] - before[k] for k in before
        }
    with in_moments(f"{what}: epochs({far})"):
        assert plan.epochs(far).keys() == before.keys()
    with in_moments(f"{what}: find(within={far}...)"):
        places = plan.find(name, 1, range(far, far + 100))
    assert places == sorted({s.position for s in found if s.source == name and s.index == 1})
    with in_moments(f"{what}: finds"):
        assert all(place >= 0 for place in islice(plan.iter_find(name, 1), 1))
    with in_moments(f"{what}: exhausts"):
        assert plan.exhaustion().keys() == before.keys()
    with in_moments(f"{what}: diff"):
        plan.diff(plan, range(far, far + 100))


@pytest.mark.parametrize("flow", FLOWS)
def test_a_plan_answers_in_moments(flow: str) -> None:
    with in_moments("the plan"):
        ds = FLOWS[flow]()
    began = time.process_time()
    for far in FAR:
        ask(ds.plan, far, flow)
    for far in FAR[:2]:
        with in_moments("exclude"):
            plan = ds.plan.exclude([(ds.plan.sources[0], 0)])
        ask(plan, far, f"{flow} without a sample")
        with in_moments("skip"):
            ask(ds.plan.skip(range(5, 50)), far, f"{flow} without positions")
    assert time.process_time() - began < 5 * SECONDS


def bad(item: Any) -> Any:
    if item == 1:
        raise ValueError("bad")
    return item


@pytest.mark.parametrize("flow", [*FLOWS][:5])
def test_a_plan_of_a_run_with_a_journal_answers_in_moments(flow: str) -> None:
    ds = FLOWS[flow]().map(bad).batch(8)
    with ps.Loader(ds, on_error="quarantine", max_errors=10**6) as loader:
        for _ in islice(loader, 30):
            pass
        plan = ds.plan.for_state(loader.state_dict())
        assert len(loader.journal) > 20
    ask(plan, 10**5, flow)
    with in_moments("exclude"):
        edited = plan.exclude([(plan.sources[0], 0)])
    ask(edited, 10**5, f"{flow} without a sample")


@pytest.mark.parametrize("over", ["limit", "skip", "backwards", "gap"])
def test_find_looks_no_further_than_it_is_asked_to(over: str) -> None:
    """Below a limit it went through the whole pass, and held every place of it."""
    mixed, n = ps.mix({name: ps.from_sequence(range(5), name=name) for name in "ab"}), 10**12
    ds = {
        "limit": mixed.limit(n),
        "skip": mixed.limit(n).skip(3),
        "backwards": mixed.limit(n)[::-1],
        "gap": mixed.limit(n).plan.skip(range(4, 9)).dataset,
    }[over]
    for low in (0, 60, len(ds) - 30, 3 * len(ds) + 7):  # the third over the end of a pass
        within = range(low, low + 60)
        found = [
            sample.position
            for sample in ds.plan.at(slice(low, low + 60))
            if sample.key[::2] == ("a", 3)
        ]
        assert ds.plan.find("a", 3, within=within) == found
        assert found
