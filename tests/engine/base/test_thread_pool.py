"""The thread pool: what becomes of tasks when a pool, a program or a forked process ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

import penstock as ps
from penstock.engine.base.thread_pool import ThreadPool

ENDS = """
import time
from penstock.engine.base.thread_pool import ThreadPool
pool = ThreadPool(1)
tasks = [pool.submit(lambda: time.sleep(0.2)) for _ in range(500)]
"""


@pytest.mark.slow  # a process
def test_a_program_that_ends_skips_the_tasks_that_have_not_begun() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", ENDS], timeout=60, env=env).returncode == 0


def test_a_pool_that_is_collected_skips_the_tasks_that_have_not_begun() -> None:
    pool, begun, release = ThreadPool(1), threading.Event(), threading.Event()
    pool.submit(lambda: (begun.set(), release.wait()))
    assert begun.wait(30)
    later = pool.submit(lambda: None)
    del pool
    gc.collect()
    release.set()
    with pytest.raises(CancelledError):
        later.result()


def in_fork(call: Callable[[], object]) -> int:
    """The exit code of a forked process that calls a function: 7 for `ConfigError`, 8 for `RuntimeError`."""
    child = os.fork()
    if child == 0:
        try:
            call()
            os._exit(0)
        except ps.ConfigError:
            os._exit(7)
        except RuntimeError:
            os._exit(8)
        finally:
            os._exit(9)
    until = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


@pytest.mark.slow  # forks
@pytest.mark.filterwarnings("ignore:os.fork")  # by JAX, if an earlier test imported it
def test_a_forked_process_does_not_wait_for_threads_of_its_parent() -> None:
    pool, begun, release = ThreadPool(1), threading.Event(), threading.Event()
    task = pool.submit(lambda: (begun.set(), release.wait()))
    assert begun.wait(30)
    assert in_fork(task.result) == 8
    release.set()
    pool.close()
    it = ps.DatasetIterator(ps.from_sequence(range(9)).map(str), workers=2)
    next(it)
    assert in_fork(lambda: list(it)) == 7
    assert len(list(it)) == 8
    it.close()


def test_a_machine_without_threads_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("penstock.engine.base.thread_pool.start_new_thread", fail)
    with pytest.raises(ps.StorageError, match="raise the limit of processes"):
        ThreadPool(2).submit(print)
