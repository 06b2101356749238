"""Ranks from the environment of launchers, and the interfaces to the system."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.base.machine import count_local_ranks, detect_installed_memory, detect_rank
from penstock.engine.runtime.run_options import RunOptions
from penstock.stores.storage import LocalDisk
from signals import interrupted


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6"}, (5, 6)),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "6"},
            (0, 1),
        ),  # a batch script, which is one process
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "9"},
            (0, 2),
        ),
        (
            {"RANK": "1", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            (1, 1),
        ),  # refused as it is
    ],
)
def test_ranks_of_launchers(
    said: dict[str, str], want: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "SLURM_")):
            monkeypatch.delenv(name)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert detect_rank() == want


def test_ranks_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock.engine.runtime.run_options.detect_installed_memory", lambda: 64 << 30
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (count_local_ranks(), RunOptions().max_prefetch_bytes) == (4, 2 << 30)
    assert RunOptions(prefetch_bytes=5).max_prefetch_bytes == 5
    assert 1 << 28 < detect_installed_memory() < 1 << 50


def test_a_lock_is_open_again_where_taking_it_was_interrupted(tmp_path: Path) -> None:
    fcntl: Any = pytest.importorskip("fcntl")
    kept = list[KeyboardInterrupt]()

    def takes() -> None:
        with LocalDisk().lock(tmp_path) as alone:
            assert alone

    late = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it is locked for ever"))
    signal.alarm(30)
    try:
        for k in range(1, 60):
            try:
                interrupted(k, takes)
            except KeyboardInterrupt as error:
                kept.append(error)  # as a notebook does, for its last traceback
            takes()
            handle = os.open(tmp_path, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(handle)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, late)
    assert kept
