"""Write one shard of a dataset, as one or more files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict, cast, get_args

import numpy as np

from ..explore.base import BaseDataset
from ..stores.storage import write_atomically
from ..text.chat import find_drop_reason
from .arrow import ArrowEncoder, Columns
from .lines import LineEncoder
from .tar import TarEncoder

ShardFormat: TypeAlias = Literal["arrow", "tar", "jsonl"]
"""Format of the shards of `write`."""
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


class TokenCounts(TypedDict):
    """Counts of a file of tokens: its tokens, those that are learned, and dropped samples by reason."""

    tokens: int
    trained: int
    dropped: dict[str, int]


class WrittenFile(TypedDict):
    """Record of a written file: its name, samples, bytes, and the digest of the bytes."""

    file: str
    samples: int
    bytes: int
    digest: str
    counts: NotRequired[TokenCounts]


@dataclass(frozen=True)
class ShardWriter:
    """Writer of the shards of a dataset.

    With `has_tokens`, samples that a chat dropped are left out, and tokens are counted.
    """

    dataset: BaseDataset[Any]
    folder: Path
    format: ShardFormat
    samples: int
    shard: int
    max_bytes: int
    columns: Columns | None
    has_tokens: bool = False

    def __call__(self, number: int, /) -> list[WrittenFile]:
        """Write a shard; return the records of its files."""
        files = list[WrittenFile]()
        dropped = Counter[str]()
        for name, data, samples, counts in self._files(number, dropped):
            write_atomically(self.folder / name, data)
            digest = hashlib.blake2b(data, digest_size=16).hexdigest()
            file: WrittenFile = {
                "file": name,
                "samples": samples,
                "bytes": len(data),
                "digest": digest,
            }
            files.append({**file, "counts": counts} if self.has_tokens else file)
        if self.has_tokens:
            files[-1]["counts"] = {**counts_of(files[-1]), "dropped": dict(sorted(dropped.items()))}
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

    def _files(
        self, number: int, dropped: Counter[str]
    ) -> Iterator[tuple[str, bytes, int, TokenCounts]]:
        """Yield the files of a shard: name, content, number of samples, counts of tokens."""
        encoder = self._encoder()
        buffer, size, file_number = list[Any](), encoder.end, 0
        tokens = trained = 0

        def file() -> tuple[str, bytes, int, TokenCounts]:
            piece = f"_{file_number:0{len(str(self.shard))}d}" if file_number else ""
            return (
                f"{self._stem(number)}{piece}.{encoder.suffix}",
                encoder.file(buffer),
                len(buffer),
                {"tokens": tokens, "trained": trained, "dropped": {}},
            )

        for position, sample in self._read(number):
            reason = find_drop_reason(sample) if self.has_tokens else None
            if reason is not None:
                dropped[reason] += 1
                continue
            data, added_bytes = encoder(position, sample)
            if buffer and size + added_bytes > self.max_bytes:
                yield file()
                buffer, size, file_number = list[Any](), encoder.end, file_number + 1
                tokens = trained = 0
            buffer.append(data)
            size += added_bytes
            if self.has_tokens:
                added_tokens, added_trained = count_tokens(sample)
                tokens, trained = tokens + added_tokens, trained + added_trained
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


def count_tokens(sample: Any) -> tuple[int, int]:
    """Return the tokens of a sample, and how many of them are learned: all without a mask.

    Args:
        sample: tokens, or a mapping with tokens and maybe loss masks.

    >>> count_tokens({"tokens": np.arange(3), "loss_mask": np.array([False, True, True])})
    (3, 2)
    """
    if not isinstance(sample, Mapping):
        return len(sample), len(sample)
    fields, tokens, trained = cast("Mapping[str, Any]", sample), 0, 0
    for prefix in ("", "chosen_", "rejected_"):
        if (ids := fields.get(f"{prefix}tokens")) is not None:
            mask = fields.get(f"{prefix}loss_mask")
            tokens += len(ids)
            trained += len(ids) if mask is None else int(np.count_nonzero(mask))
    return tokens, trained


def counts_of(file: WrittenFile) -> TokenCounts:
    """Return the counts of a file; zero for files without tokens.

    Args:
        file: the record.
    """
    return file.get("counts", {"tokens": 0, "trained": 0, "dropped": {}})
