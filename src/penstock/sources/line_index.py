"""Byte offsets of the rows of a file, found in one pass and stored in a derived file.

Formats of records use the same kind.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.base import seams
from ..engine.base.machine import count_cores
from ..engine.base.progress import Progress
from ..errors import convert_storage_errors
from ..stores import storage
from ..stores.storage import Stat, keep_memory
from ..types import Ints
from . import derived_files, file_versions
from .convert import require_sane_index
from .derived_files import Kind
from .sums import BlockChecksums, compute_checksums

FindOffsets: TypeAlias = Callable[[Path, Stat, Callable[[int], None]], tuple[Ints, BlockChecksums]]
"""Returns the row offsets and the size of a file, and checksums of its blocks unless rows have
checksums."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = 10

_CHUNK_BYTES = 4 << 20  # bytes per read of a pass; with less, threads mostly wait for each other
_CHUNKS_PER_TASK = (
    32  # largest number of chunks per task; with fewer, threads mostly wait for the collector
)
_MAX_SINGLE_CHECKS = (
    16  # largest number of lines with leading white space that are examined one by one
)
_MIN_THREADED_BYTES = 32 << 20  # smallest file, in bytes, for which threads are faster


def make_index(
    path: Path,
    origin: Path,
    *,
    cache: str | Path | None,
    rebuild: bool = False,
    what: str = "lines",
    find: FindOffsets | None = None,
) -> Path:
    """Return the path of the index with the row offsets of a file; build it if necessary.

    Args:
        path: The plain, unpacked file.
        origin: The file that the user named.
        cache: Cache folder.
        rebuild: Build the index again.
        what: Ending of the name of the index.
        find: Finds the offsets; by default those of lines.
    """

    is_plain = path == origin

    def require_rows(rows: int) -> None:
        if not is_plain:
            require_sane_index(rows, file_versions.stat_file(origin).size, origin)

    def make() -> tuple[int, bytes | bytearray]:
        size = file_versions.stat_file(path)
        with Progress(f"index {origin.name}", size.size, "bytes") as progress:
            if find is None:
                body, rows = collect_row_offsets(path, size, progress.tell, require_rows)
                return rows, body
            offsets, sums = find(path, size, progress.tell)
        return len(offsets) - 1, b"".join((offsets.astype("<i8", copy=False).data, sums.data))

    file = derived_files.place_index(
        Kind.LINES, origin, what, cache, beside=is_plain, checksummed=is_plain
    )
    return derived_files.ensure(file, make, rebuild=rebuild)


class _LinePiece(NamedTuple):
    """A stretch of a file.

    Attributes:
        start: Its first byte, after a byte-order mark.
        continues: Whether the bytes before its first newline have content.
        begins: Starts of the lines with content that begin and end in it, relative to `start`.
        last: Start of the line after its last newline, relative to `start`, and whether that line
            has content; `None` without a newline.
        sums: Checksums of its blocks.
        stop: Its end.
    """

    start: int
    continues: bool
    begins: npt.NDArray[np.uint32]
    last: tuple[int, bool] | None
    sums: BlockChecksums
    stop: int


def find_row_offsets(
    path: Path, size: Stat, tell: Callable[[int], None] = lambda done: None
) -> tuple[Ints, BlockChecksums]:
    """Return row offsets and size of a file, int64[rows + 1], and checksums of its blocks.

    One pass reads the file in pieces, regardless of the length of lines; large files use all cores.
    """
    body, rows = collect_row_offsets(path, size, tell)
    return np.frombuffer(body, "<i8", rows + 1), np.frombuffer(body, "<u4", offset=8 * (rows + 1))


