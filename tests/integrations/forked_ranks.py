"""Ranks as forks of one process, which imports a framework once for all of them: an import takes seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def fork_ranks(world: int, run: Callable[[int], object]) -> None:
    """Call `run(rank)` in a fork for each rank; where one fails, the others are ended and this raises."""
    ranks = set[int]()
    for rank in range(world):
        if not (process := os.fork()):
            try:
                run(rank)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        ranks.add(process)
    failed = False
    while ranks:
        process, status = os.wait()
        ranks.discard(process)
        if status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    if failed:
        raise SystemExit(1)


def run_script(script: Path, *arguments: object) -> None:
    """Run a script that forks its ranks, and assert that none fails; an error shows what they wrote."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
