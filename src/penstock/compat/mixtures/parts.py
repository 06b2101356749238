"""Reading a file of another project: what is taken is ticked off, and what is left over is named with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.urls import redacted
from ...errors import ConfigError
from ...mixture_files import Problem
from ...mixture_files.reading import Node, dotted

NO_COUNTERPART = "has no counterpart in a mixture file"
AWAY = "files cannot be read where they lie: copy them, and say where they are with files"
MAPPED = "download it and say where it is with files ({}=PATH)"


@dataclass
class Left:
    """What could not be carried over so far (warnings), what is to be known about the rest (notes), and where data lies
    that the file calls by another name.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    files: Files = field(default_factory=lambda: Files({}))
    ranks: int = 1

    def lost(self, node: Node, at: str, why: str) -> None:
        self.problems.append(Problem(node.file, node.line, at, "warning", redacted(why)))

    def note(self, node: Node, at: str, why: str) -> None:
        self.problems.append(Problem(node.file, node.line, at, "note", redacted(why)))

    def away(self, node: Node, at: str, scheme: str) -> None:
        """Say once that files lie elsewhere."""
        why = f"{scheme}:// {AWAY}"
        if all(one.message != why for one in self.problems):
            self.note(node, at, why)


@dataclass
class Part:
    """One mapping of a foreign file. `get` and its like tick keys off; `rest` names the others."""

    node: Node
    at: str
    left: Left
    taken: set[str] = field(default_factory=set[str])

    @property
    def table(self) -> Mapping[str, Node]:
        return self.node.value if isinstance(self.node.value, dict) else {}

    @property
    def folder(self) -> Path:
        return Path(self.node.file).absolute().parent

    def has(self, key: str) -> bool:
        return key in self.table and self.table[key].value is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The plain value of a key."""
        self.taken.add(key)
        return plain(self.table[key]) if self.has(key) else default

    def number(self, key: str) -> float | None:
        """A number above 0, or 0; another value is left out by name."""
        value = self.get(key)
        if isinstance(value, str):  # some write numbers as text
            try:
                value = float(value)
            except ValueError:
                pass
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0):
            return value
        self.leave(key, f"{value!r} is no number of at least 0")
        return None

    def count(self, key: str) -> int | None:
        """A whole number above 0; another value is left out by name."""
        value = self.number(key)
        if value is None or (value >= 1 and value == int(value)):
            return None if value is None else int(value)
        self.leave(key, f"{value!r} is no whole number above 0")
        return None

    def text(self, key: str) -> str | None:
        """A text; another value is left out by name."""
        value = self.get(key)
        if value is None or isinstance(value, str):
            return value
        self.leave(key, f"{value!r} is no text")
        return None

    def texts(self, key: str) -> list[str]:
        """A text, or a list of them."""
        value = self.get(key)
        return [] if value is None else [str(one) for one in flat([value])]

    def part(self, key: str) -> Part | None:
        """The mapping at a key."""
        self.taken.add(key)
        if key not in self.table or not isinstance(self.table[key].value, dict):
            return None
        return Part(self.table[key], dotted(self.at, key), self.left)

    def parts(self, key: str) -> Iterator[Part]:
        """The mappings in the list at a key; other things in it are left out by name."""
        self.taken.add(key)
        if key in self.table:
            yield from parts_of(self.table[key], dotted(self.at, key), self.left)

    def named(self) -> Iterator[tuple[str, Part]]:
        """Name and mapping, where every value is one."""
        for name, node in self.table.items():
            self.taken.add(name)
            if isinstance(node.value, dict):
                yield name, Part(node, dotted(self.at, name), self.left)
            else:
                self.leave(name, "settings by name were expected here")

    def leave(self, key: str, why: str = NO_COUNTERPART) -> None:
        """Name a key that is lost, if it is there."""
        self.taken.add(key)
        if self.has(key):
            self.left.lost(self.table[key], dotted(self.at, key), why)

    def say(self, key: str, why: str) -> None:
        """Name a key with which nothing is lost, and of which one should know, if it is there."""
        self.taken.add(key)
        if self.has(key):
            self.left.note(self.table[key], dotted(self.at, key), why)

    def skip(self, *keys: str) -> None:
        """Keys that say nothing about which samples come, in what shares and form."""
        self.taken.update(keys)

    def rest(self, only: Iterable[str] | None = None) -> None:
        """Name every key that nobody asked for (among `only`, where the file is about more than data)."""
        for key in self.table if only is None else only:
            if key not in self.taken:
                self.leave(key)

    def path(self, path: str) -> str:
        """A path as it is meant: relative to the file, or remote."""
        return path if "://" in path or path.startswith("~") else str(self.folder / path)

    def local(self, key: str, name: str, paths: Sequence[str]) -> tuple[str, ...]:
        """Paths of the source `name`: where the caller says they lie here, relative to the file, or remote."""
        if (own := self.left.files.of(name)) is not None:
            return (own,)
        found = tuple(self.left.files.moved(path) or self.path(path) for path in paths)
        gone = [path for path in paths if "://" not in path and not path.startswith("/") and self._nothing(path)]
        if gone and not self.left.files.moved(gone[0]):
            self.say(key, f"{gone[0]!r} is taken as beside this file, where there is nothing: say where with files")
        if elsewhere := next((path for path in found if "://" in path), None):
            self.left.away(self.table.get(key, self.node), dotted(self.at, key), elsewhere.split("://")[0])
        return found

    def _nothing(self, path: str) -> bool:
        return not any(letter in path for letter in "*?[{") and not Path(self.path(path)).expanduser().exists()

    def hub(self, key: str, name: str, place: Hub) -> tuple[str, ...]:
        """Where a dataset of the Hugging Face hub lies: as the caller says, or on the hub; never a folder beside it."""
        known = self.left.files.of(name) or self.left.files.of(place.name)
        if known is not None:
            return (known,)
        self.say(key, f"a dataset of the Hugging Face hub: {MAPPED.format(name if place.part else place.name)}")
        return place.paths


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub, and what of it."""

    name: str
    config: str | None = None
    split: str | None = None
    files: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """Its configuration and split, where they are named, as the folders of its Parquet files on the hub."""
        if not self.config and self.split in (None, "train"):
            return ""
        return f"@~parquet/{self.config or '*'}/{self.split or 'train'}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Where it lies on the hub."""
        if self.files:
            return tuple(f"hf://datasets/{self.name}/{file}" for file in self.files)
        return (f"hf://datasets/{self.name}{self.part}",)

    @property
    def short(self) -> str:
        """What a source of it is called."""
        own = self.split if self.split != "train" else None
        return "-".join(filter(None, (self.name.rsplit("/", 1)[-1], self.config, own)))


