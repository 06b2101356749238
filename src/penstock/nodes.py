"""The tree: five frozen nodes describe every pipeline. Users add functions, never nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .mix import Event
from .schedule import Schedule
from .types import Fold, Order, Shards, Source, Transform


@dataclass(frozen=True)
class Read:
    """A leaf: an indexed source, or shards that are read one after the other."""

    source: Source | Shards
    name: str = ""


@dataclass(frozen=True)
class Reorder:
    """Another order of an indexed flow: integers to integers."""

    flow: Flow
    order: Order
    seed: int | None = None


@dataclass(frozen=True)
class Mix:
    """Several flows woven into one by a rule."""

    flows: tuple[Flow, ...]
    names: tuple[str, ...]
    rule: Rule


Kind: TypeAlias = Literal["map", "index", "random", "filter", "flat", "source"]


@dataclass(frozen=True)
class Each:
    """A function on every sample, one by one."""

    flow: Flow
    kind: Kind
    fn: Transform
    seed: int | None = None


@dataclass(frozen=True)
class Hold:
    """Groups of samples: `Batch` by counting, anything else by a fold over their sizes."""

    flow: Flow
    fold: Batch | Fold
    size: Sizer | None = None
    seed: int | None = None


Flow: TypeAlias = Read | Reorder | Mix | Each | Hold


@dataclass(frozen=True)
class Batch:
    """Groups of `n` neighbours; the last of a pass is short, or dropped. A group is filled up where a sample was
    dropped; `whole`
    groups are dropped with it instead (the partners of a zip)."""

    n: int
    drop_remainder: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Sizer:
    """How large a sample is: measured on the sample, or known from its length alone (`extra` is added to that)."""

    measure: Transform
    extra: int = 0


# ---------------------------------------------------------------- how a Mix weaves


@dataclass(frozen=True)
class Weighted:
    """By weight: see `penstock.mix`. `events` are the changes made during a run; cursors carry them."""

    weights: tuple[tuple[str, Any], ...] | Schedule | None
    seed: int
    block_size: int
    stop: str
    unit: str
    max_epochs: float | tuple[tuple[str, float], ...] | None
    temperature: float | None
    events: tuple[Event, ...] = ()
    before: Before | None = None


@dataclass(frozen=True)
class Before:
    """The mixture that another one took over from: up to the position of the first event it is still in force."""

    rule: Weighted
    names: tuple[str, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class Chain:
    """One flow after the other."""


@dataclass(frozen=True)
class Turns:
    """One sample of each flow in turn."""


@dataclass(frozen=True)
class Head:
    """The first `n` samples of a flow that cannot be sliced."""

    n: int


@dataclass(frozen=True)
class Again:
    """Pass after pass of a flow that cannot be indexed; `None` is for ever."""

    epochs: int | None


Rule: TypeAlias = Weighted | Chain | Turns | Head | Again
