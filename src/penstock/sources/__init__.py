"""Sources: the samples of in-memory objects and of files.

The modules read file formats, resolve paths, and identify data. They may import `stores`, `types`,
`errors` and the base of the engine. Importing this package installs the digests of values by which
states recognise their data.
"""

from __future__ import annotations

import contextlib
import logging
import reprlib
from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Iterable as Iterables
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from ..engine.base import machine, seams
from ..engine.base.progress import Progress
from ..errors import ConfigError
from ..stores import CompositeStore, display_path, storage
from ..stores.urls import require_encodable_path, require_local
from . import (
    catalog,
    comparison,
    csv,
    derived_files,
    digests,
    file_versions,
    folders,
    lines,
    prepared,
)
from .arrow_table import ArrowTable
from .chain import (
    DecodingCost,
    FilesOutline,
    IndexedFile,
    JoinedFiles,
    OpenArguments,
    TokenCounter,
    outline_files,
)
from .custom_format import Format, open_custom
from .kinds import SeenColumnTypes, is_compatible_type
from .lines import Offsets
from .loss_counts import find_loss_counts
from .lru import LRUCache, SharedCaches
from .memory import Iterable, Memory, Tokens
from .names import choose_source_name
from .opener import CHECKSUMMED_FORMATS, COMPANIONS, Opener, require_same_columns
from .partition import Part, open_parts
from .paths import TABLE_FORMATS, TokenType, find, prefetch_stats, require_one_format
from .plugins import find_plugin_format
from .saved_dataset import find_token_column, is_integer_list, read_saved
from .select import SelectedRows, Selection, select
from .single_column import find_sample_column
from .sizes import load_lengths, require_column_file
from .tokens import (
    TokenIdOptions,
    is_cache,
    open_cache,
    read_file_lengths,
    require_same_dtype,
)
from .unify import TabularFile, UnifiedSchema, has_schema

seams.world.digests, seams.world.data = digests, comparison

__all__ = [
    "DECODED_CACHE_BYTES",
    "Iterable",
    "JoinedFiles",
    "Memory",
    "TokenCounter",
    "Tokens",
    "count_catalog_rows",
    "index_and_count_rows",
    "index_files",
    "lists_own_files",
    "open_files",
    "reads_columns",
    "require_columnar",
    "warn_of_full_shuffle",
]

Each: TypeAlias = Callable[[Callable[[Path], None], Sequence[Path]], object]
"""Calls a function with every file."""

_SELF_INDEXED_FORMATS = (
    "parquet",
    "arrow",
    "array_record",
    "litdata",
    "hdf5",
    "zarr",
    "lance",
    "vortex",
)
_MAX_MAPPED_FILES = 128  # mapped files per source
DECODED_CACHE_BYTES = 192 << 20
"""Bytes of decoded row groups and of tar indexes that a source caches."""

_MAX_DECODED_SAMPLES = 16  # decoded samples for each sample from which on a shuffle is costly
_MAX_WINDOW = 64  # row groups that the recommended shuffle mixes


