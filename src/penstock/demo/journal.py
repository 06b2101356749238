"""What a run writes down: one line for every step, and what two runs have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple


class Record(NamedTuple):
    """One step: the digest of its batch, its keys, the samples it began and the tokens per source,
    and what it took."""

    step: int
    digest: str
    keys: Sequence[Sequence[str | int]]
    samples: Mapping[str, int]
    by_source: Mapping[str, int]
    seconds: float  # since the start of this process's run
    memory: int  # resident bytes, 0 where the system does not say

    @property
    def tokens(self) -> int:
        return sum(self.by_source.values())


def write(file: IO[str], record: Record) -> None:
    """Append a record so that it outlives the process, if not the machine."""
    file.write(json.dumps(record._asdict()) + "\n")
    file.flush()


class Tail:
    """The records of a journal as they appear; a line that was cut by a kill is not one."""

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self._path = path
        self._offset = 0

    def more(self) -> list[Record]:
        """The records written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._offset += len(whole) + 1
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        found = [Record(**line) for line in lines]
        self.records += found
        return found

    def errors(self, lines: int = 20) -> str:
        """The end of what the process said beside its journal."""
        said = self._path.with_suffix(".err")
        return (
            "\n".join(said.read_text(errors="replace").splitlines()[-lines:])
            if said.exists()
            else ""
        )


class Proof(NamedTuple):
    """How two runs compare, step by step."""

    equal: int
    again: (
        int  # steps that were done twice, before the kill and after the resume, and came out equal
    )
    different: tuple[int, ...]
    missing: tuple[int, ...]
    first: str
    last: str

    @property
    def holds(self) -> bool:
        return self.equal > 0 and not self.different and not self.missing


def compare(
    before: Sequence[Record], after: Sequence[Record], whole: Sequence[Record], steps: int
) -> Proof:
    """Hold a run that was killed (`before`) and resumed (`after`) against one that was left alone
    (`whole`)."""
    wanted = {record.step: record.digest for record in whole}
    done = {record.step: {record.digest} for record in before}
    for record in after:
        done.setdefault(record.step, set()).add(record.digest)
    every = range(1, steps + 1)
    missing = tuple(step for step in every if step not in done or step not in wanted)
    different = tuple(
        step for step in every if step not in missing and done[step] != {wanted[step]}
    )
    twice = {record.step for record in before} & {record.step for record in after}
    return Proof(
        equal=steps - len(missing) - len(different),
        again=len(twice - set(different)),
        different=different,
        missing=missing,
        first=wanted.get(1, ""),
        last=wanted.get(steps, ""),
    )
