"""Parsers that are ours, fed input that no tool wrote: an answer, or an error that says what is wrong.

Each input has 10 seconds and 1 GB of memory; see `fuzz.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

import fuzz
from example_counts import done, rounds

pytestmark = pytest.mark.slow  # fuzzers: half a minute


@pytest.mark.parametrize("part", range(2))
def test_any_input_gives_an_answer_or_an_error_of_ours(part: int) -> None:
    # 6 seconds for all of them in every run, ten minutes under `make soak`.
    names = list(fuzz.PARSERS)[part::2]
    seconds, seed = rounds(6, 600) / len(fuzz.PARSERS), rounds(0, int(time.time()))
    settings = {
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PENSTOCK_PROGRESS": "0",
    }
    ended = subprocess.run(
        [sys.executable, fuzz.__file__, str(seconds), str(seed), *names],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [name for name, _, _ in found] == names
    problems = [f"{name}: {problem}" for name, _, said in found for problem in said]
    assert not problems, "\n".join(problems)
    done["inputs"] += sum(tried for _, tried, _ in found)
