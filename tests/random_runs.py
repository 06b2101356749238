"""Random runs: several segments, each with its ranks, batches and `remainder`, and a change after it.

A segment may seek another step, or have no step, so that two changes are made at one row. Between
two segments the state passes through JSON, and steps are skipped, samples excluded, weights set, or
another pipeline is adopted. The delivered items are the reference for every answer; `oracle.py` has
a model of what is delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import numpy as np
from hypothesis import assume, event, note
from hypothesis import strategies as st

import penstock as ps
from helpers import through_json

Key: TypeAlias = tuple[str, int, int]
Step: TypeAlias = list[list[Key] | None]
"""The keys of the item that each rank received; None for a rank that received none."""

CHANGES = (
    "skip positions",
    "skip the rest",
    "skip steps",
    "skip next rows",
    "exclude",
    "weights",
)
ADOPTIONS = ("adopt weights", "adopt grown", "adopt shuffled grown", "adopt added")
ROW_LENGTHS = ("adopt longer rows", "adopt shorter rows")


@dataclass(frozen=True)
class Segment:
    """A process group: its topology, its number of steps, a jump after `jump_after` of them, and a
    change at its end.
    """

    ranks: int
    batch: int
    drop: bool
    remainder: Any
    steps: int
    change: str
    jump_after: int = 0
    jump: int = 0

    @property
    def step_size(self) -> int:
        return self.ranks * self.batch


def draw_segments(changes: tuple[str, ...] = CHANGES, back: bool = True) -> Any:
    """Strategy of one to three segments; `back`: seeks go back too."""
    jumps = (0, 0, 0, 1, 3, 11, *((-1, -2, -5, -100) if back else ()))
    segment = st.builds(
        Segment,
        ranks=st.integers(1, 4),
        batch=st.integers(1, 4),
        drop=st.booleans(),
        remainder=st.sampled_from(("drop", "pad", "keep")),
        steps=st.integers(0, 7),
        change=st.sampled_from(("", "", "", *changes)),
        jump_after=st.integers(0, 7),
        jump=st.sampled_from(jumps),
    )
    return st.lists(segment, min_size=1, max_size=3)


# ---------------------------------------------------------------- pipelines


@dataclass(frozen=True)
class Inputs:
    """Sources of a mixture: their numbers of rows and their weights; the tokens of packed rows."""

    sizes: Mapping[str, int] = field(default_factory=lambda: {"a": 23, "b": 7, "c": 11})
    weights: Mapping[str, int] = field(default_factory=lambda: {"a": 3, "b": 1, "c": 2})
    length: int = 16

    def with_change(self, change: str) -> Inputs:
        """Return the inputs of the pipeline that is adopted."""
        match change:
            case "adopt grown":
                return replace(self, sizes={**self.sizes, "b": self.sizes["b"] + 3})
            case "adopt shuffled grown":  # accepted at the end of a pass of the source
                return replace(self, sizes={**self.sizes, "a": self.sizes["a"] + 2})
            case "adopt added":
                name = "defgh"[len(self.sizes) - 3 :][0]
                return replace(
                    self, sizes={**self.sizes, name: 5}, weights={**self.weights, name: 2}
                )
            case "adopt removed":
                name = [*self.sizes][-1]
                sizes, weights = (
                    {k: v for k, v in each.items() if k != name}
                    for each in (self.sizes, self.weights)
                )
                return replace(self, sizes=sizes, weights=weights)
            case "adopt longer rows":
                return replace(self, length=self.length * 2)
            case "adopt shorter rows":
                return replace(self, length=max(self.length // 3, 4))
            case _:
                return replace(self, weights={name: 4 - n % 4 for name, n in self.weights.items()})


NAMES = "abcdefghx"
BAD = {"a": {2, 3, 19}, "b": {0, 5}, "c": {7}, "d": {4}}
"""Samples that `read_good` cannot read."""


def numbers(name: str, rows: int) -> ps.Dataset:
    return ps.from_sequence(range(rows), name=name)


def document_sizes(name: str, rows: int) -> list[int]:
    """Numbers of tokens; those of the first documents are equal if a source grows."""
    return np.random.default_rng(NAMES.index(name)).integers(1, 20, rows).tolist()


def documents(name: str, rows: int) -> ps.Dataset:
    """Documents whose tokens are numbered over all sources."""
    offsets = np.concatenate([[0], np.cumsum(document_sizes(name, rows))])
    first = 10_000 * NAMES.index(name)
    return ps.from_tokens(np.arange(first, first + offsets[-1], dtype=np.int32), offsets, name=name)


def some_bad(name: str, rows: int) -> ps.Dataset:
    return numbers(name, rows).map_with_index(_Readable(name))


@dataclass(frozen=True)
class _Readable:
    name: str

    def __call__(self, index: int, value: int) -> int:
        if value in BAD.get(self.name, ()):
            raise ValueError("bad sample")
        return value


def is_shuffled(name: str) -> bool:
    return name in "ac"


def input_of(name: str, rows: int, source: Callable[[str, int], ps.Dataset]) -> ps.Dataset:
    flow = source(name, rows)
    return flow.shuffle() if is_shuffled(name) else flow


def mixed(
    inputs: Inputs, source: Callable[[str, int], ps.Dataset] = numbers, **options: Any
) -> ps.Dataset:
    flows = {name: input_of(name, rows, source) for name, rows in inputs.sizes.items()}
    return ps.mix(flows, {**inputs.weights}, seed=4, **options)


CAPS = {"a": 1.5, "b": 2.0, "c": 1.0}

PIPELINES: dict[str, Callable[[Inputs], ps.Dataset]] = {
    "one": lambda _: numbers("x", 13).shuffle(),
    "endless": lambda _: numbers("x", 13).shuffle().repeat(),
    "mixed": mixed,
    "ends": lambda inputs: mixed(inputs, stop="first_exhausted"),
    "exhausted": lambda inputs: mixed(inputs, stop="all_exhausted"),
    "capped": lambda inputs: mixed(inputs, max_epochs=CAPS),
    "skipped": lambda inputs: mixed(inputs).skip(3),
    "skipped at its end": lambda inputs: mixed(inputs, stop="all_exhausted").skip(5),
    "skipped and limited": lambda inputs: mixed(inputs).skip(3).limit(17),
    "each twice": lambda inputs: mixed(inputs).repeat_each(2),
    "shuffled over": lambda inputs: mixed(inputs, stop="all_exhausted").shuffle().repeat(),
    "batched within": lambda inputs: (
        mixed(inputs, stop="all_exhausted").batch(2, drop_remainder=True, collate=list).repeat()
    ),
    "zipped to an endless input": lambda inputs: mixed(inputs, stop="all_exhausted").zip(
        numbers("x", 13).shuffle().repeat()
    ),
    "zipped to a source": lambda inputs: numbers("x", 13).zip(mixed(inputs)),
    "packed": lambda inputs: mixed(inputs, documents).pack(inputs.length),
    "packed passes": lambda inputs: documents("a", 60).shuffle().pack(inputs.length),
    "packed whole": lambda _: documents("a", 60).shuffle().repeat().pack(24, method="best_fit"),
}


# ---------------------------------------------------------------- runs


@dataclass
class Run:
    """The items delivered so far, by step, and the state after them.

    A step that was jumped over has no items. Where the run went back, `before` has the documents of
    the steps whose numbers are used again, and the step to which it went back.
    """

    build: Callable[[Inputs], ps.Dataset]
    given: list[Step] = field(default_factory=list[Step])
    inputs: Inputs = field(default_factory=Inputs)
    states: Any = None
    segment: Segment | None = None
    before: list[tuple[int, Counter[tuple[str, int]]]] = field(
        default_factory=list[tuple[int, Counter[tuple[str, int]]]]
    )
    packed: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of loaders."""

    def dataset(self, segment: Segment | None = None) -> ps.Dataset:
        segment = segment or self.segment
        assert segment is not None
        return self.build(self.inputs).batch(segment.batch, segment.drop, collate=list)

    @property
    def rows(self) -> ps.Dataset:
        """The pipeline with one row an item."""
        return self.build(self.inputs).batch(1, collate=list)

    @property
    def plan(self) -> ps.Plan[ps.Dataset]:
        """The plan of the run, for the batches of its last segment."""
        return self.dataset().plan.for_state(self.states)

    @contextmanager
    def loaders(self, segment: Segment, **load: Any) -> Iterator[list[ps.Loader]]:
        """Open one loader for each rank, with the states of the run."""
        with ExitStack() as stack:
            options: Any = {"world_size": segment.ranks, "remainder": segment.remainder}
            loaders = [
                stack.enter_context(
                    ps.Loader(self.dataset(segment), rank=rank, **options, **self.options)
                )
                for rank in range(segment.ranks)
            ]
            for loader in loaders if self.states else ():
                loader.load_state_dict(self.states, **load)
            yield loaders

    def live(self, segment: Segment) -> bool:
        """Deliver the steps of a segment and make its change. Return true if that was accepted."""
        self.take(segment)
        return self.change(segment.change)

    def take(self, segment: Segment) -> None:
        """Deliver the steps of a segment."""
        self.segment, passes = segment, 0
        with self.loaders(segment) as loaders:
            its, left, jump = begin_pass(loaders), segment.steps, segment.jump
            while its and passes < 2:
                if segment.steps - left == segment.jump_after and jump:
                    self.jump(segment, jump, loaders)
                    jump = 0
                if not left:
                    break
                there = [next(it, None) is not None for it in its]
                if any(there):
                    keys = [
                        loader.keys() if delivered else None
                        for loader, delivered in zip(loaders, there, strict=True)
                    ]
                    self.given.append(cast("Step", keys))
                    left, passes = left - 1, 0
                if not all(there):  # the pass is over on all ranks
                    assert not any(next(it, None) is not None for it in its)
                    its, passes = begin_pass(loaders), passes + 1
            self.states = through_json([loader.state_dict() for loader in loaders])

    def change(self, change: str) -> bool:
        """Change the run, or leave it as it is if the change is an error."""
        if not change:
            return False
        with suppressed():
            if change.startswith("adopt"):
                self.adopt(change)
            elif change == "weights":
                self.set_weights({name: 1 + i for i, name in enumerate(self.inputs.sizes)})
            else:
                self.states = through_json(self.edited(change).state)
            return True
        return False

    def set_weights(self, weights: dict[str, int]) -> None:
        assert self.segment is not None
        with self.loaders(self.segment) as loaders:
            for loader in loaders:
                loader.set_weights(weights)
            self.states = through_json([loader.state_dict() for loader in loaders])

    def adopt(self, change: str) -> None:
        """Continue with another pipeline."""
        assert self.segment is not None
        inputs = self.inputs
        self.inputs = inputs.with_change(change)
        try:
            with self.loaders(self.segment, on_mismatch="adopt") as loaders:
                states = through_json([loader.state_dict() for loader in loaders])
                if any(
                    "follows the new pipeline from pass" in note for note in loaders[0].warnings
                ):
                    raise ps.StateError("no plan describes the past of such a run")
        except BaseException:
            self.inputs = inputs
            raise
        if states[0]["fingerprint"] != self.states[0]["fingerprint"]:
            self.before = []
        self.states = states

    def jump(self, segment: Segment, jump: int, loaders: list[ps.Loader]) -> None:
        made = len(self.given)
        step = max(0, made + jump)
        states = through_json([loader.state_dict() for loader in loaders])
        with suppressed():
            for loader in loaders:
                loader.seek(step)
            gone, self.given[step:] = self.given[step:], [[]] * (step - made)
            if step < made:
                plan = self.dataset(segment).plan.for_state(states)
                again = documents_of(plan, range(step, made)) if self.packed else samples_of(gone)
                self.before = [(min(step, first), known) for first, known in self.before] + [
                    (step, again)
                ]

    def seen_before(self, step: int) -> Counter[tuple[str, int]]:
        """The documents that were delivered before the last delivery of a step."""
        seen = (
            documents_of(self.plan, range(step)) if self.packed else samples_of(self.given[:step])
        )
        return sum((known for first, known in self.before if first <= step), start=seen)

    def edited(self, change: str) -> ps.Plan[ps.Dataset]:
        plan, made = self.plan, len(self.given)
        match change:
            case "skip positions":
                return plan.skip(range(plan.position + 1, plan.position + 3))
            case "skip the rest" if (passes := plan.compiled.op.passes) is not None:
                return plan.skip(range(plan.position + 1, passes.at(plan.position).stop))
            case "skip rows":
                rows = self.rows.plan.for_state(self.states)
                return rows.skip(range(rows.position + 1, rows.position + 3))
            case "skip next rows":
                rows = self.rows.plan.for_state(self.states)
                return rows.skip(range(rows.position, rows.position + 2))
            case "skip steps":
                return plan.skip(steps=range(made + 1, made + 2))
            case _:
                coming = [
                    sample
                    for position in range(plan.position, plan.position + 9)
                    for sample in plan.at(position)
                ]
                return plan.exclude(coming[:1] + coming[5:6])


