"""From nodes to ops: names, seeds and keys are settled here, top-down, once per pipeline.

The key of a random step comes from the seed in force, the names of the mixtures' inputs above it,
its kind, and its name; without a name, its number among the unnamed random steps of its kind,
counted from the source or the last mixture below it. Names of functions and classes are in no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from ...errors import ConfigError, DataError
from ...types import Ints, Order, is_source
from ..base.random import derive_key
from ..base.rows import ProvenanceRows
from ..mixing.rules import By, Turns, Weighted
from ..ops.again import AgainOp
from ..ops.batch import BatchOp
from ..ops.eras import FormerPassesOp
from ..ops.hold import HoldOp
from ..ops.limit import LimitOp, RestOp
from ..ops.mix import MixOp
from ..ops.op import Op
from ..ops.ordered import ordered
from ..ops.pack import PackOp
from ..ops.pack_windows import WindowPackOp
from ..ops.read import ReadOp
from ..ops.seek import BlockMeter
from ..ops.shards import ShardsOp
from ..ops.tokens import Lengths
from ..ops.weave import WeaveOp
from ..ops.without import Gaps, WithoutOp
from ..orders import Slice
from ..packing import Apart, has_independent_rows
from ..steps.function_step import FunctionStep
from ..steps.random_map import RandomMap
from ..streams.clock import Clock, TimedSource
from ..streams.empty_passes import EndlessSearch
from ..streams.step import FunctionCall, Leaf
from .draws import draws_of
from .ends import alike, endless
from .history import History, MixtureOp, history, mixture_op
from .indexed import require_indexed, why_not
from .nodes import (
    NUMBERS,
    Again,
    Batch,
    Flow,
    FormerPasses,
    Head,
    Hold,
    Mix,
    Path,
    Read,
    Reorder,
    Rest,
    Without,
    inputs_of,
    is_counter,
    keyed_by,
    numbered,
    random_key,
    shown_as,
    under,
)
from .tail import grouped

_Place: TypeAlias = tuple[int, int, Path]
"""A node, the seed in force there, where it lies."""

_key = lru_cache(maxsize=1 << 14)(derive_key)
"""Keys of the same names are asked for again whenever a tree is compiled."""


class Timing(NamedTuple):
    """What times the work of a tree, and what its steps are called there."""

    clock: Clock
    called: Callable[[FunctionStep[Flow]], str]


class _Made(NamedTuple):
    """The op of a flow; the flow is kept alive, because its identity is a part of the key."""

    flow: Flow
    op: Op


@dataclass
class Builder:
    """Compiles the parts of one tree.

    An op is an immutable function of its flow, the seed in force, its path, and the context: the
    leaves of the whole tree, their numbers and names, the numbers of its marks, and the clock.
    `base` is the builder of a tree that this one extends: its ops are used again if the context is
    the same in both trees.
    """

    root: Flow
    timing: Timing | None = None
    base: InitVar[Builder | None] = None
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    woven: dict[Path, Mix] = field(default_factory=dict[Path, Mix])
    _indexed: dict[Path, tuple[Mix, int]] = field(default_factory=dict[Path, tuple[Mix, int]])
    _ops: dict[_Place, _Made] = field(default_factory=dict["_Place", "_Made"])
    _marks: dict[tuple[int, Path], int] = field(default_factory=dict[tuple[int, Path], int])
    _replanned: set[int] = field(default_factory=set[int])
    _rows: Mapping[str, int] = field(default_factory=dict[str, int])
    _present: Builder | None = None

    def __post_init__(self, base: Builder | None) -> None:
        self._leaf_of: dict[tuple[int, Path], Leaf] = {}
        self._collect(self.root, 0, ())
        names = Counter(leaf.name for leaf in self.leaves)
        seen = Counter[str]()
        for i, leaf in enumerate(self.leaves):
            if names[leaf.name] > 1:
                self.leaves[i] = Leaf(
                    leaf.number, f"{leaf.name}/{seen[leaf.name]}", leaf.key, leaf.source
                )
                seen[leaf.name] += 1
        self._leaf_of = {where: self.leaves[leaf.number] for where, leaf in self._leaf_of.items()}
        if base is not None and self._has_context_of(base):
            self._ops = dict(base._ops)
            if "lengths" in vars(base):
                self.lengths = base.lengths

    def _has_context_of(self, base: Builder) -> bool:
        """Return whether the ops of another tree are equal to those of the same parts of this
        one."""
        sources = [
            [(leaf.name, leaf.key, id(leaf.source)) for leaf in builder.leaves]
            for builder in (self, base)
        ]
        return (
            sources[0] == sources[1]
            and self.timing is base.timing
            and base._marks.items() <= self._marks.items()
        )

    def _collect(self, flow: Flow, seed: int, path: Path) -> None:
        """Note the leaves, the mixtures with the seeds in force above them, and number the nodes
        that leave marks."""
        match flow:
            case Read(source, name):
                full = shown_as(path) or name or "data"
                leaf = Leaf(len(self.leaves), full, _key(*keyed_by(path), name), source)
                self.leaves.append(leaf)
                self._leaf_of[id(flow), path] = leaf
            case Mix(_, _, rule):
                inner = seed
                if isinstance(rule, Weighted):
                    inner = rule.seed
                    if why_not(flow) is None:
                        self._indexed[path] = flow, seed
                    else:
                        self.woven[path] = flow
                for child, place in inputs_of(flow, path):
                    self._collect(child, inner, place)
            case (
                Reorder(below)
                | FunctionStep(below)
                | Hold(below)
                | Head(below)
                | Rest(below)
                | Again(below)
            ):
                self._collect(below, seed, under(flow, path))
                if isinstance(flow, Reorder) and isinstance(flow.order, Without):
                    self._replanned.update(flow.order.replanned)
                if isinstance(flow, FunctionStep | Hold):
                    self._marks[id(flow), path] = len(self._marks) + 1

    # ------------------------------------------------------------ keys

    def key(self, flow: Reorder | FunctionStep[Flow] | Hold, seed: int, path: Path) -> int:
        """The key of a step; 0 if it draws no random numbers."""
        if (kind := random_key(flow)) is None:
            return 0
        assert isinstance(flow, Reorder | RandomMap | Hold)
        own = seed if flow.seed is None else flow.seed
        return _key(
            own, *keyed_by(path), kind, numbered(flow)[kind] if flow.name is None else flow.name
        )

    def mark(self, flow: FunctionStep[Flow] | Hold, path: Path) -> int:
        """The number of a node that leaves marks on rows."""
        return self._marks[id(flow), path]

    def leaf(self, flow: Read, path: Path) -> Leaf:
        """The leaf at this place of the tree."""
        return self._leaf_of[id(flow), path]

    # ------------------------------------------------------------ ops

    def op(self, flow: Flow, seed: int = 0, path: Path = ()) -> Op:
        """The op of a flow, made once."""
        place = id(flow), seed, path
        if place not in self._ops:
            self._ops[place] = _Made(flow, self._op(flow, seed, path))
        return self._ops[place].op

    @cached_property
    def mixed(self) -> Mapping[Path, MixtureOp]:
        """The ops of the indexed mixtures."""
        return {
            path: cast(MixtureOp, self.op(flow, seed, path))
            for path, (flow, seed) in self._indexed.items()
        }

    @cached_property
    def mixtures(self) -> Mapping[Path, History]:
        """The indexed mixtures, with what happened to them."""
        return {path: self._history(flow, path) for path, (flow, _) in self._indexed.items()}

    def _op(self, flow: Flow, seed: int, path: Path) -> Op:
        match flow:
            case Read(source):
                leaf = self.leaf(flow, path)
                clock = self.timing and self.timing.clock
                if not is_source(source):
                    return ShardsOp(leaf, clock)
                timed = TimedSource(source, leaf.name, clock) if clock else source
                return ReadOp(leaf, timed, self._rows.get(leaf.name))
            case Reorder(_, order):
                return self._order(flow, order, seed, path)
            case Head(below, n):
                return LimitOp(self.op(below, seed, path), n, endless(below))
            case Rest(below, n):
                return RestOp(self.op(below, seed, path), n, endless(below))
            case Again(below, epochs):
                return AgainOp(self.op(below, seed, path), epochs)
            case Mix():
                if self._present is not None and isinstance(flow.rule, Weighted):
                    return self._present.op(flow, seed, path)
                return self._mix(flow, seed, path)
            case FunctionStep(below):
                inner, call = self.op(below, seed, path), self.call(flow, seed, path)
                if call.drops and (endless(below) or (inner.indexed and inner.size is None)):
                    return flow.COMPILED(inner, call, self._search(below, inner))
                return flow.COMPILED(inner, call)
            case Hold(below, Batch(n, drop)):
                tuples = isinstance(below, Mix) and isinstance(below.rule, Turns)
                return BatchOp(self.op(below, seed, path), n, drop, tuples)
            case Hold(below, fold, size):
                assert not isinstance(fold, Batch)
                inner, key = self.op(below, seed, path), self.order_key(flow, seed, path)
                names = [leaf.name for leaf in self.leaves]
                if why_not(flow) is not None:
                    return HoldOp(inner, fold, size, key, names)
                if isinstance(fold, Apart) and len(inner.leaves) == 1:
                    fold = fold.fold
                lengths, mark = self.lengths, self.mark(flow, path)
                if has_independent_rows(fold) and (inner.size is None or inner.alike):
                    self._refuse_empty(inner, lengths.count_by(size))
                    return WindowPackOp(inner, fold, key, lengths, size, mark, names)
                replanned = () if path else sorted(self._replanned)
                return PackOp(inner, fold, key, lengths, size, mark, names, replanned)

    def _search(self, flow: Flow, op: Op) -> Callable[[int], EndlessSearch]:
        """Make what a lane of so many notes where a step drops samples of an endless flow."""
        sources = np.zeros(len(self.leaves), np.bool_)
        sources[[*op.leaves]] = True
        for leaf in self.leaves:
            sources[leaf.number] &= not is_source(leaf.source) or len(leaf.source) < NUMBERS
        return partial(EndlessSearch, sources.tolist(), alike(flow))

    def _order(
        self, flow: Reorder, order: Order | Without | FormerPasses, seed: int, path: Path
    ) -> Op:
        if isinstance(order, FormerPasses):
            return FormerPassesOp(self.op(flow.flow, seed, path), order.sizes, order.until)
        if isinstance(order, Without):
            inner = self.op(flow.flow, seed, path)
            leaf = self.leaves[inner.leaves[0]]
            if leaf.name in self._rows:
                return inner
            gaps = (
                (since, partial(inner.find, leaf.number, np.asarray(some, np.int64)))
                for since, some in zip(order.since, order.indices, strict=True)
            )
            return WithoutOp(inner, Gaps(leaf.name, inner.period, tuple(gaps)))
        below = self.op(flow.flow, seed, under(flow, path))
        if not below.indexed:
            name = type(order).__name__.lower()
            require_indexed(flow, name, "use .shuffle_buffer(n), or put it before that step")
        if self._rows and isinstance(order, Slice) and below.size is not None:
            most = len(range(order.start, below.size, order.step))  # it ended with its input
            order = replace(order, count=min(order.count, most)) if order.step > 0 else order
        return ordered(below, order, self.order_key(flow, seed, path))

    def _mix(self, flow: Mix, seed: int, path: Path) -> Op:
        rule, inputs = flow.rule, self._inputs(flow, seed, path)
        if rule.unindexed or not all(each.indexed for each in inputs):
            paired, at = isinstance(rule, Turns), path if isinstance(rule, Weighted) else None
            draws = partial(draws_of, flow, path)
            return WeaveOp(inputs, flow.names, draws, at=at, paired=paired, endless=endless(flow))
        if isinstance(rule, Weighted):
            found = self._history(flow, path)
            if rule.draw_change is not None:
                return MixOp(
                    inputs, rule.draw_change.apply_to(found.mixture), len(self.leaves), path
                )
            with_rows = partial(self.input_with_rows, flow, path)
            return mixture_op(found, inputs, len(self.leaves), path, with_rows)
        at = path if isinstance(rule, By) else None
        schedule = rule.schedule(tuple(each.size for each in inputs))
        return MixOp(inputs, schedule, len(self.leaves), at, isinstance(rule, By))

    def _inputs(self, flow: Mix, seed: int, path: Path) -> tuple[Op, ...]:
        inner = flow.rule.seed if isinstance(flow.rule, Weighted) else seed
        return tuple(self.op(child, inner, place) for child, place in inputs_of(flow, path))

    def input_with_rows(
        self, mix: Mix, path: Path, name: str, rows: Mapping[str, int]
    ) -> Op | None:
        """Return an input of a weighted mixture over sources with these numbers of rows.

        Return None if the input has none of these sources. Mixtures in it are those of today. No
        sample of these sources is excluded, as it was then.
        """
        if name not in mix.names:
            return None
        child, seed, place = input_named(mix, path, name)
        if self._ordered_sources(child, place).isdisjoint(rows):
            return None
        return self.with_rows(rows).op(child, seed, place)

    def with_rows(self, rows: Mapping[str, int]) -> Builder:
        """Return a builder of orders over sources with these numbers of rows; mixtures by weight
        stay those of this builder."""
        then = copy(self)
        then._ops, then._rows, then._present = {}, rows, self
        return then

    def other_rows(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return those of these numbers of rows that the sources do not have now."""
        now = {leaf.name: len(leaf.source) for leaf in self.leaves if is_source(leaf.source)}
        return {name: n for name, n in rows.items() if now.get(name, n) != n}

    def mixture(self, path: Path) -> Mix:
        """Return the indexed mixture at a path."""
        return self._indexed[path][0]

    def _ordered_sources(self, part: Flow, path: Path) -> set[str]:
        """Return the names of the sources of a part that no mixture by weight in it draws from."""
        match part:
            case Read():
                return {self.leaf(part, path).name}
            case Mix(_, _, rule):
                inner = [] if isinstance(rule, Weighted) else inputs_of(part, path)
                return {
                    name for child, place in inner for name in self._ordered_sources(child, place)
                }
            case _:
                return self._ordered_sources(part.flow, under(part, path))

    def _history(self, flow: Mix, path: Path) -> History:
        """The mixture of an indexed mix by weight, with what happened to it."""
        rule, inputs = cast(Weighted, flow.rule), self._inputs(flow, 0, path)
        meters = tuple(BlockMeter(each, self.lengths) for each in inputs) if rule.clock else None
        return history(
            rule, flow.names, tuple(each.size for each in inputs), path, flow.flows, meters
        )

    def order_key(self, flow: Reorder | Hold, seed: int, path: Path) -> int:
        """The key of what orders samples. The names of the sources tell apart two of one length
        under one seed."""
        return _key(self.key(flow, seed, path), *self.names_below(flow.flow))

    def call(self, flow: FunctionStep[Flow], seed: int, path: Path) -> FunctionCall:
        """Bind the function of a step to its key, its mark and the sources."""
        key, mark = self.key(flow, seed, path), self.mark(flow, path)
        clock, name = (self.timing.clock, self.timing.called(flow)) if self.timing else (None, "")
        return flow.CALL(flow.fn, key, mark, self.leaves, grouped(flow.flow), clock, name)

    def names_below(self, flow: Flow) -> tuple[str, ...]:
        """The names that the sources of a flow were given."""
        match flow:
            case Read(_, name):
                return (name,)
            case Mix(_, names, Weighted() | By()):
                return names
            case Mix((counter, counted), _, Turns()) if is_counter(counter):
                return self.names_below(counted)
            case Mix(flows):
                return tuple(name for child in flows for name in self.names_below(child))
            case (
                Reorder(below)
                | FunctionStep(below)
                | Hold(below)
                | Head(below)
                | Rest(below)
                | Again(below)
            ):
                return self.names_below(below)

    def only_leaf(self, flow: Flow, path: Path) -> Leaf | None:
        """The leaf of a flow that is one source in some order; None where there are groups, or
        several sources."""
        match flow:
            case Read():
                return self.leaf(flow, path)
            case Reorder(below) | FunctionStep(below):
                return self.only_leaf(below, under(flow, path))
            case _:
                return None

    def _refuse_empty(self, flow: Op, lengths: Lengths) -> None:
        """Refuse to look for ever for a token that never comes."""
        if flow.size is None and not any(map(lengths.any_token, flow.leaves)):
            names = " or ".join(repr(self.leaves[leaf].name) for leaf in flow.leaves)
            raise DataError(
                f"pack: no document of {names} has a token, so an endless pass has no row; "
                "leave these sources out"
            )

    def lengths_of(self, rows: ProvenanceRows) -> Ints:
        """The lengths of samples, as their sources know them."""
        if unknown := [
            leaf.name for leaf in self.leaves if not len(self.lengths.by_leaf[leaf.number])
        ]:
            raise ConfigError(
                f"balance=: the lengths of {unknown[0]!r} are not known; pack from known lengths "
                "(read(lengths=...), from_tokens), or leave balance= out"
            )
        return self.lengths.of(rows)

    @cached_property
    def lengths(self) -> Lengths:
        """Those that sources know."""
        found = (leaf.source.lengths() if is_source(leaf.source) else None for leaf in self.leaves)
        return Lengths([np.zeros(0, np.int64) if lengths is None else lengths for lengths in found])


def input_named(mix: Mix, path: Path, name: str) -> tuple[Flow, int, Path]:
    """Return an input of a weighted mixture, the seed in force there, and its path."""
    child, place = dict(zip(mix.names, inputs_of(mix, path), strict=True))[name]
    return child, cast(Weighted, mix.rule).seed, place


def is_edited(part: Flow) -> bool:
    """Return true if samples of a source were excluded below its first mixture by weight."""
    match part:
        case Read():
            return False
        case Mix(flows, _, rule):
            return not isinstance(rule, Weighted) and any(map(is_edited, flows))
        case _:
            edited = isinstance(part, Reorder) and isinstance(part.order, Without)
            return edited or is_edited(part.flow)
