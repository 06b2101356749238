"""Where the rows of a file of lines begin: found in one pass over it, and kept. Also for records of other formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..base import seams
from ..base.progress import Progress
from ..base.seams import Stat
from ..types import Ints
from . import sidecar
from .sums import Sums, of

Find: TypeAlias = Callable[[Path, Stat, Callable[[int], None]], tuple[Ints, Sums]]
"""Finds where the rows of a file begin, and its size, and the checksums of its blocks, if the rows have none."""

MARK = b"\xef\xbb\xbf"
NEWLINE = 10

_CHUNK = 16 << 20  # bytes a pass over the file reads at once


def make_index(
    path: Path,
    origin: Path,
    *,
    cache: str | Path | None,
    rebuild: bool = False,
    what: str = "lines",
    find: Find | None = None,
) -> Path:
    """Where the index of a file is, which holds the offsets that `find` finds; made if there is none, or if it is to be
    made again.
    """
    cached = sidecar.index(origin, cache, what)
    index = sidecar.place(origin, cache, what) if path == origin else cached

    def make(_: bool) -> tuple[int, bytes]:
        size = sidecar.stat(path)
        with Progress(f"index {origin.name}", size.size, "bytes") as progress:
            offsets, sums = (find or offsets_of)(path, size, progress.tell)
        return len(offsets) - 1, offsets.astype("<u8").tobytes() + sums.tobytes()

    return sidecar.kept(index, sidecar.LINES, origin, make, otherwise=cached, rebuild=rebuild, summed=path == origin)


def offsets_of(path: Path, size: Stat, tell: Callable[[int], None] = lambda done: None) -> tuple[Ints, Sums]:
    """Where each row begins, and the size of the file: int64[rows + 1]; and the checksums of its blocks. One pass, in
    chunks, however long the lines.
    """
    rows: list[Ints] = []
    sums: list[Sums] = [of([])]
    at = begun = 0
    filled = False  # whether the line that begins at `begun` holds anything yet
    while at < size.size:
        with sidecar.storage(path):
            piece = seams.world.store.read(str(path), at, min(_CHUNK, size.size - at))
        sums.append(of([piece]))
        chunk = np.frombuffer(piece, np.uint8)
        if at == 0 and piece.startswith(MARK):
            chunk, at, begun = chunk[len(MARK) :], len(MARK), len(MARK)
        if not chunk.size:
            break
        begins = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(chunk == NEWLINE) + 1])
        holds = _holds(chunk, begins)
        holds[0] |= filled
        starts = begins + at
        starts[0] = begun
        rows.append(starts[:-1][holds[:-1]])
        begun, filled = int(starts[-1]), bool(holds[-1])
        at += chunk.size
        tell(at)
    offsets = np.concatenate([*rows, np.asarray([begun, size.size] if filled else [size.size], np.int64)])
    return offsets, np.concatenate(sums)


def _holds(chunk: npt.NDArray[np.uint8], begins: Ints) -> npt.NDArray[np.bool_]:
    """Which lines of a chunk hold more than white space; the last one may be empty."""
    inside = begins[:-1] if begins[-1] == chunk.size else begins
    holds = np.zeros(len(begins), np.bool_)
    found = _prints(chunk[inside])  # mostly the first byte tells
    holds[: len(inside)] = found if found.all() else np.logical_or.reduceat(_prints(chunk), inside)
    return holds


def _prints(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which bytes are none of the six white ones: space, and 9 to 13 (anything below 9 wraps around)."""
    return (letters != 32) & (letters - np.uint8(9) > 4)
