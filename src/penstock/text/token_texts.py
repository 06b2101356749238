"""The text of each token, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ConfigError
from .tokenize import locate_tokenizer, open_tokenizer

_REPLACEMENT = "\ufffd"  # a decoder gives it for a part of a character
_LONGEST_CHARACTER = 8  # tokens; more of them that give no text are no part of a character


class TokenTexts:
    """Decodes tokens one by one, as they appear in the decoded text.

    The text of a token is the difference between two decodings, without it and with it, of a few
    tokens in front of it. This keeps spaces and joined characters, as in the incremental decoding of
    text-generation-inference (Hugging Face). A character of several tokens is the text of the last.

    Args:
        tokenizer: what `Chat` takes.

    Raises:
        ConfigError: if the tokenizer cannot decode.
    """

    def __init__(self, tokenizer: Any) -> None:
        loaded = open_tokenizer(locate_tokenizer(tokenizer))
        self._decode, self._find_literal = _make_decoder(loaded)

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token.

        Args:
            ids: the tokens.
        """
        texts, tokens = list[str](), list(ids)
        start = read = 0
        for number, token in enumerate(tokens):
            literal = self._find_literal(token)
            if literal is not None:
                self._flush(texts, tokens[start:number], read - start)
                texts.append(literal)
                start = read = number + 1
                continue
            before = self._decode(tokens[start:read])
            after = self._decode(tokens[start : number + 1])
            is_whole = len(after) > len(before) and not after.endswith(_REPLACEMENT)
            if is_whole or number - read >= _LONGEST_CHARACTER:
                texts.append(after[len(before) :])
                start, read = read, number + 1
            else:
                texts.append("")
        self._flush(texts, tokens[start:], read - start)
        return texts

    def _flush(self, texts: list[str], window: list[int], read: int) -> None:
        """Give the last token the text of the tokens that have none so far."""
        if len(window) > read:
            texts[-1] += self._decode(window)[len(self._decode(window[:read])) :]


Decoder = tuple[Callable[[list[int]], str], Callable[[int], str | None]]


def _make_decoder(tokenizer: Any) -> Decoder:
    """Return a function that decodes, and one with the texts of tokens that it does not decode."""
    package = type(tokenizer).__module__.partition(".")[0]
    if package == "tiktoken":

        def find_unknown(token: int) -> str | None:
            try:
                tokenizer.decode_single_token_bytes(token)
            except (KeyError, OverflowError):
                return f"<{token}>"
            return None

        return tokenizer.decode, find_unknown
    if package == "sentencepiece":

        def find_control(token: int) -> str | None:
            if not 0 <= token < len(tokenizer):
                return f"<{token}>"
            is_silent = tokenizer.is_control(token) or tokenizer.is_unknown(token)
            return tokenizer.id_to_piece(token) if is_silent else None

        return tokenizer.decode, find_control
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "id_to_token"):
        raise ConfigError(
            f"{type(tokenizer).__name__} cannot name its tokens: give a tokenizer of transformers (a "
            "fast one), tokenizers, tiktoken or sentencepiece, or its path"
        )

    def find_missing(token: int) -> str | None:
        is_known = token >= 0 and backend.id_to_token(token) is not None
        return None if is_known else f"<{token}>"

    return lambda ids: backend.decode(ids, skip_special_tokens=False), find_missing
