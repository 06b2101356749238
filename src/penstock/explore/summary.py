"""Summaries of the columns of some samples, printed as a table."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, cast

import numpy as np

from .cells import format_value, show_table
from .rows import VALUE_COLUMN, column_names

_FREQUENT_VALUES = 3
_ORDERED_TYPES = (
    int,
    float,
    np.number,
    Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.datetime64,
    np.timedelta64,
)
_COUNTED_TYPES = (*_ORDERED_TYPES, str, bytes, np.bool_)
"""Types whose values are counted: they are hashable and equal to their copies."""


@dataclass(frozen=True)
class ColumnSummary:
    """Facts about the values of one column in the samples that were read.

    Attributes:
        column: the name of the column.
        type: the types of its values, the most frequent first.
        missing: the number of samples without the column, or with `None` in it. NaN is a value, and
            not missing.
        distinct: the number of distinct texts, numbers and times; `None` for other types. All NaN
            are one value.
        minimum: the smallest number or time; `None` for other types.
        maximum: the largest number or time.
        length: the smallest and the largest length of texts, bytes, lists and mappings.
        frequent: the most frequent values with their counts, for columns with `distinct`.
    """

    column: str
    type: str
    missing: int
    distinct: int | None
    minimum: Any
    maximum: Any
    length: tuple[int, int] | None
    frequent: tuple[tuple[Any, int], ...]

    def cells(self) -> list[str]:
        """Return the facts as texts, for a row of a table."""
        length = self.length and " to ".join(map(str, dict.fromkeys(self.length)))
        frequent = (
            format_value(value) + (f" x{count}" if count > 1 else "")
            for value, count in self.frequent
        )
        return [
            self.column if self.column.isprintable() else ascii(self.column),
            self.type,
            str(self.missing),
            "" if self.distinct is None else str(self.distinct),
            "" if self.minimum is None else format_value(self.minimum),
            "" if self.maximum is None else format_value(self.maximum),
            length or "",
            ", ".join(frequent),
        ]


@dataclass(frozen=True, repr=False)
class Summary:
    """Summaries of all columns of a dataset; `ds.describe()` returns it.

    Attributes:
        samples_read: the number of samples that were read.
        samples: the number of samples of a pass, `None` if it is unknown or endless.
        first: whether these are the first samples, rather than samples spread over the dataset.
        columns: a summary for each column.
    """

    samples_read: int
    samples: int | None
    first: bool
    columns: tuple[ColumnSummary, ...]

    def __getitem__(self, column: str) -> ColumnSummary:
        """Return the summary of a column."""
        return next(each for each in self.columns if each.column == column)

    @property
    def title(self) -> str:
        """The number of samples that were read, of how many."""
        total = "an unknown number of" if self.samples is None else f"{self.samples:,}"
        is_part = self.samples != self.samples_read
        which = (", the first ones" if self.first else ", spread evenly") if is_part else ""
        return f"{self.samples_read:,} of {total} samples read{which}"

    def _rows(self) -> list[list[str]]:
        names = [field.name for field in fields(ColumnSummary)]
        return [names, *(column.cells() for column in self.columns)]

    def __repr__(self) -> str:
        table = self._rows()
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        names, *rows = self._rows()
        return show_table(names, rows, self.title)


def summarize(samples: Sequence[Any], total: int | None, *, first: bool) -> Summary:
    """Summarise samples.

    Args:
        samples: the samples; those that are no mappings are values of one column.
        total: the number of samples that they stand for.
        first: whether they are the first ones.
    """
    is_table = all(isinstance(sample, Mapping) for sample in samples)
    columns = (
        (name, [sample.get(name) for sample in samples] if is_table else samples)
        for name in (column_names(samples) if is_table else [VALUE_COLUMN])
    )
    summaries = tuple(_summarize_column(str(name), values) for name, values in columns)
    return Summary(len(samples), total, first, summaries)


def _summarize_column(name: str, values: Sequence[Any]) -> ColumnSummary:
    present = [value for value in values if value is not None]
    types = Counter(map(_name_type, present))
    counts = None
    if present and all(isinstance(value, _COUNTED_TYPES) for value in present):
        # NaN differs from itself, so each would be a value of its own.
        unordered = dict[str, Any]()
        counts = Counter(
            value if bool(value == value) else unordered.setdefault(str(value), value)
            for value in present
        )
    ordered: list[Any] = [
        value
        for value in present
        if isinstance(value, _ORDERED_TYPES)
        and not isinstance(value, bool)
        and bool(value == value)  # NaN differs from itself, and has no order
    ]
    lengths = [len(value) for value in present if _has_length(value)]
    minimum, maximum = _find_extremes(ordered if 2 * len(ordered) >= len(present) else [])
    return ColumnSummary(
        name,
        ", ".join(kind for kind, _ in types.most_common()),
        len(values) - len(present),
        None if counts is None else len(counts),
        minimum,
        maximum,
        (min(lengths), max(lengths)) if lengths else None,
        () if counts is None else tuple(counts.most_common(_FREQUENT_VALUES)),
    )


def _find_extremes(values: Sequence[Any]) -> tuple[Any, Any]:
    try:
        return (min(values), max(values)) if values else (None, None)
    except TypeError:  # numbers beside times, or times with and without a zone
        return None, None


def _has_length(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return cast("Any", value).ndim > 0
    return isinstance(value, str | bytes | list | tuple | Mapping)


def _name_type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return f"{array.dtype} array" + (f" of {array.ndim} axes" if array.ndim != 1 else "")
    return type(cast("object", value)).__name__
