"""One spelling for every JSON value, and its digest."""

from __future__ import annotations

import hashlib
import json

from ...types import Json

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical(tree: Json) -> bytes:
    """One spelling for every JSON value."""
    return _CANONICAL.encode(tree).encode()


def fingerprint(description: Json) -> str:
    """Sixteen hex digits of what a pipeline is."""
    return hashlib.blake2b(canonical(description), digest_size=8).hexdigest()
