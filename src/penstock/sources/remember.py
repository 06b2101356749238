"""What is found out about many files is kept in the cache: one process of a machine looks, the
others read that.

It is kept under the names, sizes and times of the files, so nothing old is ever taken for new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..engine.base import seams
from . import sidecar
from .paths import places

T = TypeVar("T")


def remembered(
    paths: Sequence[Path],
    stats: Sequence[seams.Stat],
    what: str,
    make: Callable[[], T],
    cache: str | Path | None,
) -> T | Any:
    """What `make` gives, plain JSON, for files of these versions; made where nobody made it yet."""
    if not paths:
        return make()
    versions = [[place, *stat] for place, stat in zip(places(paths), stats, strict=True)]
    key = hashlib.blake2b(json.dumps([what, versions]).encode(), digest_size=8).hexdigest()
    kept = sidecar.folder(paths[0], cache) / f".{key}.penstock-known"

    def encoded(_: bool) -> tuple[int, bytes]:
        return len(paths), json.dumps(make()).encode()

    return json.loads(bytes(sidecar.again(kept, sidecar.KNOWN, paths[0], encoded)))