def begin_pass(loaders: list[ps.Loader]) -> list[Iterator[Any]]:
    """Iterators over what is left of a pass; none if the run ended, as it excluded samples that come again."""
    try:
        return list(map(iter, loaders))
    except ps.ConfigError as error:
        assert "it ended with its first pass" in str(error)
        return []


REFUSED = (
    "a pass has",  # fewer rows than a step takes
    "pack passes that hold the same documents",
    "fewer than a step of",  # passes that were made shorter than a step of before
)


@contextmanager
def suppressed() -> Iterator[None]:
    """Refused changes are not made, and the run continues."""
    try:
        yield
    except (ps.ConfigError, ps.StateError):
        event("a change raises an error")


@contextmanager
def countable() -> Iterator[None]:
    """Discard runs whose passes are shorter than a step."""
    try:
        yield
    except (ps.ConfigError, ps.StateError, IndexError) as error:
        assume(not any(text in str(error) for text in REFUSED))
        raise


def make_run(name: str, segments: list[Segment]) -> Run:
    note(f"{name}: {segments}")
    run = Run(PIPELINES[name], packed="packed" in name)
    for segment in segments:
        run.live(segment)
    assume(run.given)
    return run


def keys_of(step: Step) -> list[Key]:
    return sorted(key for keys in step for key in keys or ())


def samples_of(steps: list[Step]) -> Counter[tuple[str, int]]:
    return Counter((source, index) for step in steps for source, _, index in keys_of(step))


def documents_of(plan: ps.Plan[ps.Dataset], steps: range) -> Counter[tuple[str, int]]:
    """Documents that begin in some steps, by the audit's lines."""
    lines = plan.audit(steps).table().select(["source", "index", "start"]).to_pylist()
    return Counter((line["source"], line["index"]) for line in lines if not line["start"])


def seen_in(seen: Any) -> Counter[tuple[str, int]]:
    columns = zip(seen.names, seen.times, strict=True)
    return Counter(
        {(name, i): n for name, times in columns for i, n in enumerate(times.tolist()) if n}
    )
