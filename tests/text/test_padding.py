"""Documents of many lengths in one batch: the form of packed rows, with a document a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.packing import Packing
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import CausalLM, Padded, pad_columns, pad_rows
from penstock.types import Item


@examples(100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 8), st.integers(-3, 3))
def test_a_padded_row_is_a_packed_row_with_one_document(
    sizes: list[int], multiple: int, pad: int
) -> None:
    docs = [np.arange(1, size + 1, dtype=np.int16) for size in sizes]
    batch = Padded(pad, multiple)(docs)
    width = -(-max(sizes) // multiple) * multiple
    assert batch["tokens"].shape == (len(docs), width) and batch["tokens"].dtype == np.int32
    for i, doc in enumerate(docs):
        row = Packing(width, pad=pad).build([Item(0, len(doc), doc)]) if len(doc) else None
        if row is not None:
            assert all(np.array_equal(batch[name][i], row[name]) for name in row)
            assert {name: batch[name].dtype for name in row} == {
                name: row[name].dtype for name in row
            }
        else:
            assert (batch["tokens"][i] == pad).all() and not batch["segment_ids"][i].any()


def test_every_feature_is_padded_by_its_own_value_to_its_own_length() -> None:
    batch = Padded({"labels": -100}, 2)(
        [
            {
                "input_ids": [1, 2, 3],
                "labels": np.array([1, 2, 3]),
                "image": [0.5],
                "name": "a",
                "id": 7,
            },
            {"input_ids": [], "labels": [], "image": [], "name": "b", "id": 8},
        ]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3, -100], [-100] * 4]
    assert (
        batch["image"].tolist() == [[0.5, 0.0], [0.0, 0.0]] and batch["image"].dtype == np.float64
    )
    assert batch["name"] == ["a", "b"] and batch["id"].tolist() == [7, 8]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 0], [0] * 4]
    assert batch["positions"].tolist() == [[0, 1, 2, 0], [0] * 4]


def test_it_is_a_collate_of_all_that_groups() -> None:
    docs = ps.from_sequence([np.arange(1, 2 + i % 7) for i in range(30)])
    for ds in (
        docs.batch(4, collate=Padded()),
        docs.bucket_by_length([3, 6], 4, collate=Padded(multiple=3)),
        docs.batch_by_tokens(24, padded=True, collate=Padded()),
    ):
        batches = list(ps.Loader(ds.map(CausalLM(("input_ids", "attention_mask"))), lanes=1))
        assert sum(int(batch["attention_mask"].sum()) for batch in batches) == sum(
            1 + i % 7 for i in range(30)
        )
        assert_resumes(lambda ds=ds: ds, steps=5)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{"a": [1]}, {"a": [1], "b": 2}], r"differ in the fields \['b'\]"),
        ([{"a": "x"}, {"a": "y"}], "no feature that is a row of numbers"),
        ([{"tokens": [1], "positions": [0]}], "Padded adds positions"),
        (
            [{"tokens": np.ones(2, np.uint8), "labels": [True]}],
            "'labels' cannot hold its padding -100",
        ),
        (
            [[1], [2**31]],
            "field 'tokens' of sample 1 in the batch: 2147483648 does not fit into int32; pass dtype=",
        ),
        ([[2**63, -1]], "field 'tokens' of sample 0 in the batch: -1 beside integers over"),
        ([[1, 2], "text"], "mixes"),
        ([{"tokens": [1]}, {"tokens": [[1], [2]]}], "shapes"),
    ],
)
def test_documents_that_do_not_go_together_are_named(documents: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Padded({"labels": -100})(documents)


@pytest.mark.parametrize("document", [np.arange(3), {"input_ids": [1, 2]}, [1, 2], "text"])
def test_a_single_document_is_no_list_of_documents(document: Any) -> None:
    with pytest.raises(DataError, match=r"write \.batch\(n, collate=Padded\(\)\)"):
        Padded()(document)


def test_a_multiple_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Padded\(multiple=0\)"):
        Padded(multiple=0)


def test_tensors_are_rows_of_numbers() -> None:
    import torch

    batch = Padded()([torch.arange(3), torch.arange(2)])
    assert batch["tokens"].tolist() == [[0, 1, 2], [0, 1, 0]] and isinstance(
        batch["tokens"], np.ndarray
    )


def test_padding_that_rows_do_not_have_is_refused() -> None:
    given: list[tuple[Any, Any]] = [
        (np.int64(-100), np.uint8),
        (0.5, np.int32),
        (float("nan"), np.int64),
    ]
    for pad, dtype in given:
        with pytest.raises(DataError, match=f"'x' cannot hold its padding {pad}"):
            pad_columns([{"x": np.ones(2, dtype)}, {"x": np.ones(1, dtype)}], pad)


def test_parts_of_it() -> None:
    assert pad_rows(["a"]) is None and pad_rows([[1], [[2]]]) is None and pad_rows([1, 2]) is None
    assert pad_columns([{"x": np.ones((2, 2))}] * 3)["x"].shape == (3, 2, 2)


def test_a_class_in_place_of_its_object_is_an_error_that_says_so() -> None:
    ds = ps.from_sequence([{"tokens": [1, 2]}, {"tokens": [3]}])
    with pytest.raises(ps.ConfigError, match=r"collate\(Padded\) is given a class.*: Padded\("):
        ds.batch(2, collate=Padded)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match=r"map\(CausalLM\) is given a class"):
        ds.map(CausalLM)
    assert ds.batch(2, collate=tuple)[0] == ({"tokens": [1, 2]}, {"tokens": [3]})


@pytest.mark.parametrize("shape", [(1,), (1, 2)])
def test_fields_that_do_not_stack_say_what_lays_them_together(shape: tuple[int, ...]) -> None:
    remedy = r"collate=ps.pad\(\{'x': 0\}\)"
    values = [np.zeros(shape), np.zeros((2, *shape[1:]))]
    ds = ps.from_sequence([{"x": value} for value in values])
    with pytest.raises(ps.DataError, match=rf"pad them with {remedy}.*Padded\(join=\)"):
        next(iter(ds.batch(2)))
