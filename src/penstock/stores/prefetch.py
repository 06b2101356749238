"""Read-ahead: what is needed soon is asked for now, many requests at once, and held until it is
wanted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from ..engine.base import machine, seams
from ..engine.base.seams import Hands
from ..engine.base.thread_pool import Task

T = TypeVar("T")
U = TypeVar("U")

_MANY = 64  # requests at a time
_LARGEST = (
    1 << 20
)  # bytes of a request, as of a block of the cache: larger ones are cut, and asked for at once
_HELD = 256 << 20  # bytes that wait to be wanted
_WAITING = 8192  # requests that wait to be wanted
_SPENT = 32 << 20  # bytes that were wanted already, and of which neighbours may want the edges


Reach: TypeAlias = Literal["process", "machine", "elsewhere"]
"""Who reads: this process, others of this machine, or processes anywhere."""


class Range(NamedTuple):
    """Bytes of an object of a store."""

    name: str
    start: int
    stop: int


class _Piece:
    """Bytes that are on their way, and how many of them were wanted so far."""

    __slots__ = ("future", "range", "wanted")

    def __init__(self, range: Range, future: Task) -> None:
        self.range, self.future, self.wanted = range, future, 0


def _start(piece: _Piece) -> int:
    return piece.range.start


class Prefetcher:
    """What was asked for ahead; `ask` gives the bytes of a range.

    Speed alone depends on it.
    """

    def __init__(self, ask: Callable[[Range], bytes | memoryview]) -> None:
        self._ask = ask
        self._hands: tuple[int, Hands] | None = None
        self._lock, self._process = machine.lock(), machine.process()
        self._pieces: dict[str, list[_Piece]] = {}
        self._order: dict[int, _Piece] = {}
        self._spent: dict[int, _Piece] = {}
        self._held = self._kept = 0

    def begin(self, ranges: Iterable[Range], now: bool = False) -> bool:
        """Ask for what is not on its way yet; `False`, and nothing, where too much waits already.
        What is wanted `now`
        has room: what waits for the longest time, and that nobody wanted after all, is let go of.
        """
        self._own()
        with self._lock:
            new = [part for whole in joined(ranges) for part in self._lacking(whole)]
            while new and self._order and not self._fits(new):
                if not now:
                    return False
                for piece in [*self._order.values()][: len(self._order) // 4 + 1]:
                    self._drop(piece)
            for part in new[:_WAITING]:
                if self._held + part.stop - part.start <= _HELD:
                    self._put(part)
        return True

    def _fits(self, new: Sequence[Range]) -> bool:
        more = sum(part.stop - part.start for part in new)
        return self._held + more <= _HELD and len(self._order) + len(new) <= _WAITING

    def read(self, wanted: Range) -> bytes | memoryview:
        """These bytes: those that are on their way are waited for, the others asked for now."""
        self._own()
        if wanted.name not in self._pieces:
            return self._ask(wanted)
        found, at = list[bytes | memoryview](), wanted.start
        while at < wanted.stop:
            piece, until = self._at(wanted.name, at, wanted.stop)
            data = None if piece is None else self._from(piece, at, until)
            found.append(self._ask(Range(wanted.name, at, until)) if data is None else data)
            at = until
        return found[0] if len(found) == 1 else b"".join(found)

    def each(self, fn: Callable[[T], U], items: Sequence[T]) -> list[U]:
        """A function over many things, some at a time."""
        if len(items) < 2:
            return [fn(item) for item in items]
        futures = [self._submit(fn, item) for item in items]
        try:
            return [future.result() for future in futures]
        except CancelledError:  # `close`, from another thread
            return self.each(fn, items)

    def forget(self, name: str) -> None:
        """Let go of what is on its way of an object."""
        with self._lock:
            for piece in list(self._pieces.get(name, [])):
                self._drop(piece)

    def close(self, seconds: float | None = None) -> None:
        """Let go of all that is on its way, and of the threads, for which at most so many seconds
        are waited."""
        with self._lock:
            hands, self._hands = self._hands, None
            self._pieces, self._order, self._spent, self._held, self._kept = {}, {}, {}, 0, 0
        if hands is not None and hands[0] == machine.process():
            hands[1].close(seconds)

    def _own(self) -> None:
        """Have nothing of another process, from which this one was forked."""
        if self._process != machine.process():
            self.__init__(self._ask)

    def _submit(self, fn: Callable[[T], U], item: T) -> Task:
        with self._lock:
            if self._hands is None:
                self._hands = machine.process(), seams.world.sched.spawn(_MANY)
            return self._hands[1].submit(lambda: fn(item))

    def _put(self, part: Range) -> None:
        piece = _Piece(part, self._submit(self._ask, part))
        number, size = id(piece), part.stop - part.start
        pieces = self._pieces.setdefault(part.name, [])
        place = bisect_right(pieces, part.start, key=_start)
        # Stores and a C call: no interrupt comes between them.
        self._held, self._order[number] = self._held + size, piece
        pieces.insert(place, piece)

    def _lacking(self, wanted: Range) -> list[Range]:
        """What of a range is not on its way."""
        found, at = list[Range](), wanted.start
        while at < wanted.stop:
            piece, until = self._at(wanted.name, at, wanted.stop)
            if piece is None:
                cuts = (
                    [*range((at // _LARGEST + 1) * _LARGEST, until, _LARGEST)]
                    if until - at > _LARGEST
                    else []
                )
                found += [Range(wanted.name, *pair) for pair in pairwise([at, *cuts, until])]
            at = until
        return found

    def _at(self, name: str, at: int, stop: int) -> tuple[_Piece | None, int]:
        """The piece that holds a byte, or none, and up to where that is so."""
        with self._lock:
            pieces = self._pieces.get(name, [])
            number = bisect_right(pieces, at, key=_start)
            if number and at < pieces[number - 1].range.stop:
                return pieces[number - 1], min(stop, pieces[number - 1].range.stop)
            return None, min(stop, pieces[number].range.start) if number < len(pieces) else stop

    def _from(self, piece: _Piece, start: int, stop: int) -> memoryview | None:
        """Bytes of a piece; `None` where it failed, and is to be asked for again by who wants
        it."""
        try:
            data = piece.future.result()
        except Exception:
            self._drop(piece)
            return None
        piece.wanted += stop - start
        if piece.wanted >= piece.range.stop - piece.range.start:
            self._spend(piece)
        return memoryview(data)[start - piece.range.start : stop - piece.range.start]

    def _spend(self, piece: _Piece) -> None:
        """All of it was wanted: it stays while there is room, for its blocks may reach into what is
        wanted next."""
        with self._lock:
            number, size = id(piece), piece.range.stop - piece.range.start
            if number in self._order:
                self._held, self._kept, self._spent[number] = (
                    self._held - size,
                    self._kept + size,
                    piece,
                )
                self._order.pop(number)
            while self._kept > _SPENT:
                self._drop(next(iter(self._spent.values())))

    def _drop(self, piece: _Piece) -> None:
        with self._lock:
            size, number = piece.range.stop - piece.range.start, id(piece)
            # A store and a C call, twice: no interrupt comes between them.
            if number in self._order:
                self._held -= size
                self._order.pop(number)
            elif number in self._spent:
                self._kept -= size
                self._spent.pop(number)
            pieces = self._pieces.get(piece.range.name, [])
            with suppress(ValueError):
                pieces.remove(piece)
            if not pieces:
                self._pieces.pop(piece.range.name, None)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges of each object, those that touch made one.

    >>> joined([Range("a", 5, 9), Range("a", 0, 5), Range("b", 0, 2), Range("a", 20, 21)])
    [Range(name='a', start=0, stop=9), Range(name='a', start=20, stop=21), Range(name='b', start=0, stop=2)]
    """
    found = list[Range]()
    for one in sorted(ranges):
        if found and found[-1].name == one.name and one.start <= found[-1].stop:
            found[-1] = found[-1]._replace(stop=max(one.stop, found[-1].stop))
        else:
            found.append(one)
    return found
