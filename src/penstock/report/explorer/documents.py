"""Search for documents, and the steps at which a run delivers one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from penstock.errors import ConfigError
from penstock.types import is_source

from ..inspect import NAME_COLUMNS
from ..target import Target
from .budget import TimeBudget
from .steps import StepReader
from .values import make_printable

MAX_VIEWS = 100
MAX_HITS = 50
_FIRST_WINDOW = 1_024  # steps
_READ_ROWS = 64
_SNIPPET = 80  # characters around a hit

Json: TypeAlias = dict[str, Any]


class DocumentFinder:
    """Finds documents and their steps.

    Args:
        target: The opened mixture.
        steps: The length of the run.
        reader: The reader of its steps.
    """

    def __init__(self, target: Target, steps: int, reader: StepReader) -> None:
        self._target, self._steps, self._reader = target, steps, reader

    def list_views(
        self, source: str, index: int, first: int = 0, budget: TimeBudget | None = None
    ) -> Json:
        """Return the steps that deliver a document, from a step on.

        Args:
            source: The source.
            index: The index in the source.
            first: The first step to search.
            budget: The time that the query may take.

        Returns:
            `views`, and `next`, the step at which the search continues (None at the end).

        Raises:
            ConfigError: The mixture has no such source.
            IndexError: The source has no such sample.
        """
        target, budget = self._target, budget or TimeBudget()
        size = len(self._reader.get_source(source))
        if not 0 <= index < size:
            raise IndexError(f"{source}[{index:,}]: the source has {size:,} samples")
        stop = self._steps if target.end is None else min(self._steps, target.end)
        views, at, window = list[Json](), max(0, first), _FIRST_WINDOW
        while at < stop:
            end = min(at + window, stop)
            steps = target.rows.find(source, index, steps=range(at, end))
            for number, step in enumerate(steps):
                views += self._describe_views(source, index, step)
                has_more = number + 1 < len(steps)
                if has_more and (len(views) >= MAX_VIEWS or budget.is_spent):
                    return self._answer(source, index, views, step + 1, stop)
            at, window = end, window * 4 if not steps else window
            if len(views) >= MAX_VIEWS or budget.is_spent:
                break
        return self._answer(source, index, views, at if at < stop else None, stop)

    def _answer(
        self, source: str, index: int, views: list[Json], next_step: int | None, stop: int
    ) -> Json:
        return {
            "source": source,
            "index": index,
            "unit": self._target.unit,
            "views": views,
            "next": next_step,
            "stop": stop,
            "position": self._target.rows.next_step if self._target.rows.position else None,
        }

    def _describe_views(self, source: str, index: int, step: int) -> list[Json]:
        """Return each view of a document in a step, with its rank and row."""
        target, views = self._target, list[Json]()
        leaf = list(target.plan.sources).index(source)
        for taken in target.rows.audit(range(step, step + 1)).stretches():
            for i in np.flatnonzero((taken.leaf == leaf) & (taken.index == index)).tolist():
                view: Json = {
                    "step": step,
                    "rank": int(taken.rank[i]),
                    "row": int(taken.row[i]),
                    "epoch": int(taken.epoch[i]),
                }
                if taken.start is not None and taken.stop is not None:
                    view |= {"start": int(taken.start[i]), "stop": int(taken.stop[i])}
                views.append(view | ({"masked": True} if taken.masked[i] else {}))
        return sorted(views, key=lambda view: (view["epoch"], view.get("start", 0)))

    # ------------------------------------------------------------ search

    def search(
        self,
        text: str,
        by: str = "text",
        source: str | None = None,
        start: tuple[int, int] = (0, 0),
        budget: TimeBudget | None = None,
    ) -> Json:
        """Search rows for a key or a text, from a row of a source on.

        Args:
            text: The key, `COLUMN=VALUE`, or the text.
            by: "key" or "text".
            source: The only source to search; all by default.
            start: The number of the source and the row at which to begin.
            budget: The time that the query may take.

        Returns:
            `hits`, and `next`, where the search continues (None at the end).

        Raises:
            ConfigError: The text is empty, or the mixture has no such source.
        """
        if not text:
            raise ConfigError("the search is empty; type a key or a text")
        if source is not None:
            self._reader.get_source(source)
        matches = _make_key_matcher(text) if by == "key" else _make_text_matcher(text)
        budget, hits, read = budget or TimeBudget(), list[Json](), 0
        number, row = start
        leaves = self._target.leaves
        while number < len(leaves):
            leaf = leaves[number]
            size = len(leaf.source) if is_source(leaf.source) else 0
            if row >= size or source not in (None, leaf.name):
                number, row = number + 1, 0
                continue
            if read and (budget.is_spent or len(hits) >= MAX_HITS):
                return {"hits": hits, "next": [number, row], "read": read, "source": leaf.name}
            assert is_source(leaf.source)
            indices = np.arange(row, min(row + _READ_ROWS, size))
            for index, value in zip(indices.tolist(), leaf.source.read(indices), strict=True):
                if (snippet := matches(value)) is not None:
                    hits.append({"source": leaf.name, "index": index, "snippet": snippet})
            read, row = read + len(indices), row + len(indices)
        return {"hits": hits, "next": None, "read": read, "source": None}


def _get_fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {"": value}


def _make_key_matcher(query: str) -> Callable[[Any], str | None]:
    column, separator, wanted = query.partition("=")
    is_named = bool(separator) and column.isidentifier()
    columns, wanted = ((column,), wanted) if is_named else (NAME_COLUMNS, query)

    def match(value: Any) -> str | None:
        fields = _get_fields(value)
        for name in columns:
            if name in fields and str(fields[name]) == wanted:
                return make_printable(f"{name}: {wanted[:_SNIPPET]}")
        return None

    return match


def _make_text_matcher(words: str) -> Callable[[Any], str | None]:
    def match(value: Any) -> str | None:
        for field in _get_fields(value).values():
            if isinstance(field, str) and (place := field.find(words)) >= 0:
                begin = max(0, place - _SNIPPET // 2)
                shown = field[begin : place + len(words[:_SNIPPET]) + _SNIPPET // 2]
                return make_printable(f"{'…' if begin else ''}{shown}")
        return None

    return match
