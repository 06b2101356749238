"""What a clock of tokens goes by: where the tokens of inputs lie, and what is due when."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ...errors import StateError
from ...types import Ints
from ..base.random import Words
from .shape import Floats


class Meter(Protocol):
    """Where the tokens of an input lie, by its draws, which never end."""

    def tokens(self, draw: int, /) -> int:
        """Those before a draw."""
        ...

    def lengths(self, start: int, stop: int, /) -> Ints:
        """Those of draws."""
        ...

    def near(self, token: int, /) -> tuple[int, int]:
        """The draw that holds a token, or one not long before it; the tokens before that."""
        ...


@dataclass(frozen=True)
class Gone:
    """The lengths of an input that is no longer there, or is another."""

    name: str

    def tokens(self, draw: int, /) -> int:
        raise self._error()

    def lengths(self, start: int, stop: int, /) -> Ints:
        raise self._error()

    def near(self, token: int, /) -> tuple[int, int]:
        raise self._error()

    def _error(self) -> StateError:
        return StateError(
            "the draws by shares of tokens before this mixture was adopted are unknown, because "
            f"the former lengths of {self.name!r} no longer exist; leave this input unchanged, "
            "with weight 0"
        )


@dataclass(frozen=True, eq=False)
class Law:
    """Weights over time: the shares of stairs, float64[sources, stairs], that begin at `edges`, in
    tokens."""

    shares: Floats
    edges: Floats

    @cached_property
    def due(self) -> Floats:
        """The tokens due of each source when each stair begins."""
        out = np.zeros_like(self.shares)
        np.cumsum(self.shares[:, :-1] * np.diff(self.edges), axis=1, out=out[:, 1:])
        return out

    def at(self, i: int, time: float) -> float:
        """The tokens that are due of a source at a time."""
        s = max(int(np.searchsorted(self.edges, time, side="right")) - 1, 0)
        return float(self.due[i, s] + (time - self.edges[s]) * self.shares[i, s])

    def times(self, i: int, tokens: Ints) -> Floats:
        """When so many tokens of a source are due; never where its weight is 0 from then on."""
        due, shares, edges = self.due[i], self.shares[i], self.edges
        if len(edges) == 1:
            return tokens / shares[0]
        s = np.maximum(np.searchsorted(due, tokens, side="right") - 1, 0)
        share = shares[s]
        out = np.full(len(tokens), np.inf)
        np.divide(tokens - due[s], share, out=out, where=share > 0)
        out += edges[s]
        return np.minimum(out, np.append(edges[1:], np.inf)[s])


@dataclass(frozen=True, eq=False)
class TokenClock:
    """The lengths of the inputs of a mixture, in order: their mean lengths and the keys of their
    hashes.
    """

    meters: tuple[Meter, ...]
    means: Floats
    keys: Words
