"""Packed chats: every form of document borders, that a kernel or trainer takes, says the same."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import penstock as ps
from chat_cases import bpe, random_conversation
from penstock.text import CausalLM, Chat, document_mask
from penstock.text.causal_lm import FIELDS

BORDERS = {
    "flash-attention": ("cu_seqlens", "cu_seqlens", "max_seqlen", "max_seqlen"),
    "transformers": ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    "Megatron": ("cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv"),
}
"""The names of borders and longest documents, of queries and of keys."""


def mask_of_borders(borders: np.ndarray) -> np.ndarray:
    """Return which token attends to which, from the beginnings of documents: block-diagonal, causal."""
    mask = np.zeros((borders[-1], borders[-1]), np.bool_)
    for start, stop in pairwise(borders.tolist()):
        mask[start:stop, start:stop] = np.tril(np.ones((stop - start, stop - start), np.bool_))
    return mask


def mask_of_rows(rows: np.ndarray, same: Any) -> np.ndarray:
    """Return the mask of rows laid end to end, from a mask for each of them."""
    length = rows.shape[1]
    mask = np.zeros((rows.size, rows.size), np.bool_)
    for number, row in enumerate(rows):
        part = slice(number * length, (number + 1) * length)
        mask[part, part] = same(row)
    return mask


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_masks_from_segments_borders_positions_and_numbers_are_one(method: Any) -> None:
    rng = random.Random(7)
    chats = [{"messages": random_conversation(rng)} for _ in range(60)]
    chat = Chat(bpe(), template="chatml", untrained="keep")
    encoded = [chat(each) for each in chats]
    options: Any = {} if method == "concat_split" else {"long": "truncate"}
    rows = ps.from_sequence(chats).map(chat).pack(512, method, **options)
    # With a name such as cu_seqlens_padded, the borders are those of Transformer Engine.
    fields: Any = [field for field in FIELDS if not field.endswith("_padded")]
    batches = list(rows.batch(3).map(CausalLM(fields)))
    seen = 0
    for batch in batches:
        ids, positions = batch["segment_ids"], batch["position_ids"]
        wanted = mask_of_rows(ids, lambda row: document_mask(row)[0])
        assert wanted.any()
        for borders_q, borders_k, longest_q, longest_k in BORDERS.values():
            borders = batch[borders_q]
            assert np.array_equal(borders, batch[borders_k])
            assert np.array_equal(mask_of_borders(borders), wanted)
            assert batch[longest_q] == batch[longest_k] == np.diff(borders).max()
        numbers = batch["seq_idx"]
        by_number = mask_of_rows(numbers, lambda row: np.tril(row[:, None] == row))
        assert np.array_equal(by_number, wanted)
        starts = np.ones(ids.shape, np.bool_)
        starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
        real = ids > 0
        assert not positions[starts].any() and not positions[~real].any()
        assert (np.diff(positions)[(~starts & real)[:, 1:]] == 1).all()
        assert np.array_equal(positions == 0, starts | ~real)
        assert (batch["labels"][starts | ~real] == -100).all()
        seen += int((starts & real).sum())
    assert seen >= len(chats)
    if method != "concat_split":  # whole chats, each with its own mask
        learned = sum(int((batch["labels"] >= 0).sum()) for batch in batches)
        assert learned == sum(int(row["loss_mask"][1:512].sum()) for row in encoded)
