"""Errors of the operating system: ours, with the path and what to do."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import is_missing_file, make_storage_error
from penstock.stores import storage
from penstock.testing import CrashingDisk
from penstock.writing import write_rows

LONG = "x" * 300


def run() -> Any:
    return iter(ps.from_sequence(range(5)))


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """Only so many more files can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + more, hard)
    )
    held = list[int]()
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(more):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in held:
            os.close(handle)


def mixture(folder: Path) -> ps.Dataset:
    (folder / "a.jsonl").write_text('{"x": 1}\n')
    (folder / "m.yaml").write_text("sources: {a: {path: a.jsonl}}\nstop: all_exhausted\n")
    return ps.load(folder / "m.yaml")


CALLS: dict[str, Callable[[Path], Any]] = {
    "restore": lambda at: ps.restore(at / LONG, run()),
    "save": lambda at: ps.save(at / LONG, run()),
    "save below a file": lambda at: ((at / "f").touch(), ps.save(at / "f" / "g", run())),
    "read": lambda at: ps.read(at / f"{LONG}.jsonl"),
    "dump": lambda at: ps.dump(mixture(at), at / LONG / "m.yaml"),
    "write": lambda at: ps.write(ps.from_sequence([{"x": 1}]), at / LONG),
    "write_rows": lambda at: write_rows([{"x": 1}], at / LONG, "jsonl"),
    "load": lambda at: ps.load(at / f"{LONG}.yaml"),
    "a tokenizer": lambda at: ps.text.Tokenize(at / f"{LONG}.json"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_path_that_cannot_be_is_an_error_of_ours_that_names_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ps.PenstockError) as error:
        CALLS[name](tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_full_disk_says_what_to_do() -> None:
    with storage.override_world(disk=CrashingDisk(seed=0, fail_at=1, how="full")):
        with pytest.raises(ps.StorageError, match=r"/run/step-0.*: free some space") as error:
            ps.save("/run", run())
    assert error.value.errno == errno.ENOSPC


def test_too_few_descriptors_say_what_to_do(tmp_path: Path) -> None:
    ps.save(tmp_path, some := run())  # what it imports is there
    next(some)
    with few_files(0), pytest.raises(ps.StorageError, match="raise the limit of open files"):
        ps.save(tmp_path, some)


def limited(limit: str) -> str:
    """Return the output of a program with worker processes under a limit that it sets."""
    program = f"""
        import os
        import resource
        import penstock as ps

        data = ps.from_sequence(range(400)).map(lambda x: bytes(1 << 20))
        with ps.Loader(data, workers=2, executor="processes") as loader:
            next(iter(loader))  # all that is imported later is there before the limit
        with open("/proc/self/statm") as file:
            memory = int(file.read().split()[0]) * 4096
        files = len(os.listdir("/proc/self/fd")) - 1
        {limit}
        try:
            print(len(list(ps.Loader(data, workers=2, executor="processes"))))
        except (ps.PenstockError, MemoryError) as error:
            print(f"{{type(error).__name__}}: {{error}}", flush=True)
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.stdout or ended.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1, 3])
def test_too_few_descriptors_for_workers_say_what_to_do(more: int) -> None:
    said = limited(f"resource.setrlimit(resource.RLIMIT_NOFILE, (files + {more},) * 2)")
    assert said.startswith(
        "StorageError: worker processes: Too many open files: raise the limit of open files"
    ), said


@pytest.mark.slow
def test_a_memory_limit_with_workers_is_an_error_of_ours() -> None:
    said = limited("resource.setrlimit(resource.RLIMIT_AS, (memory + (160 << 20),) * 2)")
    assert said.startswith(("StorageError: worker processes", "MemoryError")), said


@pytest.mark.slow
def test_worker_processes_run_with_two_gigabytes_of_address_space() -> None:
    assert limited("resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)") == "400\n"


@pytest.mark.slow
def test_a_result_that_cannot_be_sent_names_its_sample() -> None:
    def locked(x: int) -> Any:
        return threading.Lock() if x == 7 else x

    data = ps.from_sequence(range(20), name="rows").map(locked)
    with ps.Loader(data, workers=1, executor="processes") as loader:
        with pytest.raises(ps.DataError, match="cannot be sent from a worker process") as error:
            list(loader)
    assert any("rows[7]" in note for note in error.value.__notes__)
    del error, loader


def test_every_remedy_ends_the_message() -> None:
    error = make_storage_error(OSError(errno.ELOOP, "Too many levels of symbolic links"), "/data/x")
    assert str(error) == (
        "/data/x: Too many levels of symbolic links: repair the symbolic links, which form a cycle"
    )
    assert not is_missing_file(error), "storage that fails is never the fault of a sample"
