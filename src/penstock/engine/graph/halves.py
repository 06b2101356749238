"""A dataset in two parts that never meet: by where samples lie, or by a key of theirs."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any, Literal, TypeAlias

from ...arguments import check_choice, check_int
from ...errors import ConfigError
from ...types import FileSource
from ..orders import Portion, Slice, parse_fraction
from .nodes import Flow, Read, Reorder

SplitBy: TypeAlias = Literal["hash", "position"]

SPLITS: tuple[SplitBy, ...] = ("hash", "position")


def placed(flow: Flow, size: int, held_out: Any, by: SplitBy, seed: int) -> tuple[Flow, Flow]:
    """Both parts of an indexed flow, by the places of its samples."""
    check_choice(by, SPLITS, "split(by={})")
    seed = check_int(seed, "split(seed={})")
    share = _share(held_out, size)
    if by == "position":
        kept = size - ceil(share * size)
        return Reorder(flow, Slice(0, kept)), Reorder(flow, Slice(kept, size - kept))
    order = Portion(share.numerator, share.denominator, seed)
    return Reorder(flow, order.complement()), Reorder(flow, order)


def keyed(flow: Flow, held_out: Any, column: str) -> tuple[Flow, Flow]:
    """Both parts of the rows of files, by a hash of what a column holds: equal values go to one
    side."""
    if isinstance(held_out, int):
        raise ConfigError(
            f"split({held_out}, column={column!r}): keys cannot be counted beforehand; give a "
            "share, such as '0.5%'"
        )
    share = float(parse_fraction(held_out, "split({})"))
    source = flow.source if isinstance(flow, Read) else None
    halves = source.split_by_hash(column, share) if isinstance(source, FileSource) else None
    if halves is None or not isinstance(flow, Read):
        raise ConfigError(
            f"split(column={column!r}): only rows of files have columns; split directly after "
            "ps.read(...)"
        )
    return Read(halves[0], flow.name), Read(halves[1], flow.name)


def _share(held_out: Any, size: int) -> Fraction:
    """The share that is asked for, or that so many samples are."""
    if not isinstance(held_out, int):
        return parse_fraction(held_out, "split({})")
    if not 0 < check_int(held_out, "split({})", 1) < size:
        raise ConfigError(
            f"split({held_out}): the dataset has {size} samples; hold out between 1 and {size - 1}"
        )
    return Fraction(held_out, size)
