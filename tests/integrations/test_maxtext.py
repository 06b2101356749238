"""The integration with MaxText, with a stand-in for its `MultiHostDataLoadIterator`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import ConfigError
from penstock.integrations.maxtext import eval_iterator, fields, train_iterator

NAMES = [name + end for name in ("inputs", "targets") for end in ("", "_position", "_segmentation")]


class MultiHost:
    """The stand-in: takes rows from an iterator of its own, and begins anew when it is reset."""

    def __init__(self, loader: Any, mesh: Any, padding: bool) -> None:
        self.loader, self.mesh, self.padding = loader, mesh, padding
        self.reset()

    def reset(self) -> None:
        self.local_iterator = iter(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self.local_iterator


@pytest.fixture(autouse=True)
def maxtext(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "maxtext",
        "maxtext.input_pipeline",
        "maxtext.input_pipeline.multihost_dataloading",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[
        "maxtext.input_pipeline.multihost_dataloading"
    ].MultiHostDataLoadIterator = MultiHost  # pyright: ignore[reportAttributeAccessIssue]


def config(rows: int = 4, factor: float = -1) -> Any:
    padding = {"generate_padding_batch_train": False, "generate_padding_batch_eval": True}
    return SimpleNamespace(
        global_batch_size_to_load=rows, expansion_factor_real_data=factor, **padding
    )


def packed(name: str) -> ps.Dataset:
    documents = ps.from_tokens(np.arange(1, 401), np.arange(0, 401, 10)).shuffle(seed=1)
    unknown = (
        ps.from_sequence(range(40)).map(lambda x: np.full(x % 9 + 1, x + 1, np.int64)).repeat()
    )
    return {"indexed": documents.pack(16), "lanes": unknown.pack(16)}[name]


def plain(batches: Any) -> list[Any]:
    return [{name: column.tolist() for name, column in batch.items()} for batch in batches]


@pytest.mark.parametrize("name", ["indexed", "lanes"])
def test_batches_states_and_resets(name: str) -> None:
    table = train_iterator(packed(name), workers=2)(config(), "mesh", [0])
    assert (table.mesh, table.padding) == ("mesh", False)
    first = plain(islice(table.local_iterator, 3))
    assert first == plain(map(fields, islice(ps.Loader(packed(name).batch(4)), 3)))
    assert list(first[0]) == NAMES
    state = table.local_iterator.get_state()
    assert isinstance(state, bytes)
    rest = plain(islice(table.local_iterator, 3))
    again = train_iterator(packed(name))(config(), "mesh", [0])
    next(again.local_iterator)
    again.local_iterator.set_state(state)
    assert plain(islice(again.local_iterator, 3)) == rest
    table.reset()
    assert plain(islice(table.local_iterator, 3)) == first


def test_evaluation_ends_and_begins_anew() -> None:
    table = eval_iterator(packed("indexed"))(config(), "mesh", [0])
    assert table.padding
    batches = plain(table.local_iterator)
    assert len(batches) == len(packed("indexed")) // 4
    assert next(table.local_iterator, None) is None
    table.reset()
    assert plain(table.local_iterator) == batches


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"expansion_factor_real_data=0\.5 needs several iterators"
    ):
        train_iterator(packed("lanes"))(config(factor=0.5), "mesh", [0])


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=9),
    st.integers(2, 12),
)
@examples(50)
def test_every_trained_target_is_the_next_token_of_the_document(
    documents: list[list[int]], length: int
) -> None:
    rows = list(
        ps.Loader(
            ps.from_sequence([np.array(each) for each in documents]).pack(
                length, method="first_fit"
            ),
            lanes=1,
        )
    )
    pairs = list[tuple[int, int]]()
    for row in map(fields, rows):
        trained = row["targets_segmentation"] > 0
        assert (row["targets_segmentation"][trained] == row["inputs_segmentation"][trained]).all()
        pairs += zip(row["inputs"][trained].tolist(), row["targets"][trained].tolist(), strict=True)
    pieces = [each[i : i + length] for each in documents for i in range(0, len(each), length)]
    assert sorted(pairs) == sorted(pair for piece in pieces for pair in pairwise(piece))
    assert all(column.dtype == np.int32 for row in map(fields, rows) for column in row.values())


@pytest.mark.parametrize("name", ["input_ids", "ids"])
def test_rows_name_their_tokens_as_for_causal_lm(name: str) -> None:
    documents = [{name: np.arange(1, n)} for n in (3, 5, 9)]
    row = next(iter(ps.from_sequence(documents).pack(8)))
    wanted = next(iter(ps.from_sequence([row[name] for row in documents]).pack(8)))
    assert plain([fields(row)]) == plain([fields(wanted)])
    ds = ps.from_sequence(documents).pack(8).repeat()
    (batch,) = islice(train_iterator(ds)(config(), "mesh", [0]).local_iterator, 1)
    assert batch["inputs"].shape == (4, 8)


def test_other_batches_are_refused() -> None:
    two = {"a": np.arange(3), "b": np.arange(3), "segment_ids": np.ones(3, int)}
    with pytest.raises(ps.DataError, match=r"maxtext.fields takes rows .* not a, b"):
        fields(two)
    with pytest.raises(ps.DataError, match=r"not one with x: map over .pack"):
        fields({"x": np.arange(3)})
    with pytest.raises(ps.DataError, match="with positions, not one with tokens, segment_ids"):
        fields({"tokens": np.arange(3), "segment_ids": np.ones(3, int)})
