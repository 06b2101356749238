"""Shares of all sources over a run: as JSON rows, as a table, and as data of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.base.integers import find_distinct_values
from penstock.engine.plan import PackedShares
from penstock.engine.steps.token_dtypes import said_of
from penstock.errors import ConfigError

from .remarks import Row, collect_remarks
from .target import StageBorder, Target

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.explore.run_counts import EventStrip, RunCounts

CURVE_POINTS = 120  # points of a picture along the run


def rows(target: Target, steps: int) -> list[Row]:
    """Return a row for every source over the first `steps` steps.

    Shares count tokens if rows are packed or weights count tokens; epochs count tokens if rows are
    packed.
    """
    counts, tokens, requested = (
        target.rows.counts(step=steps),
        target.tokens(steps),
        target.requested_shares(steps),
    )
    amounts, epochs = (
        counts,
        {name: count / max(1, target.sizes[name]) for name, count in counts.items()},
    )
    if target.by_tokens:
        amounts, requested = tokens, convert_to_tokens(target, requested)
    if target.packed:
        epochs = {name: tokens[name] / max(1, target.all_tokens[name]) for name in counts}
    total = max(1, sum(amounts.values()))
    exhaustions = target.exhaustion_within(steps)
    result = list[Row]()
    for name, count in counts.items():
        exhaustion = exhaustions.get(name)
        repeats, last = (exhaustion.repeats, exhaustion.ends) if exhaustion else (None, None)
        ends = _find_end_step(target, last, steps)
        result.append(
            Row(
                name,
                target.sizes.get(name),
                requested[name],
                amounts[name] / total,
                count,
                tokens.get(name),
                epochs[name],
                target.caps.get(name),
                _find_step(target, repeats, steps),
                ends,
                ends if target.spent(name, count) else None,
                target.groups.get(name),
            )
        )
    return sorted(result, key=lambda row: target.by_group(row.source))


def convert_to_tokens(target: Target, requested: dict[str, float]) -> dict[str, float]:
    """Convert shares of samples to shares of tokens, by the mean length of each source."""
    weighted = {
        name: share * target.all_tokens[name] / max(1, target.sizes[name])
        for name, share in requested.items()
    }
    total = sum(weighted.values()) or 1.0
    return {name: share / total for name, share in weighted.items()}


def _find_step(target: Target, row: int | None, steps: int) -> int | None:
    """Return the step that holds a row, or None if it is not among the first `steps`."""
    step = None if row is None else target.step(row)
    return (
        step
        if row is not None and step is not None and step < steps and target.holds(step, row)
        else None
    )


def _find_end_step(target: Target, row: int | None, steps: int) -> int | None:
    """Return the step after the last row of a source, or None if it is not among the first."""
    last = None if not row else _find_step(target, row - 1, steps - 1)
    return None if last is None else last + 1


def convert_to_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as JSON values."""
    all_remarks = collect_remarks(found)
    return [
        {**asdict(row), "remarks": [text for name, text in all_remarks if name == row.source]}
        for row in found
    ]


def insert_group_rows(found: Sequence[Row]) -> list[Row]:
    """Insert a row for each group before its indented sources; keep ungrouped rows as they are."""
    result = list[Row]()
    for group in dict.fromkeys(row.group for row in found):
        members = [row for row in found if row.group == group]
        if group is None:
            result += members
            continue
        size, samples = sum(row.size or 0 for row in members), sum(row.samples for row in members)
        tokens = (
            sum(row.tokens for row in members if row.tokens is not None)
            if members[0].tokens is not None
            else None
        )
        requested, share = sum(row.requested for row in members), sum(row.share for row in members)
        epochs = sum(row.epochs * (row.size or 0) for row in members) / max(size, 1)
        result.append(Row(group, size, requested, share, samples, tokens, epochs, None, None, None))
        result += [replace(row, source=f"  {row.source}") for row in members]
    return result


