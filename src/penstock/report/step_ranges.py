"""Measurement of a range of steps, source by source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.engine.base.random import hash64
from penstock.engine.base.row_files import as_row_files
from penstock.sources.digests import digest_memory
from penstock.types import Ints, RowFiles, is_source

from ..stores import storage
from .target import Target

_MAX_ROWS = 1 << 18  # longer ranges are sampled
_SAMPLED_PARTS = 64  # samples of a long range
_COMPARED_BYTES = 1 << 16  # bytes compared at both ends of files, to detect copies
_MAX_FILES = 4096  # sources with more files are not searched for copies

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RangeFigures:
    """Figures of a range of steps, one entry per source; NaN if unknown.

    Attributes:
        samples: the number of documents that begin.
        share: the share of the tokens; of the samples if lengths are unknown.
        length: the mean length of a document.
        again: the share of repeated documents.
        fullest: the share of the largest file.
        file: the number of that file.
        epoch: the mean epoch.
    """

    samples: Floats
    share: Floats
    length: Floats
    again: Floats
    fullest: Floats
    file: Ints
    epoch: Floats

    @property
    def total(self) -> int:
        """Number of documents of all sources."""
        return int(self.samples.sum())


class RangeMeter:
    """Measures ranges of steps."""

    def __init__(self, target: Target) -> None:
        self._target = target
        sources = [leaf.source if is_source(leaf.source) else None for leaf in target.leaves]
        self._filed = [None if source is None else as_row_files(source) for source in sources]
        self._lengths = [None if source is None else source.lengths() for source in sources]
        self._same = [None if source is None else _find_copies(source) for source in self._filed]

    @cached_property
    def _known(self) -> bool:
        return all(sizes is not None for sizes in self._lengths)

    def measure(self, steps: range) -> RangeFigures:
        """Return the figures of a range; a very long one is sampled."""
        columns = [np.concatenate(column) for column in zip(*self._taken(steps), strict=True)]
        leaf, index, epoch, begun, tokens = columns
        source_count, is_first = len(self._lengths), begun > 0
        samples = np.bincount(leaf[is_first], minlength=source_count).astype(np.float64)
        amounts = np.bincount(leaf, tokens, minlength=source_count) if self._known else samples
        unknown = np.full(source_count, np.nan)
        length, fullest, passes, again = (
            unknown.copy(),
            unknown.copy(),
            unknown.copy(),
            np.zeros(source_count),
        )
        file = np.zeros(source_count, np.int64)
        for number in np.flatnonzero(samples).tolist():
            is_of_source = is_first & (leaf == number)
            rows, passes[number] = index[is_of_source], epoch[is_of_source].mean()
            if (sizes := self._lengths[number]) is not None:
                length[number] = sizes[rows].mean()
            file_number, row_in_file = self._lying(number, rows)
            again[number] = len(rows) - len(np.unique((file_number << 40) | row_in_file))
            rows_by_file = np.bincount(file_number)
            file[number] = int(rows_by_file.argmax())
            if (source := self._filed[number]) is not None and len(source.paths) > 1:
                fullest[number] = rows_by_file.max() / len(rows)
        total = max(1.0, samples.sum())
        return RangeFigures(
            samples, amounts / max(1.0, amounts.sum()), length, again / total, fullest, file, passes
        )

    def _taken(self, steps: range) -> Iterator[tuple[Ints, Ints, Ints, Ints, Ints]]:
        """Yield source, index, epoch, is-first and tokens of every part of a document."""
        for part_range in self._spread(steps):
            for taken in self._target.rows.audit(part_range).stretches():
                ones = np.ones(len(taken.leaf), np.int64)
                begun, tokens = ones, ones
                if taken.start is not None and taken.stop is not None:
                    begun, tokens = (taken.start == 0).astype(np.int64), taken.stop - taken.start
                elif self._known:
                    tokens = ones.copy()
                    for number in np.flatnonzero(np.bincount(taken.leaf)).tolist():
                        sizes, is_of_source = self._lengths[number], taken.leaf == number
                        assert sizes is not None
                        tokens[is_of_source] = sizes[taken.index[is_of_source]]
                yield taken.leaf, taken.index, taken.epoch, begun, tokens

    def _spread(self, steps: range) -> Iterator[range]:
        per_step = self._target.rows_of_step
        if len(steps) * per_step <= _MAX_ROWS:
            yield steps
            return
        length, spacing = (
            max(1, _MAX_ROWS // per_step // _SAMPLED_PARTS),
            len(steps) // _SAMPLED_PARTS,
        )
        for part in range(_SAMPLED_PARTS):
            shift = int(
                hash64(steps.start, np.asarray([part]))[0] % np.uint64(max(1, spacing - length))
            )
            start = steps.start + part * spacing + shift
            yield range(start, min(start + length, steps.stop))

    def _lying(self, number: int, index: Ints) -> tuple[Ints, Ints]:
        """Return file and row in it; a copy counts as the first equal file."""
        if (source := self._filed[number]) is None:
            return np.zeros(len(index), np.int64), index
        file, row = source.file_rows(index)
        first_copy = self._same[number]
        return (file if first_copy is None else first_copy[file]), row

    def file(self, number: int, part: int) -> str:
        """Return the name of a file, or "" if the source has only one."""
        source = self._filed[number]
        return "" if source is None or len(source.paths) < 2 else source.paths[part].name


def _find_copies(source: RowFiles) -> Ints | None:
    """Return for each file the first file with equal content (by size, first and last bytes)."""
    if not 1 < len(source.paths) <= _MAX_FILES:
        return None
    sizes = [storage.world.store.stat(str(path)).size for path in source.paths]
    first, first_copies = dict[object, int](), np.arange(len(sizes))
    for place, (path, size) in enumerate(zip(source.paths, sizes, strict=True)):
        name: object = path.resolve()
        if sizes.count(size) > 1:
            ends = (
                storage.world.store.read(str(path), at, _COMPARED_BYTES)
                for at in (0, max(0, size - _COMPARED_BYTES))
            )
            name = (size, *(digest_memory(piece) for piece in ends))
        first_copies[place] = first.setdefault(name, place)
    return first_copies
