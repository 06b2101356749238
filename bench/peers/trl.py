"""TRL's packing: offline, on an Arrow table in memory, in the strategies it has. Documents are cut
to the row."""

from __future__ import annotations

from ..table import Peer

PEER = Peer("trl", needs=("trl",), imports="trl")


def packer(work, strategy):
    """Gives a function that packs every document. Reading and shuffling them are not in its
    time."""
    import datasets
    import numpy as np
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    documents = [work.document(i)[: work.length] for i in work.order[:60_000]]
    offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])])
    column = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(np.concatenate(documents))
    )
    ds = datasets.Dataset(datasets.table.InMemoryTable(pa.table({"input_ids": column})))

    def pack():
        rows = pack_dataset(ds, work.length, strategy)
        return int(offsets[-1]), len(rows) * work.length

    return pack


@PEER.row("pack2048", "pack_dataset, bfd, offline", offline=True, quick=True)
@PEER.row("pack8192", "pack_dataset, bfd, offline", offline=True)
def best_fit(work):
    return packer(work, "bfd")


@PEER.row("pack2048", "pack_dataset, wrapped, offline", offline=True)
@PEER.row("pack8192", "pack_dataset, wrapped, offline", offline=True)
def wrapped(work):
    return packer(work, "wrapped")
