"""Samples of conversations to tokens and loss masks."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from ...arguments import check_choice, check_int
from ...errors import ConfigError, DataError, Skip
from ...stores import display_path
from ..tokenize import (
    identify_tokenizer,
    locate_tokenizer,
    open_tokenizer,
    read_named_tokens,
    show_call,
)
from .compiled import CompiledChat
from .conversation import Conversation, Example, Message, Segments
from .counts import ChatStats, SampleCounter
from .encoded_row import EncodedRow
from .formats import FORMAT_NAMES, SampleReader
from .media import describe_processor, is_processor
from .rendering import LearnedText, SequenceRenderer, TrainOn
from .templates import find_template, list_templates
from .truncation import TRUNCATE, Truncate, drop_turns

Untrained: TypeAlias = Literal["skip", "keep", "error"]

_TEXT_FORMATS = ("text", "stepwise")
"""Formats without messages."""
_MESSAGE_FORMATS = ("messages", "sharegpt", "alpaca", "dolly")
"""Formats of messages alone, which need a template."""


_MADE_FIELDS = tuple(
    f"{prefix}{name}" for prefix in ("", "chosen_", "rejected_") for name in ("tokens", "loss_mask")
)
"""Fields that samples get, which `keep` cannot replace."""


class Chat:
    """Convert conversations to tokens and loss masks, for `pack` and `CausalLM`.

    A sample becomes `{"tokens", "loss_mask"}`: int32 ids, and true for the tokens that are learned.
    A preference pair becomes `chosen_tokens`, `chosen_loss_mask`, `rejected_tokens` and
    `rejected_loss_mask`. A conversation is rendered once and encoded once; characters of answers
    in the rendering decide which tokens are learned, with the token that ends an answer.

    Control tokens in messages, such as `<|im_end|>` in a question, are encoded as text.

    Args:
        tokenizer: an object of transformers, tokenizers, tiktoken or sentencepiece; a path or URL
            of a `tokenizer.json` or a sentencepiece `.model`; or a folder or a name on the hub. A
            processor of transformers encodes images, audio and video in messages too.
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
        keep: other fields to keep, beside those that `Chat` makes.
        allowed_special: control tokens that are tokens in the data too, or "all".
        variables: values for the template, such as `{"enable_thinking": False}`.
        date: the date for templates that ask for it, such as "2024-07-26".
        input_separator: the text between the instruction and the input of "alpaca" and "dolly".
        bos: the text of the token that begins a sample, if the tokenizer does not name it; "" for
            none.
        eos: the text of the token that ends a sample, if the tokenizer does not name it; "" for
            none.

    Raises:
        ConfigError: for a tokenizer without offsets, a template that cannot be found or that the
            tokenizer lacks tokens for, and invalid arguments. Also for texts, if the tokenizer does
            not name its eos token.
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
        input_separator: str = "\n\n",
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
        if clashes := {*_MADE_FIELDS} & {*keep}:
            raise ConfigError(
                f"Chat(keep={tuple(keep)}): Chat makes {min(clashes)!r} itself: rename the field in a "
                "map before"
            )
        self._origin = locate_tokenizer(tokenizer)
        is_path = isinstance(tokenizer, str | Path)
        self.tokenizer: Any = display_path(tokenizer) if is_path else tokenizer
        self.train_on: TrainOn | Callable[[Message], bool] = train_on
        self.format, self.max_length = format, max_length
        self.truncate, self.untrained, self.keep = truncate, untrained, tuple(keep)
        self.allowed_special: tuple[str, ...] | Literal["all"] = (
            "all" if allowed_special == "all" else tuple(allowed_special)
        )
        self.date = _read_date(date)
        self._variables, self._bos, self._eos = dict(variables or {}), bos, eos
        self.input_separator = input_separator
        self.options: dict[str, Any] = {  # the other arguments, as they were given
            "template": template, "fields": fields, "roles": roles, "variables": variables,
            "bos": bos, "eos": eos,
        }  # fmt: skip
        self._counter = SampleCounter()
        loaded = open_tokenizer(self._origin)
        self._source, self._family = find_template(template, loaded)
        self._tool_source = None if template is not None else list_templates(loaded).get("tool_use")
        self._named = read_named_tokens(self._origin)
        self._reader = SampleReader(
            format,
            fields or {},
            roles or {},
            is_processor(tokenizer),
            self._all_sources,
            input_separator,
        )
        digest = self._identity = identify_tokenizer(self._origin)
        if is_processor(loaded):
            digest = f"{identify_tokenizer(loaded.tokenizer)}, {describe_processor(loaded)}"
        self._compiled = self._compile(loaded)
        has_template = self._all_sources is not None
        if format in _TEXT_FORMATS or (not has_template and format not in _MESSAGE_FORMATS):
            self._compiled.require_eos(format != "auto")
        settings = {
            "format": format,
            "template": _digest(self._all_sources or ""),
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
            "input_separator": None if input_separator == "\n\n" else repr(input_separator),
            "bos": "none" if bos == "" else bos,
            "eos": "none" if eos == "" else eos,
            "tokens": self._compiled.named_tokens,
        }
        shown = [f"{name} {value}" for name, value in settings.items() if value]
        self.__qualname__ = f"Chat({', '.join([digest, *shown])})"

    def __repr__(self) -> str:
        """Return the arguments that differ from the defaults."""
        date = self.date and self.date.isoformat()
        return show_call(self, {**self.__dict__, **self.options, "date": date})

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_compiled", "_renderer")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    @cached_property
    def _compiled(self) -> CompiledChat:
        """Return what is built once in each process."""
        return self._compile(open_tokenizer(self._origin, self._identity))

    def _compile(self, tokenizer: Any) -> CompiledChat:
        return CompiledChat(
            tokenizer, self._source, self._tool_source, self._family, self._variables, self.date,
            self._bos, self._eos, self.allowed_special, self._named,
        )  # fmt: skip

    @property
    def _all_sources(self) -> str | None:
        """Return the templates as one text; `None` if there is none."""
        sources = [source for source in (self._source, self._tool_source) if source is not None]
        return "".join(sources) if sources else None

    @cached_property
    def _renderer(self) -> SequenceRenderer:
        return SequenceRenderer(self._compiled, self.train_on)

    @property
    def stats(self) -> ChatStats:
        """Counts of this process and its worker processes."""
        return self._counter.totals()

    def __call__(self, sample: Any) -> dict[str, Any]:
        """Return the tokens and the loss mask of a sample."""
        (row,) = self.many([sample])
        if isinstance(row, Skip):
            raise row
        return row

    def many(self, samples: list[Any]) -> list[dict[str, Any] | Skip]:
        """Return the tokens and loss masks of samples, from one call of the tokenizer.

        Args:
            samples: samples in the format.

        Returns:
            Mappings with `tokens` and `loss_mask`, or with those of both sides of a pair. A dropped
            sample has a `Skip` in its place.

        Raises:
            DataError: for samples that cannot be encoded.
        """
        counts, render = Counter[str](samples=len(samples)), self._renderer.render
        examples = self._reader.read_many(samples, counts)
        texts = [
            [render(sequence, counts) for sequence in example.sequences.values()]
            for example in examples
        ]
        encoded = iter(self._encode([text for group in texts for text in group]))
        results = list[dict[str, Any] | Skip]()
        for sample, example, group in zip(samples, examples, texts, strict=True):
            rows = [next(encoded) for _ in group]
            try:
                results.append(self._make_row(sample, example, rows, counts))
            except Skip as skip:
                results.append(skip.with_traceback(None))
        self._counter.add(counts)
        return results

    def _encode(self, texts: list[LearnedText]) -> list[EncodedRow]:
        for text in texts:
            _require_whole_letters(text.encoder_input.text)
        encoded = self._compiled.tokenizer.encode([text.encoder_input for text in texts])
        return [EncodedRow(text, ids) for text, ids in zip(texts, encoded, strict=True)]

    def _make_row(
        self, sample: Any, example: Example, rows: list[EncodedRow], counts: Counter[str]
    ) -> dict[str, Any]:
        counts["dropped_labels"] += sum(row.dropped_labels for row in rows)
        rows = self._limit([*example.sequences.values()], rows, counts)
        self._require_training(rows, counts)
        row: dict[str, Any] = {}
        for prefix, encoded_row in zip(example.sequences, rows, strict=True):
            for name, value in encoded_row.features().items():
                row[prefix + name] = value
        row.update(example.features)
        kept = self._kept_fields(sample).items()
        row.update({name: value for name, value in kept if name not in row})
        return row

    def _limit(
        self,
        sequences: Sequence[Conversation | Segments],
        rows: list[EncodedRow],
        counts: Counter[str],
    ) -> list[EncodedRow]:
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
        if self.truncate in ("right", "left") and not any(row.has_media for row in rows):
            counts["shortened"] += 1
            return [row.cut(limit, self.truncate == "left") for row in rows]
        if self.truncate == "turns":

            def prepare(shorter: list[Conversation]) -> list[EncodedRow] | None:
                made = self._encode(
                    [self._renderer.render(conversation, Counter()) for conversation in shorter]
                )
                return made if max(row.size for row in made) <= limit else None

            shorter = drop_turns(sequences, prepare)
            if shorter is not None:
                counts["shortened"] += 1
                return shorter
        counts["too_long"] += 1
        raise Skip(
            f"Chat dropped a sample of {max(row.size for row in rows)} tokens, over max_length={limit}: "
            "use map(chat, may_skip=True), or truncate='right' to keep its beginning",
            reason="too_long",
        )

    def _require_training(self, rows: list[EncodedRow], counts: Counter[str]) -> None:
        """Count a sample without learned tokens, and drop it unless the user keeps it."""
        if all(encoded_row.mask.any() for encoded_row in rows):
            return
        counts["untrained"] += 1
        if self.untrained == "error":
            raise DataError(
                "no token of the sample carries loss: check train_on=, and the weights and roles of "
                "its messages, such as roles={'Assistant': 'assistant'}"
            )
        if self.untrained == "skip":
            raise Skip(
                "Chat dropped a sample without a token that carries loss: use "
                "map(chat, may_skip=True), or untrained='keep'",
                reason="untrained",
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


def _read_date(date: datetime.date | str | None) -> datetime.date | None:
    if isinstance(date, str):
        try:
            return datetime.date.fromisoformat(date)
        except ValueError:
            raise ConfigError(f"Chat(date={date!r}): give a date such as '2024-07-26'") from None
    return date


def _require_whole_letters(text: str) -> None:
    """Raise `DataError` if a text has half a surrogate pair, which no tokenizer encodes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - 20) : error.start]
        raise DataError(
            f"the sample has half a surrogate pair, {text[error.start]!a}, behind {before!r}: repair "
            "the text or leave it out"
        ) from error


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
