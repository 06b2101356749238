"""Self-contained HTML pages without network or script, for light, dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from penstock.errors import ConfigError, install_command
from penstock.explore.charts import has_renderer, render_png, render_svg
from penstock.explore.run_counts import EventStrip, RunCounts
from penstock.stores.outputs import open_output

PICTURE_SUFFIXES = (".svg", ".png", ".html")
PICTURE_WIDTHS = {"wide": 1060, "medium": 700, "narrow": 350}  # pixels
MAX_ROWS, _FIRST_ROWS = 60, 40  # of a table; a longer one opens with its first rows
_MAX_WARNINGS = 20

PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --rule: #d8dee4; --paper: #fff; --box: #f6f8fa;
  --bar: #cfe0fb; --note: #b35900 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9da7b1; --rule: #3d444d; --paper: #0d1117; --box: #161b22; --bar: #1f3a66;
    --note: #e3a052 }
}
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 48px }
h1 { font-size: 24px; margin: 0 0 16px; overflow-wrap: anywhere } h2 { font-size: 18px; margin: 36px 0 8px }
.dim { color: var(--dim) }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(122px, 1fr)); gap: 10px; margin: 0 0 20px }
dl div { background: var(--box); border: 1px solid var(--rule); border-radius: 6px; padding: 8px 10px; min-width: 0 }
dt { color: var(--dim); font-size: 13px } dd { margin: 0; font-size: 17px; font-weight: 600; overflow-wrap: anywhere }
dd small { display: block; font-size: 13px; font-weight: 400; color: var(--dim) } dd.noted { color: var(--note) }
svg { display: block; max-width: 100%; height: auto }
.medium, .narrow { display: none }
@media (max-width: 1099px) { .wide { display: none } .medium { display: block } }
@media (max-width: 739px) { .medium { display: none } .narrow { display: block } main { padding: 16px 20px 40px } }
table { border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule); font-weight: 400 }
thead th { color: var(--dim); vertical-align: bottom } td { white-space: nowrap }
th:first-child { text-align: left; overflow-wrap: anywhere; min-width: 9em }
tr.group th, tr.group td { font-weight: 600 } tr.member th:first-child { padding-left: 26px }
tr.noted th:first-child { box-shadow: inset 3px 0 var(--note) }
td.bar { background: linear-gradient(to right, var(--bar) var(--share), transparent 0) no-repeat 0 50% / 100% 70% }
.sources { width: 100% }
@media (max-width: 739px) {
  .sources, .sources tbody, .sources tr, .sources th { display: block; text-align: left }
  .sources thead { position: absolute; left: -9999px }
  .sources tr { border-bottom: 1px solid var(--rule); padding: 8px 0 }
  .sources th, .sources td { border: 0; padding: 1px 8px }
  .sources th { font-weight: 600 } .sources tr.member { padding-left: 18px }
  .sources td { display: inline-block; padding-right: 8px; white-space: normal }
  .sources td:empty { display: none } .sources tr.member th:first-child { padding-left: 8px }
  .sources td::before { content: attr(data-name) " "; color: var(--dim) }
}
summary { cursor: pointer; color: var(--dim); margin: 8px 0 }
ul { padding-left: 20px } li { overflow-wrap: anywhere }
pre { background: var(--box); border: 1px solid var(--rule); border-radius: 6px; padding: 12px 16px;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
"""


@dataclass(frozen=True)
class Fact:
    """Headline fact of a page: its name, its value, a note below, and whether it is a warning."""

    name: str
    value: str
    note: str = ""
    is_warning: bool = False


def render_page(title: str, facts: Sequence[Fact], parts: Sequence[tuple[str, str]]) -> str:
    """Return a page: headline facts, then parts.

    Args:
        title: the heading.
        facts: the facts that a reader looks for first.
        parts: pairs of heading and HTML; a part without a heading follows the one before.
    """
    out = StringIO()
    out.write(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    )
    if facts:
        out.write(f"<dl>{''.join(map(_render_fact, facts))}</dl>")
    for heading, content in parts:
        out.write((f"<h2>{escape(heading)}</h2>" if heading else "") + content)
    return out.getvalue() + "</main></body></html>\n"


def _render_fact(fact: Fact) -> str:
    note = f"<small>{escape(fact.note)}</small>" if fact.note else ""
    noted = ' class="noted"' if fact.is_warning else ""
    return f"<div><dt>{escape(fact.name)}</dt><dd{noted}>{escape(fact.value)}{note}</dd></div>"


