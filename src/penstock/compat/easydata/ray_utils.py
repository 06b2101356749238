"""Preprocessing by the actors of a Ray cluster: the Ray executor of `penstock.Loader`.

Rows arrive in the order of the source. Needs `pip install 'penstock-data[ray]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...dataset import Dataset
from ...errors import ConfigError
from ...inputs import from_sequence
from ...loader import Loader
from .config import RayConfig, TokenizerConfig, TokenizeStageConfig
from .inputs import dataset_of
from .sharded import get_shard_of
from .text import limit_length, load_tokenizer


@dataclass
class TokenizeBatch:
    """Texts to tokenize.

    Args:
        texts: the texts.
        metadata: other fields of each row.
    """

    texts: list[str]
    metadata: list[dict[str, Any]] | None = None


@dataclass
class TokenizedBatch:
    """Tokens of texts.

    Args:
        input_ids: the tokens of each text.
        attention_masks: the mask of each text.
        metadata: other fields of each row.
    """

    input_ids: list[list[int]] = field(default_factory=list[list[int]])
    attention_masks: list[list[int]] | None = None
    metadata: list[dict[str, Any]] | None = None


class RayTokenizeWorker:
    """Tokenize texts, and rows of a shard; `ray.remote(RayTokenizeWorker)` makes it an actor.

    Args:
        tokenizer_name: name, folder or file of the tokenizer, or the tokenizer.
        max_length: maximum number of tokens of a text.
        trust_remote_code: whether the tokenizer may run its own code.
    """

    def __init__(
        self, tokenizer_name: Any, max_length: int = 2048, trust_remote_code: bool = False
    ) -> None:
        config: Any = tokenizer_name
        if isinstance(config, str):
            config = TokenizerConfig(config, trust_remote_code=trust_remote_code)
        self.tokenizer, self.max_length = load_tokenizer(config, {}), max_length

    def tokenize_batch(self, texts: list[str]) -> TokenizedBatch:
        """Return the tokens of texts.

        Args:
            texts: the texts.
        """
        result = self.tokenizer(
            texts, max_length=self.max_length, truncation=True, return_attention_mask=True
        )
        return TokenizedBatch(result["input_ids"], result["attention_mask"])

    def tokenize_shard(
        self, shard_data: list[dict[str, Any]], content_field: str = "text"
    ) -> list[dict[str, Any]]:
        """Return the rows of a shard with tokens in place of texts.

        Args:
            shard_data: the rows.
            content_field: the text field.
        """
        tokens = self.tokenize_batch([row[content_field] for row in shard_data])
        masks = tokens.attention_masks or []
        return [
            {
                **{name: value for name, value in row.items() if name != content_field},
                "input_ids": ids,
                "attention_mask": mask,
            }
            for row, ids, mask in zip(shard_data, tokens.input_ids, masks, strict=True)
        ]


class RayPreprocessor:
    """Tokenize sources by the actors of a Ray cluster.

    Args:
        config: number of actors.
        tokenizer_config: the tokenizer.
    """

    def __init__(self, config: RayConfig, tokenizer_config: TokenizerConfig | None = None) -> None:
        self._config, self._tokenizer_config = config, tokenizer_config
        self._loaders: list[Loader] = []

    def tokenize_source(self, source: Any, content_field: str = "text") -> Iterator[dict[str, Any]]:
        """Iterate over the rows of a source, with tokens in place of texts.

        Args:
            source: the source.
            content_field: the text field.

        Raises:
            ConfigError: without a tokenizer.
        """
        if self._tokenizer_config is None:
            raise ConfigError("RayPreprocessor: give tokenizer_config=TokenizerConfig(...)")
        call = limit_length(self._tokenizer_config, TokenizeStageConfig().max_length)
        rows = dataset_of(source, "source").map(_TokenizedFields(call, content_field))
        return self._deliver(rows.batch(_ROWS_OF_A_TASK, collate=list))

    def process_shards(
        self, source: Any, process_fn: Callable[[list[Any]], list[Any]]
    ) -> Iterator[Any]:
        """Iterate over the results of a function of all rows of a shard, shard by shard.

        Args:
            source: the source.
            process_fn: function from the rows of a shard to rows.
        """
        shards = from_sequence(list(source.shard_names)).map(_ProcessedShard(source, process_fn))
        return self._deliver(shards)

    def _deliver(self, lists: Dataset) -> Iterator[Any]:
        workers = self._config.num_workers
        loader = Loader(lists, workers=workers, executor="ray", rank=0, world_size=1)
        self._loaders.append(loader)
        with loader:
            for rows in loader:
                yield from rows

    def shutdown(self) -> None:
        """End the actors."""
        while self._loaders:
            self._loaders.pop().close()


_ROWS_OF_A_TASK = 1_000


class _TokenizedFields:
    """Tokenize the text field of rows; a process loads the tokenizer at its first row."""

    def __init__(self, call: TokenizerConfig, content_field: str) -> None:
        self._call, self._field = call, content_field
        self._worker: RayTokenizeWorker | None = None
        self.__qualname__ = f"tokenize({call!r}, {content_field!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return self.many([row])[0]

    def many(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tokenize rows."""
        if self._worker is None:
            self._worker = RayTokenizeWorker(self._call, self._call.max_length or 0)
        return self._worker.tokenize_shard(rows, self._field)


class _ProcessedShard:
    """Apply a function to all rows of a shard."""

    def __init__(self, source: Any, fn: Callable[[list[Any]], list[Any]]) -> None:
        self._source, self._fn = source, fn
        self.__qualname__ = f"process_shard({getattr(fn, '__qualname__', type(fn).__qualname__)})"

    def __call__(self, name: str) -> list[Any]:
        return self._fn(list(get_shard_of(self._source, name)))


def tokenize_with_ray(
    source: Any,
    tokenizer: str,
    num_workers: int = 4,
    max_length: int = 2048,
    content_field: str = "text",
) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a source with tokens in place of texts, made by Ray actors.

    Args:
        source: the source.
        tokenizer: the tokenizer.
        num_workers: number of actors.
        max_length: maximum number of tokens of a text.
        content_field: the text field.
    """
    config = TokenizerConfig(tokenizer, max_length=max_length)
    return RayPreprocessor(RayConfig(True, num_workers), config).tokenize_source(
        source, content_field
    )


def parallel_process_shards(
    source: Any, process_fn: Callable[[list[Any]], list[Any]], num_workers: int = 4
) -> Iterator[Any]:
    """Iterate over the results of a function of all rows of a shard, made by Ray actors.

    Args:
        source: the source.
        process_fn: function from the rows of a shard to rows.
        num_workers: number of actors.
    """
    return RayPreprocessor(RayConfig(True, num_workers)).process_shards(source, process_fn)
