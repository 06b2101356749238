"""Functions of steps, bound and called once a sample, and the errors of failed samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from ...arrays.columnar import ColumnarSamples, ColumnwiseFunction
from ...arrays.trees import collate
from ...errors import ConfigError, DataError, Skip, is_missing_file, replace_stop_iteration
from ...types import Shards, Source, Transform, Vectorised
from ..base.fallback import log_fallback
from ..base.groups import collate_each
from ..base.machine import read_cpu_seconds
from ..base.row_files import locate_row
from ..base.rows import ProvenanceRows, compute_bounds
from ..base.seams import world
from .budget import estimate_total_bytes
from .profiler import SEVERAL_SOURCES, Profiler


def to_list(values: Sequence[Any]) -> list[Any]:
    """Return values as a list, converting columns and groups of columns."""
    if isinstance(values, ColumnarSamples):
        return list(values)
    if values and isinstance(values[0], ColumnarSamples):
        return [list(value) if isinstance(value, ColumnarSamples) else value for value in values]
    return values if isinstance(values, list) else list(values)


class SampleFailure(Exception):
    """Raised for a sample that could not be read or computed.

    `grouped` is true if it was part of a group.
    """

    def __init__(
        self, leaf: int, epoch: int, index: int, cause: Exception, grouped: bool = False
    ) -> None:
        super().__init__(leaf, epoch, index, cause, grouped)
        self.leaf = leaf
        self.epoch = epoch
        self.index = index
        self.cause = cause
        self.grouped = grouped


class ResultCountError(ConfigError):
    """Raised if a function of many samples returned another number of results; no sample is the
    cause.
    """


def make_sample_failure(
    rows: ProvenanceRows, flat: int, error: Exception, grouped: bool = False
) -> SampleFailure:
    """Return the failure of one sample; an error that names its sample is returned unchanged."""
    if isinstance(error, SampleFailure):
        return error
    return SampleFailure(
        int(rows.leaf[flat]),
        int(rows.epoch[flat]),
        int(rows.index[flat]),
        replace_stop_iteration(error),
        grouped,
    )


@dataclass(frozen=True)
class Leaf:
    """A source of a compiled tree: its number, its full name, the random key of that name, and
    itself.
    """

    number: int
    name: str
    key: int
    source: Source | Shards


def as_sample_error(error: Exception) -> Exception:
    """Return a `DataError` for a missing file that a sample names; any other error unchanged."""
    if not is_missing_file(error):
        return error
    made = DataError(f"the sample names a file that does not exist: {error}")
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)


def locate_cause(failure: SampleFailure, leaves: Sequence[Leaf]) -> Exception:
    """Return the error of a failed sample; a `DataError` names its file and row."""
    cause = failure.cause
    if isinstance(cause, DataError) and not failure.grouped:
        if (lies := locate_row(leaves[failure.leaf].source, failure.index)) is not None:
            cause.locate(str(lies[0]), lies[1])
    return cause


@dataclass
class UnitItems:
    """The items of a unit after the steps applied so far.

    `origin` has the item of the unit that each came from, None while they are the same. `size` is
    the largest number of bytes measured so far.
    """

    values: Sequence[Any]
    rows: ProvenanceRows
    origin: list[int] | None = None
    size: float = 0.0

    def keep(self, which: list[int]) -> None:
        """Drop all items but these."""
        if len(which) == len(self.values):
            return
        self.values = [self.values[i] for i in which]
        self.rows = self.rows.take(np.asarray(which, np.int64))
        self.origin = which if self.origin is None else [self.origin[i] for i in which]

    def expand(self) -> None:
        """Replace every item, a list, by its entries, and number the parts of each row."""
        counts = np.asarray([len(value) for value in self.values], np.int64)
        source = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(source)) - compute_bounds(counts)[source] + 1
        rows = self.rows.take(source)
        self.rows = replace(
            rows, part=rows.part * 1_000_003 + np.repeat(piece, np.diff(rows.firsts()))
        )
        self.values = [entry for value in self.values for entry in value]
        self.origin = (
            source.tolist() if self.origin is None else [self.origin[i] for i in source.tolist()]
        )


@dataclass
class FunctionCall:
    """The function of a step, bound for an era and called once a sample.

    Each step derives a class from this one, which says what the function receives beside a sample
    and what its results do to the items. `mark` numbers the step among those that mark rows.
    `grouped` is true over batches or packed rows. With a clock, times are noted under `name`.
    """

    drops: ClassVar[bool] = False
    """True if the number of items depends on the results."""
    expands: ClassVar[bool] = False
    """True if a sample may become several items."""
    needs_index: ClassVar[bool] = False
    """True if the function receives the number of the sample in its pass."""
    takes_value_alone: ClassVar[bool] = True
    """True if the function receives nothing beside the sample."""
    vectorises: ClassVar[bool] = False
    """True if `fn.many`, if it exists, replaces the calls for many samples."""
    may_skip: ClassVar[bool] = False
    """True if a result may be a `Skip`."""

    fn: Transform
    key: int
    mark: int
    leaves: Sequence[Leaf]
    grouped: bool = False
    profiler: Profiler | None = None
    name: str = ""

    def __post_init__(self) -> None:
        fn: object = self.fn
        self._columnwise = fn is collate or isinstance(fn, ColumnwiseFunction)
        self.many: Callable[[Any], Sequence[Any]] | None = None
        if self.vectorises:  # protocols are slow to ask
            vectorised = callable(getattr(fn, "many", None))
            self.many = cast(Vectorised, fn).many if vectorised else None
            if fn is collate:
                self.many = collate_each

    def run(self, items: UnitItems) -> None:
        """Replace the items of a unit by the results."""
        if self.drops:  # the results no longer show how much memory the samples took
            items.size = max(items.size, estimate_total_bytes(items.values))
        self.collect(self.apply(items.values, items.rows), items)

    def collect(self, results: Sequence[Any], items: UnitItems) -> None:
        """Turn the result of each call into items."""
        items.values = results

    def apply(self, values: Sequence[Any], rows: ProvenanceRows) -> Sequence[Any]:
        """Return the result of the function for every value. An exception names the sample."""
        if not self._columnwise:
            values = to_list(values)
        try:
            out = self._timed(values, rows) if self.profiler else self._all(values, rows)
            if self.many and len(out) != len(values):
                name = getattr(self.many, "__qualname__", "many")
                raise ResultCountError(
                    f"{name} gave {len(out)} results for {len(values)} samples; return one for each"
                )
            if self.many and isinstance(out, list):
                self._require_kept(*out)
            return out
        except ResultCountError:
            raise
        except Exception as error:
            bound = self.bind(rows)
            each = [self._one(bound(i), values, rows, i) for i in range(len(values))]
            if self.many and len(values) > 1:
                log_fallback(self.name, error)
            return each

    def _require_kept(self, *results: Any) -> None:
        """Raise the first `Skip` of some results, if each sample must have one."""
        if not self.may_skip:
            for skip in [result for result in results if isinstance(result, Skip)]:
                raise skip

    def _all(self, values: Sequence[Any], rows: ProvenanceRows) -> Sequence[Any]:
        if many := self.bind_many(rows):
            return many(values)
        if self.takes_value_alone:
            out = list(map(self.fn, values))
            if len(out) < len(values):
                raise StopIteration  # which a function raised: to `map` that is the end
            return out
        bound = self.bind(rows)
        return [bound(i)(value) for i, value in enumerate(values)]

    def _timed(self, values: Sequence[Any], rows: ProvenanceRows) -> Sequence[Any]:
        """Apply the function and note the seconds of each call."""
        bound, out, now = self.bind(rows), cast("Sequence[Any]", []), world.sched.now
        names = [leaf.name for leaf in self.leaves]
        processor, times, profiler = read_cpu_seconds(), [now()], cast("Profiler", self.profiler)
        with profiler.track(self.name, names, rows) as mark:
            if many := self.bind_many(rows):
                out = many(values)
                times = np.linspace(times[0], now(), len(values) + 1).tolist()
            else:
                results = list[Any]()
                for mark.item, value in enumerate(values):
                    results.append(bound(mark.item)(value))
                    mark.since = now()
                    times.append(mark.since)
                out = results
        source = rows.leaf[rows.firsts()[:-1]]
        if self.grouped and (rows.leaf != rows.leaf[:1]).any():
            names, source = [SEVERAL_SOURCES], np.zeros_like(source)
        profiler.record(
            self.name, names, source, np.diff(times).tolist(), read_cpu_seconds() - processor
        )
        return out

    def _one(
        self, call: Callable[[Any], Any], values: Sequence[Any], rows: ProvenanceRows, i: int
    ) -> Any:
        try:
            out = (
                self.many(values[i : i + 1])[0]
                if self.many and self._columnwise
                else call(values[i])
            )
            self._require_kept(out)
            return out
        except Exception as error:
            error = make_skip_error(error) if isinstance(error, Skip) else as_sample_error(error)
            part = error.part if isinstance(error, DataError) else ()
            raise make_sample_failure(rows, rows.first_of(i, part), error, self.grouped) from error

    def bind(self, rows: ProvenanceRows) -> Callable[[int], Callable[[Any], Any]]:
        """Return, for the i-th item, the function of its value alone."""
        fn = self.fn
        return lambda i: fn

    def bind_many(self, rows: ProvenanceRows) -> Callable[[Any], Sequence[Any]] | None:
        """Return the function of many values alone; None if there is none."""
        return self.many


def make_skip_error(skip: Skip) -> ConfigError:
    """Return the error for `Skip` in a step that yields one item for each sample."""
    said = f" ({skip})" if str(skip) else ""
    return ConfigError(
        f"a function raised Skip{said}, but its step must give exactly one item for each sample, "
        "because positions count them; drop samples by .map(fn, may_skip=True) or .filter(fn)"
    )
