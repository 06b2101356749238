"""`MapDataset`: a pipeline whose n-th element can be asked for."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np

from ...dataset import Dataset
from ...engine.graph.build import name_of
from ...engine.graph.nodes import Each, Mix, Read, Reorder
from ...engine.mixing.rules import By
from ...engine.orders import Stride
from ...errors import ConfigError, IndexedError
from ...inputs import from_sequence
from ...sources import Memory
from ...types import Ints, Json, Order
from . import functions as f
from .base import Base
from .iter_dataset import IterDataset
from .lineage import Lineage, Style, joined
from .mixing import mixed, named_inputs
from .options import ReadOptions, Run
from .order import FirstPass, GlobalShuffle, PassingSlice, Times
from .transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap


class SelectionMap(Protocol):
    """Which dataset, and which of its elements, each element of a selection is."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, int]: ...


class MapDataset(Base):
    """A dataset with random access; every method gives a new one.

    `ds[i]` for `i` beyond the length goes on into the next pass, as the length is only that of one
    pass. `None` means that there is no element; functions never see one, and `to_iter_dataset`
    leaves them out. `core` is the dataset of Penstock that it stands for. `order="grain"`, given at
    the source, reproduces Grain's own order.

    >>> from penstock.compat.grain import MapDataset
    >>> ds = MapDataset.range(10).seed(42).shuffle().map(lambda x: x + 1)
    >>> len(ds), sorted(ds) == list(range(1, 11)), ds[3] == ds[13]
    (10, True, False)
    >>> list(MapDataset.range(10, order="grain").shuffle(seed=3329053876))
    [1, 7, 6, 9, 0, 8, 4, 5, 3, 2]
    """

    def __init__(
        self, core: Dataset, lineage: Lineage, sparse: bool = False, inline: bool = False
    ) -> None:
        super().__init__(core, lineage)
        self.sparse, self.inline = sparse, inline

    # ------------------------------------------------------------ sources and mixtures

    @staticmethod
    def source(source: Any, *, order: Style = "penstock") -> MapDataset:
        """Anything with `len` and `[i]`."""
        return MapDataset(from_sequence(source), Lineage(order))

    @staticmethod
    def range(
        start: int, stop: int | None = None, step: int = 1, *, order: Style = "penstock"
    ) -> MapDataset:
        """Whole numbers, as the built-in `range` gives them; read in the caller's thread unless it
        is told otherwise.

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.range(10, 4, -2))
        [10, 8, 6]
        """
        numbers = range(start) if stop is None else range(start, stop, step)
        return MapDataset(from_sequence(numbers), Lineage(order), inline=True)

    @staticmethod
    def mix(
        datasets: Sequence[MapDataset] | Mapping[str, MapDataset],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> MapDataset:
        """Datasets drawn from in proportion to their weights (default: equally); a pass ends when
        one has no more.

        >>> from penstock.compat.grain import MapDataset
        >>> ds = MapDataset.mix([MapDataset.range(5), MapDataset.range(7, 10)])
        >>> len(ds), list(ds)
        (6, [7, 0, 1, 8, 9, 2])
        """
        named, given = named_inputs(datasets, weights)
        lineage = joined([dataset.lineage for dataset in named.values()])
        if empty := [name for name, dataset in named.items() if len(dataset) == 0]:
            raise ConfigError(
                f"mix: input {empty[0]} is empty ({named[empty[0]]!r}); it cannot have a share"
            )
        core = mixed({name: dataset.core for name, dataset in named.items()}, given, lineage)
        return MapDataset(core, lineage, any(dataset.sparse for dataset in named.values()))

    @staticmethod
    def concatenate(datasets: Sequence[MapDataset]) -> MapDataset:
        """One dataset after the other; pass `n` is pass `n` of each.

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(3, 5)]))
        [0, 1, 2, 3, 4]
        """
        lineage = joined([dataset.lineage for dataset in datasets])
        if endless := [i for i, dataset in enumerate(datasets) if len(dataset) == sys.maxsize]:
            raise ConfigError(
                f"concatenate: dataset {endless[0]} is endless and hides those after it"
            )
        core = datasets[0].core.concat(*(dataset.core for dataset in datasets[1:]))
        return MapDataset(core, lineage, any(dataset.sparse for dataset in datasets))

    @staticmethod
    def select_from_datasets(
        datasets: Sequence[MapDataset], selection_map: SelectionMap
    ) -> MapDataset:
        """Element `i` is element `k` of dataset `d`, where `selection_map[i]` is `(d, k)`."""
        lineage = joined([dataset.lineage for dataset in datasets])
        flows, names = (
            tuple(dataset.core.flow for dataset in datasets),
            tuple(map(str, builtins.range(len(datasets)))),
        )
        core = Dataset(Mix(flows, names, By(Selected(selection_map))))
        return MapDataset(core, lineage, any(dataset.sparse for dataset in datasets))

    # ------------------------------------------------------------ asking

    def __len__(self) -> int:
        try:
            return len(self.core)
        except IndexedError:
            return sys.maxsize  # endless

    @overload
    def __getitem__(self, index: builtins.slice, /) -> MapDataset: ...
    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    def __getitem__(self, index: int | builtins.slice, /) -> Any:
        if isinstance(index, builtins.slice):
            return self.slice(index)
        place, size = operator.index(index), len(self)
        if place < -size or size == 0:
            raise IndexError(f"index {place} of a dataset of {size}")
        return self.core.sample(place if place >= 0 else place + size)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_iter_dataset())

    # ------------------------------------------------------------ order

    def seed(self, seed: int) -> MapDataset:
        """The seed of the random steps that follow and have none of their own."""
        return MapDataset(
            self.core,
            self.lineage.seeded(self.lineage.seed("seed", seed)),
            self.sparse,
            self.inline,
        )

    def shuffle(self, seed: int | None = None) -> MapDataset:
        """Every element once a pass, in an order that is new in every pass. Needs a seed, here or
        by `.seed()`."""
        own = self.lineage.step().seed("shuffle", seed)
        if len(self) == sys.maxsize:
            raise ConfigError("shuffle: the dataset is endless; shuffle before repeat")
        return self._with(
            self._ordered(GlobalShuffle(own)) if self.lineage.grain else self.core.shuffle(own)
        )

    def slice(self, sl: builtins.slice) -> MapDataset:
        """Some places: the same elements in every pass (in Grain's order: what every pass has
        there).

        >>> from penstock.compat.grain import MapDataset
        >>> list(MapDataset.range(10)[1:8:3])
        [1, 4, 7]
        """
        if not isinstance(sl, builtins.slice):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"slice takes slice(a, b, c), not a {type(sl).__name__}")
        size = len(self)
        start, stop, step = sl.indices(size)
        count = len(builtins.range(start, stop, step))
        endless = size == sys.maxsize and stop == size and step > 0
        if self.lineage.grain:
            return self._with(self._ordered(PassingSlice(start, None if endless else count, step)))
        if endless:
            return self._with(self._ordered(Stride(start, step)))
        return self._with(self.core.slice(start, stop if stop >= 0 else None, step))

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset:
        """`num_epochs` passes as one, endless without a number; in a new order each, or all like
        the first."""
        if num_epochs is not None and num_epochs < 1:
            raise ConfigError(f"repeat({num_epochs}): a number of passes, 1 or more")
        if len(self) == sys.maxsize:
            raise ConfigError("repeat: the dataset is endless already")
        if len(self) == 0:
            return self._with(self.core)
        again = (
            self.core.repeat(num_epochs)
            if reseed_each_epoch
            else self._ordered(FirstPass(num_epochs))
        )
        return self._with(again)

    # ------------------------------------------------------------ functions

    def map(self, transform: Map | Callable[[Any], Any]) -> MapDataset:
        """`transform` of every element."""
        return self._with(self.core.map(f.Present(f.function("map", transform, Map, "map"))))

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], Any]) -> MapDataset:
        """`transform(i, element)`, `i` being the place in the pass (in Grain's order: it goes on
        counting)."""
        fn = f.function("map_with_index", transform, MapWithIndex, "map_with_index")
        if self.lineage.grain:
            return self._with(self._numbered().map(f.PresentPair(fn)))
        return self._with(self.core.map_with_index(f.PresentAt(fn)))

    def random_map(
        self, transform: RandomMap | Callable[[Any, Any], Any], *, seed: int | None = None
    ) -> MapDataset:
        """`transform(element, rng)`, with a generator that belongs to the element and is new in
        every pass."""
        fn = f.function("random_map", transform, RandomMap, "random_map")
        own = self.lineage.step().seed("random_map", seed, bits=128)
        if self.lineage.grain:
            return self._with(self._numbered().map(f.PresentPair(f.GrainRandom(fn, own))))
        return self._with(self.core.random_map(f.PresentRandom(fn), seed=own))

    def filter(self, transform: Filter | Callable[[Any], Any]) -> MapDataset:
        """Nothing in place of the elements for which `transform` is false; the length stays."""
        kept = f.Kept(f.function("filter", transform, Filter, "filter"))
        return MapDataset(self.core.map(kept), self.lineage.step(), True, self.inline)

    def flat_map(self, transform: FlatMap) -> MapDataset:
        """Up to `transform.max_fan_out` elements for each; nothing in the places that are left
        over."""
        spread = MapDataset(
            self._ordered(Times(transform.max_fan_out)), self.lineage.step(), True, self.inline
        )
        return MapDataset(
            spread._numbered().map(f.Piece(transform)), self.lineage.step(), True, self.inline
        )

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> MapDataset:
        """Groups of neighbours of one pass, stacked leaf by leaf, or built by `batch_fn`; the last
        one of a pass is short, or dropped.
        """
        if self.sparse:
            raise ConfigError(
                "batch: some elements may be missing after a filter or flat map, and batches "
                "would be of different sizes; use .to_iter_dataset() first"
            )
        return self._with(self.core.batch(batch_size, drop_remainder, batch_fn or f.stack))

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset:
        """One pass as an `IterDataset`, without the missing elements (unless `allow_nones`); read
        ahead by threads."""
        run = Run.of(read_options or (ReadOptions(0, 0) if self.inline else ReadOptions()))
        core = self._ordered(FirstPass(1)) if self.lineage.grain and len(self) else self.core
        return IterDataset(
            core if allow_nones else core.filter(f.IsThere()), self.lineage.step(), run
        )

    def stream(self) -> IterDataset:
        """The same as `to_iter_dataset()`."""
        return self.to_iter_dataset()

    # ------------------------------------------------------------ inside

    def _with(self, core: Dataset) -> MapDataset:
        return MapDataset(core, self.lineage.step(), self.sparse, self.inline)

    def then(self, core: Dataset) -> MapDataset:
        """One step further, to another dataset of Penstock's."""
        return self._with(core)

    def reordered(self, order: Order) -> MapDataset:
        """One step further, in another order."""
        return self._with(self._ordered(order))

    def _ordered(self, order: Order) -> Dataset:
        return Dataset(Reorder(self.core.flow, order))

    def _numbered(self) -> Dataset:
        """Pairs of every element and its place over all passes."""
        size = len(self)
        n = size if size < sys.maxsize else 1 << 61
        counter = Dataset(Each(Read(Memory(builtins.range(n)), "place"), "source", f.Place(n)))
        counter = counter.repeat() if size == sys.maxsize else counter
        return self.core.zip(counter)


@dataclass(frozen=True)
class Selected:
    """A selection map as a mixing rule."""

    chosen: SelectionMap

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        return len(self.chosen)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        pairs = np.asarray([self.chosen[i] for i in positions.tolist()], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def describe(self) -> Json:
        return {"rule": name_of(self.chosen), "rows": len(self.chosen)}
