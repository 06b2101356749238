"""Stores asked with patience: what may pass is asked again for a while, answers are compared with
what was pinned."""

from __future__ import annotations

import errno
import hashlib
import re
import zlib
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from ..engine.base import machine, seams
from ..engine.base.event_counts import EVENTS
from ..engine.base.thread_pool import is_abandoned
from ..engine.base.urls import redacted, scheme_of
from ..errors import GivenUpError, PenstockError
from .client import (
    DEADLINE,
    Client,
    PermanentError,
    ObjectInfo,
    NotFound,
    RetryableError,
    VersionMismatch,
    UnsupportedName,
    UnresolvedHost,
    seconds,
)

T = TypeVar("T")

_NO_PATH = re.compile(r"/\.{1,2}(?:/|$)")
_FIRST, _LONGEST = 0.2, 10.0
_UNRESOLVED = 5.0  # seconds for which a name service may be asked again


class RetryingClients:
    """The clients of a process, and what is done when they fail. `full` tells the URL that is asked
    for a name."""

    def __init__(self, full: Callable[[str], str]) -> None:
        self._full = full
        self._clients: dict[tuple[int, str], Client] = {}
        self._lock = machine.lock()

    def list(self, prefix: str, flat: bool, mark: str = "") -> list[ObjectInfo]:
        """All objects whose URLs begin like this, or what is right in this folder, as the user sees
        them of whom the
        `mark` is the digest. Left out is what no path can name: keys with `.` or `..` as a
            folder."""
        found = self._patiently(prefix, lambda: self._all(prefix, flat, mark))
        return [
            _bare(one)
            for one in found
            if not _NO_PATH.search(one.url.split("://", 1)[1].rstrip("/"))
        ]

    def _all(self, prefix: str, flat: bool, mark: str) -> list[ObjectInfo]:
        try:
            return [*self._client(prefix + mark).list(prefix, flat)]
        except UnsupportedName:
            if scheme_of(prefix) not in ("s3", "s3a"):
                raise
        from .fsspec_client import FsspecClient  # whose listings are not stopped by one name

        return [*FsspecClient(prefix, self._full).list(prefix, flat)]

    def some(self, prefix: str, mark: str = "") -> bool:
        """Whether any object's URL begins like this."""
        return self._patiently(prefix, lambda: self._any(prefix, mark))

    def _any(self, prefix: str, mark: str) -> bool:
        try:
            return next(self._client(prefix + mark).list(prefix, False), None) is not None
        except UnsupportedName:
            return True

    def stat(self, url: str) -> ObjectInfo:
        """An object as it is now; `FileNotFoundError` where there is none."""
        return self._patiently(url, lambda: _bare(self._client(url).stat(url)))

    def read(self, pinned: ObjectInfo, start: int, stop: int) -> bytes | memoryview:
        """Bytes of an object of a version, all of them."""
        return self._patiently(pinned.url, lambda: self._once(pinned, start, stop))

    def _once(self, pinned: ObjectInfo, start: int, stop: int) -> bytes | memoryview:
        try:
            data, size, etag, modified = self._client(pinned.url).read(
                pinned.url, start, stop, pinned
            )
            if size not in (None, pinned.size) or not pinned.same(bare(etag or ""), modified):
                raise VersionMismatch
        except VersionMismatch:
            now = _bare(self._client(pinned.url).stat(pinned.url))
            if now.size == pinned.size and pinned.same(now.etag, now.modified):
                raise RetryableError("it answered with another object") from None
            raise changed(pinned, now) from None
        if len(data) != stop - start:
            raise RetryableError(f"the answer was cut off: {len(data):,} of {stop - start:,} bytes came")
        return data

    def close(self) -> None:
        """Let go of the clients, and of the connections that they keep."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for (process, _), client in clients.items():
            if process == machine.process():
                client.close()

    def _client(self, url: str) -> Client:
        scheme = scheme_of(url)
        full, place = self._full(url), ""
        if scheme not in (
            "http",
            "https",
        ):  # who asks belongs to a client, and of a chain all that is behind it
            place, _, path = full.split("://", 1)[1].partition("/")
            place = full if "::" in full else f"{place}//" if "//" in path else place
        key = machine.process(), f"{scheme}://{place}"
        if (found := self._clients.get(key)) is None:
            with self._lock:
                found = self._clients.get(key) or self._clients.setdefault(
                    key, self._new(url, scheme)
                )
        return found

    def _new(self, url: str, scheme: str) -> Client:
        if scheme in ("http", "https"):
            from .http_client import HttpClient

            return HttpClient(self._full)
        from . import obstore_client

        if obstore_client.usable(url) and self._full(url) == url:
            return obstore_client.ObstoreClient(url)
        from .fsspec_client import FsspecClient

        return FsspecClient(url, self._full)

    def _patiently(self, url: str, ask: Callable[[], T]) -> T:
        sched, tries = seams.world.sched, 0
        began, most = sched.now(), seconds()
        while not is_abandoned():
            tries += 1
            try:
                return ask()
            except (PenstockError, ImportError, MemoryError):
                raise
            except NotFound:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", url) from None
            except PermanentError as error:
                raise GivenUpError(f"{url}: {redacted(str(error))}{_help(error)}") from None
            except Exception as error:
                reason = redacted(str(error)) if isinstance(error, RetryableError) else type(error).__name__
                pause = getattr(error, "after", None) or _pause(url, tries)
                most = min(most, _UNRESOLVED) if isinstance(error, UnresolvedHost) else seconds()
            spent = sched.now() - began
            if spent + pause > most:
                raise GivenUpError(
                    f"{url}: {reason}; asked {tries} times within {spent:.0f} s "
                    f"({DEADLINE}={most:g}): see whether the "
                    "store is up and can be reached"
                )
            EVENTS.add("retries")
            sched.sleep(pause)
        raise CancelledError  # who waits after all, for another one's thread, asks again


def changed(pinned: ObjectInfo, now: ObjectInfo) -> GivenUpError:
    """What is raised where an object is not the one any more that a run began with."""
    return GivenUpError(
        f"{pinned.url} was changed while it was in use (it had {told(pinned)}, now {told(now)}): "
        "open it again, and "
        "keep data still during a run"
    )


def told(found: ObjectInfo) -> str:
    """Return a version in words. Of an etag, which a server may write anything into, only a digest
    is shown."""
    time = f", modified {found.modified / 1e9:.3f} s after 1970" if found.modified else ""
    digest = hashlib.blake2b(found.etag.encode(), digest_size=4).hexdigest()
    return f"{found.size:,} bytes{f', version {digest}' if found.etag else time}"


def bare(etag: str) -> str:
    """An etag without its quotes: listings and answers write them differently."""
    return etag.removeprefix("W/").strip('"')


def _bare(found: ObjectInfo) -> ObjectInfo:
    return found._replace(etag=bare(found.etag))


def _pause(url: str, tries: int) -> float:
    """Twice as long from one try to the next, and never the same for two processes."""
    dice = zlib.crc32(f"{url} {machine.process()} {machine.thread()} {tries}".encode()) / 2**32
    return min(_LONGEST, _FIRST * 2 ** (tries - 1)) * (0.5 + dice / 2)


def _help(error: PermanentError) -> str:
    refused = str(error).startswith(
        ("401", "403", "407", "Permission", "Unauthenticated", "NoCredentials")
    )
    return (
        ": give this process credentials for it, in the way of this store's own tools"
        if refused
        else ""
    )
