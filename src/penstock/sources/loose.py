"""Files as samples: those of one name are the parts of one sample, as in a tar of WebDataset; or a
list of files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.base import seams
from ..errors import ConfigError, DataError
from ..types import Ints, Json
from . import sidecar
from .identity import Digest
from .metadata import is_metadata, log_left_out

MEDIA = frozenset(
    "avif bmp flac gif jpe jpeg jpg jp2 m4a mkv mov mp3 mp4 ogg opus pdf png tif tiff wav webm "
    "webp".split()
)
"""Endings of files that are no rows themselves, so that a folder of them is one of samples."""


class Loose(NamedTuple):
    """A sample of files: its key, its parts by their endings, and values that a list gave it."""

    key: str
    parts: Mapping[str, Path]
    values: Mapping[str, Any]


class LooseFiles:
    """Samples of files: mappings of `__key__` and the bytes of each part, read when they are asked
    for."""

    def __init__(self, samples: Sequence[Loose], name: str) -> None:
        self.name, self._samples = name, samples

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`."""
        places: list[int] = indices.tolist()
        return [self._sample(self._samples[place]) for place in places]

    def _sample(self, sample: Loose) -> dict[str, Any]:
        out: dict[str, Any] = {"__key__": sample.key}
        for ending, path in sample.parts.items():
            with sidecar.storage(path):
                out[ending] = seams.world.store.read(str(path))
        return {**out, **sample.values}

    def lengths(self) -> Ints | None:
        """Nobody knows them without reading."""
        return None

    def digest(self) -> Digest:
        """The names, sizes and times of the files."""
        hashed = hashlib.blake2b(digest_size=16)
        for sample in self._samples:
            stats = [(ending, *sidecar.stat(path)[:2]) for ending, path in sample.parts.items()]
            hashed.update(repr((sample.key, stats, sorted(sample.values.items()))).encode())
        return {"files": hashed.hexdigest()}

    def describe(self) -> Json:
        """That these are files, and how many samples they make."""
        return {"type": "files", "rows": len(self)}


def _part_of(file: Path) -> tuple[str, str]:
    """What the sample of a file is called in its folder, and which part of it the file is."""
    stem, _, ending = file.name.partition(".")
    return stem, ending.lower() or "bin"


def folder(path: Path) -> LooseFiles:
    """The files of a folder and of those in it; a sample is what has one name up to the first dot
    of its last piece.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as where:
    ...     _ = Path(where, "a.txt").write_text("a cat"), Path(where, "a.cls").write_text("3")
    ...     folder(Path(where)).read(np.array([0]))
    [{'__key__': 'a', 'cls': b'3', 'txt': b'a cat'}]
    """
    found, left_out = dict[str, dict[str, Path]](), list[str]()
    for each in sorted(path.rglob("*"), key=lambda each: each.as_posix()):
        relative = each.relative_to(path)
        if any(piece.startswith(".") for piece in relative.parts) or not each.is_file():
            continue
        if is_metadata(relative):
            left_out.append(str(relative))
            continue
        stem, part = _part_of(relative)
        parts = found.setdefault((relative.parent / stem).as_posix(), {})
        if part in parts:
            raise ConfigError(
                f"{parts[part]} and {each} would both be the part {part!r} of one sample (the case "
                "of an ending does "
                "not count, and without one it is 'bin'): rename one of them, or take it out of "
                "the folder"
            )
        parts[part] = each
    if not found:
        raise ConfigError(f"{path} holds no files")
    log_left_out(str(path), left_out)
    return LooseFiles([Loose(key, parts, {}) for key, parts in found.items()], path.name)


def listed(path: Path) -> LooseFiles:
    """The files that a list names, one a line, as seen from the folder of the list; after a tab a
    text of it.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as where:
    ...     _ = Path(where, "a.jpg").write_bytes(b".."), Path(where, "list.tsv").write_text("a.jpg\\ta cat\\n")
    ...     listed(Path(where, "list.tsv")).read(np.array([0]))
    [{'__key__': 'a', 'jpg': b'..', 'txt': 'a cat'}]
    """
    samples = list[Loose]()
    with sidecar.storage(path):
        text = seams.world.store.read(str(path)).decode("utf-8-sig", "surrogateescape")
    # Names may hold what else `splitlines` takes for the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        name, _, told = line.removesuffix("\r").partition("\t")
        if not (name := name.strip()):
            continue
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"there is no file {name!r}", where=f"{path}, line {number}")
        stem, part = _part_of(file)
        if told and part == "txt":
            raise DataError(
                f"the text {told!r} after the tab and the file {name!r} would both be the part "
                "'txt' of one sample: "
                "leave one of them out, or give the file another ending",
                where=f"{path}, line {number}",
            )
        key = (Path(name).parent / stem).as_posix().lstrip("/").replace("../", "")
        samples.append(Loose(key, {part: file}, {"txt": told} if told else {}))
    if not samples:
        raise ConfigError(f"{path} names no files")
    keys = [sample.key for sample in samples]
    if len(set(keys)) < len(keys):  # a file may stand in a list twice
        samples = [
            each._replace(key=f"{number:09d}/{each.key}") for number, each in enumerate(samples)
        ]
    return LooseFiles(samples, path.stem)


def is_media(path: Path) -> bool:
    """Whether a folder holds files of media.

    >>> is_media(Path("no/such/folder"))
    False
    """
    return path.is_dir() and any(each.suffix.lower()[1:] in MEDIA for each in path.rglob("*"))
