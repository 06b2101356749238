"""Orbax: where a loader stands as an item of a checkpoint, of one host or many, sync or async, for
its API v0 and v1.

Each process writes one small file, `process_0-of-2.json`. A checkpoint is restored by any number of
processes: each reads the files of those that wrote it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ..engine.runtime.cursor import unseal
from ..engine.runtime.states import OnMismatch, require_equal_stands, stand_of
from ..errors import StateError, missing_extra

try:
    import jax
    import orbax.checkpoint  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise missing_extra("orbax-checkpoint", "jax", "checkpointing with Orbax") from error

_jax, _ocp = cast("Any", jax), cast("Any", orbax.checkpoint)
_EVERY_HOST = _ocp.options.MultiprocessingOptions(primary_host=None)


class Stateful(Protocol):
    """What stands somewhere and can go elsewhere: a `Loader`, or what a trainer has in its
    place."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(
        self, state: Sequence[Mapping[str, Any]], on_mismatch: OnMismatch, /
    ) -> None: ...


class Handler(_ocp.JsonCheckpointHandler):  # pyright: ignore[reportUntypedBaseClass]
    """What Orbax calls for `Save` and `Restore`."""

    def __init__(self) -> None:
        super().__init__(_file(), multiprocessing_options=_EVERY_HOST)  # pyright: ignore[reportUnknownMemberType]

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Take the state now, and write it when the folder is there."""
        state = _ocp.args.JsonSave(args.loader.state_dict())
        return await _ocp.JsonCheckpointHandler.async_save(self, directory, args=state)

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Stateful:
        """Put the loader where the states in the folder say."""
        args.loader.load_state_dict(states(directory), args.on_mismatch)
        return args.loader


@_ocp.args.register_with_handler(Handler, for_save=True)
@dataclass
class Save(_ocp.args.CheckpointArgs):  # pyright: ignore[reportUntypedBaseClass]
    """Saves where a loader stands: `manager.save(step, args=ocp.args.Composite(model=...,
    data=Save(loader)))`.

    Args:
        loader: a `Loader`, or what has a loader's states.

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
    """Puts a loader where `Save` found one, on as many processes or more or fewer, and returns it.
    If anything is wrong the loader stays where it is, and a `StateError` says what.

    Args:
        loader: of the same pipeline.
        on_mismatch: "error" refuses a state of another pipeline; "adopt" goes on with this one,
            every input where it was.
    """

    loader: Stateful
    on_mismatch: OnMismatch = "error"


class Checkpointable:
    """The same for Orbax's API v1: `save_checkpointables(path, {"model": ..., "data":
    Checkpointable(loader)})`, and `load_checkpointables` with such a mapping.

    Args:
        loader: a `Loader`, or what has a loader's states.
        on_mismatch: what a load does with a state of another pipeline: "error", or "adopt".
    """

    def __init__(self, loader: Stateful, on_mismatch: OnMismatch = "error") -> None:
        self._loader = loader
        self._on_mismatch: OnMismatch = on_mismatch

    async def save(self, directory: Any) -> Awaitable[None]:
        """Take the state now; what is returned writes it.

        Args:
            directory: of this item, which is made meanwhile.
        """
        state = json.dumps(self._loader.state_dict())

        async def write() -> None:
            folder = await directory.await_creation()
            await asyncio.to_thread((folder / _file()).write_text, state)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Put the loader where the states in the folder say.

        Args:
            directory: of this item.

        Raises:
            StateError: for states that are damaged, or of another pipeline.
        """

        async def read() -> None:
            self._loader.load_state_dict(
                await asyncio.to_thread(states, directory), self._on_mismatch
            )

        return read()


def states(directory: Any) -> list[dict[str, Any]]:
    """The states in a folder: of every process, or one where they are all alike.

    Args:
        directory: the item's folder in a checkpoint.

    Raises:
        StateError: where the file of a process is missing or damaged, or processes stood at
            different steps.
    """
    names = sorted(path.name for path in directory.glob("process_[0-9]*-of-[0-9]*.json"))
    size = int(names[0].removesuffix(".json").rpartition("-")[2]) if names else 1
    wanted = [f"process_{rank}-of-{size}.json" for rank in range(size)]
    if missing := sorted({*wanted} - {*names}):
        found = ", ".join(names[:4]) or "nothing"
        raise StateError(
            f"{directory}: there is no {missing[0]}, but {found}; every process writes a file of "
            "its own"
        )
    found = [_read(directory / name) for name in wanted]
    require_equal_stands(
        {process: stand_of(unseal(state)) for process, state in enumerate(found)}, "process"
    )
    return [
        *{json.dumps(state): state for state in found}.values()
    ]  # processes may hold the same rows


def _read(file: Any) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{file}: not a whole JSON file ({error}); use an earlier checkpoint"
        ) from error


def _file() -> str:
    return f"process_{_jax.process_index()}-of-{_jax.process_count()}.json"
