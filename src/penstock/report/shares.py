"""What a plan says of every source over a run: as rows for machines, as a table and remarks for
people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.base.ints import distinct
from penstock.engine.graph.tokens import said_of
from penstock.engine.plan import PackedShares

from .remarks import Row, remarks
from .target import Target

if TYPE_CHECKING:
    from rich.table import Table

    from .picture import Course
    from .svg import Strip

GRID = 120  # steps at which a picture looks


def rows(target: Target, steps: int) -> list[Row]:
    """Every source over the first `steps` steps. Shares are those of tokens where rows are packed
    or tokens are asked for, epochs those of tokens where rows are packed.
    """
    counts, tokens, asked = (
        target.rows.counts(step=steps),
        target.tokens(steps),
        target.asked(steps),
    )
    amounts, epochs = (
        counts,
        {name: count / max(1, target.sizes[name]) for name, count in counts.items()},
    )
    if target.by_tokens:
        amounts, asked = tokens, in_tokens(target, asked)
    if target.packed:
        epochs = {name: tokens[name] / max(1, target.all_tokens[name]) for name in counts}
    total = max(1, sum(amounts.values()))
    out = list[Row]()
    for name, count in counts.items():
        found = target.exhausts.get(name)
        repeats, last = (found.repeats, found.ends) if found else (None, None)
        ends = _ends(target, last, steps)
        out.append(
            Row(
                name,
                target.sizes.get(name),
                asked[name],
                amounts[name] / total,
                count,
                tokens.get(name),
                epochs[name],
                target.caps.get(name),
                _within(target, repeats, steps),
                ends,
                ends if target.spent(name, count) else None,
                target.groups.get(name),
            )
        )
    return sorted(out, key=lambda row: target.by_group(row.source))


def in_tokens(target: Target, asked: dict[str, float]) -> dict[str, float]:
    """Shares of samples as shares of tokens, by the mean length of each source."""
    each = {
        name: share * target.all_tokens[name] / max(1, target.sizes[name])
        for name, share in asked.items()
    }
    total = sum(each.values()) or 1.0
    return {name: share / total for name, share in each.items()}


def _within(target: Target, row: int | None, steps: int) -> int | None:
    """The step that holds a row, if it is one of these."""
    step = None if row is None else target.step(row)
    return (
        step
        if row is not None and step is not None and step < steps and target.holds(step, row)
        else None
    )


def _ends(target: Target, row: int | None, steps: int) -> int | None:
    """The first step with no row before this one, if it is one of these."""
    last = None if not row else _within(target, row - 1, steps - 1)
    return None if last is None else last + 1


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    told = remarks(found)
    return [
        {**asdict(row), "remarks": [text for name, text in told if name == row.source]}
        for row in found
    ]


def in_groups(found: Sequence[Row]) -> list[Row]:
    """A row for each group, its sources after it, further in; as they are where there are no
    groups."""
    out = list[Row]()
    for group in dict.fromkeys(row.group for row in found):
        mine = [row for row in found if row.group == group]
        if group is None:
            out += mine
            continue
        size, samples = sum(row.size or 0 for row in mine), sum(row.samples for row in mine)
        tokens = (
            sum(row.tokens for row in mine if row.tokens is not None)
            if mine[0].tokens is not None
            else None
        )
        asked, share = sum(row.asked for row in mine), sum(row.share for row in mine)
        epochs = sum(row.epochs * (row.size or 0) for row in mine) / max(size, 1)
        out.append(Row(group, size, asked, share, samples, tokens, epochs, None, None, None))
        out += [replace(row, source=f"  {row.source}") for row in mine]
    return out


HEAD = (
    "source",
    "size",
    "asked",
    "share",
    "samples",
    "tokens",
    "epochs",
    "cap",
    "first repeat",
    "ends",
)


def head(packed: bool) -> tuple[str, ...]:
    """The names of the columns; a packed document counts in parts."""
    return tuple("parts" if name == "samples" and packed else name for name in HEAD)


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts."""
    return (
        row.source,
        _number(row.size),
        f"{row.asked:.2%}",
        f"{row.share:.2%}",
        _number(row.samples),
        _number(row.tokens),
        f"{row.epochs:,.2f}",
        "" if row.cap is None else f"{row.cap:g}",
        _number(row.first_repeat),
        _number(row.ends),
    )


