"""Samples that come several times: what is counted, found and weighed is what a look at each position shows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import penstock as ps


@pytest.mark.parametrize("each", [1, 2, 5])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("shuffled", [True, False])
def test_counts_of_stretches_that_begin_and_end_anywhere(
    each: int, passes: int, shuffled: bool
) -> None:
    def rows(name: str, n: int) -> ps.Dataset:
        ds = ps.from_sequence(range(n), name=name)
        return (ds.shuffle() if shuffled else ds).repeat(passes)

    ds = ps.mix({"a": rows("a", 7), "b": rows("b", 4)}, stop="all_exhausted").repeat_each(each)
    keys = [sample.key for position in range(len(ds)) for sample in ds.plan.at(position)]
    for start in range(len(ds)):
        for width in (1, 2, each - 1, each + 1, 3 * each):
            want = Counter(name for name, *_ in keys[start : start + width])
            part = ds.skip(start).limit(width)
            found = part.plan.counts(len(part))
            assert {name: many for name, many in found.items() if many} == want, (start, width)
    for name, _, index in set(keys):
        places = [i for i, key in enumerate(keys) if (key[0], key[2]) == (name, index)]
        assert ds.plan.find(name, index) == places


def test_rows_of_documents_that_come_several_times() -> None:
    rng = np.random.default_rng(5)
    documents = [np.full(n, i) for i, n in enumerate(rng.integers(1, 40, 3000))]
    ds = ps.from_tokens(
        np.concatenate(documents), np.cumsum([0, *map(len, documents)])
    ).repeat_each(3)
    want = np.concatenate([each for one in documents for each in (one, one, one)])
    packed = ds.pack(32, method="concat_split")
    for row in [*range(0, len(packed), 61), len(packed) - 1]:
        found = packed[row]
        assert (
            found["tokens"][found["segment_ids"] > 0].tolist()
            == want[32 * row : 32 * row + 32].tolist()
        ), row
