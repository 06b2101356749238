"""The first pass of a large pack, found by sums, beside the list of its documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.steps import pack


def make_store(rows: int, seed: int, name: str) -> ps.Dataset:
    lengths = np.random.default_rng(seed).integers(0 if seed % 3 == 0 else 1, 40, rows)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return ps.from_tokens(np.arange(offsets[-1]), offsets, name=name).shuffle()


@examples(100)
@given(
    rows=st.lists(st.integers(20, 300), min_size=1, max_size=4),
    seed=st.integers(0, 9),
    stop=st.sampled_from(["first_exhausted", "all_exhausted", "all_exhausted_oversample"]),
    unit=st.sampled_from(["samples", "tokens"]),
    max_epochs=st.sampled_from([None, 2, 2.5]),
    method=st.sampled_from([("concat_split", None), ("best_fit", "split"), ("best_fit", "never")]),
    limit=st.sampled_from([None, 7]),
)
def test_a_first_pass_by_sums_holds_what_the_list_of_its_documents_says(
    rows: list[int],
    seed: int,
    stop: Any,
    unit: Any,
    max_epochs: float | None,
    method: tuple[Any, Any],
    limit: int | None,
) -> None:
    def answers() -> list[Any]:
        stores = {f"s{i}": make_store(n, seed + i, f"s{i}") for i, n in enumerate(rows)}
        weights = {name: 1 + i for i, name in enumerate(stores)}
        mixed = ps.mix(stores, weights, seed=seed, stop=stop, unit=unit, max_epochs=max_epochs)
        options: dict[str, Any] = {"split": {"rows": 4}, "never": {"window": 64}}.get(method[1], {})
        options |= {} if method[1] is None else {"overflow": method[1]}
        ds = mixed.pack(64, method[0], **options)
        ds = ds if limit is None else ds.limit(limit)
        plan = ds.batch(2).plan
        size = plan.size or 0
        found: list[Any] = [size, plan.exhaustion(), plan.seen(size // 2).documents]
        found += [plan.counts(at) for at in range(0, size + 1, max(size // 5, 1))]
        found += [plan.counts(at, "tokens") for at in range(0, size + 1, max(size // 3, 1))]
        found += [[sample.key for sample in plan.at(at)] for at in range(min(size, 60))]
        found += [plan.find(name, index) for name in stores for index in (0, 7, 19)]
        later = range(size, 2 * size)
        found += [[sample.key for sample in plan.at(at)] for at in later[:20]]
        return found

    listed = answers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "_SAMPLED", 0)
        assert answers() == listed
