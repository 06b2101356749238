"""Measurements in a process that has imported nothing, not even NumPy: import, first batch, memory."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

from .table import CASES, Row, peers
from .work import Ints, Late

Found = dict[str, Any]


def start(row: Row) -> Found:
    """Import, then build and take the first batch."""
    peer = peers()[row.peer]
    work = Ints(CASES["start"].params[0])
    began = time.perf_counter()
    if "imports" in row.facts:
        importlib.import_module(row.facts["imports"])
    else:
        peer.load()
    imported = time.perf_counter()
    heavy = [name for name in ("torch", "jax", "datasets", "pandas") if name in sys.modules]
    rss = memory_now()[0]
    next(iter(row.make(work)))
    return {
        "import_s": imported - began,
        "first_batch_s": time.perf_counter() - imported,
        "rss_after_import_mb": rss,
        "modules": len(sys.modules),
        "heavy": " ".join(heavy),
    }


def workers(row: Row) -> Found:
    """Import, the first batch by workers; and the end of the loader while its workers are busy."""
    batch = 32
    began = time.perf_counter()
    peers()[row.peer].load()
    imported = time.perf_counter()
    steps, close = row.make(Late(CASES["workers"].params[0], batch), batch)
    next(steps)
    first = time.perf_counter()
    time.sleep(1.0)  # the workers are at batches that take longer than that
    closing = time.perf_counter()
    del steps
    close()
    ended = time.perf_counter()
    return {
        "import_s": imported - began,
        "first_batch_s": first - imported,
        "total_s": first - began,
        "close_s": ended - closing,
    }


def memory(row: Row, size: int, bare: float) -> Found:
    """Resident memory after 1,000 batches of a shuffle of all samples: in whole, over the bare
    interpreter, and over what the imports took."""
    next(iter(row.make(1000)))  # imports, and whatever is made once
    base = memory_now()[0]
    began = time.perf_counter()
    it = iter(row.make(size))
    next(it)
    first = time.perf_counter() - began
    for _ in range(1000):
        next(it)
    rss, peak = memory_now()
    found = {
        "rss": rss,
        "over_bare": rss - bare,
        "over_imports": rss - base,
        "peak": peak,
        "first_s": first,
    }
    return {f"{name}_{size}": value for name, value in found.items()}


def memory_now() -> tuple[float, float]:
    """Resident now and at the highest, in MB."""
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return tuple(int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
