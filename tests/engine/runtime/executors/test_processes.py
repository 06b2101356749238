"""Worker processes: the same stream, whoever dies when, and nothing of them left."""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import mmap
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, is_soak, rounds
from helpers import as_lists, slow_if
from penstock.engine.runtime.executors import make_executor
from penstock.engine.runtime.executors.connection import Connection
from penstock.engine.runtime.executors.processes import SharedJob
from penstock.engine.runtime.executors.shared_memory import Arena
from penstock.errors import ConfigError


def children() -> set[int]:
    """The worker processes of this one."""
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    before, files = children(), open_files()
    yield
    gc.collect()
    assert children() <= before
    assert open_files() <= files


def row(x: Any) -> dict[str, Any]:
    return {
        "x": x,
        "many": np.full(3000, x),
        "few": np.arange(x % 5),
        "text": "t" * (x % 7),
        "bytes": b"b" * x,
    }


def noisy(x: int, rng: np.random.Generator) -> tuple[int, float]:
    return x, float(rng.random())


def numbers(n: int = 200) -> ps.Dataset:
    return ps.from_sequence(range(n)).shuffle(seed=1)


def mixture() -> ps.Dataset:
    inner = ps.mix(
        {"a": numbers(50), "b": ps.from_sequence(range(1000, 1070))}, {"a": 1, "b": 2}, seed=3
    )
    late = ps.Schedule([(0, {"in": 3, "c": 1}), (90, {"in": 1, "c": 3})])
    return ps.mix({"in": inner, "c": numbers(33).repeat()}, late, seed=4).limit(150)


PIPELINES: dict[str, Callable[[], ps.Dataset]] = {
    "rows": lambda: numbers().map(row),
    "batches": lambda: numbers().map(lambda x: {"x": np.full(700, x)}).batch(8),
    "ragged batches": lambda: numbers(205).map(row).batch(8, collate=list),
    "batches of batches": lambda: numbers(205).batch(4).map(lambda b: b * 2).batch(3, collate=list),
    "random map": lambda: numbers().random_map(noisy).batch(3, collate=list),
    "filter": lambda: numbers().filter(lambda x: x % 3).map(row),
    "flat map": lambda: numbers(60).flat_map(lambda x: [x] * (x % 4)).batch(7),
    "shuffle buffer": lambda: numbers(80).filter(lambda x: x % 3).shuffle_buffer(16, seed=2),
    "packed as it comes": lambda: numbers().map(lambda x: np.arange(x % 30 + 1)).pack(64).batch(2),
    "packed, lengths known": lambda: (
        ps.from_tokens(np.arange(400), np.arange(0, 401, 8)).shuffle().pack(24, "best_fit")
    ),
    "mixture": lambda: mixture().map(lambda x: x * 2).batch(4),
    "zip": lambda: ps.zip(numbers(40), ps.from_sequence(range(40))).map(lambda pair: pair),
}


ALL = [
    ("processes", 3),
    ("processes", 1),
    *(("threads", n) for n in (1, 2, 3, 4)),
    ("processes", 2),
    ("processes", 4),
]
QUICK = ("ragged batches", "packed as it comes", "mixture")
EVERY = [
    pytest.param(name, executor, workers, marks=slow_if(name not in QUICK))
    for name, (executor, workers) in product(
        PIPELINES if is_soak() else QUICK, ALL[: rounds(1, len(ALL))]
    )
]
"""All pipelines, executors and workers in `make soak`; random runs draw threads and processes alike."""


