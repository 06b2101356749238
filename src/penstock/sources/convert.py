"""Unpacks archives once into the cache, because compressed files have no random access.

The copy needs disk space; reading it is as fast as reading plain files.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..engine.base.progress import Progress
from ..errors import DataError, convert_storage_errors, make_missing_extra_error
from ..stores import is_remote, storage
from . import derived_files, file_versions
from .derived_files import Kind
from .paths import PACKED_EXTENSIONS

_READ_BYTES = 1 << 20
_get_input_bytes = {
    ".gz": 64 << 10
}.get  # a decompression bomb then needs at most 128 MiB for one bite
_SPACE_CHECK_BYTES = 64 << 20  # bytes written between two checks of the free space
MAX_UNPACK_RATIO, _LARGE = 250, 256 << 20  # limits of a bomb: compression ratio, and unpacked bytes
_OFFSET_BYTES = 8  # of a line, in an index
_GZIP_WINDOW_BITS = 31
_LARGE_WINDOW_ERROR = (
    "too much memory"  # libzstd's error for windows over 128 MiB (`zstd --long=31`)
)


def unpack_if_packed(
    origin: Path, *, cache: str | Path | None, rebuild: bool = False, here: bool = False
) -> Path:
    """Return the path of the unpacked copy of an archive, or the path of the file itself.

    Args:
        origin: The file.
        cache: Cache folder.
        rebuild: Unpack the archive again.
        here: Copy a remote file to this machine.

    Raises:
        DataError: The archive is damaged, or a decompression bomb.
    """
    if origin.suffix.lower() not in PACKED_EXTENSIONS:
        return _fetch_to_cache(origin, cache, rebuild) if here and is_remote(origin) else origin
    new_decompressor = _choose_decompressor(origin)

    def write(file: BinaryIO) -> None:
        written = checked_size = 0
        size = file_versions.stat_file(origin).size
        with Progress(f"unpack {origin.name}", size, "bytes") as progress:
            for piece in _unpack_members(
                _read_compressed_pieces(origin, size, progress), new_decompressor, origin
            ):
                if written + len(piece) > checked_size:
                    step = max(len(piece), min(_SPACE_CHECK_BYTES, written))
                    derived_files.require_free_space(target.parent, step, f"to unpack {origin}")
                    checked_size = written + step
                written += file.write(piece)
                require_sane_size(written, size, origin)

    target = derived_files.cache_path(origin, cache, origin.stem)
    return derived_files.ensure_copy(target, Kind.COPY, origin, write, rebuild=rebuild)


def _fetch_to_cache(origin: Path, cache: str | Path | None, rebuild: bool) -> Path:
    def write(file: BinaryIO) -> None:
        size = file_versions.stat_file(origin).size
        with (
            Progress(f"fetch {origin.name}", size, "bytes") as progress,
            convert_storage_errors(origin),
        ):
            for offset in progress.chunks(_READ_BYTES):
                file.write(storage.world.store.read(str(origin), offset, _READ_BYTES))

    target = derived_files.cache_path(origin, cache, origin.name)
    return derived_files.ensure_copy(target, Kind.COPY, origin, write, rebuild=rebuild)


def require_sane_size(unpacked: int, packed: int, origin: Path) -> None:
    """Raise if an archive unpacks to far more bytes than data does."""
    if unpacked > max(_LARGE, MAX_UNPACK_RATIO * packed):
        raise DataError(
            f"it unpacks to more than {MAX_UNPACK_RATIO} times its {packed:,} bytes: unpack it by hand to "
            "read it",
            where=str(origin),
        )


def require_sane_index(rows: int, packed: int, origin: Path) -> None:
    """Raise if an archive has far more lines than data does: the index takes memory for each."""
    if _OFFSET_BYTES * rows > max(_LARGE, MAX_UNPACK_RATIO * packed):
        raise DataError(
            f"its {packed:,} bytes unpack to more than {rows:,} lines: unpack it by hand to read it",
            where=str(origin),
        )


def _choose_decompressor(origin: Path) -> Callable[[], Any]:
    if origin.suffix.lower() == ".gz":
        return lambda: zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise make_missing_extra_error("zstandard", "zstd", f"reading {origin.name}") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj()


def _read_compressed_pieces(origin: Path, size: int, progress: Progress) -> Iterator[bytes]:
    bite = _get_input_bytes(origin.suffix.lower(), 4 << 10)
    for offset in range(0, size, _READ_BYTES):
        progress.tell(offset)
        with convert_storage_errors(origin):
            piece = storage.world.store.read(str(origin), offset, _READ_BYTES)
        yield from (piece[start : start + bite] for start in range(0, len(piece), bite))


def _unpack_members(
    bites: Iterator[bytes], new_decompressor: Callable[[], Any], origin: Path
) -> Iterator[bytes]:
    """Unpack an archive of one or more members; raise if any is incomplete."""
    decompressor, has_member = None, False
    for bite in bites:
        while bite:
            if decompressor is None:
                bite = (
                    bite.lstrip(b"\0") if has_member else bite
                )  # padding between members is allowed
                if not bite:
                    break
                decompressor, has_member = new_decompressor(), True
            try:
                piece: bytes = decompressor.decompress(bite)
            except Exception as error:  # each package has its own error class
                if _LARGE_WINDOW_ERROR in str(error):
                    raise DataError(
                        "it may be intact: its zstd frame needs a window over 128 MiB, more "
                        "memory than Penstock allows. Compress it again: zstd -dc --long=31 "
                        f"{origin.name} | zstd -o NEW",
                        where=str(origin),
                    ) from error
                raise DataError(f"damaged archive: {error}", where=str(origin)) from error
            yield piece
            bite = decompressor.unused_data if decompressor.eof else b""
            decompressor = None if decompressor.eof else decompressor
    if decompressor is not None or not has_member:
        raise DataError("the archive ends too early: it was cut off", where=str(origin))
