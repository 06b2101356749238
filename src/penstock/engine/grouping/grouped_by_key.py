"""A fold per group of items, so that no two groups share a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ...errors import DataError
from ...types import Carry, Fold, Item, Json, Part

SOURCE = "__source__"
"""Value of `by` that groups items by their source."""


@dataclass(frozen=True)
class Apart:
    """Run a separate fold for each group.

    `by` is the key of samples whose value is the group, or `SOURCE`. `rows` is for groups packed in
    windows. The caller names the group of each item. Groups are flushed in the order of their
    names.

    >>> from penstock.engine.grouping import ConcatSplit
    >>> fold = Apart(ConcatSplit(4), "lang")
    >>> carry, rows = fold.init(0), []
    >>> for number, lang in enumerate(["de", "en", "de"]):
    ...     carry, ready = fold.take(carry, Item(number, 2, None), lang)
    ...     rows += ready
    >>> [[item.number for item in row] for row in rows + fold.flush(carry)]
    [[0, 2], [1]]
    """

    KEY = "Apart"

    fold: Fold
    by: str
    rows: int | None = None

    def init(self, key: int, /) -> Carry:
        return {"key": key, "of": {}}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Sequence[Sequence[Item | Part]]]:
        return self.take(carry, item, "")

    def take(
        self, carry: Carry, item: Item, group: str
    ) -> tuple[Carry, list[Sequence[Item | Part]]]:
        """Add an item to a group."""
        of = cast("dict[str, Carry]", carry["of"])
        inner = of[group] if group in of else self.fold.init(carry["key"])
        inner, ready = self.fold.step(inner, item)
        return {**carry, "of": {**of, group: inner}}, list(ready)

    def flush(self, carry: Carry, /) -> list[Sequence[Item | Part]]:
        of = cast("dict[str, Carry]", carry["of"])
        return [row for group in sorted(of) for row in self.fold.flush(of[group])]

    def restored(self, carry: Carry, /) -> Carry:
        restored = getattr(self.fold, "restored", None)
        key, of = int(carry["key"]), cast("dict[str, Carry]", carry["of"])
        return {
            "key": key,
            "of": {
                str(group): restored(inner) if restored else inner for group, inner in of.items()
            },
        }

    def describe(self) -> Json:
        return {
            **cast("dict[str, Json]", self.fold.describe()),
            "group_by": self.by,
            "rows": self.rows,
        }


def get_inner_fold(fold: Fold) -> Fold:
    """Return the fold of each group, or the fold itself without groups."""
    return fold.fold if isinstance(fold, Apart) else fold


def get_group(sample: object, by: str) -> str:
    """Return the group of a sample: the value of a key as text."""
    try:
        value = cast("dict[str, object]", sample)[by]
    except (TypeError, KeyError, IndexError):
        raise DataError(
            f"pack(group_by={by!r}): a document has no {by!r}; add the key in a map before"
        ) from None
    if isinstance(value, bytes | str | int) or (
        np.asarray(value).dtype.kind in "iub" and not np.ndim(cast(int, value))
    ):
        return str(value)
    raise DataError(
        f"pack(group_by={by!r}): {by!r} of a document is a {type(value).__name__}; use a text or "
        "an integer"
    )
