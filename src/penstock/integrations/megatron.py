"""Megatron-LM: the rows of a plan as its datasets.

Megatron's samplers then only count, and its own checkpoint stores everything to resume. Pass
`datasets_provider(...)` to `pretrain`. With `--dataloader-type single`, Megatron's sampler requests
rows in order from `consumed_train_samples` on; each data-parallel rank requests its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..dataset import Dataset
from ..errors import ConfigError
from .torch import MapDataset


class PlannedRows:
    """Index the first rows of a plan, pass after pass, as a dataset for Megatron.

    Every process, also each worker of Megatron's `DataLoader`, opens its own files on first access.

    Args:
        dataset: single rows in the form of the model's `get_batch`: not batched, with positions and
            an end (`limit(n)` ends an endless one).
        rows: number of rows that the run requests.

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
            raise ConfigError(f"the dataset has no rows, but Megatron requests {rows}")

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> Any:
        return self._data[self._checked(row)]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Return several rows; consecutive rows are read together."""
        return self._data.__getitems__([*map(self._checked, rows)])

    def _checked(self, row: int) -> int:
        if not 0 <= row < self._rows:
            raise IndexError(f"row {row} of {self._rows}")
        return row


DatasetsProvider = Callable[..., tuple[PlannedRows | None, PlannedRows | None, PlannedRows | None]]
"""`(train_val_test_num_samples, vp_stage=None)` -> datasets to train, validate and test on."""


def datasets_provider(
    train: Dataset, valid: Dataset | None = None, test: Dataset | None = None
) -> DatasetsProvider:
    """Return the provider for `pretrain(datasets_provider(train, valid), ...)`.

    Megatron calls it with the number of rows that its run takes.

    Args:
        train: rows to train on, in the order of their plan, pass after pass.
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
        splits = zip((train, valid, test), train_val_test_num_samples, strict=True)
        datasets = [
            None if ds is None or not rows else PlannedRows(ds, int(rows)) for ds, rows in splits
        ]
        return datasets[0], datasets[1], datasets[2]

    provide.is_distributed = True  # pyright: ignore[reportFunctionMemberAccess]  # every rank builds it: building reads no data
    return provide
