"""Resolve globs, brace ranges and folders to a sorted list of files and a format."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias, get_args

from ..arguments import check_choice
from ..errors import ConfigError, StorageError, make_storage_error
from ..stores import (
    CompositeStore,
    RemotePath,
    display_path,
    is_remote,
    parse_listed_name,
    parse_location,
    storage,
)
from ..stores.storage import FolderEntry
from ..stores.urls import get_glob_prefix, get_scheme, is_glob, is_url, split_digest
from . import folders
from .braces import expand_braces
from .lakes import require_current
from .metadata import is_metadata, log_left_out, log_missing, log_unread_folders
from .rows import resolve_absolute_paths

FormatName: TypeAlias = Literal[
    "parquet",
    "arrow",
    "jsonl",
    "csv",
    "text",
    "tar",
    "tokens",
    "energon",
    "mds",
    "tfrecord",
    "array_record",
    "litdata",
    "hdf5",
    "zarr",
    "lance",
    "vortex",
]

TokenType: TypeAlias = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"
]
"""Integer type that stores a token id."""

_READ_BY_PANDAS = {
    ".tsv": "read_csv(path, sep='\\t')",
    ".tab": "read_csv(path, sep='\\t')",
    ".xlsx": "read_excel(path)",
    ".xls": "read_excel(path)",
    ".xml": "read_xml(path)",
}
_MEDIA_KINDS = {
    "image": "avif bmp gif jpe jpeg jpg jp2 png tif tiff webp",
    "audio": "aif aiff flac mp3 ogg opus wav",
    "video": "avi m4v mkv mov mp4 webm",
    "pdf": "pdf",
}
_KINDS_BY_EXTENSION = {
    f".{extension}": kind for kind, names in _MEDIA_KINDS.items() for extension in names.split()
}
TOKEN_TYPES: tuple[TokenType, ...] = get_args(TokenType)

FORMATS: dict[str, FormatName] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".tar": "tar",
    ".npy": "tokens",
    ".bin": "tokens",
    ".ds": "tokens",
    ".mds": "mds",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfrec": "tfrecord",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".manifest": "lance",
    ".vortex": "vortex",
}
ALL_FORMATS = tuple(sorted({*FORMATS.values(), "litdata", "zarr"}))
"""File formats, including those without an extension."""

TABLE_FORMATS = ("parquet", "arrow", "csv", "mds", "hdf5", "zarr", "lance", "vortex")
"""Formats whose files store column names."""

PACKED_EXTENSIONS = (".gz", ".zst", ".zstd")
_PACKABLE_FORMATS = ("jsonl", "csv", "text", "tar", "mds", "tfrecord")
_match_unread_archive = re.compile(
    rf".*({'|'.join(map(re.escape, FORMATS))})\.(gz|zstd?|bz2|xz|lzma|lz4|br|snappy|sz|z|zip|7z|gzip)"
    r"|.*\.(tgz|tbz2?|txz|tzst)",
    re.IGNORECASE,
).fullmatch
"""Matches names of compressed data that Penstock does not read."""
_PART_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
_CHECKED_FOLDERS = 16  # folders within a folder that are listed for a warning
_LITDATA_CHUNK = re.compile(r"chunk-\d+-\d+\.bin$")  # of LitData


FindDatasetFiles: TypeAlias = Callable[[Path], Sequence[Path] | None]
"""Returns the ordered data files of a folder that is one dataset; `None` for any other folder."""


def find(
    paths: str | Path | Sequence[str | Path], files: FindDatasetFiles = folders.find_dataset_files
) -> list[Path]:
    """Return the files of paths, globs (`**` too), brace ranges and folders: sorted and unique.

    A folder stands for the data files directly inside it, or for those that `files` returns if it is
    one dataset. Folders and globs skip the files that other tools keep beside data, and log them.

    Args:
        paths: Paths and patterns.
        files: Returns the data files of a folder that is one dataset.

    Raises:
        ConfigError: A pattern matches no file, a file of a brace range is missing, or two paths name
            the same file.
        StorageError: A path cannot be read.

    >>> find("no/such/*.jsonl")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: 'no/such/*.jsonl' matches no file: there is no folder 'no'
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise ConfigError("no paths were given")
    scanner = _Scanner(files)
    try:
        prefetch_stats(given)
        matched = sorted(match for pattern in given for match in _iterate_matches(pattern, scanner))
    except StorageError:
        raise
    except OSError as error:
        shown = display_path(error.filename or given[0])[:200]
        raise StorageError(f"{shown} cannot be read: {error.strerror or error}") from error
    entries = [(parse_listed_name(entry.path), entry.link) for _, _, entry in matched]
    files_found = [path for path, _ in entries]
    known_places: set[str] = set()
    for path, absolute in zip(files_found, resolve_absolute_paths(files_found), strict=True):
        if absolute in known_places:
            raise _duplicate_error(path, given)
        known_places.add(absolute)
    for path, link in entries:
        # Two links to one file count as two files, as in the cache of the Hugging Face hub. A link
        # and its target are one file.
        if (
            link
            and not is_remote(path)
            and known_places.intersection(resolve_absolute_paths(_follow_links(path)))
        ):
            raise _duplicate_error(path, given)
    return files_found


