"""The iterator: a Penstock run, with Grain's names for its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...dataset import Dataset
from ...dataset import DatasetIterator as CoreIterator
from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError
from .options import Run
from .prefetch import PrefetchIterator


class DatasetIterator(Iterator[Any]):
    """One pass over an `IterDataset`, with a state.

    The state is Penstock's: small JSON, validated on load. A state of another pipeline raises an
    error with the differences, and the iterator keeps its position. An exception of a user's
    function is raised at its element; the next call tries the same element again, and nothing is
    lost.

    Args:
        core: the Penstock dataset.
        run: run options.

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

    def __init__(self, core: Dataset, run: Run) -> None:
        self._core, self._run = core, run
        self._source, self._closed = self._open(0), False
        self._index: int | None = 0

    def _open(self, index: int) -> CoreIterator | PrefetchIterator:
        source: CoreIterator | PrefetchIterator = CoreIterator(
            self._core, self._run.threads, self._run.prefetch or None, lanes=1
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
        return self._source.state_dict()

    def set_state(self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error") -> None:
        """Restore a state.

        Args:
            state: the return value of `get_state()`.
            on_mismatch: "error" rejects the state of another pipeline; "adopt" continues with
                another mixture, and every input keeps its position.
        """
        self._source.load_state_dict(state, on_mismatch)
        self._index = None

    def seek(self, index: int) -> None:
        """Seek to an element of the pass.

        Random access takes constant time; other pipelines read up to the element.

        Args:
            index: index in the pass.
        """
        source = self._open(index)
        self._source.close()
        self._source, self._index = source, index

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

    state_dict = get_state
    load_state_dict = set_state

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
