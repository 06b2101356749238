"""What people name to be written (`-o`): files whole or not at all; pipes, devices and links as
what they are."""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from ...errors import ConfigError, storage
from .seams import kind_of, world
from .urls import local


@contextlib.contextmanager
def output(path: Path) -> Generator[BinaryIO]:
    """Open what a person named for writing. A file is there once the block ended well, whole and
    durable; a link stays, and what it points to is written. A pipe or a device is written to as it
    comes.
    """
    with storage(path := local(path)), _opened(path) as file:
        yield file


@contextlib.contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    # A file made beside it and renamed would take the place of the device, or of the link, itself.
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise ConfigError(f"{path}: this is {kind_of(str(path))}; name a file to write")
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    with world.disk.create(target, False) as file:
        yield file
