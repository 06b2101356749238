"""What an order costs to read, told once where it is far more than it need be."""

from __future__ import annotations

import logging
from functools import lru_cache

from ...sources import DECODED_CACHE_BYTES, JoinedFiles
from ...sources.chain import DecodingCost
from ...sources.select import SelectedRows
from ..steps.function_step import FunctionStep
from .nodes import Flow, Read, Reorder

_MANY = 16  # times the bytes of a sample, from which on decoding more than that is worth a word
_MOST = 64  # row groups that the advised shuffle mixes


def tell_of_shuffle(flow: Flow) -> None:
    """Say once what a full shuffle of this flow decodes for a sample, where that is many times the
    sample."""
    while isinstance(flow, FunctionStep | Reorder):
        flow = flow.flow
    if not isinstance(flow, Read) or not isinstance(flow.source, JoinedFiles | SelectedRows):
        return
    found = flow.source.decoding()
    if found is not None and (missed := 1 - DECODED_CACHE_BYTES / max(found.total, 1)) > 0:
        each = missed * found.group
        if each > _MANY * found.group / max(found.rows, 1):
            _tell(flow.name or flow.source.name, found, round(each))


@lru_cache(1000)
def _tell(name: str, found: DecodingCost, each: int) -> None:
    """Said once."""
    window = max(2, min(_MOST, DECODED_CACHE_BYTES // 2 // max(found.group, 1)))
    logging.getLogger("penstock").warning(
        "%s: a full shuffle decodes about %.1f MiB for each sample, because its row groups have "
        "%d rows and do not fit into memory once decoded; use shuffle(block=(%d, %d)), which "
        "decodes each about once a pass, or shuffle(window=%d), which is less random, or write "
        "smaller row groups or Arrow files",
        name, each / 2**20, found.rows, found.rows, window, found.rows * window,
    )  # fmt: skip
