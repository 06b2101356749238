"""Sharding of the data across processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, make_missing_extra_error


@dataclass(frozen=True)
class ShardOptions:
    """Shard `shard_index` of `shard_count`; `drop_remainder` makes all shards equally long.

    >>> from penstock.compat.grain import MapDataset
    >>> shard = ShardOptions(1, 3)
    >>> list(MapDataset.range(10)[shard.shard_index :: shard.shard_count])
    [1, 4, 7]
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.shard_index < self.shard_count:
            raise ConfigError(
                f"{self}: give an index from 0 to {self.shard_count - 1}, and at least one shard"
            )


class NoSharding(ShardOptions):
    """All the data in one shard.

    >>> NoSharding()
    NoSharding(shard_index=0, shard_count=1, drop_remainder=False)
    """

    def __init__(self) -> None:
        super().__init__(0, 1)


class ShardByJaxProcess(ShardOptions):
    """The shard of this JAX process."""

    def __init__(self, drop_remainder: bool = False) -> None:
        try:
            import jax  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise make_missing_extra_error("jax", "jax", "ShardByJaxProcess") from error
        super().__init__(*get_process_index_and_count(), drop_remainder)


def get_process_index_and_count() -> tuple[int, int]:
    """Return the index of this JAX process and the number of processes; 0 and 1 without JAX."""
    try:
        import jax
    except ImportError:
        return 0, 1
    api: Any = jax
    return api.process_index(), api.process_count()


def even_split(num_examples: int, options: ShardOptions) -> tuple[int, int]:
    """Return the first record of a shard and the record after its last one.

    The first shards have one record more if the number is no multiple of `shard_count`, unless
    `drop_remainder` makes all shards equally long.

    Args:
        num_examples: the number of records.
        options: the shard.

    >>> [even_split(8, ShardOptions(i, 3)) for i in range(3)]
    [(0, 3), (3, 6), (6, 8)]
    """
    size, remainder = divmod(num_examples, options.shard_count)
    remainder = 0 if options.drop_remainder else remainder
    start = options.shard_index * size + min(options.shard_index, remainder)
    return start, start + size + (options.shard_index < remainder)
