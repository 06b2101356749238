"""Ranks that are forked from here, and die by SIGKILL at an effect on files."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def dying(path: Path, fatal: int) -> None:
    """Die at an effect on what is named like this: a folder is made, a file is opened to be written, renamed, removed."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        effect = event in ("os.mkdir", "os.rename", "os.remove")
        effect = effect or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) != 0)
        if effect and str(arguments[0]).startswith(str(path)):
            seen += 1
            if seen == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def ranks(size: int, folder: Path, do: Callable[[int], Any]) -> list[Any] | None:
    """Run `size` processes; return their results, or None if one was killed with the others."""
    out = folder / f"out-{os.urandom(4).hex()}"
    children = dict[int, int]()
    for rank in range(size):
        if (child := os.fork()) == 0:
            code = 1
            try:
                Path(f"{out}.{rank}").write_text(json.dumps(do(rank)))
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        children[child] = rank
    killed = False
    while children:
        child, status = os.wait()
        del children[child]
        if os.WIFSIGNALED(status):
            killed = True
            for other in children:
                os.kill(other, signal.SIGKILL)
        elif status and not killed:
            raise SystemExit(f"a rank ended with {status}")
    return (
        None if killed else [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(size)]
    )
