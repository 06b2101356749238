"""The picture of a plan: every kind of file, many sources, unknown lengths."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.explore.run_counts import MAX_BANDS, RunCounts, spread_labels
from penstock.explore.svg import EventStrip, render_svg
from penstock.report.page import html, save


def course(sources: int, sizes: int | None = 100) -> RunCounts:
    steps = np.arange(0, 101, 10)
    counts = steps[:, None] * np.arange(1, sources + 1)
    return RunCounts(
        [f"s{i}" for i in range(sources)], [sizes] * sources, steps, counts, [(50, "s0 repeats")]
    )


def test_svg_names_every_source_and_mark(tmp_path: Path) -> None:
    strip = EventStrip([(0, "warm-up"), (50, "stable")], [None, 40, None], [None, None, 90])
    save(course(3), tmp_path / "deep" / "plan.svg", "A title & more", strip=strip)
    text = (tmp_path / "deep" / "plan.svg").read_text()
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>")
    for name in (
        "s0",
        "s1",
        "s2",
        "s1 is seen again from step 40",
        "s2 is used up",
        "stable",
        "A title &amp; more",
        "50.0%",
    ):
        assert name in text, name


def test_png_is_one(tmp_path: Path) -> None:
    save(course(2), tmp_path / "plan.png", "t")
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_page_holds_picture_and_table(tmp_path: Path) -> None:
    save(course(2, sizes=None), tmp_path / "plan.html", "t", [["source", "samples"], ["a<b", "7"]])
    text = (tmp_path / "plan.html").read_text()
    assert "<svg" in text and '<th scope="col">samples</th>' in text and "a&lt;b" in text
    assert "no source has a known length" in text


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.pdf.*\.svg, \.png, \.html"):
        save(course(2), tmp_path / "plan.pdf", "t")
    assert not (tmp_path / "plan.pdf").exists()


def test_many_sources_are_put_together_and_nothing_is_lost() -> None:
    many = course(40)
    few = many.merged()
    assert len(few.names) == MAX_BANDS + 1 and few.names[-1] == "30 others"
    assert (few.counts.sum(axis=1) == many.counts.sum(axis=1)).all()
    assert few.sizes[-1] == 3_000
    assert course(MAX_BANDS + 1).merged().names == course(MAX_BANDS + 1).names


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_their_distance(places: list[float]) -> None:
    asked = np.array(places)
    got = spread_labels(asked, 0.05, 1.0)
    order = np.argsort(asked, kind="stable")
    assert (np.diff(got[order]) >= 0.05 - 1e-9).all()
    assert got.max() <= 1.0 + 1e-9


def test_nothing_overlaps_at_either_width() -> None:
    """Sixty sources in five groups, twelve stages with long names: no text lies over another or outside."""
    steps = np.arange(0, 1_001, 10)
    names = [f"a_rather_long_group_{i % 5}/source_{i:02d}" for i in range(60)]
    groups = [f"a_rather_long_group_{i % 5}" for i in range(60)]
    order = sorted(range(60), key=lambda i: groups[i])
    counts = steps[:, None] * np.array([1, *[1000] * 59])
    made = RunCounts(
        [names[i] for i in order],
        [500] * 60,
        steps,
        counts,
        (),
        "tokens",
        [groups[i] for i in order],
    )
    stages = [(step, f"stage of step {step}") for step in range(0, 1_000, 80)]
    strip = EventStrip(stages, [10 * i for i in range(60)], [None] * 60)
    for width in (1300, 640):
        tree = ElementTree.fromstring(render_svg(made, "A title", strip, width))
        boxes = list[tuple[float, float, float, float, str]]()
        for text in tree.iter("{http://www.w3.org/2000/svg}text"):
            wide, x, y = (
                6.2 * len(text.text or ""),
                float(text.get("x", 0)),
                float(text.get("y", 0)),
            )
            x -= {"end": wide, "middle": wide / 2}.get(text.get("text-anchor", ""), 0)
            boxes.append((x, x + wide, y - 10, y, text.text or ""))
        height = float(tree.get("height", 0))
        assert [
            one for one in boxes if min(one[0], one[2]) < 0 or one[1] > width or one[3] > height
        ] == []
        for n, (a, b, c, d, said) in enumerate(boxes):
            under = [
                other for e, f, g, h, other in boxes[n + 1 :] if a < f and e < b and c < h and g < d
            ]
            assert not under, (width, said, under)
        titles = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
        assert sum("of the tokens of the run" in (title or "") for title in titles) == 60


def test_many_sources_without_groups_are_drawn_together() -> None:
    text = render_svg(course(44), "A title")
    assert "34 others" in text and text.count("<polygon") == 44
    assert "no source has a known length" in render_svg(course(3, sizes=None), "A title")


def test_a_page_escapes_its_title() -> None:
    assert "<h1>a &lt; b</h1>" in html("a < b", [("x", "<p>y</p>")])
