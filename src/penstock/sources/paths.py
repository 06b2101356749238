"""From what the user wrote to a sorted list of files: globs, brace ranges, folders, formats."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias, get_args

from ..engine.base import seams
from ..engine.base.hints import chosen
from ..engine.base.seams import Entry
from ..engine.base.urls import before_glob, is_glob, is_url, parted, scheme_of
from ..errors import ConfigError, StorageError
from ..stores import RemotePath, Stores, at, display_path, is_remote, located
from . import folders
from .braces import braces
from .lakes import require_current
from .metadata import is_metadata, log_left_out, log_missing

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
"""What a token id is stored as."""

TOKEN_TYPES: tuple[TokenType, ...] = get_args(TokenType)

FORMATS: dict[str, FormatName] = {
    ".parquet": "parquet",
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
KINDS = tuple(sorted({*FORMATS.values(), "litdata", "zarr"}))
"""The formats of files, also of those without an ending of their own."""

TABLES = ("parquet", "arrow", "csv", "mds", "hdf5", "zarr", "lance", "vortex")
"""Formats whose files name their columns."""

PACKED = (".gz", ".zst", ".zstd")
_PACKABLE = ("jsonl", "csv", "text", "tar", "mds", "tfrecord")
_UNREAD = re.compile(
    rf".*({'|'.join(map(re.escape, FORMATS))})\.(gz|zstd?|bz2|xz|lzma|lz4|br|snappy|sz|z|zip|7z|gzip)"
    r"|.*\.(tgz|tbz2?|txz|tzst)",
    re.IGNORECASE,
).fullmatch
"""Names of packed data that is not read."""
_OF = re.compile(r"-\d{5}-of-\d{5}$")
_CHUNK = re.compile(r"chunk-\d+-\d+\.bin$")  # of LitData


Files: TypeAlias = Callable[[Path], Sequence[Path] | None]
"""The data files of a folder that is one dataset, in their order; nothing for any other folder."""


def find(paths: str | Path | Sequence[str | Path], files: Files = folders.files) -> list[Path]:
    """The files meant by paths, globs (`**` too), brace ranges and folders: sorted, each once.

    A folder means the data files right inside it, or those that `files` tells, where it is one
    dataset. What other tools keep beside data is left out of folders and globs, and said. Errors
    name the pattern that matches nothing, the file that is missing from a brace range, and the file
    that is meant twice.

    >>> find("no/such/*.jsonl")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: 'no/such/*.jsonl' matches no file: there is no folder 'no'
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise ConfigError("no paths were given")
    look = _Look(files)
    try:
        look_at(given)
        matched = sorted(match for one in given for match in _matches(one, look))
    except StorageError:
        raise
    except OSError as error:
        where = display_path(error.filename or given[0])[:200]
        raise StorageError(f"{where} cannot be looked at: {error.strerror or error}") from error
    entries = [(at(entry.path), entry.link) for _, _, entry in matched]
    found = [path for path, _ in entries]
    seen: set[str] = set()
    for path, place in zip(found, places(found), strict=True):
        if place in seen:
            raise _twice(path, given)
        seen.add(place)
    for path, link in entries:
        # Two links to one file are two files, as in the cache of a hub; a link and the file it
        # leads to are one.
        if link and not is_remote(path) and seen.intersection(places(_led_to(path))):
            raise _twice(path, given)
    return found


def _led_to(link: Path) -> Iterator[Path]:
    """Yield what a link leads to, link by link."""
    while link.is_symlink():
        link = link.parent / link.readlink()
        yield link


def _twice(path: Path, given: Iterable[str | Path]) -> ConfigError:
    return ConfigError(
        f"the file {str(path)!r} is meant twice by {_shown([*map(display_path, given)])}: name every file "
        "once"
    )


def places(paths: Iterable[Path]) -> Iterator[str]:
    """Where files lie, by absolute names; of links in the names only those to folders are followed,
    each once."""
    known: dict[str, str] = {}
    for path in paths:
        if is_remote(path):
            yield str(path)
            continue
        folder, slash, name = str(path).rpartition("/")
        if folder not in known:
            known[folder] = str(Path(folder + slash).resolve())
        yield f"{known[folder]}/{name}"


