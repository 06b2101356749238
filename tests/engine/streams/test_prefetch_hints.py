"""Sources that fetch from afar are told of every row before it is read, in the order in which it is read."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps

ROWS = 3_000


class Heard:
    """Rows that lie afar: what was told of them, and which were read without having been told of. Told rows that were
    not read yet fill its room."""

    def __init__(self, room: int = ROWS, held: int = ROWS, seconds: float = 0.0) -> None:
        self.room, self.held, self.seconds = room, held, seconds
        self.told, self.surprises, self.asked, self.given = set[int](), list[int](), list[int](), 0

    def __len__(self) -> int:
        return ROWS

    def read(self, indices: npt.NDArray[np.int64], /) -> list[Any]:
        time.sleep(len(indices) * self.seconds)
        self.surprises += sorted({*indices.tolist()} - self.told)
        self.given += len(indices)
        return indices.tolist()

    def lengths(self) -> None:
        return None

    def describe(self) -> Any:
        return {"rows": ROWS}

    def prefetch_capacity(self, reach: str, /) -> int:
        return self.held

    def prefetch(self, indices: npt.NDArray[np.int64], /) -> bool:
        new = {*indices.tolist()} - self.told
        self.asked.append(len(new))
        if len(self.told) + len(new) - self.given > self.room:
            return False
        self.told |= new
        return True


def test_every_row_is_told_of_before_it_is_read() -> None:
    source = Heard()
    order = list(ps.from_sequence(source).shuffle(seed=3))
    assert (
        source.surprises == [] and source.told == {*order} == {*range(ROWS)} and len(order) == ROWS
    )


def test_neighbours_that_are_wanted_soon_are_told_together() -> None:
    source = Heard()
    assert len(list(ps.from_sequence(source).shuffle(seed=3))) == ROWS
    assert source.asked[0] == ROWS  # all of it, as there is room for all
    source = Heard()
    found = list(ps.from_sequence(source).shuffle(seed=3).skip(ROWS // 2))
    assert source.told == {*found}  # and nothing that is not wanted
    source = Heard(held=100)
    assert len(list(ps.from_sequence(source).shuffle(seed=3))) == ROWS
    assert source.asked[0] < 100


def test_a_source_with_little_room_is_asked_now_and_then_for_as_much_as_it_takes() -> None:
    for room in (200, 1_000):
        source = Heard(room, room // 4, 0.0003)
        order = list(ps.from_sequence(source).shuffle(seed=3))
        assert source.surprises == [] and source.told == {*order}
        assert len(source.asked) <= 8 + 8 * ROWS // room
