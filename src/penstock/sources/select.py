"""Selection of rows by column values: computed once, cached as row numbers.

The selected source therefore stays indexed.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import numpy.typing as npt

from ..arguments import suggest_names
from ..arrays.columnar import import_arrow, list_content_errors
from ..engine.base.progress import Progress
from ..engine.base.random import Words, hash_names
from ..errors import ConfigError, DataError, make_memory_error
from ..stores.storage import Stat
from ..types import DataLocation, Digest, Ints, Json, LossCounts, Sizes, Source
from . import derived_files, file_versions
from .cached_integers import load_or_make_integers, read_lengths_version
from .chain import (
    DecodingCost,
    IndexedFile,
    JoinedFiles,
    OpenArguments,
    reopen_as_halves,
    reopen_with_column,
)
from .decoded_sizes import ROWS_PER_PIECE, require_room_for_rows
from .derived_files import Kind
from .digests import digest_memory
from .identity import STARTS, STARTS_OF_PART, digest_files, digest_sampled_rows
from .kinds import TypedFile
from .sizes import ColumnFile

Mask = npt.NDArray[np.bool_]
Selection = Mapping[str, Any]
"""Maps a column to a value, a list of values, or a range.

A range is a mapping with the keys `min`, `max`, `above`, `below`, `not` and `hash`.
"""

_COMPARISONS = {"min": operator.ge, "max": operator.le, "above": operator.gt, "below": operator.lt}
_ROWS_PER_READ = 1 << 16
_TERMS_PER_SCAN = 64
_VERSION = 4
CONVERSION_ERRORS = (OverflowError, UnicodeError, TypeError)
"""Raised for numbers over 64 bits and for texts that are not Unicode."""
_MAX_INTEGER = float(1 << 63)
_DECIMAL_SPELLINGS = ((r"^([^eE]*\.[0-9]*?)0+$", r"\1"), (r"\.$", ""))
_TIME_SPELLINGS = (
    (r"(:[0-9]{2})(Z?)$", r"\1.000000\2"),
    (r"(\.[0-9]{3})(Z?)$", r"\1000\2"),
    (r"(\.[0-9]{6})000(Z?)$", r"\1\2"),
)
"""Replacements in the texts of Arrow, which show as many digits as the unit of a column."""


class DescribedPart(Protocol):
    """A part of the rows by the values of columns, which `penstock.sources.partition` makes."""

    def describe(self) -> dict[str, Json]: ...


class SelectedRows:
    """Some rows of a source of files, in order: those that match `where` and are in all `parts`."""

    def __init__(
        self,
        chain: JoinedFiles,
        rows: Ints,
        where: Selection,
        parts: Sequence[DescribedPart] = (),
    ) -> None:
        self.name, self.paths = chain.name, chain.paths
        self.counts, self.types, self.columnar = chain.counts, chain.types, chain.columnar
        self.open_arguments: OpenArguments | None = None
        self.reopen: Callable[..., Source] | None = None
        self.as_columns = False
        self._digest: Digest | None = None
        self.chain, self.rows, self.where, self.parts = chain, rows, where, tuple(parts)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self.chain!r}>"

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices` of the selection."""
        return self.chain.read(self.rows[indices])

    def decoding(self) -> DecodingCost | None:
        """Return the cost of decoding a row, if the format decodes whole row groups."""
        return self.chain.decoding()

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, as columns if the format has columns."""
        return self.chain.block(self.rows[indices])

    def arrow_schema(self) -> Any | None:
        """Return the columns of the rows as a `pyarrow.Schema`; `None` if only reading tells."""
        return self.chain.arrow_schema()

    def row_files(self) -> SelectedRows | None:
        """Return the source itself if each row lies in one file, else `None`."""
        return self if self.chain.row_files() is not None else None

    column_alone, split_by_hash = reopen_with_column, reopen_as_halves

    def token_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of the tokens, if it is known without reading."""
        return self.chain.token_dtype()

    def token_range(self) -> None:
        """Return `None`: the tokens of files are unknown without reading."""

    def file_rows(self, indices: Ints, /) -> tuple[Ints, Ints]:
        """Return the number of the file of each row, and the index of the row in that file."""
        return self.chain.file_rows(self.rows[indices])

    def prefetch_capacity(self, reach: DataLocation, /) -> int:
        """Return how many rows may be prefetched; 0 if readers could not use them."""
        return self.chain.prefetch_capacity(reach)

    def prefetch(self, indices: Ints, /) -> bool:
        """Prefetch the bytes of rows that are read soon; return false if the buffer is full."""
        return self.chain.prefetch(self.rows[indices])

    def lengths(self) -> Sizes | None:
        """Return the sizes of these rows, or `None` if those of the files are unknown."""
        lengths = self.chain.lengths()
        return None if lengths is None else lengths[self.rows]

    def loss_counts(self) -> LossCounts | None:
        """Return how many tokens of each of these rows carry loss, as those of the files."""
        counts = self.chain.loss_counts()
        return None if counts is None else counts.take(self.rows)

    cached_integers, lengths_version = load_or_make_integers, read_lengths_version

    def digest(self) -> Digest:
        """Return a digest of the files and of the selected rows."""
        if self._digest is None:
            chain = self.chain
            spelled = f"{digest_memory(self.rows)}{json.dumps(self.describe(), default=str)}"
            self._digest = digest_files(
                chain.paths,
                chain.stats,
                self.read,
                len(self),
                spelled,
                chain.cache,
                chain.stat_companions(chain.paths),
                start_count=self._start_count,
            )
        return self._digest

    @property
    def _start_count(self) -> int:
        return STARTS_OF_PART if self.parts else STARTS

    def digest_of(self, rows: int, /) -> Digest:
        """Return a digest of the first rows."""
        return {"rows": digest_sampled_rows(self.read, rows, self._start_count)}

    def describe(self) -> Json:
        """Return the description of the files, the number of selected rows, and the selection."""
        description = cast("dict[str, Json]", self.chain.describe())
        selection: dict[str, Json] = {"where": cast(Json, self.where)} if self.where else {}
        selection |= {"parts": [part.describe() for part in self.parts]} if self.parts else {}
        return {**description, "of_rows": description["rows"], "rows": len(self), **selection}


