"""The protocol of sharded sources, and sources that transform or limit another one."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Self, TypeVar, cast

from ...dataset import Dataset
from ...engine.runtime.iterator import DatasetIterator
from ...errors import ConfigError, DataError, Skip
from .chat_transforms import (
    ChatTemplateTransform,
    ConvertInputOutputToChatML,
    ConvertToChatML,
    MaybeApplyChatTemplate,
)
from .inputs import dataset_of
from .row_transforms import (
    AddField,
    ChainedTransform,
    CombineFields,
    DropFields,
    Example,
    ExtractField,
    FilterTransform,
    MapField,
    MapTransform,
    RenameFields,
    SelectFields,
    expand_row,
    identify,
)

T = TypeVar("T")

_ROW_MAPS = (
    AddField,
    ChatTemplateTransform,
    CombineFields,
    ConvertInputOutputToChatML,
    ConvertToChatML,
    DropFields,
    ExtractField,
    MapField,
    MapTransform,
    MaybeApplyChatTemplate,
    RenameFields,
    SelectFields,
)
"""Transforms that make one row of each, so that sources keep their random access."""


@dataclass
class ShardInfo:
    """Facts about a shard; None if unknown.

    Args:
        shard_id: index of the shard.
        shard_name: its name.
        num_rows: number of rows.
        byte_size: size of its file.
        url: path of its file.
        checksum: digest of its content.
    """

    shard_id: int
    shard_name: str
    num_rows: int | None = None
    byte_size: int | None = None
    url: str | None = None
    checksum: str | None = None


class ShardedDataSource(ABC, Generic[T]):
    """Base of sharded sources: named shards, each an iterable of rows.

    A subclass defines `shard_names` and `open_shard`, and `open_shard_at_row` if it can seek.
    `dataset` is the whole source as a Penstock dataset. Where EasyDeL is loaded, its trainers
    accept these sources as their own.

    >>> class Words(ShardedDataSource):
    ...     shard_names = ("a", "b")
    ...     def open_shard(self, shard_name):
    ...         return iter([{"text": f"{shard_name}{i}"} for i in range(2)])
    >>> [row["text"] for row in Words().map(lambda row: {"text": row["text"].upper()}).iter_shards()]
    ['A0', 'A1', 'B0', 'B1']
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        _register_with_easydel(cls)
        return super().__new__(cls)

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """Names of the shards, in order."""

    @abstractmethod
    def open_shard(self, shard_name: str) -> Iterator[T]:
        """Iterate over the rows of a shard.

        Args:
            shard_name: name of the shard.
        """

    @property
    def dataset(self) -> Dataset:
        """All shards, one after the other."""
        return dataset_of(_Shards(self), type(self).__name__)

    def num_shards(self) -> int:
        """Return the number of shards."""
        return len(self.shard_names)

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no len()")

    def __iter__(self) -> Iterator[T]:
        return iter(self.dataset)

    def __getitem__(self, index: int) -> T:
        return self.dataset[index]

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return facts about a shard, or None.

        Args:
            shard_name: name of the shard.
        """
        return None

    def open_shard_at_row(self, shard_name: str, row: int) -> Iterator[T]:
        """Iterate over the rows of a shard from a row on; empty beyond the end.

        Args:
            shard_name: name of the shard.
            row: index of the first row.
        """
        return islice(self.open_shard(shard_name), row, None)

    def iter_shards(
        self,
        shard_indices: Sequence[int] | None = None,
        start_shard: int = 0,
        start_row: int = 0,
    ) -> Iterator[T]:
        """Iterate over shards, one after the other.

        Args:
            shard_indices: indices of the shards; all by default.
            start_shard: number of the first shard, counted in `shard_indices`.
            start_row: first row of that shard.
        """
        indices = range(self.num_shards()) if shard_indices is None else shard_indices
        for number, index in enumerate(indices[start_shard:]):
            name = self.shard_names[index]
            yield from self.open_shard_at_row(name, start_row if number == 0 else 0)

    # ------------------------------------------------------------ transforms

    def map(self, fn: Callable[[T], Any]) -> MappedShardedDataSource:
        """Return a source with a function applied to every row.

        Args:
            fn: function of a row.
        """
        return MappedShardedDataSource(self, fn)

    def filter(self, predicate: Callable[[T], Any]) -> TransformedShardedSource:
        """Return a source with the rows for which a function is true.

        Args:
            predicate: function of a row.
        """
        return self.transform(FilterTransform(cast(Any, predicate)))

    def transform(self, transform: Any) -> TransformedShardedSource:
        """Return a source with a transform, or a chain of them, applied to every row.

        Args:
            transform: the transform.
        """
        return TransformedShardedSource(self, transform)

    def rename_fields(self, mapping: Mapping[str, str]) -> TransformedShardedSource:
        """Return a source with other names of fields.

        Args:
            mapping: old name -> new name.
        """
        return self.transform(RenameFields(mapping))

    def select_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source with only these fields.

        Args:
            fields: names of the fields.
        """
        return self.transform(SelectFields(fields))

    def drop_fields(self, fields: Sequence[str]) -> TransformedShardedSource:
        """Return a source without these fields.

        Args:
            fields: names of the fields.
        """
        return self.transform(DropFields(fields))

    def apply_chat_template(
        self,
        tokenizer: Any,
        messages_field: str = "messages",
        output_field: str = "text",
        **kwargs: Any,
    ) -> TransformedShardedSource:
        """Return a source with messages rendered as text.

        Args:
            tokenizer: a tokenizer with a chat template.
            messages_field: field with the messages.
            output_field: field for the text.
            **kwargs: other arguments of `ChatTemplateTransform`.
        """
        return self.transform(
            ChatTemplateTransform(tokenizer, messages_field, output_field, **kwargs)
        )


