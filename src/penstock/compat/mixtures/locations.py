"""Local locations of the data of a foreign file, and names of its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAPPED = "download it, and give its location with files ({}=PATH)"


@dataclass(frozen=True)
class Hub:
    """A dataset of the Hugging Face hub: its configuration, split and files."""

    name: str
    config: str | None = None
    split: str | None = None
    files: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """The suffix for configuration and split: folders of Parquet files on the hub."""
        if not self.config and self.split in (None, "train"):
            return ""
        return f"@~parquet/{self.config or '*'}/{self.split or 'train'}"

    @property
    def paths(self) -> tuple[str, ...]:
        """The URLs on the hub."""
        if self.files:
            return tuple(f"hf://datasets/{self.name}/{file}" for file in self.files)
        return (f"hf://datasets/{self.name}{self.part}",)

    @property
    def source_name(self) -> str:
        """The name of a source for this dataset."""
        split = self.split if self.split != "train" else None
        return "-".join(filter(None, (self.name.rsplit("/", 1)[-1], self.config, split)))


class Files:
    """Local locations of data, by source name, hub dataset or path prefix (`FROM/`).

    >>> files = Files({"code": "/data/code", "gs://bucket/": "/mnt/bucket", "*": "/data/{name}"})
    >>> files.of("code"), files.of("web"), files.local_path("gs://bucket/a/*.parquet"), files.local_path("a.jsonl")
    ('/data/code', '/data/web', '/mnt/bucket/a/*.parquet', None)
    """

    def __init__(self, rules: Mapping[str, str]) -> None:
        self._rules, self._used = dict(rules), set[str]()

    def of(self, name: str) -> str | None:
        key = name if name in self._rules else "*"
        return (
            None
            if (location := self._use_rule(key)) is None
            else _absolute(location.replace("{name}", name))
        )

    def local_path(self, path: str) -> str | None:
        """Return the local location of a path or URL, by its longest known prefix."""
        prefixes = [
            key
            for key in self._rules
            if key == path or (key.endswith("/") and path.startswith(key))
        ]
        if not prefixes:
            return None
        key = max(prefixes, key=len)
        return _absolute(f"{str(self._use_rule(key)).rstrip('/')}/{path[len(key) :]}".rstrip("/"))

    def unused(self) -> list[str]:
        return sorted(self._rules.keys() - self._used)

    def _use_rule(self, key: str) -> str | None:
        self._used.add(key)
        return self._rules.get(key)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().absolute())


class Names:
    """Unique names for sources, valid in a mixture file.

    >>> names = Names()
    >>> [names.of(name) for name in ("code", "code", "a/b", "+x")]
    ['code', 'code-2', 'a-b', 'x']
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def of(self, name_wanted: str) -> str:
        name = re.sub(r"[/\s]+", "-", name_wanted).lstrip("+-.") or "source"
        number = 1
        while (unique := name if number == 1 else f"{name}-{number}") in self._used:
            number += 1
        self._used.add(unique)
        return unique


def name_of_path(path: str) -> str:
    """Return the last part of a path without extensions, or the folder of a pattern.

    >>> name_of_path("/data/coco"), name_of_path("web/part-*.jsonl.gz"), name_of_path("notes.txt")
    ('coco', 'web', 'notes')
    """
    parts = [part for part in path.rstrip("/").split("/") if part not in ("", ".", "..")]
    for part in reversed(parts):
        if not any(letter in part for letter in "*?[{"):
            return part.split(".")[0] or part
    return "source"
