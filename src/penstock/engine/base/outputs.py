"""Output paths of commands (`-o`): atomic writes of files; pipes, devices and links keep working."""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from ...errors import ConfigError, convert_storage_errors
from .seams import describe_file_kind, world
from .urls import require_local


@contextlib.contextmanager
def open_output(path: Path) -> Generator[BinaryIO]:
    """Open an output path for writing.

    A file appears atomically, and durably, when the block ends without error. The target of a link
    is written, and the link stays. Pipes and devices are written directly.
    """
    with convert_storage_errors(path := require_local(path)), _open_atomically(path) as file:
        yield file


@contextlib.contextmanager
def _open_atomically(path: Path) -> Generator[BinaryIO]:
    # Renaming a temporary file would replace the device, or the link, itself.
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise ConfigError(
                f"{path}: the output is {describe_file_kind(str(path))}; name a file to write"
            )
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    with world.disk.create(target, False) as file:
        yield file
