"""Kills at random moments, of workers and of the process that began them: nothing lost, nothing doubled, nothing left.

A few runs here; the seeds of `make soak` make hundreds of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from amounts import done, examples
from killed import FLOWS, told
from penstock.runtime.executors.member import Member

RUN = Path(__file__).parents[2] / "killed.py"


def workers_of(loader: ps.Loader) -> list[Member]:
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    return list(executor._crew._workers)


def harm(loader: ps.Loader, dice: random.Random, stop: threading.Event) -> None:
    """Kill and stop workers at random moments, some within a millisecond of each other, some while they start."""
    while not stop.wait(dice.expovariate(1)):
        workers = workers_of(loader)
        kind = dice.choice(["one", "one", "all", "twice", "stopped"])
        for worker in workers if kind == "all" else [dice.choice(workers)]:
            signals = {"twice": [signal.SIGTERM, signal.SIGKILL], "stopped": [signal.SIGSTOP]}.get(
                kind, [signal.SIGKILL]
            )
            for each in signals:
                try:
                    os.kill(worker.process.pid, each)
                except ProcessLookupError:
                    pass
                time.sleep(dice.random() / 1000)


@examples(2)
@given(seed=st.integers(0, 1 << 30), name=st.sampled_from(sorted(FLOWS)))
def test_workers_killed_at_random_moments(seed: int, name: str) -> None:
    dice, stop = random.Random(seed), threading.Event()
    want = [told(item) for item in ps.Loader(FLOWS[name]())]
    loader = ps.Loader(FLOWS[name](), workers=dice.choice([1, 2, 4]), executor="processes")
    hand = threading.Thread(target=harm, args=(loader, dice, stop))
    hand.start()
    try:
        found = [told(item) for item in loader]
    finally:
        stop.set()
        hand.join()
        pids = [worker.process.pid for worker in workers_of(loader)]
        os.kill(pids[0], signal.SIGKILL)  # while it is closed
        loader.close()
    assert found == want
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    done["runs with workers killed"] += 1


@examples(1)
@given(seed=st.integers(0, 1 << 30), name=st.sampled_from(sorted(FLOWS)))
def test_the_parent_killed_and_resumed_with_other_workers(seed: int, name: str) -> None:
    dice, want = random.Random(seed), [told(item) for item in ps.Loader(FLOWS[name]())]
    found, state, killed = list[Any](), None, 0
    while True:
        options = {"workers": dice.choice([1, 2, 3]), "executor": dice.choice(["processes", "processes", "threads"])}
        given = json.dumps({"name": name, "options": options, "state": state})
        child = subprocess.Popen([sys.executable, RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(given)
        child.stdin.close()
        pids = json.loads(child.stdout.readline())
        fuse = threading.Timer(0.3 + 2 * dice.random() ** 2, child.kill)
        if killed < 4:
            fuse.start()
        for line in child.stdout:
            if not line.endswith("\n"):
                break  # cut off by the kill: it was not given
            item, state = json.loads(line)
            found.append(item)
        fuse.cancel()
        code = child.wait()
        child.stdout.close()
        by = time.monotonic() + 5
        while any(alive(pid) for pid in pids) and time.monotonic() < by:
            time.sleep(0.02)
        assert not [pid for pid in pids if alive(pid)]
        if code == 0:
            break
        killed += 1
    assert found == want
    done["parents killed"] += killed


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
