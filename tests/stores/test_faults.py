"""Stores that fail: what passes is asked again for a while, then raised by name; what is wrong is never taken."""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.app import app
from penstock.errors import ConfigError, StorageError
from penstock.stores import client, fsspec_client, network, obstore_client, storage
from penstock.stores import http_client as module
from penstock.stores.client import UnresolvedHost

from . import servers
from .conftest import Clock

ROWS = [{"id": i} for i in range(200)]
BODY = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CANARY = "kanarie-9f31"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[servers.Site]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "x.jsonl").write_bytes(BODY)
    with servers.site(tmp_path / "www") as found:
        yield found


PASSING = {
    "500": servers.status(500),
    "503": servers.status(503),
    "429": servers.status(429, Retry_After="7"),
    "reset": servers.reset,
    "cut": servers.cut,
    "short": servers.short,
    "swapped": servers.swapped,
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_again(name: str, site: servers.Site, clock: Clock) -> None:
    ds = ps.read(f"{site.url}/x.jsonl")
    for many in (1, 3):
        site.faults = [PASSING[name]] * many
        assert storage.world.store.read(f"{site.url}/x.jsonl", 5, 40) == BODY[5:45]
    assert list(ds) == ROWS
    if name == "429":
        assert clock.slept == [7.0] * 4
    elif name != "reset":
        assert clock.slept and all(0.1 <= pause <= 10 for pause in clock.slept)


@pytest.mark.parametrize("name", PASSING)
def test_what_does_not_pass_is_raised_by_name(name: str, site: servers.Site, clock: Clock) -> None:
    ds = ps.read(f"{site.url}/x.jsonl").map(lambda row: row)
    site.always = PASSING[name]
    with pytest.raises(
        StorageError, match=rf"{site.url}/x.jsonl: .*tried \d+ times within \d+ s"
    ) as caught:
        storage.world.store.read(f"{site.url}/x.jsonl", 5, 40)
    assert 30 < clock.now() <= 60 and caught.value.__cause__ is None
    # No sample is to blame, so none is set aside for it.
    with (
        ps.Loader(ds, on_error="quarantine", max_errors=1000) as loader,
        pytest.raises(StorageError),
    ):
        list(loader)


def test_how_long_is_in_the_environment(
    site: servers.Site, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "3")
    site.always = servers.status(503)
    with pytest.raises(StorageError, match="503"):
        ps.read(f"{site.url}/x.jsonl")
    assert clock.now() <= 3


@pytest.mark.parametrize("told", ["nan", "inf", "-inf", "1e999", "-1", "a minute", ""])
def test_how_long_is_a_number(
    told: str, site: servers.Site, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", told)
    site.faults = [servers.status(503)]
    with pytest.raises(
        ConfigError, match=f"PENSTOCK_STORE_SECONDS='{told}' in the environment: write a number"
    ):
        ps.read(f"{site.url}/x.jsonl")
    assert not site.asked and not clock.slept


def test_what_is_refused_is_not_asked_again(site: servers.Site, clock: Clock) -> None:
    site.always = servers.status(403)
    with pytest.raises(StorageError, match=r"403.*: give this process credentials"):
        ps.read(f"{site.url}/x.jsonl")
    assert not clock.slept


@pytest.mark.parametrize("code", [403, 404, 409, 503])
def test_no_text_of_a_server_is_in_a_message(
    code: int, site: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(handler: servers.Handler) -> bool:
        handler.send_response(code, f"sig={CANARY}")
        handler.send_header("Content-Length", "0")
        handler.send_header("ETag", CANARY)
        handler.send_header("Location", f"{CANARY}://x")
        handler.end_headers()
        return True

    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "0")
    site.always = answers
    with pytest.raises((StorageError, FileNotFoundError, ConfigError)) as caught:
        ps.read(f"{site.url}/x.jsonl")
    assert CANARY not in str(caught.value)
    with servers.site(site.folder) as other:
        other.always = servers.moved(f"{CANARY}:/")
        with pytest.raises(StorageError, match="redirects") as caught:
            ps.read(f"{other.url}/x.jsonl")
    assert CANARY not in str(caught.value)


def test_a_host_that_does_not_resolve_fails_within_five_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    def resolves_nothing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, CANARY)

    monkeypatch.setattr(socket, "getaddrinfo", resolves_nothing)
    with pytest.raises(StorageError, match="host name does not resolve"):
        ps.read("http://nobody.example/x.jsonl")
    assert clock.now() <= 5


def test_every_client_tells_a_host_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    wrapped = RuntimeError("cannot connect")
    wrapped.__context__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert isinstance(fsspec_client._to_store_error(wrapped), UnresolvedHost)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://nobody.invalid")
    with pytest.raises(UnresolvedHost):
        obstore_client.ObstoreClient("s3://bucket").stat("s3://bucket/x")


@pytest.mark.parametrize(
    "place", ["[::1", "host:port", "host:99999999", "a..b", "a" * 70, "a b", ":80"]
)
def test_what_is_no_url_is_refused_at_once(place: str, site: servers.Site, clock: Clock) -> None:
    with pytest.raises(StorageError, match="the address is invalid"):
        storage.world.store.stat(f"http://{place}/x.jsonl")
    site.always = servers.moved(f"http://{place}")
    with pytest.raises(StorageError, match="the address is invalid"):
        ps.read(f"{site.url}/x.jsonl")
    assert not clock.slept


def test_any_letter_may_be_in_a_query(site: servers.Site, clock: Clock) -> None:
    assert list(ps.read(f"{site.url}/x.jsonl?a=ü b&c=%20+/")) == ROWS and not clock.slept
    assert site.asked[-1][1] == "/x.jsonl?a=%C3%BC%20b&c=%20+/"


def test_a_store_may_say_by_the_clock_when_to_come_back(site: servers.Site, clock: Clock) -> None:
    for after, least, most in (
        (
            format_datetime(
                datetime.fromtimestamp(storage.read_wall_time() + 20, UTC), usegmt=True
            ),
            15,
            20,
        ),
        ("Mon, 01 Jan 1990 00:00:00 GMT", 0.1, 0.2),
        ("soon", 0.1, 0.2),
        ("\u00b2", 0.1, 0.2),
        ("Mon, 99 Jan 0000 00:00:00 GMT", 0.1, 0.2),
    ):
        site.faults, clock.slept = [servers.status(503, Retry_After=after)], []
        assert list(ps.read(f"{site.url}/x.jsonl")) == ROWS
        assert len(clock.slept) == 1 and least <= clock.slept[0] <= most, after


def test_redirects_are_followed_but_not_everywhere(site: servers.Site, tmp_path: Path) -> None:
    with servers.site(tmp_path / "www") as other:
        site.always = servers.moved(other.url)
        assert list(ps.read(f"{site.url}/x.jsonl")) == ROWS
        site.always, site.faults = None, [servers.moved(site.url)] * 5
        assert storage.world.store.read(f"{site.url}/x.jsonl", 0, 5) == BODY[:5] and not site.faults
        site.always, other.always = servers.moved(other.url), servers.moved(site.url)
        with pytest.raises(StorageError, match="more than 5 times"):
            ps.read(f"{site.url}/x.jsonl")
    for to in ("http://169.254.169.254", "file:///etc/passwd", "http://metadata.google.internal"):
        site.always = servers.moved(to)
        with pytest.raises(StorageError, match="not followed"):
            ps.read(f"{site.url}/x.jsonl")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "nobody.example"]
)
@pytest.mark.parametrize(
    "direct", ["127.0.0.1,localhost,2130706433,[::ffff:127.0.0.1],nobody.example", ""]
)
def test_nobody_outside_leads_on_to_our_own_networks(
    host: str,
    direct: str,
    site: servers.Site,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host == "nobody.example":
        monkeypatch.setattr(network, "resolve_host", lambda host: ["10.11.12.13"])
    with servers.site(tmp_path / "www") as proxy:  # the way to what lies outside
        proxy.faults = [
            servers.status(302, Location=f"http://{host}:{site.server_address[1]}/x.jsonl")
        ] * 2
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", direct)
        if direct or "127" in host:
            with pytest.raises(
                StorageError, match=r"far.example/x.jsonl: .*inside of this machine's network"
            ):
                ps.read("http://far.example/x.jsonl")
        else:  # what a name is for a proxy, it knows
            assert list(ps.read("http://far.example/x.jsonl")) == ROWS
    assert not site.asked and not clock.slept


def test_a_server_without_ranges_serves_small_files(site: servers.Site) -> None:
    def whole(handler: Any) -> bool:
        del handler.headers["Range"]
        handler.serve()
        return True

    site.always = whole
    assert list(ps.read(f"{site.url}/x.jsonl")) == ROWS


HEADS = {"none": {"Transfer-Encoding": "chunked"}, "0": {"Content-Length": "0"}}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("parts", [True, False])
def test_a_size_that_is_not_told_is_found_out(
    parts: bool, head: str, site: servers.Site, tmp_path: Path
) -> None:
    site.always = servers.chunked(parts, HEADS[head])
    assert list(ps.read(f"{site.url}/x.jsonl", cache=tmp_path / "c")) == ROWS
    (tmp_path / "www" / "empty.jsonl").write_bytes(b"")
    assert storage.world.store.stat(f"{site.url}/empty.jsonl").size == 0
    if not parts:
        (tmp_path / "www" / "large.jsonl").write_bytes(b"\n" * ((8 << 20) + 1))
        with pytest.raises(StorageError, match="does not support range requests"):
            ps.read(f"{site.url}/large.jsonl")


FLOODS = {
    "does not support range": (200, {}),
    "more bytes than requested": (206, {"Content-Range": "bytes 5-44/99"}),
}


@pytest.mark.parametrize("said", FLOODS)
@pytest.mark.parametrize("length", [None, 1 << 30])
def test_an_answer_without_an_end_is_not_taken(
    said: str, length: int | None, site: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER", 1 << 16)
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "1")
    sent = [0]

    def flood(handler: servers.Handler) -> bool:
        code, headers = FLOODS[said]
        handler.send_response(code)
        more = (
            {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
        )
        for name, value in {**headers, **more}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection, sent[0] = True, 0
        while sent[0] < 64 << 20:
            handler.wfile.write(
                (b"100000\r\n" if length is None else b"") + bytes(1 << 20) + b"\r\n"
            )
            sent[0] += 1 << 20
        return True

    ps.read(f"{site.url}/x.jsonl")
    site.always = flood
    with pytest.raises(StorageError, match=said):
        storage.world.store.read(f"{site.url}/x.jsonl", 5, 40)
    assert sent[0] < 32 << 20  # what the system holds of connections


class Slow:
    """A connection on which so many bytes come at a time, with so many seconds from one to the next."""

    def __init__(self, data: bytes, at_once: int, seconds: float, clock: Clock) -> None:
        self._data, self._at_once, self._seconds, self._clock = (
            io.BytesIO(data),
            at_once,
            seconds,
            clock,
        )

    def makefile(self, mode: str, buffering: int) -> Any:
        return self

    def readinto(self, buffer: memoryview) -> int:
        self._clock.sleep(self._seconds)
        return self._data.readinto(buffer[: self._at_once])

    def close(self) -> None:
        pass


def test_an_answer_has_a_time_as_a_whole(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def readable(_: object, seconds: float) -> bool:
        assert 0 < seconds <= 0.5
        return True

    monkeypatch.setattr(module.network, "is_readable", readable)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n"
    whole = head + bytes(2_000_000)

    def read(at_once: int, seconds: float, of: bytes = whole) -> int:
        connection: Any = Slow(of, at_once, seconds, clock)
        answer = module._TimedResponse(clock.now() + client.get_timeout_seconds(), connection)
        answer.begin()
        return len(answer.read(2_000_001))

    assert read(1 << 14, 2.0) == 2_000_000  # slow, and honest: 8 KiB a second
    for at_once, of in (
        (1, whole),
        (64, head + whole),
        (1, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 99),
    ):
        began = clock.now()
        with pytest.raises(TimeoutError):
            read(at_once, 1.0, of)
        assert clock.now() - began < 32
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "5")
    began = clock.now()
    with pytest.raises(TimeoutError):
        read(1, 1.0)
    assert clock.now() - began < 7


def test_an_answer_has_a_limit_of_bytes_around_its_body(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.network, "is_readable", lambda *_: True)
    monkeypatch.setattr(module, "ANSWER", 1 << 20)
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for of in (
        interim,
        chunked + b"0\r\n" + b"A: b\r\n" * (2 << 20),
        chunked + (b"1;" + b"x" * 60_000 + b"\r\na\r\n") * 300,
    ):
        answer = module._TimedResponse(clock.now() + 30, cast("Any", Slow(of, 1 << 20, 0, clock)))
        with pytest.raises(module.RetryableError, match="more bytes than requested"):
            answer.begin()
            module._read_body(answer, 1 << 20)
    whole = interim[: 25 * 20_000] + chunked + (b"1;abcdefghi\r\na\r\n") * 100_000 + b"0\r\n\r\n"
    answer = module._TimedResponse(clock.now() + 30, cast("Any", Slow(whole, 1 << 20, 0, clock)))
    answer.begin()
    assert module._read_body(answer, 1 << 20) == b"a" * 100_000


def test_a_mixture_file_that_cannot_be_reached_is_asked_for_once(
    site: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "0")
    site.always = servers.status(503)
    with pytest.raises(ConfigError, match="503 Service Unavailable"):
        ps.load(f"{site.url}/m.yaml")
    assert len(site.asked) == 1


def test_an_answer_that_stops_half_way_is_given_up(
    site: servers.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "1")
    over = threading.Event()

    def stall(handler: servers.Handler) -> bool:
        handler.send_response(206)
        for name, value in (("Content-Range", f"bytes 5-44/{len(BODY)}"), ("Content-Length", "40")):
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(BODY[5:20])
        over.wait(60)
        return True

    ps.read(f"{site.url}/x.jsonl")
    site.always = stall
    try:
        with pytest.raises(StorageError, match=r"no answer within 0\.1 s"):
            storage.world.store.read(f"{site.url}/x.jsonl", 5, 40)
    finally:
        over.set()


def test_what_a_server_packs_is_refused_by_name(site: servers.Site, clock: Clock) -> None:
    folder = site.folder
    assert folder is not None
    (folder / "x.jsonl.gz").write_bytes(gzip.compress(BODY))

    def tells(handler: servers.Handler) -> bool:
        assert handler.headers["Accept-Encoding"] == "identity"
        code, body, headers = servers._whole(handler)
        handler.answer(code, body, {**headers, "Content-Encoding": "gzip"})
        return True

    site.always = tells
    assert list(ps.read(f"{site.url}/x.jsonl.gz")) == ROWS  # told of the file as it lies there
    with pytest.raises(StorageError, match="compresses it as gzip"):
        ps.read(f"{site.url}/x.jsonl")
    assert not clock.slept


def test_an_empty_file_of_a_server_that_knows_get_alone(site: servers.Site) -> None:
    assert site.folder is not None
    (site.folder / "empty.jsonl").write_bytes(b"")

    def get_alone(handler: Any) -> bool:
        return handler.command == "HEAD" and servers.status(405)(handler)

    site.always = get_alone
    assert len(ps.read([f"{site.url}/empty.jsonl", f"{site.url}/x.jsonl"])) == len(ROWS)


def test_a_server_that_goes_and_comes_back(
    site: servers.Site, tmp_path: Path, clock: Clock
) -> None:
    ds = ps.read(f"{site.url}/x.jsonl").shuffle()
    expected = list(ds)
    site.faults = [servers.reset] * 12 + [servers.status(503)] * 3
    assert list(ds) == expected


def test_a_proxy_is_told_its_login_and_nobody_else(
    site: servers.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []

    def login(handler: Any) -> bool:
        seen.append((handler.command, handler.headers.get("Proxy-Authorization")))
        if (
            handler.headers.get("Proxy-Authorization")
            != f"Basic {base64.b64encode(b'me:p@w').decode()}"
        ):
            handler.answer(407, b"")
            return True
        if handler.command == "CONNECT":
            handler.answer(502, b"")
            return True
        return False

    with servers.site(tmp_path / "www") as proxy:
        proxy.always = login
        place = proxy.url.replace("//", "//me:p%40w@")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("http_proxy", place)
        assert list(ps.read("http://far.example/x.jsonl")) == ROWS
        monkeypatch.setenv("https_proxy", place)
        with pytest.raises(StorageError, match="the proxy answers 502"):
            ps.read("https://far.example/x.jsonl")
        assert {command for command, told in seen if told} == {"HEAD", "GET", "CONNECT"}
        monkeypatch.setenv("http_proxy", place.replace("me:p%40w", f"me:{CANARY}"))
        storage.world.store.close()  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="407") as caught:
            ps.read("http://far.example/y.jsonl")
        assert CANARY not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site.always = lambda handler: bool(
        handler.headers.get("Proxy-Authorization") and handler.answer(400, b"")
    )
    assert list(ps.read(f"{site.url}/x.jsonl")) == ROWS


def test_secrets_are_nowhere(
    site: servers.Site,
    tmp_path: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    host = site.url.removeprefix("http://")
    url = f"http://me:{CANARY}@{host}/x.jsonl?X-Amz-Signature={CANARY}"
    site.login = f"Basic {base64.b64encode(f'me:{CANARY}'.encode()).decode()}"
    cache = tmp_path / "cache"
    ds = ps.read(url, cache=cache).shuffle().batch(5)
    with ps.Loader(ds, workers=2, executor="threads") as loader:
        next(iter(loader))
        told = [json.dumps(loader.state_dict()), repr(loader)]
    assert f"signature={CANARY}" in site.asked[-1][1].lower()
    told += [repr(ds), str(ds), str(ds.plan.at(3)), str(ds.plan)]
    try:
        ps.dump(ps.mix({"a": ps.read(url, cache=cache)}), tmp_path / "m.yaml")
    except ps.ConfigError as error:
        told.append(str(error))
    for fault in (
        *PASSING.values(),
        servers.status(403),
        servers.status(404),
        servers.moved("file:///x"),
    ):
        site.always = fault
        for ask in (
            lambda: list(ds),
            lambda: ps.read(url),
            lambda: ps.read([url, url]),
            lambda: ps.read(url + "/*.jsonl"),
        ):
            try:
                ask()
            except Exception as error:
                while error is not None:
                    told += [str(error), repr(error), repr(vars(error))]
                    error = error.__cause__ or (
                        None if error.__suppress_context__ else error.__context__
                    )  # type: ignore[assignment]
    out = capfd.readouterr()
    told += [caplog.text, out.out, out.err]
    for path in tmp_path.rglob("*"):
        told += [str(path), path.read_bytes().decode("latin-1") if path.is_file() else ""]
    assert not [text[:300] for text in told if CANARY in text]


def test_braces_keep_the_password_and_the_signature(site: servers.Site) -> None:
    site.login = f"Basic {base64.b64encode(f'me:{CANARY}'.encode()).decode()}"
    assert site.folder is not None
    (site.folder / "y.jsonl").write_bytes((site.folder / "x.jsonl").read_bytes())
    url = f"{site.url.replace('://', f'://me:{CANARY}@')}/{{x,y}}.jsonl?sig={CANARY}"
    assert list(ps.read(url)) == ROWS * 2
    assert site.asked and all(path.endswith(f"?sig={CANARY}") for _, path, _ in site.asked)


@pytest.mark.parametrize(
    ("url", "why"),
    {
        f"zip://in/x.jsonl::s3://b/x.zip?sig={CANARY}": "give this process credentials",
        f"abfs://box@host/x.jsonl?sv=1&sig={CANARY}": "give this process credentials",
        f"memory://host/{{a,b}}.jsonl?sig={CANARY}": "give this process credentials",
        f"https://me:x/{CANARY}@host/x.jsonl": "the host is ambiguous",
        f"https://me:x?{CANARY}@host/x.jsonl": "the host is ambiguous",
        f"https://me:x#{CANARY}@host/x.jsonl": "the host is ambiguous",
    }.items(),
)
def test_secrets_that_would_be_told_are_refused(url: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(f"sources: {{a: {{path: '{url}'}}}}\n")
    for ask in (
        lambda: ps.read(url),
        lambda: ps.read([Path(url)]),
        lambda: ps.load(tmp_path / "m.yaml").plan,
    ):
        with pytest.raises(ps.ConfigError, match=why) as caught:
            ask()
        assert CANARY not in f"{caught.value!r} {caught.value}"


def test_parameters_of_a_path_are_asked_for_and_not_told(site: servers.Site) -> None:
    assert site.folder is not None
    (site.folder / f"x.jsonl;jsessionid={CANARY}").write_bytes(BODY)
    url = f"{site.url}/x.jsonl;jsessionid={CANARY}"
    ds = ps.read(url)
    assert list(ds) == ROWS
    assert CANARY not in f"{ds!r} {ds.plan.sources} {ps.Loader(ds).state_dict()}"
    with pytest.raises(ps.ConfigError, match="no object") as caught:
        ps.read(url.replace("x.jsonl", "missing.jsonl"))
    assert CANARY not in f"{caught.value!r}"


@pytest.mark.parametrize("url", ["s3://", "s3:///x.jsonl", "gs://", "az://"])
def test_a_url_without_a_bucket_is_an_error_before_any_request(url: str) -> None:
    with pytest.raises(ps.ConfigError, match="names no bucket"):
        ps.read(url)


def test_urls_are_no_folders_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_bytes(BODY)
    data, far = ps.read(tmp_path / "x.jsonl"), f"https://me:{CANARY}@host/x?sig={CANARY}"
    mix = ps.mix({"a": data})
    before = {*tmp_path.rglob("*")}
    asks = [
        lambda: ps.read("x.jsonl", cache=far),
        lambda: ps.read("x.jsonl", cache=Path(far)),
        lambda: ps.write(data, far),
        lambda: ps.dump(mix, far),
        lambda: mix.plan.audit(range(3)).write(far),
        lambda: (monkeypatch.setenv("PENSTOCK_CACHE", far), ps.read("x.jsonl")),
    ]
    for ask in asks:
        with pytest.raises(ps.ConfigError, match="https://host/x is not on this machine") as caught:
            ask()
        assert CANARY not in str(caught.value)
    monkeypatch.delenv("PENSTOCK_CACHE")
    caches = [
        ("cache", "info", far),
        ("index", "x.jsonl", "--cache", far),
        ("info", "x.jsonl", "--cache", far),
    ]
    for words in (*caches, ("lint", far), ("plan", far, "--json")):
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0 and CANARY not in done.output
    assert {*tmp_path.rglob("*")} == before
    assert list(ps.read("x.jsonl", cache=f"file://{tmp_path}/kept")) == ROWS
    ps.dump(mix, f"file://{tmp_path}/m.yaml")
    assert (tmp_path / "kept").is_dir() and (tmp_path / "m.yaml").is_file()


def test_without_a_home_the_cache_is_to_be_named(
    site: servers.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    def nobody(_: Any) -> Any:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ps.ConfigError, match="there is no home folder.*PENSTOCK_CACHE"):
        ps.read(f"{site.url}/x.jsonl")
    with pytest.raises(ps.ConfigError, match=r"~/cache: .*without ~"):
        ps.read(f"{site.url}/x.jsonl", cache="~/cache")
    assert list(ps.read(f"{site.url}/x.jsonl", cache=tmp_path / "kept")) == ROWS
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "other"))
    assert list(ps.read(f"{site.url}/x.jsonl")) == ROWS
