"""What one process of a node asked a store, told to the other ranks of the same run, so that not
each of them asks."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..engine.base import machine, seams
from ..engine.base.urls import local
from ..errors import ConfigError
from .client import ObjectInfo

_SECONDS = 60.0
_OF_RUN = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def home() -> Path:
    """The folder for what is kept where no other is given: `PENSTOCK_CACHE`, or
    `~/.cache/penstock`."""
    if told := machine.environment("PENSTOCK_CACHE"):
        return local(told)
    try:
        return Path("~/.cache/penstock").expanduser()
    except RuntimeError:
        raise ConfigError(
            "there is no home folder for indexes and copies: set PENSTOCK_CACHE to a folder, or "
            "give cache=FOLDER"
        ) from None


def shared_listing(asked: Sequence[str], ask: Callable[[], list[ObjectInfo]]) -> list[ObjectInfo]:
    """What `ask` gives, asked by one of the ranks of a node; the others take its word for a
    minute."""
    if machine.place()[1] == 1:
        return ask()
    run = [machine.environment(name) for name in _OF_RUN]
    key = hashlib.blake2b(
        json.dumps([run, machine.parent(), *asked]).encode(), digest_size=12
    ).hexdigest()
    folder = home() / "listings"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder / key
    if (found := _fresh(kept)) is not None:
        return found
    with seams.world.disk.lock(_lock(folder, key)) as alone:
        if alone and (found := _fresh(kept)) is not None:
            return found
        found = ask()
        body = json.dumps([machine.clock(), machine.process(), found]).encode()
        with suppress(OSError):
            _sweep(folder)
            seams.write_whole(kept, b"%08x" % zlib.crc32(body) + body)
        return found


def _lock(folder: Path, key: str) -> Path:
    """What is locked for a key: one of 16 files, so that different questions do not wait for each
    other."""
    path = folder / f"lock-{key[0]}"
    with suppress(OSError):
        if not path.exists():
            seams.world.disk.write(path, b"")
    return path


def _fresh(kept: Path) -> list[ObjectInfo] | None:
    """What another process was told within the last minute."""
    with suppress(OSError, ValueError, TypeError):
        data = seams.world.disk.read(kept)
        if data[:8] != b"%08x" % zlib.crc32(data[8:]):
            return None
        told: Any = json.loads(data[8:])
        then, process, found = told
        if process != machine.process() and 0 <= machine.clock() - then <= _SECONDS:
            return [ObjectInfo(*one) for one in found]
    return None


def _sweep(folder: Path) -> None:
    """Let go of what nobody asks for any more."""
    for name in seams.world.disk.list(folder):
        with suppress(
            OSError
        ):  # others sweep too, and what they write has another name for a moment
            mtime = (
                0 if name.startswith("lock-") else seams.world.store.stat(str(folder / name)).mtime
            )
            if mtime and machine.clock() * 1e9 - mtime > _SECONDS * 1e9:
                seams.world.disk.unlink(folder / name)
