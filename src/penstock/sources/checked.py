"""Files that are compared with the checksums kept for them, block by block, as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..base import seams
from ..base.progress import Progress
from . import sidecar, sums
from .held import Held
from .sums import Sums


class Checked:
    """The bytes of a file, each compared with its checksum where there are any. `kept` holds them."""

    def __init__(self, path: Path, origin: Path, held: Held, kept: Path | None = None, kind: int = 0) -> None:
        self._path, self._origin, self._held = path, origin, held
        self._kept, self._kind = kept, kind

    def known(self) -> bool:
        """Whether there are checksums."""
        return self._kept is not None

    def read(self, start: int, length: int) -> bytes:
        """So many bytes from `start` on; an error where the file has fewer."""
        return sums.read(self._path, start, length, self._sums(), str(self._origin))

    def many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """As `read` gives them, of several places."""
        if self._kept is not None:
            return list(map(self.read, starts, lengths))
        with sidecar.storage(self._path):
            found = seams.world.store.many(str(self._path), zip(starts, lengths, strict=True))
        if list(map(len, found)) != lengths:
            wrong = next(at for at, body in enumerate(found) if len(body) != lengths[at])
            raise sums.short(len(found[wrong]), starts[wrong], lengths[wrong], str(self._origin))
        return found

    def compare(self, start: int, stop: int, whole: memoryview | None = None) -> None:
        """Refuse the file where what lies there is not what it was; `whole` are its bytes where they are mapped."""
        found = self._sums()
        if found is None or stop <= start:
            return None
        low = start // sums.BLOCK * sums.BLOCK
        if whole is not None:
            return sums.compare(whole[low : -(-stop // sums.BLOCK) * sums.BLOCK], low, found, str(self._origin))
        for at in range(low, stop, sums.CHUNK):
            self.read(at, min(sums.CHUNK, stop - at))
        return None

    def _sums(self) -> Sums | None:
        kept = self._kept
        return None if kept is None else self._held.get((kept, "sums"), lambda: (1, self._mapped(kept)))

    def _mapped(self, kept: Path) -> Sums:
        return np.frombuffer(sidecar.body(kept, self._kind, self._origin)[1], "<u4")


def of_copy(copy: Path, origin: Path, held: Held, kind: int) -> Checked:
    """A file that we made from another one: the checksums are in its stamp."""
    return Checked(copy, origin, held, sidecar.stamp_of(copy), kind)


def of_data(path: Path, held: Held, cache: str | Path | None) -> Checked:
    """A file of the user's: compared where checksums of it were made, and not where there are none."""
    kept = sidecar.place(path, cache, "sums")
    known = kept.exists() and sidecar.check(kept, sidecar.SUMS, path, summed=True)
    return Checked(path, path, held, kept if known else None, sidecar.SUMS)


def make(path: Path, cache: str | Path | None, rebuild: bool) -> Path:
    """Where the checksums of a file are kept, made if there are none."""

    def made(_: bool) -> tuple[int, bytes]:
        size = sidecar.stat(path).size
        with Progress(f"checksums of {path.name}", size, "bytes") as progress, sidecar.storage(path):
            found = sums.of(
                seams.world.store.read(str(path), at, sums.CHUNK) for at in progress.each(range(0, size, sums.CHUNK))
            )
        return size, found.tobytes()

    otherwise = sidecar.index(path, cache, "sums")
    place = sidecar.place(path, cache, "sums")
    return sidecar.kept(place, sidecar.SUMS, path, made, otherwise=otherwise, rebuild=rebuild, summed=True)
