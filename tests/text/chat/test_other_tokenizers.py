"""Tokenizers of tiktoken and sentencepiece, trained or built here, with offsets of their own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chat_cases import random_conversation
from other_tokenizers import SPECIAL, make_sentencepiece, make_tiktoken
from penstock.text import Chat


def check(chat: Chat, decode: Any, owned: dict[str, int]) -> None:
    rng = random.Random(5)
    for number in range(100):
        messages = random_conversation(rng, number % 2 == 1, control=tuple(SPECIAL))
        row = chat({"messages": messages})
        ids, mask = row["tokens"].tolist(), row["loss_mask"].tolist()
        names = {owned[token]: token for token in ("<|im_start|>", "<|im_end|>")}
        found = [names[i] for i in ids if i in owned.values()]
        assert found == ["<|im_start|>", "<|im_end|>"] * len(messages), messages
        answers = "".join(m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant")
        learned = [i for i, is_learned in zip(ids, mask, strict=True) if is_learned]
        assert "".join(decode(learned).split()) == "".join(answers.split())


def test_tiktoken() -> None:
    encoding = make_tiktoken()
    chat = Chat(encoding, template="chatml")
    check(chat, encoding.decode, {token: encoding.encode_single_token(token) for token in SPECIAL})
    assert chat.__qualname__ == Chat(make_tiktoken(), template="chatml").__qualname__
    text = Chat(encoding, eos="<|endoftext|>", allowed_special=("<|end|>",))("x<|end|><|im_end|>")
    specials = [i - 1_000 for i in text["tokens"].tolist() if i >= 1_000]
    assert [SPECIAL[i] for i in specials] == ["<|end|>", "<|endoftext|>"]


def test_sentencepiece(tmp_path: Any) -> None:
    path = make_sentencepiece(tmp_path)
    sentencepiece = pytest.importorskip("sentencepiece")
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    names = {model.piece_to_id(token): token for token in SPECIAL}

    def decode(ids: list[int]) -> str:
        out, text = "", list[int]()
        for i in [*ids, -1]:
            if i in names or i < 0:
                out, text = out + model.decode(text) + names.get(i, ""), []
            else:
                text.append(i)
        return out

    owned = {token: number for number, token in names.items()}
    check(Chat(path, template="chatml"), decode, owned)
    assert Chat(model, template="chatml").__qualname__ == Chat(path, template="chatml").__qualname__
