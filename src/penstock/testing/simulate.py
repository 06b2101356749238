"""Simulated file system and scheduler: torn writes and reordered tasks, from one seed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from ..engine.base.random import derive_key, draw_integer
from ..engine.base.thread_pool import Task

T = TypeVar("T")


class _SeededChoices:
    """Random choices from one seed, equal on every platform."""

    def __init__(self, seed: int) -> None:
        self._key, self._count = derive_key(seed, "simulation"), 0

    def below(self, n: int) -> int:
        self._count += 1
        return draw_integer(self._key, self._count, n)

    def chance(self, share: float) -> bool:
        return self.below(1 << 20) < share * (1 << 20)

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


class Crash(BaseException):
    """The simulated end of the process.

    Not an `Exception`, so that only tests catch it.
    """


@dataclass
class _SimFile:
    data: bytes
    safe: bytes | None = None  # contents after a crash; None before the first sync


class CrashingDisk:
    """An in-memory file system that loses unsynced data (implements `storage.Disk`).

    A write goes to the cache. `sync` of a file makes its bytes durable, `sync` of its folder its
    names (new files, renames, removals). `crash()` drops a random part of the rest: unsynced bytes
    are lost or truncated, unsynced name changes apply up to a random point.

    Args:
        seed: Seed of all random choices.
        fail_at: Number of the effect (write, sync, replace, unlink, from 1) that fails.
        how: "error" (an input/output error), "full" (a full disk) or "kill": raises `Crash`, then
            and at every later effect until `crash()`.

    >>> from pathlib import Path
    >>> from penstock.stores.storage import override_world, write_atomically
    >>> disk = CrashingDisk(seed=1)
    >>> with override_world(disk=disk):
    ...     write_atomically(Path("/run/state.json"), b"old")
    ...     write_atomically(Path("/run/state.json"), b"new")
    >>> disk.crash()
    >>> disk.read(Path("/run/state.json"))
    b'new'
    """

    def __init__(
        self,
        seed: int,
        *,
        fail_at: int | None = None,
        how: Literal["error", "full", "kill"] = "error",
    ) -> None:
        self.effects = 0
        self.fail_at, self.how = fail_at, how
        self._dice = _SeededChoices(seed)
        self._names: dict[Path, _SimFile] = {}
        self._safe: dict[Path, _SimFile] = {}
        self._journal: list[dict[Path, _SimFile | None]] = []  # name changes that are not synced
        self._dead = False

    def list(self, folder: Path, /) -> list[str]:
        """Return the sorted names of the files in a folder, synced or not."""
        return sorted(path.name for path in self._names if path.parent == folder)

    def read(self, path: Path, limit: int | None = None, /) -> bytes:
        """Return the contents of a file, synced or not; the limit is ignored."""
        return self._file(path).data

    def write(self, path: Path, data: bytes, /) -> None:
        """Write a file to the cache; if this effect fails, a random beginning is written."""

        def cut() -> None:
            self._put(path, data[: self._dice.below(len(data) + 1)])

        self._effect(cut)
        self._put(path, data)

    def sync(self, path: Path, /) -> None:
        """Make the bytes of a file durable, or the names in a folder."""
        self._effect(lambda: None)
        if path in self._names:
            self._names[path].safe = self._names[path].data
            return
        for change in self._journal:
            if any(name.parent == path for name in change):
                self._apply(self._safe, change)
        self._journal = [c for c in self._journal if all(name.parent != path for name in c)]

    def replace(self, source: Path, target: Path, /) -> None:
        """Rename a file atomically; durable once the folder is synced."""
        self._effect(lambda: None)
        self._change({target: self._file(source), source: None})  # a rename is atomic

    def unlink(self, path: Path, /) -> None:
        """Remove a file if it exists; durable once the folder is synced."""
        self._effect(lambda: None)
        if path in self._names:
            self._change({path: None})

    def touch(self, path: Path, /) -> None:
        """Check that a file exists; this disk has no modification times."""
        self._file(path)

    def free(self, path: Path, /) -> int:
        """Return the free bytes: 0 if the disk is to be full, else 1 TiB."""
        return 0 if self.how == "full" and self.fail_at is not None else 1 << 40

    @contextmanager
    def create(self, target: Path, alone: bool, /) -> Generator[BinaryIO]:
        """Yield a file in memory; then write, sync and rename it, and sync its folder."""
        yield (file := BytesIO())
        name = target.with_name(f".{target.name}.tmp")
        self.write(name, file.getvalue())
        self.sync(name)
        self.replace(name, target)
        self.sync(target.parent)

    def lock(self, path: Path, /) -> AbstractContextManager[bool]:
        """Return a lock that is always free, as the simulation has one process."""
        return nullcontext(True)

    def paths(self) -> list[Path]:
        """Return all files, sorted, to detect leftovers."""
        return sorted(self._names)

    def crash(self) -> None:
        """Simulate a power loss: only synced data surely survives; the disk then works again."""
        for change in self._journal[: self._dice.below(len(self._journal) + 1)]:
            self._apply(self._safe, change)
        for file in self._safe.values():
            if file.safe != file.data:
                torn = file.data[: self._dice.below(len(file.data) + 1)]
                file.data = self._dice.one((file.safe or b"", torn, file.data))
            file.safe = file.data
        self._names, self._journal = dict(self._safe), []
        self._dead, self.fail_at = False, None

    def _effect(self, part: Callable[[], None]) -> None:
        if self._dead:
            raise Crash("the process has ended")
        self.effects += 1
        if self.effects != self.fail_at:
            return
        part()
        if self.how == "kill":
            self._dead = True
            raise Crash(f"killed at effect {self.effects}")
        code = errno.ENOSPC if self.how == "full" else errno.EIO
        raise OSError(code, f"simulated failure of effect {self.effects}")

    def _file(self, path: Path) -> _SimFile:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file on the simulated disk", str(path))
        return self._names[path]

    def _put(self, path: Path, data: bytes) -> None:
        if path in self._names:
            self._names[path].data = data
        else:
            self._change({path: _SimFile(data)})

    def _change(self, change: dict[Path, _SimFile | None]) -> None:
        self._apply(self._names, change)
        self._journal.append(change)

    @staticmethod
    def _apply(names: dict[Path, _SimFile], change: dict[Path, _SimFile | None]) -> None:
        for path, file in change.items():
            if file is None:
                names.pop(path, None)
            else:
                names[path] = file


class _SimTask(Task):
    """A task that is executed while its result is awaited."""

    def __init__(self, call: Callable[[], Any], sched: SimulatedScheduler) -> None:
        super().__init__(partial(sched.run, call))
        self._sched = sched

    def wait(self, seconds: float | None = None) -> bool:
        while not self.done():
            if not self._sched.run_one() and not self.done():
                raise RuntimeError(
                    "the simulated scheduler has no task left, so this result would never arrive"
                )
        return True


class _SimPool:
    def __init__(self, sched: SimulatedScheduler) -> None:
        self._sched = sched
        self._closed = False

    def submit(self, task: Callable[[], Any], /) -> Task:
        if self._closed:
            raise RuntimeError("submit after close")
        future = _SimTask(task, self._sched)
        self._sched.waiting.append(future)
        return future

    def close(self, seconds: float | None = None, /) -> None:
        self._closed = True


class SimulatedScheduler:
    """A single-threaded scheduler in random order, from one seed (implements `seams.Sched`).

    Tasks run in random order while a result is awaited. The clock advances by random steps from
    microseconds to minutes, so that time-adaptive code sees every speed.

    Args:
        seed: Seed of all random choices.
        twice: Probability that a task runs a second time (tasks must be pure).
        fail: Probability that a task fails with `error` instead of running.
        error: Returns the error.

    >>> sched = SimulatedScheduler(seed=3, twice=0.5)
    >>> pool = sched.spawn(4)
    >>> futures = [pool.submit(lambda i=i: i * i) for i in range(5)]
    >>> [f.result() for f in futures]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        seed: int,
        *,
        twice: float = 0.2,
        fail: float = 0.0,
        error: Callable[[], Exception] | None = None,
    ) -> None:
        self.waiting: list[Task] = []
        self.failures = 0
        self._dice = _SeededChoices(seed)
        self._twice, self._fail = twice, fail
        self._error = error or (lambda: OSError(errno.EIO, "simulated failure of a task"))
        self._now = 0.0

    def now(self) -> float:
        """Return the simulated time in seconds, after a random step of up to 15 minutes."""
        self._now += self._dice.one((1e-6, 1e-4, 1e-2, 1.0, 100.0)) * (1 + self._dice.below(9))
        return self._now

    def sleep(self, seconds: float, /) -> None:
        """Advance the clock without waiting, then run one task if any waits."""
        self._now += seconds
        self.run_one()

    def spawn(self, workers: int, /) -> _SimPool:
        """Return a pool whose tasks this scheduler runs one at a time, whatever `workers` is."""
        return _SimPool(self)

    def run_one(self) -> bool:
        """Run one of the waiting tasks, chosen at random.

        Returns:
            False if no task waits, or all that wait are cancelled.
        """
        while self.waiting:
            task = self.waiting.pop(self._dice.below(len(self.waiting)))
            cancelled = task.cancelled
            task.run()
            if not cancelled:
                return True
        return False

    def run(self, task: Callable[[], Any]) -> Any:
        """Run a function with the simulated failures and repetitions.

        Args:
            task: A pure function, as it may run twice.

        Returns:
            The result, of the second run if there are two.

        Raises:
            Exception: `error()` instead of a run, with probability `fail`; `failures` counts these.
        """
        if self._dice.chance(self._fail):
            self.failures += 1
            raise self._error()
        result = task()
        return task() if self._dice.chance(self._twice) else result
