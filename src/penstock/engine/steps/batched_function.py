"""Functions of many samples at once: what they are given, and what becomes of what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ...arrays.columnar import ColumnarSamples, ColumnStacker, ColumnwiseFunction
from ..streams.function_call import ResultCountError
from .function_step import name_of
from .step import Step, iter_steps

_KINDS = {"i": np.int64, "f": np.float64, "b": np.bool_}


ToColumns: TypeAlias = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Returns samples as columns."""


def unchanged_sources(step: Step) -> tuple[object, ...]:
    """Return the sources of a tree without functions and groups; of any other tree none."""
    if any(below.functions or not below.keeps_samples(False) for below, _ in iter_steps(step)):
        return ()
    return tuple(source for _, source in step.token_sources(()))


class Collated(ColumnwiseFunction):
    """A function that makes a batch of columns."""

    def __init__(self, fn: Callable[[Any], Any], columns: ToColumns) -> None:
        self.fn, self.columns = fn, columns
        self.__qualname__, self.version = name_of(fn), getattr(fn, "version", None)

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.fn(self.columns(samples))


class Batched(ColumnwiseFunction):
    """A function of up to `n` samples, as one of a sample that can also take many at once; with
    `columns` it is given their columns, and else a list of them.
    """

    def __init__(self, fn: Callable[[Any], Any], n: int, columns: ToColumns | None = None) -> None:
        self.fn, self.n, self.columns = fn, n, columns
        self.__qualname__, self.version = name_of(fn), getattr(fn, "version", None)

    def __call__(self, sample: Any) -> Any:
        return self.many([sample])[0]

    def many(self, samples: Sequence[Any]) -> Sequence[Any]:
        """The result of each sample."""
        parts = [
            self._results(samples[start : start + self.n])
            for start in range(0, len(samples), self.n)
        ]
        made = [part for part in parts if isinstance(part, Made)]
        if parts and len(made) == len(parts) and all(part.names == made[0].names for part in made):
            return made[0] if len(made) == 1 else Made.joined(made)
        return [result for part in parts for result in part]

    def _results(self, samples: Sequence[Any]) -> Sequence[Any]:
        given = self.fn(self.columns(samples) if self.columns else list(samples))
        if isinstance(given, Mapping) and given:
            named = cast("Mapping[str, Any]", given)
            return Made(
                {
                    name: self._column(one, len(samples), f" of {name!r}")
                    for name, one in named.items()
                }
            )
        return _values(self._column(given, len(samples)))

    def _column(self, given: Any, count: int, of: str = "") -> Any:
        """A list or an array of so many results."""
        step = f"map(batched={self.n}): {name_of(self.fn)} gave"
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            raise ResultCountError(
                f"{step} a {type(given).__name__}{of}; return a list of results, or columns: "
                f"{{name: list, ...}}"
            )
        if isinstance(given, np.ma.MaskedArray):
            raise ResultCountError(
                f"{step} a masked array{of}; return its `filled()` values, and its mask as "
                "another column"
            )
        array = isinstance(given, np.ndarray) and cast("npt.NDArray[Any]", given).ndim > 0
        found: Any = cast(Any, given) if array else list(cast("Iterable[Any]", given))
        if len(found) != count:
            raise ResultCountError(
                f"{step} {len(found)} results{of} for {count} samples; return one for each "
                "sample, or use .flat_map(fn) to give more or fewer, and .map(fn, may_skip=True) "
                "to drop samples"
            )
        return found


class Made(ColumnarSamples):
    """Results of a function by columns: lists and arrays of one length."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made, self._rows = made, None

    @classmethod
    def joined(cls, parts: Sequence[Made]) -> Made:
        """Results one after the other."""
        return cls({name: _joined([part._made[name] for part in parts]) for name in parts[0].names})

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._made)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, made once."""
        if self._rows is None:
            columns = [_values(column) for column in self._made.values()]
            self._rows = [
                dict(zip(self._made, row, strict=True)) for row in zip(*columns, strict=True)
            ]
        return self._rows

    def __len__(self) -> int:
        return len(next(iter(self._made.values())))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return cast(Any, self.rows()[index])
        return Made({name: column[index] for name, column in self._made.items()})

    @property
    def nbytes(self) -> int:
        return sum(getattr(column, "nbytes", 64 * len(column)) for column in self._made.values())

    def columns(self) -> Mapping[str, Any]:
        return self._made

    def collated(self, stack: ColumnStacker) -> dict[str, Any]:
        return {name: _stacked(column, name, stack) for name, column in self._made.items()}


def _stacked(column: Any, name: str, stack: ColumnStacker) -> Any:
    if isinstance(column, np.ndarray):
        array = cast("npt.NDArray[Any]", column)
        if array.ndim == 1 and array.dtype.kind in _KINDS:
            return array.astype(
                _KINDS[array.dtype.kind]
            )  # what the numbers of samples are when they are stacked
    return stack(_values(column), f".{name}")


def _joined(columns: list[Any]) -> Any:
    if {type(column) for column in columns} == {np.ndarray}:
        if len({(column.dtype, column.shape[1:]) for column in columns}) == 1:
            return np.concatenate(columns)
    return [value for column in columns for value in _values(column)]


def _values(column: Any) -> list[Any]:
    """One value for each sample: of an array of one axis Python's numbers."""
    plain = isinstance(column, np.ndarray) and cast("npt.NDArray[Any]", column).ndim == 1
    return column.tolist() if plain else list(cast("Iterable[Any]", column))
