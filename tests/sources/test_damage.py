"""Damage to every byte of data and of everything kept beside it: equal rows, or an error of ours that names the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amounts import done, rounds
from damage import FORMATS


@pytest.mark.parametrize("format", FORMATS)
def test_damage_is_an_error_that_names_the_file(format: str) -> None:
    asked = {"format": format, "share": rounds(12, 1_000_000)}
    settings = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "PENSTOCK_PROGRESS": "0"}
    command = [sys.executable, str(Path(__file__).parents[1] / "damage.py")]
    ended = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for mode, (tried, problems) in json.loads(ended.stdout).items():
        assert not problems, f"{mode}: {len(problems)} of {tried}:\n" + "\n".join(problems[:20])
        assert tried
        done["damages"] += tried
