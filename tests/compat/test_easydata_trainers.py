"""Rows for EasyDeL's trainers. Values are those of EasyDeL 0.3.0; a comment says where they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock as ps
from penstock.compat.easydata import (
    BCOPreprocessTransform,
    CPOPreprocessTransform,
    DPOPreprocessTransform,
    GRPOPreprocessTransform,
    HFDatasetShardedSource,
    KTOPreprocessTransform,
    ORPOPreprocessTransform,
    RewardPreprocessTransform,
    SFTPreprocessTransform,
)

PAD, EOS, START, END, USER, ANSWER, Q, Q2, A, A2, B = 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    text = "<unk> <pad> <eos> <bos> <|start|> <|end|> user assistant q q2 a a2 b"
    words = {word: number for number, word in enumerate(text.split())}
    built = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special: dict[str, Any] = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=built,
        **special,
        bos_token="<bos>",
        additional_special_tokens=["<|start|>", "<|end|>"],
    )
    made.chat_template = (
        "{% for m in messages %}<|start|> {{ m['role'] }} {{ m['content'] }} <|end|> {% endfor %}"
        "{% if add_generation_prompt %}<|start|> assistant {% endif %}"
    )
    return made


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


QUESTION, GOOD, BAD = (
    message("user", "q q2"),
    message("assistant", "a a2"),
    message("assistant", "b"),
)
CHAT = {"messages": [QUESTION, GOOD]}
PAIR = {"chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]}
TEXTS = {"prompt": "q ", "chosen": "a a2", "rejected": "b"}
CHAT_TOKENS = [START, USER, Q, Q2, END, START, ANSWER, A, A2, END]


def test_fine_tuning(tokenizer: Any) -> None:
    def make(row: Any, **options: Any) -> dict[str, Any]:
        return SFTPreprocessTransform(tokenizer, **{"max_length": 12, **options})(row)

    assert make({"text": "q a"}) == {
        "input_ids": [Q, A, EOS, *[PAD] * 9],
        "attention_mask": [1, 1, 1, *[0] * 9],
    }
    assert make(CHAT)["input_ids"] == [*CHAT_TOKENS, PAD, PAD]
    assert make({"text": "q a"}, add_eos=False, max_length=3)["input_ids"] == [Q, A, PAD]
    assert make(CHAT, max_length=3)["input_ids"] == CHAT_TOKENS[:3]
    completion = make({"prompt": "q ", "completion": "a"}, mask_prompt=True, max_length=4)
    assert completion["input_ids"] == [Q, A, EOS, PAD]
    assert completion["completion_mask"] == [0, 1, 1, 0]
    # Conversations had no mask unless the template marks answers, and were trained on completely.
    assert make(CHAT, mask_prompt=True)["completion_mask"] == [*[0] * 7, 1, 1, 1, 0, 0]
    formatted = make({"x": "q"}, formatting_func=lambda row: row["x"], max_length=2)
    assert formatted["input_ids"] == [Q, EOS]
    assert make({"input_ids": [1]}) == {"input_ids": [1]}
    with pytest.raises(ps.DataError, match="a row has only x"):
        make({"x": 1})
    with pytest.raises(ps.DataError, match="over max_length=3"):
        make(CHAT, max_length=3, truncation=False)


@pytest.mark.parametrize(
    "kind", [DPOPreprocessTransform, ORPOPreprocessTransform, CPOPreprocessTransform]
)
def test_preference_pairs(kind: Any, tokenizer: Any) -> None:
    row = kind(tokenizer, max_prompt_length=2, max_completion_length=3)(TEXTS)
    assert row == {
        "prompt_input_ids": [PAD, Q],
        "prompt_attention_mask": [0, 1],
        "chosen_input_ids": [Q, A, A2, EOS, PAD],
        "chosen_attention_mask": [1, 1, 1, 1, 0],
        "chosen_labels": [-100, A, A2, EOS, -100],
        "rejected_input_ids": [Q, B, EOS, PAD, PAD],
        "rejected_attention_mask": [1, 1, 1, 0, 0],
        "rejected_labels": [-100, B, EOS, -100, -100],
    }
    # An answer of a template got a second end token, <eos>.
    chat = kind(tokenizer)({**PAIR, "tools": None})
    assert chat["chosen_input_ids"] == CHAT_TOKENS
    assert chat["rejected_labels"] == [*[-100] * 7, B, END]
    assert chat["prompt_input_ids"] == CHAT_TOKENS[:7]
    cut = kind(tokenizer, max_prompt_length=2, max_completion_length=1)(PAIR)
    assert cut["chosen_input_ids"] == [START, ANSWER, A]
    begun = kind(tokenizer, add_special_tokens=True)(TEXTS)
    assert begun["prompt_input_ids"] == [3, Q]


def test_answers_with_a_label(tokenizer: Any) -> None:
    labelled = {"prompt": "q ", "completion": "a", "label": 1}
    row = KTOPreprocessTransform(tokenizer, embedding_tokenizer=tokenizer)(labelled)
    assert row == {
        "prompt_input_ids": [Q],
        "prompt_attention_mask": [1],
        "completion_input_ids": [Q, A, EOS],
        "completion_attention_mask": [1, 1, 1],
        "completion_labels": [-100, A, EOS],
        "label": True,
        "embedding_input_ids": [Q],
        "embedding_attention_mask": [1],
    }
    expand = BCOPreprocessTransform(tokenizer)
    assert list(expand(labelled)) == [KTOPreprocessTransform(tokenizer)(labelled)]
    source = HFDatasetShardedSource([TEXTS, PAIR]).transform(expand)
    rows = list(source)
    assert [made["label"] for made in rows] == [True, False, True, False]
    assert rows[1]["completion_input_ids"] == [Q, B, EOS]
    assert rows[2]["completion_input_ids"] == CHAT_TOKENS


def test_reward_models(tokenizer: Any) -> None:
    row = RewardPreprocessTransform(tokenizer, max_length=11)(PAIR)
    assert row["input_ids_chosen"] == [*CHAT_TOKENS, PAD]
    assert row["attention_mask_rejected"] == [*[1] * 9, 0, 0]
    # Answers of text lost their prompt.
    row = RewardPreprocessTransform(tokenizer, max_length=None)(TEXTS)
    assert row["input_ids_chosen"] == [Q, A, A2]
    whole = {"prompt": "q ", "chosen": "q a a2", "rejected": "q b"}
    assert RewardPreprocessTransform(tokenizer, max_length=None)(whole) == row


def test_prompts(tokenizer: Any) -> None:
    def make(row: Any, **options: Any) -> list[int]:
        return GRPOPreprocessTransform(tokenizer, **options)(row)["input_ids"]

    assert make({"prompt": "q q2"}) == [Q, Q2]
    for row in ({"prompt": [QUESTION]}, {"messages": [QUESTION]}, PAIR):
        assert make(row) == CHAT_TOKENS[:7]
    # Prompts were padded on the right, and lost the beginning of the answer.
    assert make({"prompt": "q"}, max_prompt_length=3) == [PAD, PAD, Q]
    assert make({"prompt": [QUESTION]}, max_prompt_length=2) == [START, ANSWER]
    assert make({"prompt": ""}) == make({"chosen": [GOOD], "rejected": [BAD]}) == [EOS]
    with pytest.raises(ps.DataError, match="no prompt, only text"):
        make({"text": "q"})
    with pytest.raises(ps.DataError, match="needs a text as prompt"):
        make({"prompt": [QUESTION]}, skip_apply_chat_template=True)


class Slow:
    """A tokenizer without offsets, of letters."""

    pad_token_id, eos_token, eos_token_id = 0, ".", 46

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(
        self, messages: Any, add_generation_prompt: bool = False, **options: Any
    ) -> str:
        begin = "A" if add_generation_prompt else ""
        return "".join(f"{m['role'][0].upper()}{m['content']}" for m in messages) + begin


def read(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def test_tokenizers_without_offsets() -> None:
    slow = Slow()
    assert read(SFTPreprocessTransform(slow, None)(CHAT)["input_ids"]) == "Uq q2Aa a2"
    row = SFTPreprocessTransform(slow, 5, mask_prompt=True)({"prompt": "q", "completion": "a"})
    assert (read(row["input_ids"]), row["completion_mask"]) == ("qa.\0\0", [0, 1, 1, 0, 0])
    for pair in (PAIR, {"prompt": [QUESTION], "chosen": [GOOD], "rejected": "b"}):
        row = DPOPreprocessTransform(slow)(pair)
        assert read(row["prompt_input_ids"]) == "Uq q2A"
        assert read(row["rejected_input_ids"]) == "Uq q2Ab"
        assert row["rejected_labels"] == [-100] * 6 + [ord("b")]
    with pytest.raises(ps.ConfigError, match="mask_prompt=True needs a tokenizer with offsets"):
        SFTPreprocessTransform(slow, None, mask_prompt=True)(CHAT)
    with pytest.raises(ps.DataError, match="10 tokens, over max_length=3"):
        SFTPreprocessTransform(slow, 3, truncation=False)(CHAT)


def test_messages_may_be_json_texts(tokenizer: Any) -> None:
    texts = {"messages": [json.dumps(message) for message in CHAT["messages"]]}
    whole = {"text": json.dumps(CHAT["messages"]), "tools": '[{"name": "f"}]'}
    transform = SFTPreprocessTransform(tokenizer, None)
    assert transform(texts)["input_ids"] == transform(whole)["input_ids"] == CHAT_TOKENS
    assert transform(whole)["tools"] == [{"name": "f"}]
    data = '[ { "a" : 1 } ]'  # a text, since it has no roles
    assert len(transform({"text": data})["input_ids"]) == len(data.split()) + 1


def test_fields_beside_the_tokens_are_kept(tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    row: Any = GRPOPreprocessTransform(tokenizer)({"prompt": "q", "tools": tools, "id": 3})
    assert row["tools"] == tools and "id" not in row
