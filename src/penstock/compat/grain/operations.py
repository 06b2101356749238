"""Operations on iterators of records: the older transformations of `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol, cast

import numpy as np

from ...arrays.trees import iter_leaves, map_leaves
from ...errors import ConfigError, StateError
from . import functions as f
from .base import Base
from .iter_dataset import IterDataset
from .iterator import DatasetIterator
from .packing import FirstFitPackIterDataset
from .record import Record


class Operation(Protocol):
    """A function from an iterator of records to another, such as a generator function."""

    def __call__(self, input_iterator: Iterator[Record], /) -> Iterator[Record]: ...


@dataclass
class MapOperation:
    """Map the data of every record.

    >>> from penstock.compat.grain.record import RecordMetadata
    >>> double = MapOperation(lambda x: 2 * x)
    >>> [record.data for record in double(iter([Record(RecordMetadata(0), 4)]))]
    [8]
    """

    map_function: Callable[[Any], Any]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Yield the records with new data."""
        for record in input_iterator:
            yield record.with_data(self.map_function(record.data))


@dataclass
class RandomMapOperation:
    """Map the data of every record, with the generator of the record."""

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Yield the records with new data."""
        for record in input_iterator:
            rng = cast("np.random.Generator", record.metadata.rng)
            yield record.with_data(self.random_map_function(record.data, rng))


@dataclass
class FilterOperation:
    """Select records by their data."""

    condition_function: Callable[[Any], bool]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Yield the records for which the function is true."""
        for record in input_iterator:
            if self.condition_function(record.data):
                yield record.with_data(record.data)


@dataclass
class BatchOperation:
    """Batch the data of records; the metadata are those of the last one."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size}: give at least 1")

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Yield records of batches."""
        batch = f.BatchRecords(self.batch_fn or f.stack)
        while records := list(islice(input_iterator, self.batch_size)):
            if len(records) == self.batch_size or not self.drop_remainder:
                yield batch(records)

    def disable_deprecation_message(self) -> None:
        """Do nothing: there is no message."""


@dataclass
class PackAndBatchOperation:
    """Pack sequences into the rows of batches: each goes into the first row with room.

    A sequence that fits into no row ends the batch. An element of the result is a tuple of the
    packed features, their segment ids (1, 2, ..., 0 for padding) and positions. All have the
    structure of `length_struct`, whose leaves are the lengths of rows.

    Args:
        length_struct: row length per feature.
        batch_size: rows of a batch.
        max_sequences_per_bin: maximum number of sequences in a row.
    """

    length_struct: Any
    batch_size: int
    max_sequences_per_bin: int | None = None

    def pack(self, ds: IterDataset) -> IterDataset:
        """Return the packed batches of a dataset of elements."""
        names = [f"{i}" for i, _ in enumerate(iter_leaves(self.length_struct))]
        lengths = [cast("int", length) for _, length in iter_leaves(self.length_struct)]
        flat = ds.map(lambda element: _name_leaves(element, names))
        rows = FirstFitPackIterDataset(
            flat,
            length_struct=dict(zip(names, lengths, strict=True)),
            num_packing_bins=self.batch_size,
            shuffle_bins=False,
            max_sequences_per_bin=self.max_sequences_per_bin,
        )
        return rows.batch(self.batch_size, batch_fn=self._join)

    def _join(self, rows: Sequence[Any]) -> tuple[Any, Any, Any]:
        return (
            self._stack(rows, ""),
            self._stack(rows, "_segment_ids"),
            self._stack(rows, "_positions"),
        )

    def _stack(self, rows: Sequence[Any], suffix: str) -> Any:
        """Stack one column of every feature, with rows of zeros for those that are missing."""
        numbers = count()

        def stack(_: Any) -> Any:
            name = f"{next(numbers)}{suffix}"
            column = np.stack([row[name] for row in rows])
            missing = np.zeros((self.batch_size - len(rows), *column.shape[1:]), column.dtype)
            return np.concatenate([column, missing])

        return map_leaves(stack, self.length_struct)

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Raise an error: `DataLoader` packs without calling the operation."""
        raise ConfigError(
            "PackAndBatchOperation works only in the operations of a DataLoader; elsewhere use "
            "experimental.FirstFitPackIterDataset"
        )


def _name_leaves(element: Any, names: Sequence[str]) -> dict[str, Any]:
    leaves = [leaf for _, leaf in iter_leaves(element)]
    return dict(zip(names, leaves, strict=True))


# ---------------------------------------------------------------- operations of a user


class OperationIterDataset(IterDataset):
    """A dataset after an operation that a user wrote.

    Nothing is known of the state of an operation, so a resume calls it again from the first record,
    and leaves out the records that it already made.

    Args:
        parent: a dataset of records.
        operation: the operation.
    """

    def __init__(self, parent: Base, operation: Operation) -> None:
        super().__init__(parent)
        self._operation = operation

    def __iter__(self) -> DatasetIterator:
        return OperationIterator(self._parent, self._operation)


class OperationIterator(DatasetIterator):
    """Iterate over the records of an operation; the state is their number."""

    def __init__(self, dataset: IterDataset, operation: Operation) -> None:
        super().__init__()
        self._dataset, self._operation = dataset, operation
        self._restart(0)

    def _restart(self, produced: int) -> None:
        self.close()
        self._closed = False
        parent = iter(self._dataset)
        self._parents = (parent,)
        self._records = iter(copy(self._operation)(parent))
        self._produced = sum(1 for _ in islice(self._records, produced))
        if self._produced < produced:
            raise StateError(
                f"{self._operation}: made {self._produced} records, not the {produced} of the "
                "state: an operation must make the same records every time"
            )

    def __next__(self) -> Record:
        record = next(self._records)
        self._produced += 1
        return record

    def get_state(self) -> dict[str, int]:
        """Return the number of records so far."""
        return {"produced": self._produced}

    def set_state(self, state: Any) -> None:
        """Restore a state by making the records again.

        Args:
            state: the return value of `get_state()`.
        """
        self._restart(state["produced"])
