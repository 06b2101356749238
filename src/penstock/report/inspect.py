"""Search for samples by name or content, and documents shared by two mixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.arguments import join_first, suggest_names
from penstock.engine.base.progress import Progress
from penstock.engine.base.random import derive_key
from penstock.engine.base.row_files import as_row_files
from penstock.engine.steps.op import Op
from penstock.engine.streams.function_call import Leaf
from penstock.errors import ConfigError
from penstock.plan import SampleKeys
from penstock.sources.digests import digest_memory
from penstock.types import Ints, is_source

from .target import Target

NAME_COLUMNS = ("__key__", "key", "id", "uid", "url", "doc_id", "document_id", "warc_record_id")
"""Columns that `find --name` searches by default."""

_ROWS_PER_READ = 1 << 13  # rows per read
_MAX_EXAMPLES = 5

HashWords = npt.NDArray[np.uint64]
RowPredicate = Callable[[Mapping[str, Any]], bool]


def find_by_name(
    target: Target, name_query: str, source: str | None = None
) -> Iterator[tuple[str, int]]:
    """Yield source and index of samples by name: `VALUE`, or `COLUMN=VALUE`.

    A column counts even if the mixture does not read it.

    Raises:
        ConfigError: if no row has the column.
    """
    column, separator, value = name_query.partition("=")
    columns = (column,) if separator and column.isidentifier() else NAME_COLUMNS
    value = value if len(columns) == 1 else name_query
    has_column = False

    def matches(row: Mapping[str, Any]) -> bool:
        nonlocal has_column
        names = [row[name] for name in columns if name in row]
        has_column = has_column or bool(names)
        return any(str(name) == value for name in names)

    yield from _search_sources(target, source, matches, columns)
    if not has_column:
        place = "the sources have" if source is None else f"{source!r} has"
        raise ConfigError(
            f"--name {name_query}: {place} no column {' or '.join(map(repr, columns))}; give the "
            "column that names the samples, as in --name COLUMN=VALUE"
        )


def find_by_words(
    target: Target, words: str, source: str | None = None
) -> Iterator[tuple[str, int]]:
    """Yield source and index of samples with `words` in a column."""

    def matches(row: Mapping[str, Any]) -> bool:
        return any(isinstance(value, str) and words in value for value in row.values())

    yield from _search_sources(target, source, matches)


def _search_sources(
    target: Target, source: str | None, matches: RowPredicate, columns: Sequence[str] = ()
) -> Iterator[tuple[str, int]]:
    """Yield source and index of matching rows; rows include `columns` where the files have them."""
    names = target.plan.sources
    if source is not None and source not in names:
        raise ConfigError(
            f"no source {source!r}{suggest_names(source, names) or f'; the mixture has {join_first(names)}'}"
        )
    for leaf in target.leaves:
        if source in (None, leaf.name) and is_source(leaf.source):
            opened = _open_columns(leaf.source, columns)
            for rows, values in _read_chunks(leaf.name, opened, np.arange(len(leaf.source))):
                for index, value in zip(rows.tolist(), values, strict=True):
                    if matches(
                        cast("Mapping[str, Any]", value)
                        if isinstance(value, Mapping)
                        else {"": value}
                    ):
                        yield leaf.name, index


def _open_columns(source: Any, columns: Sequence[str]) -> Any:
    """Return the source with all columns of its files, if it reads none of `columns`."""
    arguments = getattr(source, "open_arguments", None)
    if not columns or not len(source) or arguments is None or arguments.columns is None:
        return source
    (row,) = source.read(np.zeros(1, np.int64))
    if isinstance(row, Mapping) and any(name in row for name in columns):
        return source
    return source.reopen(columns=None, lengths=None)


def _read_chunks(name: str, source: Any, indices: Ints) -> Iterator[tuple[Ints, list[Any]]]:
    """Yield rows of a source in file order, in chunks."""
    assert is_source(source)
    with Progress(f"search {name}", len(indices), "rows") as progress:
        for start in range(0, len(indices), _ROWS_PER_READ):
            chunk = indices[start : start + _ROWS_PER_READ]
            yield chunk, source.read(chunk)
            progress.more(len(chunk))


@dataclass(frozen=True)
class DocumentLeak:
    """Documents that two sources share: their number and some examples."""

    here: str
    there: str
    documents: int
    examples: tuple[tuple[int, int], ...]


def leaks(one: Target, two: Target, by: str = "content") -> list[DocumentLeak]:
    """Return the documents that two mixtures may both deliver, largest groups first.

    Memory: eight bytes a document. Documents with equal hashes are read and compared.

    Args:
        one: A mixture.
        two: Another mixture.
        by: "content" (of a row), "row" (its file and number; nothing is read) or a column.

    Returns:
        The leaks by pair of sources.
    """
    names = _DocumentHashes(by)
    first_sources, second_sources = (
        [(leaf, *names.of(leaf, rows)) for leaf, rows in iter_sources(target)]
        for target in (one, two)
    )
    found = list[DocumentLeak]()
    for here, index, name in first_sources:
        for there, other, other_name in second_sources:
            _, first_rows, second_rows = cast(
                "tuple[HashWords, Ints, Ints]",
                np.intersect1d(name, other_name, return_indices=True),
            )
            pairs = list(zip(index[first_rows].tolist(), other[second_rows].tolist(), strict=True))
            pairs = (
                [pair for pair in pairs if names.equal(here, there, *pair)]
                if len(pairs) <= _ROWS_PER_READ
                else pairs
            )
            if pairs:
                found.append(
                    DocumentLeak(here.name, there.name, len(pairs), tuple(pairs[:_MAX_EXAMPLES]))
                )
    return sorted(found, key=lambda leak: -leak.documents)


def iter_sources(target: Target) -> Iterator[tuple[Leaf, Ints]]:
    """Yield every indexed source with the rows that its mixture may deliver."""
    for leaf in target.leaves:
        if is_source(leaf.source):
            op = _find_source_op(target.compiled, leaf.number)
            size = (
                len(leaf.source)
                if op is None or (op.size is None and not op.repeats)
                else op.period
            )
            if op is None:
                yield leaf, np.arange(size)
            else:
                yield leaf, np.unique(op.locate(np.arange(size)).index)


def _find_source_op(compiled: Op, leaf: int) -> Op | None:
    """Return the compiled step of a source below the mixture, with all its steps."""
    if compiled.leaf == leaf:
        return compiled
    return next(
        (
            source_op
            for input_op in compiled.inputs
            if leaf in input_op.leaves and (source_op := _find_source_op(input_op, leaf))
        ),
        None,
    )


class _DocumentHashes:
    """Identities of documents as 64-bit hashes."""

    def __init__(self, by: str) -> None:
        self.by, self._files = by, dict[Path, int]()

    def of(self, leaf: Leaf, rows: Ints) -> tuple[Ints, HashWords]:
        """Return the rows that have an identity, and the identities."""
        if self.by == "row":
            return rows, self._file_rows(leaf, rows)
        if self.by == "content":
            read = (
                _hash_documents(values) for _, values in _read_chunks(leaf.name, leaf.source, rows)
            )
            return rows, np.concatenate([np.zeros(0, np.uint64), *read])
        keys, names = SampleKeys(leaf.source, self.by), list[str | None]()
        with Progress(f"read {self.by} of {leaf.name}", len(rows), "rows") as progress:
            for start in range(0, len(rows), _ROWS_PER_READ):
                names += keys.of(rows[start : start + _ROWS_PER_READ])
                progress.tell(start)
        present = [position for position, name in enumerate(names) if name is not None]
        if len(rows) and not present:
            raise ConfigError(
                f"--by {self.by}: no row of {leaf.name} has this column; name another one"
            )
        return rows[present], np.asarray(
            [derive_key(names[position] or "") for position in present], np.uint64
        )

    def _file_rows(self, leaf: Leaf, rows: Ints) -> HashWords:
        source = as_row_files(leaf.source)
        if source is None:
            raise ConfigError(
                f"--by row: the files of the rows of {leaf.name} are unknown; use --by content"
            )
        numbers = np.asarray(
            [self._files.setdefault(path.resolve(), len(self._files)) for path in source.paths]
        )
        file, row = source.file_rows(rows)
        return (numbers[file].astype(np.uint64) << np.uint64(40)) | row.astype(np.uint64)

    def equal(self, here: Leaf, there: Leaf, a: int, b: int) -> bool:
        """Return True if two documents with equal hashes are equal."""
        if self.by != "content":
            return True
        assert is_source(here.source) and is_source(there.source)
        first_row, second_row = (
            here.source.read(np.asarray([a])),
            there.source.read(np.asarray([b])),
        )
        return digest_memory([_strip_keys(first_row[0])]) == digest_memory(
            [_strip_keys(second_row[0])]
        ) and len(repr(first_row)) == len(repr(second_row))


def _hash_documents(values: Sequence[Any]) -> HashWords:
    return np.asarray(
        [int(digest_memory([_strip_keys(value)]) or "0", 16) for value in values], np.uint64
    )


def _strip_keys(value: Any) -> Any:
    """Return the content of a row without its shard and key."""
    if not isinstance(value, dict):
        return value
    return {
        name: field
        for name, field in cast("dict[str, Any]", value).items()
        if name not in ("__shard__", "__key__")
    }
