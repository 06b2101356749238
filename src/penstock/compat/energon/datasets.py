"""Energon's dataset classes: a Penstock pipeline, and how a loader runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, lcm
from typing import Any, Generic, Literal, TypeVar, cast

from ...dataset import Dataset
from ...engine.runtime.iterator import DatasetIterator
from ...errors import ConfigError, IndexedError, Skip
from ...inputs import mix
from ...tasks.folds import GroupBatches, Grouped, SelectPacks, format_group_key
from .config import WorkerConfig, refuse

T = TypeVar("T")

Counts = Callable[[int, int], list[int]]
"""(lanes, pass number) -> items of that pass on each lane."""


class SavableDataset(Generic[T]):
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

    def len_rank(self) -> int:
        """Return the number of items of this rank."""
        return len(self)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of items of a worker: threads share those of the rank.

        Args:
            worker_idx: number of the worker; all workers of a rank read one stream.
        """
        workers = max(1, self.worker_config.num_workers)
        return len(range(worker_idx or 0, len(self), workers))

    def worker_has_samples(self) -> bool:
        """Return whether there are any samples: a source without any is an error earlier."""
        return self.once is None or len(self) > 0

    def config(self) -> Mapping[str, Any]:
        """Return the description of the pipeline, as its states store it."""
        return {"type": type(self).__qualname__, "name": self.name, "pipeline": repr(self.core)}

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
        if self.core.tree.in_tail:  # batches are formed per rank, not per lane
            return self.once(world_size, 0)[rank]
        return sum(self.once(lanes, 0)[rank::world_size])


def _parts(
    call: str, datasets: Sequence[Any], config: WorkerConfig | None
) -> tuple[list[SavableDataset[Any]], WorkerConfig]:
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
    parts = cast("list[SavableDataset[Any]]", list(datasets))
    if config is None and any(part.worker_config != parts[0].worker_config for part in parts):
        raise ConfigError(f"{call}: the inputs have different worker configs: pass one to {call}")
    return parts, config or parts[0].worker_config


def _weighted(
    call: str, pairs: Sequence[Any], config: WorkerConfig | None, block_size: int | None
) -> SavableDataset[Any]:
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


class BlendDataset(SavableDataset[T]):
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
        *dataset_weights: tuple[SavableDataset[Any], float],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        self.__dict__.update(vars(_weighted("BlendDataset", dataset_weights, worker_config, None)))


class MixBatchDataset(SavableDataset[T]):
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
        *dataset_weights: tuple[SavableDataset[Any], float],
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


class ConcatDataset(SavableDataset[T]):
    """Concatenate datasets, for validation.

    Args:
        datasets: the datasets.
        worker_config: required if the inputs differ.

    Raises:
        ConfigError: for an endless input.
    """

    def __init__(
        self, *datasets: SavableDataset[Any], worker_config: WorkerConfig | None = None
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


class EpochizeDataset(SavableDataset[T]):
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
        dataset: SavableDataset[Any],
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


class MapDataset(SavableDataset[T]):
    """Apply `map_fn` to every item; it may be a generator, or raise `SkipSample`.

    Args:
        dataset: the dataset.
        map_fn: the function.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], Any],
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("MapDataset", options)
        copy_with(
            self, "MapDataset", dataset, worker_config, lambda core: core.flat_map(_Listed(map_fn))
        )


class BatchDataset(SavableDataset[T]):
    """Collate `batch_size` items with `batcher`.

    `batcher` may be a generator function or raise `SkipSample`.

    Args:
        dataset: the dataset.
        batch_size: items per batch.
        batcher: collates the items.
        drop_last: whether to drop the last, short batch.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("BatchDataset", options)
        [part], config = _parts("BatchDataset", [dataset], worker_config)
        core = part.core.batch(batch_size, drop_last, collate=list).flat_map(_Listed(batcher))
        once = batched(part.once, batch_size, drop_last)
        super().__init__(core, config, name=part.name, once=once, endless=part.endless)


class FilterDataset(SavableDataset[T]):
    """Keep the items for which `filter_fn` is true.

    Args:
        dataset: the dataset.
        filter_fn: the condition.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        filter_fn: Callable[[Any], bool],
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("FilterDataset", options)
        copy_with(
            self, "FilterDataset", dataset, worker_config, lambda core: core.filter(filter_fn)
        )


class LimitDataset(SavableDataset[T]):
    """Take the first `length` items of each pass, on every rank.

    Args:
        dataset: the dataset.
        length: items per pass and rank.
        worker_config: replaces the dataset's.
        reset_after_epoch: not used: every `for` begins at the first item.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        length: int,
        worker_config: WorkerConfig | None = None,
        *,
        reset_after_epoch: bool = False,
    ) -> None:
        [part], config = _parts("LimitDataset", [dataset], worker_config)
        items = on_all_ranks(length, config)
        once = limited(None if part.endless else part.once, items)
        super().__init__(part.core.limit(items), config, name=part.name, once=once)


