"""Canonical JSON, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

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


_PLAIN = frozenset({str, int, bool, type(None)})


def normalize_json(tree: Any) -> Json:
    """Return a JSON value with equal numbers in one spelling: 1.0 and NumPy's 1 become 1."""
    if type(tree) in _PLAIN:
        return tree
    if isinstance(tree, dict) or isinstance(tree, Mapping):  # other mappings take long to check
        entries = cast("Mapping[str, Any]", tree)
        return {
            name: value if type(value) in _PLAIN else normalize_json(value)
            for name, value in entries.items()
        }
    if isinstance(tree, list | tuple):
        return [
            value if type(value) in _PLAIN else normalize_json(value)
            for value in cast("list[Any]", tree)
        ]
    plain: Any = cast(Any, tree).item() if isinstance(tree, np.generic) else tree
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def list_differences(saved: Json, now: Json, where: str = "") -> list[str]:
    """Return the differences of two descriptions of pipelines, one line for each place."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        lines = list[str]()
        if not where and "read" in saved and saved["read"] == now.get("read"):
            where = str(
                saved["read"] or "data"
            )  # the only source; those of a mixture have its names
        for name in [*saved, *(name for name in now if name not in saved)]:
            place = where if name == "of" else f"{where}.{name}" if where else str(name)
            if name not in saved:
                lines.append(f"{place or 'input'}: new, {_shorten(now[name])}")
            elif name not in now:
                lines.append(f"{place or 'input'}: removed, was {_shorten(saved[name])}")
            else:
                lines += list_differences(saved[name], now[name], place)
        return lines
    return (
        []
        if encode_canonical_json(saved) == encode_canonical_json(now)
        else [f"{where or 'pipeline'}: saved {_shorten(saved)}, now {_shorten(now)}"]
    )


def _shorten(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
