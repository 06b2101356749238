"""The client protocol of stores, their answers and errors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple, Protocol

from ..engine.base import machine
from ..errors import ConfigError
from . import storage
from .storage import Stat

RETRY_SECONDS_VARIABLE = "PENSTOCK_STORE_SECONDS"
"""Environment variable with the number of seconds to retry one request; 60 by default."""

_DEFAULT_RETRY_SECONDS = 60.0
TIMEOUT_SECONDS = 30.0
"""Seconds without a byte after which a request fails, so that it is retried within the default."""


class ObjectInfo(NamedTuple):
    """A version of a remote object.

    Attributes:
        url: the URL, without secrets.
        size: bytes.
        etag: the etag, or another name of the version; empty if the store reports none.
        modified: modification time in nanoseconds; 0 if the store reports none.
    """

    url: str
    size: int
    etag: str
    modified: int = 0

    @property
    def versioned(self) -> bool:
        """Return whether an etag or a time identifies the version, not its size alone."""
        return bool(self.etag or self.modified)

    def same(self, etag: str, modified: int) -> bool:
        """Return whether a version may be this one.

        Etags decide; times are compared only if one of the two has no etag.
        """
        if etag and self.etag:
            return etag == self.etag
        return self.modified == modified or not (self.modified and modified)

    def stat(self) -> Stat:
        """Return the version as a file stat.

        The time is a negative digest of the version, so that it is never taken for a real time.
        """
        version = self.etag or (str(self.modified) if self.modified else "")
        digest = hashlib.blake2b(version.encode(), digest_size=8).digest()
        return Stat(self.size, -1 - (int.from_bytes(digest, "little") >> 2) if version else 0)


class StoreAnswer(NamedTuple):
    """Bytes from a store, and the version that it reported.

    Attributes:
        data: the bytes.
        size: the size of the whole object; `None` if not reported.
        etag: its etag; `None` if not reported.
        modified: its modification time in nanoseconds; 0 if not reported.
    """

    data: bytes | memoryview
    size: int | None
    etag: str | None
    modified: int = 0


class StoreClient(Protocol):
    """Requests to one store; names are URLs without secrets.

    Methods may raise any other exception too: the caller takes it for a temporary failure.
    """

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        """List all objects whose URLs begin with a prefix.

        Args:
            prefix: the beginning of the URLs.
            flat: list only the objects and folders directly in this folder; folders end with a
                slash.
        """
        ...

    def stat(self, url: str, /) -> ObjectInfo: ...
    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> StoreAnswer: ...
    def close(self) -> None: ...


class RetryableError(Exception):
    """A temporary failure; retried after the delay that the store requests, if any."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class UnresolvedHost(RetryableError):
    """Host name resolution failed; retried for a few seconds only."""

    def __init__(self) -> None:
        super().__init__("its host name does not resolve")


class PermanentError(Exception):
    """A failure that a retry cannot fix, such as missing credentials."""


class UnsupportedName(PermanentError):
    """This client cannot handle the name of an object, or of one in a listing."""


class NotFound(Exception):
    """There is no such object."""


class VersionMismatch(Exception):
    """The answer belongs to another version of the object."""


_RETRYABLE_STATUSES = (408, 425, 429)
_KNOWN_STATUSES = frozenset(map(int, HTTPStatus))


def get_retry_seconds() -> float:
    """Return the number of seconds to retry one request.

    Raises:
        ConfigError: if the environment variable is not a number.
    """
    if (text := machine.read_environment_variable(RETRY_SECONDS_VARIABLE)) is None:
        return _DEFAULT_RETRY_SECONDS
    with suppress(ValueError):
        if 0 <= (value := float(text)) < math.inf:
            return value
    raise ConfigError(
        f"{RETRY_SECONDS_VARIABLE}={text!r} in the environment: write a number of "
        "seconds, such as 60 (0 for no retries)"
    )


def get_timeout_seconds() -> float:
    """Return the timeout of one request, at most the total time for retries."""
    return min(TIMEOUT_SECONDS, max(get_retry_seconds(), 1.0))


def error_for_status(status: int, reason: str = "", after: str | None = None) -> Exception:
    """Return the store error for an HTTP status.

    The reason phrase comes from the standard: a server's own text may hold secrets.

    Args:
        status: the status code.
        reason: details, never text of the server.
        after: the `Retry-After` header.

    >>> error_for_status(503, after="3"), error_for_status(404), error_for_status(599)
    (RetryableError('503 Service Unavailable'), NotFound('404 Not Found'), RetryableError('599'))
    """
    phrase = HTTPStatus(status).phrase if status in _KNOWN_STATUSES else ""
    text = " ".join(filter(None, (str(status), phrase, reason and f"({reason})")))
    if status in (404, 410):
        return NotFound(text)
    if status in (401, 403, 407):
        return PermanentError(text)
    if status in (412, 416):
        return VersionMismatch(text)
    if status in _RETRYABLE_STATUSES or status >= 500:
        return RetryableError(text, _parse_retry_after(after or ""))
    return PermanentError(text)


def _parse_retry_after(header: str) -> float | None:
    """Return the seconds in a `Retry-After` header, a number or a date; `None` if neither."""
    if header.strip().isdecimal():
        return float(header)
    with suppress(TypeError, ValueError, OverflowError):
        from email.utils import parsedate_to_datetime  # loads sockets and all of email

        return max(0.0, parsedate_to_datetime(header).timestamp() - storage.read_wall_time())
    return None
