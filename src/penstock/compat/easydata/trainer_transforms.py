"""Transforms for EasyDeL's trainers: rows to tokens, masks and labels, by `penstock.text.Chat`.

`Chat` renders a conversation once and tokenizes it once, so a prompt and its answer join as in use.
An answer ends with the end token of its template, and a text with the tokenizer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from .chat_transforms import render
from .plain_chat import PlainChat, decode_row, find_common_messages, make_chat
from .row_transforms import Example, ExpandTransform, Transform

Array = npt.NDArray[Any]

_CONVERSATIONS = ("messages", "conversations", "conversation")
_SIDE_FIELDS = (
    "tools", "pixel_values", "pixel_attention_mask", "pixel_values_videos", "image_sizes",
    "ref_chosen_logps", "ref_rejected_logps", "reference_chosen_log_probs",
    "reference_rejected_log_probs",
)  # fmt: skip
"""Fields of rows that trainers read beside the tokens."""


class SFTPreprocessTransform(Transform):
    """Tokenize conversations, prompts with completions, or texts, for supervised fine-tuning.

    Rows have `input_ids` and `attention_mask`, padded to `max_length`, and with `mask_prompt` also
    `completion_mask`: 1 for the tokens of answers. Rows with `input_ids` are unchanged.

    Args:
        tokenizer: a tokenizer of `transformers`; only a fast one marks answers in conversations.
        max_length: tokens per row; None for no limit and no padding.
        text_field: field of a text.
        messages_field: field of messages; else `messages`, `conversations` or `conversation`.
        mask_prompt: whether rows get `completion_mask`.
        add_eos: whether texts and completions end with the end token.
        truncation: whether longer rows are truncated, instead of raising an error.
        formatting_func: function from a row to a text, or to another row.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int | None,
        text_field: str = "text",
        messages_field: str = "messages",
        mask_prompt: bool = False,
        add_eos: bool = True,
        truncation: bool = True,
        formatting_func: Callable[[Any], Any] | None = None,
    ) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self._text_field, self._messages_field = text_field, messages_field
        self._mask_prompt, self._formatting_func = mask_prompt, formatting_func
        self._options: dict[str, Any] = {"truncate": "right" if truncation else "error"}
        self._options |= {} if add_eos else {"eos": ""}

    @cached_property
    def _chat(self) -> Callable[..., Any]:
        return make_chat(self._tokenizer, self._max_length, **self._options)

    def __call__(self, example: Example, /) -> Example:
        """Return the row of tokens."""
        if "input_ids" in example:
            return example
        fields = self._read(example)
        if self._mask_prompt and "messages" in fields and isinstance(self._chat, PlainChat):
            raise ConfigError(
                "mask_prompt=True needs a tokenizer with offsets for conversations: give a fast "
                "tokenizer, or rows with prompt and completion"
            )
        row = self._chat(fields)
        tokens, mask = row["tokens"], row["loss_mask"]
        width, pad = self._max_length, _get_pad(self._tokenizer)
        made = {
            "input_ids": pad_to(tokens, width, pad),
            "attention_mask": pad_to(np.ones_like(tokens), width, 0),
        }
        if self._mask_prompt:
            made["completion_mask"] = pad_to(mask.astype(np.int32), width, 0)
        return {**_keep_fields({**example, **fields}), **made}

    def _read(self, example: Example) -> Example:
        """Return the fields that `Chat` reads."""
        row = example
        if self._formatting_func is not None:
            formatted = self._formatting_func(example)
            is_row = isinstance(formatted, dict)
            row = cast(Example, formatted) if is_row else {self._text_field: str(formatted)}
        row = decode_row(row, self._text_field)
        fields = {"tools": row["tools"]} if row.get("tools") is not None else {}
        for name in (self._messages_field, *_CONVERSATIONS):
            if row.get(name) is not None:
                return {**fields, "messages": row[name]}
        if "prompt" in row and "completion" in row:
            return {**fields, "prompt": row["prompt"], "completion": row["completion"]}
        if self._text_field in row:
            return {"text": row[self._text_field]}
        raise DataError(
            f"a row has only {', '.join(row)}: give messages, prompt and completion, or a text; name "
            "their field with messages_field or text_field"
        )

    def identify(self) -> str:
        """Return a text with the tokenizer and the template."""
        return f"{self!r} {getattr(self._chat, '__qualname__', '')}"

    def __repr__(self) -> str:
        return (
            f"SFTPreprocessTransform(max_length={self._max_length}, "
            f"mask_prompt={self._mask_prompt})"
        )


