"""Conversations with uniform messages, from the message forms of public data sets."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from ...errors import DataError
from .marks import ANSWER_KEYS, MEDIA_MARKS

Message: TypeAlias = dict[str, Any]
"""A message with "role" and "content", a text; maybe "reasoning_content", "tool_calls", "weight".

The content may have marks of media, which are in "media".
"""

CALL_ROLE = "function_call"
"""Role of turns in which the assistant calls tools, as JSON text."""

ROLE_ALIASES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "model", "bot", "bard", "bing", "claude"), "assistant"),
    **dict.fromkeys(("observation", "tool_response", "tool_result", "tool_results"), "tool"),
    **dict.fromkeys(("function_response", "function-response", "function"), "tool"),
    **dict.fromkeys(("tool_call", "function-call"), CALL_ROLE),
}
"""Roles of ShareGPT and other data sets, with the names that chat templates use."""

KNOWN_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython"))
"""Roles that chat templates use."""

_MEDIA_TYPES = {
    **{kind: kind for kind in MEDIA_MARKS},
    **{f"{kind}_url": kind for kind in MEDIA_MARKS},
    "input_image": "image",
    "input_audio": "audio",
}
"""Types of parts, with the kinds of their media."""
_MEDIA_KEYS = ("url", "path", "base64", "bytes", "array", "data")
_MEDIA_MARK = re.compile(f"[{''.join(MEDIA_MARKS.values())}]")

_SCALARS = frozenset((str, int, float, bool))
_COMMON_ROLES = ("user", "assistant", "system")
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_REASONING_NAMES = ANSWER_KEYS[1:]


class ToolArguments(dict[str, Any]):
    """Arguments of a tool call that were given as JSON text.

    Args:
        arguments: the arguments.
        text: their JSON text.
    """

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolArguments, (dict(self), self._text)

    def as_text(self) -> str:
        """Return the JSON text."""
        return self._text


def write_arguments(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose tool calls have their arguments as JSON text, not as mappings.

    Args:
        messages: uniform messages.
    """

    def write(call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        written = {**cast("dict[str, Any]", call)}
        if "function" in written:
            return {**written, "function": write(written["function"])}
        if isinstance(arguments := written.get("arguments"), ToolArguments):
            written["arguments"] = arguments.as_text()
        elif isinstance(arguments, dict):
            written["arguments"] = json.dumps(arguments, ensure_ascii=False)
        return written

    return [
        {**message, "tool_calls": [write(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


@dataclass(frozen=True, eq=False)
class MediaPart:
    """A part of a message that is no text.

    Attributes:
        kind: "image", "audio" or "video".
        value: the media; `None` if a field of the sample has it.
    """

    kind: str
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MediaPart) and (
            self.value is other.value
            or (type(self.value) is type(other.value) and np.array_equal(self.value, other.value))
        )


@dataclass(frozen=True)
class Conversation:
    """Messages for a chat template.

    Attributes:
        messages: uniform messages.
        tools: JSON schemas of tools, for the template.
        prompt_length: the number of messages at the start that are a prompt and never learned.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    prompt_length: int = 0


@dataclass(frozen=True)
class Segments:
    """Consecutive texts that need no template.

    Attributes:
        texts: the texts, in order.
        learned: whether each text carries loss.
        labels: a label for the end of each text, or `None`; for stepwise rewards.
    """

    texts: list[str]
    learned: list[bool]
    labels: list[int | None] | None = None


@dataclass(frozen=True)
class Example:
    """The content of a sample.

    Attributes:
        sequences: conversations or texts, by the prefix of their features: "" for a single one,
            "chosen_" and "rejected_" for a preference pair.
        features: other features that the format defines, such as the label of KTO.
    """

    sequences: Mapping[str, Conversation | Segments]
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class MessageReader:
    """Converts messages of any public form to uniform messages.

    Attributes:
        role: the key of the role, if not "role" or "from".
        content: the key of the content, if not "content" or "value".
        roles: roles of the data by the name that the template knows.
        takes_media: whether parts other than text are read.
        writes_calls: whether the template writes tool calls; else turns of calls are text.
        template_roles: roles that the template names.
        separator: the text between an instruction and its input.
        counts: receives what was left out, by the fields of `ChatStats`.
    """

    role: str | None = None
    content: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    takes_media: bool = False
    writes_calls: bool = True
    template_roles: frozenset[str] = frozenset()
    separator: str = "\n\n"
    counts: Counter[str] = field(default_factory=Counter[str], compare=False)

    @property
    def _is_standard(self) -> bool:
        return (self.role, self.content, self.takes_media) == (None, None, False) and not self.roles

    def read_messages(self, values: Any) -> list[Message]:
        """Return uniform messages.

        Args:
            values: a list of mappings with a role and a content.

        Raises:
            DataError: if a message has no role or no content, or parts other than text.
        """
        messages = [self._read(number, value) for number, value in enumerate(values)]
        if not messages:
            raise DataError("the conversation has no messages: filter out such samples")
        return messages

    def _read(self, number: int, value: Any) -> Message:
        if not isinstance(value, Mapping):
            raise DataError(
                f"message {number} is a {type(value).__name__}: give mappings with a role and a content"
            )
        given = cast("Mapping[str, Any]", value)
        if len(given) == 2 and self._is_standard:  # the usual case
            role, content = given.get("role"), given.get("content")
            if role in _COMMON_ROLES and type(content) is str:
                return {"role": role, "content": content}
        message = {str(key): item for key, item in given.items() if item is not None}
        role_key = self.role or ("role" if "role" in message else "from")
        content_key = self.content or ("content" if "content" in message else "value")
        role, content = message.pop(role_key, None), message.pop(content_key, None)
        if not isinstance(role, str):
            raise DataError(
                f"message {number} has no role, only {_list_keys(given)}: name its key, such as "
                "fields={'role': 'speaker'}"
            )
        role = self.roles.get(role) or self._rename_role(role)
        if not _ROLE.fullmatch(role):
            raise DataError(
                f"message {number} has the role {role!r}: map it, such as roles={{{role!r}: 'user'}}"
            )
        calls = message.pop("tool_calls", None)
        message = {
            key: item if type(item) in _SCALARS else self._drop_nulls(item)
            for key, item in message.items()
        }
        reasoning = next((message[name] for name in _REASONING_NAMES if name in message), None)
        if isinstance(reasoning, str):
            message["reasoning_content"] = reasoning
            message.setdefault("thinking", reasoning)  # the key of gpt-oss and LFM 2.5
        if calls is not None and len(calls := self._read_list(calls)):
            message["tool_calls"] = [_read_tool_call(call) for call in calls]
        elif (call := message.get("function_call")) and isinstance(call, Mapping):
            message["tool_calls"] = _make_tool_calls(
                [cast(Any, call)]
            )  # the earlier form of OpenAI
        if role == CALL_ROLE and role not in self.template_roles:
            role, content = "assistant", self._read_call_turn(content, message)
        elif role not in KNOWN_ROLES | self.template_roles and role not in self.roles.values():
            if self._rename_role(role.lower()) == "assistant":
                raise DataError(
                    f"message {number} has the role {role!r}, which is not learned: map it, such as "
                    f"roles={{{role!r}: 'assistant'}}"
                )
            self.counts["unknown_roles"] += 1
        if content is None and "tool_calls" not in message and reasoning is None:
            raise DataError(
                f"message {number} has no content, only {_list_keys(given)}: name its key, such as "
                "fields={'content': 'text'}"
            )
        if not self.takes_media:
            text = content if isinstance(content, str) else _join_parts(content, number)
            return {"role": role, "content": text, **message}
        media = list[MediaPart]()
        text = _join_parts([content] if isinstance(content, str) else content, number, media)
        return {**message, "role": role, "content": text, "media": media}

    def read_tools(self, value: Any) -> list[Any] | None:
        """Return the tools of a sample; `None` without tools.

        Args:
            value: the field with the tools: a list, JSON text, or a list of JSON texts.

        Raises:
            DataError: if a text is not JSON, or the value is no list.
        """
        return (
            [_read_tool(tool) for tool in self._read_list(value)] or None
            if value is not None
            else None
        )

    def _rename_role(self, role: str) -> str:
        """Return the name that the template has for a role of the data."""
        if role == "function" and role in self.template_roles:
            return role
        if role == "ipython" and role not in self.template_roles and "tool" in self.template_roles:
            return "tool"
        return ROLE_ALIASES.get(role, role)

    def _read_call_turn(self, content: Any, message: Message) -> Any:
        """Return the content of a turn of calls, and add its calls to the message.

        The content stays text if it is no JSON of calls, or if the template writes no calls.
        """
        value = content if isinstance(content, str) else self._drop_nulls(content)
        calls = _parse_calls(value)
        if calls is None:
            return content
        if not self.writes_calls:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        message["tool_calls"] = calls
        return ""

    def _read_list(self, value: Any) -> Sequence[Any]:
        """Return the values of a list without keys that are null, or of its JSON text.

        Values of a list that are JSON texts of objects become these.
        """
        values = _read_json(value)
        if not isinstance(value, str):
            values = self._drop_nulls(values)
        return [_read_object(item) if isinstance(item, str) else item for item in values]

    def _drop_nulls(self, value: Any) -> Any:
        """Return plain values without the keys of mappings that are null, at any depth.

        Columnar files store mappings as structs with the keys of all rows, and null where a row has
        no such key. So null keys are dropped in every format: equal chats give equal tokens.
        """
        if type(value) in _SCALARS:  # the usual case
            return value
        if type(value) is dict or isinstance(value, Mapping):
            kept, items = dict[Any, Any](), cast("Mapping[Any, Any]", value).items()
            for key, item in items:
                if item is not None:
                    kept[key] = item if type(item) in _SCALARS else self._drop_nulls(item)
            if len(kept) < len(items):
                self.counts["dropped_nulls"] += len(items) - len(kept)
            return kept
        if is_list(value):
            return [self._drop_nulls(item) for item in cast("Iterable[Any]", value)]
        return cast(Any, value).item() if isinstance(value, np.generic) else value


def is_list(value: Any) -> bool:
    """Return whether a value of a sample is a list in any of its forms."""
    return isinstance(value, list | tuple | np.ndarray)


def _read_json(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise DataError(f"tools and tool calls must be lists or JSON lists: {error}") from None
    if not is_list(value):
        raise DataError(f"tools and tool calls must be lists, not a {type(value).__name__}")
    return value


def _read_object(text: str) -> Any:
    """Return the object of a JSON text; other texts stay as they are.

    Raises:
        DataError: if the text begins like an object, and is no JSON.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"a tool or tool call is no JSON text, {text!r:.60}: {error}") from None


def _read_tool(tool: Any) -> Any:
    """Return a schema of a tool whose function and parameters are objects, not their JSON texts."""
    if not isinstance(tool, Mapping):
        return tool
    result = {**cast("Mapping[str, Any]", tool)}
    for key in ("function", "parameters"):
        if isinstance(value := result.get(key), str):
            result[key] = _read_object(value)
    if isinstance(result.get("function"), Mapping):
        result["function"] = _read_tool(result["function"])
    return result


def _read_tool_call(call: Any) -> Any:
    """Return a tool call whose arguments are an object, not its JSON text, as templates expect."""
    if not isinstance(call, Mapping):
        raise DataError(f"a tool call is a {type(call).__name__}: give mappings with a function")
    result: dict[str, Any] = dict(cast("Mapping[str, Any]", call))
    inner: Any = result.get("function")
    function: dict[str, Any] = (
        {**cast("Mapping[str, Any]", inner)} if isinstance(inner, Mapping) else result
    )
    arguments = function.get("arguments")
    is_empty = "arguments" in function or {*function} <= {"name", "id", "type"}
    if isinstance(arguments, str):
        is_empty = arguments.strip() in ("", "null")
    elif arguments is not None:
        is_empty = False
    if is_empty:
        function["arguments"] = {}
    elif isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = ToolArguments(cast("dict[str, Any]", parsed), arguments)
    return {**result, "function": function} if isinstance(inner, Mapping) else function


def _parse_calls(content: Any) -> list[Any] | None:
    """Return the tool calls of a turn; `None` if it has anything but calls with names.

    Args:
        content: JSON text, or its value.
    """
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            return None
    calls: list[Any] = [*content] if is_list(content) else [content]

    def has_name(call: Any) -> bool:
        if not isinstance(call, Mapping):
            return False
        fields = cast("Mapping[str, Any]", call)
        function: Any = fields.get("function", fields)
        return isinstance(function, Mapping) and isinstance(cast(Any, function).get("name"), str)

    return _make_tool_calls(calls) if calls and all(map(has_name, calls)) else None


def _make_tool_calls(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return tool calls in the form of templates, from calls or the functions in them."""
    results = list[Any]()
    for call in calls:
        if "function" not in call:
            function = {**call}
            function.setdefault("arguments", function.pop("parameters", {}))
            call = {"type": "function", "function": function}
        results.append(_read_tool_call(call))
    return results


def _join_parts(content: Any, number: int, media: list[MediaPart] | None = None) -> str:
    """Return the text of a content that is a list of typed parts.

    Args:
        content: the parts.
        number: the number of the message.
        media: receives the media, for whose places the text has marks; `None` if there is no
            processor for them.

    Raises:
        DataError: for parts of other types.
    """
    if content is None:
        return ""
    parts: Sequence[Any] = content if is_list(content) else [content]
    texts = list[str]()
    for part in parts:
        fields = cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {"text": part}
        text, kind = fields.get("text"), fields.get("type")
        if media is not None and (name := _MEDIA_TYPES.get(str(kind))) is not None:
            values = (fields.get(key) for key in (str(kind), name, *_MEDIA_KEYS))
            media.append(MediaPart(name, next((v for v in values if v is not None), None)))
            texts.append(MEDIA_MARKS[name])
        elif isinstance(text, str):
            texts.append(text if media is None else _MEDIA_MARK.sub("\ufffd", text))
        else:
            kind = kind or type(cast(object, part)).__name__
            takers = (
                ", or give Chat the processor of the model" if str(kind) in _MEDIA_TYPES else ""
            )
            raise DataError(
                f"message {number} has a part of type {kind!r}: Chat encodes text; map such parts to "
                f"text before{takers}"
            )
    return "".join(texts)


def _list_keys(fields: Mapping[str, Any]) -> str:
    return ", ".join(map(str, fields)) or "no keys"
