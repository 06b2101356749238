"""Collation of rows: token rows are padded, with an attention mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...text import pad_columns
from .tag import PATH, SOURCE


class Padded:
    """Collate rows into a mapping of arrays, padded to the longest row of the batch.

    `input_ids` are padded with `pad`, `labels` with -100, other fields with 0. An `attention_mask`
    is added to `input_ids` if there is none. Texts stay lists; names of sources become arrays.

    >>> batch = Padded(9)([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist()
    ([[1, 2], [3, 9]], [[1, 1], [1, 0]])
    """

    def __init__(self, pad: int = 0) -> None:
        self._fill = {"input_ids": pad, "labels": -100}
        self.__qualname__ = f"padded({pad})"

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        out = pad_columns(rows, self._fill)
        for name in {SOURCE, PATH} & out.keys():
            if all(isinstance(value, str) for value in out[name]):
                out[name] = np.asarray(out[name])
        if "input_ids" in out and "attention_mask" not in out:
            lengths: npt.NDArray[Any] = np.asarray([len(row["input_ids"]) for row in rows])
            out["attention_mask"] = np.asarray(
                np.arange(lengths.max()) < lengths[:, None], np.int32
            )
        return out
