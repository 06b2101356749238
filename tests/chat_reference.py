"""A slow reference of the tokens and masks of conversations, for templates with or without generation blocks.

The reference shares no code with the library. It renders a conversation in a plain Jinja
environment, after it replaced the control tokens in messages by private characters. So the control
tokens in the rendering are those of the template, and a regular expression for each family finds
the answers between them. It encodes the texts between control tokens one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jinja2

Messages = list[dict[str, Any]]

CHATML = r"(?<=<\|im_start\|>assistant\n).*?(?:<\|im_end\|>|\Z)"
LLAMA = r"(?<=<\|start_header_id\|>assistant<\|end_header_id\|>\n\n).*?(?:<\|eot_id\|>|\Z)"
MISTRAL = (
    r"(?:(?<=\[/INST\])|(?<=\[/TOOL_RESULTS\])|(?<=</s>))(?!\[INST\]|\[TOOL_RESULTS\]|\Z).*?</s>"
)
ANSWERS = {
    "chatml": CHATML,
    "qwen": CHATML,
    "llama3": LLAMA,
    "llama3.1": LLAMA,
    "mistral": MISTRAL,
    "mistral-v3": MISTRAL,
    "gemma": r"(?<=<start_of_turn>model\n).*?<end_of_turn>",
    "phi": r"(?<=<\|assistant\|>\n)(.*?<\|end\|>)(?:\n(<\|endoftext\|>))?",
    "phi4": r"(?<=<\|im_start\|>assistant<\|im_sep\|>).*?<\|im_end\|>",
    "deepseek": r"(?:(?<=<｜Assistant｜>)|(?<=<｜tool▁outputs▁end｜>)).*?<｜end▁of▁sentence｜>",
}
"""The text of an answer in a rendering, or its groups, which are learned."""

_FIRST_PRIVATE = 0xE000


@cache
def _compile(source: str) -> Any:
    source = re.sub(
        r"\{%(-?) (?:end)?generation (-?)%\}", r"{%\1 if true \2%}{%\1 endif \2%}", source
    )
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise ValueError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


class Reference:
    """Tokens and masks of a template.

    Args:
        source: the template.
        answers: a regular expression of an answer.
        control: control tokens, which are text in messages.
        markup: tokens that are tokens in answers too.
        numbers: the id of each control token and of each markup token.
        encode: a function of a text without tokens; it returns ids and their characters.
        takes_text: whether the template takes the arguments of tool calls as JSON text.
        variables: values for the template.
    """

    def __init__(
        self,
        source: str,
        answers: str,
        control: Sequence[str],
        markup: Sequence[str],
        numbers: Callable[[str], int],
        encode: Callable[[str], Sequence[tuple[int, tuple[int, int]]]],
        takes_text: bool = False,
        **variables: Any,
    ) -> None:
        self._template, self._answers = _compile(source), re.compile(answers, re.DOTALL)
        self._tokens = sorted((*control, *markup), key=len, reverse=True)
        self._markup, self._numbers, self._encode = markup, numbers, encode
        self._takes_text, self._variables = takes_text, variables

    def __call__(self, sample: dict[str, Any]) -> tuple[list[int], list[bool]]:
        """Return the ids and the mask of a sample with messages."""
        messages = [self._read(message) for message in sample["messages"]]
        tools = sample.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        text = self._template.render(
            messages=messages,
            tools=self._hide(tools),
            add_generation_prompt=False,
            **self._variables,
        )
        flags = [False] * len(text)
        matches = [*self._answers.finditer(text)]
        answers = [message for message in messages if message["role"] == "assistant"]
        assert len(matches) == len(answers), (len(matches), len(answers), text)
        for match, message in zip(matches, answers, strict=True):
            if message.get("train", True) and message.get("weight", 1):
                for start, stop in match.regs[1:] or match.regs:
                    flags[start:stop] = [True] * (stop - start)
        return self._tokenize(text, flags)

    def _read(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return a message as templates take it, without control tokens of its own."""
        message, content = dict(given), given["content"]
        is_answer = message["role"] == "assistant"
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        message["content"] = self._hide(content or "", is_answer)
        for name in ("reasoning_content", "reasoning", "thinking"):
            if name in given:
                message["reasoning_content"] = self._hide(given[name], True)
        if "tool_calls" in given:
            calls = json.loads(json.dumps(given["tool_calls"]))
            for call in calls:
                arguments = call["function"]["arguments"]
                if isinstance(arguments, str) and not self._takes_text:
                    call["function"]["arguments"] = json.loads(arguments)
                if isinstance(arguments, dict) and self._takes_text:
                    call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
            message["tool_calls"] = self._hide(calls)
        return message

    def _hide(self, value: Any, is_answer: bool = False) -> Any:
        """Return a value with a private character for each control token."""
        if isinstance(value, str):
            for number, token in enumerate(self._tokens):
                if not (is_answer and token in self._markup):
                    value = value.replace(token, chr(_FIRST_PRIVATE + number))
            return value
        if isinstance(value, dict):
            return {key: self._hide(item) for key, item in value.items()}
        return [self._hide(item) for item in value] if isinstance(value, list) else value

    def _tokenize(self, text: str, flags: list[bool]) -> tuple[list[int], list[bool]]:
        ids, mask = list[int](), list[bool]()
        position = 0
        for piece in re.split(f"({'|'.join(map(re.escape, self._tokens))})", text):
            if piece in self._tokens:
                ids.append(self._numbers(piece))
                mask.append(flags[position])
            else:
                plain, learned = "", list[bool]()
                for char, flag in zip(piece, flags[position:], strict=False):
                    number = ord(char) - _FIRST_PRIVATE
                    shown = self._tokens[number] if 0 <= number < len(self._tokens) else char
                    plain += shown
                    learned += [flag] * len(shown)
                for number, (start, end) in self._encode(plain):
                    while start + 1 < end and plain[start].isspace() and not learned[start]:
                        start += 1  # white space of the template in front of an answer
                    ids.append(number)
                    mask.append(learned[start])
            position += len(piece)
        return ids, mask
