"""Closing a dataset, or the program, never waits for a store that is down."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.stores import ByteRange, CompositeStore, storage

from . import servers

PROGRAM = """
import signal, sys, penstock as ps
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run with Ctrl-C ignored
    ds = ps.read(sys.argv[1], cache=sys.argv[2]).shuffle().batch(4)
    with ps.Loader(ds, workers=int(sys.argv[3])) as loader:
        for _ in loader:
            pass
"""


over = threading.Event()


def falling_silent(handler: servers.Handler) -> bool:
    """Answer while little was sent, then say nothing."""
    if handler.server.sent < 4 << 20:
        return False
    over.wait(600)
    return True


@pytest.fixture
def site(tmp_path: Path) -> Iterator[servers.Site]:
    """A server of a file of 20 MB, which falls silent."""
    rng = np.random.default_rng(0)
    rows = pa.table({"x": pa.array([rng.bytes(1_000) for _ in range(20_000)])})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=200)
    over.clear()
    with servers.site(tmp_path) as found:
        found.always = falling_silent
        yield found
        over.set()


def until_silent(site: servers.Site) -> None:
    began = time.monotonic()
    while site.busy < 4:
        assert time.monotonic() - began < 120
        time.sleep(0.05)


@pytest.mark.slow  # interrupts a process
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_ends_a_run_whose_store_says_nothing(
    workers: int, site: servers.Site, tmp_path: Path
) -> None:
    environment = {**os.environ, "PENSTOCK_STORE_SECONDS": "600"}
    arguments = [f"{site.url}/x.parquet", str(tmp_path / "cache"), str(workers)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as run:
        try:
            until_silent(site)
            time.sleep(1)
            run.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, said = run.communicate(timeout=120)
            assert time.monotonic() - began < 60, said
        finally:
            run.kill()
    assert "KeyboardInterrupt" in said and "waiting for" not in said, (run.returncode, said)


def test_letting_go_waits_for_no_store(
    site: servers.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STORE_SECONDS", "600")
    ds = ps.read(f"{site.url}/x.parquet", cache=tmp_path / "cache")
    whole = (tmp_path / "x.parquet").stat().st_size
    store = storage.world.store
    assert isinstance(store, CompositeStore)
    store.prefetch(
        [ByteRange(f"{site.url}/x.parquet", at, at + 1_000) for at in range(0, whole, 1 << 20)]
    )
    until_silent(site)
    began = time.monotonic()
    del ds
    gc.collect()
    assert time.monotonic() - began < 20
    while any(
        thread.name.startswith("penstock-") for thread in threading.enumerate()
    ):  # these end too
        assert time.monotonic() - began < 60
        time.sleep(0.05)
