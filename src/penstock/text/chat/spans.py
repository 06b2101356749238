"""The spans of messages in one rendering of a conversation.

Spans come from `{% generation %}` blocks, or from marks around the contents of messages. A
rendering with marks counts only if it equals the one without, apart from the marks.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from logging import getLogger
from typing import Any, Protocol, cast

from ...errors import DataError
from .control_tokens import ControlTokens
from .conversation import Message
from .marks import (
    ANSWER_KEYS,
    GENERATION_END,
    OTHER_PLACEHOLDER,
    PLACEHOLDER,
    Rendering,
    Span,
    mark_empty,
    mark_ends,
    mark_part,
    read_marks,
    remove_marks,
)
from .templates import ChatTemplate

_THINK_START, _THINK_END = "<think>", "</think>"


class ConversationTemplate(Protocol):
    """A template, or one with the media of a conversation."""

    @property
    def has_generation(self) -> bool: ...

    def render(self, messages: list[Message], tools: list[Any] | None, /) -> str: ...


@dataclass(frozen=True)
class Located:
    """A rendering with the spans of messages.

    Attributes:
        rendering: the rendering.
        spans: the spans of each message that was asked for; a dropped message has none.
    """

    rendering: Rendering
    spans: dict[int, list[Span]]


class MessageLocator:
    """Finds messages in the renderings of a template.

    Args:
        template: the template.
        control: the control tokens of the tokenizer.
        eos: the end-of-text token, which may end a message.
    """

    def __init__(self, template: ChatTemplate, control: ControlTokens, eos: str) -> None:
        self._template, self._control = template, control
        self._eos = (eos,) if eos else ()
        self._answer_headers, self.ends = list[str](), self._eos
        self._has_prompt = False
        self._closings = set[str]()  # text between a content and the token that ends the answer
        self._probe()

    def locate(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        wanted: Sequence[int],
        template: ConversationTemplate,
    ) -> Located:
        """Return one rendering of a conversation, and the spans of messages in it.

        Args:
            messages: messages whose control tokens are marked.
            tools: schemas of tools.
            wanted: the messages to find.
            template: renders the conversation.

        Raises:
            DataError: if a message cannot be found.
        """
        rendering = read_marks(template.render(messages, tools))
        if not wanted:
            return Located(rendering, {})
        if template.has_generation:
            answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            if len(answers) == len(rendering.generation) and {*wanted} <= {*answers}:
                blocks = dict(zip(answers, rendering.generation, strict=True))
                return Located(rendering, {i: [blocks[i]] for i in wanted})
        spans = self._find_by_marks(messages, tools, wanted, rendering, template)
        if spans is None:
            spans = self._find_by_replacing(messages, tools, wanted, rendering, template)
        if template.has_generation:
            spans = {
                number: self._use_blocks(found, rendering.generation)
                if messages[number]["role"] == "assistant"
                else found
                for number, found in spans.items()
            }
        elif self._has_prompt and template is self._template:
            for number, found in spans.items():
                if self._is_doubtful(messages[number], rendering.text, found[-1]):
                    turn = self._find_turn(messages, tools, number, rendering, found[-1])
                    spans[number] = found if turn is None else [turn]
        return Located(rendering, spans)

    def count_dropped(
        self, messages: list[Message], tools: list[Any] | None, suspects: Sequence[int]
    ) -> int:
        """Return how many messages a template does not write, from a rendering with marks.

        Args:
            messages: messages whose control tokens are marked.
            tools: schemas of tools.
            suspects: the messages to look for, which have contents.
        """
        first = 16 ** len(f"{len(messages):x}")  # so that no mark begins another one
        marked = [*messages]
        for i in suspects:
            marked[i] = {**messages[i], "content": mark_part(messages[i]["content"], first + i)}
        try:
            text = self._template.render(marked, tools)
        except DataError:
            return 0  # the template compares the content with others
        return sum(
            not any(mark in text or json.dumps(mark)[1:-1] in text for mark in mark_ends(first + i))
            for i in suspects
        )

    def _use_blocks(self, spans: list[Span], blocks: list[Span]) -> list[Span]:
        """Return the generation blocks that a message shares characters with."""
        return [
            block
            for block in blocks
            if any(start < block[1] and block[0] < stop for start, stop in spans)
        ]

    def _find_by_marks(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        wanted: Sequence[int],
        rendering: Rendering,
        template: ConversationTemplate,
    ) -> dict[int, list[Span]] | None:
        """Return spans from a second rendering with marks; `None` if marks change the text."""
        marked: list[Message] = [_mark_message(message, i) for i, message in enumerate(messages)]
        parts = _render_parts(template, marked, tools, rendering.text)
        for mark_content in _CAREFUL_MARKS:
            missing = [
                i
                for i, message in enumerate(messages)
                if (parts is None or (i in wanted and i not in parts)) and _needs_care(message)
            ]
            if not missing:
                break
            groups = [missing]
            if parts is not None and len(missing) > 1:  # if that changes the text, one by one
                groups += [[i] for i in missing]
            for group in groups:
                careful: list[Message] = [*marked]
                for i in group:
                    content = mark_content(messages[i]["content"], i)
                    careful[i] = {**marked[i], "content": content}
                found = _render_parts(template, careful, tools, rendering.text)
                if found is not None:
                    marked, parts = careful, found
                    if group == missing:
                        break
        if parts is None:
            return None
        written = _group_parts(parts)
        firsts = [start for _, (start, _) in written] + [len(rendering.text)]
        lasts = [0, *(stop for _, (_, stop) in written)]
        spans = dict[int, list[Span]]()
        for place in _choose_places([number for number, _ in written]):
            number, span = written[place]
            if number in wanted:
                bounds = lasts[place], firsts[place + 1]
                spans[number] = [self._extend(messages[number], rendering, span, bounds)]
        return spans

    def _find_by_replacing(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        wanted: Sequence[int],
        rendering: Rendering,
        template: ConversationTemplate,
    ) -> dict[int, list[Span]]:
        """Return spans as the text that changes if the content of a message is replaced."""
        text, spans = rendering.text, dict[int, list[Span]]()
        for number in wanted:
            changed = [
                {"role": message["role"], "content": PLACEHOLDER} if i == number else message
                for i, message in enumerate(messages)
            ]
            second = remove_marks(template.render(changed, tools))
            if PLACEHOLDER[0] not in second:
                continue  # the template drops the message
            head, _, rest = second.partition(PLACEHOLDER[0])
            tail = rest.rpartition(PLACEHOLDER[0])[2]
            start, stop = len(head), len(text) - len(tail)
            if stop < start or not (text.startswith(head) and text.endswith(tail)):
                raise DataError(
                    f"message {number} cannot be found in the output of the chat template, which "
                    "changes with it elsewhere: put {% generation %} and {% endgeneration %} around "
                    "answers in the template, or use a built-in one, such as template='chatml'"
                )
            spans[number] = [
                self._extend(messages[number], rendering, (start, stop), (0, len(text)))
            ]
        return spans

    def _extend(self, message: Message, rendering: Rendering, span: Span, bounds: Span) -> Span:
        """Return a span with what belongs to the message around its content.

        Args:
            message: the message.
            rendering: the rendering.
            span: the first and last marked character.
            bounds: the end of the message before it and the start of the one after it.
        """
        text, (start, stop) = rendering.text, span
        if message["role"] == "assistant":
            start = self._find_start(rendering, bounds[0], start)
        for first, last in self._owned_between(rendering, stop, bounds[1]):
            if text[first:last] in self.ends:
                # Behind calls and reasoning without an answer, the template may write more.
                is_open = message.get("tool_calls") or _is_empty(message)
                between = text[stop:first].strip()
                if is_open or not between or between in self._closings:
                    return start, last
                break
        for end in self.ends:
            if text.startswith(end, stop):
                return start, stop + len(end)
        space = message["content"][len(message["content"].rstrip()) :]
        is_last = message["role"] == "assistant" and not message.get("tool_calls")
        if is_last and text.startswith(space, stop) and stop + len(space) <= bounds[1]:
            stop += len(space)  # no token ends the answer, so its white space is the end of it
        return start, stop

    def _is_doubtful(self, message: Message, text: str, span: Span) -> bool:
        """Return whether marks may miss a part of an answer: calls, reasoning, or an unknown end."""
        if message["role"] != "assistant":
            return False
        has_parts = message.get("tool_calls") or any(key in message for key in ANSWER_KEYS[1:])
        return bool(has_parts) or not self.ends or not text.endswith(self.ends, 0, span[1])

    def _find_turn(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        number: int,
        rendering: Rendering,
        span: Span,
    ) -> Span | None:
        """Return all that a template writes for an answer behind the prompt of its generation.

        Two shorter renderings show it: the conversation up to the prompt, and up to the answer.

        Args:
            messages: messages whose control tokens are marked.
            tools: schemas of tools.
            number: the answer.
            rendering: the rendering of the whole conversation.
            span: the answer by its marks.

        Returns:
            The span, or None if the template writes these parts otherwise in a longer conversation.
        """
        text = rendering.text
        try:
            before = read_marks(self._template.render(messages[:number], tools, True)).text
            after = read_marks(self._template.render(messages[: number + 1], tools)).text
        except DataError:
            return None
        if not text.startswith(before) or not after.startswith(before):
            return None
        start, stop = len(before), _count_common(after, text)
        if stop < len(after):  # the last turn has another end
            if start > span[0] or stop <= span[0]:
                return None
            cut = next(
                (a for a, b in self._owned_between(rendering, start, stop) if b > stop), stop
            )
            if cut == stop and not text[stop - 1 : stop].isspace() and stop < len(text):
                cut = max(text.rfind(" ", start, stop), text.rfind("\n", start, stop))
            stop = max(cut, span[1])
        end = start + len(text[start:stop].rstrip())
        if span[1] > stop:  # marks of the answer in a later turn
            return start, end
        behind = text[span[1] : end].strip()
        if behind in self._eos and self.ends and text.endswith(self.ends, 0, span[1]):
            end = span[1]  # `add_eos` adds what the template ends the conversation with
        return start, max(end, span[1])

    def _find_start(self, rendering: Rendering, lowest: int, start: int) -> int:
        """Return where an answer begins, before its first marked character.

        Args:
            rendering: the rendering.
            lowest: the end of the message before it.
            start: its first marked character.
        """
        text = rendering.text
        owned = [*self._owned_between(rendering, lowest, start)]
        ends = [right for left, right in owned if text[left:right] in self.ends]
        lowest_begin = max(ends, default=lowest)
        for header in self._answer_headers:
            first = text.rfind(header, lowest, start)
            if first + len(header) < lowest_begin or first < 0:
                # The template may write an empty reasoning of the data as the header ends.
                first = text.rfind(header, lowest, start + len(header) - 1)
                if not text[first:start].strip():
                    continue  # the data begins like a header
            while first >= 0 and any(first < i < first + len(header) for i in rendering.data):
                first = text.rfind(header, lowest, first)  # a header in the data
            if first >= 0 and first + len(header) >= lowest_begin:
                return first + len(header)  # the model writes what follows the prompt
        before = text[lowest:start].rstrip()
        if before.endswith(_THINK_START):
            return lowest + len(before) - len(_THINK_START)
        if self._answer_headers and owned and text[owned[-1][1] : start].isspace():
            return owned[-1][1]  # behind another header, such as the results of tools
        return start

    def _owned_between(self, rendering: Rendering, start: int, stop: int) -> Iterator[Span]:
        """Yield the control tokens of the template that begin between two positions."""
        if rendering.data:
            owned, _ = self._control.find_owned(rendering.text, rendering.data)
            yield from (span for span in owned if start <= span[0] < stop)
            return
        while (found := self._control.find_first(rendering.text, start, stop)) is not None:
            yield found
            start = found[1]

    def add_eos(self, rendering: Rendering, spans: Sequence[Span]) -> list[Span]:
        """Return spans with the end-of-text tokens that follow the ends of answers.

        Some templates write one behind another token that ends an answer, such as Phi 3 and
        Command A. A model that generates until end of text must learn both.

        Args:
            rendering: the rendering.
            spans: the spans that are learned.
        """
        added, text = list(spans), rendering.text
        for _, stop in spans:
            if not self.ends or not text.endswith(self.ends, 0, stop):
                continue
            first = stop
            while text[first : first + 1].isspace():
                first += 1
            for eos in self._eos:
                last = first + len(eos)
                if text.startswith(eos, first) and not any(
                    first < i < last for i in rendering.data
                ):
                    added.append((first, last))
        return added

    def _probe(self) -> None:
        """Find the tokens that end an answer, and the header of an answer, in a small conversation."""
        question: Message = {"role": "user", "content": PLACEHOLDER}
        answer: Message = {"role": "assistant", "content": OTHER_PLACEHOLDER}
        try:
            text = self._template.render([question, answer, question, answer], None)
            prompt = remove_marks(self._template.render([question], None, True))
        except DataError:
            return  # the template needs other conversations
        self._has_prompt = self._writes_prompt(prompt)
        blocks = [match.end() for match in re.finditer(GENERATION_END, text)]
        tails = [remove_marks(text[end:]) for end in blocks]
        ends, text = list(self._eos), remove_marks(text)
        start = text.rfind(OTHER_PLACEHOLDER[0]) + 1
        begin = text[: text.find(PLACEHOLDER[0])]  # ends with the header of a question
        for match in re.finditer(f"{OTHER_PLACEHOLDER[0]}+", text):
            for first, last in self._owned_after(text, match.end())[:1]:
                token, rest = text[first:last], text[first : text.find(PLACEHOLDER[0], first)]
                # The header of the next question ends an answer only if nothing else does.
                is_end = (
                    not (rest and begin.endswith(rest))
                    or f"{PLACEHOLDER[0]}{token}" in text  # ends every turn
                    or not text[start:].strip()
                    or text[start:].lstrip().startswith(token)
                )
                if is_end and not text[match.end() : first].strip() and token not in ends:
                    ends.append(token)
        if start and not blocks:  # behind the last answer, all is of its end
            last = next(iter(self._owned_after(text, start)), None)
            closing = text[start : last[0] if last else len(text)].strip()
            if last and closing:
                ends.append(text[slice(*last)])
                self._closings.add(closing)
            elif closing:
                ends.append(text[start:].rstrip())
        self.ends = tuple(ends)
        if any(tail.startswith(self.ends) for tail in tails if self.ends):
            getLogger("penstock").warning(
                "Chat: the {%% generation %%} blocks of the chat template end before %s, so the model "
                "does not learn to end its answers: move {%% endgeneration %%} behind it",
                next(end for end in self.ends for tail in tails if tail.startswith(end)),
            )
        self._answer_headers = self._find_headers(text, prompt)

    def _writes_prompt(self, prompt: str) -> bool:
        """Return whether a question has another rendering without the prompt of a generation."""
        try:
            alone = self._template.render([{"role": "user", "content": PLACEHOLDER}], None)
        except DataError:
            return True
        return remove_marks(alone) != prompt

    def _find_headers(self, text: str, prompt: str) -> list[str]:
        """Return the headers of answers: what the prompt of a generation ends with, and parts of it.

        In earlier answers, a template may leave out the end of it, such as `<think>`. If a template
        has no prompt of a generation, headers are what it writes between a question and an answer.

        Args:
            text: a conversation of placeholders.
            prompt: a question, and the prompt of a generation.
        """
        between = re.findall(f"{PLACEHOLDER[0]}([^{PLACEHOLDER[0]}]*?){OTHER_PLACEHOLDER[0]}", text)
        if not self._has_prompt:
            end = prompt[prompt.rfind(PLACEHOLDER[0]) + 1 :]  # of the question
            own = [each[len(end) :] for each in between if each.startswith(end)]
            if headers := [*dict.fromkeys(each.lstrip("\n") for each in own if each.strip())]:
                return headers
        start = prompt.rfind(PLACEHOLDER[0]) + 1
        after = [
            last
            for first, last in self._owned_after(prompt, start)
            if prompt[first:last] in self.ends
        ]
        header = prompt[after[0] if after else start :].lstrip("\n")
        if not header:
            return []
        headers = [header]
        for written in between:
            sizes = range(len(header), 0, -1)
            size = next((size for size in sizes if written.endswith(header[:size])), len(header))
            if header[:size] not in headers:
                headers.append(header[:size])
        return headers

    def _owned_after(self, text: str, position: int) -> list[Span]:
        owned, _ = self._control.find_owned(text, [])
        return [span for span in owned if span[0] >= position]


def _count_common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _render_parts(
    template: ConversationTemplate, marked: list[Message], tools: list[Any] | None, text: str
) -> dict[int, list[Span]] | None:
    """Return the parts in a rendering with marks; `None` if it differs from the one without."""
    try:
        rendering = read_marks(template.render(marked, tools))
    except (DataError, ValueError):  # the template changes the marks
        return None
    return rendering.parts if rendering.text == text else None


def _group_parts(parts: dict[int, list[Span]]) -> list[tuple[int, Span]]:
    """Return the places at which a template writes messages, in order: a message and its span."""
    places = list[tuple[int, Span]]()
    ordered = sorted((*part, message) for message, found in parts.items() for part in found)
    for start, stop, number in ordered:
        if places and places[-1][0] == number:
            _, (first, last) = places.pop()
            start, stop = first, max(last, stop)
        places.append((number, (start, stop)))
    return places


def _choose_places(numbers: Sequence[int]) -> list[int]:
    """Return one place for each message, where it stands in the order of the conversation.

    A template may also write a message elsewhere, such as the last answer before the first turn.

    Args:
        numbers: the message at each place.

    >>> _choose_places([3, 0, 1, 2, 3, 1])
    [1, 2, 3, 4]
    """
    if len({*numbers}) == len(numbers):
        return [*range(len(numbers))]
    begins, after = list[int](), dict[int, int]()  # of the longest ascending sequences, by length
    for place in reversed(range(len(numbers))):
        size = bisect_left(begins, -numbers[place], key=lambda other: -numbers[other])
        after[place] = begins[size - 1] if size else -1
        begins[size : size + 1] = [place]
    chosen, place = dict[int, int](), begins[-1]
    while place >= 0:
        chosen[numbers[place]] = place
        place = after[place]
    for place, number in enumerate(numbers):
        chosen.setdefault(number, place)
    return sorted(chosen.values())


def merge_spans(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, joined where they touch.

    Args:
        spans: spans in any order.

    >>> merge_spans([(5, 7), (0, 2), (2, 4)])
    [(0, 4), (5, 7)]
    """
    merged = list[Span]()
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        elif start < stop:
            merged.append((start, stop))
    return merged


