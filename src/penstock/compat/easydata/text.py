"""Tokenising rows, many at a time, with a tokenizer of `transformers` or `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, DataError, missing_extra
from ...text import Tokenise
from .config import DatasetConfig, PipelineConfig, TokenizerConfig


class Tokenize:
    """Rows as tokens: `input_ids`, `attention_mask`, and the fields that are kept; many texts a
    call."""

    def __init__(self, tokenizer: Any, call: TokenizerConfig, dataset: DatasetConfig) -> None:
        self._tokens, self._dataset = Tokenise(_Call(tokenizer, call)), dataset
        self._mask, self._kept = call.return_attention_mask, list(dataset.additional_fields or ())
        self.__qualname__ = f"tokenize(max_length={call.max_length}, vocabulary={len(tokenizer)})"

    def __call__(self, row: Any) -> dict[str, Any]:
        return self.many([row])[0]

    def many(self, rows: list[Any]) -> list[dict[str, Any]]:
        """The tokens of many rows."""
        found = self._tokens.many([self._text(row) for row in rows])
        return [self._row(tokens, row) for tokens, row in zip(found, rows, strict=True)]

    def _row(self, tokens: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        mask = {"attention_mask": np.ones_like(tokens)} if self._mask else {}
        return {
            "input_ids": tokens,
            **mask,
            **{name: self._field(row, name) for name in self._kept},
        }

    def _text(self, row: Mapping[str, Any]) -> str:
        text = self._field(row, self._dataset.content_field)
        if not isinstance(text, str):
            raise DataError(
                f"the field {self._dataset.content_field!r} is a {type(text).__name__}, not a text",
                where=str(self._dataset.name),
            )
        return text

    def _field(self, row: Mapping[str, Any], name: str) -> Any:
        if name not in row:
            raise DataError(
                f"a row has no field {name!r}, only {', '.join(row)}: set content_field or "
                "additional_fields",
                where=str(self._dataset.name),
            )
        return row[name]


class _Call:
    """A tokenizer of transformers with the settings of a call."""

    def __init__(self, tokenizer: Any, call: TokenizerConfig) -> None:
        cut = call.truncation and call.max_length is not None
        self._tokenizer, self._special = tokenizer, call.add_special_tokens
        self._cut: dict[str, Any] = {
            "truncation": cut,
            "max_length": call.max_length if cut else None,
        }
        self([""])  # the tokenizer takes its settings over now, not in several threads at once

    def __call__(self, texts: list[str]) -> Any:
        return self._tokenizer(texts, **self._cut, padding=False, add_special_tokens=self._special)[
            "input_ids"
        ]


class Formatted:
    """Rows after `format_callback` and `format_fields`."""

    def __init__(
        self, name: str, callback: Callable[[Any], Any] | None, fields: Mapping[str, str] | None
    ) -> None:
        self._name, self._callback, self._fields = name, callback, dict(fields or {})

    def __call__(self, row: Any) -> dict[str, Any]:
        row = self._callback(row) if self._callback is not None else row
        if not isinstance(row, Mapping):
            raise DataError(f"a row is a {type(row).__name__}, not a mapping", where=self._name)
        found = cast("Mapping[str, Any]", row)
        return {self._fields.get(name, name): value for name, value in found.items()}


def tokenizer_of(config: PipelineConfig, dataset: DatasetConfig) -> TokenizerConfig | Any:
    """What the settings say of a dataset's tokenizer; the nearest wins."""
    found = dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer
    if found is None:
        raise ConfigError(
            f"the dataset {dataset.name!r} has no tokenizer: give DatasetConfig(tokenizer=...) or "
            "PipelineConfig(default_tokenizer=...)"
        )
    return found


def load_tokenizer(given: Any, extra: Mapping[str, Any]) -> Any:
    """A tokenizer: an object that is one, a `tokenizer.json`, a local folder, or a name on the
    hub."""
    if not isinstance(given, str | TokenizerConfig):
        return given
    try:
        import transformers  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise missing_extra("transformers", "hf", "tokenising") from error
    library = cast(Any, transformers)
    call = given if isinstance(given, TokenizerConfig) else TokenizerConfig(given)
    if Path(call.name_or_path).suffix == ".json":
        return library.PreTrainedTokenizerFast(tokenizer_file=call.name_or_path, **extra)
    return library.AutoTokenizer.from_pretrained(
        call.name_or_path, **{"trust_remote_code": call.trust_remote_code, **extra}
    )
