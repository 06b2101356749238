"""The limits of the code are those of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.stores import limits

UNITS = {"": 1, "MiB": 1 << 20, "GiB": 1 << 30, "PiB": 1 << 50}


def test_the_page_lists_every_limit() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "limits.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) ?(\w*) \|", page, re.MULTILINE)
    listed = {name: int(number.replace(",", "")) * UNITS[unit] for name, number, unit in rows}
    assert listed == {name: value for name, value in vars(limits).items() if name.isupper()}
