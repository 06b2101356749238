"""MaxText: packed rows of tokens in place of its Grain pipeline (`dataset_type=grain`).

MaxText's own checkpoints save and restore the loader. Install it like this::

    from maxtext.input_pipeline import input_pipeline_interface as table
    dataset = ps.mix({...}).pack(2048)
    table.make_grain_train_iterator = penstock.integrations.maxtext.train_iterator(dataset)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..arrays.dtypes import cast_array
from ..dataset import Dataset
from ..engine.runtime.executors import ExecutorName
from ..errors import ConfigError, DataError
from ..loader import Loader
from ..text.causal_lm import require_rows

IteratorFactory = Callable[[Any, Any, Sequence[int]], Any]
"""`(config, mesh, process_indices)` -> an iterator of global batches: an entry in MaxText's table."""


def train_iterator(
    dataset: Dataset, *, workers: int = 0, executor: ExecutorName = "threads"
) -> IteratorFactory:
    """Return the function that MaxText calls for its training data.

    Each process that loads data yields its rows of the global batch, `global_batch_size_to_load` in
    total. MaxText's checkpoints store the state of each process; the same number of processes must
    restore them.

    Args:
        dataset: packed rows of `max_target_length` tokens, as `pack` makes them. Without `repeat()`
            training ends after one pass.
        workers: as in `Loader`.
        executor: as in `Loader`.
    """
    return _make_entry_point(dataset, workers, executor, "generate_padding_batch_train")


def eval_iterator(
    dataset: Dataset, *, workers: int = 0, executor: ExecutorName = "threads"
) -> IteratorFactory:
    """Return the function that MaxText calls for its evaluation data.

    Every evaluation begins at the first row.

    Args:
        dataset: packed rows, as for `train_iterator`.
        workers: as in `Loader`.
        executor: as in `Loader`.
    """
    return _make_entry_point(dataset, workers, executor, "generate_padding_batch_eval")


def _make_entry_point(
    dataset: Dataset, workers: int, executor: ExecutorName, padding: str
) -> IteratorFactory:
    def make(config: Any, mesh: Any, process_indices: Sequence[int]) -> Any:
        jax, multihost = (
            import_module("jax"),
            import_module("maxtext.input_pipeline.multihost_dataloading"),
        )
        if 0 < config.expansion_factor_real_data < 1:
            raise ConfigError(
                f"expansion_factor_real_data={config.expansion_factor_real_data} needs several "
                "iterators in each process, but a run has one: leave it at -1"
            )
        rows, rest = divmod(config.global_batch_size_to_load, jax.process_count())
        if rest:
            raise ConfigError(
                f"global_batch_size_to_load={config.global_batch_size_to_load} over "
                f"{jax.process_count()} processes leaves a remainder: choose a multiple"
            )
        rank, batches = (
            process_indices.index(jax.process_index()),
            dataset.batch(rows, drop_remainder=True).map(fields),
        )
        loader = Loader(
            batches, workers=workers, executor=executor, rank=rank, world_size=len(process_indices)
        )
        return multihost.MultiHostDataLoadIterator(
            _MaxTextIterator(loader), mesh, getattr(config, padding)
        )

    return make


def fields(batch: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.int32]]:
    """Rename the fields of packed rows to the names that MaxText's models expect.

    The target of a position is the next token of its own document. The last token of each document
    has `targets_segmentation` 0, like padding.

    Args:
        batch: a packed row, or a batch of them: `segment_ids`, `positions`, and `tokens` or
            `input_ids`; the only feature of integers has any name.

    Returns:
        The renamed fields, as int32 arrays.

    Raises:
        DataError: for other batches, and for numbers beyond int32.

    >>> row = {"tokens": [5, 6, 7, 8, 0], "segment_ids": [1, 1, 2, 2, 0], "positions": [0, 1, 0, 1, 0]}
    >>> found = fields({name: np.array(column) for name, column in row.items()})
    >>> found["targets"].tolist(), found["targets_segmentation"].tolist()
    ([6, 7, 8, 0, 0], [1, 0, 2, 0, 0])
    """
    rows, name = require_rows(batch, "maxtext.fields")
    if "positions" not in rows:
        raise DataError(
            f"maxtext.fields takes packed rows with positions, not one with {', '.join(rows)}: give it "
            "rows of pack(length), without a map that drops a column"
        )
    tokens, segments, positions = (
        _cast_to_int32(rows, column) for column in (name, "segment_ids", "positions")
    )
    targets, trained = np.zeros_like(tokens), np.zeros_like(segments)
    targets[..., :-1] = tokens[..., 1:]
    trained[..., :-1] = np.where(segments[..., 1:] == segments[..., :-1], segments[..., 1:], 0)
    return {
        "inputs": tokens,
        "inputs_position": positions,
        "inputs_segmentation": segments,
        "targets": targets,
        "targets_position": positions,
        "targets_segmentation": trained,
    }


def _cast_to_int32(batch: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[np.int32]:
    try:
        return cast_array(np.asarray(batch[name]), np.dtype(np.int32)).astype(np.int32, copy=False)
    except OverflowError as error:
        raise DataError(f"{name!r} does not fit into int32, which MaxText takes: {error}") from None


class _MaxTextIterator(Iterator[Any]):
    """Adapt a loader to MaxText's local iterator: `iter` restarts it, states are bytes."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._first = loader, loader.state_dict()
        self._steps = iter(loader)

    def __iter__(self) -> Self:
        self._loader.load_state_dict(self._first)
        self._steps = iter(self._loader)
        return self

    def __next__(self) -> Any:
        return next(self._steps)

    def get_state(self) -> bytes:
        return json.dumps(self._loader.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        self._loader.load_state_dict(json.loads(state))
        self._steps = iter(self._loader)
