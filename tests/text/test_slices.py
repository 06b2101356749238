"""Slices of rows for context-parallel ranks, against a model that cuts one document at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.text import CausalLM, slice_rows
from penstock.text.slices import SliceLayout

FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "cu_seqlens", "cu_seqlens_padded")


def split_documents(segments: list[int]) -> list[list[int]]:
    """Return the columns of each document of a row, with the padding after it."""
    documents: list[list[int]] = []
    for column, segment in enumerate(segments):
        if column == 0 or (segment and segment != segments[column - 1]):
            documents.append([])
        documents[-1].append(column)
    return documents


def cut(
    documents: list[list[int]], width: int, rank: int, ranks: int, layout: str
) -> list[list[int]]:
    """Return the columns of each document that a rank takes."""
    if layout == "contiguous":
        first = rank * (width // ranks)
        return [
            [c for c in columns if first <= c < first + width // ranks] for columns in documents
        ]
    taken: list[list[int]] = []
    for columns in documents:
        size = len(columns) // (2 * ranks)
        chunks = [columns[i * size : (i + 1) * size] for i in range(2 * ranks)]
        taken.append(chunks[rank] + chunks[2 * ranks - 1 - rank])
    return taken


@given(
    st.lists(st.integers(1, 23), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["concat_split", "first_fit", "best_fit"]),
    st.sampled_from(["zigzag", "contiguous"]),
)
def test_slices_are_the_cuts_of_each_document_and_add_up_to_the_batch(
    sizes: list[int], ranks: int, rows: int, method: Any, layout: SliceLayout
) -> None:
    ends = np.cumsum(sizes)
    documents = [np.arange(end - size + 1, end + 1) for size, end in zip(sizes, ends, strict=True)]
    width = 8 * ranks
    packed = ps.from_sequence(documents).pack(width, method, pad_to_multiple=2 * ranks)
    for batch in packed.batch(rows).map(CausalLM(FIELDS, shift=True)):
        before = {name: np.array(value) for name, value in batch.items()}
        parts = [slice_rows(batch, rank, ranks, layout=layout) for rank in range(ranks)]
        owned: list[list[tuple[int, int]]] = []
        for rank, part in enumerate(parts):
            lengths, padded = list[int](), list[int]()
            for r, segments in enumerate(batch["segment_ids"].tolist()):
                taken = cut(split_documents(segments), width, rank, ranks, layout)
                columns = [column for document in taken for column in document]
                for name in ("input_ids", "labels", "position_ids", "segment_ids"):
                    assert part[name][r].tolist() == [batch[name][r, c] for c in columns]
                lengths += [sum(segments[c] > 0 for c in document) for document in taken]
                padded += [len(document) for document in taken]
                owned.append([(r, c) for c in columns])
            assert np.diff(part["slice_cu_seqlens"]).tolist() == lengths
            assert np.diff(part["slice_cu_seqlens_padded"]).tolist() == padded
        every = sorted(place for places in owned for place in places)
        assert every == [(r, c) for r in range(len(batch["input_ids"])) for c in range(width)]
        for ending in ("cu_seqlens", "cu_seqlens_padded"):
            total = np.sum([part[f"slice_{ending}"] for part in parts], axis=0)
            assert total.tolist() == batch[ending].tolist()
            assert all((part[ending] == batch[ending]).all() for part in parts)
        if layout == "zigzag":  # each rank holds an equal part of every document
            for part in parts:
                assert (part["slice_cu_seqlens_padded"] * ranks).tolist() == batch[
                    "cu_seqlens_padded"
                ].tolist()
        assert all((batch[name] == value).all() for name, value in before.items())


def test_zigzag_slices_cost_causal_attention_the_same() -> None:
    packed = ps.from_sequence([np.arange(32), np.arange(16), np.arange(16)]).pack(
        64, pad_to_multiple=8
    )
    (batch,) = packed.batch(1).map(CausalLM(("input_ids", "position_ids", "segment_ids")))
    costs = [int((slice_rows(batch, rank, 4)["position_ids"] + 1).sum()) for rank in range(4)]
    assert len(set(costs)) == 1
    contiguous = [
        int((slice_rows(batch, rank, 4, layout="contiguous")["position_ids"] + 1).sum())
        for rank in range(4)
    ]
    assert len(set(contiguous)) > 1


def test_tensors_and_features_of_several_axes_are_sliced() -> None:
    torch = pytest.importorskip("torch")
    rows = ps.from_sequence([np.arange(1, 8), np.arange(1, 3)]).pack(12, pad_to_multiple=4)
    batch = next(iter(rows.batch(1)))
    batch |= {"vectors": np.stack([batch["tokens"]] * 3, -1), "step": 7, "names": ["a"]}
    wanted = slice_rows(batch, 1, 2)
    tensors = {n: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for n, v in batch.items()}
    part = slice_rows(tensors, 1, 2)
    assert part["vectors"].shape == wanted["vectors"].shape == (1, 6, 3)
    assert part["step"] == 7
    assert part["names"] == ["a"]
    for name, value in wanted.items():
        if isinstance(value, np.ndarray):
            assert isinstance(part[name], torch.Tensor)
            assert part[name].dtype == torch.as_tensor(value).dtype
            assert part[name].tolist() == value.tolist()


def test_rows_that_do_not_divide_are_an_error_with_its_remedy() -> None:
    (rows,) = ps.from_sequence([np.arange(1, 8), np.arange(1, 6)]).pack(12).batch(1)
    with pytest.raises(ps.DataError, match=r"document 0 .* 7 tokens .*pad_to_multiple=4"):
        slice_rows(rows, 0, 2)
    assert slice_rows(rows, 1, 2, layout="contiguous")["tokens"].tolist() == [[7, 1, 2, 3, 4, 5]]
    with pytest.raises(ps.DataError, match="12 tokens do not divide into 5 slices"):
        slice_rows(rows, 0, 5)
    with pytest.raises(ps.DataError, match=r"CausalLM\(fields=\)"):
        slice_rows({"input_ids": rows["tokens"]}, 0, 2)
    with pytest.raises(ps.ConfigError, match="rank 2 of 2"):
        slice_rows(rows, 2, 2)
    with pytest.raises(ps.ConfigError, match="layout"):
        slice_rows(rows, 0, 2, layout="ring")  # pyright: ignore[reportArgumentType]
