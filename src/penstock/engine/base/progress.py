"""Progress reports of long work: a line in a terminal or a notebook, or periodic log lines.

Work of under two seconds reports nothing, and `PENSTOCK_PROGRESS=0` disables all reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from .seams import world

T = TypeVar("T")

_QUIET_SECONDS = 2.0
_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB")


class Progress:
    """Context manager that reports how much of `total` is done, in bytes or another unit.

    >>> with Progress("index code.jsonl", 1_000, "bytes") as progress:
    ...     progress.tell(500)
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "") -> None:
        self._what = what if what.isprintable() else ascii(what)  # names of files may hold anything
        self._total, self._unit, self._done, self._shown = total, unit, 0, False
        self._screen, self._now = world.screen, world.sched.now

    def __enter__(self) -> Self:
        self._began = self._now()
        self._due = self._began + _QUIET_SECONDS
        return self

    def announce(self, line: str) -> None:
        """Report planned work, and its cost, at once."""
        self._shown = True
        self._screen.show(self, line, False)

    def tell(self, done: int) -> None:
        """Set the amount done."""
        self._done = done
        if (now := self._now()) >= self._due:
            self._due, self._shown = now + self._screen.every(), True
            self._screen.show(
                self, f"{self._what}: {', '.join(self._figures(now - self._began))}", False
            )

    def more(self, n: int) -> None:
        """Add to the amount done."""
        self.tell(self._done + n)

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over items, and count each one."""
        for number, item in enumerate(items):
            self.tell(number)
            yield item

    def chunks(self, size: int) -> Iterator[int]:
        """Iterate over the offsets of chunks of `size` bytes."""
        for at in range(0, self._total or 0, size):
            self.tell(at)
            yield at

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            how = "stopped" if kind else "done"
            self._screen.show(
                self,
                f"{self._what}: {how} after {_format_duration(self._now() - self._began)}",
                True,
            )

    def _figures(self, seconds: float) -> Iterator[str]:
        done, total, rate = self._done, self._total, self._done / seconds
        if self._unit:
            amounts = [_format_amount(n, self._unit) for n in (done, total) if n is not None]
            yield " of ".join(amounts).replace(f" {self._unit} of", " of")
            yield f"{_format_amount(rate, self._unit)}/s"
        if total:
            yield f"{done / total:.0%}"
        if total and done:
            yield f"{_format_duration((total - done) / rate)} left"


def _format_amount(n: float, unit: str) -> str:
    """Format an amount.

    >>> _format_amount(5 << 29, "bytes"), _format_amount(70, "bytes")
    ('2.5 GiB', '70 bytes')
    >>> _format_amount(12_000, "rows"), _format_amount(0.25, "rows")
    ('12,000 rows', '0.25 rows')
    """
    power = (
        min(len(_BYTE_UNITS), (int(n).bit_length() - 1) // 10)
        if unit == "bytes" and n >= 1024
        else 0
    )
    if power:
        return f"{n / 1024**power:,.1f} {_BYTE_UNITS[power - 1]}"
    return f"{n:,.0f} {unit}" if n == int(n) or n >= 10 else f"{n:.2g} {unit}"


def _format_duration(seconds: float) -> str:
    """Format a duration.

    >>> _format_duration(51.2), _format_duration(700), _format_duration(12_000)
    ('51 s', '12 min', '3.3 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3600:.1f} h"
