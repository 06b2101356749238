"""Samples by what they hold: by a name they carry, by words in them, and those that two mixtures
have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.engine.base.hints import few, near
from penstock.engine.base.progress import Progress
from penstock.engine.base.random import key_of
from penstock.engine.ops.op import Op
from penstock.engine.streams.step import Leaf
from penstock.errors import ConfigError
from penstock.sources.identity import content
from penstock.sources.row_files import SampleKeys, row_files_of
from penstock.types import Ints, is_source

from .target import Target

NAMES = ("__key__", "key", "id", "uid", "url", "doc_id", "document_id", "warc_record_id")
"""The columns in which samples are looked for by a name, where none is said."""

_ROWS = 1 << 13  # rows that are read together
_SHOWN = 5  # pairs

Words = npt.NDArray[np.uint64]
Fits = Callable[[Mapping[str, Any]], bool]


def by_name(target: Target, asked: str, source: str | None = None) -> Iterator[tuple[str, int]]:
    """Source and index of every sample that carries a name: `VALUE`, or `COLUMN=VALUE`."""
    column, sign, value = asked.partition("=")
    columns = (column,) if sign and column.isidentifier() else NAMES
    value = value if len(columns) == 1 else asked

    def fits(row: Mapping[str, Any]) -> bool:
        return any(str(row[name]) == value for name in columns if name in row)

    yield from _looked(target, source, fits)


def by_words(target: Target, words: str, source: str | None = None) -> Iterator[tuple[str, int]]:
    """Source and index of every sample that holds some words in a row or in one of its columns."""

    def fits(row: Mapping[str, Any]) -> bool:
        return any(isinstance(value, str) and words in value for value in row.values())

    yield from _looked(target, source, fits)


def _looked(target: Target, source: str | None, fits: Fits) -> Iterator[tuple[str, int]]:
    names = target.plan.sources
    if source is not None and source not in names:
        raise ConfigError(
            f"no source {source!r}{near(source, names) or f'; the mixture has {few(names)}'}"
        )
    for leaf in target.leaves:
        if source in (None, leaf.name) and is_source(leaf.source):
            for rows, values in _read(leaf, np.arange(len(leaf.source))):
                for index, value in zip(rows.tolist(), values, strict=True):
                    if fits(
                        cast("Mapping[str, Any]", value)
                        if isinstance(value, Mapping)
                        else {"": value}
                    ):
                        yield leaf.name, index


def _read(leaf: Leaf, indices: Ints) -> Iterator[tuple[Ints, list[Any]]]:
    """The rows of a source as they lie in its files, some at a time."""
    assert is_source(leaf.source)
    with Progress(f"look through {leaf.name}", len(indices), "rows") as progress:
        for start in range(0, len(indices), _ROWS):
            some = indices[start : start + _ROWS]
            yield some, leaf.source.read(some)
            progress.more(len(some))


@dataclass(frozen=True)
class Leak:
    """Documents that a source of one mixture and a source of another have in common: how many, and
    some of them."""

    here: str
    there: str
    documents: int
    examples: tuple[tuple[int, int], ...]


def leaks(one: Target, two: Target, by: str = "content") -> list[Leak]:
    """The documents that two mixtures may both give, the most first.

    `by` is "content", what a row holds; "place", its file and the row in it, for which nothing is
    read; or a column. Eight bytes a document are kept. Documents that seem to be equal are read and
    compared.
    """
    names = _Names(by)
    mine, theirs = (
        [(leaf, *names.of(leaf, rows)) for leaf, rows in drawn(target)] for target in (one, two)
    )
    found = list[Leak]()
    for here, index, name in mine:
        for there, other, other_name in theirs:
            _, a, b = cast(
                "tuple[Words, Ints, Ints]", np.intersect1d(name, other_name, return_indices=True)
            )
            pairs = list(zip(index[a].tolist(), other[b].tolist(), strict=True))
            pairs = (
                [pair for pair in pairs if names.equal(here, there, *pair)]
                if len(pairs) <= _ROWS
                else pairs
            )
            if pairs:
                found.append(Leak(here.name, there.name, len(pairs), tuple(pairs[:_SHOWN])))
    return sorted(found, key=lambda leak: -leak.documents)


def drawn(target: Target) -> Iterator[tuple[Leaf, Ints]]:
    """Every source that knows its rows, and those that its mixture may give."""
    for leaf in target.leaves:
        if is_source(leaf.source):
            op = _alone(target.op, leaf.number)
            size = (
                len(leaf.source) if op is None or (op.size is None and not op.alike) else op.period
            )
            if op is None:
                yield leaf, np.arange(size)
            else:
                yield leaf, np.unique(op.locate(np.arange(size), np.zeros(size, np.int64)).index)


def _alone(op: Op, leaf: int) -> Op | None:
    """The whole of what is done to a source before it is mixed."""
    if op.leaf == leaf:
        return op
    return next(
        (found for each in op.inputs if leaf in each.leaves and (found := _alone(each, leaf))), None
    )


class _Names:
    """What documents are told apart by, as 64 bits each."""

    def __init__(self, by: str) -> None:
        self.by, self._files = by, dict[Path, int]()

    def of(self, leaf: Leaf, rows: Ints) -> tuple[Ints, Words]:
        """The rows that have a name, and the names."""
        if self.by == "place":
            return rows, self._places(leaf, rows)
        if self.by == "content":
            read = (_digests(values) for _, values in _read(leaf, rows))
            return rows, np.concatenate([np.zeros(0, np.uint64), *read])
        keys, names = SampleKeys(leaf.source, self.by), list[str | None]()
        with Progress(f"read {self.by} of {leaf.name}", len(rows), "rows") as progress:
            for start in range(0, len(rows), _ROWS):
                names += keys.of(rows[start : start + _ROWS])
                progress.tell(start)
        there = [place for place, name in enumerate(names) if name is not None]
        if len(rows) and not there:
            raise ConfigError(f"--by {self.by}: no row of {leaf.name} has such a column")
        return rows[there], np.asarray([key_of(names[place] or "") for place in there], np.uint64)

    def _places(self, leaf: Leaf, rows: Ints) -> Words:
        source = row_files_of(leaf.source)
        if source is None:
            raise ConfigError(
                f"--by place: {leaf.name} does not tell in which files its rows lie; use --by "
                "content"
            )
        numbers = np.asarray(
            [self._files.setdefault(path.resolve(), len(self._files)) for path in source.paths]
        )
        file, row = source.file_rows(rows)
        return (numbers[file].astype(np.uint64) << np.uint64(40)) | row.astype(np.uint64)

    def equal(self, here: Leaf, there: Leaf, a: int, b: int) -> bool:
        """Whether two documents of one name are equal."""
        if self.by != "content":
            return True
        assert is_source(here.source) and is_source(there.source)
        one, two = here.source.read(np.asarray([a])), there.source.read(np.asarray([b]))
        return content([_bare(one[0])]) == content([_bare(two[0])]) and len(repr(one)) == len(
            repr(two)
        )


def _digests(values: Sequence[Any]) -> Words:
    return np.asarray([int(content([_bare(value)]) or "0", 16) for value in values], np.uint64)


def _bare(value: Any) -> Any:
    """What a row holds, without where it lies."""
    if not isinstance(value, dict):
        return value
    return {
        name: each
        for name, each in cast("dict[str, Any]", value).items()
        if name not in ("__shard__", "__key__")
    }