COLUMN_NAMES = (
    "source",
    "size",
    "requested",
    "share",
    "samples",
    "tokens",
    "epochs",
    "cap",
    "first repeat",
    "ends",
)


def get_column_names(packed: bool) -> tuple[str, ...]:
    """Return the column names; packed documents are counted in parts."""
    return tuple("parts" if name == "samples" and packed else name for name in COLUMN_NAMES)


def format_cells(row: Row) -> tuple[str, ...]:
    """Format a row as texts."""
    return (
        row.source,
        _format_number(row.size),
        f"{row.requested:.2%}",
        f"{row.share:.2%}",
        _format_number(row.samples),
        _format_number(row.tokens),
        f"{row.epochs:,.2f}",
        "" if row.cap is None else f"{row.cap:g}",
        _format_number(row.first_repeat),
        _format_number(row.ends),
    )


def format_rows(found: Sequence[Row], packed: bool = False) -> list[tuple[str, ...]]:
    """Format all rows as texts, after the column names."""
    return [get_column_names(packed), *(format_cells(row) for row in insert_group_rows(found))]


def _format_number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def table(found: Sequence[Row], title: str, packed: bool = False) -> Table:
    """Return the rows as a table without empty columns."""
    from rich.table import Table

    names = get_column_names(packed)
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    noted = {source for source, _ in collect_remarks(found)}
    found = insert_group_rows(found)
    lines = [format_cells(row) for row in found]
    shown = [i for i in range(len(COLUMN_NAMES)) if i == 0 or any(line[i] for line in lines)]
    for i in shown:
        made.add_column(
            names[i], justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold"
        )
    for row, line in zip(found, lines, strict=True):
        style = "dim" if not row.requested else "yellow" if row.source.strip() in noted else None
        made.add_row(*(line[i] for i in shown), style=style)
    return made


