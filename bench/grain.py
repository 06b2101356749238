"""Compare Grain with Penstock's compatibility package, on the pipelines of its advanced page.

    python bench/grain.py            # a table
    python bench/grain.py --json     # one JSON object

Both sides read the same data in one run, and alternate. Each figure is the median over the rounds
of the CPU time of the process (threads included) per element. A first round is not counted.
Elements are small, so this is the cost of the library.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock.compat.grain as penstock_grain

WANTED = 20.0


class Images:
    """Stands for a prepared image set: the same few arrays again and again."""

    def __init__(self, n: int) -> None:
        self.n, self.images = n, [np.full((28, 28, 1), i, np.uint8) for i in range(64)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.images[i % 64], "label": i % 10}


SMALL, LARGE = Images(4_708), Images(60_000)


def image(features: dict[str, Any]) -> Any:
    return features["image"]


def default(api: Any) -> Any:
    return api.MapDataset.source(LARGE).seed(45).shuffle().to_iter_dataset()


def mixed(api: Any) -> Any:
    one, two = (api.MapDataset.source(source).map(image) for source in (SMALL, LARGE))
    return api.MapDataset.mix([one, two], weights=[0.7, 0.3])


def mixed_streams(api: Any) -> Any:
    one = (
        api.MapDataset.source(SMALL)
        .filter(lambda features: features["label"] == 1)
        .to_iter_dataset()
    )
    two = (
        api.MapDataset.source(LARGE)
        .filter(lambda features: features["label"] > 4)
        .to_iter_dataset()
    )
    return api.IterDataset.mix([one, two], weights=[0.7, 0.3]).map(image)


def window(api: Any) -> Any:
    parts = [api.MapDataset.range(1000 * k, 1000 * k + 1000).to_iter_dataset() for k in range(4)]
    interleaved = api.experimental.InterleaveIterDataset(parts, cycle_length=4)
    return api.experimental.WindowShuffleIterDataset(interleaved, window_size=10, seed=42)


CASES: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "default to_iter_dataset()": (default, 2_000, 60_000),
    "MapDataset.mix, two sources": (mixed, 2_000, 6_000),
    "IterDataset.mix, two filtered": (mixed_streams, 500, 600),
    "interleave, window shuffle of 10": (window, 600, 4_000),
}


def cost(make: Callable[[Any], Any], api: Any, n: int) -> float:
    """Seconds of CPU time for an element, over the first `n`."""
    it = iter(make(api))
    next(it)  # what happens once
    began = time.process_time()
    done = sum(1 for _ in islice(it, n - 1))
    took = time.process_time() - began
    it.close()
    assert done == n - 1, f"{done + 1} elements instead of {n}"
    return took / done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [
        folder for folder in sys.path if folder != here
    ]  # where this file would be taken for Grain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import grain
    found = dict[str, dict[str, float]]()
    for name, (make, theirs, ours) in CASES.items():
        pairs = [
            (cost(make, grain, theirs), cost(make, penstock_grain, ours))
            for _ in range(options.rounds + 1)
        ][1:]
        ratios = [a / b for a, b in pairs]
        found[name] = {
            "grain_us": 1e6 * median(a for a, _ in pairs),
            "penstock_us": 1e6 * median(b for _, b in pairs),
            "ratio": median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':36}{'Grain us':>10}{'ours us':>10}{'ratio':>9}{'range':>16}")
    for name, row in found.items():
        print(
            f"{name:36}{row['grain_us']:10.1f}{row['penstock_us']:10.2f}{row['ratio']:9.1f}"
            f"{row['least']:10.1f}-{row['most']:.1f}"
        )
    if any(row["ratio"] < WANTED for row in found.values()):
        sys.exit("below what is wanted")


if __name__ == "__main__":
    main()
