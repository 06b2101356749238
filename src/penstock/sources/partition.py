"""Partition of rows by the values of columns: one pass finds the rows of all parts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from ..arguments import join_first, suggest_names
from ..arrays.columnar import import_arrow, list_content_errors
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError
from ..stores.limits import PARTS
from ..types import Ints, Json
from . import derived_files
from .chain import IndexedFile, JoinedFiles, OpenArguments
from .decoded_sizes import ROWS_PER_PIECE
from .derived_files import Kind
from .kinds import TypedFile
from .select import (
    CONVERSION_ERRORS,
    SelectedRows,
    iterate_columns,
    name_missing_memory,
    raise_missing_column,
    require_room,
    separate_repeated,
    spell_values,
)

Values: TypeAlias = tuple[str | None, ...]
"""The texts of a row in some columns; null has none."""

_VERSION = 1
_COLUMN_FORMATS = ("parquet", "arrow", "csv")
_WHOLE_FORMATS = ("energon", "levanter", "tokens", "zarr")
"""Formats without columns, or whose chunks may change unnoticed."""

_SEPARATOR = ":"
_SPECIAL = re.compile(r"^\+|[%/:]")
_LISTED = 5  # values that an error lists
_WORDS: Mapping[str | None, str] = {None: "null", "": "empty"}


class Part(NamedTuple):
    """Rows by the values of columns: rows with one of `values`, or, of a rest, with none of them."""

    columns: tuple[str, ...]
    values: tuple[Values, ...]
    is_rest: bool = False

    def describe(self) -> dict[str, Json]:
        """Return the columns and their values; of a rest, a digest of the values of other parts."""
        if not self.is_rest:
            return dict(zip(self.columns, self.values[0], strict=True))
        spelled = json.dumps(sorted(self.values, key=repr)).encode()
        digest = hashlib.blake2b(spelled, digest_size=8).hexdigest()
        return {"columns": [*self.columns], "not": {"count": len(self.values), "digest": digest}}


class ColumnValues(NamedTuple):
    """The distinct values of some columns, and the number of the values of each row."""

    distinct: Sequence[Values]
    codes: npt.NDArray[np.int32]

    def count_rows(self) -> list[int]:
        """Return the number of rows with each of the distinct values."""
        return np.bincount(self.codes, minlength=len(self.distinct)).tolist()

    def find_rows(self, parts: Iterable[Part]) -> list[Ints]:
        """Return the rows of each part, in order. No two parts share a row."""
        numbers, other, count = dict[Values, int](), -1, 0
        for number, part in enumerate(parts):
            count = number + 1
            if part.is_rest:
                other, numbers = number, {**dict.fromkeys(part.values, -1), **numbers}
            else:
                numbers[part.values[0]] = number
        part_of_values = [numbers.get(values, other) for values in self.distinct]
        part_of_row = np.asarray([*part_of_values, -1], np.int16)[self.codes]
        order = np.argsort(part_of_row, kind="stable")
        return np.split(order, np.searchsorted(part_of_row[order], np.arange(count + 1)))[1:-1]


class _Texts:
    """The texts of one column, numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self.numbers = dict[str | None, int]()
        self.codes = [np.zeros(0, np.int32)]

    def add(self, values: Any) -> None:
        """Add the next rows: an Arrow array."""
        pc = import_arrow("pyarrow.compute")
        for start in range(0, max(len(values), 1), ROWS_PER_PIECE):
            entries, codes = separate_repeated(values.slice(start, ROWS_PER_PIECE))
            encoded = pc.dictionary_encode(spell_values(entries), null_encoding="encode")
            numbers = [
                self.numbers.setdefault(text, len(self.numbers))
                for text in encoded.dictionary.to_pylist()
            ]
            row_numbers = np.asarray([*numbers, 0], np.int32)[encoded.indices.to_numpy()]
            self.codes.append(row_numbers if codes is None else row_numbers[codes])


