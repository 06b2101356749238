"""A function at work: one call a sample, and what is said when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, DataError, Skip, is_missing_file, replace_stop_iteration
from ...types import Ints, Shards, Source, Transform, Vectorised
from ..base.columnar import ColumnarSamples, ColumnwiseFunction
from ..base.fallback import log_fallback
from ..base.groups import collate_each
from ..base.machine import read_cpu_seconds
from ..base.random import create_sample_generator
from ..base.row_files import locate_row
from ..base.rows import ProvenanceRows
from ..base.seams import world
from ..base.tree import collate
from .clock import SEVERAL, Clock


def listed(values: Sequence[Any]) -> list[Any]:
    """Values as a list, groups of them too, where they may still be columns."""
    if isinstance(values, ColumnarSamples):
        return list(values)
    if values and isinstance(values[0], ColumnarSamples):
        return [list(value) if isinstance(value, ColumnarSamples) else value for value in values]
    return values if isinstance(values, list) else list(values)


class Failed(Exception):
    """A sample that could not be read or computed: which one, and why; `grouped` says that it was
    one of a group."""

    def __init__(
        self, leaf: int, epoch: int, index: int, cause: Exception, grouped: bool = False
    ) -> None:
        super().__init__(leaf, epoch, index, cause, grouped)
        self.leaf, self.epoch, self.index, self.cause, self.grouped = (
            leaf,
            epoch,
            index,
            cause,
            grouped,
        )


class Miscounted(ConfigError):
    """A function of many samples that did not give one result for each: not the fault of any of
    them."""


def failed(rows: ProvenanceRows, flat: int, error: Exception, grouped: bool = False) -> Failed:
    """The failure of one sample; an error that already names its sample is passed on as it is."""
    if isinstance(error, Failed):
        return error
    return Failed(
        int(rows.leaf[flat]),
        int(rows.epoch[flat]),
        int(rows.index[flat]),
        replace_stop_iteration(error),
        grouped,
    )


@dataclass(frozen=True)
class Leaf:
    """A source at work: its number, its full name in the tree, the randomness of that name,
    itself."""

    number: int
    name: str
    key: int
    source: Source | Shards


def fault_of_sample(error: Exception) -> Exception:
    """Return a `DataError` for a file that a sample names and that is not there; any other error as
    it is."""
    if not is_missing_file(error):
        return error
    made = DataError(f"the sample names a file that does not exist: {error}")
    made.__cause__ = error
    return made.with_traceback(error.__traceback__)


def cause_of(failure: Failed, leaves: Sequence[Leaf]) -> Exception:
    """Return the error of a failed sample; a `DataError` names its file and row."""
    cause = failure.cause
    if isinstance(cause, DataError) and not failure.grouped:
        if (lies := locate_row(leaves[failure.leaf].source, failure.index)) is not None:
            cause.locate(str(lies[0]), lies[1])
    return cause


@dataclass
class Step:
    """A function at work: one call a sample, with what its kind needs beside the sample. `grouped`
    says that it is one over batches or packs. With a clock, what it takes is noted under `name`.
    """

    kind: str
    fn: Transform
    key: int
    leaves: Sequence[Leaf]
    grouped: bool = False
    clock: Clock | None = None
    name: str = ""

    def __post_init__(self) -> None:
        fn: object = self.fn
        self._columnwise = fn is collate or isinstance(fn, ColumnwiseFunction)
        together = self.kind in ("map", "filter") and callable(
            getattr(fn, "many", None)
        )  # protocols are slow to ask
        self.many: Callable[[Any], Sequence[Any]] | None = (
            cast(Vectorised, fn).many if together else None
        )
        if fn is collate:
            self.many = collate_each
        if self.kind in ("flat", "may_skip"):
            self.fn = _Listed(self.fn) if self.kind == "flat" else _AtMostOne(self.fn)

    @property
    def drops(self) -> bool:
        """True if it may give nothing for a sample."""
        return self.kind in ("filter", "may_skip", "flat")

    def apply(
        self, values: Sequence[Any], rows: ProvenanceRows, index: Ints | None = None
    ) -> Sequence[Any]:
        """`fn` on every value: lists of what they give where that may be none or several. An
        exception names the sample.
        """
        if not self._columnwise:
            values = listed(values)
        try:
            return (
                self._timed(self.clock, values, rows, index)
                if self.clock
                else self._all(values, rows, index)
            )
        except Miscounted:
            raise
        except Exception as error:
            calls = self.calls(rows, index)
            each = [self._one(calls(i), values, rows, i) for i in range(len(values))]
            if self.many and len(values) > 1:
                log_fallback(self.name, error)
            return each

    def _all(
        self, values: Sequence[Any], rows: ProvenanceRows, index: Ints | None
    ) -> Sequence[Any]:
        if self.kind in ("map", "filter", "flat", "may_skip"):
            out = self.many(values) if self.many else list(map(self.fn, values))
            if len(out) < len(values) and not self.many:
                raise StopIteration  # which a function raised: to `map` that is the end
            return out
        calls = self.calls(rows, index)
        return [calls(i)(value) for i, value in enumerate(values)]

    def _timed(
        self, clock: Clock, values: Sequence[Any], rows: ProvenanceRows, index: Ints | None
    ) -> Sequence[Any]:
        """The same, and a note of what took how long."""
        calls, out, now = self.calls(rows, index), cast("Sequence[Any]", []), world.sched.now
        names = [leaf.name for leaf in self.leaves]
        processor, times = read_cpu_seconds(), [now()]
        with clock.at(self.name, names, rows) as mark:
            if self.many:
                out = self.many(values)
                times = np.linspace(times[0], now(), len(values) + 1).tolist()
            else:
                results = list[Any]()
                for mark.item, value in enumerate(values):
                    results.append(calls(mark.item)(value))
                    mark.since = now()
                    times.append(mark.since)
                out = results
        source = rows.leaf[rows.firsts()[:-1]]
        if self.grouped and (rows.leaf != rows.leaf[:1]).any():
            names, source = [SEVERAL], np.zeros_like(source)
        clock.note(
            self.name, names, source, np.diff(times).tolist(), read_cpu_seconds() - processor
        )
        return out

    def _one(
        self, call: Callable[[Any], Any], values: Sequence[Any], rows: ProvenanceRows, i: int
    ) -> Any:
        try:
            return (
                self.many(values[i : i + 1])[0]
                if self.many and self._columnwise
                else call(values[i])
            )
        except Exception as error:
            error = not_to_be_skipped(error) if isinstance(error, Skip) else fault_of_sample(error)
            part = error.part if isinstance(error, DataError) else ()
            raise failed(rows, rows.first_of(i, part), error, self.grouped) from error

    def calls(
        self, rows: ProvenanceRows, index: Ints | None
    ) -> Callable[[int], Callable[[Any], Any]]:
        """For the i-th item, the function of its value alone."""
        fn, key, leaves = self.fn, self.key, self.leaves
        if self.kind == "index":
            assert index is not None
            return lambda i: lambda value: fn(int(index[i]), value)
        first = rows.firsts()
        leaf, epoch, place = rows.leaf, rows.epoch, rows.index
        if self.kind == "random":

            def seeded(i: int) -> Callable[[Any], Any]:
                r = first[i]
                rng = create_sample_generator(
                    key ^ leaves[int(leaf[r])].key, int(epoch[r]), int(place[r]), int(rows.part[r])
                )
                return lambda value: fn(value, rng)

            return seeded
        if self.kind == "source":
            return lambda i: (
                lambda value: fn(
                    value,
                    leaves[int(leaf[first[i]])].name,
                    int(epoch[first[i]]),
                    int(place[first[i]]),
                )
            )
        return lambda i: fn


def not_to_be_skipped(skip: Skip) -> ConfigError:
    """A step that gives one item for each cannot drop one."""
    said = f" ({skip})" if str(skip) else ""
    return ConfigError(
        f"a function raised Skip{said}, but its step must give exactly one item for each sample, "
        "because positions count them; drop samples by .map(fn, may_skip=True) or .filter(fn)"
    )


class _Listed:
    """A flat-map's function, with its pieces taken out while an exception still names the
    sample."""

    def __init__(self, fn: Transform) -> None:
        self.fn = fn

    def __call__(self, value: Any) -> list[Any]:
        return list(self.fn(value))


class _AtMostOne:
    """The result in a list; an empty one where the function raises `Skip`."""

    def __init__(self, fn: Transform) -> None:
        self.fn = fn

    def __call__(self, value: Any) -> list[Any]:
        try:
            return [self.fn(value)]
        except Skip:
            return []
