"""The table of formats: how a sample of a public data set becomes conversations or texts.

A new format is a function and a row of `FORMATS`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, DataError
from .conversation import (
    Conversation,
    Example,
    Message,
    MessageReader,
    Segments,
    is_list,
)
from .media import place_media, require_no_media

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class ChatFormat:
    """A form of samples.

    Attributes:
        name: the name for `Chat(format=)`.
        needs: the kind of each field that the format needs: a key of `KINDS`.
        read: converts the fields of a sample.
    """

    name: str
    needs: Mapping[str, str]
    read: Callable[[Fields, MessageReader], Example]

    def find_mismatch(self, fields: Fields) -> str | None:
        """Return why a sample does not have this format; `None` if it has.

        Args:
            fields: the fields of the sample.
        """
        if missing := [name for name in self.needs if fields.get(name) is None]:
            return f"lacks {' and '.join(missing)}"
        for name, kind in self.needs.items():
            value = fields[name]
            if not KINDS[kind](value):
                if isinstance(value, str) and value.lstrip().startswith("[{"):
                    return f"{name} is JSON text, not {kind}: read it by json.loads in a map before"
                return f"{name} is {_describe_value(value)}, not {kind}"
        return None


# ---------------------------------------------------------------- kinds of fields


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return is_list(value) and len(value) > 0 and all(isinstance(item, str) for item in value)


def _are_messages(value: Any) -> bool:
    return is_list(value) and all(isinstance(item, Mapping) for item in value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) or (
        isinstance(value, int | float | np.number) and value in (0, 1)
    )


def _are_flags(value: Any) -> bool:
    return is_list(value) and all(map(_is_flag, value))


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "a text": _is_text,
    "a list of texts": _are_texts,
    "a list of messages": _are_messages,
    "a text or a list of messages": lambda value: _is_text(value) or _are_messages(value),
    "a text, a message or a list of messages": lambda value: (
        _is_text(value) or _are_messages(value) or isinstance(value, Mapping)
    ),
    "a flag": _is_flag,
    "a list of flags": _are_flags,
}
"""Tests of the values of fields, by their names in messages."""


def _describe_value(value: Any) -> str:
    if is_list(value) and len(value) and not isinstance(value[0], Mapping):
        return f"a list of {type(value[0]).__name__}"
    return f"a {type(value).__name__}"


# ---------------------------------------------------------------- readers of formats


def _read_conversation(name: str, fields: Fields, reader: MessageReader) -> Example:
    messages = _with_system(fields, reader.read_messages(fields[name]), reader)
    return _single(Conversation(messages, _read_tools(fields, reader)))


def _read_instruction(context: str, answer: str, fields: Fields, reader: MessageReader) -> Example:
    instruction, added = fields["instruction"], _read_optional_text(fields, context)
    messages = list[Message]()
    for question, reply in _read_history(fields.get("history")):
        messages += [_message("user", question), _message("assistant", reply)]
    question = _message(
        "user", reader.separator.join(text for text in (instruction, added) if text)
    )
    if added:  # for templates that write the two apart
        question |= {"instruction": instruction, "input": added}
    messages += [question, _message("assistant", fields[answer])]
    messages = _with_system(fields, messages, reader)
    return _single(Conversation(messages, _read_tools(fields, reader)))


def _read_optional_text(fields: Fields, name: str) -> str:
    """Return the text of a field, empty if the sample has none.

    Raises:
        DataError: if the field is no text.
    """
    value = fields.get(name)
    if value is None or _is_text(value):
        return value or ""
    raise DataError(
        f"the field {name!r} is {_describe_value(value)}, {value!r:.40}, not a text: map it to a text, "
        "or leave it out in a map before"
    )


def _read_history(value: Any) -> Sequence[tuple[str, str]]:
    """Return the earlier turns of a sample, pairs of a question and its answer.

    Raises:
        DataError: if the value is no list of pairs of texts.
    """
    if value is None or (_is_text(value) and not value):
        return []
    pairs = cast("Sequence[Any]", value if is_list(value) else [value])
    for number, pair in enumerate(pairs):
        if not (is_list(value) and _are_texts(pair) and len(pair) == 2):
            shown = f"entry {number} is" if is_list(value) else "it is"
            raise DataError(
                f"history must be a list of pairs of texts, such as [['question', 'answer']], and {shown} "
                f"{pair!r:.60}: map it to pairs, or the sample to messages before"
            )
    return pairs


def _read_completion(fields: Fields, reader: MessageReader) -> Example:
    return _single(_join(fields["prompt"], fields["completion"], fields, reader))


def _read_kto(fields: Fields, reader: MessageReader) -> Example:
    sequence = _join(fields["prompt"], fields["completion"], fields, reader)
    return Example({"": sequence}, {"label": bool(fields["label"])})


def _read_labelled(
    read: Callable[[Fields, MessageReader], Example], fields: Fields, reader: MessageReader
) -> Example:
    """Return a conversation whose label judges the answers behind the last question."""
    conversation = cast(Conversation, read(fields, reader).sequences[""])
    roles = [message["role"] for message in conversation.messages]
    questions = [number for number, role in enumerate(roles) if role == "user"]
    prompt_length = questions[-1] + 1 if questions else 0
    judged = replace(conversation, prompt_length=prompt_length)
    return Example({"": judged}, {"label": bool(fields["label"])})


def _read_text(fields: Fields, reader: MessageReader) -> Example:
    return _single(Segments([fields["text"]], [True]))


def _read_stepwise(fields: Fields, reader: MessageReader) -> Example:
    steps, labels = list(fields["completions"]), [int(label) for label in fields["labels"]]
    if len(steps) != len(labels):
        raise DataError(f"{len(steps)} completions have {len(labels)} labels: give one for each")
    texts = [fields["prompt"], *(f"{step}\n" for step in steps)]
    return _single(Segments(texts, [False] + [True] * len(steps), [None, *labels]))


def _read_preference(fields: Fields, reader: MessageReader) -> Example:
    answers = [_list_messages(fields[name]) for name in ("chosen", "rejected")]
    prompt = _find_prompt(fields, answers, reader)
    if prompt is None and all(map(_is_text, answers)):
        dialogues = [_split_dialogue(answer) for answer in answers]
        if all(dialogues):
            answers = dialogues
        else:
            prompt = _common_text(*answers)
            answers = [answer[len(prompt) :] for answer in answers]
    elif prompt is None and not all(map(_are_messages, answers)):
        raise DataError("chosen and rejected must both be texts, or both be lists of messages")
    elif (
        prompt is None
        and not fields.keys().isdisjoint(_QUESTION_NAMES)
        and not any(_asks(answer, reader) for answer in answers)
    ):
        prompt = _find_question(fields, reader) or None
    if prompt is not None:
        chosen, rejected = (_join(prompt, answer, fields, reader) for answer in answers)
    else:
        sides = [_with_system(fields, reader.read_messages(answer), reader) for answer in answers]
        pairs = zip(*sides, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        common = min(common, len(sides[0]) - 1, len(sides[1]) - 1)
        tools = _read_tools(fields, reader)
        chosen, rejected = (Conversation(side, tools, common) for side in sides)
    return Example({"chosen_": chosen, "rejected_": rejected})


def _list_messages(answer: Any) -> Any:
    return [answer] if isinstance(answer, Mapping) else answer


def _find_prompt(fields: Fields, answers: list[Any], reader: MessageReader) -> Any:
    """Return the prompt of a preference pair, as data sets name it; `None` if the answers have it."""
    if fields.get("prompt") is not None:
        return fields["prompt"]
    if all(map(_is_text, answers)):
        question = _find_question(fields, reader)
        return [_message("user", question)] if question else None
    if all(len(answer) == 1 for answer in answers):
        return next(
            (fields[name] for name in ("messages", "conversations") if name in fields), None
        )
    return None


def _asks(messages: Any, reader: MessageReader) -> bool:
    """Return whether one of the messages is a question."""
    uniform = replace(reader, counts=Counter()).read_messages(messages)
    return any(message["role"] == "user" for message in uniform)


_QUESTION_NAMES = ("instruction", "question", "input")


def _find_question(fields: Fields, reader: MessageReader) -> str:
    """Return the question beside the answers of a pair, empty if there is none."""
    texts = (_read_optional_text(fields, name) for name in _QUESTION_NAMES)
    return reader.separator.join(text for text in texts if text)


_CONVERSATION_FORMATS: tuple[
    tuple[str, Mapping[str, str], Callable[[Fields, MessageReader], Example]], ...
] = (
    ("messages", {"messages": "a list of messages"}, partial(_read_conversation, "messages")),
    (
        "sharegpt",
        {"conversations": "a list of messages"},
        partial(_read_conversation, "conversations"),
    ),
    (
        "alpaca",
        {"instruction": "a text", "output": "a text"},
        partial(_read_instruction, "input", "output"),
    ),
    (
        "dolly",
        {"instruction": "a text", "response": "a text"},
        partial(_read_instruction, "context", "response"),
    ),
)
"""Formats of whole conversations, which are samples of KTO beside a label."""

FORMATS: tuple[ChatFormat, ...] = (
    ChatFormat(
        "stepwise",
        {"prompt": "a text", "completions": "a list of texts", "labels": "a list of flags"},
        _read_stepwise,
    ),
    ChatFormat(
        "preference",
        {
            "chosen": "a text, a message or a list of messages",
            "rejected": "a text, a message or a list of messages",
        },
        _read_preference,
    ),
    ChatFormat(
        "kto",
        {
            "prompt": "a text or a list of messages",
            "completion": "a text or a list of messages",
            "label": "a flag",
        },
        _read_kto,
    ),
    *(
        ChatFormat("kto", {**needs, "label": "a flag"}, partial(_read_labelled, read))
        for _, needs, read in _CONVERSATION_FORMATS
    ),
    *(ChatFormat(name, needs, read) for name, needs, read in _CONVERSATION_FORMATS[:2]),
    ChatFormat(
        "completion",
        {
            "prompt": "a text or a list of messages",
            "completion": "a text or a list of messages",
        },
        _read_completion,
    ),
    *(ChatFormat(name, needs, read) for name, needs, read in _CONVERSATION_FORMATS[2:]),
    ChatFormat("text", {"text": "a text"}, _read_text),
)
"""All formats, in the order in which samples are compared with them."""

FORMAT_NAMES: tuple[str, ...] = ("auto", *dict.fromkeys(entry.name for entry in FORMATS))

_COMMON_FIELDS = ("role", "content", "system", "tools", "input", "context", "history")
"""Fields that formats have beside those that they need."""

FIELD_NAMES: tuple[str, ...] = tuple(
    sorted({name for entry in FORMATS for name in entry.needs} | {*_COMMON_FIELDS})
)
"""Names of fields for `Chat(fields=)`."""


def _order_formats(named: Collection[str]) -> list[ChatFormat]:
    """Return all formats, first those that use the most fields that the user names.

    Args:
        named: fields of formats.
    """

    def count_unused(entry: ChatFormat) -> int:
        prompts = ("prompt", "messages", "conversations", "instruction")
        used = {*entry.needs, *_COMMON_FIELDS, *(prompts if entry.name == "preference" else ())}
        return len({*named} - used)

    return sorted(FORMATS, key=count_unused)


def find_format(names: Collection[str], fields: Mapping[str, str] | None = None) -> str | None:
    """Return the format of samples by the names of their fields; `None` if none fits.

    Args:
        names: names of fields that are not null.
        fields: names of the data by the names of the format, as for `Chat`.

    >>> find_format(["chosen", "rejected"]), find_format(["talk", "kto_tag"], {"messages": "talk"})
    ('preference', 'kto')
    """
    has = {*names} - {*(fields or {}).values()}
    has |= {name for name, named in (fields or {}).items() if named in names}
    if "kto_tag" in has:
        has.add("label")
    formats = _order_formats(fields or ())
    return next((entry.name for entry in formats if entry.needs.keys() <= has), None)


class SampleReader:
    """Reads samples in one format, or in the first of the table that fits.

    Args:
        format: a name of `FORMAT_NAMES`.
        fields: names of the data by the names of the format, such as `{"messages": "dialog"}`.
        roles: names of templates by the roles of the data, such as `{"speaker": "assistant"}`.
        takes_media: whether messages may have images, audio and video.
        template: the source of the template; by default one that writes tool calls.
        separator: the text between an instruction and its input.

    Raises:
        ConfigError: if no format has a field.
    """

    def __init__(
        self,
        format: str,
        fields: Mapping[str, str],
        roles: Mapping[str, str],
        takes_media: bool = False,
        template: str | None = None,
        separator: str = "\n\n",
    ) -> None:
        for role, name in roles.items():
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    f"Chat(roles={{{role!r}: {name!r}}}): give the name of a role of the template, such "
                    f"as {{{role!r}: 'assistant'}}"
                )
        for name in fields:
            if name not in FIELD_NAMES:
                raise ConfigError(
                    f"Chat(fields={{{name!r}: ...}}): no format has this field; the keys are "
                    f"{', '.join(FIELD_NAMES)}, the values are the names in your data"
                )
        self._fields = dict(fields)
        self._messages = MessageReader(
            fields.get("role"),
            fields.get("content"),
            roles,
            takes_media,
            writes_calls=template is None or "tool_calls" in template,
            template_roles=frozenset(_find_compared_texts(template or "")),
            separator=separator,
        )
        self._formats = [
            entry for entry in _order_formats(fields) if format in ("auto", entry.name)
        ]

    def read(self, sample: Any) -> Example:
        """Return the content of a sample.

        Args:
            sample: a mapping, or a text.

        Raises:
            DataError: if the sample has none of the formats.
        """
        return self.read_many([sample], Counter())[0]

    def read_many(self, samples: Sequence[Any], counts: Counter[str]) -> list[Example]:
        """Return the contents of samples.

        Args:
            samples: mappings, or texts.
            counts: receives what was left out, by the fields of `ChatStats`.

        Raises:
            DataError: if a sample has none of the formats.
        """
        messages = replace(self._messages, counts=counts)
        return [self._read(sample, messages) for sample in samples]

    def _read(self, sample: Any, messages: MessageReader) -> Example:
        fields = self._fields_of(sample)
        if not messages.takes_media:
            require_no_media(fields)
        reasons = dict[str, list[str]]()
        hint = (
            "name its fields, such as fields={'messages': 'dialog'}, or map it to messages before"
        )
        for entry in self._formats:
            reason = entry.find_mismatch(fields)
            if reason is None and "kto" in reasons and _has_label(entry.name, fields):
                # Bad completions of KTO must not be learned as good ones.
                reasons = {"kto": reasons["kto"]}
                hint = (
                    f"give labels of true or false in a map before; format={entry.name!r} learns "
                    "completions whatever their labels"
                )
                break
            if reason is None:
                example = entry.read(fields, messages)
                return place_media(example, fields) if messages.takes_media else example
            reasons.setdefault(entry.name, []).append(reason)
        listed = "; ".join(
            # A wrong value says more than a missing field, and one missing field more than two.
            f"{name}: {min(group, key=lambda text: (text.startswith('lacks'), ' and ' in text))}"
            for name, group in reasons.items()
        )
        keys = ", ".join(map(str, fields)) or "no keys"
        raise DataError(f"the sample has no known chat format; it has {keys} ({listed}): {hint}")

    def _fields_of(self, sample: Any) -> Fields:
        if isinstance(sample, str):
            return {"text": sample}
        if is_list(sample) and _are_messages(sample):
            return {"messages": sample}
        if not isinstance(sample, Mapping):
            raise DataError(
                f"the sample is a {type(sample).__name__}: give mappings, such as {{'messages': [...]}}"
            )
        fields = cast(Fields, sample)
        if self._fields:
            fields = {**fields, **{name: fields.get(key) for name, key in self._fields.items()}}
        return fields if "label" in self._fields else self._with_label(fields)

    def _with_label(self, fields: Fields) -> Fields:
        """Return fields whose `label` is `kto_tag`, as LLaMA-Factory names it, if they have one.

        A field `label` that the user named as another one is no label.
        """
        named = self._fields.values()
        if "kto_tag" in fields and "kto_tag" not in named:
            if fields["kto_tag"] is not None or "label" not in fields:
                return {**fields, "label": fields["kto_tag"]}
        elif "label" in fields and "label" in named:
            return {name: value for name, value in fields.items() if name != "label"}
        return fields


# ---------------------------------------------------------------- helpers


def _has_label(format: str, fields: Fields) -> bool:
    """Return whether a sample of a format has a label, which says whether its answers are good.

    A label that is null is one beside a completion; other samples of a table have such columns.
    """
    if format == "completion":
        return "label" in fields
    if format == "text":  # another label may be its class
        return fields.get("kto_tag") is not None
    is_conversation = any(format == name for name, *_ in _CONVERSATION_FORMATS)
    return is_conversation and fields.get("label") is not None


def _single(sequence: Conversation | Segments) -> Example:
    return Example({"": sequence})


def _message(role: str, text: Any) -> Message:
    return {"role": role, "content": str(text)}


def _find_compared_texts(template: str) -> set[str]:
    """Return the texts that a template compares with, but for types: such as roles that it knows."""
    return {
        text
        for comparison in _COMPARISON.findall(_TYPE_COMPARISON.sub("", template))
        for text in _QUOTED_TEXT.findall(comparison)
    }


def _find_system(fields: Fields, reader: MessageReader) -> str:
    """Return the text of the field `system`, empty if there is none; count it if it is no text."""
    system = fields.get("system")
    if isinstance(system, str):
        return system
    reader.counts["dropped_systems"] += system is not None
    return ""


def _with_system(fields: Fields, messages: list[Message], reader: MessageReader) -> list[Message]:
    """Return messages that begin with the text of the field `system`, unless they have one."""
    system = _find_system(fields, reader)
    if not system:
        return messages
    if messages[0]["role"] == "system":
        reader.counts["dropped_systems"] += system.strip() != messages[0]["content"].strip()
        return messages
    return [_message("system", system), *messages]


def _read_tools(fields: Fields, reader: MessageReader) -> list[Any] | None:
    """Return the schemas of tools, from `tools` or from `functions`, the earlier form of OpenAI."""
    tools, functions = reader.read_tools(fields.get("tools")), fields.get("functions")
    if tools or functions is None:
        return tools
    try:
        schemas = reader.read_tools(functions) or []
    except DataError:  # another field of this name
        return None
    if not all(isinstance(schema, Mapping) and "name" in schema for schema in schemas):
        return None
    return [{"type": "function", "function": schema} for schema in schemas] or None


def _join(
    prompt: Any, answer: Any, fields: Fields, reader: MessageReader
) -> Conversation | Segments:
    """Return a prompt and its answer, each a text or messages."""
    if _is_text(prompt) and _is_text(answer) and not _find_system(fields, reader):
        reader.counts["dropped_tools"] += is_list(fields.get("tools")) and len(fields["tools"]) > 0
        return Segments([prompt, answer], [False, True])
    before = [_message("user", prompt)] if _is_text(prompt) else reader.read_messages(prompt)
    after = [_message("assistant", answer)] if _is_text(answer) else reader.read_messages(answer)
    before, after = _merge(before, after, is_text=_is_text(prompt))
    before = _with_system(fields, before, reader) if before else before
    return Conversation(before + after, _read_tools(fields, reader), len(before))


def _merge(
    before: list[Message], after: list[Message], is_text: bool
) -> tuple[list[Message], list[Message]]:
    """Return the messages up to the end of a prompt, and those behind it, each of them once.

    The answer may be messages that repeat the prompt, its last messages, or the whole conversation
    around it. Either may lack the system message.

    Args:
        before: the prompt.
        after: the answer.
        is_text: whether the prompt is a text, whose system message goes before it.

    Raises:
        DataError: if the answer repeats the prompt in part, or asks another question.
    """
    (head, prompt), (other_head, answer) = map(_split_systems, (before, after))
    asks = len(answer) > 0 and answer[0]["role"] == "user"
    if is_text and after[0]["role"] != "assistant" and not prompt[0]["content"].strip():
        return (after[:-1], after[-1:]) if asks else (other_head, answer)  # there is no prompt
    systems_agree = not (head and other_head) or _are_equal(head, other_head)
    shift = _find_shift(prompt, answer)
    if shift is None:
        if asks and (
            prompt[-1]["role"] == "user" or any(_is_equal(answer[0], each) for each in prompt)
        ):
            raise DataError(
                f"the prompt ends with {_show_message(prompt[-1])}, and the answer begins with "
                f"{_show_message(answer[0])}, so it neither repeats the prompt nor answers it: leave "
                "the prompt out in a map before if the answer is the whole conversation; or else "
                "leave the question out of the answer"
            )
        if is_text or (head and systems_agree):
            return [*(head or other_head), *prompt], answer
        return before, after
    if not systems_agree:
        raise DataError(
            f"the prompt begins with {_show_message(head[0])}, and the answer, which repeats the "
            f"prompt, with {_show_message(other_head[0])}: leave one of them out in a map before"
        )
    size = len(prompt) - shift  # of the answer, up to the end of the prompt
    own = prompt[max(shift, 0) :]
    same = [{**left, **right} for left, right in zip(own, answer[size - len(own) :], strict=False)]
    first = [*prompt[: max(shift, 0)], *answer[: max(-shift, 0)]]
    return [*(head or other_head), *first, *same], answer[size:]


def _split_systems(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Return the system messages at the start, and the other messages."""
    roles = ("system", "developer")
    count = sum(1 for _ in takewhile(lambda message: message["role"] in roles, messages))
    return messages[:count], messages[count:]


