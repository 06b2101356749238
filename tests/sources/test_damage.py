"""Damage to every byte of data and of everything kept beside it: equal rows, or an error of ours that names the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from damage import FORMATS
from example_counts import done, rounds

pytestmark = pytest.mark.slow  # damages every byte, in processes

MODES = ("fresh", "indexed", "kept")


@pytest.mark.parametrize("formats", [list(FORMATS)[::2], list(FORMATS)[1::2]], ids=["even", "odd"])
def test_damage_is_an_error_that_names_the_file(formats: list[str]) -> None:
    # In every run a sample, of a second or two for each format; under `make soak` all of it.
    asked = {"formats": formats, "many": rounds(6, 1 << 40), "seconds": rounds(1, 1 << 20)}
    settings = {
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PENSTOCK_PROGRESS": "0",
    }
    command = [sys.executable, str(Path(__file__).parents[1] / "damage.py")]
    ended = subprocess.run(
        command,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    assert list(found) == formats
    if os.environ.get("SOAK"):
        rows = [
            [name, *(str(modes.get(mode, [0])[0]) for mode in MODES)]
            for name, modes in found.items()
        ]
        table = [["format", *MODES], ["---"] * 4, *rows]
        print("\n".join(f"| {' | '.join(row)} |" for row in table))  # noqa: T201
    said = [
        f"{name}, {mode}: {len(problems)} of {tried}:\n" + "\n".join(problems[:20])
        for name, modes in found.items()
        for mode, (tried, problems) in modes.items()
        if problems
    ]
    assert not said, "\n".join(said)
    done["damages"] += sum(tried for modes in found.values() for tried, _ in modes.values())
