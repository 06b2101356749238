"""Far questions, warm: 60 sources of 200,000 documents, row 10^12; medians, in milliseconds of
processor time. A row
of whole documents is paid for with the packing of its window: 1,024 rows of 8,192 tokens.

python tools/far_questions.py [--unit tokens]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import penstock as ps

SOURCES, DOCUMENTS, FIRST_ROW = 60, 200_000, 10**12
APART = 1024 + 3  # rows: more than a window


def dataset(method: Any, unit: Any) -> ps.Dataset:
    """The packed mixture."""
    sources, weights = dict[str, ps.Dataset](), dict[str, float]()
    for i in range(SOURCES):
        sizes = (
            np.random.default_rng(i).lognormal(np.log(600) - 0.5, 1.0, DOCUMENTS).astype(np.int64)
            + 1
        )
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (int(offsets[-1]),), (0,))
        sources[f"s{i:02}"], weights[f"s{i:02}"] = (
            ps.from_tokens(tokens, offsets, name=f"s{i:02}").shuffle(),
            1 + i % 7,
        )
    return ps.mix(sources, weights, seed=1, unit=unit).pack(8192, method)


def time_question(ask: Callable[[int], Any], times: int) -> float:
    """The milliseconds of one question, of the processor; each is another, so that nothing is
    remembered."""
    found = list[float]()
    for i in range(times):
        began = time.process_time()
        ask(i)
        found.append((time.process_time() - began) * 1e3)
    return round(median(found), 2)


def figures(method: str, unit: str, times: int = 9) -> dict[str, float]:
    """Ask a packing method its questions.

    Each question is about a window of its own, so that whole documents are packed for it, and all
    are about passes with known sums.
    """
    ds = dataset(method, unit)
    plan, rows = ds.plan, [FIRST_ROW + i * APART for i in range(3 * times + 1)]
    keys = {row: plan.at(row)[0] for row in rows[:times]}
    plan.at(rows[-1])
    out = {"at": time_question(lambda i: plan.at(rows[times + i] + 1), times)}
    found = [
        plan.find(key.source, key.index, within=range(row, row + 1)) for row, key in keys.items()
    ]
    assert found == [[row] for row in keys]

    def find(i: int) -> None:
        plan.find(keys[rows[i]].source, keys[rows[i]].index, within=range(rows[i], rows[i] + 1))

    plan.at(rows[-1])
    out["find"] = time_question(find, times)
    with ps.Loader(ds) as loader:
        states = list[Any]()
        for row in rows[2 * times :]:
            loader.seek(row + 2)
            states.append(loader.state_dict())

        def resume(i: int) -> None:
            loader.load_state_dict(states[i])
            next(iter(loader))

        resume(times)
        out["resume"] = time_question(resume, times)
    return out


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--unit", default="samples")
    unit = given.parse_args().unit
    for method in ("concat_split", "best_fit"):
        print(json.dumps({"method": method, "unit": unit, **figures(method, unit)}), flush=True)


if __name__ == "__main__":
    main()
