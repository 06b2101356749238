"""Paths of steps: the names and numbers of inputs on the way from the root of a tree to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...types import Path

SLICE = -1
"""The part of a path that stands for a slice below a mixture."""


def names_in_keys(path: Path) -> tuple[str, ...]:
    """Return the names that random keys contain.

    Concat, zip and limit add none: they change nothing in their inputs. Names above a slice are
    left out: a slice is a fixed set of samples wherever it is put, or a split would leak.
    """
    start = len(path) - path[::-1].index(SLICE) if SLICE in path else 0
    return tuple(place for place in path[start:] if isinstance(place, str))


def format_path(path: Path) -> str:
    """Return the name of the source at a path."""
    return "/".join(place for place in path if isinstance(place, str))


class Migration(NamedTuple):
    """The place of a cursor in a run whose mixtures of streams are replaced.

    `names` are the former names of the inputs of replaced mixtures, by path. The run has `lanes`
    lanes.
    """

    names: Mapping[Path, Sequence[str]]
    lanes: int
    epoch: int
    path: Path = ()

    def replaces_below(self) -> bool:
        """Return whether a mixture at or below the path is replaced."""
        return any(path[: len(self.path)] == self.path for path in self.names)