def subtract_spans(size: int, spans: Sequence[Span]) -> list[Span]:
    """Return the spans of a text that others leave out.

    Args:
        size: the length of the text.
        spans: the spans to leave out.

    >>> subtract_spans(9, [(2, 4), (7, 9)])
    [(0, 2), (4, 7)]
    """
    edges = [(0, 0), *merge_spans(spans), (size, size)]
    return [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]


def _mark_message(message: Message, number: int) -> Message:
    """Return a message with marks around its content, reasoning and tool calls."""
    marked: Message = dict(message)
    for key in ANSWER_KEYS:
        text = message.get(key)
        if isinstance(text, str):
            marked[key] = mark_part(text, number)
    if calls := message.get("tool_calls"):
        marked["tool_calls"] = [_mark_call(call, number) for call in calls]
    return marked


def _needs_care(message: Message) -> bool:
    """Return whether marks around the whole content may be lost, or change the rendering."""
    content: str = message["content"]
    return _THINK_END in content or not content.strip()


def _is_empty(message: Message) -> bool:
    """Return whether a message has no text behind its reasoning."""
    return not message["content"].rpartition(_THINK_END)[2].strip()


def _mark_reasoning(text: str, number: int) -> str:
    """Return a content with marks around the reasoning and around the rest.

    A template may drop, move or trim the reasoning.
    """
    before, end, after = text.rpartition(_THINK_END)
    return f"{_mark_before(before, number)}{end}{mark_part(after, number)}"


