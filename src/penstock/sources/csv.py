"""CSV files, converted once to Arrow tables in the cache, because CSV has no random access.

A column has the narrowest type that fits its values in all files that are read together.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow, list_content_errors
from ..engine.base.progress import Progress
from ..errors import DataError, convert_storage_errors
from ..stores.limits import CSV_COLUMNS, CSV_ROW
from . import derived_files, file_versions
from .convert import require_sane_size
from .derived_files import Kind
from .rows import map_file, open_for_arrow

_TAIL_BYTES = 64 << 10
_PARSE_BYTES = 1 << 20  # bytes that are parsed together
_WIDER_TYPES = {"int64": "double", "date32[day]": "timestamp[s]", "timestamp[s]": "timestamp[ns]"}
_MAX_EXACT_INTEGER = 1 << 53  # doubles represent all integers up to here
_LONG_INTEGER = re.compile("[ \t]*[+-]?[0-9]{16,300}[ \t]*")  # doubles may round these
_NEGATIVE_HEXADECIMAL = re.compile("[ \t]*0[xX][89a-fA-F][0-9a-fA-F]{15}[ \t]*")
_CONVERSION_ERROR = re.compile(
    r"In CSV column #(\d+): .*?conversion error to (.+?): invalid value '(.*)'", re.DOTALL
)

_NOT_UTF8 = (
    "contains bytes that are not UTF-8: convert the file, or write "
    "ps.read(pandas.read_csv(path, encoding='latin-1')) with its encoding"
)

ColumnTypeNames = Mapping[str, str]
"""The Arrow type of each column, as text."""


def convert_csv(
    origin: Path,
    *,
    cache: str | Path | None,
    types: ColumnTypeNames | None = None,
    rebuild: bool = False,
) -> Path:
    """Return the Arrow file made from a CSV file, packed or not, with a header row.

    Args:
        origin: The CSV file.
        cache: Cache folder.
        types: Column types; by default the narrowest that fit.
        rebuild: Convert the file again.

    Raises:
        DataError: The file is no readable CSV file.
    """

    def write(file: BinaryIO) -> None:
        try:
            _convert_until_types_fit(origin, file, dict(types or {}))
        except (*list_content_errors(), UnicodeDecodeError) as error:
            _require_known_form(origin)
            raise DataError(
                f"the file is no readable CSV file: {error}", where=str(origin)
            ) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise DataError(f"the file cannot be read: {error}", where=str(origin)) from error

    name = f"{origin.name}.arrow"
    if types is not None:
        own_table = convert_csv(origin, cache=cache, rebuild=rebuild)
        if (own_types := _read_column_types(own_table)) == {
            column: types.get(column, kind) for column, kind in own_types.items()
        }:
            return own_table
        digest = hashlib.blake2b(json.dumps([*types.items()]).encode(), digest_size=6)
        name = f"{origin.name}.{digest.hexdigest()}.arrow"
    table = derived_files.cache_path(origin, cache, name)
    return derived_files.ensure_copy(table, Kind.CSV_TABLE, origin, write, rebuild=rebuild)


def merge_column_types(
    paths: Sequence[Path], cache: str | Path | None, rebuild: bool
) -> ColumnTypeNames:
    """Return the column types that fit the values of all these files."""

    def compute() -> ColumnTypeNames:
        types: dict[str, str] = {}
        with Progress("settle the types of columns", len(paths), "files") as progress:
            for path in progress.each(paths):
                for column, kind in _read_column_types(
                    convert_csv(path, cache=cache, rebuild=rebuild)
                ).items():
                    types[column] = _find_common_type(types.get(column, "null"), kind)
        doubles = {column for column, kind in types.items() if kind == "double"}
        rounded = (
            [_find_rounded_columns(convert_csv(path, cache=cache), doubles) for path in paths]
            if doubles
            else []
        )
        return types | dict.fromkeys(set[str]().union(*rounded), "string")

    return derived_files.load_fact(
        paths,
        [file_versions.stat_file(path) for path in paths],
        "types of CSV columns",
        compute,
        cache,
    )


def _find_common_type(left: str, right: str) -> str:
    """Return the narrowest type for the values of two types.

    >>> _find_common_type("null", "int64"), _find_common_type("double", "int64"), _find_common_type("int64", "bool")
    ('int64', 'double', 'string')
    """
    if left == right or "null" in (left, right):
        return right if left == "null" else left
    wider = [left]
    while wider[-1] in _WIDER_TYPES:
        wider.append(_WIDER_TYPES[wider[-1]])
    while right not in wider:
        if right not in _WIDER_TYPES:
            return "string"
        right = _WIDER_TYPES[right]
    return right


def _read_column_types(table: Path) -> dict[str, str]:
    with convert_storage_errors(table):
        schema = import_arrow("pyarrow.ipc").open_file(map_file(table)).schema
    return {field.name: str(field.type) for field in schema}


def _find_rounded_columns(table: Path, doubles: set[str]) -> set[str]:
    """Return the columns with integers in this file that a double would round."""
    with convert_storage_errors(table):
        reader = import_arrow("pyarrow.ipc").open_file(map_file(table))
    names = [
        field.name
        for field in reader.schema
        if field.name in doubles and str(field.type) == "int64"
    ]
    rounded = set[str]()
    for number in range(reader.num_record_batches if names else 0):
        batch = reader.get_batch(number)
        for name in names:
            values: npt.NDArray[np.int64] = batch.column(name).drop_null().to_numpy()
            large = values[(values > _MAX_EXACT_INTEGER) | (values < -_MAX_EXACT_INTEGER)].tolist()
            rounded |= {name} if any(int(float(value)) != value for value in large) else set()
    return rounded


def _convert_until_types_fit(origin: Path, file: BinaryIO, types: dict[str, str]) -> None:
    """Write the table with types that fit all values, restarting when a value does not fit.

    Integers that a double would round, and hexadecimal integers that Arrow reads as negative, stay
    texts.
    """
    pa, block = import_arrow(), _PARSE_BYTES
    for _ in range(1000):
        file.seek(0)
        file.truncate()
        try:
            doubtful = _write_table(origin, file, types, block)
            changed = _find_changed_texts(origin, doubtful, block) if doubtful else ()
            if not changed:
                return
            types.update(dict.fromkeys(changed, "string"))
        except pa.ArrowInvalid as error:
            if "straddling" in str(error):  # a row is longer than a block
                if block >= CSV_ROW:
                    raise _make_long_row_error(origin) from error
                block = min(8 * block, CSV_ROW)
                continue
            match = _CONVERSION_ERROR.search(str(error))
            wider = match and (
                _infer_value_type(match[3])
                if match[2] == "null"
                else _WIDER_TYPES.get(match[2], "string")
            )
            if match and match[2] == "int64" and _LONG_INTEGER.fullmatch(match[3]):
                wider = "string"  # more than 64 bits
            if match is None or match[2] == "string":
                raise
            types[_read_header(origin, block)[int(match[1])]] = wider or "string"
    raise DataError("no column types fit its values: convert it to Parquet", where=str(origin))


def _write_table(origin: Path, file: BinaryIO, types: ColumnTypeNames, block: int) -> set[str]:
    """Write the table; return the columns with integers that Arrow may have changed."""
    csv, ipc = import_arrow("pyarrow.csv"), import_arrow("pyarrow.ipc")
    convert = csv.ConvertOptions(
        column_types={name: _parse_arrow_type(type_name) for name, type_name in types.items()}
    )
    size = file_versions.stat_file(origin).size
    with _CsvStream(origin) as stream, _open_csv_reader(stream, block, convert) as reader:
        last, large, negative = None, set[str](), set[str]()
        _require_commas(reader.schema.names, origin)
        types_read = {field.name: str(field.type) for field in reader.schema}
        doubles = [name for name, type_name in types_read.items() if type_name == "double"]
        integers = [name for name, type_name in types_read.items() if type_name == "int64"]
        with (
            ipc.new_file(file, _require_sound(reader.schema, origin)) as writer,
            Progress(f"convert {origin.name}", size, "bytes") as progress,
        ):
            for batch in reader:
                if batch.nbytes > CSV_ROW:
                    _require_short_rows(batch, origin)
                writer.write_batch(batch)
                large |= {
                    name
                    for name in doubles
                    if _has_large_integer(batch.column(name).to_numpy(zero_copy_only=False))
                }
                negative |= {name for name in integers if _has_negative(batch.column(name))}
                require_sane_size(file.tell(), size, origin)
                progress.tell(stream.raw.tell())
                last = batch.column(batch.num_columns - 1)[-1].as_py() if batch.num_rows else last
        stream.closed_quotes(last)
    return large | negative if stream.has_hexadecimals else large


def _require_short_rows(batch: Any, origin: Path) -> None:
    """Raise `DataError` if the texts of a row exceed `CSV_ROW`; Arrow reads rows of up to twice it."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if str(column.type) == "string":
            lengths = import_arrow("pyarrow.compute").binary_length(column)
            sizes += lengths.fill_null(0).to_numpy()
    if sizes.max(initial=0) > CSV_ROW:
        raise _make_long_row_error(origin)


