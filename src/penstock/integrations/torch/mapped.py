"""A pipeline with positions as a map-style dataset of torch, and a sampler of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from ...arguments import check_choice, check_int
from ...dataset import Dataset
from ...engine.base.machine import get_pid
from ...engine.runtime.run_options import resolve_rank
from ...engine.streams.rank_sharding import Remainder
from ...errors import IndexedError, StateError, make_missing_extra_error
from ...loader import Loader
from ..trainers import require_one_sharder

try:
    import torch.utils.data
except ImportError:
    raise make_missing_extra_error("torch", "torch", "penstock.integrations.torch") from None

_data = cast("Any", torch.utils.data)  # without torch the checker knows none of its types
_TorchDataset: type[Any] = _data.Dataset
_TorchSampler: type[Any] = _data.Sampler


class MapDataset(_TorchDataset):
    """Index the items of a rank by step: `data[n]` is the item of its `Loader` at step `n`.

    Steps count over all passes. Use it with its `Sampler`: the workers of a `DataLoader` then
    compute any step, and the position of the run is a number. Every process opens its own files on
    first access.

    Args:
        dataset: an indexed dataset.
        rank: rank of this process, as in `Loader`; detected in the process that makes this object,
            not in its workers.
        world_size: number of ranks.
        mesh: a torch `DeviceMesh` or `ProcessGroup`, in place of rank and world_size.
        remainder: "drop" or "pad" the last rows, if they do not fill a step of all ranks.

    Raises:
        IndexedError: for a dataset without positions (filter and similar) or without an end.
        ConfigError: for `remainder="keep"`, as steps of all ranks have to be equal.

    >>> import penstock as ps
    >>> from penstock.integrations.torch import MapDataset
    >>> data = MapDataset(ps.from_sequence(range(6)).batch(2))
    >>> len(data), data[1].tolist(), data[4].tolist()
    (3, [2, 3], [2, 3])
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: object = None,
        remainder: Literal["drop", "pad"] = "drop",
    ) -> None:
        dataset.tree.require_indexed(
            "MapDataset(ds)", "use penstock.integrations.torch.IterableDataset(ds)"
        )
        if not hasattr(dataset, "__len__"):
            raise IndexedError("MapDataset(ds) of an endless dataset; .limit(n) gives it an end")
        check_choice(remainder, ("drop", "pad"), "MapDataset(remainder={})")
        self._dataset = dataset
        self._remainder: Remainder = remainder
        self._rank, self._world_size = resolve_rank(rank, world_size, mesh)
        self._detected = rank is None and mesh is None
        require_one_sharder(self._detected, self._world_size)
        self._opened: tuple[int, Loader] | None = None

    @property
    def _loader(self) -> Loader:
        """The loader of this process."""
        if self._opened is None or self._opened[0] != get_pid():
            self._opened = get_pid(), self._new_loader()
        return self._opened[1]

    def _new_loader(self) -> Loader:
        return Loader(
            self._dataset, rank=self._rank, world_size=self._world_size, remainder=self._remainder
        )

    def first_state(self) -> dict[str, Any]:
        """Return the state of the run at its first step."""
        with self._new_loader() as loader:
            return loader.state_dict()

    def require_same(self, first: Mapping[str, Any]) -> None:
        """Raise `StateError` if the first state of another dataset has other data or steps.

        Args:
            first: the first state of the other dataset.

        Raises:
            StateError: if data or steps differ.
        """
        with self._new_loader() as loader:
            mine = loader.state_dict()
            loader.load_state_dict(first)
        if first["records"] != mine["records"]:
            raise StateError(
                "the state of this Sampler counts steps of other ranks or rows: use the same "
                "world size, batch and remainder, or penstock.integrations.torch.IterableDataset, "
                "which resumes on any world size"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, step: int) -> Any:
        return self.__getitems__([step])[0]

    def __getitems__(self, steps: Sequence[int]) -> list[Any]:
        """Return the items of several steps; consecutive steps are read together."""
        require_one_sharder(self._detected, self._world_size)
        loader, rows, expected = self._loader, list[Any](), -1
        items = iter(loader)
        for step in steps:
            if step != expected:
                loader._seek(step, counted=False)  # pyright: ignore[reportPrivateUsage]
            rows.append(next(items))
            expected = -1 if (step + 1) % len(self) == 0 else step + 1
        return rows


class Sampler(_TorchSampler):
    """Yield the steps of a `MapDataset` in order; every `for` is the next pass.

    `StatefulDataLoader` saves its state. A `DataLoader` requests steps ahead of training, so there
    resume from the last trained step: `Sampler(data, start=trained)`.

    Args:
        data: the dataset whose steps to yield.
        start: the first step, counted over all passes.

    Raises:
        ConfigError: for a start below 0.

    >>> import penstock as ps
    >>> from penstock.integrations.torch import MapDataset, Sampler
    >>> sampler = Sampler(MapDataset(ps.from_sequence(range(6)).batch(2)), start=1)
    >>> list(sampler), list(sampler)
    ([1, 2], [3, 4, 5])
    """

    def __init__(self, data: MapDataset, start: int = 0) -> None:
        self._data, self._size = data, len(data)
        self._first: dict[str, Any] | None = None
        self._next = self._start = check_int(start, "Sampler(start={})")

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        first = self._start
        self._start = end = (first // self._size + 1) * self._size
        for step in range(first, end):
            self._next = step + 1
            yield step

    def state_dict(self) -> dict[str, Any]:
        """Return the next step, and a fingerprint of the data and of the rows of a step."""
        if self._first is None:
            self._first = self._data.first_state()
        return {"step": self._next, "run": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the step of a state.

        Args:
            state: the return value of `state_dict()`.

        Raises:
            StateError: for a state of other data, or of steps of other rows.
        """
        if not isinstance(cast(Any, state), Mapping) or not {"step", "run"} <= state.keys():
            raise StateError(
                "this is not a state of penstock.integrations.torch.Sampler: load one that it saved"
            )
        self._data.require_same(state["run"])
        self._next = self._start = check_int(state["step"], "a state's step={}")
