"""Orbax: the loader state as an item of a checkpoint, for its API v0 and v1.

Works on one host or many, sync or async. Each process writes one small file, `process_0-of-2.json`.
Any number of processes can restore a checkpoint: each reads the files of all processes that wrote
it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ..engine.runtime.states import (
    OnMismatch,
    decode_state,
    describe_position,
    require_equal_positions,
)
from ..errors import StateError, make_missing_extra_error

try:
    import jax
    import orbax.checkpoint  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise make_missing_extra_error("orbax-checkpoint", "jax", "checkpointing with Orbax") from error

_jax, _ocp = cast("Any", jax), cast("Any", orbax.checkpoint)
_EVERY_HOST = _ocp.options.MultiprocessingOptions(primary_host=None)


class Stateful(Protocol):
    """An object whose state can be saved and restored: a `Loader` or a trainer's substitute."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(
        self, state: Sequence[Mapping[str, Any]], on_mismatch: OnMismatch, /
    ) -> None: ...


class Handler(_ocp.JsonCheckpointHandler):  # pyright: ignore[reportUntypedBaseClass]
    """Checkpoint handler that Orbax calls for `Save` and `Restore`."""

    def __init__(self) -> None:
        super().__init__(_get_state_file_name(), multiprocessing_options=_EVERY_HOST)  # pyright: ignore[reportUnknownMemberType]

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Take the state now, and write it once the folder exists.

        Args:
            directory: the item's folder.
            item: not used.
            args: the `Save` with the loader.

        Returns:
            The futures of Orbax.
        """
        state = _ocp.args.JsonSave(args.loader.state_dict())
        return await _ocp.JsonCheckpointHandler.async_save(self, directory, args=state)

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Stateful:
        """Restore the loader from the states in the folder, and return it.

        Args:
            directory: the item's folder.
            item: not used.
            args: the `Restore` with the loader.

        Returns:
            The loader.
        """
        args.loader.load_state_dict(read_states(directory), args.on_mismatch)
        return args.loader


@_ocp.args.register_with_handler(Handler, for_save=True)
@dataclass
class Save(_ocp.args.CheckpointArgs):  # pyright: ignore[reportUntypedBaseClass]
    """Save the state of a loader.

    Usage: `manager.save(step, args=ocp.args.Composite(model=..., data=Save(loader)))`.

    Args:
        loader: a `Loader`, or an object with a loader's states.

    >>> import penstock as ps, tempfile, orbax.checkpoint as ocp
    >>> folder, loader = tempfile.mkdtemp(), ps.Loader(ps.from_sequence(range(5)))
    >>> next(iter(loader))
    0
    >>> with ocp.CheckpointManager(folder) as manager:
    ...     _ = manager.save(1, args=Save(loader))
    >>> again = ps.Loader(ps.from_sequence(range(5)))
    >>> with ocp.CheckpointManager(folder) as manager:
    ...     list(manager.restore(1, args=Restore(again)))
    [1, 2, 3, 4]
    """

    loader: Stateful


@_ocp.args.register_with_handler(Handler, for_restore=True)
@dataclass
class Restore(_ocp.args.CheckpointArgs):  # pyright: ignore[reportUntypedBaseClass]
    """Restore a loader from `Save`, on any number of processes, and return it.

    On any error the loader keeps its position, and a `StateError` gives the reason.

    Args:
        loader: a loader of the same pipeline.
        on_mismatch: "error" rejects a state of another pipeline; "adopt" continues with this one,
            and every input keeps its position.
    """

    loader: Stateful
    on_mismatch: OnMismatch = "error"


class Checkpointable:
    """Save and restore a loader with Orbax's API v1.

    Usage: `save_checkpointables(path, {"model": ..., "data": Checkpointable(loader)})`, and
    `load_checkpointables` with such a mapping.

    Args:
        loader: a `Loader`, or an object with a loader's states.
        on_mismatch: "error" rejects a state of another pipeline, "adopt" continues with this one.
    """

    def __init__(self, loader: Stateful, on_mismatch: OnMismatch = "error") -> None:
        self._loader = loader
        self._on_mismatch: OnMismatch = on_mismatch

    async def save(self, directory: Any) -> Awaitable[None]:
        """Take the state now, and return the awaitable that writes it.

        Args:
            directory: the item's folder, which Orbax creates meanwhile.

        Returns:
            An awaitable that writes the state.
        """
        state = json.dumps(self._loader.state_dict())

        async def write() -> None:
            folder = await directory.await_creation()
            await asyncio.to_thread((folder / _get_state_file_name()).write_text, state)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Restore the loader from the states in a folder.

        Args:
            directory: the item's folder.

        Returns:
            An awaitable that restores the loader.

        Raises:
            StateError: for states that are corrupted, or of another pipeline.
        """

        async def read() -> None:
            self._loader.load_state_dict(
                await asyncio.to_thread(read_states, directory), self._on_mismatch
            )

        return read()


def read_states(directory: Any) -> list[dict[str, Any]]:
    """Return the states in a folder: one per process, or a single one if all are equal.

    Args:
        directory: the item's folder in a checkpoint.

    Raises:
        StateError: if the file of a process is missing or corrupted, or if the processes were at
            different steps.
    """
    names = sorted(path.name for path in directory.glob("process_[0-9]*-of-[0-9]*.json"))
    world_size = int(names[0].removesuffix(".json").rpartition("-")[2]) if names else 1
    expected = [f"process_{rank}-of-{world_size}.json" for rank in range(world_size)]
    if missing := sorted({*expected} - {*names}):
        present = ", ".join(names[:4]) or "nothing"
        raise StateError(
            f"{directory}: {missing[0]} is missing, found {present}; every process writes its own "
            "file: use a complete checkpoint"
        )
    loaded = [_read_json(directory / name) for name in expected]
    require_equal_positions(
        {process: describe_position(decode_state(state)) for process, state in enumerate(loaded)},
        "process",
    )
    return [
        *{json.dumps(state): state for state in loaded}.values()
    ]  # deduplicated: several processes may hold the same rows


def _read_json(file: Any) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{file}: not a complete JSON file ({error}); use an earlier checkpoint"
        ) from error


def _get_state_file_name() -> str:
    return f"process_{_jax.process_index()}-of-{_jax.process_count()}.json"