class _AnswerTransform:
    """Base of transforms of a prompt with one answer or two: lengths, padding and labels."""

    def __init__(
        self,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        add_special_tokens: bool = False,
        label_pad_token_id: int = -100,
        tools: list[Any] | None = None,
    ) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        self._max_prompt_length, self._max_completion_length = (
            max_prompt_length,
            max_completion_length,
        )
        self._adds_bos, self._label_pad = add_special_tokens, label_pad_token_id

    @cached_property
    def _chat(self) -> Callable[..., Any]:
        return make_chat(self._tokenizer)

    def _read(self, example: Example) -> Example:
        """Return the fields that `Chat` reads."""
        row = decode_row(example)
        names = ("prompt", "completion", "chosen", "rejected", "label")
        fields = {name: row[name] for name in names if row.get(name) is not None}
        tools = row.get("tools", self._tools)
        return {**fields, **({} if tools is None else {"tools": tools})}

    def _cut(self, tokens: Array, mask: Array) -> tuple[Array, Array]:
        """Return the end of the prompt, and the beginning of the answer."""
        start = int(mask.argmax()) if mask.any() else len(tokens)
        prompt, answer = tokens[:start], tokens[start:]
        bos = getattr(self._tokenizer, "bos_token_id", None)
        if self._adds_bos and bos is not None and prompt[:1].tolist() != [bos]:
            prompt = np.concatenate([np.array([bos], prompt.dtype), prompt])
        if self._max_prompt_length is not None:
            prompt = prompt[max(0, len(prompt) - self._max_prompt_length) :]
        return prompt, answer[: self._max_completion_length]

    def identify(self) -> str:
        """Return a text with the tokenizer and the template."""
        return f"{self!r} {getattr(self._chat, '__qualname__', '')}"

    def _label(self, prompt: Array, answer: Array) -> Array:
        return np.concatenate([np.full_like(prompt, self._label_pad), answer])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(max_prompt={self._max_prompt_length}, "
            f"max_completion={self._max_completion_length})"
        )


