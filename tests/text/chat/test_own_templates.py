"""Masks of templates that people write themselves, without `{% generation %}` blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest

from chat_cases import make_bpe
from penstock.text import Chat

TALK = [
    {"role": "user", "content": "yes"},
    {"role": "assistant", "content": "no"},
    {"role": "user", "content": "42"},
    {"role": "assistant", "content": "ok"},
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def show_learned(
    template: str, special: Sequence[str] | None = None, talk: Sequence[Any] = TALK
) -> str:
    """Return the text of a conversation, with brackets around learned tokens."""
    tokenizer: Any = make_bpe(special is None)
    tokenizer.add_special_tokens(["</s>", *(special or [])])
    row = Chat(tokenizer, template=template, eos="</s>")(list(talk))
    pairs = zip(row["tokens"].tolist(), row["loss_mask"].tolist(), strict=True)
    out = ""
    for learned, some in groupby(pairs, key=lambda pair: bool(pair[1])):
        text = tokenizer.decode([token for token, _ in some], skip_special_tokens=False)
        out += f"⟦{text}⟧" if learned else text
    return out


def write_turns(question: str, answer: str) -> str:
    """Return a conversation by the text of its turns, with `@` for contents."""
    given = (question, answer, question, answer)
    return "".join(
        turn.replace("@", message["content"]) for turn, message in zip(given, TALK, strict=True)
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    ("user", "header", "answer", "end"),
    [
        ("<|im_start|>user\n@<|im_end|>\n", "<|im_start|>assistant\n", "@<|im_end|>", "\n"),
        ("<user>@</user>\n", "<assistant>", "@</assistant>", "\n"),
        ("user:@ ###\n", "assistant:", "@ ###", "\n"),
        ("Human:@<END>\n", "Assistant:", "@<END>", "\n"),
        ("<|user|>\n@</s>\n", "<|assistant|>\n", "@</s>", "\n"),
        ("Q:@\n", "A:", "@", "\n"),
    ],
)
def test_headers_are_not_learned_and_ends_are(
    special: bool, prompt: bool, user: str, header: str, answer: str, end: str
) -> None:
    turns = [each.replace("@", "{{ m.content }}") for each in (user, header + answer + end)]
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}" + turns[0].replace("\n", "{{ '\\n' }}")
        + "{% else %}" + turns[1].replace("\n", "{{ '\\n' }}") + "{% endif %}{% endfor %}"
    )  # fmt: skip
    if prompt:
        quoted = header.replace("\n", "\\n")
        template += f"{{% if add_generation_prompt %}}{{{{ '{quoted}' }}}}{{% endif %}}"
    expected = write_turns(user, f"{header}⟦{answer}⟧{end}")
    assert show_learned(template, None if special else []) == expected


@pytest.mark.parametrize(
    ("content", "learned"),
    [
        ("<answer>{{ m.content }}</answer>", "<answer>@</answer>"),
        ('"{{ m.content }}"', '"@"'),
        ("{{ m.content | tojson }}", '"@"'),
        ("{{ m.content }}.", "@."),
        ("{{ m.content[::-1] }}", "@"),
    ],
)
def test_an_answer_is_learned_with_the_text_around_it(content: str, learned: str) -> None:
    written = "{% if m.role == 'assistant' %}" + content + "{% else %}{{ m.content }}{% endif %}"
    expected = write_turns(
        "<|im_start|>user\n@<|im_end|>\n",
        f"<|im_start|>assistant\n⟦{learned}<|im_end|>⟧\n",
    )
    if "[::-1]" in content:
        expected = expected.replace("no", "on").replace("ok", "ko")
    assert show_learned(CHATML.replace("{{ m.content }}", written)) == expected


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ("", "{% if messages[1] %}first: {{ messages[1].content }}{% endif %}"),
        ("Last: {{ messages[-1].content }}\n", ""),
        ("", "{% for m in messages %}({{ m.content }}){% endfor %}"),
    ],
)
def test_an_answer_written_elsewhere_too_is_learned_in_its_turn(head: str, tail: str) -> None:
    turns = write_turns("<|im_start|>user\n@<|im_end|>\n", "<|im_start|>assistant\n⟦@<|im_end|>⟧\n")
    shown = show_learned(f"{head}{CHATML}{tail}")
    assert turns in shown
    assert shown.count("⟦") == 2


CALL = {"type": "function", "function": {"name": "get", "arguments": {"city": "Rome"}}}
HARMONY = (
    "{% set last = namespace(name=none) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking %}<|start|>assistant<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{% set last.name = f.name %}"
    "<|start|>assistant to={{ f.name }}<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% elif m.role == 'tool' %}<|start|>{{ last.name }}<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TEXT_ENDS = (
    "{% for m in messages %}{% if m.role == 'user' %}Q:\n{{ m.content }}\n{% else %}A:\n"
    "{{ m.content }}\n### End\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A:\n{% else %}{{ eos_token }}{% endif %}"
)
ROLES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}"
)


def test_calls_and_reasoning_are_learned_to_their_ends() -> None:
    talk = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "yes", "thinking": "so"},
        {"role": "user", "content": "w"},
        {"role": "assistant", "content": "no"},
    ]
    tokens = ["<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
    assert show_learned(HARMONY, tokens, talk) == (
        "<|start|>user<|message|>q<|end|><|start|>assistant"
        '⟦ to=get<|message|>{"city": "Rome"}<|call|>⟧<|start|>get<|message|>sunny<|end|>'
        "<|start|>assistant⟦<|message|>so<|end|><|start|>assistant<|message|>yes<|end|>⟧"
        "<|start|>user<|message|>w<|end|><|start|>assistant⟦<|message|>no<|return|>⟧"
    )


@pytest.mark.parametrize("answer", ["no", "no\n", "no "])
def test_ends_that_are_text_are_learned_behind_every_answer(answer: str) -> None:
    talk = [{**TALK[0]}, {**TALK[1], "content": answer}] * 2
    shown = f"Q:\nyes\nA:\n⟦{answer}\n### End⟧\n"
    assert show_learned(TEXT_ENDS, [], talk) == shown + shown.replace("⟧\n", "\n</s>⟧")


@pytest.mark.parametrize("special", [True, False])
def test_the_header_of_the_next_question_is_not_learned(special: bool) -> None:
    shown = show_learned(ROLES, ["<|user|>", "<|assistant|>"] if special else [])
    assert shown == "<|user|>yes<|assistant|>⟦no⟧<|user|>42<|assistant|>⟦ok</s>⟧"
