"""Paths of what lies in a store: as paths of this machine, but that they ask the store where those
ask the disk."""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Self, cast

from ..engine.base import seams
from ..engine.base.urls import (
    is_glob,
    is_url,
    local,
    open_name,
    parted,
    refused,
    scheme_of,
    spelled_out,
    without_digest,
)
from ..errors import ConfigError

_Local = type(Path())
_EMPTY = re.compile(
    r"^[A-Za-z][\w+.:-]+:/+|/(?=/+[^/])"
)  # a scheme, or a slash with an empty name behind it
_spelled: Callable[[Any], str] = cast("Any", _Local).__str__


def _held(part: Any) -> Any:
    """A part of a path in which `pathlib` leaves empty names of folders, and of the host of HDFS,
    where they are."""
    return _EMPTY.sub(_named, part) if isinstance(part, str) else part


def _named(found: re.Match[str]) -> str:
    return (
        "/\0"
        if found[0] == "/"
        else f"{found[0][:-1]}\0/"
        if found[0].endswith("hdfs:///")
        else found[0]
    )


def _many(name: str) -> bool:
    """Whether a name may mean several."""
    return "{" in name or is_glob(name)


class FarFile(io.RawIOBase):
    """Reads from anywhere in an object; nothing is held between reads.

    >>> FarFile("data:,x").readable()
    True
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._path, self._at = name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """The bytes of the object."""
        return seams.world.store.stat(self._path).size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self.size() if base is None else base)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        found = seams.world.store.read(
            self._path,
            self._at,
            None if size is None or size < 0 else size,  # pyright: ignore[reportUnnecessaryComparison]
        )
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class Far(_Local):
    """A URL as a path. What it shows of itself holds no password and no signature.

    >>> path = Far("s3:/bucket/a/b.jsonl.gz")
    >>> str(path), path.name, str(path.parent), str(path.with_name("c.tar")), str(path.absolute())
    ('s3://bucket/a/b.jsonl.gz', 'b.jsonl.gz', 's3://bucket/a', 's3://bucket/a/c.tar', 's3://bucket/a/b.jsonl.gz')
    >>> str(Far("s3://bucket/a//b").with_name("c")), str(Far("s3://bucket/a/") / "b//c")
    ('s3://bucket/a//c', 's3://bucket/a/b//c')
    >>> str(Far("hdfs:///a/b")), str(Far("hdfs:///a").with_name("c")), str(Far("memory:///a"))
    ('hdfs:///a/b', 'hdfs:///c', 'memory://a')
    """

    __slots__ = ()

    def __new__(cls, *parts: Any) -> Self:
        return super().__new__(cls, *map(_held, parts))

    if sys.version_info >= (3, 12):

        def __init__(self, *parts: Any) -> None:
            super().__init__(*map(_held, parts))

    def __truediv__(self, key: Any) -> Self:
        marked = parted(str(self))[1] and scheme_of(str(self)) not in (
            "http",
            "https",
        )  # where there are no folders
        return type(self)(self._below(key)) if marked else super().__truediv__(_held(key))

    def _below(self, path: Any) -> str:
        """What is called so in this folder, asked for by who asks for the folder."""
        bare, mark = parted(str(self))
        return f"{bare}/{path}{mark}"

    def __str__(self) -> str:
        return spelled_out(_spelled(self)).replace("\0", "")

    @property
    def name(self) -> str:
        return without_digest(super().name).replace("\0", "")

    def __fspath__(self) -> str:
        return str(self)

    def as_posix(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        known = getattr(seams.world.store, "known", None)
        return _revived, (str(self), None if known is None else known(str(self)))

    def absolute(self) -> Far:
        return self

    def resolve(self, strict: bool = False) -> Far:
        return self

    def expanduser(self) -> Far:
        return self

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if _many(str(self)):
            return False
        try:
            seams.world.store.stat(str(self))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return False
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if _many(str(self)) or scheme_of(str(self)) in ("http", "https"):
            return False
        holds = getattr(seams.world.store, "holds", None)
        return False if holds is None else holds(str(self))

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        *rest: Any,
        **more: Any,
    ) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if set(mode) - set("rbt"):
            raise OSError(errno.EROFS, "what lies in a store is only read", str(self))
        raw = FarFile(str(self))
        if "b" in mode and buffering == 0:
            return raw
        file = io.BufferedReader(raw, 1 << 20)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, *rest, **more)

    def glob(self, pattern: str, **_: Any) -> Iterator[Far]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if scheme_of(str(self)) in ("http", "https"):
            return iter(())
        return (Far(entry.path) for entry in seams.world.store.list(self._below(pattern)))

    def rglob(self, pattern: str, **_: Any) -> Iterator[Far]:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = seams.world.store.list(self._below("**"))
        return (
            path for path in (Far(entry.path) for entry in found) if fnmatch(path.name, pattern)
        )


def _revived(name: str, known: Any) -> Far:
    """A path in another process, which is told there what is known of it here."""
    learn = getattr(seams.world.store, "learn", None)
    if known is not None and learn is not None:
        learn(name, known)
    return Far(name)


def located(path: str | Path) -> Path:
    """The path that a user means: of this machine, or of a store.

    >>> located("memory://a/b.jsonl"), located("file:///a/b"), located("a/b")
    (Far('memory://a/b.jsonl'), PosixPath('/a/b'), PosixPath('a/b'))
    """
    if isinstance(path, Far) or not is_far(path):
        return path if isinstance(path, Far) else local(path)
    text = str(path)
    if why := refused(text):
        raise ConfigError(why)
    name = open_name(text)
    if (learn := getattr(seams.world.store, "learn_url", None)) is not None and name != spelled_out(
        text
    ):
        learn(name, spelled_out(text))
    return Far(name)


def beside(file: str | Path, path: str) -> str:
    """A path that is written in a file, from where that file is. In a store it is resolved as a
    link of a page is: it stays there, whatever it begins with, and is asked for with the login that
    the file was, but not by its signature.

    >>> beside("s3://bucket/a/b/mix.yaml", "../x.jsonl"), beside("s3://bucket/a/b/mix.yaml", "/data/*.jsonl")
    ('s3://bucket/a/x.jsonl', 's3://bucket/data/*.jsonl')
    """
    if path.startswith("~") or is_url(path):
        return path
    there = located(file).absolute()
    if not isinstance(there, Far):
        return str(there.parent / path)
    known = getattr(seams.world.store, "known", None)
    root, place, *folders = str(there.parent).replace("://", ":/", 1).split("/")
    if known is not None and (found := known(str(there))) is not None:
        place = re.split("[/?#]", found.full.split("://", 1)[1], maxsplit=1)[0]
    parts = list[str]() if path.startswith("/") else folders
    for part in path.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("", ".") else parts
    return "/".join([f"{root}/", place, *parts])


def at(name: str) -> Path:
    """The path of a name that a store, or this machine, gave."""
    return Far(name) if is_far(name) else Path(name)


def told(path: str | Path) -> str:
    """A path as it was given, but for what is secret in it."""
    return str(located(path)) if is_far(path) else str(path)


def is_far(path: str | Path) -> bool:
    """Whether this lies in a store.

    >>> is_far("s3://bucket/x"), is_far("file:///x"), is_far("c:/x"), is_far("a/b")
    (True, False, False, False)
    """
    return isinstance(path, Far) or (
        is_url(str(path)) and scheme_of(str(path)) not in ("file", "local")
    )