def _make_long_row_error(origin: Path) -> DataError:
    return DataError(
        f"a row takes more than {CSV_ROW >> 20} MiB: close its quotes if one is missing, split the "
        "row, or convert the file to Parquet",
        where=str(origin),
    )


def _require_known_form(origin: Path) -> None:
    """Raise `DataError` for a file that is no CSV for a known reason: its encoding or separator."""
    try:
        with _CsvStream(origin) as stream:
            header = re.split(rb"[\r\n]", stream.read(_PARSE_BYTES), maxsplit=1)[0]
    except (*list_content_errors(), OSError):
        return
    if header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            "the file is UTF-16, not UTF-8: write ps.read(pandas.read_csv(path, encoding='utf-16'))",
            where=str(origin),
        )
    try:
        text = header.decode()
    except UnicodeDecodeError:
        raise DataError(f"its header {_NOT_UTF8}", where=str(origin)) from None
    _require_commas(text.removeprefix("\ufeff").split(","), origin)


def _require_commas(names: Sequence[str], origin: Path) -> None:
    """Raise `DataError` for a header whose only column holds tabs or semicolons.

    Spreadsheets and speech corpora separate values by these. All values of a row would be one text.
    """
    separator = (
        next((mark for mark in "\t;" if mark in names[0]), None) if len(names) == 1 else None
    )
    if separator:
        raise DataError(
            f"the header {names[0][:80]!r} has no comma, so its values seem to be separated by "
            f"{separator!r}: write ps.read(pandas.read_csv(path, sep={separator!r})), or read its "
            "lines with format='text'",
            where=str(origin),
        )


