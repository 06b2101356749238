"""Shared memory without names, so that a killed process leaves none behind."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import tempfile
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

ARENA_BYTES = 1 << 36
"""Address space of an arena; only pages that are written to take memory."""
LIMITED_SHARE = 32
"""An arena takes at most this fraction of an address space with a limit (`ulimit -v`).

The parent maps the arenas of all workers, beside its own memory.
"""
IDLE_BYTES = 1 << 26
"""Unused bytes that an arena keeps for later results: these, or twice the recent use if more.

The loader may set a lower bound.
"""


def create_shared_memory(size: int) -> tuple[mmap.mmap, int]:
    """Map new shared memory; return it with its file descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("penstock")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return mmap.mmap(fd, size), fd


def view_ranges(
    memory: mmap.mmap,
    ranges: Sequence[tuple[int, int]],
    spans: Sequence[tuple[int, int, int]],
    release: Callable[[int], None],
) -> list[memoryview]:
    """Return views of ranges of shared memory.

    Args:
        memory: the mapped memory.
        ranges: start and size of each range.
        spans: range, offset in it and length of each view.
        release: receives the number of a range when no view of it is left.
    """
    arrays = list[Any]()
    for number, (start, size) in enumerate(ranges):
        array: Any = np.frombuffer(memory, np.uint8, size, start)
        weakref.finalize(array, release, number).atexit = False
        arrays.append(array)
    # A slice of an array keeps the array alive, and a memoryview the slice.
    return [
        memoryview(arrays[number][offset : offset + length]) for number, offset, length in spans
    ]


class Location(NamedTuple):
    """The range of an arena that holds a buffer, and the offset of the buffer in it."""

    start: int
    size: int
    offset: int


class Arena:
    """Shared memory of a worker for its results: ranges are allocated first-fit and freed.

    A range is counted by its holders: arrays of this process, and messages to the parent.
    """

    def __init__(self, idle: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        size = ARENA_BYTES if limit < 0 else min(ARENA_BYTES, limit // LIMITED_SHARE)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        while True:
            try:
                self.memory, self.fd = create_shared_memory(size)
                break
            except OSError:
                size //= 2
                if size < IDLE_BYTES:
                    raise
        self.size, self._idle = size, idle
        self._free: list[tuple[int, int]] = [(0, size)]
        self._allocated = dict[int, int]()  # length of each range, by its start
        self._used, self._peak = 0, 0.0
        self.holders = dict[int, int]()  # of ranges that hold arrays
        self._dropped = deque[int]()
        self.address: int = np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0]

    def allocate(self, size: int) -> int | None:
        """Return the start of a new range; None if no gap is large enough."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        for i, (start, length) in enumerate(self._free):
            if length >= size:
                self._free[i : i + 1] = [(start + size, length - size)] if length > size else []
                self._allocated[start] = size
                self._used += size
                self._peak = max(self._used, 0.99 * self._peak)
                return start
        return None

    def array(self, size: int) -> Any:
        """Return uint8[size] in a range of its own, freed with the last reference; or None."""
        while self._dropped:
            self.free(self._dropped.popleft())
        if (start := self.allocate(size)) is None:
            return None
        self.holders[start] = 1
        array: Any = np.frombuffer(self.memory, np.uint8, size, start)
        # The garbage collector may run anywhere, so the range is freed by the next call.
        weakref.finalize(array, self._dropped.append, start).atexit = False
        return array

    def find(self, buffer: memoryview) -> Location | None:
        """Return the location of a buffer; None if it lies elsewhere."""
        at = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] - self.address
        if 0 <= at < self.size:
            for start in self.holders:
                if start <= at and at + buffer.nbytes <= start + self._allocated[start]:
                    return Location(start, self._allocated[start], at - start)
        return None

    def free(self, start: int) -> None:
        """Drop one holder of a range; free it after the last one."""
        left = self.holders.pop(start, 1) - 1
        if left:
            self.holders[start] = left
            return
        length = self._allocated.pop(start)
        self._used -= length
        i = bisect_right(self._free, (start, 0))
        if i < len(self._free) and self._free[i][0] == start + length:
            length += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == start:
            i -= 1
            before, size = self._free.pop(i)
            start, length = before, length + size
        self._free.insert(i, (start, length))
        if self.resident() - self._used > min(max(IDLE_BYTES, int(2 * self._peak)), self._idle):
            for start, length in self._free:
                # Not every system can return pages.
                with contextlib.suppress(OSError, AttributeError):
                    self.memory.madvise(mmap.MADV_REMOVE, start, length)

    def resident(self) -> int:
        """Return the bytes of memory that the arena takes, used or not."""
        return 512 * os.fstat(self.fd).st_blocks
