"""Report of a mixture file or a run as one HTML page, for a pull request."""

from __future__ import annotations

from html import escape
from pathlib import Path

from penstock.errors import ConfigError
from penstock.stores.outputs import open_output
from penstock.stores.urls import redact_urls

from . import shares
from .page import html, render_pictures
from .remarks import collect_remarks
from .target import Target


def report(target: Target, steps: int) -> str:
    """Return the page: the plan as picture and table, remarks, the fingerprint and the file."""
    rows, course = shares.rows(target, steps), shares.count_by_step(target, steps)
    strip = shares.collect_run_events(target, steps, course.names)
    noted = collect_remarks(rows)
    facts = [
        ("run", f"{steps:,} {target.unit}s, {sum(row.samples for row in rows):,} samples"),
        (
            "sources",
            f"{len(rows):,}"
            + (f" in {len(target.model.groups)} groups" if target.model.groups else ""),
        ),
    ]
    if tokens := [row.tokens for row in rows if row.tokens is not None]:
        facts.insert(1, ("tokens", f"{sum(tokens):,}"))
    if target.rows.position:
        facts.append(
            ("position of the state", f"{target.unit} {target.step(target.rows.position):,}")
        )
    facts += [
        (
            "fingerprint",
            ", ".join(f"{what} {which}" for what, which in target.fingerprint().items()),
        )
    ]
    summary = "".join(
        f'<div><span class="dim">{escape(name)}</span> {escape(text)}</div>' for name, text in facts
    )
    said = "".join(f"<li><b>{escape(source)}</b>: {escape(text)}</li>" for source, text in noted)
    listed = [list(line) for line in shares.format_rows(rows, target.packed)]
    empty = [i for i in range(len(listed[0])) if i and not any(line[i] for line in listed[1:])]
    table = [[cell for i, cell in enumerate(line) if i not in empty] for line in listed]
    text = target.path.read_text(encoding="utf-8")
    parts = [
        (
            "",
            summary
            + render_pictures(course, f"{target.path.name}: {steps:,} {target.unit}s", strip),
        ),
        ("Remarks", f"<ul>{said}</ul>" if said else "<p>None.</p>"),
        ("The mixture file", f"<pre>{escape(redact_urls(text))}</pre>"),
    ]
    return html(
        f"The data of {target.path.name}", parts, table, frozenset(name for name, _ in noted)
    )


def write(path: Path, target: Target, steps: int) -> None:
    """Write the report to a file."""
    if path.suffix != ".html":
        raise ConfigError(f"{path}: a report is an HTML page; use the suffix .html")
    page = report(target, steps)
    with open_output(path) as file:
        # Names of files may hold surrogates, which stand for bytes that are not UTF-8.
        file.write(page.encode("utf-8", "backslashreplace"))
