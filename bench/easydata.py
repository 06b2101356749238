"""Compare `block_mixture_interleave` with EasyData and `datasets.interleave_datasets`.

    python bench/easydata.py            # a table
    python bench/easydata.py --json     # one JSON object

All three read the same datasets, row by row as a trainer does, and alternate. Each figure is the
median over the rounds, in CPU time of the one thread that works. EasyData's algorithm is written
here from its description:

- Each source has a count per block, rounded down; the heaviest source takes the remainder.
- NumPy shuffles the names of a block with the seed plus the block number.
- Each row is one `next`, and a source that ends restarts.
- All of this is a generator that Hugging Face wraps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset, interleave_datasets

from penstock.compat.easydata import block_mixture_interleave

ROWS, SIZE, BLOCK = 20_000, 60_000, 1_000
WEIGHTS = {"code": 0.4, "text": 0.5, "math": 0.1}


def by_floor(
    datasets: Mapping[str, Any], weights: Mapping[str, float], block: int, seed: int
) -> IterableDataset:
    """EasyData's algorithm."""
    names = list(datasets)
    shares = np.asarray([weights[name] for name in names])
    counts = np.floor(shares / shares.sum() * block).astype(int)
    counts[shares.argmax()] += block - counts.sum()

    def rows() -> Iterator[Any]:
        open_ = [iter(datasets[name]) for name in names]
        number = 0
        while True:
            turns = np.repeat(np.arange(len(names)), counts)
            np.random.default_rng(seed + number).shuffle(turns)
            number += 1
            for turn in turns.tolist():
                try:
                    row = next(open_[turn])
                except StopIteration:
                    open_[turn] = iter(datasets[names[turn]])
                    row = next(open_[turn])
                yield row

    return IterableDataset.from_generator(rows)


def cost(dataset: Any, rows: int) -> float:
    """CPU microseconds a row."""
    began = time.thread_time()
    done = sum(1 for _ in islice(iter(dataset), rows))
    assert done == rows
    return (time.thread_time() - began) / done * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = {
        name: Dataset.from_dict(
            {"text": [f"{name}: row {i} of some words" for i in range(SIZE)], "id": range(SIZE)}
        )
        for name in WEIGHTS
    }
    streams = {name: dataset.to_iterable_dataset(num_shards=4) for name, dataset in table.items()}
    found = dict[str, dict[str, float]]()
    for kind, inputs in {"map-style": table, "streaming": streams}.items():
        makers = {
            "penstock": lambda inputs=inputs: block_mixture_interleave(
                inputs, WEIGHTS, block_size=BLOCK
            ),
            "easydata": lambda inputs=inputs: by_floor(inputs, WEIGHTS, BLOCK, 42),
            "interleave": lambda inputs=inputs: interleave_datasets(
                list(inputs.values()),
                list(WEIGHTS.values()),
                seed=42,
                stopping_strategy="first_exhausted",
            ),
        }
        for make in makers.values():  # what is imported at the first row is no cost of a row
            cost(make(), 1_000)
        rounds = [
            {name: cost(make(), options.rows) for name, make in makers.items()}
            for _ in range(options.rounds)
        ]
        found[kind] = {f"{name}_us": median(each[name] for each in rounds) for name in makers}
        for name, wanted in (("easydata", 2.0), ("interleave", 10.0)):
            found[kind][f"over_{name}"] = median(each[name] / each["penstock"] for each in rounds)
            found[kind][f"over_{name}_least"] = min(
                each[name] / each["penstock"] for each in rounds
            )
            found[kind][f"over_{name}_wanted"] = wanted
    if options.json:
        print(json.dumps(found))
        return
    for kind, row in found.items():
        print(f"{kind}: {row['penstock_us']:.2f} us a row, ", end="")
        for name in ("easydata", "interleave"):
            ratio, least, wanted = (row[f"over_{name}{tail}"] for tail in ("", "_least", "_wanted"))
            print(
                f"{name} {row[f'{name}_us']:.2f} us: {ratio:.1f} x (least {least:.1f}, wanted "
                f"{wanted:.0f})",
                end="; ",
            )
        print()
    if any(
        row[f"over_{name}"] < row[f"over_{name}_wanted"]
        for row in found.values()
        for name in ("easydata", "interleave")
    ):
        sys.exit("below what is wanted")


if __name__ == "__main__":
    main()
