"""Datasets as this API knows them: a pipeline of the core, and how its run is to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil, lcm
from typing import Any, cast

from ...dataset import Dataset
from ...engine.graph.tail import has_tail
from ...engine.runtime.iterator import DatasetIterator
from ...errors import ConfigError, IndexedError, Skip
from ...inputs import mix
from .config import WorkerConfig, refuse

Counts = Callable[[int, int], list[int]]
"""How many items a pass gives on each lane of a run with so many lanes: the first pass, or one of
those that follow."""


class SavableDataset:
    """A dataset of this API: `core` is the pipeline, the rest says how a loader runs it.

    `once` is how many items one pass over all samples gives where hooks drop and multiply none
    (None: not known), `endless` whether passes follow each other without an end, `epoch_length`
    after how many items of a rank a `for` over a loader ends. `len` is that of our rank.
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
        """How many items a `for` gives on the rank of `config`, in a run of so many lanes."""
        if self.epoch_length is not None:
            return self.epoch_length
        if self.once is None:
            raise IndexedError(
                f"len() of {self.name}: how many items there are is known when they were packed"
            )
        rank, world_size = config.place()
        if lanes % world_size:
            raise IndexedError(
                f"len() of {self.name}: {world_size} ranks cannot share out the {lanes} lanes of "
                "the run, so how many items each has is known when they were given"
            )
        if has_tail(self.core.flow):  # batches are those of a rank, whatever its lanes
            return self.once(world_size, 0)[rank]
        return sum(self.once(lanes, 0)[rank::world_size])


def _parts(
    call: str, datasets: Sequence[Any], config: WorkerConfig | None
) -> tuple[list[SavableDataset], WorkerConfig]:
    """Inputs, checked, and the config that they agree on."""
    if not datasets:
        raise ConfigError(f"{call}: no datasets")
    for dataset in datasets:
        if not isinstance(dataset, SavableDataset):
            raise ConfigError(
                f"{call}: {type(dataset).__name__} is no dataset of this API; see get_train_dataset"
            )
        if dataset.epoch_length is not None:
            raise ConfigError(
                f"{call}: an input has a virtual epoch; put EpochizeDataset around the whole"
            )
    found = cast("list[SavableDataset]", list(datasets))
    if config is None and any(part.worker_config != found[0].worker_config for part in found):
        raise ConfigError(f"{call}: the inputs have different worker configs; give one to {call}")
    return found, config or found[0].worker_config


def _weighted(
    call: str, pairs: Sequence[Any], config: WorkerConfig | None, block_size: int | None
) -> SavableDataset:
    """Inputs drawn from by weight, exactly in every block and in random order inside."""
    for pair in pairs:
        if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
            raise ConfigError(f"{call}: give pairs (dataset, weight)")
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
    """Whole items (batches) of datasets, drawn by weight: `BlendDataset((a, 0.6), (b, 0.4))`.

    Weights are relative. Counts are exact in every small block (10 items here: 6 and 4), in random
    order inside. An input that ends drops out, the others share its weight; the blend ends with the
    last.
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, float],
        worker_config: WorkerConfig | None = None,
    ) -> None:
        self.__dict__.update(vars(_weighted("BlendDataset", dataset_weights, worker_config, None)))


class MixBatchDataset(SavableDataset):
    """Batches mixed of the items of datasets: `batch_size` items each, made one by `batch_mix_fn`.

    Counts follow the weights inside every batch, within 2, and exactly over batches; the order
    inside is random. Inputs give batches of one sample. `batch_mix_fn` may be a generator, or raise
    `SkipSample`.
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
    """One dataset after the other; for validation."""

    def __init__(
        self, *datasets: SavableDataset, worker_config: WorkerConfig | None = None
    ) -> None:
        parts, config = _parts("ConcatDataset", datasets, worker_config)
        if any(part.endless for part in parts):
            raise ConfigError(
                "ConcatDataset: an input never ends, and hides those behind it; use BlendDataset"
            )
        first, *rest = (part.core for part in parts)
        super().__init__(
            first.concat(*rest),
            config,
            name="ConcatDataset",
            once=total(part.once for part in parts),
        )


