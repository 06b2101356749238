"""Kills at random moments, of workers and of the process that began them: nothing lost, nothing doubled, nothing moved,
nothing left. A sample of the runs here, 100 and 20 of them in `make soak`.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from example_counts import done, rounds
from killed_run import ENDLESS, FLOWS, told
from penstock.engine.runtime.executors.processes import ProcessWorker

pytestmark = pytest.mark.slow  # processes that are killed

RUN = Path(__file__).parents[3] / "killed_run.py"
KINDS = ["stopped", "starting", "closing", "together"]
"""What befalls the first runs of every 25; all others are harmed at random."""
RANKS, LANES = [1, 2, 3, 4], 12
OUT = 500  # items until a run of several ranks is over


def workers_of(loader: ps.Loader) -> list[ProcessWorker]:
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    return list(executor.workers)


def first_worker(loader: ps.Loader) -> ProcessWorker:
    """The first worker process, as soon as the thread that starts them has done so."""
    until = time.monotonic() + 30
    while not (found := workers_of(loader)):
        assert time.monotonic() < until, "no worker was started"
        time.sleep(0.001)
    return found[0]


def hit(worker: ProcessWorker, number: int = signal.SIGKILL) -> None:
    """Send a signal to a worker, if it is still there."""
    with suppress(ProcessLookupError):
        if worker.process.returncode is None:
            os.kill(worker.process.pid, number)
            done["workers stopped" if number == signal.SIGSTOP else "workers killed"] += 1


def strikes(kind: str, items: int, dice: random.Random) -> dict[int, str]:
    """After which items somebody is hit, and how. Far enough apart that no sample is to blame."""
    apart = items // 3
    how = [
        "together" if kind == "together" else dice.choice(["one", "one", "together"])
        for _ in range(3)
    ]
    if kind == "stopped":
        how[dice.randrange(3)] = "stopped"
    return {apart * i + dice.randrange(apart // 3): each for i, each in enumerate(how)}


def harm(workers: list[ProcessWorker], how: str, dice: random.Random) -> None:
    """At a random moment of the next few milliseconds; several within one of each other."""
    time.sleep(dice.random() / 100)
    for worker in workers if how == "together" else [dice.choice(workers)]:
        hit(worker, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        time.sleep(dice.random() / 2000)


def shared() -> list[str]:
    """The memory of ours that this process shares: it has no names that others could see."""
    return [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:penstock" in line
    ]


def open_now() -> list[str]:
    """List the targets of all open file descriptors of this process."""
    found = list[str]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder itself
            found.append(re.sub(r"\d+", "n", os.readlink(f"/proc/self/fd/{name}")))
    return sorted(found)


@pytest.fixture
def same_world() -> Any:
    """Assert that the test leaves no files, threads, processes or shared memory behind."""

    def now() -> Any:
        gc.collect()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return open_now(), sorted(children), threading.active_count()

    before, mapped = now(), {*shared()}
    yield
    assert now() == before
    assert {*shared()} <= mapped  # an earlier test's may have gone by now


@pytest.mark.parametrize("run", range(rounds(2, 100)))
@pytest.mark.usefixtures("same_world")
def test_workers_killed_at_random_moments(run: int) -> None:
    dice, kind = random.Random(run), KINDS[run % 25] if run % 25 < len(KINDS) else "random"
    name = sorted(FLOWS)[run % len(FLOWS)]
    want, found, hands = wanted(name), list[Any](), list[threading.Thread]()
    plan = strikes(kind, len(want), dice)
    loader = ps.Loader(FLOWS[name](), workers=dice.choice([2, 2, 2, 4]), executor="processes")
    if kind == "starting":
        hit(first_worker(loader))
    with loader:
        for item in loader:
            if (how := plan.get(len(found))) is not None:
                hands.append(threading.Thread(target=harm, args=(workers_of(loader), how, dice)))
                hands[-1].start()
            found.append(told(item))
        for hand in hands:
            hand.join()
        workers = workers_of(loader)
        if kind == "closing":
            hands.append(threading.Thread(target=harm, args=(workers, "together", dice)))
            hands[-1].start()
            time.sleep(dice.random() / 100)
    hands[-1].join()
    assert found == want
    assert not [worker for worker in workers if Path(f"/proc/{worker.process.pid}").exists()]
    done["runs with workers killed"] += 1


def wanted(name: str, kept: dict[str, list[Any]] = {}) -> list[Any]:  # noqa: B006
    """The items of the undisturbed run."""
    if name not in kept:
        kept[name] = [told(item) for item in ps.Loader(FLOWS[name]())]
    return kept[name]


@pytest.mark.parametrize("run", range(rounds(1, 20)))
def test_the_parent_killed_and_resumed_on_other_ranks_with_other_workers(run: int) -> None:
    dice, name = random.Random(run), sorted(ENDLESS)[run % len(ENDLESS)]
    want = [
        told(item) for item in islice(ps.Loader(ENDLESS[name](), lanes=LANES), OUT + max(RANKS))
    ]
    found, states, killed, ranks = list[Any](), list[Any](), 0, 1
    while len(found) < OUT:
        ranks = dice.choice([each for each in RANKS if each != ranks])
        steps = -(-(OUT - len(found)) // ranks)
        # Twice (in a soak four times) they die in the middle: then the run goes on to its end.
        given = some_ranks(name, ranks, steps, states, dice, die=killed < rounds(2, 4))
        common = min(map(len, given))
        for step in range(common):
            # Which of the items of a global step a rank has depends on how many ranks there are.
            items = sorted((given[rank][step][0] for rank in range(ranks)), key=json.dumps)
            should = sorted(want[len(found) : len(found) + ranks], key=json.dumps)
            assert items == should
            found += items
        states = [given[rank][common - 1][1] for rank in range(ranks)] if common else states
        killed += common < steps
    done["parents killed"] += killed


def some_ranks(
    name: str, ranks: int, steps: int, states: list[Any], dice: random.Random, die: bool
) -> list[list[Any]]:
    """Return the items and states of each rank, until all ranks were killed at one moment."""
    children, pids, given = (
        list[subprocess.Popen[str]](),
        list[int](),
        [list[Any]() for _ in range(ranks)],
    )
    for rank in range(ranks):
        workers = {
            "workers": dice.choice([1, 2]),
            "executor": dice.choice(["processes", "processes", "threads"]),
        }
        options = {**workers, "rank": rank, "world_size": ranks, "lanes": LANES}
        asked = json.dumps({"name": name, "options": options, "states": states, "steps": steps})
        child = subprocess.Popen(
            [sys.executable, RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        child.stdin.write(asked)
        child.stdin.close()
        children.append(child)

    def read(rank: int) -> Callable[[], None]:
        def lines() -> None:
            out = children[rank].stdout
            assert out is not None
            with out:
                pids.extend(json.loads(out.readline() or "[]"))
                given[rank].extend(json.loads(line) for line in out if line.endswith("\n"))

        return lines

    readers = [threading.Thread(target=read(rank)) for rank in range(ranks)]
    for reader in readers:
        reader.start()
    most, patience = dice.randrange(1, max(2, steps)), time.monotonic() + 120
    while (
        die and len(given[0]) < most and children[0].poll() is None and time.monotonic() < patience
    ):
        time.sleep(0.002)
    if die:
        for child in children:
            child.kill()
    codes = [child.wait() for child in children]
    for reader in readers:
        reader.join()
    assert die or codes == [0] * ranks
    by = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < by:
        time.sleep(0.02)
    assert not [pid for pid in pids if alive(pid)], "workers outlive the process that began them"
    return given


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
