"""HTTP and HTTPS by the standard library: ranged reads over connections that are kept, and
redirects looked at."""

from __future__ import annotations

import base64
import http.client
import io
import re
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from string import punctuation
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from ..engine.base import machine, seams
from ..engine.base.limits import ANSWER, OBJECT
from ..engine.base.thread_pool import is_abandoned
from .addresses import is_blocked
from .client import Answer, PermanentError, ObjectInfo, RetryableError, UnresolvedHost, error_for_status, seconds

_SECONDS = 30.0  # until a request is taken for lost
_LOOK = 0.5  # after which it is seen whether anybody still waits
_SLOWEST = (
    4 << 10
)  # bytes a second for which there is more time: 64 answers at once on a link of 2 Mbit/s
_IDLE = 64  # connections that are kept
_REDIRECTS = 5
_PIECE = 1 << 20  # bytes of an answer that are read at once
_PACKED = (
    ".gz",
    ".tgz",
    ".zst",
    ".zstd",
    ".bz2",
    ".xz",
    ".br",
)  # of these servers tell what the file is packed as
_PACKING = re.compile(r"gzip|deflate|compress|br\b|zstd", re.IGNORECASE)
_MOVED = (301, 302, 303, 307, 308)
_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")
_HOST = re.compile(r"[^\x00-\x20\x7f]+")
_BLOCKED = "it redirects to an address inside of this machine's network, which is not followed: give that URL itself"


class Reply:
    """What a server answered, whole."""

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes, peer: str) -> None:
        self.status, self.data, self.peer = status, data, peer
        self.headers = {name.lower(): value for name, value in headers.items()}

    def failure(self) -> Exception:
        return error_for_status(self.status, after=self.headers.get("retry-after"))


class _Timely(io.RawIOBase):
    """An answer as it comes in. It has so many seconds as a whole, and more of them only with the
    bytes that come."""

    def __init__(self, until: float, connection: Any) -> None:
        self._until, self._socket, self._raw = (
            until,
            connection,
            connection.makefile("rb", buffering=0),
        )

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = min(self._until - seams.world.sched.now(), _SECONDS)
        while left > 0 and not machine.readable(self._socket, min(left, _LOOK)):
            left = 0 if is_abandoned() else left - _LOOK
        if left <= 0:
            raise TimeoutError
        many = self._raw.readinto(buffer) or 0
        self._until += many / _SLOWEST
        return many

    def close(self) -> None:
        self._raw.close()
        super().close()


