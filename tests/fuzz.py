"""Every parser that is ours, and inputs changed at random for them: `python tests/fuzz.py SECONDS SEED [NAME...]`.

A row of `PARSERS` is all that a new one needs: what it reads, how that is changed, and which errors may come of it. Each
parser runs in a process of its own, which may take 1 GB more than it has at first, and 10 seconds for an input.
"""

from __future__ import annotations

import atexit
import gzip
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import foreign_formats
import penstock as ps
from damage import Careless
from penstock.compat.mixtures import convert
from penstock.engine.runtime.seal import seal, unseal
from penstock.errors import PenstockError
from penstock.mixture_files import lint
from penstock.mixture_files.exclude import read_keys
from penstock.mixture_files.reading import ProblemLog, read_text
from penstock.sources import derived_files, index_files, mds, open_files, tar
from penstock.sources import tar_layout as tar_places
from penstock.sources.braces import expand_braces
from penstock.sources.example import ExampleDecoder
from penstock.sources.litdata_json import decode_value
from penstock.sources.mds_index import ShardColumn, parse_shards
from penstock.sources.records import RECORD_ERRORS
from penstock.sources.yaml import require_shallow
from penstock.stores import blocks, storage, stores
from penstock.stores.urls import restore_slashes, strip_secrets

SLOW = 10
"""Seconds that one input may take."""

MEMORY = 1 << 30
"""Bytes that a parser may take."""

Change = Callable[[bytes, np.random.Generator], bytes]


class TooSlowError(BaseException):
    """An input took too long."""


