"""Sources that fetch from afar are told of every row before it is read, in the order in which it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps

ROWS = 3_000


class Heard:
    """Rows that lie afar: what was told of them, and which were read without having been told of."""

    def __init__(self) -> None:
        self.told, self.surprises = list[int](), list[int]()

    def __len__(self) -> int:
        return ROWS

    def read(self, indices: npt.NDArray[np.int64], /) -> list[Any]:
        self.surprises += sorted({*indices.tolist()} - {*self.told})
        return indices.tolist()

    def lengths(self) -> None:
        return None

    def describe(self) -> Any:
        return {"rows": ROWS}

    def foresees(self, reach: str, /) -> bool:
        return True

    def ahead(self, indices: npt.NDArray[np.int64], /) -> bool:
        self.told += indices.tolist()
        return True


def test_every_row_is_told_of_before_it_is_read() -> None:
    source = Heard()
    order = list(ps.from_sequence(source).shuffle(seed=3))
    assert source.surprises == [] and source.told == order and len(order) == ROWS
