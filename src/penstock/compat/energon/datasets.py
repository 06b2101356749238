"""Energon's dataset classes: a Penstock pipeline, and how a loader runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil, lcm
from typing import Any, cast

from ...dataset import Dataset
from ...engine.runtime.iterator import DatasetIterator
from ...errors import ConfigError, IndexedError, Skip
from ...inputs import mix
from .config import WorkerConfig, refuse

Counts = Callable[[int, int], list[int]]
"""(lanes, pass number) -> items of that pass on each lane."""


class SavableDataset:
    """A dataset of this API: `core` is the pipeline, the rest configures its loader.

    `len` is the number of items of this rank.

    Args:
        core: the Penstock dataset.
        worker_config: ranks, threads, seed and error handling.
        name: name for error messages and for inputs of a blend.
        once: items of one pass over all samples, if hooks neither drop nor multiply them (None:
            unknown).
        endless: whether passes follow each other without an end.
        epoch_length: items of a rank after which a `for` over a loader ends.
    """

    def __init__(
        self,
        core: Dataset,
        worker_config: WorkerConfig | None = None,
        *,
        name: str = "dataset",
        once: Counts | None = None,
        endless: bool = False,
        epoch_length: int | None = None,
    ) -> None:
        self.core, self.worker_config, self.name = core, worker_config or WorkerConfig(), name
        self.once, self.endless, self.epoch_length = once, endless, epoch_length

    def __iter__(self) -> Iterator[Any]:
        return DatasetIterator(self.core, lanes=1)

    def __len__(self) -> int:
        return self.items(self.worker_config, self.worker_config.lane_count())

    def items(self, config: WorkerConfig, lanes: int) -> int:
        """Return the number of items of a `for` on the rank of `config`.

        Args:
            config: ranks of the run.
            lanes: number of lanes of the run.

        Raises:
            IndexedError: if the number is unknown before the run.
        """
        if self.epoch_length is not None:
            return self.epoch_length
        if self.once is None:
            raise IndexedError(
                f"len() of {self.name}: the number of items is unknown until they are packed"
            )
        rank, world_size = config.rank_and_world_size()
        if lanes % world_size:
            raise IndexedError(
                f"len() of {self.name}: {world_size} ranks do not divide the {lanes} lanes of the "
                "run, so the number of items per rank is unknown"
            )
        if self.core.flow.in_tail:  # batches are formed per rank, not per lane
            return self.once(world_size, 0)[rank]
        return sum(self.once(lanes, 0)[rank::world_size])


def _parts(
    call: str, datasets: Sequence[Any], config: WorkerConfig | None
) -> tuple[list[SavableDataset], WorkerConfig]:
    """Check inputs, and return them with their common config."""
    if not datasets:
        raise ConfigError(f"{call}: no datasets: give at least one")
    for dataset in datasets:
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{call}: {type(dataset).__name__} is not a dataset of this API: see "
                "get_train_dataset"
            )
        if dataset.epoch_length is not None:
            raise ConfigError(
                f"{call}: an input has a virtual epoch: wrap the result in EpochizeDataset instead"
            )
    parts = cast("list[SavableDataset]", list(datasets))
    if config is None and any(part.worker_config != parts[0].worker_config for part in parts):
        raise ConfigError(f"{call}: the inputs have different worker configs: pass one to {call}")
    return parts, config or parts[0].worker_config


def _weighted(
    call: str, pairs: Sequence[Any], config: WorkerConfig | None, block_size: int | None
) -> SavableDataset:
    """Mix inputs by weight: exact in every block, in random order inside."""
    for pair in pairs:
        if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
            raise ConfigError(f"{call}: an argument is not a pair: give pairs (dataset, weight)")
    parts, config = _parts(call, [pair[0] for pair in pairs], config)
    names = unique([part.name for part in parts])
    weights = dict(zip(names, (pair[1] for pair in pairs), strict=True))
    endless = all(part.endless for part in parts)
    core = mix(
        dict(zip(names, (part.core for part in parts), strict=True)),
        weights,
        seed=config.seed_offset,
        block_size=block_size or block_of(list(weights.values())),
        stop="restart" if endless else "all_exhausted",
    )
    once = total(part.once for part in parts)
    return SavableDataset(
        core, config, name=call, once=once, endless=any(part.endless for part in parts)
    )


class BlendDataset(SavableDataset):
    """Blend whole items (batches) of datasets by weight: `BlendDataset((a, 0.6), (b, 0.4))`.

    Weights are relative. Counts are exact in every small block (10 items here: 6 and 4), in random
    order inside. An input that ends drops out, and the others share its weight; the blend ends with
    the last input.

    Args:
        dataset_weights: pairs of dataset and weight.
        worker_config: required if the inputs differ.
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, float],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        self.__dict__.update(vars(_weighted("BlendDataset", dataset_weights, worker_config, None)))


