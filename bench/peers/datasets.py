"""Hugging Face datasets: map-style with batches from Arrow, and streaming."""

from __future__ import annotations

from ..savable import SavablePipeline
from ..table import Peer
from ..work import Mixed, plus_one

PEER = Peer("datasets", needs=("datasets",), imports="datasets")


def quiet():
    import datasets

    datasets.disable_progress_bars()
    return datasets


def table(data):
    import numpy as np

    return quiet().Dataset.from_dict({"x": np.arange(data.start, data.stop)})


def add(sample):
    return {"x": plus_one(sample["x"])}


def column(batch):
    return batch["x"]


@PEER.row("overhead", "Dataset.shuffle, numpy, iter(32), the function on whole batches")
def overhead(work):
    ds = table(work.data).shuffle(seed=work.seed).with_format("numpy")
    return (plus_one(batch["x"]) for batch in ds.iter(work.batch))


@PEER.row("overhead", "IterableDataset, buffer of 10,000")
def streamed(work):
    ds = table(work.data).to_iterable_dataset().shuffle(seed=work.seed, buffer_size=10_000)
    return ds.map(add).with_format("numpy").batch(work.batch)


def tables(work):
    return [table(s).shuffle(seed=work.seed + i) for i, s in enumerate(work.sources)]


@PEER.row("mix3", "interleave_datasets, map-style, iter(32)", ids=column)
def mix_tables(work):
    ds = (
        quiet()
        .interleave_datasets(tables(work), probabilities=even(work), seed=work.seed)
        .with_format("numpy")
    )
    return ({"x": plus_one(batch["x"])} for batch in ds.iter(work.batch))


def even(work):
    """Its probabilities must sum to one exactly."""
    return [*work.weights[:-1], 1 - sum(work.weights[:-1])]


def woven(work, batch):
    parts = [ds.to_iterable_dataset() for ds in tables(work)]
    return (
        quiet()
        .interleave_datasets(parts, probabilities=even(work), seed=work.seed)
        .map(add)
        .batch(batch)
    )


@PEER.row("mix3", "interleave_datasets, streaming", ids=column)
@PEER.row("mix50", "interleave_datasets, streaming", ids=column)
@PEER.row("mix500", "interleave_datasets, streaming", quick=True, ids=column)
def mix(work):
    return woven(work, work.batch)


def lists(batch):
    import numpy as np

    size = np.size(batch)
    return size, size


@PEER.row("pack2048", "streaming, the group_texts recipe on 1,000 documents at a time", fill=lists)
@PEER.row("pack8192", "streaming, the group_texts recipe on 1,000 documents at a time", fill=lists)
def grouped(work):
    import numpy as np
    import pyarrow as pa

    datasets = quiet()
    values = pa.array(np.asarray(work.tokens))
    column = pa.LargeListArray.from_arrays(pa.array(work.offsets), values)
    ds = datasets.Dataset(datasets.table.InMemoryTable(pa.table({"tokens": column})))

    def group(batch):
        whole = np.concatenate([np.asarray(x, dtype=np.int32) for x in batch["tokens"]])
        count = len(whole) // work.length
        return {"tokens": list(whole[: count * work.length].reshape(count, work.length))}

    streamed = (
        ds.to_iterable_dataset().shuffle(seed=work.seed, buffer_size=1000).with_format("numpy")
    )
    rows = streamed.map(group, batched=True, batch_size=1000, remove_columns=["tokens"]).batch(
        work.rows
    )
    return (np.asarray(batch["tokens"]) for batch in rows)