def _find_shift(prompt: list[Message], answer: list[Message]) -> int | None:
    """Return which message of the prompt is the first one of an answer that repeats its end.

    It is negative if the answer has other messages before the prompt, and `None` if the answer does
    not repeat the prompt.
    """
    repeats_answer = len(answer) == 0 or answer[0]["role"] == "assistant"
    shifts = [0, *range(len(prompt) - len(answer), 0)]
    if repeats_answer:  # an assistant may say the same again
        shifts = [0] if len(answer) > len(prompt) or not prompt else []
    if not repeats_answer or (prompt and prompt[-1]["role"] != "assistant"):
        shifts += range(max(len(prompt) - len(answer), 1), len(prompt))
    for shift in shifts:
        own, other = prompt[max(shift, 0) :], answer[max(-shift, 0) :]
        if _are_equal(own, other[: len(own)]):
            return shift
    return None


def _are_equal(messages: list[Message], others: list[Message]) -> bool:
    return len(messages) == len(others) and all(map(_is_equal, messages, others))


def _is_equal(message: Message, other: Message) -> bool:
    """Return whether two messages are equal but for white space, and keys that one of them lacks."""
    return message == other or all(
        message[key] == other[key]
        or (key == "content" and message[key].split() == other[key].split())
        for key in message.keys() & other.keys()
    )


