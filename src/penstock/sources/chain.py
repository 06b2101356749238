"""Files of one format, concatenated into one source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ..engine.base import machine
from ..engine.base.spans import DocumentSpans, SpanSource, join_spans
from ..errors import ConfigError, make_memory_error
from ..stores import ByteRange, CompositeStore, is_remote, storage
from ..stores.storage import Stat
from ..types import DataLocation, Digest, Ints, Json, LossCounts, Sizes, Source
from . import file_versions
from .block import ColumnarFile, join_read_rows
from .cached_integers import load_or_make_integers, read_lengths_version
from .identity import digest_files, digest_sampled_rows
from .kinds import ColumnType, CompositeType, TypedFile
from .paths import TokenType
from .unify import find_common_type, has_null_type

_REMOTE_GAP = 4 << 10  # unused bytes worth reading from a store to save one more request
_LOCAL_GAP = 32 << 10  # unused bytes worth reading from a local disk to save one more read
_MAX_TYPED_FILES = 64  # files that are opened for the type of a column without values
_MAX_PREFETCH_BYTES = 128 << 20  # bytes that are prefetched from one source


class IndexedFile(Protocol):
    """One file of a source, read by row index.

    `columns` lists its column names; `None` means that only the rows have names.
    """

    @property
    def columns(self) -> Sequence[str] | None: ...
    def __len__(self) -> int: ...
    def read(self, indices: Ints, /) -> list[Any]: ...


@runtime_checkable
class MeasuredFile(Protocol):
    """A file that knows the lengths of its rows and the dtype of its tokens."""

    dtype: np.dtype[Any]

    def lengths(self) -> Sizes: ...


@runtime_checkable
class RangedFile(Protocol):
    """A file that knows which byte ranges its rows need."""

    def ranges(self, indices: Ints, /) -> Iterable[ByteRange]: ...


def choose_max_gap(path: Path) -> int:
    """Return how many unused bytes between two rows to read rather than issue a second request."""
    return _REMOTE_GAP if is_remote(path) else _LOCAL_GAP


def merge_row_ranges(path: Path, starts: Ints, ends: Ints, block: int = 1) -> list[ByteRange]:
    """Return byte ranges of a file, aligned to blocks of `block` bytes; merge nearby ranges."""
    if not starts.size:
        return []
    order, gap = np.argsort(starts, kind="stable"), choose_max_gap(path)
    starts, ends = starts[order] // block * block, -(-ends[order] // block) * block
    cuts = np.flatnonzero(starts[1:] > np.maximum.accumulate(ends)[:-1] + gap) + 1
    lows, highs = (
        starts[np.concatenate([[0], cuts])],
        np.maximum.reduceat(ends, np.concatenate([[0], cuts])),
    )
    return [
        ByteRange(str(path), low, high)
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
    ]


def compute_offsets(sizes: Sequence[int] | Ints) -> Ints:
    """Return the offset of each part and the total size: int64[len(sizes) + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def read_by_part(
    starts: Ints,
    indices: Ints,
    read: Callable[[int, Ints], list[Any]],
) -> list[Any]:
    """Read rows from several parts, each part once; return them in the requested order.

    Args:
        starts: Offsets of the parts, from `compute_offsets`.
        indices: Rows of all parts together.
        read: Called as `read(part, rows of that part)`.

    >>> starts, indices = compute_offsets([2, 3]), np.array([4, 0, 2])
    >>> read_by_part(starts, indices, lambda part, rows: [(part, row) for row in rows.tolist()])
    [(1, 2), (0, 0), (1, 0)]
    """
    if not indices.size:
        return []
    parts = np.searchsorted(starts, indices, side="right") - 1
    rows = indices - starts[parts]
    if bool((parts == parts[0]).all()):
        return read(int(parts[0]), rows)
    order = np.argsort(parts, kind="stable")
    parts, rows = parts[order], rows[order]
    cuts = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(parts)]
    values: list[Any] = []
    for start, stop in pairwise(cuts):
        values += read(int(parts[start]), rows[start:stop])
    ordered: list[Any] = [None] * len(values)
    for place, value in zip(order.tolist(), values, strict=True):
        ordered[place] = value
    return ordered


