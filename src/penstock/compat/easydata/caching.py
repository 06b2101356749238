"""Caches of values by key: in memory, on disk, and both; nothing on disk is a pickle.

A disk cache stores JSON values as JSON, and rows as Arrow files that it opens again by
`penstock.read`. The pipeline does not cache by itself: `save()` stores rows for the stages after it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from ...arguments import check_choice
from ...dataset import Dataset
from ...errors import ConfigError, make_missing_extra_error
from ...inputs import read
from ...stores import storage
from ...writing import write_rows
from ...writing.lines import encode_json
from .config import CACHE_COMPRESSIONS
from .inputs import dataset_of


@dataclass
class CacheMetadata:
    """Facts about a cached value, to find out whether it is still valid.

    Args:
        version: version of the format.
        created_at: seconds since 1970.
        source_hash: digest of the source.
        tokenizer_hash: digest of the tokenizer.
        transform_hash: digest of the transforms.
        num_examples: number of rows.
        config_hash: digest of the settings.
        extra: other facts.

    >>> CacheMetadata(config_hash="a", source_hash="b").is_valid_for("a")
    True
    """

    version: str = "1.0"
    created_at: float = field(default_factory=storage.read_wall_time)
    source_hash: str = ""
    tokenizer_hash: str | None = None
    transform_hash: str | None = None
    num_examples: int = 0
    config_hash: str = ""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a mapping."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CacheMetadata:
        """Return the facts of a mapping; unknown keys are ignored.

        Args:
            data: the mapping.
        """
        return cls(**{item.name: data[item.name] for item in fields(cls) if item.name in data})

    def is_valid_for(self, config_hash: str, source_hash: str | None = None) -> bool:
        """Return whether the settings, and the source if given, are the same.

        Args:
            config_hash: digest of the settings.
            source_hash: digest of the source.
        """
        return self.config_hash == config_hash and source_hash in (None, self.source_hash)


Entry = tuple[Any, CacheMetadata | None]


class CacheLayer(ABC):
    """Base of caches: a value and its metadata by key."""

    @abstractmethod
    def get(self, key: str) -> Entry | None:
        """Return the value of a key and its metadata; None if there is none."""

    @abstractmethod
    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Store a value."""

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Return whether there is a value."""

    @abstractmethod
    def invalidate(self, key: str | None = None) -> None:
        """Remove the value of a key; all values without a key."""

    def get_metadata(self, key: str) -> CacheMetadata | None:
        """Return the metadata of a key.

        Args:
            key: the key.
        """
        entry = self.get(key)
        return entry[1] if entry else None


class MemoryCache(CacheLayer):
    """Cache in memory, with LRU eviction.

    Args:
        max_size: number of values.

    >>> cache = MemoryCache(max_size=1)
    >>> cache.put("a", 1); cache.put("b", 2)
    >>> cache.get("a"), cache.get("b"), cache.stats["hit_rate"]
    (None, (2, None), 0.5)
    """

    def __init__(self, max_size: int = 1000) -> None:
        self.max_size = max_size
        self._entries: dict[str, Entry] = {}  # the least recently used first
        self._hits = self._misses = 0

    def get(self, key: str) -> Entry | None:
        """Return the value of a key and its metadata, and make it the most recently used.

        Args:
            key: the key.
        """
        if key not in self._entries:
            self._misses += 1
            return None
        self._hits += 1
        entry = self._entries[key] = self._entries.pop(key)
        return entry

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Store a value; the least recently used one is evicted.

        Args:
            key: the key.
            value: the value.
            metadata: its metadata.
        """
        self._entries.pop(key, None)
        self._entries[key] = value, metadata
        while len(self._entries) > self.max_size:
            del self._entries[next(iter(self._entries))]

    def contains(self, key: str) -> bool:
        """Return whether there is a value.

        Args:
            key: the key.
        """
        return key in self._entries

    def invalidate(self, key: str | None = None) -> None:
        """Remove the value of a key; all values without a key.

        Args:
            key: the key.
        """
        if key is None:
            self._entries.clear()
        else:
            self._entries.pop(key, None)

    @property
    def stats(self) -> dict[str, Any]:
        """Counts of hits and misses, and the number of values."""
        calls = self._hits + self._misses
        return {
            "hits": self._hits,
            "misses": self._misses,
            "hit_rate": self._hits / calls if calls else 0,
            "size": len(self._entries),
            "max_size": self.max_size,
        }


