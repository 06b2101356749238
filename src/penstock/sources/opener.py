"""How one file of a source is opened, whatever its format is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.base import seams
from ..errors import ConfigError, DataError
from ..stores import Range, Stores, is_remote
from . import catalog, checked, convert, csv, formats, lines, sidecar, tar_file
from .bare import Bare
from .chain import Counts, File
from .columnar import Arrow, Parquet
from .held import Shared
from .kinds import Kinds, Typed, compare
from .lines import Offsets
from .mds_index import indexes_of
from .paths import TABLES
from .sizes import lengths_of
from .tokens import Ids, open_tokens

_HERE = ("arrow", "array_record", "hdf5")  # what reads these wants files of this machine
_HEADED = ("mds", "litdata")  # what is in them says their beginning
_FOLDERS = ("zarr", "lance")
SUMMED = ("parquet", "arrow", "tar", "mds", "litdata", "hdf5", "vortex")
"""Formats whose files are compared with checksums where these were made; those of tokens too, and
JSON arrays."""


class Opener(NamedTuple):
    """How the files of a source are opened, one by one: with indexes of our `own` in any case, or
    with new ones.

    Columns are those of `schema`, where files differ; with `some`, of those asked for the ones that
    a file has. Lengths of the lists of a column that is `measured`, or tokens that are, are counted
    with an index.
    """

    kind: str
    columns: Sequence[str] | None
    cache: str | Path | None
    shared: Shared
    own: bool = False
    rebuild: bool = False
    ids: Ids = Ids()
    checksum: bool = False
    bare: str | None = None
    types: csv.Types | None = None
    measured: str | Counts | None = None
    schema: Any = None
    some: bool = False

    def kept(self) -> catalog.Kind:
        """What a catalog of such files has to say of them."""
        named, said = self.kind in (*TABLES, "litdata"), (*self.ids, self.bare)
        return catalog.Kind(
            [
                self.kind,
                *(self.columns or () if named else ()),
                *(str(each) for each in said if each is not None),
            ],
            small=self.kind in ("jsonl", "text"),
        )

    def ahead(self, paths: Sequence[Path]) -> None:
        """Begin to fetch the heads of files that lie in a store, which are opened next."""
        store = seams.world.store
        if self.kind in _HEADED and isinstance(store, Stores):
            store.ahead([Range(str(path), 0, checked.HEAD) for path in paths if is_remote(path)])

    def indexed(self, path: Path) -> None:
        """Make what opening a file needs, and what packing it does."""
        file = self(path)
        if self.measured is not None:
            lengths_of([file], self.measured, self.cache, self.rebuild, [path])

    def __call__(self, path: Path, offsets: Offsets | None = None) -> File:
        if offsets is not None or is_remote(path) or not path.is_file():
            return self._open(path, offsets)
        before = sidecar.stat(path)
        try:
            return self._open(path, offsets)
        finally:
            sidecar.unchanged(
                path, before, name=str(path)
            )  # else its index may be of another version

    def _open(self, path: Path, offsets: Offsets | None) -> File:
        kind, columns, cache, shared, own, rebuild, ids, checksum, bare, types, _, schema, some = (
            self
        )
        if kind == "csv":
            table = csv.table(path, cache=cache, types=types, rebuild=rebuild)
            data = checked.of_copy(table, path, shared.files, sidecar.TABLE)
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
        if kind in _FOLDERS and is_remote(path):
            raise ConfigError(
                f"{path}: {kind} data is read from folders of this machine: copy it to one"
            )
        plain = convert.plain(path, cache=cache, rebuild=rebuild, here=kind in _HERE)
        summed = kind in SUMMED or path.suffix.lower() == ".json"
        if checksum and summed:
            beside = (
                [index for index, _ in indexes_of(path)][:1] if kind in ("mds", "litdata") else []
            )
            for one in [*beside, *([path] if plain == path else [])]:
                checked.make(one, cache, rebuild)
        data = None
        if plain != path:
            data = checked.of_copy(plain, path, shared.files, sidecar.UNPACKED)
        elif summed:
            data = checked.of_data(path, shared.files, cache)
        if opened := formats.opener_of(kind):
            data = data or checked.Checked(plain, path, shared.files)
            return opened(checked.Wanted(data, columns, cache, shared, rebuild))
        if kind == "parquet":
            return Parquet(
                path, columns=columns, shared=shared, data=data, schema=schema, some=some
            )
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
            return table if bare is None else Bare(table, bare)
        if kind == "tar":
            if not (own or rebuild) and plain == path:
                return tar_file.open_indexed(
                    path, columns=columns, cache=cache, held=shared.decoded, data=data
                )
            return tar_file.open_tar(
                plain,
                path,
                columns=columns,
                cache=cache,
                held=shared.decoded,
                rebuild=rebuild,
                data=data,
            )
        return lines.open_lines(
            plain,
            path,
            text=kind == "text",
            columns=columns,
            cache=cache,
            held=shared.files,
            rebuild=rebuild,
            offsets=offsets,
            data=data,
        )


def alike(file: File, first: File, first_path: Path, path: Path, seen: Kinds) -> File | None:
    """The file, if its columns are those of the first, of types as `seen`; `None` if only their
    order differs."""
    mine, theirs = _columns(file), _columns(first)
    if isinstance(file, Typed):
        compare(file.types, path, seen)
    if set(mine) != set(theirs):
        raise DataError(
            f"its columns are {', '.join(mine)}, those of {first_path} are {', '.join(theirs)}: "
            "pass columns= with "
            "those that all files have, or read them as two sources",
            where=str(path),
        )
    return file if mine == theirs else None


def _columns(file: File) -> list[str]:
    return list(file.types if isinstance(file, Typed) else file.columns or ())
