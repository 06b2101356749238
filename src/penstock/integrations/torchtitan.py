"""torchtitan: its `BaseDataLoader` over a loader, saved by its DCP checkpoints.

Up to 0.3 the class is in `torchtitan.components.dataloader`. Later versions have it in
`torchtitan.components.data.loader`, and pass tokens per batch and per context instead of rows and
their length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import ConfigError, make_missing_extra_error
from ..loader import Loader
from .trainers import AllRanks, iter_rest_or_next


@dataclass(frozen=True)
class ProcessInfo:
    """torchtitan's description of one process.

    Args:
        rank: rank in the data-parallel group; peers by tensor, context or pipeline parallelism
            share it.
        world_size: size of the data-parallel group.
        batch_size: rows per step of this process.
        seq_len: tokens per row.
        tokenizer: torchtitan's tokenizer.

    >>> ProcessInfo(rank=0, world_size=1, batch_size=8, seq_len=2048, tokenizer=None).batch_size
    8
    """

    rank: int
    world_size: int
    batch_size: int
    seq_len: int
    tokenizer: Any


def data_loader(make: Callable[[ProcessInfo], Loader]) -> Any:
    """Return a config for `Trainer.Config(dataloader=...)` that trains on a loader.

    The items of the loader have the form that this torchtitan's trainer takes: up to 0.3 pairs
    `({"input": ids}, labels)`. A checkpoint stores the states of all ranks, and loads on another
    degree of data parallelism. Training ends at the end of a pass: add `repeat()` to continue.

    Args:
        make: makes the loader of a process.

    Raises:
        ImportError: if torchtitan is not installed.

    >>> import penstock as ps
    >>> def make(place):
    ...     return ps.Loader(rows(place.seq_len).batch(place.batch_size), rank=place.rank, world_size=place.world_size)
    >>> config = Trainer.Config(dataloader=data_loader(make), ...)  # doctest: +SKIP
    """
    return _define_loader_class().Config(make=make)


@cache
def _define_loader_class() -> Any:
    base: Any = _import_base_class()

    class PenstockDataLoader(base):
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            make: Callable[[ProcessInfo], Loader]

        def __init__(
            self,
            config: Any,
            *,
            dp_rank: int,
            dp_world_size: int,
            tokenizer: Any,
            **kwargs: Any,
        ) -> None:
            self._loader = config.make(
                ProcessInfo(dp_rank, dp_world_size, *_read_batch_sizes(kwargs), tokenizer)
            )

        def __iter__(self) -> Iterator[Any]:
            return iter_rest_or_next(self._loader)

        def state_dict(self) -> dict[str, Any]:
            # DCP fills only the keys of a fresh state: use a single key, equal on every rank.
            return {"ranks": json.dumps(AllRanks(self._loader).state_dict())}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            AllRanks(self._loader).load_state_dict(json.loads(state_dict["ranks"]))

        def close(self) -> None:
            self._loader.close()

    return PenstockDataLoader


def _import_base_class() -> Any:
    for name in ("torchtitan.components.data.loader", "torchtitan.components.dataloader"):
        try:
            return import_module(name).BaseDataLoader
        except (ImportError, AttributeError):
            continue
    raise make_missing_extra_error("torchtitan", "torchtitan", "penstock.integrations.torchtitan")


def _read_batch_sizes(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows per batch and tokens per row, from either form of torchtitan's arguments."""
    if "seq_len" in arguments:
        return arguments["local_batch_size"], arguments["seq_len"]
    tokens, row_length = arguments["num_tokens_per_batch"], arguments["max_context_length"]
    if tokens % row_length:
        raise ConfigError(
            f"num_tokens_per_batch={tokens} is not a multiple of max_context_length={row_length}: "
            "choose a multiple"
        )
    return tokens // row_length, row_length
