"""Rows whose length changes during a run, against a model that cuts the tokens one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples

LENGTHS = st.sampled_from([4, 6, 16, 40])


def make_documents(sizes: list[int], first: int, name: str) -> ps.Dataset:
    """Return documents whose tokens are all different numbers."""
    ends = np.cumsum([0, *sizes])
    return ps.from_tokens(np.arange(first, first + ends[-1], dtype=np.int32), ends, name=name)


def make_input(sizes: list[list[int]], kind: str) -> ps.Dataset:
    inputs = {
        name: make_documents(each, 1 + 1_000 * i, name).shuffle()
        for i, (name, each) in enumerate(zip("abc", sizes, strict=False))
    }
    if kind == "one":
        return inputs["a"]
    if kind == "repeated":
        return inputs["a"].repeat()
    return ps.mix(inputs, {name: i + 1 for i, name in enumerate(inputs)}, seed=3)


def cut_by_hand(documents: ps.Dataset, spans: list[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the tokens of every row, padded to the length that the last span before it says."""
    number, loader = 0, ps.Loader(documents)

    def length() -> int:
        return next(length for first, length in reversed(spans) if first <= number)

    while True:  # each pass
        held: list[int] = []
        for doc in loader:
            held += doc.tolist()
            while len(held) >= (size := length()):
                yield held[:size]
                held, number = held[size:], number + 1
        if held:
            yield held + [0] * (length() - len(held))
            number += 1


def make_rows(documents: ps.Dataset, length: int, batch: int) -> ps.Dataset:
    return documents.pack(length, provenance=True).batch(global_batch_size=batch)


def read_steps(states: Any, rows: ps.Dataset, ranks: int, steps: int) -> tuple[list[Any], Any]:
    """Return the rows of steps over all ranks, and the state after them."""
    loaders = [
        ps.Loader(rows, rank=rank, world_size=ranks, remainder="keep") for rank in range(ranks)
    ]
    if states is not None:
        for loader in loaders:
            loader.load_state_dict(states, on_mismatch="adopt")
    streams = [iter_passes(loader) for loader in loaders]
    found = [np.concatenate([next(stream)["tokens"] for stream in streams]) for _ in range(steps)]
    return found, json.loads(json.dumps(loaders[0].state_dict()))


def iter_passes(loader: ps.Loader) -> Iterator[Any]:
    while True:
        yield from loader


@examples(60)
@given(data=st.data(), kind=st.sampled_from(["one", "repeated", "mixed"]))
def test_rows_of_a_run_are_those_that_are_cut_by_hand(data: st.DataObject, kind: str) -> None:
    sizes = st.lists(st.integers(1, 30), min_size=4, max_size=12)
    documents = make_input(data.draw(st.lists(sizes, min_size=2, max_size=3)), kind)
    spans, taken = list[tuple[int, int]](), list[list[int]]()
    state: Any = None
    for _ in range(data.draw(st.integers(2, 4))):
        length = data.draw(LENGTHS)
        ranks = 1 if kind == "one" else data.draw(st.sampled_from([1, 2, 4]))
        batch = ranks * data.draw(st.sampled_from([1, 2]))
        rows = make_rows(documents, length, batch)
        spans.append((len(taken), length))
        steps, state = read_steps(state, rows, ranks, data.draw(st.integers(1, 4)))
        for step in steps:
            wanted = islice(cut_by_hand(documents, spans), len(taken), len(taken) + len(step))
            planned = list(wanted)
            assert sorted(step.tolist()) == sorted(planned)  # ranks take the rows of a step in turn
            taken += planned
    check_plan(make_rows(documents, spans[-1][1], 1).plan.for_state(state), documents, taken)


def make_plan(lengths: list[int], steps: list[int], unit: Any) -> ps.Schedule:
    at = np.cumsum([0, *steps]).tolist()
    return ps.Schedule(dict(zip(at, lengths, strict=False)), unit=unit)


def list_spans(plan: ps.Schedule, batch: int) -> list[tuple[int, int]]:
    """The first row of each length, step by step."""
    spans, row, tokens, points = list[tuple[int, int]](), 0, 0, list(plan.numbers or ())
    for step in range(100):
        at = step if plan.unit == "steps" else tokens
        length = int([number for begin, number in points if begin <= at][-1])
        if not spans or spans[-1][1] != length:
            spans.append((row, length))
        row, tokens = row + batch, tokens + batch * length
    return spans


