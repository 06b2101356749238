"""The picture of a plan: every kind of file, many sources, unknown lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.report.picture import BANDS, Course, page, save, spaced


def course(sources: int, sizes: int | None = 100) -> Course:
    steps = np.arange(0, 101, 10)
    counts = steps[:, None] * np.arange(1, sources + 1)
    return Course([f"s{i}" for i in range(sources)], [sizes] * sources, steps, counts, [(50, "s0 repeats")])


def test_svg_names_every_source_and_mark(tmp_path: Path) -> None:
    save(course(3), tmp_path / "deep" / "plan.svg", "A title & more")
    text = (tmp_path / "deep" / "plan.svg").read_text()
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>")
    for name in ("s0", "s1", "s2", "s0 repeats", "A title &amp; more", "50.0%"):
        assert name in text, name


def test_png_is_one(tmp_path: Path) -> None:
    save(course(2), tmp_path / "plan.png", "t")
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_page_holds_picture_and_table(tmp_path: Path) -> None:
    save(course(2, sizes=None), tmp_path / "plan.html", "t", [["source", "samples"], ["a<b", "7"]])
    text = (tmp_path / "plan.html").read_text()
    assert "<svg" in text and "<th>samples</th>" in text and "a&lt;b" in text
    assert "no source has a known length" in text


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.pdf.*\.svg, \.png, \.html"):
        save(course(2), tmp_path / "plan.pdf", "t")
    assert not (tmp_path / "plan.pdf").exists()


def test_many_sources_are_put_together_and_nothing_is_lost() -> None:
    many = course(40)
    few = many.merged()
    assert len(few.names) == BANDS + 1 and few.names[-1] == "30 others"
    assert (few.counts.sum(axis=1) == many.counts.sum(axis=1)).all()
    assert few.sizes[-1] == 3_000
    assert course(BANDS + 1).merged().names == course(BANDS + 1).names


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_their_distance(places: list[float]) -> None:
    asked = np.array(places)
    got = spaced(asked, 0.05, 1.0)
    order = np.argsort(asked, kind="stable")
    assert (np.diff(got[order]) >= 0.05 - 1e-9).all()
    assert got.max() <= 1.0 + 1e-9


def test_a_page_escapes_its_title() -> None:
    assert "<h1>a &lt; b</h1>" in page("a < b", [("x", "<p>y</p>")])
