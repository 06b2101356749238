"""Tar archives for tests, written by others: Python's tarfile, GNU tar."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.sources import open_files

FORMATS: dict[str, Any] = {
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
    "ustar": tarfile.USTAR_FORMAT,
}

Members = Iterable[tuple[str, bytes | tarfile.TarInfo]]


def write(
    path: Path, members: Members, format: str = "gnu", pax: Mapping[str, str] | None = None
) -> Path:
    """An archive by Python's tarfile; a `TarInfo` is written as it is, for links and folders."""
    with tarfile.open(path, "w", format=FORMATS[format], pax_headers=pax) as archive:
        for name, body in members:
            if isinstance(body, tarfile.TarInfo):
                body.name = name
                archive.addfile(body)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def special(kind: bytes, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname, info.size = kind, target, size
    return info


def gnu_tar(path: Path, files: Mapping[str, bytes], *options: str) -> Path:
    """An archive by the `tar` command, of files in a folder of their own."""
    folder = path.with_name(f"{path.name}.files")
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    command = ["tar", "--create", "--file", str(path), "--directory", str(folder), *options, *files]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    shutil.rmtree(folder)
    return path


def samples(path: Path | str, **options: Any) -> list[Any]:
    """All samples of what is there, read at once."""
    source = open_files(path, **options)
    return source.read(np.arange(len(source)))


def some(count: int) -> list[tuple[str, bytes]]:
    """Members of `count` samples of three parts."""
    rng = np.random.default_rng(count)
    return [
        (f"{number:05d}.{part}", rng.bytes(int(rng.integers(0, most))))
        for number in range(count)
        for part, most in (("jpg", 3000), ("seg.png", 700), ("json", 60))
    ]


def expected(members: Iterable[tuple[str, bytes]], shard: str) -> list[dict[str, Any]]:
    """The samples that these members are, by the rule as it is written down."""
    found: dict[str, dict[str, Any]] = {}
    for name, body in members:
        folder, slash, last = name.rpartition("/")
        stem, _, part = last.partition(".")
        key = folder + slash + stem
        found.setdefault(key, {"__key__": key, "__shard__": shard})[part] = body
    return list(found.values())
