"""Control tokens in data: found before rendering, and marked, so that they are encoded as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ...errors import DataError
from ..offset_tokenizers import match_any
from .conversation import KNOWN_ROLES, Conversation, Message, ToolArguments
from .marks import ANSWER_KEYS, DATA, NONCHARACTERS, Span

_PLAIN = (str, int, float, bool, type(None))


class ControlTokens:
    """The control tokens of a tokenizer, and their occurrences in texts.

    A control token that a template writes becomes its id. The same characters in a message are
    text: otherwise a user could end the own message and write the next answer. Answers may hold
    `markup`, such as `<think>` and `</think>`, since models write these.

    Args:
        tokens: texts of all control tokens.
        markup: those that are tokens in answers too.
    """

    def __init__(self, tokens: Iterable[str], markup: Iterable[str] = ()) -> None:
        self.tokens = frozenset(tokens)
        self.markup = frozenset(markup) & self.tokens
        self.pattern = match_any(self.tokens)
        self._answer_pattern = match_any(self.tokens - self.markup)
        self._longest = max(map(len, self.tokens), default=0)
        self._heads = {token[:size] for token in self.tokens for size in range(1, len(token))}
        self._tails = {token[size:] for token in self.tokens for size in range(1, len(token))}
        self._first_chars = {token[0] for token in self.tokens}
        self._last_chars = {token[-1] for token in self.tokens}
        self._edge_chars = self._first_chars | self._last_chars

    def protect(self, conversation: Conversation) -> tuple[list[Message], list[Any] | None, bool]:
        """Return messages and tools whose control tokens are marked, and whether any is.

        Args:
            conversation: uniform messages.

        Raises:
            DataError: if a role would become a control token.
        """
        texts = list[str]()
        plain = conversation.tools is None or _collect(conversation.tools, texts)
        for message in conversation.messages:
            plain = _collect_message(message, texts) and plain
        roles = {str(message["role"]) for message in conversation.messages} - KNOWN_ROLES
        for role in roles:
            if any(role in token for token in self.tokens):
                raise DataError(
                    f"the role {role!r} is a part of a control token of the tokenizer: map it, such "
                    f"as roles={{{role!r}: 'user'}}"
                )
        if plain and not self._needs_marks(texts):
            return conversation.messages, conversation.tools, False
        messages = [
            {
                key: value
                if key in ("role", "media")
                else self._mark(value, self._is_answer(message, key))
                for key, value in message.items()
            }
            for message in conversation.messages
        ]
        tools = None if conversation.tools is None else self._mark(conversation.tools, False)
        return messages, tools, True

    def find_owned(self, text: str, data: list[int]) -> tuple[list[Span], bool]:
        """Return the control tokens that the template wrote, and whether data has others.

        Args:
            text: a rendering.
            data: the positions of marks inside the control tokens of the data.
        """
        owned, has_others, remaining = list[Span](), False, iter([*data, len(text) + 1])
        following = next(remaining)
        for match in self.pattern.finditer(text):
            start, end = match.span()
            while following <= start:
                following = next(remaining)
            if following < end:
                has_others = True
            else:
                owned.append((start, end))
        return owned, has_others

    def find_first(self, text: str, start: int, stop: int) -> Span | None:
        """Return the first control token that begins between two positions of a text without data.

        Args:
            text: a rendering without control tokens of data.
            start: the first position.
            stop: the position behind the last one.
        """
        match = self.pattern.search(text, start, stop + self._longest)
        return match.span() if match and match.start() < stop else None

    def contains(self, text: str) -> bool:
        """Return whether a text has a control token."""
        return self.pattern.search(text) is not None

    def _is_answer(self, message: Message, key: str) -> bool:
        return message["role"] == "assistant" and key in ANSWER_KEYS

    def _needs_marks(self, texts: list[str]) -> bool:
        joined = "\0".join(texts)
        if not joined.isascii() and NONCHARACTERS.search(joined):
            return True
        if not any(char in joined for char in self._edge_chars):  # the usual case
            return False
        if self.pattern.search(joined):
            return True
        return any(self._find_edges(text) != (False, False) for text in texts)

    def _find_edges(self, text: str) -> tuple[bool, bool]:
        """Return whether a text begins with the end of a control token, and ends with a start.

        A template could join such texts to a control token.
        """
        return (
            any(
                text[: end + 1] in self._tails
                for char in self._last_chars
                if (end := text.find(char, 0, self._longest)) >= 0
            ),
            any(
                text[start:] in self._heads
                for char in self._first_chars
                if (start := text.rfind(char, max(0, len(text) - self._longest))) >= 0
            ),
        )

    def _mark(self, value: Any, is_answer: bool) -> Any:
        """Return plain JSON values whose texts have marks in control tokens."""
        if isinstance(value, str):
            text = NONCHARACTERS.sub("\ufffd", str.__str__(value))
            pattern = self._answer_pattern if is_answer else self.pattern
            begins, ends = self._find_edges(text)
            text = pattern.sub(lambda match: f"{match[0][0]}{DATA}{match[0][1:]}", text)
            return DATA * begins + text + DATA * ends
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            return {self._mark(key, False): self._mark(item, False) for key, item in items}
        if isinstance(value, list | tuple | np.ndarray):
            return [self._mark(item, False) for item in cast("Iterable[Any]", value)]
        if isinstance(value, np.generic):
            return cast(Any, value).item()
        return value if isinstance(value, _PLAIN) else f"<{type(value).__name__}>"


def _collect_message(message: Message, texts: list[str]) -> bool:
    """Add the texts of a message to a list; return whether it consists of plain JSON values."""
    plain = True
    for key, value in message.items():
        if type(value) is str:
            if key != "role":
                texts.append(value)
        elif key != "media":
            plain = _collect(value, texts) and plain
    return plain


def _collect(value: Any, texts: list[str]) -> bool:
    """Add the texts of a value to a list; return whether it consists of plain JSON values."""
    kind = cast("type[Any]", type(value))
    if kind is str:
        texts.append(value)
        return True
    if kind is dict or kind is list or kind is ToolArguments:
        items = value if kind is list else [part for item in value.items() for part in item]
        plain = True
        for item in items:
            plain = _collect(item, texts) and plain
        return plain
    return kind in _PLAIN