def _has_large_integer(values: npt.NDArray[np.float64]) -> bool:
    is_large_integer = (
        np.isfinite(values) & (np.abs(values) >= _MAX_EXACT_INTEGER) & (np.floor(values) == values)
    )
    return bool(is_large_integer.any())


def _has_negative(integers: Any) -> bool:
    return bool((integers.drop_null().to_numpy() < 0).any())


def _find_changed_texts(origin: Path, names: set[str], block: int) -> set[str]:
    """Return the columns with integers that a double would round, or that overflow.

    They are usually identifiers, and rounding would make different ones equal. Arrow reads
    hexadecimal integers of 64 bits as signed ones.
    """
    pc, csv = import_arrow("pyarrow.compute"), import_arrow("pyarrow.csv")
    texts = csv.ConvertOptions(
        include_columns=sorted(names),
        column_types=dict.fromkeys(names, _parse_arrow_type("string")),
    )
    changed = set[str]()
    with _CsvStream(origin) as stream, _open_csv_reader(stream, block, texts) as reader:
        for batch in reader:
            for name in names - changed:
                column = batch.column(name)
                digits = column.filter(
                    pc.match_substring_regex(column, f"^{_LONG_INTEGER.pattern}$")
                )
                hexadecimals = pc.match_substring_regex(
                    column, f"^{_NEGATIVE_HEXADECIMAL.pattern}$"
                )
                if pc.any(hexadecimals).as_py() or any(
                    int(float(text)) != int(text) for text in digits.to_pylist()
                ):
                    changed.add(name)
    return changed


