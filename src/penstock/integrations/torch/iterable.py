"""A pipeline as an iterable dataset of torch, split item by item between workers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...dataset import Dataset
from ...engine.base.machine import detect_dataloader_worker
from ...engine.runtime.run_options import RunOptions, resolve_rank
from ...engine.runtime.session import Session
from ...engine.steps.batch import step_of_rank
from ...engine.streams.rank_sharding import Remainder
from ...errors import ConfigError, StateError, hide_unknown_length, make_missing_extra_error
from ...loader import Loader
from ..trainers import require_one_sharder

try:
    import torch
    from torch.utils import data
except ImportError:
    raise make_missing_extra_error("torch", "torch", "penstock.integrations.torch") from None

_torch = cast("Any", torch)  # without torch the checker knows none of its types
_TorchIterableDataset: type[Any] = cast("Any", data).IterableDataset

_MAX_WORKERS = 1024


class IterableDataset(_TorchIterableDataset):
    """Yield the items of a `Loader`, in its order, through a torch `DataLoader`.

    `StatefulDataLoader` works too, and any number of workers yields the same stream. A `DataLoader`
    takes items from its workers in turn, so worker `w` of `n` yields items `w`, `w + n`, ... of the
    rank's stream. Every `for` is the next pass. Batch in the pipeline, and pass `batch_size=None`:
    batches made by `DataLoader` depend on its number of workers.

    An indexed pipeline is divided between workers. A pipeline without positions (filter, pack of
    unknown lengths and similar) is computed by every worker in full, since each item depends on the
    previous ones; there `Loader(workers=n)` is faster.

    Args:
        dataset: the dataset to iterate over.
        rank: rank of this process, as in `Loader`; detected in the process that makes this object,
            not in its workers.
        world_size: number of ranks.
        mesh: a torch `DeviceMesh` or `ProcessGroup`, in place of rank and world_size.
        lanes: as in `Loader`.
        remainder: as in `Loader`.

    Raises:
        ConfigError: for a second `for` over an endless dataset, and for detected ranks if
            Accelerate shards too.

    >>> import penstock as ps
    >>> from torch.utils.data import DataLoader
    >>> from penstock.integrations.torch import IterableDataset
    >>> data = IterableDataset(ps.from_sequence(range(5)).batch(2))
    >>> [batch.tolist() for batch in DataLoader(data, batch_size=None)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: object = None,
        lanes: int | None = None,
        remainder: Remainder = "drop",
    ) -> None:
        self._rank, self._world_size = resolve_rank(rank, world_size, mesh)
        self._detected = rank is None and mesh is None
        require_one_sharder(self._detected, self._world_size)
        self._dataset, self._lanes = dataset, lanes
        self._remainder: Remainder = remainder
        # The next pass of each worker, in shared memory: most workers end with their pass.
        self._passes = _torch.zeros(_MAX_WORKERS, dtype=_torch.int64).share_memory_()
        self._loader()  # raise configuration errors here, not in a worker

    def _loader(self) -> Loader:
        return Loader(
            self._dataset,
            rank=self._rank,
            world_size=self._world_size,
            lanes=self._lanes,
            remainder=self._remainder,
        )

    @hide_unknown_length
    def __len__(self) -> int:
        return len(self._loader())

    def __iter__(self) -> Iterator[Any]:
        require_one_sharder(self._detected, self._world_size)
        turn, turns = detect_dataloader_worker() or (0, 1)
        if turns > _MAX_WORKERS:
            raise ConfigError(f"num_workers={turns} of a DataLoader: at most {_MAX_WORKERS}")
        tree = step_of_rank(
            self._dataset.tree, self._world_size, self._remainder, None, self._lanes
        )
        setting = RunOptions(
            self._rank, self._world_size, self._lanes, remainder=self._remainder, worker=turn, workers=turns
        )  # fmt: skip
        session = Session(self._dataset.compiled.of(tree), setting, None)
        if turn == 0:
            session.warn_of_lanes()
        return _WorkerIterator(session, self._passes[turn])


class _WorkerIterator(Iterator[Any]):
    """Items of one worker in a pass, with a state."""

    def __init__(self, session: Session, passes: Any) -> None:
        self._session, self._passes = session, passes
        epoch = int(passes)
        if epoch and session.base.is_endless:
            raise ConfigError(
                "a second `for` over an endless dataset would begin again: use one `for`, or end "
                "each pass with .limit(n)"
            )
        passes += 1
        if epoch:
            session.next_pass(epoch)

    def __next__(self) -> Any:
        return self._session.out.next()

    @property
    def _worker(self) -> list[int]:
        return [self._session.setting.worker, self._session.setting.workers]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker after the last item it yielded.

        The run is JSON text: torchdata compares the entries of dicts of all workers at every step.
        """
        return {"worker": self._worker, "run": self._session.capture_text()()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of the same worker."""
        if state["worker"] != self._worker:
            raise StateError(
                "the state belongs to worker {} of {}, "
                "but this is worker {} of {}: resume with "
                "the same number of workers".format(*state["worker"], *self._worker)
            )
        try:
            run = json.loads(state["run"])
        except (TypeError, ValueError) as error:
            raise StateError(
                "the state of a worker is damaged, or of another version; load an earlier one, or "
                "use the release that wrote it"
            ) from error
        self._session.load(run, "error")
        self._passes.fill_(self._session.epoch + 1)
