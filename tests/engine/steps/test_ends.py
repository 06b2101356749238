"""Finite and endless pipelines are distinguished."""

from __future__ import annotations

from functools import partial
from itertools import islice

import numpy as np

import penstock as ps


def documents(n: int = 15) -> ps.Dataset:
    return ps.from_tokens(np.arange(7 * n), np.arange(0, 7 * n + 1, 7))


def test_what_never_ends_is_known() -> None:
    a, b, forever = documents(), documents(9), documents().repeat()
    inputs = {"a": a, "b": b}
    for expected, ds in (
        (True, ps.mix(inputs)),
        (True, ps.mix(inputs, max_epochs={"a": 1})),
        (False, ps.mix(inputs, max_epochs={"a": 1, "b": 2})),
        (False, ps.mix(inputs, max_epochs=1.5)),
        (False, ps.mix(inputs, {"a": 1, "b": 0}, max_epochs={"a": 1})),
        (True, ps.mix({"a": a, "b": forever}, max_epochs=1)),
        (False, ps.mix({"a": a, "b": forever}, stop="first_exhausted")),
        (True, ps.mix({"a": a, "b": forever}, stop="all_exhausted")),
        (False, ps.mix(inputs, stop="all_exhausted_oversample")),
        (False, ps.mix(inputs, ps.Schedule([(0, {"a": 1, "b": 0})]), max_epochs={"a": 1})),
    ):
        assert ds.tree.is_endless is expected, ds
        assert (ds.plan.size is None) is expected


def test_numbered_samples_of_what_never_ends_never_end() -> None:
    """The numbers are a source of 2^48 samples: several ranks refused to run them as something that ends."""
    stream = ps.from_iterable(partial(range, 7), name="s", identity="v1").map_with_index(
        lambda i, x: (i, x)
    )
    assert (
        stream.repeat().map_with_index(lambda i, x: x).tree.is_endless
        and not stream.tree.is_endless
    )
    with ps.Loader(
        stream.repeat().map_with_index(lambda i, x: (i, x[1])), world_size=2, rank=1, lanes=2
    ) as loader:
        assert list(islice(loader, 3)) == [(1, 1), (3, 3), (5, 5)]
