"""The cache of a node: its processes share blocks within a limit, and whatever happens, no wrong byte is served."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.app import app
from penstock.errors import ConfigError
from penstock.stores import blocks as module
from penstock.stores import storage
from penstock.stores.blocks import BlockCache, encode_block, parse_size, read_block
from penstock.stores.client import ObjectInfo

from . import servers
from .conftest import Clock

DATA = random.Random(5).randbytes(300_000)
FOUND = ObjectInfo("s3://bucket/x", len(DATA), "tag")
KIB = 1 << 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 16 * KIB)


class Far:
    """A remote object that records the requested byte ranges."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        self.asked.append((start, stop))
        return DATA[start:stop]


def test_bytes_are_asked_once(tmp_path: Path) -> None:
    ask, cache = Far(), BlockCache(tmp_path)
    for seed in range(200):
        start, stop = sorted(random.Random(seed).sample(range(len(DATA) + 1), 2))
        assert bytes(cache.read(FOUND, start, stop, ask)) == DATA[start:stop]
    assert sum(stop - start for start, stop in ask.asked) == len(DATA)
    again = Far()
    assert bytes(BlockCache(tmp_path).read(FOUND, 0, len(DATA), again)) == DATA and not again.asked
    # Another version of the object is another object.
    assert (
        bytes(BlockCache(tmp_path).read(FOUND._replace(etag="new"), 5, 9, again)) == DATA[5:9]
        and again.asked
    )


def test_no_name_tells_of_what_is_kept(tmp_path: Path) -> None:
    BlockCache(tmp_path).read(FOUND, 0, len(DATA), Far())
    assert not any("bucket" in str(path) or "tag" in str(path) for path in tmp_path.rglob("*"))
    assert (tmp_path / "blocks").stat().st_mode & 0o77 == 0


def test_the_limit_is_held_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, str(100 * KIB))
    cache, ask = BlockCache(tmp_path), Far()
    for seed in range(60):
        start = random.Random(seed).randrange(len(DATA) - 100)
        assert bytes(cache.read(FOUND, start, start + 100, ask)) == DATA[start : start + 100]
        assert sum(block.size for block in cache.all()) <= 100 * KIB
    last = len(ask.asked)
    cache.read(FOUND, start, start + 100, ask)  # what was wanted last is here
    assert len(ask.asked) == last
    monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, "1KB")  # less than a block: nothing is kept
    assert bytes(BlockCache(tmp_path).read(FOUND, 0, 5, Far())) == DATA[:5]
    monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, "much")
    with pytest.raises(ConfigError, match="not a size"):
        cache.limit(0)


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path, body = tmp_path / "a-0", DATA[:9_000]
    whole = encode_block(path, body)
    for at in range(0, len(whole), 37):
        for damaged in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :],
        ):
            path.write_bytes(damaged)
            for start, stop in ((0, 9_000), (5_000, 5_100)):
                found = read_block(path, start, stop)
                assert found is None or bytes(found) == body[start:stop]
    path.write_bytes(whole)
    assert bytes(read_block(path, 5_000, 16_000) or b"") == body[5_000:]


def test_damage_is_fetched_anew(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path)
    cache.read(FOUND, 0, len(DATA), Far())
    for number, block in enumerate(sorted(cache.all())):
        data = bytearray(block.path.read_bytes())
        data[(number * 977) % len(data)] ^= 4
        block.path.write_bytes(data if number % 3 else data[:-1])
    ask = Far()
    assert bytes(cache.read(FOUND, 0, len(DATA), ask)) == DATA
    assert bytes(cache.read(FOUND, 0, len(DATA), Far())) == DATA


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


