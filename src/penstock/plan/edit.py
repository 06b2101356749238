"""What an edit needs to know of a plan: how far each source has come at a position, and which samples are meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ..errors import ConfigError
from ..ints import whole
from ..inverse import Counted, below_batch, leaf_of
from ..order import Gap, Repeat, Slice
from ..packed import PackProgram
from ..program import BatchProgram, EachProgram, MixProgram, Program, ReorderProgram
from ..without import WithoutProgram
from .records import Sample


def reached(program: Program, leaf: int, name: str, position: int) -> int:
    """The position of a source's own flow from which on nothing was given before a position of the program."""
    if position == 0:
        return 0
    match program:
        case WithoutProgram():
            return int(program.down(np.asarray([position]))[0])
        case EachProgram(flow):
            return reached(flow, leaf, name, position)
        case ReorderProgram(flow, Gap() as gap):
            last = gap.down(np.asarray([position - 1]), flow.size, 0)[0]
            return reached(flow, leaf, name, int(last[0]) + 1)
        case _ if leaf_of(program) is not None:
            return position
        case BatchProgram(flow):
            return reached(flow, leaf, name, below_batch(program, position))
        case PackProgram(flow):
            return reached(flow, leaf, name, program.drawn(position))
        case ReorderProgram(flow, Repeat()):
            return reached(flow, leaf, name, position)
        case ReorderProgram(flow, Slice(0, length, 1)) if position <= length:
            return reached(flow, leaf, name, position)
        case MixProgram(flows, schedule) if isinstance(schedule, Counted):
            i, epoch = int(program.owner[leaf]), 0 if program.size is None else position // program.size
            drawn = int(schedule.counts(position - epoch * (program.size or 0))[i])
            return reached(flows[i], leaf, name, drawn + (epoch * int(program.advance[i]) if epoch else 0))
        case _:
            raise ConfigError(
                f"plan.exclude: {name!r} is not drawn from in its own order here (a shuffle or slice lies over several "
                "sources), so samples can only be left out from the start: edit the plan before the run begins"
            )


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
