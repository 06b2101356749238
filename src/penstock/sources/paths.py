"""From what the user wrote to a sorted list of files: globs, brace ranges, folders, formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Literal, TypeAlias

from ..base import seams
from ..base.hints import chosen
from ..base.seams import Entry
from ..errors import ConfigError

FormatName: TypeAlias = Literal["parquet", "arrow", "jsonl", "csv", "text", "tar", "energon"]

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
}
PACKED = (".gz", ".zst")
_PACKABLE = ("jsonl", "csv", "text", "tar")
_MOST_NAMES = 1_000_000
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def find(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files meant by paths, globs (`**` too), brace ranges and folders: sorted, each once.

    A folder means the data files right inside it. Errors name the pattern that matches nothing, the file that is
    missing from a brace range, and the file that is meant twice.

    >>> find("no/such/*.jsonl")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: 'no/such/*.jsonl' matches no file: there is no folder 'no'
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise ConfigError("no paths were given")
    look = _Look()
    entries = [(Path(entry.path), entry.link) for one in given for entry in _matches(one, look)]
    entries.sort(key=lambda entry: entry[0].as_posix())
    found = [path for path, _ in entries]
    seen: set[str] = set()
    for path, real in zip(found, places(path.resolve() if link else path for path, link in entries), strict=True):
        if real in seen:
            raise ConfigError(f"the file {str(path)!r} is meant twice by {_shown(given)}: name every file once")
        seen.add(real)
    return found


def places(paths: Iterable[Path]) -> Iterator[str]:
    """Where files lie, by absolute names; of links in the names only those to folders are followed, each once."""
    known: dict[str, str] = {}
    for path in paths:
        folder, slash, name = str(path).rpartition("/")
        if folder not in known:
            known[folder] = str(Path(folder + slash).resolve())
        yield f"{known[folder]}/{name}"


def braces(pattern: str) -> Iterator[str]:
    """Write out `{a,b}` and `{000..099}`, as a shell does; a brace with neither stays as it is.

    >>> list(braces("part-{08..10}.{csv,txt}"))[:3]
    ['part-08.csv', 'part-08.txt', 'part-09.csv']
    """
    for open_ in (at for at, letter in enumerate(pattern) if letter == "{"):
        close = _closing(pattern, open_)
        choices = _choices(pattern[open_ + 1 : close]) if close else None
        if choices is not None:
            tails = list(braces(pattern[close + 1 :]))
            for choice in choices:
                yield from (pattern[:open_] + middle + tail for middle in braces(choice) for tail in tails)
            return
    yield pattern


def format_of(path: Path) -> str | None:
    """The format that the extension names, looking through `.gz` and `.zst`; `None` where it names none.

    >>> format_of(Path("a/b.jsonl.gz")), format_of(Path("b.parquet.gz"))
    ('jsonl', None)
    """
    packed = path.suffix.lower() in PACKED
    found = FORMATS.get(Path(path.stem).suffix.lower() if packed else path.suffix.lower())
    return None if packed and found not in _PACKABLE else found


def one_format(paths: Sequence[Path], format: str | None) -> str:
    """The one format of all these files, or the one that was asked for."""
    paths = list({_ending(path.name): path for path in reversed(paths)}.values())[::-1]
    if short := next((path for path in paths if path.suffix.lower() == ".tgz"), None):
        raise ConfigError(f"{short}: rename it to {short.stem}.tar.gz, which is unpacked into the cache once")
    if format is not None:
        chosen(format, tuple(sorted({*FORMATS.values()})), "read(format={})")
        for path in paths:
            if path.suffix.lower() in PACKED and format not in _PACKABLE:
                raise ConfigError(f"{path}: {format} files cannot be read through {path.suffix}: unpack it first")
        return format
    first = paths[0]
    for path in paths:
        if format_of(path) is None:
            raise ConfigError(
                f"{path}: the extension {''.join(path.suffixes[-2:])!r} names no format; known are "
                f"{', '.join(FORMATS)} (and {', '.join(PACKED)} after lines, CSV and tar); or pass format="
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


def name_of(paths: Sequence[Path]) -> str:
    """A name for the source: the stem of its only file, or the folder of the first of many.

    >>> name_of([Path("data/code.jsonl.gz")]), name_of([Path("data/code/0.txt"), Path("data/code/1.txt")])
    ('code', 'code')
    """
    first = paths[0]
    if len(paths) > 1:
        return _text(first.absolute().parent.name) or "data"
    return _text(Path(first.stem).stem if first.suffix.lower() in PACKED else first.stem)


def _text(name: str) -> str:
    """A file name as text that can be written: names of files may hold any bytes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class _Look:
    """Looks at folders, each once, where it would be long to look at every file."""

    def __init__(self) -> None:
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
            found = Entry(path, asked.is_file(), True) if asked.exists() else None
        return found


def _matches(given: str | Path, look: _Look) -> Iterator[Entry]:
    if "://" in str(given):
        scheme = str(given).split("://", 1)[0]
        raise ConfigError(
            f"{scheme}:// paths cannot be read yet, object stores will come as an extra of their own: "
            "copy the files to a local folder and give that"
        )
    try:
        pattern = Path(given).expanduser().as_posix()
    except RuntimeError:  # there is nobody of this name: a file may be called so
        pattern = Path(given).as_posix()
    if found := look.named(pattern):  # a name that really holds a brace or a star means itself
        yield from _file_or_folder(found)
        return
    for one in braces(pattern):
        if not any(letter in one for letter in "*?["):
            if (found := look.named(one)) is None:
                missing = f"the file {one!r} is missing" + (f" from {str(given)!r}" if one != str(given) else "")
                raise ConfigError(f"{missing}: {_around(one)}")
            yield from _file_or_folder(found)
            continue
        files = [entry for entry in seams.world.store.list(one) if entry.file]
        if not files:
            raise ConfigError(f"{one!r} matches no file: {_around(one)}")
        yield from files


def _file_or_folder(entry: Entry) -> Iterator[Entry]:
    path = Path(entry.path)
    if entry.file or not path.is_dir():
        yield entry
        return
    inside = _inside(path)
    files = [one for one in inside if one.file and format_of(Path(one.path))]
    if not files:
        shown = _shown([Path(one.path).name for one in inside])
        raise ConfigError(
            f"the folder {str(path)!r} holds no data files ({shown}); known extensions are {', '.join(FORMATS)}; for "
            f"the files of its folders write {path.as_posix()}/**/*.parquet, say"
        )
    yield from files


def _inside(folder: Path) -> list[Entry]:
    return seams.world.store.list(f"{escape(folder.as_posix())}/*")


def _around(pattern: str) -> str:
    """What is there instead, for an error: the last folder of the pattern that has no wildcard, and what it holds."""
    folder = Path(pattern).parent
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


def _closing(pattern: str, open_: int) -> int:
    depth = 0
    for at in range(open_, len(pattern)):
        depth += (pattern[at] == "{") - (pattern[at] == "}")
        if depth == 0:
            return at
    return 0


def _choices(inside: str) -> list[str] | None:
    """The alternatives between two braces, or `None` where this is no brace expression."""
    if found := _RANGE.fullmatch(inside):
        low, high = found.groups()
        first, last = int(low), int(high)
        if abs(last - first) >= _MOST_NAMES:
            raise ConfigError(f"the brace range {{{inside}}} means more than {_MOST_NAMES:,} names")
        width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
        step = 1 if last >= first else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    parts: list[str] = []
    depth = start = 0
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    return [*parts, inside[start:]] if parts else None
