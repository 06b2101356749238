"""State of all ranks, and counted passes: the parts that trainers share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..dataset import Dataset
from ..engine.base.machine import detect_rank
from ..engine.runtime.session import Session
from ..engine.runtime.states import decode_state, describe_position, require_equal_positions
from ..errors import ConfigError, StateError, hide_unknown_length
from ..loader import Loader


def require_loader(loader: object, where: str) -> Loader:
    """Return an argument that must be a `Loader`.

    Args:
        loader: the argument.
        where: name of the argument in the message.

    Raises:
        ConfigError: for another object, such as a dataset.

    >>> import penstock as ps
    >>> require_loader(ps.from_sequence(range(3)), "EvalLoader")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: EvalLoader: Dataset is not a loader; give ps.Loader(ds)
    """
    if isinstance(loader, Loader):
        return loader
    remedy = (
        "give ps.Loader(ds)"
        if isinstance(loader, Dataset)
        else "give a ps.Loader of the process's rank"
    )
    raise ConfigError(f"{where}: {type(loader).__name__} is not a loader; {remedy}")


def gather_states(state: Mapping[str, Any], ranks: int) -> list[Mapping[str, Any]]:
    """Return the states of all ranks, for `Loader.load_state_dict`; one state if it suffices.

    Ranks differ in lane cursors, journals of bad samples and leases. torch.distributed gathers the
    states, so all its processes call this together, including peers of one rank (tensor
    parallelism).

    Args:
        state: the return value of `state_dict()` of this rank's loader.
        ranks: world size of the loader.

    Raises:
        ConfigError: if ranks differ and torch.distributed is not initialised.
        StateError: if processes are at different steps, or read different data.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(10)), rank=0, world_size=2)
    >>> len(gather_states(loader.state_dict(), loader.world_size))
    1
    """
    saved = decode_state(state)
    differ = ranks > 1 and saved.differs_by_rank
    reports = gather_objects([differ, describe_position(saved)])
    if reports is None and differ:
        raise ConfigError(
            "every rank has its own state (lanes, a journal, leases), and torch.distributed, "
            "which would gather them, is not initialised: save the state_dict() of each rank's "
            "loader, and load the list of them"
        )
    require_one_step([position for _, position in reports or []], ranks)
    if reports is None or not any(differ for differ, _ in reports):
        return [state]
    states = gather_objects(state) or []
    return list({json.dumps(rank_state): rank_state for rank_state in states}.values())


def require_one_step(positions: Sequence[Mapping[str, Any]], ranks: int) -> None:
    """Raise if processes, peers of one rank included, differ in their step or their data.

    Args:
        positions: the report of each process on its position.
        ranks: world size.

    Raises:
        StateError: on all processes.

    >>> require_one_step([{"place": [0, 4], "step": 1, "data": {}, "run": {}}] * 2, ranks=1)
    """
    require_equal_positions(
        dict(enumerate(positions)), "rank" if len(positions) == ranks else "process"
    )


def gather_objects(value: Any, group: Any = None) -> list[Any] | None:
    """Gather an object from every process of torch.distributed (collective call).

    Args:
        value: the object of this process, plain JSON.
        group: the `ProcessGroup` to gather from; all processes by default.

    Returns:
        One object per process; None if torch.distributed is not initialised.

    >>> gather_objects({"step": 5}) is None
    True
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


