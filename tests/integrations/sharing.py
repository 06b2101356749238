"""One process of a node that shares a loader: it does a job and prints the result as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.integrations.shared_reader import SharedLoader

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have ignored it
SIZES = {0: 40, 1: 3_000_000, 2: 7}


def decode(number: int) -> dict[str, Any]:
    """Return a sample of its own size, and note that it was decoded."""
    if (journal := os.environ.get("JOURNAL")) is not None:
        with Path(journal).open("a") as file:
            file.write(f"{number}\n")
    if number == int(os.environ.get("BROKEN", "-1")):
        raise ValueError(f"sample {number} is broken")
    return {
        "image": {"pixels": np.full(SIZES[number % 3], number % 251, np.uint8)},
        "name": f"n{number}",
    }


def make() -> ps.Loader:
    """Make the loader."""
    form = "torch" if os.environ.get("FORM") == "torch" else "numpy"
    workers = int(os.environ.get("WORKERS", "0"))
    samples = ps.from_sequence(range(9)).shuffle(seed=3).map(decode)
    return ps.Loader(
        samples, to=form, workers=workers, executor="processes" if workers else "threads"
    )


def describe(item: Any) -> list[Any]:
    pixels = item["image"]["pixels"]
    return [item["name"], len(pixels), int(pixels[0]), int(pixels[-1]), type(pixels).__name__]


def count_memory() -> int:
    """Return the number of mapped blocks of this process."""
    return Path("/proc/self/maps").read_text().count("memfd:penstock")


def run(job: str, shared: SharedLoader) -> Any:
    if job == "passes":
        kept = [[], []]
        for items in kept:
            for item in shared:
                item["image"]["pixels"][0] += 1  # every process may change its copy
                items.append(item)
            if shared.rank == 0:
                time.sleep(0.2)
        return [[describe(item) for item in items] for items in kept]
    if job == "resume":
        steps = iter(shared)
        first = [describe(next(steps)) for _ in range(4)]
        if shared.loader is not None:
            shared.loader.state_dict()
        state = shared.state_dict()
        if shared.rank == 0:
            shared.state_dict()  # alone
        rest = [describe(item) for item in shared]
        shared.load_state_dict(json.loads(json.dumps(state)))
        again = [describe(item) for item in shared]
        return [first, state, rest, again]
    if job == "error":
        found: list[Any] = []
        steps = iter(shared)
        while True:
            try:
                found.append(describe(next(steps)))
            except StopIteration:
                return found
            except ValueError as error:
                found.append(type(error).__name__)
                os.environ["BROKEN"] = "-1"
    if job == "wait":  # until the test kills a process
        for item in shared:
            report(describe(item))
            time.sleep(0.1 if shared.rank else 0.0)
            if shared.rank == int(os.environ["SLEEPER"]):
                time.sleep(1000)
    if job == "order":
        if shared.rank:
            shared.state_dict()
        return len(list(shared))
    return None


def report(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    job, address, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    try:
        timeout = float(os.environ.get("TIMEOUT", "60"))
        with SharedLoader(make, address, rank=rank, ranks=ranks, timeout=timeout) as shared:
            result = run(job, shared)
        report([result, count_memory()])
    except (OSError, ps.ConfigError) as error:
        report([type(error).__name__, str(error), count_memory()])
