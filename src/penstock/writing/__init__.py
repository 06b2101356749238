"""Datasets written to files: shards of samples by any number of workers, resumable; rows of streams
in their order; and whether all of it can be read."""

from __future__ import annotations

from .rows import RowFormat, write_rows
from .shard import ShardFormat
from .shards import write
from .verify import Damage, Problem, Verified, verify

__all__ = [
    "Damage",
    "Problem",
    "RowFormat",
    "ShardFormat",
    "Verified",
    "verify",
    "write",
    "write_rows",
]
