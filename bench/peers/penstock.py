"""Penstock, driven as its documentation says."""

from __future__ import annotations

import json
from itertools import islice
from statistics import median
from time import perf_counter

from ..savable import SavablePipeline
from ..table import Peer
from ..work import IS_TINY, Docs, Mixed, MixedDocs, plus_one

LITTLE = 10_000  # documents at a tiny scale, at most

PEER = Peer("penstock", needs=("penstock-data", "numpy", "pyarrow"), imports="penstock")


@PEER.row("overhead", "from_sequence, shuffle, map, batch", quick=True)
def overhead(work):
    import penstock as ps

    return ps.from_sequence(work.data).shuffle(seed=work.seed).map(plus_one).batch(work.batch)


@PEER.row("overhead", "the same through a Loader with 2 threads")
def threads(work):
    import penstock as ps

    return ps.Loader(overhead(work), workers=2)


def read_by_executor(work, executor):
    import penstock as ps

    return ps.Loader(ps.from_sequence(work.data).batch(work.batch), workers=2, executor=executor)


@PEER.row("move64", "Loader, 2 processes")
def move64(work):
    return read_by_executor(work, "processes")


@PEER.row("move64", "Loader, 2 threads")
def move64_threads(work):
    return read_by_executor(work, "threads")


def made(work, executor):
    import penstock as ps

    from ..parallel import small, tokens

    ds = ps.from_sequence(work.data)
    ds = ds.map(small) if work.batch == 1 else ds.map(tokens).batch(work.batch)
    return ps.Loader(ds, workers=2, executor=executor)


@PEER.row("move1000", "Loader, 2 processes")
@PEER.row("tokenize", "Loader, 2 processes")
def by_processes(work):
    return made(work, "processes")


@PEER.row("move1000", "Loader, 2 threads")
@PEER.row("tokenize", "Loader, 2 threads")
def by_threads(work):
    return made(work, "threads")


def pictures_by(work, executor):
    import penstock as ps

    from ..parallel import decoded

    return ps.Loader(
        ps.from_sequence(work.data).map(decoded).batch(work.batch), workers=2, executor=executor
    )


@PEER.row("pictures", "Loader, 2 processes")
def pictures(work):
    return pictures_by(work, "processes")


@PEER.row("pictures", "Loader, 2 threads")
def pictures_threads(work):
    return pictures_by(work, "threads")


@PEER.row("waiting", "Loader, 16 threads")
def waiting(work):
    import penstock as ps

    return ps.Loader(ps.from_sequence(work.data).batch(work.batch), workers=16)


@PEER.row("workers", "Loader, 2 processes")
def workers(data, batch):
    return held_open(data, batch, "processes")


@PEER.row("workers", "Loader, 2 threads")
def workers_threads(data, batch):
    return held_open(data, batch, "threads")


def held_open(data, batch, executor):
    import penstock as ps

    loader = ps.Loader(ps.from_sequence(data).batch(batch), workers=2, executor=executor)
    return iter(loader), loader.close


def mixture(work, block_size=1, fn=None):
    import penstock as ps

    inputs = {
        n: ps.from_sequence(s).shuffle() for n, s in zip(work.names, work.sources, strict=True)
    }
    if fn is not None:
        inputs = {n: ds.map(fn) for n, ds in inputs.items()}
    return ps.mix(
        inputs,
        dict(zip(work.names, work.weights, strict=True)),
        seed=work.seed,
        block_size=block_size,
    )


@PEER.row("mix3", "mix, permuted in blocks of 1,000")
@PEER.row("mix50", "mix, permuted in blocks of 1,000")
@PEER.row("mix500", "mix, permuted in blocks of 1,000")
def permuted(work):
    return mixture(work, block_size=1_000).map(plus_one).batch(work.batch)


@PEER.row("mix3", "mix, as it comes (block_size=1)", quick=True)
@PEER.row("mix50", "mix, as it comes (block_size=1)")
@PEER.row("mix500", "mix, as it comes (block_size=1)", quick=True)
def mix(work):
    return mixture(work).map(plus_one).batch(work.batch)


