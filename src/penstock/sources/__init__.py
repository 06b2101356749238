"""Where samples come from: objects in memory, and files of lines or columns."""

from __future__ import annotations

from collections.abc import Iterable as Iterables
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ..errors import ConfigError, DataError
from . import convert, lines, prepared, sidecar, tar_file, tar_index
from .chain import Asked, Chain, File
from .columnar import Arrow, Footer, Parquet, footers
from .held import Held, Shared
from .memory import Iterable, Memory, Tokens
from .paths import find, name_of, one_format
from .select import Selected, Where, select
from .sidecar import Progress
from .sizes import lengths_of

__all__ = ["Chain", "Iterable", "Memory", "Progress", "Tokens", "index_lines", "open_files"]

_FILES = 128  # mapped at a time
_DECODED = 256 << 20  # bytes of decoded row groups, and of indexes of tars


def open_files(
    paths: str | Path | Sequence[str | Path],
    format: str | None = None,
    columns: Sequence[str] | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    lengths: str | None = None,
    split: str | None = None,
    where: Where | None = None,
) -> Chain | Selected:
    """The rows of files, as one source in the order of their paths.

    `paths` may be files, globs (`**` too), brace ranges (`{000..099}`, `{a,b}`), folders, or a list of these. The
    extension tells the format, or `format` does: "parquet", "arrow", "jsonl", "csv", "text", "tar". Only `columns` are
    read. A folder that Energon prepared is one source by itself, its `split` "train" unless another is named.
    What has to be made once (the index of lines, the unpacked copy of an archive, the table of a CSV file) is kept in
    `cache`; without it, indexes beside the data and copies under `~/.cache/penstock`. `progress(what, done, total)` is
    called meanwhile. `where` keeps the rows whose columns hold given values: `{"lang": "python", "license": ["mit",
    "bsd"], "stars": {"min": 10}}`; these columns are gone through once, the row numbers kept in the cache.
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
    source = _open(paths, format, columns, cache, progress, lengths, split, where)
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
    progress: Progress | None,
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
        return _prepared(given, columns, cache, progress, split, {"lengths": lengths, "where": where})
    if split is not None:
        raise ConfigError(f"split={split!r}: only a folder that Energon prepared has splits, and {paths!r} is none")
    found = find(paths)
    kind = one_format(found, format)
    shared = Shared(Held(_FILES), Held(_DECODED))
    files: list[File] = []
    stats = [sidecar.stat(path) for path in found]
    known = footers(found, stats, cache) if kind == "parquet" else [None] * len(found)
    for number, (path, footer) in enumerate(zip(found, known, strict=True), 1):
        file = _opened(path, kind, columns, cache, progress, shared, footer)
        if files and kind not in ("jsonl", "text", "tar"):
            file = _alike(file, files[0], found[0], path) or _opened(
                path, kind, files[0].columns, cache, progress, shared, footer
            )
        files.append(file)
        if progress:
            progress("open", number, len(found))
    find_lengths = None if lengths is None else partial(lengths_of, files, lengths, cache)
    chain = Chain(files, format=kind, name=name_of(found), paths=found, stats=stats, cache=cache, lengths=find_lengths)
    if where is None:
        return chain
    if columns is not None and kind in ("jsonl", "text"):
        files = [_opened(path, kind, None, cache, progress, shared) for path in found]
    return select(chain, files, found, where, cache)


def _prepared(
    paths: Sequence[str | Path],
    columns: Sequence[str] | None,
    cache: str | Path | None,
    progress: Progress | None,
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
        return prepared.open_jsonl(path, cache, progress)
    return prepared.load(path).open(split or "train", columns, cache, progress)


def index_lines(
    path: str | Path,
    rebuild: bool = False,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    format: str | None = None,
) -> int:
    """Make what reading lines, CSV files and tars needs (index, unpacked copy, table); returns the number of rows.

    What is there is checked and kept; with `rebuild` it is made again, which is the remedy for a stale index.
    `open_files` makes the same when it meets a file for the first time; give both the same `cache`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "notes.txt").write_text("one\\n\\ntwo\\n")
    ...     index_lines(f"{folder}/notes.txt")
    2
    """
    found = find(path)
    kind = one_format(found, format)
    if kind in ("parquet", "arrow"):
        raise ConfigError(f"{found[0]}: {kind} files carry their own index, there is nothing to make")
    for origin in found:
        if kind == "csv":
            convert.table(origin, cache=cache, progress=progress, rebuild=rebuild)
            continue
        plain = convert.plain(origin, cache=cache, progress=progress, rebuild=rebuild)
        if kind == "tar":
            tar_index.make(plain, origin, cache=cache, progress=progress, rebuild=rebuild)
            continue
        if not (kind == "jsonl" and plain.suffix.lower() == ".json" and lines.array_of(plain, origin) is not None):
            lines.make_index(plain, origin, cache=cache, progress=progress, rebuild=rebuild)
    return len(open_files(found, format=kind, cache=cache))


def _opened(
    path: Path,
    kind: str,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    progress: Progress | None,
    shared: Shared,
    footer: Footer | None = None,
) -> File:
    if kind == "parquet":
        return Parquet(path, columns=columns, shared=shared, footer=footer)
    if kind == "arrow":
        return Arrow(path, columns=columns, shared=shared)
    if kind == "csv":
        table = convert.table(path, cache=cache, progress=progress)
        return Arrow(table, columns=columns, shared=shared, origin=path)
    plain = convert.plain(path, cache=cache, progress=progress)
    if kind == "tar":
        return tar_file.open_tar(plain, path, columns=columns, cache=cache, held=shared.decoded, progress=progress)
    return lines.open_lines(
        plain, path, text=kind == "text", columns=columns, cache=cache, held=shared.files, progress=progress
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
