"""Real processes under jax.distributed, on CPUs: each runs a function by name, and says what it saw as JSON.

A process that has JAX cannot be forked, and one that joined a cluster stays in it; so each of them begins by itself.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
MARK = "said: "  # the network library writes to standard output too


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(devices: int) -> dict[str, str]:
    """Return the environment of a process with `devices` CPU devices, independent of this one."""
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JAX_", "XLA_"))
        },
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def started(
    n: int, module: str, name: str, asked: Any, devices: int = 1
) -> list[subprocess.Popen[str]]:
    """`n` processes that run `module.name(asked)`, with so many devices each."""
    port = free_port()
    return [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                module,
                name,
                str(rank),
                str(n),
                str(port),
                json.dumps(asked),
            ],
            env=environment(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]


def crew(
    n: int, module: str, name: str, asked: Any = None, devices: int = 1, killed: bool = False
) -> list[Any]:
    """Return the results of `n` processes by rank; with `killed`, their lines before that."""
    running = started(n, module, name, asked, devices)
    try:
        done = [each.communicate(timeout=300) for each in running]
    finally:
        for each in running:
            each.kill()
            each.wait()
    ends = [each.returncode for each in running]
    # Who sees the others die may end by the network library before its own signal comes.
    right = -9 in ends and 0 not in ends if killed else not any(ends)
    assert right, "\n".join(errors[-3000:] for _, errors in done)
    lines = [
        [json.loads(line[len(MARK) :]) for line in out.splitlines() if line.startswith(MARK)]
        for out, _ in done
    ]
    return lines if killed else [each[-1] for each in lines]


def say(value: Any) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


def main(module: str, name: str, rank: int, n: int, port: int, asked: Any) -> None:
    import jax

    if n > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", n, rank)
    say(getattr(importlib.import_module(module), name)(asked))


if __name__ == "__main__":
    module, name, rank, n, port, asked = sys.argv[1:]
    main(module, name, int(rank), int(n), int(port), json.loads(asked))
