"""A pipeline with positions as a map-style dataset of torch's, and the sampler that goes through
its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from ...dataset import Dataset
from ...engine.base.ints import whole
from ...engine.base.machine import process
from ...engine.graph.indexed import require_indexed
from ...engine.runtime.setting import place_of
from ...engine.streams.deal import Remainder
from ...errors import IndexedError, StateError, missing_extra
from ...loader import Loader
from ..trainers import require_one_sharder

try:
    import torch.utils.data
except ImportError:
    raise missing_extra("torch", "torch", "penstock.integrations.torch") from None

_data = cast("Any", torch.utils.data)  # without torch the checker knows none of its types
_Mapped: type[Any] = _data.Dataset
_Sampler: type[Any] = _data.Sampler


class MapDataset(_Mapped):
    """The items of a rank by their step: `data[n]` is what its `Loader` gives at step `n`, counted
    over all passes.

    Use it with its `Sampler`: the workers of a `DataLoader` then compute any step, and where the
        run stands is
    a number. Every process opens files of its own, when it is first asked.

    Args:
        dataset: what to read; it has positions.
        rank: which share is ours, as in `Loader`; found in the process that makes this, not in its
            workers.
        world_size: how many shares there are.
        mesh: in the place of both, a torch `DeviceMesh` or `ProcessGroup`.
        remainder: what becomes of rows that are no whole step of several ranks: left out, or filled
            up.

    Raises:
        IndexedError: for a dataset without positions (filter and the like) or without an end.

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
        require_indexed(
            dataset.flow, "MapDataset(ds)", "use penstock.integrations.torch.IterableDataset(ds)"
        )
        if not hasattr(dataset, "__len__"):
            raise IndexedError("MapDataset(ds) of an endless dataset; .limit(n) gives it an end")
        self._dataset = dataset
        self._remainder: Remainder = remainder
        self._rank, self._world_size = place_of(rank, world_size, mesh)
        self._found = rank is None and mesh is None
        require_one_sharder(self._found, self._world_size)
        self._opened: tuple[int, Loader] | None = None

    @property
    def _loader(self) -> Loader:
        """This process's own."""
        if self._opened is None or self._opened[0] != process():
            self._opened = process(), self._new_loader()
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
        """Raise `StateError` if `first_state` of another dataset describes other data or other
        steps."""
        with self._new_loader() as loader:
            mine = loader.state_dict()
            loader.load_state_dict(first)
        if first["records"] != mine["records"]:
            raise StateError(
                "the state of a Sampler counts steps of other ranks or rows: use as many ranks, "
                "the same batch and remainder, or penstock.integrations.torch.IterableDataset, "
                "which resumes on any ranks"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, step: int) -> Any:
        return self.__getitems__([step])[0]

    def __getitems__(self, steps: Sequence[int]) -> list[Any]:
        """The items of many steps; such as follow one another are read together."""
        require_one_sharder(self._found, self._world_size)
        loader, found, expected = self._loader, list[Any](), -1
        items = iter(loader)
        for step in steps:
            if step != expected:
                loader._seek(step, counted=False)  # pyright: ignore[reportPrivateUsage]
            found.append(next(items))
            expected = -1 if (step + 1) % len(self) == 0 else step + 1
        return found


class Sampler(_Sampler):
    """The steps of a `MapDataset` in order, pass after pass: every `for` is the next one.

    `StatefulDataLoader` saves where it stands. A `DataLoader` asks for steps ahead of those it
    gave, so
    there go on from the step that was trained: `Sampler(data, start=trained)`.

    Args:
        data: the dataset whose steps these are.
        start: the step to begin with, counted over all passes.

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
        self._next = self._start = whole(start, "Sampler(start={})")

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        first = self._start
        self._start = end = (first // self._size + 1) * self._size
        for step in range(first, end):
            self._next = step + 1
            yield step

    def state_dict(self) -> dict[str, Any]:
        """Return the step that comes next, and what tells the data and the rows of a step."""
        if self._first is None:
            self._first = self._data.first_state()
        return {"step": self._next, "run": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the step that a state names.

        Raises:
            StateError: for the state of other data, or of steps of other rows.
        """
        if not isinstance(cast(Any, state), Mapping) or not {"step", "run"} <= state.keys():
            raise StateError("this is no state of a penstock.integrations.torch.Sampler")
        self._data.require_same(state["run"])
        self._next = self._start = whole(state["step"], "a state's step={}")
