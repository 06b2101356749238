"""Text to token ids, by a tokenizer that a mixture file names."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import seams
from ..errors import ConfigError, DataError, missing_extra


class Tokenise:
    """`int32` token ids of a text field of each sample. The tokenizer is opened when the first text comes.

    `tokenizer` is a `tokenizer.json` (read with the package tokenizers), or a folder or a name on the hub (opened with
    transformers; code that comes with a model is never run). What a local file holds, not where it lies, is part of
    the pipeline's fingerprint.
    """

    def __init__(self, tokenizer: str, field: str = "text", special_tokens: bool = False) -> None:
        self.tokenizer, self.field, self.special_tokens = tokenizer, field, special_tokens
        path = Path(tokenizer)
        file = path / "tokenizer.json" if path.is_dir() else path
        known = tokenizer
        if file.is_file():
            known = hashlib.blake2b(seams.world.store.read(str(file)), digest_size=8).hexdigest()
        elif path.suffix == ".json" or path.is_absolute():
            raise ConfigError(f"there is no tokenizer {tokenizer!r}")
        self.__qualname__ = f"Tokenise({known}, {field}{', special tokens' if special_tokens else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenise, (self.tokenizer, self.field, self.special_tokens)

    def __call__(self, sample: Any) -> npt.NDArray[np.int32]:
        """The tokens of one sample, a mapping."""
        return self.many([sample])[0]

    def many(self, samples: list[Any]) -> list[npt.NDArray[np.int32]]:
        """The tokens of many samples."""
        return [np.asarray(ids, np.int32) for ids in self._encode([self._text(sample) for sample in samples])]

    def token(self, token: str) -> int:
        """The number of a token that is given as text."""
        local = Path(self.tokenizer).is_file()
        found = self._opened.token_to_id(token) if local else self._opened.get_vocab().get(token)
        if found is None:
            raise ConfigError(f"the tokenizer {self.tokenizer!r} has no token {token!r}")
        return int(found)

    def _text(self, sample: Any) -> str:
        text: Any = sample.get(self.field) if isinstance(sample, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(text, str):
            return text
        has = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise DataError(f"tokenise: the field {self.field!r} holds no text; the sample has {has}")

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if Path(self.tokenizer).is_file():
            found = self._opened.encode_batch(texts, add_special_tokens=self.special_tokens)
            return [encoding.ids for encoding in found]
        return self._opened(texts, add_special_tokens=self.special_tokens)["input_ids"]

    @cached_property
    def _opened(self) -> Any:
        package = "tokenizers" if Path(self.tokenizer).is_file() else "transformers"
        try:
            found: Any = importlib.import_module(package)
        except ModuleNotFoundError:
            raise missing_extra(package, "hf", "tokenising") from None
        try:
            if package == "tokenizers":
                return found.Tokenizer.from_file(self.tokenizer)
            return found.AutoTokenizer.from_pretrained(self.tokenizer, trust_remote_code=False)
        except Exception as error:  # the packages raise bare exceptions
            raise ConfigError(f"the tokenizer {self.tokenizer!r} cannot be opened: {error}") from error