class FilesOutline(NamedTuple):
    """Facts about the files of a source: rows per file, columns, and the version of each file."""

    rows: Sequence[int] | Ints
    columns: Sequence[str] | None
    stats: Sequence[Stat]


def outline_files(files: Sequence[IndexedFile], paths: Sequence[Path]) -> FilesOutline:
    """Return the outline of open files."""
    columns = files[0].columns if files else None
    return FilesOutline(
        [len(file) for file in files], columns, [file_versions.stat_file(path) for path in paths]
    )


class TokenCounter(Protocol):
    """A token counter, such as a tokenizer, that returns the number of tokens of each sample.

    `counted` identifies the counter. `lasting` is true if that identity suffices to cache the counts.
    """

    counted: str

    @property
    def lasting(self) -> bool: ...
    def counts(self, samples: list[Any], /) -> list[int]: ...


class OpenArguments(NamedTuple):
    """The arguments of `open_files`, stored so that a source can be opened again."""

    paths: tuple[str, ...]
    format: str | None
    columns: tuple[str, ...] | None
    cache: str | None
    lengths: str | TokenCounter | None
    split: str | None
    where: Mapping[str, Any] | None
    dtype: TokenType | None = None
    eos: int | None = None


class _ReopenableSource(Protocol):
    open_arguments: OpenArguments | None
    reopen: Callable[..., Source] | None

    @property
    def columnar(self) -> bool: ...


def reopen_with_column(source: _ReopenableSource, column: str, /) -> Source | None:
    """Return the source with one column, `None` if there is no such column.

    Formats that store rows without columns are returned as they are.
    """
    arguments, reopen = source.open_arguments, source.reopen
    if arguments is None or reopen is None or (arguments.columns is None and not source.columnar):
        return cast("Source", source)
    try:
        return reopen(columns=[column], lengths=None)
    except ConfigError:  # there is no such column
        return None


def reopen_as_halves(
    source: _ReopenableSource, column: str, share: float, /
) -> tuple[Source, Source] | None:
    """Return the rows outside a share of the hashes of a column, and those inside.

    Equal values are on one side. The result is `None` if the rows have no columns.

    Raises:
        ConfigError: The selection of the source has values of this column.
    """
    if source.open_arguments is None or source.reopen is None:
        return None
    where = dict(source.open_arguments.where or {})
    condition = where.get(column, {})
    if not isinstance(condition, dict):
        raise ConfigError(
            f"split(column={column!r}): where= already selects values of this column; split by "
            "another column"
        )
    bounds = cast("dict[str, Any]", condition)
    low, high = bounds.get("hash", (0, 1))
    middle = divide_hashes(share, low, high)
    first, second = (
        source.reopen(where={**where, column: {**bounds, "hash": part}})
        for part in ([middle, high], [low, middle])
    )
    return first, second


def divide_hashes(share: float, low: float, high: float) -> float:
    """Return the end of a share of a range of hashes, so that splits can be split again."""
    return share if (low, high) == (0, 1) else low + share * (high - low)


def read_in_file_order(
    starts: Ints, ends: Ints, read: Callable[[Ints, Ints], Iterable[Any]]
) -> list[Any]:
    """Read byte ranges from front to back; return the results in the requested order.

    >>> read_in_file_order(np.array([4, 0]), np.array([6, 2]), lambda starts, ends: starts.tolist())
    [4, 0]
    """
    if bool((starts[1:] >= starts[:-1]).all()):
        return list(read(starts, ends))
    order = np.argsort(starts, kind="stable")
    ordered: list[Any] = [None] * len(order)
    for place, value in zip(order.tolist(), read(starts[order], ends[order]), strict=True):
        ordered[place] = value
    return ordered


