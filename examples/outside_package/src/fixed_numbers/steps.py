"""An order, a mixing rule and a fold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Backwards:
    """Order each pass from its end to its beginning."""

    def size(self, below: Any) -> Any:
        """Return the length of a pass."""
        return below

    def down(self, positions: Any, below: Any, key: int) -> Any:
        """Return the positions of the input."""
        epoch, index = np.divmod(positions, below)
        return epoch * below + (below - 1 - index), None

    def up(self, positions: Any, below: Any, key: int) -> Any:
        """Return the positions at which these come."""
        return self.down(positions, below, key)[0]

    def describe(self) -> Any:
        """Return what identifies the order in a state."""
        return {"order": "backwards"}


@dataclass(frozen=True)
class TwoToOne:
    """Draw twice from the first input, once from the second."""

    def size(self, sizes: Any) -> Any:
        """Return the length of a pass: it is endless."""
        return None

    def at(self, positions: Any) -> Any:
        """Return the input and the number of the draw at each position."""
        group, offset = np.divmod(positions, 3)
        return np.where(offset < 2, 0, 1), np.where(offset < 2, 2 * group + offset, group)

    def describe(self) -> Any:
        """Return what identifies the rule in a state."""
        return {"rule": "two to one"}


@dataclass(frozen=True)
class UpTo:
    """Group neighbours whose sizes sum to at most `limit`."""

    limit: int

    def init(self, key: int) -> Any:
        """Return the value that the first step takes."""
        return []

    def step(self, waiting: Any, item: Any) -> Any:
        """Return the new value and the groups that are ready."""
        if sum(other.size for other in waiting) + item.size > self.limit:
            return [item], [waiting] if waiting else []
        return [*waiting, item], []

    def flush(self, waiting: Any) -> Any:
        """Return the groups at the end of a pass."""
        return [waiting] if waiting else []

    def describe(self) -> Any:
        """Return what identifies the fold in a state."""
        return {"fold": "up to", "limit": self.limit}
