"""What is found out about many files is kept in the cache: one process of a machine looks, the others read that.

It is kept under the names, sizes and times of the files, so nothing old is ever taken for new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..base import seams
from ..errors import PenstockError
from . import sidecar
from .paths import places

T = TypeVar("T")


def remembered(
    paths: Sequence[Path], stats: Sequence[seams.Stat], what: str, make: Callable[[], T], cache: str | Path | None
) -> T | Any:
    """What `make` gives, plain JSON, for files of these versions; made where nobody made it yet."""
    if not paths:
        return make()
    versions = [[place, *stat] for place, stat in zip(places(paths), stats, strict=True)]
    key = hashlib.blake2b(json.dumps([what, versions]).encode(), digest_size=8).hexdigest()
    kept = sidecar.folder(paths[0], cache) / f".{key}.penstock-known"
    stamp = sidecar.Stamp(sidecar.KNOWN, stats[0], len(paths), 0)
    with seams.world.disk.lock(kept):
        if (known := _read(kept, stamp)) is not None:
            return known
        found = make()
        body = json.dumps(found).encode()
        with suppress(PenstockError):  # without a place to keep it, it is found anew every time
            sidecar.keep(kept, stamp._replace(length=len(body)), body)
        return found


def _read(kept: Path, stamp: sidecar.Stamp) -> Any:
    if not kept.exists():
        return None
    data = seams.world.disk.read(kept)
    if sidecar.decode(data[: sidecar.HEADER]) != stamp._replace(length=len(data) - sidecar.HEADER):
        return None
    with suppress(ValueError):
        return json.loads(data[sidecar.HEADER :])
    return None
