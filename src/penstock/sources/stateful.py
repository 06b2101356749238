"""Streams of a user whose iterators save and restore their own state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, cast

import numpy as np

from ..engine.base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from ..engine.base.rows import ProvenanceRows, make_empty_rows
from ..engine.steps.op import Op
from ..engine.steps.read import Read
from ..engine.steps.read_shards import ShardsOp
from ..engine.steps.step import Builder
from ..engine.streams.chunk_cursors import Chunk, ConstantCursor
from ..engine.streams.function_call import Leaf
from ..engine.streams.shared_reader import PassCounts
from ..engine.streams.stream import Stream
from ..engine.streams.stream_opener import StreamOpener
from ..errors import ConfigError, StateError
from ..types import Digest, Json, Path


class StatefulIterator(Protocol):
    """An iterator that saves its position, as iterators of torchdata and of Penstock do."""

    def __next__(self) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> None: ...


class StatefulIterable:
    """A source whose iterators have a state.

    Args:
        factory: function that returns an iterable; called for every pass, and at a resume.
        identity: version of the data, stored in the state.
    """

    unknown = False

    def __init__(
        self, factory: Callable[[], Iterable[Any]], identity: str | int | None = None
    ) -> None:
        self._factory, self._identity = factory, identity

    def names(self) -> Sequence[str]:
        """Return the name of the only shard."""
        return ["stream"]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """Return an iterator over the samples from `row` on."""
        return islice(cast("Any", self.iterate()), row, None)

    def iterate(self) -> StatefulIterator:
        """Return a new iterator.

        Raises:
            ConfigError: if the iterator has no state.
        """
        iterator = cast("Any", iter(self._factory()))
        if not hasattr(iterator, "state_dict") or not hasattr(iterator, "load_state_dict"):
            raise ConfigError(
                f"from_iterable(stateful=True): a {type(iterator).__name__} has no state_dict() "
                "and load_state_dict(); leave out stateful=, and a resume reads the stream again"
            )
        return iterator

    def digest(self) -> Digest:
        """Return the identity that the user gave."""
        return {"identity": str(self._identity)}

    def describe(self) -> Json:
        """Return the type of the source."""
        return {"type": "stateful iterable"}


@dataclass(frozen=True)
class ReadStateful(Read):
    """Read a stream whose iterators have a state of their own, which is part of the cursor."""

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return StatefulOp(builder.leaf(self, path), builder.timing and builder.timing.profiler)


class StatefulOp(ShardsOp):
    """A stateful stream at work; several lanes share one iterator."""

    def stream(  # pyright: ignore[reportIncompatibleMethodOverride]  # another name
        self, opening: StreamOpener, passes: PassCounts
    ) -> Stream:
        return opening.open_shared(self, lambda: self._open_stream(opening), passes)

    def _open_stream(self, opening: StreamOpener) -> Stream:
        stream = StatefulStream(self.named)
        opening.execution.witnesses.append(stream.check)
        return stream


_EVERY = 16  # samples from one saved state of an iterator to the next


def _saved_before(index: int) -> int:
    """Return the number of the saved state from which a sample is read; state k is before 16 * k."""
    return max(index - 1, 0) // _EVERY


@dataclass(frozen=True, slots=True)
class _StateCursors:
    """Cursors of a chunk from a sample on, with the saved states from the first one needed on."""

    states: Sequence[str | None]
    index: int

    def at(self, count: int, /) -> Json:
        index = self.index + count
        return [self.states[_saved_before(index) - _saved_before(self.index)], index]


class StatefulStream:
    """The samples of the iterators of a source.

    A cursor has the index of the next sample in the pass, and a state of the iterator as JSON;
    `None` is a new iterator. Only states before every 16th sample are saved. So equal positions
    have equal cursors, and a resume reads at most 16 samples again.
    """

    def __init__(self, named: Leaf) -> None:
        self._leaf, self._source = named, cast("StatefulIterable", named.source)
        self._iterator: StatefulIterator | None = None
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._state, self._index]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        state, index = (None, 0) if cursor is None else parse_cursor_list(cursor)
        if state is not None and not isinstance(state, str):
            raise make_cursor_error(state, "the state of an iterator")
        self.close()
        self._epoch, self._state, self._index = epoch, state, parse_cursor_int(index)

    def close(self) -> None:
        iterator: Any = self._iterator
        self._iterator = None
        if callable(close := getattr(iterator, "close", None)):
            close()

    def check(self) -> None:
        """Open the iterator, so that a state that does not fit is an error at once."""
        if self._state is not None:
            self.open()

    def open(self) -> StatefulIterator:
        """Return the iterator at the cursor, opened if needed."""
        if self._iterator is not None:
            return self._iterator
        iterator = self._source.iterate()
        if self._state is not None:
            iterator.load_state_dict(json.loads(self._state))
        skipped = self._index - _saved_before(self._index) * _EVERY
        if sum(1 for _ in islice(_iterate(iterator), skipped)) < skipped:
            raise StateError(
                f"{self._leaf.name!r} ends before sample {self._index} of the restored state; its "
                "iterators must give the same samples after load_state_dict()"
            )
        self._iterator = iterator
        return iterator

    def pull(self, n: int, /) -> Chunk:
        iterator, start, states, values = self.open(), self._index, [self._state], list[Any]()
        index = start
        while len(values) < n:
            if index and index % _EVERY == 0:
                states.append(encode_state(iterator.state_dict(), self._leaf.name))
            more = list(islice(_iterate(iterator), min(n - len(values), _EVERY - index % _EVERY)))
            if not more:
                break
            values, index = values + more, index + len(more)
        if not values:
            return Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))
        self._state, self._index = states[_saved_before(index) - _saved_before(start)], index
        indices = np.arange(start, index)
        zeros = np.zeros_like(indices)
        rows = ProvenanceRows(zeros + self._leaf.number, zeros + self._epoch, indices, zeros)
        return Chunk(values, rows, _StateCursors(states, start))


def _iterate(iterator: StatefulIterator) -> Iterator[Any]:
    """Yield the samples; unlike `iter(iterator)`, nothing is opened again."""
    while True:
        try:
            value = iterator.__next__()
        except StopIteration:
            return
        yield value


def encode_state(state: Any, name: str) -> str:
    """Return a state as JSON; numbers of NumPy become plain numbers.

    Raises:
        ConfigError: for other values.
    """
    try:
        return json.dumps(state, default=_encode_number)
    except TypeError as error:
        raise ConfigError(
            f"{name!r}: the state of its iterator is no JSON ({error}): return dicts, lists, texts "
            "and numbers from state_dict()"
        ) from error


def _encode_number(value: Any) -> Any:
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    raise TypeError(f"{type(value).__name__} is no JSON value")
