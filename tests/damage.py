"""Data of every format, to be damaged: a row of `FORMATS` is all that a new one needs. Run as a program it damages one.

It reads what to do from standard input, and writes what went wrong. Its memory is limited, and so is its time.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from archives import write
from penstock.base import seams
from penstock.errors import PenstockError
from penstock.sources import index_files, open_files
from penstock.sources.paths import find

MEMORY = 256 << 20
SECONDS = 5

TABLE = pa.table(
    {"n": list(range(40)), "s": [f"word {n}" * (n % 3) for n in range(40)], "t": [[n] * 3] * 40 if (n := 7) else []}
)
LINES = "".join(f'{{"n": {n}, "s": "wörd {n * 7919}"}}\n' for n in range(12)).encode()


@dataclass(frozen=True)
class Format:
    """How files of a format are written (all of them, into a folder), what of them is read, and how it is read.

    `sealed` where the format has checksums of its own, so that a flipped bit is an error or changes nothing even in a
    file that nobody indexed.
    """

    write: Callable[[Path], object]
    glob: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sealed: bool = False


def _arrow(path: Path, compression: Literal["zstd"] | None = None, stream: bool = False) -> None:
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(str(path), TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=15)


def _many(folder: Path) -> None:
    for number in range(32):
        (folder / f"{number:02d}.jsonl").write_bytes(LINES[: 40 * (number % 4)].rpartition(b"\n")[0])


MEMBERS = [(f"{n}.{part}", f"{part}{n}".encode()) for n in range(3) for part in ("txt", "cls")]
WHERE = {"where": {"n": {"min": 5}}}

FORMATS: dict[str, Format] = {
    "jsonl": Format(lambda at: (at / "x.jsonl").write_bytes(LINES), "x.jsonl"),
    "json": Format(lambda at: (at / "x.json").write_text('[{"a": 1}, {"a": [2, "b"]}]'), "x.json"),
    "text": Format(lambda at: (at / "x.txt").write_bytes(b"one\ntwo\r\n\nthr\xc3\xa9e\nfour"), "x.txt"),
    "gzip": Format(
        lambda at: (at / "x.jsonl.gz").write_bytes(gzip.compress(LINES, mtime=0)), "x.jsonl.gz", sealed=True
    ),
    "csv": Format(lambda at: (at / "x.csv").write_bytes(b'n,s\n1,"a, b"\n2,c\n3,"d\ne"\n'), "x.csv"),
    "tar": Format(lambda at: write(at / "x.tar", MEMBERS), "x.tar"),
    "tar.gz": Format(
        lambda at: (at / "x.tar.gz").write_bytes(gzip.compress(write(at / "y", MEMBERS).read_bytes(), mtime=0)),
        "x.tar.gz",
        sealed=True,
    ),
    "arrow": Format(lambda at: _arrow(at / "x.arrow"), "x.arrow", WHERE),
    "arrow zstd": Format(lambda at: _arrow(at / "x.arrow", "zstd"), "x.arrow"),
    "arrow stream": Format(lambda at: _arrow(at / "x.arrow", stream=True), "x.arrow"),
    "parquet": Format(
        lambda at: pq.write_table(TABLE, at / "x.parquet", row_group_size=15), "x.parquet", {"lengths": "t", **WHERE}
    ),
    "parquet zstd": Format(
        lambda at: pq.write_table(TABLE, at / "x.parquet", compression="zstd", write_page_checksum=True), "x.parquet"
    ),
    "many files": Format(_many, "*.jsonl"),
}

Mode = Literal["fresh", "indexed", "kept"]
"""A damaged file that is opened for the first time, one that was indexed with checksums when it was whole, and damage
in what was kept of a file that is whole."""


class Rotten(seams.LocalStore):
    """Files whose times and numbers stay as they are: a bit that flips on a disk tells nobody."""

    def stat(self, path: str, /) -> seams.Stat:
        return super().stat(path)._replace(mtime=0, inode=0, ctime=0)


class Careless(seams.LocalDisk):
    """A disk that need not last."""

    def sync(self, path: Path, /) -> None:
        pass


def read(format: Format, folder: Path) -> str:
    """All that is told of the data, on one line."""
    source = open_files(str(folder / "data" / format.glob), cache=folder / "cache", **format.options)
    lengths = source.lengths()
    rows = source.read(np.arange(len(source)))
    return repr([rows, None if lengths is None else lengths[:].tolist(), source.digest()["rows"]])


def damages(body: bytes, share: float) -> Iterator[tuple[str, bytes]]:
    """One bit flipped in every byte, every truncation; `share` of them."""
    rng = np.random.default_rng(len(body))
    for at in range(len(body)):
        flipped = bytearray(body)
        flipped[at] ^= 1 << int(rng.integers(8))
        if rng.random() < share:
            yield f"a bit of byte {at}", bytes(flipped)
        if rng.random() < share:
            yield f"cut to {at} bytes", body[:at]


def prepared(format: Format, folder: Path) -> tuple[str, dict[Path, bytes]]:
    """Fresh data, what it holds, and everything that is kept of it."""
    (folder / "data").mkdir(parents=True)
    format.write(folder / "data")
    found = find(str(folder / "data" / format.glob))
    index_files(found, cache=folder / "cache", checksum=True)
    expected = read(format, folder)
    kept = {one: one.read_bytes() for one in sorted((folder / "cache").rglob("*")) if one.is_file()}
    return expected, kept


def wrong(format: Format, mode: Mode, folder: Path, share: float) -> tuple[int, list[str]]:
    """How many damages were tried, and which of them were read as if nothing were, or ended in another error."""
    expected, kept = prepared(format, folder)
    data = find(str(folder / "data" / format.glob))[-1]
    tried, problems = 0, list[str]()
    strict = mode != "fresh" or format.sealed
    for target, body in ({data: data.read_bytes()} if mode != "kept" else kept).items():
        for what, damaged in damages(body, min(1.0, share / len(body) * (1 if mode != "kept" else 2 / len(kept)))):
            if mode == "fresh":
                shutil.rmtree(folder / "cache", ignore_errors=True)
            target.write_bytes(damaged)
            signal.alarm(SECONDS)
            tried += 1
            try:
                found = read(format, folder)
                if strict and found != expected:
                    problems.append(f"{target.name}, {what}: silently wrong: {found[:300]}")
            except PenstockError as error:
                if isinstance(error.__cause__, MemoryError):
                    problems.append(f"{target.name}, {what}: asks for much memory: {error}"[:400])
                if data.name not in str(error) and target.name not in str(error):
                    problems.append(f"{target.name}, {what}: names no file: {error}")
            except BaseException as error:
                problems.append(f"{target.name}, {what}: {type(error).__name__}: {error}"[:400])
            finally:
                signal.alarm(0)
            if mode == "kept":
                for one, whole in kept.items():
                    one.write_bytes(whole)
        target.write_bytes(body)
    return tried, problems


def hangs(*_: object) -> None:
    raise TimeoutError(f"over {SECONDS} s")


def limited() -> None:
    """No more memory than this process has now, and 256 MB."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    importlib.import_module("pyarrow.csv")
    importlib.import_module("pyarrow.compute")
    signal.signal(signal.SIGALRM, hangs)
    with tempfile.TemporaryDirectory() as scratch, seams.pretend(store=Rotten(), disk=Careless()):
        format = FORMATS[asked["format"]]
        prepared(format, Path(scratch, "warm"))  # so that everything is loaded
        limited()
        results = {mode: wrong(format, mode, Path(scratch, mode), asked["share"]) for mode in get_args(Mode)}
    sys.stdout.write(json.dumps(results))
