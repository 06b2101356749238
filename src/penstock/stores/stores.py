"""The store of a process: local files and remote objects, each pinned to its first version."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple
from weakref import finalize

from ..engine.base import machine
from ..errors import ConfigError
from . import listings
from .blocks import BlockCache
from .client import ObjectInfo
from .prefetch import ByteRange, Prefetcher
from .remote import is_remote
from .retries import RetryingClients
from .storage import FolderEntry, Stat, Store
from .urls import get_glob_prefix, get_scheme, split_digest, strip_digest

_MAX_FOLDER_CHECKS = 8  # with more matching folders, one recursive listing is cheaper


class KnownObject(NamedTuple):
    """State of a name: its request URL, pinned version and cache folder.

    The request URL may hold a secret and never leaves memory.
    """

    full: str
    found: ObjectInfo | None = None
    cache: str | None = None


class CompositeStore:
    """Store for local paths and for URLs of remote objects.

    Args:
        local: the store of local files.
    """

    def __init__(self, local: Store) -> None:
        self._local = local
        self._known: dict[str, KnownObject] = {}
        # Host with the digest of a login -> host with user and password.
        self._logins: dict[str, str] = {}
        self._clients = RetryingClients(self._secret_url)
        self._prefetcher = Prefetcher(self._fetch)
        self._blocks: dict[str, BlockCache] = {}
        self._listings: dict[str, list[ObjectInfo]] = {}
        self._seen_objects: dict[str, ObjectInfo | None] = {}
        # Thread -> cache folders of its open `looking` blocks.
        self._looking: dict[int, list[str | None]] = {}
        self._owners, self._lock = 0, machine.make_lock()

    # ------------------------------------------------------------ secrets and versions

    def known(self, name: str) -> KnownObject | None:
        """Return the state of a name, to send to another process.

        Args:
            name: URL of an object or folder, without secrets.
        """
        return self._known.get(name)

    def learn(self, name: str, state: KnownObject) -> None:
        """Accept the state of a name from another process.

        Args:
            name: URL of an object or folder, without secrets.
            state: the result of `known` there. It replaces the pinned version of this process, so
                that both processes read the same bytes.
        """
        self._known[name] = state

    def learn_url(self, name: str, full: str) -> None:
        """Store the request URL, with its secrets, of a name.

        Args:
            name: the URL without secrets, with a digest in their place.
            full: the URL to request. Except for HTTP, its login also serves other names of this
                host that have the same digest.
        """
        self._known[name] = self._known_or_new(name)._replace(full=full)
        url, login = split_digest(name)
        # For these schemes the digest covers the login alone.
        if login and get_scheme(name).rpartition("::")[2] not in ("http", "https"):
            self._logins[_get_url_host(url) + login] = _get_url_host(full)

    def _known_or_new(self, name: str) -> KnownObject:
        if (state := self._known.get(name)) is not None:
            return state
        url, login = split_digest(name)
        full = self._logins.get(_get_url_host(url) + login)
        return KnownObject(name if full is None else full + url[len(_get_url_host(url)) :])

    def _secret_url(self, name: str) -> str:
        full = self._known_or_new(name).full
        if full == name != strip_digest(name):
            raise ConfigError(
                f"{name}: this process does not know the login or query of this URL: pass the "
                "full URL"
            )
        return full

    def _pin(self, info: ObjectInfo) -> ObjectInfo:
        state = self._known_or_new(info.url)
        if state.found is not None and not (info.versioned and state.found.stat() == info.stat()):
            self._prefetcher.forget(info.url)
        caches = self._looking.get(machine.get_thread_id(), [state.cache])
        self._known[info.url] = state._replace(found=info, cache=caches[-1])
        return info

    def _pinned(self, name: str) -> ObjectInfo:
        info = self._known_or_new(name).found
        return (
            self.look([name])[0]
            if info is None or (self._looking and name not in self._seen_objects)
            else info
        )

    def used_by(self, owner: object) -> None:
        """Keep threads and connections open as long as this object, or another owner, lives.

        Args:
            owner: any object with weak references, such as a source. The store holds no reference
                to it, and closes when the last owner is collected.
        """
        with self._lock:
            self._owners += 1
        finalize(owner, self._release)

    def _release(self) -> None:
        with self._lock:
            self._owners -= 1
            last = not self._owners
        if last:
            self.close(0)  # a finalizer must not wait for a store

    def close(self, seconds: float | None = None) -> None:
        """Close threads and connections; later requests open new ones.

        Args:
            seconds: the longest time to wait for the threads; `None` for no limit.
        """
        self._prefetcher.close(seconds)
        self._clients.close()

    # ------------------------------------------------------------ listings

    @contextlib.contextmanager
    def looking(self, cache: str | None) -> Generator[None]:
        """List every folder once within this block, and cache the objects found in it.

        Args:
            cache: the folder for cached blocks; `None` to cache nothing.

        Yields:
            Nothing. Listings are shared by all threads that are in such a block, and are dropped
            when the last one ends; `cache` applies to this thread.
        """
        thread = machine.get_thread_id()
        with self._lock:
            self._looking[thread] = [*self._looking.get(thread, []), cache]
        try:
            yield
        finally:
            with self._lock:
                self._looking[thread].pop()
                if not self._looking[thread]:
                    del self._looking[thread]
                if not self._looking:
                    self._listings.clear()
                self._seen_objects.clear()

    def look(self, names: Sequence[str]) -> list[ObjectInfo]:
        """Return the current versions of objects, and pin runs to them.

        One process of a node sends the requests.

        Args:
            names: URLs without secrets; up to 64 requests run at once.

        Returns:
            Size and version of each object, in the order of `names`.

        Raises:
            FileNotFoundError: if one of the objects does not exist.
        """
        seen = {name: self._seen_object(name) for name in names}
        if unknown := [name for name, current in seen.items() if current is None]:
            objects = listings.share_listing(
                unknown, lambda: [*filter(None, self._prefetcher.each(self._stat_or_none, unknown))]
            )
            seen |= {info.url: info for info in objects}
            if self._looking:
                self._seen_objects |= {name: seen[name] for name in unknown}
        return [self._pin(seen[name] or self._raise_missing(name)) for name in names]

    def refresh(self, name: str) -> None:
        """Pin an object to its current version; within `looking`, to the one seen there.

        Args:
            name: URL without secrets.

        Raises:
            FileNotFoundError: if the object does not exist.
        """
        if self._looking:
            self.look([name])
        else:
            self._pin(self._stat_or_none(name) or self._raise_missing(name))

    def _stat_or_none(self, name: str) -> ObjectInfo | None:
        try:
            return self._clients.stat(name)
        except FileNotFoundError:
            return None

    def _seen_object(self, name: str) -> ObjectInfo | None:
        """Return an object seen since `looking` began, or `None`; raise if it cannot exist."""
        if name in self._seen_objects:
            return self._seen_objects[name] or self._raise_missing(name)
        folder, known_listings = (
            name.rpartition("/")[0],
            dict(self._listings),
        )  # a copy: other threads add to it
        if self._is_in_object(name):
            self._raise_missing(name)
        for prefix, objects in known_listings.items():
            if name.startswith(prefix) or prefix == f"{folder}/*":
                info = next(
                    (entry for entry in objects if entry.url == name), None
                ) or self._raise_missing(name)
                return info if info.size else None  # an empty object may represent a folder
        return None

    def _is_in_object(self, name: str) -> bool:
        """Return whether a parent of this name is an object, so that it is no folder."""
        url, login = split_digest(name)
        folder = url.rpartition("/")[0]
        return any(
            self._seen_objects.get(parent + login) is not None
            for parent in (folder, folder.rpartition("/")[0])
        )

    def _raise_missing(self, name: str) -> ObjectInfo:
        self._known[name] = self._known_or_new(name)._replace(found=None)
        raise FileNotFoundError(errno.ENOENT, "there is no such object", name)

    def listed(self, prefix: str, flat: bool = False, mark: str = "") -> list[ObjectInfo]:
        """Return the objects below a folder.

        Args:
            prefix: the folder, with a slash at its end.
            flat: list only what is directly in it; folders end with a slash.
            mark: the digest of the login, which the returned URLs omit.
        """
        login_prefix = mark + prefix
        key = f"{login_prefix}*" if flat else login_prefix  # no name begins like this
        if key in self._listings:
            return self._listings[key]
        for listed_prefix, listing in dict(self._listings).items():
            if login_prefix.startswith(listed_prefix):
                return [info for info in listing if info.url.startswith(prefix)]
        objects = listings.share_listing(
            [login_prefix, "/" if flat else "*"], lambda: self._clients.list(prefix, flat, mark)
        )
        if self._looking and prefix.endswith("/"):
            self._listings[key] = objects
        return objects

    def holds(self, folder: str) -> bool:
        """Return whether a folder holds any object, at any depth.

        Args:
            folder: URL of the folder, without secrets and without a slash at its end.
        """
        url, login = split_digest(folder)
        if self._is_in_object(f"{url}/{login}"):
            return False
        if any(f"{login}{url}".startswith(listed_prefix) for listed_prefix in dict(self._listings)):
            return bool(self.listed(f"{url}/", mark=login))
        return self._clients.some(f"{url}/", login)

    def list(self, pattern: str, /) -> list[FolderEntry]:
        """Return the sorted matches of a path or URL glob, and pin the objects among them."""
        if not is_remote(pattern):
            return self._local.list(pattern)
        pattern, login = split_digest(pattern)
        base = get_glob_prefix(pattern).rpartition("/")[0] + "/"
        regex, entries, files = (
            _compile_glob(pattern),
            dict[str, FolderEntry](),
            dict[str, ObjectInfo](),
        )
        for info in self._candidates(base, pattern, regex, login):
            name = info.url.rstrip("/")
            if regex.fullmatch(name) and info.url == name:
                files[name] = info
            folder = name if info.url.endswith("/") else name.rpartition("/")[0]
            while len(folder) >= len(base):
                if folder not in entries and regex.fullmatch(folder):
                    entries[folder] = FolderEntry(folder + login, False, False)
                folder = folder.rpartition("/")[0]
        for name, info in files.items():
            path = name + login
            # An empty object may represent a folder.
            if info.size or (name not in entries and self._stat_or_none(path)):
                pinned = self._pin(info._replace(url=path))
                if self._looking:
                    self._seen_objects[path] = pinned
                entries[name] = FolderEntry(path, True, False)
        return sorted(entries.values())

    def _candidates(
        self, base: str, pattern: str, regex: re.Pattern[str], login: str
    ) -> list[ObjectInfo]:
        """Return objects that may match a pattern.

        Lists one folder if that is enough. Otherwise, and for many matching folders or empty folder
        names, lists everything below.
        """
        if (
            "/" not in pattern[len(base) :]
            and "**" not in pattern
            and "//" not in base.split("://", 1)[1]
        ):
            objects = self.listed(base, True, login)
            if (
                sum(
                    info.url.endswith("/") and bool(regex.fullmatch(info.url.rstrip("/")))
                    for info in objects
                )
                <= _MAX_FOLDER_CHECKS
            ):
                return objects
        return self.listed(base, mark=login)

    def stat(self, path: str, /) -> Stat:
        """Return the version of a file, or the pinned version of an object."""
        return self._pinned(path).stat() if is_remote(path) else self._local.stat(path)

    # ------------------------------------------------------------ bytes

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        """Return a range of a file or object, clipped at its end; consume prefetched bytes."""
        if not is_remote(path):
            return self._local.read(path, start, length)
        pinned = self._pinned(path)
        stop = pinned.size if length is None else min(start + length, pinned.size)
        return bytes(self._prefetcher.read(ByteRange(path, start, stop))) if start < stop else b""

    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        """Return several (start, length) ranges of a file or object, in their order."""
        return (
            [self.read(path, *span) for span in ranges]
            if is_remote(path)
            else self._local.many(path, ranges)
        )

    def prefetch(self, ranges: Sequence[ByteRange], now: bool = False) -> bool:
        """Prefetch byte ranges.

        Args:
            ranges: the ranges.
            now: evict older requests to make room.

        Returns:
            Whether there was room.
        """
        sizes = {range_.name: self._pinned(range_.name).size for range_ in ranges}
        clipped = [range_._replace(stop=min(range_.stop, sizes[range_.name])) for range_ in ranges]
        return self._prefetcher.begin(
            (range_ for range_ in clipped if range_.start < range_.stop), now
        )

    def _fetch(self, range_: ByteRange) -> bytes | memoryview:
        state, pinned = self._known_or_new(range_.name), self._pinned(range_.name)
        # Without a version, another run could not detect a changed object.
        if state.cache is None or not pinned.versioned:
            return self._clients.read(pinned, range_.start, range_.stop)
        blocks = self._blocks.get(state.cache)
        if blocks is None:
            blocks = self._blocks.setdefault(state.cache, BlockCache(state.cache))
        return blocks.read(
            pinned, range_.start, range_.stop, lambda a, b: self._clients.read(pinned, a, b)
        )


def _get_url_host(url: str) -> str:
    """Return a URL up to its first folder."""
    return "/".join(url.split("/", 3)[:3])


def _compile_glob(pattern: str) -> re.Pattern[str]:
    """Return a URL glob as a regex: `*` and `?` stay within a folder, `**/` spans any number."""
    base = get_glob_prefix(pattern)
    regex, offset = re.escape(base), len(base)
    while offset < len(pattern):
        if pattern.startswith("**/", offset):
            regex, offset = f"{regex}(?:(?:[^/.][^/]*)?/)*", offset + 3
        elif pattern.startswith("**", offset):
            regex, offset = f"{regex}.*", offset + 2
        elif pattern[offset] in "*?":
            hidden = r"(?!\.)" if pattern[offset - 1 : offset] == "/" else ""
            regex, offset = (
                f"{regex}{hidden}[^/]{'*' if pattern[offset] == '*' else ''}",
                offset + 1,
            )
        elif pattern[offset] == "[" and (end := pattern.find("]", offset + 2)) > 0:
            inside = pattern[offset + 1 : end]
            escaped = re.sub(
                r"[\\\[&~|^]|(?<=-)-", r"\\\g<0>", inside[1:] if inside[0] == "!" else inside
            )
            regex, offset = f"{regex}[{'^' if inside[0] == '!' else ''}{escaped}]", end + 1
        else:
            regex, offset = regex + re.escape(pattern[offset]), offset + 1
    try:
        return re.compile(regex)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a valid pattern: {error}") from None
