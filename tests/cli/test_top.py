"""`penstock top`: a running, killed or closed training from another process."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

import penstock as ps
from cli_world import Penstock


def write_stats(path: Path, steps: int) -> ps.Loader:
    ds = ps.mix(
        {name: ps.from_sequence([name] * 50) for name in ("web", "code")}, stop="all_exhausted"
    ).batch(4)
    loader = ps.Loader(ds, stats=path)
    for _ in islice(loader, steps):
        pass
    return loader


def test_once_prints_the_present_state(tmp_path: Path, penstock: Penstock) -> None:
    write_stats(tmp_path / "stats.jsonl", 6).close()
    done = penstock("top", tmp_path, "--once")
    assert done.exit_code == 0
    for part in ("closed", "step 6 of 25", "samples/s", "web", "50.00%", "warnings: "):
        assert part in done.stdout, part


def test_a_pipe_gets_lines_until_the_run_is_closed(tmp_path: Path, penstock: Penstock) -> None:
    write_stats(tmp_path / "stats.jsonl", 6).close()
    done = penstock("top", tmp_path / "stats.jsonl", "--every", "0.1")
    assert done.exit_code == 0 and done.stdout.startswith("closed  step 6 of 25  ")
    assert len(done.stdout.splitlines()) == 1 and "\x1b" not in done.stdout


def test_json_of_a_run_that_has_not_begun(tmp_path: Path, penstock: Penstock) -> None:
    loader = write_stats(tmp_path / "stats.jsonl", 0)
    found = json.loads(penstock("top", tmp_path, "--json").stdout)
    assert (found["status"], found["step"], found["steps"]) == ("no data", 0, 25)
    assert penstock("top", tmp_path, "--once").exit_code == 0
    loader.close()


def test_a_wrong_path_says_what_to_give(tmp_path: Path, penstock: Penstock) -> None:
    done = penstock("top", tmp_path / "gone")
    assert done.exit_code == 2 and "Loader(stats=...)" in done.output
    (tmp_path / "empty.jsonl").touch()
    found = json.loads(penstock("top", tmp_path / "empty.jsonl", "--json").stdout)
    assert found["status"] == "no data"


@pytest.mark.slow  # starts a process on a terminal
def test_a_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    write_stats(tmp_path / "stats.jsonl", 6).close()
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "penstock", "top", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=env
    ) as run:
        os.close(terminal)
        shown = b""
        while (
            b"warnings: " not in shown
        ):  # of this process, which earlier tests may have given some
            shown += os.read(main, 65536)
        fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
        run.send_signal(signal.SIGINT)
        with suppress(OSError):  # the terminal has no process any more
            while data := os.read(main, 65536):
                shown += data
        assert run.wait(60) == 0
    os.close(main)
    assert b"\x1b[?1049h" in shown and b"step 6 of 25" in shown
    assert b"\x1b[?1049l" in shown and b"\x1b[?25h" in shown and b"Traceback" not in shown
    assert b"samples/s" in shown.split(b"\x1b[?1049l")[1]  # the last line tells the state
