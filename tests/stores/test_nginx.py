"""The web server that most people have, and what happens to a run while it is stopped and started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.engine.base import seams
from penstock.stores import storage

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.slow,  # a web server that is stopped and started
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed"),
]

ROWS = [{"id": i, "t": "ü" * (i % 500)} for i in range(900)]


class Nginx:
    """A server of its own, on a port of its own, that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self._conf = f"http://127.0.0.1:{self.port}", folder / "nginx.conf"
        temp = " ".join(
            f"{name}_temp_path {folder}/tmp;"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        own = (
            "user root root; " if os.geteuid() == 0 else ""
        )  # else its workers may not read these folders
        self._conf.write_text(
            f"{own}daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
            f"http {{ access_log {folder}/access; {temp} server {{ listen 127.0.0.1:{self.port}; root {folder}/www; }} }}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert NGINX is not None
        self._process = subprocess.Popen(
            [NGINX, "-c", str(self._conf), "-e", "stderr"], stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise TimeoutError("nginx does not answer")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    (tmp_path / "www").mkdir(mode=0o755)
    for number in range(3):
        part = ROWS[number * 300 : number * 300 + 300]
        (tmp_path / "www" / f"{number}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in part)
        )
    server = Nginx(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_a_run_over_nginx_is_the_run_over_the_folder(nginx: Nginx, tmp_path: Path) -> None:
    def run(path: str) -> list[int]:
        ds = ps.read(path, name="x", cache=tmp_path / "cache").shuffle()
        with ps.Loader(ds, workers=2, executor="threads") as loader:
            return [row["id"] for row in loader]

    here = run(str(tmp_path / "www" / "*.jsonl"))
    assert run(f"{nginx.url}/{{0..2}}.jsonl") == here and sorted(here) == list(range(900))


def test_a_server_that_is_stopped_and_started(nginx: Nginx, tmp_path: Path) -> None:
    with storage.override_world(sched=seams.LocalSched()):
        ds = ps.read(f"{nginx.url}/{{0..2}}.jsonl", name="x").shuffle()
        expected = [
            row["id"] for row in ps.read(str(tmp_path / "www" / "*.jsonl"), name="x").shuffle()
        ]
        for _ in range(2):
            nginx.stop()
            again = threading.Timer(0.3, nginx.start)
            again.start()
            try:
                assert [row["id"] for row in ds] == expected
            finally:
                again.join()
            storage.world.store.close()  # type: ignore[attr-defined]
