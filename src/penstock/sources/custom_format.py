"""Files of a custom format: a function of the user opens each file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..types import Ints, LossCounts, Sizes
from .chain import JoinedFiles, outline_files
from .folders import find_dataset_files
from .loss_counts import join_loss_counts
from .memory import Memory
from .names import choose_source_name
from .paths import FindDatasetFiles, find

Format: TypeAlias = Callable[[Path], Any]
"""Opens one file; returns any object with `len` and either `[i]` or `read`."""


class CustomFile:
    """One file, which unpickling opens again."""

    columns = None

    def __init__(self, path: Path, format: Format) -> None:
        self._path, self._format = path, format
        try:
            self._rows = Memory(format(path))
        except Exception as error:
            error.add_note(f"penstock: when {_get_format_name(format)} opened {path}")
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return CustomFile, (self._path, self._format)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`."""
        return self._rows.read(indices)

    def lengths(self) -> Sizes | None:
        """Return the sizes of all rows, or `None` if the file does not know them."""
        return self._rows.lengths()

    def loss_counts(self) -> LossCounts | None:
        """Return how many tokens of each row carry loss, by its masks; read all rows once."""
        return self._rows.loss_counts()


def open_custom(
    paths: Sequence[str | Path],
    format: Format,
    cache: str | Path | None,
    others: Mapping[str, object],
    *,
    name: str = "",
    files: FindDatasetFiles = find_dataset_files,
) -> JoinedFiles:
    """Return the rows of files of a custom format as one source, in the order of their paths.

    Args:
        paths: Files, globs, brace ranges and folders.
        format: Function that opens one file.
        cache: Cache folder.
        others: Arguments of `read` that a custom format does not accept.
        name: Name of the format; the name of the function by default.
        files: Returns the data files of a folder that is one dataset.

    Raises:
        ConfigError: One of `others` has a value, or a path matches no file.
    """
    name = name or _get_format_name(format)
    if argument := next((name for name, value in others.items() if value is not None), None):
        raise ConfigError(
            f"{argument}= does not apply to a custom format: the function {name} decides what a "
            "file contains; leave it out"
        )
    found_paths = find(paths, files)
    opened = [CustomFile(path, format) for path in found_paths]
    lengths = (
        partial(_concatenate_lengths, opened)
        if all(file.lengths() is not None for file in opened)
        else None
    )
    return JoinedFiles(
        opened,
        outline_files(opened, found_paths),
        format=name,
        name=choose_source_name(paths, found_paths),
        paths=found_paths,
        cache=cache,
        lengths=lengths,
        loss_counts=partial(_join_loss_counts, opened),
        is_custom=True,
    )


def _concatenate_lengths(files: Sequence[CustomFile]) -> Ints:
    return np.concatenate([lengths[:] for file in files if (lengths := file.lengths()) is not None])


def _join_loss_counts(files: Sequence[CustomFile]) -> LossCounts | None:
    parts = [file.loss_counts() for file in files]
    known = [part for part in parts if part is not None]
    if known and len(known) < len(parts):
        raise ConfigError(
            "some files have loss masks and others have none; give all documents of a source masks"
        )
    return join_loss_counts(known) if known else None


def _get_format_name(format: Format) -> str:
    return getattr(format, "__name__", type(format).__name__)
