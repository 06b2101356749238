"""Files of a format of the user's: each is what a function makes of its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..types import Ints, Sizes
from .chain import Chain, outline_of
from .folders import files
from .memory import Memory
from .names import name_of
from .paths import Files, find

Format: TypeAlias = Callable[[Path], Any]
"""Opens one file: gives anything with `len` and `[i]` or `read`."""


class OwnFile:
    """One file, opened anew wherever it is unpickled."""

    columns = None

    def __init__(self, path: Path, format: Format) -> None:
        self._path, self._format = path, format
        try:
            self._rows = Memory(format(path))
        except Exception as error:
            error.add_note(f"penstock: when {_called(format)} opened {path}")
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnFile, (self._path, self._format)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`."""
        return self._rows.read(indices)

    def lengths(self) -> Sizes | None:
        """The sizes of all rows, where the file knows them."""
        return self._rows.lengths()


def open_own(
    paths: Sequence[str | Path],
    format: Format,
    cache: str | Path | None,
    others: Mapping[str, object],
    *,
    name: str = "",
    files: Files = files,
) -> Chain:
    """The rows of files of a format of the user's, as one source in the order of their paths.

    `name` is what the format is called; `files` tells which folders are one dataset, and of which
    files.
    """
    name = name or _called(format)
    if given := next((name for name, value in others.items() if value is not None), None):
        raise ConfigError(
            f"{given}= does not go with a format of your own: {name} says what a file gives"
        )
    found = find(paths, files)
    opened = [OwnFile(path, format) for path in found]
    lengths = (
        partial(_lengths, opened) if all(file.lengths() is not None for file in opened) else None
    )
    return Chain(
        opened, outline_of(opened, found), format=name, name=name_of(paths, found), paths=found, cache=cache,
        lengths=lengths,
    )  # fmt: skip


def _lengths(files: Sequence[OwnFile]) -> Ints:
    return np.concatenate([lengths[:] for file in files if (lengths := file.lengths()) is not None])


def _called(format: Format) -> str:
    return getattr(format, "__name__", type(format).__name__)
