"""Host names and sockets, asked directly of the system."""

from __future__ import annotations

import selectors
import socket
from typing import Any


def resolve_host(host: str) -> list[str]:
    """Resolve a host name to IP addresses."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def is_unresolved(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a host name that does not resolve."""
    for _ in range(20):  # chains of errors may have cycles
        if error is None or isinstance(error, socket.gaierror):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, socket.gaierror)


def is_readable(connection: Any, seconds: float) -> bool:
    """Return whether a socket has data, or was closed by the peer, within a time in seconds."""
    if getattr(connection, "pending", int)():  # TLS has decrypted data
        return True
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(seconds))
