"""TensorFlow: a run as a `tf.data.Dataset`, with the state of what was given out, however far ahead
it is read."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np

from ..engine.base.machine import lock
from ..errors import ConfigError, missing_extra
from ..loader import Loader


class TensorFlowData:
    """The items of a loader by way of `tf.data`, which reads them ahead; a `for` gives the rest of
    the pass.

    The state is that after the last item that the loop was given; what `tf.data` holds beyond is
    read again.

    Args:
        loader: of this rank, which shares out; `shard` and `shuffle` have nothing to do.
        prefetch: how many items `tf.data` may hold.
        spec: what an item looks like, as for `from_generator`. Without it that of the next item,
            the first dimension of each array left open.
        then: more steps of `tf.data`, which give an item for each (`map`).

    Raises:
        ImportError: where TensorFlow is not installed.

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
        self._tf = _tensorflow()
        self._loader, self._prefetch, self._then = loader, prefetch, then
        self._spec = _spec_of_next(self._tf, loader) if spec is None else spec
        self._lock, self._run = lock(), 0
        self._ahead = deque[
            Callable[[], dict[str, Any]]
        ]()  # the states after items that are on their way
        self._last: Callable[[], dict[str, Any]] | None = None

    @property
    def rank(self) -> int:
        """The loader's."""
        return self._loader.rank

    @property
    def world_size(self) -> int:
        """The loader's."""
        return self._loader.world_size

    def __iter__(self) -> Iterator[Any]:
        with self._lock:  # a generator of before may be asked for more
            self._run += 1
            if self._ahead and self._last is not None:
                self._loader.load_state_dict(self._last())
            self._last = self._last or self._moment()
            self._ahead.clear()
            made = partial(self._items, self._run)
        found = self._tf.data.Dataset.from_generator(made, output_signature=self._spec)
        found = self._then(found) if self._then else found
        for item in found.prefetch(self._prefetch):
            if not self._ahead:
                raise ConfigError(
                    "then= of tf.data gives more items than it was given: batch in the pipeline "
                    "instead"
                )
            self._last = self._ahead.popleft()
            yield item
        if self._ahead:
            raise ConfigError(
                "then= of tf.data gives fewer items than it was given: batch in the pipeline "
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
                self._ahead.append(self._moment())
            yield item

    def _moment(self) -> Callable[[], dict[str, Any]]:
        return self._loader._session.moment()  # pyright: ignore[reportPrivateUsage]

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, after the last item that was given."""
        with self._lock:
            return self._loader.state_dict() if self._last is None else self._last()

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go where a state says; a `for` that is under way ends.

        Args:
            state_dict: what `state_dict()` gave, or a list of those of all ranks.
        """
        with self._lock:
            self._loader.load_state_dict(state_dict)
            self._run += 1
            self._ahead.clear()
            self._last = None


def tracked(data: TensorFlowData) -> Any:
    """The place of a run for `tf.train.Checkpoint(data=tracked(data), model=...)`.

    Args:
        data: whose place it is; on several ranks each checkpoints its own.

    >>> place = tracked(data)  # doctest: +SKIP
    """
    base: Any = _tensorflow().train.experimental.PythonState

    class Place(base):
        def serialize(self) -> str:
            return json.dumps(data.state_dict())

        def deserialize(self, string_value: str | bytes) -> None:
            data.load_state_dict(json.loads(string_value))

    return Place()


def _tensorflow() -> Any:
    try:
        return import_module("tensorflow")
    except ImportError:
        raise missing_extra(
            "tensorflow", "tensorflow", "penstock.integrations.tensorflow"
        ) from None


def _spec_of_next(tf: Any, loader: Loader) -> Any:
    """What the next item looks like; the loader stays where it is."""
    before = loader.state_dict()
    try:
        item = next(iter(loader))
    except StopIteration:
        raise ConfigError(
            "there is no item to see what items look like: give TensorFlowData(spec=)"
        ) from None
    loader.load_state_dict(before)
    return _spec_of(tf, item)


def _spec_of(tf: Any, item: Any) -> Any:
    if isinstance(item, Mapping):
        return {name: _spec_of(tf, part) for name, part in cast("Mapping[str, Any]", item).items()}
    if isinstance(item, tuple):
        return tuple(_spec_of(tf, part) for part in cast("tuple[Any, ...]", item))
    array = np.asarray(item)
    if array.dtype == object:
        raise ConfigError(
            f"TensorFlow has no tensor for a {type(item).__name__} of objects; give "
            "TensorFlowData(spec=)"
        )
    kind = tf.string if array.dtype.kind in "US" else tf.as_dtype(array.dtype)
    return tf.TensorSpec(shape=(None, *array.shape[1:]) if array.ndim else (), dtype=kind)
