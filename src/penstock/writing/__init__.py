"""Datasets written to files: shards of samples, by any number of workers, resumable."""

from __future__ import annotations

from .shard import ShardFormat
from .shards import write_shards

__all__ = ["ShardFormat", "write_shards"]
