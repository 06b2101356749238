"""WebDataset: a stream with a shuffle buffer; it has no global shuffle and no state."""

from __future__ import annotations

import random

from ..table import Peer
from ..work import plus_one

PEER = Peer("webdataset", needs=("webdataset",), imports="webdataset")


def stream(data, *stages):
    import webdataset as wds

    return wds.DataPipeline(lambda: iter(data), *stages)


@PEER.row("overhead", "DataPipeline, buffer of 10,000")
def overhead(work):
    import numpy as np
    import webdataset as wds

    buffer = wds.shuffle(10_000, rng=random.Random(work.seed))
    return stream(
        work.data, buffer, wds.map(plus_one), wds.batched(work.batch, collation_fn=np.array)
    )


@PEER.row("mix3", "RandomMix")
@PEER.row("mix50", "RandomMix")
@PEER.row("mix500", "RandomMix")
def mix(work):
    import numpy as np
    import webdataset as wds

    random.seed(work.seed)  # it draws from the global generator
    mixed = wds.RandomMix([work.shuffled(i) for i in range(work.count)], work.weights)
    return wds.DataPipeline(
        mixed, wds.map(plus_one), wds.batched(work.batch, collation_fn=np.array)
    )


@PEER.row("start", "DataPipeline, buffer of 10,000")
def start(work):
    import numpy as np
    import webdataset as wds

    buffer = wds.shuffle(10_000, rng=random.Random(work.seed))
    return stream(range(work.n), buffer, wds.batched(work.batch, collation_fn=np.array))


@PEER.row("kit", "DataPipeline; every world_size-th sample for ranks, split_by_worker for workers")
def kit():
    import webdataset as wds

    def mixed():
        random.seed(1)
        return iter(wds.RandomMix([["a"] * 9000, ["b"] * 9000, ["c"] * 9000], [0.5, 0.3, 0.2]))

    def ranked(rank, world):
        return stream(range(61), lambda src: (x for i, x in enumerate(src) if i % world == rank))

    def pooled(workers):
        from torch.utils.data import DataLoader

        return DataLoader(
            stream(range(60), wds.split_by_worker), batch_size=None, num_workers=workers
        )

    none = "has no state"
    return {
        **dict.fromkeys(
            (
                "resume",
                "resume_buffer",
                "resume_mix",
                "elastic_set",
                "elastic_batches",
                "elastic_order",
            ),
            none,
        ),
        "resume_pack": "does not pack",
        "workers": pooled,
        "covers": ranked,
        "mixture": mixed,
    }