class AllRanks:
    """Save and load the state of all ranks through one object, for trainers that expect that.

    Saving and loading are collective calls, peers of one rank included; a state loads on any world
    size. For Accelerate: `accelerator.register_for_checkpointing(AllRanks(loader))`.

    Args:
        loader: the loader of this rank.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(10)))
    >>> place = AllRanks(loader)
    >>> first = next(iter(loader))
    >>> state = place.state_dict()
    >>> again = ps.Loader(ps.from_sequence(range(10)))
    >>> AllRanks(again).load_state_dict(state)
    >>> first, next(iter(again))
    (0, 1)
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = require_loader(loader, "AllRanks")

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks, plain JSON."""
        return {"ranks": gather_states(self._loader.state_dict(), self._loader.world_size)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the states of all ranks.

        Args:
            state_dict: the return value of `state_dict()`.

        Raises:
            StateError: for anything else, such as the state of another object of the checkpoint.
        """
        if "ranks" not in state_dict:
            keys = ", ".join(map(str, list(state_dict)[:4])) or "nothing"
            raise StateError(
                f"not a state of AllRanks (its keys: {keys}); another object may have saved it"
            )
        self._loader.load_state_dict(state_dict["ranks"])


def iter_rest_or_next(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the rest of the pass, or the next pass if nothing is left.

    Trainers count the items of a pass and never request one more. They therefore begin a pass with
    a loader at the end of the previous one.

    Args:
        loader: the loader to iterate over.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(3)))
    >>> [[next(items) for _ in range(3)] for items in (iter_rest_or_next(loader), iter_rest_or_next(loader))]
    [[0, 1, 2], [0, 1, 2]]
    """
    has_items = False
    for _ in range(2):
        for item in loader:
            has_items = True
            yield item
        if has_items:
            return


def require_ranks(loader: Loader, world_size: int) -> None:
    """Raise if a loader detected its ranks before they were known.

    Such a loader would give every process all the data.

    Args:
        loader: the training loader.
        world_size: number of processes of the trainer.

    Raises:
        ConfigError: if the loader detected another world size by itself, or is no loader.

    >>> import penstock as ps
    >>> require_ranks(ps.Loader(ps.from_sequence(range(10))), 1)
    """
    detected = require_loader(loader, "the loader of the training").world_size
    if not loader._placed and detected != world_size:  # pyright: ignore[reportPrivateUsage]
        raise ConfigError(
            f"the loader has world_size={detected}, but the trainer has {world_size} processes: "
            "make the loader after torch.distributed is initialised, or pass rank= and world_size="
        )


class EvalLoader:
    """Serve a loader for evaluation: every `for` yields the whole first pass.

    Trainers take a few batches as a sanity check, and count the items of a pass without reaching
    its end; a plain loader would continue from there. Here every evaluation yields the same items
    in the same order.

    Args:
        loader: yields the items of an evaluation; this object takes it over. Or a function that
            makes the loader, called at the first use: launchers of trainers, such as Lightning's,
            know the ranks later than a script begins.

    Raises:
        ConfigError: for a loader whose passes never end, for an object that is no loader, and, at
            its use, for a loader made before the ranks were known.

    >>> import penstock as ps
    >>> loader = EvalLoader(ps.Loader(ps.from_sequence(range(3))))
    >>> next(iter(loader)), list(loader), len(loader)
    (0, [0, 1, 2], 3)
    >>> list(EvalLoader(lambda: ps.Loader(ps.from_sequence(range(3)), remainder="pad")))
    [0, 1, 2]
    """

    def __init__(self, loader: Loader | Callable[[], Loader]) -> None:
        self._make: Callable[[], Loader] | None = None
        if callable(loader):
            self._make = loader
        else:
            self._open(loader)

    @property
    def loader(self) -> Loader:
        """The loader, made at the first use if a function makes it."""
        if self._make is not None:
            self._open(self._make())
            self._make = None
        return self._loader

    def _open(self, loader: object) -> None:
        self._loader = require_loader(loader, "EvalLoader")
        session = self._loader._session  # pyright: ignore[reportPrivateUsage]
        if self._loader._epoch_length is None and session.base.is_endless:  # pyright: ignore[reportPrivateUsage]
            raise ConfigError(
                "the dataset of the eval loader is endless, and an evaluation is a whole pass: "
                "end the dataset with .limit(n)"
            )
        initial = session if session.changes else Session(session.compiled, session.setting, None)
        self._initial_state = initial.state()

    def __iter__(self) -> Iterator[Any]:
        require_ranks(self.loader, detect_rank()[1])
        self.loader.load_state_dict(self._initial_state)
        return iter(self.loader)

    @hide_unknown_length
    def __len__(self) -> int:
        return len(self.loader)


def require_one_sharder(detected: bool, world_size: int) -> None:
    """Raise if the data are sharded by detected ranks, and Accelerate would shard them again.

    This includes the Trainer, which uses Accelerate.

    Args:
        detected: whether rank and world size were detected, not passed by the caller.
        world_size: number of shards.

    Raises:
        ConfigError: if samples would be lost.

    >>> require_one_sharder(True, 1)
    """
    state = sys.modules.get("accelerate.state")
    if detected and world_size > 1 and state is not None and state.PartialState._shared_state:
        raise ConfigError(
            f"the data are sharded across {world_size} ranks, and Accelerate, which runs here, "
            "would shard each part again: pass rank=0, world_size=1 if it prepares the DataLoader "
            "(transformers' and TRL's trainers do), else this process's rank= and world_size="
        )
