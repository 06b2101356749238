"""The charts of a plan: every kind of file, many sources, unknown lengths, and hostile names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.explore.charts import list_series, make_spec, render_svg
from penstock.explore.run_counts import MAX_BANDS, EventStrip, RunCounts
from penstock.report.page import (
    Fact,
    render_chart_widths,
    render_page,
    render_table,
    render_warnings,
    save_chart,
)

SVG = "{http://www.w3.org/2000/svg}"


def course(sources: int, sizes: int | None = 100, name: str = "s{}") -> RunCounts:
    steps = np.arange(0, 101, 10)
    counts = steps[:, None] * np.arange(1, sources + 1)
    return RunCounts([name.format(i) for i in range(sources)], [sizes] * sources, steps, counts)


def texts_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_svg_names_every_source_and_event(tmp_path: Path) -> None:
    strip = EventStrip(
        [(0, "warm-up"), (50, "stable")],
        [None, 40, None],
        [None, None, 90],
        [(30, "2 rows skipped")],
    )
    save_chart(course(3), tmp_path / "deep" / "plan.svg", "A title & more", strip)
    text = (tmp_path / "deep" / "plan.svg").read_text()
    assert text.startswith("<svg") and "<script" not in text
    assert "prefers-color-scheme: dark" in text and 'aria-label="A title &amp; more"' in text
    words = texts_of(text)
    for name in (
        *("A title & more", "warm-up", "stable", "2 rows skipped"),
        *("s1: repeats from 40", "s2: used up at 90", "s2: 50.0%, 3.00x"),
    ):
        assert name in words, name
    assert not any(word.startswith("s0: ") and "repeats" in word for word in words)


def test_png_is_one(tmp_path: Path) -> None:
    save_chart(course(2), tmp_path / "plan.png", "t")
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.pdf.*\.svg, \.png, \.html"):
        save_chart(course(2), tmp_path / "plan.pdf", "t")
    assert not (tmp_path / "plan.pdf").exists()


def test_without_the_renderer_a_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("penstock.report.page.has_renderer", lambda: False)
    assert "penstock-data[plot]" in render_chart_widths(course(2))
    with pytest.raises(ImportError, match=r"penstock-data\[plot\]"):
        save_chart(course(2), tmp_path / "plan.svg", "t")


def test_many_sources_are_put_together_and_nothing_is_lost() -> None:
    for count in (3, MAX_BANDS + 1, 40, 500):
        made = course(count)
        series = list_series(made)
        assert len(series) == min(count, MAX_BANDS + 1)
        assert sorted(i for one in series for i in one.members) == list(range(count))
        assert sum(one.share for one in series) == pytest.approx(1)
    assert series[-1].name == "490 others" and series[-1].epochs is not None


def test_groups_are_bands() -> None:
    made = course(60)
    groups = [f"group {i // 12}" for i in range(60)]
    made = RunCounts(made.names, made.sizes, made.steps, made.counts, "tokens", groups)
    strip = EventStrip((), [10 if i % 2 else None for i in range(60)], [None] * 60)
    words = texts_of(render_svg(made, "", strip))
    assert "group 0: 6 of 12 repeat" in words and "Share of the tokens" in words


@pytest.mark.parametrize("width", [350, 1060])
def test_nothing_overlaps_at_either_width(width: int) -> None:
    """Text boxes of the chart, from the positions that the renderer wrote."""
    made = course(40, name="a_rather_long_group/and_a_source_{:02d}")
    stages = [(step, f"stage of step {step}") for step in range(0, 100, 8)]
    strip = EventStrip(stages, [i % 90 for i in range(40)], [None] * 40)
    tree = ElementTree.fromstring(render_svg(made, "A title", strip, width))
    boxes = list(iter_text_boxes(tree, 0, 0))
    assert len(boxes) > 30
    for n, (left, right, top, bottom, text) in enumerate(boxes):
        assert left >= -1 and right <= float(tree.get("width", 0)) + 1, text
        under = [
            other
            for a, b, c, d, other in boxes[n + 1 :]
            if left < b - 1 and a < right - 1 and top < d - 1 and c < bottom - 1
        ]
        assert not under, (text, under)


def iter_text_boxes(element: Any, x: float, y: float) -> Any:
    """Yield left, right, top, bottom and text of every text, at 6 pixels a character."""
    transform = element.get("transform", "")
    if transform.startswith("translate("):
        dx, dy = map(float, transform[10:].split(")")[0].split(","))
        x, y = x + dx, y + dy
    parts = list(element.iter(f"{SVG}tspan")) if element.tag == f"{SVG}text" else []
    if element.tag == f"{SVG}text" and element.get("opacity") != "0":
        size = float(element.get("font-size", "12px").removesuffix("px"))
        lines = [part.text or "" for part in parts] or [element.text or ""]
        for number, line in enumerate(lines):
            width = len(line) * size * 0.5
            anchor = element.get("text-anchor", "start")
            left = x - {"end": width, "middle": width / 2}.get(anchor, 0)
            bottom = y + number * (size + 2)
            if line:
                yield left, left + width, bottom - size * 0.8, bottom, line
        return
    for child in element:
        yield from iter_text_boxes(child, x, y)


def test_unknown_lengths_draw_no_epochs() -> None:
    words = " ".join(texts_of(render_svg(course(3, sizes=None), "A title")))
    assert "no source has a known length" in words and "Epochs" not in words


def test_names_from_data_are_harmless() -> None:
    name = '<script>alert("{}")</script>\x00\udcff'
    text = render_svg(course(2, name=name), name)
    assert "<script" not in text and "\x00" not in text
    assert any("<script>" in word and r"\x00\udcff" in word for word in texts_of(text))
    assert len({s["source"] for s in _values(course(2, name="x" * 90 + "{}"))}) == 2


def _values(made: RunCounts) -> Any:
    spec = make_spec(made, "", None, 350, 280)
    return spec["vconcat"][0]["layer"][0]["data"]["values"]


def test_the_same_plan_is_the_same_picture() -> None:
    assert render_svg(course(2), "t") == render_svg(course(2), "t")
    ids = [re.findall(r'id="([^"]+)"', render_svg(course(n), "t")) for n in (2, 3)]
    assert ids[0] and not {*ids[0]} & {*ids[1]}, "charts of one page share ids"


# ---------------------------------------------------------------- pages


def test_a_page_begins_with_its_facts_and_escapes_them() -> None:
    page = render_page(
        "a < b", [Fact("warnings", "<3", "a & b", True)], [("x<", "<p>y</p>"), ("", "z")]
    )
    assert "<h1>a &lt; b</h1>" in page and "&lt;3<small>a &amp; b</small>" in page
    assert page.index("<dl>") < page.index("<h2>x&lt;</h2>") < page.index("z</main>")


def test_a_table_leaves_out_empty_columns_and_folds_long_ones() -> None:
    table = render_table(
        [["source", "share", "cap", "ends"], ["g", "60.00%", "", "7"], ["  a<b", "30.00%", "", ""]],
        frozenset(["a<b"]),
    )
    assert ">cap<" not in table and "a&lt;b" in table and 'class="member noted"' in table
    assert 'style="--share: 100.0%"' in table and 'style="--share: 50.0%"' in table
    rows = [[f"s{i}", "1.00%"] for i in range(100)]
    long = render_table([["source", "share"], *rows])
    assert "60 more rows" in long and long.count("<tr") == 102


def test_warnings_are_named_or_none() -> None:
    assert "Warnings: none" in render_warnings([])
    long = render_warnings([(f"s{i}", "<b>") for i in range(30)])
    assert "10 more warnings" in long and "&lt;b&gt;" in long
