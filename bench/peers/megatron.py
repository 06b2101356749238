"""Megatron's way: indexes of samples made beforehand, here by NumPy, so that none of its compiled
helpers is needed."""

from __future__ import annotations

from ..table import Peer

PEER = Peer("megatron's indexes", needs=("numpy",), imports="numpy")


class Sampled:
    """The samples of one source: its documents permuted pass by pass and laid end to end, cut every
    `length` tokens."""

    def __init__(self, work, i, samples):
        import numpy as np

        rng, documents = (
            np.random.default_rng(work.seed + i),
            np.arange(work.cuts[i], work.cuts[i + 1]),
        )
        sizes = work.offsets[documents + 1] - work.offsets[documents]
        passes = -(-samples * work.length // int(sizes.sum())) + 1
        self.documents = np.concatenate([rng.permutation(documents) for _ in range(passes)])
        self.ends = np.cumsum(work.offsets[self.documents + 1] - work.offsets[self.documents])
        self.order = rng.permutation(samples)
        self.firsts = np.searchsorted(self.ends, np.arange(samples + 1) * work.length, side="right")
        self.work = work

    def __getitem__(self, n):
        import numpy as np

        work, s = self.work, int(self.order[n])
        begin, parts = s * work.length, []
        for k in range(int(self.firsts[s]), int(self.firsts[s + 1]) + 1):
            end, document = int(self.ends[k]), int(self.documents[k])
            size = int(work.offsets[document + 1] - work.offsets[document])
            a, b = max(begin - end + size, 0), min(begin + work.length - end + size, size)
            if b > a:
                first = int(work.offsets[document])
                parts.append(work.tokens[first + a : first + b])
        return np.concatenate(parts).astype(np.int32)


@PEER.row("tokens1", "GPTDataset's and BlendedDataset's indexes, every row of one source")
@PEER.row(
    "tokens3", "GPTDataset's and BlendedDataset's indexes, every row of one source", quick=True
)
@PEER.row("tokens60", "GPTDataset's and BlendedDataset's indexes, every row of one source")
def blended(work):
    import numpy as np

    rows = int(work.offsets[-1]) // work.length
    weights = np.asarray(work.weights) / sum(work.weights)
    # The rows of the source that lacks most, as the blending helper does it, by the time at which
    # each is due.
    due = [(np.arange(int(rows * w) + 1) + 0.5) / w for w in weights]
    which = np.repeat(np.arange(len(due)), list(map(len, due)))[
        np.argsort(np.concatenate(due), kind="stable")
    ]
    sources, drawn = [Sampled(work, i, len(each)) for i, each in enumerate(due)], [0] * len(due)
    while True:
        drawn = [0] * len(due)
        for start in range(0, rows - work.rows, work.rows):
            batch = []
            for i in which[start : start + work.rows].tolist():
                batch.append(sources[i][drawn[i]])
                drawn[i] += 1
            yield np.stack(batch)
