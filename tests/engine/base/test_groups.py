"""Groups of neighbours, and the batches that are made of many at once: those that each alone would have been."""

import numpy as np
import pytest

import penstock as ps
from penstock.arrays.trees import collate
from penstock.engine.base.groups import NeighbourGroups, collate_each

VALUES = {
    "ints": [*range(12)],
    "floats": [i / 3 for i in range(12)],
    "some are floats": [1, 2.5, 3, 4, 5, 6, 7.0, 8, 9, 10, 11, 12],
    "some groups are truths": [1, 2, 3, True, False, True, 4, 5, 6, 7, True, 9],
    "some groups are narrow": [1, 2, 3, *map(np.int8, (4, 5, 6)), 7, 8, np.int16(9), 10, 11, 12],
    "unsigned among them": [1, np.uint64(2), 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    "too large for 64 bits": [1, 2, 3, 1 << 70, 4, 5, 6, 7, 8, 9, 10, 1 << 63],
    "large for 63 bits": [1, 2, 3, (1 << 63) + 1, 4, 5, 6, 7, 8, 9, 10, 1 << 63],
    "large among floats": [
        0.5,
        1e300,
        float("nan"),
        2.0,
        1 << 53,
        5,
        6.0,
        7,
        8,
        9.0,
        -(1 << 53),
        1.5,
    ],
    "texts": ["a", "b", "c"] * 4,
    "arrays": [np.arange(2) + i for i in range(12)],
    "mappings": [{"x": i} for i in range(12)],
}


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize(
    "bounds", [[0, 3, 6, 9, 12], [0, 3, 6, 9, 10], [3, 6], [2, 3, 4, 5], [0, 12], [0, 1, 3, 12]]
)
def test_batches_are_those_of_each_group_alone(what: str, bounds: list[int]) -> None:
    groups = NeighbourGroups(VALUES[what], bounds)
    for found, group in zip(collate_each(groups), groups, strict=True):
        alone = collate(group)
        assert type(found) is type(alone)
        assert getattr(found, "dtype", None) == getattr(alone, "dtype", None)
        np.testing.assert_equal(found, alone)


def test_one_array_for_many_small_batches_can_be_written_to_and_is_small() -> None:
    batches = list(ps.from_sequence(range(40_000)).batch(4))
    batches[0][:] = 7
    assert batches[1].tolist() == [4, 5, 6, 7]
    owners = [batch if batch.base is None else batch.base for batch in batches]
    assert max(owner.nbytes for owner in owners) <= 1 << 15 < sum(batch.nbytes for batch in batches)


def test_what_does_not_go_together_is_named_as_before() -> None:
    ds = ps.from_sequence([1, 2, 3, 4, "a", 6]).batch(2)
    it = iter(ds)
    assert [next(it).tolist() for _ in range(2)] == [[1, 2], [3, 4]]
    with pytest.raises(ps.DataError, match="mixes int and str"):
        next(it)


def test_groups_can_be_looked_at_one_by_one() -> None:
    groups = NeighbourGroups("abcdef", [0, 2, 5, 6])
    assert (len(groups), groups[1], groups[1:], [*groups]) == (
        3,
        "cde",
        ["cde", "f"],
        ["ab", "cde", "f"],
    )
