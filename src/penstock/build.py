"""From nodes to programs: names, seeds and keys are settled here, top-down, once per pipeline.

Randomness is keyed by names, never by place in the tree: the key of a step comes from the seed in force, the path of
mixture names above it, its kind, its function's name, and how many of the same kind and name lie below it. Adding a
source or another step therefore disturbs no existing one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ConfigError, IndexedError, StateError
from .mix import Mixture
from .nodes import Again, Batch, Before, Chain, Each, Flow, Head, Hold, Mix, Read, Reorder, Turns, Weighted
from .pack import ConcatSplit
from .program import (
    BatchProgram,
    EachProgram,
    Leaf,
    MixProgram,
    PackProgram,
    Program,
    ReadProgram,
    ReorderProgram,
    Run,
    Schedule,
    Step,
)
from .random import key_of
from .types import Ints, Source

_STEP = {
    "map": "map",
    "index": "map_with_index",
    "random": "random_map",
    "filter": "filter",
    "flat": "flat_map",
    "source": "with_source",
}


def why_not(flow: Flow) -> str | None:
    """The step that keeps a flow from being indexed, or None if it is."""
    match flow:
        case Read(source, name):
            return (
                None if isinstance(source, Source) else f"the source {name or 'stream'!r} can only be read in sequence"
            )
        case Reorder(below):
            return why_not(below)
        case Mix(flows, _, rule):
            if isinstance(rule, Head | Again):
                return why_not(flows[0])
            return next((reason for reason in map(why_not, flows) if reason), None)
        case Each(below, kind):
            lost = kind in ("filter", "flat")
            return f"{_STEP[kind]}() gives a number of samples that depends on the data" if lost else why_not(below)
        case Hold(below, fold):
            if isinstance(fold, Batch) or (reason := why_not(below)) is not None:
                return why_not(below)
            if not _lengths_known(below):
                return f"{type(fold).__name__} needs the lengths of the samples, which are not known beforehand"
            return reason


def require_indexed(flow: Flow, wanted: str, remedy: str) -> None:
    """Refuse, with the reason and the remedy, what needs random access."""
    if (reason := why_not(flow)) is not None:
        raise IndexedError(f"{wanted} needs random access, but {reason}; {remedy}")


def _lengths_known(flow: Flow) -> bool:
    match flow:
        case Read(source):
            return isinstance(source, Source) and source.lengths() is not None
        case Reorder(below):
            return _lengths_known(below)
        case Mix(flows, _, Weighted() | Chain()):
            return all(map(_lengths_known, flows))
        case _:
            return False


@dataclass
class Builder:
    """Compiles the parts of one tree; knows all its leaves. `lane` salts the steps that run once per lane."""

    root: Flow
    lane: int = 0
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    _below: dict[int, Counter[str]] = field(default_factory=dict[int, "Counter[str]"])
    _marks: int = 0

    def __post_init__(self) -> None:
        self._leaf_of: dict[tuple[int, tuple[str, ...]], Leaf] = {}
        self._collect(self.root, (), ())
        names = Counter(leaf.name for leaf in self.leaves)
        seen = Counter[str]()
        for i, leaf in enumerate(self.leaves):
            if names[leaf.name] > 1:
                self.leaves[i] = Leaf(leaf.number, f"{leaf.name}/{seen[leaf.name]}", leaf.key, leaf.source)
                seen[leaf.name] += 1
        self._leaf_of = {where: self.leaves[leaf.number] for where, leaf in self._leaf_of.items()}

    def _collect(self, flow: Flow, path: tuple[str, ...], shown: tuple[str, ...]) -> None:
        match flow:
            case Read(source, name):
                full = "/".join(shown) or name or "data"
                leaf = Leaf(len(self.leaves), full, key_of(*path, name), source)
                self.leaves.append(leaf)
                self._leaf_of[id(flow), path] = leaf
            case Mix(flows, names, rule):
                for child, name in zip(flows, names, strict=True):
                    weighted = isinstance(rule, Weighted)
                    self._collect(child, (*path, name), (*shown, name) if weighted else shown)
            case Reorder(below) | Each(below) | Hold(below):
                self._collect(below, path, shown)

    # ------------------------------------------------------------ keys

    def key(self, flow: Flow, kind: str, seed: int, path: tuple[str, ...]) -> int:
        """The key of a step: stable names only, and how many like it lie below."""
        return key_of(seed, *path, kind, self.counts(flow)[kind])

    def counts(self, flow: Flow) -> Counter[str]:
        """How many steps of each kind and name lie at or below a node, within its input."""
        if id(flow) not in self._below:
            match flow:
                case Reorder(below, order):
                    found = self.counts(below) + Counter([type(order).__name__])
                case Each(below, kind, fn):
                    found = self.counts(below) + Counter([kind + name_of(fn)])
                case Hold(below, fold):
                    found = self.counts(below) + Counter([type(fold).__name__])
                case Read() | Mix():
                    found = Counter[str]()
            self._below[id(flow)] = found
        return self._below[id(flow)]

    def mark(self) -> int:
        """A number for a node that leaves marks on rows."""
        self._marks += 1
        return self._marks

    def leaf(self, flow: Read, path: tuple[str, ...]) -> Leaf:
        """The leaf at this place of the tree."""
        return self._leaf_of[id(flow), path]

    # ------------------------------------------------------------ programs

    def program(self, flow: Flow, seed: int = 0, path: tuple[str, ...] = ()) -> Program:
        """The program of an indexed flow."""
        match flow:
            case Read(source):
                assert isinstance(source, Source)
                return ReadProgram(self.leaf(flow, path), source, len(source))
            case Reorder(below, order, own):
                seed_here = seed if own is None else own
                key = self.key(flow, type(order).__name__, seed_here, path)
                # The leaf's own name tells apart two sources of one length under one seed.
                return ReorderProgram(self.program(below, seed, path), order, key_of(key, *self.names_below(below)))
            case Mix(flows, names, rule):
                inner = rule.seed if isinstance(rule, Weighted) else seed
                programs = tuple(
                    self.program(child, inner, (*path, name)) for child, name in zip(flows, names, strict=True)
                )
                owner = np.full(len(self.leaves), -1, np.int64)
                for i, (child, name) in enumerate(zip(flows, names, strict=True)):
                    owner[self._numbers(child, (*path, name))] = i
                return MixProgram(programs, self._schedule(flow, programs, path, seed), owner)
            case Each(below):
                return EachProgram(self.program(below, seed, path), self.step(flow, seed, path), self.mark())
            case Hold(below, Batch(n, drop, whole)):
                return BatchProgram(self.program(below, seed, path), n, drop, whole)
            case Hold(below, fold, size):
                inner = self.program(below, seed, path)
                if inner.size is None:
                    raise IndexedError(
                        f"random access to {type(fold).__name__} over an endless flow needs a plan of all of it; "
                        "use .limit(n) before it, or iterate"
                    )
                lengths = [self._lengths(leaf) for leaf in self.leaves]
                key = self.hold_key(flow, seed, path)
                every = isinstance(fold, ConcatSplit) and fold.max_segments is None
                return PackProgram(inner, fold, key, size.extra if size else 0, lengths, every, self.mark())

    def hold_key(self, flow: Hold, seed: int, path: tuple[str, ...]) -> int:
        """The key of a fold; lanes other than the first draw their own."""
        own = seed if flow.seed is None else flow.seed
        return self.key(flow, type(flow.fold).__name__, own, path) + self.lane & (1 << 64) - 1

    def step(self, flow: Each, seed: int, path: tuple[str, ...]) -> Step:
        """The function of an `Each` with its key."""
        own = seed if flow.seed is None else flow.seed
        return Step(flow.kind, flow.fn, self.key(flow, flow.kind + name_of(flow.fn), own, path), self.leaves)

    def names_below(self, flow: Flow) -> tuple[str, ...]:
        """The names that the sources of a flow were given."""
        match flow:
            case Read(_, name):
                return (name,)
            case Mix(_, names):
                return names
            case Reorder(below) | Each(below) | Hold(below):
                return self.names_below(below)

    def _numbers(self, flow: Flow, path: tuple[str, ...]) -> list[int]:
        match flow:
            case Read():
                return [self.leaf(flow, path).number]
            case Mix(flows, names):
                pairs = zip(flows, names, strict=True)
                return [number for child, name in pairs for number in self._numbers(child, (*path, name))]
            case Reorder(below) | Each(below) | Hold(below):
                return self._numbers(below, path)

    def _lengths(self, leaf: Leaf) -> Ints:
        lengths = leaf.source.lengths() if isinstance(leaf.source, Source) else None
        return np.zeros(0, np.int64) if lengths is None else lengths

    # ------------------------------------------------------------ schedules

    def _schedule(self, flow: Mix, programs: tuple[Program, ...], path: tuple[str, ...], seed: int) -> Schedule:
        sizes = tuple(program.size for program in programs)
        match flow.rule:
            case Weighted() as rule:
                measured = self.mean_lengths(flow, programs) if rule.unit == "tokens" else None
                found = mixture(rule, flow.names, sizes, path, measured)
                return (
                    found
                    if rule.before is None
                    else Spliced(spliced_from(rule.before, path, flow.names), rule.events[0].at, found)
                )
            case Chain():
                if None in sizes[:-1]:
                    raise ConfigError("concat: an endless dataset hides all that comes after it; limit it first")
                return ChainSchedule(sizes)
            case Turns():
                return TurnsSchedule(sizes)
            case Head() | Again():
                raise AssertionError("Head and Again are for flows that are not indexed")

    def mean_lengths(self, flow: Mix, programs: tuple[Program, ...]) -> tuple[float, ...]:
        """Tokens per sample of each input: from known lengths, or measured on 256 samples of its first pass."""
        out = list[float]()
        for name, child, program in zip(flow.names, flow.flows, programs, strict=True):
            if isinstance(child, Read) and isinstance(child.source, Source):
                lengths = child.source.lengths()
                if lengths is not None and len(lengths):
                    out.append(float(int(lengths.sum())) / len(lengths))
                    continue
            size = program.size
            many = 256 if size is None else min(256, size)
            places = np.arange(many) * ((size or many) // max(many, 1))
            rows = program.locate(places, np.zeros_like(places))
            measured = [tokens_of(value, name) for value in program.values(rows, Run())]
            out.append(max(1.0, sum(measured) / max(1, len(measured))))
        return tuple(out)


def tokens_of(sample: Any, name: str) -> int:
    """The number of tokens of a sample: its length, or that of the first sequence of a mapping."""
    if isinstance(sample, Mapping):
        found = next((v for v in sample.values() if isinstance(v, list | tuple | np.ndarray)), None)  # pyright: ignore[reportUnknownVariableType]
        if found is None:
            raise ConfigError(
                f"mix(unit='tokens'): samples of {name!r} hold no sequence to count; tokenise before mixing, or use "
                "unit='samples'"
            )
        return len(found)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(sample, list | tuple | np.ndarray | str | bytes):
        return len(sample)  # pyright: ignore[reportUnknownArgumentType]
    raise ConfigError(f"mix(unit='tokens'): a sample of {name!r} is a {type(sample).__name__}, which has no length")


def mixture(
    rule: Weighted,
    names: tuple[str, ...],
    sizes: tuple[int | None, ...],
    path: tuple[str, ...],
    lengths: tuple[float, ...] | None = None,
) -> Mixture:
    """The schedule of a weighted mix, ready to be asked."""
    return Mixture(
        names=names,
        weights=dict(rule.weights) if isinstance(rule.weights, tuple) else rule.weights,
        sizes=sizes,
        block_size=rule.block_size,
        stop=rule.stop,
        max_epochs=dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else rule.max_epochs,
        temperature=rule.temperature,
        key=key_of(rule.seed, *path, "mix"),
        log=rule.events,
        lengths=lengths,
    )


@dataclass(frozen=True)
class Past:
    """The schedule of a mixture that ended; `now[i]` is its i-th input's place in the present one, -1 if it left."""

    schedule: Schedule
    now: Ints


