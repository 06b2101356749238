"""Task encoders with the hooks that only Energon's pipelines call: cookers' stores and `build_*`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar, cast

from ... import tasks
from ...errors import ConfigError
from .caching import CachePool, FileStore, NoCachePool, PrimaryFileStore
from .config import SampleDecoder, WorkerConfig
from .datasets import (
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    batched,
    copy_with,
)

S = TypeVar("S")
E = TypeVar("E")
R = TypeVar("R")
B = TypeVar("B")

BUILD_HOOKS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)
"""Methods that assemble a pipeline; an encoder that overrides one of them builds its own."""


class DatasetBlendMode(Enum):
    """Meaning of the numbers of a blend: none, weights, or repetitions of the samples."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(kw_only=True)
class LoadedDataset:
    """A dataset of a blend, as `build_train_datasets` receives it.

    Args:
        dataset: the factory of the dataset.
        weight: its weight in a blend.
        repetitions: its repetitions in an epochized blend.
        aux: stores of auxiliary files, by name.
    """

    dataset: Any
    weight: float | None = None
    repetitions: float | None = None
    aux: Mapping[str, FileStore[Any]] | None = None


@dataclass(kw_only=True)
class LoadedDatasetList:
    """The datasets of a metadataset, and the meaning of their numbers.

    Args:
        datasets: the datasets.
        blend_mode: the meaning of their weights or repetitions.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


class Cooker(tasks.Cooker):
    """A function that turns a `CrudeSample` into a sample; see `penstock.tasks.Cooker`.

    >>> Cooker(lambda crude: crude, has_subflavors={"language": "en"}).is_match({"language": "en"})
    True
    """

    @property
    def need_primary(self) -> bool:
        """True if the function takes the store of its own dataset as `primary`."""
        return bool(getattr(self.cook, "__cooker_need_primary__", False))

    @property
    def need_cache(self) -> bool:
        """True if the function takes the cache as `cache`."""
        return bool(getattr(self.cook, "__cooker_need_cache__", False))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether this cooker applies to a dataset with these subflavors.

        Args:
            subflavors: labels of a dataset.
        """
        return self.fits(subflavors)


