"""Packing of token rows: sources that pack, and packers that a user feeds with documents.

All of them are `penstock.Dataset.pack` or its folds. No token is lost; segments count from 1, and
padding is segment 0 with an attention mask of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...dataset import Dataset
from ...engine.packing import Packing
from ...errors import DataError
from ...types import Item, Part
from .config import DEFAULT_PACKERS, STRATEGIES, PackStageConfig
from .inputs import dataset_of, read_once
from .sharded import ShardedSource
from .tag import SOURCE

Array = npt.NDArray[Any]


@dataclass
class PackedSequence:
    """A packed row.

    Args:
        input_ids: the tokens.
        attention_mask: 1 for tokens, 0 for padding.
        segment_ids: number of the document of each token, from 1; 0 for padding.
        source_ids: the source of each document.
        num_segments: number of documents.
    """

    input_ids: Array
    attention_mask: Array | None = None
    segment_ids: Array | None = None
    source_ids: list[str] | None = None
    num_segments: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the arrays by name."""
        names = ("input_ids", "attention_mask", "segment_ids")
        arrays = {name: getattr(self, name) for name in names}
        return {name: array for name, array in arrays.items() if array is not None}


class _Packer:
    """Base of packers: the fold of `Dataset.pack`, and its carry."""

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int,
        include_segment_ids: bool,
        **options: Any,
    ) -> None:
        self.seq_length, self.include_segment_ids = seq_length, include_segment_ids
        self._packing = Packing(seq_length, eos=eos_token_id, pad=pad_token_id, **options)
        self._fold = self._packing.fold()
        self._carry, self._count = self._fold.init(0), 0

    def _step(
        self, tokens: Sequence[int], source_id: str | None
    ) -> tuple[Any, list[Sequence[Item | Part]]]:
        """Return the carry and the complete groups after a document."""
        document: dict[str, Any] = {"input_ids": np.asarray(tokens, np.int32)}
        if source_id is not None:
            document[SOURCE] = source_id
        item = Item(self._count, self._packing.sizer.of(document), document)
        carry, groups = self._fold.step(self._carry, item)
        return carry, list(groups)

    def _push(self, tokens: Sequence[int], source_id: str | None) -> list[PackedSequence]:
        self._carry, groups = self._step(tokens, source_id)
        self._count += 1
        return [self._build(group) for group in groups]

    def _flush(self) -> list[PackedSequence]:
        groups = self._fold.flush(self._carry)
        self._carry = self._fold.init(0)
        return [self._build(group) for group in groups]

    def _build(self, group: Sequence[Item | Part]) -> PackedSequence:
        row = self._packing.build(cast(Any, group))
        segments = row["segment_ids"]
        mask = (segments > 0).astype(np.int32)
        sources = row.get(SOURCE)
        return PackedSequence(
            row["input_ids"],
            mask,
            segments if self.include_segment_ids else None,
            None if sources is None else list(sources),
            int(segments.max(initial=0)),
        )


class GreedyPacker(_Packer):
    """Concatenate documents, and split them at the end of each row.

    Args:
        seq_length: tokens per row.
        eos_token_id: token after each document.
        pad_token_id: token of the padding.
        include_segment_ids: whether rows get segment ids.

    >>> packer = GreedyPacker(4, eos_token_id=9)
    >>> packer.add([1, 2]), packer.add([3, 4]).input_ids.tolist()
    (None, [1, 2, 9, 3])
    >>> packer.flush_final().to_dict()["attention_mask"].tolist()
    [1, 1, 0, 0]
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
    ) -> None:
        super().__init__(seq_length, eos_token_id, pad_token_id, include_segment_ids)

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> PackedSequence | None:
        """Add a document; return the row that it completes, or None.

        Args:
            tokens: the tokens.
            source_id: name of its source.

        Returns:
            The row, or None.

        Raises:
            DataError: if it completes several rows; `add_long` returns all of them.
        """
        _, groups = self._step(tokens, source_id)
        if len(groups) > 1:
            raise DataError(
                f"a document of {len(tokens)} tokens completes {len(groups)} rows of "
                f"{self.seq_length}, and add() returns one: call add_long(), or use "
                "PackedShardedSource"
            )
        return next(iter(self._push(tokens, source_id)), None)

    def add_long(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Add a document of any length; return all rows that it completes.

        Args:
            tokens: the tokens.
            source_id: name of its source.

        Returns:
            The rows.
        """
        return self._push(tokens, source_id)

    def flush_final(self) -> PackedSequence | None:
        """Return the last row, padded; None if there is none."""
        return next(iter(self._flush()), None)


