"""Time limit of a query."""

from __future__ import annotations

from penstock.engine.base.seams import world

QUERY_SECONDS = 0.06


class TimeBudget:
    """Time that a query may take: it returns a part of the answer when the time is spent.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float = QUERY_SECONDS) -> None:
        self._end = world.sched.now() + seconds

    @property
    def is_spent(self) -> bool:
        """True if no time is left."""
        return world.sched.now() >= self._end
