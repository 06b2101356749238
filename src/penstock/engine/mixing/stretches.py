"""Stretches of a mixture that hold one source each: positions, draws and limits counted in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from ...errors import ConfigError
from ...schedule import InterpolationSpan
from ...types import MAX_POSITION, Ints
from .timeline import Limits
from .token_clock import Meter

T = TypeVar("T", int, Ints)


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretches of `size` positions; stretch 0 begins at position `start`.

    Stretch `k` of a source holds `size` neighbouring draws of it, from draw `first + k * size` on.
    A mixture that continues another one begins at any position, with any number of draws.

    >>> stretches = Stretches(4, 1, np.asarray([0, 2]))
    >>> stretches.split(10), stretches.begin(2), stretches.draws(np.asarray([1, 1])).tolist()
    ((2, 1), 9, [4, 6])
    """

    size: int
    start: int
    first: Ints

    def split(self, position: T) -> tuple[T, T]:
        """Return the stretch of a position, and the offset in it."""
        stretch = (position - self.start) // self.size
        return stretch, position - self.start - stretch * self.size

    def number(self, position: int) -> int:
        """Return the stretch of a position."""
        return (position - self.start) // self.size

    def begin(self, stretch: T) -> T:
        """Return the first position of a stretch."""
        return stretch * self.size + self.start

    def join(self, source: Ints, k: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """Return the sources, and the draws at offsets in their `k`-th stretches."""
        return source, k * self.size + self.first[source] + offsets

    def split_draws(self, source: Ints, draws: Ints) -> tuple[Ints, Ints]:
        """Return the stretches of draws of sources, and the offsets in them."""
        draws = draws - self.first[source]
        stretch = draws // self.size
        return stretch, draws - stretch * self.size

    def draws(self, stretches: Ints) -> Ints:
        """Return the draws of every source in its first so many stretches."""
        return stretches * self.size + self.first

    def limits(self, limits: Limits) -> Limits:
        """Return limits counted in whole stretches: a source that cannot fill one has no other."""
        if self.size == 1:
            return limits
        most = np.where(limits.most < MAX_POSITION, self._count_whole(limits.most), MAX_POSITION)
        more = 0 if limits.stop == "first_exhausted" else self.size - 1
        goal = np.minimum(self._count_whole(limits.goal + more), most)
        goal = np.where(limits.goal < MAX_POSITION, goal, MAX_POSITION)
        return replace(limits, most=most, goal=goal)

    def require_filled(self, limits: Limits, opened: Sequence[bool]) -> None:
        """Raise `ConfigError` if an input that is drawn from has too few draws for one stretch."""
        draws = limits.goal if limits.stop == "first_exhausted" else limits.most
        for name, count, is_open in zip(limits.names, draws.tolist(), opened, strict=True):
            if is_open and count < self.size:
                raise ConfigError(
                    f"mix(one_source_per={self.size}): {name!r} gives {count} samples in a pass of "
                    "the mixture, fewer than that; leave it out, repeat() it, or use "
                    "stop='restart' without max_epochs"
                )

    def _count_whole(self, draws: Ints) -> Ints:
        return np.maximum(draws - self.first, 0) // self.size

    def spans(self, spans: Sequence[InterpolationSpan]) -> tuple[InterpolationSpan, ...]:
        """Return the spans of a schedule in stretches: each has the weights at its beginning."""
        if self.size == 1:
            return tuple(spans)
        out = list[InterpolationSpan]()
        for span in spans:
            begin, end = self._next_stretch(span.begin), span.end and self._next_stretch(span.end)
            if end is None or begin < end:
                ends = ((at - self.start) / self.size for at in (span.origin, span.target))
                origin, target = ends
                out.append(replace(span, begin=begin, end=end, origin=origin, target=target))
        return tuple(out)

    def _next_stretch(self, position: int) -> int:
        """Return the first stretch that does not begin before a position."""
        return max(0, self.number(position + self.size - 1))

    def meters(self, meters: Sequence[Meter]) -> tuple[Meter, ...]:
        """Return the token counts of stretches."""
        if self.size == 1:
            return tuple(meters)
        firsts = self.first.tolist()
        return tuple(StretchMeter(m, self.size, a) for m, a in zip(meters, firsts, strict=True))


@dataclass(frozen=True, eq=False)
class StretchMeter:
    """The tokens of the stretches of an input, by the tokens of its draws."""

    meter: Meter
    size: int
    first: int

    @cached_property
    def _before(self) -> int:
        """The tokens before the first stretch."""
        return self.first and self.meter.tokens(self.first)

    def tokens(self, draw: int, /) -> int:
        """Return the tokens before a stretch, from the first one on."""
        return self.meter.tokens(draw * self.size + self.first) - self._before

    def lengths(self, start: int, stop: int, /) -> Ints:
        """Return the tokens of each stretch of a range."""
        first, last = (draw * self.size + self.first for draw in (start, stop))
        return self.meter.lengths(first, last).reshape(-1, self.size).sum(axis=1)

    def near(self, token: int, /) -> tuple[int, int]:
        """Return a stretch that begins at a token or not long before it, and the tokens before."""
        draw = self.meter.near(token + self._before)[0] - self.first
        stretch = max(0, draw // self.size)
        return stretch, self.tokens(stretch)
