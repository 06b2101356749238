"""Share store listings between the ranks of a node, so that one rank asks for all."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..engine.base import machine
from ..errors import ConfigError
from . import storage
from .client import ObjectInfo
from .urls import require_local

_MAX_AGE_SECONDS = 60.0
_RUN_VARIABLES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


def get_default_cache() -> Path:
    """Return the default cache folder: `PENSTOCK_CACHE`, or `~/.cache/penstock`.

    Raises:
        ConfigError: if neither is available.
    """
    if folder := machine.read_environment_variable("PENSTOCK_CACHE"):
        return require_local(folder)
    try:
        return Path("~/.cache/penstock").expanduser()
    except RuntimeError:
        raise ConfigError(
            "there is no home folder for indexes and copies: set PENSTOCK_CACHE to a folder, or "
            "give cache=FOLDER"
        ) from None


def share_listing(
    key_parts: Sequence[str], list_store: Callable[[], list[ObjectInfo]]
) -> list[ObjectInfo]:
    """Return the result of `list_store`, called by one rank for all ranks of a node.

    The other ranks read its result from the cache folder for a minute.

    Args:
        key_parts: identifies the listing.
        list_store: lists the store.
    """
    if machine.detect_rank()[1] == 1:
        return list_store()
    run = [machine.read_environment_variable(name) for name in _RUN_VARIABLES]
    key = hashlib.blake2b(
        json.dumps([run, storage.get_parent_pid(), *key_parts]).encode(), digest_size=12
    ).hexdigest()
    folder = get_default_cache() / "listings"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / key
    if (listing := _read_recent(path)) is not None:
        return listing
    with storage.world.disk.lock(_choose_lock_file(folder, key)) as locked:
        if locked and (listing := _read_recent(path)) is not None:
            return listing
        listing = list_store()
        body = json.dumps([storage.read_wall_time(), machine.get_pid(), listing]).encode()
        with suppress(OSError):
            _delete_expired(folder)
            storage.write_atomically(path, b"%08x" % zlib.crc32(body) + body)
        return listing


def _choose_lock_file(folder: Path, key: str) -> Path:
    """Return one of 16 lock files, so that different listings rarely wait for each other."""
    path = folder / f"lock-{key[0]}"
    with suppress(OSError):
        if not path.exists():
            storage.world.disk.write(path, b"")
    return path


def _read_recent(path: Path) -> list[ObjectInfo] | None:
    """Return the listing that another process wrote within the last minute."""
    with suppress(OSError, ValueError, TypeError):
        data = storage.world.disk.read(path)
        if data[:8] != b"%08x" % zlib.crc32(data[8:]):
            return None
        content: Any = json.loads(data[8:])
        written, process, objects = content
        if (
            process != machine.get_pid()
            and 0 <= storage.read_wall_time() - written <= _MAX_AGE_SECONDS
        ):
            return [ObjectInfo(*fields) for fields in objects]
    return None


def _delete_expired(folder: Path) -> None:
    """Delete listings older than a minute."""
    for name in storage.world.disk.list(folder):
        # Other processes delete too, and temporary files disappear.
        with suppress(OSError):
            mtime = (
                0
                if name.startswith("lock-")
                else storage.world.store.stat(str(folder / name)).mtime
            )
            if mtime and storage.read_wall_time() * 1e9 - mtime > _MAX_AGE_SECONDS * 1e9:
                storage.world.disk.unlink(folder / name)
