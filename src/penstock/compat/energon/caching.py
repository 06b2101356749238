"""Stores of files by name, and the lazy references that cookers receive.

A store reads; nothing here keeps samples. `FileStoreCachePool` is accepted for its settings: a
lazy reference reads at `get`, and Penstock caches blocks of remote files by itself.
"""

from __future__ import annotations

import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from ...errors import ConfigError, DataError, convert_storage_errors
from ...sources import meta
from ...sources.prepared import load
from ...stores import parse_location, storage
from ...stores.urls import require_local
from ...tasks import SourceInfo
from ...tasks.samples import get_sources

T = TypeVar("T")

SQLITE_INDEX = "index.sqlite"
"""Name of the index by keys in a prepared folder."""

_FIND_PART = (
    "SELECT s.tar_file_id, s.sample_index, p.content_byte_offset, p.content_byte_size "
    "FROM samples s JOIN sample_parts p ON p.tar_file_id = s.tar_file_id AND "
    "p.sample_index = s.sample_index WHERE s.sample_key = ? AND p.part_name = ?"
)
_ENTRY = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")


class FileStore(ABC, Generic[T]):
    """Read files by name: `store[name]` gives the data and their source."""

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        """Return the data and the source of a file."""

    @abstractmethod
    def get_path(self) -> str:
        """Return the path of the store."""

    def get(self, key: str, sample: Any = None) -> T:
        """Return the data of a file, and add its source to a sample.

        Args:
            key: name of the file.
            sample: the sample, a record or a dict.
        """
        data, source = self[key]
        add_source_info(sample, source)
        return data

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return what `energon prepare --media-metadata-by-...` stored for a file.

        Args:
            key: name of the file.

        Raises:
            ConfigError: if this store has no such table.
        """
        raise ConfigError(f"{type(self).__name__} stores no media metadata")


class MediaMetadata(dict[str, Any]):
    """Facts about an image, video or audio file; fields are attributes too.

    >>> MediaMetadata(width=3, height=2).width
    3
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class FileStoreDecoder(ABC):
    """Decode files by their names."""

    @abstractmethod
    def decode(self, fname: str, data: bytes) -> Any:
        """Return the decoded data.

        Args:
            fname: name of the file, whose extension chooses the decoder.
            data: its bytes.
        """


class DecodeFileStore(FileStore[Any]):
    """Decode the files of a store.

    Args:
        inner: the store.
        decoder: the decoder, such as a `SampleDecoder`.
    """

    def __init__(self, inner: FileStore[bytes], *, decoder: Any) -> None:
        self._inner, self.decoder = inner, decoder

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        data, source = self._inner[key]
        return self.decoder.decode(key, data), source

    def get_path(self) -> str:
        """Return the path of the store."""
        return self._inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return the media metadata of the inner store.

        Args:
            key: name of the file.
        """
        return self._inner.get_media_metadata(key)


class PrimaryFileStore(FileStore[T]):
    """Read the parts of one sample: `store[".wav"]` is the part `wav` of `current_key`.

    Args:
        inner: the store of the sample's dataset.
        current_key: key of the sample.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self._inner, self._current_key = inner, current_key

    def _name(self, key: str) -> str:
        return f"{self._current_key}{key}" if key.startswith(".") else key

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self._inner[self._name(key)]

    def get_path(self) -> str:
        """Return the path of the store."""
        return self._inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return the media metadata of a part of the sample.

        Args:
            key: the part, or the name of a file.
        """
        return self._inner.get_media_metadata(self._name(key))


class SystemFileStore(FileStore[bytes]):
    """Read the files below a folder, or of any path.

    Args:
        base_dir: the folder, local or remote; None for absolute paths.
    """

    def __init__(self, base_dir: Any = None) -> None:
        self.base_dir = None if base_dir is None else parse_location(str(base_dir))

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        path = parse_location(key) if self.base_dir is None else self.base_dir / key
        with convert_storage_errors(path):
            data = storage.world.store.read(str(path))
        base = self.get_path()
        return data, SourceInfo(dataset_path=base, index=key, shard_name=base, file_names=(key,))

    def get_path(self) -> str:
        """Return the folder."""
        return str(self.base_dir)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return the media metadata of a file.

        Args:
            key: path of the file below the folder.

        Raises:
            ConfigError: without a folder, or if it has no such table.
        """
        if self.base_dir is None:
            raise ConfigError("SystemFileStore: media metadata need a base_dir")
        return _read_metadata(self.base_dir, key)


class WebdatasetFileStore(FileStore[bytes]):
    """Read the files in the shards of a prepared folder: `store["key.jpg"]`.

    Args:
        path: the folder.

    Raises:
        ConfigError: if the folder has no index by keys.
    """

    def __init__(self, path: Any) -> None:
        self._path = parse_location(str(path))
        with open_index(self._path):
            pass
        self._shards = list(load(self._path).counts)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        match = _ENTRY.fullmatch(key)
        with open_index(self._path) as connection:
            row: Any = match and connection.execute(_FIND_PART, match.groups()).fetchone()
        if not row:
            raise KeyError(f"{key!r} is not in {self._path}")
        if any(type(value) is not int or value < 0 for value in row) or row[0] >= len(self._shards):
            raise DataError("the index by keys is damaged: prepare the folder again", where=key)
        shard_number, index, at, size = cast("tuple[int, int, int, int]", row)
        shard = self._shards[shard_number]
        path = self._path / shard
        with convert_storage_errors(path):
            data = storage.world.store.read(str(path), at, size)
        if len(data) != size:
            raise DataError("the shard ends within this file: prepare the folder again", where=key)
        return data, SourceInfo(
            dataset_path=str(self._path), index=index, shard_name=shard, file_names=(key,)
        )

    def get_path(self) -> str:
        """Return the folder."""
        return str(self._path)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return the media metadata of a file.

        Args:
            key: name of the file.
        """
        return _read_metadata(self._path, key)


@dataclass(eq=False)
class Lazy(ABC, Generic[T]):
    """A reference to a file of a store, read by `get`.

    Args:
        ds: the store.
        fname: name of the file.
        pool: the pool that made the reference.
    """

    ds: Any
    fname: str
    pool: Any = None

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the data, and add their source to a sample.

        Args:
            sample: the sample, a record or a dict.
        """

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname  # pyright: ignore[reportUnknownMemberType]


