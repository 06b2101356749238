"""A run that is killed: it reads from standard input what to do, and writes every item and the state after it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np

import penstock as ps


def slow(x: int) -> dict[str, Any]:
    time.sleep(0.002)
    return {"x": x, "many": np.full(4000, x)}


def rows(n: int) -> ps.Dataset:
    return ps.from_sequence(range(n)).shuffle(seed=3)


FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "batches": lambda: rows(900).map(slow).batch(3),
    "filtered": lambda: rows(900).map(slow).filter(lambda row: row["x"] % 3).batch(2),
    "packed": lambda: rows(700).map(lambda x: slow(x)["many"][: x % 60 + 1]).pack(128),
    "mixed": lambda: ps.mix(
        {"a": rows(300).map(slow), "b": rows(500).map(slow)}, {"a": 1, "b": 2}, seed=1
    ).limit(700),
}

ENDLESS: dict[str, Callable[[], ps.Dataset]] = {
    "mixed": lambda: ps.mix(
        {"a": rows(150).map(slow), "b": rows(200).map(slow)}, {"a": 1, "b": 2}, seed=1
    ),
    "filtered": lambda: rows(400).map(slow).filter(lambda row: row["x"] % 3).repeat(),
    "packed": lambda: rows(300).map(lambda x: slow(x)["many"][: x % 60 + 1]).pack(128).repeat(),
}
"""Runs that any number of ranks share out and go on with: an item of each is one of the run on one rank."""


def told(item: dict[str, Any]) -> Any:
    """An item as plain JSON, short."""
    return {
        name: [np.ravel(value)[:20].tolist(), int(np.sum(value))] for name, value in item.items()
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    loader = ps.Loader(ENDLESS[asked["name"]](), **asked["options"])
    if asked["states"]:
        loader.load_state_dict(asked["states"])
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    workers = executor.workers if asked["options"]["executor"] == "processes" else []
    sys.stdout.write(json.dumps([worker.process.pid for worker in workers]) + "\n")
    sys.stdout.flush()
    for item in islice(loader, asked["steps"]):
        sys.stdout.write(json.dumps([told(item), loader.state_dict()]) + "\n")
        sys.stdout.flush()