@PEER.row("pack2048", "windows of joined tokens, as they are stored")
@PEER.row("pack8192", "windows of joined tokens, as they are stored")
def windows(work):
    import penstock as ps

    store = ps.from_tokens(work.tokens, work.offsets)
    return ps.windows(store, work.length).shuffle(seed=work.seed).batch(work.rows)


@PEER.row("mix3", "mix, the function in each source")
@PEER.row("mix500", "mix, the function in each source")
def mix_mapped(work):
    return mixture(work, fn=plus_one).batch(work.batch)


def fill(batch):
    return int((batch["segment_ids"] > 0).sum()), batch["tokens"].size


def rows_of(work, method):
    import penstock as ps

    ds = ps.from_tokens(work.tokens, work.offsets).shuffle(seed=work.seed)
    return ds.pack(work.length, method=method, dtype="int32").batch(work.rows)


@PEER.row("pack2048", "concat_split", quick=True, fill=fill)
@PEER.row("pack8192", "concat_split", fill=fill)
def concat(work):
    return rows_of(work, "concat_split")


@PEER.row("pack2048", "first_fit", fill=fill)
@PEER.row("pack8192", "first_fit", fill=fill)
def first_fit(work):
    return rows_of(work, "first_fit")


@PEER.row("pack2048", "best_fit", fill=fill)
@PEER.row("pack8192", "best_fit", fill=fill)
def best_fit(work):
    return rows_of(work, "best_fit")


def sources(work):
    import penstock as ps

    return {
        name: ps.from_tokens(
            work.tokens[work.offsets[a] : work.offsets[b]],
            work.offsets[a : b + 1] - work.offsets[a],
            name=name,
        ).shuffle()
        for name, a, b in zip(work.names, work.cuts, work.cuts[1:], strict=False)
    }


def tokens_of(work, method):
    import penstock as ps

    mixed = ps.mix(sources(work), dict(zip(work.names, work.weights, strict=True)), seed=work.seed)
    return mixed.pack(work.length, method=method, dtype="int32").batch(work.rows)


@PEER.row("tokens1", "mix, shuffle, concat_split", fill=fill)
@PEER.row("tokens3", "mix, shuffle, concat_split", quick=True, fill=fill)
@PEER.row("tokens60", "mix, shuffle, concat_split", fill=fill)
def tokens_cut(work):
    return tokens_of(work, "concat_split")


@PEER.row("tokens1", "mix, shuffle, best_fit", fill=fill)
@PEER.row("tokens3", "mix, shuffle, best_fit", fill=fill)
@PEER.row("tokens60", "mix, shuffle, best_fit", fill=fill)
def tokens_whole(work):
    return tokens_of(work, "best_fit")


def at(pipeline, step):
    """The state after so many steps, without running up to them."""
    pipeline.made.seek(step)
    return pipeline.state_dict()


@PEER.row("resume", "mix of 3, batch 8", quick=True)
def resume_mix():
    import penstock as ps

    ds = mixture(Mixed(3, batch=8)).batch(8)
    return SavablePipeline(ps.Loader(ds), jump=at, want=lambda step: ds[step])


@PEER.row("resume", "mix of 500, batch 8")
def resume_500():
    import penstock as ps

    ds = mixture(Mixed(500, batch=8)).batch(8)
    return SavablePipeline(ps.Loader(ds), jump=at, want=lambda step: ds[step])


@PEER.row("resume", "concat_split to 1,024, batch 1")
def resume_pack():
    import penstock as ps

    docs = Docs(1024, 2_000 if IS_TINY else 200_000)
    ds = (
        ps.from_tokens(docs.tokens, docs.offsets).shuffle(seed=7).pack(1024, dtype="int32").batch(1)
    )
    return SavablePipeline(ps.Loader(ds), want=lambda step: ds[step])


@PEER.row("start", "from_sequence, shuffle, batch", quick=True)
def start(work):
    import penstock as ps

    return ps.from_sequence(work.data).shuffle(seed=work.seed).batch(work.batch)


@PEER.row("memory", "shuffle", quick=True)
def memory(n):
    import penstock as ps

    return ps.from_sequence(range(n)).shuffle(seed=1).batch(32)


