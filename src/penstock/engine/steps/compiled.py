"""A tree with everything that is derived from it once: for iterators, loaders and plans."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...types import Json, SourceFacts
from ..base.canonical_json import compute_fingerprint
from ..streams.profiler import Profiler
from .digests import Code, code_of, data_of
from .op import Op
from .step import Builder, Step, Timing


class Compiled:
    """A tree, compiled on first use.

    `base` is the compiled tree that it extends: its ops are used again.
    """

    def __init__(
        self, tree: Step, timing: Timing | None = None, base: Compiled | None = None
    ) -> None:
        self.tree, self._timing, self._extended = tree, timing, base

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the tree alone, because ops are cached by the identities of its steps."""
        return Compiled, (self.tree, self._timing)

    @property
    def profiler(self) -> Profiler | None:
        """The clock of a profiled run."""
        return self._timing and self._timing.profiler

    def timed(self, timing: Timing | None) -> Compiled:
        """Return the tree with a clock; itself without one."""
        return Compiled(self.tree, timing) if timing else self

    @cached_property
    def builder(self) -> Builder:
        """The builder of its ops."""
        base, self._extended = self._extended, None
        while base is not None and "builder" not in vars(base):
            base = base._extended
        return Builder(self.tree, self._timing, base and base.builder)

    def of(self, tree: Step) -> Compiled:
        """Return a compiled tree: this one for its own tree."""
        return self if tree is self.tree else Compiled(tree, self._timing)

    @property
    def op(self) -> Op:
        """The op of the tree."""
        return self.builder.op(self.tree)

    @cached_property
    def size(self) -> int | None:
        """The items of a pass of an indexed tree; None for an endless one."""
        return None if self.tree.is_endless else self.op.size

    @cached_property
    def description(self) -> dict[str, Json]:
        """The description of a run."""
        return self.tree.identity()

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the description."""
        return compute_fingerprint(self.description)

    @cached_property
    def data(self) -> dict[str, SourceFacts]:
        """The digests of the sources, taken at the first request, like the lengths in the ops."""
        return data_of(self.builder.leaves)

    @cached_property
    def code(self) -> Code:
        """The functions, with the digests of their code."""
        return code_of(self.tree)

    def remembered(self, saved: Any) -> Compiled:
        """Return the tree with the mean lengths of a saved description, if nothing else differs.

        Lengths that were measured once are not measured again during a run.
        """
        if self.description == saved:
            return self
        try:
            found = self.of(self.tree.with_saved_lengths(saved))
        except (KeyError, TypeError, AttributeError):
            return self
        return found if found.description == saved else self
