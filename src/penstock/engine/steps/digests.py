"""The data and the functions of a tree, as a state describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ...types import UNKNOWN_DIGEST, SourceFacts, is_unidentified
from ..base.seams import world
from ..streams.function_call import Leaf
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


_HINTS = ("files", "fingerprint", "functions")
"""Parts that may differ where the rows are equal, and the code of functions in a source."""


def known_parts(facts: SourceFacts) -> SourceFacts:
    """Return the facts of a source that are equal on every rank, wherever its files are."""
    return {
        part: fact
        for part, fact in facts.items()
        if part not in _HINTS and UNKNOWN_DIGEST not in str(fact).split()
    }


# ---------------------------------------------------------------- functions


Code: TypeAlias = list[list[str] | int]
"""Functions by name and digest of their code; a repeated one is the number of its first entry."""


def code_of(root: Step) -> Code:
    """Return every function of a tree, with the digest of its code."""
    code, numbers, known = Code(), dict[tuple[str, str], int](), dict[int, tuple[str, str]]()
    for number, fn in enumerate(_functions(root)):
        if id(fn) not in known:
            known[id(fn)] = name_of(fn), world.digests.digest_code(fn)
        first = numbers.setdefault(known[id(fn)], number)
        code.append(first if first < number else [*known[id(fn)]])
    return code


def _functions(step: Step) -> Iterator[Any]:
    """Yield the functions of a tree, innermost first."""
    for child in step.children:
        yield from _functions(child)
    yield from step.functions


def code_notes(saved: list[Any], now: Code) -> list[str]:
    """Return a note for each function whose code changed.

    Code cannot be compared between versions of Python.
    """
    notes = list[str]()
    for before, (name, digest) in zip(_resolve(saved), _resolve(now), strict=True):
        changed = before[1] != digest
        if changed and before[1].partition(":")[0] == digest.partition(":")[0]:
            notes.append(
                f"the code of {name} has changed; give the function a version to make this an error"
            )
    return notes


def _resolve(code: list[Any]) -> Iterator[Any]:
    """Yield the entries, with the first entry in place of its number."""
    for entry in code:
        is_number = type(entry) is int and 0 <= entry < len(code)
        yield code[entry] if is_number else entry
