"""Runs with changes deliver what docs/semantics.md says, by the models of `oracle.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import assume, given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import done, examples
from oracle import (
    ConcatRows,
    Draws,
    MixtureModel,
    SampleRows,
    WindowRows,
    global_steps,
)
from random_runs import (
    ADOPTIONS,
    BAD,
    CAPS,
    NAMES,
    ROW_LENGTHS,
    Inputs,
    Run,
    Segment,
    countable,
    document_sizes,
    documents,
    draw_segments,
    input_of,
    is_shuffled,
    mixed,
    numbers,
    some_bad,
)

END = object()


# ---------------------------------------------------------------- models of pipelines


@cache
def order_of(name: str, rows: int, epoch: int) -> list[int]:
    """The order of an input of a mixture in a pass, from a mixture of this input alone."""
    if not is_shuffled(name):
        return [*range(rows)]
    alone = ps.mix({name: input_of(name, rows, numbers)}, seed=4)
    return [*alone[epoch * rows : (epoch + 1) * rows]]


def draws_of(name: str, rows: int) -> Draws:
    return Draws(rows, lambda epoch: order_of(name, rows, epoch))


@cache
def order_alone(epoch: int) -> list[int]:
    return [*numbers("x", 13).shuffle().repeat()[13 * epoch : 13 * (epoch + 1)]]


def mixture_model(inputs: Inputs, stop: str = "restart", caps: Any = None) -> MixtureModel:
    draws = {name: draws_of(name, rows) for name, rows in inputs.sizes.items()}
    return MixtureModel(draws, {**inputs.weights}, stop, caps)


def one_source(stop: str) -> MixtureModel:
    return MixtureModel({"x": Draws(13, order_alone)}, {"x": 1}, stop)


def sizes_of(inputs: Inputs) -> dict[str, list[int]]:
    return {name: document_sizes(name, rows) for name, rows in inputs.sizes.items()}


@dataclass
class Case:
    """A pipeline, its model, and the changes that are made to it."""

    build: Callable[[Inputs], ps.Dataset]
    model: Callable[[Inputs], Any]
    changes: tuple[str, ...]
    packed: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])


MIXED = ("skip rows", "skip next rows", "exclude", "weights", *ADOPTIONS, "adopt removed")
CASES = {
    "one": Case(
        lambda _: numbers("x", 13).shuffle(),
        lambda _: SampleRows(one_source("all_exhausted")),
        ("exclude", "skip rows", "skip next rows"),
    ),
    "endless": Case(
        lambda _: numbers("x", 13).shuffle().repeat(),
        lambda _: SampleRows(one_source("restart")),
        ("exclude", "skip rows", "skip next rows"),
    ),
    "mixed": Case(mixed, lambda inputs: SampleRows(mixture_model(inputs)), MIXED),
    "exhausted": Case(
        lambda inputs: mixed(inputs, stop="all_exhausted"),
        lambda inputs: SampleRows(mixture_model(inputs, "all_exhausted")),
        ("exclude", "skip rows", "skip next rows", "weights", "adopt weights"),
    ),
    "ends": Case(
        lambda inputs: mixed(inputs, stop="first_exhausted"),
        lambda inputs: SampleRows(mixture_model(inputs, "first_exhausted")),
        ("exclude", "skip rows", "skip next rows", "weights", "adopt weights"),
    ),
    "capped": Case(
        lambda inputs: mixed(inputs, max_epochs=CAPS),
        lambda inputs: SampleRows(mixture_model(inputs, caps=CAPS)),
        ("exclude", "skip rows", "skip next rows", "weights", "adopt weights"),
    ),
    "some bad": Case(
        lambda inputs: mixed(inputs, some_bad),
        lambda inputs: SampleRows(mixture_model(inputs), BAD),
        MIXED,
        options={"on_error": "quarantine", "max_errors": 10**6},
    ),
    "packed": Case(
        lambda inputs: mixed(inputs, documents).pack(inputs.length),
        lambda inputs: ConcatRows(mixture_model(inputs), inputs.length, sizes_of(inputs)),
        (*MIXED, *ROW_LENGTHS),
        packed=True,
    ),
    "packed passes": Case(
        lambda inputs: mixed(inputs, documents, stop="all_exhausted").pack(16),
        lambda inputs: ConcatRows(mixture_model(inputs, "all_exhausted"), 16, sizes_of(inputs)),
        ("skip rows", "skip next rows", "weights"),
        packed=True,
    ),
    "packed whole": Case(
        lambda inputs: mixed(inputs, documents).pack(24, method="best_fit", rows=5),
        lambda inputs: WindowRows(mixture_model(inputs), 24, 5, sizes_of(inputs)),
        (
            "skip rows",
            "skip next rows",
            "exclude",
            "weights",
            "adopt weights",
            "adopt grown",
            "adopt added",
        ),
        packed=True,
    ),
}


# ---------------------------------------------------------------- the rows of a run, in order


def parts_of(value: Any, keys: list[Any], samples: tuple[ps.Sample, ...] | None) -> Any:
    """The content of a row: its key, or source, epoch, index and place of each token.

    `samples` are the documents of a packed row, some of them masked as padding.
    """
    if samples is None:
        return keys
    assert [sample.key for sample in samples] == keys
    parts, left = list[tuple[str, int, int, int]](), iter(value["tokens"].tolist())
    segments = iter(zip(value["segment_ids"].tolist(), value["positions"].tolist(), strict=True))
    number = 0
    for source, epoch, index, start, stop, masked in (
        (*sample.key, sample.start or 0, sample.stop or 0, sample.masked) for sample in samples
    ):
        number += not masked
        first = 10_000 * NAMES.index(source) + sum(document_sizes(source, 100)[:index])
        for place in range(start, stop):
            given = next(left), *next(segments)
            assert given == ((0, 0, 0) if masked else (first + place, number, place))
            parts.append((source, epoch, index, place))
    assert all(segment == 0 for segment, _ in segments)
    return parts


def rows_ahead(run: Run, packed: bool) -> Generator[Any]:
    """The next rows of a run on one rank, one by one; `END` after each pass."""
    return _rows_after(run.states, run.rows, packed, run.options)


def _rows_after(
    states: Any, rows: ps.Dataset, packed: bool, options: dict[str, Any]
) -> Generator[Any]:
    with ps.Loader(rows, **options) as loader:
        plan = rows.plan
        if states:
            loader.load_state_dict(states)
            plan = plan.for_state(states)
        gone = {(removal.source, removal.index) for removal in plan.removals}
        position = plan.position
        while True:
            for (value,) in loader:
                samples = plan.at(position) if packed else None
                for sample in samples or ():  # every removal was made before these rows
                    assert sample.masked == ((sample.source, sample.index) in gone)
                yield loader.keys(), parts_of(value, loader.keys(), samples)
                position += 1
            yield END


@dataclass
class Judge:
    """Compares the steps of a run with the rows that follow its state, and these with a model."""

    case: Case
    run: Run
    model: Any
    in_pass: list[Any] = field(default_factory=list[Any])
    """Keys of the rows of the current pass so far."""
    skipped: tuple[int, list[Any]] = (0, [])
    """Rows that are skipped after a number of further rows."""

    def take(self, segment: Segment) -> None:
        if segment.remainder == "keep":  # which rows short batches drop depends on their dealing
            segment = replace(segment, drop=False)
        if segment.jump_after >= segment.steps:  # a seek to a pass omits what the one before drops
            segment = replace(segment, jump=0)
        made = len(self.run.given)
        rows = rows_ahead(self.run, self.case.packed)
        self.run.take(segment)
        due = list[Any]()
        while len(due) < len(self.run.given) - made:
            due += self.rest_of_pass(rows, segment, len(self.run.given) - made - len(due))
        rows.close()
        for step, keys in zip(self.run.given[made:], due, strict=True):
            if not step:  # jumped over
                continue
            delivered = [key for rank in step for key in rank or ()]
            assert Counter(delivered) == Counter(key for row in keys for key in row)
            if segment.remainder != "keep":
                assert all(rank is not None for rank in step)

    def rest_of_pass(self, rows: Iterator[Any], segment: Segment, steps: int) -> list[Any]:
        """Take rows for some steps, or up to the end of the pass."""
        left = list[Any]()
        while len(left) < steps * segment.step_size:
            row = next(rows)
            if row is END and not self.in_pass:  # the end of the pass before, which was short
                return []
            if row is END:
                self.check_skipped()
                first, self.in_pass = [*self.in_pass], []
                self.model.end_pass()
                short = segment.ranks == 1 and not segment.drop
                return global_steps(left, first, segment.step_size, segment.remainder, short)
            keys, parts = row
            self.check(parts)
            left.append(keys)
            self.in_pass.append(keys)
        return global_steps(left, [], segment.step_size, "keep", True)

    def check(self, parts: Any) -> None:
        number, skipped = self.skipped
        if number:
            self.skipped = (number - 1, skipped)
        else:
            self.check_skipped()
        self.model.check(parts)

    def check_skipped(self) -> None:
        number, skipped = self.skipped
        assert not number, "the pass ends before the skipped rows"
        self.skipped = (0, [])
        for row in skipped:
            self.model.check(row)

    def change(self, change: str) -> None:
        run, model = self.run, self.model
        assume(not change or not self.skipped[0])  # the rows of a later skip would be others
        if change.startswith("skip"):
            self.check_skipped()
            rows = rows_ahead(run, self.case.packed)
            three = [next(rows) for _ in range(3)]
            rows.close()
            assume(END not in three)
            if run.change(change):
                ahead = 0 if change == "skip next rows" else 1
                self.skipped = (ahead, [parts for _, parts in three[ahead : ahead + 2]])
                if not ahead:
                    self.check_skipped()
            return
        if change:
            self.check_skipped()
        excluded = self.coming() if change == "exclude" else []
        if not run.change(change):
            return
        mixture: MixtureModel = model.mixture
        if change == "weights":
            model.change(
                lambda: mixture.set_weights({n: 1 + i for i, n in enumerate(mixture.weights)})
            )
        elif change == "exclude":
            model.change(lambda: mixture.exclude(excluded))
        elif change in ROW_LENGTHS:
            model.length = self.run.inputs.length
        elif change.startswith("adopt"):
            inputs = self.run.inputs
            draws = {name: draws_of(name, rows) for name, rows in inputs.sizes.items()}
            weights = {**inputs.weights}
            model.change(lambda: mixture.adopt(draws, weights))
            if self.case.packed:
                model.sizes = sizes_of(inputs)

    def coming(self) -> list[tuple[str, int]]:
        """The samples that `Run.edited` excludes."""
        plan = self.run.plan
        coming = [
            sample
            for position in range(plan.position, plan.position + 9)
            for sample in plan.at(position)
        ]
        return [(sample.source, sample.index) for sample in coming[:1] + coming[5:6]]


@st.composite
def changed_runs(draw: Any) -> tuple[str, list[Segment]]:
    """Draw a run, half of the time with a skip and another change at one row before its end."""
    name = draw(st.sampled_from(sorted(CASES)))
    changes = CASES[name].changes
    segments: list[Segment] = draw(draw_segments(changes, back=False))
    if draw(st.booleans()):
        skip = replace(segments[-1], change="skip next rows")
        then = replace(skip, steps=0, jump=0, change=draw(st.sampled_from(changes)))
        segments = [*segments[:-1], skip, then, replace(skip, steps=5, jump=0, change="")]
    return name, segments


@examples(200)
@given(changed_runs())
@countable()
def test_a_changed_run_delivers_what_the_page_says(run: tuple[str, list[Segment]]) -> None:
    name, segments = run
    note(f"{name}: {segments}")
    case = CASES[name]
    judge = Judge(
        case, Run(case.build, packed=case.packed, options=case.options), case.model(Inputs())
    )
    for segment in segments:
        judge.take(segment)
        judge.change(segment.change)
    done["runs with changes"] += 1


def test_adopted_mixtures_keep_deficits_and_surplus() -> None:
    def mixture(weights: dict[str, int]) -> ps.Dataset:
        return ps.mix({name: numbers(name, 50) for name in weights}, weights, seed=4)

    weights = [{"a": 6, "b": 4, "c": 6}, {"a": 6, "b": 5, "c": 1}]
    model, state = mixture_model(Inputs({"a": 50, "b": 50, "c": 50}, weights[0])), None
    for k in range(12):  # many short eras
        with ps.Loader(mixture(weights[k % 2])) as loader:
            if state:
                loader.load_state_dict(state, on_mismatch="adopt")
                model.set_weights(weights[k % 2])
            for _ in zip(range(5), loader, strict=False):
                ((source, *_),) = loader.keys()
                model.draw(source)
            state = loader.state_dict()


# ---------------------------------------------------------------- lengths of passes


def states_after(loader: ps.Loader, rows: int) -> Any:
    it = iter(loader)
    for _ in range(rows):
        next(it)
    return loader.state_dict()


def test_a_skip_shortens_one_pass() -> None:
    ds = numbers("x", 6)
    with ps.Loader(ds) as loader:
        state = ds.plan.for_state(states_after(loader, 2)).skip(range(3, 5)).state
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state)
        assert [list(loader), list(loader)] == [[2, 5], [*range(6)]]


def test_all_documents_of_a_pass_are_packed_after_an_exclusion() -> None:
    sizes = [1, 8, 8, 8, 8, 8, 8, 1]
    source = ps.from_tokens(np.repeat(range(8), sizes), np.cumsum([0, *sizes]), name="x")
    ds = source.pack(10)
    with ps.Loader(ds) as loader:
        plan = ds.plan.for_state(states_after(loader, 2)).exclude([("x", 0)])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(plan.state)
        first, second = [[*loader], [*loader]]
    assert len(first) == 3
    assert sum(np.count_nonzero(row["segment_ids"]) for row in second) == sum(sizes) - 1 + 8
