"""What is unusual in some steps of a run: figures of these steps beside those of other stretches
that are as long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.engine.base.progress import Progress

from .stretch import Look, Measured
from .target import Target

OTHERS = 48  # stretches of the run that are looked at beside the one asked about
_LEAST = 0.004  # bits from which on something is told
_USUAL = 0.9  # of the other stretches differ less than what is told

Floats: TypeAlias = npt.NDArray[np.float64]
Figure: TypeAlias = Callable[[Measured], Floats]


@dataclass(frozen=True)
class Finding:
    """Something unusual of a source. `here` and `usual` are the figures that are compared, the
    usual one that of the middle of the other stretches; `bits` is how much it tells: the part of
    the steps that is concerned, times how many times as much as usual, as a power of two, less what
    most other stretches have of it.
    """

    kind: str
    source: str
    here: float
    usual: float
    bits: float
    text: str


def blame(target: Target, steps: range) -> list[Finding]:
    """What is unusual in these steps against the run: a finding a source, the most unusual first.

    Compared are shares of sources, how long their documents are, documents that come again within
    the steps (also from copies of a file), files that give more than usual, and passes over
    sources.
    """
    look = Look(target)
    here, others = look.measured(steps), list[Measured]()
    with Progress("blame", OTHERS, "stretches") as progress:
        for other in _others(steps, target.horizon(None)):
            others.append(look.measured(other))
            progress.more(1)
    if not others:
        return []
    found = [
        *_told("share", here, others, lambda one: one.share, lambda one: one.share, _share),
        *_told("length", here, others, lambda one: one.length, lambda one: one.share, _length),
        *_told(
            "repeats",
            here,
            others,
            lambda one: one.again,
            lambda one: one.again,
            _repeats(look, here),
        ),
        *_told(
            "file", here, others, lambda one: one.fullest, lambda one: one.share, _file(look, here)
        ),
        *_told("epoch", here, others, lambda one: 1 + one.epoch, lambda one: one.share, _epoch),
    ]
    begun = _begun(target, steps)
    named = [
        replace(one, source=target.plan.sources[number], text=f"{one.text}{begun.get(number, '')}")
        for number, one in _strongest(found)
    ]
    return [one for one in named if one.bits >= _LEAST]


def _others(steps: range, end: int) -> Iterator[range]:
    """Stretches of the same length, spread over the run, none of which touches the one asked
    about."""
    many, room = len(steps), end - len(steps)
    places = np.unique(np.linspace(0, max(room, 0), 2 * OTHERS).astype(np.int64)).tolist()
    apart = [at for at in places if at >= steps.stop or at + many <= steps.start]
    for at in apart[:: -(-len(apart) // OTHERS) or 1]:
        yield range(at, at + many)


Say: TypeAlias = Callable[[int, float, float], str]
Found: TypeAlias = "tuple[int, Finding]"


def _told(
    kind: str, here: Measured, others: Sequence[Measured], figure: Figure, part: Figure, say: Say
) -> Iterator[Found]:
    """One figure of every source: how far it is from the usual, and whether most other stretches
    are as far from it."""
    with np.errstate(invalid="ignore"):
        values = np.stack([figure(one) for one in others])
        there = ~np.isnan(values).all(axis=0)
        usual = np.zeros(values.shape[1])
        usual[there] = np.nanmedian(values[:, there], axis=0)
    parts, small = np.stack([part(one) for one in others]), 0.5 / max(1, here.total)
    usual_part = np.median(parts, axis=0)

    def bits(value: Floats, share: Floats) -> Floats:
        # What there is less of is missed by as much as it usually is.
        far = np.log2((np.nan_to_num(value) + small) / (usual + small))
        far[np.isnan(value)] = 0
        return np.where(far > 0, share, np.maximum(usual_part, share)) * np.abs(far)

    own = bits(figure(here), part(here))
    most = np.quantile(
        np.stack([bits(*both) for both in zip(values, parts, strict=True)]), _USUAL, axis=0
    )
    if kind != "share":
        own[~there] = 0
    for number in np.flatnonzero(own - most >= _LEAST).tolist():
        a, b = float(figure(here)[number]), float(usual[number])
        if kind == "epoch" and a < b:  # as it is where a run begins
            continue
        yield number, Finding(kind, "", a, b, float(own[number] - most[number]), say(number, a, b))


def _strongest(found: Sequence[Found]) -> list[Found]:
    """Of each source the finding that tells most, with what the others say of it; the most unusual
    source first."""
    best = dict[int, Finding]()
    for number, one in sorted(found, key=lambda pair: -pair[1].bits):
        if number not in best:
            best[number] = one
        else:
            best[number] = replace(best[number], text=f"{best[number].text}; {one.text}")
    return sorted(best.items(), key=lambda pair: -pair[1].bits)


def _share(_: int, here: float, usual: float) -> str:
    return f"gives {here:.2%} of these steps, usually {usual:.2%}"


def _length(_: int, here: float, usual: float) -> str:
    how = (
        f"{here / usual:.1f} times as long as"
        if here > usual
        else f"{usual / max(here, 1e-9):.1f} times shorter than"
    )
    return f"its documents are {how} usual: {here:,.0f} tokens, usually {usual:,.0f}"


def _repeats(look: Look, here: Measured) -> Say:
    def say(number: int, again: float, usual: float) -> str:
        its = here.samples[number]
        where = look.file(number, int(here.file[number]))
        most = f", {here.fullest[number]:.0%} of them from {where}" if where else ""
        said = (
            f"{again * here.total:,.0f} of its {its:,.0f} documents come again within these steps"
        )
        return f"{said}, usually {usual * here.total:,.0f}{most}"

    return say


def _file(look: Look, here: Measured) -> Say:
    def say(number: int, part: float, usual: float) -> str:
        name = look.file(number, int(here.file[number]))
        return f"{part:.0%} of it comes from {name}, usually {usual:.0%} from one file"

    return say


def _epoch(_: int, here: float, usual: float) -> str:
    return f"it is in pass {here:.1f} on average, usually {usual:.1f}"


def _begun(target: Target, steps: range) -> dict[int, str]:
    """What begins or ends with sources within the steps."""
    a, b, end = (
        list(target.rows.counts(step=step).values())
        for step in (steps.start, steps.stop, target.horizon(None))
    )
    told = dict[int, str]()
    for number, name in enumerate(target.plan.sources):
        size = target.sizes.get(name, 0)
        if not a[number] and b[number] and steps.start:
            told[number] = "; first drawn here"
        elif size and a[number] // size < b[number] // size:
            told[number] = f"; its pass {b[number] // size + 1:,} begins here"
        elif (
            b[number] == end[number] and a[number] < b[number] and steps.stop < target.horizon(None)
        ):
            told[number] = "; not drawn after these steps"
    return told
