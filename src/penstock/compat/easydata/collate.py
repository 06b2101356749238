"""Batches of rows: ragged rows of numbers padded, with a mask that says what is padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...base.tree import collate
from ...errors import DataError
from .tag import PATH, SOURCE

Array = npt.NDArray[Any]


class Padded:
    """Rows as a mapping of arrays. Rows of different length are filled up to the longest of the batch.

    `input_ids` are filled with `pad`, `labels` with -100, all else with 0; `attention_mask` is added to `input_ids`
    where there is none. Texts stay lists, the names of sources become arrays.

    >>> batch = Padded(9)([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist()
    ([[1, 2], [3, 9]], [[1, 1], [1, 0]])
    """

    def __init__(self, pad: int = 0) -> None:
        self._fill = {"input_ids": pad, "labels": -100}
        self.__qualname__ = f"padded({pad})"

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        names = list(rows[0])
        for row in rows:
            if row.keys() != rows[0].keys():
                other = sorted(set(names) ^ set(row))
                raise DataError(f"the rows of a batch differ in the fields {other}: give all sources the same fields")
        out = {name: self._column(name, [row[name] for row in rows]) for name in names}
        if "input_ids" in out and "attention_mask" not in out:
            lengths: Array = np.asarray([len(row["input_ids"]) for row in rows])
            out["attention_mask"] = np.asarray(np.arange(lengths.max()) < lengths[:, None], np.int32)
        return out

    def _column(self, name: str, values: list[Any]) -> Any:
        if name in (SOURCE, PATH) and all(isinstance(value, str) for value in values):
            return np.asarray(values)
        arrays = [numbers(value) for value in values]
        if any(array is None for array in arrays):
            return cast("Mapping[str, Any]", collate([{name: value} for value in values]))[name]
        rows = cast("list[Array]", arrays)
        longest = max(len(row) for row in rows)
        out = np.full((len(rows), longest), self._fill.get(name, 0), np.result_type(*rows))
        for place, row in zip(out, rows, strict=True):
            place[: len(row)] = row
        return out


def numbers(value: Any) -> Array | None:
    """A row of numbers as an array; None for anything else."""
    if not isinstance(value, list | np.ndarray):
        return None
    if isinstance(value, list) and not value:
        return np.zeros(0, np.int8)  # whatever the others are, it is no larger
    try:
        array: Array = np.asarray(cast(Any, value))
    except ValueError:
        return None
    return array if array.ndim == 1 and array.dtype.kind in "biuf" else None