def open_files(
    paths: str | Path | Iterables[str | Path],
    format: str | Format | None = None,
    columns: Sequence[str] | None = None,
    cache: str | Path | None = None,
    lengths: str | TokenCounter | None = None,
    split: str | None = None,
    where: Selection | None = None,
    dtype: TokenType | None = None,
    eos: int | None = None,
    parts: Sequence[Part] = (),
) -> JoinedFiles | SelectedRows:
    r"""Open files as one source, in the order of their paths.

    The source stores results of one-time work (indexes of lines, unpacked copies of archives, tables of
    CSV files) in `cache`. Without `cache`, indexes lie beside the data and copies under
    `~/.cache/penstock`.

    Args:
        paths: Files, globs (`**` too), brace ranges (`{000..099}`, `{a,b}`), folders, or a list of
            these. A folder that Energon prepared is a source by itself.
        format: "parquet", "arrow", "jsonl", "csv", "text", "tar", "tokens" and others, or a function
            that opens a file. By default the extension determines it.
        columns: Columns to read; all by default.
        cache: Cache folder.
        lengths: Column of lists whose lengths are those of the samples, or a token counter.
        split: Split of a prepared folder; "train" by default.
        where: Values of columns that select rows, such as `{"lang": "python", "license": ["mit",
            "bsd"], "stars": {"min": 10}}`. One pass reads these columns; the cache stores the numbers
            of the selected rows.
        dtype: dtype of raw token ids, if the files do not state it.
        eos: Token that ends a document, if the files do not list document ends.
        parts: Parts of `penstock.sources.partition` that hold the rows.

    Returns:
        The source.

    Raises:
        ConfigError: A path or column does not exist.
        DataError: A file cannot be read.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "code.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    >>> source = open_files(f"{folder.name}/*.jsonl")
    >>> source.name, source.read(np.array([1, 0]))
    ('code', [{'x': 2}, {'x': 1}])
    >>> folder.cleanup()
    """
    with _share_store_listings(cache), derived_files.merge_logs():
        given = _list_given_paths(paths)
        prefetch_stats(given)  # one request for all objects, before any folder is listed
        source = _open_any(given, format, columns, cache, lengths, split, where, dtype, eos)
        return open_parts(source, parts)


@contextlib.contextmanager
def _share_store_listings(cache: str | Path | None) -> Generator[None]:
    """List stores once within a block, and cache what is found."""
    cache_root = cache if cache is not None else machine.read_environment_variable("PENSTOCK_CACHE")
    list_once = (
        storage.world.store.looking if isinstance(storage.world.store, CompositeStore) else None
    )
    with (
        contextlib.nullcontext()
        if list_once is None
        else list_once(None if cache_root is None else str(require_local(cache_root)))
    ):
        yield


def _open_any(
    given: list[str | Path],
    format: str | Format | None,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    lengths: str | TokenCounter | None,
    split: str | None,
    where: Selection | None,
    dtype: TokenType | None,
    eos: int | None,
) -> JoinedFiles | SelectedRows:
    others = {
        "columns": columns,
        "lengths": lengths,
        "split": split,
        "where": where,
        "dtype": dtype,
        "eos": eos,
    }
    if callable(format):
        return open_custom(given, format, cache, others)
    if plugin := find_plugin_format(given, format):
        source = open_custom(
            given, plugin.format.open, cache, others, name=plugin.name, files=plugin.files
        )
    else:
        source = _open_own_format(
            given,
            format,
            columns,
            cache,
            lengths,
            split,
            where,
            TokenIdOptions(dtype, eos).checked(),
        )
    names, cache_text = tuple(map(display_path, given)), None if cache is None else str(cache)
    column_names = None if columns is None else tuple(columns)
    source.open_arguments = OpenArguments(
        names, format, column_names, cache_text, lengths, split, where, dtype, eos
    )
    source.reopen = partial(open_files, **source.open_arguments._asdict())
    return source