class TaskEncoder(tasks.TaskEncoder[S, E, R, B]):
    """Turn samples into batches through hooks; see `penstock.tasks.TaskEncoder`.

    The `build_*` methods assemble the pipeline of an encoder that overrides one of them, from the
    dataset classes of this package. For other encoders `get_train_dataset` assembles it.
    """

    cookers: ClassVar[Sequence[tasks.Cooker]] = ()
    decoder: Any = SampleDecoder()
    _cache_pool: CachePool | None = None

    @property
    def cache(self) -> CachePool:
        """The pool of the cookers; by default one that reads directly."""
        return self._cache_pool or NoCachePool()

    @cache.setter
    def cache(self, pool: CachePool) -> None:
        self._cache_pool = pool

    @property
    def current_sample_index(self) -> int:
        """An integer of the sample or batch that the current hook processes.

        It is unique, equal after a restore and in any worker; it does not count.
        """
        state: Any = self.rng.bit_generator.state
        key = state["state"]["key"]
        return int(key[0]) >> 1

    @property
    def current_batch_index(self) -> int:
        """Not available: batches are computed ahead, before their step is known.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "current_batch_index: workers compute batches before their step is known: use "
            "current_sample_index for a number of the batch, or count the batches of the loader"
        )

    def cook_crude_sample(
        self,
        sample: Any,
        cooker: tasks.Cooker | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> Any:
        """Turn a `CrudeSample` into a sample, by the first of `cookers` that fits its subflavors.

        Args:
            sample: a sample, crude or not.
            cooker: the cooker to use in place of the first that fits.
            aux: stores of auxiliary files, which the cooker takes by name.

        Returns:
            The sample.

        Raises:
            ConfigError: if no cooker fits, or if it needs a store that the dataset lacks.
        """
        if not isinstance(sample, tasks.CrudeSample) or not self.cookers:
            return sample
        cooker = cooker or choose_cooker(self, sample.get("__subflavors__"))
        stores: dict[str, Any] = dict(aux or {})
        primary = stores.pop("primary", None)
        if getattr(cooker.cook, "__cooker_need_primary__", False):
            if primary is None:
                raise ConfigError(
                    "a cooker with need_primary=True needs a folder that Energon prepared"
                )
            stores["primary"] = PrimaryFileStore(primary, current_key=sample["__key__"])
        if getattr(cooker.cook, "__cooker_need_cache__", False):
            stores["cache"] = self.cache
        return cast("Callable[..., Any]", cooker.cook)(sample, **stores)

    # ------------------------------------------------------------ the pipeline

    def build_cook_crude_sample(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        get_primary_aux: Callable[[], FileStore[Any]] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> SavableDataset[Any]:
        """Return the dataset unchanged: `build_encode_sample` calls the cookers.

        Args:
            dataset: crude or other samples.
            worker_config: ranks, threads, seed and error handling.
            subflavors: not used.
            get_primary_aux: not used.
            aux: not used.
        """
        return dataset

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig
    ) -> SavableDataset[Any]:
        """Add the hooks that process one sample by itself, up to `preencode_sample`.

        Args:
            dataset: samples.
            worker_config: ranks, threads, seed and error handling.

        Returns:
            The encoded samples.
        """
        return copy_with(
            cast("SavableDataset[Any]", object.__new__(SavableDataset)),
            "build_encode_sample",
            dataset,
            worker_config,
            lambda core: self.build_samples(core, packing_buffer_size=1, drops=True),
        )

    def build_batch(
        self,
        dataset: SavableDataset[Any],
        *,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        worker_config: WorkerConfig,
    ) -> SavableDataset[Any]:
        """Add packing, batching and the hooks of batches.

        Args:
            dataset: encoded samples.
            batch_size: samples per batch; None does not batch.
            batch_drop_last: whether to drop the last, short batch.
            packing_buffer_size: samples per buffer for pack selection.
            worker_config: ranks, threads, seed and error handling.

        Returns:
            The batches.
        """
        core = self.build_batches(
            dataset.core,
            batch_size=batch_size,
            drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            postencode=True,
            drops=True,
        )
        known = packing_buffer_size is None and not self.defines("batch_group_criterion")
        once = dataset.once if known else None
        return SavableDataset(
            core,
            worker_config,
            name=dataset.name,
            once=batched(once, batch_size, batch_drop_last),
            endless=dataset.endless,
        )

    def build_train_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
    ) -> SavableDataset[Any]:
        """Blend the datasets, and add encoding, packing and batching.

        Args:
            datasets: the datasets with their weights or repetitions.
            worker_config: ranks, threads, seed and error handling.
            batch_size: samples per batch; None does not batch.
            batch_drop_last: whether to drop the last, short batch.
            packing_buffer_size: samples per buffer for pack selection.
            virtual_epoch_length: batches of a rank after which a `for` ends; 0 for none.
            shuffle_buffer_size: samples of a shuffle buffer over the blend.
            blend_mode: the meaning of the datasets' numbers.
            repeat: whether passes follow each other without an end.

        Returns:
            The batches.
        """
        parts = list[tuple[SavableDataset[Any], float]]()
        by_weight = blend_mode is DatasetBlendMode.DATASET_WEIGHT
        repetitions = blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS or not (repeat or by_weight)
        for entry in datasets:
            part: SavableDataset[Any] = entry.dataset.build()
            if repetitions:
                times = 1 if entry.repetitions is None else entry.repetitions
                part = part if times == 1 else RepeatDataset(part, times)
                parts.append((part, len(entry.dataset) * times))
            else:
                weight = 1.0 if entry.weight is None else float(entry.weight)
                parts.append((RepeatDataset(part), weight))
        dataset: SavableDataset[Any] = (
            parts[0][0] if len(parts) == 1 else BlendDataset(*parts, worker_config=worker_config)
        )
        if repeat and not dataset.endless:
            dataset = RepeatDataset(dataset)
        if shuffle_buffer_size is not None and shuffle_buffer_size > 1:
            dataset = ShuffleBufferDataset(dataset, shuffle_buffer_size)
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        return (
            EpochizeDataset(dataset, virtual_epoch_length) if virtual_epoch_length > 0 else dataset
        )

    def build_val_datasets(
        self,
        *,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        limit: int | None = None,
    ) -> SavableDataset[Any]:
        """Concatenate the datasets, and add encoding, packing and batching.

        Args:
            datasets: the datasets.
            worker_config: ranks, threads, seed and error handling.
            batch_size: samples per batch; None does not batch.
            batch_drop_last: whether to drop the last, short batch.
            packing_buffer_size: samples per buffer for pack selection.
            limit: number of batches of a rank.

        Returns:
            The batches.
        """
        parts: list[SavableDataset[Any]] = [entry.dataset.build() for entry in datasets]
        dataset: SavableDataset[Any] = parts[0] if len(parts) == 1 else ConcatDataset(*parts)
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        return dataset if limit is None else LimitDataset(dataset, limit)


class DefaultTaskEncoder(tasks.DefaultTaskEncoder[S, E, R, B], TaskEncoder[S, E, R, B]):
    """Move fields by name into given types; see `penstock.tasks.DefaultTaskEncoder`.

    Args:
        encoded_sample_type: result type of `encode_sample`.
        raw_batch_type: result type of `batch`.
        batch_type: result type of `encode_batch`.
    """


class AugmentTaskEncoder(tasks.AugmentTaskEncoder, TaskEncoder[Any, Any, Any, Any]):
    """Wrap an encoder and override some of its hooks; see `penstock.tasks.AugmentTaskEncoder`.

    Args:
        task_encoder: the wrapped encoder.
    """

    @property
    def decoder(self) -> Any:
        """The decoder of the wrapped encoder."""
        return cast("Any", self._task_encoder).decoder

    def cook_crude_sample(
        self,
        sample: Any,
        cooker: tasks.Cooker | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> Any:
        """Call the hook of the wrapped encoder.

        Args:
            sample: a sample, crude or not.
            cooker: the cooker to use in place of the first that fits.
            aux: stores of auxiliary files.

        Returns:
            The sample.
        """
        return cast("Any", self._task_encoder).cook_crude_sample(sample, cooker, aux)


class StoreEncoder(AugmentTaskEncoder):
    """An encoder whose cookers receive the stores of the dataset of their sample.

    Args:
        task_encoder: the encoder.
        stores: stores by name, by the path of the dataset.
    """

    def __init__(
        self, task_encoder: Any, stores: Mapping[str, Mapping[str, FileStore[Any]]]
    ) -> None:
        super().__init__(task_encoder)
        self._stores = stores

    def cook_crude_sample(
        self,
        sample: Any,
        cooker: tasks.Cooker | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> Any:
        """Call the cooker of the wrapped encoder with the stores of the dataset.

        Args:
            sample: a sample, crude or not.
            cooker: the cooker to use in place of the first that fits.
            aux: stores in place of those of the dataset.

        Returns:
            The sample.
        """
        if isinstance(sample, tasks.CrudeSample):
            path = sample["__sources__"][0].dataset_path
            cooker = cooker or choose_cooker(self._task_encoder, sample.get("__subflavors__"))
            return super().cook_crude_sample(sample, cooker, self._stores[str(path)])
        return sample


def choose_cooker(encoder: Any, subflavors: Mapping[str, Any] | None) -> tasks.Cooker:
    """Return the first cooker of an encoder that fits a dataset.

    Raises:
        ConfigError: if there is none.
    """
    for cooker in encoder.cookers:
        if cooker.fits(subflavors):
            return cooker
    raise ConfigError(
        f"no cooker of {type(encoder).__name__} fits the subflavors {subflavors!r}: add one "
        "without has_subflavors, which fits all"
    )


def overrides_build(encoder: Any) -> bool:
    """Return whether an encoder assembles its own pipeline."""
    kind: Any = cast("Any", type(encoder))
    return any(
        getattr(kind, name, None) is not getattr(TaskEncoder, name, None)
        for name in BUILD_HOOKS
        if hasattr(kind, name)
    )
