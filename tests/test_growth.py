"""Costs over size grow as promised: calls of functions and bytes of states are counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "bench").is_dir(), reason="the benchmark is not part of this copy"
)
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from bench import growth  # noqa: E402

SIZES = {
    "sources": (4, 120),
    "documents": (10**5, 10**6),
    "changes": (1, 60),
    "ranks": (1, 256),
    "step": (10**3, 10**12),
}


@pytest.mark.parametrize("table", growth.TABLES, ids=lambda table: table.name)
def test_calls_and_bytes_grow_as_promised(table: growth.Table) -> None:
    sizes = SIZES[table.axis]
    costs = growth.run(table, sizes, repeats=0)
    shown = {name: [(cell.calls, cell.size) for cell in cells] for name, cells in costs.items()}
    assert all(growth.compare_with_promises(costs, sizes).values()), shown


def test_growth_beyond_a_promise_is_found() -> None:
    assert growth.holds("flat", [1, 1000], [1000, 1500])
    assert not growth.holds("flat", [1, 1000], [1000, 5000])
    assert growth.holds("linear", [1, 1000], [1000, 1_500_000])
    assert not growth.holds("linear", [1, 1000], [1000, 5_000_000])


def test_calls_are_counted() -> None:
    def once() -> None: ...

    assert growth.count_calls(lambda: [once() for _ in range(10)]) >= 10