@pytest.mark.parametrize(("name", "executor", "workers"), EVERY)
def test_the_stream_and_its_states_are_those_without_workers(
    name: str, executor: Any, workers: int
) -> None:
    def run(**options: Any) -> tuple[list[Any], list[Any], list[Any]]:
        items, keys, states = list[Any](), list[Any](), list[Any]()
        with ps.Loader(PIPELINES[name](), **options) as loader:
            for _ in range(2):
                for item in loader:
                    items.append(as_lists(item))
                    keys.append(loader.keys())
                    if len(items) % 9 == 0:
                        states.append(loader.state_dict())
        return items, keys, states

    want, found = run(), run(workers=workers, executor=executor)
    assert len(want[0]) > 20
    assert found == want
    with ps.Loader(PIPELINES[name](), workers=2, executor=executor) as loader:
        loader.load_state_dict(want[2][0])
        assert [as_lists(item) for item in loader] == want[0][9 : len(want[0]) // 2]


def test_packs_of_known_lengths() -> None:
    lengths = np.asarray([3, 9, 4, 7, 1, 8, 2, 6] * 10)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ds = (
        ps.from_tokens(np.arange(offsets[-1]), offsets)
        .shuffle(seed=1)
        .pack(16, "best_fit")
        .batch(3)
    )
    want = [as_lists(item) for item in ps.Loader(ds)]
    with ps.Loader(ds, workers=2, executor="processes") as loader:
        assert [as_lists(item) for item in loader] == want


def test_arrays_tensors_and_tables_come_without_a_copy() -> None:
    torch, pa = pytest.importorskip("torch"), pytest.importorskip("pyarrow")

    def big(x: int) -> dict[str, Any]:
        import pyarrow
        import torch as t

        return {
            "array": np.full((100, 100), x, np.float32),
            "tensor": t.full((50, 50), x),
            "table": pyarrow.table({"x": [x] * 5000}),
            "object": {"in": [np.full(10_000, x)]},
        }

    with ps.Loader(ps.from_sequence(range(9)).map(big), workers=1, executor="processes") as loader:
        items = list(loader)
    for x, item in enumerate(items):  # also after the loader was closed
        assert item["array"].mean() == x
        assert not item["array"].flags.owndata
        item["array"][0] = 5  # it is ours
        assert torch.equal(item["tensor"], torch.full((50, 50), x))
        assert item["table"].equals(pa.table({"x": [x] * 5000}))
        assert item["object"]["in"][0].sum() == 10_000 * x


def shared_by(pid: int) -> int:
    """Bytes of shared memory that a process has touched."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+)", status)[1]) << 10  # pyright: ignore[reportOptionalSubscript]


def test_memory_is_used_again() -> None:
    ds = ps.from_sequence(range(300)).map(lambda x: np.full(50_000, x))
    before = shared_by(os.getpid())
    with ps.Loader(ds, workers=2, executor="processes", prefetch_bytes=8 << 20) as loader:
        for x, item in enumerate(loader):
            assert item[0] == item[-1] == x
        pids = [*workers_of(loader), os.getpid()]
        assert max(map(shared_by, pids)) - before < 12 << 20


@pytest.mark.parametrize("successes", [0, 1, 2])
def test_a_job_that_cannot_be_sent_is_an_error_and_no_endless_wait(
    successes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two calls send the job to both workers, the third to one that replaces a dead one."""
    opened, calls = SharedJob.open, itertools.count()

    def open_few(job: SharedJob) -> int:
        if next(calls) >= successes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(job)

    def die_once(x: int) -> int:
        if x == 30 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    monkeypatch.setattr(SharedJob, "open", open_few)
    errors = list[BaseException]()

    def read() -> None:
        data = ps.from_sequence(range(400)).map(die_once)
        with ps.Loader(data, workers=2, executor="processes") as loader:
            try:
                list(loader)
            except ps.PenstockError as error:
                errors.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(30)
    assert not reading.is_alive(), "tasks of a failed dispatch never end"
    assert [str(error).partition(": raise")[0] for error in errors] == [
        "worker processes: Too many open files"
    ]


def test_a_descriptor_beyond_the_limit_is_an_error_of_the_system() -> None:
    here, there = socket.socketpair()
    sender, receiver = Connection(here), Connection(there)
    sender.put(("arena", 1), os.dup(here.fileno()))
    sender.send()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            receiver.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert error.value.errno == errno.EMFILE
    sender.close()
    receiver.close()


@pytest.mark.parametrize("megabytes", [32, 3000, 1 << 30])
def test_an_arena_takes_a_small_part_of_a_limited_address_space(
    megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (megabytes << 20, -1))
    arena = Arena(1 << 20)
    assert mmap.PAGESIZE <= arena.size <= max(1 << 20, (megabytes << 20) // 32)
    arena.memory.close()
    os.close(arena.fd)


@examples(6)  # each collects all garbage, which takes long beside other tests
@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 5)), max_size=60))
def test_ranges_of_an_arena_never_overlap(asked: list[tuple[int, int]]) -> None:
    arena, taken = Arena(1 << 20), dict[int, int]()
    for size, drop in asked:
        start = arena.allocate(size)
        assert start is not None
        assert all(start >= a + n or start + size <= a for a, n in taken.items())
        arena.memory[start : start + size] = bytes([len(taken) + 1]) * size
        taken[start] = size
        for old in list(taken)[: drop if drop < 3 else 0]:
            arena.free(old)
            del taken[old]
            assert arena.resident() <= sum(-(-size // 4096) * 4096 for size in taken.values()) + (
                1 << 20
            )
        assert all(
            arena.memory[start] == arena.memory[start + size - 1] > 0
            for start, size in taken.items()
        )
    for old in taken:
        arena.free(old)
    assert arena._free == [(0, arena.size)]
    array = arena.array(5000)
    assert array is not None and arena.find(memoryview(array)[7:90]) == (0, 8192, 7)
    arena.holders[0] += 1  # it was sent
    del array
    gc.collect()
    assert arena.array(100) is not None and 0 in arena._allocated  # the other side still has it
    arena.free(0)
    assert 0 not in arena._allocated
    gc.collect()
    arena.memory.close()
    os.close(arena.fd)


def test_large_batches_are_put_together_where_both_see_them() -> None:
    """Whole, in part, twice in an item, changed by a later step, kept by a function and given again."""
    cache = dict[int, Any]()

    def later(batch: Any) -> dict[str, Any]:
        first = cache.setdefault(0, batch)
        batch += 0
        return {
            "all": batch,
            "part": batch[1:3, 10:],
            "again": batch,
            "other": batch * 2,
            "first": first,
            "few": [1],
        }

    ds = (
        ps.from_sequence(range(240))
        .map(lambda x: np.full(100_000, x, np.float32))
        .batch(4)
        .map(later)
    )
    before = shared_by(os.getpid())
    with ps.Loader(ds, workers=2, executor="processes", prefetch_bytes=32 << 20) as loader:
        kept = list[Any]()
        for i, item in enumerate(loader):
            want = np.repeat(np.arange(4 * i, 4 * i + 4), 100_000).reshape(4, -1)
            assert np.array_equal(item["all"], want)
            assert np.array_equal(item["again"], want) and np.array_equal(item["other"], 2 * want)
            assert np.array_equal(item["part"], want[1:3, 10:])
            assert (item["first"][:, 0] == item["first"][:, -1]).all() and item["first"][
                0, 0
            ] % 4 == 0
            if i % 10 == 0:
                kept.append(item["part"])
        assert shared_by(os.getpid()) - before < 400 << 20
        assert shared_by(workers_of(loader)[0]) < 300 << 20
    for i, part in enumerate(kept):
        assert (part[:, 0] == [40 * i + 1, 40 * i + 2]).all() and (part[:, -1] == part[:, 0]).all()


def test_large_batches_of_objects_are_batches_too() -> None:
    ds = ps.from_sequence(range(8)).map(lambda x: np.full(100_000, str(x), object)).batch(4)
    with ps.Loader(ds, workers=1, executor="processes") as loader:
        assert [batch[:, -1].tolist() for batch in loader] == [
            ["0", "1", "2", "3"],
            ["4", "5", "6", "7"],
        ]


def test_kept_items_stay_what_they_are() -> None:
    ds = ps.from_sequence(range(100)).map(lambda x: np.full(20_000, x))
    with ps.Loader(ds, workers=2, executor="processes") as loader:
        kept = list(itertools.islice(loader, 60))
        list(loader)
    assert [int(item[0]) for item in kept] == [int(item[-1]) for item in kept] == list(range(60))


# ---------------------------------------------------------------- failures


def fails(x: int) -> int:
    if x == 7:
        raise ValueError(f"no {x}")
    return x


def test_an_error_shows_the_functions_own_traceback_and_the_key() -> None:
    with ps.Loader(
        ps.from_sequence(range(20), name="web").map(fails), workers=2, executor="processes"
    ) as loader:
        it = iter(loader)
        assert [next(it) for _ in range(7)] == list(range(7))
        for _ in range(2):  # and it stays where it was
            with pytest.raises(ValueError, match="no 7") as caught:
                next(it)
        notes = "".join(caught.value.__notes__)
        assert "in fails" in notes
        assert 'raise ValueError(f"no {x}")' in notes
        assert "web[7]" in notes


class Picky(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("one string")


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    def bad(x: int) -> int:
        raise Picky(1, 2)

    with ps.Loader(ps.from_sequence(range(3)).map(bad), workers=1, executor="processes") as loader:
        with pytest.raises(RuntimeError, match="Picky: one string"):
            next(iter(loader))


class Wordless(Exception):
    """An error without a message, since its `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises_wordless(x: int) -> int:
    raise Wordless


def test_an_error_whose_str_raises_does_not_end_the_worker() -> None:
    ds = numbers().map(raises_wordless)
    with pytest.raises(Wordless), ps.Loader(ds, executor="processes", workers=1) as loader:
        next(iter(loader))


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_bad_samples_are_replaced_alike(executor: Any) -> None:
    def run(executor: Any) -> tuple[list[Any], list[Any]]:
        ds = ps.from_sequence(range(40), name="web").shuffle(seed=2).map(fails).batch(4)
        with ps.Loader(ds, workers=2, executor=executor, on_error="quarantine") as loader:
            return [item.tolist() for item in loader], loader.journal

    items, journal = run(executor)
    assert (items, journal) == run("inline")
    assert [entry["index"] for entry in journal] == [7]


def test_what_cannot_be_sent_is_refused_by_name() -> None:
    lock = threading.Lock()
    ds = ps.from_sequence(range(3)).map(lambda x: (x, lock.locked()))
    with (
        ps.Loader(ds, workers=1, executor="processes") as loader,
        pytest.raises(ps.ConfigError, match="lock"),
    ):
        next(iter(loader))


# ---------------------------------------------------------------- deaths


def workers_of(loader: ps.Loader) -> list[int]:
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    return [worker.process.pid for worker in executor.workers]


def slow(x: int) -> dict[str, Any]:
    time.sleep(0.001)
    return {"x": x, "many": np.full(5000, x)}


@pytest.mark.slow  # processes that are killed
def test_workers_may_be_killed_at_any_moment(caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(5)
    ds = ps.from_sequence(range(rounds(120, 600))).shuffle(seed=3).map(slow).batch(3)
    want = [as_lists(item) for item in ps.Loader(ds)]
    with caplog.at_level(logging.WARNING), ps.Loader(ds, workers=3, executor="processes") as loader:
        found = list[Any]()
        for item in loader:
            found.append(as_lists(item))
            if dice.random() < 0.06:
                for pid in dice.sample(workers_of(loader), dice.choice([1, 1, 3])):
                    with suppress(ProcessLookupError):  # killed before, and ended only now
                        os.kill(pid, dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    assert found == want
    assert "repeats its work" in caplog.text


@pytest.mark.slow  # processes that are stopped
def test_a_stopped_worker_is_replaced() -> None:
    ds = ps.from_sequence(range(200)).map(slow)
    with ps.Loader(ds, workers=2, executor="processes") as loader:
        it = iter(loader)
        found = [next(it)["x"]]
        for pid in workers_of(loader):
            os.kill(pid, signal.SIGSTOP)
        found += [item["x"] for item in it]
    assert found == list(range(200))


def deadly(x: int) -> int:
    if x == 11:
        os._exit(9)
    return x


def test_a_sample_that_kills_its_worker_is_reported_by_key() -> None:
    ds = ps.from_sequence(range(30), name="web").map(deadly).batch(5)
    with ps.Loader(ds, workers=2, executor="processes") as loader:
        it = iter(loader)
        assert [next(it).tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        with pytest.raises(ps.DataError, match="3 times in a row over this sample") as caught:
            next(it)
        assert "web[11]" in str(caught.value.__notes__)


@pytest.mark.slow  # processes that are killed
def test_a_sample_that_kills_its_worker_can_be_replaced() -> None:
    ds = ps.from_sequence(range(30), name="web").map(deadly).batch(5)
    with ps.Loader(ds, workers=2, executor="processes", on_error="quarantine") as loader:
        items = [item.tolist() for item in loader]
        assert [entry["index"] for entry in loader.journal] == [11]
    assert [x for item in items for x in item if x not in items[2]] == [*range(10), *range(15, 30)]


@pytest.mark.slow  # processes that are killed
def test_a_function_over_batches_that_kills_its_worker_names_the_batch() -> None:
    def kills(batch: np.ndarray) -> np.ndarray:
        if 11 in batch:
            os._exit(9)
        return batch

    ds = ps.from_sequence(range(30), name="web").batch(5).map(kills)
    with ps.Loader(ds, workers=2, executor="processes", on_error="quarantine") as loader:
        it = iter(loader)
        assert [next(it).tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        with pytest.raises(ps.DataError, match=r"5 samples from web\[10\].*none of these samples"):
            next(it)


@pytest.mark.slow  # processes that are killed
def test_a_batch_whose_worker_is_lost_is_put_together_from_its_samples(tmp_path: Path) -> None:
    def kills_once(x: int) -> dict[str, Any]:
        if x % 10 == 3 and not (marker := tmp_path / str(x)).exists():
            marker.touch()
            os._exit(9)
        return row(x)

    def run(fn: Callable[[int], Any], **options: Any) -> list[Any]:
        ds = numbers(40).map(fn).batch(5, collate=list).map(lambda rows: rows[::-1])
        with ps.Loader(ds, **options) as loader:
            return [(as_lists(item), loader.keys()) for item in loader]

    assert run(kills_once, workers=2, executor="processes") == run(row)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.slow  # waits for a function that hangs
def test_a_function_that_hangs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def hangs(x: int) -> int:
        if x == 4:
            time.sleep(1000)
        return x

    ds = ps.from_sequence(range(8), name="web").map(hangs)
    with ps.Loader(
        ds, workers=1, executor="processes", timeout=3.0, on_error="quarantine"
    ) as loader:
        assert sorted(set(loader)) == [0, 1, 2, 3, 5, 6, 7]
        assert "took longer than timeout=3 s" in loader.journal[0]["error"]
        assert loader.journal[0]["index"] == 4
    said = [
        record.getMessage() for record in caplog.records if "took longer" in record.getMessage()
    ]
    assert len(said) == 3 and all("over web[4] (pass 0)" in each for each in said[1:])
    assert "samples from web[" in said[0] or "over web[4]" in said[0]


def test_workers_that_cannot_start_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.runtime.executors.processes.BOOT", "raise SystemExit(3)")
    with ps.Loader(ps.from_sequence(range(8)).map(slow), workers=2, executor="processes") as loader:
        with pytest.raises(ps.ConfigError, match="exit code 3"):
            next(iter(loader))


# ---------------------------------------------------------------- the end


def endless(x: int) -> int:
    while True:
        pass


def test_close_does_not_wait_for_functions() -> None:
    loader = ps.Loader(ps.from_sequence(range(8)).map(endless), workers=2, executor="processes")
    executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
    session: Any = loader._session  # pyright: ignore[reportPrivateUsage]
    work = session.out.stream
    executor.submit(work.job, None, work.feed.next(1).rows)
    time.sleep(1)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 10  # what it would wait for never ends


@pytest.mark.slow  # starts a process
def test_what_is_dropped_ends() -> None:
    for _ in range(rounds(2, 5)):
        loader = ps.Loader(ps.from_sequence(range(50)).map(slow), workers=2, executor="processes")
        next(iter(loader))
        pids = workers_of(loader)
        del loader
        gc.collect()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


PARENT = """
import os, re, signal, sys, time
import penstock as ps
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
def spin(x):
    if x > 3:
        while True: pass
    return x
loader = ps.Loader(ps.from_sequence(range(99)).map(spin), workers=2, executor="processes")
it = iter(loader)
print(next(it), *(w.process.pid for w in loader._executor.workers), flush=True)
{end}
"""


def gone(pids: list[int]) -> bool:
    def dead(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return all(map(dead, pids))


@pytest.mark.slow  # processes that are killed
def test_a_worker_that_holds_the_interpreter_ends_with_its_parent() -> None:
    test_nothing_outlives_its_parent(signal.SIGKILL, 're.match("(a+)+$", "a" * 60 + "b")')


@pytest.mark.slow  # processes that are killed
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_outlives_its_parent(end: signal.Signals | None, held: str = "pass") -> None:
    code = PARENT.replace("while True: pass", f"while True: {held}").format(
        end="time.sleep(100)" if end else "sys.exit()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    _, *pids = map(int, parent.stdout.readline().split())
    time.sleep(0.5)
    if end:
        parent.send_signal(end)
    parent.wait()
    parent.stdout.close()
    by = time.monotonic() + 5
    while not gone(pids) and time.monotonic() < by:
        time.sleep(0.05)
    assert gone(pids)


@pytest.mark.slow  # interrupts a process
def test_ctrl_c_is_for_the_parent_alone() -> None:
    code = PARENT.format(
        end="""
try:
    for _ in it: pass
except KeyboardInterrupt:
    print("interrupted", loader.stats()["items"] == loader.state_dict()["at"], flush=True)
    began = time.monotonic()
    loader.close()
    print(time.monotonic() - began < 10, flush=True)
"""
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    time.sleep(1)
    os.killpg(parent.pid, signal.SIGINT)
    out, errors = parent.communicate(timeout=300)
    assert out.split() == ["interrupted", "True", "True"]
    assert errors == ""


FORKED = """
import os
import penstock as ps
loader = ps.Loader(ps.from_sequence(range(50)).map(str), workers=1, executor="processes")
it = iter(loader)
next(it)
if (pid := os.fork()) == 0:
    code = 1
    try:
        next(it)
    except ps.ConfigError:
        code = 0
    finally:
        os._exit(code)
print(os.waitpid(pid, 0)[1], [int(x) for x in it] == list(range(1, 50)))
loader.close()
"""


def test_a_fork_of_the_parent_has_no_workers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split() == ["0", "True"], done.stderr


CLOSED = """
import os
import penstock as ps
loader = ps.Loader(ps.from_sequence(range(50)).map(str), workers=1, executor="processes")
next(iter(loader))
loader.close()
others = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]  # the numbers of what was closed are theirs now
if (pid := os.fork()) == 0:
    try:
        code = len([os.fstat(fd) for fd in others]) - 30
    except OSError:
        code = 1
    os._exit(code)
print(os.waitpid(pid, 0)[1], loader.stats()["items"])
"""


def test_a_fork_after_the_end_closes_no_files_of_others() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split() == ["0", "1"] and not done.stderr, done.stderr


def test_changes_on_the_way() -> None:
    def run(**options: Any) -> list[Any]:
        parts = {name: ps.from_sequence(range(100)).map(row).repeat() for name in "ab"}
        found = list[Any]()
        with ps.Loader(
            ps.mix(parts, {"a": 1, "b": 1}, seed=2).batch(4, collate=list), **options
        ) as loader:
            for i, item in enumerate(itertools.islice(loader, 60)):
                found.append(as_lists(item))
                if i % 20 == 10:
                    loader.set_weights({"a": i, "b": 1})
        return found

    assert run(workers=2, executor="processes") == run()


def test_a_closed_pool_takes_no_work() -> None:
    pool = make_executor("processes", 1)
    assert pool is not None
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(None, None, None)  # pyright: ignore[reportArgumentType]


def test_a_function_that_workers_cannot_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("nowhere")
    exec("def f(x): return x + 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "nowhere", module)
    with (
        ps.Loader(
            ps.from_sequence(range(10)).map(module.f), workers=2, executor="processes"
        ) as loader,
        pytest.raises(
            ConfigError,
            match="cannot rebuild the functions .*No module named 'nowhere'.*imports their modules",
        ),
    ):
        next(iter(loader))


@pytest.mark.slow  # runs scripts
def test_objects_of_the_script_itself_come_back_as_its_own() -> None:
    """Also tensors of kinds that NumPy does not have, with a gradient, and of classes that have no module."""
    code = """
import torch, penstock as ps
class Point:
    def __init__(self, x): self.x = x
def f(x):
    class Local:
        y = x
    grad = torch.ones(2, requires_grad=True) * x
    return {"b": torch.full((3000,), x, dtype=torch.bfloat16), "g": grad.detach(), "p": Point(x), "l": Local()}
def g(row):
    assert type(row["p"]).__name__ == "Point"
    return row
ds = ps.from_sequence(range(5)).map(f).filter(lambda row: True).map(g)
with ps.Loader(ds, workers=1, executor="processes", lanes=1) as loader:
    for i, row in enumerate(loader):
        assert torch.equal(row["b"], torch.full((3000,), i, dtype=torch.bfloat16))
        assert type(row["p"]) is Point and row["p"].x == row["l"].y == i
print("all")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.strip() == "all", done.stderr


class Stubborn:
    """Cannot be read where it was not made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        if pid != os.getpid():
            raise ValueError("only at home")

    def __reduce__(self) -> Any:
        return Stubborn, (self.pid,)


def test_what_cannot_be_read_here_is_an_error_and_costs_no_worker() -> None:
    ds = ps.from_sequence(range(3)).map(lambda x: Stubborn(os.getpid()))
    with ps.Loader(ds, workers=1, executor="processes") as loader:
        it = iter(loader)
        for _ in range(2):
            with pytest.raises(ValueError, match="only at home"):
                next(it)
            pids = workers_of(loader)
        assert pids == workers_of(loader) and all(Path(f"/proc/{pid}").exists() for pid in pids)
