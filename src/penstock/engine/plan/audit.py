"""Every sample of a range of global steps, one line each: its rank, file, row and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...types import Flags, Ints
from ..base.columnar import import_arrow
from ..base.progress import Progress
from ..base.row_files import SampleKeys, as_row_files
from ..base.rows import ProvenanceRows, compute_bounds
from ..base.urls import require_local
from ..ops.op import Op
from ..runtime.step_log import DealtSteps, StepRecord
from ..streams.step import Leaf
from .lines import writer
from .steps import rows_dealt

COLUMNS = (
    "step",
    "rank",
    "row",
    "source",
    "epoch",
    "index",
    "key",
    "file",
    "row_in_file",
    "start",
    "stop",
)


@dataclass(frozen=True, eq=False)
class Taken:
    """The samples of some steps, one entry for a sample or part, by rank and row."""

    step: Ints
    rank: Ints
    row: Ints
    leaf: Ints
    epoch: Ints
    index: Ints
    start: Ints | None
    stop: Ints | None


class Audit:
    """The lines of `plan.audit`, as record batches, as a table, or written to a file.

    Lines are made a few steps at a time. Users call `ds.plan.audit(range(...))`.

    >>> import penstock as ps
    >>> lines = ps.from_sequence("abcdef", name="letters").batch(2).plan.audit(range(3))
    >>> lines.table().select(["step", "row", "source", "index"]).to_pylist()[-1]
    {'step': 2, 'row': 1, 'source': 'letters', 'index': 5}
    """

    def __init__(self, walk: Walk, leaves: list[Leaf], key: str | None) -> None:
        self._walk, self._leaves, self._key = walk, leaves, key

    @property
    def steps(self) -> range:
        """The global steps of the audit."""
        return self._walk.steps

    @cached_property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the lines."""
        pa = import_arrow()
        named = pa.dictionary(pa.int32(), pa.string())
        kinds = {"source": named, "file": named, "key": pa.string()}
        return pa.schema([(name, kinds.get(name, pa.int64())) for name in COLUMNS])

    def batches(self) -> Iterator[Any]:
        """Yield the lines as `pyarrow.RecordBatch`es, in constant memory.

        >>> import penstock as ps
        >>> sum(len(batch) for batch in ps.from_sequence("abcdef").plan.audit(range(6)).batches())
        6
        """
        for taken in self._walk.stretches():
            yield self._batch(taken)

    def stretches(self) -> Iterator[Taken]:
        """The samples as columns of numbers, some steps at a time."""
        return self._walk.stretches()

    def table(self) -> Any:
        """Return all lines as a `pyarrow.Table`.

        >>> import penstock as ps
        >>> ps.from_sequence("abcdef", name="letters").plan.audit(range(2, 4)).table()["index"].to_pylist()
        [2, 3]
        """
        return import_arrow().Table.from_batches(list(self.batches()), self.schema)

    def write(self, path: str | Path) -> int:
        """Write the lines to a file atomically, and return how many there are.

        Args:
            path: a file that ends in .parquet, .arrow, .csv or .jsonl.

        Raises:
            ConfigError: the file has another ending.

        >>> import tempfile, penstock as ps
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ps.from_sequence("abcdef").plan.audit(range(6)).write(f"{folder}/steps.csv")
        6
        """
        lines = 0
        with (
            writer(require_local(path), self.schema) as write,
            Progress("audit", len(self.steps), "steps") as progress,
        ):
            for taken in self._walk.stretches(progress.more):
                write(self._batch(taken))
                lines += len(taken.step)
        return lines

    # ------------------------------------------------------------ inside

    @cached_property
    def _files(self) -> tuple[list[Any], list[str], Ints]:
        """Return the file index of each leaf, all files, and the first file of each leaf."""
        known = [as_row_files(leaf.source) for leaf in self._leaves]
        paths = [[str(path) for path in source.paths] if source else [] for source in known]
        return (
            known,
            [path for some in paths for path in some],
            compute_bounds(np.asarray([len(some) for some in paths])),
        )

    @cached_property
    def _keys(self) -> list[SampleKeys]:
        return [SampleKeys(leaf.source, self._key) for leaf in self._leaves] if self._key else []

    def _batch(self, taken: Taken) -> Any:
        pa = import_arrow()
        file, row = self._lying(taken)
        gone = file < 0
        none = pa.nulls(len(taken.step), pa.int64())
        columns = {
            "step": taken.step,
            "rank": taken.rank,
            "row": taken.row,
            "source": _named(taken.leaf, self._names),
            "epoch": taken.epoch,
            "index": taken.index,
            "key": self._keys_of(taken),
            "file": _named(np.where(gone, 0, file), self._paths, gone),
            "row_in_file": pa.array(row, mask=gone),
            "start": none if taken.start is None else taken.start,
            "stop": none if taken.stop is None else taken.stop,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(column) for column in columns.values()], schema=self.schema
        )

    @cached_property
    def _names(self) -> Any:
        return import_arrow().array([leaf.name for leaf in self._leaves], import_arrow().string())

    @cached_property
    def _paths(self) -> Any:
        return import_arrow().array(self._files[1] or [""], import_arrow().string())

    def _lying(self, taken: Taken) -> tuple[Ints, Ints]:
        """Return the file number (-1 if unknown) and the row in the file of each line."""
        known, _, first = self._files
        file, row = np.full(len(taken.leaf), -1), np.zeros(len(taken.leaf), np.int64)
        for leaf, mine in by_leaf(taken.leaf):
            if (source := known[leaf]) is not None:
                part, row[mine] = source.file_rows(taken.index[mine])
                file[mine] = part + first[leaf]
        return file, row

    def _keys_of(self, taken: Taken) -> Any:
        if not self._keys:
            return import_arrow().nulls(len(taken.step), import_arrow().string())
        out: Any = np.full(len(taken.step), None, object)
        for leaf, mine in by_leaf(taken.leaf):
            out[mine] = self._keys[leaf].of(taken.index[mine])
        return import_arrow().array(out, import_arrow().string())


