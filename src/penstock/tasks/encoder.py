"""Task encoders: one class that says what becomes of a sample on its way into a batch.

An encoder owns functions only. `build` puts them into a pipeline of the core, which owns order,
buffers, random numbers and state; so every hook may drop a sample, use `self.rng`, or be resumed in
the middle of a pack.
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
from .folds import GroupBatches, Grouped, SelectPacks, key_text
from .hooks import Stage, current_rng
from .samples import CrudeSample, basic_sample_keys, columns_of, copied, fields_of, make, values_of

S = TypeVar("S")
E = TypeVar("E")
R = TypeVar("R")
B = TypeVar("B")


@dataclass(frozen=True)
class Cooker:
    """A function that makes a sample of a `CrudeSample`, for datasets whose subflavors include
    `has_subflavors`.

    >>> cooker = Cooker(lambda crude: crude["txt"].upper(), has_subflavors={"language": "en"})
    >>> cooker.fits({"language": "en", "year": 2020}), cooker.fits({})
    (True, False)
    """

    cook: Callable[[CrudeSample], Any]
    has_subflavors: Mapping[str, Any] | None = None

    def fits(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Whether a dataset with these subflavors is cooked by this."""
        wanted, found = self.has_subflavors or {}, subflavors or {}
        return all(name in found and found[name] == value for name, value in wanted.items())


