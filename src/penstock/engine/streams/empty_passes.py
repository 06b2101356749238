"""Detection of endless pipelines that yield nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import DataError
from ..base.rows import ProvenanceRows

# Passes of a random order: 32 n draws miss one of n samples with probability e^-32.
_RANDOM_PASSES = 32
_RECENT = 1 << 12  # samples after which a source absent from their second half no longer counts


@dataclass
class EmptyPassDetector:
    """Sources without an item in a whole pass over a lane's share, by name and lane.

    The lane ends there. It is an error if all `lanes` of a rank report one, or if an endless run
    would end.
    """

    lanes: int
    endless: bool
    found: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def note(self, name: str, lane: int) -> None:
        """Note an empty pass of a lane."""
        self.found.setdefault(name, set()).add(lane)
        if len(self.found[name]) == self.lanes:
            raise _empty_pass(name)

    def check(self, given: bool) -> None:
        """Raise `DataError` at the end of a run that is endless, or that gave nothing."""
        if self.found and (self.endless or not given):
            raise _empty_pass(", ".join(sorted(self.found)[:5]))


def _empty_pass(names: str) -> DataError:
    return DataError(
        "a whole pass gave no sample, so it cannot be repeated; loosen the filter, or read other "
        "data",
        where=names,
    )


class EndlessSearch:
    """Detects a lane of an endless run whose steps let no sample through.

    It ends in an error once every source came so often that the lane has read each of its samples.
    With `lanes` lanes that takes as many passes if all give the same samples, and more if they are shuffled
    or mixed. `sources` is true for the leaves below; one that no longer comes, such as a capped
    input, is not waited for.
    """

    def __init__(self, sources: Sequence[bool], alike: bool, lanes: int) -> None:
        self._leaves = np.flatnonzero(sources)
        self._passes = lanes * (1 if alike else _RANDOM_PASSES)
        self._first, self._last, self._at = np.zeros((3, len(sources)), np.int64)
        self.reset()

    def reset(self) -> None:
        """Reset, after an item or a seek."""
        self.samples = 0

    def note_empty(self, rows: ProvenanceRows) -> None:
        """Note samples that gave nothing.

        Raises:
            DataError: if no sample of the lane gives anything.
        """
        if not self.samples:
            self._first[:], self._last[:], self._at[:] = np.iinfo(np.int64).max, -1, 0
        self.samples += len(rows)
        np.minimum.at(self._first, rows.leaf, rows.epoch)
        np.maximum.at(self._last, rows.leaf, rows.epoch)
        self._at[rows.leaf] = self.samples
        come = self._leaves[self._at[self._leaves] * 2 > self.samples]
        if not len(come) or (len(come) < len(self._leaves) and self.samples < _RECENT):
            return
        if np.all(self._last[come] - self._first[come] > self._passes):
            raise DataError(
                f"{self.samples:,} samples in a row gave nothing, and the dataset is endless: a "
                "lane reads every n-th position, and without a shuffle these are the same "
                "samples in every pass; shuffle before the filter, or filter before repeat()"
            )
