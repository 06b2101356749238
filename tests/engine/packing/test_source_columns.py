"""Columns with the source of every token: packed and padded batches, of indexed data and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.text import CausalLM, Padded

NAMES = ("code", "text", "web")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_segments": 3},
    {"method": "first_fit", "max_segments": 4},
    {"method": "first_fit", "long": "truncate"},
    {"method": "best_fit"},
    {"method": "best_fit", "overflow": "never"},
    {"group_by": "__source__"},
    {"pad_to_multiple": 4},
    {"bos": 90, "eos": 91},
)


def make_source(number: int, sizes: list[int]) -> ps.Dataset:
    """Return documents whose tokens are all the number of their source."""
    ends = np.cumsum([0, *sizes])
    return ps.from_tokens(np.full(int(ends[-1]), number, np.int32), ends, name=NAMES[number])


def make_mixture(sizes: list[list[int]], weights: list[int], stop: Any = "restart") -> ps.Dataset:
    inputs = {NAMES[i]: make_source(i, each).shuffle() for i, each in enumerate(sizes)}
    return ps.mix(inputs, dict(zip(NAMES, weights, strict=False)), seed=1, stop=stop)


def check_sources(batch: dict[str, Any], ids: int = 90) -> None:
    """Assert that every token has its source; tokens from `ids` on belong to no source."""
    tokens, segments = np.atleast_2d(batch["tokens"]), np.atleast_2d(batch["segment_ids"])
    found = np.atleast_2d(batch["source_ids"])
    assert found.dtype == np.int16 and ((found >= 0) == (segments > 0)).all()
    known = (segments > 0) & (tokens < ids)
    assert (found == tokens)[known].all()
    if "segment_sources" in batch:
        for row, listed in zip(
            zip(segments, found, strict=True), np.atleast_2d(batch["segment_sources"]), strict=True
        ):
            segment, source = row
            wanted = [source[segment == n][0] for n in range(1, segment.max() + 1)]
            assert listed.tolist() == wanted + [-1] * (len(listed) - len(wanted))


sizes = st.lists(st.integers(1, 20), min_size=2, max_size=12)


@examples(60)
@given(
    data=st.data(),
    sizes=st.lists(sizes, min_size=2, max_size=3),
    options=st.sampled_from(OPTIONS),
    batch=st.sampled_from([None, 1, 3]),
    is_stream=st.booleans(),
)
def test_every_token_has_its_source(
    data: st.DataObject,
    sizes: list[list[int]],
    options: dict[str, Any],
    batch: int | None,
    is_stream: bool,
) -> None:
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    ends = is_stream or options.get("method") or options.get("max_segments")
    mixture = make_mixture(sizes, weights, "all_exhausted" if ends else "restart")
    if is_stream:
        mixture = mixture.filter(lambda doc: len(doc) % 5 != 0)
    packed = mixture.pack(16, **{"provenance": True, **options})
    if batch:
        packed = packed.batch(batch)
    assert packed.sources == NAMES[: len(sizes)]
    start = data.draw(st.integers(0, 5))
    loader = ps.Loader(packed, workers=data.draw(st.sampled_from([0, 2])))
    for _ in zip(range(start), loader, strict=False):
        pass
    resumed = ps.Loader(packed)
    resumed.load_state_dict(loader.state_dict())
    for item, _ in zip(resumed, range(8), strict=False):
        check_sources(item)
    loader.close()


def test_an_indexed_mixture_stays_indexed() -> None:
    packed = make_mixture([[3, 5, 7], [4, 9]], [1, 3]).pack(8, provenance=True)
    for row in (0, 5, 10**9):
        check_sources(packed[row])


@pytest.mark.parametrize("grouped", ["batch", "tokens", "lengths"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_padded_batches_name_their_sources(grouped: str, is_stream: bool) -> None:
    mixture = make_mixture([[3, 5, 7, 2], [4, 9, 1]], [1, 3])
    if is_stream:
        mixture = mixture.filter(lambda doc: len(doc) != 5)
    padded = Padded(provenance=True)
    batches = {
        "batch": lambda: mixture.batch(3, collate=padded),
        "tokens": lambda: mixture.batch_by_tokens(20, collate=padded),
        "lengths": lambda: mixture.bucket_by_length([4], 3, collate=padded),
    }[grouped]()
    for batch, _ in zip(ps.Loader(batches), range(20), strict=False):
        check_sources(batch)
        assert batch["segment_sources"].shape == (len(batch["tokens"]), 1)


def test_a_document_that_cannot_be_read_has_no_source() -> None:
    class Broken:
        def __init__(self, number: int, bad: bool) -> None:
            self.number, self.bad = number, bad

        def __len__(self) -> int:
            return 12

        def read(self, indices: Any) -> list[Any]:
            if self.bad and 4 in indices:
                raise ps.DataError("unreadable")
            return [np.full(3 + i % 4, self.number, np.int32) for i in indices.tolist()]

        def lengths(self) -> Any:
            return 3 + np.arange(12) % 4

        def describe(self) -> str:
            return f"broken {self.number}"

    inputs = {NAMES[i]: ps.from_sequence(Broken(i, i == 1), name=NAMES[i]) for i in range(2)}
    packed = ps.mix(inputs, {"code": 1, "text": 1}, seed=1).pack(16, provenance=True).batch(2)
    loader = ps.Loader(packed, on_error="quarantine")
    for batch, _ in zip(loader, range(20), strict=False):
        check_sources(batch)
    assert sum(loader.stats()["quarantined"].values()) > 0


def test_a_source_that_joins_the_run_is_named_too() -> None:
    sizes = [[3, 5, 7, 2], [4, 9, 1], [6, 6]]
    loader = ps.Loader(make_mixture(sizes[:2], [1, 3]).pack(16, provenance=True).batch(2))
    for _ in zip(range(3), loader, strict=False):
        pass
    wider = ps.Loader(make_mixture(sizes, [1, 3, 2]).pack(16, provenance=True).batch(2))
    wider.load_state_dict(loader.state_dict(), on_mismatch="adopt")
    batches = [batch for batch, _ in zip(wider, range(20), strict=False)]
    for batch in batches:
        check_sources(batch)
    assert any((batch["source_ids"] == 2).any() for batch in batches)


def test_columns_go_through_fields_of_trainers() -> None:
    rows = make_mixture([[3, 5, 7], [4, 9]], [1, 3]).pack(16, provenance=True).batch(2)
    plain = next(iter(rows.map(CausalLM())))
    assert plain["source_ids"].shape == plain["input_ids"].shape
    flat = next(iter(rows.map(CausalLM(flatten=True))))
    assert flat["source_ids"].shape == flat["input_ids"].shape and (flat["source_ids"] >= 0).all()


def test_a_feature_of_the_same_name_is_an_error() -> None:
    docs = ps.from_sequence([{"tokens": [1, 2], "source_ids": [1, 1]}])
    with pytest.raises(ps.DataError, match="adds columns of that name"):
        next(iter(docs.pack(4, provenance=True)))
    assert "source_ids" in next(iter(docs.pack(4)))
    with pytest.raises(ps.DataError, match="Padded adds source_ids"):
        next(iter(docs.batch(1, collate=Padded(provenance=True))))
    with pytest.raises(ps.ConfigError, match="provenance"):
        Padded(provenance="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="provenance"):
        docs.pack(4, provenance="yes")  # pyright: ignore[reportArgumentType]


def test_states_of_rows_without_sources_are_unchanged() -> None:
    mixture = make_mixture([[3, 5], [4]], [1, 1])
    described = [str(mixture.pack(8, provenance=on).tree.describe()) for on in (False, True)]
    assert "provenance" not in described[0] and "provenance" in described[1]
