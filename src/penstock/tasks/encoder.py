"""Task encoders: one class that defines the way from samples to batches.

An encoder only owns functions. `build` puts them into a pipeline of the core, which owns order,
buffers, random numbers and state. Every hook may therefore drop a sample or use `self.rng`, and a
run resumes in the middle of a pack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np

from ..dataset import Dataset
from ..errors import ConfigError
from .batching import generic_batch
from .folds import GroupBatches, Grouped, SelectPacks, format_group_key
from .hooks import Stage, current_rng
from .samples import (
    Batch,
    CrudeSample,
    basic_sample_keys,
    collate_columns,
    copied,
    fields_of,
    get_field_values,
    make,
)

S = TypeVar("S")
E = TypeVar("E")
R = TypeVar("R")
B = TypeVar("B")


@dataclass(frozen=True)
class Cooker:
    """A function that turns a `CrudeSample` into a sample.

    It applies to datasets whose subflavors include `has_subflavors`.

    Args:
        cook: turns a `CrudeSample` into a sample.
        has_subflavors: required subflavors; None fits all datasets.

    >>> cooker = Cooker(lambda crude: crude["txt"].upper(), has_subflavors={"language": "en"})
    >>> cooker.fits({"language": "en", "year": 2020}), cooker.fits({})
    (True, False)
    """

    cook: Callable[[CrudeSample], Any]
    has_subflavors: Mapping[str, Any] | None = None

    def fits(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether this cooker applies to a dataset with these subflavors.

        Args:
            subflavors: labels of a dataset.
        """
        required, given = self.has_subflavors or {}, subflavors or {}
        return all(name in given and given[name] == value for name, value in required.items())


