"""A record: an element of a `DataLoader` with its metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Any

import numpy as np


@dataclass(slots=True)
class RecordMetadata:
    """Index of a record in the order of a sampler, its key in the source, and its generator.

    Args:
        index: index in the order of all shards.
        record_key: index in the source.
        rng: generator for random maps.

    >>> RecordMetadata(index=3, record_key=7).remove_record_key()
    RecordMetadata(index=3, record_key=None, rng=None)
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """Return the metadata without the key."""
        return self if self.record_key is None else replace(self, record_key=None)


@dataclass(slots=True)
class Record:
    """An element of a `DataLoader` and its metadata.

    Args:
        metadata: index, key and generator.
        data: the element.
    """

    metadata: RecordMetadata
    data: Any

    def __class_getitem__(cls, element: Any) -> GenericAlias:
        """Support `Record[int]` in annotations."""
        return GenericAlias(cls, element)

    def with_data(self, data: Any) -> Record:
        """Return a record with other data, which is no longer the one of its key.

        Args:
            data: the new data.
        """
        return Record(self.metadata.remove_record_key(), data)


def make_generator(seed: int | None, index: int) -> np.random.Generator | None:
    """Return Grain's generator of a record of a `DataLoader`; None without a seed."""
    return None if seed is None else np.random.Generator(np.random.Philox(key=seed + index))
