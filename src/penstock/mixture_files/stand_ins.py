"""Sources of a mixture without their data, to check the mixture as a whole.

Each stand-in has the rows of its source, and all of them hold equally many tokens. So the settings
of a mixture that counts or packs tokens are checked without reading, or counting, any.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dataset import Dataset
from ..engine.steps.read import Read
from ..schedule import TOKEN_UNITS
from ..types import Ints, Json
from .model import END_TOKENS, MixtureFile, SourceEntry, Tokenizing

_MAX_ROWS = 1 << 16
_MAX_TOKENS = 1 << 16  # of a run, to find its end
_TOKENS = 64  # in a row, if they are not packed


@dataclass(frozen=True)
class StandIns:
    """Makes the stand-ins of the sources of one mixture file.

    Args:
        tokens: Tokens of each row.
        unknown: Full names of sources whose rows are unknown; they have the most rows.
    """

    tokens: int
    unknown: Collection[str]

    def make(self, ds: Dataset | None, source: SourceEntry, model: MixtureFile) -> Dataset:
        """Return the stand-in of a source; `ds` is its dataset, or None if its rows are unknown."""
        encoding = source.encoding(model)
        if encoding is not None:
            known = isinstance(encoding, Tokenizing) and encoding.counted
        elif source.lengths is not None:
            known = True
        else:  # files of unknown rows may be token stores
            known = ds.tree.lengths_known if ds is not None else not _has_lines(source)
        rows = _MAX_ROWS if ds is None else min(len(ds), _MAX_ROWS)
        return Dataset(Read(_StandIn(rows, self.tokens, known), source.label or source.name))


@dataclass(frozen=True)
class _StandIn:
    """A source of rows of zeros."""

    rows: int
    tokens: int
    has_lengths: bool

    def __len__(self) -> int:
        return self.rows

    def read(self, indices: Ints, /) -> list[Any]:
        return [np.zeros(self.tokens, np.int32)] * len(indices)

    def lengths(self) -> Ints | None:
        return np.full(self.rows, self.tokens) if self.has_lengths else None

    def loss_counts(self) -> None:
        """Return `None`: all tokens carry loss."""

    def describe(self) -> Json:
        return {"rows": self.rows, "tokens": self.tokens}


def make_stand_ins(model: MixtureFile, rows: int, unknown: Collection[str]) -> StandIns | None:
    """Return the stand-ins of a file; None if errors depend on numbers of rows that are too large.

    Args:
        model: The description.
        rows: Most rows of a source.
        unknown: Full names of sources whose rows are unknown.
    """
    has_passes = model.horizon is not None and model.horizon[0] == "epochs"
    has_passes = has_passes or any(source.epochs for _, source in model.iter_sources())
    if has_passes and (unknown or rows > _MAX_ROWS):
        return None
    length = (model.pack or {}).get("length")
    return StandIns(max(2, length) if isinstance(length, int) else _TOKENS, unknown)


def drop_converted_amounts(model: MixtureFile) -> MixtureFile:
    """Return a mixture with weights for amounts that only real numbers of tokens convert."""

    def is_converted(source: SourceEntry) -> bool:
        by_tokens = source.tokens is not None and model.unit != "tokens"
        return by_tokens or (source.epochs is not None and model.unit in TOKEN_UNITS)

    def convert(source: SourceEntry) -> SourceEntry:
        if source.mixture is not None:
            inner = drop_converted_amounts(source.mixture.inside(model))
            source = replace(source, mixture=inner)
        if has_converted and (source.tokens is not None or source.epochs is not None):
            source = replace(source, tokens=None, epochs=None, weight=1.0)
        return source

    has_converted = any(map(is_converted, model.sources))
    return replace(model, sources=tuple(map(convert, model.sources)))


def shorten_run(model: MixtureFile) -> MixtureFile:
    """Return a mixture with a shorter horizon in tokens, whose end is quick to find."""
    unit, number = model.horizon or ("", 0)
    if unit not in TOKEN_UNITS or model.changes_sizes:
        return model
    return replace(model, horizon=(unit, min(number, _MAX_TOKENS)))


def drop_named_tokens(model: MixtureFile) -> MixtureFile:
    """Return a mixture without tokens around documents that only a tokenizer knows."""
    pack = {
        name: option
        for name, option in (model.pack or {}).items()
        if name not in END_TOKENS or type(option) is int
    }
    return replace(model, pack=pack or None)


@contextmanager
def hide_log_lines() -> Generator[None]:
    """Drop log lines about stand-ins, such as the one of a measured length."""
    logger = logging.getLogger("penstock")

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _has_lines(source: SourceEntry) -> bool:
    return source.format in ("jsonl", "text", "csv") or any(
        part in str(path) for path in source.path for part in (".json", ".txt", ".csv", ".tsv")
    )
