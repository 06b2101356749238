"""MosaicML's StreamingDataset over MDS shards in memory, written beforehand: it has no source but
its own files."""

from __future__ import annotations

from functools import partial
from itertools import count, pairwise

from ..savable import SavablePipeline
from ..stand_in import no_torchvision
from ..table import Peer
from ..work import Mixed, plus_one, scratch

PEER = Peer(
    "mosaicml-streaming",
    needs=("mosaicml-streaming",),
    imports="streaming",
    before=no_torchvision,
)
FEWER = 10  # its sources are this much smaller: it starts them anew when they run out


def library():
    no_torchvision()
    import streaming
    import streaming.base.util

    streaming.base.util.clean_stale_shared_memory()
    return streaming


def written(name, values, kind="int"):
    """A folder of shards with these values, made once."""
    folder = scratch("mds") / name
    if not (folder / "index.json").exists():
        with library().MDSWriter(
            out=str(folder), columns={"x": kind}, size_limit=1 << 24
        ) as writer:
            for value in values:
                writer.write({"x": value})
    return str(folder)


def shuffled(folder, batch, seed=7, **more):
    return library().StreamingDataset(
        local=folder,
        shuffle=True,
        shuffle_seed=seed,
        batch_size=batch,
        num_canonical_nodes=1,
        **more,
    )


def open_remote(remote, cache):
    """Shards of a store in a full shuffle, kept in a folder."""
    options = {"shuffle": True, "shuffle_seed": 1, "batch_size": 64, "num_canonical_nodes": 1}
    return library().StreamingDataset(remote=remote, local=cache, **options)


def write(folder, rows, shard):
    """Rows of bytes in shards of so many bytes."""
    with library().MDSWriter(out=folder, columns={"x": "bytes"}, size_limit=shard) as writer:
        for row in rows:
            writer.write(row)


def batched(samples, size):
    import numpy as np

    held = []
    for sample in samples:
        held.append(plus_one(sample["x"]))
        if len(held) == size:
            yield np.array(held)
            held = []


@PEER.row("overhead", "StreamingDataset over 100,000 integers")
def overhead(work):
    return batched(shuffled(written("ints", range(100_000)), work.batch), work.batch)


def mixture(work, batch):
    streams = [
        library().Stream(local=written(f"mix-{work.count}-{i}", s[: len(s) // FEWER]), proportion=w)
        for i, (s, w) in enumerate(zip(work.sources, work.weights, strict=True))
    ]
    return library().StreamingDataset(
        streams=streams,
        epoch_size=1_000_000,
        shuffle=True,
        shuffle_seed=7,
        batch_size=batch,
        num_canonical_nodes=1,
    )


@PEER.row("mix3", "Stream proportions")
def mix(work):
    return batched(mixture(work, work.batch), work.batch)


@PEER.row("pack2048", "StreamingDataset, documents joined and cut in Python")
@PEER.row("pack8192", "StreamingDataset, documents joined and cut in Python")
def joined(work):
    import numpy as np

    from ..join import join

    folder = written(f"docs-{work.count}", map(plain(work), range(work.count)), "ndarray:uint16")
    return join((sample["x"].astype(np.int32) for sample in shuffled(folder, work.rows)), work)


def plain(work):
    return lambda i: work.tokens[work.offsets[i] : work.offsets[i + 1]]


@PEER.row("resume", "Stream proportions of 3, StreamingDataLoader, batch 8")
def resume_mix():
    loader = library().StreamingDataLoader
    return SavablePipeline(loader(mixture(Mixed(3, batch=8), 8), batch_size=8, num_workers=0))


@PEER.row("start", "StreamingDataset")
def start(work):
    return batched(shuffled(written("ints", range(100_000)), work.batch), work.batch)


COPIES = count()


def node(values, rank, world, name, each):
    """A rank on a node of its own: a copy of the files, and the place among the nodes that it would
    have found."""
    from streaming.base.world import World

    folder = written(f"{name}-{next(COPIES)}", values)
    ds = library().StreamingDataset(
        local=folder,
        shuffle=True,
        shuffle_seed=1,
        batch_size=each,
        num_canonical_nodes=6,
        shuffle_block_size=64,
    )
    ds._unique_rank_world = ds._parallel_rank_world = World(world, 1, 1, rank)
    return ds


class Counted:
    """The samples of a rank; its state is that of all ranks, who are in step."""

    def __init__(self, ds, world):
        self.ds, self.world, self.given = ds, world, 0

    def __iter__(self):
        for sample in self.ds:
            self.given += 1
            yield sample

    def state_dict(self):
        return self.ds.state_dict(self.given * self.world, False)

    def load_state_dict(self, state):
        self.given = 0
        self.ds.load_state_dict(state)


@PEER.row("kit", "StreamingDataLoader; each rank a node with files of its own, global batches of 6")
def kit():
    def loader(batch=2, workers=0):
        folder = written(f"kit-{next(COPIES)}", range(60))
        return library().StreamingDataLoader(
            shuffled(folder, batch, 1), batch_size=batch, num_workers=workers
        )

    def mixed(names):
        n = next(COPIES)
        parts = (
            [[i] * 1000 for i in range(3)]
            if names
            else [range(a, b) for a, b in pairwise((0, 90, 160, 200))]
        )
        streams = [
            library().Stream(local=written(f"kit-{n}-{i}", part), proportion=w)
            for i, (part, w) in enumerate(zip(parts, (0.5, 0.3, 0.2), strict=True))
        ]
        ds = library().StreamingDataset(
            streams=streams,
            epoch_size=10_000,
            shuffle=True,
            shuffle_seed=1,
            batch_size=2,
            num_canonical_nodes=1,
        )
        return (
            ds
            if names
            else SavablePipeline(library().StreamingDataLoader(ds, batch_size=2, num_workers=0))
        )

    def ranked(rank, world):
        return SavablePipeline(Counted(node(range(60), rank, world, "node", 6 // world), world))

    return {
        "resume": lambda: SavablePipeline(loader()),
        "resume_buffer": "shuffles all samples instead",
        "resume_mix": partial(mixed, False),
        "resume_pack": "does not pack",
        "workers": lambda n: (x for b in loader(workers=n) for x in b["x"].tolist()),
        "covers": lambda rank, world: Counted(node(range(61), rank, world, "more", 2), world),
        "elastic_set": ranked,
        "elastic_batches": ranked,
        "elastic_order": ranked,
        "mixture": lambda: ("abc"[sample["x"]] for sample in mixed(True)),
    }