class HttpClient:
    """`full` tells for a URL the one that is asked, which may hold a password or a signature."""

    def __init__(self, full: Callable[[str], str]) -> None:
        self._full = full
        self._idle: list[tuple[tuple[str, str], http.client.HTTPConnection]] = []
        self._lock, self._closed = machine.lock(), False

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        raise PermanentError(
            "a web server does not tell what it has: name the files, {000..099} for many of them"
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop()[-1].close()

    def __del__(self) -> None:
        for (
            _,
            connection,
        ) in self._idle:  # without the lock, which another thread may have held at a fork
            connection.close()

    def stat(self, url: str, /) -> ObjectInfo:
        reply = self._ask("HEAD", url, {})
        size = reply.headers.get("content-length", "")
        # Signatures and simple servers are for GET alone, and HEAD may tell no size, or 0, of what
        # is made for a GET.
        if reply.status in (403, 405, 501) or (reply.status == 200 and size in ("", "0")):
            reply = self._ask("GET", url, {"Range": "bytes=0-0"})
            if reply.status == 416:  # of nothing there is no first byte
                reply = self._ask("GET", url, {})
            part = _RANGE.match(reply.headers.get("content-range", ""))
            size = str(len(reply.data)) if reply.status == 200 else part[3] if part else ""
        if reply.status not in (200, 206):
            raise reply.failure()
        if not size.isdecimal():
            raise PermanentError("the server does not tell how large it is: copy it to a local folder")
        if len(size) > len(str(OBJECT)) or int(size) > OBJECT:
            raise PermanentError(
                f"the server tells that it has more than {OBJECT:,} bytes, which is not believed"
            )
        return ObjectInfo(
            url, int(size), reply.headers.get("etag", ""), _time(reply.headers.get("last-modified"))
        )

    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> Answer:
        reply = self._ask("GET", url, {"Range": f"bytes={start}-{stop - 1}"}, stop - start)
        etag, modified = reply.headers.get("etag"), _time(reply.headers.get("last-modified"))
        if reply.status == 206:
            part = _RANGE.match(reply.headers.get("content-range", ""))
            if part is None or (int(part[1]), int(part[2])) != (start, stop - 1):
                raise RetryableError("it answered with other bytes than those that were asked for")
            return Answer(reply.data, int(part[3]), etag, modified)
        if reply.status != 200:
            raise reply.failure()
        return Answer(memoryview(reply.data)[start:stop], len(reply.data), etag, modified)

    def _ask(self, method: str, url: str, headers: Mapping[str, str], size: int = 1) -> Reply:
        target = full = self._full(url)
        _split(full)
        until, inside = (
            seams.world.sched.now() + _patience(),
            None,
        )  # whether who was asked is of our network
        for _ in range(_REDIRECTS + 1):
            reply = self._once(
                method, target, {**headers, **_login(full, target)}, size, until, inside
            )
            inside = is_blocked(reply.peer, False) if inside is None else inside
            if reply.status not in _MOVED or "location" not in reply.headers:
                packed = _PACKING.search(reply.headers.get("content-encoding", ""))
                if packed and reply.status < 300 and not urlsplit(full).path.endswith(_PACKED):
                    raise PermanentError(
                        f"the server packs it as {packed[0]}, and was asked not to: copy it to a "
                        "local folder"
                    )
                return reply
            parts = _split(target, reply.headers["location"])
            if parts.scheme not in ("http", "https") or (
                parts.scheme == "http" and target.startswith("https:")
            ):
                raise PermanentError(
                    "it redirects to an address that is not of HTTP, or from HTTPS to HTTP, which "
                    "is not followed"
                )
            if is_blocked(parts.hostname or "", inside):
                raise PermanentError(_BLOCKED)
            target = parts.geturl()
        raise PermanentError(f"it redirects more than {_REDIRECTS} times")

    def _once(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        size: int,
        until: float,
        inside: bool | None,
    ) -> Reply:
        parts = urlsplit(target)
        place = parts.scheme, parts.netloc.rpartition("@")[2]
        query = f"?{quote(parts.query, punctuation)}" if parts.query else ""
        asked = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + query
        headers, proxy = {"Accept-Encoding": "identity", **headers}, _proxy(parts)
        if proxy is not None and parts.scheme == "http":
            asked, headers = (
                f"http://{place[1]}{asked}",
                {**headers, **_basic(proxy, "Proxy-Authorization")},
            )
        connection, named = self._connection(place, proxy), parts.hostname if proxy else None
        connection.response_class = cast("Any", partial(_answer, until))
        try:
            try:
                peer = _connected(connection, named, inside)
                connection.request(method, asked, headers=headers)
                response = connection.getresponse()
            except (
                ConnectionError,
                http.client.BadStatusLine,
            ):  # one that was kept, and that the server gave up
                connection.close()
                peer = _connected(connection, named, inside)
                connection.request(method, asked, headers=headers)
                response = connection.getresponse()
            with response:
                told, most = response.length, size if response.status == 206 else max(size, ANSWER)
                data = _whole(response, most + 1) if told is None or told <= most else None
                if response.status == 206 and (data is None or len(data) > most):
                    raise RetryableError("it answered with more bytes than were asked for")
                if response.status == 200 and (data is None or len(data) > most):
                    raise PermanentError(
                        "the server gives no parts of files, but all of them: copy it to a local "
                        "folder"
                    )
                if told is not None and data is not None and len(data) < told:
                    raise RetryableError(f"the answer was cut off: {len(data):,} of {told:,} bytes came")
                reply = Reply(response.status, dict(response.getheaders()), data or b"", peer)
                whole = response.isclosed()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise PermanentError(f"its certificate is not to be trusted: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if machine.is_unresolved(error):
                raise UnresolvedHost from None
            raise RetryableError(_said(error)) from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            full = self._closed or len(self._idle) >= _IDLE
            if full or not whole or reply.headers.get("connection", "").lower() == "close":
                connection.close()
            else:
                self._idle.append((place, connection))
        return reply

    def _connection(self, place: tuple[str, str], proxy: str | None) -> http.client.HTTPConnection:
        """One to this place that nobody uses, or a new one."""
        with self._lock:
            for number, (whose, connection) in enumerate(self._idle):
                if whose == place:
                    del self._idle[number]
                    if connection.sock:
                        connection.sock.settimeout(_patience())
                    return connection
        secure = place[0] == "https"
        options: dict[str, Any] = {"context": ssl.create_default_context()} if secure else {}
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        if proxy is None:
            return kind(place[1], timeout=_patience(), **options)
        connection = kind(proxy.rpartition("@")[2], timeout=_patience(), **options)
        if secure:
            connection.set_tunnel(place[1], headers=_basic(proxy, "Proxy-Authorization"))
        return connection


def _split(url: str, further: str = "") -> SplitResult:
    """The parts of a URL, and of where it leads on to, that can be asked."""
    with suppress(
        ValueError
    ):  # of a host that no name service takes, and of a port that is no number
        parts = urlsplit(urljoin(url, further))
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or (
            _HOST.fullmatch(host) and host.encode("idna") and parts.port != 0
        ):
            return parts
    raise PermanentError("no server has such an address: see its host and its port")


def _connected(
    connection: http.client.HTTPConnection, named: str | None, inside: bool | None
) -> str:
    """Connect to a server, or to the proxy that is asked for one which is `named`; the address of
    the server. `inside` is told where another server led on to it."""
    if connection.sock is None:
        there = (
            [] if named or inside is None else machine.addresses(connection.host)
        )  # at one may be nobody to connect
        if any(is_blocked(one, inside is True) for one in there):
            raise PermanentError(_BLOCKED)
        connection.connect()
    try:
        address = named or str(cast("Any", connection.sock).getpeername()[0])
    except OSError:
        raise ConnectionResetError from None
    if inside is not None and is_blocked(address, inside):
        raise PermanentError(_BLOCKED)
    return address


def _proxy(parts: SplitResult) -> str | None:
    """The proxy that the environment names for a host, with its login."""
    if any(
        map(urllib.request.proxy_bypass, (parts.netloc.rpartition("@")[2], parts.hostname or ""))
    ):
        return None
    found = urllib.request.getproxies().get(parts.scheme)
    return None if not found else urlsplit(found if "://" in found else f"http://{found}").netloc


def _login(full: str, target: str) -> dict[str, str]:
    """The user and the password of a URL, for its own host alone."""
    first, now = urlsplit(full), urlsplit(target)
    if (first.scheme, first.netloc.rpartition("@")[2]) != (
        now.scheme,
        now.netloc.rpartition("@")[2],
    ):
        return {}
    return _basic(first.netloc, "Authorization")


def _basic(place: str, header: str) -> dict[str, str]:
    """The login in front of a host, in a header."""
    user, at, _ = place.rpartition("@")
    return {header: f"Basic {base64.b64encode(unquote(user).encode()).decode()}"} if at else {}


def _whole(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read an answer in pieces: memory is taken for the bytes that come, not for those that were
    told."""
    pieces, left = list[bytes](), most
    while left and (piece := response.read(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _answer(until: float, connection: Any, **more: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(cast("Any", _Timely(until, connection)), **more)


def _patience() -> float:
    """How long a server has to begin its answer: never longer than it would be asked again."""
    return min(_SECONDS, max(seconds(), 1.0))


def _said(error: BaseException) -> str:
    """What went wrong, without what was asked."""
    if isinstance(error, http.client.IncompleteRead):
        return f"the answer was cut off after {len(error.partial):,} bytes"
    if isinstance(error, TimeoutError):
        return f"no answer within {_patience():g} s, or too slow a one"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if found := _TUNNEL.match(str(error)):
        return f"the proxy answers {error_for_status(int(found[1]))}"
    return type(error).__name__


def _time(told: str | None) -> int:
    with suppress(TypeError, ValueError):
        return int(parsedate_to_datetime(told or "").timestamp() * 1e9)
    return 0
