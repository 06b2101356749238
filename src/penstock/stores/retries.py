"""Retry requests to stores with exponential backoff; check answers for the pinned version."""

from __future__ import annotations

import errno
import hashlib
import re
import zlib
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from ..engine.base import machine, seams
from ..engine.base.event_counts import EVENT_COUNTS
from ..engine.base.thread_pool import is_abandoned
from ..errors import GivenUpError, PenstockError
from .client import (
    RETRY_SECONDS_VARIABLE,
    NotFound,
    ObjectInfo,
    PermanentError,
    RetryableError,
    StoreClient,
    UnresolvedHost,
    UnsupportedName,
    VersionMismatch,
    get_retry_seconds,
)
from .urls import get_scheme, redact_urls

T = TypeVar("T")

_DOT_FOLDER = re.compile(r"/\.{1,2}(?:/|$)")
_FIRST_PAUSE, _MAX_PAUSE = 0.2, 10.0
_UNRESOLVED_SECONDS = 5.0  # a wrong host name stays wrong


class RetryingClients:
    """The store clients of a process, with retries.

    Args:
        secret_url: returns the request URL, with its secrets, of a name.
    """

    def __init__(self, secret_url: Callable[[str], str]) -> None:
        self._secret_url = secret_url
        self._clients: dict[tuple[int, str], StoreClient] = {}
        self._lock = machine.make_lock()

    def list(self, prefix: str, flat: bool, mark: str = "") -> list[ObjectInfo]:
        """Return all objects whose URLs begin with a prefix.

        Keys with `.` or `..` as a folder are left out, since no path can name them.

        Args:
            prefix: the beginning of the URLs.
            flat: list only the objects and folders directly in this folder.
            mark: the digest of the login that lists.
        """
        objects = self._retry(prefix, lambda: self._list_all(prefix, flat, mark))
        return [
            _strip_info_etag(info)
            for info in objects
            if not _DOT_FOLDER.search(info.url.split("://", 1)[1].rstrip("/"))
        ]

    def _list_all(self, prefix: str, flat: bool, mark: str) -> list[ObjectInfo]:
        try:
            return [*self._client(prefix + mark).list(prefix, flat)]
        except UnsupportedName:
            if get_scheme(prefix) not in ("s3", "s3a"):
                raise
        from .fsspec_client import FsspecClient  # one invalid name does not stop its listings

        return [*FsspecClient(prefix, self._secret_url).list(prefix, flat)]

    def some(self, prefix: str, mark: str = "") -> bool:
        """Return whether any object's URL begins with a prefix."""
        return self._retry(prefix, lambda: self._any_object(prefix, mark))

    def _any_object(self, prefix: str, mark: str) -> bool:
        try:
            return next(self._client(prefix + mark).list(prefix, False), None) is not None
        except UnsupportedName:
            return True

    def stat(self, url: str) -> ObjectInfo:
        """Return the current version of an object.

        Raises:
            FileNotFoundError: if there is none.
        """
        return self._retry(url, lambda: _strip_info_etag(self._client(url).stat(url)))

    def read(self, pinned: ObjectInfo, start: int, stop: int) -> bytes | memoryview:
        """Return bytes of one version of an object.

        Args:
            pinned: the object and its version.
            start: first byte.
            stop: byte after the last.

        Raises:
            GivenUpError: if the object changed, or the store does not answer in time.
        """
        return self._retry(pinned.url, lambda: self._read_once(pinned, start, stop))

    def _read_once(self, pinned: ObjectInfo, start: int, stop: int) -> bytes | memoryview:
        try:
            data, size, etag, modified = self._client(pinned.url).read(
                pinned.url, start, stop, pinned
            )
            if size not in (None, pinned.size) or not pinned.same(strip_etag(etag or ""), modified):
                raise VersionMismatch
        except VersionMismatch:
            current = _strip_info_etag(self._client(pinned.url).stat(pinned.url))
            if current.size == pinned.size and pinned.same(current.etag, current.modified):
                raise RetryableError("the store answered with a different object") from None
            raise changed_error(pinned, current) from None
        if len(data) != stop - start:
            raise RetryableError(
                f"the answer was cut off after {len(data):,} of {stop - start:,} bytes"
            )
        return data

    def close(self) -> None:
        """Close all clients and their connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for (process, _), client in clients.items():
            if process == machine.get_pid():
                client.close()

    def _client(self, url: str) -> StoreClient:
        scheme = get_scheme(url)
        url_with_secrets, host = self._secret_url(url), ""
        # A client belongs to one login, and to the rest of a chained URL.
        if scheme not in ("http", "https"):
            host, _, path = url_with_secrets.split("://", 1)[1].partition("/")
            host = (
                url_with_secrets
                if "::" in url_with_secrets
                else f"{host}//"
                if "//" in path
                else host
            )
        key = machine.get_pid(), f"{scheme}://{host}"
        if (client := self._clients.get(key)) is None:
            with self._lock:
                client = self._clients.get(key) or self._clients.setdefault(
                    key, self._create_client(url, scheme)
                )
        return client

    def _create_client(self, url: str, scheme: str) -> StoreClient:
        if scheme in ("http", "https"):
            from .http_client import HttpClient

            return HttpClient(self._secret_url)
        from . import obstore_client

        if obstore_client.is_usable(url) and self._secret_url(url) == url:
            return obstore_client.ObstoreClient(url)
        from .fsspec_client import FsspecClient

        return FsspecClient(url, self._secret_url)

    def _retry(self, url: str, request: Callable[[], T]) -> T:
        sched, tries = seams.world.sched, 0
        start, limit = sched.now(), get_retry_seconds()
        while not is_abandoned():
            tries += 1
            try:
                return request()
            except (PenstockError, ImportError, MemoryError):
                raise
            except NotFound:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", url) from None
            except PermanentError as error:
                raise GivenUpError(
                    f"{url}: {redact_urls(str(error))}{_suggest_credentials(error)}"
                ) from None
            except Exception as error:
                reason = (
                    redact_urls(str(error))
                    if isinstance(error, RetryableError)
                    else type(error).__name__
                )
                pause = getattr(error, "after", None) or _compute_pause(url, tries)
                limit = (
                    min(limit, _UNRESOLVED_SECONDS)
                    if isinstance(error, UnresolvedHost)
                    else get_retry_seconds()
                )
            spent = sched.now() - start
            if spent + pause > limit:
                raise GivenUpError(
                    f"{url}: {reason}; tried {tries} times within {spent:.0f} s "
                    f"({RETRY_SECONDS_VARIABLE}={limit:g}): check that the store is up and reachable"
                )
            EVENT_COUNTS.add("retries")
            sched.sleep(pause)
        raise CancelledError  # a thread that still waits sends its own request


def changed_error(pinned: ObjectInfo, current: ObjectInfo) -> GivenUpError:
    """Return the error for an object that changed during a run.

    Args:
        pinned: the version that the run began with.
        current: the current version.
    """
    return GivenUpError(
        f"{pinned.url} was changed while it was in use (it had {format_version(pinned)}, "
        f"now {format_version(current)}): open it again, and do not change data during a run"
    )


def format_version(info: ObjectInfo) -> str:
    """Return a version as text; of an etag, which may hold any text, only a digest."""
    time = f", modified {info.modified / 1e9:.3f} s after 1970" if info.modified else ""
    digest = hashlib.blake2b(info.etag.encode(), digest_size=4).hexdigest()
    return f"{info.size:,} bytes{f', version {digest}' if info.etag else time}"


def strip_etag(etag: str) -> str:
    """Return an etag without quotes, which listings and answers write differently."""
    return etag.removeprefix("W/").strip('"')


def _strip_info_etag(info: ObjectInfo) -> ObjectInfo:
    return info._replace(etag=strip_etag(info.etag))


def _compute_pause(url: str, tries: int) -> float:
    """Return the pause before a retry: exponential backoff with jitter."""
    jitter = (
        zlib.crc32(f"{url} {machine.get_pid()} {machine.get_thread_id()} {tries}".encode()) / 2**32
    )
    return min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** (tries - 1)) * (0.5 + jitter / 2)


def _suggest_credentials(error: PermanentError) -> str:
    is_refused = str(error).startswith(
        ("401", "403", "407", "Permission", "Unauthenticated", "NoCredentials")
    )
    return (
        ": give this process credentials, as the store's own tools read them" if is_refused else ""
    )
