"""The demo's picture is well-formed and shows what it is given."""

from __future__ import annotations

from xml.etree import ElementTree

from penstock.demo.picture import Chart, columns, svg


def test_svg_is_xml_with_a_line_for_each_source_and_plan() -> None:
    shares = {"a<b": [0.25, 0.5], "c": [0.75, 0.5]}
    root = ElementTree.fromstring(svg(Chart([10, 20], shares, shares, {10: "killed & resumed"}), "Shares"))
    found = [node.tag.rpartition("}")[2] for node in root.iter()]
    assert found.count("polyline") == 4
    assert any(node.text == "killed & resumed" for node in root.iter())


def test_columns_are_as_high_as_the_shares() -> None:
    rows = columns({"a": [0.3, 0.9], "b": [0.7, 0.1]}, width=2, height=10)
    assert [sum(row[column] == 0 for row in rows) for column in range(2)] == [3, 9]
