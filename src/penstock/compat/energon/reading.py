"""How samples are made of what is read, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from ... import tasks
from ...dataset import Dataset
from ...engine.graph.nodes import Read
from ...errors import ConfigError
from ...sources import prepared
from . import form
from .config import SampleDecoder
from .metadataset import Bound, Leaf

Encoder = tasks.TaskEncoder[Any, Any, Any, Any]

_STEPS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)

_OPTIONS = {"part_filter", "sample_loader", "split_config", "subflavor"}  # of a dataset.yaml

KEEP = object()  # stands for "as the encoder says": None is a choice


@dataclass(frozen=True)
class Order:
    """The settings that ask for an order."""

    buffer: int | None
    rows: int | None
    windows: int | None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("shuffle_buffer_size", self.buffer, 0),
            ("max_samples_per_sequence", self.rows, 1),
            ("parallel_shard_iters", self.windows, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name}={value}: at least {least}, or None")

    def over(self, samples: Dataset, multiplier: int | None) -> Dataset:
        """One leaf, in the order asked for."""
        if multiplier is None:
            return (
                samples.shuffle_buffer(self.buffer) if self.buffer and self.buffer > 1 else samples
            )
        if multiplier < 1:
            raise ConfigError(
                f"shuffle_over_epochs_multiplier={multiplier}: a number of passes, or None; "
                "drawing with replacement (-1) is not supported, for it shows some samples often "
                "and some never"
            )
        samples = samples.repeat(multiplier) if multiplier > 1 else samples
        if self.rows is None:
            return samples.shuffle()
        return samples.shuffle(
            block=(self.rows, max(self.windows or 16, ceil((self.buffer or 0) / self.rows)))
        )


class Reading:
    """How samples are made of what is read."""

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
                    "the core builds the pipeline; blend what get_train_dataset gives by "
                    "BlendDataset, MixBatchDataset and the like"
                )
        decoder = (
            getattr(encoder, "decoder", SampleDecoder())
            if image_decode is KEEP
            else SampleDecoder(image_decode)
        )
        self.decode = None if decoder is None else decoder.parts()
        self.sample_type, self.sample_loader = sample_type, sample_loader

    def one_to_one(self, packing_buffer_size: int | None) -> bool:
        """Whether samples become batches one by one, so that their number is known beforehand."""
        return packing_buffer_size is None and not self.encoder.defines("batch_group_criterion")

    def leaf(self, ref: Leaf) -> Dataset:
        """The samples of one dataset, in the order of its data."""
        if ref.path.suffix == ".jsonl":
            made, crude = (
                _Made(ref, self.decode, tasks.CrudeSample, None),
                prepared.open_jsonl(ref.path),
            )
            return _cut(Dataset(Read(crude, crude.name)), ref).with_source(made)
        shape = form.load(ref.path, ref.dataset_config)
        kind = self.sample_type or _type_of(shape)
        fields = (
            self.sample_loader if self.sample_loader or kind is tasks.CrudeSample else shape.fields
        )
        columns = fields.parts if isinstance(fields, form.Fields) else shape.parts
        unknown = sorted(shape.options.keys() - _OPTIONS)
        if unknown:
            raise ConfigError(
                f"{shape.where}: {unknown[0]} is not supported; name a file without it as "
                "dataset_config"
            )
        label = (
            {"__subflavor__": shape.options["subflavor"]} if "subflavor" in shape.options else {}
        )
        split_config = ref.split_config or shape.options.get("split_config")
        source = prepared.load(ref.path, split_config).open(ref.split_part, columns)
        made = _Made(
            ref, self.decode, kind, fields, {**label, **shape.subflavors, **ref.subflavors}
        )
        return _cut(Dataset(Read(source, source.name)), ref).with_source(made)


class _Made:
    """A sample of what was read."""

    def __init__(
        self,
        ref: Leaf,
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
        known = {
            "__key__": key,
            "__restore_key__": (source, epoch, index),
            "__subflavors__": dict(self.subflavors),
            "__sources__": (
                tasks.SourceInfo(
                    dataset_path=self.path, index=index, shard_name=shard, file_names=files
                ),
            ),
        }
        found = parts if self.fields is None else self.fields(parts)
        if self.kind is tasks.CrudeSample:
            return tasks.CrudeSample({**found, **known})
        return self.kind(**{**known, **found})


def _type_of(shape: form.Form) -> Any:
    name = shape.sample_type or (
        "CrudeSample" if shape.field_map is None and not shape.code else None
    )
    kind = getattr(tasks, name, None) if name in tasks.__all__ else None
    if name in ("CrudeWebdataset", "CrudeSample"):
        return tasks.CrudeSample
    if not isinstance(kind, type) or not issubclass(kind, tasks.Sample):
        raise ConfigError(
            f"{shape.where}: samples of type {name or ', '.join(shape.code)} are not known here; "
            "give sample_type="
        )
    return kind


def _cut(samples: Dataset, ref: Leaf) -> Dataset:
    """The subset that a reference asks for."""
    for start, stop in ref.ranges:
        n = len(samples)
        samples = samples[_place(start, n) : n if stop is None else _place(stop, n)]
        if not len(samples):
            raise ConfigError(
                f"{ref.path}: the subset of its split {ref.split_part!r} holds no sample"
            )
    return samples


def _place(bound: Bound, n: int) -> int:
    share, relative = bound
    if not relative and share > n:
        raise ConfigError(f"a subset reaches to sample {share}, but there are {n}")
    return int(share * n) if relative else int(share)