class _ListPacker(_Packer):
    """A packer that returns lists of rows."""

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Add a document; return the rows that are complete.

        Args:
            tokens: the tokens.
            source_id: name of its source.

        Returns:
            The rows.
        """
        return self._push(tokens, source_id)

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows that remain, padded."""
        return self._flush()


class PoolPacker(_ListPacker):
    """Put each document into the fullest open row with room; only documents over a row are split.

    Args:
        seq_length: tokens per row.
        eos_token_id: token after each document.
        pad_token_id: token of the padding.
        num_packers: number of open rows.
        include_segment_ids: whether rows get segment ids.
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        num_packers: int = DEFAULT_PACKERS,
        include_segment_ids: bool = True,
    ) -> None:
        options: dict[str, Any] = {"method": "best_fit", "window": 1, "open_rows": num_packers}
        super().__init__(seq_length, eos_token_id, pad_token_id, include_segment_ids, **options)
        self.num_packers = num_packers


class FirstFitPacker(_ListPacker):
    """Pack `buffer_size` documents at a time, the longest first; only documents over a row are split.

    Args:
        seq_length: tokens per row.
        eos_token_id: token after each document.
        pad_token_id: token of the padding.
        include_segment_ids: whether rows get segment ids.
        buffer_size: number of documents packed together.
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
        buffer_size: int = 1000,
    ) -> None:
        options: dict[str, Any] = {"method": "best_fit", "window": buffer_size}
        super().__init__(seq_length, eos_token_id, pad_token_id, include_segment_ids, **options)
        self.buffer_size = buffer_size


# ---------------------------------------------------------------- sources


class PackedShardedSource(ShardedSource):
    """Pack the token rows of a source into rows of one length, as one shard.

    Rows have `input_ids`, `attention_mask`, and by default `segment_ids` and `position_ids`.

    Args:
        source: the source.
        seq_length: tokens per row.
        eos_token_id: token after each document.
        pad_token_id: token of the padding.
        strategy: "greedy", "pool" or "first_fit".
        num_packers: open rows of "pool".
        include_segment_ids: whether rows get segment and position ids.
        input_field: field with the tokens.
        shuffle: whether to shuffle packed rows.
        shuffle_buffer_factor: size of the shuffle buffer, in hundreds of rows.
        seed: seed of the shuffle; 0 by default.

    >>> packed = PackedShardedSource([{"input_ids": [1, 2, 3]}], 4, eos_token_id=9, shuffle=False)
    >>> next(packed.open_shard("packed_shard_0"))["input_ids"].tolist()
    [1, 2, 3, 9]
    """

    def __init__(
        self,
        source: Any,
        seq_length: int,
        eos_token_id: int | None,
        pad_token_id: int = 0,
        strategy: str = "greedy",
        num_packers: int = DEFAULT_PACKERS,
        include_segment_ids: bool = True,
        input_field: str = "input_ids",
        shuffle: bool = True,
        shuffle_buffer_factor: int = 10,
        seed: int | None = None,
    ) -> None:
        config = PackStageConfig(
            True,
            seq_length,
            eos_token_id,
            pad_token_id,
            strategy,
            num_packers,
            include_segment_ids,
            shuffle,
            shuffle_buffer_factor,
        )
        rows = dataset_of(source, "source")
        if input_field != "input_ids":
            rows = rows.map(_Tokens(input_field))
        self._dataset, self._config = pack_rows(rows, config, seed), config

    @property
    def shard_names(self) -> list[str]:
        """The single shard name."""
        return ["packed_shard_0"]

    @property
    def dataset(self) -> Dataset:
        """The packed rows."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        return self._dataset

    def __repr__(self) -> str:
        return (
            f"PackedShardedSource(seq_length={self._config.seq_length}, {self._config.strategy!r})"
        )


def pack_rows(dataset: Dataset, config: PackStageConfig, seed: int | None) -> Dataset:
    """Return packed rows of token rows.

    Args:
        dataset: rows with `input_ids`.
        config: the settings.
        seed: seed of the shuffle of packed rows.
    """
    options: dict[str, Any] = {"eos": config.eos_token_id, "pad": config.pad_token_id}
    if config.strategy == "pool":
        options["open_rows"] = config.num_packers or DEFAULT_PACKERS
    rows = dataset.map(tokens_only).pack(config.seq_length, STRATEGIES[config.strategy], **options)
    rows = rows.map(with_segments if config.include_segment_ids else without_segments)
    if not config.shuffle_packed:
        return rows
    return rows.shuffle_buffer(100 * config.shuffle_buffer_factor, seed=seed)


def tokens_only(row: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that packing takes: tokens and provenance."""
    return {
        name: value for name, value in row.items() if name == "input_ids" or name.startswith("__")
    }