class DecodingCost(NamedTuple):
    """The cost of decoding one row, according to the footer of a file.

    `group` and `rows` are the average bytes and rows of a row group. `total` is the decoded size of
    the source in bytes.
    """

    group: int
    rows: int
    total: int


class JoinedFiles:
    """Files of one format as one source, in the given order; `open_files` returns it.

    The source opens a file when one of its rows is first read.

    Args:
        files: The parts; `files[i]` opens part `i`.
        outline: Rows, columns and versions of the parts, known without opening them.
        format: Name of the format, which enters the fingerprint.
        name: Name of the source unless the user gives one.
        paths: Paths of the parts, as many as `files`.
        cache: Cache folder that the user gave, if any; it holds digests and prefetched blocks.
        lengths: Computes the lengths of all rows on first use; `None` if they are unknown.
        column: Column whose lengths `lengths` returns.
        counts: Token counter whose counts `lengths` returns.
        loss_counts: Adds up the loss masks of all rows on first use; `None` if all tokens carry loss.
        list_companions: Lists the files beside or above a part that describe its rows.
        selection: Identifies the rows if the parts hold more; facts about the rows are cached by it.
        is_custom: A function of the user opens the parts. It may change, or read other files, so no
            facts about the rows are cached.

    Attributes:
        as_columns: Pass batches to functions as columns.
        name: Name of the source unless the user gives one.
        files: The parts.
        paths: Paths of the parts.
        stats: Versions of the parts.
        column: Column whose lengths `lengths` returns.
        counts: Token counter whose counts `lengths` returns.
        open_arguments: Arguments of `open_files`.
        reopen: `open_files` with these arguments; keywords replace some of them.
        is_custom: A function of the user opens the parts.
    """

    def __init__(
        self,
        files: Sequence[IndexedFile],
        outline: FilesOutline,
        *,
        format: str,
        name: str,
        paths: Sequence[Path],
        cache: str | Path | None = None,
        lengths: Callable[[], Sizes] | None = None,
        column: str | None = None,
        counts: TokenCounter | None = None,
        loss_counts: Callable[[], LossCounts | None] | None = None,
        list_companions: Callable[[Path], Iterable[Path]] | None = None,
        selection: str = "",
        is_custom: bool = False,
    ) -> None:
        self.name, self.paths, self.stats, self.cache = name, list(paths), outline.stats, cache
        self.as_columns = False
        self._digest: Digest | None = None
        self._list_companions, self._selection = list_companions, selection
        self.is_custom = is_custom
        self.open_arguments: OpenArguments | None = None
        self.reopen: Callable[..., Source] | None = None
        self._find_lengths, self.column, self.counts = lengths, column, counts
        self._lengths: Sizes | None = None
        self._find_loss_counts, self._loss_counts = loss_counts, None
        self.format = format
        self.files = files
        self._columns = outline.columns
        self._starts = compute_offsets(outline.rows)
        self._far = any(map(is_remote, self.paths))
        self._use()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use()

    def _use(self) -> None:
        if self._far and isinstance(storage.world.store, CompositeStore):
            storage.world.store.used_by(self)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<{self.format} source {self.name!r}: {len(self)} rows in {len(self.files)} files>"

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`, visiting each file once."""
        self.prefetch(indices, now=True)
        return read_by_part(self._starts, indices, self._read)

    @property
    def columnar(self) -> bool:
        """True if the source can return rows as columns."""
        return len(self.files) > 0 and isinstance(self.files[0], ColumnarFile)

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The column types according to the first file, if its format stores them."""
        first = self.files[0] if len(self.files) else None
        return first.types if isinstance(first, TypedFile) else {}

    def file_and_row(self, index: int) -> tuple[Path, int]:
        """Return the file of a row, and its index in that file.

        Args:
            index: Row of all files together, in `[0, len)`.
        """
        part = int(self._starts.searchsorted(index, "right")) - 1
        return self.paths[part], index - int(self._starts[part])

    def decoding(self) -> DecodingCost | None:
        """Return the cost of decoding a row, if the format decodes whole row groups.

        The first file stands for the others.
        """
        file = self.files[0] if len(self.files) else None
        group = file.decoding() if isinstance(file, ColumnarFile) else None
        if file is None or group is None or not len(file):
            return None
        size, rows = group
        return DecodingCost(size, rows, round(size / max(rows, 1) * len(self)))

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, as columns if the format has columns."""
        self.prefetch(indices, now=True)
        if len(self.files) == 1:
            return self._blocks(0, indices)
        parts = self._starts.searchsorted(indices, "right") - 1
        if not parts.size or not isinstance(self.files[int(parts[0])], ColumnarFile):
            return self.read(indices)
        rows = indices - self._starts[parts]
        if bool((parts == parts[0]).all()):
            return self._blocks(int(parts[0]), rows)
        order = np.argsort(parts, kind="stable")
        cuts = np.flatnonzero(np.diff(parts[order])) + 1
        groups = np.split(order, cuts)
        return join_read_rows(
            [self._blocks(int(parts[group[0]]), rows[group]) for group in groups], order
        )

    def _read(self, part: int, rows: Ints) -> list[Any]:
        try:
            return self.files[part].read(rows)
        except MemoryError as error:
            raise make_memory_error(error, self.paths[part]) from error

    def _blocks(self, part: int, rows: Ints) -> Sequence[Any]:
        file = self.files[part]
        return file.block(rows) if isinstance(file, ColumnarFile) else self._read(part, rows)

    def arrow_schema(self) -> Any | None:
        """Return the columns of the rows as a `pyarrow.Schema`; `None` if only reading tells."""
        first = self.files[0] if len(self.files) else None
        schema = first.arrow_schema() if isinstance(first, ColumnarFile) else None
        return None if schema is None else self._replace_null_types(schema)

    def _replace_null_types(self, schema: Any) -> Any:
        """Return the schema with the types of later files for columns without values before them."""
        for file in islice(self.files, 1, _MAX_TYPED_FILES):
            names = [field.name for field in schema if has_null_type(field.type)]
            other = file.arrow_schema() if names and isinstance(file, ColumnarFile) else None
            if other is None:
                break
            for name in set(names) & {*other.names}:
                number = schema.get_field_index(name)
                common = find_common_type(schema.field(number).type, other.field(name).type)
                schema = schema.set(number, schema.field(number).with_type(common))
        return schema

    def row_files(self) -> JoinedFiles | None:
        """Return the source itself if each row lies in one file, else `None`."""
        return self if len(self.paths) == len(self.files) else None

    column_alone, split_by_hash = reopen_with_column, reopen_as_halves

    def token_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of token files, or of the only column of lists of integers."""
        first = self.files[0] if len(self.files) else None
        if isinstance(first, MeasuredFile):
            return first.dtype
        items = [
            kind.parts[0][1]
            for name, kind in self.types.items()
            if isinstance(kind, CompositeType) and kind.of == "list" and self.column in (None, name)
        ]
        item = items[0] if len(items) == 1 else None
        is_integer = isinstance(item, str) and item.lstrip("u").startswith("int")
        return np.dtype(item) if is_integer else None

    def token_range(self) -> None:
        """Return `None`: the tokens of files are unknown without reading."""

    def file_rows(self, indices: Ints, /) -> tuple[Ints, Ints]:
        """Return the number of the file of each row, and the index of the row in that file."""
        part = np.searchsorted(self._starts, indices, side="right") - 1
        return part, indices - self._starts[part]

    def prefetch_capacity(self, reach: DataLocation, /) -> int:
        """Return how many rows may be prefetched; 0 if readers could not use them.

        Processes share prefetched bytes only through a cache on disk.
        """
        has_cache = (
            self.cache is not None
            or machine.read_environment_variable("PENSTOCK_CACHE") is not None
        )
        if not (self._far and (reach == "process" or (reach == "machine" and has_cache))):
            return 0
        return max(
            1, _MAX_PREFETCH_BYTES * len(self) // max(1, sum(stat.size for stat in self.stats))
        )

    def prefetch(self, indices: Ints, /, now: bool = False) -> bool:
        """Prefetch the bytes of rows that are read soon, or `now`.

        Args:
            indices: Rows of all files together, in any order.
            now: The rows are read next, so older prefetches are evicted to make room.

        Returns:
            False if the prefetch buffer of the process is full. Local files and formats with
            unknown byte ranges are never prefetched, and return true.
        """
        store = storage.world.store
        if not self._far or not isinstance(store, CompositeStore):
            return True
        ranges = list[ByteRange]()
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        for part in np.unique(parts).tolist():
            file = cast(object, self.files[part])
            if isinstance(file, RangedFile):
                ranges += file.ranges(indices[parts == part] - self._starts[part])
        return store.prefetch(ranges, now)

    def spans(self, indices: Ints, /) -> DocumentSpans | None:
        """Return the rows at `indices` as spans of token files, or `None` for other rows."""
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        order, parts_spans = np.argsort(parts, kind="stable"), list[DocumentSpans]()
        for group in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            file = self.files[int(parts[group[0]])] if len(group) else None
            spans = (
                file.spans(indices[group] - self._starts[parts[group]])
                if isinstance(file, SpanSource)
                else None
            )
            if spans is None:
                return None
            parts_spans.append(spans)
        return join_spans(parts_spans, order)

    def lengths(self) -> Sizes | None:
        """Return the sizes of all rows, or `None` if they are unknown without reading.

        The first call computes them.
        """
        if self._lengths is None and self._find_lengths is not None:
            self._lengths = self._find_lengths()
        return self._lengths

    def loss_counts(self) -> LossCounts | None:
        """Return how many tokens of each row carry loss, by the columns of masks.

        The first call adds them up, and stores them beside the files or in the cache. `None` if all
        tokens do: files without masks, and texts whose tokens a counter counts.

        Raises:
            ConfigError: The format has no columns, so only reading the rows tells.
        """
        if self._loss_counts is None and self._find_loss_counts is not None:
            self._loss_counts = self._find_loss_counts()
        return self._loss_counts

    cached_integers, lengths_version = load_or_make_integers, read_lengths_version

    def digest(self) -> Digest:
        """Return a digest of the contents of the files, computed on first use."""
        if self._digest is None:
            self._digest = digest_files(
                self.paths,
                self.stats,
                self.read,
                len(self),
                self._describe_reading(),
                self.cache,
                self.stat_companions(self.paths),
                stored=not self.is_custom,
            )
        return self._digest

    def stat_companions(self, paths: Iterable[Path]) -> list[Stat]:
        """Return the versions of the files that describe the rows of parts, each file once.

        Args:
            paths: Paths of the parts.
        """
        if (list_companions := self._list_companions) is None:
            return []
        companions = dict.fromkeys(beside for path in paths for beside in list_companions(path))
        return [file_versions.stat_file(companion) for companion in companions]

    def _describe_reading(self) -> str:
        """Return a text that differs if other rows are read from the same files."""
        options = self.open_arguments and (self.open_arguments.dtype, self.open_arguments.eos)
        spelled = json.dumps([self.describe(), options], default=str)
        return f"{spelled} {self._selection}" if self._selection else spelled

    def digest_of(self, rows: int, /) -> Digest:
        """Return a digest of the first rows."""
        return {"rows": digest_sampled_rows(self.read, rows)}

    def describe(self) -> Json:
        """Return format, number of rows and columns.

        `columns` is `None` if the column names are known only row by row.
        """
        columns = self._columns
        description = {
            "format": self.format,
            "rows": len(self),
            "columns": None if columns is None else list(columns),
        }
        return (
            description if self.counts is None else {**description, "tokens": self.counts.counted}
        )
