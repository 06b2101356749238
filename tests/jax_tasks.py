"""Tasks of the processes of `jax_ranks`: they report observations, which the tests check."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import penstock as ps
from jax_ranks import say
from penstock.engine.base.machine import detect_rank as found
from penstock.integrations.jax_form import share_of

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
        Mesh(devices.reshape(shape), axes),
        PartitionSpec(*[tuple(s) if isinstance(s, list) else s for s in spec]),
    )


def rows(n: int = 48) -> ps.Dataset:
    def sample(i: int) -> dict[str, Any]:
        return {
            "x": np.full(4, i, np.int32),
            "inner": {"y": np.float32(i) / 2},
            "name": f"row {i}",
            "on": i % 3 == 0,
        }

    return ps.from_sequence(range(n), name="numbers").shuffle(seed=5).map(sample)


def shown(array: Any) -> list[Any]:
    """The shape of a global array, and what of it lies here: where it begins, and the values."""
    here = [
        ([int(s.start or 0) for s in shard.index], np.asarray(shard.data).tolist())
        for shard in array.addressable_shards
    ]
    return [list(array.shape), here]


def told(fn: Callable[[], Any]) -> str:
    """Return the type and message of a `ValueError`, or "nothing"."""
    try:
        fn()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def places(_: Any) -> Any:
    return {**layouts(), **refusals()}


def layouts() -> Any:
    """Every layout: our place, and the first two batches of rows of ours, as global arrays."""
    out: dict[str, Any] = {"found": found(), "seen": {}}
    for name in LAYOUTS:
        rank, world, _ = share_of(sharding(name))
        with ps.Loader(rows().batch(24 // world), to="jax", device=sharding(name)) as batches:
            steps = [step for _, step in zip(range(2), batches, strict=False)]
            out["seen"][name] = {
                "place": [rank, world],
                "x": [shown(step["x"]) for step in steps],
                "y": [shown(step["inner"]["y"]) for step in steps],
                "names": [step["name"] for step in steps],
                "keys": batches.keys(),
            }
    alone = ps.Loader(rows().batch(6), to="jax", device=sharding("data"))
    out["itself"] = [shown(step["x"]) for step in alone]
    return out


def refusals() -> Any:
    """Return the errors of invalid layouts and loaders."""
    refused = [
        told(lambda: share_of(sharding("data and model", [0, 2, 1, 3, 4, 5, 6, 7]))),
        told(lambda: opened_by("data", rows().batch(6), rank=0, world_size=1)),
        told(lambda: opened_by("data", rows().batch(6), remainder="keep")),
        told(lambda: next(iter(opened_by("data", rows().batch(3))))),
    ]
    few = NamedSharding(Mesh(np.array(jax.devices())[:6], "data"), PartitionSpec("data"))
    return {
        "refused": refused,
        "few": told(lambda: share_of(few)) if jax.process_index() == 3 else list(share_of(few)[:2]),
    }


def opened_by(layout: str, ds: ps.Dataset, **options: Any) -> ps.Loader:
    return ps.Loader(ds, to="jax", device=sharding(layout), **options)


# ---------------------------------------------------------------- checkpoints


def failing(x: int) -> int:
    if x in (3, 17, 40):
        raise ValueError(f"row {x}")
    return x


def document(x: int) -> Any:
    return np.full(x % 7 + 1, x, np.int32)


def sources() -> dict[str, ps.Dataset]:
    return {
        name: ps.from_sequence(range(90), name=name).shuffle(seed=4).repeat() for name in ("a", "b")
    }


def mixed() -> ps.Dataset:
    return ps.mix(sources(), {"a": 1, "b": 3}, seed=9)


RUNS: dict[str, Callable[[int], tuple[ps.Dataset, dict[str, Any]]]] = {
    "indexed": lambda world: (mixed().batch(12 // world), {}),
    "packed": lambda world: (mixed().map(document).pack(16), {"lanes": 6}),
    "buffered": lambda world: (mixed().filter(lambda x: x % 5).shuffle_buffer(96), {"lanes": 6}),
    "journal": lambda world: (mixed().map(failing).batch(12 // world), {"on_error": "quarantine"}),
}
"""Runs whose global steps do not depend on the number of ranks, or (in lanes) whose items come to them in turn."""
WAYS = {
    "indexed": ["sync"],
    "packed": ["sync", "async", "v1", "v1 async"],
    "buffered": ["async"],
    "journal": ["v1"],
}
STEPS = 6


def opened(name: str) -> ps.Loader:
    ds, options = RUNS[name](jax.process_count())
    return ps.Loader(ds, **options)


def keys_of(loader: ps.Loader, n: int) -> list[Any]:
    return [loader.keys() for _ in zip(range(n), loader, strict=False)]


def model() -> dict[str, Any]:
    """Something beside the data: an array that lies on all processes."""
    mesh = NamedSharding(Mesh(np.array(jax.devices()), "data"), PartitionSpec("data"))
    values = np.arange(6 // jax.process_count(), dtype=np.float32)
    return {"w": jax.make_array_from_process_local_data(mesh, values, (6,))}


def save(loader: ps.Loader, path: str, way: str) -> list[Any]:
    """Save; where it is done in the background, go on meanwhile, and tell with what."""
    import orbax.checkpoint as ocp
    from orbax.checkpoint.experimental import v1

    from penstock.integrations.orbax import Checkpointable, Save

    if way == "v1":
        v1.save_checkpointables(path, {"model": model(), "data": Checkpointable(loader)})
        return []
    if way == "v1 async":
        response = v1.save_checkpointables_async(
            path, {"model": model(), "data": Checkpointable(loader)}
        )
        ahead = keys_of(loader, 1)
        response.result()
        return ahead
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=way == "async")
    with ocp.CheckpointManager(path, options=options) as manager:
        manager.save(
            7, args=ocp.args.Composite(model=ocp.args.StandardSave(model()), data=Save(loader))
        )
        return keys_of(loader, 1)


def restore(loader: ps.Loader, path: str, way: str) -> None:
    import orbax.checkpoint as ocp
    from orbax.checkpoint.experimental import v1

    from penstock.integrations.orbax import Checkpointable, Restore

    if way.startswith("v1"):
        v1.load_checkpointables(path, {"data": Checkpointable(loader)})
        return
    with ocp.CheckpointManager(path) as manager:
        assert manager.restore(7, args=ocp.args.Composite(data=Restore(loader)))["data"] is loader


def saving(folder: str) -> Any:
    """Every run goes some steps, is saved in its ways, and goes on."""
    out = dict[str, Any]()
    for name, ways in WAYS.items():
        for way in ways:
            loader = opened(name)
            keys_of(loader, STEPS // 2)
            if name != "journal":
                loader.set_weights({"a": 5, "b": 1}, at=600)
            keys_of(loader, STEPS // 2)
            journal = loader.journal
            ahead = save(loader, f"{folder}/{name}/{way}", way)
            out[f"{name}/{way}"] = [ahead + keys_of(loader, 3 * STEPS), journal]
    return out


def restoring(folder: str) -> Any:
    """Every checkpoint is loaded into a new run, which goes on."""
    out = dict[str, Any]()
    for name, ways in WAYS.items():
        for way in ways:
            loader = opened(name)
            restore(loader, f"{folder}/{name}/{way}", way)
            out[f"{name}/{way}"] = [keys_of(loader, STEPS), loader.journal]
    return out


def dying(folder: str) -> Any:
    """Saves twice, and is killed in the middle of the second, when the state lies in its folder already."""
    import orbax.checkpoint as ocp

    from penstock.integrations.orbax import Save

    class Killing:
        def result(self, timeout: float | None = None) -> None:
            until = (
                time.monotonic() + 60
            )  # the other process ends with this one, and may not have written yet
            while (
                len(list(Path(folder).glob("2*/data*/process_*-of-2.json"))) < 2
                and time.monotonic() < until
            ):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    class Kills(ocp.JsonCheckpointHandler):
        async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
            return [Killing()]  # asked after those of the items before

    @ocp.args.register_with_handler(Kills, for_save=True, for_restore=True)
    @dataclass
    class Kill(ocp.args.CheckpointArgs):
        pass

    loader = opened("packed")
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(folder, options=options) as manager:
        keys_of(loader, 3)
        manager.save(1, args=ocp.args.Composite(data=Save(loader)))
        say(keys_of(loader, 3))
        manager.save(2, args=ocp.args.Composite(data=Save(loader), then=Kill()))


# ---------------------------------------------------------------- training


def training(asked: dict[str, Any]) -> Any:
    """Trains a model of pairs of letters on a mixture file, with a checkpoint every third step; goes on from the last one.

    Where it is told to, it is killed after a step. Each line that it says is a step, with its loss and samples.
    """
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    from jax_flow import flow
    from penstock.integrations.orbax import Restore, Save

    mesh = Mesh(np.array(jax.devices()), "data")
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    batches = ps.Loader(flow(asked["mixture"], 8 // jax.process_count()), to="jax", device=rows)

    def loss(w: Any, row: dict[str, Any]) -> Any:
        known = (row["segment_ids"][:, 1:] == row["segment_ids"][:, :-1]) & (
            row["segment_ids"][:, 1:] > 0
        )
        said = jax.nn.log_softmax(w[row["tokens"][:, :-1]])
        right = jnp.take_along_axis(said, row["tokens"][:, 1:, None], axis=-1)[..., 0]
        return -(right * known).sum() / known.sum()

    @jax.jit
    def step(w: Any, row: dict[str, Any]) -> Any:
        value, slope = jax.value_and_grad(loss)(w, row)
        return value, w - 3.0 * slope

    w = jax.device_put(np.zeros((128, 128), np.float32), whole)
    first, told = 0, list[Any]()
    with ocp.CheckpointManager(asked["folder"]) as manager:
        if (latest := manager.latest_step()) is not None:
            like = {"w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=whole)}
            args = ocp.args.Composite(model=ocp.args.StandardRestore(like), data=Restore(batches))
            first, w = latest, manager.restore(latest, args=args)["model"]["w"]
        for number, row in zip(range(first, asked["steps"]), batches, strict=False):
            value, w = step(w, row)
            told.append([number, float(value), batches.keys()])
            say(told[-1])
            if number == asked.get("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if number % 3 == 2:
                manager.save(
                    number + 1,
                    args=ocp.args.Composite(
                        model=ocp.args.StandardSave({"w": w}), data=Save(batches)
                    ),
                )
    batches.close()
    return told