class ShardedSource(ShardedDataSource[Any]):
    """Base of the sources of this package; `dataset` is the whole source as a Penstock dataset.

    `open_shard` returns an iterator with `state_dict()` and `load_state_dict()`.
    `open_shard_at_row` seeks in constant time if rows have random access (files, map-style
    datasets, mixtures of these).
    """

    @property
    @abstractmethod
    def dataset(self) -> Dataset:
        """All shards, concatenated."""

    @abstractmethod
    def _shard(self, name: str) -> Dataset: ...

    def __len__(self) -> int:
        return len(self.dataset)

    def open_shard(self, shard_name: str) -> DatasetIterator:
        """Iterate over the rows of a shard.

        Args:
            shard_name: name of the shard.
        """
        return iter(self.get_shard(shard_name))

    def open_shard_at_row(self, shard_name: str, row: int) -> DatasetIterator:
        """Iterate over the rows of a shard from a row on; empty beyond the end.

        Args:
            shard_name: name of the shard.
            row: index of the first row.
        """
        rows = self.open_shard(shard_name)
        rows._session.seek(row, counted=False)  # pyright: ignore[reportPrivateUsage]  # resume from a row number, without a state
        return rows

    def get_shard(self, name: str) -> Dataset:
        """Return a shard as a Penstock dataset.

        Args:
            name: name of the shard.

        Raises:
            ConfigError: for an unknown name.
        """
        if name not in self.shard_names:
            raise ConfigError(
                f"unknown shard {name!r}; the shards are {', '.join(self.shard_names)}"
            )
        return self._shard(name)

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return facts about a shard: its index, name, and number of rows if known.

        Args:
            shard_name: name of the shard.
        """
        shard = self.get_shard(shard_name)
        rows = len(shard) if shard.tree.reason_not_indexed is None else None
        return ShardInfo([*self.shard_names].index(shard_name), shard_name, rows)


def get_shard_of(source: Any, name: str) -> Dataset:
    """Return a shard of any sharded source as a Penstock dataset.

    Args:
        source: the source.
        name: name of the shard.
    """
    if isinstance(source, ShardedSource):
        return source.get_shard(name)
    return dataset_of(_Shards(source, [name]), name)


class _Shards:
    """Shards of a source of another class, without its own `dataset`."""

    def __init__(self, source: Any, names: Sequence[str] | None = None) -> None:
        self._source, self.shard_names = source, list(names or source.shard_names)
        if hasattr(source, "open_shard_at_row"):
            self.open_shard_at_row: Callable[..., Any] = source.open_shard_at_row

    def open_shard(self, name: str) -> Any:
        return self._source.open_shard(name)


# ---------------------------------------------------------------- transformed sources


class SourceOverShards(ShardedSource):
    """A source with the shards of another; subclasses set `_source` and `_dataset`."""

    _source: Any
    _dataset: Dataset

    @property
    def shard_names(self) -> list[str]:
        """Names of the shards of the source."""
        return list(self._source.shard_names)

    @property
    def dataset(self) -> Dataset:
        """The samples of all shards."""
        return self._dataset


class TransformedShardedSource(SourceOverShards):
    """Apply a transform to every row of a source.

    Rows of `open_shard_at_row` count after the transform. The length is the length of the source;
    there is none if the transform may drop or add rows.

    Args:
        source: the source.
        transform: a `Transform`, an `ExpandTransform`, or another callable of the same form.

    >>> from penstock.compat.easydata import FilterByField, HFDatasetShardedSource
    >>> source = HFDatasetShardedSource([{"x": i} for i in range(6)])
    >>> odd = TransformedShardedSource(source, FilterByField("x", lambda x: x % 2))
    >>> list(odd.open_shard_at_row("hf_dataset:0", 1))
    [{'x': 3}, {'x': 5}]
    """

    def __init__(self, source: Any, transform: Any) -> None:
        self._source, self._transform = source, transform
        self._dataset = _apply(dataset_of(source, "source"), transform)

    def _shard(self, name: str) -> Dataset:
        return _apply(get_shard_of(self._source, name), self._transform)

    def __len__(self) -> int:
        if self._dataset.tree.reason_not_indexed is None or _may_drop(self._transform):
            return len(self._dataset)
        return len(self._source)

    def __repr__(self) -> str:
        return f"TransformedShardedSource({self._source!r}, {self._transform!r})"


class MappedShardedDataSource(TransformedShardedSource):
    """Apply a function to every row of a source.

    Args:
        source: the source.
        fn: function of a row.
    """

    def __init__(self, source: Any, fn: Callable[[Any], Any]) -> None:
        super().__init__(source, MapTransform(fn))


class LimitedShardedSource(SourceOverShards):
    """The first rows of a source, counted over its shards in order.

    Args:
        source: the source.
        max_rows: maximum number of rows.

    >>> from penstock.compat.easydata import CompositeShardedSource, HFDatasetShardedSource
    >>> parts = [HFDatasetShardedSource([{"x": i} for i in range(3)], name) for name in "ab"]
    >>> limited = LimitedShardedSource(CompositeShardedSource(parts), 4)
    >>> [len(list(limited.open_shard(name))) for name in limited.shard_names], len(limited)
    ([3, 1], 4)
    """

    def __init__(self, source: Any, max_rows: int) -> None:
        self._source, self._max_rows = source, max(int(max_rows), 0)
        self._dataset = dataset_of(source, "source").limit(self._max_rows)

    def _shard(self, name: str) -> Dataset:
        rows_left = self._max_rows
        for earlier in self.shard_names[: self.shard_names.index(name)]:
            shard = get_shard_of(self._source, earlier).limit(rows_left)
            is_indexed = shard.tree.reason_not_indexed is None
            rows_left -= len(shard) if is_indexed else sum(1 for _ in shard)
        return get_shard_of(self._source, name).limit(rows_left)

    def __len__(self) -> int:
        if self._dataset.tree.reason_not_indexed is None:
            return len(self._dataset)
        return min(self._max_rows, len(self._source))

    def __repr__(self) -> str:
        return f"LimitedShardedSource({self._source!r}, max_rows={self._max_rows})"


def _apply(dataset: Dataset, transform: Any) -> Dataset:
    if getattr(transform, "is_expand", False):
        return dataset.flat_map(_Rows(transform))
    if _makes_one_row(transform):
        return dataset.map(_Row(transform))
    return dataset.map(_RowOrSkip(transform), may_skip=True)


def _makes_one_row(transform: Any) -> bool:
    parts = transform if isinstance(transform, ChainedTransform) else [transform]
    return all(isinstance(part, _ROW_MAPS) for part in parts)


def _may_drop(transform: Any) -> bool:
    return bool(getattr(transform, "is_filter", False) or getattr(transform, "is_expand", False))


class _Row:
    """A transform as a function of the engine; its identity is stored in states."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        self.__qualname__ = identify(transform)

    def __call__(self, row: Example) -> Any:
        if (changed := self._transform(row)) is None:
            raise DataError(
                f"{self.__qualname__} returned None: use FilterTransform to drop rows, or a "
                "Transform of your own"
            )
        return changed


class _RowOrSkip(_Row):
    """A transform that may return None."""

    def __call__(self, row: Example) -> Any:
        if (changed := self._transform(row)) is None:
            raise Skip(f"{self.__qualname__} dropped a row", reason="transform")
        return changed


class _Rows(_Row):
    """A transform that yields rows."""

    def __call__(self, row: Example) -> Any:
        return expand_row([self._transform], row)


_THEIR_PROTOCOLS = "easydel.data.core.protocols"


def _register_with_easydel(kind: type[Any]) -> None:
    """Make a class a virtual subclass of EasyDeL's, which its trainers check."""
    module = sys.modules.get(_THEIR_PROTOCOLS)
    theirs: Any = getattr(module, "ShardedDataSource", None)
    if theirs is not None and not issubclass(kind, theirs):
        theirs.register(kind)
