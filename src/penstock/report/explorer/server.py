"""Web application of the explorer: thin routes over `Explorer`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import ConfigError, PenstockError

from .explorer import MAIN, Explorer
from .security import SECURITY_HEADERS, AccessRules
from .timeline import DEFAULT_BANDS, DEFAULT_POINTS, TimelineQuery

STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_MAX_BODY = 1 << 20

Json: TypeAlias = dict[str, Any]
Parameters: TypeAlias = Mapping[str, str]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def make_app(explorer: Explorer, rules: AccessRules) -> ASGIApp:
    """Return the web application.

    Args:
        explorer: The explorer that answers.
        rules: The rules for requests.
    """
    files = {
        path.relative_to(STATIC).as_posix(): (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in _TYPES
    }

    async def send_page(_: Request) -> Response:
        return _make_file(files["index.html"])

    async def send_static(request: Request) -> Response:
        file = files.get(request.path_params["path"])
        return _make_error("no such file", 404) if file is None else _make_file(file)

    async def send_media(request: Request) -> Response:
        query = request.query_params
        try:
            data, kind = explorer.get_plan(query.get("of", MAIN)).reader.read_media(
                query.get("source", ""), _parse_int(query, "index"), query.getlist("field")
            )
        except (PenstockError, IndexError) as error:
            return _make_error(str(error), 404)
        return Response(data, media_type=kind)

    app = Starlette(
        routes=[
            Route("/", send_page),
            Route("/static/{path:path}", send_static),
            Route("/media", send_media),
            *(
                Route(f"/api/{name}", _make_endpoint(explorer, answer))
                for name, answer in QUERIES.items()
            ),
            *(
                Route(f"/api/{name}", _make_post(explorer, answer), methods=["POST"])
                for name, answer in COMMANDS.items()
            ),
        ]
    )
    return _AccessControl(app, rules)


class _AccessControl:
    """Middleware that checks every request, and adds headers to every response."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith("/static/"):  # holds no data, and pages load it without a token
            violation = self._rules.find_foreign_host(request.headers)
        else:
            token = request.headers.get("x-penstock-token") or request.query_params.get("token")
            violation = self._rules.find_violation(request.headers, token)

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [
                    (name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()
                ]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        if violation is not None:
            await PlainTextResponse(violation, 403)(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _make_file(file: tuple[bytes, str]) -> Response:
    return Response(file[0], media_type=file[1])


def _make_error(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status)


def _make_json(answer: Json) -> Response:
    # Names of files may hold surrogates, which stand for bytes that are not UTF-8: escape them.
    body = json.dumps(answer, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Response(body, media_type="application/json")


def _run(answer: Callable[[], Json]) -> Response:
    try:
        return _make_json(answer())
    except (PenstockError, IndexError, OSError, ImportError) as error:
        return _make_error(str(error), 400)


def _make_endpoint(explorer: Explorer, answer: Callable[[Explorer, Any], Json]) -> Endpoint:
    async def respond(request: Request) -> Response:
        return _run(lambda: answer(explorer, request.query_params))

    return respond


def _make_post(explorer: Explorer, answer: Callable[[Explorer, Any], Json]) -> Endpoint:
    async def respond(request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY:
                return _make_error("the request is too large", 413)
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            return _make_error("the request is no JSON", 400)
        if not isinstance(data, dict):
            return _make_error("the request is no JSON object", 400)
        return _run(lambda: answer(explorer, data))

    return respond


# ---------------------------------------------------------------- queries


def _parse_int(query: Parameters, name: str, default: int | None = 0) -> Any:
    text = query.get(name)
    if text in (None, ""):
        return default
    if not (text.isdecimal() and text.isascii() and len(text) <= 18):
        raise ConfigError(f"{name}={text[:40]!r}: expected a whole number of at least 0")
    return int(text)


def _split(query: Any, name: str) -> list[str]:
    return list(query.getlist(name))


def _get_timeline(explorer: Explorer, query: Any) -> Json:
    return explorer.get_plan(query.get("of", MAIN)).timeline.compute(
        TimelineQuery(
            _parse_int(query, "first"),
            _parse_int(query, "stop", None),
            _parse_int(query, "points", DEFAULT_POINTS),
            _parse_int(query, "bands", DEFAULT_BANDS),
            _split(query, "pin"),
            query.get("groups") == "1",
            _split(query, "unfold"),
        )
    )


def _get_step(explorer: Explorer, query: Any) -> Json:
    plan = explorer.get_plan(query.get("of", MAIN))
    return plan.reader.list_samples(_parse_int(query, "step"), _parse_int(query, "start"))


def _get_sample(explorer: Explorer, query: Any) -> Json:
    reader = explorer.get_plan(query.get("of", MAIN)).reader
    return reader.read_sample(
        query.get("source", ""), _parse_int(query, "index"), _parse_int(query, "start")
    )


def _get_tokens(explorer: Explorer, query: Any) -> Json:
    reader = explorer.get_plan(query.get("of", MAIN)).reader
    return reader.read_tokens(*(_parse_int(query, name) for name in ("step", "rank", "row")))


def _get_views(explorer: Explorer, query: Any) -> Json:
    finder = explorer.get_plan(query.get("of", MAIN)).finder
    return finder.list_views(
        query.get("source", ""), _parse_int(query, "index"), _parse_int(query, "first")
    )


def _get_hits(explorer: Explorer, query: Any) -> Json:
    finder = explorer.get_plan(query.get("of", MAIN)).finder
    start = _parse_int(query, "number"), _parse_int(query, "row")
    by = "key" if query.get("by") == "key" else "text"
    return finder.search(query.get("text", ""), by, query.get("source") or None, start)


def _get_comparison(explorer: Explorer, query: Any) -> Json:
    row = _parse_int(query, "row", None)
    return explorer.compare(query.get("with", MAIN), query.get("of", MAIN), row)


def _get_edit(data: Any) -> Any:
    return data.get("edit", {})


def _get_name(data: Any) -> str:
    name = data.get("name", "")
    return name if isinstance(name, str) else ""


QUERIES: dict[str, Callable[[Explorer, Any], Json]] = {
    "overview": lambda explorer, _: explorer.describe(),
    "sources": lambda explorer, query: explorer.list_sources(query.get("of", MAIN)),
    "timeline": _get_timeline,
    "step": _get_step,
    "sample": _get_sample,
    "tokens": _get_tokens,
    "views": _get_views,
    "search": _get_hits,
    "compare": _get_comparison,
    "settings": lambda explorer, _: explorer.settings,
    "live": lambda explorer, _: explorer.read_live(),
}
COMMANDS: dict[str, Callable[[Explorer, Any], Json]] = {
    "edit": lambda explorer, data: explorer.edit(_get_edit(data)),
    "format": lambda explorer, data: explorer.format_edit(_get_edit(data)),
    "save": lambda explorer, data: explorer.save_edit(_get_edit(data), _get_name(data)),
    "save_run": lambda explorer, data: explorer.save_run(_get_edit(data), _get_name(data)),
}
