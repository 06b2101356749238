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
            import jax
        except ImportError as error:
            raise make_missing_extra_error("jax", "jax", "ShardByJaxProcess") from error
        api: Any = jax
        super().__init__(api.process_index(), api.process_count(), drop_remainder)
