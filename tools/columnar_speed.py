"""Measures shuffled Arrow and block-shuffled Parquet under several interpreters, in turn: processor
time of each.

    python tools/columnar_speed.py DATA .venv/bin/python .venv-oldest/bin/python

writes 70 MB of data into the folder DATA, and compares the interpreters' versions of pyarrow with
the first one's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS, GROUP, REPEATS = 60_000, 250, 5
BATCHES = 120


def write(folder: Path) -> None:
    """Write the same rows as two Arrow and two Parquet files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for number in range(2):
        ids = [
            rng.integers(0, 50_000, rng.integers(40, 160), dtype=np.int32) for _ in range(ROWS // 2)
        ]
        columns = {
            "text": [" ".join(map(str, row.tolist())) for row in ids],
            "ids": pa.array(ids, pa.list_(pa.int32())),
            "at": pa.array(rng.integers(0, 1 << 60, ROWS // 2), pa.timestamp("ns")),
            "score": rng.random(ROWS // 2),
        }
        table = pa.table(columns)
        pq.write_table(table, folder / "parquet" / f"{number}.parquet", row_group_size=GROUP)
        with pa.ipc.new_file(str(folder / "arrow" / f"{number}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=GROUP)


def measure(folder: Path) -> dict[str, float]:
    """Return the processor time of batches of each kind, in seconds."""
    import logging

    import penstock as ps

    def fail(record: Any) -> bool:
        raise AssertionError(f"a slower way was taken: {record.getMessage()}")

    logging.getLogger("penstock").addFilter(fail)
    arrow = ps.read(folder / "arrow").shuffle(seed=1)
    parquet = ps.read(folder / "parquet").shuffle(seed=1, block=(GROUP, 16))
    found = {}
    for name, ds in {
        "Arrow, batches": arrow.batch(256, collate=list),
        "Arrow, numbers and texts": ps.read(folder / "arrow", columns=["text", "score", "at"])
        .shuffle()
        .batch(256),
        "Parquet, batches": parquet.batch(256, collate=list),
        "Parquet, numbers and texts": ps.read(folder / "parquet", columns=["text", "score", "at"])
        .shuffle(seed=1, block=(GROUP, 16))
        .batch(256),
    }.items():
        began = time.process_time()
        for number in range(BATCHES):
            ds[number]
        found[name] = time.process_time() - began
    return found


def compare(folder: Path, pythons: list[str]) -> None:
    """Print the median processor time of each interpreter, and how it compares with the first."""
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(REPEATS):
        for python in pythons:
            done = subprocess.run(
                [python, __file__, str(folder)],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
            for name, seconds in json.loads(done.stdout).items():
                times.setdefault((name, python), []).append(seconds)
    for (name, python), seconds in times.items():
        median, first = statistics.median(seconds), statistics.median(times[name, pythons[0]])
        print(f"{name:28} {median:7.3f} s {median / first:6.2f}x  {python}")


if __name__ == "__main__":
    data, *others = sys.argv[1:]
    path = Path(data)
    if not others:
        print(json.dumps(measure(path)))
    else:
        for kind in ("arrow", "parquet"):
            (path / kind).mkdir(parents=True, exist_ok=True)
        write(path)
        compare(path, others)
