"""How many examples a property test takes, how many were run, and how long a random recipe may run."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings

done = Counter[str]()
"""Random trees and runs so far; the number is printed at the end."""


def examples(at_ci: int) -> settings:
    """So many examples under the profile `ci`; `dev` takes a share of it."""
    profile = settings()  # what the command line chose
    return settings(max_examples=max(1, at_ci * profile.max_examples // 100))
