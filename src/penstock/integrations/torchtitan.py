"""torchtitan: its `BaseDataLoader` over a loader, saved by its DCP checkpoints.

Up to 0.3 it stands in `torchtitan.components.dataloader`; since then in
`torchtitan.components.data.loader`, and is told tokens of a batch and of a context in the place of
rows and their length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import ConfigError, missing_extra
from ..loader import Loader
from .trainers import AllRanks, rest_or_next


@dataclass(frozen=True)
class Place:
    """What torchtitan says of one process.

    Args:
        rank: of the data-parallel group; peers by tensor, context or pipeline parallelism have the
            same.
        world_size: of that group.
        batch_size: rows that this process takes at a time.
        seq_len: tokens in a row.
        tokenizer: torchtitan's.

    >>> Place(rank=0, world_size=1, batch_size=8, seq_len=2048, tokenizer=None).batch_size
    8
    """

    rank: int
    world_size: int
    batch_size: int
    seq_len: int
    tokenizer: Any


def data_loader(make: Callable[[Place], Loader]) -> Any:
    """For `Trainer.Config(dataloader=...)`: trains on a loader, whose items are what this
    torchtitan's trainer takes: up to 0.3 pairs `({"input": ids}, labels)`.

    A checkpoint has the states of all ranks, and loads on another degree of data parallelism. At
    the end of a pass the
    training ends too: `repeat()` what is to go on.

    Args:
        make: makes the loader of a process.

    Raises:
        ImportError: where torchtitan is not installed.

    >>> import penstock as ps
    >>> def make(place):
    ...     return ps.Loader(rows(place.seq_len).batch(place.batch_size), rank=place.rank, world_size=place.world_size)
    >>> config = Trainer.Config(dataloader=data_loader(make), ...)  # doctest: +SKIP
    """
    return _data_loader().Config(make=make)


@cache
def _data_loader() -> Any:
    base: Any = _base()

    class PenstockDataLoader(base):
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            make: Callable[[Place], Loader]

        def __init__(
            self,
            config: Any,
            *,
            dp_rank: int,
            dp_world_size: int,
            tokenizer: Any,
            **kwargs: Any,
        ) -> None:
            self._loader = config.make(Place(dp_rank, dp_world_size, *_sizes(kwargs), tokenizer))

        def __iter__(self) -> Iterator[Any]:
            return rest_or_next(self._loader)

        def state_dict(self) -> dict[str, Any]:
            # DCP fills in the keys that a fresh state has, and no others: a single one, the same on
            # every rank.
            return {"ranks": json.dumps(AllRanks(self._loader).state_dict())}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            AllRanks(self._loader).load_state_dict(json.loads(state_dict["ranks"]))

        def close(self) -> None:
            self._loader.close()

    return PenstockDataLoader


def _base() -> Any:
    for name in ("torchtitan.components.data.loader", "torchtitan.components.dataloader"):
        try:
            return import_module(name).BaseDataLoader
        except (ImportError, AttributeError):
            continue
    raise missing_extra("torchtitan", "torchtitan", "penstock.integrations.torchtitan")


def _sizes(told: Mapping[str, Any]) -> tuple[int, int]:
    """Rows of a batch and tokens of a row, as this torchtitan tells them."""
    if "seq_len" in told:
        return told["local_batch_size"], told["seq_len"]
    tokens, most = told["num_tokens_per_batch"], told["max_context_length"]
    if tokens % most:
        raise ConfigError(
            f"torchtitan asks for {tokens} tokens a batch, which are no whole rows of its "
            f"max_context_length={most}: choose a multiple"
        )
    return tokens // most, most