def _list_given_paths(paths: str | Path | Iterables[str | Path]) -> list[str | Path]:
    is_single = getattr(paths, "ndim", 1) == 0  # an array without an axis
    is_single = is_single or isinstance(paths, str | bytes | Mapping) or hasattr(paths, "columns")
    is_list = not is_single and isinstance(paths, Iterables)
    given = list(cast("Iterables[str | Path]", paths)) if is_list else [cast("str | Path", paths)]
    if invalid := [reprlib.repr(path) for path in given if not isinstance(path, str | Path)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        remedy = (
            "give texts or pathlib.Path, one or a list of them; for samples in memory use "
            "ps.from_sequence(samples)"
        )
        raise ConfigError(
            f"read({'[...]' if is_list else invalid[0]}): {invalid[0]} is no path; {remedy}"
        )
    for path in given:
        require_encodable_path(path)
    return given


def _open_own_format(
    given: Sequence[str | Path],
    format: str | None,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    lengths: str | TokenCounter | None,
    split: str | None,
    where: Selection | None,
    ids: TokenIdOptions,
) -> JoinedFiles | SelectedRows:
    if columns is not None and (
        not columns or isinstance(columns, str) or len(set(columns)) != len(columns)
    ):
        raise ConfigError(f"columns must be a list of different names, not {columns!r}")
    if format == "energon" or (format is None and any(map(prepared.is_prepared, given))):
        return _open_prepared(given, columns, cache, split, {"lengths": lengths, "where": where})
    if format is None and split is None and len(given) == 1 and is_cache(given[0]):
        _require_applicable(
            "tokens",
            given,
            {"columns": columns, "lengths": lengths, "where": where, **ids._asdict()},
            ids,
        )
        return open_cache(given[0], cache)
    bare_column = None
    if (saved := read_saved(given) if format is None and split is None else None) is not None:
        files_found, format_name, lengths = saved.files, saved.format, lengths or saved.lengths
        bare_column = saved.bare if columns is None else None
        columns = columns or saved.columns
    else:
        files_found = find(
            given if split is None else [folders.find_split(path, split) for path in given]
        )
        format_name = require_one_format(files_found, format)
        lengths = lengths or find_token_column(files_found, format_name)
    _require_applicable(
        format_name, files_found, {"columns": columns, "lengths": lengths, "where": where}, ids
    )
    shared = SharedCaches(LRUCache(_MAX_MAPPED_FILES), LRUCache(DECODED_CACHE_BYTES))
    opener = Opener(format_name, columns, cache, shared, ids=ids, bare=bare_column)
    files, outline = _open_uniform_files(files_found, opener)
    if opener.columns is None and (field := find_sample_column(files, outline.columns)) is not None:
        opener = opener._replace(bare=field.name)
        files, outline = _open_uniform_files(files_found, opener)
        lengths = lengths or (field.name if is_integer_list(field.type) else None)
    if isinstance(lengths, str):
        require_column_file(files[0], lengths)
    find_lengths = (
        None
        if lengths is None
        else partial(
            load_lengths,
            files,
            lengths,
            cache,
            paths=files_found,
            format=format_name,
            list_companions=COMPANIONS.get(format_name),
        )
    )
    if format_name == "tokens":
        find_lengths = partial(read_file_lengths, files)
    name = choose_source_name(given, files_found)
    if format_name == "zarr":
        if where is not None:
            raise ConfigError(
                "where= does not support Zarr arrays, whose chunks may change unnoticed: use "
                ".filter(...)"
            )
        files_found = folders.list_data_files(files_found)
        outline = outline._replace(stats=[file_versions.stat_file(path) for path in files_found])
    column, counts = (lengths, None) if isinstance(lengths, str | None) else (None, lengths)
    chain = JoinedFiles(
        files,
        outline,
        format=format_name,
        name=name,
        paths=files_found,
        cache=cache,
        lengths=find_lengths,
        column=column,
        counts=counts,
        loss_counts=partial(find_loss_counts, files, name, cache, texts=counts is not None),
        list_companions=COMPANIONS.get(format_name),
    )
    if where is None:
        return chain
    if columns is not None and format_name in ("jsonl", "text"):
        files, _ = _open_uniform_files(files_found, opener._replace(columns=None))
    elif columns is not None and format_name in ("parquet", "arrow", "csv"):
        # All files count: some may lack a column or store it with another type.
        both = list(dict.fromkeys((*columns, *where)))
        files, _ = _open_uniform_files(files_found, opener._replace(columns=both))
    return select(chain, files, files_found, where, cache)


def _require_applicable(
    kind: str, paths: Sequence[str | Path], row_options: Mapping[str, object], ids: TokenIdOptions
) -> None:
    """Raise for token options with files of rows, and for row options with files of tokens."""
    inapplicable = row_options if kind == "tokens" else ids._asdict()
    if given := next((name for name, value in inapplicable.items() if value is not None), None):
        holds = "tokens, and describes them itself" if kind == "tokens" else f"{kind} rows"
        raise ConfigError(
            f"{given}= does not go with {str(paths[0])!r}, which holds {holds}: leave it out"
        )


def _open_uniform_files(
    paths: Sequence[Path], opener: Opener, rebuild: bool = False
) -> tuple[Sequence[IndexedFile], FilesOutline]:
    """Open files of one kind with columns in one order.

    Many files are opened on access; `rebuild` then rebuilds their catalog.
    """
    kind, columns = opener.kind, opener.columns
    reader = opener._replace(rebuild=False, checksum=False)
    first_file, kinds_seen = list[IndexedFile](), SeenColumnTypes()

    @cache
    def types() -> csv.ColumnTypeNames | None:
        return (
            csv.merge_column_types(paths, opener.cache, rebuild)
            if kind == "csv" and len(paths) > 1
            else None
        )

    opener_of_many, unified = opener._replace(some=len(paths) > 1), UnifiedSchema()

    def open_(path: Path, offsets: Offsets | None = None) -> IndexedFile:
        file = opener_of_many._replace(types=types())(path, offsets)
        first_file[:] = first_file or [file]
        if isinstance(file, TabularFile):
            unified.add(file.file_schema, path)
            return file
        if kind == "tokens":
            require_same_dtype(file, first_file[0], paths[0], path)
        in_order = reader._replace(columns=first_file[0].columns, types=types())
        return require_same_columns(file, first_file[0], paths[0], path, kinds_seen) or in_order(
            path
        )

    def settled() -> Any:
        if opener.columns is not None and unified.lacks(opener.columns):
            reader(paths[0])  # its error names the missing column
        return unified.schema(
            _OpenOnAccess(paths, opener_of_many._replace(types=types())),
            opener.columns,
            opener.cache,
        )

    if len(paths) < catalog.MIN_CATALOG_FILES:
        with Progress("open files", len(paths), "files") as progress:
            opener.prefetch(paths)
            files = [open_(path) for path in progress.each(paths)]
        if (schema := settled()) is not None:
            final_opener = reader._replace(types=types(), columns=schema.names, schema=schema)
            files = [
                file if has_schema(file, schema) else final_opener(path)
                for file, path in zip(files, paths, strict=True)
            ]
        return files, outline_files(files, paths)
    facts = catalog.load(
        paths, opener.catalog_kind(), opener.cache, open_, settled, opener.prefetch, rebuild=rebuild
    )
    if kind in TABLE_FORMATS and opener.bare is None:
        columns = facts.columns
    elif kind == "text":
        columns = lines.require_text_column(columns, paths[0])
    outline = FilesOutline(facts.rows, columns, facts.stats)
    final_opener = reader._replace(columns=columns, types=facts.types, schema=facts.arrow_schema())
    return catalog.LazyFiles(paths, facts, final_opener), outline


class _OpenOnAccess(Sequence[TabularFile]):
    """Columnar files, each opened on every access."""

    def __init__(self, paths: Sequence[Path], opener: Opener) -> None:
        self._paths, self._opener = paths, opener

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: Any) -> Any:
        return cast(Any, self._opener(self._paths[cast(int, number)]))


