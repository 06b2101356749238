"""Data of every format, to be damaged: a row of `FORMATS` is all that a new one needs. Run as a program it damages one.

It reads what to do from standard input, and writes what went wrong. Its memory is limited, and so is its time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import importlib
import json
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import foreign_formats
from archives import write
from penstock.errors import PenstockError
from penstock.sources import index_files, open_files
from penstock.sources.paths import find
from penstock.stores import storage

MEMORY = 256 << 20
SECONDS = 5

TABLE = pa.table(
    {
        "n": list(range(40)),
        "s": [f"word {n}" * (n % 3) for n in range(40)],
        "t": [[n] * 3] * 40 if (n := 7) else [],
    }
)
LINES = "".join(f'{{"n": {n}, "s": "wörd {n * 7919}"}}\n' for n in range(12)).encode()


@dataclass(frozen=True)
class Format:
    """A file format: functions that write all its files into a folder, and options that read them.

    Attributes:
        noticed: Damage that a reader notices in a file without an index. With "sums", the format
            has checksums: a flipped bit is an error or changes nothing. With "sizes", values may
            change, but never the number of rows. With "", both may change.
        open_ended: A file that is cut off after any row is valid.
        summed: Penstock can compute checksums of all files of the format.
    """

    write: Callable[[Path], object]
    glob: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    noticed: Literal["sums", "sizes", ""] = ""
    open_ended: bool = False
    summed: bool = True
    threads: bool = False


def _arrow(path: Path, compression: Literal["zstd"] | None = None, stream: bool = False) -> None:
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(
        str(path), TABLE.schema, options=options
    ) as writer:
        writer.write_table(TABLE, max_chunksize=15)


def _many(folder: Path) -> None:
    for number in range(32):
        (folder / f"{number:02d}.jsonl").write_bytes(
            LINES[: 40 * (number % 4)].rpartition(b"\n")[0]
        )


def _megatron(folder: Path) -> None:
    lengths = np.arange(1, 7, dtype="<i4")
    ends = np.cumsum(lengths, dtype=np.int64)
    np.arange(ends[-1], dtype=np.uint16).tofile(folder / "x.bin")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    pointers, cuts = 2 * (ends - lengths), np.arange(len(lengths) + 1)
    (folder / "x.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + cuts.tobytes())


MEMBERS = [(f"{n}.{part}", f"{part}{n}".encode()) for n in range(3) for part in ("txt", "cls")]
WHERE = {"where": {"n": {"min": 5}}}

FORMATS: dict[str, Format] = {
    "jsonl": Format(lambda at: (at / "x.jsonl").write_bytes(LINES), "x.jsonl"),
    "json": Format(lambda at: (at / "x.json").write_text('[{"a": 1}, {"a": [2, "b"]}]'), "x.json"),
    "text": Format(
        lambda at: (at / "x.txt").write_bytes(b"one\ntwo\r\n\nthr\xc3\xa9e\nfour"), "x.txt"
    ),
    "gzip": Format(
        lambda at: (at / "x.jsonl.gz").write_bytes(gzip.compress(LINES, mtime=0)),
        "x.jsonl.gz",
        noticed="sums",
    ),
    "csv": Format(
        lambda at: (at / "x.csv").write_bytes(b'n,s\n1,"a, b"\n2,c\n3,"d\ne"\n'), "x.csv"
    ),
    "tar": Format(lambda at: write(at / "x.tar", MEMBERS), "x.tar"),
    "tar.gz": Format(
        lambda at: (at / "x.tar.gz").write_bytes(
            gzip.compress(write(at / "y", MEMBERS).read_bytes(), mtime=0)
        ),
        "x.tar.gz",
        noticed="sums",
    ),
    "arrow": Format(lambda at: _arrow(at / "x.arrow"), "x.arrow", WHERE),
    "arrow zstd": Format(lambda at: _arrow(at / "x.arrow", "zstd"), "x.arrow"),
    "arrow stream": Format(lambda at: _arrow(at / "x.arrow", stream=True), "x.arrow"),
    "parquet": Format(
        lambda at: pq.write_table(TABLE, at / "x.parquet", row_group_size=15),
        "x.parquet",
        {"lengths": "t", **WHERE},
    ),
    "parquet zstd": Format(
        lambda at: pq.write_table(
            TABLE, at / "x.parquet", compression="zstd", write_page_checksum=True
        ),
        "x.parquet",
    ),
    "many files": Format(_many, "*.jsonl"),
    "npy": Format(
        lambda at: np.save(at / "x.npy", np.arange(40, dtype=np.uint16)), "x.npy", noticed="sizes"
    ),
    "megatron": Format(_megatron, "x.bin", noticed=""),
    "mds": Format(foreign_formats.mds, "mds", noticed="sizes"),
    "mds.gz": Format(foreign_formats.mds_packed, "packed", noticed="sums"),
    "mds.zstd": Format(foreign_formats.mds_zstd, "zstd", noticed="sums"),
    "tfrecord": Format(
        foreign_formats.tfrecord, "examples.tfrecord", noticed="sums", open_ended=True
    ),
    "array_record": Format(
        foreign_formats.array_record, "records.array_record", noticed="sums", summed=False
    ),
    "datasets": Format(foreign_formats.saved, "saved", summed=False),
    "litdata": Format(foreign_formats.litdata, "lit", noticed="sizes"),
    "hdf5": Format(foreign_formats.hdf5, "arrays.h5", noticed="sizes"),
    "zarr": Format(foreign_formats.zarr, "arrays.zarr", summed=False),
    "lance": Format(
        foreign_formats.lance, "table.lance", noticed="sizes", summed=False, threads=True
    ),
    "vortex": Format(foreign_formats.vortex, "table.vortex", noticed="sizes", threads=True),
}

Mode = Literal["fresh", "indexed", "kept"]
"""A damaged file that is opened for the first time, one that was indexed with checksums when it was whole, and damage
in what was kept of a file that is whole."""


class Rotten(storage.LocalStore):
    """Files whose times and numbers stay as they are: a bit that flips on a disk tells nobody."""

    def stat(self, path: str, /) -> storage.Stat:
        return super().stat(path)._replace(mtime=0, inode=0, ctime=0)


class Careless(storage.LocalDisk):
    """A disk that need not last."""

    def sync(self, path: Path, /) -> None:
        pass


class Read(NamedTuple):
    """All that is told of data: its rows, and what else, as texts."""

    rows: list[str]
    told: str


def read(format: Format, folder: Path) -> Read:
    """Return the rows of the data, and its sizes and digest."""
    source = open_files(
        str(folder / "data" / format.glob), cache=folder / "cache", **format.options
    )
    lengths = source.lengths()
    rows = [repr(row) for row in source.read(np.arange(min(len(source), 1_000)))]
    return Read(
        rows,
        repr(
            [len(source), None if lengths is None else lengths[:].tolist(), source.digest()["rows"]]
        ),
    )


def each(target: Path, body: bytes, many: int) -> Iterator[tuple[Path, str, Callable[[], bytes]]]:
    """One bit flipped in every byte, every truncation; so `many` of them."""
    rng = np.random.default_rng(len(body))
    for number in rng.permutation(2 * len(body))[:many].tolist():
        at, bit = number // 2, int(rng.integers(8))
        if number % 2:
            yield target, f"cut to {at} bytes", partial(cut, body, at)
        else:
            yield target, f"bit {bit} of byte {at}", partial(flipped, body, at, bit)


def cut(body: bytes, at: int) -> bytes:
    return body[:at]


def flipped(body: bytes, at: int, bit: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]


def bodies(folder: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def prepared(format: Format, folder: Path) -> tuple[Read, dict[Path, bytes]]:
    """Fresh data, what it holds, and everything that is kept of it."""
    (folder / "data").mkdir(parents=True)
    format.write(folder / "data")
    if format.summed:
        index_files(find(str(folder / "data" / format.glob)), cache=folder / "cache", checksum=True)
    return read(format, folder), bodies(folder / "cache")


def problem(format: Format, mode: Mode, cut: bool, found: Read, want: Read) -> str:
    """Return the error in the values read from a damaged file, or an empty text."""
    if found == want:
        return ""
    if mode == "fresh" or (
        mode == "indexed" and cut
    ):  # a shorter file is another one: its index is made again
        if format.open_ended and cut and found.rows == want.rows[: len(found.rows)]:
            return ""
        if format.noticed == "" or (
            format.noticed == "sizes" and len(found.rows) == len(want.rows)
        ):
            return ""
    return f"silently wrong: {str(found)[:300]}"


def wrong(
    format: Format, mode: Mode, folder: Path, many: int, seconds: float
) -> tuple[int, list[str]]:
    """Return the number of damages tried, and those read silently or with another error."""
    expected, kept = prepared(format, folder)
    if mode == "indexed" and not format.summed:
        return 0, []
    targets = kept if mode == "kept" else bodies(folder / "data")
    cases = [
        case
        for target, body in targets.items()
        for case in each(target, body, -(-many // len(targets)))
    ]
    tried, problems, until = 0, list[str](), time.monotonic() + seconds
    for number in np.random.default_rng(len(cases)).permutation(len(cases)).tolist():
        target, what, damaged = cases[number]
        if mode == "fresh":
            shutil.rmtree(folder / "cache", ignore_errors=True)
        target.write_bytes(damaged())
        tried += 1
        if found := tried_once(format, mode, folder, what, target, expected):
            problems.append(f"{target.name}, {what}: {found}"[:500])
        target.write_bytes(targets[target])
        for one, whole in kept.items() if mode != "fresh" else ():
            one.write_bytes(whole)
        if time.monotonic() > until:
            break
    return tried, problems


def tried_once(
    format: Format, mode: Mode, folder: Path, what: str, target: Path, expected: Read
) -> str:
    """Read damaged data; return the error in the result, or an empty text."""
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(4 * SECONDS, exit=True)  # where a library never returns
    try:
        return problem(format, mode, what.startswith("cut"), read(format, folder), expected)
    except PenstockError as error:
        if isinstance(error.__cause__, MemoryError):
            return f"asks for much memory: {error}"
        named = any(name in str(error) for name in (target.name, format.glob.lstrip("*")))
        return "" if named else f"names no file: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()


def hangs(*_: object) -> None:
    raise TimeoutError(f"over {SECONDS} s")


def limited(format: Format) -> None:
    """No more memory than this process has now, and 256 MB; threads take addresses, if not memory."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    most = now + MEMORY * (16 if format.threads else 1)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def damaged(format: Format, many: int, seconds: float) -> dict[str, Any]:
    """Damage a format in each mode; return the number of damages and the failures."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        storage.override_world(store=Rotten(), disk=Careless()),
    ):
        try:
            prepared(format, Path(scratch, "warm"))  # so that everything is loaded
        except pytest.skip.Exception:  # its tool is not installed here
            return {}
        limited(format)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = {
            mode: wrong(format, mode, Path(scratch, mode), many, seconds / 3)
            for mode in get_args(Mode)
        }
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {**found, "memory": (1, [f"{more:,} KiB"] if more > MEMORY >> 10 else [])}


def main(names: Sequence[str], many: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Each format in a process of its own, forked from this one, which has loaded what they need."""
    results = dict[str, dict[str, Any]]()
    for name in names:
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, hangs)
            with os.fdopen(theirs, "w") as out:
                out.write(json.dumps(damaged(FORMATS[name], many, seconds)))
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as told:
            text = told.read()
        _, status = os.waitpid(child, 0)
        results[name] = (
            json.loads(text) if text else {"ended": (1, [f"the process ended with {status}"])}
        )
    return results


if __name__ == "__main__":
    for module in ("pyarrow.csv", "pyarrow.compute", "pyarrow.feather", "h5py", "zarr", "datasets"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    asked = json.loads(sys.stdin.read())
    sys.stdout.write(json.dumps(main(asked["formats"], asked["many"], asked["seconds"])))
