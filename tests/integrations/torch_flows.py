"""Run in a process of its own, since it forks: a pipeline through torch's loaders, as JSON lines on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, _utils

import penstock as ps
from penstock.integrations.torch import IterableDataset, MapDataset, Sampler


def words(x: int) -> np.ndarray[Any, Any]:
    return np.arange(x, x + x % 7 + 1)


def odd(x: int) -> bool:
    return bool(x % 3)


def twice(x: int) -> list[int]:
    return [x, -x][: x % 3]


def numbers() -> ps.Dataset:
    return ps.from_sequence(range(50)).shuffle(seed=1)


def mixed() -> ps.Dataset:
    return ps.mix(
        {"a": numbers(), "b": ps.from_sequence(range(100, 130)).shuffle()}, {"a": 2, "b": 1}, seed=3
    ).limit(45)


def stored() -> ps.Dataset:
    offsets = np.cumsum([0, *(1 + i % 6 for i in range(40))])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets)


# name -> the pipeline, and whether it has positions
FLOWS: dict[str, tuple[Callable[[], ps.Dataset], bool]] = {
    "samples": (numbers, True),
    "batches": (lambda: numbers().batch(4), True),
    "mixed": (lambda: mixed().batch(4), True),
    "planned": (lambda: stored().shuffle(seed=2).pack(16).batch(2), True),
    "filtered": (lambda: numbers().filter(odd).batch(3), False),
    "flat": (lambda: numbers().flat_map(twice), False),
    "packed": (lambda: numbers().map(words).pack(16).batch(2), False),
    "buffered": (lambda: numbers().filter(odd).shuffle_buffer(8), False),
    "mixed streams": (
        lambda: ps.mix(
            {"a": numbers().filter(odd), "b": numbers().filter(odd)}, {"a": 1, "b": 2}, seed=1
        ).limit(40),
        False,
    ),
}


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items()}
    return item.tolist() if hasattr(item, "tolist") else item


def stream(data: Any, workers: int, how: str, **options: Any) -> Any:
    context: Any = {"num_workers": workers, "multiprocessing_context": how} if workers else {}
    return DataLoader(data, batch_size=None, **context, **options)


def passes(
    name: str,
    workers: int,
    how: str,
    kind: str,
    persistent: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Any:
    """Two passes."""
    make, _ = FLOWS[name]
    options: Any = {"persistent_workers": True} if persistent else {}
    keep: Any = {"remainder": "keep"} if world > 1 and not FLOWS[name][1] else {}
    if kind == "map":
        data = MapDataset(make(), rank=rank, world_size=world)
        loading = stream(data, workers, how, sampler=Sampler(data), **options)
    else:
        loading = stream(
            IterableDataset(make(), rank=rank, world_size=world, **keep), workers, how, **options
        )
    return [[plain(item) for item in loading] for _ in range(2)]


def stateful(name: str, workers: int, how: str, kind: str, at: int) -> Any:
    """Save after `at` items, load the state, and return the rest.

    The state passes through JSON if torchdata's part of it is plain.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader  # pyright: ignore[reportMissingImports]

    def opened() -> Any:
        context: Any = {"num_workers": workers, "multiprocessing_context": how} if workers else {}
        if kind == "iterable":
            return StatefulDataLoader(IterableDataset(FLOWS[name][0]()), batch_size=None, **context)
        data = MapDataset(FLOWS[name][0]())
        return StatefulDataLoader(
            data,
            sampler=Sampler(data),
            batch_size=None if kind == "map" else 3,
            collate_fn=list if kind != "map" else None,
            **context,
        )

    first, second = opened(), opened()
    items = iter(first)
    before = [plain(next(items)) for _ in range(at)]
    state = first.state_dict()
    second.load_state_dict(state)
    return [before, [plain(item) for item in second], [plain(item) for item in second]]


def bare(name: str, workers: int, how: str, loader: bool) -> Any:
    """A dataset or a loader handed to `DataLoader` as it is."""
    dataset = FLOWS[name][0]()
    try:
        return [
            plain(item) for item in stream(ps.Loader(dataset) if loader else dataset, workers, how)
        ]
    except Exception as error:
        return str(error)


if __name__ == "__main__":
    _utils.MP_STATUS_CHECK_INTERVAL = (
        0.2  # torch waits so long for every worker of a loader that failed: 5 s
    )
    for asked in json.load(sys.stdin):
        sys.stdout.write(json.dumps(globals()[asked.pop("do")](**asked)) + "\n")
        sys.stdout.flush()
