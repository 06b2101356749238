"""LitData: chunks in memory, written beforehand; CombinedStreamingDataset for mixtures,
TokensLoader for tokens."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise

from ..savable import SavablePipeline
from ..table import Peer
from ..work import Docs, Mixed, plus_one, scratch

PEER = Peer("litdata", needs=("litdata",), imports="litdata")
FEWER = 10  # its sources are this much smaller: it starts them anew when they run out


def same(x):
    return x


def written(name, values, fn=same, **more):
    """A folder of chunks with these values, made once."""
    import litdata

    folder = scratch("litdata") / name
    if not (folder / "index.json").exists():
        more = more or {"chunk_size": 10_000}
        litdata.optimize(fn, list(values), str(folder), num_workers=1, verbose=False, **more)
    return str(folder)


def dataset(folder, **more):
    import litdata

    return litdata.StreamingDataset(folder, shuffle=True, seed=7, **more)


def open_remote(remote, cache, endpoint):
    """Chunks of a store in a shuffle, kept in a folder."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # for a server of this machine
    return litdata.StreamingDataset(
        remote, cache, shuffle=True, seed=1, storage_options={"endpoint_url": endpoint}
    )


def write(folder, rows, row, shard):
    """Rows in chunks of so many bytes."""
    import litdata

    litdata.optimize(
        row, list(range(rows)), folder, chunk_bytes=shard, num_workers=1, verbose=False
    )


def loader(ds, batch, **more):
    import litdata

    return litdata.StreamingDataLoader(ds, batch_size=batch, num_workers=0, **more)


@PEER.row("overhead", "StreamingDataLoader over 100,000 integers")
def overhead(work):
    return loader(dataset(written("ints", range(100_000)), transform=plus_one), work.batch)


def mixture(work, batch):
    import litdata

    parts = [
        dataset(written(f"mix-{work.count}-{i}", s[: len(s) // FEWER]), transform=plus_one)
        for i, s in enumerate(work.sources)
    ]
    mixed = litdata.CombinedStreamingDataset(
        parts, seed=7, weights=work.weights, iterate_over_all=False
    )
    return loader(mixed, batch)


@PEER.row("mix3", "CombinedStreamingDataset")
def mix(work):
    return mixture(work, work.batch)


@cache
def docs_of(count):
    return Docs(1, count)


def document(count, i):
    import torch

    return torch.from_numpy(docs_of(count).document(i))


@PEER.row("pack2048", "TokensLoader on joined documents, shuffled in blocks")
@PEER.row("pack8192", "TokensLoader on joined documents, shuffled in blocks")
def tokens(work):
    import litdata

    folder = written(
        f"docs-{work.count}",
        range(work.count),
        partial(document, work.count),
        chunk_bytes="64MB",
        item_loader=litdata.TokensLoader(),
    )
    ds = dataset(folder, item_loader=litdata.TokensLoader(block_size=work.length), drop_last=True)
    return (batch.numpy() for batch in loader(ds, work.rows))


@PEER.row("resume", "CombinedStreamingDataset of 3, batch 8")
def resume_mix():
    return SavablePipeline(mixture(Mixed(3, batch=8), 8))


@PEER.row("start", "StreamingDataLoader")
def start(work):
    return loader(dataset(written("ints", range(100_000))), work.batch)


@PEER.row("kit", "StreamingDataLoader")
def kit():
    import litdata

    def small(batch=2, workers=0):
        ds = dataset(written("kit", range(60), chunk_size=10))
        return litdata.StreamingDataLoader(ds, batch_size=batch, num_workers=workers)

    def mixed(names):
        parts = (
            [[i] * 9000 for i in range(3)]
            if names
            else [range(a, b) for a, b in pairwise((0, 90, 160, 200))]
        )
        sets = [
            dataset(written(f"kit-{names}-{i}", part, chunk_size=1000))
            for i, part in enumerate(parts)
        ]
        ds = litdata.CombinedStreamingDataset(
            sets, seed=7, weights=[0.5, 0.3, 0.2], iterate_over_all=False
        )
        return ds if names else SavablePipeline(loader(ds, 2))

    ranks = "needs a process group; not driven here"
    return {
        "resume": lambda: SavablePipeline(small()),
        "resume_buffer": "shuffles within and between chunks instead",
        "resume_mix": partial(mixed, False),
        "resume_pack": "does not pack",
        "workers": lambda n: (x for batch in small(workers=n) for x in batch.tolist()),
        **dict.fromkeys(("covers", "elastic_set", "elastic_batches", "elastic_order"), ranks),
        "mixture": lambda: ("abc"[int(x)] for x in mixed(True)),
    }
