"""A tree and what is worked out of it once, for all that is made of it: iterators, loaders,
plans."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...types import Json, SourceFacts
from ..base.canonical_json import compute_fingerprint
from ..streams.clock import Clock
from .digests import Code, code_of, data_of
from .op import Op
from .step import Builder, Step, Timing


class Compiled:
    """A tree, compiled on first use. `base` is the compiled tree that it extends, whose ops it uses
    again."""

    def __init__(
        self, flow: Step, timing: Timing | None = None, base: Compiled | None = None
    ) -> None:
        self.flow, self._timing, self._extended = flow, timing, base

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the tree alone: what is compiled is found by the identities of its
        nodes."""
        return Compiled, (self.flow, self._timing)

    @property
    def clock(self) -> Clock | None:
        """What times its work, if somebody asks."""
        return self._timing and self._timing.clock

    def timed(self, timing: Timing | None) -> Compiled:
        """The same, with a clock; this, where there is none."""
        return Compiled(self.flow, timing) if timing else self

    @cached_property
    def builder(self) -> Builder:
        """What knows its leaves and makes its ops."""
        base, self._extended = self._extended, None
        while base is not None and "builder" not in vars(base):
            base = base._extended
        return Builder(self.flow, self._timing, base and base.builder)

    def of(self, flow: Step) -> Compiled:
        """What is compiled of a tree: this, where it is that very tree."""
        return self if flow is self.flow else Compiled(flow, self._timing)

    @property
    def op(self) -> Op:
        """The op of the whole."""
        return self.builder.op(self.flow)

    @cached_property
    def size(self) -> int | None:
        """The items of a pass of an indexed tree; None where it never ends."""
        return self.op.size

    @cached_property
    def description(self) -> dict[str, Json]:
        """What a run of it is."""
        return self.flow.identity()

    @cached_property
    def fingerprint(self) -> str:
        """The digest of that."""
        return compute_fingerprint(self.description)

    @cached_property
    def data(self) -> dict[str, SourceFacts]:
        """The digests of the sources, taken at the first request, like the lengths in the ops."""
        return data_of(self.builder.leaves)

    @cached_property
    def code(self) -> Code:
        """What the functions are."""
        return code_of(self.flow)

    def remembered(self, saved: Any) -> Compiled:
        """Return the tree with the mean lengths of a saved description, if nothing else differs.

        Lengths that were measured once are not measured again during a run.
        """
        if self.description == saved:
            return self
        try:
            found = self.of(self.flow.with_saved_lengths(saved))
        except (KeyError, TypeError, AttributeError):
            return self
        return found if found.description == saved else self
