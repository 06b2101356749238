"""What a plan says of a source, and what one should know of it before the money is spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OFTEN = 4.0  # epochs from which on a source is said to be repeated a lot
_ROUNDED = 2  # samples by which a mixture may be off what is asked


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
    used_up: int | None = None
    group: str | None = None


def remarks(found: Sequence[Row]) -> list[tuple[str, str]]:
    """Sources and what is to be told of them: who starves, who gets less than asked, who is
    repeated, who gets more."""
    total = sum(row.samples for row in found)
    told = [
        (-rank, -size, row.source, text) for row in found for rank, size, text in _of(row, total)
    ]
    return [(source, text) for _, _, source, text in sorted(told)]


def _of(row: Row, total: int) -> Iterator[tuple[int, float, str]]:
    """How important it is, how large, and what."""
    less = row.asked - row.share
    if not row.samples:
        meant = row.asked * total
        if not row.asked:
            yield 0, 0.0, "weight 0: never opened"
        elif meant < 1:
            yield 1, meant, f"its share of the run is less than a sample ({meant:.2g})"
        elif meant > _ROUNDED:
            yield 3, row.asked, f"starves: not one sample in this run, {row.asked:.2%} asked"
        return
    off = abs(less) > max(0.005, 0.1 * row.asked) and abs(less) * total > _ROUNDED
    gets = f"gets {row.share:.2%} where {row.asked:.2%} is asked" if off else ""
    if row.used_up is not None:
        yield 2, less, f"used up at {row.used_up:,}{', ' + gets if gets else ''}"
    elif gets:
        yield 2 if less > 0 else 0, abs(less), gets
    if row.epochs >= OFTEN:
        yield 1, row.epochs, f"each of its samples is seen {row.epochs:,.1f} times"
