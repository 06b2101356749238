"""The data and the functions of a tree, as a state describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...types import UNKNOWN_DIGEST, SourceFacts, is_unidentified
from ..base.seams import world
from ..streams.step import Leaf
from .function_step import name_of
from .step import Step


def data_of(leaves: Sequence[Leaf]) -> dict[str, SourceFacts]:
    """Return the lengths and digests of the sources, by name."""
    return world.data.describe_sources({leaf.name: leaf.source for leaf in leaves})


def compared(
    saved: Mapping[str, SourceFacts],
    leaves: Sequence[Leaf],
    now: Mapping[str, SourceFacts],
    adopt: bool,
) -> list[str]:
    """Compare the data with a state; return notes on harmless differences."""
    sources = {leaf.name: leaf.source for leaf in leaves}
    return world.data.compare_sources(saved, sources, now, adopt)


def unidentified(leaves: Sequence[Leaf]) -> list[str]:
    """Return the names of the sources whose order of samples is unknown."""
    return [leaf.name for leaf in leaves if is_unidentified(leaf.source)]


_HINTS = ("files", "fingerprint")
"""Parts that may differ where the rows are equal."""


def known_parts(facts: SourceFacts) -> SourceFacts:
    """The parts by which the data of a source is the same on every rank, wherever each found its
    files."""
    return {
        part: told
        for part, told in facts.items()
        if part not in _HINTS and UNKNOWN_DIGEST not in str(told).split()
    }


# ---------------------------------------------------------------- functions


Code = list[list[str] | int]
"""Functions by name, with the digest of their code; of one that was told already, the place
where."""


def code_of(root: Step) -> Code:
    """Return every function of a tree, with the digest of its code."""
    told, places, known = Code(), dict[tuple[str, str], int](), dict[int, tuple[str, str]]()
    for place, fn in enumerate(_functions(root)):
        if id(fn) not in known:
            known[id(fn)] = name_of(fn), world.digests.digest_code(fn)
        first = places.setdefault(known[id(fn)], place)
        told.append(first if first < place else [*known[id(fn)]])
    return told


def _functions(step: Step) -> Iterator[Any]:
    """Yield the functions of a tree, innermost first."""
    for child in step.children:
        yield from _functions(child)
    yield from step.functions


def code_notes(saved: list[Any], now: Code) -> list[str]:
    """Functions of equal names whose code is another one. Between versions of Python it cannot be
    compared."""
    notes = list[str]()
    for then, (name, mine) in zip(_each(saved), _each(now), strict=True):
        if then[1] != mine and then[1].partition(":")[0] == mine.partition(":")[0]:
            notes.append(
                f"the code of {name} has changed; give the function a version to make this an error"
            )
    return notes


def _each(code: list[Any]) -> Iterator[Any]:
    return (code[told] if type(told) is int and 0 <= told < len(code) else told for told in code)
