"""Grain's dataset API with Penstock underneath: shuffled, mixed, windowed, saved and continued, with only the import
changed.

    python examples/grain.py
"""

import json
from itertools import islice

import numpy as np

import penstock.compat.grain as grain

# Two sources of different size, each in an order of its own, for ever.
small = grain.MapDataset.source([f"scan {i}" for i in range(100)]).seed(42).shuffle().repeat()
large = grain.MapDataset.source([f"digit {i}" for i in range(1_000)]).seed(43).shuffle().repeat()
mixture = grain.MapDataset.mix([small, large], weights=[1, 2])
print(f"element 10**12 of an endless mixture: {mixture[10**12]}")

# Rare elements: filter, then mix what is left.
odd_numbers = grain.MapDataset.range(1_000).filter(lambda x: x % 2).to_iter_dataset()
tens = grain.MapDataset.range(1_000).filter(lambda x: x % 10 == 0).to_iter_dataset()
print(
    "filtered and mixed:",
    list(islice(grain.IterDataset.mix([odd_numbers, tens], weights=[0.7, 0.3]), 10)),
)

# Hierarchical shuffle: parts in turn, then windows.
parts = [grain.MapDataset.range(100 * k, 100 * k + 20) for k in range(4)]
stream = grain.experimental.WindowShuffleIterDataset(
    grain.experimental.InterleaveIterDataset(parts, cycle_length=4), window_size=10, seed=42
)

# Computed ahead by threads, saved after 3 batches as JSON, continued with another number of workers.
it = iter(
    stream.batch(8).mp_prefetch(
        grain.MultiprocessingOptions(num_workers=3, per_worker_buffer_size=4)
    )
)
for _ in range(3):
    next(it)
state = json.loads(json.dumps(it.get_state()))
rest = list(it)
again = iter(grain.experimental.ThreadPrefetchIterDataset(stream.batch(8), prefetch_buffer_size=2))
again.set_state(state)
assert all(np.array_equal(a, b) for a, b in zip(again, rest, strict=True))
print(f"continued after batch 3: {len(rest)} batches, the same ones")
it.close()
again.close()

# Grain's own order, bit by bit, to move over in the middle of a run.
theirs = grain.MapDataset.range(10, order="grain").seed(42).shuffle()
print("Grain's order:", list(theirs))