def with_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the fields of a packed row to the names of `transformers`."""
    return {
        **without_segments(row),
        "segment_ids": row["segment_ids"],
        "position_ids": row["positions"],
    }


def without_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the document positions of a packed row."""
    fields = {
        name: value for name, value in row.items() if name not in ("segment_ids", "positions")
    }
    return {**fields, "attention_mask": (row["segment_ids"] > 0).astype("int32")}


class _Tokens:
    """Move the tokens of a field to `input_ids`."""

    def __init__(self, field: str) -> None:
        self._field = field
        self.__qualname__ = f"tokens({field!r})"

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        tokens: Array = np.asarray(row[self._field], np.int32)
        provenance = {name: value for name, value in row.items() if name.startswith("__")}
        return {"input_ids": tokens, **provenance}


# ---------------------------------------------------------------- rows of constant length


def pack_pre_tokenized(
    stream: Iterable[Any],
    seq_length: int,
    eos_token_id: int,
    batch_size: int,
    shuffle: bool,
    buffer_factor: int,
) -> Callable[[], Iterator[dict[str, Any]]]:
    """Return a function that iterates over full rows of rows with `tokens`.

    An incomplete last row is dropped, as in EasyData. Rows have NumPy arrays.

    Args:
        stream: rows, or an iterator over them.
        seq_length: tokens per row.
        eos_token_id: token after each document.
        batch_size: rows per batch, for the size of the shuffle buffer.
        shuffle: whether to shuffle rows.
        buffer_factor: batches in the shuffle buffer.

    >>> rows = pack_pre_tokenized([{"tokens": [1, 2]}, {"tokens": [3, 4]}], 3, 9, 1, False, 1)
    >>> [row["input_ids"].tolist() for row in rows()]
    [[1, 2, 9], [3, 4, 9]]
    """
    rows = read_once(stream) if isinstance(stream, Iterator) else dataset_of(stream, "stream")
    buffer_size = batch_size * buffer_factor if shuffle else None
    full_rows = pack_full_rows(rows, "tokens", seq_length, eos_token_id, buffer_size, 0)
    return lambda: iter(full_rows)


def pack_constant_length(
    stream: Iterable[Any],
    tokenize_fn: Callable[[Any], Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    batch_size: int,
    shuffle: bool,
    buffer_factor: int,
) -> Callable[[], Iterator[dict[str, Any]]]:
    """Return a function that iterates over full rows of the tokens that a function makes.

    Args:
        stream: rows, or an iterator over them.
        tokenize_fn: function from a row to its tokens.
        seq_length: tokens per row.
        eos_token_id: token after each document.
        batch_size: rows per batch, for the size of the shuffle buffer.
        shuffle: whether to shuffle rows.
        buffer_factor: batches in the shuffle buffer.
    """
    rows = read_once(stream) if isinstance(stream, Iterator) else dataset_of(stream, "stream")
    tokenized = rows.map(TokensOf(tokenize_fn))
    return pack_pre_tokenized(
        tokenized, seq_length, eos_token_id, batch_size, shuffle, buffer_factor
    )


def pack_full_rows(
    dataset: Dataset,
    field: str,
    seq_length: int,
    eos_token_id: int,
    buffer_size: int | None,
    seed: int,
) -> Dataset:
    """Return full packed rows, `{"input_ids": tokens}`; an incomplete last row is dropped.

    Args:
        dataset: rows with tokens.
        field: field with the tokens.
        seq_length: tokens per row.
        eos_token_id: token after each document.
        buffer_size: rows of the shuffle buffer; None for no shuffle.
        seed: seed of the shuffle.
    """
    rows = dataset.map(_Tokens(field)).map(_only_tokens).pack(seq_length, eos=eos_token_id)
    rows = rows.filter(_is_full).map(_only_tokens)
    return rows if buffer_size is None else rows.shuffle_buffer(buffer_size, seed=seed)


class TokensOf:
    """Make rows with `tokens` by a function of a row.

    Args:
        fn: function from a row to its tokens.
    """

    def __init__(self, fn: Callable[[Any], Sequence[int]]) -> None:
        self._fn = fn
        self.__qualname__ = f"tokens({getattr(fn, '__qualname__', type(fn).__qualname__)})"

    def __call__(self, row: Any) -> dict[str, Any]:
        return {"tokens": self._fn(row)}


def _only_tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": row["input_ids"]}


def _is_full(row: Mapping[str, Any]) -> bool:
    return bool(row["segment_ids"][-1] > 0)
