"""A Penstock dataset as a Hugging Face `IterableDataset`.

Imported only if `datasets` is installed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Self, cast

import datasets  # pyright: ignore[reportMissingTypeStubs]
from datasets.iterable_dataset import (  # pyright: ignore[reportMissingTypeStubs]
    _BaseExamplesIterable,  # pyright: ignore[reportPrivateUsage]
)

from ...dataset import Dataset
from ...engine.runtime.run_options import RunOptions
from ...engine.runtime.session import Session
from ...engine.steps.compiled import Compiled
from ...engine.steps.step import Step
from ...errors import ConfigError

# 2**10 * 3 * 5: an indexed mixture shards evenly into any divisor of this, others skip rows
_SHARES = 15_360


class Examples(_BaseExamplesIterable):
    """The rows of a dataset, or one shard of them; Hugging Face's state embeds Penstock's.

    An indexed dataset is sharded row by row: shard `i` of `n` is rows `i`, `i + n`, ... of the one
    sequence, and reads nothing else. Any other dataset is sharded by lanes.
    """

    def __init__(
        self, tree: Step, lanes: int, share: tuple[int, int], features: Any, passes: int = 0
    ) -> None:
        super().__init__()
        self.tree, self.lanes, self.share, self._features = tree, lanes, share, features
        self.passes = 0 if tree.is_endless else passes
        self._indexed = tree.reason_not_indexed is None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        rank, world_size = self.share
        session = Session(
            Compiled(self.tree), RunOptions(rank, world_size, self.lanes, remainder="keep"), None
        )
        saved = cast(Any, self._state_dict)  # pyright: ignore[reportUnknownMemberType]
        if self.passes:
            session.next_pass(self.passes)
        if saved is not None:
            if saved["penstock"] is not None and not isinstance(saved["penstock"], LazyState):
                session.load(saved["penstock"], "error")
            saved["penstock"] = LazyState(session)
        next_row, key = session.out.next, 0
        try:
            while True:
                yield key, next_row()
        except StopIteration:  # a generator must return at the end of the pass
            return
        finally:
            session.close()

    def _init_state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"penstock": None, "type": type(self).__name__}
        self._state_dict = state
        return state

    @property
    def is_typed(self) -> bool:
        return self._features is not None

    @property
    def features(self) -> Any:
        return self._features

    @property
    def num_shards(self) -> int:
        return max(1, (_SHARES if self._indexed else self.lanes) // self.share[1])

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Self:
        """Return one shard: every `num_shards`-th row from `index` on; ignores `contiguous`."""
        rank, world_size = self.share
        parts = num_shards if self._indexed else min(num_shards, self.num_shards)
        if index >= parts:
            return self._with(Dataset(self.tree).limit(0).tree, 1, (0, 1))
        if not self._indexed and self.lanes % (world_size * parts):
            raise ConfigError(
                f"{self.lanes} lanes cannot be sharded into {world_size * parts}: give "
                "block_mixture_interleave a lanes= that is a multiple of ranks times workers"
            )
        share = rank + world_size * index, world_size * parts
        return self._with(self.tree, self.lanes, share)

    def _with(self, step: Step, lanes: int, share: tuple[int, int], passes: int = 0) -> Self:
        return type(self)(step, lanes, share, self._features, self.passes + passes)

    def shuffle_window(self, window: int, seed: int) -> Self:
        """Return the rows shuffled inside windows, with another order in every pass."""
        shuffled = Dataset(self.tree).shuffle(seed, window=window)
        return self._with(shuffled.tree, self.lanes, self.share)

    def split_shard_indices_by_worker(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> Any:
        return range(index, self.num_shards, num_shards)

    def shuffle_data_sources(self, generator: Any) -> Self:
        """Go to a later pass: the n-th after `set_epoch(n)`, which seeds the generator with n.

        An endless mixture has one pass, and is returned unchanged.
        """
        return self._with(self.tree, self.lanes, self.share, _read_seed(generator))

    def reshard_data_sources(self) -> Self:
        return self

    @property
    def sleep_on_threads_shutdown(self) -> bool:
        return False


class LazyState:
    """State of a run, computed only when it is copied."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return self._session.state()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._session.state(),)


class MixedDataset(datasets.IterableDataset):
    """A Hugging Face `IterableDataset` whose `shuffle` resumes exactly.

    Hugging Face's buffer is not part of its state. The datasets that other methods return, such as
    `map`, have that buffer, so shuffle first.
    """

    def shuffle(
        self,
        seed: int | None = None,
        generator: Any = None,
        buffer_size: int = 1000,
        max_buffer_input_shards: int = 10,
    ) -> MixedDataset:
        """Shuffle rows inside windows of `buffer_size`, with another order in every epoch.

        Args:
            seed: seed of the order; 0 by default.
            generator: a generator of NumPy, instead of the seed.
            buffer_size: rows of a window.
            max_buffer_input_shards: accepted; a window holds neighbours of the mixture.
        """
        own = cast(Any, self)
        seed = (seed or 0) if generator is None else _read_seed(generator)
        return MixedDataset(
            own._ex_iterable.shuffle_window(buffer_size, seed),
            info=own._info.copy(),
            split=own._split,
            formatting=own._formatting,
            distributed=copy.deepcopy(own._distributed),
            token_per_repo_id=own._token_per_repo_id,
        )


_MAX_SEED = 1 << 20


def _read_seed(generator: Any) -> int:
    """Return the seed of a generator of NumPy, or a number that it draws."""
    seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
    if isinstance(seed, int) and seed < _MAX_SEED:
        return seed
    return int(copy.deepcopy(generator).integers(_MAX_SEED))


def to_hub(dataset: Dataset, lanes: int, features: Any = None) -> Any:
    """Return the rows of a dataset as a `datasets.IterableDataset`."""
    info = datasets.DatasetInfo(features=features)
    return MixedDataset(Examples(dataset.tree, lanes, (0, 1), features), info=info)
