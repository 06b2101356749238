"""What an edit needs to know of a plan: how far each source has come at a position, and which samples are meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ..errors import ConfigError
from ..ints import whole
from ..inverse import Counted, below_batch, lap_of, leaf_of
from ..order import Gap, Repeat, Replay, Slice, Told
from ..packed import PackProgram
from ..program import BatchProgram, EachProgram, MixProgram, PassesProgram, Program, ReorderProgram
from ..without import WithoutProgram
from .records import Sample


def reached(program: Program, leaf: int, name: str, position: int, lap: int = 0) -> tuple[int, int]:
    """The lap and the position of a source's own flow from which on nothing was given before a position of the
    program.
    """
    if position == 0:
        return lap, 0
    match program:
        case WithoutProgram():
            return lap, int(program.in_lap(lap).down(np.asarray([position]))[0])
        case EachProgram(flow):
            return reached(flow, leaf, name, position, lap)
        case ReorderProgram(flow, Gap() as gap):
            last = gap.down(np.asarray([position - 1]), flow.size, 0)[0]
            return reached(flow, leaf, name, int(last[0]) + 1, lap)
        case _ if leaf_of(program) is not None:
            return lap, position
        case BatchProgram(flow):
            return reached(flow, leaf, name, below_batch(program, position), lap)
        case PackProgram(flow):
            return reached(flow, leaf, name, program.drawn(position), lap)
        case ReorderProgram(flow, Repeat() | Told()):
            return reached(flow, leaf, name, position, lap)
        case ReorderProgram(flow, Slice(0, _, 1) | Replay() as order):
            size = order.size(flow.size) if isinstance(order, Slice) else flow.size
            own, place = divmod(position, size or 1)
            if not _goes_round(flow, size or 1):
                return reached(flow, leaf, name, place, lap + own)
        case MixProgram() | PassesProgram():
            part, _, place = program.place(position)
            if isinstance(part.schedule, Counted):
                i, epoch = int(part.owner[leaf]), 0 if part.size is None else place // part.size
                drawn = part.schedule.counts(place - epoch * (part.size or 0)) + part.before(epoch)
                return reached(part.flows[i], leaf, name, int(drawn[i]), lap)
        case _:
            pass
    raise ConfigError(
        f"plan.exclude: {name!r} is not drawn from in its own order here (a shuffle or slice lies over several "
        "sources), so samples can only be left out from the start: edit the plan before the run begins"
    )


def _goes_round(program: Program, stop: int) -> bool:
    """Whether positions before this one go more than once through a slice of several sources."""
    match program:
        case _ if leaf_of(program) is not None:
            return False
        case ReorderProgram(flow, order) if (around := lap_of(order, flow.size)) is not None:
            return stop > around[0] or _goes_round(flow, around[2])
        case BatchProgram(flow):
            return _goes_round(flow, below_batch(program, stop))
        case MixProgram(flows) | PassesProgram(flows):
            return any(_goes_round(flow, stop) for flow in flows)
        case EachProgram(flow) | ReorderProgram(flow):
            return _goes_round(flow, stop)
        case _:
            return False


def by_source(keys: Iterable[Any], sizes: dict[str, int]) -> dict[str, list[int]]:
    """Samples to be left out, by source. A key is (source, index), (source, epoch, index) or a `Sample`."""
    out = dict[str, list[int]]()
    for key in keys:
        source, index = (key.source, key.index) if isinstance(key, Sample) else _pair(key)
        if source not in sizes:
            raise ConfigError(f"plan.exclude: no source {source!r}; the plan has {', '.join(list(sizes)[:8])}")
        if not 0 <= index < sizes[source]:
            raise IndexError(f"plan.exclude: sample {index} of {source!r}, which has {sizes[source]}")
        out.setdefault(source, []).append(int(index))
    return out


def _pair(key: Any) -> tuple[str, int]:
    """Source and index of a key of two or three parts."""
    if not isinstance(key, tuple | list) or len(cast("tuple[Any, ...]", key)) not in (2, 3):
        raise ConfigError(f"plan.exclude: {key!r} is no key; give (source, index), or what Loader.keys() gives")
    source, *_, index = cast("tuple[Any, ...]", key)
    return source, whole(index, "plan.exclude: {}")
