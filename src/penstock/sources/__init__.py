"""Where samples come from: objects in memory, and files of lines or columns."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Iterable as Iterables
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from ..engine.base import machine, seams
from ..engine.base.progress import Progress
from ..engine.base.urls import local, spellable
from ..errors import ConfigError
from ..stores import Stores, display_path
from . import catalog, csv, folders, lines, prepared, sidecar
from .chain import Asked, Chain, Counts, File, Outline, outline_of
from .held import Held, Shared
from .kinds import Kinds
from .lines import Offsets
from .memory import Iterable, Memory, Tokens
from .names import name_of
from .opener import SUMMED, Opener, alike
from .outside import outside
from .own import Format, open_own
from .paths import TABLES, TokenType, find, look_at, one_format
from .select import Selected, Where, select
from .sizes import lengths_of
from .store import says_itself, token_column, written
from .tokens import Ids, is_cache, lengths_of_files, of_one_type, open_cache
from .unify import Tabular, Unified, has_schema

__all__ = [
    "DECODED",
    "Chain",
    "Counts",
    "Iterable",
    "Memory",
    "Tokens",
    "held_as_columns",
    "index_files",
    "index_lines",
    "of_its_own",
    "open_files",
    "outlined",
]

Each: TypeAlias = Callable[[Callable[[Path], None], Sequence[Path]], object]
"""Calls a function of every file."""

_INDEXED = ("parquet", "arrow", "array_record", "litdata", "hdf5", "zarr", "lance", "vortex")
_FILES = 128  # mapped at a time
DECODED = 192 << 20
"""Bytes of decoded row groups that a source holds, and of indexes of tars."""


def open_files(
    paths: str | Path | Iterables[str | Path],
    format: str | Format | None = None,
    columns: Sequence[str] | None = None,
    cache: str | Path | None = None,
    lengths: str | Counts | None = None,
    split: str | None = None,
    where: Where | None = None,
    dtype: TokenType | None = None,
    eos: int | None = None,
) -> Chain | Selected:
    """The rows of files, as one source in the order of their paths.

    `paths` may be files, globs (`**` too), brace ranges (`{000..099}`, `{a,b}`), folders, or a list
    of these. The
    extension tells the format, or `format` does: "parquet", "arrow", "jsonl", "csv", "text", "tar",
        "tokens", or a
    function of the user's that opens a file. Tokens are stored as `dtype`, and a document ends with
    `eos`, where their files do not tell. Only `columns` are read. A folder that Energon prepared is
    one source by itself, its `split` "train" unless another is named. What has to be made once (the
    index of lines, the unpacked copy of an archive, the table of a CSV file) is kept in `cache`;
    without it, indexes beside the data and copies under `~/.cache/penstock`. `where` keeps the rows
    whose
    columns hold given values: `{"lang": "python", "license": ["mit", "bsd"], "stars": {"min":
        10}}`; these columns are
    gone through once, the row numbers kept in the cache. `lengths` names a column of lists whose
    lengths are those of the samples, or counts the tokens of rows. Raises `ConfigError` for paths
    and columns that are not there, `DataError` for files that cannot be read.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "code.jsonl").write_text('{"x": 1}\\n\\n{"x": 2}\\n')
    >>> source = open_files(f"{folder.name}/*.jsonl")
    >>> source.name, source.read(np.array([1, 0]))
    ('code', [{'x': 2}, {'x': 1}])
    >>> folder.cleanup()
    """
    with _looking(cache), sidecar.one_log_line():
        look_at(
            given := _given(paths)
        )  # what is an object is not asked for what may lie in folders
        return _opened(given, format, columns, cache, lengths, split, where, dtype, eos)


@contextlib.contextmanager
def _looking(cache: str | Path | None) -> Generator[None]:
    """A block in which stores are listed once, and what is found in them is kept in a cache."""
    kept = cache if cache is not None else machine.environment("PENSTOCK_CACHE")
    looking = seams.world.store.looking if isinstance(seams.world.store, Stores) else None
    with (
        contextlib.nullcontext()
        if looking is None
        else looking(None if kept is None else str(local(kept)))
    ):
        yield


def _opened(
    given: list[str | Path],
    format: str | Format | None,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    lengths: str | Counts | None,
    split: str | None,
    where: Where | None,
    dtype: TokenType | None,
    eos: int | None,
) -> Chain | Selected:
    others = {
        "columns": columns,
        "lengths": lengths,
        "split": split,
        "where": where,
        "dtype": dtype,
        "eos": eos,
    }
    if callable(format):
        return open_own(given, format, cache, others)
    if brought := outside(given, format):
        source = open_own(
            given, brought.format.open, cache, others, name=brought.name, files=brought.files
        )
    else:
        source = _open(
            given, format, columns, cache, lengths, split, where, Ids(dtype, eos).checked()
        )
    names, kept = tuple(map(display_path, given)), None if cache is None else str(cache)
    wanted = None if columns is None else tuple(columns)
    source.asked = Asked(names, format, wanted, kept, lengths, split, where, dtype, eos)
    return source


def _given(paths: str | Path | Iterables[str | Path]) -> list[str | Path]:
    one = getattr(paths, "ndim", 1) == 0  # an array without an axis
    one = one or isinstance(paths, str | bytes | Mapping) or hasattr(paths, "columns")
    many = not one and isinstance(paths, Iterables)
    given = list(cast("Iterables[str | Path]", paths)) if many else [cast("str | Path", paths)]
    if wrong := [reprlib.repr(path) for path in given if not isinstance(path, str | Path)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        remedy = "give texts or pathlib.Path, one or a list of them; of samples in memory, ps.from_sequence(samples)"
        raise ConfigError(f"read({'[...]' if many else wrong[0]}): {wrong[0]} is no path; {remedy}")
    for path in given:
        spellable(path)
    return given


def _open(
    given: Sequence[str | Path],
    format: str | None,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    lengths: str | Counts | None,
    split: str | None,
    where: Where | None,
    ids: Ids,
) -> Chain | Selected:
    if columns is not None and (
        not columns or isinstance(columns, str) or len(set(columns)) != len(columns)
    ):
        raise ConfigError(f"columns must be a list of different names, not {columns!r}")
    if format == "energon" or (format is None and any(map(prepared.is_prepared, given))):
        return _prepared(given, columns, cache, split, {"lengths": lengths, "where": where})
    if format is None and split is None and len(given) == 1 and is_cache(given[0]):
        _fitting(
            "tokens",
            given,
            {"columns": columns, "lengths": lengths, "where": where, **ids._asdict()},
            ids,
        )
        return open_cache(given[0], cache)
    bare = None
    if (store := written(given) if format is None and split is None else None) is not None:
        found, kind, lengths = store.files, store.format, lengths or store.lengths
        bare = store.bare if columns is None else None
        columns = columns or store.columns
    else:
        found = find(given if split is None else [folders.part(path, split) for path in given])
        kind = one_format(found, format)
        lengths = lengths or token_column(found, kind)
    _fitting(kind, found, {"columns": columns, "lengths": lengths, "where": where}, ids)
    shared = Shared(Held(_FILES), Held(DECODED))
    opener = Opener(kind, columns, cache, shared, ids=ids, bare=bare)
    files, outline = _files(found, opener)
    find_lengths = (
        None if lengths is None else partial(lengths_of, files, lengths, cache, paths=found)
    )
    if kind == "tokens":
        find_lengths = partial(lengths_of_files, files)
    name = name_of(given, found)
    if kind == "zarr":
        if where is not None:
            raise ConfigError(
                "where= does not go with Zarr arrays, whose chunks may change unnoticed: use "
                ".filter(...)"
            )
        found = folders.whole(found)
        outline = outline._replace(stats=[sidecar.stat(path) for path in found])
    column, counts = (lengths, None) if isinstance(lengths, str | None) else (None, lengths)
    chain = Chain(
        files, outline, format=kind, name=name, paths=found, cache=cache, lengths=find_lengths, column=column,
        counts=counts,
    )  # fmt: skip
    if where is None:
        return chain
    if columns is not None and kind in ("jsonl", "text"):
        files, _ = _files(found, opener._replace(columns=None))
    return select(chain, files, found, where, cache)


def _fitting(
    kind: str, found: Sequence[str | Path], of_rows: Mapping[str, object], ids: Ids
) -> None:
    """Refuse what is asked of tokens where there are rows, and of rows where there are tokens."""
    wrong = of_rows if kind == "tokens" else ids._asdict()
    if given := next((name for name, value in wrong.items() if value is not None), None):
        holds = "tokens, and tells of them itself" if kind == "tokens" else f"{kind} rows"
        raise ConfigError(f"{given}= does not go with {str(found[0])!r}, which holds {holds}")


def _files(
    found: Sequence[Path], opener: Opener, rebuild: bool = False
) -> tuple[Sequence[File], Outline]:
    """Files of one kind, their columns in one order. Many of them are opened when they are needed;
    with `rebuild` what is known of them together is made again.
    """
    kind, columns = opener.kind, opener.columns
    again = opener._replace(rebuild=False, checksum=False)
    first, seen = list[File](), Kinds()

    @cache
    def types() -> csv.Types | None:
        return (
            csv.settled(found, opener.cache, rebuild) if kind == "csv" and len(found) > 1 else None
        )

    several, unified = opener._replace(some=len(found) > 1), Unified()

    def open_(path: Path, offsets: Offsets | None = None) -> File:
        file = several._replace(types=types())(path, offsets)
        first[:] = first or [file]
        if isinstance(file, Tabular):
            unified.add(file.own, path)
            return file
        if kind == "tokens":
            of_one_type(file, first[0], found[0], path)
        in_order = again._replace(columns=first[0].columns, types=types())
        return alike(file, first[0], found[0], path, seen) or in_order(path)

    def settled() -> Any:
        if opener.columns is not None and unified.lacks(opener.columns):
            again(found[0])  # says which column is missing
        return unified.schema(
            _Reopened(found, several._replace(types=types())), opener.columns, opener.cache
        )

    if len(found) < catalog.MANY:
        with Progress("open files", len(found), "files") as progress:
            opener.ahead(found)
            files = [open_(path) for path in progress.each(found)]
        if (schema := settled()) is not None:
            last = again._replace(types=types(), columns=schema.names, schema=schema)
            files = [
                file if has_schema(file, schema) else last(path)
                for file, path in zip(files, found, strict=True)
            ]
        return files, outline_of(files, found)
    known = catalog.of(
        found, opener.kept(), opener.cache, open_, settled, opener.ahead, rebuild=rebuild
    )
    if kind in TABLES and opener.bare is None:
        columns = known.columns
    elif kind == "text":
        columns = lines.text_columns(columns, found[0])
    outline = Outline(known.rows, columns, known.stats)
    last = again._replace(columns=columns, types=known.types, schema=known.arrow_schema())
    return catalog.Late(found, known, last), outline


class _Reopened(Sequence[Tabular]):
    """Columnar files, each opened when it is asked for."""

    def __init__(self, paths: Sequence[Path], opener: Opener) -> None:
        self._paths, self._opener = paths, opener

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        return cast(Any, self._opener(self._paths[cast(int, number)]))


def _prepared(
    paths: Sequence[str | Path],
    columns: Sequence[str] | None,
    cache: str | Path | None,
    split: str | None,
    others: Mapping[str, object],
) -> Chain:
    if len(paths) != 1:
        raise ConfigError(
            "Energon prepares one folder or file at a time: read each of these, then mix or "
            "concatenate"
        )
    path = paths[0]
    folder = prepared.is_prepared(path)
    if not folder:
        others = {**others, "columns": columns, "split": split}
    if given := next((name for name, value in others.items() if value is not None), None):
        raise ConfigError(f"{given}= does not go with {str(path)!r}, which Energon prepared")
    if not folder:
        return prepared.open_jsonl(path, cache)
    return prepared.load(path).open(split or "train", columns, cache)


def of_its_own(path: str | Path) -> bool:
    """Whether a folder tells itself which files are its data.

    >>> of_its_own("no/such/folder")
    False
    """
    return prepared.is_prepared(path) or is_cache(path) or says_itself(path)


def index_lines(
    path: str | Path,
    rebuild: bool = False,
    cache: str | Path | None = None,
    format: str | None = None,
) -> int:
    """Make what reading lines, CSV files, tars and tokens needs (index, unpacked copy, table);
    returns the rows.

    What is there is checked and kept; with `rebuild` it is made again, which is the remedy for a
    stale index. `open_files` makes the same when it meets files for the first time; give both the
    same path and `cache`.

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
    dtype: TokenType | None = None,
    eos: int | None = None,
    checksum: bool = False,
    lengths: str | Counts | None = None,
) -> dict[Path, int]:
    """As `index_lines` does, for files that are read together; returns the rows of each. With
    `checksum`, checksums of
    their blocks are made too where their bytes are not read anyway: of Parquet, Arrow, HDF5 and tar
        files, MDS, LitData
    and tokens. With `lengths`, those of the lists of that column, where they must be decoded to be
    known (of Parquet), or the tokens of rows.

    `each(fn, files)` calls a function of every file, wherever it likes; without it they are indexed
    one by one.

    >>> index_files([Path("web.parquet")])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: web.parquet: parquet files carry their own index, there is nothing to make but ...
    """
    kind = one_format(found, format)
    measured = lengths is not None and (
        not isinstance(lengths, str) or kind in ("parquet", "arrow")
    )
    if kind in _INDEXED and not measured and not (checksum and kind in SUMMED):
        remedy = " but checksums (--checksum)" if kind in SUMMED else ""
        raise ConfigError(
            f"{found[0]}: {kind} files carry their own index, there is nothing to make{remedy}"
        )
    shared, ids = Shared(Held(_FILES), Held(DECODED)), Ids(dtype, eos).checked()
    opener = Opener(
        kind,
        None,
        cache,
        shared,
        own=True,
        rebuild=rebuild,
        ids=ids,
        checksum=checksum,
        measured=lengths,
    )
    if each is not None:
        together = len(found) >= catalog.MANY and opener.kept().small
        sizes = {path: sidecar.stat(path).size for path in found}
        largest = sorted(
            found, key=sizes.__getitem__, reverse=True
        )  # so that none of them is begun last
        own = [
            path.absolute()
            for path in largest
            if not (together and catalog.holds(path, sizes[path]))
        ]
        each(opener.indexed, own)
        opener = opener._replace(rebuild=False, checksum=False, measured=None)
    _, outline = _files(found, opener, rebuild)
    for path in found if opener.measured is not None else ():
        opener.indexed(path)
    return dict(zip(found, map(int, outline.rows), strict=True))


def held_as_columns(source: Chain | Selected) -> bool:
    """That a source can give columns; refused is one that cannot.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("x\\n1\\n")
    ...     held_as_columns(open_files(f"{folder}/a.csv", cache=folder))
    True
    """
    if not source.columnar:
        raise ConfigError(
            f"read(rows='columns'): {source!r} has no columns; Parquet, Arrow, CSV and Lance files "
            "have"
        )
    return True


def outlined(found: Sequence[Path], kind: str, cache: str | Path | None) -> int | None:
    """The rows of many files of lines that were opened before, `None` where that is not known.

    >>> outlined([Path("a.jsonl")] * 40, "jsonl", "no/such/folder") is None
    True
    """
    return catalog.rows_of(found, Opener(kind, None, cache, Shared(Held(1), Held(1))).kept(), cache)
