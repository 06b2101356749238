"""PyTorch's DataLoader and torchdata: StatefulDataLoader and nodes, in the calling process."""

from __future__ import annotations

from ..savable import SavablePipeline
from ..table import Peer
from ..work import Mixed, Texts, plus_one

PEER = Peer("torch", needs=("torch", "torchdata"), imports="torch.utils.data")


class Source:
    """Map-style, as torch wants it, with a function on each sample."""

    def __init__(self, data, fn=plus_one):
        self.data, self.fn = data, fn

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.fn(self.data[i])


class Many(Source):
    """Map-style with all samples of a batch asked for at once."""

    def __getitem__(self, indices):
        import torch

        return self.fn(torch.as_tensor(indices))


def seeded(seed=7):
    import torch

    return torch.Generator().manual_seed(seed)


@PEER.row("move64", "DataLoader, 2 workers")
def move64(work):
    from torch.utils.data import DataLoader

    return DataLoader(Source(work.data, as_it_is), work.batch, num_workers=2)


def as_it_is(x):
    return x


@PEER.row("move1000", "DataLoader, 2 workers")
@PEER.row("tokenize", "DataLoader, 2 workers")
def made(work):
    from torch.utils.data import DataLoader

    from ..parallel import small, tokens

    if work.batch == 1:
        return DataLoader(Source(work.data, small), batch_size=None, num_workers=2)
    return DataLoader(Source(work.data, tokens), work.batch, num_workers=2)


@PEER.row("pictures", "DataLoader, 2 workers")
def pictures(work):
    from torch.utils.data import DataLoader

    from ..parallel import decoded

    return DataLoader(Source(work.data, decoded), work.batch, num_workers=2)


@PEER.row("waiting", "DataLoader, 16 workers")
def waiting(work):
    from torch.utils.data import DataLoader

    return DataLoader(Source(work.data, as_it_is), work.batch, num_workers=16)


@PEER.row("workers", "DataLoader, 2 workers")
def workers(data, batch):
    from torch.utils.data import DataLoader

    held = [iter(DataLoader(data, batch, num_workers=2))]
    return held[0], held.clear


@PEER.row("overhead", "DataLoader, shuffle=True", quick=True)
def overhead(work):
    from torch.utils.data import DataLoader

    return DataLoader(Source(work.data), work.batch, shuffle=True, generator=seeded())


@PEER.row("overhead", "DataLoader over a BatchSampler, the function on whole batches")
def whole_batches(work):
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    sampler = BatchSampler(RandomSampler(work.data, generator=seeded()), work.batch, False)
    return DataLoader(Many(work.data), sampler=sampler, batch_size=None)


@PEER.row("overhead", "torchdata StatefulDataLoader")
def stateful(work):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Source(work.data), work.batch, shuffle=True, generator=seeded())


@PEER.row("overhead", "torchdata nodes")
def nodes(work):
    import torch
    import torchdata.nodes as tn
    from torch.utils.data import RandomSampler

    node = tn.Mapper(tn.SamplerWrapper(RandomSampler(work.data, generator=seeded())), plus_one)
    return tn.Loader(tn.Mapper(tn.Batcher(node, work.batch), torch.tensor))


@PEER.row("mix3", "WeightedRandomSampler over ConcatDataset, with replacement", quick=True)
@PEER.row("mix50", "WeightedRandomSampler over ConcatDataset, with replacement")
@PEER.row("mix500", "WeightedRandomSampler over ConcatDataset, with replacement")
def weighted(work):
    import torch
    from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler

    joined = ConcatDataset([Source(s) for s in work.sources])
    pairs = zip(work.sources, work.weights, strict=True)
    chances = torch.cat([torch.full((len(s),), w / len(s), dtype=torch.float64) for s, w in pairs])
    return DataLoader(
        joined, work.batch, sampler=WeightedRandomSampler(chances, 1_000_000, generator=seeded())
    )


def sampled(work, batch):
    import torchdata.nodes as tn

    parts = {n: tn.IterableWrapper(work.shuffled(i)) for i, n in enumerate(work.names)}
    weights = dict(zip(work.names, work.weights, strict=True))
    mixed = tn.MultiNodeWeightedSampler(parts, weights, seed=7, stop_criteria="CYCLE_FOREVER")
    return tn.Batcher(tn.Mapper(mixed, plus_one), batch)


