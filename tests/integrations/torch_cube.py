"""Eight processes in a 2 x 2 x 2 mesh over gloo: what each receives, as a file of JSON in the folder that is given."""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed.device_mesh import init_device_mesh

import penstock as ps
from integrations.forked_ranks import fork_ranks
from penstock.integrations.shared_reader import share_loader
from penstock.text import CausalLM, slice_rows

FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens", "cu_seqlens_padded")


def encode(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), number, np.uint8)).save(file, "png")
    return file.getvalue()


class Decode:
    """Decode an image, and note that it was decoded."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def __call__(self, data: bytes) -> dict[str, Any]:
        pixels = np.asarray(Image.open(io.BytesIO(data)))
        with Path(self.journal).open("a") as file:
            file.write(f"{pixels[0, 0]}\n")
        return {"pixels": pixels}


def make_rows() -> ps.Dataset:
    ends = np.cumsum([3 + i % 9 for i in range(60)])
    documents = ps.from_tokens(np.arange(1, ends[-1] + 1), [0, *ends], name="documents").shuffle(
        seed=4
    )
    rows = documents.pack(32, "first_fit", pad_to_multiple=4)
    return rows.batch(2).map(CausalLM(FIELDS, shift=True))


def make_samples() -> ps.Dataset:
    return ps.from_sequence(range(64)).shuffle(seed=1).batch(global_batch_size=8)


def receive(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=8
    )
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    found: dict[str, Any] = {}

    loader = ps.Loader(make_samples(), mesh=mesh["dp"])
    steps = iter(loader)
    found["first"] = [next(steps).tolist() for _ in range(3)]
    state = loader.state_dict()
    found["rest"] = [batch.tolist() for batch in steps]
    wider = init_device_mesh("cpu", (4, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
    resumed = ps.Loader(make_samples(), mesh=wider["dp"])
    resumed.load_state_dict(state)
    found["resumed"] = [batch.tolist() for batch in resumed]

    cp = mesh["cp"].get_local_rank()
    found["slices"], found["rows"] = [], []
    for batch in ps.Loader(make_rows(), mesh=mesh["dp"]):
        part = slice_rows(batch, cp, 2)
        found["slices"].append({name: np.asarray(value).tolist() for name, value in part.items()})
        found["rows"].append({name: np.asarray(value).tolist() for name, value in batch.items()})

    images = ps.from_sequence([encode(i) for i in range(24)]).shuffle(seed=2)
    decoded = images.map(Decode(str(folder / "decoded"))).batch(3)
    with share_loader(lambda: ps.Loader(decoded, mesh=mesh["dp"]), mesh["cp", "tp"]) as shared:
        found["reads"] = shared.loader is not None
        found["images"] = [batch["pixels"][:, 0, 0].tolist() for batch in shared]
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(8, partial(receive, folder=Path(sys.argv[1])))
