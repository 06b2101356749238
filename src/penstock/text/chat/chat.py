"""Samples of conversations to tokens and loss masks."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ...arguments import check_choice, check_int
from ...engine.base.machine import make_lock
from ...errors import ConfigError, DataError, Skip
from ...stores import display_path
from ..tokenise import identify_tokenizer, locate_tokenizer, open_tokenizer
from .control_tokens import ControlTokens
from .conversation import Conversation, Message, Segments
from .encoding import (
    ChatText,
    Encoded,
    describe_tokenizer,
    make_offset_tokenizer,
    mask_tokens,
    swap_slash,
)
from .formats import FORMAT_NAMES, SampleReader
from .marks import NONCHARACTERS, Span, read_marks
from .spans import MessageLocator, merge_spans, subtract_spans
from .templates import ChatTemplate, Family, find_template
from .truncation import TRUNCATE, Truncate, drop_turns

TrainOn: TypeAlias = Literal["assistant", "last", "all"]
Untrained: TypeAlias = Literal["skip", "keep", "error"]

_IGNORED_LABEL = -100


class ChatStats(NamedTuple):
    """Counts of the samples that a `Chat` encoded in this process.

    Attributes:
        samples: samples that were read.
        shortened: samples that were truncated.
        too_long: samples that were dropped since they do not fit.
        untrained: samples in which no token carries loss, dropped or not.
        changed_answers: answers that the template dropped or changed in part.
        control_tokens: samples with control tokens in the data, encoded as text.
    """

    samples: int = 0
    shortened: int = 0
    too_long: int = 0
    untrained: int = 0
    changed_answers: int = 0
    control_tokens: int = 0


_REPORTS = {
    "shortened": "samples over max_length, which were shortened",
    "too_long": "samples over max_length, which were dropped",
    "untrained": "samples in which no token carries loss",
    "changed_answers": "answers that the chat template changed or dropped; the loss covers what is "
    "left of them",
    "control_tokens": "samples with control tokens in their text, which are encoded as text; "
    "allowed_special= would make them tokens",
}


class Chat:
    """Convert conversations to tokens and loss masks, for `pack` and `CausalLM`.

    A sample becomes `{"tokens", "loss_mask"}`: int32 ids, and true for the tokens that are learned.
    A preference pair becomes `chosen_tokens`, `chosen_loss_mask`, `rejected_tokens` and
    `rejected_loss_mask`. A conversation is rendered once and encoded once; characters of answers
    in the rendering decide which tokens are learned, with the token that ends an answer.

    Control tokens in messages, such as `<|im_end|>` in a question, are encoded as text.

    Args:
        tokenizer: an object of transformers, tokenizers, tiktoken or sentencepiece; a path or URL
            of a `tokenizer.json` or a sentencepiece `.model`; or a folder or a name on the hub.
        format: the form of samples: "messages", "sharegpt", "completion", "alpaca", "dolly",
            "text", "preference", "kto" or "stepwise". "auto" takes the first that fits.
        template: a built-in template by the name of its family, such as "chatml" or "llama3"; a
            path; or a template itself. By default the template of the tokenizer.
        train_on: learn the answers of the "assistant", the "last" of them, or "all" tokens; or a
            function of a message that returns whether it is learned. Messages with `weight` 0 or
            `train` false are never learned.
        fields: names in the data by those of the format, such as `{"messages": "dialog"}`.
        roles: roles of the template by those of the data, such as `{"speaker": "assistant"}`.
        max_length: the most tokens of a sample, and of each side of a pair.
        truncate: for longer samples, "turns" drops the oldest turns and keeps system messages. It
            drops samples whose last turn is too long. "right" and "left" cut off tokens at that
            end, "drop" drops samples, "error" raises an error.
        untrained: "skip", "keep" or "error" for samples in which no token is learned.
        keep: other fields to keep.
        allowed_special: control tokens that are tokens in the data too, or "all".
        variables: values for the template, such as `{"enable_thinking": False}`.
        date: the date for templates that ask for it, such as "2024-07-26".
        bos: the text of the token that begins a sample, if the tokenizer does not name it.
        eos: the text of the token that ends a sample, if the tokenizer does not name it.

    Raises:
        ConfigError: for a tokenizer without offsets, a template that cannot be found or that the
            tokenizer lacks tokens for, and invalid arguments.
        DataError: for samples in no known format, and conversations that the template refuses.
        Skip: for dropped samples; use `map(chat, may_skip=True)`.

    >>> import penstock as ps
    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> words = {"<unk>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "user": 3, "assistant": 4, "hi": 5}
    >>> tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> _ = tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    >>> messages = [{"role": role, "content": "hi"} for role in ("user", "assistant")]
    >>> chats = ps.from_sequence([{"messages": messages}])
    >>> row = chats.map(Chat(tokenizer, template="chatml"))[0]
    >>> row["tokens"].tolist(), row["loss_mask"].astype(int).tolist()
    ([1, 3, 5, 2, 1, 4, 5, 2], [0, 0, 0, 0, 0, 0, 1, 1])
    """

    def __init__(
        self,
        tokenizer: Any,
        format: str = "auto",
        *,
        template: str | Path | None = None,
        train_on: TrainOn | Callable[[Message], bool] = "assistant",
        fields: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        max_length: int | None = None,
        truncate: Truncate = "turns",
        untrained: Untrained = "skip",
        keep: Sequence[str] = (),
        allowed_special: Sequence[str] | Literal["all"] = (),
        variables: Mapping[str, Any] | None = None,
        date: datetime.date | str | None = None,
        bos: str | None = None,
        eos: str | None = None,
    ) -> None:
        check_choice(format, FORMAT_NAMES, "Chat(format={})")
        check_choice(truncate, TRUNCATE, "Chat(truncate={})")
        check_choice(untrained, get_args(Untrained), "Chat(untrained={})")
        if not callable(train_on):
            check_choice(train_on, get_args(TrainOn), "Chat(train_on={})")
        if max_length is not None:
            check_int(max_length, "Chat(max_length={})", 1)
        for name, value in (("keep", keep), ("allowed_special", allowed_special)):
            if isinstance(value, str) and value != "all":
                raise ConfigError(f"Chat({name}={value!r}): give a tuple, such as ({value!r},)")
        self._origin = locate_tokenizer(tokenizer)
        is_path = isinstance(tokenizer, str | Path)
        self.tokenizer: Any = display_path(tokenizer) if is_path else tokenizer
        self.format, self.train_on, self.max_length = format, train_on, max_length
        self.truncate, self.untrained, self.keep = truncate, untrained, tuple(keep)
        self.allowed_special: tuple[str, ...] | Literal["all"] = (
            "all" if allowed_special == "all" else tuple(allowed_special)
        )
        self.date = _read_date(date)
        self._reader = SampleReader(format, fields or {}, roles or {})
        self._variables, self._bos, self._eos = dict(variables or {}), bos, eos
        self._counts, self._lock = Counter[str](), make_lock()
        loaded = open_tokenizer(self._origin)
        self._source, self._family = find_template(template, loaded)
        digest = describe_tokenizer(loaded) or identify_tokenizer(self._origin)
        settings = {
            "format": format,
            "template": _digest(self._source or ""),
            "train_on": getattr(train_on, "__qualname__", train_on),
            "version": getattr(train_on, "version", None),
            "fields": fields,
            "roles": roles,
            "max_length": max_length,
            "truncate": truncate if max_length else None,
            "untrained": untrained,
            "keep": self.keep,
            "allowed_special": self.allowed_special,
            "variables": variables,
            "date": self.date and self.date.isoformat(),
            "bos": bos,
            "eos": eos,
        }
        shown = [f"{name} {value}" for name, value in settings.items() if value]
        self.__qualname__ = f"Chat({', '.join([digest, *shown])})"
        self._compiled = _Compiled(
            loaded, self._source, self._family, self._variables, self.date, bos, eos,
            self.allowed_special,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_compiled", "_lock", "_counts")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counts, self._lock = Counter[str](), make_lock()

    @cached_property
    def _compiled(self) -> _Compiled:
        """Return what is built once in each process."""
        return _Compiled(
            open_tokenizer(self._origin), self._source, self._family, self._variables, self.date,
            self._bos, self._eos, self.allowed_special,
        )  # fmt: skip

    @property
    def stats(self) -> ChatStats:
        """Counts of this process; in worker processes, each worker counts its own samples."""
        with self._lock:
            return ChatStats(**self._counts)

    def __call__(self, sample: Any) -> dict[str, Any]:
        """Return the tokens and the loss mask of a sample."""
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[dict[str, Any]]:
        """Return the tokens and loss masks of samples, from one call of the tokenizer.

        Args:
            samples: samples in the format.

        Returns:
            Mappings with `tokens` and `loss_mask`, or with those of both sides of a pair.

        Raises:
            DataError: for samples that cannot be encoded.
            Skip: if a sample is dropped.
        """
        examples = [self._reader.read(sample) for sample in samples]
        self._count("samples", len(samples))
        sequences = [list(example.sequences.values()) for example in examples]
        texts = [[self._prepare(sequence) for sequence in group] for group in sequences]
        flat = [text for group in texts for text in group]
        encoded = iter(self._compiled.tokenizer.encode([text.encoder_input for text in flat]))
        results = list[dict[str, Any]]()
        for sample, example, group, prepared in zip(
            samples, examples, sequences, texts, strict=True
        ):
            rows = [_Row(text, next(encoded)) for text in prepared]
            rows = self._limit(group, rows)
            row: dict[str, Any] = {}
            for prefix, encoded_row in zip(example.sequences, rows, strict=True):
                for name, value in encoded_row.features().items():
                    row[prefix + name] = value
            self._require_training(row, rows)
            results.append({**row, **example.features, **self._kept_fields(sample)})
        return results

    # ------------------------------------------------------------ rendering

    def _prepare(self, sequence: Conversation | Segments) -> _Prepared:
        if isinstance(sequence, Segments):
            return self._prepare_segments(sequence)
        return self._prepare_conversation(sequence)

    def _prepare_conversation(self, conversation: Conversation) -> _Prepared:
        compiled, messages = self._compiled, conversation.messages
        template, locator, control = compiled.require_template()
        protected, tools, is_marked = control.protect(conversation)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        learned = self._choose_messages(conversation, answers)
        if self.train_on == "all":
            excluded = [i for i, message in enumerate(messages) if _is_excluded(message)]
            located = locator.locate(protected, tools, excluded)
            rendering = located.rendering
            left_out = [span for spans in located.spans.values() for span in spans]
            spans = subtract_spans(len(rendering.text), left_out)
        elif template.has_generation and learned == answers:
            rendering = read_marks(template.render(protected, tools))
            spans = rendering.generation
            self._check_answers(messages, learned, rendering.text, spans)
        else:
            located = locator.locate(protected, tools, learned)
            rendering = located.rendering
            spans = [span for found in located.spans.values() for span in found]
            self._check_answers(messages, learned, rendering.text, spans)
        if self.train_on != "all":
            spans = locator.add_eos(rendering, spans)
        owned = None
        if is_marked:
            owned, has_others = control.find_owned(rendering.text, rendering.data)
            if has_others:
                self._count("control_tokens")
            else:
                owned = None
        return _Prepared(ChatText(rendering.text, owned), merge_spans(spans))

    def _prepare_segments(self, segments: Segments) -> _Prepared:
        compiled = self._compiled
        texts = [NONCHARACTERS.sub("\ufffd", text) for text in segments.texts]
        body, prefix = "".join(texts), compiled.text_prefix
        if prefix and body.startswith(prefix) and prefix not in compiled.control.tokens:
            prefix = ""
        text = f"{prefix}{body}{compiled.eos}"
        position, spans, labels = len(prefix), list[Span](), list[tuple[int, int]]()
        for number, (piece, is_learned) in enumerate(zip(texts, segments.learned, strict=True)):
            position += len(piece)
            if is_learned or self.train_on == "all":
                spans.append((position - len(piece), position))
            label = segments.labels[number] if segments.labels else None
            if label is not None and piece:
                labels.append((position - 1, label))
        if compiled.eos and not segments.labels:
            spans.append((position, len(text)))
        owned = None
        if compiled.control.contains(body):
            self._count("control_tokens")
            owned = [(0, len(prefix)), (position, len(text))]
            owned = [span for span in owned if span[0] < span[1]]
        has_labels = segments.labels is not None
        return _Prepared(ChatText(text, owned), merge_spans(spans), labels if has_labels else None)

    def _choose_messages(self, conversation: Conversation, answers: list[int]) -> list[int]:
        """Return the messages that are learned."""
        messages, train_on = conversation.messages, self.train_on
        if callable(train_on):
            numbers = [i for i, message in enumerate(messages) if train_on(message)]
        else:
            numbers = answers[-1:] if train_on == "last" else answers
        return [
            i for i in numbers if i >= conversation.prompt_length and not _is_excluded(messages[i])
        ]

    def _check_answers(
        self, messages: list[Message], learned: list[int], text: str, spans: list[Span]
    ) -> None:
        """Count the answers that are not in the rendering as they are in the data."""
        position, changed = 0, len(learned) - len(spans)
        if changed > 0:
            self._count("changed_answers", changed)
            return
        for number, (start, stop) in zip(learned, spans, strict=False):
            content = messages[number]["content"].strip()
            if not text.startswith(content, start) and content not in text[start:stop]:
                position += 1
        if position:
            self._count("changed_answers", position)

    # ------------------------------------------------------------ length and counts

    def _limit(self, sequences: Sequence[Conversation | Segments], rows: list[_Row]) -> list[_Row]:
        """Return rows of at most `max_length` tokens.

        Raises:
            Skip: if the sample is dropped.
            DataError: if the user asked for an error.
        """
        limit = self.max_length
        if limit is None or max(row.size for row in rows) <= limit:
            return rows
        if self.truncate == "error":
            raise DataError(
                f"the sample has {max(row.size for row in rows)} tokens, over max_length={limit}: "
                "raise max_length, or choose truncate='turns'"
            )
        if self.truncate in ("right", "left"):
            self._count("shortened")
            return [row.cut(limit, self.truncate == "left") for row in rows]
        if self.truncate == "turns":

            def prepare(shorter: list[Conversation]) -> list[_Row] | None:
                texts = [self._prepare(conversation) for conversation in shorter]
                encoded = self._compiled.tokenizer.encode([text.encoder_input for text in texts])
                made = [_Row(text, ids) for text, ids in zip(texts, encoded, strict=True)]
                return made if max(row.size for row in made) <= limit else None

            shorter = drop_turns(sequences, prepare)
            if shorter is not None:
                self._count("shortened")
                return shorter
        self._count("too_long")
        raise Skip(
            f"Chat dropped a sample of {max(row.size for row in rows)} tokens, over max_length={limit}: "
            "use map(chat, may_skip=True), or truncate='right' to keep its beginning"
        )

    def _require_training(self, row: Mapping[str, Any], rows: list[_Row]) -> None:
        """Count a sample without learned tokens, and drop it unless the user keeps it."""
        if all(encoded_row.mask.any() for encoded_row in rows):
            return
        self._count("untrained")
        if self.untrained == "error":
            raise DataError(
                "no token of the sample carries loss: check train_on=, and the roles and weights of "
                "its messages"
            )
        if self.untrained == "skip":
            raise Skip(
                "Chat dropped a sample without a token that carries loss: use "
                "map(chat, may_skip=True), or untrained='keep'"
            )

    def _count(self, name: str, number: int = 1) -> None:
        """Add to a count; report it when it has one digit more."""
        with self._lock:
            before = self._counts[name]
            self._counts[name] = after = before + number
            samples = self._counts["samples"]
        if name in _REPORTS and (not before or len(str(before)) < len(str(after))):
            getLogger("penstock").warning(
                "Chat: %s: %s, in %s samples so far", _REPORTS[name], f"{after:,}", f"{samples:,}"
            )

    def _kept_fields(self, sample: Any) -> dict[str, Any]:
        if not self.keep:
            return {}
        fields = cast("Mapping[str, Any]", sample if isinstance(sample, Mapping) else {})
        if missing := [name for name in self.keep if name not in fields]:
            raise DataError(
                f"there is no field {missing[0]!r} to keep; the sample has "
                f"{', '.join(map(str, fields)) or 'no fields'}"
            )
        return {name: fields[name] for name in self.keep}


class _Prepared(NamedTuple):
    """A text to encode, the spans that are learned, and labels at positions."""

    encoder_input: ChatText
    spans: list[Span]
    labels: list[tuple[int, int]] | None = None


class _Row:
    """The features of one encoded text."""

    def __init__(self, prepared: _Prepared, encoded: Encoded) -> None:
        self.size = len(encoded.ids)
        self._ids: npt.NDArray[np.int32] = np.array(encoded.ids, np.int32)
        text = prepared.encoder_input.text
        self.mask = mask_tokens(encoded, text, prepared.spans)
        self._labels: npt.NDArray[np.int32] | None = None
        if prepared.labels is not None:
            self._labels = np.full(self.size, _IGNORED_LABEL, np.int32)
            for position, label in prepared.labels:
                token = mask_tokens(encoded, text, [(0, position + 1)]).sum() - 1
                self._labels[token] = label
            self.mask = self._labels != _IGNORED_LABEL

    def cut(self, limit: int, is_left: bool) -> _Row:
        """Keep the tokens at one end."""
        part = slice(self.size - limit if self.size > limit else 0, None)
        part = part if is_left else slice(limit)
        self._ids, self.mask = self._ids[part], self.mask[part]
        self._labels = None if self._labels is None else self._labels[part]
        self.size = len(self._ids)
        return self

    def features(self) -> dict[str, Any]:
        """Return the arrays by name."""
        arrays: dict[str, Any] = {"tokens": self._ids, "loss_mask": self.mask}
        return arrays if self._labels is None else {**arrays, "labels": self._labels}


class _Compiled:
    """A tokenizer and a template that fit together."""

    def __init__(
        self,
        tokenizer: Any,
        source: str | None,
        family: Family | None,
        variables: Mapping[str, Any],
        date: datetime.date | None,
        bos: str | None,
        eos: str | None,
        allowed: Sequence[str],
    ) -> None:
        self.tokenizer = make_offset_tokenizer(tokenizer)
        known = {**self.tokenizer.added, **self.tokenizer.special}
        self.bos = bos or _name_token(tokenizer, "bos", family and family.bos, known)
        self.eos = eos or _name_token(tokenizer, "eos", family and family.eos, known)
        for name, token in (("bos", bos), ("eos", eos)):
            if token is not None and token not in known:
                raise ConfigError(
                    f"Chat({name}={token!r}): the tokenizer has no such control token; give one of "
                    f"{', '.join(sorted(known)[:8]) or 'none: add it to the tokenizer'}"
                )
        if family and (missing := [token for token in family.tokens if token not in known]):
            raise ConfigError(
                f"Chat(template={family.file!r}): the tokenizer lacks the tokens "
                f"{', '.join(missing)}: add them with tokenizer.add_special_tokens and resize the "
                "embeddings of the model, or choose the template that its model was trained with"
            )
        if allowed == "all":
            control, markup = set[str](), set[str]()
        else:
            added = {token for token in self.tokenizer.added if token.strip()}
            markup = {token for token in added if swap_slash(token) in added}
            control = {token for token in added if token in (source or "")} | markup
            control |= {*self.tokenizer.special, *(family.tokens if family else ())}
            control = {*control, *filter(None, (self.bos, self.eos))} - {*allowed}
        self.control = ControlTokens(control, markup)
        self.tokenizer.protect(self.control.tokens)
        self.text_prefix = bos or self.tokenizer.prefix
        self._template: tuple[ChatTemplate, MessageLocator, ControlTokens] | None = None
        if source is not None:
            if "eos_token" in source and not self.eos:
                raise ConfigError(
                    "the chat template writes eos_token, and the tokenizer does not name its token: "
                    "give its text, such as Chat(..., eos='</s>')"
                )
            given = {**_special_tokens(tokenizer), "bos_token": self.bos, "eos_token": self.eos}
            template = ChatTemplate(source, {**given, **variables}, date)
            self._template = (
                template, MessageLocator(template, self.control, self.eos), self.control
            )  # fmt: skip

    def require_template(self) -> tuple[ChatTemplate, MessageLocator, ControlTokens]:
        """Return the template, with the locator of messages and the control tokens.

        Raises:
            ConfigError: if there is none.
        """
        if self._template is None:
            raise ConfigError(
                "the tokenizer has no chat template, which conversations need: name the family of "
                "the model, such as Chat(tokenizer, template='chatml'), or the path of a template"
            )
        return self._template


def _is_excluded(message: Message) -> bool:
    """Return whether a message says that it is not learned.

    Raises:
        DataError: for weights between 0 and 1, which labels cannot carry.
    """
    weight, train = message.get("weight"), message.get("train")
    if weight is not None and weight not in (0, 1):
        raise DataError(
            f"a message has the weight {weight}: labels carry the weights 0 and 1 only; round it in a "
            "map before"
        )
    return weight == 0 or (train is not None and not train)


def _name_token(tokenizer: Any, name: str, default: str | None, known: Mapping[str, int]) -> str:
    """Return the text of a tokenizer's token, else the default of the family, else ""."""
    token = getattr(tokenizer, f"{name}_token", None)
    if isinstance(token, str) and token in known:
        return token
    return default if default is not None and default in known else ""


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    tokens = getattr(tokenizer, "special_tokens_map", None)
    if not isinstance(tokens, Mapping):
        return {}
    items = cast("Mapping[str, Any]", tokens).items()
    return {name: str(token) for name, token in items if not isinstance(token, list)}


def _read_date(date: datetime.date | str | None) -> datetime.date | None:
    if isinstance(date, str):
        try:
            return datetime.date.fromisoformat(date)
        except ValueError:
            raise ConfigError(f"Chat(date={date!r}): give a date such as '2024-07-26'") from None
    return date


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
