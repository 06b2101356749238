"""Opens the files of a source, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError, make_memory_error
from ..stores import ByteRange, CompositeStore, is_remote, storage
from . import (
    catalog,
    checksummed,
    convert,
    csv,
    file_versions,
    formats,
    lines,
    litdata,
    mds_index,
    tar_file,
)
from .chain import IndexedFile, TokenCounter
from .columnar import Arrow, Parquet
from .derived_files import Kind
from .kinds import SeenColumnTypes, TypedFile, require_compatible_types
from .lines import Offsets
from .loss_counts import list_mask_columns, load_loss_counts
from .lru import SharedCaches
from .mds_index import find_indexes
from .paths import TABLE_FORMATS
from .single_column import MappedColumn, SingleColumn
from .sizes import ColumnFile, load_lengths
from .tokens import TokenIdOptions, list_companions, open_tokens

_LOCAL_FORMATS = ("arrow", "array_record", "hdf5")  # formats whose readers need local files
_SIGNED_FORMATS = ("parquet", "arrow")  # a reader fails unless a file has the signature
_HEADER_FORMATS = ("mds", "litdata")  # formats whose offsets are at the beginning of a file
_FOLDER_FORMATS = ("zarr", "lance")
CHECKSUMMED_FORMATS = ("parquet", "arrow", "tar", "mds", "litdata", "hdf5", "vortex")
"""Formats whose files are compared with optional checksums, besides tokens and JSON arrays."""

COMPANIONS: Mapping[str, Callable[[Path], Iterable[Path]]] = {
    "litdata": litdata.list_companions,
    "mds": mds_index.list_companions,
    "tokens": list_companions,
}
"""Functions that list the files that describe the rows of another file, for each format."""


class Opener(NamedTuple):
    """The arguments by which the files of a source are opened, one by one.

    Attributes:
        custom: Build Penstock's index even if another tool left one.
        rebuild: Build indexes again.
        schema: Columns and types that all files are converted to.
        some: Accept files that lack some of `columns`.
        measured: Column or token counter whose lengths `indexed` computes.
    """

    kind: str
    columns: Sequence[str] | None
    cache: str | Path | None
    shared: SharedCaches
    custom: bool = False
    rebuild: bool = False
    ids: TokenIdOptions = TokenIdOptions()
    checksum: bool = False
    bare: str | None = None
    types: csv.ColumnTypeNames | None = None
    measured: str | TokenCounter | None = None
    schema: Any = None
    some: bool = False

    def catalog_kind(self) -> catalog.CatalogKind:
        """Return the properties that identify a catalog of such files."""
        has_columns, options = self.kind in (*TABLE_FORMATS, "litdata"), (*self.ids, self.bare)
        return catalog.CatalogKind(
            [
                self.kind,
                *(self.columns or () if has_columns else ()),
                *(str(option) for option in options if option is not None),
            ],
            small=self.kind in ("jsonl", "text"),
        )

    def prefetch(self, paths: Sequence[Path]) -> None:
        """Prefetch the heads of remote files that are opened next."""
        store = storage.world.store
        if self.kind in _HEADER_FORMATS and isinstance(store, CompositeStore):
            store.prefetch(
                [
                    ByteRange(str(path), 0, checksummed.FIRST_REQUEST_BYTES)
                    for path in paths
                    if is_remote(path)
                ]
            )

    def indexed(self, path: Path) -> None:
        """Build everything that opening a file needs, and its lengths."""
        file = self(path)
        if self.measured is not None:
            load_lengths(
                [file],
                self.measured,
                self.cache,
                self.rebuild,
                [path],
                self.kind,
                COMPANIONS.get(self.kind),
            )
        if isinstance(self.measured, str) and isinstance(file, ColumnFile):
            if masks := list_mask_columns(file):
                load_loss_counts(file, masks, self.cache, self.rebuild)

    def __call__(self, path: Path, offsets: Offsets | None = None) -> IndexedFile:
        if offsets is not None or is_remote(path) or not path.is_file():
            return self._open(path, offsets)
        before = file_versions.stat_file(path)
        if self.kind not in _SIGNED_FORMATS:
            file_versions.require_no_lfs_pointer(path, before.size)
        try:
            return self._open(path, offsets)
        except MemoryError as error:
            raise make_memory_error(error, path) from error
        except Exception:
            file_versions.require_no_lfs_pointer(path, before.size)
            raise
        finally:
            # Otherwise the index may describe another version of the file.
            file_versions.require_unchanged(path, before, name=str(path))

    def _open(self, path: Path, offsets: Offsets | None) -> IndexedFile:
        (
            kind,
            columns,
            cache,
            shared,
            custom,
            rebuild,
            ids,
            checksum,
            bare,
            types,
            _,
            schema,
            some,
        ) = self
        if kind == "csv":
            table = csv.convert_csv(path, cache=cache, types=types, rebuild=rebuild)
            data = checksummed.open_checked_copy(table, path, shared.files, Kind.CSV_TABLE)
            return Arrow(
                table,
                columns=columns,
                shared=shared,
                data=data,
                origin=path,
                schema=schema,
                some=some,
            )
        if kind == "tokens":
            return open_tokens(path, ids, cache, shared, rebuild, checksum)
        if kind in _FOLDER_FORMATS and is_remote(path):
            raise ConfigError(
                f"{path}: Penstock reads {kind} data from local folders only: copy it to one"
            )
        plain = convert.unpack_if_packed(
            path, cache=cache, rebuild=rebuild, here=kind in _LOCAL_FORMATS
        )
        summed = kind in CHECKSUMMED_FORMATS or path.suffix.lower() == ".json"
        if checksum and summed:
            index_files = (
                [index for index, _ in find_indexes(path)][:1] if kind in ("mds", "litdata") else []
            )
            for target in [*index_files, *([path] if plain == path else [])]:
                checksummed.ensure_checksums(target, cache, rebuild)
        data = None
        if plain != path:
            data = checksummed.open_checked_copy(plain, path, shared.files, Kind.COPY)
        elif summed:
            data = checksummed.open_checked_data(path, shared.files, cache)
        if opened := formats.find_opener(kind):
            data = data or checksummed.ChecksummedFile(plain, path, shared.files)
            return opened(checksummed.OpenRequest(data, columns, cache, shared, rebuild))
        if kind == "parquet":
            rows = Parquet(
                path, columns=columns, shared=shared, data=data, schema=schema, some=some
            )
            return rows if bare is None else SingleColumn(rows, bare)
        if kind == "arrow":
            table = Arrow(
                plain,
                columns=columns,
                shared=shared,
                data=data,
                origin=path,
                schema=schema,
                some=some,
            )
            return table if bare is None else MappedColumn(table, bare)
        if kind == "tar":
            if not (custom or rebuild) and plain == path:
                return tar_file.open_indexed(
                    path, columns=columns, cache=cache, cached=shared.decoded, data=data
                )
            return tar_file.open_tar(
                plain,
                path,
                columns=columns,
                cache=cache,
                cached=shared.decoded,
                rebuild=rebuild,
                data=data,
            )
        return lines.open_lines(
            plain,
            path,
            text=kind == "text",
            columns=columns,
            cache=cache,
            mapped_files=shared.files,
            rebuild=rebuild,
            offsets=offsets,
            data=data,
        )


def require_same_columns(
    file: IndexedFile, first: IndexedFile, first_path: Path, path: Path, seen: SeenColumnTypes
) -> IndexedFile | None:
    """Return the file if its columns equal those of the first file, in the same order.

    Args:
        file: File to compare.
        first: First file of the source.
        first_path: Path of the first file.
        path: Path of the file.
        seen: Types of the columns so far.

    Returns:
        The file; `None` if only the order of its columns differs.

    Raises:
        DataError: The files have different columns, or types that do not fit together.
    """
    own_columns, first_columns = _list_columns(file), _list_columns(first)
    if isinstance(file, TypedFile):
        require_compatible_types(file.types, path, seen)
    if set(own_columns) != set(first_columns):
        raise DataError(
            f"its columns are {', '.join(own_columns)}, those of {first_path} are "
            f"{', '.join(first_columns)}: pass columns= with those that all files have, or read "
            "them as two sources",
            where=str(path),
        )
    return file if own_columns == first_columns else None


def _list_columns(file: IndexedFile) -> list[str]:
    return list(file.types if isinstance(file, TypedFile) else file.columns or ())
