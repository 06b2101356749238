"""Where the rows of a file of lines begin: found in one pass over it, and kept. Also for records of
other formats."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.base import seams
from ..engine.base.machine import cores, keep_memory
from ..engine.base.progress import Progress
from ..engine.base.seams import Stat
from ..types import Ints
from . import sidecar
from .sums import Sums, of

Find: TypeAlias = Callable[[Path, Stat, Callable[[int], None]], tuple[Ints, Sums]]
"""Finds where the rows of a file begin, and its size, and the checksums of its blocks, if the rows
have none."""

MARK = b"\xef\xbb\xbf"
NEWLINE = 10

_CHUNK = (
    4 << 20
)  # bytes a pass over the file reads at once: with less, threads mostly wait for each other
# of these that are one task, at most: threads mostly wait for who collects what few of them found
_TURN = 32
_FEW = 16  # lines that begin with white space, up to which each is looked at by itself
_LARGE = 32 << 20  # bytes of a file from which on it pays to hire helpers


def make_index(
    path: Path,
    origin: Path,
    *,
    cache: str | Path | None,
    rebuild: bool = False,
    what: str = "lines",
    find: Find | None = None,
) -> Path:
    """Where the index of a file is, which holds the offsets that `find` finds; made if there is
    none, or if it is to be made again.
    """
    cached = sidecar.cached_index_path(origin, cache, what)
    index = sidecar.index_path(origin, cache, what) if path == origin else cached

    def make(_: bool) -> tuple[int, bytes]:
        size = sidecar.stat(path)
        with Progress(f"index {origin.name}", size.size, "bytes") as progress:
            offsets, sums = (find or offsets_of)(path, size, progress.tell)
        return len(offsets) - 1, b"".join((offsets.astype("<i8", copy=False).data, sums.data))

    return sidecar.ensure(
        index,
        sidecar.LINES,
        origin,
        make,
        fallback=cached,
        rebuild=rebuild,
        checksummed=path == origin,
    )


class _Piece(NamedTuple):
    """A stretch of a file: its beginning, then those of lines in it that hold anything, and of its
    last; which of them do (what comes before the first newline belongs to a line of the stretch
    before); its checksums; where it stops.
    """

    begins: Ints
    holds: npt.NDArray[np.bool_]
    sums: Sums
    stop: int


def offsets_of(
    path: Path, size: Stat, tell: Callable[[int], None] = lambda done: None
) -> tuple[Ints, Sums]:
    """Where each row begins, and the size of the file: int64[rows + 1]; and the checksums of its
    blocks. One pass, in pieces, however long the lines; a large file by all processors.
    """
    pieces: list[_Piece] = []
    for piece in _pieces(path, size.size):
        pieces.append(piece)
        tell(piece.stop)
    if not pieces:
        return np.zeros(1, np.int64), of([])
    whole = _joined(pieces)
    return np.append(whole.begins[whole.holds], size.size), whole.sums


def _joined(pieces: list[_Piece]) -> _Piece:
    """Pieces that follow each other as one."""
    more = False
    for piece in reversed(pieces):  # its last line holds what it goes on with
        piece.holds[-1] |= more
        more = piece.holds[0]
    first, *others = pieces
    begins = np.concatenate([first.begins, *(piece.begins[1:] for piece in others)])
    holds = np.concatenate([first.holds, *(piece.holds[1:] for piece in others)])
    return _Piece(begins, holds, np.concatenate([piece.sums for piece in pieces]), pieces[-1].stop)


def _pieces(path: Path, size: int) -> Iterator[_Piece]:
    """The pieces of a file in their order, some of them worked on ahead."""
    starts, workers = range(0, size, _CHUNK), cores()
    keep_memory()  # else a piece takes four times as long
    turn = max(1, min(_TURN, len(starts) // (8 * workers)))
    tasks = (
        partial(_some, path, starts[at : at + turn], size) for at in range(0, len(starts), turn)
    )
    if size < _LARGE or workers < 2:
        yield from (task() for task in tasks)
        return
    hands, ahead = seams.world.sched.spawn(workers), deque[Any]()
    try:
        for task in tasks:
            ahead.append(hands.submit(task))
            if len(ahead) > 2 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        hands.close()


def _some(path: Path, starts: range, size: int) -> _Piece:
    """The pieces of one task, joined here, as it would keep the threads waiting where they are
    collected."""
    room = np.empty(
        min(_CHUNK, size), np.bool_
    )  # new memory for each takes as long as to look for newlines
    return _joined([_piece(path, at, size, room) for at in starts])


def _piece(path: Path, at: int, size: int, room: npt.NDArray[np.bool_]) -> _Piece:
    with sidecar.storage(path):
        piece = seams.world.store.read(str(path), at, min(_CHUNK, size - at))
    sums, stop = of([piece]), at + len(piece)
    chunk = np.frombuffer(piece, np.uint8)
    if at == 0 and piece.startswith(MARK):
        chunk, at = chunk[len(MARK) :], len(MARK)
    begins = np.concatenate([np.zeros(1, np.int64), _newlines(chunk, room[: chunk.size]) + 1])
    holds = _holds(chunk, begins)
    keep = holds.copy()
    keep[[0, -1]] = True
    return _Piece(begins[keep] + at, holds[keep], sums, stop)


def _newlines(chunk: npt.NDArray[np.uint8], marks: npt.NDArray[np.bool_]) -> Ints:
    """Where newlines are. Lines are mostly longer than a word of eight bytes: words with one are
    looked for, and which byte of a word it is tells the word's logarithm.
    """
    np.equal(chunk, NEWLINE, out=marks)
    whole = len(marks) // 8 * 8
    words = marks[:whole].view("<u8")
    some = np.flatnonzero(words != 0)
    held = words[some]
    if bool((held & (held - np.uint64(1))).any()):
        return np.flatnonzero(marks)  # several in a word
    found = some * 8 + (np.frexp(held.astype(np.float64))[1] - 1 >> 3)
    return np.concatenate([found, np.flatnonzero(marks[whole:]) + whole])


def _holds(chunk: npt.NDArray[np.uint8], begins: Ints) -> npt.NDArray[np.bool_]:
    """Which lines of a chunk hold more than white space; the last one may be empty."""
    inside = begins[:-1] if begins[-1] == chunk.size else begins
    holds = np.zeros(len(begins), np.bool_)
    holds[: len(inside)] = found = _prints(chunk[inside])  # mostly the first byte tells
    white = np.flatnonzero(~found)
    if len(white) > _FEW:
        holds[: len(inside)] = np.logical_or.reduceat(_prints(chunk), inside)
    else:
        for line in white.tolist():
            stop = int(begins[line + 1]) if line + 1 < len(begins) else chunk.size
            holds[line] = bool(_prints(chunk[int(begins[line]) : stop]).any())
    return holds


def _prints(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which bytes are none of the six white ones: space, and 9 to 13 (anything below 9 wraps
    around)."""
    return (letters != 32) & (letters - np.uint8(9) > 4)
