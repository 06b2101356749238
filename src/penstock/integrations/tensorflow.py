"""TensorFlow: a run as a `tf.data.Dataset`, with exact state under any amount of prefetch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np

from ..engine.base.machine import make_lock
from ..errors import ConfigError, make_missing_extra_error
from ..loader import Loader
from .trainers import require_loader


class TensorFlowData:
    """Iterate over a loader through `tf.data`, with prefetch and an exact state.

    Each `for` yields the rest of the pass. The state is the one after the last item that the loop
    received. Items prefetched by `tf.data` beyond it are read again.

    Args:
        loader: the loader of this rank, which already shards; `shard` and `shuffle` of `tf.data`
            are unnecessary.
        prefetch: number of items that `tf.data` may hold.
        spec: the signature of an item, as for `from_generator`. By default it is derived from the
            next item, and the first dimension of each array stays open.
        then: further `tf.data` steps, one item out for each item in (`map`).

    Raises:
        ImportError: if TensorFlow is not installed.

    >>> import penstock as ps
    >>> data = TensorFlowData(ps.Loader(ps.from_sequence(range(10)).batch(5)))  # doctest: +SKIP
    >>> [batch.numpy().tolist() for batch in data]  # doctest: +SKIP
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    """

    def __init__(
        self,
        loader: Loader,
        *,
        prefetch: int = 2,
        spec: Any = None,
        then: Callable[[Any], Any] | None = None,
    ) -> None:
        self._tf = _import_tensorflow()
        self._loader = require_loader(loader, "TensorFlowData")
        self._prefetch, self._then = prefetch, then
        self._spec = _infer_next_spec(self._tf, loader) if spec is None else spec
        self._lock, self._run = make_lock(), 0
        self._in_flight = deque[Callable[[], dict[str, Any]]]()  # states after the items in flight
        self._last: Callable[[], dict[str, Any]] | None = None

    @property
    def rank(self) -> int:
        """The rank of the loader."""
        return self._loader.rank

    @property
    def world_size(self) -> int:
        """The world size of the loader."""
        return self._loader.world_size

    def __iter__(self) -> Iterator[Any]:
        with self._lock:  # a generator of an earlier loop may still be running
            self._run += 1
            if self._in_flight and self._last is not None:
                self._loader.load_state_dict(self._last())
            self._last = self._last or self._snapshot()
            self._in_flight.clear()
            make_items = partial(self._items, self._run)
        pipeline = self._tf.data.Dataset.from_generator(make_items, output_signature=self._spec)
        pipeline = self._then(pipeline) if self._then else pipeline
        for item in pipeline.prefetch(self._prefetch):
            if not self._in_flight:
                raise ConfigError(
                    "then= of tf.data yields more items than it receives: batch in the pipeline "
                    "instead"
                )
            self._last = self._in_flight.popleft()
            yield item
        if self._in_flight:
            raise ConfigError(
                "then= of tf.data yields fewer items than it receives: batch in the pipeline "
                "instead"
            )
        self._last = None

    def _items(self, run: int) -> Iterator[Any]:
        steps = iter(self._loader)
        while True:
            with self._lock:
                if run != self._run:
                    return
                try:
                    item = next(steps)
                except StopIteration:
                    return
                self._in_flight.append(self._snapshot())
            yield item

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        return self._loader._session.capture_state()  # pyright: ignore[reportPrivateUsage]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run after the last item that the loop received."""
        with self._lock:
            return self._loader.state_dict() if self._last is None else self._last()

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore a state; a `for` in progress ends.

        Args:
            state_dict: the return value of `state_dict()`, or a list with one per rank.
        """
        with self._lock:
            self._loader.load_state_dict(state_dict)
            self._run += 1
            self._in_flight.clear()
            self._last = None


def tracked(data: TensorFlowData) -> Any:
    """Return a trackable for `tf.train.Checkpoint(data=tracked(data), model=...)`.

    Args:
        data: the data whose state to save; on several ranks each rank saves its own checkpoint.

    >>> place = tracked(data)  # doctest: +SKIP
    """
    base: Any = _import_tensorflow().train.experimental.PythonState

    class TrackedState(base):
        def serialize(self) -> str:
            return json.dumps(data.state_dict())

        def deserialize(self, string_value: str | bytes) -> None:
            data.load_state_dict(json.loads(string_value))

    return TrackedState()


def _import_tensorflow() -> Any:
    try:
        return import_module("tensorflow")
    except ImportError:
        raise make_missing_extra_error(
            "tensorflow", "tensorflow", "penstock.integrations.tensorflow"
        ) from None


def _infer_next_spec(tf: Any, loader: Loader) -> Any:
    """Return the signature of the next item, without advancing the loader."""
    before = loader.state_dict()
    try:
        item = next(iter(loader))
    except StopIteration:
        raise ConfigError(
            "the loader has no item to derive a signature from: pass TensorFlowData(spec=)"
        ) from None
    loader.load_state_dict(before)
    return _infer_spec(tf, item)


def _infer_spec(tf: Any, item: Any) -> Any:
    if isinstance(item, Mapping):
        return {
            name: _infer_spec(tf, part) for name, part in cast("Mapping[str, Any]", item).items()
        }
    if isinstance(item, tuple):
        return tuple(_infer_spec(tf, part) for part in cast("tuple[Any, ...]", item))
    array = np.asarray(item)
    if array.dtype == object:
        raise ConfigError(
            f"TensorFlow has no tensor for a {type(item).__name__} of objects; pass "
            "TensorFlowData(spec=)"
        )
    kind = tf.string if array.dtype.kind in "US" else tf.as_dtype(array.dtype)
    return tf.TensorSpec(shape=(None, *array.shape[1:]) if array.ndim else (), dtype=kind)
