"""One shard of a dataset: the samples at its positions, as one file or several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args

import numpy as np

from ..dataset import Dataset
from ..engine.base.seams import write_whole
from .arrow import ArrowEncoder, Columns
from .lines import LineEncoder
from .tar import TarEncoder

ShardFormat: TypeAlias = Literal["arrow", "tar", "jsonl"]
SHARD_FORMATS: tuple[ShardFormat, ...] = get_args(ShardFormat)

_READ = 64  # samples read at a time


class Encoder(Protocol):
    """A format: a piece of every sample in turn and its bytes, and the file of such pieces, which
    take `end` more."""

    @property
    def suffix(self) -> str: ...
    @property
    def end(self) -> int: ...
    def __call__(self, position: int, sample: Any, /) -> tuple[Any, int]: ...
    def file(self, pieces: Sequence[Any], /) -> bytes: ...


class Written(TypedDict):
    """What is noted of a file: its name, how many samples and bytes it holds, and a digest of these
    bytes."""

    file: str
    samples: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Writer:
    """Writes any shard of a dataset, and says what its files are."""

    dataset: Dataset
    folder: Path
    format: ShardFormat
    samples: int
    shard: int
    max_bytes: int
    columns: Columns | None

    def __call__(self, number: int, /) -> list[Written]:
        """Write a shard; what each of its files holds."""
        files = list[Written]()
        for name, data, samples in self._files(number):
            write_whole(self.folder / name, data)
            digest = hashlib.blake2b(data, digest_size=16).hexdigest()
            files.append({"file": name, "samples": samples, "bytes": len(data), "digest": digest})
        write_whole(self.note(number), json.dumps(files).encode())
        return files

    def note(self, number: int) -> Path:
        """What says that a shard is done, until all are."""
        return self.folder / f".{self._stem(number)}.json"

    def shards(self) -> int:
        """How many shards there are."""
        return -(-self.samples // self.shard)

    def _stem(self, number: int) -> str:
        return f"shard-{number:0{max(6, len(str(self.shards() - 1)))}d}"

    def _files(self, number: int) -> Iterator[tuple[str, bytes, int]]:
        """The files of a shard (one, where they need not be cut): name, what is in it, how many
        samples that is."""
        encoder = self._encoder()
        held, size, pieces = list[Any](), encoder.end, 0

        def file() -> tuple[str, bytes, int]:
            piece = f"_{pieces:0{len(str(self.shard))}d}" if pieces else ""
            return f"{self._stem(number)}{piece}.{encoder.suffix}", encoder.file(held), len(held)

        for position, sample in self._read(number):
            data, more = encoder(position, sample)
            if held and size + more > self.max_bytes:
                yield file()
                held, size, pieces = list[Any](), encoder.end, pieces + 1
            held.append(data)
            size += more
        yield file()

    def _encoder(self) -> Encoder:
        if self.columns is not None:
            return ArrowEncoder(self.dataset, self.columns)
        return TarEncoder() if self.format == "tar" else LineEncoder()

    def _read(self, number: int) -> Iterator[tuple[int, Any]]:
        stop = min(self.samples, (number + 1) * self.shard)
        for start in range(number * self.shard, stop, _READ):
            places = np.arange(start, min(stop, start + _READ))
            yield from zip(places.tolist(), self.dataset[places], strict=True)
