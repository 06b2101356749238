"""What opening many files found out, kept in one file: one process of a machine looks at them, the
others read that.

A catalog holds size, time and rows of every file, and of small files of lines where each row
begins. Whoever opens the files takes a lock, makes the catalog or compares it with the files as
they are, and notes when that was. Another process that comes within a minute, while the first one
runs, compares a few of the files and believes it of the others. Every file is compared once more
when its first row is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..engine.base import machine, seams
from ..engine.base.progress import Progress
from ..engine.base.seams import Stat
from ..errors import DataError, PenstockError
from ..types import Ints
from . import sidecar
from .chain import File, starts_of
from .columnar import Arrow
from .identity import keyed
from .line_index import offsets_of
from .lines import Offsets
from .paths import PACKED, places
from .rows import arrow

MANY = 32
"""Files from which on they have a catalog."""

_SMALL = 64 << 10  # bytes of a file of lines up to which it has no index of its own
_SOME = 8  # files that every process compares with the catalog
_MINUTE = 60_000_000_000
_VERSION = 2

Open = Callable[[Path, Offsets | None], File]
"""Opens one file; with offsets, where it needs no index of its own."""


class Kind(NamedTuple):
    """Options of reading files. With `small`, small files are lines and get no index of their
    own."""

    spelled: list[str]
    small: bool


class Catalog(NamedTuple):
    """What is known of each file. `marks` holds the offsets and checksums of the small ones, one
    after the other. `look` tells when files and catalog were last compared."""

    path: Path
    look: Path
    columns: list[str] | None
    types: dict[str, str] | None
    schema: str | None
    stats: list[Stat]
    rows: Ints
    marks: npt.NDArray[np.uint32]
    cuts: Ints

    def arrow_schema(self) -> Any:
        """Return the schema of all files, where they differ."""
        if self.schema is None:
            return None
        return arrow("pyarrow.ipc").read_schema(arrow().py_buffer(bytes.fromhex(self.schema)))

    def offsets(self, number: int) -> Offsets | None:
        """Where the rows of a file begin, if that is known here."""
        found, rows = self.marks[self.cuts[number] : self.cuts[number + 1]], int(self.rows[number])
        return Offsets(self.path, found[: rows + 1], found[rows + 1 :]) if found.size else None

    def holds_same(self, other: Catalog) -> bool:
        """Return whether another catalog tells the same of its files, but for their times."""
        told = (self.columns, self.types, self.schema) == (other.columns, other.types, other.schema)
        arrays = (self.rows, other.rows), (self.marks, other.marks)
        return told and all(np.array_equal(mine, theirs) for mine, theirs in arrays)


class Late(Sequence[File]):
    """The files of a catalog; each is opened when it is first asked for."""

    def __init__(self, paths: Sequence[Path], catalog: Catalog, open_: Open) -> None:
        self._paths, self._catalog, self._open = paths, catalog, open_
        self._files: dict[int, File] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        found = self._files.get(number)
        if found is None:
            if not 0 <= number < len(self):
                raise IndexError(number)
            found = self._files[number] = self._opened(number)
        return found

    def _opened(self, number: int) -> File:
        path, known = self._paths[number], self._catalog
        try:
            try:
                file = self._open(path, known.offsets(number))
            finally:
                sidecar.require_unchanged(path, known.stats[number], name=str(path))
        except DataError:
            with suppress(OSError):
                seams.world.disk.unlink(known.look)  # who comes next is to look for himself
            raise
        if len(file) != known.rows[number]:
            raise DataError(f"{known.path} is not of these files: delete it", where=str(path))
        return file


def of(
    paths: Sequence[Path],
    kind: Kind,
    cache: str | Path | None,
    open_: Open,
    settled: Callable[[], Any],
    ahead: Callable[[Sequence[Path]], None],
    *,
    rebuild: bool = False,
) -> Catalog:
    """The catalog of these files as they are now, or were a minute ago; made if there is none."""
    stands = _stands(paths, kind)
    local = sidecar.cached_index_path(stands, cache, "files")
    look = local.with_name(f"{local.name}-looked")
    with sidecar.lock_folder(look.parent) as alone:
        kept = sidecar.index_path(stands, cache, "files")
        found = None if rebuild or not kept.exists() else _read(kept, look, len(paths))
        if (
            found is not None
            and _fresh(look)
            and not _changed(found, paths, keyed(len(paths), _SOME).tolist())
        ):
            return found
        changed = [] if found is None else _changed(found, paths, range(len(paths)))
        if found is None or changed:
            before, found = found, _made(paths, kept, look, kind.small, open_, settled, ahead)
            if before is not None and not before.holds_same(found):
                sidecar.log_changed(*changed)
            files, rows, body = Stat(len(paths), 0), int(found.rows.sum()), _encoded(found)
            with suppress(PenstockError):  # without a place to keep it, it is made anew every time
                place = sidecar.write(
                    kept, sidecar.CATALOG, files, rows, body, alone, fallback=local
                )
                found = found._replace(path=place)
        now = Stat(machine.process(), int(machine.clock() * 1e9))
        with suppress(PenstockError):
            sidecar.write(look, sidecar.LOOKED, now, 0, b"", alone)
        return found


def holds(path: Path, size: int) -> bool:
    """Whether a file of lines is small enough that a catalog holds its offsets.

    >>> holds(Path("a.jsonl"), 4_000), holds(Path("a.jsonl"), 1 << 20), holds(Path("a.jsonl.gz"), 4_000)
    (True, False, False)
    """
    return size <= _SMALL and path.suffix.lower() not in (*PACKED, ".json")


def rows_of(paths: Sequence[Path], kind: Kind, cache: str | Path | None) -> int | None:
    """The rows of all these files, where a catalog tells."""
    kept = sidecar.index_path(_stands(paths, kind), cache, "files")
    return int(_read(kept, kept, len(paths)).rows.sum()) if kept.exists() else None


def _stands(paths: Sequence[Path], kind: Kind) -> Path:
    """A path that stands for all these files, read in this way."""
    spelled = json.dumps([_VERSION, kind.spelled, *places(paths)]).encode()
    return paths[0].with_name(hashlib.blake2b(spelled, digest_size=12).hexdigest())


def _fresh(look: Path) -> bool:
    """Return whether another process, which still runs, compared the files with the catalog in the
    last minute."""
    if not look.is_file():
        return False
    stamp = sidecar.decode(seams.world.disk.read(look))
    if (
        stamp is None
        or stamp.data.size == machine.process()
        or not machine.is_running(stamp.data.size)
    ):
        return False
    return 0 <= int(machine.clock() * 1e9) - stamp.data.mtime <= _MINUTE


def _changed(found: Catalog, paths: Sequence[Path], numbers: Iterable[int]) -> list[Path]:
    """Return those of some files that are others than when the catalog was made."""
    return [
        paths[number] for number in numbers if sidecar.stat(paths[number]) != found.stats[number]
    ]


def _made(
    paths: Sequence[Path],
    kept: Path,
    look: Path,
    small: bool,
    open_: Open,
    settled: Callable[[], Any],
    ahead: Callable[[Sequence[Path]], None],
) -> Catalog:
    stats = [sidecar.stat(path) for path in paths]
    columns: list[str] | None = None
    types: dict[str, str] | None = None
    lengths, marks = list[int](), list[npt.NDArray[np.uint32]]()
    with Progress("open files", len(paths), "files") as progress:
        for number, path in enumerate(progress.each(paths)):
            before = stats[number]
            if number % MANY == 0:
                ahead(paths[number : number + 2 * MANY])
            found = np.zeros(0, np.uint32)
            if small and holds(path, before.size):
                offsets, sums = offsets_of(path, before)
                found = np.concatenate([offsets, sums]).astype(np.uint32)
                lengths.append(len(offsets) - 1)
            else:
                file = open_(path, None)
                lengths.append(len(file))
                if number == 0 and file.columns is not None:
                    columns = list(file.columns)
                    if isinstance(file, Arrow):
                        types = {name: str(kind) for name, kind in file.types.items()}
            sidecar.require_unchanged(path, before, name=str(path))
            marks.append(found)
    rows, cuts = np.asarray(lengths, np.int64), starts_of([len(found) for found in marks])
    told: str | None = None
    if (schema := settled()) is not None:
        columns, told = list(schema.names), bytes(schema.serialize()).hex()
    return Catalog(kept, look, columns, types, told, stats, rows, np.concatenate(marks), cuts)


def _encoded(catalog: Catalog) -> bytes:
    head = json.dumps([catalog.columns, catalog.types, catalog.schema]).encode()
    numbers = np.column_stack(
        [np.asarray(catalog.stats, "<i8"), catalog.rows, np.diff(catalog.cuts)]
    ).astype("<i8")
    return b"".join(
        [
            len(head).to_bytes(8, "little"),
            head,
            numbers.tobytes(),
            catalog.marks.astype("<u4").tobytes(),
        ]
    )


def _read(kept: Path, look: Path, files: int) -> Catalog:
    _, body = sidecar.read_body(kept, sidecar.CATALOG, kept)
    try:
        return _decoded(kept, look, body, files)
    except (ValueError, TypeError) as error:
        raise sidecar.damaged(kept, kept) from error


def _decoded(kept: Path, look: Path, body: memoryview, files: int) -> Catalog:
    begin = 8 + int.from_bytes(body[:8], "little")
    numbers = np.frombuffer(body, "<i8", 6 * files, begin).reshape(files, 6).astype(np.int64)
    marks = np.frombuffer(body, "<u4", offset=begin + numbers.nbytes)
    stats = [Stat(*stat) for stat in numbers[:, :4].tolist()]
    columns, types, schema = json.loads(bytes(body[8:begin]))
    return Catalog(
        kept, look, columns, types, schema, stats, numbers[:, 4], marks, starts_of(numbers[:, 5])
    )
