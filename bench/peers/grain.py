"""Grain: by random access, iterated in the calling thread, and as it comes (16 reading threads)."""

from __future__ import annotations

from ..savable import SavablePipeline
from ..table import Peer
from ..work import Docs, Mixed, Texts, plus_one

PEER = Peer("grain", needs=("grain",), imports="grain")


def inline():
    import grain

    return grain.ReadOptions(num_threads=0)


def ints(work):
    import grain

    return grain.MapDataset.range(work.n).shuffle(seed=work.seed).map(plus_one)


def by_index(ds):
    return (ds[i] for i in range(len(ds)))


def by_workers(ds):
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # as absl.app.run would have done
    return ds.to_iter_dataset(inline()).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))


@PEER.row("move64", "mp_prefetch, 2 workers")
def move64(work):
    import grain

    return by_workers(grain.MapDataset.source(work.data).batch(work.batch))


@PEER.row("move1000", "mp_prefetch, 2 workers")
@PEER.row("tokenize", "mp_prefetch, 2 workers")
def made(work):
    import grain

    from ..parallel import small, tokens

    ds = grain.MapDataset.source(work.data)
    return by_workers(ds.map(small) if work.batch == 1 else ds.map(tokens).batch(work.batch))


@PEER.row("pictures", "mp_prefetch, 2 workers")
def pictures(work):
    import grain

    from ..parallel import decoded

    return by_workers(grain.MapDataset.source(work.data).map(decoded).batch(work.batch))


@PEER.row("waiting", "16 threads, buffer 64")
def waiting(work):
    import grain

    options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=64)
    return grain.MapDataset.source(work.data).to_iter_dataset(options).batch(work.batch)


@PEER.row("workers", "mp_prefetch, 2 workers")
def workers(data, batch):
    import grain

    held = [iter(by_workers(grain.MapDataset.source(data).batch(batch)))]
    return held[0], held.clear


@PEER.row("overhead", "MapDataset by ds[i]", quick=True)
def overhead(work):
    return by_index(ints(work).batch(work.batch))


@PEER.row("overhead", "to_iter_dataset, num_threads=0")
def iterated(work):
    return ints(work).batch(work.batch).to_iter_dataset(inline())


@PEER.row("overhead", "to_iter_dataset, 16 threads, buffer 16")
def threads16(work):
    import grain

    options = grain.ReadOptions(num_threads=16, prefetch_buffer_size=16)
    return ints(work).to_iter_dataset(options).batch(work.batch)


@PEER.row("overhead", "to_iter_dataset, as it comes")
def as_it_comes(work):
    return ints(work).to_iter_dataset().batch(work.batch)


def mixture(work):
    import grain

    parts = [
        grain.MapDataset.source(s).shuffle(seed=work.seed + i) for i, s in enumerate(work.sources)
    ]
    return grain.MapDataset.mix(parts, work.weights)


@PEER.row("mix3", "MapDataset.mix by ds[i]", quick=True)
@PEER.row("mix50", "MapDataset.mix by ds[i]")
@PEER.row("mix500", "MapDataset.mix by ds[i]")
def mix(work):
    return by_index(mixture(work).map(plus_one).batch(work.batch))


@PEER.row("mix3", "MapDataset.mix, num_threads=0")
@PEER.row("mix50", "MapDataset.mix, num_threads=0")
@PEER.row("mix500", "MapDataset.mix, num_threads=0")
def mix_iterated(work):
    return mixture(work).map(plus_one).batch(work.batch).to_iter_dataset(inline())


@PEER.row("mix3", "MapDataset.mix, as it comes")
def mix_as_it_comes(work):
    return mixture(work).map(plus_one).to_iter_dataset().batch(work.batch)


def fill(batch):
    return int((batch["tokens_segment_ids"] > 0).sum()), batch["tokens"].size


def texts(work):
    import grain

    return grain.MapDataset.source(Texts(work)).shuffle(seed=work.seed)


def concat_of(work):
    from grain.experimental import ConcatThenSplitIterDataset

    return ConcatThenSplitIterDataset(
        texts(work).to_iter_dataset(inline()), length_struct={"tokens": work.length}
    )


@PEER.row("pack2048", "ConcatThenSplit, num_threads=0", quick=True, fill=fill)
@PEER.row("pack8192", "ConcatThenSplit, num_threads=0", fill=fill)
def concat(work):
    return concat_of(work).batch(work.rows)


def fitted(work, name):
    import grain.experimental

    cut = (
        texts(work)
        .map(lambda sample: {"tokens": sample["tokens"][: work.length]})
        .to_iter_dataset(inline())
    )
    make = getattr(grain.experimental, name)
    return make(cut, length_struct={"tokens": work.length}, num_packing_bins=64).batch(work.rows)


@PEER.row("pack2048", "FirstFitPack, 64 bins, cut documents", fill=fill)
@PEER.row("pack8192", "FirstFitPack, 64 bins, cut documents", fill=fill)
def first_fit(work):
    return fitted(work, "FirstFitPackIterDataset")


