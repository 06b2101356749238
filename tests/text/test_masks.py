"""Masks of documents: every form of one lets the same tokens see each other, and equals attention by document."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import ConfigError, DataError
from penstock.text import CausalLM, document_mask, flash_varlen, flex_mask, splash_segment_ids

rows_of_ids = st.lists(
    st.lists(st.integers(0, 3), min_size=6, max_size=6).map(sorted), min_size=1, max_size=3
)


def seen(ids: list[list[int]], causal: bool) -> list[Any]:
    """The mask, pair by pair."""
    return [
        [
            [
                [a == b and (not causal or q >= k) for k, b in enumerate(row)]
                for q, a in enumerate(row)
            ]
        ]
        for row in ids
    ]


@examples(30)
@given(rows_of_ids, st.booleans())
def test_every_form_lets_the_same_tokens_see_each_other(ids: list[list[int]], causal: bool) -> None:
    import jax.numpy as jnp

    wanted = seen(ids, causal)
    array = np.array(ids, np.int32)
    assert document_mask(array, causal).tolist() == wanted
    assert document_mask(array[0], causal).tolist() == wanted[0]
    tensor = document_mask(torch.from_numpy(array), causal)
    assert tensor.dtype == torch.bool and tensor.tolist() == wanted
    assert document_mask(jnp.asarray(array), causal).tolist() == wanted
    for given_ids in (array, torch.from_numpy(array)):
        mask = flex_mask(given_ids, causal)
        assert [
            [[[bool(mask(b, 0, q, k)) for k in range(6)] for q in range(6)]]
            for b in range(len(ids))
        ] == wanted


@pytest.fixture(scope="module")
def batch() -> dict[str, Any]:
    """Two rows of 128 of packed documents, with padding."""
    docs = [np.full(size, 1) for size in (50, 40, 30, 90, 7, 1)]
    ds = ps.from_sequence(docs).pack(128, "first_fit").batch(2)
    fields: Any = ("segment_ids", "cu_seqlens", "max_seqlen", "position_ids")
    [made] = ps.Loader(ds.map(CausalLM(fields)), lanes=1)
    assert made["segment_ids"].shape == (2, 128) and (made["segment_ids"] == 0).any()
    return made


@pytest.fixture(scope="module")
def heads() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, 128, 16) for _ in range(3)]


@pytest.fixture(scope="module")
def by_document(batch: dict[str, Any], heads: list[torch.Tensor]) -> torch.Tensor:
    """Attention within every document alone, as a varlen kernel does it: the batch laid end to end, cut at borders."""
    told = flash_varlen(batch)
    assert told["cu_seqlens_q"] is told["cu_seqlens_k"] and told["cu_seqlens_q"].dtype == np.int32
    laid = [x.transpose(1, 2).reshape(-1, 2, 16) for x in heads]
    assert told["cu_seqlens_q"][-1] == len(laid[0])
    out = torch.empty_like(laid[0])
    for a, b in pairwise(told["cu_seqlens_q"].tolist()):
        assert 0 < b - a <= told["max_seqlen_q"]
        q, k, v = (x[a:b].transpose(0, 1) for x in laid)
        out[a:b] = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        ).transpose(0, 1)
    return out.reshape(2, 128, 2, 16).transpose(1, 2)


def test_a_dense_mask_is_attention_by_document(
    batch: dict[str, Any], heads: list[torch.Tensor], by_document: torch.Tensor
) -> None:
    mask = document_mask(torch.from_numpy(batch["segment_ids"]))
    found = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
    torch.testing.assert_close(found, by_document)
    assert not found.isnan().any()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_attention_by_document(
    batch: dict[str, Any], heads: list[torch.Tensor], by_document: torch.Tensor
) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(
        flex_mask(batch["segment_ids"]), 2, None, 128, 128, device="cpu", BLOCK_SIZE=32
    )
    assert blocks.sparsity() > 30, "whole blocks of other documents are left out"
    q, k, v = heads
    attention: Any = flex_attention(q, k, v, block_mask=blocks)
    torch.testing.assert_close(attention, by_document)


def test_splash_attentions_own_reference_takes_the_ids(
    batch: dict[str, Any], heads: list[torch.Tensor], by_document: torch.Tensor
) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds, splash_attention_kernel

    ids = splash_segment_ids(batch["segment_ids"])
    assert (
        isinstance(ids, SegmentIds)
        and ids.q.shape == ids.kv.shape == (2, 128)
        and ids.q.dtype == jnp.int32
    )
    before = jnp.asarray(np.tri(128, dtype=bool))
    q, k, v = (jnp.asarray(x.numpy()) for x in heads)

    def one(head: Any, k: Any, v: Any, ids: Any) -> Any:
        return splash_attention_kernel.attention_reference(before, head / 4, k, v, ids)

    found = jax.vmap(jax.vmap(one, (0, 0, 0, None)))(q, k, v, ids)
    assert np.allclose(np.asarray(found), by_document.numpy(), atol=2e-5)


def test_a_batch_without_borders_is_named() -> None:
    with pytest.raises(
        DataError, match=r"no cu_seqlens and max_seqlen; name it in CausalLM\(fields=\)"
    ):
        flash_varlen({"input_ids": 1})


def test_frameworks_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.ops.tpu.splash_attention", None)
    with pytest.raises(ImportError, match=r"penstock-data\[torch\]"):
        flex_mask(np.ones((1, 2), int))
    with pytest.raises(ImportError, match=r"penstock-data\[jax\]"):
        splash_segment_ids(np.ones((1, 2), int))


@pytest.mark.parametrize("mask", [document_mask, flex_mask, splash_segment_ids])
def test_a_batch_is_no_array_of_ids(mask: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"a batch is no array: give its ids, batch\['segment_ids'\]"
    ):
        mask({"segment_ids": np.array([[1, 1]])})
    for wrong in (None, 3, "ids"):
        with pytest.raises(ConfigError, match="is no array with the ids of documents"):
            mask(wrong)
    mask([[1, 1, 2]])
    with pytest.raises(ConfigError, match="flash_varlen: ndarray is no batch; give the mapping"):
        flash_varlen(np.array([[1, 1]]))  # pyright: ignore[reportArgumentType]
