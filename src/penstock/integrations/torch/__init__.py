"""For those who stay on torch's `DataLoader`, torchdata's `StatefulDataLoader` or its nodes.

A `penstock.Loader` takes the place of all three; these hand them its stream, in its order, with any
number of workers.
"""

from .iterable import IterableDataset
from .mapped import MapDataset, Sampler

__all__ = ["IterableDataset", "MapDataset", "Sampler"]
