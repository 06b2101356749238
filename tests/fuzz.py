"""Every parser that is ours, and bytes changed at random for them: `python tests/fuzz.py SECONDS [NAME...]`.

A row of `PARSERS` is all that a new one needs: what it reads, and what may come of it but an answer.
"""

from __future__ import annotations

import atexit
import io
import json
import shutil
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foreign_formats
from damage import Careless
from penstock.base import seams
from penstock.base.urls import spelled_out, without_secrets
from penstock.base.yaml import shallow
from penstock.errors import PenstockError
from penstock.mixture_files.reading import Notes, read_text
from penstock.runtime.cursor import seal, unseal
from penstock.sources import index_files, mds, open_files, sidecar, tar, tar_places
from penstock.sources.braces import braces
from penstock.sources.example import Examples
from penstock.sources.litdata_json import nested
from penstock.sources.mds_index import Column, shards_of
from penstock.sources.records import BROKEN
from penstock.stores import blocks, stores

SLOW = 5.0
"""Seconds after which a parser hangs."""


@dataclass(frozen=True)
class Parser:
    """What reads bytes, some that it reads well, and the errors that it may raise."""

    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    raises: tuple[type[BaseException], ...] = (PenstockError,)


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name in ("1.txt", "1.json", "ü" * 120 + "/2.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            out.addfile(info, io.BytesIO(b"abc"))
    return file.getvalue()


def members(data: bytes) -> list[Any]:
    found = tar.Members(lambda at, length: data[at : at + length], 0, len(data), "x.tar")
    return [(member, tar.sample_part(member, "x.tar")) for member in found]


def places() -> bytes:
    found = tar_places.Found([0, 1024, 2048], ["a", "ü"], [0, 1, 2], ["txt", "json"], [512, 1536], [3, 9])
    return tar_places.encode(found, np.zeros(2, np.uint64))


def read_as(name: str, index: bool = False, **options: Any) -> Callable[[bytes], object]:
    """Reads a file of this name, all of it."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))

    def parse(data: bytes) -> object:
        for old in folder.rglob("*"):
            if old.is_file():
                old.unlink()
        (folder / name).write_bytes(data)
        if index:
            index_files([folder / name], cache=folder / "cache")
        source = open_files(folder / name, cache=folder / "cache", **options)
        return source.read(np.arange(min(len(source), 1_000)))

    return parse


def beside(name: str, other: str, body: bytes, **options: Any) -> Callable[[bytes], object]:
    """Reads a file of this name, of which another one beside it tells; that one is what is changed."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))

    def parse(data: bytes) -> object:
        for old in folder.rglob("*"):
            if old.is_file():
                old.unlink()
        (folder / name).write_bytes(body)
        (folder / other).write_bytes(data)
        source = open_files(folder / name, cache=folder / "cache", **options)
        return source.read(np.arange(min(len(source), 1_000)))

    return parse


def written(write: Callable[..., Path], *rest: Any) -> dict[str, bytes]:
    """The files that were written into a folder."""
    folder = write(Path(tempfile.mkdtemp(dir=SCRATCH)) / "data", *rest)
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def read_mixture(data: bytes) -> object:
    return read_text(data.decode("utf-8", "replace"), "mixture.yaml", Notes())


def text(of: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: of(data.decode("utf-8", "surrogateescape"))


def yaml(data: bytes) -> object:
    module = shallow(data, "a test")
    try:
        return module.safe_load(data)
    except module.YAMLError:
        return None


SCRATCH = tempfile.mkdtemp(prefix="penstock-fuzz-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
MDS, LIT = (
    written(foreign_formats.write_mds, foreign_formats.mds_rows(3)),
    written(foreign_formats.write_litdata, foreign_formats.lit_rows(3)),
)
COLUMNS = [Column("n", "int", 8), Column("text", "str", 0), Column("x", "ndarray", 0)]
SAMPLE = struct.pack("<2Iq", 2, 12, 7) + b"ab" + bytes([8, 4, 10]) + bytes(9)
ARRAY = io.BytesIO()
np.save(ARRAY, np.arange(9, dtype=np.uint16))
MEGATRON = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2, 3) + struct.pack("<2i2q3q", 3, 6, 0, 6, 0, 1, 2)
STAMP = sidecar.encode(sidecar.Stamp(1, sidecar.Stat(9, 9), 1, 1, 0))
MIXTURE = b"mixture:\n  sources:\n    a: {path: a.jsonl, weight: 0.5}\n    b: {path: '${HOME}/b', weight: 1}\nseed: 3\n"

PARSERS: dict[str, Parser] = {
    "tar headers": Parser(members, [archive()]),
    "pax records": Parser(tar.records, [b"12 path=a.b\n" * 3, b"30 mtime=1700000000.123456789\n"]),
    "tar file": Parser(read_as("x.tar"), [archive()]),
    "tar index": Parser(
        lambda data: tar_places.decode(2, data, 4096), [places()], (ValueError, TypeError, RecursionError)
    ),
    "stamps": Parser(sidecar.decode, [STAMP]),
    "lines": Parser(read_as("x.jsonl"), [b'{"a": 1}\n\n{"a": [2.5, "\\u00fc"]}\r\n']),
    "json array": Parser(read_as("x.json"), [b'[{"a": 1}, {"a": [null, {"b": "x"}]}]']),
    "text": Parser(read_as("x.txt"), ["one\r\n\nzwölf".encode()]),
    "csv": Parser(read_as("x.csv"), [b'n,s\n1,"a, b"\n2,"c\n"\n']),
    "mds index": Parser(
        lambda data: shards_of(json.loads(data), Path("index.json")),
        [MDS["index.json"]],
        (PenstockError, ValueError, RecursionError),
    ),
    "mds shard": Parser(beside("shard.00000.mds", "index.json", MDS["shard.00000.mds"]), [MDS["index.json"]]),
    "mds sample": Parser(mds.Rows(COLUMNS, ["n", "text", "x"], Path("x.mds")), [SAMPLE], (PenstockError, *BROKEN)),
    "litdata index": Parser(beside("chunk-0-0.bin", "index.json", LIT["chunk-0-0.bin"]), [LIT["index.json"]]),
    "litdata chunk": Parser(beside("index.json", "chunk-0-0.bin", LIT["index.json"]), [LIT["chunk-0-0.bin"]]),
    "litdata json": Parser(nested, [b"\x00" * 9, bytes(range(40))], (PenstockError, *BROKEN)),
    "tfrecord": Parser(
        read_as("x.tfrecord"),
        [b"".join(foreign_formats.record(foreign_formats.example(row)) for row in foreign_formats.example_rows(3))],
    ),
    "tf.train.Example": Parser(
        Examples(), [foreign_formats.example(row) for row in foreign_formats.example_rows(4)], (PenstockError, *BROKEN)
    ),
    "tokens": Parser(read_as("x.npy"), [ARRAY.getvalue()]),
    "megatron index": Parser(beside("x.bin", "x.idx", bytes(18)), [MEGATRON]),
    "braces": Parser(text(lambda pattern: list(braces(pattern))), [b"part-{000..011}.{a,b{c,d}}", b"{1..3..2}{z"]),
    "globs": Parser(text(stores._glob), [b"a/**/[!x]*/{b,c}?.jsonl", b"[a-z]**"]),  # pyright: ignore[reportPrivateUsage]
    "urls": Parser(
        text(lambda url: (without_secrets(url), spelled_out(url))), [b"https://me:secret@host/x?a=b#c", b"s3:/bucket/a"]
    ),
    "sizes": Parser(text(blocks.bytes_of), [b"200GB", b"1.5 GiB"]),
    "states": Parser(
        lambda data: unseal(json.loads(data)),
        [json.dumps(seal({"step": 3, "sources": [{"rows": 4}]})).encode()],
        (PenstockError, ValueError, RecursionError),
    ),
    "yaml": Parser(yaml, [MIXTURE, b"a: &x [1, *x]\nb: !!python/object:os.system [x]\n"], (ValueError, RecursionError)),
    "mixture files": Parser(read_mixture, [MIXTURE]),
}

WORDS = [
    b"\0",
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 25,
    b"{",
    b"[" * 90,
    b'"',
    b"\n",
    b"\\u0000",
]


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes flipped, left out, repeated, put in, or cut off."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at, width = int(rng.integers(len(out) + 1)), int(rng.integers(1, 17))
        match int(rng.integers(7)):
            case 0:
                out[at : at + 1] = bytes([int(rng.integers(256))])
            case 1:
                out[at : at + 1] = bytes([out[at] ^ 1 << int(rng.integers(8))]) if at < len(out) else b""
            case 2:
                del out[at : at + width]
            case 3:
                out[at:at] = out[at : at + width] * int(rng.integers(1, 4))
            case 4:
                out[at:at] = WORDS[int(rng.integers(len(WORDS)))]
            case 5:
                word = WORDS[int(rng.integers(len(WORDS)))]
                out[at : at + len(word)] = word
            case _:
                del out[at:]
    return bytes(out)


def wrong(parser: Parser, seconds: float, seed: int = 0) -> tuple[int, list[str]]:
    """How many inputs were tried for so long, and what was neither an answer nor an error that may be."""
    rng, tried, problems, until = np.random.default_rng(seed), 0, list[str](), time.monotonic() + seconds
    for seed_bytes in parser.seeds:
        try:
            parser.parse(seed_bytes)
        except parser.raises:
            pass
    while (not tried or time.monotonic() < until) and len(problems) < 5:
        data = changed(parser.seeds[tried % len(parser.seeds)], rng)
        tried, began = tried + 1, time.thread_time()
        try:
            parser.parse(data)
        except parser.raises:
            pass
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}, for {data[:2_000]!r}"[:3_000])
        if (took := time.thread_time() - began) > SLOW:
            problems.append(f"took {took:.1f} s, for {data[:2_000]!r}")
    return tried, problems


if __name__ == "__main__":
    for name in sys.argv[2:] or PARSERS:
        with seams.pretend(disk=Careless()):
            tried, problems = wrong(PARSERS[name], float(sys.argv[1]), seed=int(time.time()))
        sys.stdout.write("\n".join([f"{name}: {tried:,} inputs", *problems, ""]))
