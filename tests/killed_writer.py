"""A writer that is killed, really: at its n-th effect on the disk, the half of a write with it. Again and again, until
there was nothing left to kill.

Each try is a process of its own, forked from this one, which has no threads.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import cast

import penstock as ps
from penstock.stores.storage import LocalDisk, override_world
from penstock.writing import ShardFormat, write


def documents(n: int) -> ps.Dataset:
    """Documents of all lengths, some mapped, shuffled."""
    texts = ps.from_sequence(range(n), name="texts").shuffle(seed=5)
    return texts.map(lambda x: {"txt": f"document {x} " * (x % 13), "json": {"number": x}})


class LethalDisk(LocalDisk):
    """The file system, which kills its process at the n-th effect."""

    def __init__(self, n: int) -> None:
        self.left = n

    def _effect(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: bytes, /) -> None:
        if self.left == 1:
            super().write(path, data[: len(data) // 2])
        self._effect()
        super().write(path, data)

    def sync(self, path: Path, /) -> None:
        self._effect()
        super().sync(path)

    def replace(self, source: Path, target: Path, /) -> None:
        self._effect()
        super().replace(source, target)

    def unlink(self, path: Path, /) -> None:
        self._effect()
        super().unlink(path)


if __name__ == "__main__":
    folder, seed, format = sys.argv[1], int(sys.argv[2]), cast(ShardFormat, sys.argv[3])
    dice, kills = random.Random(seed), 0
    while True:
        n = dice.randrange(1, 60)
        if (child := os.fork()) == 0:
            with override_world(disk=LethalDisk(n)):
                write(documents(400), folder, format, shard=50, max_bytes=20_000)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        kills += 1
    sys.stdout.write(str(kills))
