"""The part of a compiled step that streams use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...types import Ints, Path
from ..base.passes import Passes
from ..base.rows import ProvenanceRows


class CompiledStep:
    """A node of a compiled tree, as streams see it.

    Streams ask for the samples at positions and read their values. `OpenableStep`, beside the opener,
    adds the stream of a step. `Op` in `steps` derives from both, and adds the questions of plans
    and changes.

    Attributes:
        depth: the number of group levels of an item.
    """

    depth: int = 0

    @property
    def size(self) -> int | None:
        """The number of positions in a pass; None for an endless step."""
        raise NotImplementedError

    @property
    def passes(self) -> Passes | None:
        """The lengths of all passes; None for an endless step."""
        raise NotImplementedError

    def locate(self, positions: Ints) -> ProvenanceRows:
        """Return the samples at positions, by arithmetic; nothing is read."""
        raise NotImplementedError

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        """Read the items of rows that were located."""
        raise NotImplementedError

    # ------------------------------------------------------------ lanes

    @property
    def mixed(self) -> bool:
        """True if a mixture in it draws from several sources in turn.

        Lanes then share positions by a permutation, as a fixed order would alias with the mixture.
        """
        raise NotImplementedError

    @property
    def mixture(self) -> Path | None:
        """The path of its topmost mixture; None without one."""
        raise NotImplementedError

    def reached(self, position: int) -> int | None:
        """Return the position of `mixture` after everything before a position was delivered; None
        if it is unknown.
        """
        raise NotImplementedError

    # ------------------------------------------------------------ quarantine

    def scopes(self) -> Iterable[tuple[int, CompiledStep | None, int]]:
        """Return the steps that replacements of bad samples are located in.

        Each entry has the leaf, its step (None leaves a hole), and the number of group levels above
        that step.
        """
        raise NotImplementedError

    def excluded(self) -> Iterable[tuple[int, Ints]]:
        """Yield leaves and indices of their excluded samples, which replace no others."""
        raise NotImplementedError
