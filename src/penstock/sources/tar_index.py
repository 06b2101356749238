"""Builds the index of a tar archive: offsets of samples and parts, and keys.

One pass over the headers builds it; it is stored like the index of lines. An index that Energon
left beside the archive (`X.tar.idx`) replaces it if it is newer than the archive and covers it.
"""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..engine.base.progress import Progress
from ..errors import DataError, convert_storage_errors
from ..stores import storage
from ..stores.storage import Stat
from ..types import Ints
from . import derived_files, file_versions
from .derived_files import Kind
from .tar import TAR_BLOCK_BYTES, MemberIterator, ReadBytes, parse_sample_part
from .tar_layout import TarContents, encode

_DENSE_READ_BYTES = 1 << 20  # bytes per read if members are small
_SPARSE_READ_BYTES = 4 << 10  # bytes per read if headers are far apart
_SPARSE_HEADER_GAP = 64 << 10  # distance, in bytes, of headers that are far apart
_MAX_TAIL_ZEROS = (
    1 << 20
)  # largest number of zeros after the last member; writers pad to about 10 KiB


class ReadAheadWindow:
    """Read-ahead over the bytes of a file.

    Nearby offsets cause large reads, distant ones small reads.
    """

    def __init__(
        self,
        path: Path,
        tell: Callable[[int], None] = lambda at: None,
        read: ReadBytes | None = None,
    ) -> None:
        self._path, self._tell, self._read = path, tell, read or self._stored
        self._base, self._bytes = 0, b""

    def __call__(self, at: int, length: int) -> bytes:
        start = at - self._base
        if start < 0 or start + length > len(self._bytes):
            is_remote = abs(start - len(self._bytes)) > _SPARSE_HEADER_GAP
            self._bytes = self._read(
                at, max(length, _SPARSE_READ_BYTES if is_remote else _DENSE_READ_BYTES)
            )
            self._base, start = at, 0
            self._tell(at)
        return self._bytes[start : start + length]

    def _stored(self, at: int, length: int) -> bytes:
        with convert_storage_errors(self._path):
            return storage.world.store.read(str(self._path), at, length)


def ensure_tar_index(
    path: Path, origin: Path, *, cache: str | Path | None, rebuild: bool = False
) -> Path:
    """Return the path of Penstock's index of an archive; build it if necessary."""

    def build() -> tuple[int, bytes]:
        size = file_versions.stat_file(path).size
        with Progress(f"index {origin.name}", size, "bytes") as progress:
            contents = scan_headers(path, size, str(origin), progress.tell)
        return len(contents.keys), encode(contents, digest_keys(contents.keys))

    file = derived_files.place_index(Kind.TAR_INDEX, origin, "tar", cache, beside=path == origin)
    return derived_files.ensure(file, build, rebuild=rebuild)


def scan_headers(
    path: Path, size: int, name: str, tell: Callable[[int], None] = lambda at: None
) -> TarContents:
    """Read all headers of an archive; return its contents and their offsets.

    Raises:
        DataError: The archive is cut off or damaged, or a key or part occurs twice.
    """
    members = MemberIterator(ReadAheadWindow(path, tell), 0, size, name)
    starts_by_key: dict[str, int] = {}
    parts: dict[str, int] = {}
    places = TarContents([], [], [], [], [], [])
    last_key = None
    for member in members:
        key_and_part = parse_sample_part(member, name)
        if key_and_part is None:
            continue
        key, part = key_and_part
        if key != last_key:
            if key in starts_by_key:
                raise _duplicate_error(
                    f"the sample {key!r} occurs again: its files must be adjacent",
                    starts_by_key[key],
                    member.start,
                    name,
                )
            starts_by_key[key], parts, last_key = member.start, {}, key
            places.first.append(len(places.parts))
        elif part in parts:
            raise _duplicate_error(f"{member.name!r} occurs again", parts[part], member.start, name)
        parts[part] = member.start
        places.parts.append(part)
        places.data.append(member.data)
        places.sizes.append(member.size)
    check_tail(path, members.at, size, name)
    places.first.append(len(places.parts))
    return places._replace(starts=[*starts_by_key.values(), members.at], keys=list(starts_by_key))


def check_tail(path: Path, at: int, size: int, name: str) -> None:
    """Raise if anything but a moderate number of zeros follows the last member."""
    where = f"{name}, byte {at}"
    if size - at < TAR_BLOCK_BYTES:
        raise DataError(
            "the archive is cut off: the blocks of zeros that end it are missing", where=where
        )
    if size - at > _MAX_TAIL_ZEROS:
        raise DataError(
            f"{size - at:,} bytes follow the end of the archive: it was not written or copied "
            "completely, or something was appended",
            where=where,
        )
    with convert_storage_errors(path):
        rest = storage.world.store.read(str(path), at, size - at)
    if len(rest) != size - at or rest.count(0) != len(rest):
        raise DataError(
            "data follows the end of the archive: split several archives in one file into "
            "separate files, or write them again as one",
            where=where,
        )


def find_energon_index(path: Path, stat: Stat) -> Path | None:
    """Return the index that Energon left beside an archive, if it can replace Penstock's.

    It must be newer than the archive, and its offsets must increase in full blocks from the first
    sample to the zeros that end the archive. Reading a sample checks its own entry.
    """
    index = path.with_name(f"{path.name}.idx")
    if not os.path.exists(index):  # also false for a name beyond the limit of the file system
        return None
    index_stat = file_versions.stat_file(index)
    max_size = 8 * (stat.size // TAR_BLOCK_BYTES + 2)  # every sample has a header
    if (
        index_stat.mtime < stat.mtime
        or index_stat.size % 8
        or not 16 <= index_stat.size <= max_size
    ):
        return None
    offsets = read_energon_offsets(index)
    if (
        offsets[0] < 0
        or bool((np.diff(offsets) <= 0).any())
        or bool((offsets % TAR_BLOCK_BYTES).any())
    ):
        return None
    name, first, last, end = str(path), int(offsets[0]), int(offsets[-2]), int(offsets[-1])
    try:
        check_tail(path, end, stat.size, name)
        before, inside = (
            MemberIterator(ReadAheadWindow(path), 0, first, name),
            MemberIterator(ReadAheadWindow(path), last, end, name),
        )
        if any(parse_sample_part(member, name) for member in before) or not list(inside):
            return None
        return index if (before.at, inside.at) == (first, end) else None
    except DataError:
        return None


def read_energon_offsets(index: Path) -> Ints:
    """Read an index of Energon: the offsets of the samples, and of the end."""
    with convert_storage_errors(index):
        return np.frombuffer(storage.world.store.read(str(index)), "=u8").astype(np.int64)


def digest_keys(keys: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return an eight-byte digest of each key, by which samples are found."""
    data = b"".join(
        hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        for key in keys
    )
    return np.frombuffer(data, "<u8")


def _duplicate_error(what: str, first: int, second: int, name: str) -> DataError:
    return DataError(f"{what} (first at byte {first}, again at byte {second})", where=name)
