"""Base class of both kinds of dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, Self

from ...dataset import Dataset
from ...errors import ConfigError
from .lineage import Lineage, joined
from .transforms import (
    Batch,
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    TfRandomMap,
    Transformation,
)


class Base(ABC):
    """A dataset: the Penstock dataset (`core`), its order and its seeds.

    Args:
        parents: the datasets that a subclass of the user reads.
    """

    _parents: tuple[Base, ...] = ()

    def __class_getitem__(cls, element: Any) -> GenericAlias:
        """Support `MapDataset[int]` in annotations."""
        return GenericAlias(cls, element)

    def __init__(self, parents: Base | Sequence[Base] = ()) -> None:
        self._parents = (parents,) if isinstance(parents, Base) else tuple(parents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.core!r})"

    @property
    def parents(self) -> tuple[Base, ...]:
        """The datasets that this one reads."""
        return self._parents

    @property
    def _parent(self) -> Any:
        (parent,) = self._parents
        return parent

    @property
    @abstractmethod
    def core(self) -> Dataset:
        """The Penstock dataset."""

    @property
    def lineage(self) -> Lineage:
        """Order and seeds."""
        return joined([parent.lineage for parent in self._parents]) if self._parents else Lineage()

    @abstractmethod
    def stream(self) -> Any:
        """Return the dataset as an `IterDataset`."""

    @abstractmethod
    def map(self, transform: Map | Callable[[Any], Any]) -> Any:
        """Apply `transform` to every element."""

    @abstractmethod
    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], Any]) -> Any:
        """Apply `transform(i, element)` to every element."""

    @abstractmethod
    def random_map(
        self, transform: RandomMap | Callable[[Any, Any], Any], *, seed: int | None = None
    ) -> Any:
        """Apply `transform(element, rng)` to every element."""

    @abstractmethod
    def filter(self, transform: Filter | Callable[[Any], Any]) -> Any:
        """Keep the elements for which `transform` is true."""

    @abstractmethod
    def flat_map(self, transform: FlatMap) -> Any:
        """Replace each element by those of `transform.flat_map`."""

    @abstractmethod
    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> Any:
        """Batch consecutive elements."""

    def apply(self, transformations: Transformation | Sequence[Transformation]) -> Self:
        """Apply transformations in order.

        Args:
            transformations: one transformation or several.

        Raises:
            ConfigError: for a value that is not a transformation.
        """
        out: Any = self
        for transform in (
            transformations if isinstance(transformations, Sequence) else [transformations]
        ):
            match transform:
                case Batch(size, drop, fn):
                    out = out.batch(size, drop_remainder=drop, batch_fn=fn)
                case Map():
                    out = out.map(transform)
                case MapWithIndex():
                    out = out.map_with_index(transform)
                case RandomMap():
                    out = out.random_map(transform)
                case TfRandomMap():
                    out = out.random_map(transform.np_random_map)
                case Filter():
                    out = out.filter(transform)
                case FlatMap():
                    out = out.flat_map(transform)
                case _:
                    raise ConfigError(
                        f"apply: {transform!r} is not a transformation: use .map(...) for functions"
                    )
        return out

    def pipe(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return `func(self, ...)`.

        Args:
            func: function of a dataset.
            *args: positional arguments after the dataset.
            **kwargs: keyword arguments.
        """
        return func(self, *args, **kwargs)
