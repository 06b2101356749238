"""Batched tokenizing of rows, with a tokenizer of `transformers` or `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, DataError, make_missing_extra_error
from ...text import Tokenize
from .config import DatasetConfig, PipelineConfig, TokenizerConfig


class TokenizedRows:
    """Tokenize rows in batches: `input_ids`, `attention_mask`, and the extra fields."""

    def __init__(self, tokenizer: Any, call: TokenizerConfig, dataset: DatasetConfig) -> None:
        self._tokens, self._dataset = Tokenize(_Call(tokenizer, call)), dataset
        self._mask, self._extra_fields = (
            call.return_attention_mask,
            list(dataset.additional_fields or ()),
        )
        self.__qualname__ = f"tokenize(max_length={call.max_length}, vocabulary={len(tokenizer)})"

    def __call__(self, row: Any) -> dict[str, Any]:
        return self.many([row])[0]

    def many(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Tokenize a batch of rows."""
        token_rows = self._tokens.many([self._text(row) for row in rows])
        return [self._row(tokens, row) for tokens, row in zip(token_rows, rows, strict=True)]

    def _row(self, tokens: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        mask = {"attention_mask": np.ones_like(tokens)} if self._mask else {}
        return {
            "input_ids": tokens,
            **mask,
            **{name: self._field(row, name) for name in self._extra_fields},
        }

    def _text(self, row: Mapping[str, Any]) -> str:
        text = self._field(row, self._dataset.content_field)
        if not isinstance(text, str):
            raise DataError(
                f"the field {self._dataset.content_field!r} is a {type(text).__name__}, not a "
                "text: set content_field",
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
        truncate = call.truncation and call.max_length is not None
        self._tokenizer, self._special = tokenizer, call.add_special_tokens
        self._truncation: dict[str, Any] = {
            "truncation": truncate,
            "max_length": call.max_length if truncate else None,
        }
        self([""])  # apply the settings now, before threads call the tokenizer concurrently

    def __call__(self, texts: list[str]) -> Any:
        return self._tokenizer(
            texts, **self._truncation, padding=False, add_special_tokens=self._special
        )["input_ids"]


class Formatted:
    """Apply `format_callback` and `format_fields` to rows."""

    def __init__(
        self, name: str, callback: Callable[[Any], Any] | None, fields: Mapping[str, str] | None
    ) -> None:
        self._name, self._callback, self._fields = name, callback, dict(fields or {})

    def __call__(self, row: Any) -> dict[str, Any]:
        row = self._callback(row) if self._callback is not None else row
        if not isinstance(row, Mapping):
            raise DataError(
                f"a row is a {type(row).__name__}, not a mapping: return a mapping from "
                "format_callback",
                where=self._name,
            )
        fields = cast("Mapping[str, Any]", row)
        return {self._fields.get(name, name): value for name, value in fields.items()}


def tokenizer_of(config: PipelineConfig, dataset: DatasetConfig) -> TokenizerConfig | Any:
    """Return the tokenizer setting of a dataset; the most specific one wins."""
    tokenizer = dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"dataset {dataset.name!r} has no tokenizer: give DatasetConfig(tokenizer=...) or "
            "PipelineConfig(default_tokenizer=...)"
        )
    return tokenizer


def load_tokenizer(tokenizer: Any, options: Mapping[str, Any]) -> Any:
    """Load a tokenizer from an object, a `tokenizer.json`, a local folder, or a hub name."""
    if not isinstance(tokenizer, str | TokenizerConfig):
        return tokenizer
    try:
        import transformers  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("transformers", "hf", "tokenizing") from error
    library = cast(Any, transformers)
    config = tokenizer if isinstance(tokenizer, TokenizerConfig) else TokenizerConfig(tokenizer)
    if Path(config.name_or_path).suffix == ".json":
        return library.PreTrainedTokenizerFast(tokenizer_file=config.name_or_path, **options)
    return library.AutoTokenizer.from_pretrained(
        config.name_or_path, **{"trust_remote_code": config.trust_remote_code, **options}
    )