def format_of(path: Path) -> str | None:
    """The format that the extension names, looking through `.gz` and `.zst`; `None` where it names
    none.

    >>> format_of(Path("a/b.jsonl.gz")), format_of(Path("b.parquet.gz"))
    ('jsonl', None)
    >>> format_of(Path("mnist-train.tfrecord-00003-of-00010"))
    'tfrecord'
    """
    if _CHUNK.match(path.name):
        return "litdata"
    if path.name in folders.ZARR:
        return "zarr"
    packed = path.suffix.lower() in PACKED
    found = FORMATS.get(
        _OF.sub("", Path(path.stem).suffix.lower() if packed else path.suffix.lower())
    )
    return None if packed and found not in _PACKABLE else found


def one_format(paths: Sequence[Path], format: str | None) -> str:
    """The one format of all these files, or the one that was asked for."""
    paths = list({_ending(path.name): path for path in reversed(paths)}.values())[::-1]
    if short := next((path for path in paths if path.suffix.lower() == ".tgz"), None):
        raise ConfigError(
            f"{short}: rename it to {short.stem}.tar.gz, which is unpacked into the cache once"
        )
    if format is not None:
        chosen(format, KINDS, "read(format={})")
        for path in paths:
            if path.suffix.lower() in PACKED and format not in _PACKABLE:
                raise ConfigError(
                    f"{path}: {format} files cannot be read through {path.suffix}: unpack it first"
                )
        return format
    first = paths[0]
    for path in paths:
        if format_of(path) is None:
            if (
                path.suffix.lower() in (".br", ".bz2", ".snappy")
                and Path(path.stem).suffix.lower() == ".mds"
            ):
                raise ConfigError(
                    f"{path}: MDS packed as {path.suffix[1:]} is not read: pack it as zstd or gz, "
                    "or not"
                )
            raise ConfigError(
                f"{path}: the extension {''.join(path.suffixes[-2:])!r} names no format; known are "
                f"{', '.join(FORMATS)} (and {', '.join(PACKED)} after lines, CSV and tar); or pass "
                "format="
            )
        if format_of(path) != format_of(first):
            raise ConfigError(
                f"mixed formats: {first} is {format_of(first)}, {path} is {format_of(path)}; "
                "read them as two sources and mix or concatenate those"
            )
    return format_of(first) or ""


def _ending(name: str) -> str:
    """What of a file name tells its format."""
    stem, dot, last = name.rpartition(".")
    return name if not stem or f"{dot}{last.lower()}" in PACKED else last


