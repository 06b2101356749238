"""Command `penstock explore`: the plan of a mixture or a run in a browser."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import ConfigError, make_missing_extra_error

from .common import (
    AllowOption,
    StateOption,
    StepsOption,
    handle_errors,
    parse_local_path,
    parse_mixture_file,
)

_MIXTURE_NAMES = ("mixture.yaml", "mixture.yml", "mixture.json")


def parse_mixture_or_folder(text: str) -> Path:
    """Parse the argument MIXTURE: a mixture file, or a folder of states."""
    path = Path(text)
    return path if path.is_dir() else parse_mixture_file(text)


parse_mixture_or_folder.__name__ = "file, URL or folder"


@handle_errors
def explore(
    mixture: Annotated[
        Path,
        typer.Argument(
            parser=parse_mixture_or_folder,
            help="Mixture file, its URL, or the folder of a run's states.",
        ),
    ],
    state: StateOption = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(parser=parse_mixture_file, help="Mixture file to compare with; repeatable."),
    ] = None,
    stats: Annotated[
        Path | None,
        typer.Option(
            parser=parse_local_path,
            metavar="PATH",
            help="Stats file of a running job, or its folder.",
        ),
    ] = None,
    steps: StepsOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name of a proxy under which browsers reach the server; repeatable."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    allow: AllowOption = None,
) -> None:
    """Explore the plan of a mixture or a run in a browser.

    Prints the URL of a page on this machine; Ctrl-C stops the server. The page shows any step, any
    document, comparisons, changed settings and a running job.
    """
    try:
        import uvicorn

        from penstock.report.explorer.security import LOOPBACK_HOSTS, AccessRules
        from penstock.report.explorer.server import make_app
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise make_missing_extra_error(error.name, "explore", "penstock explore") from None
    from penstock.report.explorer import Explorer

    if mixture.is_dir():
        if state is not None:
            raise ConfigError(f"{mixture}: a folder of states, and --state names another one")
        mixture, state = _find_mixture(mixture), mixture
    explorer = Explorer(mixture, state, compare or (), steps, allow, stats)
    if note := explorer.main.target.note:
        typer.echo(f"penstock: {note}", err=True)
    token = secrets.token_urlsafe(24)
    hosts = {*LOOPBACK_HOSTS, host, *(allow_host or ())}
    app = make_app(explorer, AccessRules(token, hosts))
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}/?token={token}"
    typer.echo(url)
    if browser:
        import webbrowser

        webbrowser.open(url)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # a browser may connect as soon as the URL is printed
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--host {host} --port {port}: {error.strerror or error}; give another address, or "
            "--port 0 for a free port"
        ) from None
    return listener


def _find_mixture(folder: Path) -> Path:
    """Return the mixture file beside a folder of states, or in it."""
    folders = (folder, folder.absolute().parent, folder.absolute().parent.parent)
    for place in folders:
        for name in _MIXTURE_NAMES:
            if (place / name).is_file():
                return place / name
    raise ConfigError(
        f"{folder}: a state does not name its mixture file, and there is no {_MIXTURE_NAMES[0]} in "
        f"this folder or above: write penstock explore MIXTURE --state {folder}"
    )
