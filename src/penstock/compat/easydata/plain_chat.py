"""Conversations to tokens with tokenizers that know no offsets, and messages that are JSON texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from ...text import Chat
from .chat_transforms import convert_to_chatml, render

Array = npt.NDArray[Any]

_CONVERSATIONS = ("messages", "conversations", "conversation")
_ANSWERS = ("completion", "chosen", "rejected")


def make_chat(tokenizer: Any, max_length: int | None = None, **options: Any) -> Callable[..., Any]:
    """Return a `Chat`, or a `PlainChat` for a tokenizer of `transformers` without offsets.

    Args:
        tokenizer: the tokenizer.
        max_length: the most tokens of a sample, and of each side of a pair.
        options: other arguments of `Chat`.
    """
    if hasattr(tokenizer, "apply_chat_template") and not getattr(tokenizer, "is_fast", False):
        adds_eos, truncates = options.get("eos") != "", options.get("truncate") != "error"
        return PlainChat(tokenizer, max_length, adds_eos, truncates)
    return Chat(tokenizer, untrained="keep", bos="", max_length=max_length, **options)


class PlainChat:
    """Convert conversations to tokens and loss masks; a prompt and its answer are encoded apart.

    `Chat` encodes them at once, and marks answers by offsets, which a slow tokenizer lacks.
    Conversations without a prompt are learned completely.

    Args:
        tokenizer: a tokenizer of `transformers`.
        max_length: the most tokens of a sample, and of each side of a pair.
        adds_eos: whether texts and answers of text end with the end token.
        truncates: whether a longer sample loses its end, instead of raising an error.
    """

    def __init__(
        self, tokenizer: Any, max_length: int | None, adds_eos: bool, truncates: bool
    ) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self._adds_eos, self._truncates = adds_eos, truncates

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tokens and the loss mask of a sample, or of both sides of a pair."""
        if "chosen" in sample:
            made = dict[str, Any]()
            for side in ("chosen", "rejected"):
                row = self._encode(*self._split(sample, side))
                made |= {f"{side}_{name}": value for name, value in row.items()}
            return made
        if "completion" in sample:
            row = self._encode(*self._split(sample, "completion"))
            return {**row, **({"label": sample["label"]} if "label" in sample else {})}
        if "messages" in sample:
            messages = convert_to_chatml(sample["messages"])
            return self._encode("", self._render(sample, messages))
        return self._encode("", self._end(sample["text"]))

    def _split(self, sample: Mapping[str, Any], side: str) -> tuple[str, str]:
        """Return the texts of the prompt and of an answer."""
        prompt, answer = sample.get("prompt"), sample[side]
        if isinstance(answer, str) and not isinstance(prompt, list):
            return prompt or "", self._end(answer)
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(answer, str):
            answer = [{"role": "assistant", "content": answer}]
        answers = convert_to_chatml(cast("list[Any]", answer))
        if prompt is None:
            prompt = find_common_messages(sample)
            answers = answers[len(prompt) :]
        questions = convert_to_chatml(cast("list[Any]", prompt))
        begin = self._render(sample, questions, add_generation_prompt=True) if questions else ""
        text = self._render(sample, [*questions, *answers])
        if not text.startswith(begin):
            raise DataError("the template renders a prompt in another way if an answer follows it")
        return begin, text[len(begin) :]

    def _render(self, sample: Mapping[str, Any], messages: Any, **options: Any) -> str:
        return render(self._tokenizer, messages, sample.get("tools"), **options)

    def _end(self, text: str) -> str:
        eos = getattr(self._tokenizer, "eos_token", None) or ""
        return text if not self._adds_eos or text.endswith(eos) else text + eos

    def _encode(self, prompt: str, answer: str) -> dict[str, Array]:
        parts = [self._tokenize(text) for text in (prompt, answer)]
        tokens = np.concatenate(parts)
        limit = self._max_length
        if limit is not None and len(tokens) > limit and not self._truncates:
            raise DataError(
                f"the sample has {len(tokens)} tokens, over max_length={limit}: raise max_length, or "
                "set truncation=True"
            )
        mask = np.arange(len(tokens)) >= len(parts[0])
        return {"tokens": tokens[:limit], "loss_mask": mask[:limit]}

    def _tokenize(self, text: str) -> Array:
        if not text:
            return np.zeros(0, np.int32)
        return np.asarray(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)


def find_common_messages(pair: Mapping[str, Any]) -> list[Any]:
    """Return the messages that both answers of a pair begin with, without a last answer.

    Args:
        pair: a sample with `chosen` and `rejected`.
    """
    sides = [pair["chosen"], pair["rejected"]]
    if not all(isinstance(side, list) for side in sides):
        raise ConfigError("chosen and rejected must both be texts, or both be lists of messages")
    pairs = zip(*sides, strict=False)
    common = [chosen for chosen, _ in takewhile(lambda both: both[0] == both[1], pairs)]
    return common[: min(map(len, sides)) - 1]


def decode_row(example: Mapping[str, Any], text_field: str = "text") -> dict[str, Any]:
    """Return a row whose messages and tools are lists of mappings, where they were JSON texts.

    A text field that holds messages becomes `messages`.

    Args:
        example: the row.
        text_field: name of the text field.

    >>> decode_row({"messages": ['{"role": "user", "content": "Hi"}']})
    {'messages': [{'role': 'user', 'content': 'Hi'}]}
    """
    row = dict(example)
    for name in ("prompt", *_ANSWERS, *_CONVERSATIONS):
        if _are_messages(messages := _decode(row.get(name))):
            row[name] = messages
    if row.get("tools") is not None:
        row["tools"] = _decode(row["tools"])
    if _are_messages(messages := _decode(row.get(text_field))):
        del row[text_field]
        row["messages"] = messages
    return row


def _are_messages(value: Any) -> bool:
    """Return whether a value is a list of mappings with a role."""
    if not isinstance(value, list) or not value:
        return False
    items = cast("list[Any]", value)
    return all(isinstance(item, dict) and ("role" in item or "from" in item) for item in items)


def _decode(value: Any) -> Any:
    """Return the list of mappings that a JSON text holds; another value is returned unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            return value
        items = cast("list[Any]", parsed if isinstance(parsed, list) else [parsed])
        return items if all(isinstance(item, dict) for item in items) else value
    if isinstance(value, list):
        decoded = [_decode(item) for item in cast("list[Any]", value)]
        groups: list[Any] = [item if isinstance(item, list) else [item] for item in decoded]
        items = [item for group in groups for item in group]
        return items if all(isinstance(item, dict) for item in items) else cast(Any, value)
    return value
