"""What the processes of `jax_crew` do: they show what they found, and the tests say whether it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from penstock.base.seams import place as found
from penstock.frames.jax import Sharded, place

LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[str, ...], list[Any]]] = {
    "data": ((8,), ("data",), ["data"]),
    "data and model": ((4, 2), ("data", "model"), ["data"]),
    "wide model": ((2, 4), ("data", "model"), ["data", None]),
    "model first": ((4, 2), ("model", "data"), ["data"]),
    "two axes": ((2, 2, 2), ("data", "fsdp", "model"), [["data", "fsdp"]]),
    "columns": ((2, 2, 2), ("data", "seq", "model"), ["data", "seq"]),
    "no axis": ((8,), ("data",), []),
    "rows and all": ((2, 4), ("data", "model"), [["data", "model"]]),
}
"""Layouts of 8 devices: shape and axes of the mesh, and the spec of the batches."""


def sharding(name: str, order: list[int] | None = None) -> NamedSharding:
    shape, axes, spec = LAYOUTS[name]
    devices = np.array(jax.devices())[order if order is not None else range(8)]
    return NamedSharding(
        Mesh(devices.reshape(shape), axes), PartitionSpec(*[tuple(s) if isinstance(s, list) else s for s in spec])
    )


def rows(n: int = 48) -> ps.Dataset:
    def sample(i: int) -> dict[str, Any]:
        return {"x": np.full(4, i, np.int32), "inner": {"y": np.float32(i) / 2}, "name": f"row {i}", "on": i % 3 == 0}

    return ps.from_sequence(range(n), name="numbers").shuffle(seed=5).map(sample)


def shown(array: Any) -> list[Any]:
    """The shape of a global array, and what of it lies here: where it begins, and the values."""
    here = [
        ([int(s.start or 0) for s in shard.index], np.asarray(shard.data).tolist())
        for shard in array.addressable_shards
    ]
    return [list(array.shape), here]


def told(fn: Callable[[], Any]) -> str:
    """What is said of something that cannot be."""
    try:
        fn()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def layouts(_: Any) -> Any:
    """Every layout: our place, and the first two batches of rows of ours, as global arrays."""
    out: dict[str, Any] = {"found": found(), "seen": {}}
    for name in LAYOUTS:
        rank, world = place(sharding(name))
        loader = ps.Loader(rows().batch(24 // world), rank=rank, world_size=world)
        with Sharded(loader, sharding(name)) as batches:
            steps = [next(batches) for _ in range(2)]
            out["seen"][name] = {
                "place": [rank, world],
                "x": [shown(step["x"]) for step in steps],
                "y": [shown(step["inner"]["y"]) for step in steps],
                "names": [step["name"] for step in steps],
                "keys": batches.keys(),
            }
    alone = ps.Loader(rows().batch(6))  # finds its rank by itself
    out["itself"] = [shown(step["x"]) for step in Sharded(alone, sharding("data"))]
    return out


def refusals(_: Any) -> Any:
    """What is said of layouts and loaders that cannot be."""
    refused = [
        told(lambda: place(sharding("data and model", [0, 2, 1, 3, 4, 5, 6, 7]))),
        told(lambda: Sharded(ps.Loader(rows().batch(6), rank=0, world_size=1), sharding("data"))),
        told(lambda: Sharded(ps.Loader(rows().batch(6), remainder="keep"), sharding("data"))),
        told(lambda: next(Sharded(ps.Loader(rows().batch(3)), sharding("data")))),
    ]
    few = NamedSharding(Mesh(np.array(jax.devices())[:6], "data"), PartitionSpec("data"))
    return {"refused": refused, "few": told(lambda: place(few)) if jax.process_index() == 3 else list(place(few))}
