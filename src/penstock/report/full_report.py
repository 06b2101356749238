"""Report of a mixture file or a run as one HTML page, and its chart as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from penstock.errors import ConfigError
from penstock.stores.outputs import open_output
from penstock.stores.urls import redact_urls

from . import shares
from .page import (
    MAX_ROWS,
    Fact,
    render_chart_widths,
    render_page,
    render_table,
    render_warnings,
    require_picture_suffix,
    save_chart,
)
from .remarks import Row, collect_remarks
from .target import StageBorder, Target


def render_report(target: Target, steps: int, *, changed: bool = False) -> str:
    """Return the page: headline facts, chart, table, warnings, fingerprint and the file.

    Args:
        target: the mixture or run.
        steps: its number of steps.
        changed: whether the settings differ from the file, which is then left out.
    """
    rows, course = shares.rows(target, steps), shares.count_by_step(target, steps)
    strip = shares.collect_run_events(target, steps, course.names)
    warnings, borders = collect_remarks(rows), target.borders(steps)
    noted = frozenset(name for name, _ in warnings)
    listed = rows
    if len(rows) > MAX_ROWS and not target.model.groups:
        listed = sorted(rows, key=lambda row: -row.share)  # the table opens with the largest
    lines = [list(line) for line in shares.format_rows(listed, target.packed)]
    parts = [
        ("The run, step by step", render_chart_widths(course, "", strip)),
        ("Sources", render_table(_order_columns(lines), noted)),
    ]
    if borders:
        parts.append(("Stages", _render_stages(borders)))
    changes = shares.list_run_changes(target)
    if changes:
        items = "".join(f"<li>{escape(text)}</li>" for _, text in changes)
        parts.append(("Changes of the run", f"<ul>{items}</ul>"))
    parts.append(("Warnings", render_warnings(warnings)))
    prints = ", ".join(f"{kind} {value}" for kind, value in target.fingerprint().items())
    parts.append(("Fingerprint", f"<p>{escape(prints)}</p>"))
    if not changed:
        text = redact_urls(target.path.read_text(encoding="utf-8"))
        parts.append(("The mixture file", f"<pre>{escape(text)}</pre>"))
    name = f"{target.path.name}, changed" if changed else target.path.name
    return render_page(f"The data of {name}", collect_facts(target, steps, rows), parts)


def collect_facts(target: Target, steps: int, rows: Sequence[Row]) -> list[Fact]:
    """Return the facts that a reader looks for first."""
    samples, warnings = sum(row.samples for row in rows), collect_remarks(rows)
    tokens = [row.tokens for row in rows if row.tokens is not None]
    drawn = [row.epochs for row in rows if row.samples and row.size]
    sizes, lengths = _collect_sizes(target, steps)
    unit = "parts of documents" if target.packed else "samples"
    facts = [_count_fact("tokens", sum(tokens))] if tokens else []
    facts.append(_count_fact(unit, samples))
    if drawn:
        low, high = min(drawn), max(drawn)
        text = f"{low:,.2f}" if high - low < 0.005 else f"{low:,.2f} to {high:,.2f}"
        facts.append(Fact("epochs", text, "of the sources"))
    horizon = "horizon" if target.model.horizon is not None else "length"
    facts.append(Fact(horizon, f"{steps:,} {target.unit}s"))
    if target.indexed:
        facts.append(Fact("batch", _format_range(sizes, "row"), "of all ranks"))
    if lengths:
        facts.append(Fact("row length", _format_range(lengths, "token")))
    groups = f"in {len(target.model.groups)} groups" if target.model.groups else ""
    facts.append(Fact("sources", f"{len(rows):,}", groups))
    if target.rows.position:
        position = f"{target.unit} {target.step(target.rows.position):,}"
        facts.append(Fact("position of the state", position))
    said = f"{len(warnings):,}" if warnings else "none"
    facts.append(Fact("warnings", said, is_warning=bool(warnings)))
    return facts


def write(path: Path, target: Target, steps: int) -> None:
    """Write the report to a file."""
    if path.suffix != ".html":
        raise ConfigError(f"{path}: a report is an HTML page; use the suffix .html")
    write_picture(path, target, steps)


def write_picture(path: Path, target: Target, steps: int, *, changed: bool = False) -> None:
    """Write the chart of a plan as SVG or PNG, or the report as HTML.

    Args:
        path: the file; its suffix is the format.
        target: the mixture or run.
        steps: its number of steps.
        changed: whether the settings differ from the file.

    Raises:
        ConfigError: if the suffix is no known format.
    """
    require_picture_suffix(path)
    if path.suffix != ".html":
        rows, course = shares.rows(target, steps), shares.count_by_step(target, steps)
        strip = shares.collect_run_events(target, steps, course.names)
        facts = [fact for fact in collect_facts(target, steps, rows) if fact.name != "sources"]
        heading = f"{target.path.name}{', changed' if changed else ''}: " + ", ".join(
            f"{fact.name} {fact.value}" for fact in facts
        )
        save_chart(course, path, heading, strip)
        return
    page = render_report(target, steps, changed=changed)
    with open_output(path) as file:
        # Names of files may hold surrogates, which stand for bytes that are not UTF-8.
        file.write(page.encode("utf-8", "backslashreplace"))


def _collect_sizes(target: Target, steps: int) -> tuple[list[int], list[int]]:
    """Return the batches and the row lengths of the run, in order."""
    borders = target.borders(steps)
    if borders:
        batches = [border.batch for border in borders]
        return batches, [border.length for border in borders if border.length]
    length = target.row_length(0) if target.packed else None
    return [target.log.record_of(0).rows], [length] if length else []


def _count_fact(name: str, value: int) -> Fact:
    return Fact(name, _format_large(value), f"{value:,}" if value >= 1_000_000 else "")


def _format_range(values: Sequence[int], unit: str) -> str:
    low, high = min(values), max(values)
    plural = "s" if high != 1 else ""
    return f"{low:,} {unit}{plural}" if low == high else f"{low:,} to {high:,} {unit}s"


def _format_large(value: int) -> str:
    """Format a count with three digits and a unit.

    >>> _format_large(1_234), _format_large(25_600_000), _format_large(1_500_000_000_000)
    ('1,234', '25.6 M', '1.5 T')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,}"


_FIRST_COLUMNS = ("source", "share", "requested", "epochs")


def _order_columns(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the table with the columns first that a reader compares."""
    heads = lines[0]
    order = [heads.index(name) for name in _FIRST_COLUMNS]
    order += [i for i in range(len(heads)) if i not in order]
    return [[line[i] for i in order] for line in lines]


def _render_stages(borders: Sequence[StageBorder]) -> str:
    """Return the table of stages."""
    rows = [["stage", "first step", "rows before", "tokens before", "row length", "batch"]]
    for border in borders:
        numbers = (border.step, border.row, border.tokens, border.length, border.batch)
        rows.append([border.name or "", *("" if n is None else f"{n:,}" for n in numbers)])
    return render_table(rows)
