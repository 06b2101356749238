"""Reports of a loader during a run: records for its stats file, and a progress display."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.machine import get_pid
from ..stores.urls import require_local
from .run_stats import RunRecorder, name_rank_file, summarize

Collect = Callable[[], tuple[Mapping[str, Any], dict[str, Any]]]
"""Function that returns `loader.stats()`, and the step and warnings of the loader."""


def count_tokens(item: Any) -> int:
    """Count the tokens of an item.

    Counts the positions of packed rows that hold a document, else the elements of the largest
    integer array. Arrays on another device are counted by their shape, which waits for nothing.

    >>> count_tokens({"tokens": np.zeros((2, 4), np.int32), "segment_ids": np.array([[1, 1, 0, 0], [1, 1, 1, 1]])})
    6
    >>> count_tokens([np.arange(3), np.arange(4)]), count_tokens("text")
    (7, 0)
    """
    if isinstance(item, np.ndarray):
        array = cast("npt.NDArray[Any]", item)
        return array.size if array.ndim and array.dtype.kind in "iu" else 0
    if isinstance(item, Mapping):
        columns = cast("Mapping[str, Any]", item)
        segments = columns.get("segment_ids")
        if segments is not None and (array := _view(segments)) is not None:
            return int(np.count_nonzero(array))
        return max(map(count_tokens, columns.values()), default=0)
    if isinstance(item, list | tuple):
        return sum(map(count_tokens, cast("list[Any]", item)))
    shape = getattr(item, "shape", ())
    if not shape or "int" not in str(getattr(item, "dtype", "")):
        return 0
    return int(prod(shape))


def _view(value: Any) -> npt.NDArray[Any] | None:
    """Return an array in the memory of the host without a copy; None for other values."""
    if isinstance(value, np.ndarray):
        return cast("npt.NDArray[Any]", value)
    if str(getattr(value, "device", "")) == "cpu" and hasattr(value, "data_ptr"):  # of torch
        return np.asarray(value)
    return None


class RunReporter:
    """Reports of one loader: a stats file, a progress display, or both.

    The loader calls `count_item` for each item and `report` before it waits for one. Both only read
    a clock unless something is due.

    Args:
        stats: the file that the user names, for all ranks; None writes none.
        progress: whether to show progress; only rank 0 does.
        facts: the facts of the loader for its start line.
        collect: the function that returns its present figures.
    """

    def __init__(
        self,
        stats: str | Path | None,
        progress: bool,
        facts: Mapping[str, Any],
        collect: Collect,
    ) -> None:
        rank = facts["rank"]
        path = None if stats is None else name_rank_file(Path(require_local(stats)), rank)
        self._recorder, self._collect = RunRecorder(path, facts), collect
        self._rank, self._pid = rank, get_pid()
        self._tokens, self._rows, self._counted = 0, 0, -1
        self._display = None
        if progress and not rank:
            from .live_stats import RunDisplay, open_display

            self._display = RunDisplay(open_display())

    def count_item(self, number: int, item: Any, rows: int | None) -> None:
        """Count an item.

        Args:
            number: the number of the item; an item that is asked for twice counts once.
            item: the item in the memory of the host.
            rows: its rows, or None if they are unknown.
        """
        if number == self._counted:
            return
        self._counted = number
        self._tokens += count_tokens(item)
        self._rows += rows or 0

    def report(self, now: bool = False) -> None:
        """Write and show what is due; with `now`, also what is not due yet, if nothing was."""
        if get_pid() != self._pid:
            return
        is_due = self._recorder.is_due() or (now and self._recorder.is_empty)
        shows = self._display is not None and self._display.is_due()
        if is_due:
            self._record()
        if shows and self._display is not None:
            self._display.update(self._summarize_now())

    def close(self) -> None:
        """Write the last record, and close the display."""
        if get_pid() != self._pid:
            return
        summary = None
        with suppress(Exception):  # an error here would hide the one that closes the loader
            self._record("closed")
            summary = summarize({self._rank: self._recorder.rank})
        self._recorder.close()
        if self._display is not None:
            self._display.close(summary)

    def _collect_all(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        stats, more = self._collect()
        return stats, {**more, "rows": self._rows or None, "tokens": self._tokens or None}

    def _record(self, reason: str = "") -> None:
        stats, more = self._collect_all()
        self._recorder.record(stats, more, reason)

    def _summarize_now(self) -> dict[str, Any]:
        """Return the summary of this rank, without a line in its file."""
        stats, more = self._collect_all()
        preview = self._recorder.preview(stats, more)
        return summarize({self._rank: preview})
