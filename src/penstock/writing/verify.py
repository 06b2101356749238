"""Verify files: read every sample, and compare every checksum and digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.runtime.compute import compute
from ..engine.runtime.executors import ExecutorName
from ..errors import PenstockError
from ..sources import open_files
from ..sources.chain import JoinedFiles
from ..sources.paths import find
from ..sources.saved_dataset import MANIFEST_NAME, is_saved_dataset
from ..stores import storage
from ..types import Source

_JOB_SAMPLES = 1_000
_CHUNK_BYTES = 8 << 20
_MAX_PROBLEMS = 100  # listed per file
_NUMBERED_SAMPLE = re.compile(r"\b(rows?|samples?|records?|lines?|documents?) [\d,]+")


class Problem(NamedTuple):
    """A problem of a file.

    Attributes:
        file: the file.
        row: the sample in it; `None` if the file itself is damaged.
        message: the error.
    """

    file: str
    row: int | None
    message: str


class Damage(NamedTuple):
    """All problems of one kind in one file.

    Attributes:
        file: the file.
        samples: the number of damaged samples; 0 if the file itself is damaged.
        first: the first damaged sample.
        last: the last damaged sample.
        message: the error of the first.
    """

    file: str
    samples: int
    first: int | None
    last: int | None
    message: str


@dataclass(frozen=True)
class Verified:
    """Result of `verify`.

    Attributes:
        files: the number of files.
        rows: the number of samples.
        bytes: the size of all files.
        digests: the number of digests compared.
        problems: the listed problems.
        more: the number of problems that are not listed.
        damage: all problems, grouped by file and kind.
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
        """Return whether there are no problems."""
        return not self.problems


def verify(
    paths: str | Path | Sequence[str | Path],
    format: str | None = None,
    cache: str | Path | None = None,
    executor: ExecutorName = "inline",
    workers: int | None = None,
) -> Verified:
    """Read every sample of files, and compare checksums and the digests of `penstock.write`.

    Problems do not stop it. Indexes and copies made on the way are stored where `penstock.read`
    finds them.

    Args:
        paths: as `penstock.read` takes them.
        format: the format of the files, if their names do not show it.
        cache: the folder for indexes and copies.
        executor: "inline", "threads", "processes" or "ray".
        workers: the number of workers; by default one per core.

    Returns:
        Counts of files, rows, bytes and compared digests, and the problems. `sound` is true without
        problems.

    Raises:
        ConfigError: for paths that do not exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.jsonl").write_text('{"x": 1}\\n{"x": \\n')
    ...     verify(f"{folder}/a.jsonl").problems[0].row
    1
    """
    path_list = [paths] if isinstance(paths, str | Path) else list(paths)
    files, problems = find(path_list), list[Problem]()
    digests = [
        entry
        for path in path_list
        if is_saved_dataset(path)
        for entry in _read_recorded_digests(Path(path).expanduser())
    ]
    for file_problems in compute(
        "compare digests", "files", _check_digest, digests, executor, workers
    ):
        problems += file_problems
    joint_problems, single_problems = list[Problem](), list[Problem]()
    sources = [_open_or_report(path_list, format, cache, joint_problems)]
    if joint_problems and len(files) > 1:  # open them one by one, to find the damaged ones
        sources = [_open_or_report([path], format, cache, single_problems) for path in files]
    problems += single_problems or joint_problems
    sources = [source for source in sources if source is not None]
    jobs = [(source, start) for source in sources for start in range(0, len(source), _JOB_SAMPLES)]
    job_problems = compute("read samples", "thousands", _check_job, jobs, executor, workers)
    problems += [problem for group in job_problems for problem in group]
    size = sum(storage.world.store.stat(str(path)).size for path in files)
    listed = _keep_first_problems(problems)
    rows = sum(len(source) for source in sources)
    damage = tuple(_group_problems(problems))
    return Verified(
        len(files), rows, size, len(digests), listed, len(problems) - len(listed), damage
    )


def _keep_first_problems(problems: list[Problem]) -> list[Problem]:
    """Return the first distinct problems of every file."""
    by_file: dict[str, list[Problem]] = {}
    for problem in dict.fromkeys(problems):
        by_file.setdefault(problem.file, []).append(problem)
    return [problem for group in by_file.values() for problem in group[:_MAX_PROBLEMS]]


def _group_problems(problems: list[Problem]) -> Iterator[Damage]:
    """Group the problems of each file whose messages differ only in the sample number."""
    kinds = dict[tuple[str, str], list[Problem]]()
    for problem in dict.fromkeys(problems):
        kind = _NUMBERED_SAMPLE.sub(r"\1", problem.message)
        kinds.setdefault((problem.file, kind), []).append(problem)
    for (file, _), group in kinds.items():
        rows = [problem.row for problem in group if problem.row is not None]
        yield Damage(
            file, len(rows), min(rows, default=None), max(rows, default=None), group[0].message
        )


def _open_or_report(
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


def _read_recorded_digests(folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder written by `penstock.write`, and their digests."""
    try:
        manifest: dict[str, Any] = json.loads(storage.world.disk.read(folder / MANIFEST_NAME))
        shards: list[list[dict[str, Any]]] = manifest.get("shards") or []
        return [
            (folder / Path(str(file["file"])).name, str(file["digest"]))
            for shard in shards
            for file in shard
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # opening the folder raises the error


def _check_digest(record: tuple[Path, str]) -> list[Problem]:
    path, digest = record
    hasher = hashlib.blake2b(digest_size=16)
    try:
        size = storage.world.store.stat(str(path)).size
        for offset in range(0, size, _CHUNK_BYTES):
            hasher.update(
                storage.world.store.read(str(path), offset, min(_CHUNK_BYTES, size - offset))
            )
    except OSError as error:
        return [Problem(str(path), None, f"{error.strerror or error}")]
    if hasher.hexdigest() == digest:
        return []
    return [
        Problem(
            str(path),
            None,
            "its bytes changed after it was written: the digest differs",
        )
    ]


def _check_job(job: tuple[Source, int]) -> list[Problem]:
    """Return the problems of one job: a range of samples of a source."""
    source, start = job
    indices = np.arange(start, min(start + _JOB_SAMPLES, len(source)))
    try:
        source.read(indices)
    except Exception:
        return [
            problem
            for index in indices.tolist()
            if (problem := _check_sample(source, index)) is not None
        ]
    return []


def _check_sample(source: Source, index: int) -> Problem | None:
    try:
        source.read(np.asarray([index]))
    except Exception as error:  # any error means that this sample is unreadable
        file, row = source.file_and_row(index) if isinstance(source, JoinedFiles) else ("", index)
        return Problem(str(file), row, str(error) or type(error).__name__)
    return None