def _join_columns(columns: Sequence[_Texts]) -> ColumnValues:
    """Return the values of several columns together."""
    codes = np.concatenate(columns[0].codes)
    distinct: list[Values] = [(text,) for text in columns[0].numbers]
    for column in columns[1:]:
        texts = [*column.numbers]
        pairs = codes.astype(np.int64) * len(texts) + np.concatenate(column.codes)
        numbers, inverse = np.unique(pairs, return_inverse=True)
        codes = inverse.astype(np.int32)
        distinct = [(*distinct[n // len(texts)], texts[n % len(texts)]) for n in numbers.tolist()]
    return ColumnValues(distinct, codes)


def join_rows(parts: Iterable[ColumnValues]) -> ColumnValues:
    """Return the values of consecutive rows, such as those of several files.

    >>> join_rows([ColumnValues([("a",)], np.array([0])), ColumnValues([("b",), ("a",)], np.array([1, 0]))])
    ColumnValues(distinct=[('a',), ('b',)], codes=array([0, 0, 1], dtype=int32))
    """
    numbers, codes = dict[Values, int](), [np.zeros(0, np.int32)]
    for part in parts:
        mine = [numbers.setdefault(values, len(numbers)) for values in part.distinct]
        codes.append(np.asarray([*mine, 0], np.int32)[part.codes])
    return ColumnValues([*numbers], np.concatenate(codes))


def encode_rows(columns: Sequence[Any]) -> ColumnValues:
    """Return the values of rows in memory.

    Args:
        columns: the columns, as Arrow arrays of one length.

    Raises:
        Exception: one of `list_content_errors()`, if values have no text.

    >>> import pyarrow as pa
    >>> encode_rows([pa.array(["de", None, "de"]), pa.array([1, 2, 1])]).distinct
    [('de', '1'), (None, '2')]
    """
    texts = [_Texts() for _ in columns]
    for column, values in zip(texts, columns, strict=True):
        column.add(values)
    return _join_columns(texts)


# ---------------------------------------------------------------- files


def has_columns(source: object) -> TypeGuard[JoinedFiles | SelectedRows]:
    """Return whether the values of columns can be read, and rows selected by them, in files."""
    if not isinstance(source, JoinedFiles | SelectedRows) or source.open_arguments is None:
        return False
    chain = source if isinstance(source, JoinedFiles) else source.chain
    return not chain.is_custom and chain.format not in _WHOLE_FORMATS


def read_values(source: object, columns: Sequence[str]) -> ColumnValues | None:
    """Return the values of the rows of files, from the cache if possible; None for other sources.

    Args:
        source: a source.
        columns: names of columns, which need not be among those that were read.

    Raises:
        ConfigError: no row has one of the columns, or its values have no text.
        DataError: a column holds values of several types.
    """
    if not has_columns(source):
        return None
    chain = source if isinstance(source, JoinedFiles) else source.chain
    values = _read_files(_open_columns(source, chain, columns), columns, chain.cache)
    if isinstance(source, JoinedFiles):
        return values
    return ColumnValues(values.distinct, values.codes[source.rows])


def _open_columns(
    source: JoinedFiles | SelectedRows, chain: JoinedFiles, columns: Sequence[str]
) -> JoinedFiles:
    """Return the files with these columns, if others were read."""
    arguments = cast("OpenArguments", source.open_arguments)
    if arguments.columns is None or {*columns} <= {*arguments.columns}:
        return chain
    only = list(columns) if chain.format in _COLUMN_FORMATS else None
    reopen = cast("Any", source.reopen)
    return reopen(columns=only, lengths=None, where=None, parts=())


def _read_files(
    chain: JoinedFiles, columns: Sequence[str], cache: str | Path | None
) -> ColumnValues:
    parts, rows_with_column = list[ColumnValues](), np.zeros(len(columns), np.int64)
    work, done = f"read {', '.join(columns)} of {chain.name}", 0
    with Progress(work, len(chain) * len(columns), "values") as progress:
        for path, file in zip(chain.paths, chain.files, strict=True):
            with name_missing_memory(path):
                counts, values = _load_values(file, path, chain, columns, cache, progress)
            rows_with_column += counts
            parts.append(values)
            done += len(file) * len(columns)
            progress.tell(done)  # also if the values were cached
    if len(chain) and not rows_with_column.all():
        missing = columns[int(rows_with_column.argmin())]
        raise_missing_column("partition_by", missing, chain.files, chain.paths)
    with name_missing_memory(chain.name):
        return join_rows(parts)


def _load_values(
    file: IndexedFile,
    path: Path,
    chain: JoinedFiles,
    columns: Sequence[str],
    cache: str | Path | None,
    progress: Progress,
) -> tuple[Ints, ColumnValues]:
    """Return how many rows of a file have each column, and their values; cached."""
    require_room(file)
    types = (
        [str(file.types.get(column)) for column in columns] if isinstance(file, TypedFile) else []
    )
    key = [_VERSION, chain.format, columns, types, chain.stat_companions([path])]
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8).hexdigest()
    place = derived_files.cache_path(path, cache, f".{path.name}.{digest}.penstock-values")

    def make() -> tuple[int, bytes]:
        counts, values = _encode_file(file, path, columns, progress)
        head = json.dumps([counts, values.distinct]).encode()
        size = len(head).to_bytes(8, "little")
        return len(file), size + head + values.codes.astype("<i4").tobytes()

    derived = derived_files.DerivedFile(Kind.COLUMN_VALUES, path, place, place)
    body = memoryview(derived_files.load(derived, make))
    end = 8 + int.from_bytes(body[:8], "little")
    counts, distinct = json.loads(bytes(body[8:end]))
    codes = np.frombuffer(body[end:], "<i4").astype(np.int32)
    if len(codes) != len(file):
        raise DataError("it has changed since it was opened; open it again", where=str(path))
    return np.asarray(counts, np.int64), ColumnValues([*map(tuple, distinct)], codes)


def _encode_file(
    file: IndexedFile, path: Path, columns: Sequence[str], progress: Progress
) -> tuple[list[int], ColumnValues]:
    texts, counts = [_Texts() for _ in columns], [0] * len(columns)
    for number, values, count in iterate_columns(file, path, columns):
        counts[number] += count
        try:
            texts[number].add(values)
        except (*list_content_errors(), *CONVERSION_ERRORS) as error:
            raise ConfigError(
                f"{path}: the column {columns[number]!r} holds {values.type}, and partition_by "
                "needs texts, numbers, times or UUIDs: choose another column, or map it to texts "
                "first"
            ) from error
        progress.more(len(values))
    return counts, _join_columns(texts)


def keep_part(source: JoinedFiles | SelectedRows, part: Part, rows: Ints) -> SelectedRows:
    """Return the rows of a part of a source."""
    if isinstance(source, SelectedRows):
        chain, rows, where, parts = source.chain, source.rows[rows], source.where, source.parts
    else:
        chain, where, parts = source, dict[str, Any](), ()
    kept = SelectedRows(chain, rows, where, (*parts, part))
    kept.open_arguments, kept.as_columns = source.open_arguments, source.as_columns
    kept.reopen = partial(cast("Any", source.reopen), parts=kept.parts)
    return kept


def open_parts(
    source: JoinedFiles | SelectedRows, parts: Sequence[Part]
) -> JoinedFiles | SelectedRows:
    """Return the rows of a source that are in all of these parts."""
    for part in parts:
        values = read_values(source, part.columns)
        assert values is not None  # parts come from sources of files with columns
        (rows,) = values.find_rows([part])
        source = keep_part(source, part, rows)
    return source


# ---------------------------------------------------------------- parts and their names


def name_values(values: Values) -> str:
    """Return the name of the input for values: another one for other values.

    A null is `null`, the empty text is `empty`. Characters that a name cannot hold, or that
    separate values, are percent-encoded, as in paths of Hive.

    >>> name_values(("en-US", "high")), name_values(("a/b", None)), name_values(("null",))
    ('en-US:high', 'a%2Fb:null', '%6Eull')
    """
    return _SEPARATOR.join(_name_value(value, len(values) > 1) for value in values)


def _name_value(value: str | None, separated: bool) -> str:
    if not value:
        return _WORDS[value]
    if not (value.isprintable() and _SPECIAL.search(value) is None):
        value = "".join(
            _percent_encode(character)
            if character in "%/"
            or not character.isprintable()
            or (separated and character == _SEPARATOR)
            or (number == 0 and character == "+")
            else character
            for number, character in enumerate(value)
        )
    return _percent_encode(value[0]) + value[1:] if value in _WORDS.values() else value


def _percent_encode(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def check_parts(min_size: int, rest: Any, only: Any) -> None:
    """Raise `ConfigError` for options of a partition that contradict each other."""
    if rest is not None and (
        not isinstance(rest, str) or not rest or rest.startswith("+") or "/" in rest
    ):
        raise ConfigError(
            f"partition_by(rest={rest!r}): give a name, not empty, without '/' and without a leading '+'"
        )
    if only is None:
        if rest is not None and min_size == 1:
            raise ConfigError(
                f"partition_by(rest={rest!r}): every value has an input of its own; give min_size= "
                "or only= too"
            )
        return
    names: Any = only
    if isinstance(names, str) or not (names and all(isinstance(name, str) for name in names)):
        raise ConfigError(f"partition_by(only={only!r}): give a list of at least one name")
    if len(set(names)) < len(names):
        raise ConfigError(f"partition_by(only={only!r}): a name is given twice")
    if min_size != 1:
        raise ConfigError("partition_by(only=..., min_size=...): only= fixes the inputs; give one")


def choose_parts(
    values: ColumnValues,
    columns: Sequence[str],
    min_size: int = 1,
    rest: str | None = None,
    only: Sequence[str] | None = None,
) -> dict[str, Part]:
    """Return the parts by name, sorted; the rest comes last.

    Args:
        values: the values of all rows.
        columns: names of the columns.
        min_size: fewest rows of a part.
        rest: name of the part of all other rows, which is left out if there are none.
        only: names of the parts, if they are fixed.

    Raises:
        ConfigError: values are too rare and there is no rest, there are too many parts, or a name
            is missing or taken.
    """
    counts = dict(zip(values.distinct, values.count_rows(), strict=True))
    if only is None:
        kept = {name_values(each): each for each, count in counts.items() if count >= min_size}
        rare = {each: count for each, count in counts.items() if 0 < count < min_size}
        if rare and rest is None:
            _raise_rare(rare, columns, min_size)
        has_rest = bool(rare)
    else:
        present = {name_values(each): each for each, count in counts.items() if count}
        if missing := [name for name in only if name not in present]:
            raise ConfigError(
                f"partition_by({show_columns(columns)}): no row has the values of {missing[0]!r}"
                f"{suggest_names(missing[0], present) or f'; there are {join_first(sorted(present))}'}"
            )
        kept, has_rest = {name: present[name] for name in only}, len(only) < len(present)
    if len(kept) > PARTS:
        raise ConfigError(
            f"partition_by({show_columns(columns)}): {len(kept):,} values would be inputs, of at most "
            f"{PARTS:,}; give min_size= and rest=, or another column"
        )
    if rest in kept:
        raise ConfigError(
            f"partition_by(rest={rest!r}): an input for a value has this name; choose another one"
        )
    names = tuple(columns)
    parts = {name: Part(names, (kept[name],)) for name in sorted(kept)}
    if rest is not None and has_rest:
        parts[rest] = Part(
            names, tuple(each for part in parts.values() for each in part.values), True
        )
    return parts


def _raise_rare(rare: Mapping[Values, int], columns: Sequence[str], min_size: int) -> NoReturn:
    common = sorted(rare, key=lambda each: (-rare[each], name_values(each)))[:_LISTED]
    listed = ", ".join(f"{name_values(each)!r} ({rare[each]:,})" for each in common)
    more = f" and {len(rare) - _LISTED:,} more" if len(rare) > _LISTED else ""
    raise ConfigError(
        f"partition_by({show_columns(columns)}, min_size={min_size}): {len(rare):,} "
        f"value{'s have' if len(rare) > 1 else ' has'} fewer rows, {sum(rare.values()):,} together: "
        f"{listed}{more}; put them into one input, rest='rest', or lower min_size"
    )


def show_columns(columns: Sequence[str]) -> str:
    """Return columns as users write them."""
    return repr(columns[0]) if len(columns) == 1 else repr(list(columns))
