"""Random pipelines and loaders for Grain and its compatibility package, drawn from a seed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

import penstock.compat.grain as ours

INLINE = ours.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def take(it: Iterator[Any], count: int) -> list[Any]:
    """Return up to `count` elements, as lists and numbers."""
    return [np.asarray(value).tolist() for value in islice(it, count)]


class Built:
    """A random pipeline, drawn from a seed: the same one for either library."""

    def __init__(self, seed: int, api: Any, order: dict[str, str], inline: Any) -> None:
        self.dice, self.api, self.order, self.inline = random.Random(seed), api, order, inline

    def maps(self, depth: int) -> Any:
        dice, api = self.dice, self.api
        ds = self.source(depth)
        for _ in range(dice.randint(0, 4)):
            step = dice.choice(
                [
                    "map",
                    "shuffle",
                    "shuffle",
                    "repeat",
                    "slice",
                    "random",
                    "index",
                    "seed",
                    "window",
                ]
            )
            endless, size = len(ds) == sys.maxsize, len(ds)
            if step == "map":
                ds = ds.map(lambda x: x + 1)
            elif step == "seed":
                ds = ds.seed(dice.randint(0, 50))
            elif step == "shuffle" and not endless and size:
                ds = ds.shuffle(seed=dice.choice([None, 7, 4294967295]))
            elif step == "repeat" and not endless:
                ds = ds.repeat(dice.choice([None, 2, 3]), reseed_each_epoch=dice.random() < 0.7)
            elif step == "slice" and size > 4:
                a, c = dice.randint(0, 2), dice.randint(1, 3)
                ds = (
                    ds[a:50:c]
                    if endless
                    else ds[a::c]
                    if dice.random() < 0.5
                    else ds[a : size - 1 : c]
                )
            elif step == "random":
                ds = ds.random_map(lambda x, rng: x + int(rng.integers(0, 1000)))
            elif step == "index":
                ds = ds.map_with_index(lambda i, x: 7 * x + i)
            elif step == "window" and not endless:
                ds = api.experimental.WindowShuffleMapDataset(
                    ds, window_size=dice.randint(1, 7), seed=dice.randint(0, 9)
                )
        return ds

    def source(self, depth: int) -> Any:
        dice, api = self.dice, self.api
        kind = (
            dice.choice(["range", "list", "mix", "concat"])
            if depth
            else dice.choice(["range", "list"])
        )
        if kind == "range":
            return api.MapDataset.range(dice.randint(1, 30), **self.order).seed(dice.randint(0, 99))
        if kind == "list":
            return api.MapDataset.source(
                [3 * i for i in range(dice.randint(1, 20))], **self.order
            ).seed(5)
        parts = [self.maps(depth - 1) for _ in range(dice.randint(1, 3))]
        if kind == "concat":
            parts = [part[:20] if len(part) == sys.maxsize else part for part in parts]
            return api.MapDataset.concatenate(parts)
        parts = [part if len(part) else api.MapDataset.range(3, **self.order) for part in parts]
        weights = [dice.choice([1, 2, 0.3, 1.005]) for _ in parts] if dice.random() < 0.8 else None
        return api.MapDataset.mix(parts, weights)

    def stream(self, depth: int) -> Any:
        dice, api, grain = self.dice, self.api, self.api.experimental
        if depth and dice.random() < 0.4:
            parts = [self.stream(depth - 1) for _ in range(2)]
            if dice.random() < 0.4:
                ds = grain.InterleaveIterDataset(parts, cycle_length=dice.randint(1, 2))
            else:
                ds = api.IterDataset.mix(parts, [dice.choice([1, 2, 0.3]) for _ in parts])
        else:
            ds = self.maps(2)
            endless = len(ds) == sys.maxsize  # what filters may leave nothing of
            if dice.random() < 0.3 and not endless:
                ds = ds.filter(lambda x: x % 3)
            ds = ds.to_iter_dataset(self.inline)
            ds = grain.LimitIterDataset(ds, 70) if endless else ds
        for _ in range(dice.randint(0, 3)):
            step = dice.choice(["window", "random", "index", "filter", "limit", "repeat", "seed"])
            if step == "window":
                ds = grain.WindowShuffleIterDataset(
                    ds, window_size=dice.randint(1, 12), seed=dice.randint(0, 99)
                )
            elif step == "random":
                ds = ds.random_map(
                    lambda x, rng: x + int(rng.integers(0, 1000)), seed=dice.randint(0, 9)
                )
            elif step == "index":
                ds = ds.map_with_index(lambda i, x: 5 * x + i)
            elif step == "filter":
                ds = ds.filter(lambda x: x % 5)
            elif step == "limit":
                ds = grain.LimitIterDataset(ds, dice.randint(1, 90))
            elif step == "seed":
                ds = ds.seed(dice.randint(0, 9)).random_map(
                    lambda x, rng: x + int(rng.integers(0, 10))
                )
            elif step == "repeat":
                ds = grain.RepeatIterDataset(grain.LimitIterDataset(ds, 30), 2)
        return ds

    def line(self) -> Any:
        """Return a dataset whose states in Grain say no more than indices and counts."""
        dice = self.dice
        ds = self.maps(2).to_iter_dataset(self.inline)
        for _ in range(dice.randint(0, 3)):
            step = dice.choice(["map", "random", "index", "filter", "seed"])
            if step == "map":
                ds = ds.map(lambda x: x + 3)
            elif step == "random":
                ds = ds.random_map(lambda x, rng: x + int(rng.integers(0, 1000)), seed=3)
            elif step == "index":
                ds = ds.map_with_index(lambda i, x: 5 * x + i)
            elif step == "filter":
                ds = ds.filter(lambda x: x % 5 != 2)
            elif step == "seed":
                ds = ds.seed(4).random_map(lambda x, rng: x + int(rng.integers(0, 10)))
        if dice.random() < 0.5:
            ds = ds.batch(dice.randint(1, 5), drop_remainder=dice.random() < 0.5)
        if dice.random() < 0.3:
            ds = self.api.experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)
        return ds

    def whole(self) -> Any:
        ds = self.stream(1)
        return (
            ds.batch(self.dice.randint(1, 5), drop_remainder=self.dice.random() < 0.5)
            if self.dice.random() < 0.5
            else ds
        )


class Loader:
    """A random `DataLoader`, drawn from a seed: equal in either package."""

    def __init__(self, grain: Any, seed: int, **options: Any) -> None:
        dice = random.Random(seed)
        self.workers = dice.randrange(4)

        class Noise(grain.transforms.RandomMap):
            def random_map(self, element: Any, rng: np.random.Generator) -> Any:
                return element * 1000 + int(rng.integers(1000))

        class Plus(grain.transforms.Map):
            def map(self, element: Any) -> Any:
                return element + 7

        class Third(grain.transforms.Filter):
            def filter(self, element: Any) -> bool:
                return element % 3 != 0

        n, shards = dice.randrange(12, 90), dice.randrange(1, 4)
        shard = grain.sharding.ShardOptions(dice.randrange(shards), shards, dice.random() < 0.5)
        others = dice.randrange(1, 4)
        of_loader = grain.sharding.ShardOptions(dice.randrange(others), others)
        kinds = [dice.choice([Noise, Plus, Third, Noise]) for _ in range(dice.randrange(4))]
        operations: list[Any] = [kind() for kind in kinds]
        sharded_by_loader = dice.random() < 0.4
        if dice.random() < 0.3:
            sampler = grain.samplers.SequentialSampler(n, shard, seed=dice.randrange(99))
        else:
            epochs = dice.choice([4 if Third in kinds else None, 1, 2, 3])
            shuffles = dice.random() < 0.7
            sampler = grain.samplers.IndexSampler(n, shard, shuffles, epochs, dice.randrange(99))
        if dice.random() < 0.5:
            operations.append(grain.transforms.Batch(dice.randrange(1, 5), dice.random() < 0.5))
        threads, prefetched = dice.choice([(0, 0), (2, 3)])
        self.loader = grain.DataLoader(
            data_source=range(n),
            sampler=sampler,
            operations=operations,
            worker_count=self.workers,
            worker_buffer_size=dice.randrange(1, 3),
            shard_options=of_loader if sharded_by_loader else None,
            read_options=grain.ReadOptions(threads, prefetched),
            **options,
        )
        self.position = dice.randrange(12)
