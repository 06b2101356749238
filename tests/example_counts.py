"""Numbers of examples of property tests and of rounds of a soak, and counts of what was run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import settings

done = Counter[str]()
"""Random trees and runs so far; the number is printed at the end."""


def examples(percent: int) -> settings:
    """Settings with a share of the examples of the profile, which are 25 in `make test` and 100 in `make soak`: more
    than all of them in a soak alone.
    """
    profile = settings()  # chosen by the command line
    percent = percent if profile.max_examples >= 100 else min(percent, 100)
    return settings(max_examples=max(1, percent * profile.max_examples // 100))


def is_soak() -> bool:
    """True where `make soak` set `SOAK=1`."""
    return bool(os.environ.get("SOAK"))


T = TypeVar("T")


def pick_cases(cases: Iterable[T], step: int) -> list[T]:
    """Return every case in `make soak`, and one of `step` neighbours elsewhere."""
    return list(cases)[:: 1 if is_soak() else step]


def rounds(usual: int, soak: int) -> int:
    """Return how often to repeat something: `soak` times in `make soak`."""
    return soak if is_soak() else usual
