"""Archives unpacked once, into a cache: they cannot be read at random as they are.

The copy costs disk; after that reading is as fast as for plain files.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..engine.base import seams
from ..engine.base.progress import Progress
from ..errors import DataError, missing_extra
from ..stores import is_remote
from . import sidecar
from .paths import PACKED

_PIECE = 1 << 20
_BITE = {
    ".gz": 64 << 10
}.get  # so that a bomb unfolds in the memory of one bite, of 128 MiB at most
_CHECK = 64 << 20  # bytes written between two looks at the free space
_RATIO, _LARGE = (
    250,
    256 << 20,
)  # a bomb: more bytes than this for each of the archive's, and more than this in all
_GZIP = 31
_WINDOW = (
    "too much memory"  # what libzstd says of a window above 128 MiB, as `zstd --long=31` asks for
)


def plain(
    origin: Path, *, cache: str | Path | None, rebuild: bool = False, here: bool = False
) -> Path:
    """The file itself, or where it is an archive its unpacked copy in the cache. What must lie
    `here`, on this machine, and lies in a store, is copied there too.
    """
    if origin.suffix.lower() not in PACKED:
        return _fetched(origin, cache, rebuild) if here and is_remote(origin) else origin
    machine = _machine(origin)

    def write(file: BinaryIO) -> None:
        written = checked = 0
        size = sidecar.stat(origin).size
        with Progress(f"unpack {origin.name}", size, "bytes") as progress:
            for piece in _members(_bites(origin, size, progress), machine, origin):
                if written + len(piece) > checked:
                    step = max(len(piece), min(_CHECK, written))
                    sidecar.room(target.parent, step, f"to unpack {origin}")
                    checked = written + step
                written += file.write(piece)
                sane(written, size, origin)

    target = sidecar.cached(origin, cache, origin.stem)
    return sidecar.copy(target, sidecar.UNPACKED, origin, write, rebuild=rebuild)


def _fetched(origin: Path, cache: str | Path | None, rebuild: bool) -> Path:
    def write(file: BinaryIO) -> None:
        size = sidecar.stat(origin).size
        with Progress(f"fetch {origin.name}", size, "bytes") as progress, sidecar.storage(origin):
            for at in progress.chunks(_PIECE):
                file.write(seams.world.store.read(str(origin), at, _PIECE))

    return sidecar.copy(
        sidecar.cached(origin, cache, origin.name), sidecar.UNPACKED, origin, write, rebuild=rebuild
    )


def sane(unpacked: int, packed: int, origin: Path) -> None:
    """Refuse an archive that unfolds to far more than data does."""
    if unpacked > max(_LARGE, _RATIO * packed):
        raise DataError(
            f"it unfolds to more than {_RATIO} times its {packed:,} bytes: unpack it by hand if it "
            "is to be read",
            where=str(origin),
        )


def _machine(origin: Path) -> Callable[[], Any]:
    if origin.suffix.lower() == ".gz":
        return lambda: zlib.decompressobj(_GZIP)
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise missing_extra("zstandard", "zstd", f"reading {origin.name}") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj()


def _bites(origin: Path, size: int, progress: Progress) -> Iterator[bytes]:
    bite = _BITE(origin.suffix.lower(), 4 << 10)
    for at in range(0, size, _PIECE):
        progress.tell(at)
        with sidecar.storage(origin):
            piece = seams.world.store.read(str(origin), at, _PIECE)
        yield from (piece[start : start + bite] for start in range(0, len(piece), bite))


def _members(bites: Iterator[bytes], new: Callable[[], Any], origin: Path) -> Iterator[bytes]:
    """Unpack an archive of one or more members; every one of them must be whole."""
    machine, seen = None, False
    for bite in bites:
        while bite:
            if machine is None:
                bite = bite.lstrip(b"\0") if seen else bite  # padding between members is allowed
                if not bite:
                    break
                machine, seen = new(), True
            try:
                piece: bytes = machine.decompress(bite)
            except Exception as error:  # each package has an error of its own
                if _WINDOW in str(error):
                    raise DataError(
                        "it need not be damaged: its zstd frame asks for a window of more than 128 "
                        "MiB, and so for "
                        "more memory than is given to it. Pack anew: zstd -dc --long=31 "
                        f"{origin.name} | zstd -o NEW",
                        where=str(origin),
                    ) from error
                raise DataError(f"damaged archive: {error}", where=str(origin)) from error
            yield piece
            bite = machine.unused_data if machine.eof else b""
            machine = None if machine.eof else machine
    if machine is not None or not seen:
        raise DataError("the archive ends too early: it was cut off", where=str(origin))
