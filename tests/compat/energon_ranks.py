"""Run by itself, as one of two ranks under torch.distributed: save and restore for all ranks together."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import torch.distributed as distributed

import penstock as ps
from penstock.compat.energon import (
    DefaultTaskEncoder,
    TextSample,
    get_savable_loader,
    get_train_dataset,
)


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


def main(rank: int, meeting: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    samples = ps.from_sequence(
        [TextSample(__key__=str(i), text=str(i)) for i in range(40)], name="texts"
    )

    def make() -> Any:
        # Rank and world size are found by themselves.
        return get_savable_loader(get_train_dataset(samples, batch_size=3, task_encoder=Texts()))

    loader = make()
    first = list(islice(loader, 4))
    state = loader.save_state_global(1)
    assert (state is None) == (rank == 0)
    rest = list(islice(loader, 4))
    again = make()
    again.restore_state_global(state, src_rank=1)
    assert list(islice(again, 4)) == rest
    alone = None if state is None else json.loads(json.dumps(state))
    sys.stdout.write(json.dumps({"first": first, "rest": rest, "state": alone}) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
