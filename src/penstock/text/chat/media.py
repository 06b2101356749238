"""Images, audio and video in messages, encoded by a processor of transformers.

In the content of a message, a mark stands for each of its media. A template writes a placeholder
for it, which the processor replaces by the tokens that the model needs.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from .conversation import Conversation, Example, MediaPart, Message
from .marks import DATA, MEDIA_END, MEDIA_KINDS, MEDIA_MARKS, MEDIA_START, remove_marks
from .templates import ChatTemplate

_FIELDS = {kind: (f"{kind}s", kind) for kind in MEDIA_MARKS}
"""Fields of samples with media, by their kind."""
_ARGUMENTS = {"image": "images", "audio": "audio", "video": "videos"}
"""Arguments of processors, by the kinds of media."""
_MEDIA_PLACE = re.compile(f"<({'|'.join(MEDIA_MARKS)})>|[{''.join(MEDIA_KINDS)}]")
_PLACEHOLDERS = tuple(f"{name}_token" for name in (*MEDIA_MARKS, "boi", "boa", "fake_image"))
"""Attributes of processors and tokenizers with the tokens that templates write for media."""


def is_processor(tokenizer: Any) -> bool:
    """Return whether an object is a processor of transformers, which holds a tokenizer."""
    return hasattr(tokenizer, "tokenizer") and hasattr(tokenizer, "to_json_string")


def describe_processor(processor: Any) -> str:
    """Return a digest of the settings of a processor."""
    return hashlib.blake2b(processor.to_json_string().encode(), digest_size=8).hexdigest()


# ---------------------------------------------------------------- media of samples


def place_media(example: Example, fields: Mapping[str, Any]) -> Example:
    """Return an example whose places for media hold the media of the sample's fields.

    Places are parts such as `{"type": "image"}`, and `<image>` in texts. Without any, media stand
    before the text of the first question.

    Args:
        example: the content of the sample.
        fields: the sample, with media in `images` or `image`, and so on.

    Raises:
        DataError: if the sample has more or fewer media than places for them, or no messages.
    """
    given = {kind: _list_media(fields, kind) for kind in _FIELDS}
    sequences = dict(example.sequences)
    for prefix, sequence in sequences.items():
        if isinstance(sequence, Conversation):
            sequences[prefix] = _place_in_conversation(sequence, given)
        elif any(given.values()):
            raise DataError("the sample has media, and texts: map it to messages before")
    return Example(sequences, example.features)


def require_no_media(fields: Mapping[str, Any]) -> None:
    """Raise for a sample with media in its fields, which a tokenizer alone cannot encode.

    Args:
        fields: the sample.

    Raises:
        DataError: if a field such as `images` is not empty.
    """
    for kind, names in _FIELDS.items():
        if any(fields.get(name) is not None for name in names) and _list_media(fields, kind):
            raise DataError(
                f"the sample has media in {' or '.join(names)}, which a tokenizer cannot encode: give "
                "Chat the processor of the model, or leave the field out in a map before"
            )


def _list_media(fields: Mapping[str, Any], kind: str) -> list[Any]:
    names = _FIELDS[kind]
    value: Any = next((fields[name] for name in names if fields.get(name) is not None), ())
    is_sequence = isinstance(value, list | tuple) or getattr(value, "dtype", None) == np.object_
    media: list[Any] = list(cast("Sequence[Any]", value)) if is_sequence else [value]
    if any(part is None for part in media):
        raise DataError(f"a medium in {' or '.join(names)} is null: filter such samples out")
    return media


def _place_in_conversation(
    conversation: Conversation, given: Mapping[str, list[Any]]
) -> Conversation:
    unused = {kind: iter(values) for kind, values in given.items()}
    parts: list[MediaPart] = [
        part for message in conversation.messages for part in message.get("media", ())
    ]
    # Where messages have parts, <image> in a text is text.
    in_text = {kind for kind in given if given[kind]} - {part.kind for part in parts}
    messages = [_place_in_message(message, unused, in_text) for message in conversation.messages]
    for kind, values in given.items():
        left = list(unused[kind])
        if left and len(left) == len(values):  # the messages have no place at all
            first = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
            question = messages[first]
            messages[first] = {
                **question,
                "content": MEDIA_MARKS[kind] * len(left) + question["content"],
                "media": [MediaPart(kind, value) for value in left] + question["media"],
            }
        elif left:
            raise DataError(
                f"the sample has {len(values)} of {kind!r}, and its messages have places for "
                f"{len(values) - len(left)}: a place is a part of this type, or <{kind}> in a text"
            )
    return Conversation(messages, conversation.tools, conversation.prompt_length)


def _place_in_message(
    message: Message, unused: Mapping[str, Iterator[Any]], in_text: set[str]
) -> Message:
    """Return a message with media in its places, which are taken from those of the sample.

    Args:
        message: the message.
        unused: the media of the sample that have no place yet.
        in_text: the kinds of media whose places are in texts.
    """
    media, own = list[MediaPart](), iter(cast("list[MediaPart]", message.get("media", [])))

    def place(match: re.Match[str]) -> str:
        part = MediaPart(match[1], None) if match[1] else next(own, None)
        if part is None:
            return "\ufffd"  # a noncharacter of the data
        if match[1] and part.kind not in in_text:
            return match[0]
        if part.value is None:
            part = MediaPart(part.kind, next(unused[part.kind], None))
        if part.value is None:
            name = match[0] if match[1] else f"a part of type {part.kind!r} without content"
            raise DataError(
                f"a message has {name}, and the sample has no more in "
                f"{' or '.join(_FIELDS[part.kind])}"
            )
        media.append(part)
        return MEDIA_MARKS[part.kind]

    return {**message, "content": _MEDIA_PLACE.sub(place, message["content"]), "media": media}


# ---------------------------------------------------------------- tokens of media


@dataclass(frozen=True)
class Expansion:
    """The texts and features that a processor makes for one conversation.

    Attributes:
        texts: the text that takes the place of each placeholder, in order.
        ids: the ids of the processor.
        features: all else that it returns, such as `pixel_values`.
    """

    texts: list[str]
    ids: npt.NDArray[Any]
    features: Mapping[str, Any]

    def select_features(self, ids: npt.NDArray[np.int32]) -> dict[str, Any]:
        """Return the features for a row of tokens.

        Args:
            ids: the tokens.

        Raises:
            DataError: if a feature has a value for each token, and the processor has other tokens.
        """
        result = dict[str, Any]()
        for name, value in self.features.items():
            if np.shape(value) != (1, self.ids.size):
                result[name] = value
            elif np.array_equal(self.ids, ids):
                result[name] = np.asarray(value)[0]
            else:
                raise DataError(
                    f"{name!r} has a value for each token, and the processor has other tokens: the "
                    "messages have control tokens as text; remove them in a map before"
                )
        return result


class MediaProcessor:
    """A processor of transformers: a tokenizer with the encoders of its media.

    Args:
        processor: the processor.

    Raises:
        ConfigError: if it has no placeholders for media.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self.tokenizer: Any = processor.tokenizer
        extractor = getattr(processor, "feature_extractor", None)
        self._rate: int | None = getattr(extractor, "sampling_rate", None)
        tokens = {
            getattr(owner, name, None)
            for owner in (processor, self.tokenizer)
            for name in _PLACEHOLDERS
        }
        texts = {token for token in tokens if isinstance(token, str) and token}
        if not texts:
            raise ConfigError(
                f"Chat({type(processor).__name__}): it names no placeholder, such as image_token"
            )
        longest_first = sorted(texts, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def expand(self, rendered: str, media: Sequence[MediaPart]) -> Expansion:
        """Return what takes the places of the placeholders in a rendering.

        Args:
            rendered: the output of a template.
            media: the media of the conversation, in order.

        Raises:
            DataError: if the processor cannot encode the media.
        """
        text, recorder = remove_marks(rendered, DATA), _Recorder(self.tokenizer)
        if len(self._pattern.findall(text)) < len(media):
            raise DataError(
                f"the chat template leaves out media: it writes {len(self._pattern.findall(text))} "
                f"placeholders for {len(media)} media, of {', '.join(part.kind for part in media[:8])}"
            )
        values = {
            name: [self._decode(part) for part in media if part.kind == kind]
            for kind, name in _ARGUMENTS.items()
        }
        given: dict[str, Any] = {name: found for name, found in values.items() if found}
        if "audio" in given:
            given["sampling_rate"] = self._rate
        processor = copy.copy(self._processor)
        processor.tokenizer = recorder
        try:
            outputs = dict(
                processor(
                    text=[text],
                    **given,
                    add_special_tokens=False,
                    return_tensors="np",
                )
            )
        except MemoryError:
            raise
        except Exception as error:
            raise DataError(
                f"the processor cannot encode a conversation with {len(media)} media: "
                f"{error or type(error).__name__}"
            ) from error
        ids = np.asarray(outputs.pop("input_ids"))[0]
        outputs.pop("attention_mask", None)
        return Expansion(self._align(text, recorder.text), ids, outputs)

    def replace(self, rendered: str, expansion: Expansion) -> str:
        """Return a rendering with marked texts in the places of its placeholders.

        Args:
            rendered: the output of a template for the same conversation.
            expansion: what takes their places.

        Raises:
            DataError: if it has another number of placeholders.
        """
        head, *pieces = self._pattern.split(rendered)
        if len(pieces) != len(expansion.texts):
            raise DataError(
                "the chat template writes other media if an answer changes, so answers cannot be "
                "found: put {% generation %} and {% endgeneration %} around answers in the template"
            )
        pairs = zip(expansion.texts, pieces, strict=True)
        return head + "".join(f"{MEDIA_START}{new}{MEDIA_END}{piece}" for new, piece in pairs)

    def _align(self, text: str, expanded: str) -> list[str]:
        """Return the part of the expanded text for each placeholder of the text."""
        head, *pieces = self._pattern.split(text)
        position, parts = len(head), list[str]()
        for number, piece in enumerate(pieces, 1):
            # Two placeholders side by side become one text, that of the second.
            start = len(expanded) - len(piece) if number == len(pieces) else position
            found = expanded.find(piece, start + 1 if piece and start == position else start)
            if found < position:
                break
            parts.append(expanded[position:found])
            position = found + len(piece)
        if not expanded.startswith(head) or len(parts) < len(pieces) or position != len(expanded):
            raise DataError("the processor changes more of a conversation than its placeholders")
        return parts

    def _decode(self, part: MediaPart) -> Any:
        """Return media in the form that processors take."""
        value: Any = part.value
        if part.kind == "image" and hasattr(value, "blob"):
            value = value.decode("pilrgb")
        elif part.kind == "audio":
            value = _read_sound(value, self._rate)
        if not isinstance(value, bytes | str | Mapping):
            return value
        raise DataError(
            f"media of type {part.kind!r} is a {type(part.value).__name__}: decode it before, such as "
            f"map(penstock.media.Lazy({{'{part.kind}s': '{part.kind}'}}))"
        )


def _read_sound(sound: Any, rate: int | None) -> Any:
    """Return the samples of a sound, whose rate the processor must take."""
    given, samples = rate, sound
    if hasattr(sound, "blob"):
        samples, given = sound.samples().mean(axis=0), sound.rate
    elif isinstance(sound, Mapping) and "array" in sound:
        fields = cast("Mapping[str, Any]", sound)
        samples, given = fields["array"], fields.get("sampling_rate", rate)
    if given != rate:
        raise DataError(
            f"a sound has {given} samples a second, and the processor takes {rate}: resample it in a "
            "map before"
        )
    return samples


class ExpandedTemplate:
    """A template whose renderings of one conversation have the tokens of its media.

    Args:
        template: the template.
        processor: the processor.
        conversation: the conversation.
    """

    def __init__(
        self, template: ChatTemplate, processor: MediaProcessor, conversation: Conversation
    ) -> None:
        self._template, self._processor = template, processor
        self._media: list[MediaPart] = [
            part for message in conversation.messages for part in message["media"]
        ]
        self.has_generation = template.has_generation
        self.expansion: Expansion | None = None

    def render(self, messages: list[Message], tools: list[Any] | None, /) -> str:
        """Return the conversation as text with marks.

        Args:
            messages: its messages, or changed ones.
            tools: schemas of tools.

        Raises:
            DataError: if the template or the processor refuses the messages.
        """
        return self._expand(self._template.render(messages, tools))

    def trace(self, messages: list[Message], tools: list[Any] | None, /) -> str:
        """Return the conversation as text with marks of the message that the template writes.

        Args:
            messages: its messages.
            tools: schemas of tools.

        Raises:
            DataError: if the template or the processor refuses the messages.
        """
        return self._expand(self._template.trace(messages, tools))

    def _expand(self, rendered: str) -> str:
        if self.expansion is None:
            self.expansion = self._processor.expand(rendered, self._media)
        return self._processor.replace(rendered, self.expansion)


class _Recorder:
    """A tokenizer that keeps the text that a processor encodes."""

    text = ""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, **options: Any) -> Any:
        self.text = text if isinstance(text, str) else text[0]
        return self._tokenizer(text, **options)
