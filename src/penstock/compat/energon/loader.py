"""Energon's loader over Penstock's: the same stream, with states that are JSON."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError, StateError
from ...loader import Loader
from ...tasks import Batch, pinned
from .caching import CachePool, NoCachePool
from .config import WorkerConfig, refuse
from .datasets import SavableDataset

State = Mapping[str, Any]


class SavableDataLoader:
    """Iterate over batches, and save and restore after any step, on any number of ranks.

    `ps.save` and `ps.restore` accept it too, and need no gathering. `num_workers` of the worker
    config are threads, which prefetch and do not change the stream. `core` is the Penstock loader,
    with `keys()`, `journal`, `stats()` and `set_weights()`. With a GPU, batches are in page-locked
    memory.

    Args:
        dataset: a dataset of this API.
        worker_config: replaces the dataset's config, except for its seed.
        prefetch_factor: batches in flight per worker.
        cache_pool: a pool of this package, which needs nothing; give others to the encoder.
        options: other settings of Energon; those without effect are accepted, others raise.

    Raises:
        ConfigError: for a dataset of another API, or another seed than the dataset's.

    >>> import penstock as ps
    >>> loader = get_savable_loader(SavableDataset(ps.from_sequence(range(6)).shuffle().repeat(), endless=True))
    >>> it = iter(loader)
    >>> first = [next(it) for _ in range(4)]
    >>> state = loader.save_state_rank()
    >>> rest = [next(it) for _ in range(4)]
    >>> loader.restore_state_rank(state)
    >>> it = iter(loader)
    >>> [next(it) for _ in range(4)] == rest
    True
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        worker_config: WorkerConfig | None = None,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        **options: Any,
    ) -> None:
        refuse("SavableDataLoader", options)
        if cache_pool is not None and not isinstance(cache_pool, NoCachePool):
            raise ConfigError(
                f"get_loader(cache_pool={type(cache_pool).__name__}): give your own pool to the "
                "encoder: encoder.cache = pool"
            )
        if not isinstance(dataset, SavableDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"get_loader: {type(dataset).__name__} is not a dataset of this API: see "
                "get_train_dataset (use ps.Loader for Penstock datasets)"
            )
        self.dataset, self.worker_config = dataset, worker_config or dataset.worker_config
        if self.worker_config.seed_offset != dataset.worker_config.seed_offset:
            raise ConfigError(
                f"get_loader: seed_offset={self.worker_config.seed_offset} differs from the "
                f"dataset's {dataset.worker_config.seed_offset}: set it where the dataset is made"
            )
        if self.worker_config.global_error_handler is None:
            handler = dataset.worker_config.global_error_handler
            self.worker_config = replace(self.worker_config, global_error_handler=handler)
        self._prefetch = prefetch_factor
        self.core = self._open(self.worker_config.lane_count())

    def _open(self, lanes: int) -> Loader:
        config = self.worker_config
        rank, world_size = config.rank_and_world_size()
        self._lanes = lanes
        length = self.dataset.epoch_length
        return Loader(
            self.dataset.core,
            workers=config.num_workers,
            prefetch=self._prefetch * config.num_workers or None,
            rank=rank,
            world_size=world_size,
            lanes=lanes,
            remainder="keep",
            epoch_length=None if length is None else length * world_size,
            on_error=config.on_error,
            max_errors=config.max_errors,
        )

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.core)
        if self.worker_config.on_error == "quarantine":
            items = self._report_failures(items)
        return map(_pinned, items) if _has_gpu() else items

    def _report_failures(self, items: Iterator[Any]) -> Iterator[Any]:
        """Call the error handler for every failure that the journal records meanwhile."""
        reported = len(self.core.journal)
        for item in items:
            journal = self.core.journal
            for entry in journal[reported:]:
                self.worker_config.report_failure(entry)
            reported = len(journal)
            yield item

    def __len__(self) -> int:
        """Return the items of a `for` on this rank, if hooks neither drop nor multiply them."""
        return self.dataset.items(self.worker_config, self._lanes)

    # ------------------------------------------------------------ state

    def save_state_rank(self) -> dict[str, Any]:
        """Return the state of this rank after its last item: plain JSON."""
        return self.core.state_dict()

    def restore_state_rank(
        self, state: State | Sequence[State], on_mismatch: OnMismatch = "error"
    ) -> None:
        """Restore a state, at any time; on another world size, pass the states of all ranks.

        Args:
            state: the state of this rank, or the list of all ranks' states.
            on_mismatch: "error" rejects a state of another dataset, other weights or another seed,
                and lists the differences; "adopt" continues with this one.

        Raises:
            StateError: for a value that is not a state, or a state that does not match.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states or not all(isinstance(entry, Mapping) for entry in states):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StateError(
                "restore_state: this is not a state: pass the result of save_state_rank or "
                "save_state_global"
            )
        lanes = states[0].get("lanes", self._lanes)
        if not isinstance(lanes, int) or lanes == self._lanes:
            self.core.load_state_dict(states, on_mismatch)
            return
        old_core, old_lanes = self.core, self._lanes
        try:
            new_core = self._open(lanes)
            try:
                new_core.load_state_dict(states, on_mismatch)
            except BaseException:
                new_core.close()
                raise
        except BaseException:
            self._lanes = old_lanes
            raise
        self.core = new_core
        old_core.close()

    @property
    def rank(self) -> int:
        """Rank of this loader."""
        return self.core.rank

    @property
    def world_size(self) -> int:
        """World size of this loader."""
        return self.core.world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, for `ps.save`."""
        return self.save_state_rank()

    def load_state_dict(
        self, state: State | Sequence[State], on_mismatch: OnMismatch = "error"
    ) -> None:
        """Restore one state or those of all ranks, for `ps.restore`.

        Args:
            state: one state, or the list of all ranks' states.
            on_mismatch: as in `restore_state_rank`.
        """
        self.restore_state_rank(state, on_mismatch)

    def with_restored_state_rank(self, state: State | Sequence[State]) -> Self:
        """Restore a state, and return this loader.

        Args:
            state: one state, or the list of all ranks' states.

        Returns:
            This loader.
        """
        self.restore_state_rank(state)
        return self

    def save_state_global(self, global_dst_rank: int = 0) -> list[dict[str, Any]] | None:
        """Gather the states of all ranks (collective call).

        Args:
            global_dst_rank: the rank that receives them.

        Returns:
            The states on `global_dst_rank`, None on other ranks.

        Raises:
            ConfigError: on several ranks, if torch.distributed is not initialised.
        """
        rank, world_size = self.worker_config.rank_and_world_size()
        group, distributed = self.worker_config.data_parallel_group, _distributed()
        if distributed is None or (world_size == 1 and group is not None):
            if world_size > 1:
                raise ConfigError(
                    f"save_state_global on {world_size} ranks needs torch.distributed to be "
                    "initialised: initialise it, or save save_state_rank() of every rank and "
                    "restore their list"
                )
            return [self.save_state_rank()]
        # Only the ranks of one group may call this, such as those with tensor-parallel rank 0.
        members = (
            list(range(distributed.get_world_size()))
            if group is None
            else distributed.get_process_group_ranks(group)
        )
        if global_dst_rank not in members:
            raise ConfigError(
                f"save_state_global: rank {global_dst_rank} is not in the data_parallel_group of "
                f"rank {distributed.get_rank()}, whose ranks are {members}: pass one of them"
            )
        gathered: list[Any] | None = None
        if distributed.get_rank() == global_dst_rank:
            gathered = [None] * len(members)
        distributed.gather_object(
            (rank, self.save_state_rank()), gathered, dst=global_dst_rank, group=group
        )
        # Ranks with one data-parallel rank have equal states: keep one of each.
        return None if gathered is None else [state for _, state in sorted(dict(gathered).items())]

    def restore_state_global(
        self, state: Sequence[State] | None, *, src_rank: int | None = None
    ) -> None:
        """Restore from the states of all ranks; with `src_rank`, that rank broadcasts them.

        Args:
            state: the states of all ranks; ignored on ranks other than `src_rank`.
            src_rank: the only rank that has the states, counted within the data_parallel_group.

        Raises:
            ConfigError: with `src_rank`, if torch.distributed is not initialised.
            StateError: if there is no state, or it does not match.
        """
        if src_rank is not None:
            distributed = _distributed()
            if distributed is None:
                raise ConfigError(
                    f"restore_state_global(src_rank={src_rank}) needs torch.distributed to be "
                    "initialised"
                )
            group = self.worker_config.data_parallel_group
            source = src_rank if group is None else distributed.get_global_rank(group, src_rank)
            sent = [state]
            distributed.broadcast_object_list(sent, src=source, group=group)
            state = sent[0]
        if state is None:
            raise StateError(
                "restore_state_global: no state: pass src_rank= if only one rank has it"
            )
        self.restore_state_rank(state)

    # Names of old Energon releases.
    save_state, restore_state = save_state_global, restore_state_global

    def close(self) -> None:
        """Stop the workers."""
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def get_savable_loader(
    dataset: SavableDataset[Any],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    **options: Any,
) -> SavableDataLoader:
    """Return a loader that can be saved and restored.

    Args:
        dataset: a dataset of this API.
        worker_config: as in `SavableDataLoader`.
        prefetch_factor: batches in flight per worker.
        cache_pool: a pool of this package, which needs nothing; give others to the encoder.
        options: other settings of Energon; those without effect are accepted, others raise.
    """
    refuse("get_savable_loader", options)
    return SavableDataLoader(dataset, worker_config, prefetch_factor, cache_pool)


def get_loader(
    dataset: SavableDataset[Any],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    **options: Any,
) -> SavableDataLoader:
    """Return a `get_savable_loader`: every loader can be saved.

    Args:
        dataset: a dataset of this API.
        worker_config: as in `SavableDataLoader`.
        prefetch_factor: batches in flight per worker.
        cache_pool: a pool of this package, which needs nothing; give others to the encoder.
        options: other settings of Energon; those without effect are accepted, others raise.
    """
    refuse("get_loader", options)
    return SavableDataLoader(dataset, worker_config, prefetch_factor, cache_pool)


def _distributed() -> Any:
    """Return torch.distributed if it is initialised, else None."""
    if "torch.distributed" not in sys.modules:
        return None
    distributed: Any = importlib.import_module("torch.distributed")
    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _has_gpu() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _pinned(batch: Any) -> Any:
    return batch.pin_memory() if isinstance(batch, Batch) else pinned(batch)
