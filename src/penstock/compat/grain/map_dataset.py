"""`MapDataset`: a pipeline with random access."""

from __future__ import annotations

import builtins
import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast, overload

import numpy as np

from ...dataset import Dataset
from ...engine.mixing.rules import By
from ...engine.orders import Stride
from ...engine.steps.function_step import name_of
from ...engine.steps.mix import Mix
from ...engine.steps.read import Read
from ...engine.steps.reorder import Reorder
from ...engine.steps.with_source import WithSource
from ...errors import ConfigError, IndexedError, StateError
from ...inputs import from_sequence
from ...sources import Memory
from ...types import MAX_POSITION, Ints, Json, Order
from . import functions as f
from .base import Base
from .iter_dataset import IterDataset, PipelineIterDataset
from .lineage import Lineage, Style, joined
from .mixing import mixed, named_inputs
from .options import ReadOptions, Run
from .order import EndlessSlice, FirstPass, GlobalShuffle, LaterShuffle, PassingSlice, Times
from .transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap


class SelectionMap(Protocol):
    """Map from element index to a dataset number and an index in that dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, int]: ...


class MapDataset(Base):
    """A dataset with random access; every method returns a new one.

    `ds[i]` for `i` beyond the length continues in the next pass, as the length is the one of a
    single pass. `None` means that an index has no element; functions never receive it, and
    `to_iter_dataset` leaves it out. `core` is the underlying Penstock dataset. `order="grain"`,
    passed to the source, reproduces Grain's own order.

    Subclasses that a user writes define `__len__` and `__getitem__`. In a pipeline they are sources
    with random access, whose elements the plan knows by their index alone.

    Args:
        parents: the datasets that a subclass reads.

    >>> from penstock.compat.grain import MapDataset
    >>> ds = MapDataset.range(10).seed(42).shuffle().map(lambda x: x + 1)
    >>> len(ds), sorted(ds) == list(range(1, 11)), ds[3] == ds[13]
    (10, True, False)
    >>> list(MapDataset.range(10, order="grain").shuffle(seed=3329053876))
    [1, 7, 6, 9, 0, 8, 4, 5, 3, 2]
    """

    @property
    def core(self) -> Dataset:
        """The Penstock dataset."""
        return make_counter(len(self), type(self).__name__).map(f.Element(self))

    @property
    def sparse(self) -> bool:
        """True if elements may be missing."""
        return False

    @property
    def inline(self) -> bool:
        """True if it is read without threads."""
        return False

    # ------------------------------------------------------------ sources and mixtures

    @staticmethod
    def source(source: Any, *, order: Style = "penstock") -> MapDataset:
        """Make a dataset of any object with `len` and `[i]`.

        Args:
            source: the object.
            order: "penstock" or "grain".

        Returns:
            The dataset.
        """
        return SourceMapDataset(source, order=order)

    @staticmethod
    def range(
        start: int, stop: int | None = None, step: int = 1, *, order: Style = "penstock"
    ) -> MapDataset:
        """Make a dataset of integers, as the built-in `range`; read inline by default.

        Args:
            start: first integer, or the end.
            stop: end.
            step: step.
            order: "penstock" or "grain".

        Returns:
            The dataset.

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.range(10, 4, -2))
        [10, 8, 6]
        """
        numbers = range(start) if stop is None else range(start, stop, step)
        return PipelineMapDataset(from_sequence(numbers), Lineage(order), inline=True)

    @staticmethod
    def mix(
        datasets: Sequence[MapDataset] | Mapping[str, MapDataset],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> MapDataset:
        """Mix datasets in proportion to their weights; a pass ends when one of them ends.

        Args:
            datasets: datasets in a list or by name.
            weights: weights in a list or by name; equal by default.

        Returns:
            The mixture.

        Raises:
            ConfigError: for an empty dataset, or weights that do not fit.

        >>> from penstock.compat.grain import MapDataset
        >>> ds = MapDataset.mix([MapDataset.range(5), MapDataset.range(7, 10)])
        >>> len(ds), list(ds)
        (6, [7, 0, 1, 8, 9, 2])
        """
        named, named_weights = named_inputs(datasets, weights)
        lineage = joined([dataset.lineage for dataset in named.values()])
        if empty := [name for name, dataset in named.items() if len(dataset) == 0]:
            raise ConfigError(f"mix: input {empty[0]} is empty ({named[empty[0]]!r}): leave it out")
        core = mixed(
            {name: dataset.core for name, dataset in named.items()}, named_weights, lineage
        )
        return PipelineMapDataset(
            core,
            lineage,
            any(dataset.sparse for dataset in named.values()),
            parents=[*named.values()],
        )

    @staticmethod
    def concatenate(datasets: Sequence[MapDataset]) -> MapDataset:
        """Concatenate datasets; pass `n` is pass `n` of each.

        Args:
            datasets: the datasets.

        Returns:
            The concatenation.

        Raises:
            ConfigError: for an endless dataset.

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(3, 5)]))
        [0, 1, 2, 3, 4]
        """
        lineage = joined([dataset.lineage for dataset in datasets])
        if endless := [i for i, dataset in enumerate(datasets) if len(dataset) == sys.maxsize]:
            raise ConfigError(
                f"concatenate: dataset {endless[0]} is endless, so later ones are never reached: "
                "put it last or end it with a slice"
            )
        core = datasets[0].core.concat(*(dataset.core for dataset in datasets[1:]))
        return PipelineMapDataset(
            core, lineage, any(dataset.sparse for dataset in datasets), parents=datasets
        )

    @staticmethod
    def select_from_datasets(
        datasets: Sequence[MapDataset], selection_map: SelectionMap
    ) -> MapDataset:
        """Select elements by a map from index to dataset number and element index.

        Element `i` is `datasets[d][k]` for `selection_map[i] == (d, k)`.

        Args:
            datasets: the datasets.
            selection_map: index -> dataset number, element index.

        Returns:
            The selection.
        """
        lineage = joined([dataset.lineage for dataset in datasets])
        trees, names = (
            tuple(dataset.core.tree for dataset in datasets),
            tuple(map(str, builtins.range(len(datasets)))),
        )
        core = Dataset(Mix(trees, names, By(Selected(selection_map))))
        return PipelineMapDataset(
            core, lineage, any(dataset.sparse for dataset in datasets), parents=datasets
        )

    # ------------------------------------------------------------ asking

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of elements of a pass."""

    @overload
    def __getitem__(self, index: builtins.slice, /) -> MapDataset: ...
    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @abstractmethod
    def __getitem__(self, index: int | builtins.slice, /) -> Any:
        """Return an element, or a slice as a dataset."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_iter_dataset())

    # ------------------------------------------------------------ order

    def seed(self, seed: int) -> MapDataset:
        """Set the default seed of the random steps that follow.

        Args:
            seed: the seed.

        Returns:
            The new dataset.
        """
        return PipelineMapDataset(
            self.core,
            self.lineage.seeded(self.lineage.seed("seed", seed)),
            self.sparse,
            self.inline,
            self,
        )

    def shuffle(self, seed: int | None = None) -> MapDataset:
        """Shuffle every pass in a new order; needs a seed, here or from `.seed()`.

        Args:
            seed: seed of the step.

        Returns:
            The new dataset.

        Raises:
            ConfigError: for an endless dataset, or without a seed.
        """
        step_seed = self.lineage.step().seed("shuffle", seed)
        if len(self) == sys.maxsize:
            raise ConfigError("shuffle: the dataset is endless: shuffle before repeat")
        if self.lineage.grain:
            return self._with(self._reorder(GlobalShuffle(step_seed)))
        lineage = replace(self.lineage.step(), shuffle=step_seed)
        core = self.core.shuffle(step_seed)
        return PipelineMapDataset(core, lineage, self.sparse, self.inline, self)

    def slice(self, sl: builtins.slice) -> MapDataset:
        """Slice the dataset: the same elements in every pass.

        A slice of a shuffled dataset has a new order in every pass.

        In Grain's order: the elements at these positions of each pass.

        Args:
            sl: the slice.

        Returns:
            The new dataset.

        Raises:
            ConfigError: for a value that is not a slice.

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.range(10)[1:8:3])
        [1, 4, 7]
        """
        if not isinstance(sl, builtins.slice):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"slice takes slice(a, b, c), not a {type(sl).__name__}: pass a slice"
            )
        size = len(self)
        start, stop, step = sl.indices(size)
        count = len(builtins.range(start, stop, step))
        endless = size == sys.maxsize and stop == size and step > 0
        if endless:
            order = EndlessSlice if self.lineage.grain else Stride
            return self._with(self._reorder(order(start, step)))
        if self.lineage.grain:
            return self._with(self._reorder(PassingSlice(start, count, step)))
        sliced = self._with(self.core.slice(start, stop if stop >= 0 else None, step))
        if self.lineage.shuffle is None or count == 0:
            return sliced
        return sliced.reordered(LaterShuffle(self.lineage.shuffle))

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset:
        """Repeat the dataset for `num_epochs` passes, or endlessly without a number.

        `reseed_each_epoch=False` repeats the first pass in the same order.

        Args:
            num_epochs: number of passes.
            reseed_each_epoch: whether each pass has a new order.

        Returns:
            The new dataset.

        Raises:
            ConfigError: for an endless dataset, or fewer than 1 pass.
        """
        if num_epochs is not None and num_epochs < 1:
            raise ConfigError(f"repeat({num_epochs}): give a number of passes, 1 or more")
        if len(self) == sys.maxsize:
            raise ConfigError("repeat: the dataset is already endless: remove one of the repeats")
        if len(self) == 0:
            return self._with(self.core)
        repeated = (
            self.core.repeat(num_epochs)
            if reseed_each_epoch
            else self._reorder(FirstPass(num_epochs))
        )
        return self._with(repeated)

    # ------------------------------------------------------------ functions

    def map(self, transform: Map | Callable[[Any], Any]) -> MapDataset:
        """Apply `transform` to every element.

        Args:
            transform: a function or a `Map`.

        Returns:
            The new dataset.
        """
        return self._with(self.core.map(f.Present(f.function("map", transform, Map, "map"))))

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], Any]) -> MapDataset:
        """Apply `transform(i, element)`; `i` is the position in the pass.

        In Grain's order `i` counts over all passes.

        Args:
            transform: a function or a `MapWithIndex`.

        Returns:
            The new dataset.
        """
        fn = f.function("map_with_index", transform, MapWithIndex, "map_with_index")
        if self.lineage.grain:
            return self._with(self._numbered().map(f.PresentPair(fn)))
        return self._with(self.core.map_with_index(f.PresentAt(fn)))

    def random_map(
        self, transform: RandomMap | Callable[[Any, Any], Any], *, seed: int | None = None
    ) -> MapDataset:
        """Apply `transform(element, rng)`, with a new generator per element and pass.

        Args:
            transform: a function or a `RandomMap`.
            seed: seed of the step.

        Returns:
            The new dataset.
        """
        fn = f.function("random_map", transform, RandomMap, "random_map")
        step_seed = self.lineage.step().seed("random_map", seed, bits=128)
        if self.lineage.grain:
            return self._with(self._numbered().map(f.PresentPair(f.GrainRandom(fn, step_seed))))
        return self._with(self.core.random_map(f.PresentRandom(fn), seed=step_seed))

    def filter(self, transform: Filter | Callable[[Any], Any]) -> MapDataset:
        """Remove the elements for which `transform` is false; the length stays.

        Args:
            transform: a function or a `Filter`.

        Returns:
            The new dataset.
        """
        keep = f.Keep(f.function("filter", transform, Filter, "filter"))
        return PipelineMapDataset(self.core.map(keep), self.lineage.step(), True, self.inline, self)

    def flat_map(self, transform: FlatMap) -> MapDataset:
        """Expand each element to up to `transform.max_fan_out` elements; unused indices are empty.

        Args:
            transform: a `FlatMap`.

        Returns:
            The new dataset.
        """
        repeated = PipelineMapDataset(
            self._reorder(Times(transform.max_fan_out)),
            self.lineage.step(),
            True,
            self.inline,
            self,
        )
        return PipelineMapDataset(
            repeated._numbered().map(f.Piece(transform)),
            self.lineage.step(),
            True,
            self.inline,
            self,
        )

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> MapDataset:
        """Batch consecutive elements of a pass, stacked leaf by leaf or built by `batch_fn`.

        The last batch of a pass is short, or dropped with `drop_remainder`.

        Args:
            batch_size: elements per batch.
            drop_remainder: whether to drop the last, short batch.
            batch_fn: collates the elements.

        Returns:
            The new dataset.

        Raises:
            ConfigError: if elements may be missing.
        """
        if self.sparse:
            raise ConfigError(
                "batch: elements may be missing after a filter or flat map, so batches would "
                "differ in size: call .to_iter_dataset() first"
            )
        return self._with(self.core.batch(batch_size, drop_remainder, batch_fn or f.stack))

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset:
        """Return one pass as an `IterDataset`, prefetched by threads.

        Missing elements are left out, unless `allow_nones`.

        Args:
            read_options: threads and buffer.
            allow_nones: whether to keep missing elements as None.
        """
        run = Run.of(read_options or (ReadOptions(0, 0) if self.inline else ReadOptions()))
        core = self._reorder(FirstPass(1)) if self.lineage.grain and len(self) else self.core
        step = _keep_all if allow_nones else _drop_missing
        return PipelineIterDataset(
            step(core), self.lineage.step(), run, self, lambda state: step(self._rest_after(state))
        )

    def _rest_after(self, state: Any) -> Dataset:
        """Return the elements of the pass after a state that Grain saved."""
        fields = cast("dict[str, Any]", state if isinstance(state, Mapping) else {})
        index = fields.get("next_index")
        if not self.lineage.grain:
            raise StateError(
                "the state is one of Grain, whose order differs: pass order='grain' to the source"
            )
        if not isinstance(index, int) or not 0 <= index <= len(self):
            raise StateError(
                f"the state {str(fields)[:80]} of Grain is of another pipeline than this one, of "
                f"{len(self)} elements: build the pipeline as Grain's was"
            )
        return (self[index:] if index else self).to_iter_dataset(allow_nones=True).core

    def stream(self) -> IterDataset:
        """Return `to_iter_dataset()`."""
        return self.to_iter_dataset()

    # ------------------------------------------------------------ inside

    def _with(self, core: Dataset) -> MapDataset:
        return PipelineMapDataset(core, self.lineage.step(), self.sparse, self.inline, self)

    def then(self, core: Dataset) -> MapDataset:
        """Return the dataset after one more step, over another Penstock dataset.

        Args:
            core: the new Penstock dataset.
        """
        return self._with(core)

    def reordered(self, order: Order) -> MapDataset:
        """Return the dataset after one more step, in another order.

        Args:
            order: the order.
        """
        return self._with(self._reorder(order))

    def _reorder(self, order: Order) -> Dataset:
        return Dataset(Reorder(self.core.tree, order))

    def _numbered(self) -> Dataset:
        """Pair every element with its position over all passes."""
        return self.core.zip(make_counter(len(self), "place"))


def _keep_all(core: Dataset) -> Dataset:
    return core


def _drop_missing(core: Dataset) -> Dataset:
    return core.filter(f.IsThere())


class PipelineMapDataset(MapDataset):
    """A `MapDataset` over a Penstock dataset.

    Args:
        core: the Penstock dataset.
        lineage: order and seeds.
        sparse: whether elements may be missing.
        inline: whether it is read without threads.
        parents: the datasets before the last step.
    """

    def __init__(
        self,
        core: Dataset,
        lineage: Lineage,
        sparse: bool = False,
        inline: bool = False,
        parents: Base | Sequence[Base] = (),
    ) -> None:
        super().__init__(parents)
        self._core, self._lineage, self._sparse, self._inline = core, lineage, sparse, inline

    @property
    def core(self) -> Dataset:
        """The Penstock dataset, or the elements of a subclass with its own `__getitem__`."""
        own = type(self).__getitem__ is not PipelineMapDataset.__getitem__
        return super().core if own else self._core

    @property
    def lineage(self) -> Lineage:
        """Order and seeds."""
        return self._lineage

    @property
    def sparse(self) -> bool:
        """True if elements may be missing."""
        return self._sparse

    @property
    def inline(self) -> bool:
        """True if it is read without threads."""
        return self._inline

    def __len__(self) -> int:
        try:
            return len(self._core)
        except IndexedError:
            return sys.maxsize  # endless

    @overload
    def __getitem__(self, index: builtins.slice, /) -> MapDataset: ...
    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    def __getitem__(self, index: int | builtins.slice, /) -> Any:
        if isinstance(index, builtins.slice):
            return self.slice(index)
        position, size = operator.index(index), len(self)
        if position < -size or size == 0:
            raise IndexError(f"index {position} is out of range for a dataset of length {size}")
        return self._all_passes[position if position >= 0 else position + size]

    @cached_property
    def _all_passes(self) -> Dataset:
        """The passes of `core`, one after the other."""
        return self._core if len(self) == sys.maxsize else self._core.repeat()


class SourceMapDataset(PipelineMapDataset):
    """The elements of an object with `len` and `[i]`; see `MapDataset.source`."""

    def __init__(self, source: Any, *, order: Style = "penstock") -> None:
        super().__init__(from_sequence(source), Lineage(order))


def make_counter(size: int, name: str) -> Dataset:
    """Return the positions of a dataset over all its passes; `size` is `sys.maxsize` if endless."""
    n = size if size < sys.maxsize else MAX_POSITION // 2
    counter = Dataset(WithSource(Read(Memory(builtins.range(n)), name), f.SamplePosition(n)))
    return counter.repeat() if size == sys.maxsize else counter


@dataclass(frozen=True)
class Selected:
    """A selection map as a mixing rule."""

    selection_map: SelectionMap

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        return len(self.selection_map)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        pairs = np.asarray([self.selection_map[i] for i in positions.tolist()], np.int64).reshape(
            -1, 2
        )
        return pairs[:, 0], pairs[:, 1]

    def describe(self) -> Json:
        return {"rule": name_of(self.selection_map), "rows": len(self.selection_map)}
