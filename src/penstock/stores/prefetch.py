"""Prefetch byte ranges of remote objects with many concurrent requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, TypeVar

from ..engine.base import machine, seams
from ..engine.base.seams import TaskPool
from ..engine.base.thread_pool import Task

T = TypeVar("T")
U = TypeVar("U")

_MAX_CONCURRENT = 64
_MAX_REQUEST = 1 << 20  # bytes; as large as a cache block. Larger ranges are split
_MAX_PENDING_BYTES = 256 << 20  # prefetched and not yet consumed
_MAX_PENDING_REQUESTS = 8192
_MAX_CONSUMED_BYTES = 32 << 20  # retained after use: neighbouring reads share block edges


class ByteRange(NamedTuple):
    """A byte range of a remote object.

    Args:
        name: URL of the object, without secrets.
        start: first byte.
        stop: byte after the last.
    """

    name: str
    start: int
    stop: int


class _Request:
    """A request in flight or finished, and the number of its bytes consumed so far."""

    __slots__ = ("consumed", "future", "range")

    def __init__(self, range: ByteRange, future: Task) -> None:
        self.range, self.future, self.consumed = range, future, 0


def _get_request_start(request: _Request) -> int:
    return request.range.start


class Prefetcher:
    """Prefetch buffer of byte ranges.

    It changes the speed of reads, never their result.

    Args:
        fetch: reads the bytes of a range.
    """

    def __init__(self, fetch: Callable[[ByteRange], bytes | memoryview]) -> None:
        self._fetch = fetch
        self._threads: tuple[int, TaskPool] | None = None
        self._lock, self._process = machine.make_lock(), machine.get_pid()
        self._requests: dict[str, list[_Request]] = {}
        self._pending: dict[int, _Request] = {}
        self._consumed: dict[int, _Request] = {}
        self._pending_bytes = self._consumed_bytes = 0

    def begin(self, ranges: Iterable[ByteRange], now: bool = False) -> bool:
        """Request the ranges that are not in flight yet.

        Args:
            ranges: the ranges to prefetch.
            now: evict the oldest unconsumed requests to make room, instead of giving up.

        Returns:
            False if the buffer is full; then nothing is requested.
        """
        self._reset_after_fork()
        with self._lock:
            missing = [
                range_
                for merged_range in merge_ranges(ranges)
                for range_ in self._missing_parts(merged_range)
            ]
            while missing and self._pending and not self._fits(missing):
                if not now:
                    return False
                for request in [*self._pending.values()][: len(self._pending) // 4 + 1]:
                    self._drop(request)
            for range_ in missing[:_MAX_PENDING_REQUESTS]:
                if self._pending_bytes + range_.stop - range_.start <= _MAX_PENDING_BYTES:
                    self._put(range_)
        return True

    def _fits(self, new: Sequence[ByteRange]) -> bool:
        new_bytes = sum(range_.stop - range_.start for range_ in new)
        return (
            self._pending_bytes + new_bytes <= _MAX_PENDING_BYTES
            and len(self._pending) + len(new) <= _MAX_PENDING_REQUESTS
        )

    def read(self, range_: ByteRange) -> bytes | memoryview:
        """Return the bytes of a range, waiting for the parts in flight and fetching the others."""
        self._reset_after_fork()
        if range_.name not in self._requests:
            return self._fetch(range_)
        parts, offset = list[bytes | memoryview](), range_.start
        while offset < range_.stop:
            request, stop = self._locate(range_.name, offset, range_.stop)
            data = None if request is None else self._consume(request, offset, stop)
            parts.append(
                self._fetch(ByteRange(range_.name, offset, stop)) if data is None else data
            )
            offset = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def each(self, fn: Callable[[T], U], items: Sequence[T]) -> list[U]:
        """Apply a function to items with many threads; return the results in order."""
        if len(items) < 2:
            return [fn(item) for item in items]
        futures = [self._submit(fn, item) for item in items]
        try:
            return [future.result() for future in futures]
        except CancelledError:  # another thread called `close`
            return self.each(fn, items)

    def forget(self, name: str) -> None:
        """Drop all requests for an object."""
        with self._lock:
            for request in list(self._requests.get(name, [])):
                self._drop(request)

    def close(self, seconds: float | None = None) -> None:
        """Drop all requests and stop the threads.

        Args:
            seconds: the longest time to wait for the threads; `None` for no limit.
        """
        with self._lock:
            threads, self._threads = self._threads, None
            (
                self._requests,
                self._pending,
                self._consumed,
                self._pending_bytes,
                self._consumed_bytes,
            ) = {}, {}, {}, 0, 0
        if threads is not None and threads[0] == machine.get_pid():
            threads[1].close(seconds)

    def _reset_after_fork(self) -> None:
        """Clear this buffer in a forked child, which does not own the threads."""
        if self._process != machine.get_pid():
            self.__init__(self._fetch)

    def _submit(self, fn: Callable[[T], U], item: T) -> Task:
        with self._lock:
            if self._threads is None:
                self._threads = machine.get_pid(), seams.world.sched.spawn(_MAX_CONCURRENT)
            return self._threads[1].submit(lambda: fn(item))

    def _put(self, range_: ByteRange) -> None:
        request = _Request(range_, self._submit(self._fetch, range_))
        key, size = id(request), range_.stop - range_.start
        requests = self._requests.setdefault(range_.name, [])
        index = bisect_right(requests, range_.start, key=_get_request_start)
        # Plain stores and one C call: an interrupt cannot leave them half done.
        self._pending_bytes, self._pending[key] = self._pending_bytes + size, request
        requests.insert(index, request)

    def _missing_parts(self, range_: ByteRange) -> list[ByteRange]:
        """Return the parts of a range that are not in flight, each at most `_MAX_REQUEST` bytes."""
        parts, offset = list[ByteRange](), range_.start
        while offset < range_.stop:
            request, stop = self._locate(range_.name, offset, range_.stop)
            if request is None:
                cuts = (
                    [*range((offset // _MAX_REQUEST + 1) * _MAX_REQUEST, stop, _MAX_REQUEST)]
                    if stop - offset > _MAX_REQUEST
                    else []
                )
                parts += [ByteRange(range_.name, *span) for span in pairwise([offset, *cuts, stop])]
            offset = stop
        return parts

    def _locate(self, name: str, offset: int, stop: int) -> tuple[_Request | None, int]:
        """Return the request that covers an offset, if any, and the end of that part."""
        with self._lock:
            requests = self._requests.get(name, [])
            index = bisect_right(requests, offset, key=_get_request_start)
            if index and offset < requests[index - 1].range.stop:
                return requests[index - 1], min(stop, requests[index - 1].range.stop)
            return None, min(stop, requests[index].range.start) if index < len(requests) else stop

    def _consume(self, request: _Request, start: int, stop: int) -> memoryview | None:
        """Return bytes of a request; `None` if it failed, so that the caller fetches them."""
        try:
            data = request.future.result()
        except Exception:
            self._drop(request)
            return None
        request.consumed += stop - start
        if request.consumed >= request.range.stop - request.range.start:
            self._retain_consumed(request)
        return memoryview(data)[start - request.range.start : stop - request.range.start]

    def _retain_consumed(self, request: _Request) -> None:
        """Keep a consumed request while there is room: the next reads may share its edges."""
        with self._lock:
            key, size = id(request), request.range.stop - request.range.start
            if key in self._pending:
                self._pending_bytes, self._consumed_bytes, self._consumed[key] = (
                    self._pending_bytes - size,
                    self._consumed_bytes + size,
                    request,
                )
                self._pending.pop(key)
            while self._consumed_bytes > _MAX_CONSUMED_BYTES:
                self._drop(next(iter(self._consumed.values())))

    def _drop(self, request: _Request) -> None:
        with self._lock:
            size, key = request.range.stop - request.range.start, id(request)
            # A plain store and one C call each: an interrupt cannot leave them half done.
            if key in self._pending:
                self._pending_bytes -= size
                self._pending.pop(key)
            elif key in self._consumed:
                self._consumed_bytes -= size
                self._consumed.pop(key)
            requests = self._requests.get(request.range.name, [])
            with suppress(ValueError):
                requests.remove(request)
            if not requests:
                self._requests.pop(request.range.name, None)


def merge_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge adjacent and overlapping ranges of each object.

    >>> merge_ranges([ByteRange("a", 5, 9), ByteRange("a", 0, 5), ByteRange("b", 0, 2), ByteRange("a", 20, 21)])
    [ByteRange(name='a', start=0, stop=9), ByteRange(name='a', start=20, stop=21), ByteRange(name='b', start=0, stop=2)]
    """
    merged = list[ByteRange]()
    for range_ in sorted(ranges):
        if merged and merged[-1].name == range_.name and range_.start <= merged[-1].stop:
            merged[-1] = merged[-1]._replace(stop=max(range_.stop, merged[-1].stop))
        else:
            merged.append(range_)
    return merged
