"""Sample construction and order of one dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ... import tasks
from ...dataset import Dataset
from ...engine.steps.read import Read
from ...errors import ConfigError
from ...sources import prepared
from . import form
from .caching import DecodeFileStore, FileStore, SystemFileStore, WebdatasetFileStore
from .config import SampleDecoder
from .encoder import DefaultTaskEncoder, StoreEncoder
from .factories import (
    BaseCoreDatasetFactory,
    JoinedWebdatasetFactory,
    get_dataset_from_config,
)
from .joins import JoinedRows, MakeJoined, choose_joiner, match_keys
from .references import Bound, DatasetReference, Join

Encoder = tasks.TaskEncoder[Any, Any, Any, Any]

_OPTIONS = {"part_filter", "sample_loader", "split_config", "subflavor"}  # of a dataset.yaml

KEEP = object()  # sentinel for "as in the encoder", since None is a valid choice


class Reading:
    """Make samples from the rows of a dataset."""

    def __init__(
        self,
        encoder: Encoder | None,
        decoder: Any,
        sample_type: type[Any] | None,
        sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
        allow: Collection[str] = (),
    ) -> None:
        self.encoder: Encoder = encoder if encoder is not None else DefaultTaskEncoder()
        self.allow = allow
        if decoder is KEEP:
            decoder = getattr(self.encoder, "decoder", SampleDecoder())
        self.decoder = decoder
        self.decode = decoder.parts(allow) if isinstance(decoder, SampleDecoder) else decoder
        self.sample_type, self.sample_loader = sample_type, sample_loader

    def one_to_one(self, packing_buffer_size: int | None) -> bool:
        """Return whether samples become batches one by one, so that their number is known."""
        return packing_buffer_size is None and not self.encoder.defines("batch_group_criterion")

    def open_samples(self, part: DatasetReference | Join) -> Dataset:
        """Return the samples of one dataset or join, in the order of its data."""
        if isinstance(part, Join):
            opened = [self._open_source(entry.reference) for entry in part.parts]
            rows = JoinedRows([source for source, _ in opened], match_keys(part))
            joiner = choose_joiner(part, self.allow)
            made: Any = MakeJoined(part, [make for _, make in opened], joiner)
            return _take_subset(Dataset(Read(rows, rows.name)), part.base).with_source(made)
        source, make_sample = self._open_source(part)
        return _take_subset(Dataset(Read(source, source.name)), part).with_source(make_sample)

    def _open_source(self, ref: DatasetReference) -> tuple[Any, Callable[..., Any]]:
        """Return the rows of one dataset, and the function that makes a sample of a row."""
        if ref.path.suffix == ".jsonl":
            make_sample = _MakeSample(ref, self.decode, tasks.CrudeSample, None)
            return prepared.open_jsonl(ref.path), make_sample
        description = form.load(ref.path, ref.dataset_config)
        if description.code and not self.sample_loader:
            return cast("Any", self.make_factory(ref)).open_source()
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
        return source, _MakeSample(
            ref,
            self.decode,
            sample_type,
            fields,
            {**label, **description.subflavors, **ref.subflavors},
        )

    def make_factory(
        self, part: DatasetReference | Join, training: bool = True, **options: Any
    ) -> BaseCoreDatasetFactory[Any]:
        """Return the factory of one dataset or join."""
        if isinstance(part, Join):
            return JoinedWebdatasetFactory(
                partial(self.open_samples, part),
                part.base.multiplier if training else None,
                **options,
            )
        if part.path.suffix != ".jsonl":
            options = {
                "decoder": self.decode,
                "dataset_config": part.dataset_config,
                "split_config": part.split_config,
                "split_part": part.split_part,
                "allow": self.allow,
                **options,
            }
        return get_dataset_from_config(
            part.path,
            training=training,
            subflavors=part.subflavors,
            shuffle_over_epochs=part.multiplier,
            subset=[_to_bounds(start, stop) for start, stop in part.ranges] or None,
            **options,
        )

    def open_stores(self, ref: DatasetReference) -> dict[str, FileStore[Any]]:
        """Return the stores of auxiliary files of a dataset, by name."""
        stores = dict[str, FileStore[Any]]()
        for name, path in ref.aux.items():
            store: FileStore[Any] = (
                SystemFileStore(path.removeprefix("filesystem:"))
                if path.startswith("filesystem:")
                else WebdatasetFileStore(path)
            )
            stores[name] = self._decoded(store)
        return stores

    def _decoded(self, store: FileStore[Any]) -> FileStore[Any]:
        return store if self.decoder is None else DecodeFileStore(store, decoder=self.decoder)

    def with_stores(self, parts: Sequence[DatasetReference | Join]) -> None:
        """Give the stores of the datasets to the cookers of the encoder, if any needs them."""
        cooks = [cast("Any", cooker.cook) for cooker in self.encoder.cookers]
        primary = any(getattr(cook, "__cooker_need_primary__", False) for cook in cooks)
        cache = any(getattr(cook, "__cooker_need_cache__", False) for cook in cooks)
        named = [part for part in parts if isinstance(part, DatasetReference)]
        if not (primary or cache or any(part.aux for part in named)):
            return
        stores = dict[str, dict[str, FileStore[Any]]]()
        aux_by_path = dict[str, Mapping[str, str]]()
        for part in named:
            path = str(part.path)
            if aux_by_path.setdefault(path, part.aux) != part.aux:
                raise ConfigError(f"{path}: it is named twice, with different aux: name it once")
            stores[path] = self.open_stores(part)
            if primary and part.path.suffix != ".jsonl":
                stores[path]["primary"] = self._decoded(WebdatasetFileStore(part.path))
        self.encoder = StoreEncoder(self.encoder, stores)


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


def _to_bounds(
    start: Bound, stop: Bound | None
) -> tuple[Callable[[int], int], Callable[[int], int]]:
    """Return the functions from a number of samples to the bounds of a range."""
    return partial(_bound_index, start), (
        (lambda n: n) if stop is None else partial(_bound_index, stop)
    )
