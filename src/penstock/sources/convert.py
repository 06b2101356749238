"""Files made once from other files and kept in a cache: archives unpacked, CSV turned into Arrow tables.

Neither format can be read at random as it is. The copy costs disk; after that reading is as fast as for plain files.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..base import seams
from ..base.progress import Progress
from ..errors import DataError, missing_extra
from . import sidecar
from .paths import PACKED
from .rows import arrow

_PIECE = 1 << 20
_BITE = 64 << 10  # so that a bomb unfolds in the memory of one bite, not of the whole archive
_CHECK = 64 << 20  # bytes written between two looks at the free space
_GZIP = 31


def plain(origin: Path, *, cache: str | Path | None, rebuild: bool = False) -> Path:
    """The file itself, or where it is an archive (.gz, .zst) its unpacked copy in the cache."""
    if origin.suffix.lower() not in PACKED:
        return origin
    machine = _machine(origin)

    def write(file: BinaryIO) -> None:
        written = checked = 0
        size = sidecar.stat(origin).size
        with Progress(f"unpack {origin.name}", size, "bytes") as progress:
            for piece in _members(_bites(origin, size, progress), machine, origin):
                if written + len(piece) > checked:
                    sidecar.room(target.parent, max(_CHECK, len(piece)), f"to unpack {origin}")
                    checked = written + _CHECK
                written += file.write(piece)

    target = sidecar.folder(origin, cache) / origin.stem
    return sidecar.make(target, sidecar.UNPACKED, origin, write, rebuild=rebuild)


def table(origin: Path, *, cache: str | Path | None, rebuild: bool = False) -> Path:
    """The Arrow file made from a CSV file (packed or not) with a header row; types are found from all its values."""
    pa = arrow()

    def write(file: BinaryIO) -> None:
        try:
            _convert(pa, origin, file)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise DataError(f"not a CSV file that can be read: {error}", where=str(origin)) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise DataError(f"cannot be read: {error}", where=str(origin)) from error

    target = sidecar.folder(origin, cache) / f"{origin.name}.arrow"
    return sidecar.make(target, sidecar.TABLE, origin, write, rebuild=rebuild)


def _machine(origin: Path) -> Callable[[], Any]:
    if origin.suffix.lower() == ".gz":
        return lambda: zlib.decompressobj(_GZIP)
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise missing_extra("zstandard", "zstd", f"reading {origin.name}") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj()


def _bites(origin: Path, size: int, progress: Progress) -> Iterator[bytes]:
    for at in range(0, size, _PIECE):
        progress.tell(at)
        with sidecar.storage(origin):
            piece = seams.world.store.read(str(origin), at, _PIECE)
        yield from (piece[start : start + _BITE] for start in range(0, len(piece), _BITE))


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
                raise DataError(f"damaged archive: {error}", where=str(origin)) from error
            yield piece
            bite = machine.unused_data if machine.eof else b""
            machine = None if machine.eof else machine
    if machine is not None or not seen:
        raise DataError("the archive ends too early: it was cut off", where=str(origin))


def _convert(pa: Any, origin: Path, file: BinaryIO) -> None:
    csv, ipc = arrow("pyarrow.csv"), arrow("pyarrow.ipc")
    parse = csv.ParseOptions(newlines_in_values=True)
    size = sidecar.stat(origin).size

    def opened() -> tuple[Any, Any]:
        raw = pa.OSFile(str(origin))
        packed = {".gz": "gzip", ".zst": "zstd"}.get(origin.suffix.lower())
        return raw, pa.CompressedInputStream(raw, packed) if packed else raw

    try:
        raw, stream = opened()
        with raw, csv.open_csv(stream, parse_options=parse) as reader:
            with (
                ipc.new_file(file, _sound(reader.schema, origin)) as writer,
                Progress(f"convert {origin.name}", size, "bytes") as progress,
            ):
                for batch in reader:
                    writer.write_batch(batch)
                    progress.tell(raw.tell())
    except pa.ArrowInvalid:
        # A later value did not fit the type that the first block suggested. Only all values together tell the type.
        file.seek(0)
        file.truncate()
        raw, stream = opened()
        with raw:
            whole = csv.read_csv(stream, parse_options=parse)
        with ipc.new_file(file, _sound(whole.schema, origin)) as writer:
            writer.write_table(whole, max_chunksize=64 << 10)


def _sound(schema: Any, origin: Path) -> Any:
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise DataError(f"the header names {', '.join(sorted(twice))} twice", where=str(origin))
    for field in schema:
        if str(field.type) == "binary":
            raise DataError(f"the column {field.name!r} holds bytes that are not UTF-8", where=str(origin))
    return schema
