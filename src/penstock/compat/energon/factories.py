"""Factories of datasets: the classes that a `dataset.yaml` names, and that users derive from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from ... import tasks
from ...dataset import Dataset
from ...engine.steps.read import Read
from ...errors import ConfigError
from ...sources import prepared
from ...sources.prepared import is_prepared
from ...stores import parse_location
from . import allowed, form
from .caching import FileStore, WebdatasetFileStore
from .config import SampleDecoder, WorkerConfig
from .datasets import SavableDataset, sharded_counts
from .order import Order
from .preparing import prepare_dataset

T = TypeVar("T", covariant=True)


class BaseCoreDatasetFactory(ABC, Generic[T]):
    """Base of factories: `build` returns the samples in order, `len` is their number."""

    __sample_type__: ClassVar[Any] = None
    subflavors: dict[str, Any]
    paths: list[Path]

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return the samples.

        Args:
            worker_rotation_offset: not used: ranks share one order.
        """

    @abstractmethod
    def as_file_store(self) -> FileStore[bytes]:
        """Return the files of the dataset by name."""

    @abstractmethod
    def __len__(self) -> int: ...


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """Read a prepared folder; a subclass defines `__sample_type__` and `load_sample`.

    Args:
        path: the folder.
        split_part: name of the split.
        training: whether to shuffle.
        worker_config: ranks, threads, seed and error handling.
        shuffle_over_epochs: passes that are shuffled as one; None does not shuffle.
        parallel_shard_iters: see `get_train_dataset`.
        max_samples_per_sequence: see `get_train_dataset`.
        subset: pairs of functions from the number of samples to the bounds of a part.
        split_config: name of the file that describes the splits.
        part_filter: function from the name of a part to whether to read it.

    Raises:
        ConfigError: if the class has no `__sample_type__`.
    """

    prepare_dataset = staticmethod(prepare_dataset)

    def __init__(
        self,
        path: Any,
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Any = None,
        split_config: str | None = None,
        part_filter: Callable[[str], bool] | None = None,
    ) -> None:
        if self.__sample_type__ is None:
            raise ConfigError(f"{type(self).__name__}: set __sample_type__ to its class of samples")
        self.path = parse_location(str(path))
        self.paths, self.name = [self.path], self.path.name
        self.split_part, self.training = split_part, training
        self.worker_config = worker_config or WorkerConfig()
        self.shuffle_over_epochs = shuffle_over_epochs if training else None
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset, self.part_filter = subset, part_filter
        self.subflavors = {}
        self.columns: Sequence[str] | None = None
        self._folder = prepared.load(self.path, split_config)

    def load_sample(self, sample: dict[str, Any]) -> T:
        """Return a sample of its parts.

        Args:
            sample: the parts by name, with `__key__`, `__restore_key__` and `__sources__`.
        """
        raise NotImplementedError

    def open_source(self) -> tuple[Any, Callable[..., Any]]:
        """Return the rows, and the function that makes a sample of a row."""
        return self._folder.open(self.split_part, self.columns), _LoadSample(self)

    def open_samples(self) -> Dataset:
        """Return the samples in the order of the data."""
        source, make = self.open_source()
        return take_part(Dataset(Read(source, source.name)), self.subset).with_source(make)

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return the samples, shuffled for training.

        Args:
            worker_rotation_offset: not used: ranks share one order.
        """
        samples = self.open_samples()
        order = Order(None, self.max_samples_per_sequence, self.parallel_shard_iters)
        return SavableDataset(
            order.apply(samples, self.shuffle_over_epochs).seed(self.worker_config.seed_offset),
            self.worker_config,
            name=self.name,
            once=sharded_counts(len(samples)),
        )

    def as_file_store(self) -> WebdatasetFileStore:
        """Return the files in the shards by name."""
        return WebdatasetFileStore(self.path)

    def __len__(self) -> int:
        return len(self.open_samples())

    def sample_filter(self, key: str) -> bool:
        """Return whether a sample is not excluded.

        Args:
            key: key of the sample.
        """
        return not any(key in keys for keys in self._folder.excluded.values())

    def config(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            "_path": str(self.path),
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subflavors": self.subflavors,
        }

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T]):
    """Make samples of parts by a field map or a function.

    Args:
        path: the folder.
        subflavors: labels of the samples.
        field_map: path to a part by field, such as `{"text": "json[text]"}`.
        sample_loader: function from the parts to the fields, or its name in the folder.
        part_filter: names of the parts, a function from a name to whether to read it, or the name
            of such a function in the folder.
        allow: names of code and pickles of the folder that may run.
        options: settings of `BaseWebdatasetFactory`.

    Raises:
        ConfigError: unless exactly one of `field_map` and `sample_loader` is given.
    """

    def __init__(
        self,
        path: Any,
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: str | Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        part_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        allow: Collection[str] = (),
        **options: Any,
    ) -> None:
        if (field_map is None) == (sample_loader is None):
            raise ConfigError(
                f"{type(self).__name__}: give either field_map, or sample_loader with part_filter"
            )
        columns: Sequence[str] | None = None
        self._sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]]
        if field_map is not None:
            fields = form.Fields(field_map)
            self._sample_loader, columns = fields, fields.parts
        else:
            self._sample_loader = self._code(path, sample_loader, allow)
        if isinstance(part_filter, str):
            part_filter = cast("Callable[[str], bool]", self._code(path, part_filter, allow))
        elif part_filter is not None and not callable(part_filter):
            columns, part_filter = list(part_filter), None
        super().__init__(path, part_filter=part_filter, **options)
        self.columns, self.subflavors, self.allow = columns, dict(subflavors or {}), allow

    def _code(self, path: Any, code: Any, allow: Collection[str]) -> Any:
        where = f"{path}"
        return (
            allowed.load_code(code, allow, parse_location(str(path)), where)
            if isinstance(code, str)
            else code
        )

    def load_sample(self, sample: dict[str, Any]) -> T:
        """Return a sample of its parts.

        Args:
            sample: the parts by name, with `__key__`, `__restore_key__` and `__sources__`.
        """
        bookkeeping = {
            "__key__": sample["__key__"],
            "__restore_key__": sample["__restore_key__"],
            "__subflavors__": dict(self.subflavors),
            "__sources__": sample["__sources__"],
        }
        fields = self._sample_loader(sample)
        if self.__sample_type__ is tasks.CrudeSample:
            return cast("T", tasks.CrudeSample({**fields, **bookkeeping}))
        return self.__sample_type__(**{**bookkeeping, **fields})


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T]):
    """Decode the parts, and make samples of them.

    Args:
        path: the folder.
        decoder: function from parts to decoded parts, such as a `SampleDecoder`; None leaves bytes.
        options: settings of `DefaultGenericWebdatasetFactory`.
    """

    def __init__(
        self,
        path: Any,
        *,
        decoder: Callable[[dict[str, Any]], Mapping[str, Any]] | None = SampleDecoder(),  # noqa: B008 - frozen
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        self._decoder = decoder.parts(self.allow) if isinstance(decoder, SampleDecoder) else decoder

    def load_sample(self, sample: dict[str, Any]) -> T:
        """Return a sample of its decoded parts.

        Args:
            sample: the parts by name, with `__key__`, `__restore_key__` and `__sources__`.
        """
        return super().load_sample(sample if self._decoder is None else dict(self._decoder(sample)))


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T]):
    """Make samples of a given type.

    Args:
        path: the folder.
        sample_type: class of the samples.
        options: settings of `DefaultDecoderWebdatasetFactory`.
    """

    def __init__(self, path: Any, *, sample_type: type[Any], **options: Any) -> None:
        self.__sample_type__ = sample_type  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(path, **options)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[tasks.CrudeSample]):
    """Read the parts as they are, for cookers.

    Args:
        path: the folder.
        subflavors: labels of the samples.
        part_filter: as in `DefaultGenericWebdatasetFactory`.
        options: settings of `DefaultDecoderWebdatasetFactory`.
    """

    __sample_type__ = tasks.CrudeSample

    def __init__(
        self,
        path: Any,
        *,
        subflavors: Mapping[str, Any] | None = None,
        part_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            path,
            subflavors=subflavors,
            sample_loader=_keep_parts,
            part_filter=part_filter,
            **options,
        )


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[tasks.CrudeSample]):
    """Read the rows of a prepared `.jsonl` file as crude samples with the part `json`.

    Args:
        path: the file.
        training: whether to shuffle.
        worker_config: ranks, threads, seed and error handling.
        shuffle_over_epochs: passes that are shuffled as one; None does not shuffle.
        parallel_shard_iters: see `get_train_dataset`.
        max_samples_per_sequence: see `get_train_dataset`.
        subset: as in `BaseWebdatasetFactory`.
        part_filter: not used: a row has one part.
        subflavors: labels of the samples.
    """

    __sample_type__ = tasks.CrudeSample
    prepare_dataset = staticmethod(prepare_dataset)

    def __init__(
        self,
        path: Any,
        *,
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Any = None,
        part_filter: Callable[[str], bool] | None = None,
        subflavors: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = parse_location(str(path))
        self.paths, self.name = [self.path], self.path.stem
        self.worker_config = worker_config or WorkerConfig()
        self.shuffle_over_epochs = shuffle_over_epochs if training else None
        self.subset, self.subflavors = subset, dict(subflavors or {})
        self.part_filter = part_filter
        self._order = Order(None, max_samples_per_sequence, parallel_shard_iters)

    def open_samples(self) -> Dataset:
        """Return the rows in the order of the file."""
        rows = prepared.open_jsonl(self.path)
        samples = take_part(Dataset(Read(rows, rows.name)), self.subset)
        return samples.with_source(_LoadSample(self))

    def load_sample(self, sample: dict[str, Any]) -> tasks.CrudeSample:
        """Return a crude sample of a row.

        Args:
            sample: the row, with `__key__`, `__restore_key__` and `__sources__`.
        """
        return tasks.CrudeSample({**sample, "__subflavors__": dict(self.subflavors)})

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[tasks.CrudeSample]:
        """Return the rows, shuffled for training.

        Args:
            worker_rotation_offset: not used: ranks share one order.
        """
        samples = self.open_samples()
        ordered = self._order.apply(samples, self.shuffle_over_epochs)
        return SavableDataset(
            ordered.seed(self.worker_config.seed_offset),
            self.worker_config,
            name=self.name,
            once=sharded_counts(len(samples)),
        )

    def as_file_store(self) -> FileStore[bytes]:
        """Not available: a row has one part.

        Returns:
            Nothing.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self.path}: a .jsonl file has no files by name")

    def config(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return {"type": type(self).__qualname__, "_path": str(self.path)}

    def __len__(self) -> int:
        return len(self.open_samples())


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """Read the rows of a prepared `.jsonl` file; the older name of `CrudeJsonlDatasetFactory`."""


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """Return the samples of a join.

    Args:
        open_samples: returns the joined samples in the order of the data.
        shuffle_over_epochs: passes that are shuffled as one; None does not shuffle.
        worker_config: ranks, threads, seed and error handling.
        parallel_shard_iters: see `get_train_dataset`.
        max_samples_per_sequence: see `get_train_dataset`.
    """

    def __init__(
        self,
        open_samples: Callable[[], Dataset],
        shuffle_over_epochs: int | None = 1,
        *,
        worker_config: WorkerConfig | None = None,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
    ) -> None:
        self.open_samples, self.shuffle_over_epochs = open_samples, shuffle_over_epochs
        self.worker_config = worker_config or WorkerConfig()
        self.subflavors, self.paths = {}, []
        self._order = Order(None, max_samples_per_sequence, parallel_shard_iters)

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return the joined samples, shuffled for training.

        Args:
            worker_rotation_offset: not used: ranks share one order.
        """
        samples = self.open_samples()
        ordered = self._order.apply(samples, self.shuffle_over_epochs)
        return SavableDataset(
            ordered.seed(self.worker_config.seed_offset),
            self.worker_config,
            name="join",
            once=sharded_counts(len(samples)),
        )

    def as_file_store(self) -> FileStore[bytes]:
        """Not available: a join has no files by name.

        Returns:
            Nothing.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a join has no files by name")

    def config(self) -> dict[str, Any]:
        """Return the settings as a dict."""
        return {"type": type(self).__qualname__, "shuffle_over_epochs": self.shuffle_over_epochs}

    def __len__(self) -> int:
        return len(self.open_samples())


class CaptioningWebdataset(DefaultDecoderWebdatasetFactory[tasks.CaptioningSample]):
    """Read `CaptioningSample`s."""

    __sample_type__ = tasks.CaptioningSample


class ImageWebdataset(DefaultDecoderWebdatasetFactory[tasks.ImageSample]):
    """Read `ImageSample`s."""

    __sample_type__ = tasks.ImageSample


class ImageClassificationWebdataset(
    DefaultDecoderWebdatasetFactory[tasks.ImageClassificationSample]
):
    """Read `ImageClassificationSample`s."""

    __sample_type__ = tasks.ImageClassificationSample


class InterleavedWebdataset(DefaultDecoderWebdatasetFactory[tasks.InterleavedSample]):
    """Read `InterleavedSample`s."""

    __sample_type__ = tasks.InterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdatasetFactory[tasks.MultiChoiceVQASample]):
    """Read `MultiChoiceVQASample`s."""

    __sample_type__ = tasks.MultiChoiceVQASample


