"""Bounds on the memory that decoding a row group of Parquet takes, checked before it is decoded.

Runs of equal values, dictionaries and shared prefixes let a file of a few bytes hold very many
values. The footer tells how many; the headers of the pages tell more of nested columns and of texts.
A row group that is large in the file may be larger in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..arrays.columnar import import_arrow
from ..errors import DataError
from ..stores.limits import DECODED
from .convert import MAX_UNPACK_RATIO

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_TEXT_OFFSET = 8  # bytes beside each text
_LEVELS = 8  # bytes beside each value of a nested column while it is decoded
_DECIMAL = 32  # bytes of the widest decimal
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2 = 0, 2, 3
_HEADS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_2: 8}  # field of each kind in a header
_DICTIONARY_ENCODINGS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_PREFIX_ENCODING = 7  # DELTA_BYTE_ARRAY
_HEADER_BYTES = 512  # most headers are shorter; statistics may be longer
_MAX_HEADER_BYTES = 16 << 20
_BATCH_BYTES = 128 << 20  # bytes that texts with shared prefixes may take at once
_BATCH_ROWS = 1 << 16
_MAX_DEPTH = 8


def require_small_row_group(
    raw: Any, file: Any, group: int, names: Sequence[str], path: Path, size: int
) -> None:
    """Raise `DataError` if a row group takes far more memory than its bytes in the file.

    Args:
        raw: The file, open for Arrow.
        file: The `pyarrow.parquet.ParquetFile` over it.
        group: Number of the row group.
        names: Columns that are decoded.
        path: Path for errors.
        size: Bytes of the file.
    """
    footer, schema = file.metadata.row_group(group), file.schema
    read, all_read = set(names), any("." in name for name in names)
    columns = [footer.column(number) for number in range(footer.num_columns)]
    chunks = [
        _Chunk(column, schema.column(number), footer.num_rows)
        for number, column in enumerate(columns)
        if all_read or column.path_in_schema.partition(".")[0] in read
    ]
    # Texts of a large file are not measured: that may take as long as decoding them.
    ignored = MAX_UNPACK_RATIO * size
    packed = min(sum(chunk.meta.total_compressed_size for chunk in chunks), size)
    limit = max(DECODED, MAX_UNPACK_RATIO * packed)
    left = limit
    for chunk in chunks:
        left -= chunk.estimate()
        if left >= 0 and (chunk.is_nested or chunk.estimate_most() > max(left, ignored)):
            left -= _measure_pages(raw, file, group, chunk, left, ignored)
        if left < 0:
            raise DataError(
                f"row group {group} of {packed:,} bytes would take more than {limit >> 20:,} MiB "
                "of memory: read fewer columns (columns=), or write smaller row groups",
                where=str(path),
            )


class _Chunk:
    """The values of one column in a row group, as the footer describes them."""

    def __init__(self, meta: Any, column: Any, rows: int) -> None:
        self.meta, self.path = meta, column.path
        self.is_nested = column.max_repetition_level > 0
        self.is_text = meta.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL"
        self._values, self._rows = meta.num_values, rows
        self._width = _WIDTHS.get(meta.physical_type, max(column.length or 0, _DECIMAL))

    def estimate(self) -> int:
        """Return the bytes of its values that the footer tells."""
        if self.is_text:
            return self.meta.total_uncompressed_size + self.estimate_values(self._values)
        return self.estimate_values(max(self._values, self._rows))

    def estimate_values(self, values: int) -> int:
        """Return the bytes of so many values, without those of texts."""
        width = _TEXT_OFFSET if self.is_text else self._width
        return values * (2 * width + _LEVELS if self.is_nested else width)

    def estimate_most(self) -> int:
        """Return the bytes of its texts if each were as long as all of them."""
        return self._values * self.meta.total_uncompressed_size if self.is_text else 0

    def iterate_pages(self, raw: Any) -> Iterator[_Page]:
        """Yield its pages that Arrow decodes."""
        starts = (self.meta.dictionary_page_offset, self.meta.data_page_offset)
        at = min(start for start in starts if start)
        stop, seen = at + self.meta.total_compressed_size, 0
        while at < stop and seen < self._values:
            page = _read_page(raw, at)
            seen += page.values if page.kind != _DICTIONARY_PAGE else 0
            yield page
            at = page.start + page.packed


class _Page(NamedTuple):
    """A page: its kind, the values and encoding of its header, its sizes, and the start of its data."""

    kind: int
    values: int
    encoding: int
    size: int
    packed: int
    start: int


def _measure_pages(raw: Any, file: Any, group: int, chunk: _Chunk, left: int, ignored: int) -> int:
    """Return the bytes of a chunk beyond those that the footer tells.

    Counting stops above `left`; texts that cannot take more than `ignored` are not measured.
    """
    pages = list(chunk.iterate_pages(raw))
    data = [page for page in pages if page.kind != _DICTIONARY_PAGE]
    values = sum(page.values for page in data)
    size = chunk.estimate_values(values) if chunk.is_nested else 0
    if not chunk.is_text or size > left or _stays_encoded(file, chunk.path):
        return size
    dictionaries = [page for page in pages if page.kind == _DICTIONARY_PAGE]
    coded = sum(page.values for page in data if page.encoding in _DICTIONARY_ENCODINGS)
    prefixed = [page for page in data if page.encoding == _PREFIX_ENCODING]
    shared = sum(page.values * page.size for page in prefixed)
    longest = max((page.size for page in dictionaries), default=0)
    if coded * longest + shared <= max(left - size, ignored):
        return size
    if data[0].encoding in _DICTIONARY_ENCODINGS and len(dictionaries) == 1:
        entries = dictionaries[0].values
        longest = _measure_longest(raw, file, group, chunk.path, entries, longest)
    if coded * longest + shared <= left - size:
        return size
    coded_name, rows = chunk.path, _BATCH_ROWS
    if prefixed:  # which Arrow cannot decode to a dictionary
        largest = max(longest, *(page.size for page in prefixed))
        coded_name, rows = "", min(max(_BATCH_BYTES // max(largest, 1), 1), _BATCH_ROWS)
    with _open_coded(raw, file, coded_name) as opened:
        batches = opened.iter_batches(rows, [group], [chunk.path], use_threads=False)
        return size + _measure_texts(batches, left - size)


def _stays_encoded(file: Any, name: str) -> bool:
    """Return whether Arrow decodes the texts of a column to a dictionary, because its writer had one."""
    schema = file.schema_arrow
    number = schema.get_field_index(name.partition(".")[0])
    return number >= 0 and "dictionary<" in str(schema.field(number).type)


def _measure_longest(raw: Any, file: Any, group: int, name: str, entries: int, size: int) -> int:
    """Return the bytes of the longest text of a dictionary, or `size` if the first row lacks it."""
    pc: Any = import_arrow("pyarrow.compute")
    with _open_coded(raw, file, name) as coded:
        for batch in coded.iter_batches(1, [group], [name], use_threads=False):
            for leaf in _iterate_leaves(batch.columns):
                texts = getattr(leaf, "dictionary", ())
                if len(texts) == entries:
                    return pc.max(pc.binary_length(texts)).as_py() or 0
            break
    return size


def _open_coded(raw: Any, file: Any, name: str) -> Any:
    """Open a file for a column of texts that stays encoded as a dictionary."""
    options = {
        "metadata": file.metadata,
        "read_dictionary": [name] if name else None,
        "pre_buffer": False,
    }
    return import_arrow("pyarrow.parquet").ParquetFile(raw, **options)


def _measure_texts(batches: Iterable[Any], limit: int) -> int:
    """Return the bytes of decoded texts, or more than `limit`; dictionaries may stay encoded."""
    pc: Any = import_arrow("pyarrow.compute")
    size = 0
    for batch in batches:
        for leaf in _iterate_leaves(batch.columns):
            if hasattr(leaf, "dictionary"):
                lengths = pc.binary_length(leaf.dictionary)
                size += pc.sum(lengths.take(leaf.indices)).as_py() or 0
            else:
                size += leaf.nbytes
        if size > limit:
            break
    return size


def _iterate_leaves(columns: Iterable[Any]) -> Iterator[Any]:
    """Yield the innermost arrays of columns; dictionaries stay encoded."""
    types: Any = import_arrow("pyarrow.types")
    for column in columns:
        if hasattr(column, "storage"):
            yield from _iterate_leaves([column.storage])
        elif types.is_map(column.type):
            yield from _iterate_leaves([column.keys, column.items])
        elif types.is_nested(column.type):
            is_struct = types.is_struct(column.type)
            yield from _iterate_leaves(column.flatten() if is_struct else [column.flatten()])
        else:
            yield column


def _read_page(raw: Any, at: int) -> _Page:
    """Read the header of the page at a byte of the file.

    Raises:
        ValueError: The header is damaged.
    """
    length = _HEADER_BYTES
    while True:
        data = raw.read_at(length, at)
        try:
            fields, end = _read_struct(data, 0, _MAX_DEPTH)
            break
        except IndexError:
            if len(data) < length or length >= _MAX_HEADER_BYTES:
                raise ValueError(f"the header of the page at byte {at:,} is damaged") from None
            length *= 8
    kind: Any = fields.get(1)
    number = _HEADS.get(kind) if _is_count(kind) else None
    head: Any = {1: 0, 2: 0} if number is None else fields.get(number)  # other pages: no values
    head = cast("dict[int, Any]", head) if isinstance(head, dict) else {}
    page = [kind, head.get(1), head.get(4 if kind == _DATA_PAGE_2 else 2), *map(fields.get, (2, 3))]
    if not all(map(_is_count, page)):
        raise ValueError(f"the header of the page at byte {at:,} is damaged")
    return _Page._make([*page, at + end])


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _read_struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a struct of Thrift's compact protocol, and its end.

    See "Thrift Compact protocol encoding" of Apache Thrift. Only integers and structs have a value.
    """
    fields, number = dict[int, Any](), 0
    if not depth:
        raise ValueError("the header of a page is nested too deeply")
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        fields[number], at = _read_value(data, at, head & 15, depth)
    return fields, at + 1


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:  # a truth value
            return kind == 1, at
        case 3:
            return None, at + 1
        case 4 | 5 | 6:
            return _read_integer(data, at)
        case 7:
            return None, at + 8
        case 8:  # bytes
            length, at = _read_varint(data, at)
            data[at + length]  # raises IndexError if the header is longer than what was read
            return None, at + length
        case 12:
            return _read_struct(data, at, depth - 1)
        case _:
            raise ValueError("the header of a page has a field of an unknown type")


def _read_integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        if (shift := shift + 7) > 63:
            raise ValueError("the header of a page has a number of more than 64 bits")
