"""The machine of the figures: processor, cores, memory, versions. No names of hosts, no paths."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from .table import peers


def machine() -> dict[str, Any]:
    """One line about the machine, and the version of every distribution a peer needs."""
    names = sorted({name for peer in peers().values() for name in peer.needs})
    return {
        "line": f"{os.cpu_count()} cores of {processor()}, {memory_gb():.0f} GB, "
        f"{platform.system()}, "
        f"Python {platform.python_version()}",
        "versions": {name: version(name) for name in names},
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def version(name: str) -> str | None:
    """Return the installed version of a distribution, or `None`.

    For Penstock it is the version of the code that runs: a checkout may not be installed at all.
    """
    import penstock
    from penstock.errors import DISTRIBUTION_NAME

    if name == DISTRIBUTION_NAME:
        return penstock.__version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
