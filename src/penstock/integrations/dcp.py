"""Checkpoints by `torch.distributed.checkpoint`: the loader state beside the model.

The DCP planner writes a key that several ranks share once, and reads a key only for ranks that name
it. Ranks with equal states therefore share one key, and ranks with different states have one key
each. A rank that loads with another world size reads the key names from the checkpoint. Before
processes share a key, all of them check that they are at the same step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..engine.runtime.states import OnMismatch, decode_state, describe_position
from ..errors import ConfigError, StateError, make_missing_extra_error
from ..saves import Savable
from .trainers import gather_objects, require_one_step

_STATE_KEY_PATTERN = re.compile(r"(?:(.*)\.)?(penstock(?:-rank-(\d+)-of-(\d+))?)")


class LoaderState:
    """Expose a run as a `Stateful` for `dcp.save`, `dcp.async_save` and `dcp.load`.

    The state is one opaque text if all ranks are equal. It is one text per rank if ranks have lanes
    or journals, or if torch.distributed does not run and they cannot agree.

    Saving fails if processes are at different steps, including processes of one rank (tensor
    parallelism). Like `dcp.save`, it is a collective call of all processes that have a loader.

    Args:
        run: a loader, or an iterator of a dataset.
        checkpoint: the checkpoint to load next, as a folder or a `StorageReader`. Required to load
            a checkpoint of another world size, or to adopt a run in lanes. Load this object before
            you save it.
        name: the name of this state in the checkpoint, if it holds several ("data", "app.data").
        on_mismatch: "error" rejects the state of another pipeline; "adopt" continues with this one.
        process_group: the processes that have a loader, if these are not all.

    Raises:
        StateError: for a checkpoint that holds no state, or several without `name`.

    >>> import penstock as ps
    >>> loader = ps.Loader(ps.from_sequence(range(5)))
    >>> first = next(iter(loader))
    >>> state = LoaderState(loader).state_dict()
    >>> list(state)
    ['penstock']
    >>> again = ps.Loader(ps.from_sequence(range(5)))
    >>> LoaderState(again).load_state_dict(state)
    >>> list(again)
    [1, 2, 3, 4]
    """

    def __init__(
        self,
        run: Savable,
        checkpoint: str | Path | Any | None = None,
        *,
        name: str | None = None,
        on_mismatch: OnMismatch = "error",
        process_group: Any = None,
    ) -> None:
        self._run, self._group = run, process_group
        self._on_mismatch: OnMismatch = on_mismatch
        self._pending_keys = [] if checkpoint is None else _list_state_keys(checkpoint, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run as text, or the keys to load from `checkpoint`.

        Raises:
            StateError: on all processes, if they are at different steps or read different data.
        """
        if self._pending_keys:
            return {key: _PendingState() for key in self._pending_keys}
        state, run = self._run.state_dict(), self._run
        saved = decode_state(state)
        positions = gather_objects(describe_position(saved), self._group)
        differs = run.world_size > 1 and (saved.differs_by_rank or positions is None)
        key = f"penstock-rank-{run.rank}-of-{run.world_size}" if differs else "penstock"
        try:
            require_one_step(positions or [], run.world_size)
        except StateError as error:
            error.add_note(
                "penstock: to load a checkpoint at this point, pass it: LoaderState(loader, "
                "checkpoint)"
            )
            raise
        return {key: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the run from the states of a checkpoint.

        Args:
            state_dict: the return value of `state_dict()`, filled by `dcp.load`.

        Raises:
            StateError: for states that are corrupted, of different steps, or of another pipeline.
                The run then keeps its position.
        """
        try:
            states = [json.loads(text) for text in state_dict.values()]
        except (TypeError, ValueError) as error:
            raise StateError(
                f"the states in the checkpoint are not JSON ({error}); use an earlier checkpoint"
            ) from error
        self._run.load_state_dict(states, self._on_mismatch)
        self._pending_keys = list[str]()


class _PendingState:
    """Placeholder for a state to load; saving it raises `ConfigError`."""

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "this LoaderState waits for its checkpoint: load it first, or save one made without "
            "checkpoint="
        )


def _list_state_keys(checkpoint: Any, name: str | None) -> list[str]:
    """Return the keys of a run's states in a checkpoint."""
    if isinstance(checkpoint, str | Path):
        try:
            from torch.distributed.checkpoint.filesystem import FileSystemReader
        except ImportError as error:
            raise make_missing_extra_error(
                "torch", "torch", "a checkpoint of torch.distributed.checkpoint"
            ) from error
        checkpoint = FileSystemReader(checkpoint)
    keys_by_run = dict[str, dict[str, re.Match[str]]]()
    for match in map(_STATE_KEY_PATTERN.fullmatch, checkpoint.read_metadata().state_dict_metadata):
        if match and name in (None, match[1]):
            keys_by_run.setdefault(match[1] or "", {})[match[2]] = match
    if len(keys_by_run) != 1:
        several = (
            f"states of several runs: choose one with name= ({', '.join(sorted(keys_by_run))})"
        )
        raise StateError(
            f"the checkpoint holds {several if keys_by_run else 'no state of Penstock'}"
        )
    (keys,) = keys_by_run.values()
    world_sizes = {int(match[3]): int(match[4]) for match in keys.values() if match[3]}
    if missing := sorted(set(range(max(world_sizes.values(), default=0))) - world_sizes.keys()):
        raise StateError(
            f"the checkpoint lacks the states of ranks {missing[:8]} of {max(world_sizes.values())}"
        )
    return sorted(keys, key=lambda key: (int(keys[key][3] or 0), key))
