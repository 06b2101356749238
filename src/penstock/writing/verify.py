"""Whether files can be read, all of them: every sample, every checksum, every digest of a
manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.base.seams import world
from ..engine.runtime.engine import compute
from ..engine.runtime.executors import ExecutorName
from ..errors import PenstockError
from ..sources import open_files
from ..sources.chain import Chain
from ..sources.paths import find
from ..sources.saved_dataset import MANIFEST, is_saved_dataset
from ..types import Source

_ROWS = 1_000  # samples of a job
_CHUNK = 8 << 20
_MOST = 100  # problems that are kept of a file
_NUMBERED = re.compile(r"\b(rows?|samples?|records?|lines?|documents?) [\d,]+")


class Problem(NamedTuple):
    """What is wrong: in which file, with which sample of it (None: with the file), what is said of
    it."""

    file: str
    row: int | None
    message: str


class Damage(NamedTuple):
    """One kind of problem in one file: how many samples have it (0: the file itself), from which to
    which, and what is said of the first.
    """

    file: str
    samples: int
    first: int | None
    last: int | None
    message: str


@dataclass(frozen=True)
class Verified:
    """The result of a check: what was checked, and its problems. `more` counts problems that are
    not listed; `damage` counts all of them, by file and kind.
    """

    files: int
    rows: int
    bytes: int
    digests: int
    problems: list[Problem]
    more: int = 0
    damage: tuple[Damage, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(
    paths: str | Path | Sequence[str | Path],
    format: str | None = None,
    cache: str | Path | None = None,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> Verified:
    """Read every sample of files, which compares their checksums where there are any, and compare
    the digests that `penstock.write` noted.

    Nothing that is wrong stops it: the rest is looked at too. What is made of the files on the way
        (indexes, copies) is
    kept where `penstock.read` finds it.

    Args:
        paths: as `penstock.read` takes them.
        format: what the files are, where their names do not tell.
        cache: the folder for indexes and copies.
        executor: who reads: "inline", "threads", "processes" or "ray".
        workers: how many; one for each core, if nothing is said.

    Raises:
        ConfigError: for paths that are not there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.jsonl").write_text('{"x": 1}\\n{"x": \\n')
    ...     verify(f"{folder}/a.jsonl").problems[0].row
    1
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found, problems = find(given), list[Problem]()
    digests = [
        each
        for path in given
        if is_saved_dataset(path)
        for each in _manifest(Path(path).expanduser())
    ]
    for bad in compute("compare digests", "files", _digest, digests, executor, workers):
        problems += bad
    together, alone = list[Problem](), list[Problem]()
    sources = [_opened(given, format, cache, together)]
    if together and len(found) > 1:  # one by one, to tell which of them it is
        sources = [_opened([path], format, cache, alone) for path in found]
    problems += alone or together
    sources = [source for source in sources if source is not None]
    jobs = [(source, start) for source in sources for start in range(0, len(source), _ROWS)]
    looked = compute("read samples", "thousands", _read, jobs, executor, workers)
    problems += [problem for some in looked for problem in some]
    size = sum(world.store.stat(str(path)).size for path in found)
    kept = _some(problems)
    rows = sum(len(source) for source in sources)
    damage = tuple(_summary(problems))
    return Verified(len(found), rows, size, len(digests), kept, len(problems) - len(kept), damage)


def _some(problems: list[Problem]) -> list[Problem]:
    """Of every file the first ones, once each."""
    by_file: dict[str, list[Problem]] = {}
    for problem in dict.fromkeys(problems):
        by_file.setdefault(problem.file, []).append(problem)
    return [problem for some in by_file.values() for problem in some[:_MOST]]


def _summary(problems: list[Problem]) -> Iterator[Damage]:
    """The problems of each file of one kind together: those that differ in nothing but the number
    of the sample."""
    kinds = dict[tuple[str, str], list[Problem]]()
    for problem in dict.fromkeys(problems):
        kind = _NUMBERED.sub(r"\1", problem.message)
        kinds.setdefault((problem.file, kind), []).append(problem)
    for (file, _), some in kinds.items():
        rows = [problem.row for problem in some if problem.row is not None]
        yield Damage(
            file, len(rows), min(rows, default=None), max(rows, default=None), some[0].message
        )


def _opened(
    paths: Sequence[str | Path],
    format: str | None,
    cache: str | Path | None,
    problems: list[Problem],
) -> Source | None:
    try:
        return open_files(paths, format, cache=cache)
    except PenstockError as error:
        problems.append(
            Problem(
                str(paths[0]) if len(paths) == 1 else ", ".join(map(str, paths)), None, str(error)
            )
        )
        return None


def _manifest(folder: Path) -> list[tuple[Path, str]]:
    """The files of a folder that was written by `penstock.write`, and the digests that were noted
    of them."""
    try:
        found: dict[str, Any] = json.loads(world.disk.read(folder / MANIFEST))
        shards: list[list[dict[str, Any]]] = found.get("shards") or []
        return [
            (folder / Path(str(file["file"])).name, str(file["digest"]))
            for shard in shards
            for file in shard
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # opening the folder says what is wrong with it


def _digest(noted: tuple[Path, str]) -> list[Problem]:
    path, digest = noted
    hashed = hashlib.blake2b(digest_size=16)
    try:
        size = world.store.stat(str(path)).size
        for at in range(0, size, _CHUNK):
            hashed.update(world.store.read(str(path), at, min(_CHUNK, size - at)))
    except OSError as error:
        return [Problem(str(path), None, f"{error.strerror or error}")]
    if hashed.hexdigest() == digest:
        return []
    return [
        Problem(
            str(path),
            None,
            "its bytes are not those that were written: their digest is another one",
        )
    ]


def _read(job: tuple[Source, int]) -> list[Problem]:
    """What is wrong with so many samples of a source."""
    source, start = job
    indices = np.arange(start, min(start + _ROWS, len(source)))
    try:
        source.read(indices)
    except Exception:
        return [
            problem for index in indices.tolist() if (problem := _one(source, index)) is not None
        ]
    return []


def _one(source: Source, index: int) -> Problem | None:
    try:
        source.read(np.asarray([index]))
    except Exception as error:  # whatever it is, this sample cannot be read
        file, row = source.place(index) if isinstance(source, Chain) else ("", index)
        return Problem(str(file), row, str(error) or type(error).__name__)
    return None
