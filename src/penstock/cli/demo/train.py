"""One training process of the demo: take batches, write the journal, save states.

`python -m penstock.cli.demo.train FOLDER RUN --steps 400 --workers 2 [--state FOLDER]`
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.engine.base.machine import measure_resident_memory

from .journal import Record, write
from .pipeline import MIXTURE, SOURCE_NAMES

STEP = 0.01  # seconds of a simulated training step

Batch = Mapping[str, Any]
SampleKey = tuple[str, int, int]  # source, epoch, index


def digest(batch: Batch, keys: Sequence[SampleKey]) -> str:
    """Return the SHA-256 of all arrays of a batch and the keys of its samples."""
    sha256 = hashlib.sha256(repr(keys).encode())
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        sha256.update(f"{name} {array.dtype} {array.shape};".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def count_by_source(
    batch: Batch, keys: Sequence[SampleKey]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return samples that begin in the batch, and tokens, by source.

    A split document began in an earlier batch.
    """
    first = np.diff(batch["segment_ids"], prepend=0, axis=1) > 0
    begins_document = (batch["positions"][first] == 0).tolist()
    samples = Counter(
        source for (source, _, _), begins in zip(keys, begins_document, strict=True) if begins
    )
    is_token = batch["segment_ids"] > 0
    # Rows are flattened: a part ends where the next one begins.
    lengths = np.diff(np.flatnonzero(first[is_token]), append=int(is_token.sum()))
    tokens = Counter[str]()
    for (source, _, _), length in zip(keys, lengths.tolist(), strict=True):
        tokens[source] += length
    return {name: samples[name] for name in SOURCE_NAMES}, {
        name: tokens[name] for name in SOURCE_NAMES
    }


def get_states_folder(run: Path) -> Path:
    """Return the folder of a run's states."""
    return run.with_suffix(".states")


def train(
    folder: Path,
    run: Path,
    *,
    steps: int,
    workers: int,
    save_every: int,
    state: Path | None,
    hold_at: int | None,
) -> None:
    """Run to `steps`, from the beginning or a state; after step `hold_at` wait for EOF on stdin."""
    with ps.Loader(
        ps.load(folder / MIXTURE), workers=workers, executor="threads" if workers else "inline"
    ) as loader:
        first = 0
        if state is not None:
            first = ps.restore(state, loader) or 0
        start = time.perf_counter()
        with run.with_suffix(".jsonl").open("a", encoding="utf-8") as journal:
            for step, batch in enumerate(loader, first + 1):
                keys = loader.keys()
                seconds = time.perf_counter() - start
                write(
                    journal,
                    Record(
                        step,
                        digest(batch, keys),
                        keys,
                        *count_by_source(batch, keys),
                        seconds,
                        measure_resident_memory(),
                    ),
                )
                time.sleep(STEP)
                if step % save_every == 0:
                    ps.save(get_states_folder(run), loader, keep=2)
                if step == hold_at:
                    sys.stdin.read()
                if step == steps:
                    return


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        prog="penstock.cli.demo.train", description="One training process of the demo."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--hold-at", type=int)
    arguments = parser.parse_args()
    train(
        arguments.folder,
        arguments.run,
        steps=arguments.steps,
        workers=arguments.workers,
        save_every=arguments.save_every,
        state=arguments.state,
        hold_at=arguments.hold_at,
    )


if __name__ == "__main__":
    main()
