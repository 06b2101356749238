"""Tokens and masks of realistic conversations against a slow reference, for each family."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from chat_cases import BOS, CONTROL, EOS, MARKUP, NOT_SPECIAL
from chat_conversations import ABILITIES, TOOL_TOKENS, ConversationMaker, tool_bpe
from chat_reference import ANSWERS, Reference
from example_counts import rounds
from helpers import pairwise_first
from penstock.text import Chat, show_tokens
from penstock.text.chat import templates

SOURCES = Path(templates.__file__).with_name("families")


def make_reference(family: str, source: str, pre: bool) -> Reference:
    def encode(text: str) -> list[tuple[int, tuple[int, int]]]:
        encoding = tool_bpe(pre, False).encode(text)
        return [*zip(encoding.ids, encoding.offsets, strict=True)]

    control = (*CONTROL, *TOOL_TOKENS, *(NOT_SPECIAL if family == "deepseek" else ()))
    return Reference(
        source, ANSWERS[family], control, MARKUP, tool_bpe(pre).token_to_id, encode,
        bos_token=BOS.get(family, ""), eos_token=EOS[family],
    )  # fmt: skip


def make_samples(family: str, count: int) -> list[dict[str, Any]]:
    control = (*CONTROL, *TOOL_TOKENS, *(NOT_SPECIAL if family == "deepseek" else ()))
    maker = ConversationMaker(random.Random(family), ABILITIES[family], control, MARKUP)
    return [maker.conversation() for _ in range(count)]


def show(ids: list[int], mask: list[bool], pre: bool) -> list[str]:
    return [
        tool_bpe(pre).id_to_token(i) + "*" * learned for i, learned in zip(ids, mask, strict=True)
    ]


@pytest.mark.parametrize(
    "family,blocks,pre", pairwise_first([*ABILITIES], [True, False], [True, False])
)
def test_conversations_equal_the_slow_reference(family: str, blocks: bool, pre: bool) -> None:
    source = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    source = source if blocks else without_blocks(family)
    reference = make_reference(family, source, pre)
    chat = Chat(
        tool_bpe(pre), template=family if blocks else source,
        bos=BOS.get(family), eos=EOS[family], untrained="keep",
    )  # fmt: skip
    for sample in make_samples(family, rounds(12, 1000)):
        row = chat({**sample})
        actual = row["tokens"].tolist(), row["loss_mask"].tolist()
        assert show(*actual, pre) == show(*reference(sample), pre), sample


@pytest.mark.parametrize("family", ABILITIES)
def test_the_last_answer_equals_the_slow_reference(family: str) -> None:
    source = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    reference = make_reference(family, source, True)
    chat = Chat(tool_bpe(True), template=family, train_on="last", untrained="keep")
    for sample in make_samples(family, rounds(5, 300)):
        answers = [message for message in sample["messages"] if message["role"] == "assistant"]
        row = chat({**sample})
        actual = row["tokens"].tolist(), row["loss_mask"].tolist()
        for message in answers[:-1]:
            message["train"] = False
        assert show(*actual, True) == show(*reference(sample), True), sample


def shown(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    chat = Chat(tool_bpe(True), template=source, untrained="keep", **options)
    row = chat({"messages": messages})
    return str(show_tokens(row, tool_bpe(True))).partition("\n")[2]


def without_blocks(family: str) -> str:
    source = (SOURCES / f"{family}.jinja").read_text(encoding="utf-8")
    return re.sub(r" *\{%-? (end)?generation -?%\}\n?", "", source)


def dialog(*texts: str) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize("answer", ["", " ", "\n"])
def test_the_end_of_an_empty_answer_is_learned_without_blocks(answer: str) -> None:
    messages = dialog("a", answer, "b", "c")
    header = "<|im_start|>assistant\n"
    expected = (
        f"<|im_start|>user\na<|im_end|>\n{header}[[{answer}<|im_end|>]]\n"
        f"<|im_start|>user\nb<|im_end|>\n{header}[[c<|im_end|>]]\n"
    )
    assert shown(without_blocks("chatml"), messages, eos="<|im_end|>") == expected


def test_empty_answers_that_a_template_trims_at_different_ends_are_found() -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content.lstrip('\n') if loop.last else m.content.rstrip('\n') }}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    text = shown(source, dialog("a", "\n", "b", "\n"), eos="<|im_end|>")
    assert text.count("<|im_start|>assistant\n[[<|im_end|>]]\n") == 2


@pytest.mark.parametrize("answer", ["<think>\nr\n</think>", "<think>\nr\n</think>\n\n\n"])
def test_an_answer_of_reasoning_alone_is_learned_without_blocks(answer: str) -> None:
    text = shown(without_blocks("qwen"), dialog("a", answer), eos="<|im_end|>")
    assert text.endswith("assistant\n[[<think>\nr\n</think>\n\n<|im_end|>]]\n")
    text = shown(without_blocks("qwen"), dialog("a", answer, "b", "c"), eos="<|im_end|>")
    assert "assistant\n[[<|im_end|>]]\n" in text


def test_the_end_of_reasoning_without_an_answer_is_learned_with_any_tag() -> None:
    source = without_blocks("chatml").replace(
        "{{- message.content }}",
        "{{- 'thought:' + (message.reasoning_content or '') + '<channel|>' + message.content }}",
    )
    messages = dialog("a", "")
    messages[1]["reasoning_content"] = "r"
    text = shown(source, messages, eos="<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n[[thought:r<channel|><|im_end|>]]\n")


def test_white_space_before_an_answer_to_tools_is_learned_without_blocks() -> None:
    messages = [*dialog("a", "b"), {"role": "tool", "content": "1"}]
    messages.append({"role": "assistant", "content": "\n\nc"})
    text = shown(without_blocks("mistral"), messages, bos="<s>", eos="</s>")
    assert text.endswith('[TOOL_RESULTS] {"content": "1"}[/TOOL_RESULTS][[\n\nc</s>]]')


def test_a_header_that_ends_earlier_than_the_prompt_of_a_generation_is_found() -> None:
    source = (  # as Qwen 3.5: reasoning in the last answer only, which the prompt opens
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\n<f=' + c.name + '>' }}"
        "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
    messages = dialog("a", "", "b", " c", "d", "e")
    messages[1]["tool_calls"] = [{"name": "f", "arguments": {}}]
    text = shown(source, messages, eos="<|im_end|>")
    assert text.split("<|im_start|>assistant\n")[1:] == [
        "[[<tool_call>\n<f=f><|im_end|>]]\n<|im_start|>user\nb<|im_end|>\n",
        "[[ c<|im_end|>]]\n<|im_start|>user\nd<|im_end|>\n",
        "<think>\n[[\n</think>\n\ne<|im_end|>]]\n",
    ]


@pytest.mark.parametrize("given", ['{"q":"ö"}', {"q": "ö"}], ids=["text", "mapping"])
def test_arguments_are_text_for_a_template_that_joins_them(given: Any) -> None:
    source = (  # as DeepSeek V3
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}"
        "{{ '<|im_end|>' }}{% endfor %}"
    )
    messages = dialog("a", "")
    messages[1]["tool_calls"] = [{"function": {"name": "f", "arguments": given}}]
    text = given if isinstance(given, str) else '{"q": "ö"}'
    assert f"f {text}<|im_end|>" in shown(source, messages, eos="<|im_end|>").replace("[[", "")
