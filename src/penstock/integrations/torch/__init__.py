"""Adapters for torch's `DataLoader`, and torchdata's `StatefulDataLoader` and nodes.

A `penstock.Loader` replaces all three. Users who keep them get its stream here, in its order, with
any number of workers.
"""

from .iterable import IterableDataset
from .mapped import MapDataset, Sampler

__all__ = ["IterableDataset", "MapDataset", "Sampler"]
