"""Search for the sample that holds a token: by sums of lengths, from rough ones to exact ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ...types import Ints
from ..base.bounded_dict import BoundedDict
from ..base.rows import ProvenanceRows, compute_bounds
from .tokens import At, Lengths, SummedStep

NEAR = 1024  # documents looked at one by one
BEFORE = (
    NEAR // 8
)  # so many before the one that is looked for is where a guess goes: in few cases it is after it
_CLOSE = 4 * NEAR  # documents that are on average as long as others,
_TRIES = 8  # unless that takes more steps
_TOGETHER = 256  # documents of a block that is remembered
_CACHED_BLOCKS = 64  # threads look at neighbouring positions


def _roughly(tokens: Callable[[int], int], token: int, mean: float) -> int:
    """Estimate the position with rough sums: a few documents are not added up again."""
    guess, last, usual = int(token / mean), At(0, 0), mean
    for _ in range(_TRIES):
        at = At(guess, tokens(guess))
        if (
            at.document != last.document
            and (at.token - last.token) / (at.document - last.document) > usual / 2
        ):
            mean = (at.token - last.token) / (at.document - last.document)
        step = int((token - at.token) / mean) - BEFORE
        guess, last = max(at.document + step, 0), at
        if abs(step) <= _CLOSE:
            break
    return guess


def _search(tokens: Callable[[int], int], token: int, guess: int, mean: float) -> At:
    """Find the position exactly, beginning at a guess."""
    low, high, tries = At(0, 0), None, 0
    last, usual = At(0, 0), mean
    while token - low.token > NEAR // 2 * usual and (
        high is None or high.document - low.document > NEAR
    ):
        tries += 1
        if high is None:  # further, and sooner or later by leaps
            guess = max(guess, low.document + 1, 2 * low.document if tries > 3 else 0)
        else:
            guess = min(max(guess, low.document + 1), high.document - 1)
            if tries % 4 == 0:  # lengths may be anything: no more steps than halving takes, about
                guess = (low.document + high.document) // 2
        at = At(guess, tokens(guess))
        low, high = (at, high) if at.token <= token else (low, at)
        if at.document != last.document and at.token != last.token:
            mean = (at.token - last.token) / (at.document - last.document)
        guess += int((token - at.token) / mean) - BEFORE
        last = at
    return low


class Metered:
    """Positions of the tokens of an input."""

    def __init__(self, input: SummedStep, lengths: Lengths) -> None:
        self.input, self._lengths = input, lengths

    @cached_property
    def mean(self) -> float:
        """The tokens of a document, about."""
        many = min(self.input.size or NEAR, NEAR)
        return max(1.0, self.tokens(many) / max(many, 1))

    def tokens(self, document: int, /) -> int:
        """The tokens before a document."""
        return int(self.by_leaf(document).sum())

    def by_leaf(self, document: int, lengths: Lengths | None = None) -> Ints:
        """Return the tokens of each leaf."""
        lengths = self._lengths if lengths is None else lengths
        out = np.zeros(len(lengths.by_leaf), np.int64)
        self.input.tokens(document, lengths, out)
        return out

    def lengths(self, start: int, stop: int, /) -> Ints:
        """The tokens of documents."""
        return self.some(start, stop)[1]

    def some(self, start: int, stop: int) -> tuple[ProvenanceRows, Ints]:
        """Return the rows of documents, and their tokens."""
        positions = np.arange(start, stop)
        rows = self.input.locate(positions)
        return rows, self._lengths.of(rows)

    def near(self, token: int, /) -> At:
        """A document that begins at a token or not long before it."""
        return self.input.holding(token, self._lengths)


class BlockMeter(Metered):
    """Token positions of an endless input with a cache of blocks, for repeated questions about one
    neighbourhood.
    """

    def __init__(self, input: SummedStep, lengths: Lengths) -> None:
        super().__init__(input, lengths)
        self._blocks = BoundedDict[int, tuple[Ints, Ints]](_CACHED_BLOCKS)

    def _block(self, number: int) -> tuple[Ints, Ints]:
        """The tokens of the documents of a block, and those before each of them and after the
        last."""
        if (found := self._blocks.get(number)) is None:
            sizes = super().lengths(number * _TOGETHER, (number + 1) * _TOGETHER)
            found = sizes, compute_bounds(sizes) + super().tokens(number * _TOGETHER)
            self._blocks[number] = found
        return found

    def tokens(self, document: int, /) -> int:
        number, place = divmod(document, _TOGETHER)
        return int(self._block(number)[1][place])

    def lengths(self, start: int, stop: int, /) -> Ints:
        if stop - start > _TOGETHER:
            return super().lengths(start, stop)
        number, place = divmod(start, _TOGETHER)
        sizes = self._block(number)[0][place : place + stop - start]
        if len(sizes) < stop - start:
            sizes = np.concatenate([sizes, self._block(number + 1)[0][: stop - start - len(sizes)]])
        return sizes


def holding(input: SummedStep, token: int, lengths: Lengths) -> At:
    """A position of an input at which a token begins, or one not long before."""
    meter = Metered(input, lengths)
    if (mean := lengths.means.get(id(input))) is None:
        mean = lengths.means[id(input)] = meter.mean
    guess = _roughly(lambda k: int(meter.by_leaf(k, lengths.about).sum()), token, mean)
    found = _search(meter.tokens, token, guess, mean)
    if found.document > NEAR:
        lengths.means[id(input)] = max(
            found.token / found.document, 1.0
        )  # what is asked next lies as far, or so
    return found
