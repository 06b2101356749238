"""The part of a dataset that looking at it, converting it and writing it build on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from ..arguments import HintingType, check_int
from ..engine.base.shown import Shows
from ..engine.steps.compiled import Compiled
from ..engine.steps.step import Step
from ..errors import ConfigError
from ..leases import UnsettledItems
from ..types import Indices, Ints

if TYPE_CHECKING:
    from ..plan import Plan

D = TypeVar("D")
"""The class of the datasets that methods return."""


class BaseDataset(Shows, Generic[D], metaclass=HintingType):
    """Samples that can be iterated, and read by position if the dataset is indexed.

    >>> import penstock as ps
    >>> isinstance(ps.from_sequence("ab"), BaseDataset)
    True
    """

    tree: Step

    @property
    @abstractmethod
    def compiled(self) -> Compiled: ...

    @cached_property
    def plan(self) -> Plan[D]:
        """The plan, which answers questions about the order without reading samples.

        It tells which samples a position holds, at which positions a sample appears, and what a
        run has delivered before a position.

        >>> import penstock as ps
        >>> plan = ps.from_sequence(range(1_000), name="numbers").shuffle(seed=1).batch(4).plan
        >>> positions = plan.find("numbers", 17)
        >>> 17 in [sample.index for sample in plan.at(positions[0])]
        True
        """
        from .plan_html import DatasetPlan

        return DatasetPlan(self.compiled, self._with, section=UnsettledItems())

    @abstractmethod
    def _with(self, step: Step, /) -> D:
        """Return a dataset of another tree, with the seed of this one."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def __getitem__(self, index: Any, /) -> Any: ...

    @abstractmethod
    def limit(self, n: int) -> D: ...

    @abstractmethod
    def select(self, indices: Indices) -> D: ...

    @abstractmethod
    def _values(self, positions: Ints) -> Sequence[Any]:
        """Return the samples at positions of an indexed dataset, as columns where possible."""

    def _count(self, limit: int | None, call: str) -> int | None:
        """Return the number of samples to read at most; `None` for a stream without a limit.

        Raises:
            ConfigError: if the dataset is endless and there is no limit.
        """
        most = None if limit is None else check_int(limit, f"{call}(limit={{}})", 0)
        size = self.compiled.size if self._is_indexed else None
        if most is None and size is None and (self.tree.is_endless or self._is_indexed):
            raise ConfigError(
                f"{call}: the dataset is endless; give a number of samples: ds.{call}(limit=1_000)"
            )
        return min((n for n in (most, size) if n is not None), default=None)

    @property
    def _is_indexed(self) -> bool:
        return self.tree.reason_not_indexed is None

    def _blocks(
        self, count: int | None, rows: int, later_rows: int | None = None
    ) -> Iterator[Sequence[Any]]:
        """Yield the first `count` samples in blocks, as columns where possible.

        The first block has at most `rows` samples, later ones `later_rows`. A stream is closed when
        the iterator is.
        """
        later_rows = later_rows or rows
        if self._is_indexed:
            start, stop, count = 0, rows, cast("int", count)
            while start < count:
                yield self._values(np.arange(start, min(stop, count)))
                start, stop = stop, stop + later_rows
            return
        with closing(cast("Any", iter(self))) as stream:
            samples = islice(stream, count)
            while block := list(islice(samples, rows)):
                yield block
                rows = later_rows