def _follow_links(link: Path) -> Iterator[Path]:
    """Yield the targets of a link, link by link."""
    while link.is_symlink():
        link = link.parent / link.readlink()
        yield link


def _duplicate_error(path: Path, given: Iterable[str | Path]) -> ConfigError:
    return ConfigError(
        f"the file {str(path)!r} is named twice by {_join_names([*map(display_path, given)])}: name every file "
        "once"
    )


def detect_format(path: Path) -> str | None:
    """Return the format of a file extension, looking through `.gz` and `.zst`, or `None`.

    >>> detect_format(Path("a/b.jsonl.gz")), detect_format(Path("b.parquet.gz"))
    ('jsonl', None)
    >>> detect_format(Path("mnist-train.tfrecord-00003-of-00010"))
    'tfrecord'
    """
    if _LITDATA_CHUNK.match(path.name):
        return "litdata"
    if path.name in folders.ZARR_METADATA_NAMES:
        return "zarr"
    is_packed = path.suffix.lower() in PACKED_EXTENSIONS
    format = FORMATS.get(
        _PART_SUFFIX.sub("", Path(path.stem).suffix.lower() if is_packed else path.suffix.lower())
    )
    return None if is_packed and format not in _PACKABLE_FORMATS else format


def require_one_format(paths: Sequence[Path], format: str | None) -> str:
    """Return the common format of files, or the explicit one.

    Args:
        paths: The files.
        format: Explicit format.

    Raises:
        ConfigError: The format is unknown, or the files have different formats.
    """
    paths = list({_get_format_ending(path.name): path for path in reversed(paths)}.values())[::-1]
    if tgz := next((path for path in paths if path.suffix.lower() == ".tgz"), None):
        raise ConfigError(
            f"{tgz}: rename it to {tgz.stem}.tar.gz, which is unpacked into the cache once"
        )
    if format is not None:
        check_choice(format, ALL_FORMATS, "read(format={})")
        for path in paths:
            if path.suffix.lower() in PACKED_EXTENSIONS and format not in _PACKABLE_FORMATS:
                raise ConfigError(
                    f"{path}: {format} files cannot be read through {path.suffix}: unpack it first"
                )
        return format
    first = paths[0]
    for path in paths:
        if detect_format(path) is None:
            if (
                path.suffix.lower() in (".br", ".bz2", ".snappy")
                and Path(path.stem).suffix.lower() == ".mds"
            ):
                raise ConfigError(
                    f"{path}: Penstock does not read MDS compressed as {path.suffix[1:]}: compress "
                    "it as zstd or gz, or not at all"
                )
            if (reader := _READ_BY_PANDAS.get(path.suffix.lower())) is not None:
                raise ConfigError(
                    f"{path}: Penstock does not read {path.suffix} files: write ps.read(pandas.{reader})"
                )
            if remedy := _suggest_for_files([path]):
                raise ConfigError(f"{path}: read() opens no {path.suffix} files: {remedy}")
            raise ConfigError(
                f"{path}: the extension {''.join(path.suffixes[-2:])!r} names no format; known are "
                f"{', '.join(FORMATS)} (and {', '.join(PACKED_EXTENSIONS)} after lines, CSV and tar); or pass "
                "format="
            )
        if detect_format(path) != detect_format(first):
            raise ConfigError(
                f"mixed formats: {first} is {detect_format(first)}, {path} is {detect_format(path)}; "
                "read them as two sources and mix or concatenate those"
            )
    return detect_format(first) or ""


