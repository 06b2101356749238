"""A guard against filling the memory of the machine with a dataset."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from ..engine.base.machine import detect_installed_memory, measure_resident_memory
from ..errors import ConfigError

_SHARE = 0.8  # of the available memory that a conversion may fill
_UNCERTAINTY = 2  # times that the first samples may be larger than the others
_SAMPLED = 64  # parts of a container that stand for all


def detect_available_memory() -> int:
    """Return the bytes that this process may still allocate, as far as the system tells."""
    limits = [max(0, detect_installed_memory() - measure_resident_memory())]
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        line = next(line for line in file if line.startswith("MemAvailable:"))
        limits.append(int(line.split()[1]) * 1024)
    with (
        suppress(OSError, ValueError),
        open("/sys/fs/cgroup/memory.max") as most,
        open("/sys/fs/cgroup/memory.current") as used,
    ):
        limits.append(max(0, int(most.read()) - int(used.read())))
    # Not `resource`, which Windows lacks.
    with suppress(OSError, ValueError, IndexError), open("/proc/self/limits") as file:
        line = next((line for line in file if line.startswith("Max address space")), "")
        with open("/proc/self/statm") as sizes:
            used_pages = int(sizes.read().split()[0])
        limits.append(max(0, int(line.split()[3]) - used_pages * mmap.PAGESIZE))
    return min(limits)


class MemoryGuard:
    """Refuses a conversion whose result would not fit into memory, early and while it grows.

    The first samples may be larger than the others, so an estimate from them refuses only what
    would need twice the memory.

    Args:
        call: the conversion, for errors.
        total: the number of samples, if it is known.
        copies: bytes of memory for a byte of a sample as it is measured.
    """

    def __init__(self, call: str, total: int | None, copies: float) -> None:
        self._call, self._total, self._copies = call, total, copies
        self._available = detect_available_memory()
        self._rows, self._bytes = 0, 0

    def add(self, rows: int, nbytes: int) -> None:
        """Count converted samples and their bytes.

        Raises:
            ConfigError: if all samples together would fill the available memory.
        """
        self._rows, self._bytes = self._rows + rows, self._bytes + nbytes
        each = self._bytes / max(self._rows, 1)
        expected = each * max(self._total or 0, self._rows) * self._copies
        needed = self._bytes * self._copies
        fits = self._available * _SHARE
        if needed <= fits and expected <= fits * _UNCERTAINTY:
            return
        expected = max(needed, expected)
        fitting = int(fits / (each * self._copies))
        count = f"{self._total:,} samples" if self._total else f"the first {self._rows:,} samples"
        raise ConfigError(
            f"{self._call}: {count} need about {_format_gib(expected)}, and "
            f"{_format_gib(self._available)} of memory are available; convert fewer: "
            f"ds.{self._call}(limit={max(1, _round_down(fitting)):_})"
        )


def _round_down(n: int) -> int:
    """Return a number with two digits that is not larger.

    >>> _round_down(12_987)
    12000
    """
    unit = 10 ** max(0, len(str(n)) - 2)
    return n // unit * unit


def _format_gib(n: float) -> str:
    return f"{n / (1 << 30):,.1f} GiB"


def estimate_bytes(value: Any, depth: int = 4) -> int:
    """Return the bytes of a Python value with its parts; long containers are sampled.

    >>> estimate_bytes({"text": "a" * 1_000}) > 1_000
    True
    """
    size = sys.getsizeof(cast("object", value), 64)
    if isinstance(value, np.ndarray):
        return size if value.base is None else size + value.nbytes
    if not depth or not isinstance(value, Mapping | list | tuple):
        return size
    parts = cast(
        "Sequence[Any]",
        [*cast("Mapping[Any, Any]", value).values()] if isinstance(value, Mapping) else value,
    )
    if not parts:
        return size
    few = parts[:: max(1, len(parts) // _SAMPLED)]
    return size + sum(estimate_bytes(part, depth - 1) for part in few) * len(parts) // len(few)
