"""`IterDataset`: a pipeline that is read from the beginning to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...dataset import Dataset
from ...errors import ConfigError
from . import functions as f
from .base import Base
from .iterator import DatasetIterator
from .lineage import Lineage, joined
from .mixing import mixed, named_inputs
from .options import MultiprocessingOptions, Run, together
from .transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap


class IterDataset(Base):
    """A dataset that can be iterated over, again and again; every method gives a new one.

    `core` is the dataset of Penstock that it stands for.

    >>> from penstock.compat.grain import IterDataset, MapDataset
    >>> evens = MapDataset.range(0, 10, 2).to_iter_dataset()
    >>> odds = MapDataset.range(1, 10, 2).to_iter_dataset()
    >>> list(IterDataset.mix([evens, odds]).map(lambda x: 10 * x).batch(4))
    [array([10,  0, 20, 30]), array([50, 40, 70, 60]), array([90, 80])]
    """

    def __init__(self, core: Dataset, lineage: Lineage, run: Run | None = None) -> None:
        super().__init__(core, lineage)
        self.run = run or Run()

    def stream(self) -> IterDataset:
        """The dataset itself."""
        return self

    def then(self, core: Dataset) -> IterDataset:
        """One step further, to another dataset of Penstock's."""
        return IterDataset(core, self.lineage.step(), self.run)

    def ready_for(self, step: str) -> None:
        """Refuse a step behind `device_put`."""
        if self.run.placed:
            raise ConfigError(f"{step}: put it before device_put; only .map() can follow that")

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self.core, self.run)

    @staticmethod
    def mix(
        datasets: Sequence[IterDataset] | Mapping[str, IterDataset],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset:
        """Datasets drawn from in proportion to their weights (default: equally), until one has no
        more.

        With dicts, weights belong to the datasets of their keys, in whatever order either is
        written.

        >>> from penstock.compat.grain import IterDataset, MapDataset
        >>> a, b = MapDataset.range(5).to_iter_dataset(), MapDataset.range(7, 10).to_iter_dataset()
        >>> list(IterDataset.mix([a, b]))
        [7, 0, 1, 8, 9, 2]
        """
        found, given = named_inputs(datasets, weights)
        named: dict[str, IterDataset] = {name: dataset.stream() for name, dataset in found.items()}
        lineage = joined([dataset.lineage for dataset in named.values()])
        for dataset in named.values():
            dataset.ready_for("mix")
        core = mixed({name: dataset.core for name, dataset in named.items()}, given, lineage)
        return IterDataset(core, lineage, together(dataset.run for dataset in named.values()))

    def map(self, transform: Map | Callable[[Any], Any]) -> IterDataset:
        """`transform` of every element."""
        fn = f.Present(f.function("map", transform, Map, "map"))
        if self.run.placed:
            return IterDataset(self.core, self.lineage.step(), self.run.mapped(fn))
        return self.then(self.core.map(fn))

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], Any]) -> IterDataset:
        """`transform(i, element)`, `i` counting the elements of the pass from 0."""
        self.ready_for("map_with_index")
        fn = f.function("map_with_index", transform, MapWithIndex, "map_with_index")
        return self.then(self.core.map_with_index(f.PresentAt(fn)))

    def random_map(
        self, transform: RandomMap | Callable[[Any, Any], Any], *, seed: int | None = None
    ) -> IterDataset:
        """`transform(element, rng)`, with a generator that belongs to the element."""
        self.ready_for("random_map")
        fn = f.function("random_map", transform, RandomMap, "random_map")
        own = self.lineage.step().seed("random_map", seed, bits=128)
        if self.lineage.grain:
            return self.then(self.core.map_with_index(f.GrainRandom(fn, own)))
        return self.then(self.core.random_map(f.PresentRandom(fn), seed=own))

    def filter(self, transform: Filter | Callable[[Any], Any]) -> IterDataset:
        """The elements for which `transform` is true."""
        self.ready_for("filter")
        return self.then(
            self.core.filter(f.Passes(f.function("filter", transform, Filter, "filter")))
        )

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset:
        """Groups of neighbours, stacked leaf by leaf, or built by `batch_fn`; the last one is
        short, or dropped."""
        self.ready_for("batch")
        return self.then(self.core.batch(batch_size, drop_remainder, batch_fn or f.stack))

    def seed(self, seed: int) -> IterDataset:
        """The seed of the random steps that follow and have none of their own."""
        return IterDataset(
            self.core, self.lineage.seeded(self.lineage.seed("seed", seed)), self.run
        )

    def flat_map(self, transform: FlatMap) -> IterDataset:
        """All elements that `transform.flat_map` gives for each."""
        self.ready_for("flat_map")
        return self.then(
            self.core.flat_map(f.Pieces(f.function("flat_map", transform, FlatMap, "flat_map")))
        )

    def mp_prefetch(self, options: MultiprocessingOptions | None = None) -> IterDataset:
        """Computed ahead by workers (10 without options). They are threads of this process, so
        nothing has to be pickled; elements, their order and states are the same for any number of
        them.
        """
        options = options or MultiprocessingOptions(num_workers=10)
        return IterDataset(self.core, self.lineage.step(), self.run.workers(options))

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset:
        """The same as `mp_prefetch`."""
        return self.mp_prefetch(multiprocessing_options)
