"""Token counts of rows, known without reading the rows, as planned packing requires.

They are the lengths of the lists of a column, or a tokenizer's counts of texts, computed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..arrays.columnar import import_arrow
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError, StorageError
from ..stores import storage
from ..types import Ints
from . import derived_files, file_versions
from .chain import IndexedFile, TokenCounter
from .decoded_sizes import require_room_for_rows
from .derived_files import Kind

_ROWS_PER_CALL = 1 << 10  # rows per call of the tokenizer
_MIN_ANNOUNCED_BYTES = 4 << 20  # bytes whose tokens take seconds to count


@runtime_checkable
class ColumnFile(Protocol):
    """A file that yields single columns; `slow` is true if that decodes the full column."""

    path: Path
    slow: bool

    def __len__(self) -> int: ...
    def column(self, name: str, /) -> Iterator[Any]: ...


@derived_files.merge_logs()
def require_column_file(file: object, column: str) -> ColumnFile:
    """Return a file that provides the lengths of a column's lists.

    Raises:
        ConfigError: if its format stores rows, not columns.
    """
    if isinstance(file, ColumnFile):
        return file
    raise ConfigError(
        f"lengths={column!r}: only Parquet and Arrow files provide the lengths of a column's lists "
        "without reading the rows; write the tokens into one of these, or count the tokens of texts "
        "by lengths=Tokenize(...) (--tokenizer on the command line)"
    )


def load_lengths(
    files: Sequence[IndexedFile],
    column: str | TokenCounter,
    cache: str | Path | None,
    rebuild: bool = False,
    paths: Sequence[Path] = (),
    format: str = "",
    list_companions: Callable[[Path], Iterable[Path]] | None = None,
) -> Ints:
    """Return the number of list elements, or of tokens, of every row: int64[rows].

    If computing them means decoding a column or tokenizing, the result is stored in a derived file.

    Args:
        files: The files.
        column: Column of lists, or a token counter.
        cache: Cache folder; by default it lies beside the file.
        rebuild: Compute the lengths again.
        paths: Paths of the files, needed for a token counter.
        format: Format of the files; one file has other texts as text than as JSON lines.
        list_companions: Lists the files that describe the rows of a file.

    Raises:
        ConfigError: The format has no list lengths, or the column has no lists.
        DataError: A row has no list, or cannot be tokenized.
    """
    lengths = [np.zeros(0, np.int64)]
    for file in files:
        if isinstance(file, ColumnFile):
            require_room_for_rows(len(file), file.path, file_versions.stat_file(file.path).size)
    if not isinstance(column, str):
        numbered = enumerate(zip(files, paths, strict=True))
        announcing = _Announcement(paths, column)
        descriptions = [
            "".join(f" {file_versions.stat_file(beside)}" for beside in list_companions(path))
            if list_companions
            else ""
            for path in paths
        ]
        return np.concatenate(
            [
                *lengths,
                *(
                    _count_file_tokens(
                        file,
                        path,
                        f"{format}{descriptions[number]}",
                        column,
                        cache,
                        rebuild,
                        announcing.of(number),
                    )
                    for number, (file, path) in numbered
                ),
            ]
        )
    for file in files:
        file = require_column_file(file, column)
        suffix = "".join(character if character.isalnum() else "-" for character in column)
        # Another column may have the same suffix, also on disks without case.
        if suffix != column or suffix != suffix.lower():
            suffix += f"-{hashlib.blake2b(column.encode(), digest_size=6).hexdigest()}"
        count = partial(_count_list_elements, file, column)
        lengths.append(
            load_integers(file, file.path, suffix, count, cache, rebuild) if file.slow else count()
        )
    return np.concatenate(lengths)


def load_integers(
    file: IndexedFile | ColumnFile,
    path: Path,
    name: str,
    count: Callable[[], Ints],
    cache: str | Path | None,
    rebuild: bool,
    width: int = 1,
) -> Ints:
    """Return `width` integers for each row of a file, from a derived file that is made once.

    Args:
        file: The file.
        path: Its path.
        name: Identifies the integers among those of the file.
        count: Makes them.
        cache: Cache folder; by default they lie beside the file.
        rebuild: Make them again.
        width: Integers a row.
    """

    def make() -> tuple[int, bytes]:
        return len(file), count().astype("<i8").tobytes()

    counts = derived_files.place_index(Kind.LENGTHS, path, f"lengths-{name}", cache)
    target = derived_files.ensure(counts, make, rebuild=rebuild)
    rows, body = derived_files.read_body(target, Kind.LENGTHS, path, require_current=True)
    if rows != len(file) or len(body) != 8 * width * rows:
        raise derived_files.make_damage_error(target, path)
    return np.frombuffer(body, "<i8").astype(np.int64)


class _Announcement:
    """Announces once how many bytes are tokenized, before a long count; `paths` are all files."""

    def __init__(self, paths: Sequence[Path], tokens: TokenCounter) -> None:
        self._paths, self._tokens, self._announced = paths, tokens, False

    def of(self, number: int) -> Callable[[Progress], None]:
        """Return the function to call before counting the tokens of a file."""

        def announce(progress: Progress) -> None:
            if self._announced:
                return
            self._announced, paths = True, self._paths[number:]
            size = sum(storage.world.store.stat(str(path)).size for path in paths)
            if size < _MIN_ANNOUNCED_BYTES:
                return
            others = len(paths) - 1
            frequency = (
                "once: the counts are kept beside the data"
                if self._tokens.lasting
                else "every time it is opened"
            )
            progress.announce(
                f"the tokens of {paths[0].name}{f' and {others:,} more files' if others else ''} "
                f"({size / 1e6:,.0f} MB) have to be counted by tokenizing them, {frequency}"
            )

        return announce


def _count_file_tokens(
    file: IndexedFile,
    path: Path,
    reading: str,
    tokens: TokenCounter,
    cache: str | Path | None,
    rebuild: bool,
    announce: Callable[[Progress], None],
) -> Ints:
    def count() -> Ints:
        counts = np.zeros(len(file), np.int64)
        with Progress(f"count the tokens of {path.name}", len(file), "rows") as progress:
            announce(progress)
            for start in range(0, len(file), _ROWS_PER_CALL):
                rows = np.arange(start, min(start + _ROWS_PER_CALL, len(file)))
                counts[rows] = _count_row_tokens(file.read(rows), start, path, tokens)
                progress.more(len(rows))
        return counts

    if not tokens.lasting:
        return count()
    return load_integers(
        file,
        path,
        hashlib.blake2b(f"{reading} {tokens.counted}".encode(), digest_size=8).hexdigest(),
        count,
        cache,
        rebuild,
    )


def _count_row_tokens(
    samples: list[Any], start: int, path: Path, tokens: TokenCounter
) -> list[int]:
    try:
        return tokens.counts(samples)
    except (ConfigError, StorageError, ImportError, MemoryError):
        raise
    except Exception:
        for row, sample in enumerate(samples, start):
            try:
                tokens.counts([sample])
            except (ConfigError, StorageError, ImportError, MemoryError):
                raise
            except Exception as error:
                location = f"{path}, row {row}"
                raise DataError(
                    f"{error}; leave the row out by where=, or mend it", where=location
                ) from error
        raise


def _count_list_elements(file: ColumnFile, column: str) -> Ints:
    compute: Any = import_arrow("pyarrow.compute")
    types: Any = import_arrow("pyarrow.types")
    pieces = [np.zeros(0, np.int64)]
    with Progress(f"read lengths of {column} of {file.path.name}", len(file), "rows") as progress:
        for piece in file.column(column):
            piece_type = piece.type
            if not (
                types.is_list(piece_type)
                or types.is_large_list(piece_type)
                or types.is_fixed_size_list(piece_type)
            ):
                raise ConfigError(
                    f"{file.path}: lengths={column!r}: the column holds {piece_type}, not lists"
                )
            if piece.null_count:
                raise DataError(
                    f"column {column!r} has rows without a list: fill or drop them",
                    where=str(file.path),
                )
            pieces.append(
                compute.list_value_length(piece).to_numpy(zero_copy_only=False).astype(np.int64)
            )
            progress.more(len(piece))
    return np.concatenate(pieces)
