"""Lightning: training data that its Trainer resumes exactly, in the middle of an epoch too."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from ..errors import ConfigError, StateError, missing_extra
from ..loader import Loader
from .trainers import require_ranks, rest_or_next, states_of_all

try:
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
except ImportError:
    raise missing_extra("lightning", "trainers", "penstock.integrations.lightning") from None

_Callback = cast(Any, Callback)


class TrainLoader(_Callback):
    """A loader for `Trainer.fit` that is also a callback of the trainer, which tells it what was
    trained.

    Lightning fetches a batch before it is trained, where it cannot know which is the last; such a
    batch is no part of the state. The states of all ranks go into Lightning's own checkpoint, which
    may be resumed on other devices.

    Args:
        make: makes the loader; called when the trainer knows the ranks.

    >>> import penstock as ps
    >>> from lightning.pytorch import Trainer
    >>> train = TrainLoader(lambda: ps.Loader(ps.from_sequence(range(10)).shuffle().batch(4)))
    >>> trainer = Trainer(callbacks=[train], max_epochs=2, accelerator="cpu", logger=False)
    >>> trainer.fit(model, train, ckpt_path="last")  # doctest: +SKIP
    """

    def __init__(self, make: Callable[[], Loader]) -> None:
        self._make = make
        self._made: Loader | None = None
        self._fitting = False
        self._fetched = deque[Callable[[], dict[str, Any]]]()

    @property
    def loader(self) -> Loader:
        """The loader, from `Trainer.fit` on."""
        if self._made is None:
            raise ConfigError(
                "the loader is made by Trainer.fit, for Trainer(callbacks=[...]) with this object "
                "in it"
            )
        return self._made

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the loader, once.

        Args:
            trainer: whose ranks the loader has.
            pl_module: not used.
            stage: what the trainer is about to do.
        """
        self._fitting = stage == "fit"
        if not self._fitting or self._made is not None:
            return
        loader = self._make()
        require_ranks(loader, trainer.world_size)
        self._made = loader
        self._trained = self._moment()

    def __iter__(self) -> Iterator[Any]:
        if self._fetched:  # and never trained: they come again
            self._go([self._trained()])
        for batch in rest_or_next(self.loader):
            self._fetched.append(self._moment())
            yield batch

    def __len__(self) -> int:
        return len(self.loader)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note that the oldest batch fetched is being trained."""
        self._trained = self._fetched.popleft()

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks after the last batch that was trained."""
        return (
            {"ranks": states_of_all(self._trained(), self.loader.world_size)} if self._made else {}
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the last batch that was trained.

        Args:
            state_dict: what `state_dict()` gave.
        """
        if self._fitting:
            self._go(state_dict["ranks"])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume a model that was trained on other data, whose data would start from the
        beginning.

        Args:
            trainer: not used.
            pl_module: not used.
            checkpoint: that is resumed.

        Raises:
            StateError: for a checkpoint of a later step that holds no state of this object.
        """
        step, key = checkpoint.get("global_step"), cast(str, self.state_key)
        if self._fitting and step and not checkpoint["callbacks"].get(key):
            raise StateError(
                f"the checkpoint of step {step} holds no state of this loader ({key!r} in its "
                "callbacks), whose data would start from the beginning: take the class it was "
                "saved with, or load the weights alone and begin a run"
            )

    def _go(self, states: list[dict[str, Any]]) -> None:
        self.loader.load_state_dict(states)
        self._fetched.clear()
        self._trained = self._moment()

    def _moment(self) -> Callable[[], dict[str, Any]]:
        return self.loader._session.moment()  # pyright: ignore[reportPrivateUsage]
