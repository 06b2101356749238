"""Documents joined and cut into batches of rows in Python, for peers that do not pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .work import Docs


def join(documents: Iterable[Any], work: Docs) -> Iterator[Any]:
    """Batches of full rows; what is left at the end is dropped."""
    import numpy as np

    size, parts, have = work.rows * work.length, list[Any](), 0
    for document in documents:
        parts.append(document)
        have += len(document)
        while have >= size:
            whole = np.concatenate(parts)
            yield whole[:size].reshape(work.rows, work.length)
            parts, have = [whole[size:]], have - size
