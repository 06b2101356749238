"""`plan.exhaustion()` of packed rows equals the first repeats and ends in the rows themselves."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.plan import Exhaustion

POSITIONS = 400  # of endless datasets


def make_documents(lengths: list[int], name: str, seed: int) -> ps.Dataset:
    offsets = np.cumsum([0, *lengths])
    documents = ps.from_tokens(np.arange(offsets[-1]) % 7, offsets, name=name)
    return documents.shuffle(seed=seed) if seed else documents


def find_by_rows(ds: ps.Dataset, stop: int) -> dict[str, Exhaustion]:
    """Return the first row with a document of the second pass of each source, and the row after its
    last.
    """
    repeats, last = dict[str, int](), dict[str, int]()
    for position in range(stop):
        for sample in ds.plan.at(position):
            last[sample.source] = position
            if sample.epoch:
                repeats.setdefault(sample.source, position)
    ends = {name: None if at + 1 == stop else at + 1 for name, at in last.items()}
    return {name: Exhaustion(repeats.get(name), ends.get(name)) for name in ds.plan.sources}


@examples(100)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=3, max_size=60), min_size=1, max_size=4),
    st.sampled_from(["caps", "endless", "chain"]),
    st.sampled_from(["samples", "tokens"]),
    st.sampled_from(["split", "never"]),
    st.integers(8, 64),
    st.sampled_from([None, 1, 4]),
    st.booleans(),
    st.integers(0, 3),
    st.none() | st.integers(1, 40),
)
def test_repeats_and_ends_are_those_of_the_rows(
    lengths: list[list[int]],
    shape: str,
    unit: Literal["samples", "tokens"],
    overflow: Literal["split", "never"],
    length: int,
    batch: int | None,
    repeats: bool,
    seed: int,
    limit: int | None,
) -> None:
    if shape == "endless":
        overflow = "split"  # other documents make windows that arithmetic does not know
    lengths = [[max(first, 1), *rest] for first, *rest in lengths]
    if overflow == "never":
        lengths = [[min(n, length) for n in each] for each in lengths]
    flows = {f"s{i}": make_documents(each, f"s{i}", seed + i) for i, each in enumerate(lengths)}
    weights = {name: 1.0 + i for i, name in enumerate(flows)}
    if shape == "caps":
        ds: ps.Dataset = ps.mix(flows, weights, unit=unit, max_epochs=2, seed=seed)
    elif shape == "endless":
        ds = ps.mix(flows, weights, unit=unit, seed=seed)
    else:
        ds = ps.concat(*flows.values()).repeat(3 if repeats else 1)
    ds = ds.pack(length, "best_fit", overflow=overflow)
    if limit:
        ds = ds.limit(limit)
    if batch:
        ds = ds.batch(batch)
    if ds.plan.size is not None and repeats and not limit:  # a limit restarts sources
        ds = ds.repeat(2)
    size = ds.plan.size
    found, stop = ds.plan.exhaustion(), POSITIONS if size is None else size
    want = find_by_rows(ds, stop)
    for name, exhaustion in found.items():
        if size is not None:
            assert exhaustion == want[name]
        elif want[name].repeats is not None:
            assert exhaustion.repeats == want[name].repeats
        else:
            assert exhaustion.repeats is None or exhaustion.repeats >= stop


@pytest.mark.parametrize("horizon", [10, 60])
def test_a_window_that_the_horizon_cuts_is_looked_at(horizon: int) -> None:
    flows = {name: make_documents([9, 30, 14] * 20, name, 1) for name in "ab"}
    ds = ps.mix(flows, {"a": 1, "b": 1}, seed=1).pack(32, "best_fit")
    repeats = [each.repeats for each in find_by_rows(ds, horizon).values()]
    assert [each.repeats for each in ds.plan.exhaustion(horizon).values()] == repeats
    assert None not in repeats or horizon == 10


@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
def test_documents_without_tokens_count_in_no_pass(
    method: Literal["concat_split", "best_fit"],
) -> None:
    documents = make_documents([5, 0, 8, 0, 3], "s", 1).repeat(4)
    plan = documents.pack(8, method).plan
    assert plan.epochs(plan.size or 0) == {"s": 4.0}
    first = plan.exhaustion()["s"].repeats
    assert first == find_by_rows(documents.pack(8, method), plan.size or 0)["s"].repeats


def test_a_part_with_documents_without_tokens_counts_those_with_some() -> None:
    documents = make_documents([5, 0, 8, 0, 3, 2], "s", 1)
    for part in (documents.select([1, 2, 2, 5]), documents.limit(4), documents.select([5, 1, 2])):
        plan = part.repeat(3).pack(8).plan
        held = {sample.index for row in range(plan.size or 0) for sample in plan.at(row)}
        begun = sum(sample.start == 0 for row in range(plan.size or 0) for sample in plan.at(row))
        assert plan.epochs(plan.size or 0) == {"s": begun / len(held)}
