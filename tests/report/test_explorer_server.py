"""The explorer's server: routes, access, and hostile requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.report.explorer import Explorer

pytest.importorskip("starlette")

from penstock.report.explorer.security import AccessRules
from penstock.report.explorer.server import COMMANDS, QUERIES, STATIC, make_app

TOKEN = "a-token"
HOST = "127.0.0.1:8123"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Requests to the application, without a network."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def send(
        self,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes = b"",
    ) -> Answer:
        given = {"host": HOST, "x-penstock-token": TOKEN} | dict(headers or {})
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items() if value],
        }
        messages = list[dict[str, Any]]()

        is_received = False

        async def receive() -> dict[str, Any]:
            nonlocal is_received
            if is_received:
                return {"type": "http.disconnect"}
            is_received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        asyncio.run(self._app(scope, receive, send))
        headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        content = b"".join(message.get("body", b"") for message in messages[1:])
        return Answer(messages[0]["status"], headers, content)


@pytest.fixture
def client(mixture: Path) -> Client:
    return Client(make_app(Explorer(mixture), AccessRules(TOKEN)))


def test_every_query_answers_json(client: Client) -> None:
    queries = {
        "sample": "source=code&index=3",
        "views": "source=code&index=3",
        "search": "text=code",
    }
    for name in QUERIES:
        answer = client.send(f"/api/{name}", queries.get(name, ""))
        assert answer.status == 200, (name, answer.body)
        assert isinstance(answer.json, dict)
    for name in ("edit", "format"):
        body = json.dumps({"edit": {"weights": {"code": 2}}}).encode()
        assert client.send(f"/api/{name}", method="POST", body=body).status == 200


def test_the_page_and_its_files_come_with_a_strict_policy(client: Client) -> None:
    page = client.send("/")
    assert page.status == 200 and b"<title>Penstock" in page.body
    assert "'unsafe" not in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "no-referrer"
    for file in ("app.js", "style.css", "views/step.js", "vendor/uPlot.iife.min.js"):
        answer = client.send(f"/static/{file}")
        assert answer.status == 200 and answer.headers["X-Content-Type-Options"] == "nosniff"


def test_pages_name_no_other_host_and_parse_no_data_as_html() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".html", ".css") and "vendor" not in path.parts:
            text = path.read_text(encoding="utf-8")
            for banned in (
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacent",
                "eval(",
            ):
                assert banned not in text, f"{path.name}: {banned}"
            assert 'href="/' not in text and 'src="/' not in text, f"{path.name}: an absolute URL"


@pytest.mark.parametrize("path", ["/", "/api/overview", "/media", "/api/nope", "/docs"])
def test_a_request_without_the_token_is_forbidden(client: Client, path: str) -> None:
    for token in ("", "wrong", TOKEN + "x", "é"):
        assert client.send(path, headers={"x-penstock-token": token}).status == 403
    assert client.send("/api/overview", f"token={TOKEN}", {"x-penstock-token": ""}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8123"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
def test_another_host_origin_or_site_is_forbidden(client: Client, headers: dict[str, str]) -> None:
    for path in ("/api/overview", "/static/app.js"):
        assert client.send(path, headers=headers).status == 403


def test_the_own_origin_and_a_link_are_allowed(client: Client) -> None:
    for headers in (
        {"origin": f"http://{HOST}"},
        {"host": "localhost:8123"},
        {"host": "[::1]:8123"},
        {
            "sec-fetch-site": "cross-site",
            "sec-fetch-mode": "navigate",
            "sec-fetch-dest": "document",
        },
        {"sec-fetch-site": "same-origin"},
    ):
        assert client.send("/", headers=headers).status == 200, headers


@pytest.mark.parametrize(
    "path",
    [
        "../security.py", "../../target.py", "/etc/passwd", "..%2fsecurity.py", "vendor/../../server.py",
        "vendor/uPlot.LICENSE", "nope.js", "", "views",
    ],
)  # fmt: skip
def test_a_path_outside_is_not_found(client: Client, path: str) -> None:
    assert client.send(f"/static/{path}").status == 404


@pytest.mark.parametrize(
    "query",
    [
        "step?step=-1", "step?step=x", "step?step=300", "step?step=99999999999999999999", "step?of=nope",
        "sample?source=nope&index=0", "sample?source=code&index=2900", "tokens?step=0&rank=1",
        "views?source=code&index=2900", "search?text=", "compare?with=nope", "timeline?first=%D9%A3",
        "step?step=%C2%B2",
    ],
)  # fmt: skip
def test_a_bad_query_is_an_error_message(client: Client, query: str) -> None:
    path, _, text = query.partition("?")
    answer = client.send(f"/api/{path}", text)
    assert answer.status == 400 and 0 < len(answer.json["error"]) < 400


def test_a_bad_request_body_is_an_error_message(client: Client) -> None:
    for body, status in (
        (b"", 400), (b"[1]", 400), (b"{", 400), (b'{"edit": 3}', 400), (b"[" * 100_000, 400),
        (b" " * (1 << 21), 413),
    ):  # fmt: skip
        assert client.send("/api/edit", method="POST", body=body).status == status
    for name in COMMANDS:
        assert client.send(f"/api/{name}").status == 405
    body = json.dumps({"edit": {}, "name": "../../x.yaml"}).encode()
    assert client.send("/api/save", method="POST", body=body).status == 400


def test_media_are_images_audio_and_video_only(client: Client) -> None:
    for query in ("source=code&index=0&field=text", "source=code&index=0", "source=nope&index=0"):
        assert client.send("/media", query).status == 404