@examples(60)
@given(
    data=st.data(),
    kind=st.sampled_from(["repeated", "mixed"]),
    unit=st.sampled_from(["steps", "tokens"]),
    batch=st.sampled_from([4, 8]),
)
def test_planned_lengths_are_those_of_the_steps(
    data: st.DataObject, kind: str, unit: str, batch: int
) -> None:
    sizes = st.lists(st.integers(1, 30), min_size=4, max_size=12)
    documents = make_input(data.draw(st.lists(sizes, min_size=2, max_size=3)), kind)
    most = 4 if unit == "steps" else 300
    plan = make_plan(
        data.draw(st.lists(LENGTHS, min_size=1, max_size=4)),
        data.draw(st.lists(st.integers(1, most), min_size=3, max_size=3)),
        unit,
    )
    rows = documents.pack(plan, provenance=True).batch(global_batch_size=batch)
    spans, taken = list_spans(plan, batch), list[list[int]]()
    state: Any = None
    for _ in range(data.draw(st.integers(1, 3))):
        ranks = data.draw(st.sampled_from([1, 2, 4]))
        steps, state = read_steps(state, rows, ranks, data.draw(st.integers(1, 6)))
        for step in steps:
            wanted = islice(cut_by_hand(documents, spans), len(taken), len(taken) + batch)
            planned = list(wanted)
            assert sorted(step.tolist()) == sorted(planned)
            taken += planned
    plan_of_run: Any = rows.plan.for_state(state)
    assert plan_of_run.next_step == len(taken) // batch
    for step in range(len(taken) // batch):
        tokens = sum(sample.stop - sample.start for sample in plan_of_run.at(step))
        assert tokens == sum(map(len, taken[step * batch : (step + 1) * batch]))


def test_another_global_batch_keeps_the_steps_of_the_plan() -> None:
    documents = make_input([[7, 3, 9], [4, 4]], "mixed")
    plan = make_plan([4, 16, 40], [10, 5], "steps")
    first = ps.Loader(documents.pack(plan).batch(global_batch_size=8))
    for _ in zip(range(4), first, strict=False):
        pass
    later = ps.Loader(documents.pack(plan).batch(global_batch_size=4))
    with pytest.raises(ps.StateError, match=r"rows: saved \[\[0, 8\]\], now \[\[0, 4\]\]"):
        later.load_state_dict(first.state_dict())
    later.load_state_dict(first.state_dict(), on_mismatch="adopt")
    shapes = [batch["tokens"].shape for batch, _ in zip(later, range(13), strict=False)]
    assert shapes == [(4, 4)] * 6 + [(4, 16)] * 5 + [(4, 40)] * 2


def test_schedules_that_pack_cannot_follow_are_errors() -> None:
    documents = make_documents([3, 4, 5], 1, "a")
    endless = documents.repeat()
    steps = ps.Schedule({0: 4, 5: 8}, unit="steps")
    for wrong, message in (
        (lambda: documents.pack(steps), r"\.repeat\(\)"),
        (lambda: endless.map(np.copy).pack(steps), "lengths of the samples"),
        (lambda: endless.pack(steps, "best_fit"), "concat_split"),
        (lambda: endless.pack(steps, max_segments=2), "max_segments"),
        (lambda: endless.pack(ps.Schedule({0: 4, 5: 8})), "by steps or tokens"),
        (lambda: endless.pack(ps.Schedule({1: 4}, unit="steps")), "begins at 0"),
        (
            lambda: endless.pack(ps.Schedule({0: 4, 5: 6}, unit="steps"), pad_to_multiple=4),
            "multiple",
        ),
        (lambda: endless.pack(ps.Schedule({0: {"a": 1}}, unit="steps")), "give numbers by steps"),
        (lambda: endless.pack(steps)[0], "global_batch_size"),
        (lambda: endless.pack(steps).skip(2).batch(global_batch_size=4), "moves its rows"),
        (
            lambda: ps.mix({"a": documents}, ps.Schedule({0: 4, 5: 8})),
            "has numbers; give weights by name",
        ),
    ):
        with pytest.raises(ps.ConfigError, match=message):
            wrong()


def check_plan(plan: Any, documents: ps.Dataset, taken: list[list[int]]) -> None:
    """Assert that rows, counts and places of documents are those of the rows that were given."""
    leaves: dict[str, Any] = {leaf.name: leaf.source for leaf in documents.compiled.builder.leaves}
    counts, places = dict.fromkeys(leaves, 0), dict[tuple[str, int], set[int]]()
    for number, row in enumerate(taken):
        tokens = list[int]()
        for sample in plan.at(number):
            document = leaves[sample.source].read(np.asarray([sample.index]))[0]
            tokens += document[sample.start : sample.stop].tolist()
            counts[sample.source] += sample.stop - sample.start
            places.setdefault((sample.source, sample.index), set()).add(number)
        assert tokens == [token for token in row if token]
    assert plan.counts(len(taken), unit="tokens") == counts
    for (source, index), rows in places.items():
        found = plan.find(source, index, range(len(taken)))
        assert set(found) == rows


@pytest.mark.parametrize("batches", [8, ps.Schedule({0: 8, 6: 12}, unit="steps")])
def test_steps_left_out_keep_one_row_length_in_every_step(batches: Any) -> None:
    """A length that began within a step gave ranks rows of two lengths."""

    def make() -> ps.Dataset:
        tokens = ps.from_tokens(np.arange(9000), np.arange(0, 9001, 30), name="t").repeat()
        lengths = ps.Schedule({0: 16, 10: 64}, unit="steps")
        return tokens.pack(lengths).batch(global_batch_size=batches)

    loader = ps.Loader(make())
    for _ in islice(loader, 3):
        pass
    plan = make().plan.for_state(loader.state_dict())
    if batches != 8:
        with pytest.raises(ps.ConfigError, match="row length would begin within a step"):
            plan.skip(steps=range(3, 4))
        plan = plan.skip(steps=range(12, 14))
        assert plan.exclude([plan.at(step=3)[0]])
    else:
        plan = plan.skip(steps=range(3, 4))
    later = ps.Loader(make())
    later.load_state_dict(plan.state)
    shapes = [batch["tokens"].shape for batch in islice(later, 12)]
    assert len(shapes) == 12 and {length for _, length in shapes} == {16, 64}