class MixBatchDataset(SavableDataset):
    """Mix items of datasets into batches of `batch_size`, collated by `batch_mix_fn`.

    Counts follow the weights inside every batch, within 2, and exactly over batches; the order
    inside is random. Inputs yield batches of one sample. `batch_mix_fn` may be a generator, or
    raise `SkipSample`.

    Args:
        dataset_weights: pairs of dataset and weight.
        batch_size: items per batch.
        batch_mix_fn: collates the items.
        worker_config: required if the inputs differ.
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        mixed = _weighted("MixBatchDataset", dataset_weights, worker_config, batch_size)
        core = mixed.core.batch(batch_size, collate=list).flat_map(_Listed(batch_mix_fn))
        once = batched(mixed.once, batch_size)
        super().__init__(
            core, mixed.worker_config, name="MixBatchDataset", once=once, endless=mixed.endless
        )


class ConcatDataset(SavableDataset):
    """Concatenate datasets, for validation.

    Args:
        datasets: the datasets.
        worker_config: required if the inputs differ.

    Raises:
        ConfigError: for an endless input.
    """

    def __init__(
        self, *datasets: SavableDataset, worker_config: WorkerConfig | None = None
    ) -> None:
        parts, config = _parts("ConcatDataset", datasets, worker_config)
        if any(part.endless for part in parts):
            raise ConfigError(
                "ConcatDataset: an input is endless, so later inputs are never reached: use "
                "BlendDataset"
            )
        first, *rest = (part.core for part in parts)
        super().__init__(
            first.concat(*rest),
            config,
            name="ConcatDataset",
            once=total(part.once for part in parts),
        )


class EpochizeDataset(SavableDataset):
    """End a `for` over the loader after `length` items of a rank; the next one continues.

    Alternatively after `num_epochs` passes over all data: their number of items, sharded across
    ranks. A dataset that ends starts over.

    Args:
        dataset: the dataset.
        length: items of a rank.
        num_epochs: passes, in place of `length`.
        worker_config: replaces the dataset's.

    Raises:
        ConfigError: unless exactly one of both is given.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        length: int | None = None,
        num_epochs: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        [part], config = _parts("EpochizeDataset", [dataset], worker_config)
        if (length is None) == (num_epochs is None) or (length or num_epochs or 0) < 1:
            raise ConfigError(
                f"EpochizeDataset(length={length}, num_epochs={num_epochs}): give one of them, at "
                "least 1"
            )
        if num_epochs is not None:
            if part.once is None:
                raise ConfigError(
                    "EpochizeDataset: num_epochs needs a dataset of known length: pass length= "
                    "instead"
                )
            length = max(
                1,
                sum(part.once(1 if part.endless else config.lane_count(), 0))
                * num_epochs
                // config.rank_and_world_size()[1],
            )
        core = part.core if part.endless else part.core.repeat()
        super().__init__(
            core, config, name=part.name, once=part.once, endless=True, epoch_length=length
        )


class MapDataset(SavableDataset):
    """Apply `map_fn` to every item; it may be a generator, or raise `SkipSample`.

    Args:
        dataset: the dataset.
        map_fn: the function.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        map_fn: Callable[[Any], Any],
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("MapDataset", options)
        copy_with(
            self, "MapDataset", dataset, worker_config, lambda core: core.flat_map(_Listed(map_fn))
        )


class BatchDataset(SavableDataset):
    """Collate `batch_size` items with `batcher`.

    `batcher` may be a generator function or raise `SkipSample`.

    Args:
        dataset: the dataset.
        batch_size: items per batch.
        batcher: collates the items.
        drop_last: whether to drop the last, short batch.
        worker_config: replaces the dataset's.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        [part], config = _parts("BatchDataset", [dataset], worker_config)
        core = part.core.batch(batch_size, drop_last, collate=list).flat_map(_Listed(batcher))
        once = batched(part.once, batch_size, drop_last)
        super().__init__(core, config, name=part.name, once=once, endless=part.endless)