def _suggest_for_files(paths: Sequence[Path]) -> str:
    """Return how files that are one sample each become a dataset; empty for other files."""
    extensions = [path.suffix.lower() for path in paths]
    kind = next(
        (_KINDS_BY_EXTENSION[each] for each in extensions if each in _KINDS_BY_EXTENSION), ""
    )
    if kind:
        return (
            "give media by their paths, ps.from_sequence([{'file': path} for path in sorted(paths)])"
            f".map(penstock.media.Lazy({{'file': '{kind}'}})), or make shards: penstock prepare"
        )
    if ".npz" in extensions:
        return (
            "load each as one sample, "
            "ps.from_sequence(sorted(paths)).map(lambda path: dict(numpy.load(path)))"
        )
    return ""


def _get_format_ending(name: str) -> str:
    """Return the part of a file name that determines its format."""
    stem, dot, last = name.rpartition(".")
    return name if not stem or f"{dot}{last.lower()}" in PACKED_EXTENSIONS else last


class _Scanner:
    """Lists each folder at most once, instead of examining every file."""

    def __init__(self, files: FindDatasetFiles) -> None:
        self.files = files
        self._inside: dict[Path, dict[str, FolderEntry]] = {}

    def named(self, path: str) -> FolderEntry | None:
        """Return the entry of a path, or `None` if nothing has that name."""
        requested = Path(path)
        entries = self._inside.get(requested.parent)
        if entries is None:
            self._inside[requested.parent] = entries = {}
        elif not entries:  # the second request for a file of this folder: list it
            entries.update(
                (Path(entry.path).name, entry) for entry in _list_folder(requested.parent)
            )
        match = entries.get(requested.name)
        if match is None or not match.file:
            odd = (
                ""
                if requested.is_file() or requested.is_dir()
                else storage.describe_file_kind(path)
            )
            match = (
                FolderEntry(path, requested.is_file(), True, odd) if requested.exists() else None
            )
        return match


def _iterate_matches(
    pattern_given: str | Path, scanner: _Scanner
) -> Iterator[tuple[str, int, FolderEntry]]:
    """Yield the matches of a pattern: sort key, position in an ordered folder, and entry."""
    if is_remote(pattern_given):
        yield from _iterate_remote_matches(str(pattern_given), scanner)
        return
    try:
        pattern = parse_location(pattern_given).as_posix()
    except ConfigError:  # no such user: a file may have this name
        pattern = Path(pattern_given).as_posix()
    if match_found := scanner.named(
        pattern
    ):  # a name that really holds a brace or a star means itself
        yield from _expand_entry(match_found, scanner.files)
        return
    for name in expand_braces(pattern):
        if not any(letter in name for letter in "*?["):
            if (match_found := scanner.named(name)) is None:
                missing = f"the file {name!r} is missing" + (
                    f" from {str(pattern_given)!r}" if name != str(pattern_given) else ""
                )
                raise ConfigError(f"{missing}: {_describe_nearest_folder(name)}")
            yield from _expand_entry(match_found, scanner.files)
            continue
        entries = _select_data_entries(_list_pattern(name), name)
        match_found = [
            match
            for entry in _require_regular(entries)
            for match in _expand_dataset_folder(entry, scanner.files)
        ]
        if not match_found:
            raise ConfigError(f"{name!r} matches no file: {_describe_nearest_folder(name)}")
        yield from match_found