class OCRWebdataset(DefaultDecoderWebdatasetFactory[tasks.OCRSample]):
    """Read `OCRSample`s."""

    __sample_type__ = tasks.OCRSample


class SimilarityInterleavedWebdataset(
    DefaultDecoderWebdatasetFactory[tasks.SimilarityInterleavedSample]
):
    """Read `SimilarityInterleavedSample`s."""

    __sample_type__ = tasks.SimilarityInterleavedSample


class TextWebdataset(DefaultDecoderWebdatasetFactory[tasks.TextSample]):
    """Read `TextSample`s."""

    __sample_type__ = tasks.TextSample


class VidQAWebdataset(DefaultDecoderWebdatasetFactory[tasks.VidQASample]):
    """Read `VidQASample`s."""

    __sample_type__ = tasks.VidQASample


class VQAWebdataset(DefaultDecoderWebdatasetFactory[tasks.VQASample]):
    """Read `VQASample`s."""

    __sample_type__ = tasks.VQASample


class VQAOCRWebdataset(DefaultDecoderWebdatasetFactory[tasks.VQAOCRSample]):
    """Read `VQAOCRSample`s."""

    __sample_type__ = tasks.VQAOCRSample


def get_dataset_from_config(
    path: Any,
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    allow: Collection[str] = (),
    **options: Any,
) -> BaseCoreDatasetFactory[Any]:
    """Return the factory of a prepared folder or `.jsonl` file.

    Args:
        path: the folder or file.
        dataset_config: name of the file that describes the samples.
        split_config: name of the file that describes the splits.
        split_part: name of the split; "train" by default.
        training: whether to shuffle.
        subflavors: labels of the samples, which override those of the folder.
        worker_config: ranks, threads, seed and error handling.
        sample_type: class that the samples must have.
        allow: names of code and pickles of the folder that may run.
        options: settings of the factory.

    Raises:
        ConfigError: for a path that is neither, for code that is not allowed, and for samples of
            another type.
    """
    location = parse_location(str(path))
    if location.suffix == ".jsonl":
        factory: Any = DefaultCrudeJsonlDatasetFactory(
            location,
            training=training,
            worker_config=worker_config,
            subflavors=subflavors,
            **options,
        )
    elif is_prepared(location):
        description = form.load(location, dataset_config or "dataset.yaml")
        kind, settings = choose_factory(description, allow)
        factory = kind(
            location,
            split_part=split_part or "train",
            split_config=split_config,
            training=training,
            worker_config=worker_config,
            allow=allow,
            **{**settings, **options},
        )
        factory.subflavors.update(subflavors or {})
    else:
        raise ConfigError(
            f"{location} is neither a prepared folder nor a .jsonl file: prepare it with "
            "Energon's `energon prepare`, or with BaseWebdatasetFactory.prepare_dataset"
        )
    if sample_type is not None and not issubclass(factory.__sample_type__, sample_type):
        raise ConfigError(
            f"{location}: its samples are {factory.__sample_type__.__name__}, not "
            f"{sample_type.__name__}"
        )
    return factory