def _open_prepared(
    paths: Sequence[str | Path],
    columns: Sequence[str] | None,
    cache: str | Path | None,
    split: str | None,
    options: Mapping[str, object],
) -> JoinedFiles:
    if len(paths) != 1:
        raise ConfigError(
            "Energon prepares one folder or file at a time: read each of these as a source, then "
            "mix or concatenate them"
        )
    path = paths[0]
    folder = prepared.is_prepared(path)
    if not folder:
        options = {**options, "columns": columns, "split": split}
    if given := next((name for name, value in options.items() if value is not None), None):
        raise ConfigError(f"{given}= does not go with {str(path)!r}, which Energon prepared")
    if not folder:
        return prepared.open_jsonl(path, cache)
    return prepared.load(path).open(split or "train", columns, cache)


def lists_own_files(path: str | Path) -> bool:
    """Return whether a folder lists its own data files, so that reading takes it as one source.

    Args:
        path: A path. Folders that Energon prepared and token caches list their files; other
            folders, files and missing paths do not.

    >>> lists_own_files("no/such/folder")
    False
    """
    return prepared.is_prepared(path) or is_cache(path)


def index_and_count_rows(
    path: str | Path,
    rebuild: bool = False,
    cache: str | Path | None = None,
    format: str | None = None,
) -> int:
    r"""Build everything that reading lines, CSV files, tars and tokens needs; return the rows.

    This checks and keeps existing indexes, unpacked copies and tables. `open_files` builds the same on
    first use; give both the same path and `cache`.

    Args:
        path: Files, as in `open_files`.
        rebuild: Build everything again, for example if an index is stale.
        cache: Cache folder.
        format: Format of the files.

    Returns:
        The number of rows.

    Raises:
        ConfigError: The format needs no index.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "notes.txt").write_text("one\n\ntwo\n")
    ...     index_and_count_rows(f"{folder}/notes.txt")
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
    lengths: str | TokenCounter | None = None,
) -> dict[Path, int]:
    """Build the same as `index_and_count_rows` for files that are read together.

    Args:
        found: The files.
        rebuild: Build everything again.
        cache: Cache folder.
        format: Format of the files.
        each: Called as `each(fn, files)` to call a function with every file, for example in parallel.
        dtype: dtype of raw token ids.
        eos: Token that ends a document.
        checksum: Also make checksums of Parquet, Arrow, HDF5 and tar files, MDS, LitData and tokens,
            whose indexes contain none.
        lengths: Column of lists, or a token counter, whose lengths to compute.

    Returns:
        The rows of each file.

    Raises:
        ConfigError: The format needs no index.

    >>> index_files([Path("web.parquet")])
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: web.parquet: parquet files carry their own index, there is nothing to make but ...
    """
    kind = require_one_format(found, format)
    has_lengths = lengths is not None and (
        not isinstance(lengths, str) or kind in ("parquet", "arrow")
    )
    if (
        kind in _SELF_INDEXED_FORMATS
        and not has_lengths
        and not (checksum and kind in CHECKSUMMED_FORMATS)
    ):
        remedy = " but checksums (--checksum)" if kind in CHECKSUMMED_FORMATS else ""
        raise ConfigError(
            f"{found[0]}: {kind} files carry their own index, there is nothing to make{remedy}"
        )
    shared, ids = (
        SharedCaches(LRUCache(_MAX_MAPPED_FILES), LRUCache(DECODED_CACHE_BYTES)),
        TokenIdOptions(dtype, eos).checked(),
    )
    opener = Opener(
        kind,
        None,
        cache,
        shared,
        custom=True,
        rebuild=rebuild,
        ids=ids,
        checksum=checksum,
        measured=lengths,
    )
    if each is not None:
        in_catalog = len(found) >= catalog.MIN_CATALOG_FILES and opener.catalog_kind().small
        sizes = {path: file_versions.stat_file(path).size for path in found}
        # The largest files first, so that none of them starts last.
        largest = sorted(found, key=sizes.__getitem__, reverse=True)
        own_index = [
            path.absolute()
            for path in largest
            if not (in_catalog and catalog.stores_offsets(path, sizes[path]))
        ]
        each(opener.indexed, own_index)
        opener = opener._replace(rebuild=False, checksum=False, measured=None)
    _, outline = _open_uniform_files(found, opener, rebuild)
    for path in found if opener.measured is not None else ():
        opener.indexed(path)
    return dict(zip(found, map(int, outline.rows), strict=True))


def require_columnar(source: JoinedFiles | SelectedRows) -> bool:
    r"""Return true if a source has columns; raise `ConfigError` otherwise.

    Args:
        source: A source from `open_files`. Its first file decides, as all files have one format.

    Raises:
        ConfigError: The format, such as JSON lines or tar, stores rows; the message lists formats
            with columns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("x\n1\n")
    ...     require_columnar(open_files(f"{folder}/a.csv", cache=folder))
    True
    """
    if not source.columnar:
        raise ConfigError(
            f"read(rows='columns'): {source!r} has no columns: use Parquet, Arrow, CSV or Lance "
            "files"
        )
    return True


def reads_columns(sources: Sequence[object], step: str) -> bool:
    """Return whether functions of many samples get columns: all sources were read as columns.

    Args:
        sources: The sources of the samples, unchanged.
        step: Name of the step in errors.

    Raises:
        ConfigError: The sources have different columns. A batch has columns of one type each,
            whichever samples it holds.
    """
    tabular = (JoinedFiles, SelectedRows, ArrowTable)
    read = [source for source in sources if isinstance(source, tabular)]
    if not read or len(read) < len(sources) or not all(source.as_columns for source in read):
        return False
    first, types = read[0].name, read[0].types
    for source in read[1:]:
        if {*source.types} != {*types}:
            raise ConfigError(
                f"{step} of columns: the source {first!r} has {', '.join(types)}, and "
                f"{source.name!r} has {', '.join(source.types)}; read the same columns from both "
                "(columns=[...]), or leave out rows='columns'"
            )
        for name, kind in source.types.items():
            if not (is_compatible_type(kind, types[name]) or is_compatible_type(types[name], kind)):
                raise ConfigError(
                    f"{step} of columns: {name!r} is {types[name]} in the source {first!r}, and "
                    f"{kind} in {source.name!r}; write both with one type, read columns=[...] "
                    "without it, or leave out rows='columns'"
                )
    return True


def warn_of_full_shuffle(source: object, name: str) -> None:
    """Log once if a full shuffle decodes many times the bytes of each sample of a source.

    Args:
        source: The source.
        name: Its name; empty for the name of its files.
    """
    cost = source.decoding() if isinstance(source, JoinedFiles | SelectedRows) else None
    if not isinstance(source, JoinedFiles | SelectedRows) or cost is None:
        return
    decoded = round((1 - DECODED_CACHE_BYTES / max(cost.total, 1)) * cost.group)
    if decoded > _MAX_DECODED_SAMPLES * cost.group / max(cost.rows, 1):
        _log_full_shuffle(name or source.name, cost, decoded)


@lru_cache(1000)
def _log_full_shuffle(name: str, cost: DecodingCost, decoded: int) -> None:
    window = max(2, min(_MAX_WINDOW, DECODED_CACHE_BYTES // 2 // max(cost.group, 1)))
    logging.getLogger("penstock").warning(
        "%s: a full shuffle decodes about %.1f MiB for each sample, because its row groups have "
        "%d rows and do not fit into memory once decoded; use shuffle(block=(%d, %d)), which "
        "decodes each about once a pass, or shuffle(window=%d), which is less random, or write "
        "smaller row groups or Arrow files",
        name, decoded / 2**20, cost.rows, cost.rows, window, cost.rows * window,
    )  # fmt: skip


def count_catalog_rows(found: Sequence[Path], kind: str, cache: str | Path | None) -> int | None:
    """Return the rows of many files of lines that a catalog lists, or `None` without a catalog.

    This reads the catalog alone, and never the files: it does not detect that a file has changed.

    Args:
        found: The files, in the order in which they were read before; other orders have other
            catalogs.
        kind: Format of the files.
        cache: Cache folder of the catalog; `None` for the default place.

    >>> count_catalog_rows([Path("a.jsonl")] * 40, "jsonl", "no/such/folder") is None
    True
    """
    return catalog.count_rows(
        found,
        Opener(kind, None, cache, SharedCaches(LRUCache(1), LRUCache(1))).catalog_kind(),
        cache,
    )
