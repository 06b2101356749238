"""What `penstock run` shows while it goes: progress, speed, shares against the plan, stalls,
memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.engine.base.machine import resident
from penstock.loader import Loader

from .say import put, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from penstock.report.target import Target

SHOWN = 12  # sources on the screen
Redraw: TypeAlias = Callable[[Loader], None]
EVERY = 0.2  # seconds between two looks


def tokens_in(item: Any) -> int:
    """The tokens of an item: places of packed rows that hold a document, else the largest array of
    whole numbers.

    >>> tokens_in({"tokens": np.zeros((2, 4), np.int32), "segment_ids": np.array([[1, 1, 0, 0], [1, 1, 1, 1]])})
    6
    >>> tokens_in([np.arange(3), np.arange(4)]), tokens_in("text")
    (7, 0)
    """
    if isinstance(item, Mapping):
        columns = cast("Mapping[str, Any]", item)
        if "segment_ids" in columns:
            return int(np.count_nonzero(columns["segment_ids"]))
        return max(map(tokens_in, columns.values()), default=0)
    if isinstance(item, list | tuple):
        return sum(map(tokens_in, cast("list[Any]", item)))
    if not isinstance(item, np.ndarray):
        return 0
    array = cast("npt.NDArray[Any]", item)
    return array.size if array.ndim and array.dtype.kind in "iu" else 0


def documents_begun(item: Any, keys: Sequence[tuple[str, int, int]]) -> Counter[str] | None:
    """The documents of each source that begin in packed rows; None where the rows do not tell.

    >>> row = {"segment_ids": np.array([1, 1, 2, 2, 0]), "positions": np.array([7, 8, 0, 1, 0])}
    >>> documents_begun(row, [("a", 0, 3), ("b", 0, 0)])
    Counter({'b': 1, 'a': 0})
    """
    columns: Mapping[str, Any] = (
        cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}
    )
    if not {"segment_ids", "positions"} <= columns.keys():
        return None
    segments, positions = (
        np.atleast_2d(cast("npt.NDArray[Any]", columns[n])) for n in ("segment_ids", "positions")
    )
    first = np.diff(segments, axis=1, prepend=0) > 0
    if np.count_nonzero(first) != len(keys):
        return None
    begun = positions[first] == 0
    found = Counter({source: 0 for source, _, _ in keys})
    found.update(
        source for (source, _, _), begins in zip(keys, begun.tolist(), strict=True) if begins
    )
    return found


class Meter:
    """The figures of a run, counted as its steps come."""

    def __init__(self, target: Target, first: int, last: int) -> None:
        self.target, self.first, self.step, self.last = target, first, first, last
        self.tokens, self.samples, self.waited = 0, dict[str, int](), 0.0
        self.documents: Counter[str] | None = (
            None if target.model.pack is None or target.packed else Counter()
        )
        self.peak = resident()
        self._began = monotonic()

    def took(self, item: Any, keys: Callable[[], Sequence[tuple[str, int, int]]]) -> None:
        """One more step."""
        self.step += 1
        self.tokens += tokens_in(item)
        if self.documents is not None:
            begun = documents_begun(item, keys())
            self.documents = None if begun is None else self.documents + begun

    def look(self, stats: Mapping[str, Any]) -> None:
        """What the loader says it has given."""
        self.samples, self.waited = dict(stats["samples"]), float(stats["waited_s"])
        self.peak = max(self.peak, resident())

    @property
    def seconds(self) -> float:
        return max(monotonic() - self._began, 1e-9)

    @property
    def unit(self) -> str:
        """The unit of shares, of those delivered and of those asked for."""
        if self.target.whole and self.target.by_tokens:
            return "tokens"
        return "samples" if self.documents is None else "documents"

    def shares(self) -> list[tuple[str, int, float, float]]:
        """Source, samples, share and share asked for, of the steps of this run, the largest
        first."""
        from penstock.report.shares import in_tokens

        amounts: Mapping[str, int] = self.samples if self.documents is None else self.documents
        asked = self.target.asked(max(1, self.step if self.target.whole else sum(amounts.values())))
        if self.unit == "tokens":
            before, now = self.target.tokens(self.first), self.target.tokens(self.step)
            amounts = {name: tokens - before[name] for name, tokens in now.items()}
            asked = in_tokens(self.target, asked)
        total = max(1, sum(amounts.values()))
        found = [
            (name, n, amounts[name] / total, asked.get(name, 0.0))
            for name, n in self.samples.items()
        ]
        return sorted(found, key=lambda row: -row[1])

    def found(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """All figures as plain values; `waited` is the part of the time in which there was nothing
        to take."""
        self.look(stats)
        samples, seconds = sum(self.samples.values()), self.seconds
        return {
            "first_step": self.first,
            "steps": self.step - self.first,
            "seconds": round(seconds, 3),
            "samples": samples,
            "tokens": self.tokens,
            "samples_per_s": round(samples / seconds, 1),
            "tokens_per_s": round(self.tokens / seconds, 1),
            "waited": round(min(1.0, self.waited / seconds), 4),
            "errors": stats["errors"],
            "peak_bytes": self.peak,
            "unit": self.unit,
            "sources": {
                name: {"samples": n, "share": share, "asked": asked}
                for name, n, share, asked in self.shares()
            },
        }

    def tell(self, console: Console, found: Mapping[str, Any]) -> None:
        """The figures for people."""
        put(console, self.table())
        say(
            console,
            f"{found['steps']:,} steps in {found['seconds']:,.1f} s: {found['samples_per_s']:,.0f} "
            "samples/s, "
            f"{found['tokens_per_s']:,.0f} tokens/s; waited {found['waited']:.1%} of the time; "
            f"at most {found['peak_bytes'] / 1e6:,.0f} MB; {found['errors']} bad samples",
        )
        if found["state"]:
            say(console, f"state after step {self.step:,}: {found['state']}")

    def table(self) -> Table:
        """Shares as they are and as they are asked for."""
        from rich.table import Table

        made = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("source", "samples", f"share of {self.unit}", "asked"):
            made.add_column(head, justify="left" if head == "source" else "right")
        rows = self.shares()
        for name, n, share, asked in rows[:SHOWN]:
            made.add_row(name, f"{n:,}", f"{share:.2%}", f"{asked:.2%}")
        if len(rows) > SHOWN:
            rest = rows[SHOWN:]
            made.add_row(
                f"{len(rest)} others",
                f"{sum(row[1] for row in rest):,}",
                f"{sum(row[2] for row in rest):.2%}",
                f"{sum(row[3] for row in rest):.2%}",
                style="dim",
            )
        return made

    def line(self) -> str:
        """Where the run is, in a line."""
        done, seconds = self.step - self.first, self.seconds
        left = (self.last - self.step) * seconds / max(done, 1)
        return (
            f"step {self.step:,} of {self.last:,}  {sum(self.samples.values()) / seconds:,.0f} "
            "samples/s  "
            f"{self.tokens / seconds:,.0f} tokens/s  waited {min(1.0, self.waited / seconds):.0%}  "
            f"{self.peak / 1e6:,.0f} MB  {left:,.0f} s left"
        )


@contextmanager
def live(meter: Meter, console: Console) -> Generator[Redraw]:
    """Redraws the figures on a terminal, a few times a second; says a line now and then where there
    is none."""
    every = EVERY if console.is_terminal else 10.0
    last = monotonic()
    if not console.is_terminal:

        def say(loader: Loader) -> None:
            nonlocal last
            if monotonic() - last >= every:
                last = monotonic()
                meter.look(loader.stats())
                console.print(meter.line(), soft_wrap=True)

        yield say
        return

    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    def board() -> RenderableType:
        bar = ProgressBar(
            total=max(1, meter.last - meter.first), completed=meter.step - meter.first
        )
        return Group(bar, meter.line(), meter.table())

    with Live(board(), console=console, auto_refresh=False, transient=True) as screen:

        def draw(loader: Loader) -> None:
            nonlocal last
            if monotonic() - last >= every:
                last = monotonic()
                meter.look(loader.stats())
                screen.update(board(), refresh=True)

        yield draw