def prefetch_stats(given: Iterable[str | Path]) -> None:
    """Request the metadata of all named remote objects at once.

    A later lookup reports the missing ones.
    """
    remote = [name for path in given if is_remote(path) for name in _expand_urls(path)]
    store, names = storage.world.store, [name for name in remote if not is_glob(name)]
    if names and isinstance(store, CompositeStore):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            store.look(names)


def _expand_urls(pattern: str | Path) -> list[str]:
    """Expand a pattern of URLs before removing logins and queries, since each URL has its own."""
    return [str(parse_location(name)) for name in expand_braces(str(pattern))]


def _iterate_remote_matches(
    pattern: str, scanner: _Scanner
) -> Iterator[tuple[str, int, FolderEntry]]:
    """Yield the matches of a pattern of remote objects, like `_iterate_matches`."""
    names = _expand_urls(pattern)
    globs = [name for name in names if is_glob(name)]
    exact = [name for name in names if name not in set(globs)]
    if globs and get_scheme(pattern) in ("http", "https"):
        raise ConfigError(
            f"{globs[0]!r}: a web server does not list its files: name them, with {{000..099}} for "
            "many"
        )
    for name in exact:
        path = RemotePath(name)
        if path.is_file():
            yield name, 0, FolderEntry(name, True, False)
        elif path.is_dir():
            yield from _expand_entry(FolderEntry(name, False, False), scanner.files)
        else:
            raise ConfigError(f"there is no object {name!r}: {_describe_nearest_folder(name)}")
    for name in globs:
        matches = [
            match
            for entry in _select_data_entries(_list_pattern(name), name)
            for match in _expand_dataset_folder(entry, scanner.files)
        ]
        if not matches:
            raise ConfigError(f"{name!r} matches no object: {_describe_nearest_folder(name)}")
        yield from matches


def _expand_dataset_folder(
    entry: FolderEntry, files: FindDatasetFiles
) -> Iterator[tuple[str, int, FolderEntry]]:
    """Yield a file, or the files of a folder that is one dataset; nothing for any other folder."""
    name = parse_listed_name(entry.path).as_posix()
    if entry.file:
        yield name, 0, entry
    else:
        for number, path in enumerate(files(parse_listed_name(entry.path)) or ()):
            yield name, number, FolderEntry(str(path), True, entry.link)


def _expand_entry(
    entry: FolderEntry, files: FindDatasetFiles
) -> Iterator[tuple[str, int, FolderEntry]]:
    path = parse_listed_name(entry.path)
    if entry.file or entry.special or not path.is_dir():
        yield from ((path.as_posix(), 0, file) for file in _keep_files([entry]))
        return
    if matches := list(_expand_dataset_folder(entry, files)):
        yield from matches
        return
    entries = _list_folder(path)
    subfolders = [Path(file.path).name for file in entries if not file.file and not file.special]
    try:
        data = _select_data_entries(
            [file for file in entries if detect_format(parse_listed_name(file.path))],
            f"{path.as_posix()}/*",
        )
    except ConfigError as error:
        hint = (
            f"; for the files of its folders ({_join_names(subfolders)}) write, for example, "
            f"{_suggest_nested_pattern(path, subfolders)}"
        )
        raise ConfigError(f"{error}{hint if subfolders else ''}") from None
    data_files = _keep_files(data)
    names = [
        Path(file.path).name
        for file in entries
        if file.file and not detect_format(parse_listed_name(file.path))
    ]
    if unread := [
        name
        for name in names
        if _match_unread_archive(name) and not is_metadata(PurePosixPath(name))
    ]:
        raise ConfigError(
            f"the folder {str(path)!r} holds compressed data that Penstock does not read "
            f"({_join_names(unread)}): unpack it, or compress it as .gz or .zst; or name the files to "
            "read"
        )
    if not data_files:
        shown = _join_names([Path(file.path).name for file in entries])
        hint = (
            f"; for the files of its folders write, for example, "
            f"{_suggest_nested_pattern(path, subfolders)}"
        )
        remedy = _suggest_for_files([Path(file.path) for file in entries])
        known = remedy or f"known extensions are {', '.join(FORMATS)}"
        raise ConfigError(
            f"the folder {str(path)!r} holds no data files ({shown}); {known}"
            f"{hint if subfolders else ''}"
        )
    if not is_remote(path):
        unread_folders = [
            name for name in subfolders[:_CHECKED_FOLDERS] if _find_data_extension(path / name)
        ]
        log_unread_folders(path.as_posix(), unread_folders, Path(data_files[0].path).suffix)
    yield from ((parse_listed_name(file.path).as_posix(), 0, file) for file in data_files)