class DPOPreprocessTransform(_AnswerTransform, Transform):
    """Tokenize preference pairs.

    `prompt_input_ids` and `prompt_attention_mask` are padded on the left to `max_prompt_length`.
    `input_ids`, `attention_mask` and `labels`, with the prefixes `chosen_` and `rejected_`, hold
    the prompt and an answer. They are padded on the right to both lengths together. Rows with
    `prompt_input_ids` are unchanged.

    Args:
        tokenizer: a tokenizer of `transformers`.
        max_prompt_length: tokens of a prompt; a longer one loses its beginning.
        max_completion_length: tokens of an answer; a longer one loses its end.
        add_special_tokens: whether a prompt begins with the beginning token.
        tools: tools of rows without any.
        label_pad_token_id: label of the prompt and of padding.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        add_special_tokens: bool = False,
        tools: list[Any] | None = None,
        label_pad_token_id: int = -100,
    ) -> None:
        super().__init__(
            tokenizer,
            max_prompt_length,
            max_completion_length,
            add_special_tokens,
            label_pad_token_id,
            tools,
        )

    def __call__(self, example: Example, /) -> Example:
        """Return the row of tokens."""
        if "prompt_input_ids" in example:
            return example
        fields, pad = self._read(example), _get_pad(self._tokenizer)
        pair = self._chat(fields)
        width = (self._max_prompt_length or 0) + (self._max_completion_length or 0)
        made = _keep_fields({**example, **fields})
        for side in ("chosen", "rejected"):
            mask = pair[f"{side}_loss_mask"]
            prompt, answer = self._cut(pair[f"{side}_tokens"], mask)
            if side == "chosen":
                ones = np.ones_like(prompt)
                made["prompt_input_ids"] = pad_to(prompt, self._max_prompt_length, pad, left=True)
                made["prompt_attention_mask"] = pad_to(ones, self._max_prompt_length, 0, left=True)
            tokens = np.concatenate([prompt, answer])
            labels = self._label(prompt, answer)
            made[f"{side}_input_ids"] = pad_to(tokens, width, pad)
            made[f"{side}_attention_mask"] = pad_to(np.ones_like(tokens), width, 0)
            made[f"{side}_labels"] = pad_to(labels, width, self._label_pad)
        return made


class ORPOPreprocessTransform(DPOPreprocessTransform):
    """Tokenize preference pairs, with the rows and arguments of `DPOPreprocessTransform`."""


CPOPreprocessTransform = DPOPreprocessTransform


class _LabelledAnswerTransform(_AnswerTransform):
    """Base of transforms of answers with a label."""

    def __init__(
        self,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        max_completion_length: int | None = None,
        add_special_tokens: bool = False,
        label_pad_token_id: int = -100,
        embedding_tokenizer: Any = None,
        tools: list[Any] | None = None,
    ) -> None:
        super().__init__(
            tokenizer,
            max_prompt_length,
            max_completion_length,
            add_special_tokens,
            label_pad_token_id,
            tools,
        )
        self._embedding_tokenizer = embedding_tokenizer

    def _make(self, example: Example, tokens: Array, mask: Array, label: Any) -> Example:
        prompt, answer = self._cut(tokens, mask)
        tokens = np.concatenate([prompt, answer])
        made = {
            **_keep_fields(example),
            "prompt_input_ids": prompt.tolist(),
            "prompt_attention_mask": [1] * len(prompt),
            "completion_input_ids": tokens.tolist(),
            "completion_attention_mask": [1] * len(tokens),
            "completion_labels": self._label(prompt, answer).tolist(),
            "label": bool(label),
        }
        if self._embedding_tokenizer is not None:
            text = _read_prompt_text(self._tokenizer, example, self._tools)
            embedded = self._embedding_tokenizer(text, truncation=True, add_special_tokens=False)
            made["embedding_input_ids"] = embedded["input_ids"]
            made["embedding_attention_mask"] = embedded["attention_mask"]
        return made


class KTOPreprocessTransform(_LabelledAnswerTransform, Transform):
    """Tokenize prompts with a completion and a label.

    Rows have `input_ids` and `attention_mask` with the prefixes `prompt_` and `completion_` (the
    prompt and the answer), `completion_labels` and `label`. Rows with `prompt_input_ids` are
    unchanged.

    Args:
        tokenizer: a tokenizer of `transformers`.
        max_prompt_length: tokens of a prompt; a longer one loses its beginning.
        max_completion_length: tokens of an answer; a longer one loses its end.
        add_special_tokens: whether a prompt begins with the beginning token.
        label_pad_token_id: label of the prompt.
        embedding_tokenizer: tokenizer for `embedding_input_ids` of the prompt.
        tools: tools of rows without any.
    """

    def __call__(self, example: Example, /) -> Example:
        """Return the row of tokens."""
        if "prompt_input_ids" in example:
            return example
        fields = self._read(example)
        row = self._chat(fields)
        return self._make({**example, **fields}, row["tokens"], row["loss_mask"], row["label"])


class BCOPreprocessTransform(_LabelledAnswerTransform, ExpandTransform):
    """Tokenize prompts with a completion and a label, or preference pairs as two such rows.

    It has the rows and arguments of `KTOPreprocessTransform`.
    """

    def __call__(self, example: Example, /) -> Iterator[Example]:
        """Yield the rows of tokens: the chosen answer, then the rejected one."""
        if "prompt_input_ids" in example:
            yield example
            return
        fields = self._read(example)
        row, example = self._chat(fields), {**example, **fields}
        if "tokens" in row:
            yield self._make(example, row["tokens"], row["loss_mask"], row["label"])
            return
        for side, label in (("chosen", True), ("rejected", False)):
            tokens, mask = row[f"{side}_tokens"], row[f"{side}_loss_mask"]
            yield self._make(example, tokens, mask, label)


class RewardPreprocessTransform(Transform):
    """Tokenize preference pairs for a reward model.

    Rows have `input_ids_chosen`, `attention_mask_chosen` and the same for `rejected`: the prompt and
    the answer, padded to `max_length`. A prompt that answers of text begin with is not repeated,
    and they get no end token. Rows with `input_ids_chosen` are unchanged.

    Args:
        tokenizer: a tokenizer of `transformers`.
        max_length: tokens per row; None for no limit and no padding.
        truncation: whether longer rows are truncated, instead of raising an error.
    """

    def __init__(self, tokenizer: Any, max_length: int | None, truncation: bool = True) -> None:
        self._tokenizer, self._max_length, self._truncation = tokenizer, max_length, truncation

    @cached_property
    def _chat(self) -> Callable[..., Any]:
        truncate = "right" if self._truncation else "error"
        return make_chat(self._tokenizer, self._max_length, truncate=truncate, eos="")

    def __call__(self, example: Example, /) -> Example:
        """Return the row of tokens."""
        if "input_ids_chosen" in example:
            return example
        row, pad = decode_row(example), _get_pad(self._tokenizer)
        names = ("prompt", "chosen", "rejected", "tools")
        fields = {name: row[name] for name in names if row.get(name) is not None}
        if _begin_with(fields.get("prompt"), fields["chosen"], fields["rejected"]):
            del fields["prompt"]
        pair = self._chat(fields)
        made = _keep_fields({**example, **fields})
        for side in ("chosen", "rejected"):
            tokens = pair[f"{side}_tokens"]
            made[f"input_ids_{side}"] = pad_to(tokens, self._max_length, pad)
            made[f"attention_mask_{side}"] = pad_to(np.ones_like(tokens), self._max_length, 0)
        return made

    def identify(self) -> str:
        """Return a text with the tokenizer and the template."""
        return f"{self!r} {getattr(self._chat, '__qualname__', '')}"

    def __repr__(self) -> str:
        return f"RewardPreprocessTransform(max_length={self._max_length})"


class GRPOPreprocessTransform(Transform):
    """Tokenize prompts for generation: `input_ids` and `attention_mask`, padded on the left.

    Messages get the template's beginning of an answer. Without a prompt, the messages, or the ones
    that both answers of a pair begin with, are the prompt. An empty one becomes the end token. Rows
    with `input_ids` are unchanged.

    Args:
        tokenizer: a tokenizer of `transformers`.
        max_prompt_length: tokens per row; a longer prompt loses its beginning.
        tools: tools of rows without any.
        skip_apply_chat_template: whether messages are rejected instead of rendered.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_prompt_length: int | None = None,
        tools: list[Any] | None = None,
        skip_apply_chat_template: bool = False,
    ) -> None:
        self._tokenizer, self._max_prompt_length = tokenizer, max_prompt_length
        self._tools, self._skips_template = tools, skip_apply_chat_template

    def __call__(self, example: Example, /) -> Example:
        """Return the row of tokens."""
        if "input_ids" in example:
            return example
        if self._skips_template and not isinstance(example.get("prompt"), str):
            raise DataError(
                "skip_apply_chat_template=True needs a text as prompt: render it before"
            )
        row = decode_row(example)
        text = _read_prompt_text(self._tokenizer, row, self._tools)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else None
        tokens: Array = np.asarray(ids or [_get_end(self._tokenizer)], np.int32)
        if self._max_prompt_length is not None:
            tokens = tokens[-self._max_prompt_length :]
        pad, ones = _get_pad(self._tokenizer), np.ones_like(tokens)
        return {
            **_keep_fields(row),
            "input_ids": pad_to(tokens, self._max_prompt_length, pad, left=True),
            "attention_mask": pad_to(ones, self._max_prompt_length, 0, left=True),
        }

    def __repr__(self) -> str:
        return f"GRPOPreprocessTransform(max_prompt={self._max_prompt_length})"


