"""Files that are compared with the checksums kept for them, block by block, as they are read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.base import seams
from ..engine.base.progress import Progress
from ..stores import is_remote
from . import sidecar, sums
from .held import Held, Shared
from .sums import Sums

HEAD = 64 << 10
"""Bytes at the beginning of a file that are asked for together."""


class Checked:
    """The bytes of a file, each compared with its checksum where there are any. `kept` holds
    them."""

    def __init__(
        self, path: Path, origin: Path, held: Held, kept: Path | None = None, kind: int = 0
    ) -> None:
        self.path, self.origin, self._held = path, origin, held
        self._kept, self._kind = kept, kind

    def known(self) -> bool:
        """Whether there are checksums."""
        return self._kept is not None

    def read(self, start: int, length: int) -> bytes:
        """So many bytes from `start` on; an error where the file has fewer."""
        return sums.read(self.path, start, length, self._sums(), str(self.origin))

    def head(self, start: int, length: int) -> bytes:
        """As `read` gives them, near the beginning: of a file in a store all that is there is asked
        for at once, and held, as several parts of it are wanted."""
        most = min(HEAD, sidecar.stat(self.path).size)
        if not is_remote(self.path) or start + length > most:
            return self.read(start, length)
        whole: bytes = self._held.get((self.path, "head"), lambda: (1, self.read(0, most)))
        return whole[start : start + length]

    def many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """As `read` gives them, of several places."""
        if self._kept is not None:
            return list(map(self.read, starts, lengths))
        with sidecar.storage(self.path):
            found = seams.world.store.many(str(self.path), zip(starts, lengths, strict=True))
        if list(map(len, found)) != lengths:
            wrong = next(at for at, body in enumerate(found) if len(body) != lengths[at])
            raise sums.short(len(found[wrong]), starts[wrong], lengths[wrong], str(self.origin))
        return found

    def compare(self, start: int, stop: int, whole: memoryview | None = None) -> None:
        """Refuse the file where what lies there is not what it was; `whole` are its bytes where
        they are mapped."""
        found = self._sums()
        if found is None or stop <= start:
            return None
        low = start // sums.BLOCK * sums.BLOCK
        if whole is not None:
            return sums.compare(
                whole[low : -(-stop // sums.BLOCK) * sums.BLOCK], low, found, str(self.origin)
            )
        for at in range(low, stop, sums.CHUNK):
            self.read(at, min(sums.CHUNK, stop - at))
        return None

    def _sums(self) -> Sums | None:
        kept = self._kept
        return (
            None
            if kept is None
            else self._held.get((kept, "sums"), lambda: (1, self._mapped(kept)))
        )

    def _mapped(self, kept: Path) -> Sums:
        return np.frombuffer(sidecar.body(kept, self._kind, self.origin)[1], "<u4")

    def whole(self) -> bool:
        """Compare all of the file, unless that was done since it was last changed; always true."""
        if self._kept is not None:
            size = sidecar.stat(self.path)
            self._held.get((self._kept, "compared", size), lambda: (1, self.compare(0, size.size)))
        return True

    def open(self) -> io.BufferedReader:
        """The file, open for reading, compared where it is read."""
        return io.BufferedReader(_Reader(self), sums.BLOCK)


class Wanted(NamedTuple):
    """What is wanted of a file: the bytes of which file, which columns of it, and where what is
    made of it is kept."""

    data: Checked
    columns: Sequence[str] | None
    cache: str | Path | None
    shared: Shared
    rebuild: bool = False

    @property
    def path(self) -> Path:
        """Where the file can be read as it is."""
        return self.data.path

    @property
    def origin(self) -> Path:
        """The file that the user meant."""
        return self.data.origin


class _Reader(io.RawIOBase):
    """Reads from anywhere in a file that is compared as it is read."""

    def __init__(self, data: Checked) -> None:
        super().__init__()
        self._data, self._at, self._size = data, 0, sidecar.stat(data.path).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._size)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        many = max(0, min(len(buffer), self._size - self._at))
        buffer[:many] = self._data.read(self._at, many)
        self._at += many
        return many


def of_copy(copy: Path, origin: Path, held: Held, kind: int) -> Checked:
    """A file that we made from another one: the checksums are in its stamp."""
    return Checked(copy, origin, held, sidecar.stamp_of(copy), kind)


def of_data(path: Path, held: Held, cache: str | Path | None) -> Checked:
    """A file of the user's: compared where checksums of it were made, and not where there are
    none."""
    known = sidecar.place(path, cache, "sums").exists()
    return Checked(path, path, held, make(path, cache, False) if known else None, sidecar.SUMS)


def make(path: Path, cache: str | Path | None, rebuild: bool) -> Path:
    """Where the checksums of a file are kept, made if there are none."""

    def made(_: bool) -> tuple[int, bytes]:
        size = sidecar.stat(path).size
        with (
            Progress(f"checksums of {path.name}", size, "bytes") as progress,
            sidecar.storage(path),
        ):
            found = sums.of(
                seams.world.store.read(str(path), at, sums.CHUNK)
                for at in progress.chunks(sums.CHUNK)
            )
        return size, found.tobytes()

    otherwise = sidecar.index(path, cache, "sums")
    place = sidecar.place(path, cache, "sums")
    return sidecar.kept(
        place, sidecar.SUMS, path, made, otherwise=otherwise, rebuild=rebuild, summed=True
    )
