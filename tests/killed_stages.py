"""A run through five stages in a process that is killed: `python killed_stages.py FOLDER STEPS RANKS SEED`.

It continues from the newest states in the folder, takes steps on all ranks, and writes a line a step.
"""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

SHORT, LONG = 24, 48  # rows of a global step
SIZES = {"a": (600, 900), "b": (1_500, 400), "c": (300, 900), "d": (900, 300), "e": (700, 400)}
"""Mean length and number of documents by source."""

EXCLUDED = [(name, index) for name in ("d", "mixed/a") for index in range(30)]


def read_document(name: str, begin: int, stop: int) -> np.ndarray[Any, Any]:
    """Return tokens of a source: each tells the source and its place there."""
    return (np.arange(begin, stop) + (ord(name) << 24)).astype(np.int32)


def find_begins(name: str) -> np.ndarray[Any, Any]:
    """Return the first token of each document of a source."""
    mean, count = SIZES[name]
    lengths = np.random.default_rng(ord(name)).integers(20, 2 * mean, count)
    return np.concatenate([[0], np.cumsum(lengths)])


def documents(name: str) -> ps.Dataset:
    begins = find_begins(name)
    return ps.from_tokens(read_document(name, 0, int(begins[-1])), begins, name=name).shuffle()


def make_run(steps: int) -> ps.Dataset:
    """Return five stages of rows of 512 to 8,192 tokens; the second draws one source for each step.

    The batch grows in the middle of the third stage.
    """
    borders = [steps * stage // 5 for stage in range(5)]
    mixed = ps.mix(
        {name: documents(name) for name in "abc"}, {"a": 3, "b": 2, "c": 1}, unit="tokens", seed=7
    )
    groups = {"mixed": mixed, "d": documents("d").repeat(), "e": documents("e").repeat()}
    later = SHORT * (steps // 2) + LONG * (borders[3] - steps // 2)
    weights = ps.Schedule(
        [
            (0, {"mixed": 1, "d": 0, "e": 0}),
            (SHORT * borders[1], {"mixed": 0, "d": 1, "e": 2}),
            (SHORT * borders[2], {"mixed": 3, "d": 1, "e": 0}),
            (later, {"mixed": 1, "d": 1, "e": 1}),
        ]
    )
    lengths = ps.Schedule(
        {border: 512 << stage for stage, border in enumerate(borders)}, unit="steps"
    )
    batches = ps.Schedule({0: SHORT, steps // 2: LONG}, unit="steps")
    rows = ps.mix(groups, weights, seed=3, one_source_per=SHORT).pack(lengths)
    return rows.batch(global_batch_size=batches)


def change_by_hand(loader: ps.Loader, step: int, steps: int) -> None:
    """Make the changes that a user makes before a step."""
    if step == steps * 7 // 10:
        loader.set_weights({"mixed": 2, "d": 1, "e": 4})
    if step == steps * 3 // 4:
        loader.exclude(EXCLUDED)
    if step == steps * 9 // 10:
        loader.set_weights({"mixed": 5, "d": 1, "e": 1})


def digest_rows(rows: Any) -> str:
    """Return a digest of the rows of a step, in whatever order the ranks receive them."""
    found = sorted(hashlib.sha256(row.tobytes()).digest() for row in rows)
    return hashlib.sha256(b"".join(found)).hexdigest()


def main(folder: Path, steps: int, ranks: int, seed: int) -> None:
    rng, run = np.random.default_rng(seed), make_run(steps)
    loaders = [ps.Loader(run, rank=rank, world_size=ranks) for rank in range(ranks)]
    (first,) = {ps.restore(folder / "states", loader) or 0 for loader in loaders}
    its = [iter(loader) for loader in loaders]
    with (folder / "log.jsonl").open("a") as log:
        log.write("\n")  # ends the line of a process that was killed
        for step in range(first, steps):
            for loader in loaders:
                change_by_hand(loader, step, steps)
            (parts,) = zip(*(islice(it, 1) for it in its), strict=True)
            rows = [row for batch in parts for row in batch["tokens"]]
            log.write(json.dumps([step, len(rows), len(rows[0]), digest_rows(rows)]) + "\n")
            log.flush()
            sys.stdout.write("\n")
            sys.stdout.flush()
            if rng.random() < 0.3 or step == steps - 1:
                for loader in loaders:
                    ps.save(folder / "states", loader, step=step + 1, keep=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
