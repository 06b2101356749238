"""Tokenizers that encode a rendering in one call, with the characters of each token."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError

Span: TypeAlias = tuple[int, int]
CONTROL_PREFIX = "\ufdd5"
"""Stands before the control tokens of a template in the text for a protected tokenizer."""

_END_OF_TEXT = "<|endoftext|>"  # the `eot_token` of tiktoken


class Encoded(Protocol):
    """The tokens of a text, and where their characters begin.

    - `ids` are the ids.
    - `find` returns the number of the first token that begins at a position or behind it. It also
      returns where a token over the position begins, or the position.
    """

    ids: list[int]

    def find(self, position: int, /) -> tuple[int, int]: ...


@dataclass(frozen=True)
class ChatText:
    """A text to encode.

    Attributes:
        text: the characters.
        owned: the control tokens in it that are tokens; `None` if all of them are.
    """

    text: str
    owned: list[Span] | None = None


class OffsetTokenizer(Protocol):
    """A tokenizer with offsets.

    - `special` are its control tokens by their text, `added` other tokens that are matched whole.
    - `prefix` is the text of the token that it puts before every text by itself.
    - `bos` and `eos` are the tokens that begin and end texts, "" if it does not tell.
    - `protect` names the tokens that texts in `encode` may hold without meaning them.
    - `encode` encodes texts, without tokens before and after them.
    """

    special: dict[str, int]
    added: dict[str, int]
    prefix: str
    bos: str
    eos: str

    def protect(self, control: frozenset[str], /) -> None: ...
    def encode(self, texts: Sequence[ChatText], /) -> list[Encoded]: ...


def make_offset_tokenizer(tokenizer: Any) -> OffsetTokenizer:
    """Return a tokenizer with offsets, from an object of one of four packages.

    Args:
        tokenizer: a tokenizer of transformers, tokenizers, tiktoken or sentencepiece.

    Raises:
        ConfigError: if it has no offsets, as those in Python of transformers.
    """
    package = type(tokenizer).__module__.partition(".")[0]
    if package == "tiktoken":
        return _TiktokenTokenizer(tokenizer)
    if package == "sentencepiece":
        return _SentencePieceTokenizer(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "encode_batch") and hasattr(backend, "to_str"):
        return _HuggingFaceTokenizer(backend)
    raise ConfigError(
        f"Chat: {type(tokenizer).__name__} gives no offsets of tokens, so answers cannot be found in "
        "them: give a fast tokenizer (one with tokenizer.json), or one of tiktoken or sentencepiece"
    )


def find_special_token(tokenizer: Any, token: str) -> int | None:
    """Return the id of a special token of tiktoken or sentencepiece; `None` if there is none.

    Args:
        tokenizer: an object of a package, or a function.
        token: the text of the token.
    """
    if type(tokenizer).__module__.partition(".")[0] not in ("tiktoken", "sentencepiece"):
        return None
    offset = make_offset_tokenizer(tokenizer)
    return {**offset.added, **offset.special}.get(token)


def mask_tokens(encoded: Encoded, text: str, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Return for each token whether it belongs to one of the spans.

    A token belongs to a span if its first character does. White space at the start of a token does
    not count: the token " Yes" belongs to an answer "Yes" behind a space of the template.

    Args:
        encoded: tokens with offsets.
        text: the text.
        spans: spans of characters.
    """
    mask = np.zeros(len(encoded.ids), np.bool_)
    for begin, stop in spans:
        low, before = encoded.find(begin)
        if before < begin and text[before:begin].isspace():
            low = encoded.find(before)[0]
        mask[low : encoded.find(stop)[0]] = True
    return mask


def swap_slash(token: str) -> str:
    """Return the other token of a pair such as <think> and </think>.

    Args:
        token: one of them.
    """
    return token.replace("</", "<", 1) if token.startswith("</") else token.replace("<", "</", 1)


class _Offsets:
    """Tokens with lists of their first characters, which never fall, and of their ends."""

    def __init__(self) -> None:
        self.ids, self._starts, self._ends = list[int](), list[int](), list[int]()

    def append(self, number: int, start: int, end: int) -> None:
        self.ids.append(number)
        self._starts.append(start)
        self._ends.append(end)

    def find(self, position: int, /) -> tuple[int, int]:
        index = bisect_left(self._starts, position)
        if index and self._ends[index - 1] > position:
            return index, self._starts[index - 1]
        return index, position


class _Encoding:
    """The tokens of an encoding of the package tokenizers, which finds them without lists.

    Args:
        encoding: the encoding.
        owned: the positions in the text before which the encoded text has a mark.
    """

    def __init__(self, encoding: Any, owned: Sequence[int] = ()) -> None:
        self.ids: list[int] = encoding.ids
        self._encoding, self._owned = encoding, owned
        self._marks = [position + number for number, position in enumerate(owned)]

    def find(self, position: int, /) -> tuple[int, int]:
        marked = position + bisect_left(self._owned, position)
        index, start = self._find(marked)
        return index, position if start == marked else start - bisect_left(self._marks, start)

    def _find(self, position: int) -> tuple[int, int]:
        encoding, count = self._encoding, len(self.ids)
        if not count or position >= encoding.token_to_chars(count - 1)[1]:
            return count, position
        index: int | None = encoding.char_to_token(position)
        behind = position
        while index is None:  # no token has this character, such as a space between words
            behind += 1  # the last token ends behind it
            index = encoding.char_to_token(behind)
        start: int = encoding.token_to_chars(index)[0]
        if start >= position:
            return index, position
        while index < count and encoding.token_to_chars(index)[0] < position:
            index += 1
        return index, start