class TaskEncoder(Generic[S, E, R, B]):
    """Turn samples into batches through hooks; override the hooks that the task needs.

    A sample passes through `cook_crude_sample` (if it is crude) and `encode_sample` (or
    `preencode_sample` and `postencode_sample`). With packing it then passes through
    `select_samples_to_pack` and `pack_selected_samples`, and in batches through `batch` and
    `encode_batch`. A hook for one sample or batch may be a generator function and yield several.
    With `drops=True` every hook may raise `ps.Skip`.

    Hooks run in any thread, so they read attributes of `self` and do not set them. Random numbers
    come from `self.rng`. The type parameters (sample, encoded sample, raw batch, batch) are for
    type checkers only.

    >>> import penstock as ps
    >>> from penstock.tasks import TextSample
    >>> class Shout(TaskEncoder):
    ...     def encode_sample(self, sample):
    ...         sample.text = sample.text.upper()
    ...         return sample
    >>> texts = ps.from_sequence([TextSample(__key__=word, text=word) for word in ["one", "two", "three"]])
    >>> [batch.text for batch in Shout().build(texts, batch_size=2)]
    [['ONE', 'TWO'], ['THREE']]
    """

    cookers: ClassVar[Sequence[Cooker]] = ()

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the current sample or batch.

        It is independent of workers and resumes, and new in every pass.
        """
        return current_rng()

    # ------------------------------------------------------------ hooks

    def cook_crude_sample(self, sample: Any) -> Any:
        """Turn a `CrudeSample` into a sample, by the first of `cookers` that fits its subflavors.

        Args:
            sample: a sample, crude or not.

        Returns:
            The sample.

        Raises:
            ConfigError: if no cooker fits.
        """
        if not isinstance(sample, CrudeSample) or not self.cookers:
            return sample
        for cooker in self.cookers:
            if cooker.fits(sample.get("__subflavors__")):
                return cooker.cook(sample)
        raise ConfigError(
            f"no cooker of {type(self).__name__} fits the subflavors "
            f"{sample.get('__subflavors__')!r}: add one without has_subflavors, which fits all"
        )

    def encode_sample(self, sample: S) -> E:
        """Return the encoded sample.

        Args:
            sample: the sample.
        """
        return cast(Any, sample)

    def preencode_sample(self, sample: S) -> E:
        """Encode the part that pack selection needs.

        With `postencode_sample` it replaces `encode_sample`.

        Args:
            sample: the sample.

        Returns:
            The partly encoded sample.
        """
        return cast(Any, sample)

    def postencode_sample(self, sample: E) -> E:
        """Finish encoding; called only for samples that go into a pack.

        Args:
            sample: the partly encoded sample.

        Returns:
            The encoded sample.
        """
        return sample

    def select_samples_to_pack(self, samples: list[E]) -> list[list[E]]:
        """Group the samples of a buffer into packs; samples in no pack are dropped.

        Args:
            samples: the samples of the buffer.

        Returns:
            One list of samples per pack.
        """
        raise NotImplementedError

    def pack_selected_samples(self, samples: list[E]) -> Any:
        """Make one sample of the samples of a pack.

        Args:
            samples: the samples of a pack.

        Returns:
            The packed sample.
        """
        raise NotImplementedError

    def batch_group_criterion(self, sample: E) -> tuple[Any, int | None]:
        """Return a batch key and a batch size (None: the one of `build`).

        Samples with equal keys share a batch.

        Args:
            sample: the encoded sample.
        """
        raise NotImplementedError

    def batch(self, samples: list[E]) -> R:
        """Make a raw batch: arrays padded and stacked, other values in lists.

        The result is a record like the samples.

        Args:
            samples: the encoded samples of a batch.

        Returns:
            The raw batch.
        """
        return self._batch(samples, type(samples[0]))

    def encode_batch(self, batch: R) -> B:
        """Return the batch for training.

        Args:
            batch: the raw batch.
        """
        return cast(Any, batch)

    def _batch(
        self,
        samples: Sequence[Any],
        result_type: Any,
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> Any:
        """Make a record of `result_type` from samples.

        `actions` maps fields to batching functions; `default_action` applies to the others.
        Bookkeeping fields (`__key__` and the like) that `result_type` lacks are left out. A data
        field that it lacks is an error, and so is an action for a field that the samples lack.
        A `Batch` takes the fields that its class has; its own `from_samples` replaces all this.
        """
        from_samples: Any = getattr(result_type, "from_samples", None)
        is_batch = isinstance(result_type, type) and issubclass(cast(Any, result_type), Batch)
        if from_samples is not None and not (
            is_batch and getattr(from_samples, "__func__", None) is _BATCH_FROM_SAMPLES
        ):
            return from_samples(samples)
        unknown = [name for name in actions or {} if name not in get_field_values(samples[0])]
        if unknown:
            raise ConfigError(
                f"an action names the field {unknown[0]!r}, but samples have "
                f"{', '.join(get_field_values(samples[0]))}"
            )
        fields = get_field_values(samples[0]).keys()
        skip = fields - set(fields_of(result_type)) if is_batch else ()
        return make(result_type, collate_columns(samples, actions or {}, default_action, skip))

    # ------------------------------------------------------------ the pipeline

    def build(
        self,
        dataset: Dataset,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        packing_buffer_size: int | None = None,
        drops: bool = False,
    ) -> Dataset:
        """Return the pipeline of this encoder over a dataset of samples or mappings.

        The result stays indexed as long as hooks are one-to-one (no generators, no packing, no
        drops).

        Args:
            dataset: samples or mappings.
            batch_size: samples per batch; None does not batch.
            drop_last: whether to drop the last, short batch.
            packing_buffer_size: samples per buffer for `select_samples_to_pack`.
            drops: whether hooks may raise `Skip` to drop their sample or batch.

        Returns:
            The dataset of batches.

        Raises:
            ConfigError: if the encoder lacks hooks that packing needs, or defines hooks that
                exclude each other.
        """
        dataset = self.build_samples(dataset, packing_buffer_size=packing_buffer_size, drops=drops)
        return self.build_batches(
            dataset,
            batch_size=batch_size,
            drop_last=drop_last,
            packing_buffer_size=packing_buffer_size,
            drops=drops,
        )

    def build_samples(
        self, dataset: Dataset, *, packing_buffer_size: int | None = None, drops: bool = False
    ) -> Dataset:
        """Return the first part of `build`: the hooks that process one sample by itself.

        Args:
            dataset: samples or mappings.
            packing_buffer_size: as in `build`.
            drops: as in `build`.

        Returns:
            The dataset of encoded samples.
        """
        stages = _HookPipeline(self, drops)
        return stages.append(
            dataset.with_source(_with_restore_key),
            "encode_sample",
            stages.sample_hooks(packing_buffer_size),
        )

    def build_batches(
        self,
        dataset: Dataset,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        packing_buffer_size: int | None = None,
        postencode: bool = False,
        drops: bool = False,
    ) -> Dataset:
        """Return the second part of `build`: packing and batching of encoded samples.

        Args:
            dataset: encoded samples, from `build_samples`.
            batch_size: as in `build`.
            drop_last: as in `build`.
            packing_buffer_size: as in `build`.
            postencode: whether samples without packing have not passed `postencode_sample`.
            drops: as in `build`.

        Returns:
            The dataset of batches.

        Raises:
            ConfigError: if the encoder lacks hooks that packing needs.
        """
        stages = _HookPipeline(self, drops)
        if packing_buffer_size is not None:
            if not self.defines("select_samples_to_pack") or not self.defines(
                "pack_selected_samples"
            ):
                raise ConfigError(
                    f"packing_buffer_size: {type(self).__name__} lacks a hook: define "
                    "select_samples_to_pack and pack_selected_samples"
                )
            dataset = dataset.fold(
                SelectPacks(packing_buffer_size, self.select_samples_to_pack), size=_one
            )
            dataset = stages.append(dataset, "pack_selected_samples", [stages.pack])
        elif postencode and self.defines("postencode_sample"):
            dataset = stages.append(dataset, "postencode_sample", [self.postencode_sample])
        if self.defines("batch_group_criterion"):
            dataset = stages.append(
                dataset, "batch_group_criterion", [partial(self._grouped, batch_size)]
            )
            dataset = dataset.fold(GroupBatches(drop_last), size=_one, build=_ungrouped)
        elif batch_size is None:
            return dataset
        else:
            dataset = dataset.batch(batch_size, drop_last, collate=list)
        return stages.append(dataset, "batch", [self.batch, self.encode_batch])

    def _grouped(self, batch_size: int | None, sample: Any) -> Grouped:
        key, size = self.batch_group_criterion(sample)
        if (size is None) == (batch_size is None):
            raise ConfigError(
                f"batch_group_criterion returned the size {size}, and batch_size is {batch_size}: "
                "give exactly one of the two"
            )
        return Grouped(format_group_key(key), size or batch_size or 1, sample)

    def defines(self, hook: str) -> bool:
        """Return whether the encoder overrides a hook.

        Args:
            hook: name of the hook.
        """
        return getattr(type(self), hook) is not getattr(TaskEncoder, hook)


class DefaultTaskEncoder(TaskEncoder[S, E, R, B]):
    """Move fields by name into given types: dataclasses, named tuples or `dict`.

    Args:
        encoded_sample_type: result type of `encode_sample`.
        raw_batch_type: result type of `batch`; by default `batch_type`, else the type of the
            samples.
        batch_type: result type of `encode_batch`.

    >>> import penstock as ps
    >>> from penstock.tasks import TextSample
    >>> texts = ps.from_sequence([TextSample(__key__=word, text=word) for word in ["one", "two"]])
    >>> batch = DefaultTaskEncoder(batch_type=dict).build(texts, batch_size=2)[0]
    >>> batch["__key__"], batch["text"]
    (['one', 'two'], ['one', 'two'])
    """

    # Defaults for subclasses that do not call this class's __init__.
    _encoded_type: Any = None
    _raw_type: Any = None
    _batch_type: Any = None

    def __init__(
        self, *, encoded_sample_type: Any = None, raw_batch_type: Any = None, batch_type: Any = None
    ) -> None:
        self._encoded_type, self._raw_type, self._batch_type = (
            encoded_sample_type,
            raw_batch_type,
            batch_type,
        )

    def encode_sample(self, sample: S) -> E:
        """Convert the sample to `encoded_sample_type`.

        Args:
            sample: the sample.

        Returns:
            The encoded sample.
        """
        return _convert_record(self._encoded_type, sample)

    def batch(self, samples: list[E]) -> R:
        """Batch the samples as `raw_batch_type`.

        Args:
            samples: the encoded samples of a batch.

        Returns:
            The raw batch.
        """
        return self._batch(samples, self._raw_type or self._batch_type or type(samples[0]))

    def encode_batch(self, batch: R) -> B:
        """Convert the raw batch to `batch_type`.

        Args:
            batch: the raw batch.

        Returns:
            The batch.
        """
        return _convert_record(self._batch_type, batch)

    def defines(self, hook: str) -> bool:
        """Return whether the encoder overrides a hook.

        Args:
            hook: name of the hook.
        """
        return getattr(type(self), hook) is not getattr(DefaultTaskEncoder, hook)


class _HookPipeline:
    """The hooks of an encoder as steps of a pipeline."""

    def __init__(self, encoder: TaskEncoder[Any, Any, Any, Any], drops: bool) -> None:
        self.encoder, self.drops = encoder, drops

    def append(self, dataset: Dataset, name: str, hooks: Sequence[Callable[[Any], Any]]) -> Dataset:
        """Append a stage to the dataset."""
        stage = Stage(self.encoder, name, hooks)
        if not self.drops and stage.one_to_one:
            return dataset.random_map(_NamedMethod(stage.one, stage))
        return dataset.random_map(_NamedMethod(stage.many, stage)).flat_map(_itself)

    def sample_hooks(self, packing_buffer_size: int | None) -> list[Callable[[Any], Any]]:
        """Return the hooks that process one sample by itself."""
        encoder, hooks = self.encoder, list[Callable[[Any], Any]]()
        defines = encoder.defines
        if defines("cook_crude_sample") or encoder.cookers:
            hooks.append(encoder.cook_crude_sample)
        if not defines("preencode_sample") and not defines("postencode_sample"):
            return [*hooks, encoder.encode_sample]
        if defines("encode_sample"):
            raise ConfigError(
                f"{type(encoder).__name__} defines both encode_sample and preencode_sample or "
                "postencode_sample: define one or the other"
            )
        hooks.append(encoder.preencode_sample)
        return hooks if packing_buffer_size is not None else [*hooks, encoder.postencode_sample]

    def pack(self, samples: list[Any]) -> Any:
        """Finish encoding the samples of a pack, and make the pack."""
        packed = self.encoder.pack_selected_samples(
            [self.encoder.postencode_sample(sample) for sample in samples]
        )
        if isinstance(packed, Generator):
            return (_add_sample_keys(samples, pack) for pack in cast("Iterator[Any]", packed))
        return _add_sample_keys(samples, packed)


class _NamedMethod:
    """A method of a stage under the qualified name of its hook, which keys and states use."""

    def __init__(self, fn: Callable[..., Any], stage: Stage) -> None:
        self.fn, self.__qualname__ = fn, stage.__qualname__

    def __call__(self, value: Any, rng: np.random.Generator) -> Any:
        return self.fn(value, rng)


def _with_restore_key(sample: Any, source: str, epoch: int, index: int) -> Any:
    """Copy a sample and add its restore key."""
    restore_key = (source, epoch, index)
    sample_type: Any = cast("Any", type(sample))
    if issubclass(sample_type, Mapping):
        return CrudeSample(
            {"__key__": f"{source}/{index}", **sample, "__restore_key__": restore_key}
        )
    copy = copied(sample)
    if "__restore_key__" in fields_of(sample_type) and not issubclass(sample_type, tuple):
        copy.__restore_key__ = restore_key
    return copy


# States store the former name of this function, and pickle looks it up by the same attribute.
_with_restore_key.__qualname__ = "_keyed"
_keyed = _with_restore_key


def _add_sample_keys(samples: list[Any], packed: Any) -> Any:
    """Add the restore keys of its samples to a pack that has none."""
    pack_type: Any = cast("Any", type(packed))
    if (
        "__restore_key__" in fields_of(pack_type)
        and not issubclass(pack_type, tuple)
        and not packed.__restore_key__
    ):
        packed.__restore_key__ = tuple(
            basic_sample_keys(sample).get("__restore_key__", ()) for sample in samples
        )
    return packed


def _convert_record(kind: Any, record: Any) -> Any:
    return record if kind is None or type(record) is kind else make(kind, get_field_values(record))


def _itself(values: list[Any]) -> list[Any]:
    return values


def _ungrouped(samples: list[Grouped]) -> list[Any]:
    return [grouped.sample for grouped in samples]


def _one(sample: Any) -> int:
    return 1


_BATCH_FROM_SAMPLES = Batch.__dict__["from_samples"].__func__
