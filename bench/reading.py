"""Data for readers: one table of rows of 400 bytes as Arrow, Parquet, tars and lines.

The floors are the formats' own readers: pyarrow for columns, `pread` for tars, `wc -l` for lines.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .work import IS_TINY, scratch

ROWS, GROUP = (4_000, 1_000) if IS_TINY else (200_000, 10_000)
# Row groups of the large file; 500 are 5M rows, 2 GB.
MANY = int(os.environ.get("PENSTOCK_BENCH_GROUPS", "4" if IS_TINY else "50"))
SAMPLES = 64 if IS_TINY else 4_000


def table(start: int, rows: int) -> Any:
    """Numbers and text, about 400 bytes a row."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(start)
    letters = "".join(map(chr, rng.integers(97, 123, 1_000_000)))
    text = [letters[a : a + 360] for a in rng.integers(0, 999_000, rows).tolist()]
    numbers = np.arange(start, start + rows)
    return pa.table(
        {"id": numbers, "score": rng.random(rows), "text": text, "lang": ["en", "de"] * (rows // 2)}
    )


def made(name: str, write: Callable[[Path], None]) -> Path:
    """A file that is written once."""
    path = scratch("reading") / name
    if not path.exists():
        write(part := path.with_name(f"{os.getpid()}-{name}"))
        part.replace(path)
    return path


def arrow() -> Path:
    def write(path: Path) -> None:
        import pyarrow as pa

        rows = table(0, ROWS)
        with pa.ipc.new_stream(str(path), rows.schema) as writer:
            writer.write_table(rows, max_chunksize=1_000)

    return made("rows.arrow", write)


def parquet(groups: int = ROWS // GROUP) -> Path:
    def write(path: Path) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetWriter(path, table(0, 2).schema) as writer:
            for group in range(groups):
                writer.write_table(table(group * GROUP, GROUP), row_group_size=GROUP)

    return made(f"rows-{groups}.parquet", write)


def tar() -> Path:
    def write(path: Path) -> None:
        with tarfile.open(path, "w") as archive:
            for number in range(SAMPLES):
                for part, size in (("jpg", 50_000 + number % 7_000), ("txt", 80)):
                    info = tarfile.TarInfo(f"{number:06d}.{part}")
                    info.size = size
                    archive.addfile(info, io.BytesIO(bytes([number % 251]) * size))

    return made("samples.tar", write)


def lines() -> Path:
    def write(path: Path) -> None:
        rows = [json.dumps(row) + "\n" for row in table(0, ROWS // 4).to_pylist()]
        with path.open("w") as file:
            for _ in range(5 if MANY < 500 else 50):
                file.writelines(rows)

    return made("rows.jsonl", write)


def batches() -> list[Any]:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(arrow()))).read_all().to_batches()


def picks(n: int, size: int) -> Iterator[Any]:
    import numpy as np

    rng = np.random.default_rng(7)
    while True:
        yield rng.integers(0, n, size)


@dataclass(frozen=True)
class Random:
    """Batches of 64 rows at random, as columns of Python values and numbers."""

    batch: int = 64

    def floor(self) -> Iterator[Any]:
        """Rows taken from their record batches by pyarrow, put together, as columns."""
        import pyarrow as pa

        held = batches()
        for rows in picks(ROWS, self.batch):
            taken = pa.concat_batches([held[i // 1_000].slice(i % 1_000, 1) for i in rows.tolist()])
            yield taken.to_pydict()


@dataclass(frozen=True)
class Single:
    """One row at random, as a dict."""

    batch: int = 1

    def floor(self) -> Iterator[Any]:
        """The row taken by pyarrow from its record batch."""
        held = batches()
        for rows in picks(ROWS, 1):
            i = int(rows[0])
            yield held[i // 1_000].take([i % 1_000]).to_pylist()[0]


@dataclass(frozen=True)
class Columns:
    """Parquet from front to back, 1,000 rows at a time, numbers as arrays and texts as lists."""

    batch: int = 1_000

    def floor(self) -> Iterator[Any]:
        """pyarrow's scan of the file."""
        import pyarrow.parquet as pq

        while True:
            for batch in pq.ParquetFile(parquet()).iter_batches(self.batch):
                yield {
                    name: column.to_pylist() if name in ("text", "lang") else column.to_numpy()
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }


@dataclass(frozen=True)
class Blocks:
    """A Parquet file larger than what is held, in the block shuffle that a full shuffle of it
    advises."""

    batch: int = 64

    def floor(self) -> Iterator[Any]:
        """pyarrow's scan of the file, in the order in which it lies there."""
        import pyarrow.parquet as pq

        while True:
            for batch in pq.ParquetFile(parquet(MANY)).iter_batches(self.batch):
                yield batch.to_pydict()


@dataclass(frozen=True)
class Tars:
    """Samples of two members, 50 kB each, at random: their bytes."""

    batch: int = 16

    @property
    def members(self) -> list[list[tuple[str, int, int]]]:
        with tarfile.open(tar()) as archive:
            members = [
                (info.name.partition(".")[2], info.offset_data, info.size) for info in archive
            ]
        return [members[i : i + 2] for i in range(0, len(members), 2)]

    def floor(self) -> Iterator[Any]:
        """A loop of `pread`, where it is known what lies where."""
        members, file = self.members, os.open(tar(), os.O_RDONLY)
        for rows in picks(SAMPLES, self.batch):
            yield [
                {name: os.pread(file, size, at) for name, at, size in members[i]}
                for i in rows.tolist()
            ]


@dataclass(frozen=True)
class TarsInOrder(Tars):
    """Tars read from front to back."""

    def floor(self) -> Iterator[Any]:
        """A loop of `pread`, where it is known what lies where."""
        members, file = self.members, os.open(tar(), os.O_RDONLY)
        while True:
            for start in range(0, SAMPLES, self.batch):
                some = members[start : start + self.batch]
                yield [
                    {name: os.pread(file, size, at) for name, at, size in sample} for sample in some
                ]


@dataclass(frozen=True)
class Indexed:
    """A file of JSON lines, indexed: where each line begins, and checksums."""

    batch: int = 1

    def floor(self) -> Iterator[Any]:
        """`wc -l`."""
        while True:
            yield subprocess.run(["wc", "-l", lines()], capture_output=True, check=True).stdout


READS: dict[str, Callable[[], Any]] = {
    "read_random": Random,
    "read_row": Single,
    "read_columns": Columns,
    "read_blocks": Blocks,
    "read_tars": Tars,
    "read_tars_in_order": TarsInOrder,
    "index_lines": Indexed,
}