def collect_row_offsets(
    path: Path,
    size: Stat,
    tell: Callable[[int], None] = lambda done: None,
    require_rows: Callable[[int], None] = lambda rows: None,
) -> tuple[bytearray, int]:
    """Return row offsets and size of a file, followed by the checksums of its blocks, and its rows.

    The buffer grows in place: a file of very short lines has more bytes of offsets than of text.

    Args:
        path: The file.
        size: Its version.
        tell: Takes the bytes read so far.
        require_rows: Raises if there are too many rows; takes those found so far.
    """
    body, sums = bytearray(), [compute_checksums([])]
    open_line, has_content = None, False
    for piece in itertools.chain.from_iterable(_iterate_tasks(path, size.size)):
        if open_line is None:
            open_line = piece.start  # after a byte-order mark
        has_content |= piece.continues
        if piece.last is not None:
            body += open_line.to_bytes(8, "little") if has_content else b""
            body += np.add(piece.begins, piece.start, dtype="<i8").data
            open_line, has_content = piece.start + piece.last[0], piece.last[1]
        sums.append(piece.sums)
        require_rows(len(body) // 8)
        tell(piece.stop)
    body += (open_line or 0).to_bytes(8, "little") if has_content else b""
    rows = len(body) // 8
    body += size.size.to_bytes(8, "little")
    body += np.concatenate(sums).astype("<u4", copy=False).data
    return body, rows


def _iterate_tasks(path: Path, size: int) -> Iterator[list[_LinePiece]]:
    """Yield the pieces of a file in order, task by task, read ahead by threads."""
    starts, workers = range(0, size, _CHUNK_BYTES), count_cores()
    keep_memory()  # otherwise a piece takes four times as long
    per_task = max(1, min(_CHUNKS_PER_TASK, len(starts) // (8 * workers)))
    tasks = (
        partial(_read_pieces, path, starts[first : first + per_task], size)
        for first in range(0, len(starts), per_task)
    )
    if size < _MIN_THREADED_BYTES or workers < 2:
        yield from (task() for task in tasks)
        return
    threads, futures = seams.world.sched.spawn(workers), deque[Any]()
    try:
        for task in tasks:
            futures.append(threads.submit(task))
            if len(futures) > 2 * workers:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        threads.close()


def _read_pieces(path: Path, starts: range, size: int) -> list[_LinePiece]:
    """Read the pieces of one task."""
    # Allocating memory for each piece would cost as much as finding its newlines.
    buffer = np.empty(min(_CHUNK_BYTES, size), np.bool_)
    return [_read_piece(path, start, size, buffer) for start in starts]


def _read_piece(path: Path, start: int, size: int, buffer: npt.NDArray[np.bool_]) -> _LinePiece:
    with convert_storage_errors(path):
        piece = storage.world.store.read(str(path), start, min(_CHUNK_BYTES, size - start))
    if start == 0:
        file_versions.require_no_lfs_pointer(path, size, piece)
    sums, stop = compute_checksums([piece]), start + len(piece)
    chunk = np.frombuffer(piece, np.uint8)
    if start == 0 and piece.startswith(BYTE_ORDER_MARK):
        chunk, start = chunk[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
    begins = np.concatenate(
        [np.zeros(1, np.int64), _find_newlines(chunk, buffer[: chunk.size]) + 1]
    )
    have_content = _find_nonblank_lines(chunk, begins)
    whole = begins[1:-1][have_content[1:-1]].astype(np.uint32)
    last = (int(begins[-1]), bool(have_content[-1])) if len(begins) > 1 else None
    return _LinePiece(start, bool(have_content[0]), whole, last, sums, stop)


def _find_newlines(chunk: npt.NDArray[np.uint8], marks: npt.NDArray[np.bool_]) -> Ints:
    """Return the positions of newlines.

    Most lines are longer than eight bytes, so this looks for 8-byte words that contain one newline. The
    logarithm of such a word is the position of the newline in it.
    """
    np.equal(chunk, NEWLINE, out=marks)
    full_size = len(marks) // 8 * 8
    words = marks[:full_size].view("<u8")
    word_numbers = np.flatnonzero(words != 0)
    word_values = words[word_numbers]
    if bool((word_values & (word_values - np.uint64(1))).any()):
        return np.flatnonzero(marks)  # a word contains several
    positions = word_numbers * 8 + (np.frexp(word_values.astype(np.float64))[1] - 1 >> 3)
    return np.concatenate([positions, np.flatnonzero(marks[full_size:]) + full_size])


def _find_nonblank_lines(chunk: npt.NDArray[np.uint8], begins: Ints) -> npt.NDArray[np.bool_]:
    """Return for each line of a chunk whether it has more than white space.

    The last line may be empty.
    """
    line_starts = begins[:-1] if begins[-1] == chunk.size else begins
    holds = np.zeros(len(begins), np.bool_)
    holds[: len(line_starts)] = starts_visible = _is_visible(
        chunk[line_starts]
    )  # usually the first byte decides
    starting_white = np.flatnonzero(~starts_visible)
    if len(starting_white) > _MAX_SINGLE_CHECKS:
        holds[: len(line_starts)] = np.logical_or.reduceat(_is_visible(chunk), line_starts)
    else:
        for line in starting_white.tolist():
            stop = int(begins[line + 1]) if line + 1 < len(begins) else chunk.size
            holds[line] = bool(_is_visible(chunk[int(begins[line]) : stop]).any())
    return holds


def _is_visible(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return which bytes are not white space: space, and 9 to 13; bytes below 9 wrap around."""
    return (letters != 32) & (letters - np.uint8(9) > 4)