def _mark_empty_start(text: str, number: int) -> str:
    """Return a content with marks as `_mark_reasoning` does, and at the start of an empty answer."""
    before, end, after = text.rpartition(_THINK_END)
    marked = mark_part(after, number) if after.strip() else f"{mark_empty(number)}{after}"
    return f"{_mark_before(before, number)}{end}{marked}"


def _mark_empty_end(text: str, number: int) -> str:
    """Return a content with marks as `_mark_reasoning` does, and at the end of an empty answer."""
    before, end, after = text.rpartition(_THINK_END)
    marked = mark_part(after, number) if after.strip() else f"{after}{mark_empty(number)}"
    return f"{_mark_before(before, number)}{end}{marked}"


def _mark_before(text: str, number: int) -> str:
    """Return the part of a content before the end of the reasoning, with marks."""
    head, start, reasoning = text.partition(_THINK_START)
    return f"{mark_part(head, number)}{start}{mark_part(reasoning, number)}"


_CAREFUL_MARKS = (_mark_reasoning, _mark_empty_start, _mark_empty_end)


def _mark_call(call: Any, number: int) -> Any:
    if not isinstance(call, dict):
        return call
    marked: dict[str, Any] = dict(cast("dict[str, Any]", call))
    for key in ("name", "arguments"):
        if isinstance(marked.get(key), str):
            marked[key] = mark_part(marked[key], number)
    if "function" in marked:
        marked["function"] = _mark_call(marked["function"], number)
    return marked
