"""Lightning: training data that its Trainer resumes exactly, also in mid-epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from ..errors import ConfigError, StateError, make_missing_extra_error
from ..loader import Loader
from .trainers import gather_states, iter_rest_or_next, require_ranks

try:
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
except ImportError:
    raise make_missing_extra_error(
        "lightning", "trainers", "penstock.integrations.lightning"
    ) from None

_Callback = cast(Any, Callback)


class TrainLoader(_Callback):
    """Serve a loader to `Trainer.fit`, and track trained batches as a callback of the trainer.

    Lightning fetches a batch before it trains it, if it cannot know the last one. The state leaves
    out such a batch. Lightning's own checkpoint stores the states of all ranks, and other device
    counts can resume it.

    Args:
        make: makes the loader; called once the trainer knows the ranks.

    Raises:
        ConfigError: for an object that is not a function.

    >>> import penstock as ps
    >>> from lightning.pytorch import Trainer
    >>> train = TrainLoader(lambda: ps.Loader(ps.from_sequence(range(10)).shuffle().batch(4)))
    >>> trainer = Trainer(callbacks=[train], max_epochs=2, accelerator="cpu", logger=False)
    >>> trainer.fit(model, train, ckpt_path="last")  # doctest: +SKIP
    """

    def __init__(self, make: Callable[[], Loader]) -> None:
        if not callable(make):
            raise ConfigError(
                f"TrainLoader: a {type(make).__name__} is made before the ranks are known; give a "
                "function that makes the loader, as in TrainLoader(lambda: ps.Loader(ds))"
            )
        self._make = make
        self._loader: Loader | None = None
        self._fitting = False
        self._fetched = deque[Callable[[], dict[str, Any]]]()

    @property
    def loader(self) -> Loader:
        """The loader; available from `Trainer.fit` on."""
        if self._loader is None:
            raise ConfigError(
                "there is no loader yet: Trainer.fit makes it; add this object to "
                "Trainer(callbacks=[...])"
            )
        return self._loader

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Make the loader, once.

        Args:
            trainer: the trainer, which knows the world size.
            pl_module: not used.
            stage: the stage that begins, such as "fit".
        """
        self._fitting = stage == "fit"
        if not self._fitting or self._loader is not None:
            return
        loader = self._make()
        require_ranks(loader, trainer.world_size)
        self._loader = loader
        self._trained = self._snapshot()

    def __iter__(self) -> Iterator[Any]:
        if self._fetched:  # fetched but not trained: serve these batches again
            self._restore([self._trained()])
        for batch in iter_rest_or_next(self.loader):
            self._fetched.append(self._snapshot())
            yield batch

    def __len__(self) -> int:
        return len(self.loader)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record that training of the oldest fetched batch begins.

        Args:
            trainer: not used.
            pl_module: not used.
            batch: not used.
            batch_idx: not used.
        """
        self._trained = self._fetched.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks after the last trained batch."""
        return (
            {"ranks": gather_states(self._trained(), self.loader.world_size)}
            if self._loader
            else {}
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the last trained batch of a checkpoint.

        Args:
            state_dict: the return value of `state_dict()`.
        """
        if self._fitting:
            self._restore(state_dict["ranks"])

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Raise if a checkpoint lacks the state of this loader.

        Without it the model would resume, and its data would start from the beginning.

        Args:
            trainer: not used.
            pl_module: not used.
            checkpoint: the checkpoint to resume.

        Raises:
            StateError: for a checkpoint of a later step that holds no state of this object.
        """
        step, key = checkpoint.get("global_step"), cast(str, self.state_key)
        if self._fitting and step and not checkpoint["callbacks"].get(key):
            raise StateError(
                f"the checkpoint of step {step} holds no state of this loader ({key!r} in its "
                "callbacks), so its data would start from the beginning: use the class that saved "
                "it, or load only the weights and begin a new run"
            )

    def _restore(self, states: list[dict[str, Any]]) -> None:
        self.loader.load_state_dict(states)
        self._fetched.clear()
        self._trained = self._snapshot()

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        return self.loader._session.capture_state()  # pyright: ignore[reportPrivateUsage]
