"""The stacked chart of the terminal."""

from __future__ import annotations

from penstock.cli.demo.show import columns


def test_columns_are_as_high_as_the_shares() -> None:
    rows = columns({"a": [0.3, 0.9], "b": [0.7, 0.1]}, width=2, height=10)
    assert [sum(row[column] == 0 for row in rows) for column in range(2)] == [3, 9]
