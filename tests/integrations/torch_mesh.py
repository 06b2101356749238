"""Four processes in a 2 x 2 mesh over gloo: what the loaders of each give, as files of JSON in a folder."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import penstock as ps
from integrations.forked_ranks import fork_ranks
from penstock.integrations.torch import IterableDataset, MapDataset


def receive(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=4
    )
    ds = ps.from_sequence(range(32)).shuffle(seed=1).batch(2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hsdp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = {}
    for name, group in {
        "dp": mesh["dp"],
        "tp": mesh["tp"],
        "group": mesh["dp"].get_group(),
        "whole": hsdp,
        "both": hsdp["replicate", "shard"],
    }.items():
        loader = ps.Loader(ds, mesh=group)
        found[name] = [[batch.tolist() for batch in loader], repr(loader).splitlines()[0]]
    found["none"] = [[batch.tolist() for batch in ps.Loader(ds)], ""]
    data = IterableDataset(ds, mesh=mesh["dp"])
    found["iterable"] = [[batch.tolist() for batch in DataLoader(data, batch_size=None)], ""]
    data = MapDataset(ds, mesh=mesh["dp"])
    found["map"] = [[data[i].tolist() for i in range(len(data))], ""]
    other = dist.new_group([0, 1])
    if rank > 1:
        try:
            ps.Loader(ds, mesh=other)
        except ps.ConfigError as error:
            found["other"] = [[], str(error)]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(4, partial(receive, folder=Path(sys.argv[1])))
