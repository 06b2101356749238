"""Any pipeline as an iterable dataset of torch's: the workers of a `DataLoader` take its items in
turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...dataset import Dataset
from ...engine.base.machine import worker
from ...engine.base.sized import where_known
from ...engine.graph.ends import endless
from ...engine.graph.going import going_on
from ...engine.runtime.session import Session
from ...engine.runtime.setting import Setting, place_of
from ...engine.streams.deal import Remainder
from ...errors import ConfigError, StateError, missing_extra
from ...loader import Loader
from ..trainers import require_one_sharder

try:
    import torch
    from torch.utils import data
except ImportError:
    raise missing_extra("torch", "torch", "penstock.integrations.torch") from None

_torch = cast("Any", torch)  # without torch the checker knows none of its types
_Iterable: type[Any] = cast("Any", data).IterableDataset

_MOST = 1024  # workers


class IterableDataset(_Iterable):
    """What a `Loader` gives, in its order, through `DataLoader` or `StatefulDataLoader` with any
    number of workers.

    A `DataLoader` takes items of its workers in turn, so worker `w` of `n` gives items `w`, `w +
    n`, ... of the rank's stream. Every `for` is the next pass. Batch in the pipeline, and give
    `batch_size=None`: what `DataLoader` batches itself depends on its number of workers.

    A pipeline with positions is shared out. Of one without them (filter, pack of unknown lengths
    and the like) every worker goes through all that its rank gives, for what comes next depends on
    it; there `Loader(workers=n)` is faster.

    Args:
        dataset: what to iterate over.
        rank: which share is ours, as in `Loader`; found in the process that makes this, not in its
            workers.
        world_size: how many shares there are.
        mesh: in the place of both, a torch `DeviceMesh` or `ProcessGroup`.
        lanes: as in `Loader`.
        remainder: as in `Loader`.

    Raises:
        ConfigError: for a second `for` over a dataset that never ends, and for ranks found here
            where Accelerate shares out as well.

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
        self._rank, self._world_size = place_of(rank, world_size, mesh)
        self._found = rank is None and mesh is None
        require_one_sharder(self._found, self._world_size)
        self._dataset, self._lanes = dataset, lanes
        self._remainder: Remainder = remainder
        # The pass that each worker begins next, in memory that they share: most end with their
        # pass.
        self._passes = _torch.zeros(_MOST, dtype=_torch.int64).share_memory_()
        self._loader()  # what cannot be is refused here, not in a worker

    def _loader(self) -> Loader:
        return Loader(
            self._dataset,
            rank=self._rank,
            world_size=self._world_size,
            lanes=self._lanes,
            remainder=self._remainder,
        )

    @where_known
    def __len__(self) -> int:
        return len(self._loader())

    def __iter__(self) -> Iterator[Any]:
        require_one_sharder(self._found, self._world_size)
        turn, turns = worker() or (0, 1)
        if turns > _MOST:
            raise ConfigError(f"{turns} workers of a DataLoader: {_MOST} at most")
        flow = going_on(self._dataset.flow, self._world_size, self._remainder, None)
        setting = Setting(
            self._rank, self._world_size, self._lanes, remainder=self._remainder, turn=turn, turns=turns
        )  # fmt: skip
        session = Session(self._dataset.compiled.of(flow), setting, None)
        if turn == 0:
            session.warn_of_lanes()
        return _Turns(session, self._passes[turn])


class _Turns(Iterator[Any]):
    """One worker's items of a pass, with a state."""

    def __init__(self, session: Session, passes: Any) -> None:
        self._session, self._passes = session, passes
        epoch = int(passes)
        if epoch and endless(session.base):
            raise ConfigError(
                "a second `for` over a dataset that never ends would begin again: make it one "
                "`for`, or give the dataset passes with .limit(n)"
            )
        passes += 1
        if epoch:
            session.next_pass(epoch)

    def __next__(self) -> Any:
        return self._session.out.next()

    @property
    def _turn(self) -> list[int]:
        return [self._session.setting.turn, self._session.setting.turns]

    def state_dict(self) -> dict[str, Any]:
        """Where this worker stands, after the last item it gave."""
        return {"worker": self._turn, "run": self._session.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a state of the same worker says."""
        if state["worker"] != self._turn:
            raise StateError(
                "the state is that of worker {} of {}, and "
                "this is worker {} of {}: go on with the "
                "same number of workers".format(*state["worker"], *self._turn)
            )
        self._session.load(state["run"], "error")
        self._passes.fill_(self._session.epoch + 1)
