"""Golden orders: the first 200 keys of sixteen pipelines. `python tests/test_golden.py` pins them anew.

A run that was saved by one release must go on the same under the next. If this test fails, a change moved samples
about: either it was not meant to, or it is a break labelled ORDER in the CHANGELOG (and `penstock.engine.base.random.VERSION` goes up).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import numbers
from penstock.engine.base.random import RANDOM_VERSION
from penstock.engine.runtime.iterator import DatasetIterator
from penstock.testing import recipes

FILE = Path(__file__).parent / "golden" / "orders-v3.json"
COUNT = 200
LABEL = (
    "the order has changed. If that was not meant, find what moved it. If it was, it breaks every run that is under "
    "way: label it ORDER in the CHANGELOG, raise penstock.engine.base.random.VERSION, and run `python tests/test_golden.py`"
)

Key = tuple[str, int, int]


def three(n: int = 1) -> dict[str, ps.Dataset]:
    return {
        "code": numbers(50 * n).shuffle(),
        "prose": numbers(90 * n).shuffle(),
        "pairs": numbers(31 * n).shuffle(),
    }


WEIGHTS = {"code": 0.5, "prose": 0.3, "pairs": 0.2}


def store() -> ps.Dataset:
    """Documents of 1 to 96 tokens."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(1 + np.arange(400) * 37 % 96)])
    return ps.from_tokens(np.zeros(int(offsets[-1]), np.uint16), offsets, name="store")


def nested() -> ps.Dataset:
    web = ps.mix(
        {"en": numbers(80).shuffle(), "de": numbers(40).shuffle()},
        {"en": 2, "de": 1},
        seed=5,
        block_size=16,
    )
    return ps.mix(
        {"web": web, "code": numbers(60).shuffle()}, {"web": 3, "code": 1}, seed=6, block_size=32
    )


def scheduled() -> ps.Dataset:
    late = {"code": 0.8, "prose": 0.1, "pairs": 0.1}
    schedule = ps.Schedule([(0, WEIGHTS), (60, WEIGHTS), (140, late)], interpolation="cosine")
    return ps.mix(three(), schedule, seed=1, block_size=20)


def ramp(sources: int, length: int) -> ps.Dataset:
    """Draws all along a ramp, which is worked out in stairs, those in pieces: as long as the longest of them allow."""
    names = [f"{i:03}" for i in range(sources)]
    early = {name: 1 + i % 7 for i, name in enumerate(names)}
    late = {name: 1 + i % 5 for i, name in enumerate(reversed(names))}
    flows = {name: numbers(100 + i).shuffle() for i, name in enumerate(names)}
    schedule = ps.Schedule([(0, early), (length, late)], interpolation="linear")
    return ps.mix(flows, schedule, seed=1)[: length : length // (COUNT - 1)]


def filtered() -> ps.Dataset:
    return numbers(600).shuffle(seed=4).filter(recipes.most).shuffle_buffer(40, seed=9)


PIPELINES: dict[str, Callable[[], ps.Dataset]] = {
    "shuffle of 10": lambda: numbers(10).shuffle(seed=42).repeat(),
    "shuffle of 2^40 + 1": lambda: numbers((1 << 40) + 1).shuffle(seed=42),
    "shuffle in blocks": lambda: numbers(150).shuffle(seed=42, block=(8, 4)).repeat(2),
    "mix of three": lambda: ps.mix(three(), WEIGHTS, seed=1, block_size=50),
    "mix of three, one by one": lambda: ps.mix(three(), WEIGHTS, seed=1, block_size=1),
    "mix of mixes": nested,
    "mix on a schedule": scheduled,
    "mix on a ramp of 300 sources": lambda: ramp(300, 10**9),
    "mix on a ramp of 10^11 draws": lambda: ramp(2, 10**11),
    "mix with caps": lambda: ps.mix(
        three(), WEIGHTS, seed=1, block_size=30, max_epochs={"code": 1.5, "pairs": 1}
    ),
    "mix until all are exhausted": lambda: ps.mix(
        three(2), WEIGHTS, seed=1, block_size=25, stop="all_exhausted"
    ),
    "slice, then repeat": lambda: numbers(100).shuffle(seed=3)[10:70:2].repeat(7),
    "filter, then shuffle buffer": filtered,
    "pack, best fit": lambda: store().shuffle(seed=2).pack(256, "best_fit", window=64),
    "tokens, packed end to end, in batches": lambda: store().shuffle(seed=2).pack(128).batch(4),
}
IN_LANES = "four lanes"


def keys_of(ds: ps.Dataset) -> Iterator[Key]:
    """Source, epoch and index of every sample of the items of a dataset."""
    it = DatasetIterator(ds, lanes=48)
    for _ in it:
        yield from it.keys()


def keys_in_lanes() -> Iterator[Key]:
    """The keys of a loader of four lanes, over two passes."""
    ds = (
        ps.mix(three(), WEIGHTS, seed=1, stop="all_exhausted")
        .filter(recipes.most)
        .shuffle_buffer(8)
    )
    with ps.Loader(ds, lanes=4) as loader:
        for _ in range(2):
            for _ in loader:
                yield from loader.keys()


def now(name: str) -> list[list[Any]]:
    """The first keys of a pipeline as they are now, as JSON has them."""
    keys = keys_in_lanes() if name == IN_LANES else keys_of(PIPELINES[name]())
    return [[source, int(epoch), int(index)] for source, epoch, index in islice(keys, COUNT)]


def write() -> None:
    """Write the golden file anew: one line for a pipeline, so that a diff shows which changed."""
    found = {name: now(name) for name in (*PIPELINES, IN_LANES)}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(keys, separators=(',', ':'))}"
        for name, keys in found.items()
    )
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(f'{{"order": {RANDOM_VERSION}, "keys": {{\n{lines}\n}}}}\n', encoding="utf-8")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*PIPELINES, IN_LANES])
def test_the_order_is_the_one_that_was_pinned(name: str, golden: dict[str, Any]) -> None:
    want, got = golden["keys"][name], now(name)
    assert len(want) == COUNT
    differ = next(
        (i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b),
        min(len(got), len(want)),
    )
    here, there = got[differ : differ + 3], want[differ : differ + 3]
    assert got == want, (
        f"ORDER: {name!r} differs from key {differ} on ({here} instead of {there}): {LABEL}"
    )


def test_the_file_holds_these_pipelines_and_this_version(golden: dict[str, Any]) -> None:
    assert set(golden["keys"]) == {*PIPELINES, IN_LANES}, (
        "run `python tests/test_golden.py` after adding a pipeline"
    )
    assert golden["order"] == RANDOM_VERSION, f"ORDER: {LABEL}"


def test_the_pipelines_pin_something(golden: dict[str, Any]) -> None:
    """No two pipelines have the same keys, and none is in plain order."""
    texts = [json.dumps(keys) for keys in golden["keys"].values()]
    assert len(set(texts)) == len(texts)
    for name, keys in golden["keys"].items():
        for lap in {(source, epoch) for source, epoch, _ in keys}:
            mine = [index for source, epoch, index in keys if (source, epoch) == lap]
            assert len(mine) < 5 or mine != sorted(mine), f"{name}: {lap} comes in plain order"


if __name__ == "__main__":
    write()
