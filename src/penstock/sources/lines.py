r"""Lines as rows: JSON Lines and plain text, read at random through byte offsets.

One pass over the file builds the index of offsets, which is kept beside the data or in a cache and
memory-mapped. Lines of white space are no rows. A byte-order mark at the start, `\r\n`, and a last
line without a newline are handled as usual.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, DataError
from ..stores import ByteRange, is_remote
from ..stores.json_memory import MemoryLimitError, copy_json, decode_text, parse_json
from ..stores.limits import ARRAY, LINE
from ..types import Ints
from . import derived_files, file_versions
from .chain import choose_max_gap, merge_row_ranges, read_in_file_order
from .checksummed import ChecksummedFile
from .derived_files import Kind
from .line_index import BYTE_ORDER_MARK, NEWLINE, make_index
from .lru import LRUCache
from .sums import BLOCK_BYTES, BlockChecksums, read

_PASS_BYTES = 16 << 20  # bytes a pass over the file reads at once
_BLOCK_BYTES = 1 << 20


class Offsets(NamedTuple):
    """Byte offsets of the rows of a file, from the index at `path`.

    `found` is int[rows + 1]: the start of each row, and the size of the file. `sums` are the checksums
    of its blocks.
    """

    path: Path
    found: npt.NDArray[np.integer[Any]]
    sums: BlockChecksums

    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.found) - 1

    def get(self) -> Offsets:
        """Return the offsets."""
        return self


class IndexedOffsets:
    """Offsets in a derived file, memory-mapped on use."""

    def __init__(self, path: Path, origin: Path, cache: LRUCache) -> None:
        self.path, self._origin, self._cache = path, origin, cache
        self._rows = self.get().rows()

    def rows(self) -> int:
        """Return the number of rows."""
        return self._rows

    def get(self) -> Offsets:
        """Return the offsets."""
        return self._cache.get(self.path, self._mapped)

    def found(self) -> npt.NDArray[np.integer[Any]]:
        """Return the start of each row, and the end of the last."""
        return self.get().found

    def _mapped(self) -> tuple[int, Offsets]:
        rows, body = derived_files.read_body(self.path, Kind.LINES, self._origin)
        if 8 * (rows + 1) > len(body):
            raise offsets_mismatch(self.path, self._origin)
        offsets = np.frombuffer(body, "<u8", rows + 1)
        return 1, Offsets(self.path, offsets, np.frombuffer(body, "<u4", offset=offsets.nbytes))


class LineFile:
    """One file of lines, read through its index; `parse` converts the bytes of a line to a row.

    No file stays open between reads, so threads and forks share nothing. Nearby rows are read together.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], Any],
        *,
        offsets: Offsets | IndexedOffsets,
        origin: Path,
        columns: Sequence[str] | None,
    ) -> None:
        self.columns, self.offsets = columns, offsets
        self._path, self._parse, self._origin = path, parse, origin
        self._stat, self._rows = file_versions.stat_file(path), offsets.rows()

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`.

        Raises:
            DataError: A line does not parse; the error names its number and byte offset.
        """
        file_versions.require_unchanged(self._path, self._stat, name=str(self._origin))
        _, offsets, sums = self.offsets.get()
        if not indices.size:
            return []
        if len(offsets) != self._rows + 1:
            raise offsets_mismatch(self.offsets.path, self._origin)
        starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        if bool((starts >= ends).any()) or int(ends.max()) > self._stat.size:
            raise offsets_mismatch(self.offsets.path, self._origin)
        if (longest := int((ends - starts).max())) > LINE:
            start = int(starts[np.argmax(ends - starts)])
            reason = f"the line has {longest:,} bytes: write rows of at most {LINE:,} bytes"
            raise self._bad(start, ValueError(reason))
        return read_in_file_order(starts, ends, partial(self._rows_of, sums))

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the byte ranges that these rows need; none for a local file."""
        _, offsets, sums = self.offsets.get()
        if not is_remote(self._path) or len(offsets) != self._rows + 1:
            return []
        starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        return merge_row_ranges(
            self._path, np.maximum(starts - 1, 0), ends, BLOCK_BYTES if sums.size else 1
        )

    def _rows_of(self, sums: BlockChecksums, starts: Ints, ends: Ints) -> Iterator[Any]:
        """Yield rows in file order, read in blocks of neighbours."""
        starts_block = (starts[1:] > ends[:-1] + choose_max_gap(self._path)) | (
            starts[1:] // _BLOCK_BYTES != starts[:-1] // _BLOCK_BYTES
        )
        boundaries = [0, *(np.flatnonzero(starts_block) + 1).tolist(), len(starts)]
        firsts, lasts, parse = starts.tolist(), ends.tolist(), self._parse
        for low, high in pairwise(boundaries):
            # One more byte at the front: a row that does not follow a newline proves that the
            # offsets belong to another file.
            base = max(firsts[low] - 1, 0)
            block = read(self._path, base, lasts[high - 1] - base, sums, str(self._origin))
            for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                offset = first - base
                if (
                    first
                    and block[offset - 1] != NEWLINE
                    and (first, block[offset - 1]) != (len(BYTE_ORDER_MARK), BYTE_ORDER_MARK[-1])
                ):
                    raise offsets_mismatch(self.offsets.path, self._origin)
                end = block.find(b"\n", offset, last - base)
                line = block[offset : last - base if end < 0 else end]
                if high - low == 1:
                    block = line  # a long line lies in memory once
                try:
                    yield parse(line)
                except (ValueError, RecursionError) as error:
                    raise self._bad(first, error) from error

    def _bad(self, start: int, error: Exception) -> DataError:
        number = 1
        for offset in range(0, start, _PASS_BYTES):
            number += read(
                self._path, offset, min(_PASS_BYTES, start - offset), None, str(self._origin)
            ).count(b"\n")
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return DataError(
            f"{reason} (the line begins at byte {start})", where=f"{self._origin}, line {number}"
        )


class Array:
    """A small `.json` file that is one array, kept parsed in memory; its elements are the rows.

    Rows are copies, so that changing one does not affect later reads.
    """

    def __init__(
        self,
        path: Path,
        values: list[Any],
        *,
        origin: Path,
        columns: Sequence[str] | None,
        data: ChecksummedFile,
    ) -> None:
        self.columns = columns
        self._data, self._path, self._origin, self._stat = (
            data,
            path,
            origin,
            file_versions.stat_file(path),
        )
        self._values: list[Any] | None = values
        self._rows = len(values)

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": None}

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the elements at `indices`."""
        file_versions.require_unchanged(self._path, self._stat, name=str(self._origin))
        if self._values is None:
            self._values = read_json_array(self._path, self._origin, self._data)
        values, columns = self._values or [], self.columns
        rows: list[Any] = []
        for index in indices.tolist():
            try:
                row = values[index] if columns is None else select_keys(values[index], columns)
                rows.append(copy_json(row))
            except ValueError as error:
                raise DataError(str(error), where=f"{self._origin}, element {index}") from error
        return rows


class FromJson:
    """Parser of a line of JSON; `columns` selects some keys.

    >>> FromJson(["b"])(b'{"a": 1, "b": 2}')
    {'b': 2}
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = columns

    def __call__(self, line: bytes) -> Any:
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from error
        return row if self._columns is None else select_keys(row, self._columns)


def parse_text_line(line: bytes) -> dict[str, str]:
    r"""Return a line of text as a row.

    >>> parse_text_line(b"one\r")
    {'text': 'one'}
    """
    return {"text": decode_text(line.removesuffix(b"\r"))}


def select_keys(row: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return some keys of a row; raise `ValueError` if one is missing."""
    try:
        return {column: row[column] for column in columns}
    except KeyError as error:
        raise ValueError(
            f"no column {error} in this row, which has {', '.join(row) or 'none'}"
        ) from error
    except TypeError as error:
        raise ValueError(
            f"columns= selects keys, but this row is no object: it is a {type(row).__name__}"
        ) from error


def offsets_mismatch(index: Path, origin: Path) -> DataError:
    """Build the error for stored offsets that do not fit the file."""
    return DataError(
        f"the offsets in {index} do not fit this file: run `penstock index --rebuild {origin}`, or "
        f"delete {index}",
        where=str(origin),
    )


def require_text_column(columns: Sequence[str] | None, origin: Path) -> Sequence[str]:
    """Return the only column of a text file; raise `ConfigError` for any other."""
    if columns is not None and list(columns) != ["text"]:
        raise ConfigError(
            f"{origin}: a text file has only the column 'text', not {', '.join(columns)}"
        )
    return ["text"]


def open_lines(
    path: Path,
    origin: Path,
    *,
    text: bool,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    mapped_files: LRUCache,
    rebuild: bool = False,
    offsets: Offsets | None = None,
    data: ChecksummedFile | None = None,
) -> LineFile | Array:
    """Open one file of lines.

    Args:
        path: The plain, unpacked file.
        origin: The file that the user named.
        text: True for plain text, false for JSON.
        columns: Columns to read; all by default.
        cache: Cache folder.
        mapped_files: Cache of mapped indexes.
        rebuild: Build the index again.
        offsets: Offsets of the rows; by default from an index of this file.
        data: The bytes of the file.

    Returns:
        The rows of the file.
    """
    if text:
        columns = require_text_column(columns, origin)
    elif path.suffix.lower() == ".json":
        data = data or ChecksummedFile(path, origin, mapped_files)
        if (values := read_json_array(path, origin, data)) is not None:
            return Array(path, values, origin=origin, columns=columns, data=data)
    found = offsets or IndexedOffsets(
        make_index(path, origin, cache=cache, rebuild=rebuild), origin, mapped_files
    )
    return LineFile(
        path,
        parse_text_line if text else FromJson(columns),
        offsets=found,
        origin=origin,
        columns=columns,
    )


def read_json_array(path: Path, origin: Path, data: ChecksummedFile) -> list[Any] | None:
    """Return the elements of a .json file that is one array, or `None` if it has lines.

    Raises:
        DataError: The file is neither, or the array is too large.
    """
    size = file_versions.stat_file(path).size
    head = data.read(0, min(_BLOCK_BYTES, size)).removeprefix(BYTE_ORDER_MARK).lstrip()
    if head[:1] == b"[" and size > ARRAY:
        raise DataError(
            f"the array has {size:,} bytes, and the limit is {ARRAY:,}: write one row per line",
            where=str(origin),
        )
    text = data.read(0, size).removeprefix(BYTE_ORDER_MARK) if head[:1] == b"[" else b""
    problem = ""
    if text:
        try:
            return parse_json(text)
        except MemoryLimitError as error:
            raise DataError(f"{error}, one per line", where=str(origin)) from error
        except (ValueError, RecursionError) as error:
            problem = f"{error}; "
    line, newline, _ = head.partition(b"\n")
    if not line or (not newline and size > _BLOCK_BYTES):  # reading checks such a long first line
        return None
    try:
        parse_json(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the file is neither one array of rows nor one row per line: {problem}line 1: {error}",
            where=str(origin),
        ) from error
    return None
