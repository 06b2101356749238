"""Checkpoints by `torch.distributed.checkpoint`: where a run stands, beside the model and the
optimizer.

Its planner writes what stands under one key on several ranks once, and reads a key only for who
names it. So ranks that stand alike share a key, those that differ have one each, and who loads on
another number of ranks is told by the checkpoint which keys there are. All processes agree, before
they share a key, that they stand at one step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..engine.runtime.cursor import unseal
from ..engine.runtime.saves import Savable
from ..engine.runtime.states import OnMismatch, ranks_differ, stand_of
from ..errors import ConfigError, StateError, missing_extra
from .trainers import gathered, require_one_step

_KEY = re.compile(r"(?:(.*)\.)?(penstock(?:-rank-(\d+)-of-(\d+))?)")


class LoaderState:
    """A `Stateful` for `dcp.save`, `dcp.async_save` and `dcp.load`: one opaque text where all ranks
    stand alike, one for each where they have lanes or journals of their own, or cannot agree as
    torch.distributed does not run.

    Saving is refused where processes stand at different steps, also those that are one rank (tensor
    parallelism). Like `dcp.save`, it is a call of all processes that have a loader.

    Args:
        run: a loader, or an iterator of a dataset.
        checkpoint: to load what another number of ranks wrote, or to adopt a run in lanes: the
            checkpoint that is loaded next, as a folder or as a `StorageReader`. What was made with
            it is loaded before it is saved.
        name: under which it lies in what is saved, where a checkpoint holds several ("data",
            "app.data").
        on_mismatch: "error" refuses the state of another pipeline, "adopt" goes on with this one.
        process_group: the processes that have a loader, where these are not all.

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
        self._awaited = [] if checkpoint is None else _keys(checkpoint, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run as text; before it is loaded from a checkpoint, the keys that
        are wanted of that.

        Raises:
            StateError: where processes stand at different steps, or read different data; on all of
                them.
        """
        if self._awaited:
            return {key: _Awaited() for key in self._awaited}
        state, run = self._run.state_dict(), self._run
        told = gathered(stand_of(unseal(state)), self._group)
        own = ranks_differ(state, run.world_size) or (run.world_size > 1 and told is None)
        key = f"penstock-rank-{run.rank}-of-{run.world_size}" if own else "penstock"
        try:
            require_one_step(told or [], run.world_size)
        except StateError as error:
            error.add_note(
                "penstock: to load a checkpoint from here, name it: LoaderState(loader, checkpoint)"
            )
            raise
        return {key: json.dumps(state)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go where the states say that were loaded.

        Args:
            state_dict: what `state_dict()` returned, filled.

        Raises:
            StateError: for states that are damaged, of other moments or of another pipeline. The
                run then stays where it was.
        """
        try:
            states = [json.loads(text) for text in state_dict.values()]
        except (TypeError, ValueError) as error:
            raise StateError(
                f"the checkpoint's states are no JSON ({error}); use an earlier one"
            ) from error
        self._run.load_state_dict(states, self._on_mismatch)
        self._awaited = list[str]()


class _Awaited:
    """A place for a state that is to be loaded. It cannot be saved."""

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "this LoaderState was made to load a checkpoint: load it first, or save one that was "
            "made without"
        )


def _keys(checkpoint: Any, name: str | None) -> list[str]:
    """The keys of a run's states in a checkpoint."""
    if isinstance(checkpoint, str | Path):
        try:
            from torch.distributed.checkpoint.filesystem import FileSystemReader
        except ImportError as error:
            raise missing_extra(
                "torch", "torch", "a checkpoint of torch.distributed.checkpoint"
            ) from error
        checkpoint = FileSystemReader(checkpoint)
    held = dict[str, dict[str, re.Match[str]]]()
    for found in map(_KEY.fullmatch, checkpoint.read_metadata().state_dict_metadata):
        if found and name in (None, found[1]):
            held.setdefault(found[1] or "", {})[found[2]] = found
    if len(held) != 1:
        several = f"states of several runs: say which by name= ({', '.join(sorted(held))})"
        raise StateError(f"the checkpoint holds {several if held else 'no state of Penstock'}")
    (keys,) = held.values()
    ranks = {int(found[3]): int(found[4]) for found in keys.values() if found[3]}
    if gone := sorted(set(range(max(ranks.values(), default=0))) - ranks.keys()):
        raise StateError(
            f"the checkpoint lacks the states of ranks {gone[:8]} of {max(ranks.values())}"
        )
    return sorted(keys, key=lambda key: (int(keys[key][3] or 0), key))
