"""Facts that a change of a plan needs: the progress of each source, and the samples meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...errors import ConfigError
from ..base.arguments import join_first, suggest_names
from ..base.integers import check_int
from ..ops.gaps import GapOp
from ..ops.op import Op
from ..ops.order import RoundOp
from ..ops.repeat_each import RepeatEachOp
from ..ops.without import WithoutOp
from ..steps.function_step import FunctionOp
from .records import Sample


def reached(op: Op, leaf: int, name: str, position: int, lap: int = 0) -> tuple[int, int]:
    """Return the pass and the position of a source after which nothing was delivered before."""
    if position == 0:
        return lap, 0
    if op.leaf is not None and not isinstance(op, FunctionOp | GapOp | RepeatEachOp | WithoutOp):
        return lap, position
    for below in op.before(position, lap):
        own_order = not below.first and not (
            isinstance(op, RoundOp) and op.flow.goes_round(op.size or 1)
        )
        if leaf in below.op.leaves and own_order:
            return reached(below.op, leaf, name, below.position, below.lap)
    raise ConfigError(
        f"plan.exclude: a shuffle or slice over several sources changes the order of {name!r}, so "
        "its samples can be excluded from the start only; edit the plan before the run begins"
    )


def by_source(keys: Iterable[Any], sizes: dict[str, int]) -> dict[str, list[int]]:
    """Group keys by source. A key is (source, index), (source, epoch, index) or a `Sample`."""
    if isinstance(keys, str | Sample) or not isinstance(keys, Iterable) or _is_key(keys):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"plan.exclude({keys!r}): give a list, even of one key: [(source, index)]"
        )
    out = dict[str, list[int]]()
    for key in keys:
        source, index = (key.source, key.index) if isinstance(key, Sample) else _pair(key)
        if source not in sizes:
            hint = suggest_names(source, sizes) or f"; the plan has {join_first(sizes)}"
            raise ConfigError(f"plan.exclude: no source {source!r}{hint}")
        if not 0 <= index < sizes[source]:
            raise IndexError(
                f"plan.exclude: {source!r} has no sample {index}; give an index below "
                f"{sizes[source]}"
            )
        out.setdefault(source, []).append(int(index))
    return out


def _is_key(keys: Iterable[Any]) -> bool:
    return isinstance(keys, tuple | list) and len(keys) in (2, 3) and isinstance(keys[0], str)  # pyright: ignore[reportUnknownArgumentType]


def _pair(key: Any) -> tuple[str, int]:
    """Return source and index of a key with two or three parts."""
    if not isinstance(key, tuple | list) or len(cast("tuple[Any, ...]", key)) not in (2, 3):
        raise ConfigError(
            f"plan.exclude: {key!r} is not a key; give (source, index), or a result of "
            "Loader.keys() or plan.at()"
        )
    source, *_, index = cast("tuple[Any, ...]", key)
    return source, check_int(index, "plan.exclude: {}")