@PEER.row("kit", "Loader(..., lanes=6) for what is not indexed")
def kit():
    from itertools import pairwise

    import numpy as np

    import penstock as ps

    ints = ps.from_sequence(range(60)).shuffle(seed=1)
    more = ps.from_sequence(range(61)).shuffle(seed=1)
    parts = {n: ps.from_sequence([n] * 5000) for n in "abc"}
    mixed = ps.mix(parts, {"a": 0.5, "b": 0.3, "c": 0.2}, seed=1)
    numbers = {
        n: ps.from_sequence(range(a, b)).shuffle()
        for n, (a, b) in zip("abc", pairwise((0, 90, 160, 200)), strict=True)
    }
    docs = ps.from_sequence([np.full(3 + i % 7, i) for i in range(60)]).shuffle(seed=1)

    def ranked(rank, world):
        held = SavablePipeline(ps.Loader(ints, rank=rank, world_size=world))
        held.takes_all = True
        return held

    return {
        "resume": lambda: SavablePipeline(ps.Loader(ints.batch(2))),
        "resume_buffer": lambda: SavablePipeline(
            ps.Loader(ps.from_sequence(range(60)).shuffle_buffer(16, seed=1).batch(2))
        ),
        "resume_mix": lambda: SavablePipeline(
            ps.Loader(ps.mix(numbers, {"a": 5, "b": 3, "c": 2}, seed=1).batch(2))
        ),
        "resume_pack": lambda: SavablePipeline(ps.Loader(docs.pack(16, method="best_fit"))),
        "workers": lambda n: ps.Loader(ints, workers=n),
        "covers": lambda rank, world: ps.Loader(
            more, rank=rank, world_size=world, remainder="keep"
        ),
        "elastic_set": ranked,
        "elastic_batches": ranked,
        "elastic_order": ranked,
        "mixture": lambda: iter(mixed),
    }


@PEER.row("read_random", "Arrow, shuffle, batch(64)", quick=True)
def read_arrow(work):
    import penstock as ps

    from .. import reading

    return ps.read(reading.arrow()).shuffle(seed=7).batch(work.batch)


@PEER.row("read_random", "Parquet, shuffle, batch(64)", quick=True)
def read_parquet(work):
    import penstock as ps

    from .. import reading

    return ps.read(reading.parquet()).shuffle(seed=7).batch(work.batch)


@PEER.row("read_row", "Arrow, ds[i]", quick=True)
def read_row(work):
    import penstock as ps

    from .. import reading

    ds = ps.read(reading.arrow())
    return (ds[int(rows[0])] for rows in reading.picks(reading.ROWS, 1))


@PEER.row("read_columns", "batch(1000)", quick=True)
def read_columns(work):
    import penstock as ps

    from .. import reading

    return ps.read(reading.parquet()).batch(work.batch)


def shuffled(work, **options):
    import penstock as ps

    from .. import reading

    return ps.read(reading.parquet(reading.MANY)).shuffle(seed=7, **options).batch(work.batch)


@PEER.row("read_blocks", "shuffle(block=(10000, 32))", quick=True)
def blocks(work):
    return shuffled(work, block=(10_000, 32))


@PEER.row("read_blocks", "shuffle(), full")
def full(work):
    return shuffled(work)


def tars(work, shuffle):
    import penstock as ps

    from .. import reading

    ds = ps.read(reading.tar())
    return (ds.shuffle(seed=7) if shuffle else ds).batch(work.batch, collate=list)


@PEER.row("read_tars", "shuffle, batch(16)", quick=True)
def tars_shuffled(work):
    return tars(work, shuffle=True)


@PEER.row("read_tars_in_order", "batch(16)", quick=True)
def tars_in_order(work):
    return tars(work, shuffle=False)


@PEER.row("index_lines", "index_lines", quick=True)
def index_lines(work):
    import tempfile

    from penstock.sources import index_and_count_rows as index

    from .. import reading

    cache = tempfile.mkdtemp()
    while True:
        yield index(reading.lines(), rebuild=True, cache=cache)