def _named(numbers: Ints, texts: Any, gone: Flags | None = None) -> Any:
    pa = import_arrow()
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=gone), texts)


def by_leaf(leaf: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each leaf with the places at which it occurs."""
    order = np.argsort(leaf, kind="stable")
    cuts = np.flatnonzero(np.diff(leaf[order])) + 1
    for mine in np.split(order, cuts) if len(leaf) else ():
        yield int(leaf[mine[0]]), mine


@dataclass(frozen=True, eq=False)
class Walk:
    """A traversal of global steps: `located` gives the samples of rows, `parted` their tokens."""

    op: Op
    log: tuple[StepRecord, ...]
    steps: range
    located: Callable[[Ints], ProvenanceRows]
    parted: Callable[[ProvenanceRows], tuple[Ints | None, Ints | None]]

    def stretches(self, done: Callable[[int], object] | None = None) -> Iterator[Taken]:
        """The samples of all steps, some steps at a time; `done` is told of how many more."""
        for dealt in rows_dealt(self.op, self.log, self.steps):
            yield self._taken(dealt)
            if done is not None:
                done(len(dealt.steps))

    def _taken(self, dealt: DealtSteps) -> Taken:
        rows, ranks = dealt.rows.ravel(), dealt.ranks
        order = np.argsort(rows, kind="stable") if len(ranks) and ranks[-1] else None
        found = self.located(rows if order is None else rows[order])
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            found = found.take(back)
        many = np.diff(found.firsts())
        start, stop = self.parted(found)
        return Taken(
            np.repeat(np.repeat(dealt.steps, len(ranks)), many),
            np.repeat(np.tile(ranks, len(dealt.steps)), many),
            np.repeat(np.tile(dealt.places, len(dealt.steps)), many),
            found.leaf,
            found.epoch,
            found.index,
            start,
            stop,
        )
