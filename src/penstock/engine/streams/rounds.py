"""A lane's share of the positions of an op: one of every round, in which each lane gets one."""

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
from .compiled_step import CompiledStep
from .feed import FIRST_PLAN, LAST_PLAN, WorkUnit, locate_in_pass, pass_size
from .trail import PositionCursors

_KEY = derive_key("lanes")
_BLOCK = 128  # rounds that are dealt together


@lru_cache(64)
def _deal_slots(lanes: int, run: int, block: int) -> npt.NDArray[Any]:
    """The slot of every lane in the rounds of a block: int64[rounds, lanes]."""
    rounds = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
    return build_permutations(lanes, derive_tweak_keys(derive_key(_KEY, run), rounds))


@dataclass(frozen=True)
class LaneAssignment:
    """Lane `lane` of `lanes`. Dealt in order, or (`mixed`) by a permutation keyed by the round: an
    even order would alias with the lanes, and one of them never see a light source.

    `laps` are the passes that follow one another within a pass of the run (None: endlessly many).
    Rounds go on over their bounds, so that a lane that has no share of one pass has one of another.
    """

    lane: int
    lanes: int
    mixed: bool = False
    passes_in_run: int | None = 1

    def compute_offsets(self, rounds: Ints, run: int) -> Ints:
        """Our position in each of these rounds."""
        if not self.mixed or self.lanes == 1:
            return rounds * self.lanes + self.lane
        blocks = rounds // _BLOCK
        slot = np.empty_like(rounds)
        for block in find_distinct_values(blocks).tolist():
            here = blocks == block
            slot[here] = _deal_slots(self.lanes, run, block)[rounds[here] - block * _BLOCK, self.lane]
        return rounds * self.lanes + slot


class LanePositionFeed:
    """The positions of one lane as work; the cursor is the round of the pass."""

    def __init__(self, op: CompiledStep, share: LaneAssignment) -> None:
        self.op, self.share = op, share
        self.seek(0, None)

    def cursor(self) -> Json:
        return self._at

    def seek(self, epoch: int, cursor: Json, /) -> None:
        size = pass_size(self.op, epoch)
        self._epoch, self._at, self._plan = (
            epoch,
            0 if cursor is None else parse_cursor_int(cursor),
            FIRST_PLAN,
        )
        if size is not None and self._at > -(-size // self.share.lanes) + 1:
            raise make_cursor_error(cursor, f"a round of {size} positions")
        self._rows = make_empty_rows(self.op.depth)
        self._used: int = 0

    def next(self, n: int, /) -> WorkUnit | None:
        if self._used == len(self._rows) and not self._locate():
            return None
        n = min(n, len(self._rows) - self._used)
        unit = self._rows.slice(self._used, self._used + n)
        trail = PositionCursors(self._at, 1, 1, None)
        self._used += n
        self._at += n
        return WorkUnit(None, unit, trail)

    def _locate(self) -> bool:
        """Plan the next stretch of rounds. Only the first and the last of a pass may have no
        position for us."""
        size = pass_size(self.op, self._epoch)
        places = self.offsets_at(np.arange(self._at, self._at + self._plan), self._epoch)
        if size is not None:
            whole = np.flatnonzero((places >= 0) & (places < size))
            if not whole.size:
                return False
            self._at += int(whole[0])
            places = places[whole]
        self._rows, self._used = self._locate_offsets(places, self._epoch), 0
        self._plan = min(
            max(LAST_PLAN, 256 * len(find_distinct_values(self._rows.leaf))), self._plan * 4
        )
        return True

    def offsets_at(self, rounds: Ints, epoch: int) -> Ints:
        """Our positions in rounds of a pass; outside of it in the first and last round, maybe."""
        run, lap = (0, epoch) if self.share.passes_in_run is None else divmod(epoch, self.share.passes_in_run)
        # positions of the run before this pass
        before = 0 if self.op.passes is None else self.op.passes.start(lap)
        if before >= MAX_POSITION:  # of an index of what has no end
            before %= self.share.lanes
        return self.share.compute_offsets(rounds + before // self.share.lanes, run) - before

    def _locate_offsets(self, places: Ints, epoch: int) -> ProvenanceRows:
        return locate_in_pass(self.op, epoch, places)

    def close(self) -> None:
        pass
