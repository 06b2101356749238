"""Loss masks of documents, added up once: from the columns of files, or from objects in memory.

A token carries loss unless its `loss_mask` is 0 or its label is ignored, as `CausalLM` makes labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..engine.base.progress import Progress
from ..engine.base.rows import compute_bounds
from ..errors import ConfigError, DataError, make_no_value_error
from ..types import LOSS_MASKS, Flags, Ints, LossCounts
from .chain import IndexedFile, MeasuredFile
from .kinds import CompositeType, TypedFile
from .sizes import ColumnFile, load_integers

_DOCUMENTS = 1 << 12  # documents whose masks are read at a time


def load_loss_counts(
    file: ColumnFile, columns: Sequence[str], cache: str | Path | None, rebuild: bool = False
) -> LossCounts:
    """Return the loss counts of the rows of a file, which are stored beside it or in a cache.

    Args:
        file: The file.
        columns: Its columns of masks, of `LOSS_MASKS`; a token carries loss if all of them say so.
        cache: Cache folder; by default the counts lie beside the file.
        rebuild: Add them up again.

    Raises:
        DataError: A row has no mask, or masks of different lengths.
    """

    def make() -> Ints:
        counts = _count_file_masks(file, columns)
        return np.concatenate([counts.count, counts.first, counts.lead.astype(np.int64)])

    stored = load_integers(file, file.path, f"loss-{'-'.join(columns)}", make, cache, rebuild, 3)
    count, first, lead = stored.reshape(3, len(file))
    return LossCounts(count, first, lead.astype(np.bool_), tuple(columns))


def find_loss_counts(
    files: Sequence[IndexedFile], name: str, cache: str | Path | None, *, texts: bool = False
) -> LossCounts | None:
    """Return the loss counts of the rows of all files; `None` if all tokens carry loss.

    Args:
        files: The files.
        name: Name of the source, for errors.
        cache: Cache folder; by default the counts lie beside the files.
        texts: The rows are texts, whose tokens a counter counts.

    Raises:
        ConfigError: The format has no columns, so only reading the rows tells.
    """
    first = files[0] if len(files) else None
    if texts or first is None or isinstance(first, MeasuredFile):
        return None
    if not isinstance(first, ColumnFile):
        raise make_unknown_counts_error(name)
    masks = list_mask_columns(first)
    if not masks:
        return None
    column_files = cast("Sequence[ColumnFile]", files)
    return join_loss_counts([load_loss_counts(file, masks, cache) for file in column_files])


def list_mask_columns(file: object) -> list[str]:
    """Return the columns of a file that hold loss masks: lists named as in `LOSS_MASKS`."""
    if not isinstance(file, TypedFile):
        return []
    kinds = {name: file.types.get(name) for name in LOSS_MASKS}
    return [
        name
        for name, kind in kinds.items()
        if isinstance(kind, CompositeType) and kind.of == "list"
    ]


def join_loss_counts(parts: Sequence[LossCounts]) -> LossCounts:
    """Return the loss counts of several parts, at least one, as those of one source."""
    none = np.zeros(0, np.int64)
    return LossCounts(
        np.concatenate([none, *(part.count for part in parts)]),
        np.concatenate([none, *(part.first for part in parts)]),
        np.concatenate([none.astype(np.bool_), *(part.lead for part in parts)]),
        parts[0].masks,
    )


def measure_loss_counts(documents: Iterator[Sequence[Any]], name: str) -> LossCounts | None:
    """Add up the masks of documents in memory; return `None` if the first one has no mask.

    Args:
        documents: All documents, in chunks.
        name: Name of the source, for errors.
    """
    parts = list[LossCounts]()
    columns: list[str] | None = None
    for chunk in documents:
        if columns is None:
            columns = list_masks(chunk[0]) if len(chunk) else []
        if not columns:
            return None
        parts.append(_count_chunk(chunk, columns, name))
    return join_loss_counts(parts) if parts else None


def list_masks(document: Any) -> list[str]:
    """Return the names of the masks of a document: those of `LOSS_MASKS` that hold a sequence."""
    if not isinstance(document, Mapping):
        return []
    fields = cast("Mapping[str, Any]", document)
    return [name for name in LOSS_MASKS if name in fields and np.ndim(fields[name]) == 1]


def iter_chunks_of(read: Any, rows: int) -> Iterator[Sequence[Any]]:
    """Yield all rows of a source, some thousand at a time, with progress."""
    with Progress("add up loss masks", rows, "documents") as progress:
        for start in range(0, rows, _DOCUMENTS):
            yield read(np.arange(start, min(start + _DOCUMENTS, rows)))
            progress.tell(start)


def _count_chunk(chunk: Sequence[Any], columns: Sequence[str], name: str) -> LossCounts:
    flags: Flags | None = None
    bounds = np.zeros(1, np.int64)
    for column in columns:
        try:
            masks: list[npt.NDArray[Any]] = [np.asarray(document[column]) for document in chunk]
            found = np.concatenate(masks) != LOSS_MASKS[column]
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"a document has no vector {column!r}, which others have; give all documents of the "
                "source the same masks",
                where=name,
            ) from error
        sizes = compute_bounds(np.asarray([len(mask) for mask in masks]))
        if flags is not None and not np.array_equal(sizes, bounds):
            raise _make_size_error(columns, name)
        bounds, flags = sizes, found if flags is None else flags & found
    assert flags is not None
    return LossCounts.of(flags, bounds, tuple(columns))


def _count_file_masks(file: ColumnFile, columns: Sequence[str]) -> LossCounts:
    pieces, counts = [list[tuple[Flags, Ints]]() for _ in columns], list[LossCounts]()
    with Progress(f"add up loss masks of {file.path.name}", len(file), "rows") as progress:
        for column, listed in zip(columns, pieces, strict=True):
            for piece in file.column(column):
                flags, sizes = _flag_lists(piece, column, file.path)
                if len(columns) == 1:  # the masks of a whole file may not fit into memory
                    counts.append(LossCounts.of(flags, compute_bounds(sizes), tuple(columns)))
                else:
                    listed.append((flags, sizes))
                progress.more(len(piece) // len(columns))
    if counts:
        return join_loss_counts(counts)
    flags, sizes = _join_flags(pieces[0])
    for listed in pieces[1:]:
        more, others = _join_flags(listed)
        if not np.array_equal(others, sizes):
            raise _make_size_error(columns, str(file.path))
        flags = flags & more
    return LossCounts.of(flags, compute_bounds(sizes), tuple(columns))


def _join_flags(pieces: Sequence[tuple[Flags, Ints]]) -> tuple[Flags, Ints]:
    return (
        np.concatenate([np.zeros(0, np.bool_), *(flags for flags, _ in pieces)]),
        np.concatenate([np.zeros(0, np.int64), *(sizes for _, sizes in pieces)]),
    )


def _flag_lists(piece: Any, column: str, path: Path) -> tuple[Flags, Ints]:
    """Return whether each token of lists carries loss, end to end, and the sizes of the lists."""
    compute: Any = import_arrow("pyarrow.compute")
    values = piece.flatten()
    if piece.null_count or values.null_count:
        raise make_no_value_error(column, str(path))
    sizes = compute.list_value_length(piece).to_numpy(zero_copy_only=False)
    return values.to_numpy(zero_copy_only=False) != LOSS_MASKS[column], sizes.astype(np.int64)


def _make_size_error(columns: Sequence[str], where: str) -> DataError:
    return DataError(
        f"{' and '.join(columns)} of a document differ in length; give each token one of each",
        where=where,
    )


def make_unknown_counts_error(name: str) -> ConfigError:
    """Return the error of a source whose rows must be read to know which tokens carry loss."""
    return ConfigError(
        f"the tokens of {name!r} that carry loss are known only by reading its documents; write "
        "them to Parquet with a column of lists loss_mask, or let penstock tokenize write them"
    )