class TextEncoder:
    """Encodes special tokens in texts as text.

    Args:
        tokenizer: an object of tokenizers, or a fast one of transformers.
        allowed: special tokens that stay tokens, or "all".

    Raises:
        ConfigError: if the tokenizer lacks an allowed token.
    """

    def __init__(self, tokenizer: Any, allowed: Sequence[str]) -> None:
        self._tokenizer = make_offset_tokenizer(tokenizer)
        known = {*self._tokenizer.special, *self._tokenizer.added}
        if allowed != "all" and (unknown := sorted({*allowed} - known)):
            raise ConfigError(
                f"Tokenize(allowed_special={tuple(allowed)}): the tokenizer has no special token "
                f"{unknown[0]!r}; it has {', '.join(sorted(known)[:8]) or 'none'}"
            )
        special = () if allowed == "all" else {*self._tokenizer.special} - {*allowed}
        self._tokenizer.protect(frozenset(special))
        self._pattern = match_any(special)

    def contains(self, text: str) -> bool:
        """Return whether a text has a special token that is not allowed."""
        return self._pattern.search(text) is not None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self._tokenizer.encode([ChatText(text.replace(CONTROL_PREFIX, "\ufffd"), [])])[0].ids


def match_any(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of texts, in which longer ones win; one that never matches for none.

    Args:
        tokens: the texts.
    """
    longest_first = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


class _HuggingFaceTokenizer:
    """A tokenizer of the package tokenizers.

    A second tokenizer encodes texts with control tokens in the data. In it, each control token
    begins with a noncharacter, which the input has before the control tokens of the template only.
    """

    def __init__(self, backend: Any) -> None:
        self._backend: Any = type(backend)
        self._control = frozenset[str]()
        self._content: str = backend.to_str()
        self._tokenizer, self._protected = self._load(self._content), None
        tokens = backend.get_added_tokens_decoder().items()
        self.special: dict[str, int] = {
            token.content: number for number, token in tokens if token.special
        }
        self.added: dict[str, int] = {
            token.content: number for number, token in tokens if not token.special
        }
        bare, full = (
            backend.encode("a", add_special_tokens=special).tokens for special in (False, True)
        )
        self.prefix: str = full[0] if full[:1] != bare[:1] and full[0] in self.special else ""
        self.bos, self.eos = self._find_ends(bare, full) if bare else ("", "")

    def _find_ends(self, bare: list[str], full: list[str]) -> tuple[str, str]:
        """Return the tokens that the post-processor adds on each side, if it is one token each.

        Several tokens, such as one of a language beside another, tell nothing.
        """
        starts = range(len(full) - len(bare) + 1)
        start = next((i for i in starts if full[i : i + len(bare)] == bare), 0)
        before, after = full[:start], full[start + len(bare) :]
        bos, eos = (
            side[0] if len(side) == 1 and side[0] in self.special else ""
            for side in (before, after)
        )
        return bos, eos

    def _load(self, content: str) -> Any:
        tokenizer: Any = self._backend.from_str(content)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.post_processor = None  # it would trim offsets, and add tokens of its own
        return tokenizer

    def protect(self, control: frozenset[str], /) -> None:
        self._control = control

    def encode(self, texts: Sequence[ChatText], /) -> list[Encoded]:
        plain = [entry.text for entry in texts if entry.owned is None]
        if len(plain) == 1:
            encodings = iter([self._tokenizer.encode(plain[0], add_special_tokens=False)])
        else:
            encodings = iter(self._tokenizer.encode_batch(plain, add_special_tokens=False))
        return [
            _Encoding(next(encodings))
            if entry.owned is None
            else self._encode_protected(entry.text, entry.owned)
            for entry in texts
        ]

    def _encode_protected(self, text: str, owned: list[Span]) -> Encoded:
        if self._protected is None:
            self._protected = self._load(self._rename_control_tokens())
        starts = [start for start, _ in owned]
        edges = [0, *starts, len(text)]
        pieces = [text[start:stop] for start, stop in pairwise(edges)]
        marked = CONTROL_PREFIX.join(pieces)
        return _Encoding(self._protected.encode(marked, add_special_tokens=False), starts)

    def _rename_control_tokens(self) -> str:
        """Return the tokenizer with a noncharacter before each control token, under its old id."""

        def rename(token: Any) -> Any:
            return CONTROL_PREFIX + token if token in self._control else token

        content: Any = json.loads(self._content)
        for token in content["added_tokens"]:
            if token["content"] in self._control:
                token |= {"content": rename(token["content"]), "normalized": False}
        model: dict[str, Any] = content["model"]
        vocab: Any = model["vocab"]
        if isinstance(vocab, dict):
            items = cast("dict[str, int]", vocab).items()
            model["vocab"] = {rename(token): number for token, number in items}
        else:
            model["vocab"] = [[rename(token), score] for token, score in vocab]
        if model.get("unk_token") is not None:
            model["unk_token"] = rename(model["unk_token"])
        if "merges" in model:
            merges = cast("list[Any]", model["merges"])
            pairs: list[list[str]] = [
                merge.split(" ") if isinstance(merge, str) else list(merge) for merge in merges
            ]
            model["merges"] = [
                pair for pair in pairs if self._control.isdisjoint([*pair, "".join(pair)])
            ]
        content["post_processor"] = None
        return json.dumps(content)


class _SplittingTokenizer:
    """Encodes the control tokens of the template by their ids, and the texts between them."""

    special: dict[str, int]
    added: dict[str, int]
    prefix = bos = eos = ""

    def __init__(self) -> None:
        self._control, self._pattern = frozenset[str](), re.compile("(?!)")

    def protect(self, control: frozenset[str], /) -> None:
        self._control = control
        self._pattern = match_any({*self.special, *self.added})

    def encode(self, texts: Sequence[ChatText], /) -> list[Encoded]:
        return [self._encode(entry.text, entry.owned) for entry in texts]

    def _encode(self, text: str, owned: list[Span] | None) -> Encoded:
        result, previous = _Offsets(), 0
        ids = {**self.added, **self.special}
        for match in self._pattern.finditer(text):
            start, end = match.span()
            if match[0] in self._control and owned is not None and (start, end) not in owned:
                end = start = start + 1  # text: cut it behind its first character
            self._append_text(result, text, previous, start)
            if end > start:
                result.append(ids[match[0]], start, end)
            previous = end
        self._append_text(result, text, previous, len(text))
        return result

    def _append_text(self, result: _Offsets, text: str, start: int, end: int) -> None:
        for number, first, last in self._encode_text(text[start:end], start == 0):
            result.append(number, start + first, start + last)

    def _encode_text(self, text: str, is_first: bool) -> Iterable[tuple[int, int, int]]:
        """Yield the ids of a text without control tokens, and their first and last characters."""
        raise NotImplementedError


class _TiktokenTokenizer(_SplittingTokenizer):
    def __init__(self, encoding: Any) -> None:
        super().__init__()
        self._encoding = encoding
        self.special, self.added = dict(encoding._special_tokens), {}
        self.eos = _END_OF_TEXT if _END_OF_TEXT in self.special else ""

    def _encode_text(self, text: str, is_first: bool) -> Iterator[tuple[int, int, int]]:
        ids = self._encoding.encode_ordinary(text)
        starts: list[int] = self._encoding.decode_with_offsets(ids)[1]
        yield from zip(ids, starts, [*starts[1:], len(text)], strict=False)


class _SentencePieceTokenizer(_SplittingTokenizer):
    """A model of sentencepiece.

    The model puts a space before every text. Behind a control token there is none: such a text is
    encoded behind a character that no piece contains, whose tokens are cut off.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        pieces = {model.id_to_piece(number): number for number in range(len(model))}
        control = {piece for piece, number in pieces.items() if model.is_control(number)}
        # The package does not say which pieces are symbols of the user: they look like these.
        symbols = {
            piece
            for piece, number in pieces.items()
            if re.fullmatch(r"<[^<>\s]+>|\[[^\[\]\s]+\]", piece)
            and not (model.is_byte(number) or model.is_unknown(number))
        }
        pairs = {token for token in symbols - control if swap_slash(token) in symbols - control}
        self.special = {piece: pieces[piece] for piece in control | symbols - pairs}
        self.added = {piece: pieces[piece] for piece in pairs}
        self.bos, self.eos = (
            model.id_to_piece(number) if number >= 0 else ""
            for number in (model.bos_id(), model.eos_id())
        )
        self._guard = [number for number, _, _ in self._encode_pieces(CONTROL_PREFIX)]

    def _encode_pieces(self, text: str) -> list[tuple[int, int, int]]:
        if hasattr(self._model, "encode_as_offset_mapping"):
            mapping = self._model.encode_as_offset_mapping(text)
            return [
                (number, start, end)
                for number, (start, end) in zip(mapping["ids"], mapping["offsets"], strict=True)
            ]
        pieces = self._model.encode(text, out_type="immutable_proto").pieces
        return [(piece.id, piece.begin, piece.end) for piece in pieces]

    def _encode_text(self, text: str, is_first: bool) -> Iterator[tuple[int, int, int]]:
        guard = [] if is_first or not text else self._guard
        pieces = self._encode_pieces((CONTROL_PREFIX if guard else "") + text)
        if [number for number, _, _ in pieces[: len(guard)]] != guard:
            guard, pieces = [], self._encode_pieces(text)
        for number, start, end in pieces[len(guard) :]:
            yield number, start - bool(guard), end - bool(guard)
