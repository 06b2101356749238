"""Tokenizers of tiktoken and sentencepiece, made here; tests that use them are skipped without."""

from __future__ import annotations

from typing import Any

import pytest

from chat_cases import CONTROL, CORPUS

SPECIAL = [token for token in CONTROL if token.startswith("<|")]


def make_tiktoken() -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)}
    for pair in (b" t", b"he", b" the", b"an", b"sw", b"er", b"us", b"\n\n", b"yes", b" yes"):
        ranks[pair] = len(ranks)
    special = {token: 1_000 + i for i, token in enumerate(SPECIAL)}
    return tiktoken.Encoding(
        "toy", pat_str=r" ?\w+|\s+|[^\w\s]+", mergeable_ranks=ranks, special_tokens=special
    )


def make_sentencepiece(tmp_path: Any) -> Any:
    library = pytest.importorskip("sentencepiece")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(CORPUS).split("\n") * 5),
        model_prefix=str(tmp_path / "toy"),
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        control_symbols=SPECIAL[:2],
        user_defined_symbols=SPECIAL[2:],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return tmp_path / "toy.model"
