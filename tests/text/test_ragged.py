"""Collating samples whose fields differ in length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.arrays.columnar import Jagged

ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=6)


def samples(rows: list[list[int]]) -> list[dict[str, Any]]:
    return [
        {"ids": np.asarray(row, np.int32), "labels": row, "name": f"s{i}"}
        for i, row in enumerate(rows)
    ]


@examples(100)
@given(ROWS, st.integers(1, 4))
def test_what_the_mask_shows_is_what_was_there(rows: list[list[int]], multiple: int) -> None:
    batch = ps.pad({"ids": 99, "labels": -100}, multiple=multiple)(samples(rows))
    mask = batch["attention_mask"]
    longest = max(map(len, rows))
    assert (
        mask.shape
        == batch["ids"].shape
        == batch["labels"].shape
        == (len(rows), -(-longest // multiple) * multiple)
    )
    assert batch["ids"].dtype == np.int32 and mask.dtype == np.int64
    for row, ids, labels, here in zip(rows, batch["ids"], batch["labels"], mask, strict=True):
        assert here.tolist() == [1] * len(row) + [0] * (len(here) - len(row))
        assert ids.tolist() == [*row, *[99] * (len(here) - len(row))]
        assert labels.tolist() == [*row, *[-100] * (len(here) - len(row))]
    assert batch["name"] == [f"s{i}" for i in range(len(rows))]


@examples(100)
@given(ROWS)
def test_jagged_fields_are_the_rows_one_behind_the_other(rows: list[list[int]]) -> None:
    batch = ps.jagged(["ids"])([{"ids": row, "n": i} for i, row in enumerate(rows)])
    ids = batch["ids"]
    assert isinstance(ids, Jagged) and len(ids) == len(rows)
    assert [ids[i].tolist() for i in range(len(rows))] == rows == [part.tolist() for part in ids]
    assert ids.values.tolist() == [x for row in rows for x in row]
    assert ids.offsets.tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    assert batch["n"].tolist() == list(range(len(rows)))


def test_fields_of_more_dimensions_are_padded_along_the_first() -> None:
    batch = ps.pad({"x": 0.5}, mask="mask")([{"x": np.ones((2, 3))}, {"x": np.ones((1, 3))}])
    assert batch["x"].shape == (2, 2, 3) and batch["mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["x"][1, 1].tolist() == [0.5] * 3


def test_a_set_length_holds_for_every_batch() -> None:
    ds = ps.from_sequence([{"x": [1]}, {"x": [1, 2]}, {"x": []}]).batch(
        1, collate=ps.pad({"x": 0}, length=3)
    )
    assert [batch["x"].tolist() for batch in ds] == [[[1, 0, 0]], [[1, 2, 0]], [[0, 0, 0]]]
    with pytest.raises(ps.DataError, match="'x' has 4 entries, more than pad"):
        ps.pad({"x": 0}, length=3)([{"x": [1, 2, 3, 4]}])


@pytest.mark.parametrize(
    ("make", "batch", "match"),
    [
        (ps.pad({"x": 0}), [3], "sample 0 in the batch is a int"),
        (
            ps.pad({"x": 0}),
            [{"x": [1]}, {"y": [1]}],
            "sample 1 in the batch lacks 'x'; it has \\['y'\\]",
        ),
        (
            ps.pad({"x": 0}),
            [{"x": "text"}],
            "'x' of sample 0 in the batch is no list or array of numbers",
        ),
        (ps.pad({"x": 0}), [{"x": 3}], "is no list or array of numbers"),
        (
            ps.pad({"x": 0}),
            [{"x": np.ones((1, 2))}, {"x": np.ones((1, 3))}],
            "differs along more than its first axis",
        ),
        (ps.pad({"x": -100}), [{"x": np.ones(2, np.uint16)}], "'x': -100 does not fit into uint16"),
        (ps.pad({"x": 0.5}), [{"x": [1]}], "0.5 does not fit into"),
        (ps.jagged("x"), [{"x": "text"}], "is no list or array of numbers"),
        (
            ps.jagged(["x"]),
            [{"x": [[1]]}, {"x": [[1, 2]]}],
            "differs along more than its first axis",
        ),
    ],
)
def test_what_cannot_be_padded_is_named(make: Any, batch: Any, match: str) -> None:
    with pytest.raises(ps.DataError, match=match):
        make(batch)


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(ps.ConfigError, match="name at least one field"):
        ps.pad({})
    with pytest.raises(ps.ConfigError, match="give the mask another name"):
        ps.pad({"attention_mask": 0})
    with pytest.raises(ps.ConfigError, match="multiple"):
        ps.pad({"x": 0}, multiple=0)
    with pytest.raises(ps.ConfigError, match="name at least one field"):
        ps.jagged([])
    with pytest.raises(TypeError, match="did you mean fields="):
        ps.pad(columns={"x": 0})  # pyright: ignore[reportCallIssue]


def test_what_was_padded_with_is_part_of_what_a_run_is() -> None:
    ds = ps.from_sequence([{"x": [1, 2]}, {"x": [3]}])
    loader = ps.Loader(ds.batch(1, collate=ps.pad({"x": 0})))
    next(iter(loader))
    with pytest.raises(ps.StateError):
        ps.Loader(ds.batch(1, collate=ps.pad({"x": 1}))).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("fields", ["ids", ["ids"], None, 0])
def test_fields_without_what_fills_them_are_refused(fields: Any) -> None:
    with pytest.raises(
        ps.ConfigError, match=r"give the padding value of each field, such as \{'input_ids': 0\}"
    ):
        ps.pad(fields)
