"""Transformations as classes, for those who prefer them to functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np


class Map(ABC):
    """One element for each.

    >>> class Double(Map):
    ...     def map(self, element):
    ...         return 2 * element
    >>> from penstock.compat.grain import MapDataset
    >>> list(MapDataset.range(3).map(Double()))
    [0, 2, 4]
    """

    @abstractmethod
    def map(self, element: Any) -> Any:
        """The new element."""


class MapWithIndex(ABC):
    """One element for each, which may depend on its index."""

    @abstractmethod
    def map_with_index(self, index: int, element: Any) -> Any:
        """The new element."""


class RandomMap(ABC):
    """One element for each, with a generator that belongs to the element."""

    @abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """The new element."""


class Filter(ABC):
    """Some of the elements."""

    @abstractmethod
    def filter(self, element: Any) -> bool:
        """Whether the element stays."""


class FlatMap(ABC):
    """Up to `max_fan_out` elements for each."""

    max_fan_out: int

    @abstractmethod
    def flat_map(self, element: Any) -> Sequence[Any]:
        """The new elements."""


@dataclass(frozen=True)
class Batch:
    """Groups of `batch_size` elements, stacked, or built by `batch_fn`."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


class DatasetSelectionMap(ABC):
    """Which dataset, and which of its elements, each element of a selection is; endless ones have
    `sys.maxsize`.

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
        """How many elements a pass has."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> tuple[int, int]:
        """Number of the dataset, and of the element in it."""


class BOSHandling(Enum):
    """What packing does about the token at the beginning of a sequence."""

    DO_NOTHING = auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = auto()


Transformation = Map | MapWithIndex | RandomMap | Filter | FlatMap | Batch
Transformations = Sequence[Transformation]