class Files:
    """Where data lies here: by the name of a source, of a dataset on a hub, or by how a path or URL begins (`FROM/`).

    >>> files = Files({"code": "/data/code", "gs://bucket/": "/mnt/bucket", "*": "/data/{name}"})
    >>> files.of("code"), files.of("web"), files.moved("gs://bucket/a/*.parquet"), files.moved("a.jsonl")
    ('/data/code', '/data/web', '/mnt/bucket/a/*.parquet', None)
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules, self._used = dict(rules), set[str]()

    def of(self, name: str) -> str | None:
        key = name if name in self._rules else "*"
        return None if (to := self._found(key)) is None else _absolute(to.replace("{name}", name))

    def moved(self, path: str) -> str | None:
        """Where a path or URL lies here, by its longest beginning that is known."""
        known = [key for key in self._rules if key == path or (key.endswith("/") and path.startswith(key))]
        if not known:
            return None
        key = max(known, key=len)
        return _absolute(f"{str(self._found(key)).rstrip('/')}/{path[len(key) :]}".rstrip("/"))

    def unused(self) -> list[str]:
        return sorted(self._rules.keys() - self._used)

    def _found(self, key: str) -> str | None:
        self._used.add(key)
        return self._rules.get(key)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


def parts_of(node: Node, at: str, left: Left) -> Iterator[Part]:
    """The mappings in a list."""
    for number, item in enumerate(node.value if isinstance(node.value, tuple) else ()):
        if isinstance(item.value, dict):
            yield Part(item, f"{at}[{number}]", left)
        else:
            left.lost(item, f"{at}[{number}]", "settings by name were expected here")


def plain(node: Node) -> Any:
    """A node as plain values."""
    if isinstance(node.value, dict):
        return {name: plain(child) for name, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, tuple) else node.value


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """Lists in lists, flattened."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield value


class Names:
    """Names for sources: different from each other, and such as a mixture file takes.

    >>> names = Names()
    >>> [names.of(name) for name in ("code", "code", "a/b", "+x")]
    ['code', 'code-2', 'a-b', 'x']
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def of(self, wanted: str) -> str:
        name = re.sub(r"[/\s]+", "-", wanted).lstrip("+-.") or "source"
        number = 1
        while (found := name if number == 1 else f"{name}-{number}") in self._used:
            number += 1
        self._used.add(found)
        return found


def name_of_path(path: str) -> str:
    """The last part of a path without its extensions; the folder where the last part is a pattern.

    >>> name_of_path("/data/coco"), name_of_path("web/part-*.jsonl.gz"), name_of_path("notes.txt")
    ('coco', 'web', 'notes')
    """
    parts = [part for part in path.rstrip("/").split("/") if part not in ("", ".", "..")]
    for part in reversed(parts):
        if not any(letter in part for letter in "*?[{"):
            return part.split(".")[0] or part
    return "source"


def nothing(file: Path, kind: str) -> ConfigError:
    """The error for a file of which nothing remains."""
    return ConfigError(f"{file}: there is no source in this {kind} file that a mixture file could hold")