def normalize_selection(where: Selection) -> dict[str, Any]:
    """Normalize a selection: each condition becomes a list of values or a range.

    >>> normalize_selection({"lang": "python", "stars": {"min": 10, "not": 11}})
    {'lang': ['python'], 'stars': {'min': 10, 'not': [11]}}
    """
    if not where:
        raise ConfigError("where is empty: name a column and what it must hold, or leave it out")
    return {column: _normalize_condition(column, condition) for column, condition in where.items()}


def _normalize_condition(column: str, condition: Any) -> Any:
    if not isinstance(condition, Mapping):
        if values := _list_values(condition):
            return values
        raise ConfigError(
            f"where: {column!r} has an empty list of values, which no row matches; name the values "
            "to select"
        )
    bounds = cast("Mapping[str, Any]", condition)
    if unknown := sorted(set(bounds) - {*_COMPARISONS, "not", "hash"}):
        raise ConfigError(
            f"where: {column!r} has {unknown}; known are {', '.join(_COMPARISONS)}, not and hash"
        )
    if not bounds:
        raise ConfigError(
            f"where: {column!r} has an empty range; give min, max, above, below, not or hash"
        )
    if "hash" in bounds:
        _compute_hash_bounds(bounds["hash"])
    if missing := [name for name, value in bounds.items() if value is None and name != "not"]:
        raise ConfigError(
            f"where: {column!r} has {missing[0]}: None, and no value compares with None; leave it "
            "out"
        )
    return {
        name: _list_values(value) if name == "not" else _to_python_scalar(value)
        for name, value in bounds.items()
    }


def _list_values(value: Any) -> list[Any]:
    if isinstance(value, Set):  # in one order in all processes, because states store the values
        values: Iterable[Any] = sorted(cast("Set[Any]", value), key=repr)
    elif hasattr(value, "to_pylist"):  # an Arrow array
        values = value.to_pylist()
    elif isinstance(value, list | tuple | range) or (
        hasattr(value, "__array__") and np.ndim(value) == 1
    ):
        values = cast("Iterable[Any]", value)
    else:
        values = [value]
    return [*map(_to_python_scalar, values)]


def _to_python_scalar(value: Any) -> Any:
    """Convert NumPy scalars to Python's, and UUIDs to texts; timedeltas stay."""
    from uuid import UUID

    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, np.timedelta64) or not isinstance(value, np.number | np.bool_):
        return cast(Any, value)
    return cast(Any, value).item()


