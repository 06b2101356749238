"""Many processes that open the same data for the first time, and processes that are killed while they index it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archives import some, write
from example_counts import done, rounds
from first_open import whole

pytestmark = pytest.mark.slow  # many processes, some of which are killed

USERS = 8
LINES = "".join(f'{{"n": {n}, "text": "{"wörd " * (n % 40)}"}}\n' for n in range(6_000)).encode()


def jsonl(path: Path) -> None:
    path.write_bytes(LINES)


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress(LINES, 1))


def csv(path: Path) -> None:
    path.write_bytes(b"n,text\n" + b"".join(b"%d,w%d\n" % (n, n) for n in range(6_000)))


def tar(path: Path) -> None:
    write(path, some(200))


def parquet(path: Path) -> None:
    pq.write_table(
        pa.table({"n": list(range(5_000)), "t": [[n] * (n % 5) for n in range(5_000)]}), path
    )


DATA: dict[str, Callable[[Path], None]] = {
    "x.jsonl": jsonl,
    "x.jsonl.gz": packed,
    "x.csv": csv,
    "x.tar": tar,
    "x.parquet": parquet,
}


def user(*arguments: str) -> subprocess.Popen[str]:
    script = str(Path(__file__).parents[1] / "first_open.py")
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.fixture(scope="module")
def users() -> Iterator[list[subprocess.Popen[str]]]:
    started = [user() for _ in range(USERS)]
    yield started
    for process in started:
        process.communicate(timeout=300)


@pytest.fixture(scope="module")
def forker() -> Iterator[subprocess.Popen[str]]:
    process = user("fork")
    assert answer(process) == "ready"
    yield process
    process.communicate(timeout=300)


def asked(process: subprocess.Popen[str], path: Path, cache: Path) -> None:
    assert process.stdin
    process.stdin.write(json.dumps([str(path), str(cache)]) + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def files(cache: Path) -> list[str]:
    return sorted(one.name for one in cache.rglob("*") if one.is_file())


def test_eight_processes_open_data_for_the_first_time(
    tmp_path: Path, users: list[subprocess.Popen[str]]
) -> None:
    assert {answer(process) for process in users} == {"ready"}
    for name, make in DATA.items():
        make(tmp_path / name)
        expected = whole(tmp_path / name, tmp_path / "mine" / name)
        for turn in range(rounds(1, 20)):
            cache = tmp_path / f"{name}{turn}"
            for process in users:
                asked(process, tmp_path / name, cache)
            assert {answer(process) for process in users} == {expected}
            assert files(cache) == files(tmp_path / "mine" / name)
            done["first opens"] += USERS


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv", "x.tar"])
def test_a_process_that_is_killed_while_it_indexes_leaves_nothing(
    tmp_path: Path, name: str, forker: subprocess.Popen[str]
) -> None:
    path = tmp_path / name
    DATA[name](path)
    begun = time.monotonic()
    expected = whole(path, tmp_path / "mine")
    took = time.monotonic() - begun
    rng = np.random.default_rng(7)
    for turn in range(rounds(5, 100)):
        cache = tmp_path / str(turn)
        asked(forker, path, cache)
        child = int(answer(forker))
        time.sleep(rng.random() * took)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        assert answer(forker) == "over"
        assert set(files(cache)) <= set(files(tmp_path / "mine"))
        assert whole(path, cache) == expected
        assert files(cache) == files(tmp_path / "mine")
        done["kills while indexing"] += 1
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == [name]
