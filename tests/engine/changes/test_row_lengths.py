"""Rows whose length changes during a run, against a model that cuts the tokens one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.example_counts import examples

import penstock as ps

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
    spans, state, taken = list[tuple[int, int]](), None, list[list[int]]()
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


def check_plan(plan: Any, documents: ps.Dataset, taken: list[list[int]]) -> None:
    """Assert that rows, counts and places of documents are those of the rows that were given."""
    leaves = {leaf.name: leaf.source for leaf in documents.compiled.builder.leaves}
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
