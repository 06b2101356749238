"""Durations in milliseconds of an idle machine, relative to a piece of work of known duration.

A test must depend neither on the speed of the machine nor on its load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

_IDLE = 2.0  # milliseconds that `_work` takes on a core that does nothing else


def _work() -> int:
    """Some of NumPy, some of the interpreter."""
    table, total = np.arange(20_000) * 7919 % 20_011, 0
    for _ in range(5):
        table = np.sort(table[::-1])
    for i in range(20_000):
        total += i * i % 7
    return total


def _spent(ask: Callable[[], Any]) -> float:
    began = time.process_time()
    ask()
    return time.process_time() - began


def clocked(ask: Callable[[int], Any], times: int = 1) -> float:
    """The milliseconds of `ask(i)`: of the middle one of so many."""
    ratios = list[float]()
    for i in range(times):
        before, took = _spent(_work), _spent(lambda i=i: ask(i))
        ratios.append(took / max(before, _spent(_work)))
    return _IDLE * median(ratios)
