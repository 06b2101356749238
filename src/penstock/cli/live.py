"""Live display of `penstock run`: progress, throughput, shares, stalls and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.engine.base.machine import measure_resident_memory
from penstock.explore.live_stats import LineDisplay, RunDisplay, TerminalDisplay
from penstock.explore.run_reporter import count_tokens
from penstock.explore.run_stats import RunRecorder, summarize
from penstock.loader import Loader

from .common import print_table, print_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.report.target import Target

MAX_SOURCES = 12  # rows of the table; the other sources share one row
Redraw: TypeAlias = Callable[[Loader], None]


def count_begun_documents(item: Any, keys: Sequence[tuple[str, int, int]]) -> Counter[str] | None:
    """Count the documents of each source that begin in packed rows.

    Returns None if the rows lack `segment_ids` or `positions`, or do not match `keys`.

    >>> row = {"segment_ids": np.array([1, 1, 2, 2, 0]), "positions": np.array([7, 8, 0, 1, 0])}
    >>> count_begun_documents(row, [("a", 0, 3), ("b", 0, 0)])
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
    is_first = np.diff(segments, axis=1, prepend=0) > 0
    if np.count_nonzero(is_first) != len(keys):
        return None
    begins_document = positions[is_first] == 0
    counts = Counter({source: 0 for source, _, _ in keys})
    counts.update(
        source
        for (source, _, _), begins in zip(keys, begins_document.tolist(), strict=True)
        if begins
    )
    return counts


class RunMeter:
    """Running totals of a run: steps, samples, tokens, waiting time and memory."""

    def __init__(self, target: Target, first: int, last: int) -> None:
        self.target, self.first, self.step, self.last = target, first, first, last
        self.tokens, self.samples, self.waited = 0, dict[str, int](), 0.0
        self.documents: Counter[str] | None = (
            None if target.model.pack is None or target.packed else Counter()
        )
        self.peak = measure_resident_memory()
        self._began = monotonic()
        facts = {"rank": 0, "world_size": 1, "steps": last, "sources": list(target.plan.sources)}
        self._recorder = RunRecorder(None, facts)

    def count_step(self, item: Any, keys: Callable[[], Sequence[tuple[str, int, int]]]) -> None:
        """Count a step: its tokens and, for packed rows, its documents."""
        self.step += 1
        self.tokens += count_tokens(item)
        if self.documents is not None:
            begun = count_begun_documents(item, keys())
            self.documents = None if begun is None else self.documents + begun

    def update(self, stats: Mapping[str, Any]) -> None:
        """Take over the counts of `loader.stats()` and measure memory."""
        self.samples, self.waited = dict(stats["samples"]), float(stats["waited_s"])
        self.peak = max(self.peak, measure_resident_memory())

    @property
    def seconds(self) -> float:
        return max(monotonic() - self._began, 1e-9)

    @property
    def unit(self) -> str:
        """Unit of all shares: tokens, documents or samples."""
        if self.target.indexed and self.target.by_tokens:
            return "tokens"
        return "samples" if self.documents is None else "documents"

    def shares(self) -> list[tuple[str, int, float, float]]:
        """Return (source, samples, share, requested share) rows of this run, largest first."""
        from penstock.report.shares import convert_to_tokens

        amounts: Mapping[str, int] = self.samples if self.documents is None else self.documents
        requested = self.target.requested_shares(
            max(1, self.step if self.target.indexed else sum(amounts.values()))
        )
        if self.unit == "tokens":
            before, now = self.target.tokens(self.first), self.target.tokens(self.step)
            amounts = {name: tokens - before[name] for name, tokens in now.items()}
            requested = convert_to_tokens(self.target, requested)
        total = max(1, sum(amounts.values()))
        rows = [
            (name, count, amounts[name] / total, requested.get(name, 0.0))
            for name, count in self.samples.items()
        ]
        return sorted(rows, key=lambda row: -row[1])

    def figures(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """Return all totals as JSON values.

        `waited` is the fraction of time in which the prefetch buffer was empty.
        """
        self.update(stats)
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
                name: {"samples": count, "share": share, "requested": requested}
                for name, count, share, requested in self.shares()
            },
        }

    def print_summary(self, console: Console, figures: Mapping[str, Any]) -> None:
        """Print shares and throughput."""
        print_table(console, self.table())
        print_text(
            console,
            f"{figures['steps']:,} steps in {figures['seconds']:,.1f} s: {figures['samples_per_s']:,.0f} "
            "samples/s, "
            f"{figures['tokens_per_s']:,.0f} tokens/s; waited {figures['waited']:.1%} of the time; "
            f"at most {figures['peak_bytes'] / 1e6:,.0f} MB; {figures['errors']} bad samples",
        )
        if figures["state"]:
            print_text(console, f"state after step {self.step:,}: {figures['state']}")

    def table(self) -> Table:
        """Return a table of delivered and requested shares."""
        from rich.table import Table

        shares = Table(box=None, header_style="bold", pad_edge=False)
        for head in ("source", "samples", f"share of {self.unit}", "requested"):
            shares.add_column(head, justify="left" if head == "source" else "right")
        rows = self.shares()
        for name, count, share, requested in rows[:MAX_SOURCES]:
            shares.add_row(name, f"{count:,}", f"{share:.2%}", f"{requested:.2%}")
        if len(rows) > MAX_SOURCES:
            rest = rows[MAX_SOURCES:]
            shares.add_row(
                f"{len(rest)} others",
                f"{sum(row[1] for row in rest):,}",
                f"{sum(row[2] for row in rest):.2%}",
                f"{sum(row[3] for row in rest):.2%}",
                style="dim",
            )
        return shares

    def summarize(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """Return the summary that the live display shows."""
        self.update(stats)
        more: dict[str, Any] = {
            "step": self.step,
            "rows": None,
            "tokens": self.tokens or None,
            "warnings": [],
        }
        if self._recorder.is_due():
            self._recorder.record(stats, more)
        summary = summarize({0: self._recorder.preview(stats, more)})
        rows = self.shares()
        return {
            **summary,
            "unit": self.unit,
            "shares": {name: share for name, _, share, _ in rows},
            "requested": {name: requested for name, _, _, requested in rows},
        }


@contextmanager
def show_live_totals(meter: RunMeter, console: Console) -> Generator[Redraw]:
    """Redraw the totals several times a second; without a terminal, print a line every 10 s."""
    display = RunDisplay(TerminalDisplay(console) if console.is_terminal else LineDisplay(console))

    def draw(loader: Loader) -> None:
        if display.is_due():
            display.update(meter.summarize(loader.stats()))

    try:
        yield draw
    finally:
        display.close()
