"""Read the contents of a simulated disk."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from pathlib import Path

from penstock.stores.storage import FolderEntry, Stat
from penstock.testing.simulate import CrashingDisk


class Over:
    """The files of a `CrashingDisk`, as a `storage.Store`."""

    def __init__(self, disk: CrashingDisk) -> None:
        self.disk = disk

    def list(self, pattern: str, /) -> list[FolderEntry]:
        found = [path for path in self.disk.paths() if path.match(pattern)]
        hidden = Path(pattern).name[0] == "."
        return [
            FolderEntry(str(path), True, False) for path in found if (path.name[0] == ".") == hidden
        ]

    def stat(self, path: str, /) -> Stat:
        return Stat(len(self.disk.read(Path(path))), 0)

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        return self.disk.read(Path(path))[start:][:length]

    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> builtins.list[bytes]:
        return [self.read(path, *one) for one in ranges]
