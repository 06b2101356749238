"""Sample construction and order of one dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ... import tasks
from ...dataset import Dataset
from ...engine.steps.read import Read
from ...errors import ConfigError
from ...sources import prepared
from . import form
from .config import SampleDecoder
from .metadataset import Bound, DatasetReference

Encoder = tasks.TaskEncoder[Any, Any, Any, Any]

_STEPS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)

_OPTIONS = {"part_filter", "sample_loader", "split_config", "subflavor"}  # of a dataset.yaml

KEEP = object()  # sentinel for "as in the encoder", since None is a valid choice


@dataclass(frozen=True)
class Order:
    """The settings that choose a shuffle."""

    buffer: int | None
    rows: int | None
    windows: int | None

    def __post_init__(self) -> None:
        for name, value, minimum in (
            ("shuffle_buffer_size", self.buffer, 0),
            ("max_samples_per_sequence", self.rows, 1),
            ("parallel_shard_iters", self.windows, 1),
        ):
            if value is not None and value < minimum:
                raise ConfigError(f"{name}={value}: give at least {minimum}, or None")

    def apply(self, samples: Dataset, multiplier: int | None) -> Dataset:
        """Shuffle one dataset as set."""
        if multiplier is None:
            return (
                samples.shuffle_buffer(self.buffer) if self.buffer and self.buffer > 1 else samples
            )
        if multiplier < 1:
            raise ConfigError(
                f"shuffle_over_epochs_multiplier={multiplier}: give a number of passes, or None; "
                "sampling with replacement (-1) is not supported, since it repeats some samples "
                "and omits others"
            )
        samples = samples.repeat(multiplier) if multiplier > 1 else samples
        if self.rows is None:
            return samples.shuffle()
        return samples.shuffle(
            block=(self.rows, max(self.windows or 16, ceil((self.buffer or 0) / self.rows)))
        )


class Reading:
    """Make samples from the rows of a dataset."""

    def __init__(
        self,
        encoder: Encoder | None,
        image_decode: Any,
        sample_type: type[Any] | None,
        sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
    ) -> None:
        self.encoder: Encoder = encoder if encoder is not None else tasks.DefaultTaskEncoder()
        for name in _STEPS:
            if hasattr(self.encoder, name):
                raise ConfigError(
                    f"{type(self.encoder).__name__} defines {name}(), which is never called here: "
                    "Penstock builds the pipeline; blend results of get_train_dataset with "
                    "BlendDataset or MixBatchDataset"
                )
        decoder = (
            getattr(encoder, "decoder", SampleDecoder())
            if image_decode is KEEP
            else SampleDecoder(image_decode)
        )
        self.decode = None if decoder is None else decoder.parts()
        self.sample_type, self.sample_loader = sample_type, sample_loader

    def one_to_one(self, packing_buffer_size: int | None) -> bool:
        """Return whether samples become batches one by one, so that their number is known."""
        return packing_buffer_size is None and not self.encoder.defines("batch_group_criterion")

    def open_samples(self, ref: DatasetReference) -> Dataset:
        """Return the samples of one dataset, in the order of its data."""
        if ref.path.suffix == ".jsonl":
            make_sample, crude = (
                _MakeSample(ref, self.decode, tasks.CrudeSample, None),
                prepared.open_jsonl(ref.path),
            )
            return _take_subset(Dataset(Read(crude, crude.name)), ref).with_source(make_sample)
        description = form.load(ref.path, ref.dataset_config)
        sample_type = self.sample_type or _type_of(description)
        fields = (
            self.sample_loader
            if self.sample_loader or sample_type is tasks.CrudeSample
            else description.fields
        )
        columns = fields.parts if isinstance(fields, form.Fields) else description.parts
        unknown = sorted(description.options.keys() - _OPTIONS)
        if unknown:
            raise ConfigError(
                f"{description.location}: {unknown[0]} is not supported: pass a dataset_config "
                "file without it"
            )
        label = (
            {"__subflavor__": description.options["subflavor"]}
            if "subflavor" in description.options
            else {}
        )
        split_config = ref.split_config or description.options.get("split_config")
        source = prepared.load(ref.path, split_config).open(ref.split_part, columns)
        make_sample = _MakeSample(
            ref,
            self.decode,
            sample_type,
            fields,
            {**label, **description.subflavors, **ref.subflavors},
        )
        return _take_subset(Dataset(Read(source, source.name)), ref).with_source(make_sample)


class _MakeSample:
    """Make a sample of one row."""

    def __init__(
        self,
        ref: DatasetReference,
        decode: Callable[[Mapping[str, Any]], dict[str, Any]] | None,
        kind: Any,
        fields: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
        subflavors: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.decode, self.kind, self.fields = str(ref.path), decode, kind, fields
        self.subflavors = dict(ref.subflavors if subflavors is None else subflavors)
        self.__qualname__ = kind.__qualname__

    def __call__(self, read: Mapping[str, Any], source: str, epoch: int, index: int) -> Any:
        parts = dict(read) if self.decode is None else self.decode(read)
        key, shard = parts["__key__"], parts.pop("__shard__", None)
        files = tuple(f"{key}.{name}" for name in parts if not name.startswith("__"))
        bookkeeping = {
            "__key__": key,
            "__restore_key__": (source, epoch, index),
            "__subflavors__": dict(self.subflavors),
            "__sources__": (
                tasks.SourceInfo(
                    dataset_path=self.path, index=index, shard_name=shard, file_names=files
                ),
            ),
        }
        fields = parts if self.fields is None else self.fields(parts)
        if self.kind is tasks.CrudeSample:
            return tasks.CrudeSample({**fields, **bookkeeping})
        return self.kind(**{**bookkeeping, **fields})


def _type_of(description: form.Form) -> Any:
    name = description.sample_type or (
        "CrudeSample" if description.field_map is None and not description.code else None
    )
    sample_type = getattr(tasks, name, None) if name in tasks.__all__ else None
    if name in ("CrudeWebdataset", "CrudeSample"):
        return tasks.CrudeSample
    if not isinstance(sample_type, type) or not issubclass(sample_type, tasks.Sample):
        raise ConfigError(
            f"{description.location}: unknown sample type {name or ', '.join(description.code)}: "
            "pass sample_type="
        )
    return sample_type


def _take_subset(samples: Dataset, ref: DatasetReference) -> Dataset:
    """Take the subset that a reference names."""
    for start, stop in ref.ranges:
        n = len(samples)
        samples = samples[_bound_index(start, n) : n if stop is None else _bound_index(stop, n)]
        if not len(samples):
            raise ConfigError(
                f"{ref.path}: the subset of its split {ref.split_part!r} is empty: widen its range"
            )
    return samples


def _bound_index(bound: Bound, n: int) -> int:
    share, relative = bound
    if not relative and share > n:
        raise ConfigError(f"a subset reaches sample {share}, but there are {n}: lower its range")
    return int(share * n) if relative else int(share)
