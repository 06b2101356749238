"""Ranks that save and load checkpoints of torch.distributed: `python dcp_ranks.py FOLDER`, which prints what they saw.

Torch is imported once; each rank is a fork.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import killed_ranks
import penstock as ps
from penstock.integrations.dcp import LoaderState
from penstock.integrations.trainers import AllRanks

STEPS = 8


def text(x: int) -> np.ndarray:
    return np.full(1 + x % 30, x)


def bad(x: int) -> int:
    if x % 11 == 4:
        raise ValueError("a bad sample")
    return x


def mixed() -> ps.Dataset:
    return ps.mix(
        {"a": ps.from_sequence(range(90)), "b": ps.from_sequence(range(200, 260))},
        {"a": 2, "b": 1},
        seed=4,
    )


KINDS: dict[str, tuple[Callable[[], ps.Dataset], Mapping[str, Any]]] = {
    "indexed": (lambda: mixed().batch(2, collate=list), {}),
    "packed": (lambda: mixed().map(text).pack(64), {"lanes": 6}),
    "buffered": (
        lambda: mixed().filter(lambda x: x % 3).shuffle_buffer(24).batch(2, collate=list),
        {"lanes": 6},
    ),
    "weights": (lambda: mixed().batch(2, collate=list), {}),
    "journal": (lambda: mixed().map(bad).batch(2, collate=list), {"on_error": "quarantine"}),
}


def loaders(rank: int, size: int) -> dict[str, ps.Loader]:
    return {
        name: ps.Loader(make(), rank=rank, world_size=size, **options)
        for name, (make, options) in KINDS.items()
    }


def run(of: Mapping[str, ps.Loader], steps: int) -> dict[str, list[Any]]:
    """The keys of every item of so many steps."""
    return {name: [loader.keys() for _ in islice(loader, steps)] for name, loader in of.items()}


def changed(of: Mapping[str, ps.Loader]) -> None:
    of["weights"].set_weights({"a": 1, "b": 5})


def states(of: Mapping[str, ps.Loader], checkpoint: Path | None = None) -> dict[str, Any]:
    return {
        name: LoaderState(each, checkpoint, name=name if checkpoint else None)
        for name, each in of.items()
    }


def saving(rank: int, checkpoint: Path, asynchronous: bool = False) -> Any:
    """Steps, a checkpoint, a few more steps while it is written."""
    of = loaders(rank, 2)
    given = run(of, STEPS)
    changed(of)
    state = {"model": {"weight": torch.full((4,), 7.0)}, **states(of)}
    if asynchronous:
        future: Any = async_save(state, checkpoint_id=checkpoint)
        run(of, 3)
        future.result()
    else:
        save(state, checkpoint_id=checkpoint)
    return given


def apart(rank: int, checkpoint: Path) -> Any:
    """Load checkpoints of ranks at different steps, and of ranks at one step; return the outcomes."""
    of, found = (
        {name: each for name, each in loaders(rank, 2).items() if name != "weights"},
        dict[str, str](),
    )
    run(of, STEPS + rank)
    for name, loader in of.items():
        for how, place in (("dcp", LoaderState(loader)), ("all ranks", AllRanks(loader))):
            try:
                if how == "dcp":
                    save({"data": place}, checkpoint_id=checkpoint / name)
                else:
                    place.state_dict()
                found[f"{name}, {how}"] = "saved"
            except ps.StateError as error:
                found[f"{name}, {how}"] = str(error)
    return found


def peers(process: int) -> Any:
    """Save on two processes for each rank, at one step, and with one process a step ahead."""
    found = dict[str, str]()
    for ranks in (1, 2):
        for ahead in (0, 1):
            of = {
                name: each
                for name, each in loaders(process // 2 % ranks, ranks).items()
                if name != "weights"
            }
            run(of, STEPS + ahead * (process == 3))
            for name, loader in of.items():
                for how, place in (("dcp", LoaderState(loader)), ("all ranks", AllRanks(loader))):
                    try:
                        place.state_dict()
                        told = "saved"
                    except ps.StateError as error:
                        told = str(error)
                    found[f"{ranks} ranks, {ahead} ahead, {name}, {how}"] = told
    return found


def group(process: int) -> Any:
    """Save where the last process has no loader; the first two are peers of one rank, the second a step ahead."""
    of = dist.new_group([0, 1])
    if process == 2:
        return "no loader"
    loader = loaders(0, 1)["indexed"]
    list(islice(loader, STEPS + process))
    try:
        return list(LoaderState(loader, process_group=of).state_dict())
    except ps.StateError as error:
        return str(error)


def loading(rank: int, size: int, checkpoint: Path) -> Any:
    of = loaders(rank, size)
    state = {"model": {"weight": torch.zeros(4)}, **states(of, checkpoint)}
    load(state, checkpoint_id=checkpoint)
    assert state["model"]["weight"].tolist() == [7.0] * 4
    after = {
        name: state[name].state_dict() for name in KINDS
    }  # what was loaded can be saved, on the ranks of now
    return {
        "keys": {name: list(each) for name, each in after.items()},
        "steps": [json.loads(text)["step"] for each in after.values() for text in each.values()],
        "notes": [note for loader in of.values() for note in loader.warnings],
        "changes": of["weights"].state_dict()["changes"],
        "journal": sorted({entry["index"] for entry in of["journal"].journal}),
        "given": run(of, 4),
    }


def torn(folder: Path, dead: int, fatal: int) -> str | None:
    """The name of a checkpoint at whose making a rank died; None where it had so few effects that it did not."""
    checkpoint = folder / f"torn-{dead}-{fatal}"

    def do(rank: int) -> Any:
        if rank == dead:
            killed_ranks.dying(checkpoint, fatal)
        return saving(rank, checkpoint)

    return checkpoint.name if ranks(2, folder, do) is None else None


def outcome(checkpoint: Path) -> str:
    """Load a torn checkpoint; return the name of the error, or "whole"."""
    try:
        loading(0, 1, checkpoint)
    except Exception as error:
        return type(error).__name__
    return "whole"


def ranks(size: int, folder: Path, do: Callable[[int], Any]) -> list[Any] | None:
    """Run processes as one group; return their results, or None if one was killed."""
    meeting = folder / f"meeting-{os.urandom(4).hex()}"

    def member(rank: int) -> Any:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        found = do(rank)
        dist.barrier()
        return found

    return killed_ranks.ranks(size, folder, member)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    alone = loaders(0, 1)
    first = run(alone, 2 * STEPS)
    changed(alone)
    told: dict[str, Any] = {
        "alone": {name: first[name] + rest for name, rest in run(alone, 12).items()}
    }
    for name in ("sync", "async"):
        at = folder / name
        told[name] = {
            "saved": ranks(2, folder, lambda rank, at=at: saving(rank, at, at.name == "async"))
        }
        for size in (1, 3):
            told[name][size] = ranks(
                size, folder, lambda rank, at=at, size=size: loading(rank, size, at)
            )
    told["apart"] = ranks(2, folder, lambda rank: apart(rank, folder / "apart"))
    told["peers"] = ranks(4, folder, peers)
    told["group"] = ranks(3, folder, group)
    names = list[str]()
    for dead in (0, 1):
        names += (
            name
            for name in takewhile(bool, (torn(folder, dead, fatal) for fatal in count(1)))
            if name
        )
    told["torn"] = ranks(1, folder, lambda _: {name: outcome(folder / name) for name in names})
    told["afterwards"] = ranks(1, folder, lambda _: loading(0, 1, folder / "sync"))
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
