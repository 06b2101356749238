"""Facts about many files, cached on disk: one process computes, the others read.

The key contains the names, sizes and times of the files, so a stale fact is never used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..engine.base import seams
from . import sidecar
from .paths import resolve_absolute_paths

T = TypeVar("T")


def load_or_compute_fact(
    paths: Sequence[Path],
    stats: Sequence[seams.Stat],
    what: str,
    make: Callable[[], T],
    cache: str | Path | None,
) -> T | Any:
    """Return the JSON value of `make` for these versions of files, from the cache if possible.

    Args:
        paths: The files.
        stats: Their versions.
        what: Name of the fact.
        make: Computes the fact.
        cache: Cache folder.
    """
    if not paths:
        return make()
    versions = [
        [path_text, *stat]
        for path_text, stat in zip(resolve_absolute_paths(paths), stats, strict=True)
    ]
    key = hashlib.blake2b(json.dumps([what, versions]).encode(), digest_size=8).hexdigest()
    target = sidecar.cache_folder(paths[0], cache) / f".{key}.penstock-known"

    def encoded(_: bool) -> tuple[int, bytes]:
        return len(paths), json.dumps(make()).encode()

    return json.loads(bytes(sidecar.load_or_rebuild_body(target, sidecar.KNOWN, paths[0], encoded)))
