"""Processes that open data for the first time: each reads paths and caches, and prints what it read.

With `fork` as argument each path is opened by a child, whose number is printed instead; it may be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

from penstock.sources import open_files


def whole(path: str | Path, cache: str | Path | None) -> str:
    """One line for all rows."""
    source = open_files(path, cache=cache)
    return hashlib.sha256(repr(source.read(np.arange(len(source)))).encode()).hexdigest()


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say("ready")
    for line in sys.stdin:
        path, cache = json.loads(line)
        if sys.argv[1:] != ["fork"]:
            say(whole(path, cache))
        elif child := os.fork():
            say(child)
            os.waitpid(child, 0)
            say("over")
        else:
            whole(path, cache)
            os._exit(0)