class FilterDataset(SavableDataset):
    """Keep the items for which `filter_fn` is true.

    Args:
        dataset: the dataset.
        filter_fn: the condition.
        worker_config: replaces the dataset's.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        filter_fn: Callable[[Any], bool],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        copy_with(
            self, "FilterDataset", dataset, worker_config, lambda core: core.filter(filter_fn)
        )


class LimitDataset(SavableDataset):
    """Take the first `length` items of each pass, on every rank.

    Args:
        dataset: the dataset.
        length: items per pass and rank.
        worker_config: replaces the dataset's.
    """

    def __init__(
        self, dataset: SavableDataset, length: int, worker_config: WorkerConfig | None = None
    ) -> None:
        [part], config = _parts("LimitDataset", [dataset], worker_config)
        items = on_all_ranks(length, config)
        once = limited(None if part.endless else part.once, items)
        super().__init__(part.core.limit(items), config, name=part.name, once=once)


class RepeatDataset(SavableDataset):
    """Repeat a dataset for `repeats` passes, or endlessly without a number.

    Args:
        dataset: the dataset.
        repeats: number of passes.
        worker_config: replaces the dataset's.

    Raises:
        ConfigError: for a fraction.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        repeats: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        [part], config = _parts("RepeatDataset", [dataset], worker_config)
        if repeats is not None and repeats != int(repeats):
            raise ConfigError(
                f"RepeatDataset: repeats={repeats} is not a whole number: use blend_epochized for "
                "parts of passes"
            )
        core = part.core.repeat(None if repeats is None else int(repeats))
        once = part.once if repeats is None else repeated(part.once, int(repeats))
        super().__init__(core, config, name=part.name, once=once, endless=repeats is None)


def copy_with(
    target: SavableDataset,
    call: str,
    dataset: SavableDataset,
    config: WorkerConfig | None,
    step: Callable[[Dataset], Dataset],
) -> None:
    """Initialise a dataset as a copy of another one with one more step."""
    if not isinstance(dataset, SavableDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{call}: {type(dataset).__name__} is not a dataset of this API: see get_train_dataset"
        )
    SavableDataset.__init__(
        target,
        step(dataset.core),
        config or dataset.worker_config,
        name=dataset.name,
        once=dataset.once,
        endless=dataset.endless,
        epoch_length=dataset.epoch_length,
    )


def on_all_ranks(length: int, config: WorkerConfig) -> int:
    """Return the number of items of the run that gives `length` to every rank."""
    if length < 1:
        raise ConfigError(f"a limit of {length} items per rank: give at least 1")
    return length * config.rank_and_world_size()[1]


def block_of(weights: Sequence[float]) -> int:
    """Return the smallest block with whole counts, of 10 or more items; at most 1,000.

    >>> block_of([0.6, 0.4]), block_of([1, 2]), block_of([0.9998, 0.0002])
    (10, 12, 1000)
    """
    shares = [
        Fraction(weight).limit_denominator(10**6) for weight in weights if weight and weight > 0
    ]
    total = sum(shares)
    block = lcm(*((share / total).denominator for share in shares)) if shares else 1
    return block * ceil(10 / block) if block <= 1000 else 1000


def unique(names: Sequence[str]) -> list[str]:
    """Make names unique by a number after repeated ones.

    >>> unique(["coco", "text", "coco"])
    ['coco', 'text', 'coco#2']
    """
    seen = Counter[str]()
    out = list[str]()
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return out


def sharded_counts(samples: int) -> Counts:
    """Shard samples across lanes.

    >>> sharded_counts(7)(3, 0), sharded_counts(7)(3, 1)
    ([3, 2, 2], [2, 3, 2])
    """
    return lambda lanes, pass_number: [
        len(range((lane - pass_number * samples) % lanes, samples, lanes)) for lane in range(lanes)
    ]


def batched(once: Counts | None, size: int | None, drop_last: bool = False) -> Counts | None:
    """Count the batches on each lane."""
    if once is None or size is None:
        return once
    return lambda lanes, pass_number: [
        count // size if drop_last else ceil(count / size) for count in once(lanes, pass_number)
    ]


def limited(once: Counts | None, n: int) -> Counts:
    """Count the first `n` items of a run on each lane."""
    return lambda lanes, pass_number: sharded_counts(min(n, sum(once(lanes, 0))) if once else n)(
        lanes, pass_number
    )


def repeated(once: Counts | None, times: int) -> Counts | None:
    """Count several passes as one on each lane."""
    if once is None:
        return None
    return lambda lanes, pass_number: [
        sum(lane)
        for lane in zip(*(once(lanes, pass_number * times + i) for i in range(times)), strict=True)
    ]


def total(counts: Iterable[Counts | None]) -> Counts | None:
    """Sum the counts of several inputs; None if one of them is unknown."""
    inputs = list(counts)
    known_counts = [count for count in inputs if count is not None]
    if len(known_counts) < len(inputs):
        return None
    return lambda lanes, pass_number: list(
        map(sum, zip(*(count(lanes, pass_number) for count in known_counts), strict=True))
    )


class _Listed:
    """Collect a function's results in a list: one, those of a generator, or none on `Skip`."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn, self.__qualname__ = fn, str(getattr(fn, "__qualname__", type(fn).__qualname__))

    def __call__(self, value: Any) -> list[Any]:
        try:
            result = self.fn(value)
            return (
                list(cast("Iterator[Any]", result)) if isinstance(result, Generator) else [result]
            )
        except Skip:
            return []
