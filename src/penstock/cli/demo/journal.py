"""Journal of a run, one line per step, and the comparison of two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple


class Record(NamedTuple):
    """One step: digest of the batch, keys, samples and tokens by source, time and memory."""

    step: int
    digest: str
    keys: Sequence[Sequence[str | int]]
    samples: Mapping[str, int]
    by_source: Mapping[str, int]
    seconds: float  # since the process started
    memory: int  # resident bytes, 0 if unknown

    @property
    def tokens(self) -> int:
        return sum(self.by_source.values())


def write(file: IO[str], record: Record) -> None:
    """Append a record; it survives a kill of the process, though not a power loss."""
    file.write(json.dumps(record._asdict()) + "\n")
    file.flush()


class JournalReader:
    """Reads the records of a growing journal; ignores a line truncated by a kill."""

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self._path = path
        self._offset = 0

    def more(self) -> list[Record]:
        """Return the records written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            complete_lines = file.read().rpartition(b"\n")[0]
        if not complete_lines:
            return []
        self._offset += len(complete_lines) + 1
        lines: list[dict[str, Any]] = [json.loads(line) for line in complete_lines.splitlines()]
        records = [Record(**line) for line in lines]
        self.records += records
        return records

    def errors(self, lines: int = 20) -> str:
        """Return the last lines of the process's stderr."""
        stderr_path = self._path.with_suffix(".err")
        return (
            "\n".join(stderr_path.read_text(errors="replace").splitlines()[-lines:])
            if stderr_path.exists()
            else ""
        )


class RunComparison(NamedTuple):
    """Step-by-step comparison of two runs."""

    equal: int
    again: int  # steps done before the kill and again after the resume, with equal results
    different: tuple[int, ...]
    missing: tuple[int, ...]
    first: str
    last: str

    @property
    def holds(self) -> bool:
        return self.equal > 0 and not self.different and not self.missing


def compare_runs(
    before: Sequence[Record], after: Sequence[Record], undisturbed: Sequence[Record], steps: int
) -> RunComparison:
    """Compare a run that was killed and resumed with an undisturbed run (`undisturbed`)."""
    expected = {record.step: record.digest for record in undisturbed}
    digests_by_step = {record.step: {record.digest} for record in before}
    for record in after:
        digests_by_step.setdefault(record.step, set()).add(record.digest)
    all_steps = range(1, steps + 1)
    missing = tuple(
        step for step in all_steps if step not in digests_by_step or step not in expected
    )
    different = tuple(
        step
        for step in all_steps
        if step not in missing and digests_by_step[step] != {expected[step]}
    )
    twice = {record.step for record in before} & {record.step for record in after}
    return RunComparison(
        equal=steps - len(missing) - len(different),
        again=len(twice - set(different)),
        different=different,
        missing=missing,
        first=expected.get(1, ""),
        last=expected.get(steps, ""),
    )