class RepeatDataset(SavableDataset[T]):
    """Repeat a dataset for `repeats` passes, or endlessly without a number.

    A fraction ends within a pass: `repeats=1.5` gives every sample once, and half of them twice.

    Args:
        dataset: the dataset.
        repeats: number of passes.
        worker_config: replaces the dataset's.
        restart: not used: every `for` begins at the first item.

    Raises:
        ConfigError: for a fraction of a dataset of unknown length.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        repeats: float | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        restart: bool = True,
    ) -> None:
        [part], config = _parts("RepeatDataset", [dataset], worker_config)
        if repeats is None or repeats == int(repeats):
            core = part.core.repeat(None if repeats is None else int(repeats))
            once = part.once if repeats is None else repeated(part.once, int(repeats))
        else:
            if part.once is None:
                raise ConfigError(
                    f"RepeatDataset: repeats={repeats} needs a dataset of known length: pass a whole "
                    "number, or repeat the samples before they are packed"
                )
            items = int(Fraction(str(repeats)) * sum(part.once(1, 0)))
            core = part.core.repeat().limit(max(1, items))
            once = sharded_counts(items)
        super().__init__(core, config, name=part.name, once=once, endless=repeats is None)


class ShuffleBufferDataset(SavableDataset[T]):
    """Draw every item at random from a buffer of the next `size` items.

    Args:
        dataset: the dataset.
        size: items of the buffer.
        worker_config: replaces the dataset's.
    """

    def __init__(
        self, dataset: SavableDataset[Any], size: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        copy_with(
            self,
            "ShuffleBufferDataset",
            dataset,
            worker_config,
            lambda core: core.shuffle_buffer(size),
        )


class GroupBatchDataset(SavableDataset[T]):
    """Batch items of one key; a batch is complete when it has the size of its key.

    Args:
        dataset: the dataset.
        fixed_batch_size: size of all batches; None if `sample_group_key` gives it.
        sample_group_key: function from an item to its key and batch size (None: the fixed one).
        batcher: collates the items.
        drop_last: whether to drop incomplete batches at the end.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Any, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("GroupBatchDataset", options)

        def group(item: Any) -> Grouped:
            key, size = sample_group_key(item)
            if (size is None) == (fixed_batch_size is None):
                raise ConfigError(
                    f"GroupBatchDataset: sample_group_key returned the size {size}, and "
                    f"fixed_batch_size is {fixed_batch_size}: give exactly one of the two"
                )
            return Grouped(format_group_key(key), size or fixed_batch_size or 1, item)

        copy_with(
            self,
            "GroupBatchDataset",
            dataset,
            worker_config,
            lambda core: (
                core.flat_map(_Listed(group))
                .fold(GroupBatches(drop_last), size=_count_one)
                .flat_map(_Listed(lambda group: batcher([grouped.sample for grouped in group])))
            ),
            known=False,
        )


