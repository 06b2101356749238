"""`with_source`: the provenance of every sample, of the first one of a group."""

from __future__ import annotations

from typing import Any

import penstock as ps
from helpers import numbers


def provenance(x: Any, source: str, epoch: int, index: int) -> tuple[Any, ...]:
    return x, source, epoch, index


def test_it_agrees_with_the_plan() -> None:
    ds = ps.mix({"a": numbers(5), "b": numbers(9)}, seed=1)
    for i, (_, *where) in zip(range(40), ds.with_source(provenance)):  # noqa: B905
        (sample,) = ds.plan.at(i)
        assert where == [sample.source, sample.epoch, sample.index]


def test_a_group_has_the_provenance_of_its_first_sample() -> None:
    ds = numbers(5, "a").batch(2, collate=list).with_source(provenance)
    assert list(ds) == [([0, 1], "a", 0, 0), ([2, 3], "a", 0, 2), ([4], "a", 0, 4)]


def test_keys_are_added_to_mappings() -> None:
    [sample] = ps.from_sequence([{"x": 1}], name="wiki").with_source()
    assert sample == {"x": 1, "__source__": "wiki", "__epoch__": 0, "__index__": 0}


def test_a_filter_of_late_epochs_is_not_taken_for_one_that_passes_nothing() -> None:
    late = numbers(5, "a").repeat().with_source(provenance).filter(is_late)
    assert next(iter(late)) == (0, "a", 20, 0)


def is_late(value: tuple[Any, ...]) -> bool:
    return value[2] >= 20
