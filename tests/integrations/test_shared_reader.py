"""One reader for the processes of a node: equal batches, one decode, errors, kills and no leaks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from example_counts import is_soak
from integrations.sharing import decode, describe, make
from penstock.integrations.shared_reader import SharedLoader, share_loader

pytestmark = pytest.mark.slow  # processes that are killed

HERE = Path(__file__).parent


def start(job: str, folder: Path, ranks: int, **variables: str) -> list[subprocess.Popen[str]]:
    """Start the processes of a node; the reader comes last, so peers wait for it."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(HERE / "sharing.py"),
        job,
        str(folder / "socket"),
    ]
    return [
        subprocess.Popen(
            [*command, str(rank), str(ranks)],
            stdout=-1,
            stderr=-1,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
        for rank in reversed(range(ranks))
    ][::-1]


def finish(crew: list[subprocess.Popen[str]]) -> list[Any]:
    """Return the last line of each process."""
    ended = [member.communicate(timeout=120) for member in crew]
    return [json.loads(out.splitlines()[-1]) if out else err for out, err in ended]


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_peers_receive_the_batches_of_the_reader_which_decodes_each_once(
    tmp_path: Path, form: str
) -> None:
    if form == "torch":
        pytest.importorskip("torch")
    journal = tmp_path / "decoded"
    found = finish(start("passes", tmp_path, 3, JOURNAL=str(journal), FORM=form))
    assert not (tmp_path / "socket").exists()
    alone = make()
    wanted: list[Any] = []
    for _ in range(2):
        items = [describe(item) for item in alone]
        kind = "Tensor" if form == "torch" else "ndarray"
        wanted.append(
            [
                [name, size, first + 1, last + (size == 1), kind]
                for name, size, first, last, _ in items
            ]
        )
    for passes, memory in found:
        assert passes == wanted
        assert memory == 0  # every block is unmapped after close
    assert sorted(map(int, journal.read_text().split())) == sorted([*range(9)] * 2)


def test_the_state_of_the_reader_serves_all(tmp_path: Path) -> None:
    found = [result for result, _ in finish(start("resume", tmp_path, 2))]
    assert found[0] == found[1]
    first, state, rest, again = found[0]
    assert len(first) == 4
    assert rest == again
    assert first + rest == [describe(item) for item in make()]
    resumed = make()
    resumed.load_state_dict(state)
    assert [describe(item) for item in resumed] == rest


def test_errors_of_the_reader_are_raised_in_peers_and_the_run_can_continue(tmp_path: Path) -> None:
    found = [result for result, _ in finish(start("error", tmp_path, 2, BROKEN="4"))]
    assert found[0] == found[1]
    assert found[0].count("ValueError") == 1
    found[0].remove("ValueError")
    assert found[0] == [describe(item) for item in make()]


@pytest.mark.parametrize(
    ("signal_number", "victim", "workers"),
    [
        (signal.SIGKILL, 0, 0),
        (signal.SIGINT, 1, 0),
        (signal.SIGKILL, 0, 1),  # worker processes do not hold the connections
        *([(signal.SIGKILL, 1, 0), (signal.SIGINT, 0, 0)] if is_soak() else []),
    ],
)
def test_a_killed_process_is_an_error_in_the_others_at_once(
    tmp_path: Path, signal_number: int, victim: int, workers: int
) -> None:
    crew = start("wait", tmp_path, 3, SLEEPER=str(victim), WORKERS=str(workers))
    output: Any = crew[victim].stdout
    assert json.loads(output.readline())[0].startswith("n")
    time.sleep(0.5)
    began = time.monotonic()
    crew[victim].send_signal(signal_number)
    others = [member for rank, member in enumerate(crew) if rank != victim]
    for name, text, memory in finish(others):
        assert name == "ConnectionError"
        assert "closed or killed" in text
        assert memory == 0
    assert time.monotonic() - began < 30
    crew[victim].communicate(timeout=60)
    assert not (tmp_path / "socket").exists()


def test_a_reader_that_does_not_answer_is_a_timeout(tmp_path: Path) -> None:
    crew = start("wait", tmp_path, 2, SLEEPER="0", TIMEOUT="2")
    ((name, text, _),) = finish(crew[1:])
    crew[0].kill()
    crew[0].communicate(timeout=60)
    assert name == "TimeoutError"
    assert "waited 2 s for the reader" in text


def test_processes_that_call_in_another_order_get_an_error(tmp_path: Path) -> None:
    reader, peer = finish(start("order", tmp_path, 2))
    assert peer[0] == "ConnectionError"
    assert "sent 'item' where this process, rank 1, waits for 'state'" in peer[1]
    assert reader[0] == "ConnectionError"
    assert "lost peer 1" in reader[1]


def test_missing_processes_and_wrong_ranks_are_errors(tmp_path: Path) -> None:
    address = tmp_path / "socket"
    with pytest.raises(TimeoutError, match=r"ranks \[1, 2\] did not join within 0.05 s"):
        SharedLoader(make, address, rank=0, ranks=3, timeout=0.05)
    assert not address.exists()
    with pytest.raises(TimeoutError, match="rank 1 found no reader"):
        SharedLoader(make, address, rank=1, ranks=2, timeout=0.05)
    with pytest.raises(ps.ConfigError, match="rank 2 of 2"):
        SharedLoader(make, address, rank=2, ranks=2)
    with pytest.raises(ps.ConfigError, match="init_process_group"):
        share_loader(make)
    with pytest.raises(ps.ConfigError, match="not a loader"):
        SharedLoader(lambda: ps.from_sequence([1]), address, rank=0, ranks=1)  # pyright: ignore[reportArgumentType, reportReturnType]
    on_device = ps.from_sequence(range(3)).batch(1)
    with pytest.raises(ps.ConfigError, match="without device="):
        SharedLoader(lambda: ps.Loader(on_device, to="jax"), address, rank=0, ranks=1)
    shared = SharedLoader(make, address, rank=0, ranks=1)
    shared.close()
    with pytest.raises(ConnectionError, match="closed"):
        next(iter(shared))


def test_a_socket_that_a_killed_reader_left_is_replaced(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    left = socket.socket(socket.AF_UNIX)
    left.bind(address)
    left.close()
    results: list[Any] = []

    def read(rank: int) -> None:
        with SharedLoader(make, address, rank=rank, ranks=2, timeout=30) as shared:
            results.append([item["name"] for item in shared])

    threads = [threading.Thread(target=read, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [[decode(i)["name"] for i in (int(n[1:]) for n in results[0])]] * 2
    assert len(results[0]) == 9


def test_two_processes_of_one_rank_are_an_error(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    errors: list[str] = []

    def join() -> None:
        try:
            with SharedLoader(make, address, rank=1, ranks=3, timeout=30) as shared:
                next(iter(shared))
        except ConnectionError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=join) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(ps.ConfigError, match="joined as rank 1 of 3, which is taken"):
        SharedLoader(make, address, rank=0, ranks=3, timeout=30)
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2


def test_a_loader_that_cannot_be_made_is_an_error_in_all(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    errors: list[str] = []

    def fail() -> ps.Loader:
        raise ps.ConfigError("no such folder")

    def open_shared(rank: int) -> None:
        try:
            SharedLoader(fail, address, rank=rank, ranks=2, timeout=30)
        except ps.ConfigError as error:
            errors.append(str(error).splitlines()[0])

    threads = [threading.Thread(target=open_shared, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == ["no such folder"] * 2
