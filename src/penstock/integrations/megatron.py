"""Megatron-LM: a plan as its datasets. Its samplers then only count, and its own checkpoint has all
there is to save.

`pretrain` is given `datasets_provider(...)`; with `--dataloader-type single` Megatron's sampler
asks for the rows in order from `consumed_train_samples` on, every data-parallel rank for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..dataset import Dataset
from ..errors import ConfigError
from .torch import MapDataset


class PlannedRows:
    """The first rows of a plan by their number, passes one after the other: what Megatron takes for
    a dataset.

    Every process, also each worker of Megatron's `DataLoader`, reads with files of its own, opened
    when first asked.

    Args:
        dataset: of single rows, as the model's `get_batch` takes them: not batched, and with
            positions and an end (an endless one by `limit(n)`).
        rows: how many rows the run asks for.

    Raises:
        IndexedError: for a dataset without positions or without an end.

    >>> import penstock as ps
    >>> rows = PlannedRows(ps.from_sequence(range(3)), 8)
    >>> len(rows), [rows[i] for i in range(8)]
    (8, [0, 1, 2, 0, 1, 2, 0, 1])
    """

    def __init__(self, dataset: Dataset, rows: int) -> None:
        self._data, self._rows = MapDataset(dataset, rank=0, world_size=1), rows
        if rows and not len(self._data):
            raise ConfigError(f"Megatron asks for {rows} rows, and the dataset has none")

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        return self._data[self._checked(row)]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Many rows; such as follow one another are read together."""
        return self._data.__getitems__([*map(self._checked, rows)])

    def _checked(self, row: int) -> int:
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        return row


Provider = Callable[..., tuple[PlannedRows | None, PlannedRows | None, PlannedRows | None]]
"""`(train_val_test_num_samples, vp_stage=None)` -> datasets to train, validate and test on."""


def datasets_provider(
    train: Dataset, valid: Dataset | None = None, test: Dataset | None = None
) -> Provider:
    """For `pretrain(datasets_provider(train, valid), ...)`: Megatron asks it for as many rows as
    its run takes.

    Args:
        train: rows to train on, in the order of their plan; passes follow one another.
        valid: rows to validate on.
        test: rows to test on.

    >>> import penstock as ps
    >>> rows = ps.from_sequence(range(5)).shuffle(seed=1)
    >>> trained, validated, tested = datasets_provider(rows, rows.limit(2))((12, 4, 0))
    >>> len(trained), len(validated), tested
    (12, 4, None)
    """

    def provide(
        train_val_test_num_samples: Sequence[int], vp_stage: int | None = None
    ) -> tuple[PlannedRows | None, PlannedRows | None, PlannedRows | None]:
        asked = zip((train, valid, test), train_val_test_num_samples, strict=True)
        found = [
            None if ds is None or not rows else PlannedRows(ds, int(rows)) for ds, rows in asked
        ]
        return found[0], found[1], found[2]

    provide.is_distributed = True  # pyright: ignore[reportFunctionMemberAccess]  # each rank makes its own: it reads nothing
    return provide
