"""Checkpoints by Orbax: `mngr.save(step, args=checkpoint.CheckpointSave(it))`, and in place back
again.

Each process writes its own file, `STEP/default/process_0-of-1.json`. Orbax is imported when one of
the names is asked for; the classes are then known to it.
"""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import StateError, missing_extra

if TYPE_CHECKING:
    CheckpointSave: Any
    CheckpointRestore: Any


class CheckpointHandler:
    """What Orbax calls to save and restore an iterator."""

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Write the iterator's state into the folder."""
        it = args.item if item is None else item
        (directory / _file()).write_text(json.dumps(it.get_state(), indent=4))

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Put the iterator where the state in the folder says, and return it."""
        it = args.item if item is None else item
        file = directory / _file()
        if not file.exists():
            found = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
            raise StateError(
                f"{directory}: there is no {file.name}, but {found}; a checkpoint is restored by "
                "as many processes as wrote it"
            )
        try:
            state = json.loads(file.read_text())
        except ValueError as error:
            raise StateError(f"{file}: not a whole JSON file ({error})") from error
        it.set_state(state)
        it.start_prefetch()
        return it

    def finalize(self, directory: Any) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is held."""

    @classmethod
    def typestr(cls) -> str:
        """The name under which Orbax notes the handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


def _file() -> str:
    import jax

    api: Any = jax
    return f"process_{api.process_index()}-of-{api.process_count()}.json"


@cache
def _arguments() -> dict[str, Any]:
    """The argument classes, known to Orbax."""
    try:
        import orbax.checkpoint as ocp  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise missing_extra("orbax-checkpoint", "jax", "checkpointing with Orbax") from error
    args: Any = ocp.args
    found = dict[str, Any]()
    for name, doc, use in (
        ("CheckpointSave", "Saves an iterator.", {"for_save": True}),
        ("CheckpointRestore", "Restores an iterator in place.", {"for_restore": True}),
    ):
        made = make_dataclass(
            name, [("item", Any)], bases=(args.CheckpointArgs,), namespace={"__doc__": doc}
        )
        made.__module__ = __name__
        found[name] = args.register_with_handler(CheckpointHandler, **use)(made)
    return found


def __getattr__(name: str) -> Any:
    if name in ("CheckpointSave", "CheckpointRestore"):
        return _arguments()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
