"""`IterDataset`: a pipeline that is read sequentially."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...dataset import Dataset
from ...errors import ConfigError, StateError
from ...inputs import from_iterable, from_sequence
from . import functions as f
from .base import Base
from .iterator import DatasetIterator, Rest, RunIterator
from .lineage import Lineage, joined
from .mixing import mixed, named_inputs
from .options import MultiprocessingOptions, Run, merge_runs
from .transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap


class IterDataset(Base):
    """A dataset to iterate over, any number of times; every method returns a new one.

    `core` is the underlying Penstock dataset. Subclasses that a user writes define `__iter__`,
    which returns a `DatasetIterator`. In a pipeline they are streams with their own state: it is
    part of the state of the run, but the plan knows nothing of their elements.

    Args:
        parents: the datasets that a subclass reads.

    >>> from penstock.compat.grain import IterDataset, MapDataset
    >>> evens = MapDataset.range(0, 10, 2).to_iter_dataset()
    >>> odds = MapDataset.range(1, 10, 2).to_iter_dataset()
    >>> list(IterDataset.mix([evens, odds]).map(lambda x: 10 * x).batch(4))
    [array([10,  0, 20, 30]), array([50, 40, 70, 60]), array([90, 80])]
    """

    @property
    def core(self) -> Dataset:
        """The Penstock dataset."""
        return from_iterable(lambda: self, type(self).__name__, stateful=True)

    @property
    def run(self) -> Run:
        """Run options."""
        return Run()

    def stream(self) -> IterDataset:
        """Return the dataset itself."""
        return self

    def then(self, core: Dataset) -> IterDataset:
        """Return the dataset after one more step, over another Penstock dataset.

        Args:
            core: the new Penstock dataset.
        """
        return PipelineIterDataset(core, self.lineage.step(), self.run, self)

    def rest_after(self, state: Any) -> Dataset:
        """Return what is left of the dataset after a state that Grain saved.

        Args:
            state: the state of Grain's iterator.

        Raises:
            StateError: for a pipeline whose states of Grain are not converted.
        """
        raise StateError(
            f"the state {str(state)[:80]} is one of Grain, which {type(self).__name__} does not "
            "convert: continue by ds[i:] of a MapDataset with order='grain'"
        )

    def extend(self, step: Callable[[Dataset], Dataset]) -> IterDataset:
        """Return the dataset after a step that has no part in a state of Grain.

        Args:
            step: the step, a function of the Penstock dataset.
        """
        return PipelineIterDataset(
            step(self.core),
            self.lineage.step(),
            self.run,
            self,
            lambda state: step(self.rest_after(state)),
        )

    def ready_for(self, step: str) -> None:
        """Raise for a step after `device_put`.

        Args:
            step: name of the step.

        Raises:
            ConfigError: after `device_put`.
        """
        if self.run.on_device:
            raise ConfigError(
                f"{step}: only .map() can follow device_put: move this step before it"
            )

    @abstractmethod
    def __iter__(self) -> DatasetIterator:
        """Return an iterator with a state."""

    @staticmethod
    def mix(
        datasets: Sequence[IterDataset] | Mapping[str, IterDataset],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset:
        """Mix datasets in proportion to their weights, until one of them ends.

        An input without elements gives a mixture without elements. With dicts, weights belong to
        the datasets of their keys, in any order.

        Args:
            datasets: datasets in a list or by name.
            weights: weights in a list or by name; equal by default.

        Returns:
            The mixture.

        >>> from penstock.compat.grain import IterDataset, MapDataset
        >>> a, b = MapDataset.range(5).to_iter_dataset(), MapDataset.range(7, 10).to_iter_dataset()
        >>> list(IterDataset.mix([a, b]))
        [7, 0, 1, 8, 9, 2]
        """
        inputs, named_weights = named_inputs(datasets, weights)
        streams: dict[str, IterDataset] = {
            name: dataset.stream() for name, dataset in inputs.items()
        }
        lineage = joined([dataset.lineage for dataset in streams.values()])
        for dataset in streams.values():
            dataset.ready_for("mix")
        cores = {name: dataset.core for name, dataset in streams.items()}
        if not lineage.grain and any(_is_empty(dataset) for dataset in inputs.values()):
            core = from_sequence([])
        else:
            core = mixed(cores, named_weights, lineage)
        return PipelineIterDataset(
            core,
            lineage,
            merge_runs(dataset.run for dataset in streams.values()),
            list(inputs.values()),
        )

    def map(self, transform: Map | Callable[[Any], Any]) -> IterDataset:
        """Apply `transform` to every element.

        Args:
            transform: a function or a `Map`.

        Returns:
            The new dataset.
        """
        fn = f.Present(f.function("map", transform, Map, "map"))
        if self.run.on_device:
            return PipelineIterDataset(self.core, self.lineage.step(), self.run.mapped(fn), self)
        return self.extend(lambda core: core.map(fn))

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], Any]) -> IterDataset:
        """Apply `transform(i, element)`; `i` counts the elements of the pass from 0.

        Args:
            transform: a function or a `MapWithIndex`.

        Returns:
            The new dataset.
        """
        self.ready_for("map_with_index")
        fn = f.function("map_with_index", transform, MapWithIndex, "map_with_index")
        return self._extend_counted(lambda first: f.PresentAt(fn, first), "counter")

    def random_map(
        self, transform: RandomMap | Callable[[Any, Any], Any], *, seed: int | None = None
    ) -> IterDataset:
        """Apply `transform(element, rng)`, with one generator per element.

        Args:
            transform: a function or a `RandomMap`.
            seed: seed of the step.

        Returns:
            The new dataset.
        """
        self.ready_for("random_map")
        fn = f.function("random_map", transform, RandomMap, "random_map")
        step_seed = self.lineage.step().seed("random_map", seed, bits=128)
        if self.lineage.grain:
            return self._extend_counted(
                lambda first: f.GrainRandom(fn, step_seed, first), "index_for_rng"
            )
        return self.then(self.core.random_map(f.PresentRandom(fn), seed=step_seed))

    def filter(self, transform: Filter | Callable[[Any], Any]) -> IterDataset:
        """Keep the elements for which `transform` is true.

        Args:
            transform: a function or a `Filter`.

        Returns:
            The new dataset.
        """
        self.ready_for("filter")
        keep = f.Passes(f.function("filter", transform, Filter, "filter"))
        return self.extend(lambda core: core.filter(keep))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset:
        """Batch consecutive elements, stacked leaf by leaf or built by `batch_fn`.

        The last batch is short, or dropped with `drop_remainder`.

        Args:
            batch_size: elements per batch.
            drop_remainder: whether to drop the last, short batch.
            batch_fn: collates the elements.

        Returns:
            The new dataset.
        """
        self.ready_for("batch")
        return self.extend(lambda core: core.batch(batch_size, drop_remainder, batch_fn or f.stack))

    def seed(self, seed: int) -> IterDataset:
        """Set the default seed of the random steps that follow.

        Args:
            seed: the seed.

        Returns:
            The new dataset.
        """
        return PipelineIterDataset(
            self.core,
            self.lineage.seeded(self.lineage.seed("seed", seed)),
            self.run,
            self,
            self.rest_after,
        )

    def flat_map(self, transform: FlatMap) -> IterDataset:
        """Replace each element by all elements that `transform.flat_map` returns.

        Args:
            transform: a `FlatMap`.

        Returns:
            The new dataset.
        """
        self.ready_for("flat_map")
        return self.then(
            self.core.flat_map(f.Pieces(f.function("flat_map", transform, FlatMap, "flat_map")))
        )

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset:
        """Prefetch with workers (10 by default).

        The workers are threads of this process, so nothing has to be pickled. Elements, their order
        and states do not depend on the number of workers.

        Args:
            options: number of workers and their buffers.
            worker_init_fn: called once, as for worker 0 of 1, before the first element: all
                workers are this process.
            sequential_slice: ignored; elements are not divided among workers.

        Returns:
            The new dataset.
        """
        options = options or MultiprocessingOptions(num_workers=10)
        if options.num_workers == 0:
            return self
        run = self.run.workers(options).initialized(worker_init_fn)
        return PipelineIterDataset(self.core, self.lineage.step(), run, self, self.rest_after)

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset:
        """Prefetch with workers; see `mp_prefetch`.

        Args:
            multiprocessing_options: number of workers and their buffers.

        Returns:
            The new dataset.
        """
        return self.mp_prefetch(multiprocessing_options)

    def _extend_counted(self, make: Callable[[int], Any], key: str) -> IterDataset:
        """Return the dataset after a function of the index, which a state of Grain counts.

        Args:
            make: makes the function, from the index of the first element.
            key: name of the count in a state of Grain.
        """

        def rest(state: Any) -> Dataset:
            if not isinstance(state.get(key), int):
                raise StateError(
                    f"the state {str(state)[:80]} of Grain has no {key}: build the pipeline as "
                    "Grain's was"
                )
            return self.rest_after(state["parent"]).map_with_index(make(state[key]))

        return PipelineIterDataset(
            self.core.map_with_index(make(0)),
            self.lineage.step(),
            self.run,
            self,
            rest,
        )


class PipelineIterDataset(IterDataset):
    """An `IterDataset` over a Penstock dataset.

    Args:
        core: the Penstock dataset.
        lineage: order and seeds.
        run: run options.
        parents: the datasets before the last step.
        rest: returns what is left of `core` after a state of Grain.
    """

    def __init__(
        self,
        core: Dataset,
        lineage: Lineage,
        run: Run | None = None,
        parents: Base | Sequence[Base] = (),
        rest: Rest | None = None,
    ) -> None:
        super().__init__(parents)
        self._core, self._lineage, self._run, self._rest = core, lineage, run or Run(), rest

    @property
    def core(self) -> Dataset:
        """The Penstock dataset, or a stream of a subclass with its own `__iter__`."""
        return self._core if type(self).__iter__ is PipelineIterDataset.__iter__ else super().core

    @property
    def lineage(self) -> Lineage:
        """Order and seeds."""
        return self._lineage

    @property
    def run(self) -> Run:
        """Run options."""
        return self._run

    def rest_after(self, state: Any) -> Dataset:
        """Return what is left of the dataset after a state that Grain saved."""
        return super().rest_after(state) if self._rest is None else self._rest(state)

    def __iter__(self) -> DatasetIterator:
        return RunIterator(self._core, self._run, self.rest_after)


def interleave(streams: Sequence[IterDataset], width: int) -> PipelineIterDataset:
    """Interleave elements of `width` datasets in turn; see `experimental.InterleaveIterDataset`."""
    for stream in streams:
        stream.ready_for("interleave")
    core = streams[0].core.interleave(*(stream.core for stream in streams[1:]), width=width)
    run = merge_runs(stream.run for stream in streams)
    return PipelineIterDataset(core, joined([stream.lineage for stream in streams]), run, streams)


def _is_empty(dataset: Base) -> bool:
    """Return whether a dataset is known to have no elements, without reading."""
    below = dataset
    while isinstance(below, PipelineIterDataset) and len(below.parents) == 1:
        below = below.parents[0]
    return hasattr(below, "__len__") and len(below) == 0  # pyright: ignore[reportArgumentType]