ODD = {
    "pipe": os.mkfifo,
    "socket": socket_at,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_no_block(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    cache = BlockCache("c")
    cache.read(FOUND, 0, len(DATA), Far())
    block, size = next(cache.all()).path, sum(one.size for one in cache.all())
    for path in (block, cache.folder / "used"):
        path.unlink()
        ODD[kind](path)
    if kind == "folder":
        with pytest.warns(UserWarning, match="Is a directory|is a folder: delete it"):
            assert bytes(cache.read(FOUND, 0, len(DATA), Far())) == DATA
        (cache.folder / "used").rmdir()
        with pytest.warns(UserWarning, match=f"{block} is a folder: delete it"):
            assert bytes(BlockCache("c").read(FOUND, 0, len(DATA), Far())) == DATA
        with pytest.raises(OSError, match=str(block)):
            cache.verify()
        return
    assert bytes(cache.read(FOUND, 0, len(DATA), Far())) == DATA
    assert sum(one.size for one in cache.all()) == size and cache.verify()[1] == []
    assert bytes(cache.read(FOUND, 0, len(DATA), Far())) == DATA
    block.unlink()
    ODD[kind](block)
    assert cache.verify()[1] == [block] and not block.exists()


def test_a_block_at_the_place_of_another_is_none(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path)
    cache.read(FOUND, 0, len(DATA), Far())
    here = {block.path.name[-1]: block.path for block in cache.all() if block.path.name[-2] == "-"}
    other = BlockCache(tmp_path / "other")  # of another version of the object
    other.read(FOUND._replace(etag="new"), 0, len(DATA), lambda a, b: bytes(b - a))
    version = next(block.path for block in other.all() if block.path.name.endswith("-4"))
    for stray in (here["3"].read_bytes(), version.read_bytes()):
        for found in (
            lambda: cache.verify()[1] == [here["4"]],
            lambda: cache.read(FOUND, 0, len(DATA), Far()) == DATA,
        ):
            here["4"].write_bytes(stray)
            assert found()


def test_a_full_disk_is_read_through(tmp_path: Path, clock: Clock) -> None:
    class Full(storage.LocalDisk):
        room = 60 * KIB

        def write(self, path: Path, data: bytes, /) -> None:
            if len(data) > 100:
                if Full.room < len(data):
                    super().write(path, data[: len(data) // 2])
                    raise OSError(errno.ENOSPC, "No space left on device")
                Full.room -= len(data)
            super().write(path, data)

    cache = BlockCache(tmp_path)
    with storage.override_world(disk=Full()), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            assert bytes(cache.read(FOUND, 0, len(DATA), Far())) == DATA
        assert len(said) == 1 and "cannot be written" in str(said[0].message)
        assert 0 < len(list(cache.all())) < 5 and not list(tmp_path.rglob("*.tmp"))
        Full.room = 1 << 30
        clock.sleep(61)
        cache.read(FOUND, 0, len(DATA), Far())
    assert len(list(cache.all())) == -(-len(DATA) // module.BLOCK_BYTES)


def test_a_folder_that_cannot_be_written_is_read_through(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bytes(BlockCache(tmp_path / "file").read(FOUND, 3, 9, Far())) == DATA[3:9]


@pytest.mark.parametrize("why", ["limit", "folder", "read-only", "full", "quota"])
def test_what_is_not_kept_is_asked_for_as_it_is_wanted(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk(storage.LocalDisk):
        def free(self, path: Path, /) -> int:
            return 4 * KIB if why == "full" else 1 << 40

        def write(self, path: Path, data: bytes, /) -> None:
            if why == "read-only" or (why == "quota" and len(data) > 100):
                raise OSError(errno.EROFS, "Read-only file system")
            super().write(path, data)

    if why == "limit":
        monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, "0")
    (tmp_path / "file").write_text("")
    cache, ask, dice, needed = (
        BlockCache(tmp_path / ("file" if why == "folder" else "cache")),
        Far(),
        random.Random(3),
        0,
    )
    with storage.override_world(disk=Disk()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache.read(FOUND, 0, 1, Far())  # where writing alone tells that nothing is kept
        for _ in range(100):
            start = dice.randrange(len(DATA) - 500)
            assert bytes(cache.read(FOUND, start, start + 500, ask)) == DATA[start : start + 500]
            needed += 500
        for start in range(0, len(DATA), 3_000):
            assert (
                bytes(cache.read(FOUND, start, start + 3_000, ask)) == DATA[start : start + 3_000]
            )
        assert bytes(cache.read(FOUND, 5, len(DATA) - 5, ask)) == DATA[5:-5]
    assert sum(stop - start for start, stop in ask.asked) == needed + 2 * len(DATA) - 10
    assert not list(cache.all())


def test_what_is_wanted_at_once_and_does_not_fit_takes_the_place_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, str(70 * KIB))
    cache, ask = BlockCache(tmp_path), Far()
    cache.read(FOUND, 0, 40 * KIB, Far())
    assert bytes(cache.read(FOUND, 64 * KIB + 5, len(DATA), ask)) == DATA[64 * KIB + 5 :]
    assert len(list(cache.all())) == 3 and ask.asked[0][0] == 64 * KIB + 5


CREW = """
import os, random, signal, sys, time
from penstock.stores import blocks
from penstock.stores.blocks import BlockCache
from penstock.stores.client import ObjectInfo

folder, rounds, limit = sys.argv[1], int(sys.argv[2]), int(os.environ[blocks.CACHE_LIMIT_VARIABLE])
blocks.BLOCK_BYTES = 16 << 10
data, dice = random.Random(5).randbytes(300_000), random.Random(1)
found, cache = ObjectInfo("s3://bucket/x", len(data), "tag"), BlockCache(folder)


def work(seed):
    dice = random.Random(seed)
    for _ in range(60):
        start, stop = sorted(dice.sample(range(len(data) + 1), 2))
        stop = min(stop, start + 40_000)
        assert bytes(cache.read(found, start, stop, lambda a, b: data[a:b])) == data[start:stop]


def begin(seed):
    if pid := os.fork():
        return pid
    try:
        work(seed)
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)


def used():
    return sum(block.size for block in cache.all())


crew = [begin(seed) for seed in range(4)]
for number in range(rounds):
    time.sleep(dice.random() / 30)
    victim = dice.randrange(4)
    os.kill(crew[victim], signal.SIGKILL)
    os.waitpid(crew[victim], 0)
    assert used() <= limit, used()
    crew[victim] = begin(100 + number)
for pid in crew:
    assert os.waitpid(pid, 0)[1] == 0
assert used() <= limit, used()
assert cache.verify()[1] == []
cache.shrink(1 << 40)
print("done")
"""


@pytest.mark.slow  # processes that are killed
def test_processes_share_a_folder_and_are_killed(tmp_path: Path) -> None:
    rounds = "400" if os.environ.get("SOAK") else "12"
    env = {**os.environ, module.CACHE_LIMIT_VARIABLE: str(120 * KIB)}
    command = [sys.executable, "-c", CREW, str(tmp_path), rounds]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, check=False, timeout=1500
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2 kb", 2000), ("1GiB", 1 << 30), ("0.5TB", 500_000_000_000), ("1_000", 1000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("told", ["nan", "inf", "-1", "-1GB", "much", "1e400", "1 2x"])
def test_a_limit_that_is_no_size_is_refused(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.CACHE_LIMIT_VARIABLE, told)
    with pytest.raises(
        ConfigError, match=f"PENSTOCK_CACHE_LIMIT in the environment: '{told}' is not a size"
    ):
        BlockCache(tmp_path).read(
            ObjectInfo("s3://bucket/x", 5, "1"), 0, 5, lambda a, b: bytes(b - a)
        )


def run(*words: str) -> Callable[[], tuple[int, Any]]:
    done = CliRunner().invoke(app, ["cache", *words, "--json"])
    return lambda: (done.exit_code, json.loads(done.output))


def test_the_command_line(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path)
    cache.read(FOUND, 0, 40 * KIB, Far())
    code, told = run("info", str(tmp_path))()
    assert (
        code == 0
        and told["blocks"] == 3
        and told["bytes"] > 40 * KIB
        and told["limit"] > told["bytes"]
    )
    assert run("verify", str(tmp_path))()[0] == 0
    block = next(cache.all())
    block.path.write_bytes(block.path.read_bytes()[:-9])
    code, told = run("verify", str(tmp_path))()
    assert code == 1 and told["damaged"] == [str(block.path)] and not block.path.exists()
    code, told = run("clear", str(tmp_path))()
    assert code == 0 and told["freed"] > 16 * KIB and not list(cache.all())
    assert run("info", str(tmp_path / "nothing"))()[1]["blocks"] == 0


def test_a_run_with_a_cache_asks_once(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    rows = [{"id": i, "t": "x" * 300} for i in range(300)]
    (tmp_path / "www" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with servers.site(tmp_path / "www") as site:
        ds = ps.read(f"{site.url}/x.jsonl", cache=tmp_path / "cache").shuffle()
        first = list(ds)
        size = (tmp_path / "www" / "x.jsonl").stat().st_size
        assert site.sent <= 1.1 * size  # the index and the run together
        site.asked.clear()
        assert list(ds.repeat(2).limit(300)) == first and not site.asked
