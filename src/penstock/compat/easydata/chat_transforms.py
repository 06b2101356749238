"""Transforms of conversations: messages to text, and other forms of messages to role and content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...errors import DataError
from .row_transforms import Example, Transform

DEFAULT_ROLE_MAPPING: dict[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
}
"""Roles of public datasets -> roles of chat templates."""

_CONVERSATIONS = ("messages", "conversations", "conversation")
_CONVERSATIONAL = ("prompt", "chosen", "rejected", "completion", "messages", "conversations")


class ChatTemplateTransform(Transform):
    """Render messages as text, by the chat template of a tokenizer.

    The messages are in `messages_field`, else in `conversations` or `conversation`; a row without
    any is unchanged. For tokens and loss masks in one step use `penstock.text.Chat`.

    Args:
        tokenizer: a tokenizer of `transformers` with a chat template.
        messages_field: field with the messages.
        output_field: field for the text.
        tools: tools for the template.
        convert_from_value_format: whether messages may have `from` and `value`.
        drop_messages: whether to drop the messages.
        **template_kwargs: other arguments of `apply_chat_template`.

    Raises:
        DataError: if the template rejects a conversation.
    """

    def __init__(
        self,
        tokenizer: Any,
        messages_field: str = "messages",
        output_field: str = "text",
        tools: list[Any] | None = None,
        convert_from_value_format: bool = True,
        drop_messages: bool = True,
        **template_kwargs: Any,
    ) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        self._messages_field, self._output_field = messages_field, output_field
        self._converts, self._drops = convert_from_value_format, drop_messages
        self._template_kwargs = template_kwargs

    def __call__(self, example: Example, /) -> Example:
        """Return the row with the text."""
        field = _find_field(example, (self._messages_field, *_CONVERSATIONS[1:]))
        if field is None:
            return example
        messages = example[field]
        if self._converts and isinstance(messages, list):
            messages = convert_to_chatml(cast("list[Any]", messages))
        text = render(self._tokenizer, messages, self._tools, **self._template_kwargs)
        row = {
            name: value for name, value in example.items() if not (self._drops and name == field)
        }
        return {**row, self._output_field: text}

    def __repr__(self) -> str:
        return (
            f"ChatTemplateTransform({self._messages_field!r} -> {self._output_field!r}, "
            f"{sorted(self._template_kwargs.items())})"
        )

    def identify(self) -> str:
        """Return a text with a digest of the chat template."""
        template = str(getattr(self._tokenizer, "chat_template", None))
        return f"{self!r} {hashlib.sha256(template.encode()).hexdigest()[:16]}"


class MaybeApplyChatTemplate(Transform):
    """Render messages as text in rows that have messages; other rows are unchanged.

    Args:
        tokenizer: as in `ChatTemplateTransform`.
        **chat_template_kwargs: other arguments of `ChatTemplateTransform`.
    """

    def __init__(self, tokenizer: Any, **chat_template_kwargs: Any) -> None:
        self._transform = ChatTemplateTransform(tokenizer, **chat_template_kwargs)

    def __call__(self, example: Example, /) -> Example:
        """Return the row, with the text if it is a conversation."""
        return self._transform(example) if is_conversational(example) else example

    def __repr__(self) -> str:
        return f"MaybeApplyChatTemplate({self._transform!r})"

    def identify(self) -> str:
        """Return a text with a digest of the chat template."""
        return f"MaybeApplyChatTemplate({self._transform.identify()})"


@dataclass(frozen=True, repr=False)
class ConvertInputOutputToChatML(Transform):
    """Convert turns with `input` and `output` to messages with role and content.

    Args:
        input_field: field with the turns; else `conversation` or `conversations`.
        output_field: field for the messages.
        user_role: role of inputs.
        assistant_role: role of outputs.

    >>> ConvertInputOutputToChatML()({"conversation": [{"input": "Hi", "output": "Hello"}]})
    {'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]}
    """

    input_field: str = "conversation"
    output_field: str = "messages"
    user_role: str = "user"
    assistant_role: str = "assistant"

    def __call__(self, example: Example, /) -> Example:
        """Return the row with the messages in place of the turns."""
        field = _find_field(example, (self.input_field, "conversation", "conversations"))
        if field is None:
            return example
        roles = {"input": self.user_role, "output": self.assistant_role}
        messages = [
            {"role": role, "content": turn[key]}
            for turn in example[field]
            for key, role in roles.items()
            if key in turn
        ]
        return _replace_field(example, field, self.output_field, messages)


@dataclass(frozen=True, repr=False)
class ConvertToChatML(Transform):
    """Convert messages with `from` and `value` to role and content, with the usual roles.

    Args:
        input_field: field with the messages; else `conversations` or `messages`.
        output_field: field for the messages.
        role_mapping: roles of the data -> roles of the template.
        use_default_mapping: whether `DEFAULT_ROLE_MAPPING` applies to other roles.

    >>> ConvertToChatML()({"conversations": [{"from": "human", "value": "Hi"}]})
    {'messages': [{'role': 'user', 'content': 'Hi'}]}
    """

    input_field: str = "conversations"
    output_field: str = "messages"
    role_mapping: Mapping[str, str] | None = None
    use_default_mapping: bool = True

    def __call__(self, example: Example, /) -> Example:
        """Return the row with the converted messages."""
        field = _find_field(example, (self.input_field, "conversations", "messages"))
        if field is None:
            return example
        roles = DEFAULT_ROLE_MAPPING if self.use_default_mapping else {}
        roles = {**roles, **(self.role_mapping or {})}
        messages = list[dict[str, Any]]()
        for message in example[field]:
            role = message.get("from", message.get("role", "user"))
            content = message.get("value", message.get("content", ""))
            messages.append({"role": roles.get(role, role), "content": content})
        return _replace_field(example, field, self.output_field, messages)


def is_conversational(example: Mapping[str, Any]) -> bool:
    """Return whether a field of a row is a list of messages.

    Args:
        example: the row.

    >>> is_conversational({"messages": [{"role": "user", "content": "Hi"}]})
    True
    """
    for name in _CONVERSATIONAL:
        value = example.get(name)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            if not {"role", "from"}.isdisjoint(cast("Mapping[str, Any]", value[0])):
                return True
    return False


def convert_to_chatml(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with role and content in place of `from` and `value`; roles are unchanged.

    Args:
        messages: the messages.

    >>> convert_to_chatml([{"from": "human", "value": "Hi"}])
    [{'role': 'human', 'content': 'Hi'}]
    """
    return [_rename_keys(message) for message in messages]


def _rename_keys(message: Any) -> Any:
    if not isinstance(message, Mapping) or not {"from", "value"} <= message.keys():
        return cast(Any, message)
    fields = cast("Mapping[str, Any]", message)
    return {"role": fields["from"], "content": fields["value"]}


def render(tokenizer: Any, messages: Any, tools: Any = None, **options: Any) -> str:
    """Return the text of a conversation, by the chat template of a tokenizer.

    Args:
        tokenizer: the tokenizer.
        messages: the messages.
        tools: tools for the template.
        options: other arguments of `apply_chat_template`.

    Raises:
        DataError: if the template rejects the conversation.
    """
    try:
        return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options)
    except Exception as error:
        raise DataError(
            f"the chat template rejects a conversation ({type(error).__name__}: {error}): give a "
            "tokenizer with a chat template, and roles that it knows, as ConvertToChatML makes them"
        ) from error


def _find_field(example: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in example), None)


def _replace_field(example: Example, old: str, new: str, value: Any) -> Example:
    return {**{name: item for name, item in example.items() if name != old}, new: value}
