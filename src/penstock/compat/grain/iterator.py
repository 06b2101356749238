"""Iterators: a Penstock run with Grain's names for its state, and the base of a user's iterators."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import GenericAlias
from typing import Any, cast

from ...dataset import Dataset
from ...dataset import DatasetIterator as CoreIterator
from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError, StateError
from .options import Run
from .prefetch import PrefetchIterator
from .sharding import get_process_index_and_count

Rest = Callable[[Any], Dataset]
"""Returns what is left of a dataset after a state that Grain saved."""


def state_file(directory: Any) -> Any:
    """Return the path of the state of this process in a folder."""
    index, count = get_process_index_and_count()
    return directory / f"process_{index}-of-{count}.json"


def read_state(directory: Any) -> str:
    """Return the text of the state of this process in a folder.

    Raises:
        StateError: if its file is missing.
    """
    file = state_file(directory)
    if not file.exists():
        present = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise StateError(
            f"{directory}: {file.name} is missing, found {present}: restore with the number of "
            "processes that wrote the checkpoint"
        )
    return file.read_text()


def parse_state(text: str, directory: Any) -> Any:
    """Return the state that a text has.

    Raises:
        StateError: if it is no complete JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise StateError(
            f"{state_file(directory)}: not a complete JSON file ({error}): use an earlier checkpoint"
        ) from error


async def save_in_background(directory: Any, state: str) -> None:
    """Write a state into a folder of Orbax, once the folder exists."""
    folder = await directory.await_creation()
    await asyncio.to_thread(state_file(folder).write_text, state)


async def load_in_background(directory: Any, restore: Callable[[str], Any]) -> None:
    """Read a state from a folder of Orbax, and restore it."""
    restore(await asyncio.to_thread(read_state, directory))