class TaskEncoder(Generic[S, E, R, B]):
    """What becomes of samples: override the hooks that the task needs; with `drops=True` every one
    may raise `ps.Skip`.

    A sample goes through `cook_crude_sample` (where it is crude), `encode_sample` (or
    `preencode_sample` and `postencode_sample`), with packing through `select_samples_to_pack` and
    `pack_selected_samples`, then in batches through `batch` and `encode_batch`. A hook for one
    sample or batch may be a generator function and give several. Hooks run in any thread, so they
    read attributes of `self` and do not set them. Random numbers come from `self.rng`. The type
    parameters (sample, encoded sample, raw batch, batch) are for type checkers only.

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
        """Random numbers of the sample (or batch) at hand: the same for any workers and after any
        resume, new in every pass.
        """
        return current_rng()

    # ------------------------------------------------------------ hooks

    def cook_crude_sample(self, sample: Any) -> Any:
        """A sample from a `CrudeSample`: by the first of `cookers` that fits its subflavors."""
        if not isinstance(sample, CrudeSample) or not self.cookers:
            return sample
        for cooker in self.cookers:
            if cooker.fits(sample.get("__subflavors__")):
                return cooker.cook(sample)
        raise ConfigError(
            f"no cooker of {type(self).__name__} fits the subflavors "
            f"{sample.get('__subflavors__')!r}; add one without has_subflavors for all others"
        )

    def encode_sample(self, sample: S) -> E:
        """The encoded sample."""
        return cast(Any, sample)

    def preencode_sample(self, sample: S) -> E:
        """With `postencode_sample`, instead of `encode_sample`: what selecting packs needs to
        know."""
        return cast(Any, sample)

    def postencode_sample(self, sample: E) -> E:
        """The rest of encoding, done for samples that a pack was made of only."""
        return sample

    def select_samples_to_pack(self, samples: list[E]) -> list[list[E]]:
        """Which samples of a buffer go into which pack; those in none are dropped."""
        raise NotImplementedError

    def pack_selected_samples(self, samples: list[E]) -> Any:
        """One sample of the samples of a pack."""
        raise NotImplementedError

    def batch_group_criterion(self, sample: E) -> tuple[Any, int | None]:
        """Which samples may share a batch: those with an equal key; and how many make one (None:
        the batch size)."""
        raise NotImplementedError

    def batch(self, samples: list[E]) -> R:
        """A raw batch: tensors and arrays padded and stacked, the rest in lists, in a record like
        the samples."""
        return self._batch(samples, type(samples[0]))

    def encode_batch(self, batch: R) -> B:
        """The batch that goes to training."""
        return cast(Any, batch)

    def _batch(
        self,
        samples: Sequence[Any],
        result_type: Any,
        actions: Mapping[str, Callable[[list[Any]], Any]] | None = None,
        default_action: Callable[[list[Any]], Any] = generic_batch,
    ) -> Any:
        """A record of `result_type` from samples: `actions` say by field how to batch, the rest by
        `default_action`.

        Bookkeeping fields (`__key__` and the like) that `result_type` lacks are left out; a field
        with data that it lacks is an error, as is an action for a field that the samples lack.
        """
        unknown = [name for name in actions or {} if name not in values_of(samples[0])]
        if unknown:
            raise ConfigError(
                f"an action for {unknown[0]!r}, which samples ({', '.join(values_of(samples[0]))}) "
                "do not have"
            )
        return make(result_type, columns_of(samples, actions or {}, default_action))

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
        """The pipeline of this encoder over a dataset of samples or mappings.

        Without `batch_size` samples are not batched. The result stays indexed as long as hooks are
        one-to-one (no generators, no packing). `drops=True` says that hooks may raise `Skip` to
        drop what they work on; the pipeline is then not indexed.
        """
        stages = _Stages(self, drops)
        dataset = stages.over(
            dataset.with_source(_keyed), "encode_sample", stages.encoding(packing_buffer_size)
        )
        if packing_buffer_size is not None:
            if not self.defines("select_samples_to_pack") or not self.defines(
                "pack_selected_samples"
            ):
                raise ConfigError(
                    f"packing_buffer_size: {type(self).__name__} must define "
                    "select_samples_to_pack and pack_selected_samples"
                )
            dataset = dataset.fold(
                SelectPacks(packing_buffer_size, self.select_samples_to_pack), size=_one
            )
            dataset = stages.over(dataset, "pack_selected_samples", [stages.pack])
        if self.defines("batch_group_criterion"):
            dataset = stages.over(
                dataset, "batch_group_criterion", [partial(self._grouped, batch_size)]
            )
            dataset = dataset.fold(GroupBatches(drop_last), size=_one, build=_ungrouped)
        elif batch_size is None:
            return dataset
        else:
            dataset = dataset.batch(batch_size, drop_last, collate=list)
        return stages.over(dataset, "batch", [self.batch, self.encode_batch])

    def _grouped(self, batch_size: int | None, sample: Any) -> Grouped:
        key, size = self.batch_group_criterion(sample)
        if (size is None) == (batch_size is None):
            raise ConfigError(
                f"batch_group_criterion gave the size {size} and batch_size is {batch_size}: "
                "exactly one of the two says how large a batch is"
            )
        return Grouped(key_text(key), size or batch_size or 1, sample)

    def defines(self, hook: str) -> bool:
        """Whether a hook is the encoder's own."""
        return getattr(type(self), hook) is not getattr(TaskEncoder, hook)


class DefaultTaskEncoder(TaskEncoder[S, E, R, B]):
    """A task encoder that moves fields by name into the types it is given: dataclasses, named
    tuples or `dict`.

    `encoded_sample_type` is what `encode_sample` gives; `raw_batch_type` what `batch` gives
    (without it, `batch_type` is, and without that a record like the samples); `batch_type` what
    `encode_batch` gives.

    >>> import penstock as ps
    >>> from penstock.tasks import TextSample
    >>> texts = ps.from_sequence([TextSample(__key__=word, text=word) for word in ["one", "two"]])
    >>> batch = DefaultTaskEncoder(batch_type=dict).build(texts, batch_size=2)[0]
    >>> batch["__key__"], batch["text"]
    (['one', 'two'], ['one', 'two'])
    """

    # Also for subclasses that do not call this class's __init__.
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
        """The sample, as `encoded_sample_type`."""
        return _as(self._encoded_type, sample)

    def batch(self, samples: list[E]) -> R:
        """The samples, as `raw_batch_type`."""
        return self._batch(samples, self._raw_type or self._batch_type or type(samples[0]))

    def encode_batch(self, batch: R) -> B:
        """The raw batch, as `batch_type`."""
        return _as(self._batch_type, batch)

    def defines(self, hook: str) -> bool:
        """Whether a hook is the encoder's own."""
        return getattr(type(self), hook) is not getattr(DefaultTaskEncoder, hook)