@PEER.row("count_tokens", "read(lengths=Tokenize)")
def count_tokens(work):
    import tempfile

    import penstock as ps
    from penstock.text import Tokenize

    from .. import texts

    while True:
        with tempfile.TemporaryDirectory() as cache:
            counter = Tokenize(str(texts.tokenizer()))
            ds = ps.read(texts.texts(), lengths=counter, cache=cache)
            yield ds.compiled.builder.lengths.by_leaf[0][:]


@PEER.row("chats", "map(Chat)")
def chats(work):
    import penstock as ps
    from penstock.text import Chat

    from .. import texts

    chat = Chat(str(texts.tokenizer()), template="chatml")
    return ps.from_sequence(work.rows).repeat().map(chat).batch(work.batch, collate=list)


def milliseconds(call):
    """The time that a call takes, in milliseconds."""
    began = perf_counter()
    call()
    return 1e3 * (perf_counter() - began)


@PEER.row("changes", "set_weights, mix of 5")
def changes(docs):
    import penstock as ps

    names = "abcde"
    ds = ps.mix({n: ps.from_sequence(range(docs)).shuffle(seed=1).repeat() for n in names})
    loader = ps.Loader(ds.batch(8))
    batches = iter(loader)
    next(batches)

    def change(number):
        loader.set_weights({n: 1 + (number * i) % 7 for i, n in enumerate(names, 1)})
        next(batches)

    many = 1_000 if docs > LITTLE else 20
    taken = [milliseconds(lambda number=number: change(number)) for number in range(many)]
    state = milliseconds(loader.state_dict)
    return {
        "first 20, ms": float(median(taken[:20])),
        "last 20, ms": float(median(taken[-20:])),
        "state, ms": state,
        "state, bytes": float(len(json.dumps(loader.state_dict()))),
    }


def stepwise(loader, docs):
    """The time of a state after each of 200 batches; of 10 at a tiny scale."""
    taken = []
    for _ in islice(loader, 200 if docs > LITTLE else 10):
        taken.append(milliseconds(loader.state_dict))
    return {"ms": float(median(taken)), "bytes": float(len(json.dumps(loader.state_dict())))}


@PEER.row("states", "mix of 3")
def states_of_3(docs):
    import penstock as ps

    return stepwise(ps.Loader(mixture(Mixed(3, batch=8)).batch(8)), docs)


@PEER.row("states", "mix of 500")
def states_of_500(docs):
    import penstock as ps

    return stepwise(ps.Loader(mixture(Mixed(500, batch=8)).batch(8)), docs)


@PEER.row("states", "shuffle buffer, 8 lanes")
def states_of_lanes(docs):
    import penstock as ps

    ds = ps.from_sequence(range(100_000)).shuffle_buffer(256, seed=1).batch(8)
    return stepwise(ps.Loader(ds, lanes=8), docs)


@PEER.row("curriculum", "60 sources, caps, 3 stages, best_fit")
def curriculum(docs):
    import penstock as ps

    work = MixedDocs(2048, docs, sources=60 if docs > LITTLE else 6)
    tokens, weights = int(work.offsets[-1]), dict(zip(work.names, work.weights, strict=True))
    equal = dict.fromkeys(work.names, 1 / len(work.names))

    def make():
        stages = ps.Schedule({0: weights, tokens // 2: equal, 3 * tokens // 4: weights})
        mixed = ps.mix(sources(work), stages, unit="tokens", max_epochs=4, seed=work.seed)
        return mixed.pack(2048, "best_fit", overflow="split").batch(8)

    found = {}
    plan = make().plan
    step = tokens // 2048 // 16
    questions = {
        "plan.counts": lambda: plan.counts(step),
        "plan.at": lambda: plan.at(step),
        "plan.find": lambda: next(iter(plan.find("s1", 3))),
        "plan.exhaustion": lambda: plan.exhaustion(),
    }
    for name, ask in questions.items():
        found[f"{name}, ms"] = milliseconds(ask)
        found[f"{name} again, ms"] = milliseconds(ask)
    loader = ps.Loader(make())
    found["first batch, ms"] = milliseconds(lambda: next(iter(loader)))
    loader.seek(min(1_000, step))
    state = loader.state_dict()
    again = ps.Loader(make())
    found["resume, ms"] = milliseconds(lambda: (again.load_state_dict(state), next(iter(again))))
    return found
