"""Files as samples: the files of one stem form a sample, as in WebDataset.

A list of files is read too: one path per line, optionally a tab and a caption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError, convert_storage_errors
from ..stores import storage
from ..types import Digest, Ints, Json
from . import file_versions
from .metadata import is_metadata, log_left_out

MEDIA_EXTENSIONS = frozenset(
    "avif bmp flac gif jpe jpeg jpg jp2 m4a mkv mov mp3 mp4 ogg opus pdf png tif tiff wav webm "
    "webp".split()
)
"""Extensions of media files: a folder that contains one is read as file samples."""


class FileSample(NamedTuple):
    """One sample of files: its key, its parts by extension, and values from a list."""

    key: str
    parts: Mapping[str, Path]
    values: Mapping[str, Any]


class FileSamples:
    """Samples as mappings of `__key__` and the bytes of each part, read on access."""

    def __init__(self, samples: Sequence[FileSample], name: str) -> None:
        self.name, self._samples = name, samples

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`."""
        numbers: list[int] = indices.tolist()
        return [self._sample(self._samples[number]) for number in numbers]

    def _sample(self, sample: FileSample) -> dict[str, Any]:
        parts: dict[str, Any] = {"__key__": sample.key}
        for extension, path in sample.parts.items():
            with convert_storage_errors(path):
                parts[extension] = storage.world.store.read(str(path))
        return {**parts, **sample.values}

    def lengths(self) -> Ints | None:
        """Return `None`: lengths are unknown without reading the files."""
        return None

    def digest(self) -> Digest:
        """Return a digest of the names, sizes and times of the files."""
        hashed = hashlib.blake2b(digest_size=16)
        for sample in self._samples:
            stats = [
                (extension, *file_versions.stat_file(path)[:2])
                for extension, path in sample.parts.items()
            ]
            hashed.update(repr((sample.key, stats, sorted(sample.values.items()))).encode())
        return {"files": hashed.hexdigest()}

    def describe(self) -> Json:
        """Return the type of the source and its number of samples."""
        return {"type": "files", "rows": len(self)}


def _split_part_name(file: Path) -> tuple[str, str]:
    """Return the stem of a file (its sample) and its extension (the part)."""
    stem, _, extension = file.name.partition(".")
    return stem, extension.lower() or "bin"


def list_folder(path: Path) -> FileSamples:
    """Return the files below a folder as samples, grouped by stem.

    The stem of a file name ends at its first dot.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "a.txt").write_text("a cat"), Path(root, "a.cls").write_text("3")
    ...     list_folder(Path(root)).read(np.array([0]))
    [{'__key__': 'a', 'cls': b'3', 'txt': b'a cat'}]
    """
    samples, left_out = dict[str, dict[str, Path]](), list[str]()
    for file in sorted(path.rglob("*"), key=lambda file: file.as_posix()):
        relative = file.relative_to(path)
        if any(piece.startswith(".") for piece in relative.parts) or not file.is_file():
            continue
        if is_metadata(relative):
            left_out.append(str(relative))
            continue
        stem, part = _split_part_name(relative)
        parts = samples.setdefault((relative.parent / stem).as_posix(), {})
        if part in parts:
            raise ConfigError(
                f"{parts[part]} and {file} would both be the part {part!r} of one sample (the case "
                "of an ending does not count, and without one it is 'bin'): rename one of them, or "
                "take it out of the folder"
            )
        parts[part] = file
    if not samples:
        raise ConfigError(f"{path} holds no files")
    log_left_out(str(path), left_out)
    return FileSamples([FileSample(key, parts, {}) for key, parts in samples.items()], path.name)


def read_list(path: Path) -> FileSamples:
    r"""Return the files of a list, relative to the folder of the list.

    The list has one path per line. Text after a tab becomes the part `txt` of the sample.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Path(root, "a.jpg").write_bytes(b"..")
    ...     _ = Path(root, "list.tsv").write_text("a.jpg\ta cat\n")
    ...     read_list(Path(root, "list.tsv")).read(np.array([0]))
    [{'__key__': 'a', 'jpg': b'..', 'txt': 'a cat'}]
    """
    samples = list[FileSample]()
    with convert_storage_errors(path):
        text = storage.world.store.read(str(path)).decode("utf-8-sig", "surrogateescape")
    # Not `splitlines`, which splits at more characters, and file names may contain those.
    for number, line in enumerate(text.split("\n"), 1):
        name, _, caption = line.removesuffix("\r").partition("\t")
        if not (name := name.strip()):
            continue
        file = path.parent / name
        if not file.is_file():
            raise DataError(f"there is no file {name!r}", where=f"{path}, line {number}")
        stem, part = _split_part_name(file)
        if caption and part == "txt":
            raise DataError(
                f"the text {caption!r} after the tab and the file {name!r} would both be the part "
                "'txt' of one sample: leave one of them out, or give the file another ending",
                where=f"{path}, line {number}",
            )
        key = (Path(name).parent / stem).as_posix().lstrip("/").replace("../", "")
        samples.append(FileSample(key, {part: file}, {"txt": caption} if caption else {}))
    if not samples:
        raise ConfigError(f"{path} names no files")
    keys = [sample.key for sample in samples]
    if len(set(keys)) < len(keys):  # a list may name a file twice
        samples = [
            sample._replace(key=f"{number:09d}/{sample.key}")
            for number, sample in enumerate(samples)
        ]
    return FileSamples(samples, path.stem)


def is_media(path: Path) -> bool:
    """Return whether a folder contains media files.

    >>> is_media(Path("no/such/list_folder"))
    False
    """
    return path.is_dir() and any(
        file.suffix.lower()[1:] in MEDIA_EXTENSIONS for file in path.rglob("*")
    )
