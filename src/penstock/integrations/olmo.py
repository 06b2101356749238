"""OLMo-core: a data loader for its Trainer, over a `Loader`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

from ..errors import make_missing_extra_error
from ..loader import Loader
from .trainers import AllRanks, iter_rest_or_next, require_loader


def data_loader(loader: Loader, work_dir: str | Path, global_batch_size: int) -> Any:
    """Return an OLMo-core `DataLoaderBase` that trains on a loader.

    Pass it to `TrainerConfig.build(train_module, data_loader)`. Every epoch is a pass; `reshuffle`
    is a no-op, since the pass decides the order. A checkpoint stores the states of all ranks, and
    loads on another world size with the same global batch.

    Args:
        loader: yields batches that are mappings with `input_ids`. Its ranks are the trainer's.
        work_dir: a folder of this machine.
        global_batch_size: of all ranks together, in the unit of the train module (tokens).

    Raises:
        ImportError: if OLMo-core is not installed.

    >>> import penstock as ps
    >>> train = data_loader(ps.Loader(rows), "/tmp/olmo", global_batch_size=4096)  # doctest: +SKIP
    >>> TrainerConfig(save_folder="checkpoints").build(train_module, train).fit()  # doctest: +SKIP
    """
    return _define_loader_class()(
        require_loader(loader, "data_loader"), work_dir, global_batch_size
    )


@cache
def _define_loader_class() -> Any:
    try:
        from olmo_core.data.data_loader import DataLoaderBase  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError:
        raise make_missing_extra_error(
            "ai2-olmo-core", "olmo", "penstock.integrations.olmo"
        ) from None

    base = cast(Any, DataLoaderBase)

    class PenstockDataLoader(base):
        def __init__(self, loader: Loader, work_dir: str | Path, global_batch_size: int) -> None:
            setting = loader._session.setting  # pyright: ignore[reportPrivateUsage]
            super().__init__(  # pyright: ignore[reportUnknownMemberType]
                work_dir=work_dir, global_batch_size=global_batch_size, dp_world_size=setting.world_size,
                dp_rank=setting.rank,
            )  # fmt: skip
            self._loader = loader

        @property
        def total_batches(self) -> int | None:
            try:
                return len(self._loader)
            except TypeError:
                return None

        def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
            self._epoch = epoch

        def _iter_batches(self) -> Iterator[Any]:
            return iter_rest_or_next(self._loader)

        def state_dict(self) -> dict[str, Any]:
            return {
                **AllRanks(self._loader).state_dict(),
                "batches_processed": self.batches_processed,
            }

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            AllRanks(self._loader).load_state_dict(state_dict)
            self.batches_processed = state_dict["batches_processed"]

        def get_mock_batch(self) -> Any:
            # Without a mock batch the trainer skips its dry run, which would consume a real one.
            raise NotImplementedError

        def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
            return batch["input_ids"].numel() * self.dp_world_size

    return PenstockDataLoader
