"""What was drawn last of each source before a position."""

from __future__ import annotations

import numpy as np

from ...types import Json
from .op import Before, Op


def last_samples(op: Op, position: int, lap: int, ends: bool = False) -> dict[int, Json]:
    """By leaf, which of its samples was drawn last before a position of a lap; of leaves that an op
    orders together, which of all. None of what stands between two passes of it, unless `ends` asks
    for the last of the first of them.

    >>> from penstock import from_sequence, mix
    >>> ds = mix({"a": from_sequence("xyz"), "b": from_sequence("uvw")}, {"a": 2, "b": 1})
    >>> last_samples(ds.compiled.op, 4, 0)
    {1: [[0], [0], [0]]}
    """
    found, todo = dict[int, Json](), [Before(op, position, lap, ends)]
    while todo:
        op, position, lap, ahead, _ = todo.pop()
        below = [] if op.leaf is not None else [*op.before(position, lap, ahead)]
        todo += below
        if not below and op.size and (position % op.size or (ends and position)):
            rows = op.locate(np.asarray([position - 1]), np.asarray([lap]))
            place = np.searchsorted(sorted(op.leaves), rows.leaf).tolist()
            one: Json = [rows.epoch.tolist(), rows.index.tolist(), place]
            found |= dict.fromkeys(op.leaves, one)
    return dict(sorted(found.items()))