def select(
    chain: JoinedFiles,
    files: Sequence[IndexedFile],
    paths: Sequence[Path],
    where: Selection,
    cache: str | Path | None,
) -> SelectedRows:
    """Return the rows of a source that match a selection.

    Args:
        chain: The source.
        files: Its files, with all their columns.
        paths: Paths of the files.
        where: The selection.
        cache: Cache folder.

    Raises:
        ConfigError: No row has one of the columns.
    """
    rows: list[Ints] = [np.zeros(0, np.int64)]
    conditions = normalize_selection(where)
    offset, rows_with_column = 0, np.zeros(len(conditions), np.int64)
    for path, file in zip(paths, files, strict=True):
        companions = chain.stat_companions([path])
        with name_missing_memory(path):
            counts, matches = _find_selected_rows(
                file, path, chain.format, conditions, cache, companions
            )
            rows.append(matches + offset)
        offset, rows_with_column = offset + len(file), rows_with_column + counts
    if offset and not rows_with_column.all():
        missing = sorted(conditions)[int(rows_with_column.argmin())]
        raise_missing_column("where", missing, files, paths)
    with name_missing_memory(chain.name):
        return SelectedRows(chain, np.concatenate(rows), conditions)


@contextmanager
def name_missing_memory(what: object) -> Generator[None]:
    """Convert a lack of memory to a `StorageError` that names a file."""
    try:
        yield
    except MemoryError as error:  # also those of NumPy and Arrow
        raise make_memory_error(error, what) from error


def raise_missing_column(
    call: str, column: str, files: Sequence[IndexedFile], paths: Sequence[Path]
) -> NoReturn:
    """Raise `ConfigError`: no row has the column; name those of the first row."""
    path, file = next((path, file) for path, file in zip(paths, files, strict=True) if len(file))
    (row,) = file.read(np.zeros(1, np.int64))
    columns = list(map(str, cast("dict[Any, Any]", row))) if isinstance(row, dict) else []
    remark = f"the first has {', '.join(columns[:20])}" if columns else "the first is no mapping"
    raise ConfigError(
        f"{path}: {call}: no row has {column!r}; {remark}{suggest_names(column, columns)}"
    )


def _find_selected_rows(
    file: IndexedFile,
    path: Path,
    format: str,
    where: Selection,
    cache: str | Path | None,
    companions: Sequence[Stat],
) -> tuple[Ints, Ints]:
    """Return how many rows of a file have each column (by name), and the matching rows; cached.

    The cache key contains the format, because a file of JSON lines can be read as text. It contains
    the types of the columns, because files that are read together may change them, and the versions
    of the files that describe the rows.
    """
    require_room(file)
    types = (
        {column: str(file.types.get(column)) for column in where}
        if isinstance(file, TypedFile)
        else None
    )
    parts = [_VERSION, format, where, types, *([[*companions]] if companions else [])]
    key = json.dumps(parts, sort_keys=True, default=str)
    digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    place = derived_files.cache_path(path, cache, f".{path.name}.{digest}.penstock-rows")

    def make() -> tuple[int, bytes]:
        mask, counts = np.ones(len(file), np.bool_), list[int]()
        for column in sorted(where):
            counts.append(_apply_condition(mask, file, path, column, where[column]))
        numbers = np.empty(len(counts) + np.count_nonzero(mask), "<i8")
        numbers[: len(counts)] = counts
        filled = len(counts)
        for start in range(0, len(mask), ROWS_PER_PIECE):
            rows = np.flatnonzero(mask[start : start + ROWS_PER_PIECE])
            numbers[filled : filled + len(rows)] = rows + start
            filled += len(rows)
        return filled - len(counts), numbers.tobytes()

    rows = derived_files.DerivedFile(Kind.SELECTED_ROWS, path, place, place)
    numbers = np.frombuffer(derived_files.load(rows, make), "<i8").astype(np.int64, copy=False)
    return numbers[: len(where)], numbers[len(where) :]


def _apply_condition(mask: Mask, file: IndexedFile, path: Path, column: str, condition: Any) -> int:
    """Clear the mask at rows that do not match; return how many rows have the column."""
    rows_with_column = start = 0
    with Progress(f"choose rows by {column} of {path.name}", len(file), "rows") as progress:
        pieces = ((values, count) for _, values, count in iterate_columns(file, path, [column]))
        for values, codes, count in _join_pieces(pieces):
            rows_with_column += count
            matches = _match_column(values, condition, column, path)
            matches = matches if codes is None else matches[codes]
            mask[start : start + len(matches)] &= matches
            start += len(matches)
            progress.more(len(matches))
    return rows_with_column


