"""Conversations and texts as one text each, with the spans of characters that are learned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from ...errors import DataError
from ..offset_tokenizers import ChatText
from .compiled import CompiledChat
from .conversation import Conversation, Message, Segments, write_arguments
from .marks import NONCHARACTERS, Span, read_marks
from .media import ExpandedTemplate, Expansion
from .spans import merge_spans, subtract_spans

TrainOn: TypeAlias = Literal["assistant", "last", "all"]


class StepLabel(NamedTuple):
    """The label of a step, the characters of the step, and whether they are white space alone."""

    span: Span
    label: int
    is_empty: bool


class LearnedText(NamedTuple):
    """A text to encode, the spans that are learned, labels of steps, and its media."""

    encoder_input: ChatText
    spans: list[Span]
    labels: list[StepLabel] | None = None
    expansion: Expansion | None = None


class SequenceRenderer:
    """Renders sequences, and finds what is learned of them.

    Args:
        compiled: the tokenizer and the template.
        train_on: what is learned, as for `Chat`.
    """

    def __init__(
        self, compiled: CompiledChat, train_on: TrainOn | Callable[[Message], bool]
    ) -> None:
        self._compiled, self._train_on = compiled, train_on

    def render(self, sequence: Conversation | Segments, counts: Counter[str]) -> LearnedText:
        """Return the text of a sequence and its learned spans.

        Args:
            sequence: a conversation, or texts.
            counts: receives what changed, by the fields of `ChatStats`.

        Raises:
            DataError: if the template refuses the conversation.
        """
        if isinstance(sequence, Segments):
            return self._render_segments(sequence, counts)
        return self._render_conversation(sequence, counts)

    def _render_conversation(self, conversation: Conversation, counts: Counter[str]) -> LearnedText:
        compiled, messages = self._compiled, conversation.messages
        own_template, locator, control = compiled.require_template(bool(conversation.tools))
        template, processor = own_template, compiled.processor
        if calls := sum(len(message.get("tool_calls") or ()) for message in messages):
            if template.takes_text_arguments:
                conversation = replace(conversation, messages=write_arguments(messages))
            if "tool_calls" not in own_template.source:
                counts["dropped_calls"] += calls
        if conversation.tools and "tools" not in own_template.source:
            counts["dropped_tools"] += 1
        if processor is not None:
            template = ExpandedTemplate(own_template, processor, conversation)
        protected, tools, is_marked = control.protect(conversation)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        learned = self._choose_messages(conversation, answers)
        if self._train_on == "all":
            excluded = [i for i, message in enumerate(messages) if _is_excluded(message)]
            located = locator.locate(protected, tools, excluded, template)
            rendering = located.rendering
            left_out = [span for spans in located.spans.values() for span in spans]
            left_out = locator.add_eos(rendering, left_out)
            spans = subtract_spans(len(rendering.text), left_out)
            answer_spans = [(0, len(rendering.text))] * len(learned)
        elif template.has_generation and learned == answers:
            rendering = read_marks(template.render(protected, tools))
            answer_spans = spans = rendering.generation
        else:
            located = locator.locate(protected, tools, learned, template)
            rendering = located.rendering
            spans = [span for found in located.spans.values() for span in found]
            answer_spans = [(found[0][0], found[-1][1]) for found in located.spans.values()]
        text = rendering.text
        counts["changed_answers"] += _count_changed(messages, learned, text, answer_spans)
        if suspects := _find_suspects(messages, learned, text):
            counts["dropped_messages"] += locator.count_dropped(protected, tools, suspects)
        if self._train_on != "all":
            spans = locator.add_eos(rendering, spans)
        if rendering.media:
            left_out = subtract_spans(len(rendering.text), spans) + rendering.media
            spans = subtract_spans(len(rendering.text), left_out)
        owned = None
        if is_marked:
            owned, has_others = control.find_owned(rendering.text, rendering.data)
            if has_others:
                counts["control_tokens"] += 1
            else:
                owned = None
        return LearnedText(
            ChatText(rendering.text, owned),
            merge_spans(spans),
            expansion=template.expansion if isinstance(template, ExpandedTemplate) else None,
        )

    def _render_segments(self, segments: Segments, counts: Counter[str]) -> LearnedText:
        compiled = self._compiled
        compiled.require_eos()
        texts = [NONCHARACTERS.sub("\ufffd", text) for text in segments.texts]
        body, prefix = "".join(texts), compiled.text_prefix
        if prefix and body.startswith(prefix) and prefix not in compiled.control.tokens:
            prefix = ""
        text = f"{prefix}{body}{compiled.eos}"
        position, spans, labels = len(prefix), list[Span](), list[StepLabel]()
        for number, (piece, is_learned) in enumerate(zip(texts, segments.learned, strict=True)):
            position += len(piece)
            if is_learned or self._train_on == "all":
                spans.append((position - len(piece), position))
            label = segments.labels[number] if segments.labels else None
            if label is not None and piece:
                span = position - len(piece), position
                labels.append(StepLabel(span, label, not piece.strip()))
        if compiled.eos and not segments.labels:
            spans.append((position, len(text)))
        owned = None
        if compiled.control.contains(body):
            counts["control_tokens"] += 1
            owned = [(0, len(prefix)), (position, len(text))]
            owned = [span for span in owned if span[0] < span[1]]
        has_labels = segments.labels is not None
        return LearnedText(
            ChatText(text, owned), merge_spans(spans), labels if has_labels else None
        )

    def _choose_messages(self, conversation: Conversation, answers: list[int]) -> list[int]:
        """Return the messages that are learned."""
        messages, train_on = conversation.messages, self._train_on
        if callable(train_on):
            numbers = [i for i, message in enumerate(messages) if train_on(message)]
        else:
            numbers = answers[-1:] if train_on == "last" else answers
        return [
            i for i in numbers if i >= conversation.prompt_length and not _is_excluded(messages[i])
        ]


def _count_changed(
    messages: list[Message], learned: list[int], text: str, spans: list[Span]
) -> int:
    """Return the number of answers that are not in the rendering as they are in the data."""
    if len(learned) > len(spans):
        return len(learned) - len(spans)
    changed = 0
    for number, (start, stop) in zip(learned, spans, strict=False):
        message, answer = messages[number], text[start:stop]
        content, reasoning = message["content"].strip(), message.get("reasoning_content")
        is_changed = not text.startswith(content, start) and content not in answer
        if is_changed or (isinstance(reasoning, str) and reasoning.strip() not in answer):
            changed += 1
    return changed


def _find_suspects(messages: list[Message], learned: list[int], text: str) -> list[int]:
    """Return the messages that the template may not have written.

    Questions and system messages are rarely dropped or changed, so their texts are looked for.
    Results of tools are often short, as other messages are that contain them, and templates change
    them, such as to JSON text.

    Args:
        messages: uniform messages.
        learned: the messages that are learned, which count as changed answers.
        text: the rendering.
    """
    certain = {*learned}
    return [
        number
        for number, message in enumerate(messages)
        if number not in certain
        and message["content"].strip()
        and not message.get("media")
        and (
            message["role"] not in ("system", "user", "assistant") or not _is_written(message, text)
        )
    ]


def _is_written(message: Message, text: str) -> bool:
    """Return whether a rendering has the content of a message, or its instruction and input apart."""
    apart = [message[key] for key in ("instruction", "input") if key in message]
    return any(
        all(
            part.strip() in text or NONCHARACTERS.sub("\ufffd", part.strip()) in text
            for part in parts
        )
        for parts in ([message["content"]], apart)
        if parts
    )


def _is_excluded(message: Message) -> bool:
    """Return whether a message says that it is not learned.

    Raises:
        DataError: for other weights than 0 and 1, which labels cannot carry, and for a `train` that
            is no flag.
    """
    weight, train = message.get("weight"), message.get("train")
    if weight is not None and weight not in (0, 1):
        raise DataError(
            f"a message has the weight {weight!r}: labels carry the numbers 0 and 1 only; round it in "
            "a map before"
        )
    if train is not None and train not in (0, 1):
        raise DataError(
            f"a message has train {train!r}: give true or false, such as in a map before"
        )
    return weight == 0 or train == 0
