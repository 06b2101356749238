"""How many tokens every row has, known without reading the rows: what packing ahead of time needs.
They are the lengths of the lists of a column, or what a tokenizer makes of texts, counted once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..engine.base import seams
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError, StorageError
from ..types import Ints
from . import sidecar
from .chain import Counts, File
from .rows import arrow

_AT_ONCE = 1 << 10  # rows that are tokenised at a call
_LARGE = 4 << 20  # bytes whose tokens take seconds to count


@runtime_checkable
class Listed(Protocol):
    """A file that can give one column by itself, piece by piece. `slow` where that means decoding
    all of it."""

    path: Path
    slow: bool

    def __len__(self) -> int: ...
    def column(self, name: str, /) -> Iterator[Any]: ...


@sidecar.one_log_line()
def lengths_of(
    files: Sequence[File],
    column: str | Counts,
    cache: str | Path | None,
    rebuild: bool = False,
    paths: Sequence[Path] = (),
) -> Ints:
    """The number of elements of `column` in every row, or of tokens that are made of it:
    int64[rows].

    Where finding out means decoding the column, or tokenising, the answer is kept beside the file
    (in `paths`, where the files do not say) or in `cache`, checked against the file's size and
    time, or made anew with `rebuild`.
    """
    found = [np.zeros(0, np.int64)]
    if not isinstance(column, str):
        each = enumerate(zip(files, paths, strict=True))
        announcing = _Announcing(paths, column)
        return np.concatenate(
            [
                *found,
                *(
                    _tokens(file, path, column, cache, rebuild, announcing.of(n))
                    for n, (file, path) in each
                ),
            ]
        )
    for file in files:
        if not isinstance(file, Listed):
            raise ConfigError(
                f"lengths={column!r}: only Parquet and Arrow files tell the lengths of a column's "
                "lists without being "
                "read; write the tokens into one of these"
            )
        known = "".join(c if c.isalnum() else "-" for c in column)
        if (
            known != column or known != known.lower()
        ):  # other columns may be spelled alike, as on disks without case
            known += f"-{hashlib.blake2b(column.encode(), digest_size=6).hexdigest()}"
        count = partial(_counted, file, column)
        found.append(_kept(file, file.path, known, count, cache, rebuild) if file.slow else count())
    return np.concatenate(found)


def _kept(
    file: File,
    path: Path,
    known: str,
    count: Callable[[], Ints],
    cache: str | Path | None,
    rebuild: bool,
) -> Ints:
    what = f"lengths-{known}"

    def make(_: bool) -> tuple[int, bytes]:
        return len(file), count().astype("<i8").tobytes()

    place, otherwise = (
        sidecar.index_path(path, cache, what),
        sidecar.cached_index_path(path, cache, what),
    )
    kept = sidecar.ensure(place, sidecar.LENGTHS, path, make, fallback=otherwise, rebuild=rebuild)
    rows, body = sidecar.read_body(kept, sidecar.LENGTHS, path, require_current=True)
    if rows != len(file):
        raise sidecar.damaged(kept, path)
    return np.frombuffer(body, "<i8").astype(np.int64)


class _Announcing:
    """Says once, before tokens of many bytes are counted, how many bytes there are. `paths` are all
    files in order."""

    def __init__(self, paths: Sequence[Path], tokens: Counts) -> None:
        self._paths, self._tokens, self._said = paths, tokens, False

    def of(self, number: int) -> Callable[[Progress], None]:
        """Return the function to call before the tokens of a file are counted."""

        def announce(progress: Progress) -> None:
            if self._said:
                return
            self._said, paths = True, self._paths[number:]
            size = sum(seams.world.store.stat(str(path)).size for path in paths)
            if size < _LARGE:
                return
            more = len(paths) - 1
            kept = (
                "once: the counts are kept beside the data"
                if self._tokens.lasting
                else "every time it is opened"
            )
            progress.announce(
                f"the tokens of {paths[0].name}{f' and {more:,} more files' if more else ''} "
                f"({size / 1e6:,.0f} MB) "
                f"have to be counted by tokenising them, {kept}"
            )

        return announce


def _tokens(
    file: File,
    path: Path,
    tokens: Counts,
    cache: str | Path | None,
    rebuild: bool,
    announce: Callable[[Progress], None],
) -> Ints:
    def count() -> Ints:
        found = np.zeros(len(file), np.int64)
        with Progress(f"count the tokens of {path.name}", len(file), "rows") as progress:
            announce(progress)
            for start in range(0, len(file), _AT_ONCE):
                rows = np.arange(start, min(start + _AT_ONCE, len(file)))
                found[rows] = _of_rows(file.read(rows), start, path, tokens)
                progress.more(len(rows))
        return found

    if not tokens.lasting:
        return count()
    return _kept(
        file,
        path,
        hashlib.blake2b(tokens.counted.encode(), digest_size=8).hexdigest(),
        count,
        cache,
        rebuild,
    )


def _of_rows(samples: list[Any], start: int, path: Path, tokens: Counts) -> list[int]:
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
                where = f"{path}, row {row}"
                raise DataError(
                    f"{error}; leave the row out by where=, or mend it", where=where
                ) from error
        raise


def _counted(file: Listed, column: str) -> Ints:
    compute: Any = arrow("pyarrow.compute")
    types: Any = arrow("pyarrow.types")
    pieces = [np.zeros(0, np.int64)]
    with Progress(f"read lengths of {column} of {file.path.name}", len(file), "rows") as progress:
        for piece in file.column(column):
            kind = piece.type
            if not (
                types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
            ):
                raise ConfigError(
                    f"{file.path}: lengths={column!r}: the column holds {kind}, not lists"
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
