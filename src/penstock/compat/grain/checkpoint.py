"""Checkpoints by Orbax: `mngr.save(step, args=checkpoint.CheckpointSave(it))`.

Each process writes its own file, `STEP/default/process_0-of-1.json`; restoring works in place.
Orbax is imported on first access to one of the names, which registers the classes with it.
"""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import StateError, make_missing_extra_error

if TYPE_CHECKING:
    CheckpointSave: Any
    CheckpointRestore: Any


class CheckpointHandler:
    """Checkpoint handler that Orbax calls to save and restore an iterator."""

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Write the iterator's state into the folder."""
        it = args.item if item is None else item
        (directory / _file()).write_text(json.dumps(it.get_state(), indent=4))

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Restore the iterator from the folder, and return it.

        Raises:
            StateError: if the file of this process is missing or corrupted.
        """
        it = args.item if item is None else item
        file = directory / _file()
        if not file.exists():
            present = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
            raise StateError(
                f"{directory}: {file.name} is missing, found {present}: restore with the number of "
                "processes that wrote the checkpoint"
            )
        try:
            state = json.loads(file.read_text())
        except ValueError as error:
            raise StateError(
                f"{file}: not a complete JSON file ({error}): use an earlier checkpoint"
            ) from error
        it.set_state(state)
        it.start_prefetch()
        return it

    def finalize(self, directory: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the handler has no resources."""

    @classmethod
    def typestr(cls) -> str:
        """Return the name of the handler in Orbax's metadata."""
        return f"{cls.__module__}.{cls.__qualname__}"


def _file() -> str:
    import jax

    api: Any = jax
    return f"process_{api.process_index()}-of-{api.process_count()}.json"


@cache
def _arguments() -> dict[str, Any]:
    """Return the argument classes, registered with Orbax."""
    try:
        import orbax.checkpoint as ocp  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise make_missing_extra_error(
            "orbax-checkpoint", "jax", "checkpointing with Orbax"
        ) from error
    args: Any = ocp.args
    classes = dict[str, Any]()
    for name, doc, use in (
        ("CheckpointSave", "Saves an iterator.", {"for_save": True}),
        ("CheckpointRestore", "Restores an iterator in place.", {"for_restore": True}),
    ):
        arguments = make_dataclass(
            name, [("item", Any)], bases=(args.CheckpointArgs,), namespace={"__doc__": doc}
        )
        arguments.__module__ = __name__
        classes[name] = args.register_with_handler(CheckpointHandler, **use)(arguments)
    return classes


def __getattr__(name: str) -> Any:
    if name in ("CheckpointSave", "CheckpointRestore"):
        return _arguments()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
