"""torchtitan: its `BaseDataLoader` over a loader, saved by its DCP checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from ..errors import missing_extra
from ..loader import Loader
from .trainers import AllRanks, rest_or_next


@dataclass(frozen=True)
class Place:
    """What torchtitan says of one process.

    Args:
        rank: of the data-parallel group; peers by tensor, context or pipeline parallelism have the same.
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
    """For `Trainer.Config(dataloader=...)`: trains on a loader, whose items are pairs `({"input": ids}, labels)`.

    A checkpoint has the states of all ranks, and loads on another degree of data parallelism. At the end of a pass the
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
    try:
        from torchtitan.components.dataloader import BaseDataLoader  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError:
        raise missing_extra("torchtitan", "torchtitan", "penstock.frames.torchtitan") from None

    base = cast(Any, BaseDataLoader)

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
            local_batch_size: int,
            seq_len: int,
            tokenizer: Any,
            **kwargs: Any,
        ) -> None:
            self._loader = config.make(Place(dp_rank, dp_world_size, local_batch_size, seq_len, tokenizer))

        def __iter__(self) -> Iterator[Any]:
            return rest_or_next(self._loader)

        def state_dict(self) -> dict[str, Any]:
            # DCP fills in the keys that a fresh state has, and no others: a single one, the same on every rank.
            return {"ranks": json.dumps(AllRanks(self._loader).state_dict())}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            AllRanks(self._loader).load_state_dict(json.loads(state_dict["ranks"]))

    return PenstockDataLoader
