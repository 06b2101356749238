"""Samples that a mixture file excludes, read from a file of keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..arguments import join_first, suggest_names
from ..dataset import Dataset
from ..engine.base.integers import find_distinct_values
from ..engine.orders import AllBut
from ..engine.steps.reorder import Reorder
from ..errors import ConfigError, StorageError, convert_storage_errors
from ..stores import parse_location
from ..stores.limits import KEYS_FILE, read_within
from ..types import MAX_POSITION, Ints
from .model import MixtureFile


def read_keys(path: Path) -> list[tuple[str, int]]:
    """Read the keys of a file: `[source, index]`, or `[source, epoch, index]`, in every line.

    `Loader.keys()` returns keys of the second form.
    """
    try:
        with convert_storage_errors(path):
            text = read_within(str(path), KEYS_FILE).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file (UTF-8): {error}") from None
    keys = list[tuple[str, int]]()
    # Not `splitlines`: names may contain U+2028 and other characters that it splits at.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            source, *rest = cast("list[Any]", json.loads(line))
            index = rest[-1]
        except (ValueError, TypeError, IndexError, RecursionError):
            source, rest, index = None, [], None
        if (
            type(source) is not str
            or type(index) is not int
            or len(rest) > 2
            or abs(index) >= MAX_POSITION
        ):
            raise ConfigError(
                f'{path}, line {number}: {line[:60]!r} is not a key; write ["SOURCE", INDEX]'
            )
        keys.append((source, index))
    return keys


def read_excluded_rows(model: MixtureFile) -> Mapping[str, Ints]:
    """Return the excluded rows of each source.

    Raises:
        ConfigError: The file cannot be read, or a line is no key.
    """
    if model.exclude is None:
        return {}
    by_source = dict[str, list[int]]()
    try:
        keys = read_keys(parse_location(model.exclude))
    except (ConfigError, StorageError) as error:
        raise ConfigError(f"exclude: {error}") from error
    for source, index in keys:
        by_source.setdefault(source, []).append(index)
    return {
        name: find_distinct_values(np.asarray(rows, np.int64)) for name, rows in by_source.items()
    }


def require_known_sources(model: MixtureFile, rows: Mapping[str, Ints]) -> None:
    """Raise `ConfigError` if rows of other sources are excluded.

    Only reading data tells the names of parts, so each is accepted until the source is expanded.
    """
    sources = dict(model.iter_sources())
    parts = [
        f"{name}/"
        for name, source in sources.items()
        if source.partition is not None and source.partition.input is None
    ]
    if unknown := sorted(name for name in {*rows} - {*sources} if not name.startswith((*parts,))):
        known = suggest_names(unknown[0], sources) or f"; there are {join_first(sources)}"
        raise ConfigError(f"exclude: {model.exclude} names {join_first(unknown)}{known}")


def exclude_rows(ds: Dataset, rows: Ints) -> Dataset:
    """Exclude rows of a source, numbered as its samples are.

    Rows that a split holds out are absent already and need no exclusion.
    """
    (leaf,) = ds.compiled.builder.leaves
    row_count = len(leaf.source)  # pyright: ignore[reportArgumentType]
    if rows[0] < 0 or rows[-1] >= row_count:
        raise ConfigError(
            f"exclude: row {rows[0] if rows[0] < 0 else rows[-1]} does not exist; the source has {row_count}"
        )
    positions = ds.compiled.op.find(leaf.number, rows, 0, len(ds)) if len(ds) else rows[:0]
    if len(positions) == len(ds):
        raise ConfigError("exclude: all rows are excluded; remove the source from the mixture")
    return Dataset(Reorder(ds.tree, AllBut(positions))) if len(positions) else ds
