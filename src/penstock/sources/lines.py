"""Rows that are lines: JSON Lines and plain text, read at random through an index of byte offsets.

The index is made once, in one pass over the file, and kept beside the data or in a cache; it is
mapped, not loaded. Lines that hold nothing but white space are no rows. A byte-order mark at the
start, `\\r\\n`, and a last line without an end are all taken as usual.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine.base.limits import ARRAY, LINE
from ..errors import ConfigError, DataError
from ..stores import Range, is_remote
from ..types import Ints
from . import sidecar
from .chain import gap_of, in_file_order, ranges_of
from .checked import Checked
from .held import Held
from .line_index import MARK, NEWLINE, make_index
from .sums import BLOCK, Sums, read

_CHUNK = 16 << 20  # bytes a pass over the file reads at once
_BLOCK = 1 << 20


class Offsets(NamedTuple):
    """Where the rows of a file begin, and its size: int[rows + 1]; the checksums of its blocks; the
    file in which that is kept."""

    path: Path
    found: npt.NDArray[np.integer[Any]]
    sums: Sums

    def rows(self) -> int:
        """How many there are."""
        return len(self.found) - 1

    def get(self) -> Offsets:
        """All of them."""
        return self


class Kept:
    """Offsets in an index of their own, mapped when they are needed."""

    def __init__(self, path: Path, origin: Path, held: Held) -> None:
        self.path, self._origin, self._held = path, origin, held
        self._rows = self.get().rows()

    def rows(self) -> int:
        """How many there are."""
        return self._rows

    def get(self) -> Offsets:
        """All of them."""
        return self._held.get(self.path, self._mapped)

    def found(self) -> npt.NDArray[np.integer[Any]]:
        """Where each row begins, and where they end."""
        return self.get().found

    def _mapped(self) -> tuple[int, Offsets]:
        rows, body = sidecar.body(self.path, sidecar.LINES, self._origin)
        if 8 * (rows + 1) > len(body):
            raise foreign(self.path, self._origin)
        offsets = np.frombuffer(body, "<u8", rows + 1)
        return 1, Offsets(self.path, offsets, np.frombuffer(body, "<u4", offset=offsets.nbytes))


class Lines:
    """One file of lines, read through its index; `parse` makes a row of a line's bytes.

    No open file is held between reads, so there is nothing that threads or forks could disturb.
    Rows that lie close together are read in one go.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[bytes], Any],
        *,
        offsets: Offsets | Kept,
        origin: Path,
        columns: Sequence[str] | None,
    ) -> None:
        self.columns, self.offsets = columns, offsets
        self._path, self._parse, self._origin = path, parse, origin
        self._stat, self._rows = sidecar.stat(path), offsets.rows()

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`. A line that does not parse is a `DataError` with its number and
        byte offset."""
        sidecar.unchanged(self._path, self._stat, name=str(self._origin))
        _, offsets, sums = self.offsets.get()
        if not indices.size:
            return []
        if len(offsets) != self._rows + 1:
            raise foreign(self.offsets.path, self._origin)
        starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        if bool((starts >= ends).any()) or int(ends.max()) > self._stat.size:
            raise foreign(self.offsets.path, self._origin)
        if (longest := int((ends - starts).max())) > LINE:
            start = int(starts[np.argmax(ends - starts)])
            what = f"a line of {longest:,} bytes: rows of more than {LINE:,} are not read"
            raise self._bad(start, ValueError(what))
        return in_file_order(starts, ends, partial(self._rows_of, sums))

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the file these rows need; none where it lies on this machine."""
        _, offsets, sums = self.offsets.get()
        if not is_remote(self._path) or len(offsets) != self._rows + 1:
            return []
        starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        return ranges_of(self._path, np.maximum(starts - 1, 0), ends, BLOCK if sums.size else 1)

    def _rows_of(self, sums: Sums, starts: Ints, ends: Ints) -> Iterator[Any]:
        """Rows in the order of the file, a block of neighbours at a time."""
        apart = (starts[1:] > ends[:-1] + gap_of(self._path)) | (
            starts[1:] // _BLOCK != starts[:-1] // _BLOCK
        )
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]
        firsts, lasts, parse = starts.tolist(), ends.tolist(), self._parse
        for low, high in pairwise(cuts):
            # One byte more at the front: a row follows the end of a line, or the offsets are not of
            # this file.
            base = max(firsts[low] - 1, 0)
            block = read(self._path, base, lasts[high - 1] - base, sums, str(self._origin))
            for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                at = first - base
                if (
                    first
                    and block[at - 1] != NEWLINE
                    and (first, block[at - 1]) != (len(MARK), MARK[-1])
                ):
                    raise foreign(self.offsets.path, self._origin)
                end = block.find(b"\n", at, last - base)
                try:
                    yield parse(block[at:end] if end >= 0 else block[at : last - base])
                except (ValueError, RecursionError) as error:
                    raise self._bad(first, error) from error

    def _bad(self, start: int, error: Exception) -> DataError:
        number = 1
        for at in range(0, start, _CHUNK):
            number += read(self._path, at, min(_CHUNK, start - at), None, str(self._origin)).count(
                b"\n"
            )
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return DataError(
            f"{reason} (the line begins at byte {start})", where=f"{self._origin}, line {number}"
        )


class Array:
    """A `.json` file that is one array: its elements are the rows. It is held parsed, so this is
    for small files.

    Rows are copies: what is done to one is not seen by who reads it next.
    """

    def __init__(
        self,
        path: Path,
        values: list[Any],
        *,
        origin: Path,
        columns: Sequence[str] | None,
        data: Checked,
    ) -> None:
        self.columns = columns
        self._data, self._path, self._origin, self._stat = data, path, origin, sidecar.stat(path)
        self._values: list[Any] | None = values
        self._rows = len(values)

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_values": None}

    def read(self, indices: Ints, /) -> list[Any]:
        """The elements at `indices`."""
        sidecar.unchanged(self._path, self._stat, name=str(self._origin))
        if self._values is None:
            self._values = array_of(self._path, self._origin, self._data)
        values, columns = self._values or [], self.columns
        if columns is None:
            return [copy.deepcopy(values[index]) for index in indices.tolist()]
        out: list[Any] = []
        for index in indices.tolist():
            try:
                out.append(copy.deepcopy(chosen(values[index], columns)))
            except ValueError as error:
                raise DataError(str(error), where=f"{self._origin}, element {index}") from error
        return out


class FromJson:
    """Parse a line of JSON; with `columns`, only those keys of it.

    >>> FromJson(["b"])(b'{"a": 1, "b": 2}')
    {'b': 2}
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = columns

    def __call__(self, line: bytes) -> Any:
        text = line.decode()
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not valid JSON: {error.msg} at column {error.colno}") from error
        return row if self._columns is None else chosen(row, self._columns)


def from_text(line: bytes) -> dict[str, str]:
    """A line of text as a row.

    >>> from_text(b"one\\r")
    {'text': 'one'}
    """
    return {"text": line.removesuffix(b"\r").decode()}


def chosen(row: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Some of the keys of a row; a `ValueError` where it lacks one."""
    try:
        return {column: row[column] for column in columns}
    except KeyError as error:
        raise ValueError(
            f"no column {error} in this row, which has {', '.join(row) or 'none'}"
        ) from error
    except TypeError as error:
        raise ValueError(
            f"columns were asked for, but this row is no object: it is a {type(row).__name__}"
        ) from error


def foreign(kept: Path, origin: Path) -> DataError:
    """What is raised where offsets that were kept do not fit the file."""
    return DataError(
        f"the offsets in {kept} are not those of this file: run `penstock index --rebuild "
        f"{origin}`, or delete {kept}",
        where=str(origin),
    )


