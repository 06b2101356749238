"""`a.zip(b)`: tuples of one sample of each input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum

from ..base.batch_size import BatchSize
from ..orders import Slice
from .batch import Batch
from .map import Map
from .mix import Mix
from .read import is_counter
from .reorder import Reorder
from .step import Builder, Step, Written


@dataclass(frozen=True)
class Partners(Batch):
    """Group the partners of a zip. For the steps above they are no groups."""

    @cached_property
    def forms_groups(self) -> bool:
        return self.input.forms_groups

    @cached_property
    def forms_batches(self) -> bool:
        return self.input.forms_batches

    @cached_property
    def in_tail(self) -> bool:
        return False


@dataclass(frozen=True)
class Zip(Map):
    """Build a tuple from the partners of a zip."""

    @property
    def forms_tuples(self) -> bool:
        return True

    @property
    def _inputs(self) -> tuple[Step, ...]:
        (mix,) = self.input.children
        return mix.children

    def write(self) -> Written:
        numbers, *others = self._inputs
        if is_counter(numbers):
            return Written("zip(index)", others[0])
        return Written("", self.input.children[0])

    def mean_tokens(self) -> float | None:
        # A zip ends with its shortest input.
        sizes = [
            Builder(child).op(child).size if child.reason_not_indexed is None else 0
            for child in self._inputs
        ]
        count = min((size for size in sizes if size is not None), default=None)
        means = list[float]()
        for child, size in zip(self._inputs, sizes, strict=True):
            if count is not None and size != count:
                child = Reorder(child, Slice(0, count))
            mean = child.mean_tokens()
            if mean is None:
                return None
            means.append(mean)
        return fsum(means)


def make_zip(mix: Mix) -> Zip:
    """Return the tuples of inputs that are drawn from in turn."""
    return Zip(Partners(mix, BatchSize(len(mix.inputs), drop_remainder=True)), tuple)
