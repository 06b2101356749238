"""CSV files, turned once into Arrow tables in the cache: they cannot be read at random as they are.

The types of the columns are those that all values fit, of all files that are read together.
"""

from __future__ import annotations

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

from ..engine.base.limits import CSV_COLUMNS, CSV_ROW
from ..engine.base.progress import Progress
from ..errors import DataError
from . import sidecar
from .cached_facts import cached_fact
from .convert import sane
from .rows import arrow, mapped, opened

_TAIL = 64 << 10
_BLOCK = 1 << 20  # bytes that are parsed together
_WIDER = {"int64": "double", "date32[day]": "timestamp[s]", "timestamp[s]": "timestamp[ns]"}
_EXACT = 1 << 53  # up to here every whole number is a double
_WHOLE = re.compile("[+-]?[0-9]{16,300}")  # digits of numbers that doubles may round
_BAD = re.compile(
    r"In CSV column #(\d+): .*?conversion error to (.+?): invalid value '(.*)'", re.DOTALL
)

Types = Mapping[str, str]
"""The type of each column, as Arrow spells it."""


def table(
    origin: Path, *, cache: str | Path | None, types: Types | None = None, rebuild: bool = False
) -> Path:
    """The Arrow file made from a CSV file (packed or not) with a header row. Its columns have the
    types that all their values fit, or those given where these are others.
    """
    pa = arrow()

    def write(file: BinaryIO) -> None:
        try:
            _convert(origin, file, dict(types or {}))
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DataError(
                f"not a CSV file that can be read: {error}", where=str(origin)
            ) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise DataError(f"cannot be read: {error}", where=str(origin)) from error

    name = f"{origin.name}.arrow"
    if types is not None:
        own = table(origin, cache=cache, rebuild=rebuild)
        if (found := _types_of(own)) == {
            column: types.get(column, kind) for column, kind in found.items()
        }:
            return own
        digest = hashlib.blake2b(json.dumps([*types.items()]).encode(), digest_size=6)
        name = f"{origin.name}.{digest.hexdigest()}.arrow"
    return sidecar.ensure_copy(
        sidecar.cache_path(origin, cache, name), sidecar.TABLE, origin, write, rebuild=rebuild
    )


def settled(paths: Sequence[Path], cache: str | Path | None, rebuild: bool) -> Types:
    """The types that the values of all these files fit."""

    def made() -> Types:
        found: dict[str, str] = {}
        with Progress("settle the types of columns", len(paths), "files") as progress:
            for path in progress.each(paths):
                for column, kind in _types_of(table(path, cache=cache, rebuild=rebuild)).items():
                    found[column] = _both(found.get(column, "null"), kind)
        doubles = {column for column, kind in found.items() if kind == "double"}
        rounded = [_whole(table(path, cache=cache), doubles) for path in paths] if doubles else []
        return found | dict.fromkeys(set[str]().union(*rounded), "string")

    return cached_fact(
        paths, [sidecar.stat(path) for path in paths], "types of CSV columns", made, cache
    )


def _both(one: str, other: str) -> str:
    """The narrowest type for the values of two.

    >>> _both("null", "int64"), _both("double", "int64"), _both("int64", "bool")
    ('int64', 'double', 'string')
    """
    if one == other or "null" in (one, other):
        return other if one == "null" else one
    wider = [one]
    while wider[-1] in _WIDER:
        wider.append(_WIDER[wider[-1]])
    while other not in wider:
        if other not in _WIDER:
            return "string"
        other = _WIDER[other]
    return other


def _types_of(table: Path) -> dict[str, str]:
    with sidecar.storage(table):
        schema = arrow("pyarrow.ipc").open_file(mapped(table)).schema
    return {field.name: str(field.type) for field in schema}


def _whole(table: Path, doubles: set[str]) -> set[str]:
    """Which of these columns hold whole numbers in this file that a double would round."""
    with sidecar.storage(table):
        reader = arrow("pyarrow.ipc").open_file(mapped(table))
    names = [
        field.name
        for field in reader.schema
        if field.name in doubles and str(field.type) == "int64"
    ]
    found = set[str]()
    for number in range(reader.num_record_batches if names else 0):
        batch = reader.get_batch(number)
        for name in names:
            values: npt.NDArray[np.int64] = batch.column(name).drop_null().to_numpy()
            large = values[(values > _EXACT) | (values < -_EXACT)].tolist()
            found |= {name} if any(int(float(value)) != value for value in large) else set()
    return found


def _convert(origin: Path, file: BinaryIO, types: dict[str, str]) -> None:
    """Write the table; a value that does not fit the type that the first block suggested widens it,
    from the start, and whole numbers that would be rounded stay texts.
    """
    pa, block = arrow(), _BLOCK
    for _ in range(1000):
        file.seek(0)
        file.truncate()
        try:
            large = _written(origin, file, types, block)
            rounded = _rounded(origin, large, block) if large else ()
            if not rounded:
                return
            types.update(dict.fromkeys(rounded, "string"))
        except pa.ArrowInvalid as error:
            if (
                "straddling" in str(error) and block < CSV_ROW
            ):  # a row that is longer than what is parsed together
                block *= 8
                continue
            found = _BAD.search(str(error))
            kind = found and (
                _kind(found[3]) if found[2] == "null" else _WIDER.get(found[2], "string")
            )
            if found and found[2] == "int64" and _WHOLE.fullmatch(found[3]):
                kind = "string"  # more than 64 bits
            if found is None or found[2] == "string":
                raise
            types[_header(origin, block)[int(found[1])]] = kind or "string"
    raise DataError("its columns do not settle on types", where=str(origin))