@dataclass(eq=False)
class DirectLazy(Lazy[T]):
    """A reference that reads at the first `get`.

    Args:
        ds: the store.
        fname: name of the file.
        pool: the pool that made the reference.
    """

    _data: tuple[T, SourceInfo] | None = field(default=None, repr=False)

    def get(self, sample: Any = None) -> T:
        """Return the data, and add their source to a sample.

        Args:
            sample: the sample, a record or a dict.
        """
        if self._data is None:
            self._data = self.ds[self.fname]
        content: Any = self._data
        data, source = content
        add_source_info(sample, source)
        return data


class FileCacheLazy(DirectLazy[T]):
    """The reference of a `FileStoreCachePool`."""


class MockLazy(Lazy[T]):
    """A reference to the result of a function of the name.

    Args:
        fname: the name.
        get_fn: the function.

    >>> MockLazy("a", str.upper).get()
    'A'
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(None, fname)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """Return the result of the function.

        Args:
            sample: not used.
        """
        return self.get_fn(self.fname)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, MockLazy) and (self.fname, self.get_fn) == (other.fname, other.get_fn)  # pyright: ignore[reportUnknownMemberType]
        )


class CachePool(ABC):
    """Read files of stores, now or later."""

    @abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return the data of a file.

        Args:
            ds: the store.
            fname: name of the file.
            sample: the sample whose sources the file joins.
        """

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Return a reference to a file.

        Args:
            ds: the store.
            fname: name of the file.
        """

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Return a reference to data.

        Args:
            data: the data.
            name: name of the data, for errors.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the pool holds."""


class NoCachePool(CachePool):
    """A pool that reads directly."""

    _lazy: type[DirectLazy[Any]] = DirectLazy

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return the data of a file.

        Args:
            ds: the store.
            fname: name of the file.
            sample: the sample whose sources the file joins.
        """
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """Return a reference that reads at its first `get`.

        Args:
            ds: the store.
            fname: name of the file.
        """
        return self._lazy(ds, fname, self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Return a reference to data in memory.

        Args:
            data: the data.
            name: name of the data.
        """
        return MockLazy(name, lambda _: data)

    def close(self) -> None:
        """Do nothing: the pool holds nothing."""


class FileStoreCachePool(NoCachePool):
    """A pool that reads at `get`, without a copy on disk; its settings have no effect.

    Args:
        parent_cache_dir: not used.
        num_workers: not used.
        max_cache_size_gbytes: not used.
        max_cache_count: not used.
        method: not used.
    """

    _lazy = FileCacheLazy

    def __init__(
        self,
        *,
        parent_cache_dir: Path | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: Literal["raw", "pickle"] = "raw",
    ) -> None: ...


def add_source_info(sample: Any, *sources: SourceInfo) -> Any:
    """Append sources to those of a sample, and return it.

    Args:
        sample: a record, a dict, or None.
        sources: the sources.

    Returns:
        The sample.
    """
    if isinstance(sample, dict):
        fields = cast("dict[str, Any]", sample)
        fields["__sources__"] = (*(fields.get("__sources__") or ()), *sources)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*get_sources(sample), *sources)
    return cast("Any", sample)


@contextmanager
def open_index(folder: Path) -> Generator[sqlite3.Connection]:
    """Open the index by keys of a prepared folder, which never changes while it is read.

    Args:
        folder: the folder.

    Raises:
        ConfigError: if the folder has no index.
        DataError: if the index is damaged.
    """
    index = require_local(folder) / meta.META_FOLDER / SQLITE_INDEX
    if not index.is_file():
        raise ConfigError(
            f"{folder} has no index by keys ({SQLITE_INDEX}): prepare it with Energon's `energon "
            "prepare`, or with BaseWebdatasetFactory.prepare_dataset"
        )
    uri = f"{index.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise DataError(
            f"the index by keys is damaged ({error}): prepare the folder again", where=str(index)
        ) from error


def _read_metadata(folder: Path, key: str) -> MediaMetadata:
    tables = "SELECT name FROM sqlite_master WHERE name = 'media_metadata'"
    with open_index(folder) as index:
        if index.execute(tables).fetchone() is None:
            raise ConfigError(
                f"{folder} has no media metadata: run `energon prepare --media-metadata-by-header`"
            )
        command = "SELECT metadata_json FROM media_metadata WHERE entry_key = ?"
        row = index.execute(command, (key,)).fetchone()
    if row is None:
        raise KeyError(f"no media metadata of {key!r} in {folder}")
    return MediaMetadata(json.loads(row[0]))
