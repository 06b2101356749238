"""Versions of files: size, times and inode, by which a change is noticed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from pathlib import Path

from ..errors import ChangedFileError, DataError, StorageError, convert_storage_errors
from ..stores import is_remote, storage
from ..stores.storage import Stat

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_POINTER_BYTES = 1024  # the specification of Git LFS limits pointers to fewer bytes
_WARNED_FILES = set[str]()


def stat_file(path: Path) -> Stat:
    """Return the version of a file: size, mtime, inode and ctime."""
    with convert_storage_errors(path):
        return storage.world.store.stat(str(path))


def require_no_lfs_pointer(path: Path, size: int, head: bytes | None = None) -> None:
    """Raise if Git LFS left a pointer in place of a file; text and raw formats would read it.

    Args:
        head: The beginning of the file, if it was read.
    """
    if size >= _LFS_POINTER_BYTES or is_remote(path):
        return
    if head is None:
        with convert_storage_errors(path):
            head = storage.world.store.read(str(path), 0, len(_LFS_POINTER))
    if head.startswith(_LFS_POINTER):
        raise DataError(
            "it is a pointer of Git LFS, not the data: run `git lfs pull` in its repository",
            where=str(path),
        )


def require_unchanged(path: Path, expected: Stat, *, name: str) -> None:
    """Raise if a file was replaced or grew since it was opened.

    Its rows would then belong to different versions. A new link or owner changes `ctime` alone, and
    some network file systems renumber inodes. Only both together are evidence of a replaced file. A new
    `ctime` alone is logged once, because overwritten content with a restored mtime looks the same.

    Args:
        path: File to compare.
        expected: Its version when it was opened.
        name: Name of the file in the error.

    Raises:
        ChangedFileError: The local file changed.
        StorageError: The remote object changed.
    """
    if (current := stat_file(path)) == expected:
        return
    if is_remote(path) and current != expected:
        raise StorageError(
            f"{name} was changed while it was in use: open it again, and keep data still during a "
            "run"
        )
    if current[:2] != expected[:2] or (
        current.inode != expected.inode and current.ctime != expected.ctime
    ):
        raise ChangedFileError(
            f"the file changed while it was in use (it had {_describe_version(expected)}, now "
            f"{_describe_version(current)}): open it again, and keep data still during a run",
            where=name,
        )
    if current.inode == expected.inode and name not in _WARNED_FILES:
        _WARNED_FILES.add(name)
        logging.getLogger("penstock").warning(
            "%s: it got another link, name or owner while it was in use, or other content with its "
            "time put back: keep data still during a run",
            name,
        )


@contextlib.contextmanager
def guard_unchanged(path: Path, expected: Stat, *, name: str) -> Generator[None]:
    """Raise if a file changed since it was opened; check before and after the block.

    One check suffices for an object store: each of its reads requests bytes of a fixed version.
    """
    require_unchanged(path, expected, name=name)
    try:
        yield
    finally:
        if not is_remote(path):
            require_unchanged(path, expected, name=name)


def _describe_version(version: Stat) -> str:
    if version.mtime < 0:
        return f"{version.size:,} bytes, version {-version.mtime:x}"
    return f"{version.size:,} bytes, modified at {version.mtime / 1e9:.3f}"