class PackingDataset(SavableDataset[T]):
    """Fill a buffer of `buffer_size` items, and make packs of it.

    Args:
        dataset: the dataset.
        buffer_size: items of the buffer.
        pre_packer: returns one list of items per pack; items in no list are dropped.
        final_packer: makes a pack of such a list.
        sample_encoder: applied to every item of a pack before.
        worker_config: replaces the dataset's.
        options: other settings of Energon.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        refuse("PackingDataset", options)

        def pack(items: list[Any]) -> Any:
            return final_packer(items if sample_encoder is None else [*map(sample_encoder, items)])

        copy_with(
            self,
            "PackingDataset",
            dataset,
            worker_config,
            lambda core: core.fold(SelectPacks(buffer_size, pre_packer), size=_count_one).flat_map(
                _Listed(pack)
            ),
            known=False,
        )


class GcDataset(SavableDataset[T]):
    """Return the dataset as it is: threads need no collection of garbage.

    Args:
        dataset: the dataset.
        worker_config: replaces the dataset's.
        every_n_iter: not used.
        freeze: not used.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool = True,
    ) -> None:
        copy_with(self, "GcDataset", dataset, worker_config, lambda core: core)


class WatchdogDataset(SavableDataset[T]):
    """Return the dataset as it is: the loader watches, see `get_loader`.

    Args:
        dataset: the dataset.
        worker_config: replaces the dataset's.
        timeout_seconds: not used.
        initial_timeout_seconds: not used.
        fail_on_timeout: must be False.
        dump_stacks: not used.

    Raises:
        ConfigError: for `fail_on_timeout=True`.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        dump_stacks: bool = True,
    ) -> None:
        refuse("WatchdogDataset", {"fail_on_timeout": fail_on_timeout})
        copy_with(self, "WatchdogDataset", dataset, worker_config, lambda core: core)


class IterMapDataset(SavableDataset[T]):
    """Not available: a function over an iterator has no position to resume at.

    Args:
        dataset: the dataset.
        iter_map_fn: the function.
        options: other settings of Energon.

    Raises:
        ConfigError: always.
    """

    def __init__(
        self, dataset: SavableDataset[Any], iter_map_fn: Callable[..., Any], **options: Any
    ) -> None:
        raise ConfigError(
            "IterMapDataset: a function over an iterator cannot resume at a position: use "
            "MapDataset (one item, several or none for each), PackingDataset (a buffer), or the "
            "fold of a Penstock dataset"
        )


class LogSampleDataset(SavableDataset[T]):
    """Not available: workers write no logs.

    Args:
        dataset: the dataset.
        mode: name of the log.
        worker_config: ranks of the run.
        get_keys_fn: function from an item to its keys.

    Raises:
        ConfigError: always.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig | None = None,
        get_keys_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        raise ConfigError(
            "LogSampleDataset: workers write no logs: use loader.core.keys() for the samples of an "
            "item, or ask the plan of a state"
        )


def copy_with(
    target: SavableDataset[Any],
    call: str,
    dataset: SavableDataset[Any],
    config: WorkerConfig | None,
    step: Callable[[Dataset], Dataset],
    known: bool = True,
) -> SavableDataset[Any]:
    """Initialise a dataset as a copy of another one with one more step, and return it.

    If not `known`, the step changes the number of items.
    """
    if not isinstance(dataset, SavableDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{call}: {type(dataset).__name__} is not a dataset of this API: see get_train_dataset"
        )
    SavableDataset.__init__(  # pyright: ignore[reportUnknownMemberType]
        target,
        step(dataset.core),
        config or dataset.worker_config,
        name=dataset.name,
        once=dataset.once if known else None,
        endless=dataset.endless,
        epoch_length=dataset.epoch_length,
    )
    return target


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


def _count_one(item: Any) -> int:
    return 1


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
