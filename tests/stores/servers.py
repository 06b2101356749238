"""Servers for the tests of stores: files over HTTP with ranges and etags, S3 by moto, and what makes both misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Fault = Callable[["Handler"], bool]
"""Answers a request in another way than asked; whether it did."""


class Site(ThreadingHTTPServer):
    """Files of a folder, or another server, over HTTP. `faults` are tried in turn, one a request, and used up."""

    daemon_threads = True

    def __init__(
        self,
        folder: Path | None = None,
        upstream: str = "",
        delay: float = 0.0,
        host: str = "127.0.0.1",
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), Handler)
        self.folder, self.upstream, self.delay = folder, upstream, delay
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, str, str]] = []  # method, path, range
        self.sent, self.busy, self.most, self.salt = 0, 0, 0, ""
        self.lock = threading.Lock()
        self.files: dict[Any, tuple[bytes, str]] = {}
        self.always: Fault | None = None
        self.login = ""

    @property
    def url(self) -> str:
        host = self.server_address[0]
        return f"http://{f'[{host}]' if ':' in str(host) else host}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Site

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._do()

    def do_GET(self) -> None:
        self._do()

    def do_CONNECT(self) -> None:
        self._do()

    def do_PUT(self) -> None:
        self._do()

    def _do(self) -> None:
        site = self.server
        with site.lock:
            site.asked.append((self.command, self.path, self.headers.get("Range", "")))
            site.busy += 1
            site.most = max(site.most, site.busy)
            fault = site.faults.pop(0) if site.faults else site.always
        try:
            if site.delay:
                time.sleep(site.delay)
            if fault is not None and fault(self):
                return
            self.forward() if site.upstream else self.serve()
        finally:
            with site.lock:
                site.busy -= 1

    def etag(self, data: bytes) -> str:
        return f'"{hashlib.md5(data + self.server.salt.encode()).hexdigest()}"'

    def serve(self) -> None:
        assert self.server.folder is not None
        if self.server.login and self.headers.get("Authorization") != self.server.login:
            return self.answer(401, b"")
        path = self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            return self.answer(404, b"no such file")
        found = path.stat()
        known = path, found.st_mtime_ns, found.st_ino, self.server.salt
        if known not in self.server.files:
            data = path.read_bytes()
            self.server.files[known] = data, self.etag(data)
        data, etag = self.server.files[known]
        told = {"ETag": etag, "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(part[1]), min(int(part[2] or len(data)) + 1, len(data))
            if start >= len(data):
                return self.answer(416, b"")
            return self.answer(
                206,
                data[start:stop],
                {**told, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"},
            )
        return self.answer(200, data, told)

    def answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            sent = body if cut is None else body[:cut]
            with self.server.lock:  # before who asked has it, and looks at the sum
                self.server.sent += len(sent)
            self.wfile.write(sent)
        if cut is not None:
            self.close_connection = True

    def asked_upstream(self) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(self.server.upstream)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(parts.netloc, timeout=20)
        connection.request(self.command, self.path, body, dict(self.headers))
        reply = connection.getresponse()
        data = reply.read()
        gone = ("connection", "transfer-encoding", "date", "server", "content-length")
        headers = {k: v for k, v in reply.getheaders() if k.lower() not in gone}
        length = reply.getheader("content-length")
        headers["Content-Length"] = (
            str(len(data)) if self.command != "HEAD" or length is None else length
        )
        connection.close()
        return reply.status, data, headers

    def forward(self) -> None:
        status, data, headers = self.asked_upstream()
        self.answer(status, data, headers)


# ---------------------------------------------------------------- faults


def status(code: int, **headers: str) -> Fault:
    """This status, and nothing else."""

    def fault(handler: Handler) -> bool:
        handler.answer(
            code,
            b"<Error><Code>Fault</Code></Error>",
            {k.replace("_", "-"): v for k, v in headers.items()},
        )
        return True

    return fault


def reset(handler: Handler) -> bool:
    """The connection ends without an answer."""
    handler.close_connection = True
    handler.connection.close()
    return True


def _whole(handler: Handler) -> tuple[int, bytes, dict[str, str]]:
    if handler.server.upstream:
        return handler.asked_upstream()
    sent: list[Any] = []
    handler.answer = lambda status, body, headers=None, cut=None: sent.append(
        (status, body, headers or {})
    )  # type: ignore[method-assign]
    handler.serve()
    del handler.answer
    return sent[0]


def cut(handler: Handler) -> bool:
    """Half of the body."""
    code, body, headers = _whole(handler)
    handler.answer(code, body, headers, cut=len(body) // 2)
    return True


def short(handler: Handler) -> bool:
    """Half of the body, as if that were all."""
    code, body, headers = _whole(handler)
    headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
    handler.answer(code, body[: len(body) // 2], headers)
    return True


def swapped(handler: Handler) -> bool:
    """The body of another object."""
    if handler.command == "HEAD":
        return False
    code, body, headers = _whole(handler)
    headers = {k: v for k, v in headers.items() if k.lower() not in ("etag", "content-length")}
    handler.answer(code, bytes(reversed(body)), {**headers, "ETag": '"another"'})
    return True


def chunked(parts: bool, head: dict[str, str]) -> Fault:
    """No size, but in the answers to ranges where there are such; `head` is what HEAD says of it."""

    def fault(handler: Handler) -> bool:
        if not parts:
            del handler.headers["Range"]
        code, body, rest = _whole(handler)
        if handler.command == "HEAD":
            handler.send_response(200)
            for name, value in head.items():
                handler.send_header(name, value)
            handler.end_headers()
            return True
        if code != 200:
            handler.answer(code, body, rest)
            return True
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(0, len(body), size := 1000 + len(body) // 50):
            piece = body[at : at + size]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")
        return True

    return fault


def told(headers: Callable[[], dict[str, str]]) -> Fault:
    """Return a fault that answers the request with these headers in place of an etag."""

    def fault(handler: Handler) -> bool:
        code, body, rest = _whole(handler)
        rest.pop("ETag", None)
        handler.answer(code, body, {**rest, **headers()})
        return True

    return fault


def moved(to: str) -> Fault:
    return lambda handler: (handler.answer(302, b"", {"Location": to + handler.path}), True)[1]


@contextlib.contextmanager
def site(
    folder: Path | None = None, upstream: str = "", delay: float = 0.0, host: str = "127.0.0.1"
) -> Iterator[Site]:
    server = Site(folder, upstream, delay, host)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """A server of S3, by moto."""
    from moto.server import ThreadedMotoServer  # type: ignore[import-untyped]

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
