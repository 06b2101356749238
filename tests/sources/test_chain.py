from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sources.chain import compute_offsets, read_by_part
from penstock.types import Ints


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_rows_come_from_their_parts_in_the_order_asked(
    sizes: list[int], data: st.DataObject
) -> None:
    parts = [[(part, row) for row in range(size)] for part, size in enumerate(sizes)]
    flat = [pair for part in parts for pair in part]
    wanted = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=40)) if flat else []
    visited: list[int] = []

    def read(part: int, rows: Ints) -> list[tuple[int, int]]:
        visited.append(part)
        return [parts[part][row] for row in rows.tolist()]

    got = read_by_part(compute_offsets(sizes), np.asarray(wanted, np.int64), read)
    assert got == [flat[index] for index in wanted]
    assert len(visited) == len(set(visited))
