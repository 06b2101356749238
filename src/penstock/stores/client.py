"""What a store is asked, and how it may fail: four kinds of failures, whoever answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple, Protocol

from ..engine.base import machine
from ..engine.base.seams import Stat
from ..errors import ConfigError

DEADLINE = "PENSTOCK_STORE_SECONDS"
"""How long a store is asked again for one thing, in the environment: 60 seconds where it is not
set."""

_SECONDS = 60.0


class ObjectInfo(NamedTuple):
    """An object of a store: its URL, size in bytes, etag (or another word for its version; empty
    where the store tells none), and when it was modified, in nanoseconds (0 where that is not
    told)."""

    url: str
    size: int
    etag: str
    modified: int = 0

    @property
    def versioned(self) -> bool:
        """Whether anything but its size tells one version from another."""
        return bool(self.etag or self.modified)

    def same(self, etag: str, modified: int) -> bool:
        """Whether a version may be this one: the etag decides, the time only where one of the two
        has none."""
        if etag and self.etag:
            return etag == self.etag
        return self.modified == modified or not (self.modified and modified)

    def stat(self) -> Stat:
        """As a version of a file: the etag decides, and the time only where there is none. Times of
        stores are below 0, so that they are taken for no time."""
        told = self.etag or (str(self.modified) if self.modified else "")
        digest = hashlib.blake2b(told.encode(), digest_size=8).digest()
        return Stat(self.size, -1 - (int.from_bytes(digest, "little") >> 2) if told else 0)


class Answer(NamedTuple):
    """Bytes from a store, with what it said of the whole object: its size and etag, `None` where it
    did not, and when it was modified, 0 where it did not."""

    data: bytes | memoryview
    size: int | None
    etag: str | None
    modified: int = 0


class Client(Protocol):
    """How one store is asked. Names are URLs without secrets. Everything else than what is below
    may be raised too: it is taken for a failure that may pass."""

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        """All objects whose URLs begin with this one; `flat`: those right in this folder, and its
        folders, whose URLs end with a slash."""
        ...

    def stat(self, url: str, /) -> ObjectInfo: ...
    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> Answer: ...
    def close(self) -> None: ...


class RetryableError(Exception):
    """A failure that may pass: asked again, after so many seconds where the store said how many."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class UnresolvedHost(RetryableError):
    """The host name does not resolve: retried for a few seconds only, since a wrong name stays
    wrong."""

    def __init__(self) -> None:
        super().__init__("its host name does not resolve")


class PermanentError(Exception):
    """Asked again it would be refused again: no credentials, or the wrong ones."""


class UnsupportedName(PermanentError):
    """A name that this client cannot take, of one object or of what is listed."""


class NotFound(Exception):
    """There is no such object."""


class VersionMismatch(Exception):
    """The answer is not of the version that was asked for."""


_PASSES = (408, 425, 429)
_STATUSES = frozenset(map(int, HTTPStatus))


def seconds() -> float:
    """How long a store is asked again for one thing."""
    if (told := machine.environment(DEADLINE)) is None:
        return _SECONDS
    with suppress(ValueError):
        if 0 <= (found := float(told)) < math.inf:
            return found
    raise ConfigError(
        f"{DEADLINE}={told!r} in the environment: write a number of seconds, 60 say (0 to ask once)"
    )


def error_for_status(status: int, reason: str = "", after: str | None = None) -> Exception:
    """Return the failure that an HTTP status means, in the standard's words: those of a server may
    hold secrets.

    Args:
        status: The status code.
        reason: More about it, never a text of the server's.
        after: The `Retry-After` header.

    >>> error_for_status(503, after="3"), error_for_status(404), error_for_status(599)
    (RetryableError('503 Service Unavailable'), NotFound('404 Not ObjectInfo'), RetryableError('599'))
    """
    phrase = HTTPStatus(status).phrase if status in _STATUSES else ""
    said = " ".join(filter(None, (str(status), phrase, reason and f"({reason})")))
    if status in (404, 410):
        return NotFound(said)
    if status in (401, 403, 407):
        return PermanentError(said)
    if status in (412, 416):
        return VersionMismatch(said)
    if status in _PASSES or status >= 500:
        return RetryableError(said, _pause(after or ""))
    return PermanentError(said)


def _pause(told: str) -> float | None:
    """For how many seconds a store asks to be left alone: as a number or as a time, `None` where
    that is neither."""
    if told.strip().isdecimal():
        return float(told)
    with suppress(TypeError, ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(told).timestamp() - machine.clock())
    return None
