"""Samples that a mixture file leaves out, from a file of their keys: lines of JSON, `[source,
index]`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..dataset import Dataset
from ..engine.base import seams
from ..engine.base.hints import few, near
from ..engine.base.ints import FAR, distinct
from ..engine.base.limits import KEYS_FILE
from ..engine.graph.nodes import Reorder
from ..engine.orders import AllBut
from ..errors import ConfigError, storage
from ..stores import located
from ..types import Ints
from .model import MixtureFile


def read_keys(path: Path) -> list[tuple[str, int]]:
    """The keys in a file: `[source, index]` in every line, or `[source, epoch, index]`, as
    `Loader.keys()` has them."""
    try:
        with storage(path):
            text = seams.read_within(str(path), KEYS_FILE).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file: {error}") from None
    keys = list[tuple[str, int]]()
    # Names may hold what else `splitlines` takes for the end of a line.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            source, *rest = cast("list[Any]", json.loads(line))
            index = rest[-1]
        except (ValueError, TypeError, IndexError, RecursionError):
            source, rest, index = None, [], None
        if type(source) is not str or type(index) is not int or len(rest) > 2 or abs(index) >= FAR:
            raise ConfigError(
                f'{path}, line {number}: {line[:60]!r} is no key; write ["SOURCE", INDEX]'
            )
        keys.append((source, index))
    return keys


def left_out(model: MixtureFile) -> Mapping[str, Ints]:
    """The rows that are left out of each source."""
    if model.exclude is None:
        return {}
    by_source = dict[str, list[int]]()
    for source, index in read_keys(located(model.exclude)):
        by_source.setdefault(source, []).append(index)
    names = [name for name, _ in model.leaves()]
    if unknown := sorted(set(by_source) - set(names)):
        known = near(unknown[0], names) or f"; there are {few(names)}"
        raise ConfigError(f"exclude: {model.exclude} names {few(unknown)}{known}")
    return {name: distinct(np.asarray(rows, np.int64)) for name, rows in by_source.items()}


def without(ds: Dataset, rows: Ints) -> Dataset:
    """What is read of a source without some rows of its files, numbered as samples are. A row that
    is held out of it is left out already.
    """
    (leaf,) = ds.compiled.builder.leaves
    many = len(leaf.source)  # pyright: ignore[reportArgumentType]
    if rows[0] < 0 or rows[-1] >= many:
        raise ConfigError(
            f"exclude: there is no row {rows[0] if rows[0] < 0 else rows[-1]}, it has {many}"
        )
    places = ds.compiled.op.find(leaf.number, rows, 0, len(ds)) if len(ds) else rows[:0]
    if len(places) == len(ds):
        raise ConfigError("exclude: all of it is left out; leave it out of the mixture")
    return Dataset(Reorder(ds.flow, AllBut(places))) if len(places) else ds
