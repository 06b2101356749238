"""Canonical JSON, and its digest."""

from __future__ import annotations

import hashlib
import json

from ...types import Json

_CANONICAL_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def encode_canonical_json(tree: Json) -> bytes:
    """Encode a JSON value canonically, with sorted keys."""
    return _CANONICAL_ENCODER.encode(tree).encode()


def compute_fingerprint(description: Json) -> str:
    """Return the digest of a description: sixteen hex digits."""
    return hashlib.blake2b(encode_canonical_json(description), digest_size=8).hexdigest()
