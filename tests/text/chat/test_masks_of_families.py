"""Tokens and masks of each family against a slow reference, and against transformers."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from chat_cases import (
    BOS,
    CONTROL,
    EOS,
    FAMILIES,
    NOT_SPECIAL,
    bpe,
    decode,
    random_conversation,
    reference,
)
from example_counts import rounds
from penstock.text import Chat
from penstock.text.chat import templates

SOURCES = Path(templates.__file__).with_name("families")
COUNTS = [rounds(30, 300)]  # conversations for each family


def without_generation(family: str) -> str:
    source = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    return re.sub(r" *\{%-? (end)?generation -?%\}\n?", "", source)


def encode(chat: Chat, messages: Any) -> tuple[list[int], list[bool]]:
    row = chat({"messages": messages})
    assert row["tokens"].dtype == "int32" and row["loss_mask"].dtype == bool
    return row["tokens"].tolist(), row["loss_mask"].tolist()


def show(pre: bool, ids: list[int], mask: list[bool]) -> list[str]:
    return [bpe(pre).id_to_token(i) + "*" * learned for i, learned in zip(ids, mask, strict=True)]


@pytest.mark.parametrize("pre", [True, False], ids=["words", "across"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_the_slow_reference(family: str, pre: bool, count: int) -> None:
    rng, chat = random.Random(family), Chat(bpe(pre), template=family)
    for number in range(count):
        # Tokens that are not special are text in messages if the template writes them.
        control = (*CONTROL, *NOT_SPECIAL) if family == "deepseek" else CONTROL
        messages = random_conversation(
            rng, number % 2 == 1, number % 3 == 1, number % 5 == 2, control
        )
        expected = reference(family, messages, pre)
        assert show(pre, *encode(chat, messages)) == show(pre, *expected), messages
    assert chat.stats.control_tokens > count // 6


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_found_without_generation_blocks(family: str, count: int) -> None:
    rng = random.Random(family)
    blocks = Chat(bpe(False), template=family)
    found = Chat(
        bpe(False), template=without_generation(family), bos=BOS.get(family), eos=EOS[family]
    )
    for number in range(count):
        messages = random_conversation(rng, number % 2 == 1, False, number % 3 == 0)
        if family == "deepseek" and any(m["content"].endswith("</think>") for m in messages):
            continue  # nothing is left of such an answer but the token that ends it
        if family == "phi":  # its family knows tokens that the template builds from pieces
            messages = random_conversation(rng, False)
        assert show(False, *encode(found, messages)) == show(False, *encode(blocks, messages)), (
            messages
        )


@pytest.mark.parametrize("pre", [True, False], ids=["words", "across"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_transformers(family: str, pre: bool, count: int) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=bpe(pre), eos_token=EOS[family], bos_token=BOS.get(family)
    )
    tokenizer.chat_template = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    rng, chat = random.Random(family), Chat(tokenizer)
    straddling = 0
    for number in range(count):
        messages = random_conversation(rng, False, number % 2 == 1, number % 3 == 0)
        ids, mask = encode(chat, messages)
        given = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == given["input_ids"]
        if family == "phi":  # the token behind the one that ends the last answer, which Chat learns
            assert tokenizer.decode(ids[-1:]) == EOS[family]
            assert mask.pop() and not given["assistant_masks"].pop()
        # transformers also learns tokens that begin before an answer and end in it.
        more = [
            i
            for i, (ours, theirs) in enumerate(zip(mask, given["assistant_masks"], strict=True))
            if ours != theirs
        ]
        assert all(theirs for i, theirs in enumerate(given["assistant_masks"]) if i in more)
        for i in more:
            assert not tokenizer.decode([ids[i]])[:1].isspace() or not pre
        straddling += len(more)
    assert not (pre and straddling)


@pytest.mark.parametrize(
    ("template", "prompt", "expected"),
    [
        # Qwen 3: an empty reasoning, which the model writes behind the prompt
        ("<think>\n\n</think>\n\n", "", "{<think>\n\n</think>\n\nyes<|im_end|>}\n"),
        # Qwen 3.5: the prompt of a generation ends in the reasoning
        ("<think>\n\n</think>\n\n", "<think>\n", "<think>\n{\n</think>\n\nyes<|im_end|>}\n"),
        ("", "", "{yes<|im_end|>}\n"),
    ],
)
def test_what_follows_the_prompt_of_a_generation_is_learned(
    template: str, prompt: str, expected: str
) -> None:
    head = "<|im_start|>assistant\n"
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        f"{{% if m.role == 'assistant' %}}{{{{ {template!r} }}}}{{% endif %}}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {head + prompt!r} }}}}{{% endif %}}"
    )
    messages = [{"role": "user", "content": "is it?"}, {"role": "assistant", "content": "yes"}]
    shown = decode(Chat(bpe(), template=source)({"messages": messages}))
    assert shown.partition(head)[2] == expected


def test_the_end_of_text_behind_the_end_of_an_answer_is_learned() -> None:
    source = (  # as Command A writes it
        "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}"
        "{{ m.content + '<|end|>' }}{% if m.role != 'user' %}{{ '<|endoftext|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    turns = [("user", "a"), ("assistant", "b"), ("user", "<|endoftext|>"), ("assistant", "d")]
    messages = [{"role": role, "content": content} for role, content in turns]
    shown = decode(Chat(bpe(), template=source, eos="<|endoftext|>")({"messages": messages}))
    asked = "<|user|>a<|end|><|assistant|>{b<|end|><|endoftext|>}<|user|><|endoftext|><|end|>"
    assert shown == f"{asked}<|assistant|>{{d<|end|><|endoftext|>}}"
