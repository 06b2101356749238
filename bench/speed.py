"""What the library adds to a sample, as ratios to plain Python in the same run.

    python bench/speed.py            # a table
    python bench/speed.py --json     # one JSON object

Floors: `[fn(data[i]) for i in order]` taken 32 at a time, and a NumPy loop that copies documents into rows. The two
sides alternate; each figure is the median over the rounds, in CPU time of the one thread that works, so that a busy
machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock as ps

N, BATCH = 1_000_000, 32


def plus_one(x: int) -> int:
    return x + 1


def rate(work: Callable[[], int]) -> float:
    """Samples (or tokens) a second."""
    began = time.thread_time()
    done = work()
    return done / (time.thread_time() - began)


def loop(data: Any, order: list[int]) -> int:
    """The floor: samples picked in a given order, a function on each, 32 at a time."""
    for start in range(0, len(order), BATCH):
        [plus_one(data[i]) for i in order[start : start + BATCH]]
    return len(order)


def drained(ds: ps.Dataset, limit: int) -> int:
    done = 0
    for batch in ds:
        done += len(batch)
        if done >= limit:
            break
    return done


def shuffled_ints() -> tuple[Callable[[], int], Callable[[], int]]:
    data, order = range(N), list(range(N))
    random.Random(7).shuffle(order)
    ds = ps.from_sequence(data).shuffle(seed=7).map(plus_one).batch(BATCH)
    return lambda: loop(data, order), lambda: drained(ds, N)


def mixed(sizes: list[int], weights: list[float]) -> tuple[Callable[[], int], Callable[[], int]]:
    """The floor is the loop over shuffled ints: what is left of a mix when nobody has to decide who is next."""
    starts = np.cumsum([0, *sizes]).tolist()
    inputs = {f"s{i}": ps.from_sequence(range(a, b)).shuffle() for i, (a, b) in enumerate(pairwise(starts))}
    ds = ps.mix(inputs, {f"s{i}": w for i, w in enumerate(weights)}, seed=7).map(plus_one).batch(BATCH)
    return shuffled_ints()[0], lambda: drained(ds, N)


def packed(folder: Path, length: int, rows: int = 8) -> tuple[Callable[[], int], Callable[[], int]]:
    """Lognormal documents (mean about 600) in a memory-mapped file; the floor copies them and does nothing else."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.0, 1.0, 100_000), 8, 8192).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    file = folder / "tokens.bin"
    if not file.exists():
        rng.integers(0, 60_000, int(offsets[-1]), dtype=np.uint16).tofile(file)
    tokens = np.memmap(file, np.uint16, "r")
    order, ends = np.random.default_rng(7).permutation(len(lengths)).tolist(), offsets.tolist()

    def floor() -> int:
        size, place, done = rows * length, 0, 0
        buffer = np.empty(size, np.int32)
        for i in order:
            a, b = ends[i], ends[i + 1]
            while a < b:
                n = min(size - place, b - a)
                buffer[place : place + n] = tokens[a : a + n]
                a, place = a + n, place + n
                if place == size:
                    buffer, place, done = np.empty(size, np.int32), 0, done + size
        return done

    ds = ps.from_tokens(tokens, offsets).shuffle(seed=7).pack(length, dtype="int32").batch(rows)
    return floor, lambda: sum(batch["tokens"].size for batch in ds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    many = (rng.pareto(1.2, 500) + 1e-3).tolist()
    with tempfile.TemporaryDirectory() as folder:
        cases = {
            "1M ints, shuffle, map, batch 32": (shuffled_ints(), 0.5),
            "3 shuffled sources mixed": (mixed([600_000, 400_000, 300_000], [0.5, 0.3, 0.2]), 0.4),
            "500 shuffled sources mixed": (mixed([5_000] * 500, many), 0.2),
            "concat_split, 2,048 tokens": (packed(Path(folder), 2048), 0.6),
            "concat_split, 8,192 tokens": (packed(Path(folder), 8192), 0.6),
        }
        found = dict[str, dict[str, float]]()
        for name, ((floor, ours), wanted) in cases.items():
            pairs = [(rate(floor), rate(ours)) for _ in range(options.rounds)]
            ratios = [b / a for a, b in pairs]
            found[name] = {
                "floor_per_s": median(a for a, _ in pairs),
                "penstock_per_s": median(b for _, b in pairs),
                "ratio": median(ratios),
                "least": min(ratios),
                "most": max(ratios),
                "wanted": wanted,
            }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':34}{'floor M/s':>11}{'ours M/s':>10}{'ratio':>8}{'range':>15}{'wanted':>8}")
    for name, row in found.items():
        print(
            f"{name:34}{row['floor_per_s'] / 1e6:11.2f}{row['penstock_per_s'] / 1e6:10.2f}{row['ratio']:8.2f}"
            f"{row['least']:9.2f}-{row['most']:.2f}{row['wanted']:8.2f}"
        )
    if any(row["ratio"] < row["wanted"] for row in found.values()):
        sys.exit("below what is wanted")


if __name__ == "__main__":
    main()
