"""The flow of a run on many ranks, which must end on all of them at one step."""

from __future__ import annotations

from ...errors import ConfigError
from ..streams.deal import Remainder
from .ends import endless
from .indexed import why_not
from .nodes import Again, Flow
from .tail import batches_of_rank, below_tail


def going_on(flow: Flow, world_size: int, remainder: Remainder, epoch_length: int | None) -> Flow:
    """The flow of a run on one of its ranks. Lanes end at different items, so several ranks need
    one without an end."""
    flow = batches_of_rank(flow, world_size, remainder == "drop")
    if (reason := why_not(flow)) is None or endless(flow) or remainder == "keep":
        return flow
    if epoch_length is not None:
        return below_tail(flow, lambda rows: Again(rows, None))
    if world_size > 1:
        raise ConfigError(
            f"the ranks would end at different steps: {reason}, so the end of a pass on each of "
            f"{world_size} ranks is unknown beforehand; repeat() the dataset, give "
            "Loader(epoch_length=n), or accept different ends with Loader(remainder='keep')"
        )
    return flow
