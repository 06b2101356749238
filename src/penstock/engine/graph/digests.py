"""The data of a state: what every source holds, and what a difference means. And the functions of a
tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ...errors import StateError
from ...types import (
    UNKNOWN_DIGEST,
    Digest,
    Growing,
    Shards,
    Source,
    has_digest,
    is_in_memory,
    is_source,
    is_unidentified,
)
from ..base.seams import world
from ..steps.function_step import FunctionStep, name_of
from ..streams.step import Leaf
from .nodes import Flow, Hold, Mix, Read

Facts = Mapping[str, str | int]
"""The length of a source, and digests by the name of what they tell of."""


def data_of(leaves: Sequence[Leaf]) -> dict[str, Facts]:
    """What the sources hold, by name: their lengths and digests."""
    return {leaf.name: {**_length(leaf), **_digest(leaf)} for leaf in leaves}


def unidentified(leaves: Sequence[Leaf]) -> list[str]:
    """The names of the sources of which nothing tells in which order they give their samples."""
    return [leaf.name for leaf in leaves if is_unidentified(leaf.source)]


def _length(leaf: Leaf) -> Facts:
    return {"length": len(leaf.source)} if is_source(leaf.source) else {}


def _digest(leaf: Leaf) -> Digest:
    source = leaf.source
    if has_digest(source):
        found = source.digest()
        if not found and is_in_memory(source):
            return source.sample_digest()
        return {"digest": found} if isinstance(found, str) else found
    if is_source(source):
        return _sample(source, len(source))
    names = cast(Shards, source).names()
    return {
        "shards": world.digests.digest_memory([str(name).rpartition("/")[2] for name in names])
        or ""
    }


def compared(
    saved: Mapping[str, Facts], leaves: Sequence[Leaf], now: Mapping[str, Facts], adopt: bool
) -> list[str]:
    """What is to be told about data that is not just as it was saved; other data is refused."""
    notes, refused = list[str](), list[str]()
    for leaf in leaves:
        name, mine = leaf.name, now[leaf.name]
        then = saved.get(name, mine) if adopt else saved[name]
        if adopt and then.get("length") != mine.get("length") and (grown := _grown(leaf, then)):
            notes.append(grown)
            continue
        other, unknown = different(then, mine)
        if (
            "rows" in other
            and "rows" in mine
            and (is_in_memory(leaf.source) or not has_digest(leaf.source))
        ):
            mine = {
                **mine,
                "rows": mask_varying_digests(str(mine["rows"]), partial(_rows_again, leaf.source)),
            }
            other, unknown = different(then, mine)
        if other:
            refused.append(f"{name!r}: other {' and '.join(other)}")
        elif unknown:
            notes.append(
                f"{name!r}: its rows were not compared, because they cannot be read or change "
                "with every read"
            )
        elif then.get("files") != mine.get("files"):
            notes.append(
                f"{name!r}: its files differ from the files of the state (moved, re-sharded or "
                "compressed again?); the number of rows and 64 of the rows were compared and are "
                "equal"
            )
        elif then.get("fingerprint") != mine.get("fingerprint"):
            notes.append(
                f"{name!r}: its fingerprint differs from the fingerprint in the state (a function "
                "that datasets cannot hash?); the number of rows and "
                f"{len(str(mine['rows']).split())} of the rows were compared and are equal"
            )
    if not refused:
        return notes
    if adopt:
        return [
            *notes,
            *(f"{line} than in the state; adopted anyway" for line in refused),
        ]
    raise StateError(
        "the data differs from the data of the state, under the same names:\n"
        + "\n".join(f"  {line}" for line in refused[:20])
        + "\nread the data of the saved run (seed a shuffle that comes before Penstock, as in "
        ".shuffle(seed=0)), or continue with this data by on_mismatch='adopt'"
    )


def _rows_again(source: Any) -> str:
    """Digests of the few rows by which a source is known."""
    return (
        source.reread_digest()
        if is_in_memory(source)
        else str(_sample(source, len(source))["rows"])
    )


def _sample(source: Source, rows: int) -> Digest:
    return {"rows": world.digests.digest_source(source, rows)}


def compare_row_digests(left: object, right: object) -> bool | None:
    """Return whether two samples of row digests agree.

    The result is `None` if no row is readable in both.
    """
    left_digests, right_digests = str(left).split(), str(right).split()
    if len(left_digests) != len(right_digests):
        return False
    comparable = [
        pair for pair in zip(left_digests, right_digests, strict=True) if UNKNOWN_DIGEST not in pair
    ]
    return (
        all(left_digest == right_digest for left_digest, right_digest in comparable)
        if comparable or not left_digests
        else None
    )


def mask_varying_digests(digests: str, read: Callable[[], str], times: int = 4) -> str:
    """Return row digests, with `-` for rows whose digest differs in further samples.

    Random values may be equal twice by chance: a coin flip is, in half of all cases.

    >>> mask_varying_digests("1 2 -", iter(["1 2 3", "1 4 3", "1 2 3", "1 2 3"]).__next__)
    '1 - -'
    """
    samples = [digests.split(), *(read().split() for _ in range(times))]
    return " ".join(
        row[0] if len({*row}) == 1 else UNKNOWN_DIGEST for row in zip(*samples, strict=True)
    )


_HINTS = ("files", "fingerprint")
"""Parts that may differ where the rows are equal."""


def different(then: Facts, now: Facts) -> tuple[list[str], bool]:
    """The parts in which the data of a source differs, and whether its rows could not be
    compared."""
    parts = [part for part in dict.fromkeys([*now, *then]) if then.get(part) != now.get(part)]
    equal: bool | None = False
    if "rows" in then and "rows" in now:
        equal = compare_row_digests(then["rows"], now["rows"])
        parts = [part for part in parts if part != "rows" or equal is False]
    told = [part for part in parts if part not in _HINTS]
    return told if told or equal else parts, equal is None


def known_parts(facts: Facts) -> Facts:
    """The parts by which the data of a source is the same on every rank, wherever each found its
    files."""
    return {
        part: told
        for part, told in facts.items()
        if part not in _HINTS and UNKNOWN_DIGEST not in str(told).split()
    }


def _grown(leaf: Leaf, then: Facts) -> str | None:
    """Describe a source that has more rows than before; raise an error if its first rows differ."""
    source, before = cast("Source", leaf.source), cast("int", then["length"])
    if before >= len(source):
        return None
    grown = f"{leaf.name!r} has grown from {before} rows to {len(source)}"
    found: Facts = {}
    if isinstance(source, Growing):
        found = source.digest_of(before)
    elif not has_digest(leaf.source):
        found = _sample(source, before)
    if other := [
        part for part, mine in found.items() if compare_row_digests(then.get(part), mine) is False
    ]:
        raise StateError(
            f"{leaf.name!r} has grown from {before} rows to {len(source)}, but its first {before} "
            f"rows differ from the rows of the state (other {' and '.join(other)}), so the run "
            "cannot continue at its next sample; add rows at the end only, or rename the source "
            "to start it from its first row"
        )
    if not found:
        return f"{grown}; the first {before} were not compared, because the source has no digest"
    many = len(str(found.get("rows")).split())
    if not 1 < many < before:
        return f"{grown}; the first {before} equal the rows of the state"
    return (
        f"{grown}; {many} of the first {before} rows were compared and equal the rows of the state"
    )


# ---------------------------------------------------------------- functions


Code = list[list[str] | int]
"""Functions by name, with the digest of their code; of one that was told already, the place
where."""


def code_of(flow: Flow) -> Code:
    """Every function of a tree."""
    told, places, known = Code(), dict[tuple[str, str], int](), dict[int, tuple[str, str]]()
    for place, fn in enumerate(_functions(flow)):
        if id(fn) not in known:
            known[id(fn)] = name_of(fn), world.digests.digest_code(fn)
        first = places.setdefault(known[id(fn)], place)
        told.append(first if first < place else [*known[id(fn)]])
    return told


def _functions(flow: Flow) -> Iterator[Any]:
    """The functions of a tree, innermost first."""
    below = flow.flows if isinstance(flow, Mix) else () if isinstance(flow, Read) else (flow.flow,)
    for each in below:
        yield from _functions(each)
    if isinstance(flow, FunctionStep):
        yield flow.fn
    elif isinstance(flow, Hold) and flow.size:
        yield flow.size.measure


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
