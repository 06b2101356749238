"""Predictions of packed rows, against the rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import ConfigError


def store(sizes: Any, name: str = "some") -> ps.Dataset:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return ps.from_tokens(np.ones(offsets[-1], np.int32), offsets, name=name)


HOW: list[tuple[str, dict[str, Any]]] = [
    ("concat_split", {}),
    ("concat_split", {"pad_to_multiple": 2, "eos": 1}),
    ("concat_split", {"max_segments": 2}),
    ("first_fit", {}),
    ("first_fit", {"long": "truncate", "bos": 1}),
    ("best_fit", {}),
    ("best_fit", {"long": "truncate"}),
    ("best_fit", {"overflow": "never"}),
    ("best_fit", {"group_by": "__source__"}),
]


@examples(80)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.sampled_from([4, 8, 12]),
    st.sampled_from(HOW),
)
def test_what_is_told_of_few_rows_is_what_they_are(sizes: list[int], length: int, how: Any) -> None:
    method, options = how
    packed = store(sizes).shuffle(seed=1).pack(length, method, **options)
    told, rows = packed.plan.packing(), list(packed)
    extra = len({"bos", "eos"} & options.keys())
    assert told.tokens == sum(sizes) + extra * len(sizes)
    if len(rows) > 256:
        return
    assert told.rows == len(rows)
    if not rows:
        return
    filled = sum(int((row["segment_ids"] > 0).sum()) for row in rows)
    assert told.fill == pytest.approx(filled / (len(rows) * length))
    parts = [sample for row in range(len(rows)) for sample in packed.plan.at(row)]
    some = [sample.index for sample in parts]
    assert told.sampled == len(set(some))
    if options.get("long") == "truncate":
        assert told.cut == pytest.approx(
            sum(size + extra > length for size in sizes) / told.sampled
        )
    else:
        assert (
            told.split == pytest.approx(sum(some.count(i) > 1 for i in set(some)) / told.sampled)
            and not told.cut
        )


def test_a_pass_is_told_of_without_packing_it() -> None:
    sizes = np.random.default_rng(1).integers(1, 400, 60_000)
    ways: list[tuple[Any, dict[str, Any]]] = [
        ("first_fit", {}),
        ("best_fit", {"overflow": "never"}),
        ("best_fit", {}),
    ]
    for method, options in ways:
        packed = store(sizes).shuffle(seed=1).pack(512, method, **options)
        told = packed.plan.packing()
        assert told.sampled < 30_000 and told.rows == pytest.approx(len(packed), rel=0.01)
        assert told.fill == pytest.approx(sizes.sum() / (len(packed) * 512), rel=0.01)
        assert told.split < 0.01 and told.tokens == sizes.sum()


def test_what_never_ends_is_told_of_too() -> None:
    mix = ps.mix({"a": store([3, 9, 4], "a").shuffle(), "b": store([30], "b")}, {"a": 1, "b": 1})
    told = mix.pack(16).plan.packing()
    assert (told.rows, told.tokens, told.fill) == (None, None, 1.0) and told.split > 0.3


def test_padding_of_batches_is_told() -> None:
    batches = store([3, 1, 4, 4, 2]).batch_by_tokens(8, padded=True, collate=list)
    told = batches.plan.packing()
    assert [len(batch) for batch in batches] == [2, 2, 1] and told.rows == 3
    assert told.fill == pytest.approx(14 / (2 * 3 + 2 * 4 + 2)) and told.tokens == 14


def test_what_is_not_packed_has_no_rows_to_tell_of() -> None:
    with pytest.raises(ConfigError, match=r"the dataset has no pack\(\)"):
        store([3]).plan.packing()


def test_a_whole_window_is_looked_at_and_rows_are_no_fewer_than_tokens_fill() -> None:
    sizes = np.maximum(
        np.random.default_rng(0).lognormal(np.log(600) - 0.5, 1, 60_000).astype(np.int64), 1
    )
    windows = store(sizes).shuffle(seed=1).pack(8192, "best_fit")
    told, rows = windows.plan.packing(), list(range(1024))  # which a window has
    assert told.sampled == len(
        {sample.index for sample in windows.plan.at(slice(0, len(rows))) if sample.start == 0}
    )
    assert told.fill >= 0.998 and told.split < 0.002
    planned = store(sizes).shuffle(seed=1).pack(2048, "best_fit", overflow="never").plan.packing()
    assert planned.rows is not None and planned.rows * 2048 >= sizes.sum()
