"""Detect threads and open files that a test leaves behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

# What installed packages and the system hold open (fonts, libraries) is theirs.
NOT_OURS = ("/dev/", "/proc/", "/usr/", os.path.realpath(sys.prefix))


def our_threads() -> set[threading.Thread]:
    """The living threads that Penstock started; pools of NumPy or pyarrow are not ours."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}


def open_files() -> list[str]:
    """The regular files this process holds open (nothing where there is no /proc)."""
    found: list[str] = []
    folder = Path("/proc/self/fd")
    for entry in os.listdir(folder) if folder.is_dir() else []:
        try:
            target = os.readlink(folder / entry)
        except OSError:  # the handle that lists the folder itself
            continue
        if target.startswith("/") and not target.startswith(NOT_OURS):
            found.append(target)
    return sorted(found)


def all_at() -> str:
    """Return the stack of every thread, equal stacks once: one thread may collect all garbage."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    at = dict[str, list[str]]()
    for ident, frame in sys._current_frames().items():
        at.setdefault("".join(traceback.format_stack(frame)), []).append(names.get(ident, "?"))
    return "\n".join(f"{', '.join(threads)}:\n{stack}" for stack, threads in at.items())


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test after which a thread of ours is alive or a file is open that was not before."""
    threads, files = our_threads(), open_files()
    yield
    if our_threads() <= threads and set(open_files()) <= set(files):
        return
    patience = (
        time.monotonic() + 120
    )  # in all: where a test failed its traceback keeps loaders alive
    while (left := our_threads() - threads) and time.monotonic() < patience:
        gc.collect()  # does nothing while another thread collects, which may wait for a loader to close
        for thread in left:
            if thread.is_alive():  # a thread that is about to start cannot be joined yet
                thread.join(max(0.0, min(1.0 / len(left), patience - time.monotonic())))
        time.sleep(0.001)
    assert our_threads() <= threads, f"threads left behind: {our_threads() - threads}\n{all_at()}"
    gc.collect()  # what the threads held as well
    opened = set(open_files()) - set(files)
    assert not opened, f"files left open: {sorted(opened)}"
