"""Memory of process runs: flat, within the bound in bytes, and nothing left. Short here, as promised in `make soak`."""

from __future__ import annotations

import gc
import os
import random
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import done, rounds

MIB = 1 << 20
BOUND = 64 * MIB
LARGEST = 4 * MIB

pytestmark = [
    pytest.mark.slow,  # long runs of worker processes
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="the system tells no shares"
    ),
]


def shares(loader: ps.Loader, *what: str) -> list[int]:
    """The bytes of memory of this process and of each worker; what is shared counts once, in parts. Of the libraries
    that other programs use too nothing counts: our part in them grows when those end.
    """
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    pids = [os.getpid(), *(worker.process.pid for worker in executor.workers)]
    return [share(pid, what or ("Pss_Anon:", "Pss_Shmem:")) for pid in pids]


def share(pid: int, what: tuple[str, ...]) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(what)]
    assert len(found) == len(what)
    return 1024 * sum(found)


def block(x: int) -> np.ndarray:
    return np.full(1000 + x % 7000, x)


def sized(x: int) -> np.ndarray:
    """A sample of lognormal size."""
    size = min(int(np.random.default_rng(x).lognormal(11.5, 1.2)), LARGEST)
    return np.full(size, x % 256, np.uint8)


def test_memory_stays_flat() -> None:
    steps, workers, bound = rounds(600, 20_000), rounds(2, 4), rounds(8 * MIB, BOUND)
    ds = ps.from_sequence(range(5_000)).shuffle(seed=1).map(block).batch(16, collate=list).repeat()
    seen, own = list[int](), list[list[int]]()
    with ps.Loader(ds, workers=workers, executor="processes", prefetch_bytes=bound) as loader:
        for step, _ in enumerate(islice(loader, steps)):
            if step % (steps // 60) == 0:
                seen.append(sum(shares(loader)))
                own.append(shares(loader, "Anonymous:"))
    # Pages of shared memory come up here one by one, which makes nothing larger: they count for all together.
    for what in (np.asarray(seen, float)[:, None], np.asarray(own, float)):
        first, second = what[30:45].mean(0) / MIB, what[45:].mean(0) / MIB
        done[f"MiB at the end, {'of each' if len(first) > 1 else 'of all'}"] = int(second.max())
        assert (second <= 1.03 * first).all(), (
            f"it grows: {first.round(1)} MiB, then {second.round(1)}"
        )


def test_lognormal_samples_stay_within_the_bound() -> None:
    many, workers = rounds(800, 20_000), rounds(2, 4)
    ds = ps.from_sequence(range(many)).shuffle(seed=1).map(sized)
    most, given = 0, 0
    with ps.Loader(
        ds, workers=workers, executor="processes", prefetch_bytes=BOUND, prefetch=400
    ) as loader:
        assert len(list(islice(loader, 2 * workers))) == 2 * workers
        loader.load_state_dict(loader.state_dict())  # nothing is under way
        gc.collect()
        idle = sum(shares(loader))
        for sample in loader:
            given += 1
            assert sample[0] == sample[-1]
            if given % 25 == 0:
                most = max(
                    most, sum(shares(loader)) - idle - sample.nbytes
                )  # it is not ahead any more
    done["MiB under a bound of 64"] = most // MIB
    assert given == many - 2 * workers
    assert most <= BOUND + workers * LARGEST, f"{most / MIB:.1f} MiB over what it held idle"


def test_a_sample_larger_than_the_bound_passes_alone() -> None:
    ds = ps.from_sequence([1, 200, 2, 200, 3]).map(lambda n: np.full(n * MIB, n, np.uint8))
    with ps.Loader(ds, workers=2, executor="processes", prefetch_bytes=BOUND) as loader:
        assert [(len(sample) // MIB, int(sample[-1])) for sample in loader] == [
            (n, n) for n in (1, 200, 2, 200, 3)
        ]


def held() -> Any:
    """Return the open files, child processes and threads of this process."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    files = list[str]()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder itself
            files.append(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
    return sorted(files), children, threading.active_count()


def shared() -> set[str]:
    """The memory of ours that this process shares with others."""
    return {
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "memfd:penstock" in line
    }


def test_loaders_that_are_dropped_leave_nothing() -> None:
    dice, ds = random.Random(1), ps.from_sequence(range(400)).shuffle(seed=1).map(block)
    list(islice(ps.Loader(ds, workers=1, executor="processes"), 3))  # what is imported once
    before, mapped = held(), shared()
    for number in range(rounds(4, 60)):
        executor: Any = dice.choice(["processes", "processes", "threads"])
        loader = ps.Loader(ds, workers=dice.choice([1, 2]), executor=executor, prefetch_bytes=MIB)
        items = list(islice(loader, dice.randrange(20)))
        if number % 3 == 0:
            loader.close()
        del loader, items
    assert held() == before and shared() <= mapped
