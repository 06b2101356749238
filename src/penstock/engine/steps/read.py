"""`ps.read(...)` and all other sources: the leaves of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

from ...types import Digest, Ints, Json, Path, Shards, Source, is_source
from ..base.seams import world
from ..base.shown import Shown, attempt, counted, shorten_name
from ..base.sizes import sum_lengths
from ..ops.op import Op
from ..ops.read import ReadOp
from ..ops.shards import ShardsOp
from ..streams.clock import TimedSource
from .paths import format_path
from .step import Builder, ShowTree, Step


@dataclass(frozen=True)
class Read(Step):
    """Read an indexed source, or shards, one after the other."""

    source: Source | Shards
    name: str = ""

    @property
    def children(self) -> tuple[Step, ...]:
        return ()

    def with_children(self, children: tuple[Step, ...], /) -> Self:
        return self

    def describe(self) -> dict[str, Json]:
        return {"read": self.name, **cast("dict[str, Json]", self.source.describe())}

    def show_root(self, name: str, room: int, show_tree: ShowTree) -> Shown:
        source: Any = self.source
        rows = "a stream"
        if attempt(lambda: is_source(source) or hasattr(source, "__len__"), True):
            rows = attempt(lambda: counted(len(source), "row"), "rows unknown")
        return Shown(f"{shorten_name(name or self.name or 'data')} ({rows})")

    @cached_property
    def reason_not_indexed(self) -> str | None:
        if is_source(self.source):
            return None
        return f"the source {self.name or 'stream'!r} can only be read in sequence"

    @cached_property
    def repeats_source(self) -> bool:
        return True

    @property
    def is_order(self) -> bool:
        return True

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        return (self.name,)

    def token_sources(self, path: Path, whole: bool = False) -> Iterator[tuple[str, object]]:
        yield format_path(path) or self.name or "data", self.source

    @cached_property
    def lengths_known(self) -> bool:
        return is_source(self.source) and self.source.lengths() is not None

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        return identify_counter(getattr(self.source, "counts", None) or self.source)

    def mean_tokens(self) -> float | None:
        lengths = self.source.lengths() if is_source(self.source) else None
        if lengths is None or not len(lengths):
            return None
        return sum_lengths(lengths) / len(lengths)

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        builder.add_leaf(self, path, self.name, self.source)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        leaf = builder.leaf(self, path)
        clock = builder.timing and builder.timing.clock
        if not is_source(self.source):
            return ShardsOp(leaf, clock)
        source = TimedSource(self.source, leaf.name, clock) if clock else self.source
        return ReadOp(leaf, source)


def single_source(step: Step, path: Path = ()) -> tuple[Read, Path] | None:
    """Return the source below functions and orders, with its path; None below any other step."""
    if step.forms_groups:
        return None
    while step.only_input is not None:
        ((step, path),) = step.child_paths(path)
    return (step, path) if isinstance(step, Read) else None


def identify_counter(counter: Any) -> tuple[str, str] | None:
    """Return the identity of a token counter: its name, and its code if others share the name."""
    name = getattr(counter, "counted", None)
    if name is None:
        return None
    return name, "" if getattr(counter, "lasting", True) else world.digests.digest_code(counter)


# ---------------------------------------------------------------- numbers of samples

NUMBERS = 1 << 48
"""The number of samples of a stream that can be numbered: no run sees the end."""


class Numbers:
    """The numbers below `NUMBERS` as a source; described like a range of the user."""

    def __len__(self) -> int:
        return NUMBERS

    def read(self, indices: Ints, /) -> list[int]:
        """Return the indices."""
        return indices.tolist()

    def lengths(self) -> None:
        """Return `None`: numbers have no sizes."""

    def digest(self) -> Digest:
        """Return the digest of a range."""
        return {"values": world.digests.digest_memory(range(NUMBERS)) or ""}

    def describe(self) -> Json:
        """Return the description of a range."""
        return {"type": "builtins.range", "rows": NUMBERS}


def make_counter() -> Read:
    """Return the source that numbers the samples of a stream.

    It is in no key, because nothing numbers samples of indexed inputs.
    """
    return Read(Numbers(), "index")


def is_counter(step: Step) -> bool:
    """Return whether a step is a counter of samples."""
    return isinstance(step, Read) and isinstance(step.source, Numbers)
