"""Sources: any object with `len` and `[i]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Protocol, SupportsIndex, cast, runtime_checkable

from ...dataset import Dataset
from ...errors import ConfigError
from ...inputs import concat, read
from ...sources.example import RECORD_COLUMN


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """Protocol of sources that `MapDataset.source` accepts.

    >>> isinstance([1, 2], RandomAccessDataSource)
    True
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class RangeDataSource:
    """Integers from `start` to before `stop`.

    >>> from penstock.compat.grain import MapDataset
    >>> list(MapDataset.source(RangeDataSource(2, 9, 3)))
    [2, 5, 8]
    """

    def __init__(self, start: int, stop: int, step: int) -> None:
        if step == 0:
            raise ConfigError("RangeDataSource: step=0: give another step")
        self._numbers = range(start, stop, step)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, record_key: SupportsIndex) -> int:
        index = record_key.__index__()
        if not 0 <= index < len(self._numbers):
            raise IndexError(f"index {index} is out of range for {len(self._numbers)} records")
        return self._numbers[index]

    def __repr__(self) -> str:
        numbers = self._numbers
        return f"RangeDataSource(start={numbers.start}, stop={numbers.stop}, step={numbers.step})"


class FileInstruction(Protocol):
    """A range of the records of a file, as TensorFlow Datasets describes it."""

    @property
    def filename(self) -> str: ...
    @property
    def skip(self) -> int: ...
    @property
    def take(self) -> int: ...


class ArrayRecordDataSource:
    """The records of ArrayRecord files, as bytes.

    Args:
        paths: one or several paths, `path[start:stop]`, or file instructions.
        reader_options: ignored: readers are opened for random access, and share a cache.

    Raises:
        ConfigError: without paths.
    """

    def __init__(
        self,
        paths: str | PurePath | FileInstruction | Sequence[Any],
        reader_options: Mapping[str, str] | None = None,
    ) -> None:
        one = isinstance(paths, str | PurePath) or hasattr(paths, "filename")
        self._paths: list[Any] = [paths] if one else [*_iterate(paths)]
        if not self._paths:
            raise ConfigError("ArrayRecordDataSource: no paths: give at least one")
        parts = [_open_part(path) for path in self._paths]
        self._records = concat(*parts) if len(parts) > 1 else parts[0]

    @property
    def paths(self) -> list[Any]:
        """The paths and file instructions."""
        return self._paths

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        return self.__getitems__([record_key])[0]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[bytes]:
        """Return several records."""
        rows = self._records[[key.__index__() for key in record_keys]]
        return [row[RECORD_COLUMN] for row in rows]

    def __enter__(self) -> ArrayRecordDataSource:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the cache closes files."""

    def __repr__(self) -> str:
        return f"ArrayRecordDataSource(paths={[str(path) for path in self._paths]})"


def _iterate(paths: Any) -> Iterable[Any]:
    if not isinstance(paths, Sequence):
        raise ConfigError(f"ArrayRecordDataSource: {paths!r} is no path and no list of paths")
    return paths  # pyright: ignore[reportUnknownVariableType]


def _open_part(path: Any) -> Dataset:
    """Return the records of a path, or of a range of a file."""
    instruction = cast("FileInstruction", path)
    if hasattr(path, "filename"):
        records = _open_file(str(instruction.filename))
        return records[instruction.skip : instruction.skip + instruction.take]
    text = str(path)
    name, bracket, bounds = text.rpartition("[")
    start, colon, stop = bounds.removesuffix("]").partition(":")
    if bracket and colon and start.isdecimal() and stop.isdecimal() and bounds.endswith("]"):
        return _open_file(name)[int(start) : int(stop)]
    return _open_file(text)


def _open_file(path: str) -> Dataset:
    return read(path, "array_record", columns=[RECORD_COLUMN])


class SharedMemoryDataSource:
    """The elements of a sequence; workers are threads, so they share it as it is.

    Args:
        elements: the elements.
        name: a name, for the representation alone.

    Raises:
        ConfigError: without elements.

    >>> source = SharedMemoryDataSource(["a", "b"])
    >>> len(source), source[1]
    (2, 'b')
    """

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None) -> None:
        if elements is None:
            raise ConfigError(
                f"SharedMemoryDataSource(name={name!r}): pass elements=; there is no memory of "
                "other processes to attach to, as workers are threads of this process"
            )
        self._elements, self._name = elements, name

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, index: int) -> Any:
        return self._elements[index]

    def __repr__(self) -> str:
        return f"InMemoryDataSource(name={self._name}, len={len(self)})"

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def unlink(self) -> None:
        """Do nothing: no shared memory has a name."""