def _match_column(values: Any, condition: Any, column: str, path: Path) -> Mask:
    """Return the mask of matching values; raise if the condition does not fit their type."""
    try:
        return _match_values(values, condition)
    except (*list_content_errors(), *CONVERSION_ERRORS) as error:
        problem = (
            f"where: the column {column!r} holds {values.type} and cannot be compared with "
            f"{condition!r}{_suggest_literal(values.type)}"
        )
        if "hash" in condition:
            problem = (
                f"the column {column!r} holds {values.type}, and a split needs texts, "
                "numbers, times or UUIDs: split by another column, or map it to texts first"
            )
        raise ConfigError(f"{path}: {problem}") from error


def _suggest_literal(arrow_type: Any) -> str:
    """Return the end of an error: the form of values that a column can be compared with."""
    types = import_arrow("pyarrow.types")
    if types.is_timestamp(arrow_type):
        form = "'2024-02-01T00:00:00Z'" if arrow_type.tz else "'2024-02-01 00:00:00'"
        return f": write a date, or a time such as {form}"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return ": write a text, in quotes if it looks like a number, a date or yes or no"
    if types.is_boolean(arrow_type):
        return ": write true or false"
    return ": write a number" if types.is_primitive(arrow_type) else ""


def require_comparable(values: Any, condition: Any, column: str, path: Path) -> None:
    """Raise if values of a column cannot be compared with a condition.

    Args:
        values: An Arrow array; one without values stands for its type.
        condition: What `where` says of the column.
        column: Its name.
        path: The file, for the message.

    Raises:
        ConfigError: The condition does not fit the type; with the message of `open_files`.
    """
    normalized = normalize_selection({column: condition})[column]
    for joined, _, _ in _join_pieces(iter([(values, 0)])):
        _ = _match_column(joined, normalized, column, path)


def _join_pieces(
    pieces: Iterator[tuple[Any, int]],
) -> Iterator[tuple[Any, npt.NDArray[np.integer[Any]] | None, int]]:
    """Join small Arrow arrays of one type, because each scan has a fixed cost.

    Yields:
        The values; the number of the value of each row, or `None` if each row has its own; and the
        sum of the counts.
    """
    pa = import_arrow()
    joined, numbers, size, count = list[Any](), list[npt.NDArray[np.integer[Any]]](), 0, 0
    is_compact = False

    def join() -> tuple[Any, npt.NDArray[np.integer[Any]] | None, int]:
        return pa.chunked_array(joined), np.concatenate(numbers) if is_compact else None, count

    for piece, piece_count in _cut_pieces(pieces):
        values, codes = separate_repeated(piece)
        values = _spell_uuids(values) if isinstance(values.type, pa.UuidType) else values
        if joined and (size + len(piece) > _ROWS_PER_READ or values.type != joined[0].type):
            yield join()
            joined, numbers, size, count = [], [], 0, 0
        is_compact = codes is not None or (is_compact and bool(joined))
        own = np.arange(len(values)) if codes is None else codes
        numbers.append(own + sum(map(len, joined)))
        joined.append(values)
        size, count = size + len(piece), count + piece_count
    if joined:
        yield join()