def _find_data_extension(folder: Path) -> str | None:
    """Return the extension of the first file of a folder that a pattern would read, if any."""
    with contextlib.suppress(StorageError):
        for entry in _list_folder(folder):
            name = Path(entry.path).name
            if (
                entry.file
                and detect_format(parse_listed_name(entry.path))
                and not is_metadata(PurePosixPath(folder.name, name))
            ):
                return Path(name).suffix
    return None


def _suggest_nested_pattern(path: Path, subfolders: Sequence[str]) -> str:
    """Return a pattern for the files in the folders of a folder, with the extension they have."""
    extensions = (
        ()  # an error should not wait for more lists of a store
        if is_remote(path)
        else (_find_data_extension(path / name) for name in subfolders[:_CHECKED_FOLDERS])
    )
    extension = next(filter(None, extensions), ".parquet")
    return f"{path.as_posix()}/**/*{extension}"


def _select_data_entries(entries: Sequence[FolderEntry], pattern: str) -> list[FolderEntry]:
    """Return the entries that are data; log once the files that other tools keep beside data."""
    depth = len(parse_listed_name(get_glob_prefix(pattern).rpartition("/")[0]).parts)
    relative = [PurePosixPath(*parse_listed_name(entry.path).parts[depth:]) for entry in entries]
    arrays = {path.with_suffix("") for path in relative if path.suffix == ".npy"}
    is_document_index = [
        path.name.endswith(".csv.gz") and path.with_suffix("").with_suffix("") in arrays
        for path in relative
    ]
    file_name = pattern.rpartition("/")[2]
    excluded = [
        is_index or is_metadata(path, file_name)
        for path, is_index in zip(relative, is_document_index, strict=True)
    ]
    if excluded and all(excluded):
        # An `index.json` that no known tool wrote counts as data.
        is_unknown_index = [path.name == "index.json" for path in relative]
        if not any(is_unknown_index):
            names = _join_names([str(path) for path in relative])
            raise ConfigError(
                f"{pattern!r} matches no data, only files that tools keep beside it ({names}): "
                "name a file to read it"
            )
        excluded = [not entry for entry in is_unknown_index]
    data = [entry for entry, is_excluded in zip(entries, excluded, strict=True) if not is_excluded]
    named = zip(entries, relative, excluded, strict=True)
    log_left_out(
        pattern, [str(path) for entry, path, is_excluded in named if is_excluded and entry.file]
    )
    _require_one_of_each(
        pattern,
        [path for path, is_excluded in zip(relative, excluded, strict=True) if not is_excluded],
    )
    _require_one_revision(pattern, [entry.path for entry in data if entry.file])
    log_missing(
        pattern,
        [path for path, is_excluded in zip(relative, excluded, strict=True) if not is_excluded],
    )
    require_current(
        pattern,
        [Path(entry.path) for entry in data if entry.file and not is_remote(entry.path)],
        depth,
    )
    return data


