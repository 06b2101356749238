"""Remote objects as `pathlib` paths and as seekable files."""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Self, cast

from ..errors import ConfigError
from . import storage
from .urls import (
    find_url_problem,
    get_scheme,
    is_glob,
    is_url,
    make_public_name,
    require_local,
    restore_slashes,
    split_digest,
    strip_digest,
)

_LocalPath = type(Path())
# A scheme, or a slash before an empty folder name.
_EMPTY_PARTS = re.compile(r"^[A-Za-z][\w+.:-]+:/+|/(?=/+[^/])")
_local_str: Callable[[Any], str] = cast("Any", _LocalPath).__str__


def _mark_empty_parts(part: Any) -> Any:
    """Mark empty folder names and empty HDFS hosts, which `pathlib` would drop."""
    return _EMPTY_PARTS.sub(_insert_empty_marker, part) if isinstance(part, str) else part


def _insert_empty_marker(match: re.Match[str]) -> str:
    return (
        "/\0"
        if match[0] == "/"
        else f"{match[0][:-1]}\0/"
        if match[0].endswith("hdfs:///")
        else match[0]
    )


def _is_pattern(name: str) -> bool:
    """Return whether a name may match several objects."""
    return "{" in name or is_glob(name)


class RemoteFile(io.RawIOBase):
    """A remote object as a seekable binary file; it holds no connection between reads.

    Args:
        name: URL of the object, without secrets, as `str()` of a `RemotePath` gives it.

    >>> RemoteFile("data:,x").readable()
    True
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._path, self._offset = name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def size(self) -> int:
        """Return the size of the object in bytes."""
        return storage.world.store.stat(self._path).size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset}.get(whence)
        self._offset = offset + (self.size() if base is None else base)
        return self._offset

    def read(self, size: int = -1, /) -> bytes:
        data = storage.world.store.read(
            self._path,
            self._offset,
            None if size is None or size < 0 else size,  # pyright: ignore[reportUnnecessaryComparison]
        )
        self._offset += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class RemotePath(_LocalPath):
    """A URL as a path; its text never contains a password or a signature.

    Use `parse_location` for URLs from a user: it stores their secrets, which this class does not.

    Args:
        *parts: a URL without secrets, and names below it. Slashes after the scheme may be single,
            and empty folder names stay, as object stores distinguish them.

    >>> path = RemotePath("s3:/bucket/a/b.jsonl.gz")
    >>> str(path), path.name, str(path.parent), str(path.with_name("c.tar")), str(path.absolute())
    ('s3://bucket/a/b.jsonl.gz', 'b.jsonl.gz', 's3://bucket/a', 's3://bucket/a/c.tar', 's3://bucket/a/b.jsonl.gz')
    >>> str(RemotePath("s3://bucket/a//b").with_name("c")), str(RemotePath("s3://bucket/a/") / "b//c")
    ('s3://bucket/a//c', 's3://bucket/a/b//c')
    >>> str(RemotePath("hdfs:///a/b")), str(RemotePath("hdfs:///a").with_name("c")), str(RemotePath("memory:///a"))
    ('hdfs:///a/b', 'hdfs:///c', 'memory://a')
    """

    __slots__ = ()

    def __new__(cls, *parts: Any) -> Self:
        return super().__new__(cls, *map(_mark_empty_parts, parts))

    if sys.version_info >= (3, 12):

        def __init__(self, *parts: Any) -> None:
            super().__init__(*map(_mark_empty_parts, parts))

    def __truediv__(self, key: Any) -> Self:
        # HTTP has no folders that a login belongs to.
        has_login = split_digest(str(self))[1] and get_scheme(str(self)) not in ("http", "https")
        return (
            type(self)(self._child(key))
            if has_login
            else super().__truediv__(_mark_empty_parts(key))
        )

    def _child(self, path: Any) -> str:
        """Return the name of a child, with the login digest of this folder."""
        url, login = split_digest(str(self))
        return f"{url}/{path}{login}"

    def __str__(self) -> str:
        return restore_slashes(_local_str(self)).replace("\0", "")

    @property
    def name(self) -> str:
        return strip_digest(super().name).replace("\0", "")

    def __fspath__(self) -> str:
        return str(self)

    def as_posix(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        get_state = getattr(storage.world.store, "known", None)
        return _recreate_path, (str(self), None if get_state is None else get_state(str(self)))

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def expanduser(self) -> RemotePath:
        return self

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if _is_pattern(str(self)):
            return False
        try:
            storage.world.store.stat(str(self))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return False
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if _is_pattern(str(self)) or get_scheme(str(self)) in ("http", "https"):
            return False
        holds = getattr(storage.world.store, "holds", None)
        return False if holds is None else holds(str(self))

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if set(mode) - set("rbt"):
            raise OSError(errno.EROFS, "remote objects are read-only", str(self))
        raw = RemoteFile(str(self))
        if "b" in mode and buffering == 0:
            return raw
        file = io.BufferedReader(raw, 1 << 20)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, *rest, **options)

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if get_scheme(str(self)) in ("http", "https"):
            return iter(())
        return (RemotePath(entry.path) for entry in storage.world.store.list(self._child(pattern)))

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # pyright: ignore[reportIncompatibleMethodOverride]
        entries = storage.world.store.list(self._child("**"))
        return (
            path
            for path in (RemotePath(entry.path) for entry in entries)
            if fnmatch(path.name, pattern)
        )


def _recreate_path(name: str, state: Any) -> RemotePath:
    """Recreate a path in another process, with what the sender knew of its URL."""
    learn = getattr(storage.world.store, "learn", None)
    if state is not None and learn is not None:
        learn(name, state)
    return RemotePath(name)


def parse_location(path: str | Path) -> Path:
    """Return a path or URL as a local `Path` or a remote path.

    Args:
        path: a local path, a `file:` URL, or the URL of a remote object.

    Raises:
        ConfigError: for a URL that cannot be read.

    >>> parse_location("memory://a/b.jsonl"), parse_location("file:///a/b"), parse_location("a/b")
    (RemotePath('memory://a/b.jsonl'), PosixPath('/a/b'), PosixPath('a/b'))
    """
    if isinstance(path, RemotePath) or not is_remote(path):
        return path if isinstance(path, RemotePath) else require_local(path)
    text = str(path)
    if reason := find_url_problem(text):
        raise ConfigError(reason)
    name = make_public_name(text)
    if (
        learn := getattr(storage.world.store, "learn_url", None)
    ) is not None and name != restore_slashes(text):
        learn(name, restore_slashes(text))
    return RemotePath(name)


def resolve_beside(file: str | Path, path: str) -> str:
    """Resolve a path written in a file against the location of that file.

    Remote paths resolve like links of a web page. The result stays in the same store, even if
    `path` begins with a slash, and uses the login of the file but not its signature.

    Args:
        file: the path or URL of the file that contains `path`.
        path: an absolute or relative path, or a URL, which is returned unchanged.

    Returns:
        The location as text, for `parse_location`. It may contain the login of the file.

    >>> resolve_beside("s3://bucket/a/b/mix.yaml", "../x.jsonl")
    's3://bucket/a/x.jsonl'
    >>> resolve_beside("s3://bucket/a/b/mix.yaml", "/data/*.jsonl")
    's3://bucket/data/*.jsonl'
    """
    if path.startswith("~") or is_url(path):
        return path
    base = parse_location(file).absolute()
    if not isinstance(base, RemotePath):
        return str(base.parent / path)
    get_state = getattr(storage.world.store, "known", None)
    root, host, *folders = str(base.parent).replace("://", ":/", 1).split("/")
    if get_state is not None and (entry := get_state(str(base))) is not None:
        host = re.split("[/?#]", entry.full.split("://", 1)[1], maxsplit=1)[0]
    parts = list[str]() if path.startswith("/") else folders
    for part in path.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part] if part not in ("", ".") else parts
    return "/".join([f"{root}/", host, *parts])


def parse_listed_name(name: str) -> Path:
    """Return a name from a store listing as a local or remote path.

    Args:
        name: a local path, or a URL whose secrets the store holds already.
    """
    return RemotePath(name) if is_remote(name) else Path(name)


def display_path(path: str | Path) -> str:
    """Return the text of a path without its secrets, for messages, keys and files.

    Args:
        path: a path, or a URL with or without secrets. The store of the process keeps the secrets,
            so the returned text opens the same object in this process.

    Raises:
        ConfigError: for a URL that cannot be read.
    """
    return str(parse_location(path)) if is_remote(path) else str(path)


def is_remote(path: str | Path) -> bool:
    """Return whether a path or URL names a remote object.

    Args:
        path: a path or URL. `file:` URLs and drive letters of Windows are local.

    >>> is_remote("s3://bucket/x"), is_remote("file:///x"), is_remote("c:/x"), is_remote("a/b")
    (True, False, False, False)
    """
    return isinstance(path, RemotePath) or (
        is_url(str(path)) and get_scheme(str(path)) not in ("file", "local")
    )
