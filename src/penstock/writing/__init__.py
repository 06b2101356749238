"""Datasets written to files: shards of samples by any number of workers, resumable; rows of streams in their order."""

from __future__ import annotations

from .rows import RowFormat, write_rows
from .shard import ShardFormat
from .shards import write

__all__ = ["RowFormat", "ShardFormat", "write", "write_rows"]
