"""Where samples come from: objects in memory, and files of lines or columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Iterable as Iterables
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..base.progress import Progress
from ..errors import ConfigError, DataError
from . import catalog, convert, lines, prepared, sidecar, tar_file
from .chain import Asked, Chain, File, Outline, outline_of
from .columnar import Arrow, Parquet
from .held import Held, Shared
from .lines import Offsets
from .memory import Iterable, Memory, Tokens
from .own import Format, open_own
from .paths import find, name_of, one_format
from .select import Selected, Where, select
from .sizes import lengths_of

__all__ = ["Chain", "Iterable", "Memory", "Tokens", "index_files", "index_lines", "open_files", "outlined"]

Each: TypeAlias = Callable[[Callable[[Path], None], Sequence[Path]], object]
"""Calls a function of every file."""

_FILES = 128  # mapped at a time
_DECODED = 256 << 20  # bytes of decoded row groups, and of indexes of tars


def open_files(
    paths: str | Path | Sequence[str | Path],
    format: str | Format | None = None,
    columns: Sequence[str] | None = None,
    cache: str | Path | None = None,
    lengths: str | None = None,
    split: str | None = None,
    where: Where | None = None,
) -> Chain | Selected:
    """The rows of files, as one source in the order of their paths.

    `paths` may be files, globs (`**` too), brace ranges (`{000..099}`, `{a,b}`), folders, or a list of these. The
    extension tells the format, or `format` does: "parquet", "arrow", "jsonl", "csv", "text", "tar", or a function of
    the user's that opens a file. Only `columns` are read. A folder that Energon prepared is one source by itself, its
    `split` "train" unless another is named.
    What has to be made once (the index of lines, the unpacked copy of an archive, the table of a CSV file) is kept in
    `cache`; without it, indexes beside the data and copies under `~/.cache/penstock`. `where` keeps the rows whose
    columns hold given values: `{"lang": "python", "license": ["mit", "bsd"], "stars": {"min": 10}}`; these columns are
    gone through once, the row numbers kept in the cache.
    `lengths` names a column of lists whose lengths are those of the samples. Raises `ConfigError` for
    paths and columns that are not there, `DataError` for files that cannot be read.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "code.jsonl").write_text('{"x": 1}\\n\\n{"x": 2}\\n')
    >>> source = open_files(f"{folder.name}/*.jsonl")
    >>> source.name, source.read(np.array([1, 0]))
    ('code', [{'x': 2}, {'x': 1}])
    >>> folder.cleanup()
    """
    if callable(format):
        others = {"columns": columns, "lengths": lengths, "split": split, "where": where}
        return open_own(paths, format, cache, others)
    source = _open(paths, format, columns, cache, lengths, split, where)
    given = (paths,) if isinstance(paths, str | Path) else paths
    names, kept = tuple(str(path) for path in given), None if cache is None else str(cache)
    wanted = None if columns is None else tuple(columns)
    source.asked = Asked(names, format, wanted, kept, lengths, split, where)
    return source


def _open(
    paths: str | Path | Sequence[str | Path],
    format: str | None,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    lengths: str | None,
    split: str | None,
    where: Where | None,
) -> Chain | Selected:
    if columns is not None and (not columns or isinstance(columns, str) or len(set(columns)) != len(columns)):
        raise ConfigError(f"columns must be a list of different names, not {columns!r}")
    many = not isinstance(paths, str | Path)
    if many and (isinstance(paths, bytes) or not isinstance(paths, Iterables)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"read({paths!r}): paths are texts or pathlib.Path, one or a list of them")
    given = list(paths) if many else [paths]
    if wrong := [path for path in given if not isinstance(path, str | Path)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"read({paths!r}): {wrong[0]!r} is no path; give texts or pathlib.Path")
    if format == "energon" or (format is None and any(map(prepared.is_prepared, given))):
        return _prepared(given, columns, cache, split, {"lengths": lengths, "where": where})
    if split is not None:
        raise ConfigError(f"split={split!r}: only a folder that Energon prepared has splits, and {paths!r} is none")
    found = find(paths)
    kind = one_format(found, format)
    shared = Shared(Held(_FILES), Held(_DECODED))
    opener = Opener(kind, columns, cache, shared)
    files, outline = _files(found, opener)
    find_lengths = None if lengths is None else partial(lengths_of, files, lengths, cache)
    name = name_of(found)
    chain = Chain(files, outline, format=kind, name=name, paths=found, cache=cache, lengths=find_lengths)
    if where is None:
        return chain
    if columns is not None and kind in ("jsonl", "text"):
        files, _ = _files(found, opener._replace(columns=None))
    return select(chain, files, found, where, cache)


def _files(found: Sequence[Path], opener: Opener, rebuild: bool = False) -> tuple[Sequence[File], Outline]:
    """Files of one kind, their columns in one order. Many of them are opened when they are needed; with `rebuild` what
    is known of them together is made again.
    """
    kind, columns = opener.kind, opener.columns
    tables, first, again = kind in ("parquet", "arrow", "csv"), list[File](), opener._replace(rebuild=False)

    def open_(path: Path, offsets: Offsets | None = None) -> File:
        file = opener(path, offsets)
        if first and tables:
            file = _alike(file, first[0], found[0], path) or again._replace(columns=first[0].columns)(path)
        first[:] = first or [file]
        return file

    if len(found) < catalog.MANY:
        with Progress("open files", len(found), "files") as progress:
            files = [open_(path) for path in progress.each(found)]
        return files, outline_of(files, found)
    known = catalog.of(found, opener.kept(), opener.cache, open_, rebuild=rebuild)
    if tables:
        columns = known.columns
    elif kind == "text":
        columns = lines.text_columns(columns, found[0])
    outline = Outline(known.rows, columns, known.stats)
    return catalog.Late(found, known, again._replace(columns=columns)), outline


def _prepared(
    paths: Sequence[str | Path],
    columns: Sequence[str] | None,
    cache: str | Path | None,
    split: str | None,
    others: Mapping[str, object],
) -> Chain:
    if len(paths) != 1:
        raise ConfigError("Energon prepares one folder or file at a time: read each of these, then mix or concatenate")
    path = paths[0]
    folder = prepared.is_prepared(path)
    if not folder:
        others = {**others, "columns": columns, "split": split}
    if given := next((name for name, value in others.items() if value is not None), None):
        raise ConfigError(f"{given}= does not go with {str(path)!r}, which Energon prepared")
    if not folder:
        return prepared.open_jsonl(path, cache)
    return prepared.load(path).open(split or "train", columns, cache)


def index_lines(
    path: str | Path,
    rebuild: bool = False,
    cache: str | Path | None = None,
    format: str | None = None,
) -> int:
    """Make what reading lines, CSV files and tars needs (index, unpacked copy, table); returns the number of rows.

    What is there is checked and kept; with `rebuild` it is made again, which is the remedy for a stale index.
    `open_files` makes the same when it meets files for the first time; give both the same path and `cache`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "notes.txt").write_text("one\\n\\ntwo\\n")
    ...     index_lines(f"{folder}/notes.txt")
    2
    """
    return sum(index_files(find(path), rebuild, cache, format).values())


def index_files(
    found: Sequence[Path],
    rebuild: bool = False,
    cache: str | Path | None = None,
    format: str | None = None,
    each: Each | None = None,
) -> dict[Path, int]:
    """As `index_lines` does, for files that are read together; returns the rows of each.

    `each(fn, files)` calls a function of every file, wherever it likes; without it they are indexed one by one.

    >>> index_files([Path("web.parquet")])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: web.parquet: parquet files carry their own index, there is nothing to make
    """
    kind = one_format(found, format)
    if kind in ("parquet", "arrow"):
        raise ConfigError(f"{found[0]}: {kind} files carry their own index, there is nothing to make")
    opener = Opener(kind, None, cache, Shared(Held(_FILES), Held(_DECODED)), own=True, rebuild=rebuild)
    if each is not None:
        together = len(found) >= catalog.MANY and opener.kept().small
        sizes = {path: sidecar.stat(path).size for path in found}
        largest = sorted(found, key=sizes.__getitem__, reverse=True)  # so that none of them is begun last
        own = [path.absolute() for path in largest if not (together and catalog.holds(path, sizes[path]))]
        each(opener.indexed, own)
        opener = opener._replace(rebuild=False)
    _, outline = _files(found, opener, rebuild)
    return dict(zip(found, map(int, outline.rows), strict=True))


def outlined(found: Sequence[Path], kind: str, cache: str | Path | None) -> int | None:
    """The rows of many files of lines that were opened before, `None` where that is not known.

    >>> outlined([Path("a.jsonl")] * 40, "jsonl", "no/such/folder") is None
    True
    """
    return catalog.rows_of(found, Opener(kind, None, cache, Shared(Held(1), Held(1))).kept(), cache)


class Opener(NamedTuple):
    """How the files of a source are opened, one by one: with indexes of our `own` in any case, or with new ones."""

    kind: str
    columns: Sequence[str] | None
    cache: str | Path | None
    shared: Shared
    own: bool = False
    rebuild: bool = False

    def kept(self) -> catalog.Kind:
        """What a catalog of such files has to say of them."""
        tables = self.kind in ("parquet", "arrow", "csv")
        return catalog.Kind(
            [self.kind, *(self.columns or () if tables else ())],
            small=self.kind in ("jsonl", "text"),
            strict=self.kind not in ("parquet", "arrow"),
        )

    def indexed(self, path: Path) -> None:
        """Make what opening a file needs."""
        self(path)

    def __call__(self, path: Path, offsets: Offsets | None = None) -> File:
        kind, columns, cache, shared, own, rebuild = self
        if kind == "parquet":
            return Parquet(path, columns=columns, shared=shared)
        if kind == "arrow":
            return Arrow(path, columns=columns, shared=shared)
        if kind == "csv":
            table = convert.table(path, cache=cache, rebuild=rebuild)
            return Arrow(table, columns=columns, shared=shared, origin=path)
        plain = convert.plain(path, cache=cache, rebuild=rebuild)
        if kind == "tar":
            return tar_file.open_tar(
                plain,
                path,
                columns=columns,
                cache=cache,
                held=shared.decoded,
                keyed=own,
                rebuild=rebuild,
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
        )


def _alike(file: File, first: File, first_path: Path, path: Path) -> File | None:
    """The file, if its columns are those of the first; `None` if only their order differs."""
    mine, theirs = list(file.columns or ()), list(first.columns or ())
    if set(mine) != set(theirs):
        raise DataError(
            f"its columns are {', '.join(mine)}, those of {first_path} are {', '.join(theirs)}: pass columns= with "
            "those that all files have, or read them as two sources",
            where=str(path),
        )
    return file if mine == theirs else None
