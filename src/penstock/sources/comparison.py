"""Compare the data of a saved state with the data of now: what each source holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from ..engine.steps.digests import code_notes
from ..errors import StateError
from ..types import (
    UNKNOWN_DIGEST,
    Digest,
    Growing,
    Shards,
    Source,
    SourceFacts,
    has_digest,
    is_in_memory,
    is_source,
)
from .digests import digest_memory, digest_source

_HINTS = ("files", "fingerprint")
"""Parts that may differ where the rows are equal."""
FUNCTIONS = "functions"
"""Part with a line for each function in a source: its name and the digest of its code."""


def _digest(source: Source | Shards) -> Digest:
    if has_digest(source):
        found = source.digest()
        if not found and is_in_memory(source):
            return source.sample_digest()
        return {"digest": found} if isinstance(found, str) else found
    if is_source(source):
        return _sample(source, len(source))
    names = cast(Shards, source).names()
    return {"shards": digest_memory([str(name).rpartition("/")[2] for name in names]) or ""}


def describe_sources(sources: Mapping[str, Source | Shards]) -> dict[str, SourceFacts]:
    """Return the length and the digests of each source."""
    return {
        name: {**({"length": len(source)} if is_source(source) else {}), **_digest(source)}
        for name, source in sources.items()
    }


def compare_sources(
    saved: Mapping[str, SourceFacts],
    sources: Mapping[str, Source | Shards],
    now: Mapping[str, SourceFacts],
    adopt: bool,
) -> list[str]:
    """Compare the data with the data of a state; return notes on harmless differences.

    Args:
        saved: the facts in the state.
        sources: the sources of the pipeline.
        now: their facts.
        adopt: whether other data is noted instead of refused.

    Raises:
        StateError: if the data differs.
    """
    notes, refused = list[str](), list[str]()
    for name, source in sources.items():
        mine = now[name]
        then = saved.get(name, mine) if adopt else saved[name]
        if (
            adopt
            and then.get("length") != mine.get("length")
            and (grown := _describe_growth(name, source, then))
        ):
            notes.append(grown)
            continue
        notes += [] if adopt else note_changed_functions(then, mine)
        other, unknown = list_differing_parts(then, mine)
        if "rows" in other and "rows" in mine and (is_in_memory(source) or not has_digest(source)):
            mine = {
                **mine,
                "rows": mask_varying_digests(str(mine["rows"]), partial(_rows_again, source)),
            }
            other, unknown = list_differing_parts(then, mine)
        if other:
            refused.append(f"{name!r}: other {' and '.join(other)}")
        elif unknown:
            notes.append(
                f"{name!r}: its rows were not compared, because they cannot be read, change "
                "with every read, or changed while they were in use"
            )
        elif then.get("files") != mine.get("files"):
            notes.append(
                f"{name!r}: its files differ from the files of the state (moved, re-sharded or "
                "compressed again?); the number of rows and up to 64 of the rows were compared "
                "and are equal"
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
    return {"rows": digest_source(source, rows)}


def note_changed_functions(then: SourceFacts, now: SourceFacts) -> list[str]:
    """Return a note for each function in a source whose code changed."""
    before, after = (
        [list(line.rpartition(" ")[::2]) for line in str(facts.get(FUNCTIONS, "")).splitlines()]
        for facts in (then, now)
    )
    return code_notes(before, [*after]) if len(before) == len(after) else []


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


def mask_varying_digests(digests: str, read: Callable[[], str], times: int = 12) -> str:
    """Return row digests, with `-` for rows whose digest differs in further samples.

    Random values may be equal twice by chance: a coin flip is, in half of all cases.

    >>> mask_varying_digests("1 2 -", iter(["1 2 3", "1 4 3"]).__next__, times=2)
    '1 - -'
    """
    samples = [digests.split(), *(read().split() for _ in range(times))]
    return " ".join(
        row[0] if len({*row}) == 1 else UNKNOWN_DIGEST for row in zip(*samples, strict=True)
    )


def list_differing_parts(then: SourceFacts, now: SourceFacts) -> tuple[list[str], bool]:
    """List the parts in which the data of a source differs, and whether its rows could not be
    compared."""
    parts = [part for part in dict.fromkeys([*now, *then]) if then.get(part) != now.get(part)]
    parts = [part for part in parts if part != FUNCTIONS]
    equal: bool | None = False
    if "rows" in then and "rows" in now:
        equal = compare_row_digests(then["rows"], now["rows"])
        parts = [part for part in parts if part != "rows" or equal is False]
    parts = [part for part in parts if UNKNOWN_DIGEST not in (then.get(part), now.get(part))]
    told = [part for part in parts if part not in _HINTS]
    return told if told or equal else parts, equal is None


def _describe_growth(name: str, given: Source | Shards, then: SourceFacts) -> str | None:
    """Describe a source that has more rows than before; raise an error if its first rows differ."""
    source, before = cast("Source", given), cast("int", then["length"])
    rows = len(source)
    if before >= rows:
        return None
    grown = f"{name!r} has grown from {before} rows to {rows}"
    found: SourceFacts = {}
    if isinstance(source, Growing):
        found = source.digest_of(before)
    elif not has_digest(source):
        found = _sample(source, before)
    if other := [
        part for part, mine in found.items() if compare_row_digests(then.get(part), mine) is False
    ]:
        raise StateError(
            f"{name!r} has grown from {before} rows to {rows}, but its first {before} "
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