def compare_plans(one: Sequence[Row], two: Sequence[Row]) -> Table:
    """Return two plans as one table; a source that only one of them has is empty in the other."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("source")
    for head in ("samples", "share", "epochs"):
        for when in ("now", "changed"):
            made.add_column(f"{head} {when}", justify="right")
    before, after = ({row.source: row for row in rows} for rows in (one, two))
    for name in dict.fromkeys((*before, *after)):
        a, b = rows = before.get(name), after.get(name)
        changed = not (a and b) or (
            abs(a.share - b.share) > 1e-4 or abs(a.epochs - b.epochs) > 0.01
        )
        made.add_row(
            name,
            *(f"{row.samples:,}" if row else "" for row in rows),
            *(f"{row.share:.2%}" if row else "" for row in rows),
            *(f"{row.epochs:,.2f}" if row else "" for row in rows),
            style="yellow" if changed else None,
        )
    return made


def collect_run_events(target: Target, steps: int, names: Sequence[str]) -> EventStrip:
    """Return stages, first repeats and ends of sources, for a picture."""
    from penstock.explore.run_counts import EventStrip

    counts, found = target.rows.counts(step=steps), target.exhaustion_within(steps)
    repeats = [
        _find_step(target, found[name].repeats, steps) if name in found else None for name in names
    ]
    ends = [
        _find_end_step(target, found[name].ends, steps)
        if name in found and target.spent(name, counts[name])
        else None
        for name in names
    ]
    stages = [(at, name) for at, name in target.stages if at < steps]
    changes = [
        (step, text) for step, text in list_run_changes(target) if step is not None and step < steps
    ]
    return EventStrip(stages, repeats, ends, changes)


def list_run_changes(target: Target) -> list[tuple[int | None, str]]:
    """Return the changes of the run that saved a state: the step if it is known, and a text."""
    try:
        saved = target.rows.state.get("changes", [])
    except ConfigError:  # no run
        return []
    changes = [_describe_change(target, change) for change in saved]
    return sorted(changes, key=lambda change: (change[0] is None, change[0] or 0))


def _describe_change(target: Target, change: Mapping[str, Any]) -> tuple[int | None, str]:
    if "skip" in change:
        step = target.step(change["skip"])
        return step, f"step {step:,}: {change['count']:,} rows skipped"
    if "exclude" in change:
        row, count = change.get("row"), len(change["indices"])
        step = None if row is None else target.step(row)
        place = "" if step is None else f"step {step:,}: "
        plural = "s" if count != 1 else ""
        return step, f"{place}{count:,} sample{plural} of {change['exclude']!r} excluded"
    event: Mapping[str, Any] = change.get("event") or {}
    kind = str(event.get("event", "change")).replace("_", " ")
    at = event.get("at")
    place = f" from sample {at:,} of the mixture on" if isinstance(at, int) else ""
    return None, f"{kind}{place}"


def count_by_step(target: Target, steps: int) -> RunCounts:
    """Return the counts along the run, in samples or in tokens of packed rows."""
    from penstock.explore.run_counts import RunCounts

    grid = find_distinct_values(
        np.linspace(0, steps, min(steps, CURVE_POINTS) + 1).astype(np.int64)
    )
    unit = "tokens" if target.by_tokens else "samples"
    counts = [list(target.rows.counts(step=int(step), unit=unit).values()) for step in grid]
    names = list(target.plan.sources)
    totals = target.all_tokens if target.by_tokens else target.sizes
    sizes = [totals.get(name) for name in names]
    order = sorted(range(len(names)), key=lambda i: target.by_group(names[i]))
    names, sizes = [names[i] for i in order], [sizes[i] for i in order]
    groups = [target.groups.get(name, name) for name in names]
    return RunCounts(names, sizes, grid, np.asarray(counts, np.int64)[:, order], unit, groups)


def make_packing_table(packed_shares: PackedShares) -> Table:
    """Return the comparison of packing methods as a table; a star marks the method in use."""
    from rich.table import Table

    made = Table(header_style="bold", box=None, pad_edge=False)
    for name in ("method", "rows", "fill", "tokens cropped", "documents split", "rows aligned"):
        made.add_column(name, justify="left" if name == "method" else "right")
    for share in packed_shares.methods:
        overflow = f", {share.overflow}" if share.overflow else ""
        figures = (share.fill, share.crop, share.split, share.aligned)
        made.add_row(
            f"{share.method}{overflow}{' *' if share.current else ''}",
            f"{share.rows:,}",
            *(f"{figure:.2%}" for figure in figures),
        )
    return made


def make_stage_table(borders: Sequence[StageBorder]) -> Table:
    """Return the borders of stages as a table."""
    from rich.table import Table

    made = Table(header_style="bold", box=None, pad_edge=False)
    packed = borders[0].length is not None
    for name in ("stage", "step", "row", *(("tokens", "length") if packed else ()), "batch"):
        made.add_column(name, justify="left" if name == "stage" else "right")
    for border in borders:
        numbers = (border.step, border.row, border.tokens, border.length, border.batch)
        made.add_row(border.name or "", *(f"{n:,}" for n in numbers if n is not None))
    return made


def packing(packed_shares: PackedShares) -> str:
    """Format the fill of packed rows and the fate of documents in one line."""
    amount = (
        ""
        if packed_shares.rows is None
        else f"{packed_shares.rows:,} rows of {packed_shares.tokens:,} tokens in a pass, "
    )
    lost = f", {packed_shares.cut:.2%} cut" if packed_shares.cut else ""
    differ = len(set(packed_shares.stored.values())) > 1
    stored = (
        f"; the sources store their tokens as {said_of(packed_shares.stored)}" if differ else ""
    )
    untrained = "".join(
        f", {share:.2%} of {name!r} without a token to train on"
        for name, share in packed_shares.untrained.items()
        if share
    )
    split = f"{packed_shares.split:.2%} of the documents split"
    return f"{amount}{packed_shares.fill:.2%} full, {split}{lost}{untrained}{stored}"