def pad_to(values: Array, width: int | None, pad: int, left: bool = False) -> list[int]:
    """Return a row as a list, padded to a width; a longer row is unchanged.

    Args:
        values: the row.
        width: the width; None for no padding.
        pad: the value of the padding.
        left: whether to pad on the left.

    >>> pad_to(np.array([1, 2]), 4, 9, left=True)
    [9, 9, 1, 2]
    """
    missing = max(0, (width or 0) - len(values))
    padding = [pad] * missing
    return [*padding, *values.tolist()] if left else [*values.tolist(), *padding]


def _get_pad(tokenizer: Any) -> int:
    return getattr(tokenizer, "pad_token_id", None) or 0


def _get_end(tokenizer: Any) -> int:
    return getattr(tokenizer, "eos_token_id", None) or _get_pad(tokenizer)


def _begin_with(prompt: Any, *answers: Any) -> bool:
    """Return whether a prompt and answers are texts, and all answers begin with the prompt."""
    texts = all(isinstance(text, str) for text in (prompt, *answers))
    return texts and all(answer.startswith(prompt) for answer in answers)


def _keep_fields(example: Mapping[str, Any]) -> Example:
    return {name: example[name] for name in _SIDE_FIELDS if example.get(name) is not None}


def _read_prompt_text(tokenizer: Any, example: Mapping[str, Any], tools: Any) -> str:
    """Return the text of a prompt, up to the beginning of the answer."""
    prompt = example.get("prompt")
    if prompt is None:
        prompt = next((example[name] for name in _CONVERSATIONS if name in example), None)
    if prompt is None and isinstance(example.get("chosen"), list):
        prompt = find_common_messages(example)
    if isinstance(prompt, str):
        return prompt
    if prompt == []:
        return ""
    if not prompt:
        raise DataError(f"a row has no prompt, only {', '.join(example)}: map it to prompt")
    return render(tokenizer, prompt, example.get("tools", tools), add_generation_prompt=True)
