"""A fine-tuning run on a mixture of EasyData, killed and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("easydata_training.py")


def run(folder: Path, *arguments: int) -> int:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow  # four processes
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 40) == 0
    killed = tmp_path / "killed"
    assert [run(killed, 40, step) for step in (11, 26)] == [-signal.SIGKILL] * 2
    assert run(killed, 40) == 0
    whole, resumed = (np.load(path / "weights.npy") for path in (tmp_path / "whole", killed))
    assert whole.any() and whole.tobytes() == resumed.tobytes()
