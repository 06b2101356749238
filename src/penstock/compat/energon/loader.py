"""The loader of this API over the core's: the same stream, and states that are JSON."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError, StateError
from ...loader import Loader
from ...tasks import Batch, pinned
from .config import WorkerConfig, refuse
from .datasets import SavableDataset

State = Mapping[str, Any]


class SavableDataLoader:
    """Iterate to train; `save_state_rank` or `save_state_global` after any step, and restore on any
    number of ranks. `ps.save` and `ps.restore` take it too, and need no gathering.

    `num_workers` of the worker config are threads, which compute ahead and change nothing in the
    stream. `core` is the core's loader, with `keys()`, `journal`, `stats()` and `set_weights()`.
    Where there is a GPU, batches are put into page-locked memory.

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
        dataset: SavableDataset,
        worker_config: WorkerConfig | None = None,
        prefetch_factor: int = 2,
    ) -> None:
        if not isinstance(dataset, SavableDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"get_loader: {type(dataset).__name__} is no dataset of this API; see "
                "get_train_dataset (ps.Loader is for datasets of the core)"
            )
        self.dataset, self.worker_config = dataset, worker_config or dataset.worker_config
        if self.worker_config.seed_offset != dataset.worker_config.seed_offset:
            raise ConfigError(
                f"get_loader: seed_offset={self.worker_config.seed_offset}, but the dataset was "
                f"made with {dataset.worker_config.seed_offset}, which decides; give it where the "
                "dataset is made"
            )
        self._prefetch = prefetch_factor
        self.core = self._open(self.worker_config.lane_count())

    def _open(self, lanes: int) -> Loader:
        config = self.worker_config
        rank, world_size = config.place()
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
        return map(_pinned, self.core) if _has_gpu() else iter(self.core)

    def __len__(self) -> int:
        """Items of a `for` on this rank, where hooks drop and multiply none."""
        return self.dataset.items(self.worker_config, self._lanes)

    # ------------------------------------------------------------ state

    def save_state_rank(self) -> dict[str, Any]:
        """Where this rank stands, after the last item it gave: plain JSON."""
        return self.core.state_dict()

    def restore_state_rank(
        self, state: State | Sequence[State], on_mismatch: OnMismatch = "error"
    ) -> None:
        """Go where a state says, at any time. On another number of ranks, give every rank the list
        of all states.

        A state of another dataset, other weights or another seed is refused with the differences.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states or not all(isinstance(one, Mapping) for one in states):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StateError(
                "restore_state: give what save_state_rank or save_state_global returned"
            )
        lanes = states[0].get("lanes", self._lanes)
        if not isinstance(lanes, int) or lanes == self._lanes:
            self.core.load_state_dict(states, on_mismatch)
            return
        before, kept = self.core, self._lanes
        try:
            opened = self._open(lanes)
            try:
                opened.load_state_dict(states, on_mismatch)
            except BaseException:
                opened.close()
                raise
        except BaseException:
            self._lanes = kept
            raise
        self.core = opened
        before.close()

    @property
    def rank(self) -> int:
        """Which share of the data is given here."""
        return self.core.rank

    @property
    def world_size(self) -> int:
        """How many shares there are."""
        return self.core.world_size

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, for `ps.save`."""
        return self.save_state_rank()

    def load_state_dict(
        self, state: State | Sequence[State], on_mismatch: OnMismatch = "error"
    ) -> None:
        """Go where a state or those of all ranks say, for `ps.restore`."""
        self.restore_state_rank(state, on_mismatch)

    def with_restored_state_rank(self, state: State | Sequence[State]) -> Self:
        """This loader, gone where a state says."""
        self.restore_state_rank(state)
        return self

    def save_state_global(self, global_dst_rank: int = 0) -> list[dict[str, Any]] | None:
        """The states of all ranks, on the rank `global_dst_rank`; None on the others. All ranks
        call it together."""
        rank, world_size = self.worker_config.place()
        distributed = _distributed()
        if distributed is None:
            if world_size > 1:
                raise ConfigError(
                    f"save_state_global on {world_size} ranks needs torch.distributed to be "
                    "initialised; without, save save_state_rank() of every rank and restore the "
                    "list of them"
                )
            return [self.save_state_rank()]
        found: list[Any] | None = None
        if distributed.get_rank() == global_dst_rank:
            found = [None] * distributed.get_world_size()
        distributed.gather_object((rank, self.save_state_rank()), found, dst=global_dst_rank)
        # Ranks of one place in the data-parallel group stand at the same position: one state of
        # each.
        return None if found is None else [state for _, state in sorted(dict(found).items())]

    def restore_state_global(
        self, state: Sequence[State] | None, *, src_rank: int | None = None
    ) -> None:
        """Go where the states of all ranks say. With `src_rank` only that rank has them, and the
        others get them."""
        if src_rank is not None:
            distributed = _distributed()
            if distributed is None:
                raise ConfigError(
                    f"restore_state_global(src_rank={src_rank}) needs torch.distributed to be "
                    "initialised"
                )
            sent = [state]
            distributed.broadcast_object_list(sent, src=src_rank)
            state = sent[0]
        if state is None:
            raise StateError(
                "restore_state_global: no state; give src_rank= where only one rank has it"
            )
        self.restore_state_rank(state)

    # As old releases call them.
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
    dataset: SavableDataset,
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    **options: Any,
) -> SavableDataLoader:
    """A loader that can be saved and restored. `prefetch_factor` pieces of work for each worker are
    under way."""
    refuse("get_savable_loader", options)
    return SavableDataLoader(dataset, worker_config, prefetch_factor)


def get_loader(
    dataset: SavableDataset,
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    **options: Any,
) -> SavableDataLoader:
    """The same as `get_savable_loader`: every loader can be saved."""
    refuse("get_loader", options)
    return SavableDataLoader(dataset, worker_config, prefetch_factor)


def _distributed() -> Any:
    """torch.distributed, where it is running."""
    if "torch.distributed" not in sys.modules:
        return None
    found: Any = importlib.import_module("torch.distributed")
    return found if found.is_available() and found.is_initialized() else None


def _has_gpu() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _pinned(batch: Any) -> Any:
    return batch.pin_memory() if isinstance(batch, Batch) else pinned(batch)