class _Stages:
    """The hooks of an encoder as steps of a pipeline."""

    def __init__(self, encoder: TaskEncoder[Any, Any, Any, Any], drops: bool) -> None:
        self.encoder, self.drops = encoder, drops

    def over(self, dataset: Dataset, name: str, hooks: Sequence[Callable[[Any], Any]]) -> Dataset:
        """The dataset with one more stage."""
        stage = Stage(self.encoder, name, hooks)
        if not self.drops and stage.one_to_one:
            return dataset.random_map(_Named(stage.one, stage))
        return dataset.random_map(_Named(stage.many, stage)).flat_map(_itself)

    def encoding(self, packing_buffer_size: int | None) -> list[Callable[[Any], Any]]:
        """The hooks that a sample goes through by itself."""
        encoder, found = self.encoder, list[Callable[[Any], Any]]()
        has = encoder.defines
        if has("cook_crude_sample") or encoder.cookers:
            found.append(encoder.cook_crude_sample)
        if not has("preencode_sample") and not has("postencode_sample"):
            return [*found, encoder.encode_sample]
        if has("encode_sample"):
            raise ConfigError(
                f"{type(encoder).__name__} defines encode_sample beside preencode_sample or "
                "postencode_sample; it is one or the other"
            )
        found.append(encoder.preencode_sample)
        return found if packing_buffer_size is not None else [*found, encoder.postencode_sample]

    def pack(self, samples: list[Any]) -> Any:
        """The rest of encoding the samples of a pack, and the pack."""
        packed = self.encoder.pack_selected_samples(
            [self.encoder.postencode_sample(sample) for sample in samples]
        )
        if isinstance(packed, Generator):
            return (_made_of(samples, one) for one in cast("Iterator[Any]", packed))
        return _made_of(samples, packed)


class _Named:
    """A method of a stage under the name of the encoder's hook, which is what keys and states
    know."""

    def __init__(self, fn: Callable[..., Any], stage: Stage) -> None:
        self.fn, self.__qualname__ = fn, stage.__qualname__

    def __call__(self, value: Any, rng: np.random.Generator) -> Any:
        return self.fn(value, rng)


def _keyed(sample: Any, source: str, epoch: int, index: int) -> Any:
    """A sample of the encoder's own, with its restore key."""
    place = (source, epoch, index)
    kind: Any = cast("Any", type(sample))
    if issubclass(kind, Mapping):
        return CrudeSample({"__key__": f"{source}/{index}", **sample, "__restore_key__": place})
    twin = copied(sample)
    if "__restore_key__" in fields_of(kind) and not issubclass(kind, tuple):
        twin.__restore_key__ = place
    return twin


def _made_of(samples: list[Any], packed: Any) -> Any:
    """A pack, with the restore keys of its samples where it has none."""
    kind: Any = cast("Any", type(packed))
    if (
        "__restore_key__" in fields_of(kind)
        and not issubclass(kind, tuple)
        and not packed.__restore_key__
    ):
        packed.__restore_key__ = tuple(
            basic_sample_keys(sample).get("__restore_key__", ()) for sample in samples
        )
    return packed


def _as(kind: Any, record: Any) -> Any:
    return record if kind is None or type(record) is kind else make(kind, values_of(record))


def _itself(values: list[Any]) -> list[Any]:
    return values


def _ungrouped(samples: list[Grouped]) -> list[Any]:
    return [grouped.sample for grouped in samples]


def _one(sample: Any) -> int:
    return 1
