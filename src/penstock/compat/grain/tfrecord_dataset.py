"""TFRecord files as a dataset of bytes."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np

from ...errors import DataError
from ...inputs import read
from ...sources.example import RECORD_COLUMN
from ...sources.tfrecord import find_valid_records
from . import functions as f
from .iter_dataset import PipelineIterDataset
from .iterator import DatasetIterator
from .lineage import Lineage, Style

_HEAD, _TAIL = 12, 4  # bytes before and after the data of a record


class TFRecordIterDataset(PipelineIterDataset):
    """Read the records of a TFRecord file as bytes, in order.

    An index of the file makes every position a random access, and every checksum is compared.

    Args:
        path: path of the file.
        order: "penstock" or "grain".
    """

    def __init__(self, path: str, *, order: Style = "penstock") -> None:
        self._path = path
        if type(self).__iter__ is not PipelineIterDataset.__iter__:
            core: Any = None  # a subclass opens the file in its own way
        else:
            core = read(path, "tfrecord", columns=[RECORD_COLUMN]).map(f.record_bytes)
        super().__init__(core, Lineage(order))


class RecordReader:
    """Read the records of an open file in sequence, for iterators that open files elsewhere.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        self._reader: BinaryIO = open(path, "rb")  # closed with the reader

    def __next__(self) -> bytes:
        head = self._reader.read(_HEAD)
        if not head:
            raise StopIteration
        length = struct.unpack("<Q", head[:8])[0] if len(head) == _HEAD else 0
        frame = head + self._reader.read(length + _TAIL)
        bounds = np.asarray([0, _HEAD + length + _TAIL])
        whole = len(frame) == bounds[1]
        if not whole or not find_valid_records(memoryview(frame), bounds[:1], bounds[1:]).all():
            raise DataError(
                f"a record of {length:,} bytes is cut off or damaged",
                where=str(getattr(self._reader, "name", "a TFRecord file")),
            )
        return frame[_HEAD:-_TAIL]

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.close()

    def seek(self, offset: int) -> None:
        """Seek to a byte of the file."""
        self._reader.seek(offset)

    def tell(self) -> int:
        """Return the byte of the file at which the next record begins."""
        return self._reader.tell()


class RecordIterator(DatasetIterator):
    """Iterate over a `RecordReader`; the state is its position in the file.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._reader = RecordReader(path)

    def __next__(self) -> bytes:
        return next(self._reader)  # pyright: ignore[reportArgumentType]

    def get_state(self) -> dict[str, int]:
        """Return the position in the file."""
        return {"reader_offset": self._reader.tell()}

    def set_state(self, state: dict[str, int]) -> None:
        """Seek to a position in the file.

        Args:
            state: the return value of `get_state()`.
        """
        self._reader.seek(state["reader_offset"])