@PEER.row("tokens1", "interleave_datasets, streaming, the group_texts recipe", fill=lists)
@PEER.row(
    "tokens3", "interleave_datasets, streaming, the group_texts recipe", quick=True, fill=lists
)
@PEER.row("tokens60", "interleave_datasets, streaming, the group_texts recipe", fill=lists)
def tokens(work):
    import numpy as np
    import pyarrow as pa

    datasets = quiet()
    values = pa.array(np.asarray(work.tokens))

    def stream(i):
        ends = pa.array(work.offsets[work.cuts[i] : work.cuts[i + 1] + 1])
        table = pa.table({"tokens": pa.LargeListArray.from_arrays(ends, values)})
        ds = datasets.Dataset(datasets.table.InMemoryTable(table)).to_iterable_dataset()
        return ds.shuffle(seed=work.seed + i, buffer_size=1000).with_format("numpy")

    def group(batch):
        whole = np.concatenate([np.asarray(x, dtype=np.int32) for x in batch["tokens"]])
        count = len(whole) // work.length
        return {"tokens": list(whole[: count * work.length].reshape(count, work.length))}

    parts, chances = [stream(i) for i in range(work.sources)], even(work)
    mixed = datasets.interleave_datasets(
        parts, probabilities=chances, seed=work.seed, stopping_strategy="all_exhausted"
    )
    rows = mixed.map(group, batched=True, batch_size=1000, remove_columns=["tokens"]).batch(
        work.rows
    )
    return (np.asarray(batch["tokens"]) for batch in rows)


@PEER.row("resume", "interleave_datasets of 3, streaming, batch 8")
def resume_mix():
    return SavablePipeline(woven(Mixed(3, batch=8), 8))


@PEER.row("resume", "streaming, one source, buffer of 10,000, batch 8")
def resume_buffer():
    ds = table(range(1_000_000)).to_iterable_dataset().shuffle(seed=7, buffer_size=10_000)
    return SavablePipeline(ds.batch(8))


@PEER.row("start", "Dataset.shuffle, numpy, iter(32)")
def start(work):
    return table(range(work.n)).shuffle(seed=work.seed).with_format("numpy").iter(work.batch)


@PEER.row(
    "memory",
    "Dataset.shuffle, iter(32)",
    most=100_000_000,
    why="its table and indices would take some 16 GB",
)
def memory(n):
    return table(range(n)).shuffle(seed=1).with_format("numpy").iter(32)


@PEER.row("kit", "streaming; split_dataset_by_node for ranks, DataLoader for workers")
def kit():
    from itertools import pairwise

    datasets = quiet()

    def stream(n, shards=1):
        return table(range(n)).to_iterable_dataset(num_shards=shards)

    def ranked(n):
        def make(rank, world):
            from datasets.distributed import split_dataset_by_node

            ds = stream(n, 6).shuffle(seed=1, buffer_size=1000)
            return SavablePipeline(split_dataset_by_node(ds, rank=rank, world_size=world))

        return make

    def mixed():
        parts = [stream(10_000).map(lambda _, name=name: {"name": name}) for name in "abc"]
        ds = datasets.interleave_datasets(parts, probabilities=[0.5, 0.3, 0.2], seed=1)
        return (sample["name"] for sample in ds)

    def numbers():
        parts = [table(range(a, b)).to_iterable_dataset() for a, b in pairwise((0, 90, 160, 200))]
        return SavablePipeline(
            datasets.interleave_datasets(parts, probabilities=[0.5, 0.3, 0.2], seed=1).batch(2)
        )

    def pooled(workers):
        from torch.utils.data import DataLoader

        return DataLoader(stream(60, 6), batch_size=None, num_workers=workers)

    return {
        "resume": lambda: SavablePipeline(
            table(range(60)).shuffle(seed=1).to_iterable_dataset().batch(2)
        ),
        "resume_buffer": lambda: SavablePipeline(
            stream(60).shuffle(seed=1, buffer_size=16).batch(2)
        ),
        "resume_mix": numbers,
        "resume_pack": "does not pack",
        "workers": pooled,
        "covers": ranked(61),
        "elastic_set": ranked(60),
        "elastic_batches": ranked(60),
        "elastic_order": ranked(60),
        "mixture": mixed,
    }


def from_file(work):
    from .. import reading

    return quiet().Dataset.from_file(str(reading.arrow()))


@PEER.row("read_random", "Dataset, a list of indices", quick=True)
def read_random(work):
    from .. import reading

    ds = from_file(work)
    return (ds[rows.tolist()] for rows in reading.picks(reading.ROWS, work.batch))


@PEER.row("read_row", "Dataset, ds[i]", quick=True)
def read_row(work):
    from .. import reading

    ds = from_file(work)
    return (ds[int(rows[0])] for rows in reading.picks(reading.ROWS, 1))
