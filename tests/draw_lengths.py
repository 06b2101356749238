"""The lengths of the draws of a source, as a mixture by tokens asks for them."""

from __future__ import annotations

from typing import Any

import numpy as np


class Lengths:
    """Draws of these lengths, pass after pass."""

    def __init__(self, sizes: Any) -> None:
        self.sizes = np.asarray(sizes, np.int64)
        self.ends = np.concatenate([[0], np.cumsum(self.sizes)])

    def tokens(self, draw: int, /) -> int:
        epoch, place = divmod(draw, len(self.sizes))
        return epoch * int(self.ends[-1]) + int(self.ends[place])

    def lengths(self, start: int, stop: int, /) -> Any:
        return self.sizes[np.arange(start, stop) % len(self.sizes)]

    def near(self, token: int, /) -> tuple[int, int]:
        epoch, rest = divmod(token, int(self.ends[-1]))
        place = max(int(np.searchsorted(self.ends, rest, side="right")) - 3, 0)
        return epoch * len(self.sizes) + place, epoch * int(self.ends[-1]) + int(self.ends[place])
