"""Sums of lengths that took long: kept in the cache, made by one process of a machine, mapped by
all."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ...errors import PenstockError
from ...sources import sidecar
from ...sources.identity import Known
from ...sources.totals import BlockSums, BlockTotals, MappedBlockTotals
from ...types import Json, Source
from ..base import machine, seams
from ..base.canonical_json import encode_canonical_json
from ..base.progress import Progress

WORTH = 1 << 20  # samples from which on sums are kept
_CHUNK = 1 << 20  # samples looked up at a time
_THREADS = 16

T = TypeVar("T")


def identified(source: object, what: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """By what sums over a source are known again; None where it does not say what its data is, or
    is small."""
    if not isinstance(source, Known) or not isinstance(source, Source) or len(source) < WORTH:
        return None
    digest = source.digest()
    data: Json = dict(digest) if isinstance(digest, Mapping) else digest
    return {"data": data, "rows": len(source), **what} if digest else None


def kept(
    what: Mapping[str, Json] | None, make: Callable[[], BlockSums], run: int = 1024
) -> BlockTotals:
    """Return the cached sums of an identity, or compute and cache them; in memory without an
    identity or a cache folder.

    `run` of them form a run.
    """
    made = list[BlockSums]()

    def once() -> BlockSums:
        made[:] = [make()]
        return made[0]

    if what is not None and (origin := _origin(encode_canonical_json(dict(what)))) is not None:
        with suppress(PenstockError):
            return MappedBlockTotals(origin.with_name("sums"), origin, once, run)
    return BlockTotals(made[0] if made else make(), run)


def _origin(text: bytes) -> Path | None:
    """A small file that says what is kept beside it; None where there is no place for it."""
    name = hashlib.blake2b(text, digest_size=12).hexdigest()
    at = sidecar.cache_folder(Path("/sums") / name, None) / "what.json"
    try:
        if not at.exists() or at.read_bytes() != text:
            with (
                sidecar.lock_folder(at.parent) as alone,
                seams.world.disk.create(at, alone) as file,
            ):
                file.write(text)
    except OSError:
        return None
    return at


def in_order(
    what: str, many: int, work: Callable[[int, int], T], chunk: int = _CHUNK
) -> Iterator[T]:
    """The results of work on samples, a chunk after the other, on all cores, with progress."""
    chunks = [(start, min(start + chunk, many)) for start in range(0, many, chunk)]
    workers = min(machine.count_cores(), _THREADS, len(chunks))
    with Progress(what, many, "samples") as progress:
        if workers < 2:
            for start, stop in chunks:
                yield work(start, stop)
                progress.tell(stop)
            return
        hands, waiting = seams.world.sched.spawn(workers), deque[Any]()
        try:
            for start, stop in chunks:
                waiting.append((stop, hands.submit(lambda a=start, b=stop: work(a, b))))
                if len(waiting) > 2 * workers:
                    done, under_way = waiting.popleft()
                    yield under_way.result()
                    progress.tell(done)
            while waiting:
                done, under_way = waiting.popleft()
                yield under_way.result()
                progress.tell(done)
        finally:
            hands.close()