class _Look:
    """Looks at folders, each once, where it would be long to look at every file."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._inside: dict[Path, dict[str, Entry]] = {}

    def named(self, path: str) -> Entry | None:
        """A file by its name, `None` where there is nothing of that name."""
        asked = Path(path)
        inside = self._inside.get(asked.parent)
        if inside is None:
            self._inside[asked.parent] = inside = {}
        elif not inside:  # the second file of this folder that is asked for
            inside.update((Path(one.path).name, one) for one in _inside(asked.parent))
        found = inside.get(asked.name)
        if found is None or not found.file:
            odd = "" if asked.is_file() or asked.is_dir() else seams.kind_of(path)
            found = Entry(path, asked.is_file(), True, odd) if asked.exists() else None
        return found


def _matches(given: str | Path, look: _Look) -> Iterator[tuple[str, int, Entry]]:
    """What a pattern means: under which name it is sorted, and where it lies in a folder that tells
    the order."""
    if is_remote(given):
        yield from _far(str(given), look)
        return
    try:
        pattern = located(given).as_posix()
    except ConfigError:  # there is nobody of this name: a file may be called so
        pattern = Path(given).as_posix()
    if found := look.named(pattern):  # a name that really holds a brace or a star means itself
        yield from _file_or_folder(found, look.files)
        return
    for one in braces(pattern):
        if not any(letter in one for letter in "*?["):
            if (found := look.named(one)) is None:
                missing = f"the file {one!r} is missing" + (
                    f" from {str(given)!r}" if one != str(given) else ""
                )
                raise ConfigError(f"{missing}: {_around(one)}")
            yield from _file_or_folder(found, look.files)
            continue
        entries = _data_of(_listed(one), one)
        found = [
            match for entry in _sound(entries) for match in _file_or_dataset(entry, look.files)
        ]
        if not found:
            raise ConfigError(f"{one!r} matches no file: {_around(one)}")
        yield from found


def look_at(given: Iterable[str | Path]) -> None:
    """Ask for all objects of stores that are named, at once; what is not there is said when its
    turn comes."""
    far = [one for each in given if is_remote(each) for one in _names(each)]
    store, names = seams.world.store, [one for one in far if not is_glob(one)]
    if names and isinstance(store, Stores):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            store.look(names)


def _names(pattern: str | Path) -> list[str]:
    """What a pattern of URLs names, written out before logins and queries are left out: each has
    its own."""
    return [str(located(one)) for one in braces(str(pattern))]


def _far(pattern: str, look: _Look) -> Iterator[tuple[str, int, Entry]]:
    """The same, of what lies in a store."""
    names = _names(pattern)
    globs = [one for one in names if is_glob(one)]
    plain = [one for one in names if one not in set(globs)]
    if globs and scheme_of(pattern) in ("http", "https"):
        raise ConfigError(
            f"{globs[0]!r}: a web server does not tell what it has: name the files, {{000..099}} "
            "for many"
        )
    for one in plain:
        path = RemotePath(one)
        if path.is_file():
            yield one, 0, Entry(one, True, False)
        elif path.is_dir():
            yield from _file_or_folder(Entry(one, False, False), look.files)
        else:
            raise ConfigError(f"there is no object {one!r}: {_around(one)}")
    for one in globs:
        found = [
            match
            for entry in _data_of(_listed(one), one)
            for match in _file_or_dataset(entry, look.files)
        ]
        if not found:
            raise ConfigError(f"{one!r} matches no object: {_around(one)}")
        yield from found


def _file_or_dataset(entry: Entry, files: Files) -> Iterator[tuple[str, int, Entry]]:
    """A file, or the files of a folder that is one dataset; nothing of any other folder."""
    name = at(entry.path).as_posix()
    if entry.file:
        yield name, 0, entry
    else:
        for number, path in enumerate(files(at(entry.path)) or ()):
            yield name, number, Entry(str(path), True, entry.link)


def _file_or_folder(entry: Entry, files: Files) -> Iterator[tuple[str, int, Entry]]:
    path = at(entry.path)
    if entry.file or entry.odd or not path.is_dir():
        yield from ((path.as_posix(), 0, one) for one in _files([entry]))
        return
    if found := list(_file_or_dataset(entry, files)):
        yield from found
        return
    inside = _inside(path)
    folders = [Path(one.path).name for one in inside if not one.file and not one.odd]
    try:
        data = _data_of([one for one in inside if format_of(at(one.path))], f"{path.as_posix()}/*")
    except ConfigError as error:
        more = f"; for the files of its folders ({_shown(folders)}) write {path.as_posix()}/**/*.parquet, say"
        raise ConfigError(f"{error}{more if folders else ''}") from None
    known = _files(data)
    names = [Path(one.path).name for one in inside if one.file and not format_of(at(one.path))]
    if unread := [name for name in names if _UNREAD(name) and not is_metadata(PurePosixPath(name))]:
        raise ConfigError(
            f"the folder {str(path)!r} holds packed data that is not read ({_shown(unread)}): "
            "unpack it, or pack it as "
            ".gz or .zst; or name the files to read"
        )
    if not known:
        shown = _shown([Path(one.path).name for one in inside])
        raise ConfigError(
            f"the folder {str(path)!r} holds no data files ({shown}); known extensions are "
            f"{', '.join(FORMATS)}; for "
            f"the files of its folders write {path.as_posix()}/**/*.parquet, say"
        )
    yield from ((at(one.path).as_posix(), 0, one) for one in known)


def _data_of(entries: Sequence[Entry], pattern: str) -> list[Entry]:
    """The entries that are not what another tool keeps beside data; the others are named once."""
    above = len(at(before_glob(pattern).rpartition("/")[0]).parts)
    pieces = [PurePosixPath(*at(one.path).parts[above:]) for one in entries]
    arrays = {path.with_suffix("") for path in pieces if path.suffix == ".npy"}
    ends = [
        path.name.endswith(".csv.gz") and path.with_suffix("").with_suffix("") in arrays
        for path in pieces
    ]
    asked = pattern.rpartition("/")[2]
    out = [end or is_metadata(path, asked) for path, end in zip(pieces, ends, strict=True)]
    if out and all(out):
        alone = [
            path.name == "index.json" for path in pieces
        ]  # which no tool wrote that is known here
        if not any(alone):
            names = _shown([str(path) for path in pieces])
            raise ConfigError(
                f"{pattern!r} means no data, only what is kept beside it ({names}): name a file to "
                "read it"
            )
        out = [not one for one in alone]
    data = [one for one, gone in zip(entries, out, strict=True) if not gone]
    named = zip(entries, pieces, out, strict=True)
    log_left_out(pattern, [str(path) for one, path, gone in named if gone and one.file])
    _require_one_of_each(
        pattern, [path for path, gone in zip(pieces, out, strict=True) if not gone]
    )
    _require_one_revision(pattern, [one.path for one in data if one.file])
    log_missing(pattern, [path for path, gone in zip(pieces, out, strict=True) if not gone])
    require_current(
        pattern, [Path(one.path) for one in data if one.file and not is_remote(one.path)], above
    )
    return data


def _require_one_of_each(pattern: str, paths: Sequence[PurePosixPath]) -> None:
    """Raise `ConfigError` for a file beside its packed copy, and for `.json` beside `.jsonl`.

    What `gunzip --keep` leaves would be read twice; a `.json` beside lines of JSON mostly describes
    them.
    """
    plain = [
        path.with_suffix("") if path.suffix.lower() in PACKED else path
        for path in dict.fromkeys(paths)
    ]
    if len(once := set(plain)) < len(plain):
        twice = next(path for path in plain if path not in once or once.remove(path))
        raise ConfigError(
            f"{pattern!r} means {str(twice)!r} and a packed copy of it: remove one, or name the "
            "files"
        )
    lines = next((path for path in plain if path.suffix.lower() in (".jsonl", ".ndjson")), None)
    if lines and (about := [str(path) for path in plain if path.suffix.lower() == ".json"]):
        raise ConfigError(
            f"{pattern!r} means {str(lines)!r} and {_shown(about)}: a .json beside lines of JSON "
            "mostly describes "
            f"them; write *{lines.suffix}, or name every file that is data"
        )


def _require_one_revision(pattern: str, paths: Iterable[str]) -> None:
    """Raise `ConfigError` for files of several revisions of one dataset in the cache of Hugging
    Face's hub."""
    revisions = dict[str, set[str]]()
    for path in paths:
        before, _, after = path.partition("/snapshots/")
        revision, inside, _ = after.partition("/")
        if inside:
            revisions.setdefault(before, set()).add(revision)
    for before, names in revisions.items():
        if len(names) > 1 and Path(before, "blobs").is_dir():
            raise ConfigError(
                f"{pattern!r} means {len(names)} revisions of the dataset in {before!r}: name the "
                "folder of one, "
                f"{_shown(sorted(names))}"
            )


