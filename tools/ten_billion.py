"""Packing of a run over 10^10 documents of which nothing lies anywhere: lognormal lengths, hashed from the index.

    python tools/ten_billion.py 10_000_000_000 --home FOLDER [--full]

The first run adds up lengths, once, and keeps the sums in FOLDER; any later one finds them there. Told are the seconds
of each question, cold and warm, and the memory that is the process's own (mapped files are not).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

T = 8192
_QUANTILES = np.asarray(
    [int(np.exp(NormalDist(np.log(600) - 0.5, 1.0).inv_cdf((i + 0.5) / 4096))) + 1 for i in range(4096)]
)


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
        return _QUANTILES[(words ^ words >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(52)]

    def digest(self) -> str:
        return f"hashed {self.many} {self.salt}"


def dataset(many: int, full: bool, method: Any) -> Any:
    """Two sources, weights on a schedule."""
    import penstock as ps

    buckets = None if full else 1024
    flows = {
        name: ps.from_sequence(Hashed(n, salt), name=name).shuffle(seed=1, buckets=buckets)
        for name, n, salt in (("code", many // 4, 1), ("web", many - many // 4, 2))
    }
    ends = many * 600 // T
    schedule = ps.Schedule([(0, {"code": 1, "web": 4}), (ends * 10, {"code": 1, "web": 1})], "linear")
    return ps.mix(flows, schedule, seed=2).pack(T, method)


def own_memory() -> float:
    """MB of memory that belong to nobody else and to no file."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def timed(ask: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    out = ask()
    return time.perf_counter() - began, out


def figures(many: int, full: bool, method: str, step: int) -> dict[str, float]:
    """The seconds of each question."""
    import penstock as ps

    out = dict[str, float]()
    out["open"], ds = timed(lambda: dataset(many, full, method))
    out["first row"], _ = timed(lambda: ds[0])
    out["at"], row = timed(lambda: ds.plan.at(step))
    out["find"], found = timed(lambda: ds.plan.find(row[0].source, row[0].index, within=range(step - 1, step + 2)))
    assert step in found
    with ps.Loader(ds) as loader:
        loader.seek(step)
        state = loader.state_dict()
    with ps.Loader(ds) as loader:

        def resume() -> Any:
            loader.load_state_dict(state)
            return next(iter(loader))

        out["resume"], _ = timed(resume)
        out["warm resume"], _ = timed(resume)
    out["warm at"], _ = timed(lambda: ds.plan.at(step + 99))
    out["warm find"], _ = timed(lambda: ds.plan.find(row[-1].source, row[-1].index, within=range(step, step + 1)))
    once = ds.limit(step)
    out["len"], _ = timed(lambda: len(once))
    return {name: round(seconds * 1e3, 1) for name, seconds in out.items()} | {"MB": round(own_memory(), 1)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("many", type=lambda text: int(text.replace("_", "")))
    asked.add_argument("--home", required=True)
    asked.add_argument("--full", action="store_true")
    asked.add_argument("--step", type=int)
    given = asked.parse_args()
    os.environ["HOME"] = given.home
    step = given.step or given.many * 600 // T * 5 // 4
    for method in ("concat_split", "best_fit"):
        print(json.dumps({"method": method, "step": step, **figures(given.many, given.full, method, step)}), flush=True)


if __name__ == "__main__":
    main()
