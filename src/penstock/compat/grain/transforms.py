"""Transformations as classes, an alternative to functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np


class Map(ABC):
    """Map each element to one element.

    >>> class Double(Map):
    ...     def map(self, element):
    ...         return 2 * element
    >>> from penstock.compat.grain import MapDataset
    >>> list(MapDataset.range(3).map(Double()))
    [0, 2, 4]
    """

    @abstractmethod
    def map(self, element: Any) -> Any:
        """Return the new element."""


class MapWithIndex(ABC):
    """Map each element and its index to one element."""

    @abstractmethod
    def map_with_index(self, index: int, element: Any) -> Any:
        """Return the new element."""


class RandomMap(ABC):
    """Map each element to one element, with its own random generator."""

    @abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Return the new element."""


class TfRandomMap(ABC):
    """Map each element to one element, with a NumPy generator."""

    @abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Return the new element."""


class Filter(ABC):
    """Select elements."""

    @abstractmethod
    def filter(self, element: Any) -> bool:
        """Return whether to keep the element."""


class FlatMap(ABC):
    """Map each element to up to `max_fan_out` elements."""

    max_fan_out: int

    @abstractmethod
    def flat_map(self, element: Any) -> Sequence[Any]:
        """Return the new elements."""


@dataclass(frozen=True)
class Batch:
    """Batch `batch_size` elements, stacked or built by `batch_fn`."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


class DatasetSelectionMap(ABC):
    """Map from element index to a dataset number and an index in that dataset.

    Endless maps have the length `sys.maxsize`.

    >>> class Swapped(DatasetSelectionMap):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return 1 - index % 2, index // 2
    >>> from penstock.compat.grain import MapDataset
    >>> list(MapDataset.select_from_datasets([MapDataset.range(2), MapDataset.range(7, 9)], Swapped()))
    [7, 0, 8, 1]
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of elements of a pass."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> tuple[int, int]:
        """Return the number of the dataset, and the index of the element in it."""


class BOSHandling(Enum):
    """Treatment of the token at the beginning of a sequence in packing."""

    DO_NOTHING = auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = auto()


Transformation = Map | MapWithIndex | RandomMap | TfRandomMap | Filter | FlatMap | Batch
Transformations = Sequence[Transformation]