def _show_message(message: Message) -> str:
    return f"the {message['role']} message {message['content']!r:.40}"


_QUOTED_TEXT = re.compile(r"""['"]([\w-]+)['"]""")
_COMPARISON = re.compile(
    r"""==\s*['"][\w-]+['"]|\bin\s*[\[(][^\])]*|['"]equalto['"]\s*,\s*['"][\w-]+['"]"""
)
_TYPE_COMPARISON = re.compile(r"""\btype['"\]\s]*==\s*['"][\w-]+['"]""")
_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):")


def _split_dialogue(text: str) -> list[Message]:
    """Return the messages of a dialogue in the text form of hh-rlhf; empty for other texts.

    Raises:
        DataError: if it ends with a question.
    """
    before, *pieces = _SPEAKER.split(text)
    if before.strip() or not pieces or pieces[0] != "Human" or "Assistant" not in pieces[::2]:
        return []
    if pieces[-2] != "Assistant":
        raise DataError(
            "the dialogue ends with a turn of the human, so there is no answer to learn: cut it off in a "
            "map, or filter such samples out"
        )
    roles = {"Human": "user", "Assistant": "assistant"}
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [_message(roles[speaker], body.strip()) for speaker, body in pairs]


def _common_text(first: str, second: str) -> str:
    """Return the text with which both begin, up to the end of a word."""
    pairs = zip(first, second, strict=False)
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if size in (len(first), len(second)):
        size = max(size - 1, 0)
    while size and not first[size - 1].isspace():
        size -= 1
    return first[:size]
