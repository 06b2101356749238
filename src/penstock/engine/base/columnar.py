"""Samples that are still columns: whoever wants columns gets them without a row having been
made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Stack: TypeAlias = Callable[[Sequence[Any], str], Any]
"""Makes one column of the values of a field, whose place in the sample is told for errors."""


class Columnar(Sequence[Any]):
    """Samples as a sequence, in which a row is made where somebody asks for one. Slices are
    columnar too."""

    @abstractmethod
    def collated(self, stack: Stack) -> Any:
        """The batch that `stack` would make of the rows, column by column."""

    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """The columns, for functions of many samples; the same whichever samples lie beside
        them."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes that the columns take."""


class Columnwise:
    """A function of many samples, or of a batch, that takes what is `Columnar` as it is; others are
    given lists."""