@dataclass(frozen=True)
class Parser:
    """A reader of bytes, inputs that it reads well, the errors that it may raise, and how inputs are changed."""

    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    raises: tuple[type[BaseException], ...] = (PenstockError,)
    change: Change | None = None


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name in ("1.txt", "1.json", "ü" * 120 + "/2.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            out.addfile(info, io.BytesIO(b"abc"))
    return file.getvalue()


def members(data: bytes) -> list[Any]:
    found = tar.MemberIterator(lambda at, length: data[at : at + length], 0, len(data), "x.tar")
    return [(member, tar.parse_sample_part(member, "x.tar")) for member in found]


def places() -> bytes:
    found = tar_places.TarContents(
        [0, 1024, 2048], ["a", "ü"], [0, 1, 2], ["txt", "json"], [512, 1536], [3, 9]
    )
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
    return read_text(data.decode("utf-8", "replace"), "mixture.yaml", ProblemLog())


def text(of: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: of(data.decode("utf-8", "surrogateescape"))


def yaml(data: bytes) -> object:
    module = require_shallow(data, "a test")
    try:
        return module.safe_load(data)
    except module.YAMLError:
        return None


def load_mixture(data: bytes) -> object:
    """Load a mixture file over real data, ask its plan, and read the first samples."""
    folder = Path(SCRATCH, "mixture")
    if not folder.exists():
        folder.mkdir()
        (folder / "a.jsonl").write_text(
            "".join(f'{{"x": {i}, "text": "a b {i}"}}\n' for i in range(20))
        )
        (folder / "keys.jsonl").write_text('["a", 3]\n')
    (folder / "m.yaml").write_bytes(data)
    lint(folder / "m.yaml")
    return ps.load(folder / "m.yaml").plan.counts(16)


def convert_any(data: bytes) -> object:
    """Convert a configuration of another project of any kind."""
    path = Path(SCRATCH, "converted.py" if b"import" in data else "converted.yaml")
    path.write_bytes(data)
    return convert(path, ranks=1)


def load_keys(data: bytes) -> object:
    path = Path(SCRATCH, "keys")
    path.write_bytes(data)
    return read_keys(path)


def load_tokenizer(data: bytes) -> object:
    path = Path(SCRATCH, "tokenizer.json")
    path.write_bytes(data)
    return ps.from_sequence(["a b", "c"]).map(ps.text.Tokenize(path))[:2]


def run_of_states() -> ps.Dataset:
    return ps.mix(
        {
            "a": ps.from_sequence(range(40), name="a").shuffle(),
            "b": ps.from_sequence(range(9), name="b"),
        }
    )


def folder_of_states(back: bool) -> bytes:
    """The files of a folder of states of two ranks, by name; of a run that went back to an older step."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    for _ in range(1 + back):
        for rank in range(2):
            loader = ps.Loader(run_of_states().batch(2), rank=rank, world_size=2)
            ps.restore(folder, loader)
            list(islice(loader, 4))
            ps.save(folder, loader)
    if back:
        ps.restore(folder, loader, step=4)
    return json.dumps(
        {path.name: json.loads(path.read_bytes()) for path in folder.iterdir()}
    ).encode()


def restore(data: bytes) -> object:
    """Restore what a folder of these files holds, and go on."""
    folder = Path(SCRATCH, "states")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, state in json.loads(data).items():
        path = folder / name.replace("/", "_")[:200]
        if state == "pipe":
            os.mkfifo(path)
        elif state == "folder":
            path.mkdir()
        elif state == "link":
            path.symlink_to(path)
        else:
            path.write_text(json.dumps(state))
    loader = ps.Loader(run_of_states().batch(2), rank=0, world_size=2)
    return ps.restore(folder, loader), list(islice(loader, 3)), ps.save(folder, loader, step=99)


class Server:
    """A server that answers HEAD and GET with these bytes, and closes."""

    def __init__(self) -> None:
        self.answers: tuple[bytes, bytes] = (b"", b"")
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            end, _ = self.socket.accept()
            with end:
                end.settimeout(1)
                try:
                    asked = end.recv(1 << 16)
                    end.sendall(self.answers[not asked.startswith(b"HEAD")])
                except OSError:
                    pass


SERVERS = list[Server]()
_NUMBERS = iter(range(1 << 60))


def ask_server(data: bytes) -> object:
    """Read a file of lines from a server that answers like this."""
    if not SERVERS:
        SERVERS.append(Server())
    head, _, get = data.partition(b"\0----\0")
    SERVERS[0].answers = head, get
    source = open_files(f"{SERVERS[0].url}/{next(_NUMBERS)}.jsonl", cache=Path(SCRATCH, "served"))
    return source.read(np.arange(min(len(source), 10)))


SCRATCH = tempfile.mkdtemp(prefix="penstock-fuzz-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
MDS, LIT = (
    written(foreign_formats.write_mds, foreign_formats.mds_rows(3)),
    written(foreign_formats.write_litdata, foreign_formats.lit_rows(3)),
)
COLUMNS = [
    ShardColumn("n", "int", 8),
    ShardColumn("text", "str", 0),
    ShardColumn("x", "ndarray", 0),
]
SAMPLE = struct.pack("<2Iq", 2, 12, 7) + b"ab" + bytes([8, 4, 10]) + bytes(9)
ARRAY = io.BytesIO()
np.save(ARRAY, np.arange(9, dtype=np.uint16))
MEGATRON = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2, 3) + struct.pack(
    "<2i2q3q", 3, 6, 0, 6, 0, 1, 2
)
STAMP = derived_files.Header(1, derived_files.Stat(9, 9), 1, 1, 0).encode()
MIXTURE = b"mixture:\n  sources:\n    a: {path: a.jsonl, weight: 0.5}\n    b: {path: '${HOME}/b', weight: 1}\nseed: 3\n"

ROWS = b'{"a": 1}\n{"a": 2}\n'
SERVED = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\nETag: "a"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n\0----\0'
    b'HTTP/1.1 206 Partial\r\nContent-Length: 18\r\nContent-Range: bytes 0-17/18\r\nETag: "a"\r\n\r\n'
    + ROWS
)
MIXTURES = [
    b"""sources:
  a: {path: a.jsonl, weight: 0.5, shuffle: {rows: 4, window: 2}, max_epochs: 2.5, slice: [0, 80%, 2]}
  b: {path: [a.jsonl], weight: 1, start: 10, stop: 200, shuffle: {buckets: 3, seed: 7}, group: g}
groups: {g: 3}
seed: 3
block_size: 4
split: {held_out: 10%, seed: 1}
horizon: {samples: 400}
batch: {size: 4, ranks: 2}
exclude: keys.jsonl
""",
    b"""sources:
  a: {path: a.jsonl, where: {x: {min: 3, hash: [0, 0.5]}}, columns: [x, text]}
  m: {mixture: {sources: {c: {path: a.jsonl, epochs: 1.5}}, stop: all_exhausted, temperature: 2}}
schedule: {unit: steps, interpolation: linear, points: {0: {a: 1, m: 2}, 1_000: {a: 3, m: 1e3}}}
horizon: {steps: 100}
global_batch_size: 8
""",
    b"""sources: {a: {path: a.jsonl, weight: 2}, b: {path: a.jsonl, weight: 1}}
stages:
- {name: one, until: 40%, weights: {a: 1}}
- {name: two, until: {steps: 50}, weights: {b: 3}, interpolation: cosine}
- {weights: {a: 1}}
horizon: {epochs: 9}
batch: {size: 2}
""",
]
CONVERTED = [
    b"""datasets: [{path: a/b, split: train}]
model_name_or_path: m
num_train_epochs: 3
per_device_train_batch_size: 4
seed: 1
""",
    b"""sources:
- {source_name: web, target_ratio: 0.75, paths: [web.jsonl], max_repetition_factor: 2}
- {source_name: code, target_ratio: 0.25, paths: [code.jsonl]}
max_tokens: 1000
""",
    b"""train_loader:
  name: text
  dataset:
    streams: {a: {remote: s3://a/b, proportion: 0.5, split: train}, b: {local: c, repeat: 2}}
    shuffle_seed: 17
global_train_batch_size: 512
max_duration: 10ba
""",
    b"""data_stages:
- name: Stable
  start_training_step: 1
  data: {dataset: {dataset_folder: [a, b], dataset_weights: [0.5, 0.5]}, seed: 42}
tokens: {train_steps: 100, sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 4}
""",
    b"""from levanter.data import x
mix = {'a': 0.5, 'b': 10 ** 2}
W = lm_mixture_data_config(components={'a': 'b'}, weights={'a': 0.5, 'b': 3 ** 2})
""",
]
NUMBERS = [
    "0",
    "-1",
    "1e300",
    "1e15",
    "9" * 25,
    "9" * 5_000,
    "4611686018427387904",
    "1e-300",
    ".inf",
    "nan",
    "1e999",
]
NUMBERS += [
    "0x" + "f" * 300,
    "50%",
    "1e9%",
    "''",
    "~",
    "true",
    "[1]",
    "{a: 1}",
    "x" * 5_000,
    '"\\0"',
    "${X:-1}",
    "*x",
]


def renumbered(data: bytes, rng: np.random.Generator) -> bytes:
    """Some words of a text replaced by odd numbers and other words; sometimes bytes changed."""
    if rng.integers(4) == 0:
        return changed(data, rng)
    text = data.decode("utf-8", "replace")
    for _ in range(int(rng.integers(1, 3))):
        words = [*re.finditer(r"[\w.%]+", text)]
        word = words[int(rng.integers(len(words)))]
        text = text[: word.start()] + NUMBERS[int(rng.integers(len(NUMBERS)))] + text[word.end() :]
    return text.encode()


VALUES: list[Any] = [
    None,
    -1,
    0,
    1 << 40,
    1 << 62,
    10**30,
    1.5,
    True,
    "x",
    "9" * 5_000,
    [],
    {},
    [[]],
    [0, 1 << 40],
]


def resealed(data: bytes, rng: np.random.Generator) -> bytes:
    """The files of a folder of states: one of another name or kind, or with another value in it and a new seal."""
    states: dict[str, Any] = json.loads(data)
    name = [*states][int(rng.integers(len(states)))]
    kind = int(rng.integers(6))
    if kind == 0:
        number = NUMBERS[int(rng.integers(7))]
        other = re.sub(r"\d+", lambda found: number if rng.integers(2) else found[0], name, count=3)
        return json.dumps({**states, other: states[name]}).encode()
    if kind == 1:
        return json.dumps(
            {**states, name: ["pipe", "folder", "link", 3][int(rng.integers(4))]}
        ).encode()
    if name == "current.json":
        return json.dumps(
            {**states, name: [{"step": 4}, {}][kind % 2] | {"step": VALUES[int(rng.integers(13))]}}
        ).encode()
    body = unseal(states[name])
    places = [*_places(body)]
    holder, key = places[int(rng.integers(len(places)))]
    holder[key] = VALUES[int(rng.integers(len(VALUES)))]
    return json.dumps({**states, name: seal(body)}).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in [*(tree.items() if isinstance(tree, dict) else enumerate(tree))]:
        if key not in ("penstock", "version", "order"):
            yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


PARSERS: dict[str, Parser] = {
    "tar headers": Parser(members, [archive()]),
    "pax records": Parser(
        tar.parse_pax, [b"12 path=a.b\n" * 3, b"30 mtime=1700000000.123456789\n"]
    ),
    "tar file": Parser(read_as("x.tar"), [archive()]),
    "tar index": Parser(
        lambda data: tar_places.decode(2, data, 4096),
        [places()],
        (ValueError, TypeError, RecursionError),
    ),
    "stamps": Parser(derived_files.decode_header, [STAMP]),
    "lines": Parser(read_as("x.jsonl"), [b'{"a": 1}\n\n{"a": [2.5, "\\u00fc"]}\r\n']),
    "json array": Parser(read_as("x.json"), [b'[{"a": 1}, {"a": [null, {"b": "x"}]}]']),
    "text": Parser(read_as("x.txt"), ["one\r\n\nzwölf".encode()]),
    "csv": Parser(read_as("x.csv"), [b'n,s\n1,"a, b"\n2,"c\n"\n']),
    "mds index": Parser(
        lambda data: parse_shards(json.loads(data), Path("index.json")),
        [MDS["index.json"]],
        (PenstockError, ValueError, RecursionError),
    ),
    "mds shard": Parser(
        beside("shard.00000.mds", "index.json", MDS["shard.00000.mds"]), [MDS["index.json"]]
    ),
    "mds sample": Parser(
        mds.SampleDecoder(COLUMNS, ["n", "text", "x"], Path("x.mds")),
        [SAMPLE],
        (PenstockError, *RECORD_ERRORS),
    ),
    "litdata index": Parser(
        beside("chunk-0-0.bin", "index.json", LIT["chunk-0-0.bin"]), [LIT["index.json"]]
    ),
    "litdata chunk": Parser(
        beside("index.json", "chunk-0-0.bin", LIT["index.json"]), [LIT["chunk-0-0.bin"]]
    ),
    "litdata json": Parser(
        decode_value, [b"\x00" * 9, bytes(range(40))], (PenstockError, *RECORD_ERRORS)
    ),
    "tfrecord": Parser(
        read_as("x.tfrecord"),
        [
            b"".join(
                foreign_formats.record(foreign_formats.example(row))
                for row in foreign_formats.example_rows(3)
            )
        ],
    ),
    "tf.train.Example": Parser(
        ExampleDecoder(),
        [foreign_formats.example(row) for row in foreign_formats.example_rows(4)],
        (PenstockError, *RECORD_ERRORS),
    ),
    "tokens": Parser(read_as("x.npy"), [ARRAY.getvalue()]),
    "megatron index": Parser(beside("x.bin", "x.idx", bytes(18)), [MEGATRON]),
    "braces": Parser(
        text(lambda pattern: list(expand_braces(pattern))),
        [b"part-{000..011}.{a,b{c,d}}", b"{1..3..2}{z"],
    ),
    "globs": Parser(text(stores._compile_glob), [b"a/**/[!x]*/{b,c}?.jsonl", b"[a-z]**"]),  # pyright: ignore[reportPrivateUsage]
    "urls": Parser(
        text(lambda url: (strip_secrets(url), restore_slashes(url))),
        [b"https://me:secret@host/x?a=b#c", b"s3:/bucket/a"],
    ),
    "sizes": Parser(text(blocks.parse_size), [b"200GB", b"1.5 GiB"]),
    "states": Parser(
        lambda data: unseal(json.loads(data)),
        [json.dumps(seal({"step": 3, "sources": [{"rows": 4}]})).encode()],
        (PenstockError, ValueError, RecursionError),
    ),
    "yaml": Parser(
        yaml,
        [MIXTURE, b"a: &x [1, *x]\nb: !!python/object:os.system [x]\n"],
        (ValueError, RecursionError),
    ),
    "mixture files": Parser(read_mixture, [MIXTURE]),
    "mixtures": Parser(load_mixture, MIXTURES, change=renumbered),
    "converters": Parser(convert_any, CONVERTED, change=renumbered),
    "keys to leave out": Parser(load_keys, [b'["a", 3]\n["b", 0, 7]\n'], change=renumbered),
    "folders of states": Parser(
        restore, [folder_of_states(False), folder_of_states(True)], change=resealed
    ),
    "servers": Parser(ask_server, [SERVED]),
    "servers' numbers": Parser(ask_server, [SERVED], change=renumbered),
    "packed lines": Parser(read_as("x.jsonl.gz"), [gzip.compress(ROWS * 9)]),
    "packed archives": Parser(read_as("x.tar.gz"), [gzip.compress(archive())]),
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
                out[at : at + 1] = (
                    bytes([out[at] ^ 1 << int(rng.integers(8))]) if at < len(out) else b""
                )
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
    """Return the number of inputs tried, and those with neither a result nor an allowed error."""
    rng, tried, problems, until = (
        np.random.default_rng(seed),
        0,
        list[str](),
        time.monotonic() + seconds,
    )
    LAST.write_bytes(b"")
    for seed_bytes in parser.seeds:
        try:
            parser.parse(seed_bytes)
        except parser.raises:
            pass
    change = parser.change or changed
    while (not tried or time.monotonic() < until) and len(problems) < 5:
        data = change(parser.seeds[tried % len(parser.seeds)], rng)
        tried += 1
        LAST.write_bytes(data)  # for the input that ends the process
        signal.setitimer(signal.ITIMER_REAL, SLOW)
        try:
            parser.parse(data)
        except parser.raises:
            pass
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}, for {data[:2_000]!r}"[:3_000])
        except TooSlowError:
            problems.append(f"took more than {SLOW} s, for {data[:2_000]!r}")
        except BaseException as error:  # where Rust panics, say
            problems.append(f"{type(error).__name__}: {error}, for {data[:2_000]!r}"[:3_000])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return tried, problems


LAST = Path(SCRATCH, "last input")


def _too_slow(*_: object) -> None:
    raise TooSlowError


def apart(name: str, seconds: float, seed: int) -> tuple[int, list[str]]:
    """Run it in a child whose memory and time are limited."""
    theirs, ours = os.pipe()
    if not (child := os.fork()):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
        signal.signal(signal.SIGALRM, _too_slow)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 3 * SLOW, int(seconds) + 3 * SLOW))
        try:
            with open(ours, "w") as pipe, storage.override_world(disk=Careless()):
                json.dump(wrong(PARSERS[name], seconds, seed), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(ours)
    with open(theirs) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        tried, problems = json.loads(said)
        return tried, problems
    ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {status}"
    return 1, [f"the process ended by {ended}, for {LAST.read_bytes()[:2_000]!r}"]


if __name__ == "__main__":
    os.environ["PENSTOCK_STORE_SECONDS"] = "0"
    for name in sys.argv[3:] or PARSERS:
        tried, problems = apart(name, float(sys.argv[1]), int(sys.argv[2]))
        sys.stdout.write(json.dumps([name, tried, problems]) + "\n")
        sys.stdout.flush()
