"""`ds.map(fn)`: one item for each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from ...types import Ints, Json, Path
from ..base.rows import ProvenanceRows
from ..packing import PackedBatches, Packing
from ..packing.row import Array, SourceColumns
from ..streams.function_call import FunctionCall
from .function_step import FunctionStep
from .read import identify_counter
from .step import Step, Written


class MapCall(FunctionCall):
    """`fn(x)`; or `fn.many(xs)` if the function has it, as in `map(batched=n)`."""

    vectorises = True

    def __post_init__(self) -> None:
        super().__post_init__()
        fn: object = self.fn
        self._builder = fn if adds_sources(fn) else None

    def bind(self, rows: ProvenanceRows) -> Callable[[int], Callable[[Any], Any]]:
        if (builder := self._builder) is None:
            return super().bind(rows)
        sources, bounds = self._locate_documents(rows, builder.document_level)
        return lambda i: (
            lambda value: builder.build_with_sources([value], sources[bounds[i] : bounds[i + 1]])[0]
        )

    def bind_many(self, rows: ProvenanceRows) -> Callable[[Any], Sequence[Any]] | None:
        if (builder := self._builder) is None:
            return super().bind_many(rows)
        sources, _ = self._locate_documents(rows, builder.document_level)
        return lambda values: builder.build_with_sources(values, sources)

    def _locate_documents(self, rows: ProvenanceRows, level: int) -> tuple[Array, Ints]:
        """Return the source of each document of groups, and the bounds of groups among documents."""
        bounds = np.arange(len(rows) + 1)
        for _ in range(level):
            bounds, rows = rows.levels[0][bounds], rows.ungrouped()
        dtype = np.int16 if len(self.leaves) <= np.iinfo(np.int16).max else np.int32
        return rows.leaf[rows.firsts()[:-1]].astype(dtype), bounds


def adds_sources(fn: Any) -> TypeGuard[SourceColumns]:
    """Return whether a function adds the sources of documents to what it builds."""
    return getattr(fn, "provenance", False) is True and hasattr(fn, "build_with_sources")


@dataclass(frozen=True)
class Map(FunctionStep):
    """Replace every sample by `fn(x)`; or build a row or a batch from every group."""

    KEY = "map"
    METHOD = "map"
    CALL = MapCall

    def describe(self) -> dict[str, Json]:
        match self.fn:
            case Packing() | PackedBatches(Packing()):
                packing = self.fn if isinstance(self.fn, Packing) else self.fn.packing
                return {"pack": packing.describe()}
            case _:
                return super().describe()

    def write(self) -> Written | None:
        return self.input.write_built(self.fn) or super().write()

    @cached_property
    def lengths_known(self) -> bool:
        return keeps_token_counts(self.fn, self.input) and self.input.lengths_known

    def mean_tokens(self) -> float | None:
        if isinstance(self.fn, Packing):
            return float(self.fn.length)
        return self.input.mean_tokens() if keeps_token_counts(self.fn, self.input) else None

    def token_sources(self, path: Path, complete: bool = False) -> Iterator[tuple[str, object]]:
        if (dtype := getattr(self.fn, "token_dtype", None)) is not None:
            yield from ((name, dtype) for name, _ in self.input.token_sources(path))


def keeps_token_counts(fn: Any, below: Step) -> bool:
    """Return whether the lengths that sources know are those that a function makes of samples."""
    counter = identify_counter(fn)
    return counter is not None and counter == below.token_counter
