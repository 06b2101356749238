"""Measure packing for 10^10 documents that are not stored.

Their lengths are lognormal, and hashed from the index.

    python tools/ten_billion.py [10_000_000] [--full] [--home FOLDER] [--step N] [--method METHOD]

Two sources, weights on a schedule, rows of 8,192 tokens in batches of 8. One scan computes the sums
of lengths, with progress, and stores them in FOLDER (`~/.cache` by default). Then each question is
asked twice, each time in a new process that finds the sums there. Each prints a line with three
figures:

- milliseconds of the first answer;
- milliseconds of a second answer, elsewhere in the same pass;
- memory of the process, without mapped files.

`--full` shuffles fully. Each pass over 10^10 documents then takes an hour and sums of 3 GB, so
100_000_000 is a better choice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

T, BATCH = 8192, 8
METHODS, QUESTIONS = (
    ("concat_split", "best_fit"),
    ("open", "len", "first batch", "at", "find", "resume"),
)
_SIGMA, _MEAN = 1.0, 600
_STEP = 97  # steps from the place of one question to that of the next

_NORMAL = NormalDist(np.log(_MEAN) - _SIGMA**2 / 2, _SIGMA)
_QUANTILES = np.asarray([int(np.exp(_NORMAL.inv_cdf((i + 0.5) / 4096))) + 1 for i in range(4096)])


Spent = tuple[float, float]


class Hashed:
    """Documents whose lengths are hashed from their numbers."""

    def __init__(self, many: int, salt: int) -> None:
        self.many, self.salt = many, salt

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, i: int) -> Any:
        return np.full(int(self.length_of(np.asarray([i]))[0]), i, np.int64)

    def length_of(self, index: Any) -> Any:
        words = (index + self.salt).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return _QUANTILES[
            (words ^ words >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(52)
        ]

    def digest(self) -> str:
        return f"hashed {self.many} {self.salt}"


def dataset(many: int, full: bool, method: Any) -> Any:
    """The rows of a pass."""
    import penstock as ps

    buckets = None if full else 1024
    sources = {
        name: ps.from_sequence(Hashed(n, salt), name=name).shuffle(seed=1, buckets=buckets)
        for name, n, salt in (("code", many // 4, 1), ("web", many - many // 4, 2))
    }
    schedule = ps.Schedule(
        [(0, {"code": 1, "web": 4}), (many // 2, {"code": 1, "web": 1})], "linear"
    )
    return ps.mix(sources, schedule, seed=2, stop="all_exhausted").pack(T, method)


def own_memory() -> float:
    """Return the MB of memory that belong to this process alone and to no file; else all unshared
    memory.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
            2**20 if sys.platform == "darwin" else 2**10
        )
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def timed(ask: Callable[[], Any]) -> tuple[Spent, Any]:
    """The milliseconds of an answer, those of the processor, and the answer."""
    began, worked = time.perf_counter(), time.process_time()
    out = ask()
    return (
        round((time.perf_counter() - began) * 1e3, 1),
        round((time.process_time() - worked) * 1e3, 1),
    ), out


def answer_question(question: str, many: int, full: bool, method: str, step: int) -> dict[str, Any]:
    """The first answer and a later one, in this process."""
    import penstock as ps

    assert callable(ps.mix) and callable(
        ps.Loader
    )  # imported now: what is timed is asked of an open library
    opening, rows = timed(lambda: dataset(many, full, method))
    run = rows.repeat().batch(BATCH)
    if question == "open":
        first, later = opening, timed(lambda: dataset(many, full, method))[0]
    elif question == "len":
        first, later = (
            timed(lambda: len(rows))[0],
            timed(lambda: len(dataset(many, full, method)))[0],
        )
    elif question == "at":
        (first, row), (later, _) = (
            timed(lambda at=at: run.plan.at(at)) for at in (step, step + _STEP)
        )
        assert len(row) >= BATCH
    else:
        first, later = _run(question, run, step)
    return {"first": first, "later": later, "MB": round(own_memory(), 1)}


def _run(question: str, run: Any, step: int) -> tuple[Spent, Spent]:
    import penstock as ps

    if question == "find":
        # Another process found out what lies there: nothing is known yet of the place.
        where, keys = (step, step + _STEP), json.loads(os.environ["TEN_BILLION_KEYS"])
        times = list[Spent]()
        for at, (source, index) in zip(where, keys, strict=True):
            around = range(at - 1, at + 2)
            spent, found = timed(partial(run.plan.find, source, index, within=around))
            assert at in found
            times.append(spent)
        return times[0], times[1]
    with ps.Loader(run) as loader:
        if question == "first batch":
            return timed(lambda: next(iter(loader)))[0], timed(lambda: next(iter(loader)))[0]
        states = json.loads(os.environ["TEN_BILLION_STATES"])

        def resumed(state: Any) -> Any:
            loader.load_state_dict(state)
            return next(iter(loader))

        (first, batch), (later, _) = (timed(lambda state=state: resumed(state)) for state in states)
        assert batch["tokens"].shape == (BATCH, T)
        return first, later


def list_questions(many: int, full: bool, method: str, step: int) -> dict[str, str]:
    """Return the arguments of the questions, computed beforehand."""
    import penstock as ps

    run = dataset(many, full, method).repeat().batch(BATCH)
    keys, states = list[Any](), list[Any]()
    with ps.Loader(run) as loader:
        for at in (step, step + _STEP):
            sample = run.plan.at(at)[0]
            keys.append((sample.source, sample.index))
            loader.seek(at)
            states.append(loader.state_dict())
    return {"TEN_BILLION_KEYS": json.dumps(keys), "TEN_BILLION_STATES": json.dumps(states)}


def main() -> None:
    """Ask everything, or with `--only` one question in this process."""
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument(
        "many", nargs="?", default=10_000_000, type=lambda text: int(text.replace("_", ""))
    )
    given.add_argument("--home")
    given.add_argument("--full", action="store_true")
    given.add_argument("--step", type=int)
    given.add_argument("--method", choices=METHODS)
    given.add_argument("--only", choices=QUESTIONS)
    given = given.parse_args()
    if given.home:
        os.environ["HOME"] = str(Path(given.home).absolute())
    step = given.step or given.many * _MEAN // T // BATCH * 5 // 4
    for method in [given.method] if given.method else METHODS:
        what = given.many, given.full, method, step
        if given.only:
            print(json.dumps(answer_question(given.only, *what)))
            continue
        began = time.perf_counter()
        known = list_questions(*what)
        print(
            f"{method}: {given.many:,} documents, step {step:,} of 8 rows; "
            f"{time.perf_counter() - began:.1f} s for"
        )
        print("  the sums and what is asked about", flush=True)
        for question in QUESTIONS:
            again = [
                sys.executable,
                __file__,
                str(given.many),
                "--step",
                str(step),
                "--method",
                method,
            ]
            again += ["--only", question, *(["--full"] if given.full else [])]
            out = subprocess.run(
                again, env=os.environ | known, stdout=subprocess.PIPE, check=True
            ).stdout
            found = json.loads(out)
            (first, worked), (later, more) = found["first"], found["later"]
            print(
                f"  {question:12}{first:8.1f} ms ({worked:.1f} of a processor) in a new process"
                f"{later:8.1f} ({more:.1f}) warm{found['MB']:8.1f} MB of its own",
                flush=True,
            )


if __name__ == "__main__":
    main()