def _files(entries: Iterable[Entry]) -> list[Entry]:
    """The files among what was asked for; folders are left out."""
    return [entry for entry in _sound(entries) if entry.file]


def _sound(entries: Iterable[Entry]) -> list[Entry]:
    """What can be neither a file nor a folder is refused: one file less would be another order of
    all samples."""
    entries = list(entries)
    if odd := next((entry for entry in entries if entry.odd), None):
        raise ConfigError(
            f"{odd.path!r} is {odd.odd}, no file: remove it, or name the files so that it is not "
            "meant"
        )
    return entries


def _inside(folder: Path) -> list[Entry]:
    return _listed("{}/*{}".format(*map(escape, parted(folder.as_posix()))))


def _listed(pattern: str) -> list[Entry]:
    try:
        found = seams.world.store.list(pattern)
        if not is_remote(pattern) and any(
            is_url(one.path) for one in found
        ):  # of a folder that is named like a scheme
            found = [one._replace(path=str(Path.cwd() / one.path)) for one in found]
        return found
    except StorageError:  # of a store, without what is secret in a URL
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or pattern} cannot be listed: {error.strerror or error}"
        ) from error


def _around(pattern: str) -> str:
    """What is there instead, for an error: the last folder of the pattern that has no wildcard, and
    what it holds."""
    folder = at(pattern).parent
    if isinstance(folder, RemotePath):
        return "see whether it is spelled as the store has it"
    while any(letter in folder.as_posix() for letter in "*?["):
        folder = folder.parent
    if not folder.is_dir():
        while not folder.parent.is_dir():
            folder = folder.parent
        return f"there is no folder {folder.as_posix()!r}"
    names = [Path(one.path).name for one in _inside(folder)]
    return f"the folder {folder.as_posix()!r} holds {_shown(names) if names else 'nothing'}"


def _shown(names: Sequence[str | Path]) -> str:
    if not names:
        return "it is empty"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(str(name) for name in names[:5]) + more
