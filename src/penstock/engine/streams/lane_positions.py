"""One lane's share of the positions of a step: one position of every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...types import MAX_POSITION, Ints, Json
from ..base.cursors import make_cursor_error, parse_cursor_int
from ..base.integers import find_distinct_values
from ..base.random import build_permutations, derive_key, derive_tweak_keys
from ..base.rows import ProvenanceRows, make_empty_rows
from .chunk_cursors import PositionCursors
from .compiled_step import CompiledStep
from .feed import FIRST_PLAN, LAST_PLAN, WorkUnit, locate_in_pass, pass_size

_KEY = derive_key("lanes")
_BLOCK = 128  # rounds that are dealt together


@lru_cache(64)
def _deal_slots(lanes: int, run: int, block: int) -> npt.NDArray[Any]:
    """Return the slot of every lane in the rounds of a block: int64[rounds, lanes]."""
    rounds = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
    return build_permutations(lanes, derive_tweak_keys(derive_key(_KEY, run), rounds))


@dataclass(frozen=True)
class LaneAssignment:
    """Assignment of positions to lane `lane` of `lanes`: in order, or (`mixed`) by a permutation
    keyed by the round. A fixed order would alias with a mixture, and one lane never see a light
    source.

    `passes_in_run` are the passes that follow one another within a pass of the run (None: endlessly
    many). Rounds continue across their bounds, so a lane without a share of one pass has one of
    another.
    """

    lane: int
    lanes: int
    mixed: bool = False
    passes_in_run: int | None = 1

    def compute_offsets(self, rounds: Ints, run: int) -> Ints:
        """Return the lane's offset in each round."""
        if not self.mixed or self.lanes == 1:
            return rounds * self.lanes + self.lane
        blocks = rounds // _BLOCK
        slot = np.empty_like(rounds)
        for block in find_distinct_values(blocks).tolist():
            here = blocks == block
            slot[here] = _deal_slots(self.lanes, run, block)[
                rounds[here] - block * _BLOCK, self.lane
            ]
        return rounds * self.lanes + slot


class LanePositionFeed:
    """The positions of one lane as units of work; the cursor is the round of the pass."""

    def __init__(self, step: CompiledStep, share: LaneAssignment) -> None:
        self.step, self.share = step, share
        self.seek(0, None)

    def cursor(self) -> Json:
        return self._at

    def seek(self, epoch: int, cursor: Json, /) -> None:
        size = pass_size(self.step, epoch)
        self._epoch = epoch
        self._at = 0 if cursor is None else parse_cursor_int(cursor)
        self._plan = FIRST_PLAN
        if size is not None and self._at > -(-size // self.share.lanes) + 1:
            raise make_cursor_error(cursor, f"a round of {size} positions")
        self._rows = make_empty_rows(self.step.depth)
        self._used: int = 0

    def next(self, n: int, /) -> WorkUnit | None:
        if self._used == len(self._rows) and not self._locate():
            return None
        n = min(n, len(self._rows) - self._used)
        unit = self._rows.slice(self._used, self._used + n)
        cursors = PositionCursors(self._at, 1, 1, None)
        self._used += n
        self._at += n
        return WorkUnit(None, unit, cursors)

    def _locate(self) -> bool:
        """Plan the next rounds.

        Only the first and the last of a pass may have no position of this lane.
        """
        size = pass_size(self.step, self._epoch)
        offsets = self.offsets_at(np.arange(self._at, self._at + self._plan), self._epoch)
        if size is not None:
            whole = np.flatnonzero((offsets >= 0) & (offsets < size))
            if not whole.size:
                return False
            self._at += int(whole[0])
            offsets = offsets[whole]
        self._rows, self._used = self._locate_offsets(offsets, self._epoch), 0
        self._plan = min(
            max(LAST_PLAN, 256 * len(find_distinct_values(self._rows.leaf))), self._plan * 4
        )
        return True

    def offsets_at(self, rounds: Ints, epoch: int) -> Ints:
        """Return the lane's offsets in rounds of a pass; the first and last round may be outside
        it.
        """
        run, pass_number = (
            (0, epoch)
            if self.share.passes_in_run is None
            else divmod(epoch, self.share.passes_in_run)
        )
        # positions of the run before this pass
        before = 0 if self.step.passes is None else self.step.passes.start(pass_number)
        if before >= MAX_POSITION:  # of an index of what has no end
            before %= self.share.lanes
        return self.share.compute_offsets(rounds + before // self.share.lanes, run) - before

    def _locate_offsets(self, offsets: Ints, epoch: int) -> ProvenanceRows:
        return locate_in_pass(self.step, epoch, offsets)

    def close(self) -> None:
        pass