def lines(found: Sequence[Row], packed: bool = False) -> list[tuple[str, ...]]:
    """All rows as texts, the names of the columns first."""
    return [head(packed), *(cells(row) for row in in_groups(found))]


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def table(found: Sequence[Row], title: str, packed: bool = False) -> Table:
    """The rows for people; columns that would be empty are left out."""
    from rich.table import Table

    names = head(packed)
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    noted = {source for source, _ in remarks(found)}
    found = in_groups(found)
    lines = [cells(row) for row in found]
    shown = [i for i in range(len(HEAD)) if i == 0 or any(line[i] for line in lines)]
    for i in shown:
        made.add_column(
            names[i], justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold"
        )
    for row, line in zip(found, lines, strict=True):
        style = "dim" if not row.asked else "yellow" if row.source.strip() in noted else None
        made.add_row(*(line[i] for i in shown), style=style)
    return made


def beside(one: Sequence[Row], two: Sequence[Row]) -> Table:
    """Two plans of the same sources, side by side."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("source")
    for head in ("samples", "share", "epochs"):
        for when in ("now", "changed"):
            made.add_column(f"{head}, {when}", justify="right")
    for a, b in zip(one, two, strict=True):
        changed = abs(a.share - b.share) > 1e-4 or abs(a.epochs - b.epochs) > 0.01
        made.add_row(
            a.source,
            *(f"{row.samples:,}" for row in (a, b)),
            *(f"{row.share:.2%}" for row in (a, b)),
            *(f"{row.epochs:,.2f}" for row in (a, b)),
            style="yellow" if changed else None,
        )
    return made


def strip(target: Target, steps: int, names: Sequence[str]) -> Strip:
    """What a picture shows beside the shares: stages, first repeats, and what is used up."""
    from .svg import Strip

    counts, found = target.rows.counts(step=steps), target.exhausts
    repeats = [
        _within(target, found[name].repeats, steps) if name in found else None for name in names
    ]
    ends = [
        _ends(target, found[name].ends, steps)
        if name in found and target.spent(name, counts[name])
        else None
        for name in names
    ]
    return Strip([(at, name) for at, name in target.stages if at < steps], repeats, ends)


def course(target: Target, steps: int) -> Course:
    """What has been given along the run, for a picture: samples, or tokens of packed rows."""
    from .picture import Course

    grid = distinct(np.linspace(0, steps, min(steps, GRID) + 1).astype(np.int64))
    unit = "tokens" if target.by_tokens else "samples"
    counts = [list(target.rows.counts(step=int(step), unit=unit).values()) for step in grid]
    marks = list[tuple[int, str]]()
    for name, one in target.exhausts.items():
        if (ends := _ends(target, one.ends, steps)) is not None:
            if target.spent(name, target.rows.counts(step=steps)[name]):
                marks.append((ends, f"{name} used up"))
        elif (again := _within(target, one.repeats, steps)) is not None and len(
            target.exhausts
        ) <= 12:
            marks.append((again, f"{name} repeats"))
    names = list(target.plan.sources)
    whole = target.all_tokens if target.by_tokens else target.sizes
    sizes = [whole.get(name) for name in names]
    order = sorted(range(len(names)), key=lambda i: target.by_group(names[i]))
    names, sizes = [names[i] for i in order], [sizes[i] for i in order]
    groups = [target.groups.get(name, name) for name in names]
    return Course(
        names, sizes, grid, np.asarray(counts, np.int64)[:, order], sorted(marks)[:12], unit, groups
    )


def packing(told: PackedShares) -> str:
    """How full rows are and what becomes of documents, in a line."""
    amount = (
        "" if told.rows is None else f"{told.rows:,} rows of {told.tokens:,} tokens in a pass, "
    )
    lost = f", {told.cut:.2%} cut" if told.cut else ""
    differ = len(set(told.stored.values())) > 1
    stored = f"; the sources store their tokens as {said_of(told.stored)}" if differ else ""
    return f"{amount}{told.fill:.2%} full, {told.split:.2%} of the documents split{lost}{stored}"
