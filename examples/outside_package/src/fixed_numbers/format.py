"""Files of numbers of four bytes, as the entry point `penstock.formats` names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class FixedNumbers:
    """The rows of one file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.numbers = np.memmap(path, "<u4", "r")

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, indices: Any) -> list[dict[str, int]]:
        """Return rows, each a mapping as of any table."""
        return [{"number": number} for number in self.numbers[indices].tolist()]


def files(folder: Path) -> Sequence[Path]:
    """Return the data files of a folder that is one dataset; none for any other folder."""
    return sorted(folder.glob("*.fixed"))


def open(path: Path) -> FixedNumbers:
    """Return the rows of one file."""
    return FixedNumbers(path)
