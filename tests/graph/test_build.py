"""Which pipelines can be planned: what is endless is packed as it comes."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes


def documents(n: int = 15) -> ps.Dataset:
    return ps.from_tokens(np.arange(7 * n), np.arange(0, 7 * n + 1, 7))


@pytest.mark.parametrize(("method", "options"), [("first_fit", {}), ("best_fit", {"overflow": "never"})])
def test_an_endless_mixture_of_known_lengths_is_packed_as_it_comes(method: Any, options: Any) -> None:
    ds = ps.mix({"a": documents(), "b": documents(9)}, seed=3).pack(16, method=method, **options).batch(2)
    rows = list(islice(ds, 30))
    assert len(rows) == 30
    with pytest.raises(ps.IndexedError, match=r"endless dataset cannot be planned ahead \(limit\(n\)"):
        ds[0]
    assert_resumes(lambda: iter(ds), steps=12)
    assert len(ps.mix({"a": documents(), "b": documents(9)}, seed=3).limit(40).pack(16, method=method, **options)) > 0


def test_sizes_that_a_function_gives_are_not_taken_for_lengths() -> None:
    ds = documents(10).batch_by_tokens(10, size=lambda doc: 5, collate=list)
    assert [len(group) for group in ps.Loader(ds, lanes=1)] == [2] * 5
    with pytest.raises(ps.IndexedError, match="BatchByTokens needs sizes that a function gives"):
        ds[0]
    groups = documents(10).batch_by_tokens(14, collate=list)
    assert [group[0].tolist() for group in groups] == [groups[i][0].tolist() for i in range(5)]
    assert len(groups) == 5


def test_a_shuffle_buffer_over_a_token_store_is_one_over_samples() -> None:
    ds = documents(10).shuffle_buffer(3)
    assert sorted(map(len, ds)) == sorted(map(len, documents(10)))
    with pytest.raises(ps.IndexedError, match="shuffle_buffer|ShuffleBuffer"):
        ds[0]
