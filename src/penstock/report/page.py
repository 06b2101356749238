"""Self-contained HTML pages without network or script, for light, dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path

from penstock.errors import ConfigError
from penstock.explore.run_counts import RunCounts
from penstock.explore.svg import EventStrip, render_svg
from penstock.stores.outputs import open_output

from .picture import draw_panels

PICTURE_SUFFIXES = (".svg", ".png", ".html")
PICTURE_WIDTHS = {"wide": 1300, "narrow": 640}

PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --rule: #d0d7de; --paper: #fff; --box: #f3f4f6 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9da7b1; --rule: #3d444d; --paper: #0d1117; --box: #1c2128 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 }
main { max-width: 1340px; margin: 0 auto; padding: 24px 20px 48px }
h1 { font-size: 22px } h2 { font-size: 17px; margin-top: 32px } .dim { color: var(--dim) }
svg { max-width: 100%; height: auto }
.narrow { display: none } @media (max-width: 1000px) { .narrow { display: block } .wide { display: none } }
.scroll { overflow-x: auto }
table { border-collapse: collapse; margin: 16px 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 3px 12px; border-bottom: 1px solid var(--rule); white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: pre }
tr.group { font-weight: 600 } tr.noted td:first-child { border-left: 3px solid #d4a72c }
pre { background: var(--box); padding: 12px 16px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
"""


def html(
    title: str,
    parts: Sequence[tuple[str, str]],
    table: Sequence[Sequence[str]] = (),
    noted: frozenset[str] = frozenset(),
) -> str:
    """Return a page: untitled parts, a table, then titled parts; their content is HTML.

    Args:
        title: The heading.
        parts: Pairs of heading and HTML.
        table: Rows of cells, the header first. An unindented row above an indented one is a group.
        noted: Names of rows to highlight.

    Returns:
        The page.
    """
    out = StringIO()
    out.write(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{PAGE_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    )
    out.write("".join(content for heading, content in parts if not heading))
    if table:
        out.write(
            '<div class="scroll" tabindex="0" role="region" aria-label="The plan, source by '
            'source">'
        )
        out.write("<table><thead><tr>")
        out.write("".join(f'<th scope="col">{escape(cell)}</th>' for cell in table[0]))
        out.write("</tr></thead><tbody>")
        indented = [row[0].startswith(" ") for row in table[1:]] + [False]
        for number, row in enumerate(table[1:]):
            classes = ["group"] if not indented[number] and indented[number + 1] else []
            classes += ["noted"] if row[0].strip() in noted else []
            class_attribute = f' class="{" ".join(classes)}"' if classes else ""
            first, *rest = (escape(cell) for cell in row)
            out.write(
                f"<tr{class_attribute}><th "
                f'scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
            )
        out.write("</tbody></table></div>")
    for heading, content in parts:
        if heading:
            out.write(f"<h2>{escape(heading)}</h2>{content}")
    return out.getvalue() + "</main></body></html>\n"


def render_pictures(course: RunCounts, title: str, strip: EventStrip | None = None) -> str:
    """Return a picture for wide windows and one for narrow windows."""
    drawn = {
        kind: render_svg(course, title, strip, width) for kind, width in PICTURE_WIDTHS.items()
    }
    return "".join(f'<div class="{kind}">{svg}</div>' for kind, svg in drawn.items())


def save(
    course: RunCounts,
    path: Path,
    title: str,
    table: Sequence[Sequence[str]] = (),
    strip: EventStrip | None = None,
) -> None:
    """Write the picture as SVG or PNG, or as an HTML page with a table.

    SVG and HTML include the strip of stages and repeats, and tooltips.

    Args:
        course: Counts of samples along the run.
        path: The file; its suffix is the format.
        title: The heading.
        table: Rows of cells, the header first (HTML only).
        strip: Stages, first repeats and ends.

    Raises:
        ConfigError: The suffix is no known format.
    """
    if path.suffix not in PICTURE_SUFFIXES:
        raise ConfigError(
            f"{path}: the format of a picture is one of {', '.join(PICTURE_SUFFIXES)}; use one as the suffix"
        )
    with open_output(path) as file:
        if path.suffix == ".png":
            draw_panels(course.merged(), title).savefig(file, format="png", dpi=160)
            return
        if path.suffix == ".html":
            text = html(title, [("", render_pictures(course, title, strip))], table)
        else:
            text = render_svg(course, title, strip)
        file.write(text.encode("utf-8", "backslashreplace"))  # names that are not UTF-8
