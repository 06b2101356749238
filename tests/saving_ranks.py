"""A training on several processes that save into one folder, one of which dies again and again: `python saving_ranks.py
FOLDER KIND`. It prints what the run was given in all, and what comes after it.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import penstock as ps
from killed_ranks import dying, ranks

ATTEMPTS, STEPS, EVERY = 18, 8, 2


def rows() -> ps.Dataset:
    return ps.mix(
        {"a": ps.from_sequence(range(90)), "b": ps.from_sequence(range(200, 260))},
        {"a": 2, "b": 1},
        seed=4,
    )


KINDS: dict[str, Callable[[], ps.Dataset]] = {
    "indexed": rows,
    "lanes": lambda: rows().filter(lambda x: x % 5).shuffle_buffer(12),
}


def train(loader: ps.Loader, states: Path, log: Path, keep: int | None, together: Any) -> None:
    """Go on from the newest step, and write down what was given after which."""
    step = ps.restore(states, loader) or 0
    with log.open("w") as file:
        file.write(json.dumps([step, None]) + "\n")
        file.flush()
        together.wait()  # as every training does in its first step
        for _ in islice(loader, STEPS):
            step += 1
            file.write(json.dumps([step, loader.keys()[0]]) + "\n")
            file.flush()
            if step % EVERY == 0:
                ps.save(states, loader, keep=keep)


def main(folder: Path, kind: str) -> None:
    logging.disable()
    ds, states = KINDS[kind](), folder / "states"
    logs, died = list[list[Path]](), list[bool]()
    for attempt in range(ATTEMPTS + 1):
        size, keep = (2, 3, 1)[attempt % 3], (None, 1, 2)[attempt // 3 % 3]
        logs.append([folder / f"log-{attempt}-{rank}" for rank in range(size)])
        together = multiprocessing.get_context("fork").Barrier(size)

        def do(
            rank: int,
            attempt: int = attempt,
            size: int = size,
            keep: Any = keep,
            together: Any = together,
        ) -> None:
            if attempt < ATTEMPTS and rank == attempt % size:
                dying(states, attempt * 5 % 13 + 1)
            train(
                ps.Loader(ds, rank=rank, world_size=size, lanes=6),
                states,
                logs[attempt][rank],
                keep,
                together,
            )

        died.append(ranks(size, folder, do) is None)
    alone, again = (ps.Loader(ds, rank=0, world_size=1, lanes=6) for _ in range(2))
    undone, given, restored = ps.restore(states, again) or 0, list[Any](), list[list[int]]()
    for attempt in reversed(logs):
        lines = [
            [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]
            for log in attempt
        ]
        given += [key for each in lines for step, key in each[1:] if step <= undone]
        restored.append(sorted({each[0][0] for each in lines}))
        undone = restored[-1][0]
    told = {
        "given": given,
        "after": [again.keys()[0] for _ in islice(again, 30)],
        "alone": [alone.keys()[0] for _ in islice(alone, len(given) + 30)],
        "restored": restored[::-1],
        "died": died,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
