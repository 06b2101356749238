"""Hostile items: harmless or named, nothing executed, nothing written elsewhere, no secret told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hostile_files

OURS = (
    "ConfigError: ",
    "DataError: ",
    "StateError: ",
    "StorageError: ",
    "GivenUpError: ",
    "PenstockError: ",
)

pytestmark = pytest.mark.slow  # each item in a process of its own


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[str, list[str]]]:
    settings = {
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PENSTOCK_PROGRESS": "0",
    }
    command = [sys.executable, hostile_files.__file__]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PENSTOCK_STORE_SECONDS": "0", **settings},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert hostile_files.SECRET not in ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", hostile_files.ITEMS)
def test_a_hostile_item_is_harmless_or_named(
    name: str, results: dict[str, tuple[str, list[str]]]
) -> None:
    said, elsewhere = results[name]
    if hostile_files.ITEMS[name] in hostile_files.HARMLESS:
        assert said == "harmless"
    else:
        assert said.startswith(OURS), said
    assert not elsewhere
    assert hostile_files.SECRET not in said
    assert not Path("/etc/outside.txt").exists()
