"""HTTP client by the standard library: range requests, kept connections, checked redirects."""

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
from ..engine.base.thread_pool import is_abandoned
from . import network
from .addresses import is_blocked
from .client import (
    ObjectInfo,
    PermanentError,
    RetryableError,
    StoreAnswer,
    UnresolvedHost,
    error_for_status,
    get_timeout_seconds,
)
from .limits import ANSWER, OBJECT

_POLL_SECONDS = 0.5  # between checks that the caller still waits
_MIN_BYTES_PER_SECOND = 4 << 10  # extends the timeout; 64 answers at once on a link of 2 Mbit/s
_MAX_IDLE = 64  # connections
_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 20  # bytes per read of an answer
_HEADER_BYTES = 1 << 20  # of one answer, interim ones (1xx) included
# Servers report the compression of these files themselves as their content encoding.
_COMPRESSED_EXTENSIONS = (".gz", ".tgz", ".zst", ".zstd", ".bz2", ".xz", ".br")
_CONTENT_CODING = re.compile(r"gzip|deflate|compress|br\b|zstd", re.IGNORECASE)
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")
_TUNNEL_ERROR = re.compile(r"Tunnel connection failed: (\d{3})\b")
_VALID_HOST = re.compile(r"[^\x00-\x20\x7f]+")
_BLOCKED_REDIRECT_REASON = (
    "it redirects to an address inside of this machine's network, which is not followed: "
    "give that URL itself"
)


class Reply:
    """A complete HTTP response."""

    def __init__(self, status: int, headers: Mapping[str, str], data: bytes, peer: str) -> None:
        self.status, self.data, self.peer = status, data, peer
        self.headers = {name.lower(): value for name, value in headers.items()}

    def failure(self) -> Exception:
        return error_for_status(self.status, after=self.headers.get("retry-after"))


class _TimedStream(io.RawIOBase):
    """Response stream with a deadline, which arriving bytes extend, up to an allowance of bytes.

    Without the allowance a server could send interim answers, trailers or chunk extensions forever.
    """

    def __init__(self, until: float, connection: Any) -> None:
        self.allowance, self._idle_limit = _HEADER_BYTES, get_timeout_seconds()
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
        seconds_left = min(self._until - seams.world.sched.now(), self._idle_limit)
        while seconds_left > 0 and not network.is_readable(
            self._socket, min(seconds_left, _POLL_SECONDS)
        ):
            seconds_left = 0 if is_abandoned() else seconds_left - _POLL_SECONDS
        if seconds_left <= 0:
            raise TimeoutError
        count = self._raw.readinto(buffer) or 0
        self.allowance -= count
        if self.allowance < 0:
            raise RetryableError("the server answered with more bytes than requested")
        self._until += count / _MIN_BYTES_PER_SECOND
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """Response with a deadline and an allowance of bytes."""

    def __init__(self, until: float, connection: Any, **options: Any) -> None:
        self._stream = _TimedStream(until, connection)
        super().__init__(cast("Any", self._stream), **options)

    def begin(self) -> None:
        super().begin()
        # Chunks may have a line for a few bytes.
        self._stream.allowance += 8 * ANSWER if self.length is None else self.length