class _CsvStream(io.RawIOBase):
    """The text of a CSV file, unpacked while it is read; it remembers its end.

    It adds a newline to a header without one, because Arrow rejects such a file.
    """

    def __init__(self, origin: Path) -> None:
        pa = import_arrow()
        compression = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}.get(origin.suffix.lower())
        self.raw = open_for_arrow(origin)
        self._text = pa.CompressedInputStream(self.raw, compression) if compression else self.raw
        self._origin, self._tail = origin, b""
        self._quotes, self._lines, self._columns = 0, False, 1
        self.has_hexadecimals = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._text.read(None if size < 0 else size)
        if not self._lines:  # Arrow allocates some KiB per column before it reports their number
            self._columns += re.split(rb"[\r\n]", data, maxsplit=1)[0].count(b",")
            if self._columns > CSV_COLUMNS:
                raise DataError(
                    f"its header has more than {CSV_COLUMNS:,} columns: convert it to Parquet",
                    where=str(self._origin),
                )
        self._lines = self._lines or b"\n" in data or b"\r" in data
        if not self._lines and 0 < len(data) < size:
            data += self._text.read(size - len(data)) or b"\n"
        self.has_hexadecimals |= b"0x" in (self._tail[-1:] + data).lower()
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        self._quotes += data.count(b'"')
        return data

    def close(self) -> None:
        self.raw.close()
        super().close()

    def closed_quotes(self, last: Any) -> None:
        """Raise if the last value begins with an unclosed quote.

        Such a value contains all following rows.
        """
        # An unquoted text with a quote may make an odd number even.
        is_odd, text = self._quotes % 2 == 1, str(last)
        quoted = b'"' + text.replace('"', '""').encode()
        is_plain = len(quoted) <= _TAIL_BYTES and text.strip('"') != ""
        is_open = (
            self._tail.endswith(quoted[-_TAIL_BYTES:])
            if last not in (None, "") and (is_odd or is_plain)
            else False
        )
        if is_open or (is_odd and re.search(rb'(^|[,\r\n])"\Z', self._tail)):
            raise DataError(
                "a quote is not closed, so that the last value contains the rest of the file: "
                "close it",
                where=str(self._origin),
            )


def _open_csv_reader(stream: _CsvStream, block: int, convert: Any) -> Any:
    csv = import_arrow("pyarrow.csv")
    parse, read = csv.ParseOptions(newlines_in_values=True), csv.ReadOptions(block_size=block)
    return csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)


def _read_header(origin: Path, block: int) -> list[str]:
    text = import_arrow("pyarrow.csv").ConvertOptions(strings_can_be_null=True)
    with _CsvStream(origin) as stream, _open_csv_reader(stream, block, text) as reader:
        return reader.schema.names


def _infer_value_type(value: str) -> str:
    """Return the type of a single value."""
    text = "x\n" + '"' + value.replace('"', '""') + '"\n'
    return str(import_arrow("pyarrow.csv").read_csv(io.BytesIO(text.encode())).schema.types[0])


def _parse_arrow_type(kind: str) -> Any:
    pa = import_arrow()
    known = [
        pa.null(),
        pa.int64(),
        pa.bool_(),
        pa.float64(),
        pa.date32(),
        pa.time32("s"),
        pa.string(),
    ]
    known += [
        pa.timestamp("s"),
        pa.timestamp("ns"),
        pa.timestamp("s", "UTC"),
        pa.timestamp("ns", "UTC"),
    ]
    return {str(arrow_type): arrow_type for arrow_type in known}.get(kind, pa.string())


def _require_sound(schema: Any, origin: Path) -> Any:
    duplicates = {name for name, count in Counter[str](schema.names).items() if count > 1}
    if duplicates:
        raise DataError(
            f"the header names {', '.join(sorted(duplicates))} twice: rename one column, "
            "or write ps.read(pandas.read_csv(path)), which numbers them",
            where=str(origin),
        )
    for field in schema:
        if str(field.type) == "binary":
            raise DataError(
                f"the column {field.name!r} {_NOT_UTF8}",
                where=str(origin),
            )
    return schema
