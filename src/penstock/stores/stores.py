"""The store of a process: files of this machine, and what URLs name; each object pinned to the
version first seen."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple
from weakref import finalize

from ..engine.base import machine
from ..engine.base.seams import Entry, Stat, Store
from ..engine.base.urls import before_glob, parted, scheme_of, without_digest
from ..errors import ConfigError
from . import listings
from .prefetch import Prefetcher, Range
from .retries import RetryingClients
from .blocks import Blocks
from .client import ObjectInfo
from .remote import is_far

_FEW = 8  # folders of each of which it is asked what it is, rather than to list all that lies below


class Known(NamedTuple):
    """What is known of a name: the URL that is asked (it may hold a secret, and never leaves
    memory), the version that a run is pinned to, and the folder in which its blocks are kept."""

    full: str
    found: ObjectInfo | None = None
    cache: str | None = None


class Stores:
    """Files of this machine through `local`, and objects of stores by their URLs."""

    def __init__(self, local: Store) -> None:
        self._local = local
        self._known: dict[str, Known] = {}
        self._logins: dict[
            str, str
        ] = {}  # hosts with the digest of a user, and with the user and password
        self._asking = RetryingClients(self._full)
        self._ahead = Prefetcher(self._through)
        self._blocks: dict[str, Blocks] = {}
        self._listed: dict[str, list[ObjectInfo]] = {}
        self._seen: dict[str, ObjectInfo | None] = {}
        self._looking: dict[
            int, list[str | None]
        ] = {}  # for every thread that looks, where it keeps what it reads
        self._owners, self._lock = 0, machine.lock()

    # ------------------------------------------------------------ what is known

    def known(self, name: str) -> Known | None:
        """What another process is told of a name."""
        return self._known.get(name)

    def learn(self, name: str, known: Known) -> None:
        """What another process knew of a name."""
        self._known[name] = known

    def learn_url(self, name: str, full: str) -> None:
        """The URL, with its secrets, that is asked for a name."""
        self._known[name] = self._of(name)._replace(full=full)
        bare, mark = parted(name)
        if mark and scheme_of(name).rpartition("::")[2] not in (
            "http",
            "https",
        ):  # a digest of the user alone
            self._logins[_host(bare) + mark] = _host(full)

    def _of(self, name: str) -> Known:
        if (known := self._known.get(name)) is not None:
            return known
        bare, mark = parted(name)
        login = self._logins.get(_host(bare) + mark)
        return Known(name if login is None else login + bare[len(_host(bare)) :])

    def _full(self, name: str) -> str:
        full = self._of(name).full
        if full == name != without_digest(name):
            raise ConfigError(
                f"{name}: the login or the query of this URL is kept nowhere: give it whole"
            )
        return full

    def _pin(self, found: ObjectInfo) -> ObjectInfo:
        known = self._of(found.url)
        if known.found is not None and not (found.versioned and known.found.stat() == found.stat()):
            self._ahead.forget(found.url)
        mine = self._looking.get(machine.thread(), [known.cache])
        self._known[found.url] = known._replace(found=found, cache=mine[-1])
        return found

    def _pinned(self, name: str) -> ObjectInfo:
        found = self._of(name).found
        return (
            self.look([name])[0]
            if found is None or (self._looking and name not in self._seen)
            else found
        )

    def used_by(self, owner: object) -> None:
        """Keep threads and connections as long as this lives, or another that said so."""
        with self._lock:
            self._owners += 1
        finalize(owner, self._given_up)

    def _given_up(self) -> None:
        with self._lock:
            self._owners -= 1
            last = not self._owners
        if last:
            self.close(0)  # whoever's thread this is waits for no store

    def close(self, seconds: float | None = None) -> None:
        """Let go of threads, for which at most so many seconds are waited, and of connections; they
        come again when they are needed.
        """
        self._ahead.close(seconds)
        self._asking.close()

    # ------------------------------------------------------------ what is there

    @contextlib.contextmanager
    def looking(self, cache: str | None) -> Generator[None]:
        """A block in which no folder is listed twice; what is read of all that is found in it is
        kept in a folder."""
        thread = machine.thread()
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
                    self._listed.clear()
                self._seen.clear()

    def look(self, names: Sequence[str]) -> list[ObjectInfo]:
        """These objects as they are now, to which runs are pinned from here on. One process of a
        node asks."""
        seen = {name: self._seen_now(name) for name in names}
        if lacking := [name for name, found in seen.items() if found is None]:
            asked = listings.shared_listing(
                lacking, lambda: [*filter(None, self._ahead.each(self._there, lacking))]
            )
            seen |= {one.url: one for one in asked}
            if self._looking:
                self._seen |= {name: seen[name] for name in lacking}
        return [self._pin(seen[name] or self._missing(name)) for name in names]

    def _there(self, name: str) -> ObjectInfo | None:
        try:
            return self._asking.stat(name)
        except FileNotFoundError:
            return None

    def _seen_now(self, name: str) -> ObjectInfo | None:
        """An object that was seen since we began to look; an error where it was not there, nor can
        be."""
        if name in self._seen:
            return self._seen[name] or self._missing(name)
        above, known = name.rpartition("/")[0], dict(self._listed)  # others may add to it
        if self._in_object(name):
            self._missing(name)
        for prefix, found in known.items():
            if name.startswith(prefix) or prefix == f"{above}/*":
                one = next((one for one in found if one.url == name), None) or self._missing(name)
                return one if one.size else None  # an empty one may be how a folder is written
        return None

    def _in_object(self, name: str) -> bool:
        """Whether an object was seen in the place of one of the two folders above: it is none."""
        bare, mark = parted(name)
        above = bare.rpartition("/")[0]
        return any(
            self._seen.get(one + mark) is not None for one in (above, above.rpartition("/")[0])
        )

    def _missing(self, name: str) -> ObjectInfo:
        self._known[name] = self._of(name)._replace(found=None)
        raise FileNotFoundError(errno.ENOENT, "there is no such object", name)

    def listed(self, prefix: str, flat: bool = False, mark: str = "") -> list[ObjectInfo]:
        """The objects below a folder, which ends with a slash; `flat`: what is right in it, folders
        with a slash. The `mark` is the digest of who asks, which no URL has here."""
        whole = mark + prefix
        key = f"{whole}*" if flat else whole  # begins no name
        if key in self._listed:
            return self._listed[key]
        for known, found in dict(self._listed).items():
            if whole.startswith(known):
                return [one for one in found if one.url.startswith(prefix)]
        found = listings.shared_listing(
            [whole, "/" if flat else "*"], lambda: self._asking.list(prefix, flat, mark)
        )
        if self._looking and prefix.endswith("/"):
            self._listed[key] = found
        return found

    def holds(self, folder: str) -> bool:
        """Whether anything lies in a folder."""
        bare, mark = parted(folder)
        if self._in_object(f"{bare}/{mark}"):
            return False
        if any(f"{mark}{bare}".startswith(known) for known in dict(self._listed)):
            return bool(self.listed(f"{bare}/", mark=mark))
        return self._asking.some(f"{bare}/", mark)

    def list(self, pattern: str, /) -> list[Entry]:
        if not is_far(pattern):
            return self._local.list(pattern)
        pattern, mark = parted(pattern)
        begun = before_glob(pattern).rpartition("/")[0] + "/"
        fits, entries, files = _glob(pattern), dict[str, Entry](), dict[str, ObjectInfo]()
        for one in self._meant(begun, pattern, fits, mark):
            name = one.url.rstrip("/")
            if fits.fullmatch(name) and one.url == name:
                files[name] = one
            above = name if one.url.endswith("/") else name.rpartition("/")[0]
            while len(above) >= len(begun):
                if above not in entries and fits.fullmatch(above):
                    entries[above] = Entry(above + mark, False, False)
                above = above.rpartition("/")[0]
        for name, one in files.items():
            path = name + mark
            if one.size or (
                name not in entries and self._there(path)
            ):  # else it is how a folder is written
                found = self._pin(one._replace(url=path))
                if self._looking:
                    self._seen[path] = found
                entries[name] = Entry(path, True, False)
        return sorted(entries.values())

    def _meant(self, begun: str, pattern: str, fits: re.Pattern[str], mark: str) -> list[ObjectInfo]:
        """What may fit a pattern: of one folder what is right in it, else all that lies below. So
        it is, too, where many folders fit, of each of which would be asked what it is, and where a
        folder has an empty name."""
        if (
            "/" not in pattern[len(begun) :]
            and "**" not in pattern
            and "//" not in begun.split("://", 1)[1]
        ):
            found = self.listed(begun, True, mark)
            if (
                sum(
                    one.url.endswith("/") and bool(fits.fullmatch(one.url.rstrip("/")))
                    for one in found
                )
                <= _FEW
            ):
                return found
        return self.listed(begun, mark=mark)

    def stat(self, path: str, /) -> Stat:
        return self._pinned(path).stat() if is_far(path) else self._local.stat(path)

    # ------------------------------------------------------------ bytes

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        if not is_far(path):
            return self._local.read(path, start, length)
        pinned = self._pinned(path)
        stop = pinned.size if length is None else min(start + length, pinned.size)
        return bytes(self._ahead.read(Range(path, start, stop))) if start < stop else b""

    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        return (
            [self.read(path, *one) for one in ranges]
            if is_far(path)
            else self._local.many(path, ranges)
        )

    def ahead(self, ranges: Sequence[Range], now: bool = False) -> bool:
        """Begin to read what is needed soon, or now; whether there was room for that."""
        whole = {one.name: self._pinned(one.name).size for one in ranges}
        clipped = [one._replace(stop=min(one.stop, whole[one.name])) for one in ranges]
        return self._ahead.begin((one for one in clipped if one.start < one.stop), now)

    def _through(self, wanted: Range) -> bytes | memoryview:
        known, pinned = self._of(wanted.name), self._pinned(wanted.name)
        if (
            known.cache is None or not pinned.versioned
        ):  # nothing would tell another run that the object changed
            return self._asking.read(pinned, wanted.start, wanted.stop)
        blocks = self._blocks.get(known.cache)
        if blocks is None:
            blocks = self._blocks.setdefault(known.cache, Blocks(known.cache))
        return blocks.read(
            pinned, wanted.start, wanted.stop, lambda a, b: self._asking.read(pinned, a, b)
        )


def _host(url: str) -> str:
    """A URL up to its first folder."""
    return "/".join(url.split("/", 3)[:3])


def _glob(pattern: str) -> re.Pattern[str]:
    """A glob over URLs: `*` and `?` stay within a folder, `**/` goes through any number of them."""
    begun = before_glob(pattern)
    out, at = re.escape(begun), len(begun)
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = f"{out}(?:(?:[^/.][^/]*)?/)*", at + 3
        elif pattern.startswith("**", at):
            out, at = f"{out}.*", at + 2
        elif pattern[at] in "*?":
            hidden = r"(?!\.)" if pattern[at - 1 : at] == "/" else ""
            out, at = f"{out}{hidden}[^/]{'*' if pattern[at] == '*' else ''}", at + 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end]
            held = re.sub(
                r"[\\\[&~|^]|(?<=-)-", r"\\\g<0>", inside[1:] if inside[0] == "!" else inside
            )
            out, at = f"{out}[{'^' if inside[0] == '!' else ''}{held}]", end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    try:
        return re.compile(out)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no pattern: {error}") from None