class HttpClient:
    """Client for `http` and `https` URLs.

    Args:
        full: returns the request URL, with password and signature, of a name.
    """

    def __init__(self, full: Callable[[str], str]) -> None:
        self._secret_url = full
        self._idle: list[tuple[tuple[str, str], http.client.HTTPConnection]] = []
        self._lock, self._closed = machine.make_lock(), False

    def list(self, prefix: str, flat: bool, /) -> Iterator[ObjectInfo]:
        raise PermanentError(
            "a web server does not list its files: name them, with {000..099} for many"
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop()[-1].close()

    def __del__(self) -> None:
        # Without the lock: another thread may have held it at a fork.
        for _, connection in self._idle:
            connection.close()

    def stat(self, url: str, /) -> ObjectInfo:
        reply = self._request("HEAD", url, {})
        size = reply.headers.get("content-length", "")
        # Signed URLs and simple servers accept GET alone; HEAD may lack the size of generated content.
        if reply.status in (403, 405, 501) or (reply.status == 200 and size in ("", "0")):
            reply = self._request("GET", url, {"Range": "bytes=0-0"})
            if reply.status == 416:  # an empty object has no first byte
                reply = self._request("GET", url, {})
            part = _CONTENT_RANGE.match(reply.headers.get("content-range", ""))
            size = str(len(reply.data)) if reply.status == 200 else part[3] if part else ""
        if reply.status not in (200, 206):
            raise reply.failure()
        if not size.isdecimal():
            raise PermanentError("the server does not report its size: copy it to a local folder")
        if len(size) > len(str(OBJECT)) or int(size) > OBJECT:
            raise PermanentError(
                f"the server reports an implausible size, more than {OBJECT:,} bytes"
            )
        return ObjectInfo(
            url,
            int(size),
            reply.headers.get("etag", ""),
            _parse_http_date(reply.headers.get("last-modified")),
        )

    def read(self, url: str, start: int, stop: int, pinned: ObjectInfo, /) -> StoreAnswer:
        reply = self._request("GET", url, {"Range": f"bytes={start}-{stop - 1}"}, stop - start)
        etag, modified = (
            reply.headers.get("etag"),
            _parse_http_date(reply.headers.get("last-modified")),
        )
        if reply.status == 206:
            part = _CONTENT_RANGE.match(reply.headers.get("content-range", ""))
            if part is None or (int(part[1]), int(part[2])) != (start, stop - 1):
                raise RetryableError(
                    "the server answered with a different byte range than requested"
                )
            return StoreAnswer(reply.data, int(part[3]), etag, modified)
        if reply.status != 200:
            raise reply.failure()
        return StoreAnswer(memoryview(reply.data)[start:stop], len(reply.data), etag, modified)

    def _request(self, method: str, url: str, headers: Mapping[str, str], size: int = 1) -> Reply:
        target = secret_url = self._secret_url(url)
        _split_url(secret_url)
        deadline = seams.world.sched.now() + get_timeout_seconds()
        inside = None  # whether the first server is in a local network
        for _ in range(_MAX_REDIRECTS + 1):
            reply = self._send(
                method,
                target,
                {**headers, **_build_login_header(secret_url, target)},
                size,
                deadline,
                inside,
            )
            inside = is_blocked(reply.peer, False) if inside is None else inside
            if reply.status not in _REDIRECT_STATUSES or "location" not in reply.headers:
                coding = _CONTENT_CODING.search(reply.headers.get("content-encoding", ""))
                if (
                    coding
                    and reply.status < 300
                    and not urlsplit(secret_url).path.endswith(_COMPRESSED_EXTENSIONS)
                ):
                    raise PermanentError(
                        f"the server compresses it as {coding[0]} against the request: copy it to a "
                        "local folder"
                    )
                return reply
            parts = _split_url(target, reply.headers["location"])
            if parts.scheme not in ("http", "https") or (
                parts.scheme == "http" and target.startswith("https:")
            ):
                raise PermanentError(
                    "it redirects to an address that is not HTTP, or from HTTPS to HTTP, which is "
                    "not followed: give that URL itself"
                )
            if is_blocked(parts.hostname or "", inside):
                raise PermanentError(_BLOCKED_REDIRECT_REASON)
            target = parts.geturl()
        raise PermanentError(f"it redirects more than {_MAX_REDIRECTS} times")

    def _send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        size: int,
        deadline: float,
        inside: bool | None,
    ) -> Reply:
        parts = urlsplit(target)
        host = parts.scheme, parts.netloc.rpartition("@")[2]
        query = f"?{quote(parts.query, punctuation)}" if parts.query else ""
        request_target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + query
        headers, proxy = {"Accept-Encoding": "identity", **headers}, _find_proxy(parts)
        if proxy is not None and parts.scheme == "http":
            request_target, headers = (
                f"http://{host[1]}{request_target}",
                {**headers, **_build_basic_header(proxy, "Proxy-Authorization")},
            )
        connection, proxied_host = self._connection(host, proxy), parts.hostname if proxy else None
        connection.response_class = cast("Any", partial(_TimedResponse, deadline))
        try:
            try:
                peer = _connect(connection, proxied_host, inside)
                connection.request(method, request_target, headers=headers)
                response = connection.getresponse()
            except (
                ConnectionError,
                http.client.BadStatusLine,
            ):  # the server closed an idle connection
                connection.close()
                peer = _connect(connection, proxied_host, inside)
                connection.request(method, request_target, headers=headers)
                response = connection.getresponse()
            with response:
                content_length, limit = (
                    response.length,
                    size if response.status == 206 else max(size, ANSWER),
                )
                data = (
                    _read_body(response, limit + 1)
                    if content_length is None or content_length <= limit
                    else None
                )
                if response.status == 206 and (data is None or len(data) > limit):
                    raise RetryableError("the server answered with more bytes than requested")
                if response.status == 200 and (data is None or len(data) > limit):
                    raise PermanentError(
                        "the server does not support range requests: copy it to a local folder"
                    )
                if content_length is not None and data is not None and len(data) < content_length:
                    raise RetryableError(
                        f"the answer was cut off after {len(data):,} of {content_length:,} bytes"
                    )
                reply = Reply(response.status, dict(response.getheaders()), data or b"", peer)
                is_complete = response.isclosed()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise PermanentError(
                f"its certificate is not trusted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if network.is_unresolved(error):
                raise UnresolvedHost from None
            raise RetryableError(_describe_error(error)) from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            is_full = self._closed or len(self._idle) >= _MAX_IDLE
            if is_full or not is_complete or reply.headers.get("connection", "").lower() == "close":
                connection.close()
            else:
                self._idle.append((host, connection))
        return reply

    def _connection(self, host: tuple[str, str], proxy: str | None) -> http.client.HTTPConnection:
        """Return an idle connection to this host, or a new one."""
        with self._lock:
            for index, (connected_host, connection) in enumerate(self._idle):
                if connected_host == host:
                    del self._idle[index]
                    if connection.sock:
                        connection.sock.settimeout(get_timeout_seconds())
                    return connection
        secure = host[0] == "https"
        options: dict[str, Any] = {"context": ssl.create_default_context()} if secure else {}
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        if proxy is None:
            return kind(host[1], timeout=get_timeout_seconds(), **options)
        connection = kind(proxy.rpartition("@")[2], timeout=get_timeout_seconds(), **options)
        if secure:
            connection.set_tunnel(
                host[1], headers=_build_basic_header(proxy, "Proxy-Authorization")
            )
        return connection


def _split_url(url: str, location: str = "") -> SplitResult:
    """Return the parts of a URL, resolved against a redirect.

    Raises:
        PermanentError: if the host or the port is invalid.
    """
    with suppress(ValueError):  # an invalid host name or port
        parts = urlsplit(urljoin(url, location))
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or (
            _VALID_HOST.fullmatch(host) and host.encode("idna") and parts.port != 0
        ):
            return parts
    raise PermanentError("the address is invalid: check its host and its port")


def _connect(
    connection: http.client.HTTPConnection, proxied_host: str | None, inside: bool | None
) -> str:
    """Connect to a server or to its proxy; return the address of the server.

    Args:
        connection: the connection, open or not.
        proxied_host: the host behind a proxy.
        inside: whether the redirecting server is in a local network; `None` without a redirect.
    """
    if connection.sock is None:
        addresses = (
            [] if proxied_host or inside is None else network.resolve_host(connection.host)
        )  # checked before the connection opens
        if any(is_blocked(candidate, inside is True) for candidate in addresses):
            raise PermanentError(_BLOCKED_REDIRECT_REASON)
        connection.connect()
    try:
        address = proxied_host or str(cast("Any", connection.sock).getpeername()[0])
    except OSError:
        raise ConnectionResetError from None
    if inside is not None and is_blocked(address, inside):
        raise PermanentError(_BLOCKED_REDIRECT_REASON)
    return address


def _find_proxy(parts: SplitResult) -> str | None:
    """Return the proxy, with its login, that the environment names for a host."""
    if any(
        map(urllib.request.proxy_bypass, (parts.netloc.rpartition("@")[2], parts.hostname or ""))
    ):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return None if not proxy else urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc


def _build_login_header(secret_url: str, target: str) -> dict[str, str]:
    """Return the login header of a URL, for its own host only."""
    original, current = urlsplit(secret_url), urlsplit(target)
    if (original.scheme, original.netloc.rpartition("@")[2]) != (
        current.scheme,
        current.netloc.rpartition("@")[2],
    ):
        return {}
    return _build_basic_header(original.netloc, "Authorization")


def _build_basic_header(netloc: str, header: str) -> dict[str, str]:
    """Return the login before a host as a Basic header."""
    user, separator, _ = netloc.rpartition("@")
    return (
        {header: f"Basic {base64.b64encode(unquote(user).encode()).decode()}"} if separator else {}
    )


def _read_body(response: http.client.HTTPResponse, limit: int) -> bytes:
    """Read a body in chunks, so that memory grows with received bytes, not announced ones."""
    chunks, remaining = list[bytes](), limit
    while remaining and (chunk := response.read(min(remaining, _CHUNK_BYTES))):
        chunks.append(chunk)
        remaining -= len(chunk)
    return b"".join(chunks)


def _describe_error(error: BaseException) -> str:
    """Return an error as text, without the request."""
    if isinstance(error, http.client.IncompleteRead):
        return f"the answer was cut off after {len(error.partial):,} bytes"
    if isinstance(error, TimeoutError):
        return f"no answer within {get_timeout_seconds():g} s, or a too slow one"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if match := _TUNNEL_ERROR.match(str(error)):
        return f"the proxy answers {error_for_status(int(match[1]))}"
    return type(error).__name__


def _parse_http_date(header: str | None) -> int:
    with suppress(TypeError, ValueError):
        return int(parsedate_to_datetime(header or "").timestamp() * 1e9)
    return 0
