"""Rows of a plan's table, and remarks on sources before a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MANY_EPOCHS = 4.0  # epochs from which a source is reported as repeated often
_ROUNDING_SAMPLES = 2  # samples by which exact mixing may round a share


@dataclass(frozen=True)
class Row:
    """Figures of a source over the run; steps are None if the event never happens or is unknown."""

    source: str
    size: int | None
    requested: float
    share: float
    samples: int
    tokens: int | None
    epochs: float
    cap: float | None
    first_repeat: int | None
    ends: int | None
    used_up: int | None = None
    group: str | None = None


def collect_remarks(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return remarks by source: starving, below or above the requested share, repeated, unused."""
    total = sum(row.samples for row in rows)
    ranked = [
        (-rank, -size, row.source, text)
        for row in rows
        for rank, size, text in _iter_remarks(row, total)
    ]
    return [(source, text) for _, _, source, text in sorted(ranked)]


def _iter_remarks(row: Row, total: int) -> Iterator[tuple[int, float, str]]:
    """Yield rank, size and text of each remark on a source."""
    deficit = row.requested - row.share
    if not row.samples:
        requested_samples = row.requested * total
        if not row.requested:
            yield 0, 0.0, "weight 0: never opened"
        elif requested_samples < 1:
            yield (
                1,
                requested_samples,
                f"its share of the run is less than a sample ({requested_samples:.2g})",
            )
        elif requested_samples > _ROUNDING_SAMPLES:
            yield (
                3,
                row.requested,
                f"starves: not one sample in this run, {row.requested:.2%} requested",
            )
        return
    is_off = (
        abs(deficit) > max(0.005, 0.1 * row.requested) and abs(deficit) * total > _ROUNDING_SAMPLES
    )
    share_text = f"gets {row.share:.2%} where {row.requested:.2%} is requested" if is_off else ""
    if row.used_up is not None:
        yield 2, deficit, f"used up at {row.used_up:,}{', ' + share_text if share_text else ''}"
    elif share_text:
        yield 2 if deficit > 0 else 0, abs(deficit), share_text
    if row.epochs >= MANY_EPOCHS:
        yield 1, row.epochs, f"each of its samples is seen {row.epochs:,.1f} times"