def _cut_pieces(pieces: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Cut large arrays, such as nulls, which take memory only once they are compared."""
    for piece, count in pieces:
        for start in range(0, max(len(piece), 1), ROWS_PER_PIECE):
            yield piece.slice(start, ROWS_PER_PIECE), count if start == 0 else 0


def separate_repeated(
    values: Any,
) -> tuple[Any, npt.NDArray[np.integer[Any]] | None]:
    """Return the entries of a dictionary that rows use, and the number of the entry of each row.

    Decoding a dictionary repeats its texts, which may take far more memory than the file. Values of
    other types are returned unchanged, with `None`.

    >>> import pyarrow as pa
    >>> separate_repeated(pa.array(["b", None, "b"]).dictionary_encode())[0].to_pylist()
    ['b', None]
    """
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    if not pa.types.is_dictionary(values.type):
        return values, None
    entries = pc.dictionary_encode(values.indices, null_encoding="encode")
    return values.dictionary.take(entries.dictionary), entries.indices.to_numpy()


def require_room(file: IndexedFile) -> None:
    """Raise `DataError` if a file of columns claims far more rows than its bytes have room for."""
    if isinstance(file, ColumnFile):
        require_room_for_rows(len(file), file.path, file_versions.stat_file(file.path).size)


def iterate_columns(
    file: IndexedFile, path: Path, columns: Sequence[str]
) -> Iterator[tuple[int, Any, int]]:
    """Yield columns in pieces: number of the column, an Arrow array, and rows that have the column.

    Each column comes in the order of its rows. A file of rows is read once for all of them; a row
    of lines without the column yields a null.
    """
    if isinstance(file, ColumnFile):
        for number, column in enumerate(columns):
            yield from ((number, piece, len(piece)) for piece in file.column(column))
        return
    for start in range(0, len(file), _ROWS_PER_READ):
        rows: list[Any] = file.read(
            np.arange(start, min(start + _ROWS_PER_READ, len(file)), dtype=np.int64)
        )
        mappings = [cast("dict[str, Any]", row) if isinstance(row, dict) else {} for row in rows]
        where = f"{path}, rows {start} to {start + len(rows) - 1}"
        for number, column in enumerate(columns):
            present = sum(column in row for row in mappings)
            yield number, build_column(mappings, column, where), present


def build_column(rows: Sequence[Mapping[str, Any]], column: str, where: str) -> Any:
    """Return a column of rows of lines as an Arrow array; a row without it gives a null.

    Args:
        rows: The rows.
        column: The name.
        where: The file and the numbers of the rows, for the message.

    Raises:
        DataError: The values have several types.
    """
    pa = import_arrow()
    try:
        return pa.array([row.get(column) for row in rows])
    except (*list_content_errors(), *CONVERSION_ERRORS) as error:
        problem = (
            "of several types"
            if isinstance(error, pa.ArrowException)
            else "that a column cannot store"
        )
        raise DataError(
            f"the column {column!r} holds values {problem}: {error}", where=where
        ) from error


def _match_values(values: Any, condition: Any) -> Mask:
    """Return the mask of the values of a chunked array that match a normalized condition."""
    if isinstance(condition, list):
        return ~_match_values(values, {"not": condition})
    pa, acero = import_arrow(), import_arrow("pyarrow.acero")
    columns = {"hash": hash_values(values)} if "hash" in condition else {}
    if values.type == pa.float16():  # which Arrow does not compare
        values = values.cast(pa.float64())
    columns["value"] = values
    table = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.table(columns)))
    terms, mask = _build_expressions(condition, values.type), np.ones(len(values), np.bool_)
    # A projection, because a filter copies the matching values.
    for start in range(0, len(terms), _TERMS_PER_SCAN):
        some = terms[start : start + _TERMS_PER_SCAN]
        projection = acero.ProjectNodeOptions(some, list(map(str, range(len(some)))))
        scan = acero.Declaration("project", projection, [table])
        for matches in scan.to_table(use_threads=False).columns:
            mask &= matches.fill_null(False).to_numpy()
    return mask


def _build_expressions(condition: Mapping[str, Any], arrow_type: Any) -> list[Any]:
    """Return Arrow expressions over `value` and `hash` that all hold for the matching values."""
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    value, hash_value, terms = pc.field("value"), pc.field("hash"), list[Any]()

    def compare(comparison: Callable[[Any, Any], Any], literal: Any) -> Any:
        if pa.types.is_integer(arrow_type) and pa.types.is_floating(literal.type):
            # Arrow narrows literals, and large integers have no float32.
            return comparison(value.cast(pa.float64()), literal)
        return comparison(value, literal)

    for name, bound in condition.items():
        if name == "hash":
            low, high = _compute_hash_bounds(bound)
            terms.append(hash_value >= pa.scalar(low, pa.uint64()))
            terms.append(hash_value <= pa.scalar(high - 1, pa.uint64()))
        elif name != "not":
            terms.append(compare(_COMPARISONS[name], _to_literal(bound, arrow_type)))
        else:
            terms += [value.is_valid()] if None in bound else []
            literals = [_to_literal(option, arrow_type) for option in bound if option is not None]
            is_float = pa.types.is_floating(arrow_type)  # isin separates 0 and -0, and matches NaN
            same_type = [each for each in literals if each.type == arrow_type and not is_float]
            terms += [~value.isin(pa.array(same_type, arrow_type))] if same_type else []
            terms += [
                pc.coalesce(compare(operator.ne, literal), pc.scalar(True))
                for literal in literals
                if literal.type != arrow_type or is_float
            ]
    return terms


_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _to_literal(value: Any, arrow_type: Any) -> Any:
    """Convert a value of a condition to an Arrow scalar that compares exactly with a column."""
    pa = import_arrow()
    if hasattr(value, "nanosecond"):  # pandas times, whose nanoseconds pa.scalar would drop
        zone = None if value.tz is None else getattr(arrow_type, "tz", None) or "UTC"
        literal = pa.scalar(value.value, pa.timestamp("ns", zone))
    elif hasattr(value, "nanoseconds"):
        literal = pa.scalar(value.value, pa.duration("ns"))
    elif isinstance(value, str):  # users write dates and times as texts
        if arrow_type in (pa.string(), pa.large_string(), pa.null()):
            return pa.scalar(value)
        if getattr(arrow_type, "tz", None) and _DATE.fullmatch(value):
            return pa.scalar(date.fromisoformat(value))  # midnight UTC, as a date object
        return pa.scalar(value).cast(arrow_type)
    elif type(value) is int and pa.types.is_integer(arrow_type):
        with suppress(pa.ArrowInvalid, OverflowError):
            return pa.scalar(value, arrow_type)  # Arrow compares uint64 and int64 as int64
        return pa.scalar(value)
    elif type(value) is int and pa.types.is_decimal(arrow_type):
        return pa.scalar(Decimal(value))  # as an integer, it needs the precision of an int64
    else:
        literal = pa.scalar(value)
        if getattr(literal.type, "tz", None) and getattr(arrow_type, "tz", None):
            # Arrow compares times of two zones in one unit only.
            literal = literal.cast(pa.timestamp(literal.type.unit, arrow_type.tz))
        elif not isinstance(value, np.datetime64 | np.timedelta64):
            return literal
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return literal.cast(arrow_type)  # a column of seconds may lie beyond all nanoseconds
    return literal


def _compute_hash_bounds(bounds: Any) -> tuple[int, int]:
    """Return the range of 64-bit hashes for two fractions."""
    try:
        low, high = (Fraction(repr(float(bound))) for bound in bounds)
    except (TypeError, ValueError, OverflowError):
        low = high = Fraction(0)
    if not 0 <= low < high <= 1:
        raise ConfigError(
            f"where: hash is {bounds!r}; two ascending numbers from 0 to 1, such as [0, 0.01]"
        )
    return int(low * (1 << 64)), int(high * (1 << 64))


def scale_hash(bound: float) -> int:
    """Return the 64-bit hash at a number from 0 to 1."""
    return int(Fraction(repr(float(bound))) * (1 << 64))


def spell_values(values: Any) -> Any:
    """Return the text of each value of an Arrow array: one text for equal values of all types.

    Whole floats are spelled as integers, decimals without trailing zeros, and times in
    microseconds and in UTC.

    Raises:
        Exception: one of `list_arrow_errors()`, if values have no text.

    >>> import pyarrow as pa
    >>> spell_values(pa.array([10.0**12, 0.5, None])).to_pylist()
    ['1000000000000', '0.5', None]
    """
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    arrow_type, large = values.type, pa.large_string()
    if pa.types.is_dictionary(arrow_type):
        values, arrow_type = pc.cast(values, arrow_type.value_type), arrow_type.value_type
    if isinstance(arrow_type, pa.UuidType):
        return _spell_uuids(values)
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        values = pc.cast(values, pa.timestamp(arrow_type.unit, "UTC"))
    texts = pc.cast(values, large)
    if pa.types.is_floating(arrow_type):
        floats = pc.cast(values, pa.float64())
        is_whole = pc.and_(
            pc.equal(floats, pc.trunc(floats)), pc.less(pc.abs(floats), _MAX_INTEGER)
        )
        whole = pc.cast(pc.if_else(is_whole, floats, 0.0), pa.int64())
        return pc.if_else(is_whole, pc.cast(whole, large), texts)
    replacements = ()
    if pa.types.is_decimal(arrow_type):
        replacements = _DECIMAL_SPELLINGS
    elif pa.types.is_timestamp(arrow_type) or pa.types.is_time(arrow_type):
        replacements = _TIME_SPELLINGS
    for pattern, replacement in replacements:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def _spell_uuids(values: Any) -> Any:
    """Return the texts of UUIDs, because Arrow cannot compare or cast them."""
    texts = [None if value is None else str(value) for value in values.to_pylist()]
    return import_arrow().array(texts, import_arrow().large_string())


def hash_values(values: Any) -> Words:
    """Hash the text of each value of a chunked array; a null hashes as the empty text."""
    texts = import_arrow("pyarrow.compute").fill_null(spell_values(values), "")
    # Hash each distinct value once.
    encoded = texts.combine_chunks().dictionary_encode()
    return hash_names(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
