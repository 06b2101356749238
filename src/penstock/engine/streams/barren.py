"""Flows that should go on and give nothing: noted where that is found out, refused where no lane
gives anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import DataError
from ..base.rows import ProvenanceRows

# passes of all that is drawn at random: a sample among n is missed by 32 n draws once in e^32 times
_AGAIN = 32
_RECENT = (
    1 << 12
)  # samples after which a source that none of the later half came from does not count


@dataclass
class Barren:
    """Sources without a sample in a whole pass over a lane's share, by name and lane: the lane ends
    there.

    If all `lanes` of a rank report it, or an endless run would end, that is an error.
    """

    lanes: int
    endless: bool
    found: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def note(self, name: str, lane: int) -> None:
        """A lane found nothing."""
        self.found.setdefault(name, set()).add(lane)
        if len(self.found[name]) == self.lanes:
            raise DataError(
                "a whole pass gave no sample, so it cannot be repeated; loosen the filter, "
                "or read other data",
                where=name,
            )

    def check(self, given: bool) -> None:
        """Refuse the end of a run that had more to give, or gave nothing."""
        if self.found and (self.endless or not given):
            names = ", ".join(sorted(self.found)[:5])
            raise DataError(
                "a whole pass gave no sample, so it cannot be repeated; loosen the filter, "
                "or read other data",
                where=names,
            )


class EndlessSearch:
    """A record of what a lane went through in an endless flow since a step last let something
    through.

    It ends in an error once every source came again so often that each of its samples was dealt to
    the lane. A lane of `lanes` has each sample of a source within as many passes where these are
    `alike`; of passes that are shuffled or mixed it takes more. `sources` tells for every leaf of
    the tree whether it lies below; one that no longer comes, such as a capped input, is not waited
    for.
    """

    def __init__(self, sources: Sequence[bool], alike: bool, lanes: int) -> None:
        self._leaves, self._passes = np.flatnonzero(sources), lanes * (1 if alike else _AGAIN)
        self._first, self._last, self._at = np.zeros((3, len(sources)), np.int64)
        self.begin()

    def begin(self) -> None:
        """Reset: something came, or the lane continues elsewhere."""
        self.samples = 0

    def nothing_in(self, rows: ProvenanceRows) -> None:
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
