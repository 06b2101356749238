"""Canonical JSON, and its digest."""

from __future__ import annotations

import hashlib
import json

from ...types import Json

_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical_json(tree: Json) -> bytes:
    """Encode a JSON value canonically, with sorted keys."""
    return _CANONICAL.encode(tree).encode()


def fingerprint(description: Json) -> str:
    """Return the digest of a description: sixteen hex digits."""
    return hashlib.blake2b(canonical_json(description), digest_size=8).hexdigest()
