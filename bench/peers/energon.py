"""Megatron Energon: its blending over samples in memory, in the calling process. Its own sources
are prepared tars."""

from __future__ import annotations

from functools import cache

from ..savable import SavablePipeline
from ..table import Peer
from ..work import Mixed, plus_one

PEER = Peer("megatron-energon", needs=("megatron-energon",), imports="megatron.energon")


def config(rank=0, world=1, workers=0):
    from megatron.energon import WorkerConfig

    return WorkerConfig(rank=rank, world_size=world, num_workers=workers)


@cache
def kinds():
    """The smallest sample and the smallest savable dataset its wrappers can work on."""
    from megatron.energon import Sample, SavableDataset
    from megatron.energon.edataclass import edataclass

    @edataclass
    class Number(Sample):
        x: int

    class Memory(SavableDataset):
        _savable_fields = ("place",)

        def __init__(self, values, worker_config):
            super().__init__(worker_config)
            self.values, self.place = values, 0

        def __iter__(self):
            while self.place < len(self.values):
                self.place += 1
                yield Number(
                    __key__=str(self.place),
                    __restore_key__=("Memory", self.place),
                    x=self.values[self.place - 1],
                )
            self.place = 0

        def len_worker(self, worker_idx=None):
            return len(self.values)

        def worker_has_samples(self):
            return True

        def reset_state_own(self):
            self.place = 0

        def config(self):
            return {"values": len(self.values)}

    return Number, Memory


def blended(parts, weights, add=0):
    from megatron.energon.wrappers import MapDataset, RepeatDataset
    from megatron.energon.wrappers.blend_dataset import BlendDataset

    _, memory = kinds()
    own = config()
    endless = [RepeatDataset(memory(p, own), worker_config=own) for p in parts]
    mixed = BlendDataset(*zip(endless, weights, strict=True), worker_config=own)

    def plus(sample):
        sample.x = plus_one(sample.x)
        return sample

    return (MapDataset(mixed, plus, worker_config=own) if add else mixed), own


def active(ds, config):
    """The samples of a dataset without a loader: it runs inside of the one active worker."""
    from megatron.energon import WorkerConfig

    if WorkerConfig.active_worker_config is not None:
        WorkerConfig.active_worker_config.worker_deactivate()
    config.worker_activate(0)
    return ds


def gather(samples, size):
    held = []
    for sample in samples:
        held.append(sample.x)
        if len(held) == size:
            yield held
            held = []


@PEER.row("mix3", "BlendDataset over samples in memory")
@PEER.row("mix50", "BlendDataset over samples in memory")
@PEER.row("mix500", "BlendDataset over samples in memory")
def mix(work):
    return gather(
        active(*blended([work.shuffled(i) for i in range(work.count)], work.weights, add=1)),
        work.batch,
    )


class Numbers:
    """The numbers of a loader's samples; its state is the loader's."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return (sample.x for sample in self.loader)

    def state_dict(self):
        return self.loader.save_state_rank()

    def load_state_dict(self, state):
        self.loader.restore_state_rank(state)


def savable(parts, weights):
    from megatron.energon import get_savable_loader

    return SavablePipeline(Numbers(get_savable_loader(blended(parts, weights)[0])))


@PEER.row("resume", "BlendDataset of 3, savable loader, single samples")
def resume_mix():
    work = Mixed(3)
    return savable([work.shuffled(i) for i in range(3)], work.weights)


@PEER.row("kit", "savable loader over BlendDataset, samples in memory")
def kit():
    from itertools import pairwise

    def names():
        return (sample.x for sample in active(*blended([["a"], ["b"], ["c"]], [0.5, 0.3, 0.2])))

    tars = "its full order, workers and ranks stand on prepared tars; not driven here"
    return {
        **dict.fromkeys(
            (
                "resume",
                "resume_buffer",
                "workers",
                "covers",
                "elastic_set",
                "elastic_batches",
                "elastic_order",
            ),
            tars,
        ),
        "resume_mix": lambda: savable(
            [list(range(a, b)) for a, b in pairwise((0, 90, 160, 200))], [0.5, 0.3, 0.2]
        ),
        "resume_pack": "packs by a function of the user's; not driven here",
        "mixture": names,
    }