def render_table(
    table: Sequence[Sequence[str]], noted: frozenset[str] = frozenset(), bar: str = "share"
) -> str:
    """Return the table of sources without its empty columns.

    A narrow window shows each row as a block. A long table opens with its first rows.

    Args:
        table: rows of cells, the header first. An unindented row above an indented one is a group.
        noted: names of rows to highlight.
        bar: the column of percentages that also shows bars.
    """
    shown = [i for i in range(len(table[0])) if not i or any(line[i] for line in table[1:])]
    lines = [[line[i] for i in shown] for line in table]
    if len(lines) - 1 <= MAX_ROWS:
        return _render_rows(lines[0], lines[1:], noted, bar)
    rest = len(lines) - 1 - _FIRST_ROWS
    head = _render_rows(lines[0], lines[1 : _FIRST_ROWS + 1], noted, bar)
    more = _render_rows(lines[0], lines[_FIRST_ROWS + 1 :], noted, bar)
    return f"{head}<details><summary>{rest:,} more rows</summary>{more}</details>"


def _render_rows(
    heads: Sequence[str], rows: Sequence[Sequence[str]], noted: frozenset[str], bar: str
) -> str:
    out = StringIO()
    out.write('<table class="sources" role="table"><thead role="rowgroup"><tr role="row">')
    out.write("".join(f'<th scope="col" role="columnheader">{escape(cell)}</th>' for cell in heads))
    out.write('</tr></thead><tbody role="rowgroup">')
    indented = [row[0].startswith(" ") for row in rows] + [False]
    widest = max((_parse_percent(row[i]) for row in rows for i in _find(heads, bar)), default=0.0)
    for number, row in enumerate(rows):
        classes = ["group"] if not indented[number] and indented[number + 1] else []
        classes += ["member"] if indented[number] else []
        classes += ["noted"] if row[0].strip() in noted else []
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        out.write(f'<tr{attribute} role="row"><th scope="row" role="rowheader">')
        out.write(f"{escape(row[0].strip())}</th>")
        for head, cell in zip(heads[1:], row[1:], strict=True):
            style = ""
            if head == bar and widest:
                share = _parse_percent(cell) / widest
                style = f' class="bar" style="--share: {share:.1%}"'
            name = escape(head, True)
            out.write(f'<td{style} role="cell" data-name="{name}">{escape(cell)}</td>')
        out.write("</tr>")
    out.write("</tbody></table>")
    return out.getvalue()


def _find(heads: Sequence[str], name: str) -> list[int]:
    return [i for i, head in enumerate(heads) if head == name]


def _parse_percent(text: str) -> float:
    return float(text.rstrip("%")) if text.endswith("%") else 0.0


def render_warnings(warnings: Sequence[tuple[str, str]]) -> str:
    """Return the warnings as a list; the first ones are open."""
    if not warnings:
        return "<p>Warnings: none.</p>"
    items = [f"<li><b>{escape(source)}</b>: {escape(text)}</li>" for source, text in warnings]
    more = ""
    if len(items) > _MAX_WARNINGS:
        rest = "".join(items[_MAX_WARNINGS:])
        count = len(items) - _MAX_WARNINGS
        more = f"<details><summary>{count:,} more warnings</summary><ul>{rest}</ul></details>"
    return f"<ul>{''.join(items[:_MAX_WARNINGS])}</ul>{more}"


def render_chart_widths(course: RunCounts, title: str = "", strip: EventStrip | None = None) -> str:
    """Return a chart for wide, medium and narrow windows; without the extra `plot`, a hint.

    Args:
        course: counts of samples along the run.
        title: the heading in the chart.
        strip: stages, first repeats and ends.
    """
    if not has_renderer():
        return f'<p class="dim">Charts need: {escape(install_command("plot"))}</p>'
    drawn = {
        kind: render_svg(course, title, strip, width) for kind, width in PICTURE_WIDTHS.items()
    }
    return "".join(f'<div class="{kind}">{svg}</div>' for kind, svg in drawn.items())


def require_picture_suffix(path: Path) -> None:
    """Raise `ConfigError` if the suffix of a picture is no known format."""
    if path.suffix not in PICTURE_SUFFIXES:
        raise ConfigError(
            f"{path}: the format of a picture is one of {', '.join(PICTURE_SUFFIXES)}; use one as the suffix"
        )


def save_chart(course: RunCounts, path: Path, title: str, strip: EventStrip | None = None) -> None:
    """Write a chart as SVG or PNG.

    Args:
        course: counts of samples along the run.
        path: the file; its suffix is the format.
        title: the heading.
        strip: stages, first repeats and ends.

    Raises:
        ConfigError: if the suffix is no known format.
        ImportError: without the extra `plot`.
    """
    require_picture_suffix(path)
    if path.suffix == ".png":
        data = render_png(course, title, strip)
    else:
        data = render_svg(course, title, strip).encode("utf-8", "backslashreplace")
    with open_output(path) as file:
        file.write(data)
