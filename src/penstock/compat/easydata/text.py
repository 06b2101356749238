"""Batched tokenizing of rows, with a tokenizer of `transformers` or `tokenizers`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...dataset import Dataset
from ...errors import ConfigError, DataError, make_missing_extra_error
from ...text import Tokenize
from .config import DatasetConfig, TokenizerConfig, TokenizeStageConfig
from .inputs import dataset_of
from .sharded import SourceOverShards, get_shard_of


class TokenizedRows:
    """Tokenize rows in batches: `input_ids`, `attention_mask`, and the extra fields."""

    def __init__(
        self,
        tokenizer: Any,
        call: TokenizerConfig,
        dataset: DatasetConfig,
        remove: Sequence[str] = (),
    ) -> None:
        self._tokens, self._dataset = Tokenize(_Call(tokenizer, call)), dataset
        self._mask, self._remove = call.return_attention_mask, tuple(remove)
        self._extra_fields = list(dataset.additional_fields or ())
        self._width = call.max_length or 0 if call.padding == "max_length" else 0
        self._pad = getattr(tokenizer, "pad_token_id", None) or 0
        removed = f", without {', '.join(self._remove)}" if remove else ""
        padded = f", {self._width} wide" if self._width else ""
        self.__qualname__ = (
            f"tokenize(max_length={call.max_length}, vocabulary={len(tokenizer)}{padded}{removed})"
        )

    def __call__(self, row: Any) -> dict[str, Any]:
        return self.many([row])[0]

    def many(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Tokenize a batch of rows."""
        token_rows = self._tokens.many([self._text(row) for row in rows])
        return [self._row(tokens, row) for tokens, row in zip(token_rows, rows, strict=True)]

    def _row(self, tokens: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        missing = (0, max(0, self._width - len(tokens)))
        made = {"input_ids": np.pad(tokens, missing, constant_values=self._pad)}
        if self._mask:
            made["attention_mask"] = np.pad(np.ones_like(tokens), missing)
        made |= {name: self._field(row, name) for name in self._extra_fields}
        return {name: value for name, value in made.items() if name not in self._remove}

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


def limit_length(config: TokenizerConfig, max_length: int | None) -> TokenizerConfig:
    """Return the settings of a tokenizer with a maximum length, unless they have one.

    Args:
        config: the settings.
        max_length: the maximum length; None for none.
    """
    return config if config.max_length is not None else replace(config, max_length=max_length)


class TokenizerManager:
    """Load each tokenizer once; two with other options or other settings of trust are two.

    >>> manager = TokenizerManager()
    """

    def __init__(self) -> None:
        self._tokenizers: dict[str, Any] = {}

    def get_tokenizer(self, config: TokenizerConfig, **extra_kwargs: Any) -> Any:
        """Return the tokenizer of some settings.

        Args:
            config: the settings.
            extra_kwargs: other options to load it.
        """
        key = f"{config.name_or_path!r} {config.trust_remote_code} {sorted(extra_kwargs.items())!r}"
        if key not in self._tokenizers:
            self._tokenizers[key] = load_tokenizer(config, extra_kwargs)
        return self._tokenizers[key]

    def tokenize_text(self, tokenizer: Any, text: str, config: TokenizerConfig) -> dict[str, Any]:
        """Return the tokens of a text, and its attention mask.

        Args:
            tokenizer: the tokenizer.
            text: the text.
            config: the settings of the call.
        """
        return dict(tokenizer(text, **_list_options(config)))

    def tokenize_batch(
        self, tokenizer: Any, texts: list[str], config: TokenizerConfig
    ) -> dict[str, Any]:
        """Return the tokens of texts, and their attention masks.

        Args:
            tokenizer: the tokenizer.
            texts: the texts.
            config: the settings of the call.
        """
        return dict(tokenizer(texts, **_list_options(config)))


def _list_options(config: TokenizerConfig) -> dict[str, Any]:
    return limit_length(config, TokenizeStageConfig().max_length).to_dict()


class TokenizedShardedSource(SourceOverShards):
    """Tokenize the rows of a source: `input_ids`, `attention_mask`, and additional fields.

    Args:
        source: the source.
        tokenizer: the tokenizer.
        tokenizer_config: settings of its calls; 2,048 tokens at most by default.
        content_field: the text field.
        additional_fields: other fields to keep.
        format_callback: returns another row, before tokenizing.
        format_fields: old field name -> new one, after `format_callback`.
    """

    def __init__(
        self,
        source: Any,
        tokenizer: Any,
        tokenizer_config: TokenizerConfig,
        content_field: str = "text",
        additional_fields: Sequence[str] | None = None,
        format_callback: Callable[[Any], Any] | None = None,
        format_fields: Mapping[str, str] | None = None,
    ) -> None:
        self._source = source
        fields = DatasetConfig(
            "rows", content_field=content_field, additional_fields=additional_fields
        )
        call = limit_length(tokenizer_config, TokenizeStageConfig().max_length)
        self._tokenized = TokenizedRows(tokenizer, call, fields)
        self._formatted = Formatted("rows", format_callback, format_fields)
        self._dataset = self._tokenize(dataset_of(source, "source"))

    def _shard(self, name: str) -> Dataset:
        return self._tokenize(get_shard_of(self._source, name))

    def _tokenize(self, dataset: Dataset) -> Dataset:
        return dataset.map(self._formatted).map(self._tokenized)

    def __repr__(self) -> str:
        return f"TokenizedShardedSource({self._source!r}, {self._tokenized.__qualname__})"


def batched_tokenize_iterator(
    source: Any,
    tokenizer: Any,
    tokenizer_config: TokenizerConfig,
    content_field: str = "text",
    batch_size: int = 1000,
    additional_fields: Sequence[str] | None = None,
    format_callback: Callable[[Any], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Iterate over the tokens of a source; the tokenizer gets `batch_size` texts a call.

    Args:
        source: the source.
        tokenizer: the tokenizer.
        tokenizer_config: settings of its calls.
        content_field: the text field.
        batch_size: number of texts in a call.
        additional_fields: other fields to keep.
        format_callback: returns another row, before tokenizing.
    """
    fields = DatasetConfig("rows", content_field=content_field, additional_fields=additional_fields)
    call = limit_length(tokenizer_config, TokenizeStageConfig().max_length)
    rows = dataset_of(source, "source").map(Formatted("rows", format_callback, None))
    batches = rows.batch(batch_size, collate=list)
    return iter(batches.flat_map(TokenizedRows(tokenizer, call, fields).many))


def tokenize_dataset_config(
    source: Any, config: DatasetConfig, global_tokenizer: str | None = None
) -> TokenizedShardedSource:
    """Return the tokenized rows of a source, by the settings of a dataset.

    Args:
        source: the source.
        config: the settings.
        global_tokenizer: the tokenizer if the settings have none.

    Raises:
        ConfigError: without a tokenizer.
    """
    tokenizer = config.get_tokenizer_config() or global_tokenizer
    if tokenizer is None:
        raise make_tokenizer_error(config.name)
    call = TokenizerConfig(tokenizer) if isinstance(tokenizer, str) else tokenizer
    return TokenizedShardedSource(
        source,
        load_tokenizer(call, config.tokenizer_kwargs or {}),
        call if isinstance(call, TokenizerConfig) else TokenizerConfig(""),
        config.content_field,
        config.additional_fields,
        config.format_callback,
        config.format_fields,
    )


def make_tokenizer_error(name: str | None) -> ConfigError:
    """Return the error for a dataset without a tokenizer.

    Args:
        name: name of the dataset.
    """
    return ConfigError(
        f"dataset {name!r} has no tokenizer: give DatasetConfig(tokenizer=...) or "
        "PipelineConfig(default_tokenizer=...)"
    )


def compute_tokenizer_hash(tokenizer_name: str) -> str:
    """Return 16 hexadecimal digits that identify the name of a tokenizer.

    Args:
        tokenizer_name: the name.

    >>> compute_tokenizer_hash("gpt2")
    '238f51b7c7c924fa'
    """
    return hashlib.sha256(tokenizer_name.encode()).hexdigest()[:16]
