"""The base of all steps, and the builder that compiles a tree of them.

A pipeline is a tree of steps: frozen dataclasses, one class and one file a step. A step describes
itself, derives facts from its inputs, and binds itself to an op, its compiled form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from ...errors import ConfigError, IndexedError
from ...types import Ints, Json, Path, Shards, Source, is_source
from ..base.canonical_json import normalize_json
from ..base.random import derive_key
from ..base.rows import ProvenanceRows
from ..base.shown import Shown
from ..grouping.row_lengths import EarlierLengths
from ..streams.function_call import Leaf
from ..streams.profiler import Profiler
from .loss_lengths import make_loss_lengths
from .op import Op
from .paths import Migration, format_path, names_in_keys
from .tokens import Lengths

_key = lru_cache(maxsize=1 << 14)(derive_key)
"""Keys of equal names are derived again whenever a tree is compiled."""


_LENGTHS = ("lengths", "loss_lengths")
"""Cached properties of builders that trees over the same sources share."""


class Written(NamedTuple):
    """The code that makes a step, and the step that it is called on."""

    text: str
    input: Step


ShowTree: TypeAlias = "Callable[[Step, str, int], Shown]"
"""Shows a tree by its name and a number of lines."""


class Step(ABC):
    """A step of a pipeline.

    A new step over one input is a frozen dataclass that derives from `UnaryStep`, or from
    `FunctionStep` to call a function once a sample. It defines `describe`, `write` and `bind`, and
    `_migrate` if its stream has a cursor of its own. Of the facts it overrides those that differ:
    the defaults hold for steps that pass on samples of their inputs one by one. A fact is computed
    once per step, because trees share their parts.
    """

    # ------------------------------------------------------------ the tree

    @property
    @abstractmethod
    def children(self) -> tuple[Step, ...]:
        """The inputs."""

    @abstractmethod
    def with_children(self, children: tuple[Step, ...], /) -> Self:
        """Return the step with other inputs."""

    def child_paths(self, path: Path) -> list[tuple[Step, Path]]:
        """Return the inputs with their paths, for a step at a path."""
        return [(child, path) for child in self.children]

    @property
    def only_input(self) -> Step | None:
        """The input of a step that takes one; None for a source or a mix."""
        return None

    # ------------------------------------------------------------ description

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return the step without its inputs, as JSON: settings and names, but no paths."""

    def describe_inputs(self, describe: Callable[[Step], Json]) -> dict[str, Json]:
        """Return the entry of the inputs in a description."""
        return {}

    def description(self) -> dict[str, Json]:
        """Return the tree as JSON, for fingerprints, states and comparisons."""
        return self._describe_over(Step.description)

    def identity(self) -> dict[str, Json]:
        """Return the tree as JSON without the sizes of its last batches, which a run may change."""
        return self.description()

    def _describe_over(self, describe: Callable[[Step], Json]) -> dict[str, Json]:
        own = {name: normalize_json(value) for name, value in self.describe().items()}
        inputs = self.describe_inputs(describe)
        if own.keys() & inputs.keys():
            raise ConfigError(
                f"describe() of {own} has the key 'of', which names the input; use another key"
            )
        return {**own, **inputs}

    def with_saved_lengths(self, saved: Any) -> Step:
        """Return the tree with the mean lengths of a saved description."""
        return self._map_children(lambda child: child.with_saved_lengths(saved["of"]))

    def write(self) -> Written | None:
        """Return the step as users write it; None for a source or a mix."""
        return None

    def show_root(self, name: str, lines: int, show_tree: ShowTree) -> Shown:
        """Return the root of a chain of steps, with inputs in at most `lines` lines."""
        raise NotImplementedError

    def write_built(self, fn: Any) -> Written | None:
        """Return a step that groups together with the function that builds its items."""
        return None

    @property
    def functions(self) -> tuple[Any, ...]:
        """The functions of users in the step."""
        return ()

    # ------------------------------------------------------------ facts

    @cached_property
    def reason_not_indexed(self) -> str | None:
        """The step that keeps the tree from random access; None if it is indexed."""
        return first_reason(self.children)

    @cached_property
    def is_endless(self) -> bool:
        """True if the tree is known never to end."""
        return any(child.is_endless for child in self.children)

    @cached_property
    def repeats_source(self) -> bool:
        """True if every pass gives the samples of one source in its order."""
        return False

    @cached_property
    def forms_groups(self) -> bool:
        """True if items are batches, packed rows or other groups; tuples of a zip are none."""
        return any(child.forms_groups for child in self.children)

    @cached_property
    def forms_batches(self) -> bool:
        """True if items are batches of rows; packed rows are none."""
        return any(child.forms_batches for child in self.children)

    @cached_property
    def in_tail(self) -> bool:
        """True if batches are the last step that forms groups.

        Their size is no part of the run then.
        """
        return False

    @property
    def keeps_positions(self) -> bool:
        """True for a function step whose n-th item comes from the n-th sample."""
        return False

    def keeps_stretches(self, rows: int, repeated: bool) -> bool:
        """Return whether every `rows` items are as many neighbours of the input, in order.

        `repeated` says that passes of the step follow one another without a new beginning.
        """
        return self.keeps_positions

    @property
    def is_elementwise(self) -> bool:
        """True for a function step with an item for each sample, wherever it is in the pass.

        The size of batches below such a step may change during a run.
        """
        return False

    @property
    def item_limit(self) -> int | None:
        """The most items that the step passes on in a run."""
        return None

    @property
    def keeps_passes(self) -> bool:
        """True if one pass of the step is one pass of its input."""
        return False

    @property
    def forms_tuples(self) -> bool:
        """True for a step whose items are one sample of each of several inputs."""
        return False

    @property
    def is_order(self) -> bool:
        """True for a source, and for a step that gives samples of its input in another order."""
        return False

    @property
    def excludes_below(self) -> bool:
        """True for an order whose input leaves out the excluded samples of a single source."""
        return False

    @cached_property
    def has_exclusions(self) -> bool:
        """True if samples of a source are excluded, other than in inputs of a weighted mixture."""
        return any(child.has_exclusions for child in self.children)

    @property
    def needs_lengths(self) -> bool:
        """True if only the lengths of samples tell whether the step is indexed."""
        return False

    def keeps_samples(self, all_of_them: bool) -> bool:
        """Return whether items are unchanged samples of the inputs; or all of these samples."""
        return True

    def token_sources(self, path: Path, complete: bool = False) -> Iterator[tuple[str, object]]:
        """Yield the names and sources (or token dtypes) of the documents that reach this step.

        With `complete`, only sources whose documents all reach it.
        """
        if self.keeps_samples(complete):
            for child, place in self.child_paths(path):
                yield from child.token_sources(place, complete)

    @cached_property
    def lengths_known(self) -> bool:
        """True if the lengths of all samples are known without reading them."""
        return False

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        """The tokenizer that counted the lengths of all sources; None for several or none."""
        return None

    def mean_tokens(self) -> float | None:
        """Return the mean tokens of a sample from known lengths; None if only reading tells."""
        return None

    # ------------------------------------------------------------ randomness

    @cached_property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources below, up to the nearest mixture."""
        return tuple(name for child in self.children for name in child.source_names)

    @cached_property
    def step_names(self) -> frozenset[str]:
        """The names of random steps at or below this step, up to the nearest mixture."""
        return frozenset[str]().union(*(child.step_names for child in self.children))

    @cached_property
    def unnamed_steps(self) -> Mapping[str, int]:
        """The number of unnamed random steps of each kind, at or below, up to the nearest mixture.

        Of several inputs the largest number counts.
        """
        counts = dict[str, int]()
        for child in self.children:
            for kind, n in child.unnamed_steps.items():
                counts[kind] = max(n, counts.get(kind, 0))
        return counts

    def seeded(self, seed: int) -> Step:
        """Return the tree with a seed wherever a random step has none; itself if all have one."""
        return self._map_children(lambda child: child.seeded(seed))

    # ------------------------------------------------------------ compilation and runs

    def ordered_sources(self, builder: Builder, path: Path) -> frozenset[str]:
        """Return the names of the sources below, other than in inputs of a weighted mixture."""
        children = self.child_paths(path)
        return frozenset[str]().union(
            *(child.ordered_sources(builder, place) for child, place in children)
        )

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        """Register the sources, mixtures and marked steps of the tree, innermost first."""
        for child, place in self.child_paths(path):
            child.collect(builder, seed, place)

    @abstractmethod
    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        """Return the compiled step."""

    def migrate_cursor(self, cursor: Json, at: Migration) -> Json:
        """Return the cursor of a stream for the present mixtures, from one of other mixtures."""
        if cursor is None or self.reason_not_indexed is None:
            return cursor
        return self._migrate(cursor, at)

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        return cursor

    # ------------------------------------------------------------ helpers

    def require_indexed(self, wanted: str, remedy: str) -> None:
        """Raise `IndexedError` with the reason and the remedy if the tree is not indexed."""
        if (reason := self.reason_not_indexed) is not None:
            raise IndexedError(f"{wanted} needs random access, but {reason}; {remedy}")

    def _map_children(self, change: Callable[[Step], Step]) -> Self:
        children = tuple(map(change, self.children))
        return self if all(map(is_, children, self.children)) else self.with_children(children)


def iter_steps(step: Step, path: Path = ()) -> Iterator[tuple[Step, Path]]:
    """Yield all steps of a tree with their paths, each before its inputs."""
    left = [(step, path)]
    while left:
        step, path = left.pop()
        yield step, path
        left += reversed(step.child_paths(path))


def first_reason(steps: Sequence[Step]) -> str | None:
    """Return the first reason why one of several steps is not indexed."""
    reasons = (step.reason_not_indexed for step in steps)
    return next((reason for reason in reasons if reason is not None), None)


@dataclass(frozen=True)
class UnaryStep(Step):
    """A step over one input."""

    input: Step

    @property
    def children(self) -> tuple[Step, ...]:
        return (self.input,)

    def with_children(self, children: tuple[Step, ...], /) -> Self:
        (child,) = children
        return replace(self, input=child)

    @property
    def only_input(self) -> Step:
        return self.input

    def describe_inputs(self, describe: Callable[[Step], Json]) -> dict[str, Json]:
        return {"of": describe(self.input)}


@dataclass(frozen=True)
class GroupStep(UnaryStep):
    """A step whose items are groups of those of its input, such as batches."""

    @cached_property
    def forms_groups(self) -> bool:
        return True

    @property
    def keeps_passes(self) -> bool:
        return True

    def keeps_samples(self, all_of_them: bool) -> bool:
        return False

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        super().collect(builder, seed, path)
        builder.add_mark(self, path)


@dataclass(frozen=True)
class RandomStep(UnaryStep):
    """A step that may draw random numbers.

    They follow from the seed in force, the names of the inputs of mixtures above, the kind of the
    step, and its name. An unnamed step has its number among the unnamed steps of its kind, counted
    from the source or the nearest mixture below. Names of functions and classes are in no key.
    """

    seed: int | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str | None:
        """The kind of random numbers, in keys; None if the step draws none."""

    def describe_keys(self) -> dict[str, Json]:
        """Return the seed and the name, as far as the user gave them."""
        keys: dict[str, int | str | None] = {"seed": self.seed, "step": self.name}
        return {name: value for name, value in keys.items() if value is not None}

    @cached_property
    def step_names(self) -> frozenset[str]:
        own = frozenset[str]() if self.name is None else frozenset({self.name})
        return self.input.step_names | own

    @cached_property
    def unnamed_steps(self) -> Mapping[str, int]:
        counts, kind = self.input.unnamed_steps, self.kind
        if kind is None or self.name is not None:
            return counts
        return {**counts, kind: counts.get(kind, 0) + 1}

    def seeded(self, seed: int) -> Step:
        return self._map_children(lambda child: child.seeded(seed)).with_seed(seed)

    def with_seed(self, seed: int | None) -> Self:
        """Return the step with a seed if it draws random numbers and has none."""
        if seed is None or self.seed is not None or self.kind is None:
            return self
        return replace(self, seed=seed)

    def key(self, seed: int, path: Path) -> int:
        """Return the key of the random numbers; 0 if the step draws none."""
        if (kind := self.kind) is None:
            return 0
        seed = seed if self.seed is None else self.seed
        name = self.unnamed_steps[kind] if self.name is None else self.name
        return _key(seed, *names_in_keys(path), kind, name)

    def order_key(self, seed: int, path: Path) -> int:
        """Return the key of an order of samples.

        The names of sources distinguish sources of equal length and seed.
        """
        return _key(self.key(seed, path), *self.input.source_names)


# ---------------------------------------------------------------- compilation


class Timing(NamedTuple):
    """The clock of a profiled tree, and the function that names its steps."""

    profiler: Profiler
    name_of_step: Callable[[Step], str]


class _Bound(NamedTuple):
    """The op of a step; the step is kept alive, because its identity is a part of the key."""

    step: Step
    op: Op


_OpKey: TypeAlias = tuple[int, int, Path, EarlierLengths | None]
"""The identity of a step, the seed in force there, and its path."""


@dataclass
class Builder:
    """Compiles the parts of one tree.

    An op is an immutable function of its step, the seed in force, its path, and the context. The
    context has the sources of the whole tree, the numbers of its marks, and the clock.

    Attributes:
        base: the builder of a tree that this one extends. Its ops are used again if the context is
            equal in both trees.
        mixtures: the weighted mixes by path, with the seeds in force there.
        rows: other numbers of rows of some sources, by name, for the orders of an earlier run.
        present: the builder with the present numbers of rows, which compiles weighted mixes; None
            if this builder has them.
        earlier_lengths: the row lengths of packed inputs of mixtures before the last one, by path.
    """

    root: Step
    timing: Timing | None = None
    base: InitVar[Builder | None] = None
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    mixtures: dict[Path, tuple[Step, int]] = field(default_factory=dict[Path, tuple[Step, int]])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    present: Builder | None = None
    earlier_lengths: dict[Path, EarlierLengths] = field(default_factory=dict[Path, EarlierLengths])
    _ops: dict[_OpKey, _Bound] = field(default_factory=dict["_OpKey", "_Bound"])
    _leaf_numbers: dict[tuple[int, Path], int] = field(default_factory=dict[tuple[int, Path], int])
    _marks: dict[tuple[int, Path], int] = field(default_factory=dict[tuple[int, Path], int])

    def __post_init__(self, base: Builder | None) -> None:
        self.root.collect(self, 0, ())
        names = Counter(leaf.name for leaf in self.leaves)
        seen = Counter[str]()
        for i, leaf in enumerate(self.leaves):
            if names[leaf.name] > 1:
                self.leaves[i] = replace(leaf, name=f"{leaf.name}/{seen[leaf.name]}")
                seen[leaf.name] += 1
        if base is not None and self._has_context_of(base):
            self._ops = dict(base._ops)
            vars(self).update({n: v for n, v in vars(base).items() if n in _LENGTHS})

    def _has_context_of(self, base: Builder) -> bool:
        """Return whether the ops of another tree are equal to those of its parts in this one."""
        sources = [
            [(leaf.name, leaf.key, id(leaf.source)) for leaf in builder.leaves]
            for builder in (self, base)
        ]
        return (
            sources[0] == sources[1]
            and self.timing is base.timing
            and base._marks.items() <= self._marks.items()
        )

    # ------------------------------------------------------------ registration

    def add_leaf(self, step: Step, path: Path, name: str, source: Source | Shards) -> None:
        """Number a source."""
        number, full_name = len(self.leaves), format_path(path) or name or "data"
        self.leaves.append(Leaf(number, full_name, _key(*names_in_keys(path), name), source))
        self._leaf_numbers[id(step), path] = number

    def add_mark(self, step: Step, path: Path) -> None:
        """Number a step that marks rows."""
        self._marks[id(step), path] = len(self._marks) + 1

    def leaf(self, step: Step, path: Path) -> Leaf:
        """Return the leaf of a source."""
        return self.leaves[self._leaf_numbers[id(step), path]]

    def mark(self, step: Step, path: Path) -> int:
        """Return the number of a step that marks rows."""
        return self._marks[id(step), path]

    # ------------------------------------------------------------ other numbers of rows

    def with_rows(self, rows: Mapping[str, int]) -> Builder:
        """Return a builder of orders over sources with these numbers of rows.

        Weighted mixtures stay those of this builder.
        """
        builder = copy(self)
        builder._ops, builder.rows, builder.present = {}, rows, self
        return builder

    def other_rows(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return those of these numbers of rows that the sources do not have now."""
        now = {leaf.name: len(leaf.source) for leaf in self.leaves if is_source(leaf.source)}
        return {name: n for name, n in rows.items() if now.get(name, n) != n}

    # ------------------------------------------------------------ ops

    def op(self, step: Step, seed: int = 0, path: Path = ()) -> Op:
        """Return the op of a step, compiled once."""
        key = id(step), seed, path, self.earlier_lengths.get(path)
        if key not in self._ops:
            self._ops[key] = _Bound(step, step.bind(self, seed, path))
        return self._ops[key].op

    @cached_property
    def lengths(self) -> Lengths:
        """The lengths that sources know."""
        known = (leaf.source.lengths() if is_source(leaf.source) else None for leaf in self.leaves)
        return Lengths([np.zeros(0, np.int64) if lengths is None else lengths for lengths in known])

    @cached_property
    def loss_lengths(self) -> Lengths:
        """The tokens of each sample that carry loss."""
        return make_loss_lengths(self.leaves, self.lengths)

    def lengths_of(self, rows: ProvenanceRows) -> Ints:
        """Return the lengths of samples, as their sources know them."""
        if unknown := [
            leaf.name for leaf in self.leaves if not len(self.lengths.by_leaf[leaf.number])
        ]:
            raise ConfigError(
                f"balance=: the lengths of {unknown[0]!r} are not known; pack from known lengths "
                "(read(lengths=...), from_tokens), or leave balance= out"
            )
        return self.lengths.of(rows)