def _require_one_of_each(pattern: str, paths: Sequence[PurePosixPath]) -> None:
    """Raise `ConfigError` for a file beside its packed copy, and for `.json` beside `.jsonl`.

    `gunzip --keep` leaves both copies, which would be read twice. A `.json` file beside JSON Lines
    usually describes them.
    """
    unpacked = [
        path.with_suffix("") if path.suffix.lower() in PACKED_EXTENSIONS else path
        for path in dict.fromkeys(paths)
    ]
    if len(remaining := set(unpacked)) < len(unpacked):
        duplicate = next(
            path for path in unpacked if path not in remaining or remaining.remove(path)
        )
        raise ConfigError(
            f"{pattern!r} matches {str(duplicate)!r} and a compressed copy of it: remove one, or "
            "name the files"
        )
    lines = next((path for path in unpacked if path.suffix.lower() in (".jsonl", ".ndjson")), None)
    if lines and (
        descriptions := [str(path) for path in unpacked if path.suffix.lower() == ".json"]
    ):
        raise ConfigError(
            f"{pattern!r} matches {str(lines)!r} and {_join_names(descriptions)}: a .json file beside "
            f"JSON Lines usually describes them; write *{lines.suffix}, or name every file that is "
            "data"
        )


def _require_one_revision(pattern: str, paths: Iterable[str]) -> None:
    """Raise `ConfigError` for several revisions of one dataset in the Hugging Face hub cache."""
    revisions = dict[str, set[str]]()
    for path in paths:
        before, _, after = path.partition("/snapshots/")
        revision, inside, _ = after.partition("/")
        if inside:
            revisions.setdefault(before, set()).add(revision)
    for before, names in revisions.items():
        if len(names) > 1 and Path(before, "blobs").is_dir():
            raise ConfigError(
                f"{pattern!r} matches {len(names)} revisions of the dataset in {before!r}: name "
                f"the folder of one, {_join_names(sorted(names))}"
            )


def _keep_files(entries: Iterable[FolderEntry]) -> list[FolderEntry]:
    """Return the files of some entries, without the folders."""
    return [entry for entry in _require_regular(entries) if entry.file]


def _require_regular(entries: Iterable[FolderEntry]) -> list[FolderEntry]:
    """Raise for an entry that is neither file nor folder.

    Skipping it would change the order of all samples.
    """
    entries = list(entries)
    if irregular := next((entry for entry in entries if entry.special), None):
        raise ConfigError(
            f"{irregular.path!r} is {irregular.special}, no file: remove it, or name the files so that "
            "they do not include it"
        )
    return entries


def _list_folder(folder: Path) -> list[FolderEntry]:
    return _list_pattern("{}/*{}".format(*map(escape, split_digest(folder.as_posix()))))


def _list_pattern(pattern: str) -> list[FolderEntry]:
    try:
        entries = storage.world.store.list(pattern)
        # A local folder may have a name like a URL scheme.
        if not is_remote(pattern) and any(is_url(entry.path) for entry in entries):
            entries = [entry._replace(path=str(Path.cwd() / entry.path)) for entry in entries]
        return entries
    except StorageError:  # from a store, already without the secrets of a URL
        raise
    except OSError as error:
        raise make_storage_error(error, f"{error.filename or pattern} cannot be listed") from error


def _describe_nearest_folder(pattern: str) -> str:
    """Return, for an error, the contents of the nearest existing folder of a pattern."""
    folder = parse_listed_name(pattern).parent
    if isinstance(folder, RemotePath):
        return "compare its spelling with the store"
    while any(letter in folder.as_posix() for letter in "*?["):
        folder = folder.parent
    if not folder.is_dir():
        while not folder.parent.is_dir():
            folder = folder.parent
        return f"there is no folder {folder.as_posix()!r}"
    names = [Path(entry.path).name for entry in _list_folder(folder)]
    return f"the folder {folder.as_posix()!r} holds {_join_names(names) if names else 'nothing'}"


def _join_names(names: Sequence[str | Path]) -> str:
    if not names:
        return "it is empty"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(str(name) for name in names[:5]) + more
