"""Packed chats: every form of document borders, that a kernel or trainer takes, says the same."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
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


def lognormal_rows(count: int, most: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows as `Chat` makes them, of a median of an eighth of `most` tokens."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.lognormal(np.log(most / 8), 1.0, count).astype(int) + 1, most)
    return [
        {"tokens": np.full(size, 1, np.int32), "loss_mask": np.arange(size) % 2 == 1}
        for size in sizes
    ]


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_rows_of_whole_chats_are_99_percent_full(method: Any) -> None:
    rows = lognormal_rows(4_000, 4_096)
    packed = list(ps.from_sequence(rows).shuffle(seed=1).pack(4_096, method))
    real = sum(int((row["segment_ids"] > 0).sum()) for row in packed)
    assert real == sum(len(row["tokens"]) for row in rows)
    assert real / (len(packed) * 4_096) >= 0.99


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_stored_chats_give_ranks_equal_loads(method: Any, tmp_path: Path) -> None:
    rows = [{**row, "id": i} for i, row in enumerate(lognormal_rows(1_200, 512))]
    (path,) = ps.from_sequence(rows).write(tmp_path / "chats.parquet")
    stored = ps.read(path, lengths="tokens").shuffle(seed=1)
    packed = stored.pack(512, method, features=("tokens", "loss_mask"), unpacked=("id",))
    ds = packed.batch(8, collate=list)

    def run(balance: Any) -> tuple[list[list[int]], list[float]]:
        """Return the chats of each global step, and how many times the mean its largest load is."""
        loaders = [ps.Loader(ds, rank=rank, world_size=4, balance=balance) for rank in range(4)]
        steps, excess = list[list[int]](), list[float]()
        for batches in zip(*loaders, strict=True):
            loads = [
                sum(int((np.bincount(row["segment_ids"])[1:] ** 2).sum()) for row in batch)
                for batch in batches
            ]
            excess.append(max(loads) / (sum(loads) / 4))
            rows = [row for batch in batches for row in batch]
            assert all(row["loss_mask"].sum() == (row["positions"] % 2).sum() for row in rows)
            steps.append(sorted(int(number) for row in rows for number in row["id"]))
        return steps, excess

    (steps, excess), (balanced_steps, balanced) = run(None), run("squares")
    assert balanced_steps == steps and len(steps) >= 5  # the same chats in each step
    assert max(balanced) < 1.05 and np.mean(excess) > 1.1


def test_balance_over_chats_of_unknown_lengths_names_the_remedy() -> None:
    ds = ps.from_sequence(lognormal_rows(50, 64)).repeat().map(dict).pack(64, "best_fit").batch(2)
    with pytest.raises(ps.PenstockError, match=r"balance=.*pack from known lengths"):
        next(iter(ps.Loader(ds, rank=0, world_size=2, balance="squares")))
