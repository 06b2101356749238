"""Checkpoints by Orbax: `mngr.save(step, args=checkpoint.CheckpointSave(it))`.

Each process writes its own file, `STEP/default/process_0-of-1.json`; restoring works in place.
Orbax is imported on first access to one of the names, which registers the classes with it.
"""

from __future__ import annotations

import json
from dataclasses import field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import make_missing_extra_error
from .iterator import DatasetIterator, parse_state, read_state, state_file

if TYPE_CHECKING:
    CheckpointSave: Any
    CheckpointRestore: Any

_RESTORE = """Restores an iterator in place.

`on_mismatch="adopt"` continues with another mixture; "error" rejects its state.
"""


class CheckpointHandler:
    """Checkpoint handler that Orbax calls to save and restore an iterator.

    `item` is a `DatasetIterator`, or any object whose state is bytes, such as the iterator of a
    `DataLoader`.
    """

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Write the iterator's state into the folder.

        Args:
            directory: the folder.
            item: the iterator.
            args: a `CheckpointSave` with the iterator, in place of `item`.
        """
        it = args.item if item is None else item
        state = it.get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)
        state_file(directory).write_text(text)

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Restore the iterator from the folder, and return it.

        Args:
            directory: the folder.
            item: the iterator.
            args: a `CheckpointRestore` with the iterator, in place of `item`. Its `on_mismatch`
                says what happens to the state of another mixture.

        Raises:
            StateError: if the file of this process is missing or corrupted.
        """
        it = args.item if item is None else item
        text, on_mismatch = read_state(directory), getattr(args, "on_mismatch", "error")
        state = parse_state(text, directory)
        if not isinstance(it, DatasetIterator):
            state = text.encode()
        restored: Any = it
        if on_mismatch == "error":
            restored.set_state(state)
        else:
            restored.set_state(state, on_mismatch)
        restored.start_prefetch()
        return restored

    def structure(self, directory: Any) -> None:
        """Return `None`: a state has no structure of arrays."""

    def metadata(self, directory: Any) -> None:
        """Return `None`: a state has no metadata."""

    def finalize(self, directory: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the handler has no resources."""

    @classmethod
    def typestr(cls) -> str:
        """Return the name of the handler in Orbax's metadata."""
        return f"{cls.__module__}.{cls.__qualname__}"


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
        ("CheckpointRestore", _RESTORE, {"for_restore": True}),
    ):
        fields: list[Any] = [("item", Any)]
        if name == "CheckpointRestore":
            fields.append(("on_mismatch", str, field(default="error")))
        arguments = make_dataclass(
            name, fields, bases=(args.CheckpointArgs,), namespace={"__doc__": doc}
        )
        arguments.__module__ = __name__
        classes[name] = args.register_with_handler(CheckpointHandler, **use)(arguments)
    return classes


def __getattr__(name: str) -> Any:
    if name in ("CheckpointSave", "CheckpointRestore"):
        return _arguments()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
