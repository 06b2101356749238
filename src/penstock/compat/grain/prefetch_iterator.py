"""Prefetch of any iterator with a state."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol

from ...engine.runtime.states import OnMismatch
from ...errors import ConfigError
from .iterator import DatasetIterator
from .prefetch import LazyState, PrefetchIterator


class CheckpointableIterator(Protocol):
    """An iterator with a state, such as one of a user."""

    def __next__(self) -> Any: ...
    def get_state(self) -> Any: ...
    def set_state(self, state: Any, /) -> None: ...


class _Resumable:
    """An iterator whose states are copied, as later elements may change them."""

    def __init__(self, parent: CheckpointableIterator) -> None:
        self._parent = parent

    def __next__(self) -> Any:
        return self._parent.__next__()

    def capture_state(self) -> LazyState:
        state = deepcopy(self._parent.get_state())
        return lambda: state

    def load_state_dict(
        self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /
    ) -> None:
        self._parent.set_state(state)

    def close(self) -> None:
        close = getattr(self._parent, "close", None)
        if close is not None:
            close()


class ThreadPrefetchDatasetIterator(DatasetIterator):
    """Prefetch up to `prefetch_buffer_size` elements of an iterator in a thread; 0 reads inline.

    Args:
        parent: an iterator with `get_state` and `set_state`.
        prefetch_buffer_size: elements in flight.

    >>> from penstock.compat.grain import MapDataset
    >>> it = ThreadPrefetchDatasetIterator(iter(MapDataset.range(3)), 2)
    >>> next(it), list(it)
    (0, [1, 2])
    """

    def __init__(self, parent: CheckpointableIterator, prefetch_buffer_size: int) -> None:
        if prefetch_buffer_size < 0:
            raise ConfigError(f"prefetch_buffer_size={prefetch_buffer_size}: give 0 or more")
        super().__init__(parent if isinstance(parent, DatasetIterator) else ())
        self._source: Any = _Resumable(parent)
        if prefetch_buffer_size:
            self._source = PrefetchIterator(self._source, prefetch_buffer_size)

    def __next__(self) -> Any:
        if self._closed:
            raise ConfigError("the iterator is closed: make a new one and set its state")
        return next(self._source)

    def get_state(self) -> Any:
        """Return the state of the parent after the last element delivered."""
        return self._source.capture_state()()

    def set_state(self, state: Any) -> None:
        """Restore a state of the parent.

        Args:
            state: the return value of `get_state()`.
        """
        self._source.load_state_dict(state)

    def start_prefetch(self) -> None:
        """Start prefetching without waiting."""
        if isinstance(self._source, PrefetchIterator):
            self._source.start()

    def close(self) -> None:
        """Stop the thread and close the parent. Closing twice is a no-op."""
        if not self._closed:
            self._closed = True
            self._source.close()
