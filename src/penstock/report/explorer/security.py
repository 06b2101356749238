"""Access to the local server: a token, known hosts and one origin."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class AccessRules:
    """Rules for requests.

    Any page that a browser has open can send requests to a port of the machine. So a request needs
    the token. It must name a known host, which stops DNS rebinding, and come from no other origin.

    Attributes:
        token: The secret of the URL.
        hosts: Names of this server, without ports.
    """

    token: str
    hosts: Collection[str] = LOOPBACK_HOSTS

    def find_violation(self, headers: Mapping[str, str], token: str | None) -> str | None:
        """Return why a request is not allowed, or None.

        Args:
            headers: The headers of the request, with names in lower case.
            token: The token of the request.

        >>> rules = AccessRules("secret")
        >>> rules.find_violation({"host": "127.0.0.1:8000"}, "secret")
        >>> rules.find_violation({"host": "evil.example"}, "secret")
        'unknown host: open the URL that the command printed, or add --allow-host'
        """
        if (violation := self.find_foreign_host(headers)) is not None:
            return violation
        if not hmac.compare_digest((token or "").encode(), self.token.encode()):
            return "missing or wrong token: open the URL that the command printed"
        return None

    def find_foreign_host(self, headers: Mapping[str, str]) -> str | None:
        """Return why a request comes from elsewhere, or None; the token is not checked.

        Args:
            headers: The headers of the request, with names in lower case.
        """
        host = headers.get("host", "")
        if _get_hostname(f"//{host}") not in self.hosts:
            return "unknown host: open the URL that the command printed, or add --allow-host"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "another origin"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            is_opened = headers.get("sec-fetch-mode") == "navigate"
            if not is_opened or headers.get("sec-fetch-dest") != "document":
                return "another site"
        return None


def _get_hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # such as a bad port or address
        return None