def spliced_from(before: Before, path: tuple[str, ...], names: tuple[str, ...]) -> Past:
    """The past of a mixture, ready to be asked."""
    found: Schedule = mixture(before.rule, before.names, before.sizes, path)
    if before.rule.before is not None:
        found = Spliced(spliced_from(before.rule.before, path, before.names), before.rule.events[0].at, found)
    return Past(found, np.asarray([names.index(name) if name in names else -1 for name in before.names], np.int64))


@dataclass(frozen=True)
class Spliced:
    """One schedule up to a position, another from there on."""

    past: Past
    start: int
    present: Schedule

    @property
    def size(self) -> int | None:
        return self.present.size

    @property
    def passes(self) -> Ints:
        return self.present.passes

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        old = positions < self.start
        if not old.any():
            return self.present.at(positions)
        source, k = np.empty_like(positions), np.empty_like(positions)
        source[~old], k[~old] = self.present.at(positions[~old])
        then, k[old] = self.past.schedule.at(positions[old])
        source[old] = self.past.now[then]
        if (source < 0).any():
            raise StateError(
                "a buffer still holds samples of an input that is no longer in the mixture; give it weight 0 instead"
            )
        return source, k


@dataclass(frozen=True)
class ChainSchedule:
    """One input after the other."""

    sizes: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        return None if self.sizes[-1] is None else sum(size or 0 for size in self.sizes)

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        stops = np.cumsum([size or 0 for size in self.sizes[:-1]], dtype=np.int64)
        source = np.searchsorted(stops, positions, side="right").astype(np.int64)
        return source, positions - np.concatenate([np.zeros(1, np.int64), stops])[source]


@dataclass(frozen=True)
class TurnsSchedule:
    """One sample of each input in turn, as long as all have one."""

    sizes: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        known = [size for size in self.sizes if size is not None]
        return min(known) * len(self.sizes) if known else None

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        k = positions // len(self.sizes)
        return positions - k * len(self.sizes), k


def name_of(fn: Any) -> str:
    """What a function is called: stable across processes, never an address."""
    name = getattr(fn, "__qualname__", None)
    return str(name) if name else type(fn).__qualname__
