"""Figures of a stretch of steps, source by source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.engine.base.random import hash64
from penstock.engine.base.seams import world
from penstock.sources.identity import content
from penstock.sources.row_files import RowFiles, row_files_of
from penstock.types import Ints, is_source

from .target import Target

_MOST = 1 << 18  # rows of one stretch, from which on steps are drawn from it
_PARTS = 64  # stretches within it
_PIECE = 1 << 16  # bytes of a file by which copies are known
_FILES = 4096  # files up to which copies are looked for

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """By source: documents that begin, shares of tokens (or samples), mean length of documents,
    documents that were there before (as a part of all), the part of the fullest file and its
    number, the mean epoch. NaN where there is nothing to tell.
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
        """Documents of all sources."""
        return int(self.samples.sum())


class Look:
    """Measures stretches of steps."""

    def __init__(self, target: Target) -> None:
        self._target = target
        sources = [leaf.source if is_source(leaf.source) else None for leaf in target.leaves]
        self._filed = [None if source is None else row_files_of(source) for source in sources]
        self._lengths = [None if source is None else source.lengths() for source in sources]
        self._same = [None if source is None else _copies(source) for source in self._filed]

    @cached_property
    def _known(self) -> bool:
        return all(sizes is not None for sizes in self._lengths)

    def measured(self, steps: range) -> Measured:
        """All figures of a stretch; of a very long one those of steps spread over it."""
        columns = [np.concatenate(column) for column in zip(*self._taken(steps), strict=True)]
        leaf, index, epoch, begun, tokens = columns
        many, first = len(self._lengths), begun > 0
        samples = np.bincount(leaf[first], minlength=many).astype(np.float64)
        amounts = np.bincount(leaf, tokens, minlength=many) if self._known else samples
        none = np.full(many, np.nan)
        length, fullest, passes, again = none.copy(), none.copy(), none.copy(), np.zeros(many)
        file = np.zeros(many, np.int64)
        for number in np.flatnonzero(samples).tolist():
            mine = first & (leaf == number)
            rows, passes[number] = index[mine], epoch[mine].mean()
            if (sizes := self._lengths[number]) is not None:
                length[number] = sizes[rows].mean()
            part, row = self._lying(number, rows)
            again[number] = len(rows) - len(np.unique((part << 40) | row))
            inside = np.bincount(part)
            file[number] = int(inside.argmax())
            if (source := self._filed[number]) is not None and len(source.paths) > 1:
                fullest[number] = inside.max() / len(rows)
        total = max(1.0, samples.sum())
        return Measured(
            samples, amounts / max(1.0, amounts.sum()), length, again / total, fullest, file, passes
        )

    def _taken(self, steps: range) -> Iterator[tuple[Ints, Ints, Ints, Ints, Ints]]:
        """Leaf, index, epoch, whether it begins here and tokens of every part."""
        for some in self._spread(steps):
            for taken in self._target.rows.audit(some).stretches():
                ones = np.ones(len(taken.leaf), np.int64)
                begun, tokens = ones, ones
                if taken.start is not None and taken.stop is not None:
                    begun, tokens = (taken.start == 0).astype(np.int64), taken.stop - taken.start
                elif self._known:
                    tokens = ones.copy()
                    for number in np.flatnonzero(np.bincount(taken.leaf)).tolist():
                        sizes, mine = self._lengths[number], taken.leaf == number
                        assert sizes is not None
                        tokens[mine] = sizes[taken.index[mine]]
                yield taken.leaf, taken.index, taken.epoch, begun, tokens

    def _spread(self, steps: range) -> Iterator[range]:
        per_step = self._target.rows_of_step
        if len(steps) * per_step <= _MOST:
            yield steps
            return
        each, room = max(1, _MOST // per_step // _PARTS), len(steps) // _PARTS
        for part in range(_PARTS):
            shift = int(hash64(steps.start, np.asarray([part]))[0] % np.uint64(max(1, room - each)))
            at = steps.start + part * room + shift
            yield range(at, min(at + each, steps.stop))

    def _lying(self, number: int, index: Ints) -> tuple[Ints, Ints]:
        """The file of rows, or the one of which that is a copy, and the rows of it."""
        if (source := self._filed[number]) is None:
            return np.zeros(len(index), np.int64), index
        file, row = source.file_rows(index)
        same = self._same[number]
        return (file if same is None else same[file]), row

    def file(self, number: int, part: int) -> str:
        """The name of a file of a source; nothing where it has but one."""
        source = self._filed[number]
        return "" if source is None or len(source.paths) < 2 else source.paths[part].name


def _copies(source: RowFiles) -> Ints | None:
    """For each file of a source the first that holds the same: files that are listed twice, and
    copies of files."""
    if not 1 < len(source.paths) <= _FILES:
        return None
    sizes = [world.store.stat(str(path)).size for path in source.paths]
    first, out = dict[object, int](), np.arange(len(sizes))
    for place, (path, size) in enumerate(zip(source.paths, sizes, strict=True)):
        name: object = path.resolve()
        if sizes.count(size) > 1:
            ends = (world.store.read(str(path), at, _PIECE) for at in (0, max(0, size - _PIECE)))
            name = (size, *(content(piece) for piece in ends))
        out[place] = first.setdefault(name, place)
    return out
