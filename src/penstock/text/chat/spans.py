"""The spans of messages in one rendering of a conversation.

Spans come from `{% generation %}` blocks, or from marks around the contents of messages. A
rendering with marks counts only if it equals the one without, apart from the marks.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from logging import getLogger
from typing import Any, Protocol, cast

from ...errors import DataError
from .control_tokens import ControlTokens
from .conversation import Message, write_arguments
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

    def trace(self, messages: list[Message], tools: list[Any] | None, /) -> str: ...


@dataclass(frozen=True)
class Located:
    """A rendering with the spans of messages.

    Attributes:
        rendering: the rendering.
        spans: the spans of each message that was asked for; a dropped message has none.
    """

    rendering: Rendering
    spans: dict[int, list[Span]]


@dataclass(frozen=True)
class _Traced:
    """A conversation whose messages are found by the loops of the template.

    Attributes:
        messages: messages whose control tokens are marked.
        tools: schemas of tools.
        rendering: the rendering.
        parts: the marked parts of each message.
        message_spans: the text that the template writes for each message.
        has_media: whether renderings have the tokens of media.
        prompt_ends: where the prompt of an answer ends in the text before its first part, by this
            text and the role of the message before; `None` for elsewhere.
    """

    messages: list[Message]
    tools: list[Any] | None
    rendering: Rendering
    parts: dict[int, list[Span]]
    message_spans: dict[int, list[Span]]
    has_media: bool
    prompt_ends: dict[tuple[str, str], int | None] = field(
        default_factory=dict[tuple[str, str], "int | None"]
    )

    @cached_property
    def parts_in_order(self) -> list[tuple[int, int, int]]:
        """Return all marked parts in order, each with its message."""
        return sorted((*part, i) for i, found in self.parts.items() for part in found)

    def select_others(self, number: int, span: Span) -> list[Span]:
        """Return the marked parts of other messages in a span."""
        first, last = (bisect_left(self.parts_in_order, (position,)) for position in span)
        return [
            (start, stop)
            for start, stop, i in self.parts_in_order[first:last]
            if i != number and stop > span[0]  # or else it is the empty end of the message before
        ]


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
        self._has_header_ends = False  # the header of the next message ends an answer
        self._probe()
        self._call_ends = self._probe_calls()

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
        message_spans = dict[int, list[Span]]()
        if any(map(_has_parts, messages)):
            message_spans = _trace_messages(messages, tools, rendering, template)
        parts = self._find_parts(messages, tools, wanted, rendering, template)
        if parts is None:
            parts = dict[int, list[Span]]()
            spans = self._find_by_replacing(messages, tools, wanted, rendering, template)
        else:
            parts = _leave_out_repeats(parts, message_spans)
            spans = self._find_by_parts(messages, wanted, rendering, parts)
        if template.has_generation:
            spans = {
                number: self._use_blocks(found, rendering.generation)
                if messages[number]["role"] == "assistant"
                else found
                for number, found in spans.items()
            }
        else:
            doubtful = [
                number
                for number in wanted
                if messages[number]["role"] == "assistant"
                and (
                    message_spans
                    or self._is_doubtful(messages[number], rendering.text, spans.get(number))
                )
            ]
            if doubtful and not message_spans:
                message_spans = _trace_messages(messages, tools, rendering, template)
            has_media = template is not self._template
            traced = _Traced(messages, tools, rendering, parts, message_spans, has_media)
            for number in doubtful:
                spans[number] = self._find_answer(traced, number, spans.get(number, []))
        spans = {number: spans[number] for number in wanted if spans.get(number)}
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

    def _find_parts(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        wanted: Sequence[int],
        rendering: Rendering,
        template: ConversationTemplate,
    ) -> dict[int, list[Span]] | None:
        """Return parts of messages from renderings with marks; `None` if marks change the text."""
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
        return parts

    def _find_by_parts(
        self,
        messages: list[Message],
        wanted: Sequence[int],
        rendering: Rendering,
        parts: dict[int, list[Span]],
    ) -> dict[int, list[Span]]:
        """Return spans from the marked parts of messages."""
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

    def _is_doubtful(self, message: Message, text: str, spans: list[Span] | None) -> bool:
        """Return whether marks may miss a part of an answer: calls, reasoning, or an unknown end."""
        is_known = spans and self.ends and text.endswith(self.ends, 0, spans[-1][1])
        return _has_parts(message) or not is_known

    def _find_answer(self, traced: _Traced, number: int, spans: list[Span]) -> list[Span]:
        """Return what a template writes for an answer, between its header and the next message.

        Args:
            traced: the conversation.
            number: the answer.
            spans: the answer by its marks.

        Raises:
            DataError: if it is uncertain where an answer with calls ends.
        """
        message, rendering, text = traced.messages[number], traced.rendering, traced.rendering.text
        pieces, answer = traced.message_spans.get(number, []), list[Span]()
        if traced.message_spans and not pieces and not spans:
            return []  # the template does not write the message
        parts = _select_within(traced.parts.get(number, spans), pieces)
        if not pieces or (len(pieces) > 1 and not parts):
            answer = self._find_alone(traced, number, spans)
            pieces = []
        for start, stop in pieces:
            within = _select_within(parts, [(start, stop)])
            if parts and not within:
                continue  # the template only looks something up
            begin = start
            if not answer:
                begin = self._find_begin(traced, number, (start, stop), within)
            last = within[-1][1] if within else begin
            others = traced.select_others(number, (start, stop))
            if others:  # the template writes another message without a loop
                answer += self._find_alone(traced, number, spans, begin, others[0][0])
                content = self._find_content(message, rendering, within, others[0][1])
                if content is None:
                    continue
                begin, last = content
            end = self._find_end(message, rendering, max(begin, last), stop)
            if spans and end < spans[-1][1] <= stop and text[last:stop].isspace():
                end = spans[-1][1]  # white space of the data
            answer.append((begin, end))
        return [
            span for span in answer if text[slice(*span)].strip() or (spans and span[0] < span[1])
        ]

    def _find_alone(
        self,
        traced: _Traced,
        number: int,
        spans: list[Span],
        begin: int | None = None,
        limit: int | None = None,
    ) -> list[Span]:
        """Return an answer by shorter renderings, where its turn does not show it.

        Args:
            traced: the conversation.
            number: the answer.
            spans: the answer by its marks.
            begin: where it begins, if that is known.
            limit: where the first part of the next message begins, if that is known.

        Raises:
            DataError: if it is uncertain where an answer with calls begins or ends.
        """
        end = self._measure_prefix(traced, number + 1, has_prompt=False)
        if begin is None:
            begin = self._measure_prefix(traced, number, has_prompt=True)
            if begin is not None and end is not None and not self._has_prompt:
                parts = _select_within(traced.parts.get(number, spans), [(begin, end)])
                begin = self._find_begin(traced, number, (begin, end), parts)
        if begin is not None and end is not None and begin <= end <= (limit or end):
            return [(begin, end)]
        if traced.messages[number].get("tool_calls"):
            raise DataError(
                f"it is uncertain which text of the chat template belongs to message {number}, which "
                "calls tools: put {% generation %} and {% endgeneration %} around answers in the "
                "template, or leave such answers out by 'train': false"
            )
        return spans

    def _find_content(
        self, message: Message, rendering: Rendering, parts: Sequence[Span], start: int
    ) -> Span | None:
        """Return the content of a message that stands behind the results of its calls.

        Args:
            message: the message.
            rendering: the rendering.
            parts: its marked parts.
            start: the end of the first result.
        """
        text, content = rendering.text, message["content"].strip()
        for first, last in parts:
            if first >= start and text[first:last] == content:
                owned = [*self._owned_between(rendering, start, first)]
                return (owned[-1][1] if owned else first), last
        return None

    def _find_begin(self, traced: _Traced, number: int, span: Span, parts: Sequence[Span]) -> int:
        """Return where an answer begins, behind the header that its turn begins with.

        Args:
            traced: the conversation.
            number: the answer.
            span: the text that the template writes for it.
            parts: its marked parts in this text.
        """
        start, first = span[0], parts[0][0] if parts else span[1]
        begin = self._skip_header(traced.rendering, start, first, has_text=len(parts) > 0)
        if begin > start and not self._has_prompt:
            return begin
        # Prompts before equal texts have equal ends, so few shorter renderings serve all answers.
        case = traced.messages[number - 1]["role"], traced.rendering.text[start:first]
        if case not in traced.prompt_ends:
            end = self._measure_prefix(traced, number, has_prompt=True)
            is_within = end is not None and start <= end <= first
            traced.prompt_ends[case] = (end or 0) - start if is_within else None
        size = traced.prompt_ends[case]
        return begin if size is None else start + size

    def _skip_header(self, rendering: Rendering, start: int, first: int, has_text: bool) -> int:
        """Return where an answer begins, by the headers of the template.

        Args:
            rendering: the rendering.
            start: the start of its turn.
            first: its first marked character, or the end of the turn.
            has_text: whether it has a marked character.
        """
        text, headers = rendering.text, list[tuple[int, int]]()
        for header in self._answer_headers:
            place = text.find(header, start, first + len(header) - 1)
            stop = place + len(header)
            if place >= 0 and text[place:first].strip() and not rendering.has_data(place, stop):
                headers.append((place, -stop))
        if headers:
            return -min(headers)[1]
        prompt = self._answer_headers[0] if self._answer_headers else ""
        written = text[start:first].rstrip()
        if not has_text and prompt.startswith(written):
            return start + len(written)  # the template strips the end of the header
        common = start + _count_common(prompt, written)
        tokens = [stop for _, stop in self._owned_between(rendering, start, common)]
        return max([start, *(stop for stop in tokens if stop <= common)])

    def _find_end(self, message: Message, rendering: Rendering, last: int, stop: int) -> int:
        """Return where an answer ends, with the token that ends it.

        Args:
            message: the answer.
            rendering: the rendering.
            last: the end of its last marked part.
            stop: the end of its turn.
        """
        text = rendering.text
        ends = [
            (left, right)
            for left, right in self._owned_between(rendering, last, stop)
            if text[left:right] in self.ends
        ]
        if ends:
            left, right = ends[-1]
            if text[left:right] in self._eos and len(ends) > 1:
                if text[ends[-2][1] : left].isspace():
                    return ends[-2][1]  # `add_eos` adds what ends the conversation
            return right
        end = last + len(text[last:stop].rstrip())
        if self.ends and text.endswith(self.ends, last, end):
            return end
        behind = end
        while text[behind : behind + 1].isspace():
            behind += 1
        for token in (*self.ends, *(self._call_ends if message.get("tool_calls") else ())):
            following = behind + len(token)
            if text.startswith(token, behind) and not rendering.has_data(behind, following):
                return following  # the template writes it in the next turn, or at the end
        return end

    def _measure_prefix(self, traced: _Traced, count: int, has_prompt: bool) -> int | None:
        """Return where a shorter conversation ends; `None` if the longer one is written otherwise.

        Args:
            traced: the conversation.
            count: the number of messages.
            has_prompt: whether the prompt of a generation follows.
        """
        if traced.has_media:
            return None
        messages = traced.messages[:count]
        try:
            written = read_marks(self._template.render(messages, traced.tools, has_prompt)).text
        except DataError:
            return None
        written = written if has_prompt else written.rstrip()
        return len(written) if traced.rendering.text.startswith(written) else None

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
            while first >= 0 and rendering.has_data(first, first + len(header)):
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
            if rendering.owned is None:
                rendering.owned, _ = self._control.find_owned(rendering.text, rendering.data)
            owned = rendering.owned
            first = bisect_left(owned, (start,))
            yield from owned[first : bisect_left(owned, (stop,))]
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
                if text.startswith(eos, first) and not rendering.has_data(first, last):
                    added.append((first, last))
        return added

    def _probe(self) -> None:
        """Find the tokens that end an answer, and the header of an answer, in a small conversation."""
        question: Message = {"role": "user", "content": PLACEHOLDER}
        answer: Message = {"role": "assistant", "content": OTHER_PLACEHOLDER}
        talk = [question, answer, question, answer]
        try:
            text = self._template.render(talk, None)
            prompt = remove_marks(self._template.render([question], None, True))
        except DataError:
            return  # the template needs other conversations
        alone = self._render_alone(question)
        self._has_prompt = alone != prompt
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
                    is_header = bool(rest) and begin.endswith(rest)
                    self._has_header_ends |= is_header and f"{PLACEHOLDER[0]}{token}" not in text
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
        self._answer_headers = self._find_headers(talk, text, prompt, alone or "")

    def _probe_calls(self) -> tuple[str, ...]:
        """Return the tokens that end a call behind its turn.

        A template may write the token at the end of a conversation, and elsewhere with the result.
        """
        function: dict[str, Any] = {"name": "f", "arguments": {}}
        call = {"id": "call00000", "type": "function", "function": function}
        talk: list[Message] = [
            {"role": "user", "content": PLACEHOLDER},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {
                "role": "tool",
                "content": OTHER_PLACEHOLDER,
                "tool_call_id": "call00000",
                "name": "f",
            },
        ]
        if "tool_calls" not in self._template.source:
            return ()
        messages = write_arguments(talk) if self._template.takes_text_arguments else talk
        try:
            alone = remove_marks(self._template.render(messages[:2], None)).rstrip()
            traced = read_marks(self._template.trace(messages, None))
        except DataError:
            return ()
        if 1 not in traced.message_spans or not traced.text.startswith(alone):
            return ()
        start, stop = traced.message_spans[1][0]
        end = start + len(traced.text[start:stop].rstrip())
        ends = [alone[end:].strip()]
        if self._has_header_ends:
            owned = self._owned_after(traced.text, end)
            ends += [traced.text[slice(*span)] for span in owned[:1]]
        return tuple(filter(None, ends))

    def _render_alone(self, question: Message) -> str | None:
        """Return a question without the prompt of a generation; `None` if the template raises."""
        try:
            return remove_marks(self._template.render([question], None))
        except DataError:
            return None

    def _find_headers(self, talk: list[Message], text: str, prompt: str, alone: str) -> list[str]:
        """Return the headers of answers: what the prompt of a generation ends with, and parts of it.

        In earlier answers, a template may leave out the end of it, such as `<think>`. If a template
        has no prompt of a generation, headers are what it writes between a question and an answer.

        Args:
            talk: a conversation of placeholders.
            text: its rendering.
            prompt: a question, and the prompt of a generation.
            alone: the question, if the template accepts it.
        """
        between = re.findall(f"{PLACEHOLDER[0]}([^{PLACEHOLDER[0]}]*?){OTHER_PLACEHOLDER[0]}", text)
        if not self._has_prompt:
            traced, stop = read_marks(self._template.trace(talk, None)), OTHER_PLACEHOLDER[0]
            starts = [traced.message_spans[i][0][0] for i in (1, 3) if i in traced.message_spans]
            own = [traced.text[start:].partition(stop)[0] for start in starts]
            if not starts:
                end = prompt[prompt.rfind(PLACEHOLDER[0]) + 1 :]  # of the question
                own = [each[len(end) :] for each in between if each.startswith(end)]
            if headers := [*dict.fromkeys(each.lstrip("\n") for each in own if each.strip())]:
                return headers
        start = prompt.rfind(PLACEHOLDER[0]) + 1
        if self._has_prompt and prompt.startswith(alone):
            start = max(start, len(alone))
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
            size = next((size for size in sizes if written.endswith(header[:size])), 0)
            shorter = header[:size]
            if not size and header not in written:  # such as an empty reasoning
                tokens = self._owned_after(written, 0)
                ends = [last for first, last in tokens if written[first:last] in self.ends]
                shorter = written[ends[-1] if ends else len(written) :].lstrip("\n")
            if shorter and shorter not in headers:
                headers.append(shorter)
        return headers

    def _owned_after(self, text: str, position: int) -> list[Span]:
        owned, _ = self._control.find_owned(text, [])
        return [span for span in owned if span[0] >= position]


def _count_common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _render_parts(
    template: ConversationTemplate, marked: list[Message], tools: list[Any] | None, text: str
) -> dict[int, list[Span]] | None:
    """Return the parts in a rendering with marks; `None` if it differs from the one without."""
    try:
        rendering = read_marks(template.render(marked, tools))
    except (DataError, ValueError):  # the template changes the marks
        return None
    return rendering.parts if rendering.text == text else None


def _trace_messages(
    messages: list[Message],
    tools: list[Any] | None,
    rendering: Rendering,
    template: ConversationTemplate,
) -> dict[int, list[Span]]:
    """Return the text that a template writes for each message; none if marks change the text."""
    text, traced = rendering.text, read_marks(template.trace(messages, tools))
    if traced.text.strip() != text.strip():  # a template may strip the conversation, not its marks
        return {}
    spaces = [len(each) - len(each.lstrip()) for each in (text, traced.text)]
    shift = spaces[0] - spaces[1]
    return {
        number: [(max(start + shift, 0), min(stop + shift, len(text))) for start, stop in spans]
        for number, spans in traced.message_spans.items()
    }


def _leave_out_repeats(
    parts: dict[int, list[Span]], message_spans: dict[int, list[Span]]
) -> dict[int, list[Span]]:
    """Return the parts of messages in their turns, such as names of calls, not those in results."""
    return {
        number: _select_within(found, message_spans.get(number, [])) or found
        for number, found in parts.items()
    }


def _select_within(spans: Sequence[Span], outer: Sequence[Span]) -> list[Span]:
    """Return the spans that lie within others, in order."""
    return sorted(
        span for span in spans if any(start <= span[0] and span[1] <= stop for start, stop in outer)
    )


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


def _has_parts(message: Message) -> bool:
    """Return whether a message has calls or reasoning beside its content."""
    return bool(message.get("tool_calls")) or any(key in message for key in ANSWER_KEYS[1:])


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