@PEER.row("pack2048", "BestFitPack, 64 bins, cut documents", fill=fill)
@PEER.row("pack8192", "BestFitPack, 64 bins, cut documents", fill=fill)
def best_fit(work):
    return fitted(work, "BestFitPackIterDataset")


@PEER.row("tokens1", "MapDataset.mix, ConcatThenSplit", fill=fill)
@PEER.row("tokens3", "MapDataset.mix, ConcatThenSplit", quick=True, fill=fill)
@PEER.row("tokens60", "MapDataset.mix, ConcatThenSplit", fill=fill)
def tokens(work):
    import grain
    from grain.experimental import ConcatThenSplitIterDataset

    whole = grain.MapDataset.source(Texts(work))
    pairs = enumerate(zip(work.cuts, work.cuts[1:], strict=False))
    parts = [whole.slice(slice(a, b)).shuffle(seed=work.seed + i).repeat() for i, (a, b) in pairs]
    mixed = grain.MapDataset.mix(parts, work.weights).to_iter_dataset(inline())
    return ConcatThenSplitIterDataset(mixed, length_struct={"tokens": work.length}).batch(work.rows)


def make_savable(ds, **more):
    return SavablePipeline(
        ds,
        save=lambda it: it.get_state(),
        load=lambda it, state: it.set_state(state),
        on_iterator=True,
        **more,
    )


@PEER.row("resume", "MapDataset.mix of 3, batch 8", quick=True)
def resume_map():
    ds = mixture(Mixed(3, batch=8)).repeat().batch(8)
    jump = lambda held, step: {**held.state_dict(), "next_index": step}  # noqa: E731
    return make_savable(ds.to_iter_dataset(inline()), jump=jump, want=lambda step: ds[step])


@PEER.row("resume", "IterDataset.mix of 3, batch 8")
def resume_iter():
    import grain

    work = Mixed(3, batch=8)
    parts = [
        grain.MapDataset.source(s).shuffle(seed=7 + i).repeat() for i, s in enumerate(work.sources)
    ]
    return make_savable(
        grain.IterDataset.mix([p.to_iter_dataset(inline()) for p in parts], work.weights).batch(8)
    )


@PEER.row("resume", "ConcatThenSplit to 1,024, batch 1")
def resume_pack():
    from grain.experimental import ConcatThenSplitIterDataset

    ds = texts(Docs(1024, 200_000)).to_iter_dataset(inline())
    return make_savable(ConcatThenSplitIterDataset(ds, length_struct={"tokens": 1024}).batch(1))


@PEER.row("start", "MapDataset, num_threads=0", quick=True)
def start(work):
    import grain

    return (
        grain.MapDataset.range(work.n)
        .shuffle(seed=work.seed)
        .batch(work.batch)
        .to_iter_dataset(inline())
    )


@PEER.row("memory", "MapDataset.shuffle", quick=True)
def memory(n):
    import grain

    return by_index(grain.MapDataset.range(n).shuffle(seed=1).batch(32))


@PEER.row("kit", "to_iter_dataset, num_threads=0; ds[rank::world_size] for ranks")
def kit():
    from itertools import pairwise

    import grain
    import numpy as np

    def ints(n):
        return grain.MapDataset.range(n).shuffle(seed=1)

    def ranked(rank, world):
        return make_savable(ints(60)[rank::world].to_iter_dataset(inline()))

    def buffered():
        from grain.experimental import WindowShuffleIterDataset

        return make_savable(
            WindowShuffleIterDataset(
                grain.MapDataset.range(60).to_iter_dataset(inline()), window_size=16, seed=1
            )
        )

    def mixed():
        parts = [
            grain.MapDataset.range(a, b).shuffle(seed=a) for a, b in pairwise((0, 90, 160, 200))
        ]
        return make_savable(
            grain.MapDataset.mix(parts, [5, 3, 2]).batch(2).to_iter_dataset(inline())
        )

    def packed():
        from grain.experimental import BestFitPackIterDataset

        docs = [{"tokens": np.full(3 + i % 7, i)} for i in range(60)]
        ds = grain.MapDataset.source(docs).shuffle(seed=1).to_iter_dataset(inline())
        return make_savable(
            BestFitPackIterDataset(ds, length_struct={"tokens": 16}, num_packing_bins=4)
        )

    def pooled(workers):
        ds = ints(60).to_iter_dataset(inline())
        if not workers:
            return ds
        from absl import flags

        flags.FLAGS.mark_as_parsed()  # its worker processes read them
        return ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))

    names = grain.MapDataset.mix(
        [grain.MapDataset.source([n] * 5000) for n in "abc"], [0.5, 0.3, 0.2]
    )
    return {
        "resume": lambda: make_savable(ints(60).batch(2).to_iter_dataset(inline())),
        "resume_buffer": buffered,
        "resume_mix": mixed,
        "resume_pack": packed,
        "workers": pooled,
        "covers": lambda rank, world: ints(61)[rank::world].to_iter_dataset(inline()),
        "elastic_set": ranked,
        "elastic_batches": ranked,
        "elastic_order": ranked,
        "mixture": lambda: by_index(names),
    }
