"""Catalogs of many files: one process of a machine opens the files for all.

A catalog stores size, time and rows of every file, and the row offsets of small files of lines. A
process that opens the files takes a lock, builds the catalog or compares it with the files, and
records the time of the comparison. Another process that comes within a minute, while the first one
runs, compares a few files and trusts the rest. Every file is compared again when its first row is
read.
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

from ..arrays.columnar import import_arrow
from ..engine.base import machine
from ..engine.base.progress import Progress
from ..errors import DataError
from ..stores import storage
from ..stores.storage import Stat
from ..types import Ints, Json
from . import derived_files, file_versions
from .chain import IndexedFile, compute_offsets
from .columnar import Arrow
from .derived_files import DerivedFile, Kind, hash_key
from .digests import sample_fixed_indices
from .line_index import find_row_offsets
from .lines import Offsets
from .paths import PACKED_EXTENSIONS
from .rows import resolve_absolute_paths

MIN_CATALOG_FILES = 32
"""Smallest number of files that get a catalog."""

_MAX_LINE_FILE_BYTES = 64 << 10  # largest file of lines, in bytes, whose offsets the catalog stores
_CHECKED_FILES = 8  # files that every process compares with the catalog
_MAX_AGE_NANOSECONDS = 60_000_000_000
_VERSION = 3

OpenFile = Callable[[Path, Offsets | None], IndexedFile]
"""Opens one file; with offsets, the file needs no index."""


class CatalogKind(NamedTuple):
    """Properties of the files of a catalog.

    `spelled` identifies how they are read. With `small`, the catalog stores the offsets of small files.
    """

    spelled: list[str]
    small: bool


class Catalog(NamedTuple):
    """Facts about each file.

    `marks` contains the offsets and checksums of the small files, concatenated. `check` is the
    derived file with the time of the last comparison with the files.
    """

    path: Path
    check: Path
    columns: list[str] | None
    types: dict[str, str] | None
    schema: str | None
    stats: list[Stat]
    rows: Ints
    marks: npt.NDArray[np.uint32]
    cuts: Ints

    def arrow_schema(self) -> Any:
        """Return the common schema of the files if their schemas differ, else `None`."""
        if self.schema is None:
            return None
        return import_arrow("pyarrow.ipc").read_schema(
            import_arrow().py_buffer(bytes.fromhex(self.schema))
        )

    def offsets(self, number: int) -> Offsets | None:
        """Return the row offsets of a small file, or `None`."""
        marks, rows = self.marks[self.cuts[number] : self.cuts[number + 1]], int(self.rows[number])
        return Offsets(self.path, marks[: rows + 1], marks[rows + 1 :]) if marks.size else None

    def holds_same(self, other: Catalog) -> bool:
        """Return whether another catalog stores the same facts, apart from times."""
        same_schema = (self.columns, self.types, self.schema) == (
            other.columns,
            other.types,
            other.schema,
        )
        arrays = (self.rows, other.rows), (self.marks, other.marks)
        return same_schema and all(np.array_equal(own, others) for own, others in arrays)


class LazyFiles(Sequence[IndexedFile]):
    """The files of a catalog, each opened on first access."""

    def __init__(self, paths: Sequence[Path], catalog: Catalog, open_: OpenFile) -> None:
        self._paths, self._catalog, self._open = paths, catalog, open_
        self._files: dict[int, IndexedFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        file = self._files.get(number)
        if file is None:
            if not 0 <= number < len(self):
                raise IndexError(number)
            file = self._files[number] = self._open_file(number)
        return file

    def _open_file(self, number: int) -> IndexedFile:
        path, catalog = self._paths[number], self._catalog
        try:
            try:
                file = self._open(path, catalog.offsets(number))
            finally:
                file_versions.require_unchanged(path, catalog.stats[number], name=str(path))
        except DataError:
            with suppress(OSError):
                storage.world.disk.unlink(catalog.check)  # the next process compares all files
            raise
        if len(file) != catalog.rows[number]:
            raise DataError(
                f"{catalog.path} belongs to other files: delete it, and open the files again",
                where=str(path),
            )
        return file


def load(
    paths: Sequence[Path],
    kind: CatalogKind,
    cache: str | Path | None,
    open_: OpenFile,
    settled: Callable[[], Any],
    prefetch: Callable[[Sequence[Path]], None],
    *,
    rebuild: bool = False,
) -> Catalog:
    """Return the catalog of these files, at most a minute old; build it if necessary.

    Args:
        paths: The files.
        kind: Properties of the files.
        cache: Cache folder.
        open_: Opens one file.
        settled: Returns the common Arrow schema of the opened files, if they need one.
        prefetch: Prefetches the heads of files.
        rebuild: Build the catalog again.
    """
    file = _locate(paths, kind, cache)
    check = file.fallback.with_name(f"{file.fallback.name}-looked")

    def find() -> Catalog | None:
        if rebuild or not _is_fresh(check) or (catalog := _read(file, check, len(paths))) is None:
            return None
        numbers = sample_fixed_indices(len(paths), _CHECKED_FILES).tolist()
        return None if _changed_files(catalog, paths, numbers) else catalog

    def compare_or_build(locked: bool) -> Catalog:
        catalog = None if rebuild else _read(file, check, len(paths))
        changed = {} if catalog is None else _changed_files(catalog, paths, range(len(paths)))
        if catalog is None or changed:
            if not rebuild:
                derived_files.log_unusable(file)
            previous = catalog
            catalog = _build_catalog(paths, file.path, check, kind.small, open_, settled, prefetch)
            if previous is not None and not previous.holds_same(catalog):
                derived_files.log_changed(changed)
            rows, body = int(catalog.rows.sum()), _encode_catalog(catalog)
            # Without a writable folder every process builds it.
            path = derived_files.store(file, file.read_fingerprint(), rows, body, locked)
            catalog = catalog._replace(path=path or file.path)
        note = DerivedFile(Kind.CATALOG_CHECK, paths[0], check, check)
        now = Stat(machine.get_pid(), int(storage.read_wall_time() * 1e9))
        derived_files.store(note, now, 0, b"", locked)
        return catalog

    return derived_files.find_or_make(file, find, compare_or_build)


def stores_offsets(path: Path, size: int) -> bool:
    """Return whether a file of lines is small enough for a catalog to store its offsets.

    >>> stores_offsets(Path("a.jsonl"), 4_000), stores_offsets(Path("a.jsonl"), 1 << 20)
    (True, False)
    >>> stores_offsets(Path("a.jsonl.gz"), 4_000)
    False
    """
    return size <= _MAX_LINE_FILE_BYTES and path.suffix.lower() not in (*PACKED_EXTENSIONS, ".json")


def count_rows(paths: Sequence[Path], kind: CatalogKind, cache: str | Path | None) -> int | None:
    """Return the rows of all these files according to a catalog, or `None` without one."""
    file = _locate(paths, kind, cache)
    catalog = _read(file, file.path, len(paths))
    return None if catalog is None else int(catalog.rows.sum())


def _locate(paths: Sequence[Path], kind: CatalogKind, cache: str | Path | None) -> DerivedFile:
    """Return the catalog of these files, read in this way; its name identifies both."""
    key: list[Json] = [_VERSION, [*kind.spelled], *resolve_absolute_paths(paths)]
    name = hashlib.blake2b(json.dumps(key).encode(), digest_size=12).hexdigest()
    return derived_files.place_index(
        Kind.CATALOG, paths[0].with_name(name), "files", cache, fingerprint=hash_key(key)
    )


def _is_fresh(check: Path) -> bool:
    """Return whether a running process compared files and catalog in the last minute."""
    if not check.is_file():
        return False
    note = derived_files.decode_header(storage.world.disk.read(check))
    if (
        note is None
        or note.data.size == machine.get_pid()
        or not storage.is_running(note.data.size)
    ):
        return False
    return 0 <= int(storage.read_wall_time() * 1e9) - note.data.mtime <= _MAX_AGE_NANOSECONDS


def _changed_files(
    catalog: Catalog, paths: Sequence[Path], numbers: Iterable[int]
) -> dict[Path, Stat]:
    """Return those of some files that changed since the catalog was built, and their versions."""
    return {
        paths[number]: version
        for number in numbers
        if (version := file_versions.stat_file(paths[number])) != catalog.stats[number]
    }


def _build_catalog(
    paths: Sequence[Path],
    target: Path,
    check: Path,
    has_offsets: bool,
    open_: OpenFile,
    settled: Callable[[], Any],
    prefetch: Callable[[Sequence[Path]], None],
) -> Catalog:
    stats = [file_versions.stat_file(path) for path in paths]
    columns: list[str] | None = None
    types: dict[str, str] | None = None
    lengths, marks = list[int](), list[npt.NDArray[np.uint32]]()
    with Progress("open files", len(paths), "files") as progress:
        for number, path in enumerate(progress.each(paths)):
            version = stats[number]
            if number % MIN_CATALOG_FILES == 0:
                prefetch(paths[number : number + 2 * MIN_CATALOG_FILES])
            file_marks = np.zeros(0, np.uint32)
            if has_offsets and stores_offsets(path, version.size):
                offsets, sums = find_row_offsets(path, version)
                file_marks = np.concatenate([offsets, sums]).astype(np.uint32)
                lengths.append(len(offsets) - 1)
            else:
                file = open_(path, None)
                lengths.append(len(file))
                if number == 0 and file.columns is not None:
                    columns = list(file.columns)
                    if isinstance(file, Arrow):
                        types = {name: str(kind) for name, kind in file.types.items()}
            file_versions.require_unchanged(path, version, name=str(path))
            marks.append(file_marks)
    rows, mark_starts = (
        np.asarray(lengths, np.int64),
        compute_offsets([len(file_marks) for file_marks in marks]),
    )
    schema_hex: str | None = None
    if (schema := settled()) is not None:
        columns, schema_hex = list(schema.names), bytes(schema.serialize()).hex()
    return Catalog(
        target, check, columns, types, schema_hex, stats, rows, np.concatenate(marks), mark_starts
    )


def _encode_catalog(catalog: Catalog) -> bytes:
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


def _read(file: DerivedFile, check: Path, files: int) -> Catalog | None:
    """Return a stored catalog, or `None` if there is no usable one."""

    def read(path: Path) -> Catalog | None:
        header, body = derived_files.read(file, path)
        if not file.fits(header):
            return None
        try:
            return _decode_catalog(path, check, body, files)
        except (ValueError, TypeError) as error:
            raise derived_files.make_damage_error(path, file.data) from error

    return derived_files.find(file, read)


def _decode_catalog(path: Path, check: Path, body: memoryview, files: int) -> Catalog:
    header_end = 8 + int.from_bytes(body[:8], "little")
    numbers = np.frombuffer(body, "<i8", 6 * files, header_end).reshape(files, 6).astype(np.int64)
    marks = np.frombuffer(body, "<u4", offset=header_end + numbers.nbytes)
    stats = [Stat(*stat) for stat in numbers[:, :4].tolist()]
    columns, types, schema = json.loads(bytes(body[8:header_end]))
    return Catalog(
        path,
        check,
        columns,
        types,
        schema,
        stats,
        numbers[:, 4],
        marks,
        compute_offsets(numbers[:, 5]),
    )
