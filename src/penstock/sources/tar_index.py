"""The index of a tar archive: where each sample begins and where its parts lie, keys, and digests
of them.

It is made in one pass over the headers and kept like the index of lines. An index that Energon left
beside the archive (`X.tar.idx`) serves instead where it is newer than the archive and leads to its
end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..engine.base import seams
from ..engine.base.progress import Progress
from ..engine.base.seams import Stat
from ..errors import DataError
from ..types import Ints
from . import sidecar
from .tar import BLOCK, Get, Members, sample_part
from .tar_places import Found, encode

_CHUNK = 1 << 20  # bytes read at once where members are small
_NEAR = 4 << 10  # bytes read at once where they are far apart
_FAR = 64 << 10
_TAIL = 1 << 20  # zeros behind the last member; writers fill up their last record, of 10 KiB mostly
_NAME = "tar"


class Window:
    """Bytes of a file, read ahead: much where the places asked for lie close together, little where
    they do not."""

    def __init__(
        self, path: Path, tell: Callable[[int], None] = lambda at: None, read: Get | None = None
    ) -> None:
        self._path, self._tell, self._read = path, tell, read or self._stored
        self._base, self._bytes = 0, b""

    def __call__(self, at: int, length: int) -> bytes:
        low = at - self._base
        if low < 0 or low + length > len(self._bytes):
            far = abs(low - len(self._bytes)) > _FAR
            self._bytes = self._read(at, max(length, _NEAR if far else _CHUNK))
            self._base, low = at, 0
            self._tell(at)
        return self._bytes[low : low + length]

    def _stored(self, at: int, length: int) -> bytes:
        with sidecar.storage(self._path):
            return seams.world.store.read(str(self._path), at, length)


def make(path: Path, origin: Path, *, cache: str | Path | None, rebuild: bool = False) -> Path:
    """Our index of an archive; made if there is none, or if it is to be made again."""
    cached = sidecar.cached_index_path(origin, cache, _NAME)
    index = sidecar.index_path(origin, cache, _NAME) if path == origin else cached

    def make_(_: bool) -> tuple[int, bytes]:
        size = sidecar.stat(path).size
        with Progress(f"index {origin.name}", size, "bytes") as progress:
            found = pass_over(path, size, str(origin), progress.tell)
        return len(found.keys), encode(found, digests(found.keys))

    return sidecar.ensure(index, sidecar.TAR, origin, make_, fallback=cached, rebuild=rebuild)


def pass_over(
    path: Path, size: int, name: str, tell: Callable[[int], None] = lambda at: None
) -> Found:
    """What an archive holds, and where. One pass over the headers.

    Refused are archives that are cut off or damaged anywhere, and keys and parts that come twice.
    """
    members = Members(Window(path, tell), 0, size, name)
    seen: dict[str, int] = {}
    parts: dict[str, int] = {}
    places = Found([], [], [], [], [], [])
    last = None
    for member in members:
        found = sample_part(member, name)
        if found is None:
            continue
        key, part = found
        if key != last:
            if key in seen:
                raise _twice(
                    f"the sample {key!r} comes again: its files must stand together",
                    seen[key],
                    member.start,
                    name,
                )
            seen[key], parts, last = member.start, {}, key
            places.first.append(len(places.parts))
        elif part in parts:
            raise _twice(f"{member.name!r} comes again", parts[part], member.start, name)
        parts[part] = member.start
        places.parts.append(part)
        places.data.append(member.data)
        places.sizes.append(member.size)
    check_tail(path, members.at, size, name)
    places.first.append(len(places.parts))
    return places._replace(starts=[*seen.values(), members.at], keys=list(seen))


def check_tail(path: Path, at: int, size: int, name: str) -> None:
    """Refuse an archive whose last member is not followed by zeros alone, to the end of the file,
    and not too many."""
    where = f"{name}, byte {at}"
    if size - at < BLOCK:
        raise DataError(
            "the archive is cut off: the blocks of zeros that end it are missing", where=where
        )
    if size - at > _TAIL:
        raise DataError(
            f"{size - at:,} bytes follow the end of the archive: it was not written or copied to "
            "its end, or "
            "something was appended",
            where=where,
        )
    with sidecar.storage(path):
        rest = seams.world.store.read(str(path), at, size - at)
    if len(rest) != size - at or rest.count(0) != len(rest):
        raise DataError(
            "data follows the end of the archive: several archives in one file must be read as "
            "files of their own, "
            "or written anew as one",
            where=where,
        )


def foreign(path: Path, stat: Stat) -> Path | None:
    """The index that Energon left beside an archive, where it can stand for our own.

    It must be newer than the archive, and its offsets must rise in whole blocks from the first
    sample up to the zeros that end the archive. What it says of samples in between is checked when
    they are read.
    """
    index = path.with_name(f"{path.name}.idx")
    if not index.exists():
        return None
    found = sidecar.stat(index)
    most = 8 * (stat.size // BLOCK + 2)  # every sample has a header
    if found.mtime < stat.mtime or found.size % 8 or not 16 <= found.size <= most:
        return None
    offsets = foreign_offsets(index)
    if offsets[0] < 0 or bool((np.diff(offsets) <= 0).any()) or bool((offsets % BLOCK).any()):
        return None
    name, first, last, end = str(path), int(offsets[0]), int(offsets[-2]), int(offsets[-1])
    try:
        check_tail(path, end, stat.size, name)
        before, inside = (
            Members(Window(path), 0, first, name),
            Members(Window(path), last, end, name),
        )
        if any(sample_part(member, name) for member in before) or not list(inside):
            return None
        return index if (before.at, inside.at) == (first, end) else None
    except DataError:
        return None


def foreign_offsets(index: Path) -> Ints:
    """The offsets in an index of Energon: of the samples, and of the end."""
    with sidecar.storage(index):
        return np.frombuffer(seams.world.store.read(str(index)), "=u8").astype(np.int64)


def digests(keys: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Eight bytes for each key, to find samples by."""
    found = b"".join(
        hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(found, "<u8")


def _twice(what: str, first: int, again: int, name: str) -> DataError:
    return DataError(f"{what} (first at byte {first}, again at byte {again})", where=name)