class DatasetIterator(Iterator[Any], ABC):
    """An iterator with a state; the base of iterators that a user writes.

    Subclasses define `__next__`, `get_state` and `set_state`. In a pipeline their state is part of
    the state of the run.

    Args:
        parents: the iterators that a subclass reads.

    >>> class Count(DatasetIterator):
    ...     index = 0
    ...     def __next__(self):
    ...         self.index += 1
    ...         return self.index
    ...     def get_state(self):
    ...         return {"index": self.index}
    ...     def set_state(self, state):
    ...         self.index = state["index"]
    >>> it = Count()
    >>> next(it), next(it), it.get_state()
    (1, 2, {'index': 2})
    """

    _parents: tuple[Any, ...] = ()
    _closed = False

    def __class_getitem__(cls, element: Any) -> GenericAlias:
        """Support `DatasetIterator[int]` in annotations."""
        return GenericAlias(cls, element)

    def __init__(self, parents: DatasetIterator | Sequence[DatasetIterator] = ()) -> None:
        self._parents = (parents,) if isinstance(parents, DatasetIterator) else tuple(parents)

    @property
    def _parent(self) -> Any:
        (parent,) = self._parents
        return parent

    @abstractmethod
    def get_state(self) -> Any:
        """Return the state after the last element: JSON values."""

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Restore a state.

        Args:
            state: the return value of `get_state()`.
        """

    def state_dict(self) -> Any:
        """Return `get_state()`."""
        return self.get_state()

    def load_state_dict(self, state: Any, /) -> None:
        """Call `set_state(state)`."""
        self.set_state(state)

    def start_prefetch(self) -> None:
        """Start prefetching in the parents, without waiting."""
        for parent in self._parents:
            parent.start_prefetch()

    def close(self) -> None:
        """Close the parents. Closing twice is a no-op."""
        if not self._closed:
            self._closed = True
            for parent in self._parents:
                parent.close()

    async def save(self, directory: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that writes the present state, as Orbax calls it.

        Args:
            directory: a folder that Orbax creates.
        """
        return save_in_background(directory, json.dumps(self.get_state(), indent=4))

    async def load(self, directory: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that restores a state, as Orbax calls it.

        Args:
            directory: the folder of a checkpoint.
        """
        return load_in_background(
            directory, lambda text: self.set_state(parse_state(text, directory))
        )


def find_their_state(state: Any) -> Any:
    """Return the state of Grain that a state is, or that it continues; None without one."""
    if not isinstance(state, Mapping):
        return None
    fields = cast("Mapping[str, Any]", state)
    keys = set(fields)
    if keys == {"grain", "rest"}:
        return fields["grain"]
    theirs = keys == {"next_index"} or keys in ({"parent", "counter"}, {"parent", "index_for_rng"})
    return fields if theirs else None


class RunIterator(DatasetIterator):
    """One pass over a Penstock dataset, with a state.

    The state is Penstock's: small JSON, validated on load. A state of another pipeline raises an
    error with the differences, and the iterator keeps its position. An exception of a user's
    function is raised at its element; the next call tries the same element again, and nothing is
    lost.

    Args:
        core: the Penstock dataset.
        run: run options.
        rest: returns what is left of `core` after a state of Grain.

    >>> from penstock.compat.grain import MapDataset
    >>> it = iter(MapDataset.range(5).to_iter_dataset())
    >>> next(it), next(it)
    (0, 1)
    >>> state = it.get_state()
    >>> next(it)
    2
    >>> it.set_state(state)
    >>> list(it)
    [2, 3, 4]
    """

    def __init__(self, core: Dataset, run: Run, rest: Rest | None = None) -> None:
        super().__init__()
        self._core, self._run, self._rest = core, run, rest
        self._taken_over: Any = None
        for worker_init in run.worker_init:
            worker_init(0, 1)
        self._source, self._closed = self._open(core), False
        self._index: int | None = 0

    def _open(self, core: Dataset, index: int = 0) -> CoreIterator | PrefetchIterator:
        source: CoreIterator | PrefetchIterator = CoreIterator(
            core, self._run.threads, self._run.prefetch or None, lanes=1
        )
        if index:
            source.seek(index)
        for stage in self._run.stages:
            source = PrefetchIterator(source, stage.n, stage.fn)
        return source

    def __next__(self) -> Any:
        if self._closed:
            raise ConfigError("the iterator is closed: make a new one and set its state")
        value = next(self._source)
        if self._index is not None:
            self._index += 1
        return value

    def get_state(self) -> dict[str, Any]:
        """Return the state after the last element."""
        state = self._source.state_dict()
        return state if self._taken_over is None else {"grain": self._taken_over, "rest": state}

    def set_state(self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error") -> None:
        """Restore a state.

        Args:
            state: the return value of `get_state()`, or with `order="grain"` a state of Grain.
            on_mismatch: "error" rejects the state of another pipeline; "adopt" continues with
                another mixture, and every input keeps its position.

        Raises:
            StateError: for a state that does not fit.
        """
        theirs = find_their_state(state)
        if theirs == self._taken_over and theirs is not state:
            self._source.load_state_dict(state["rest"] if theirs else state, on_mismatch)
        else:
            core = self._core if theirs is None or self._rest is None else self._rest(theirs)
            source = self._open(core)
            if theirs is not state:
                source.load_state_dict(state if theirs is None else state["rest"], on_mismatch)
            self._source.close()
            self._source, self._taken_over = source, theirs
        self._index = None

    def seek(self, index: int) -> None:
        """Seek to an element of the pass.

        Random access takes constant time; other pipelines read up to the element.

        Args:
            index: index in the pass.
        """
        source = self._open(self._core, index)
        self._source.close()
        self._source, self._index, self._taken_over = source, index, None

    def next_index(self) -> int:
        """Return the number of elements of the pass before the next one.

        A restored state does not include it.

        Raises:
            ConfigError: after a state was restored.
        """
        if self._index is None:
            raise ConfigError(
                "a restored state does not include the index of the next element: count from the "
                "restored state"
            )
        return self._index

    def load_state_dict(self, state: Any, on_mismatch: OnMismatch = "error", /) -> None:
        """Call `set_state(state, on_mismatch)`."""
        self.set_state(state, on_mismatch)

    def start_prefetch(self) -> None:
        """Start prefetching without waiting; a no-op without threads."""
        if not isinstance(self._source, PrefetchIterator) and self._run.threads:
            self._source = PrefetchIterator(self._source, 1)
        if isinstance(self._source, PrefetchIterator):
            self._source.start()

    def close(self) -> None:
        """Stop the threads. Closing twice is a no-op; a later `next` raises an error."""
        if not self._closed:
            self._closed = True
            self._source.close()