def text_columns(columns: Sequence[str] | None, origin: Path) -> Sequence[str]:
    """The one column of a text file; refused is every other."""
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
    held: Held,
    rebuild: bool = False,
    offsets: Offsets | None = None,
    data: Checked | None = None,
) -> Lines | Array:
    """The rows of one file; `path` is where it can be read as it is, `origin` the file the user
    meant.

    Without `offsets` it is read through an index of its own.
    """
    if text:
        columns = text_columns(columns, origin)
    elif path.suffix.lower() == ".json":
        data = data or Checked(path, origin, held)
        if (values := array_of(path, origin, data)) is not None:
            return Array(path, values, origin=origin, columns=columns, data=data)
    found = offsets or Kept(make_index(path, origin, cache=cache, rebuild=rebuild), origin, held)
    return Lines(
        path,
        from_text if text else FromJson(columns),
        offsets=found,
        origin=origin,
        columns=columns,
    )


def array_of(path: Path, origin: Path, data: Checked) -> list[Any] | None:
    """The elements of a .json file that is one array, `None` where it is lines; an error where it
    is neither."""
    size = sidecar.stat(path).size
    head = data.read(0, min(_BLOCK, size)).removeprefix(MARK).lstrip()
    if head[:1] == b"[" and size > ARRAY:
        raise DataError(
            f"an array of {size:,} bytes, of at most {ARRAY:,}: write a row on every line",
            where=str(origin),
        )
    whole = data.read(0, size).removeprefix(MARK) if head[:1] == b"[" else b""
    problem = ""
    if whole:
        try:
            return json.loads(whole.decode())
        except (ValueError, RecursionError) as error:
            problem = f"{error}; "
    line, end, _ = head.partition(b"\n")
    if not line or (
        not end and size > _BLOCK
    ):  # a first line as long as that is judged when it is read
        return None
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"neither one array of rows nor a row on every line: {problem}line 1: {error}",
            where=str(origin),
        ) from error
    return None
