"""The iterator: a run of the core's, with Grain's names for its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...dataset import Dataset
from ...dataset import DatasetIterator as CoreIterator
from ...engine.runtime.ahead import Ahead
from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError
from .options import Run


class DatasetIterator(Iterator[Any]):
    """One pass over an `IterDataset`, with a state.

    The state is Penstock's: JSON, small, checked when it is loaded. A state of another pipeline is
    refused with the differences, and the iterator then stays where it was. An exception of a user's
    function comes at its place; asking again tries the same element again, and nothing is lost.

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
        self._source, self._closed = self._opened(0), False
        self._place: int | None = 0

    def _opened(self, index: int) -> CoreIterator | Ahead:
        source: CoreIterator | Ahead = CoreIterator(
            self._core, self._run.threads, self._run.ahead or None, lanes=1
        )
        if index:
            source.seek(index)
        for stage in self._run.stages:
            source = Ahead(source, stage.n, stage.fn)
        return source

    def __next__(self) -> Any:
        if self._closed:
            raise ConfigError("the iterator is closed; make a new one and set its state")
        value = next(self._source)
        if self._place is not None:
            self._place += 1
        return value

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands, after the last element it gave."""
        return self._source.state_dict()

    def set_state(self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error") -> None:
        """Go where a state says. `on_mismatch="adopt"` goes on with another mixture, every input
        where it was."""
        self._source.load_state_dict(state, on_mismatch)
        self._place = None

    def seek(self, index: int) -> None:
        """Go to an element of the pass: at once where the pipeline has random access, else by
        reading up to it."""
        opened = self._opened(index)
        self._source.close()
        self._source, self._place = opened, index

    def place(self) -> int:
        """How many elements of the pass were given out; a state does not say that."""
        if self._place is None:
            raise ConfigError(
                "how many elements came before is not part of a state; count on from there"
            )
        return self._place

    state_dict = get_state
    load_state_dict = set_state

    def start_prefetch(self) -> None:
        """Begin to compute ahead, without waiting; nothing happens where the caller's thread does
        all the work."""
        if not isinstance(self._source, Ahead) and self._run.threads:
            self._source = Ahead(self._source, 1)
        if isinstance(self._source, Ahead):
            self._source.start()

    def close(self) -> None:
        """Stop the threads. Closing twice does nothing; asking for an element afterwards is an
        error."""
        if not self._closed:
            self._closed = True
            self._source.close()