def choose_factory(
    description: form.Form, allow: Collection[str]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the factory that a description names, and its settings.

    Raises:
        ConfigError: for a class that is unknown or not allowed.
    """
    settings = dict(description.settings)
    kind: Any = None
    if description.factory is not None:
        kind = globals().get(description.factory) or allowed.load_code(
            description.factory, allow, None, description.location
        )
    name = description.sample_type
    if kind is None and name in ("CrudeSample", "CrudeWebdataset"):
        kind = CrudeWebdataset
    if kind is not None:
        return kind, settings
    sample_type: Any = getattr(tasks, name, None) if name in tasks.__all__ else None
    if description.foreign is not None:
        sample_type = allowed.load_code(description.foreign, allow, None, description.location)
    if not isinstance(sample_type, type):
        raise ConfigError(f"{description.location}: unknown sample type {name!r}")
    return StandardWebdatasetFactory, {"sample_type": sample_type, **settings}


def take_part(samples: Dataset, subset: Any) -> Dataset:
    """Take a part of the samples, by pairs of functions from their number to a bound."""
    for start, stop in subset or ():
        n = len(samples)
        samples = samples[start(n) : stop(n)]
    return samples


class _LoadSample:
    """Make a sample of one row by the factory's `load_sample`."""

    def __init__(self, factory: Any) -> None:
        self.factory, self.path = factory, str(factory.path)
        self.__qualname__ = type(factory).__qualname__

    def __call__(self, read: Mapping[str, Any], source: str, epoch: int, index: int) -> Any:
        choose = self.factory.part_filter
        parts = {
            name: value
            for name, value in read.items()
            if name.startswith("__") or choose is None or choose(name)
        }
        key, shard = parts["__key__"], parts.pop("__shard__", None)
        files = tuple(f"{key}.{name}" for name in parts if not name.startswith("__"))
        parts["__restore_key__"] = (source, epoch, index)
        parts["__sources__"] = (
            tasks.SourceInfo(
                dataset_path=self.path, index=index, shard_name=shard, file_names=files
            ),
        )
        return self.factory.load_sample(parts)


def _keep_parts(parts: dict[str, Any]) -> dict[str, Any]:
    return parts
