"""Write one shard of a dataset, as one or more files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args

import numpy as np

from ..explore.base import BaseDataset
from ..stores.storage import write_atomically
from .arrow import ArrowEncoder, Columns
from .lines import LineEncoder
from .tar import TarEncoder

ShardFormat: TypeAlias = Literal["arrow", "tar", "jsonl"]
SHARD_FORMATS: tuple[ShardFormat, ...] = get_args(ShardFormat)

_READ_SIZE = 64  # samples read at a time


class ShardEncoder(Protocol):
    """A file format: encodes samples to pieces with their sizes, and pieces to a file.

    A file takes `end` bytes more than its pieces.
    """

    @property
    def suffix(self) -> str: ...
    @property
    def end(self) -> int: ...
    def __call__(self, position: int, sample: Any, /) -> tuple[Any, int]: ...
    def file(self, pieces: Sequence[Any], /) -> bytes: ...


class WrittenFile(TypedDict):
    """Record of a written file: its name, samples, bytes, and the digest of the bytes."""

    file: str
    samples: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class ShardWriter:
    """Writer of the shards of a dataset."""

    dataset: BaseDataset[Any]
    folder: Path
    format: ShardFormat
    samples: int
    shard: int
    max_bytes: int
    columns: Columns | None

    def __call__(self, number: int, /) -> list[WrittenFile]:
        """Write a shard; return the records of its files."""
        files = list[WrittenFile]()
        for name, data, samples in self._files(number):
            write_atomically(self.folder / name, data)
            digest = hashlib.blake2b(data, digest_size=16).hexdigest()
            files.append({"file": name, "samples": samples, "bytes": len(data), "digest": digest})
        write_atomically(self.note(number), json.dumps(files).encode())
        return files

    def note(self, number: int) -> Path:
        """Return the path of the note that marks a shard as done."""
        return self.folder / f".{self._stem(number)}.json"

    def shards(self) -> int:
        """Return the number of shards."""
        return -(-self.samples // self.shard)

    def _stem(self, number: int) -> str:
        return f"shard-{number:0{max(6, len(str(self.shards() - 1)))}d}"

    def _files(self, number: int) -> Iterator[tuple[str, bytes, int]]:
        """Yield the files of a shard: name, content, number of samples."""
        encoder = self._encoder()
        buffer, size, file_number = list[Any](), encoder.end, 0

        def file() -> tuple[str, bytes, int]:
            piece = f"_{file_number:0{len(str(self.shard))}d}" if file_number else ""
            return (
                f"{self._stem(number)}{piece}.{encoder.suffix}",
                encoder.file(buffer),
                len(buffer),
            )

        for position, sample in self._read(number):
            data, added_bytes = encoder(position, sample)
            if buffer and size + added_bytes > self.max_bytes:
                yield file()
                buffer, size, file_number = list[Any](), encoder.end, file_number + 1
            buffer.append(data)
            size += added_bytes
        yield file()

    def _encoder(self) -> ShardEncoder:
        if self.columns is not None:
            return ArrowEncoder(self.dataset, self.columns)
        return TarEncoder() if self.format == "tar" else LineEncoder()

    def _read(self, number: int) -> Iterator[tuple[int, Any]]:
        stop = min(self.samples, (number + 1) * self.shard)
        for start in range(number * self.shard, stop, _READ_SIZE):
            positions = np.arange(start, min(stop, start + _READ_SIZE))
            yield from zip(positions.tolist(), self.dataset[positions], strict=True)
