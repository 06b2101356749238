"""Write datasets to files, and verify files.

`write` writes the shards of an indexed dataset with many workers and resumes after a crash.
`write_rows` writes a stream of rows. `verify` reads files completely and reports damage. May import
the engine, sources, stores and the public API below it.
"""

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
