"""transformers: its Trainer, and TRL's, trains on a loader and resumes it with its own checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

from ..base.seams import write_whole
from ..errors import StateError, missing_extra
from ..loader import Loader
from .trainers import require_ranks, rest_or_next, states_of_all

try:
    from torch import Generator
    from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint  # pyright: ignore[reportUnknownVariableType]
except ImportError as error:
    raise missing_extra(error.name or "transformers", "trainers", "penstock.frames.transformers") from None

_Trainer = cast(Any, object)  # beside the Trainer that it is mixed into

FILE = "penstock.json"
"""The file in the folder of a checkpoint that has the states of all ranks."""


class FromLoader(_Trainer):
    """Mixed into a Trainer, has it train on a loader: `class MyTrainer(FromLoader, Trainer): ...`.

    The loader alone shares out and batches. `train(resume_from_checkpoint=...)` goes on after the last step of the
    checkpoint and reads nothing of what was trained; on any number of processes that make the same global batch.

    Args:
        args: of the Trainer.
        train_loader: gives batches as the model takes them, tensors on the CPU.
        kwargs: of the Trainer.

    >>> import penstock as ps
    >>> from transformers import Trainer
    >>> class MyTrainer(FromLoader, Trainer): ...
    >>> trainer = MyTrainer(model, args, train_loader=ps.Loader(batches))  # doctest: +SKIP
    >>> trainer.train(resume_from_checkpoint=True)  # doctest: +SKIP
    """

    def __init__(self, *args: Any, train_loader: Loader, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]
        require_ranks(train_loader, self.args.world_size)
        self._loader = train_loader
        self.add_callback(_Saved(train_loader))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader, as a `DataLoader` whose indices only count: the Trainer skips indices, and no data with them."""
        steps = BatchSampler(_Steps(self._loader), batch_size=1, drop_last=False)
        aside = (
            Generator()
        )  # a DataLoader draws from the process's own otherwise, and would change what a resumed run draws
        return DataLoader(_Batches(self._loader), batch_sampler=steps, collate_fn=_as_it_is, generator=aside)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, after the last step of a checkpoint if one is named.

        Args:
            resume_from_checkpoint: the folder of a checkpoint; True for the last in the output folder.
            args: of the Trainer's own method.
            kwargs: of the Trainer's own method.

        Raises:
            StateError: for a checkpoint without the states of the loader.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = cast(str | None, get_last_checkpoint(self.args.output_dir)) or True
        if isinstance(resume_from_checkpoint, str):
            self._loader.load_state_dict(_saved_in(Path(resume_from_checkpoint)))
        trainer: Any = super()  # of the Trainer that this is mixed into
        return trainer.train(resume_from_checkpoint, *args, **kwargs)


class _Saved(TrainerCallback):
    """Writes the states of all ranks into every checkpoint."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        states = states_of_all(self._loader.state_dict(), self._loader.world_size)
        if args.should_save:
            write_whole(Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE, json.dumps(states).encode())


def _saved_in(folder: Path) -> list[dict[str, Any]]:
    file = folder / FILE
    if not file.exists():
        raise StateError(
            f"{folder}: there is no {FILE}; the checkpoint was not finished, or its run trained on no loader: name an "
            "older one"
        )
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise StateError(f"{file}: not a whole JSON file ({error})") from error


class _Steps(Sampler[int]):
    """Numbers the batches of a pass. It ends when the batches do."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return count()

    def __len__(self) -> int:
        return len(self._loader)


class _Batches(Dataset[Any]):
    """The next batch of the loader, whatever its number: 0 begins a pass."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._items: Iterator[Any] | None = None

    def __getitems__(self, steps: Sequence[int]) -> Any:
        if self._items is None or steps[0] == 0:
            self._items = rest_or_next(self._loader)
        return next(self._items)


def _as_it_is(batch: Any) -> Any:
    return batch
