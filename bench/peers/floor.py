"""Lower bounds of the machine: plain loops that do the work and nothing else."""

from __future__ import annotations

from ..table import Peer

PEER = Peer("floor", needs=("numpy",), imports="numpy")


@PEER.row("overhead", "[fn(data[i]) for i in order]")
@PEER.row("mix3", "the loop over shuffled integers")
@PEER.row("mix50", "the loop over shuffled integers")
@PEER.row("mix500", "the loop over shuffled integers")
@PEER.row("pack2048", "copies documents into rows")
@PEER.row("pack8192", "copies documents into rows")
@PEER.row("tokens1", "copies documents into rows")
@PEER.row("tokens3", "copies documents into rows")
@PEER.row("tokens60", "copies documents into rows")
@PEER.row("move64", "memcpy")
@PEER.row("move1000", "the function")
@PEER.row("tokenize", "the function, stacked")
@PEER.row("pictures", "the function, 2 processes that send nothing back")
@PEER.row("waiting", "16 waits side by side")
@PEER.row("read_random", "pyarrow, slices of record batches")
@PEER.row("read_row", "pyarrow, take of a record batch")
@PEER.row("read_columns", "pyarrow, iter_batches")
@PEER.row("read_blocks", "pyarrow, iter_batches, in the order of the file")
@PEER.row("read_tars", "pread")
@PEER.row("read_tars_in_order", "pread")
@PEER.row("index_lines", "wc -l")
@PEER.row("count_tokens", "encode_batch_fast")
@PEER.row("chats", "jinja2 and encode_batch_fast, without masks")
def plain(work):
    return work.floor()


@PEER.row("start", "numpy")
def start(work):
    import numpy as np

    order = np.random.default_rng(work.seed).permutation(work.n)
    return (order[a : a + work.batch] for a in range(0, work.n, work.batch))


@PEER.row("memory", "numpy permutation", most=100_000_000, why="8 bytes a sample: 8 GB")
def permutation(n):
    import numpy as np

    order = np.random.default_rng(1).permutation(n)
    return (order[a : a + 32] for a in range(0, n, 32))
