"""How many examples a property test takes, how many rounds a soak, and how many were run."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import settings

done = Counter[str]()
"""Random trees and runs so far; the number is printed at the end."""


def examples(at_ci: int) -> settings:
    """So many examples under the profile `ci`; `dev` takes a share of it."""
    profile = settings()  # what the command line chose
    return settings(max_examples=max(1, at_ci * profile.max_examples // 100))


def rounds(at_ci: int, soak: int) -> int:
    """How often to do something: `soak` times where `make soak` runs (`SOAK=1`)."""
    return soak if os.environ.get("SOAK") else at_ci
