"""What a plan says of every source over a run: as rows for machines, as a table and remarks for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.base.ints import distinct

from .target import Target

if TYPE_CHECKING:
    from rich.table import Table

    from .picture import Course

OFTEN = 4.0  # epochs from which on a source is said to be repeated a lot
GRID = 120  # steps at which a picture looks


@dataclass(frozen=True)
class Row:
    """One source over the run. Steps are None for never, or where they cannot be told."""

    source: str
    size: int | None
    asked: float
    share: float
    samples: int
    tokens: int | None
    epochs: float
    cap: float | None
    first_repeat: int | None
    ends: int | None

    @property
    def remarks(self) -> Iterator[str]:
        """What one should know about it."""
        if self.asked == 0:
            yield "weight 0: never opened"
        elif self.samples == 0:
            yield "starves: not one sample in this run"
        elif self.epochs >= OFTEN:
            yield f"each of its samples is seen {self.epochs:,.1f} times"
        if self.samples and abs(self.share - self.asked) > max(0.005, 0.1 * self.asked):
            yield f"gets {self.share:.2%} where {self.asked:.2%} is asked"
        if self.ends is not None:
            yield f"gives nothing after {self.ends:,}"


def rows(target: Target, steps: int) -> list[Row]:
    """Every source over the first `steps` steps. Of packed rows, shares and epochs are those of tokens."""
    position = target.position(steps)
    counts, tokens, asked = target.plan.counts(position), target.tokens(steps), target.asked(steps)
    if target.packed:
        amounts, whole = tokens, target.all_tokens
        epochs = {name: tokens[name] / max(1, whole[name]) for name in counts}
        asked = _in_tokens(target, asked)
    else:
        amounts, epochs = counts, target.plan.epochs(position)
    total = max(1, sum(amounts.values()))
    out = list[Row]()
    for name, count in counts.items():
        found = target.exhausts.get(name)
        repeats, last = (found.repeats, found.ends) if found else (None, None)
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
                _within(target, last, steps),
            )
        )
    return out


def _in_tokens(target: Target, asked: dict[str, float]) -> dict[str, float]:
    """Shares of samples as shares of tokens, by the mean length of each source."""
    each = {name: share * target.all_tokens[name] / max(1, target.sizes[name]) for name, share in asked.items()}
    total = sum(each.values()) or 1.0
    return {name: share / total for name, share in each.items()}


def _within(target: Target, position: int | None, steps: int) -> int | None:
    step = None if position is None else target.step(position)
    return step if step is not None and step < steps else None


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [{**asdict(row), "remarks": list(row.remarks)} for row in found]


HEAD = ("source", "size", "asked", "share", "samples", "tokens", "epochs", "cap", "first repeat", "ends")


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


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def table(found: Sequence[Row], title: str, packed: bool = False) -> Table:
    """The rows for people; columns that would be empty are left out."""
    from rich.table import Table

    names = head(packed)
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    lines = [cells(row) for row in found]
    shown = [i for i in range(len(HEAD)) if i == 0 or any(line[i] for line in lines)]
    for i in shown:
        made.add_column(names[i], justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    for row, line in zip(found, lines, strict=True):
        style = "yellow" if any(row.remarks) and row.asked else "dim" if not row.asked else None
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


def course(target: Target, steps: int) -> Course:
    """What has been given along the run, for a picture: samples, or tokens of packed rows."""
    from .picture import Course

    grid = distinct(np.linspace(0, steps, min(steps, GRID) + 1).astype(np.int64))
    unit = "tokens" if target.packed else "samples"
    counts = [list(target.plan.counts(target.position(int(step)), unit).values()) for step in grid]
    marks = list[tuple[int, str]]()
    for name, one in target.exhausts.items():
        if (ends := _within(target, one.ends, steps)) is not None:
            marks.append((ends, f"{name} used up"))
        elif (again := _within(target, one.repeats, steps)) is not None and len(target.exhausts) <= 12:
            marks.append((again, f"{name} repeats"))
    names = list(target.plan.sources)
    whole = target.all_tokens if target.packed else target.sizes
    sizes = [whole.get(name) for name in names]
    return Course(names, sizes, grid, np.asarray(counts, np.int64), sorted(marks)[:12], unit)