class EpochizeDataset(SavableDataset):
    """A `for` over the loader ends after `length` items of a rank, and the next one goes on from
    there.

    Or after `num_epochs` passes over all that there is: as many items as those have, shared out to
        the ranks. A dataset
    that ends begins anew.
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
                f"EpochizeDataset(length={length}, num_epochs={num_epochs}): one of them, at least "
                "1"
            )
        if num_epochs is not None:
            if part.once is None:
                raise ConfigError(
                    "EpochizeDataset: num_epochs needs a dataset of known length; give length="
                )
            length = max(
                1,
                sum(part.once(1 if part.endless else config.lane_count(), 0))
                * num_epochs
                // config.place()[1],
            )
        core = part.core if part.endless else part.core.repeat()
        super().__init__(
            core, config, name=part.name, once=part.once, endless=True, epoch_length=length
        )


class MapDataset(SavableDataset):
    """`map_fn` of every item; it may be a generator and give several, or raise `SkipSample`."""

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
    """Batches of `batch_size` items, made one by `batcher`, which may be a generator function or
    raise `SkipSample`."""

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
    """The items for which `filter_fn` is true."""

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
    """The first `length` items of each pass, on every rank."""

    def __init__(
        self, dataset: SavableDataset, length: int, worker_config: WorkerConfig | None = None
    ) -> None:
        [part], config = _parts("LimitDataset", [dataset], worker_config)
        items = on_all_ranks(length, config)
        once = limited(None if part.endless else part.once, items)
        super().__init__(part.core.limit(items), config, name=part.name, once=once)


class RepeatDataset(SavableDataset):
    """`repeats` passes as one; for ever without a number."""

    def __init__(
        self,
        dataset: SavableDataset,
        repeats: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        [part], config = _parts("RepeatDataset", [dataset], worker_config)
        if repeats is not None and repeats != int(repeats):
            raise ConfigError(
                f"RepeatDataset: {repeats} passes; parts of passes are made by blend_epochized"
            )
        core = part.core.repeat(None if repeats is None else int(repeats))
        once = part.once if repeats is None else repeated(part.once, int(repeats))
        super().__init__(core, config, name=part.name, once=once, endless=repeats is None)


def copy_with(
    made: SavableDataset,
    call: str,
    dataset: SavableDataset,
    config: WorkerConfig | None,
    step: Callable[[Dataset], Dataset],
) -> None:
    """Set up a dataset as another one with a step behind; epochs stay."""
    if not isinstance(dataset, SavableDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"{call}: {type(dataset).__name__} is no dataset of this API; see get_train_dataset"
        )
    SavableDataset.__init__(
        made,
        step(dataset.core),
        config or dataset.worker_config,
        name=dataset.name,
        once=dataset.once,
        endless=dataset.endless,
        epoch_length=dataset.epoch_length,
    )


def on_all_ranks(length: int, config: WorkerConfig) -> int:
    """How many items of the run make `length` of every rank."""
    if length < 1:
        raise ConfigError(f"a limit of {length} items a rank: at least one")
    return length * config.place()[1]


def block_of(weights: Sequence[float]) -> int:
    """The smallest block, of 10 items or more, in which all counts are whole; 1,000 where that is
    longer.

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
    """Names, told apart by numbers where several are equal.

    >>> unique(["coco", "text", "coco"])
    ['coco', 'text', 'coco#2']
    """
    seen = Counter[str]()
    out = list[str]()
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return out


def dealt(samples: int) -> Counts:
    """Samples shared out to lanes.

    >>> dealt(7)(3, 0), dealt(7)(3, 1)
    ([3, 2, 2], [2, 3, 2])
    """
    return lambda lanes, lap: [
        len(range((lane - lap * samples) % lanes, samples, lanes)) for lane in range(lanes)
    ]


def batched(once: Counts | None, size: int | None, drop_last: bool = False) -> Counts | None:
    """Batches of what each lane gives."""
    if once is None or size is None:
        return once
    return lambda lanes, lap: [
        count // size if drop_last else ceil(count / size) for count in once(lanes, lap)
    ]


def limited(once: Counts | None, n: int) -> Counts:
    """The first `n` items of a run."""
    return lambda lanes, lap: dealt(min(n, sum(once(lanes, 0))) if once else n)(lanes, lap)


def repeated(once: Counts | None, times: int) -> Counts | None:
    """So many passes, one after the other."""
    if once is None:
        return None
    return lambda lanes, lap: [
        sum(lane)
        for lane in zip(*(once(lanes, lap * times + i) for i in range(times)), strict=True)
    ]


def total(counts: Iterable[Counts | None]) -> Counts | None:
    """The sum, where all are known."""
    found = list(counts)
    known = [count for count in found if count is not None]
    if len(known) < len(found):
        return None
    return lambda lanes, lap: list(
        map(sum, zip(*(count(lanes, lap) for count in known), strict=True))
    )


class _Listed:
    """A function's results as a list: one, those of a generator, or none where it raises `Skip`."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn, self.__qualname__ = fn, str(getattr(fn, "__qualname__", type(fn).__qualname__))

    def __call__(self, value: Any) -> list[Any]:
        try:
            found = self.fn(value)
            return list(cast("Iterator[Any]", found)) if isinstance(found, Generator) else [found]
        except Skip:
            return []
