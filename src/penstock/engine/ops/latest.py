"""What was drawn last of each source before a position."""

from __future__ import annotations

import numpy as np

from ...types import Json
from .op import Before, Op


def last_samples(op: Op, position: int, ends: bool = False) -> dict[int, Json]:
    """Return the last sample before a position by leaf.

    Leaves that an op orders together share one. Leaves at the end of a pass have none, unless
    `ends` asks for the last of that pass.

    >>> from penstock import from_sequence, mix
    >>> ds = mix({"a": from_sequence("xyz"), "b": from_sequence("uvw")}, {"a": 2, "b": 1})
    >>> last_samples(ds.compiled.op, 4)
    {1: [[0], [0], [0]]}
    """
    found, todo = dict[int, Json](), [Before(op, position, ends)]
    while todo:
        op, position, ahead, *_ = todo.pop()
        below = [] if op.leaf is not None else [*op.before(position, ahead)]
        todo += below
        passes = op.passes
        within = passes is not None and passes.at(position).start != position
        if not below and passes is not None and (within or (ends and position)):
            rows = op.locate(np.asarray([position - 1]))
            place = np.searchsorted(sorted(op.leaves), rows.leaf).tolist()
            one: Json = [rows.epoch.tolist(), rows.index.tolist(), place]
            found |= dict.fromkeys(op.leaves, one)
    return dict(sorted(found.items()))
