"""A run through five stages in a process that SIGKILL ends at random moments, resumed on other ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import killed_stages
import penstock as ps
from example_counts import is_soak, rounds
from killed_stages import EXCLUDED, LONG, SHORT, digest_rows, find_begins, make_run, read_document

# Every kill starts a process that imports the library again.
pytestmark = pytest.mark.slow

STEPS, KILLS = rounds(50, 2_000), rounds(5, 20)
RANKS = [1, 2, 3, 8]
Line = tuple[int, int, int, str]


def run_and_kill(folder: Path, seed: int) -> int:
    """Run to the end in processes, some ended by SIGKILL; return the number of kills."""
    rng, kills, starts = np.random.default_rng(seed), 0, 0
    while True:
        ranks = RANKS[starts % len(RANKS)]
        starts += 1
        arguments = [folder, STEPS, ranks, int(rng.integers(1 << 30))]
        command = [sys.executable, killed_stages.__file__, *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if kills < KILLS:
                for _ in range(int(rng.integers(1, 2 * STEPS // KILLS))):
                    process.stdout.readline()
                try:
                    process.wait(float(rng.exponential(0.05)))
                except subprocess.TimeoutExpired:
                    process.kill()
                    kills += 1
            process.stdout.read()
        if process.returncode == 0:
            return kills
        assert process.returncode == -9


def read_log(folder: Path) -> list[Line]:
    """Return the last delivery of each step; every earlier one has the same rows."""
    lines = dict[int, Line]()
    for text in (folder / "log.jsonl").read_text().splitlines():
        if text.endswith("]"):  # whole
            step, rows, length, digest = json.loads(text)
            assert lines.setdefault(step, (step, rows, length, digest))[1:] == (
                rows,
                length,
                digest,
            )
    return [lines[step] for step in range(len(lines))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    kills = run_and_kill(folder, seed=int.from_bytes(b"stages", "big") % (1 << 32))
    assert kills == KILLS or not is_soak()
    return folder


def load_plan(folder: Path) -> ps.Plan[ps.Dataset]:
    """Return the plan of the run that ended."""
    run = make_run(STEPS)
    loader = ps.Loader(run, rank=0, world_size=1)
    assert ps.restore(folder / "states", loader) == STEPS
    return run.plan.for_state(loader.state_dict())


def test_every_token_is_at_its_planned_place(folder: Path) -> None:
    log, plan = read_log(folder), load_plan(folder)
    shapes = [
        (SHORT if step < STEPS // 2 else LONG, 512 << step * 5 // STEPS) for step in range(STEPS)
    ]
    assert [(rows, length) for _, rows, length, _ in log] == shapes
    begins = {name: find_begins(name) for name in "abcde"}
    names = [name.rpartition("/")[2] for name in plan.sources]
    rows, one_source, row = plan.rows(), set[int](), 0
    for (count, length), (step, _, _, digest) in zip(shapes, log, strict=True):
        told = rows.at(slice(row, row + count))
        assert told.start is not None and told.stop is not None
        holes = np.zeros(len(told.source), np.bool_) if told.masked is None else told.masked
        tokens = np.zeros(count * length, np.int32)
        stops = np.cumsum(told.stop - told.start).tolist()
        columns = (told.source, told.index, told.start, told.stop, holes)
        for stop, source, index, first, last, masked in zip(
            stops, *(column.tolist() for column in columns), strict=True
        ):
            if not masked:
                begin = int(begins[names[source]][index])
                part = read_document(names[source], begin + first, begin + last)
                tokens[stop - len(part) : stop] = part
        assert stops[-1] == len(tokens)
        assert digest_rows(tokens.reshape(count, length)) == digest, step
        if len({*told.source.tolist()}) == 1:
            one_source.add(step)
        row += count
    assert {*range(STEPS // 5, STEPS * 2 // 5)} <= one_source


def test_find_and_audit_agree_with_the_plan(folder: Path) -> None:
    plan, rng = load_plan(folder), np.random.default_rng(0)
    asked = sorted({0, STEPS - 1, *rng.choice(STEPS, 10).tolist()})
    for step in asked:
        samples = plan.at(step=step)
        for sample in (samples[0], samples[len(samples) // 2], samples[-1]):
            near = range(max(0, step - 2), step + 3)
            steps = plan.find(sample.source, sample.index, steps=near)
            assert step in steps
            for other in near:
                held = {(each.source, each.index) for each in plan.at(step=other)}
                assert ((sample.source, sample.index) in held) == (other in steps)
        table = plan.audit(range(step, step + 1)).table().to_pydict()
        audited = Counter(zip(table["step"], table["source"], table["index"], strict=True))
        assert {*audited} == {(step, each.source, each.index) for each in samples}
    excluded = {*EXCLUDED}
    for step in range(STEPS * 3 // 4 + 1, STEPS):
        for sample in plan.at(step=step):
            assert sample.masked or (sample.source, sample.index) not in excluded
