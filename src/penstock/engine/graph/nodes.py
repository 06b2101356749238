"""The tree: frozen nodes describe every pipeline. Users add functions, never nodes.

Function steps are in `engine/steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TypeAlias, TypeVar

from ...types import Digest, Fold, Ints, Json, Order, Path, Shards, Sizer, Source
from ..base.seams import world
from ..mixing.rules import By, Rule, Weighted
from ..orders import FixedSet
from ..steps.function_step import FunctionStep
from ..steps.random_map import RandomMap


@dataclass(frozen=True)
class Read:
    """A leaf: an indexed source, or shards that are read one after the other."""

    source: Source | Shards
    name: str = ""


@dataclass(frozen=True)
class Without:
    """Some samples of a source left out of its flow, the next of the flow in their places.
    `since[i]` is the position of the flow from which on `indices[i]` are left out, `replanned` the
    passes of the run from which on rows are planned that lack them.
    """

    since: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    replanned: tuple[int, ...] = ()

    def size(self, below: int | None, /) -> int | None:
        return below

    def describe(self) -> Json:
        return {
            "order": "without",
            "since": list(self.since),
            "indices": [list(some) for some in self.indices],
        }


@dataclass(frozen=True)
class FormerPasses:
    """The passes of a run that began with other data: before pass `until` they had `sizes` rows,
    each from a pass on. The samples in them are unknown.
    """

    sizes: tuple[tuple[int, int], ...]
    until: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def describe(self) -> Json:
        return {
            "order": "former_passes",
            "sizes": [[*each] for each in self.sizes],
            "until": self.until,
        }


@dataclass(frozen=True)
class Reorder:
    """Another order of an indexed flow: integers to integers; or the same one without some
    samples."""

    flow: Flow
    order: Order | Without | FormerPasses
    seed: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Mix:
    """Several flows woven into one by a rule."""

    flows: tuple[Flow, ...]
    names: tuple[str, ...]
    rule: Rule


@dataclass(frozen=True)
class Hold:
    """Groups of samples: `Batch` by counting, anything else by a fold over their sizes."""

    flow: Flow
    fold: Batch | Fold
    size: Sizer | None = None
    seed: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Head:
    """The first `n` items of a flow that cannot be sliced."""

    flow: Flow
    n: int


@dataclass(frozen=True)
class Rest:
    """All but the first `n` items of a flow that cannot be sliced."""

    flow: Flow
    n: int


@dataclass(frozen=True)
class Again:
    """Pass after pass of a flow that cannot be indexed; `None` is for ever."""

    flow: Flow
    epochs: int | None


def random_key(flow: Flow) -> str | None:
    """The kind of a random step; None for any other node.

    The kind is the `KEY` of an order or a fold, written down so that a class can be renamed; None
    if it draws no random numbers. Orders and folds of users are of the kinds "reorder" and "fold"
    unless they have a `KEY` of their own.
    """
    match flow:
        case FunctionStep():
            return flow.KEY if flow.is_random else None
        case Reorder(_, Without() | FormerPasses()) | Hold(_, Batch()):
            return None
        case Reorder(_, part) | Hold(_, part):
            return getattr(part, "KEY", "reorder" if isinstance(flow, Reorder) else "fold")
        case _:
            return None


def leaf_of(flow: Flow) -> Read | None:
    """The leaf that a flow is, None where there are steps on it."""
    return flow if isinstance(flow, Read) else None


def leaf_below(node: Flow) -> Read | None:
    """Return the leaf below functions and orders; `None` if another step is among them."""
    while isinstance(node, FunctionStep | Reorder):
        node = node.flow
    return leaf_of(node)


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


def counter() -> Read:
    """The source that numbers the samples of a stream. It is in no key, as nothing numbers those
    that are indexed."""
    return Read(Numbers(), "index")


def is_counter(flow: Flow) -> bool:
    """Return whether a flow is a `counter`."""
    return isinstance(flow, Read) and isinstance(flow.source, Numbers)


_SLICE = -1


def inputs_of(flow: Mix, path: Path) -> list[tuple[Flow, Path]]:
    """The inputs of a mix and their places."""
    places = flow.names if flow.rule.named else range(len(flow.flows))
    return [(child, (*path, place)) for child, place in zip(flow.flows, places, strict=True)]


def under(flow: Reorder | FunctionStep[Flow] | Hold | Head | Rest | Again, path: Path) -> Path:
    """Return the path below a node with one input; a slice with nothing above it has a path of its
    own.
    """
    return (
        (*path, _SLICE)
        if path and isinstance(flow, Reorder) and isinstance(flow.order, FixedSet)
        else path
    )


def keyed_by(path: Path) -> tuple[str, ...]:
    """The names that go into keys. Concat, zip and limit have none: they change nothing in what
    they hold. Nor has what lies above a slice: a slice is a fixed set of samples wherever it is
    put, or a split would leak.
    """
    start = len(path) - path[::-1].index(_SLICE) if _SLICE in path else 0
    return tuple(place for place in path[start:] if isinstance(place, str))


def only_input(flow: Flow) -> Flow | None:
    """What a step takes its items from; None of a source, and of what has several inputs."""
    return None if isinstance(flow, Mix | Read) else flow.flow


def shown_as(path: Path) -> str:
    """The name by which a source at this place is known."""
    return "/".join(place for place in path if isinstance(place, str))


Flow: TypeAlias = "Read | Reorder | Mix | FunctionStep[Flow] | Hold | Head | Rest | Again"

_T = TypeVar("_T")


def fact(found_out: Callable[[Flow], _T]) -> Callable[[Flow], _T]:
    """Keep on every node what was found out about it: trees share their parts, and are asked again
    at every step."""
    name = f"_{found_out.__name__}"

    @wraps(found_out)
    def known(flow: Flow) -> _T:
        facts = vars(flow)
        if name not in facts:
            facts[name] = found_out(flow)
        return facts[name]

    return known


@dataclass(frozen=True)
class Batch:
    """Groups of `n` neighbours; the last of a pass is short, or dropped. `over_ranks`: `n` is what
    all ranks take together, and each makes batches of its share.
    """

    n: int
    drop_remainder: bool = False
    over_ranks: bool = False


@fact
def step_names(flow: Flow) -> frozenset[str]:
    """The names of the random steps in the chains that lead to a node, from the source or the last
    mixture on."""
    match flow:
        case Mix(flows, _, rule) if not isinstance(rule, Weighted | By):
            return frozenset[str]().union(*map(step_names, flows))
        case Read() | Mix():
            return frozenset()
        case (
            Reorder(below, _, _, name) | RandomMap(below, _, _, name) | Hold(below, _, _, _, name)
        ) if name is not None:
            return step_names(below) | {name}
        case _:
            return step_names(flow.flow)


@fact
def numbered(flow: Flow) -> Mapping[str, int]:
    """Count the unnamed random steps of each kind at or below a node, up to the nearest mixture
    below."""
    match flow:
        case Mix(flows, _, rule) if not isinstance(rule, Weighted | By):
            counts = dict[str, int]()
            for child in flows:
                counts.update(
                    {kind: max(n, counts.get(kind, 0)) for kind, n in numbered(child).items()}
                )
            return counts
        case Read() | Mix():
            return {}
        case _:
            counts, kind = numbered(flow.flow), random_key(flow)
            named = isinstance(flow, Reorder | RandomMap | Hold) and flow.name is not None
            return counts if kind is None or named else {**counts, kind: counts.get(kind, 0) + 1}