def _written(origin: Path, file: BinaryIO, types: Types, block: int) -> set[str]:
    """Write the table; which columns of doubles hold whole numbers that may have been rounded."""
    csv, ipc = arrow("pyarrow.csv"), arrow("pyarrow.ipc")
    convert = csv.ConvertOptions(column_types={name: _type(kind) for name, kind in types.items()})
    size = sidecar.stat(origin).size
    with _Stream(origin) as stream, _reader(stream, block, convert) as reader:
        last, large = None, set[str]()
        kinds = {field.name: str(field.type) for field in reader.schema}
        doubles = [name for name, kind in kinds.items() if kind == "double"]
        with (
            ipc.new_file(file, _sound(reader.schema, origin)) as writer,
            Progress(f"convert {origin.name}", size, "bytes") as progress,
        ):
            for batch in reader:
                writer.write_batch(batch)
                large |= {
                    name
                    for name in doubles
                    if _any_large(batch.column(name).to_numpy(zero_copy_only=False))
                }
                sane(file.tell(), size, origin)
                progress.tell(stream.raw.tell())
                last = batch.column(batch.num_columns - 1)[-1].as_py() if batch.num_rows else last
        stream.closed_quotes(last)
    return large


def _any_large(values: npt.NDArray[np.float64]) -> bool:
    whole = np.isfinite(values) & (np.abs(values) >= _EXACT) & (np.floor(values) == values)
    return bool(whole.any())


def _rounded(origin: Path, names: set[str], block: int) -> set[str]:
    """Which of these columns hold numbers written as digits alone that a double would round:
    numbers of things, mostly, of which different ones would become equal.
    """
    pc, csv = arrow("pyarrow.compute"), arrow("pyarrow.csv")
    texts = csv.ConvertOptions(
        include_columns=sorted(names), column_types=dict.fromkeys(names, _type("string"))
    )
    found = set[str]()
    with _Stream(origin) as stream, _reader(stream, block, texts) as reader:
        for batch in reader:
            for name in names - found:
                column = batch.column(name)
                digits = column.filter(pc.match_substring_regex(column, f"^{_WHOLE.pattern}$"))
                if any(int(float(text)) != int(text) for text in digits.to_pylist()):
                    found.add(name)
    return found


class _Stream(io.RawIOBase):
    """The text of a CSV file, unpacked as it is read; its end is cached_fact. A header that no
    newline ends gets one: Arrow takes it for no file at all.
    """

    def __init__(self, origin: Path) -> None:
        pa = arrow()
        packed = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}.get(origin.suffix.lower())
        self.raw = opened(origin)
        self._text = pa.CompressedInputStream(self.raw, packed) if packed else self.raw
        self._origin, self._tail, self._quotes, self._lines, self._columns = (
            origin,
            b"",
            0,
            False,
            1,
        )

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        found: bytes = self._text.read(None if size < 0 else size)
        if (
            not self._lines
        ):  # Arrow takes some KiB for every column before it tells how many there are
            self._columns += re.split(rb"[\r\n]", found, maxsplit=1)[0].count(b",")
            if self._columns > CSV_COLUMNS:
                raise DataError(
                    f"its header has more than {CSV_COLUMNS:,} columns", where=str(self._origin)
                )
        self._lines = self._lines or b"\n" in found or b"\r" in found
        if not self._lines and 0 < len(found) < size:
            found += self._text.read(size - len(found)) or b"\n"
        self._tail = (self._tail + found)[-_TAIL:]
        self._quotes += found.count(b'"')
        return found

    def close(self) -> None:
        self.raw.close()
        super().close()

    def closed_quotes(self, last: Any) -> None:
        """Refuse a file whose last value begins with a quote that nothing ends: it has swallowed
        all rows after it."""
        odd, text = (
            self._quotes % 2 == 1,
            str(last),
        )  # even they are where a text that is not quoted has one, too
        spelled = b'"' + text.replace('"', '""').encode()
        plain = len(spelled) <= _TAIL and text.strip('"') != ""
        opened = (
            self._tail.endswith(spelled[-_TAIL:])
            if last not in (None, "") and (odd or plain)
            else False
        )
        if opened or (odd and re.search(rb'(^|[,\r\n])"\Z', self._tail)):
            raise DataError(
                "a quote is not closed: the last value would hold the rest of the file",
                where=str(self._origin),
            )


def _reader(stream: _Stream, block: int, convert: Any) -> Any:
    csv = arrow("pyarrow.csv")
    parse, read = csv.ParseOptions(newlines_in_values=True), csv.ReadOptions(block_size=block)
    return csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)


def _header(origin: Path, block: int) -> list[str]:
    text = arrow("pyarrow.csv").ConvertOptions(strings_can_be_null=True)
    with _Stream(origin) as stream, _reader(stream, block, text) as reader:
        return reader.schema.names


def _kind(value: str) -> str:
    """The type of a single value."""
    text = "x\n" + '"' + value.replace('"', '""') + '"\n'
    return str(arrow("pyarrow.csv").read_csv(io.BytesIO(text.encode())).schema.types[0])


def _type(kind: str) -> Any:
    pa = arrow()
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
    return {str(each): each for each in known}.get(kind, pa.string())


def _sound(schema: Any, origin: Path) -> Any:
    twice = {name for name, count in Counter[str](schema.names).items() if count > 1}
    if twice:
        raise DataError(f"the header names {', '.join(sorted(twice))} twice", where=str(origin))
    for field in schema:
        if str(field.type) == "binary":
            raise DataError(
                f"the column {field.name!r} holds bytes that are not UTF-8", where=str(origin)
            )
    return schema