@PEER.row("mix3", "torchdata MultiNodeWeightedSampler", quick=True)
@PEER.row("mix50", "torchdata MultiNodeWeightedSampler")
@PEER.row("mix500", "torchdata MultiNodeWeightedSampler")
def sampler(work):
    import torchdata.nodes as tn

    return tn.Loader(sampled(work, work.batch))


@PEER.row("pack2048", "DataLoader, documents joined and cut in Python")
@PEER.row("pack8192", "DataLoader, documents joined and cut in Python")
def joined(work):
    from torch.utils.data import DataLoader

    from ..join import join

    data = Source(Texts(work), lambda sample: sample["tokens"])
    return join((x.numpy() for x in DataLoader(data, None, shuffle=True, generator=seeded())), work)


@PEER.row("tokens1", "a list of tokens that grows and is cut, as in torchtitan")
@PEER.row("tokens3", "a list of tokens that grows and is cut, as in torchtitan", quick=True)
@PEER.row("tokens60", "a list of tokens that grows and is cut, as in torchtitan")
def buffered(work):
    import random
    from itertools import chain, repeat

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset):
        def __iter__(self):
            rng, held = random.Random(work.seed), []
            orders = [chain.from_iterable(map(self.order, repeat(i))) for i in range(work.sources)]
            while True:
                (source,) = rng.choices(range(work.sources), work.weights)
                held.extend(work.document(next(orders[source])).tolist())
                while len(held) >= work.length:
                    row, held = torch.LongTensor(held[: work.length]), held[work.length :]
                    yield row

        def order(self, i):
            return np.random.permutation(np.arange(work.cuts[i], work.cuts[i + 1])).tolist()

    return (batch.numpy() for batch in DataLoader(Rows(), work.rows))


@PEER.row("resume", "torchdata nodes, mix of 3, batch 8")
def resume_nodes():
    import torchdata.nodes as tn

    return SavablePipeline(tn.Loader(sampled(Mixed(3, batch=8), 8)))


@PEER.row("resume", "StatefulDataLoader, one shuffled source, batch 8")
def resume_stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return SavablePipeline(
        StatefulDataLoader(Source(range(1_000_000)), 8, shuffle=True, generator=seeded())
    )


@PEER.row("start", "DataLoader, shuffle=True", quick=True)
def start(work):
    from torch.utils.data import DataLoader

    return DataLoader(Source(work.data), work.batch, shuffle=True, generator=seeded())


@PEER.row("start", "torchdata StatefulDataLoader", imports="torchdata.stateful_dataloader")
def start_stateful(work):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Source(work.data), work.batch, shuffle=True, generator=seeded())


@PEER.row(
    "memory",
    "DataLoader, shuffle=True",
    most=100_000_000,
    why="its list of indices would take 40 GB",
)
def memory(n):
    from torch.utils.data import DataLoader

    return DataLoader(Source(range(n)), 32, shuffle=True, generator=seeded())


@PEER.row(
    "kit", "StatefulDataLoader with DistributedSampler for ranks; torchdata nodes for mixtures"
)
def kit():
    import torchdata.nodes as tn
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader(n=60, batch=None, workers=0):
        return StatefulDataLoader(
            Source(range(n), int), batch, shuffle=True, num_workers=workers, generator=seeded()
        )

    def ranked(n):
        def make(rank, world):
            data = Source(range(n), int)
            sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True, seed=1)
            return SavablePipeline(StatefulDataLoader(data, batch_size=None, sampler=sampler))

        return make

    def mixed(names):
        parts = {
            n: tn.IterableWrapper([x] * 9000 if names else range(100))
            for n, x in zip("abc", "abc", strict=True)
        }
        return tn.MultiNodeWeightedSampler(parts, {"a": 0.5, "b": 0.3, "c": 0.2}, seed=1)

    return {
        "resume": lambda: SavablePipeline(loader(batch=2)),
        "resume_buffer": "has no shuffle buffer with a state",
        "resume_mix": lambda: SavablePipeline(tn.Loader(tn.Batcher(mixed(False), 2))),
        "resume_pack": "does not pack",
        "workers": lambda n: loader(workers=n),
        "covers": lambda rank, world: ranked(61)(rank, world),
        "elastic_set": ranked(60),
        "elastic_batches": ranked(60),
        "elastic_order": ranked(60),
        "mixture": lambda: tn.Loader(mixed(True)),
    }