class DiskCache(CacheLayer):
    """Cache of JSON values and of rows in a folder.

    Rows are a Penstock dataset or a sharded source; `get` returns them as a dataset that reads the
    stored files. Other objects are rejected, because they would need pickles.

    Args:
        cache_dir: the folder.
        compression: "none", "gzip" or "zstd" for JSON values; rows are compressed by "zstd" or not.
        expiry_seconds: seconds until a value expires; None for never.

    Raises:
        ConfigError: for an unknown compression.

    >>> import tempfile
    >>> cache = DiskCache(tempfile.mkdtemp(), compression="gzip")
    >>> cache.put("key", {"tokens": [1, 2]})
    >>> cache.get("key")
    ({'tokens': [1, 2]}, None)
    """

    def __init__(
        self,
        cache_dir: str | Path,
        compression: str = "none",
        expiry_seconds: float | None = None,
    ) -> None:
        check_choice(compression, CACHE_COMPRESSIONS, "DiskCache(compression={})")
        self.cache_dir, self.compression = Path(cache_dir), compression
        self.expiry_seconds = expiry_seconds
        self.cache_dir.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Entry | None:
        """Return the value of a key and its metadata; None if there is none, or if it expired.

        Args:
            key: the key.
        """
        if not self.contains(key):
            return None
        note = self._read_note(key)
        metadata = note["metadata"]
        if note["kind"] == "rows":
            value: Any = read(self._folder(key) / "rows")
        else:
            data = _decompress((self._folder(key) / "value").read_bytes(), note["compression"])
            value = json.loads(data)
        return value, None if metadata is None else CacheMetadata.from_dict(metadata)

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Store a value.

        Args:
            key: the key.
            value: a JSON value, a Penstock dataset or a sharded source.
            metadata: its metadata.

        Raises:
            ConfigError: for another value.
        """
        is_rows = isinstance(value, Dataset) or hasattr(value, "open_shard")
        data = b"" if is_rows else _compress(_encode(value), self.compression)
        self.invalidate(key)
        folder = self._folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        if is_rows:
            codec = "none" if self.compression == "none" else "zstd"
            write_rows(dataset_of(value, "value"), folder / "rows", "arrow", codec)
        else:
            storage.write_atomically(folder / "value", data)
        note = {
            "kind": "rows" if is_rows else "json",
            "compression": self.compression,
            "metadata": metadata and metadata.to_dict(),
            "written": storage.read_wall_time(),
        }
        storage.write_atomically(folder / "note.json", json.dumps(note).encode())

    def contains(self, key: str) -> bool:
        """Return whether there is a value that has not expired.

        Args:
            key: the key.
        """
        if not (self._folder(key) / "note.json").exists():
            return False
        age = storage.read_wall_time() - self._read_note(key)["written"]
        return self.expiry_seconds is None or age <= self.expiry_seconds

    def invalidate(self, key: str | None = None) -> None:
        """Remove the value of a key; all values of this cache without a key.

        Args:
            key: the key.
        """
        folders = [self._folder(key)] if key is not None else [*self.cache_dir.glob("penstock-*")]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, key: str) -> Path:
        return self.cache_dir / f"penstock-{_digest(key, 32)}"

    def _read_note(self, key: str) -> dict[str, Any]:
        return json.loads((self._folder(key) / "note.json").read_bytes())


class TreeCacheManager:
    """A cache in memory before a cache on disk; a value of the disk moves to memory when it is read.

    Args:
        cache_dir: folder of the disk cache.
        memory_size: number of values in memory.
        disk_expiry: seconds until a value on disk expires; None for never.
        compression: "none", "gzip" or "zstd".

    >>> import tempfile
    >>> cache = TreeCacheManager(tempfile.mkdtemp())
    >>> cache.get_or_compute("key", lambda: [1, 2]), cache.get_or_compute("key", lambda: [3])
    ([1, 2], [1, 2])
    """

    def __init__(
        self,
        cache_dir: str | Path,
        memory_size: int = 100,
        disk_expiry: float | None = 86400,
        compression: str = "none",
    ) -> None:
        self.cache_dir = Path(cache_dir)
        self.memory = MemoryCache(memory_size)
        self.disk = DiskCache(cache_dir, compression, disk_expiry)

    def get(self, key: str) -> Entry | None:
        """Return the value of a key and its metadata; None if there is none.

        Args:
            key: the key.
        """
        if (entry := self.memory.get(key)) is None and (entry := self.disk.get(key)) is not None:
            self.memory.put(key, *entry)
        return entry

    def put(self, key: str, value: Any, metadata: CacheMetadata | None = None) -> None:
        """Store a value in both caches.

        Args:
            key: the key.
            value: the value.
            metadata: its metadata.
        """
        self.disk.put(key, value, metadata)
        self.memory.put(key, value, metadata)

    def contains(self, key: str) -> bool:
        """Return whether one of the caches has a value.

        Args:
            key: the key.
        """
        return self.memory.contains(key) or self.disk.contains(key)

    def invalidate(self, key: str | None = None) -> None:
        """Remove the value of a key from both caches; all values without a key.

        Args:
            key: the key.
        """
        self.memory.invalidate(key)
        self.disk.invalidate(key)

    def get_or_compute(
        self,
        key: str,
        compute_fn: Callable[[], Any],
        metadata: CacheMetadata | None = None,
        validate_fn: Callable[[CacheMetadata], bool] | None = None,
    ) -> Any:
        """Return the value of a key; compute and store it if there is none.

        Args:
            key: the key.
            compute_fn: computes the value.
            metadata: its metadata.
            validate_fn: returns whether the metadata of a stored value is still valid.
        """
        entry = self.get(key)
        if entry is not None:
            value, stored = entry
            if validate_fn is None or stored is None or validate_fn(stored):
                return value
        value = compute_fn()
        self.put(key, value, metadata)
        return value

    @staticmethod
    def compute_key(
        config: Mapping[str, Any],
        prefix: str = "",
        include_content_hash: bool = False,
        content: str | None = None,
    ) -> str:
        """Return a key of settings, and of a content.

        Args:
            config: the settings.
            prefix: beginning of the key.
            include_content_hash: whether the content counts.
            content: the content.

        >>> TreeCacheManager.compute_key({"a": 1}, prefix="tokens")
        'tokens_f9d86028c6e0d64e'
        """
        parts = [prefix, _digest(json.dumps(config, sort_keys=True, default=str), 16)]
        if include_content_hash and content:
            parts.append(_digest(content, 8))
        return "_".join(part for part in parts if part)

    @property
    def stats(self) -> dict[str, Any]:
        """Counts of the memory, and the settings of the disk."""
        disk = {"cache_dir": str(self.cache_dir), "compression": self.disk.compression}
        return {"memory": self.memory.stats, "disk": disk}


class DatasetCache:
    """Cache of Hugging Face datasets in a folder, by their `save_to_disk`.

    Args:
        cache_dir: the folder.
    """

    def __init__(self, cache_dir: str | Path) -> None:
        self.cache_dir = Path(cache_dir)
        self.cache_dir.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Any:
        """Return the dataset of a key; None if there is none.

        Args:
            key: the key.

        Raises:
            ImportError: without `datasets`.
        """
        if not self.contains(key):
            return None
        try:
            import datasets  # pyright: ignore[reportMissingTypeStubs]
        except ModuleNotFoundError as error:
            raise make_missing_extra_error("datasets", "hf", "a cached dataset") from error
        return cast(Any, datasets).load_from_disk(str(self._folder(key)))

    def put(self, key: str, dataset: Any) -> None:
        """Store a dataset.

        Args:
            key: the key.
            dataset: a `datasets.Dataset` or `DatasetDict`.

        Raises:
            ConfigError: for an object without `save_to_disk`, such as a stream.
        """
        if not hasattr(dataset, "save_to_disk"):
            raise ConfigError(
                f"DatasetCache stores map-style datasets, not a {type(dataset).__name__}: write a "
                "stream with save_dataset"
            )
        dataset.save_to_disk(str(self._folder(key)))

    def contains(self, key: str) -> bool:
        """Return whether there is a dataset.

        Args:
            key: the key.
        """
        return self._folder(key).exists()

    def invalidate(self, key: str | None = None) -> None:
        """Remove the dataset of a key; all datasets of this cache without a key.

        Args:
            key: the key.
        """
        folders = [self._folder(key)] if key is not None else [*self.cache_dir.glob("dataset-*")]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, key: str) -> Path:
        return self.cache_dir / f"dataset-{_digest(key, 32)}"


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _encode(value: Any) -> bytes:
    try:
        return encode_json(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"DiskCache stores JSON values and rows, and this {type(value).__name__} is neither "
            f"({error}): give a Penstock dataset or a sharded source, or use MemoryCache"
        ) from error


def _compress(data: bytes, compression: str) -> bytes:
    if compression == "zstd":
        return _import_zstandard().ZstdCompressor().compress(data)
    return gzip.compress(data) if compression == "gzip" else data


def _decompress(data: bytes, compression: str) -> bytes:
    if compression == "zstd":
        return _import_zstandard().ZstdDecompressor().decompress(data)
    return gzip.decompress(data) if compression == "gzip" else data


def _import_zstandard() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("zstandard", "zstd", "a compressed cache") from error
    return zstandard
