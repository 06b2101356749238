"""What a saved state holds, read with care: the states of all ranks as one, and lanes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

from ...arguments import join_first
from ...errors import StateError
from ...types import Json
from ..base.canonical_json import compute_fingerprint, encode_canonical_json
from ..base.cursors import parse_cursor_int, parse_lane_number
from ..graph.digests import known_parts
from ..graph.recipe import difference

OnMismatch: TypeAlias = Literal["error", "adopt"]

MISMATCHES: tuple[OnMismatch, ...] = get_args(OnMismatch)

_LOG = logging.getLogger("penstock")

NEEDED = (
    "fingerprint", "pipeline", "epoch", "step", "adopted", "at", "last", "latest", "data", "code", "mixtures", "given",
    "changes", "journal",
)  # fmt: skip
LANED = ("lanes", "turn", "ended")
"""What every state has, and what one of a run in lanes has as well."""

_KEYS = frozenset(
    ("penstock", "version", "order", "check", "tables",
     *NEEDED, *LANED, "records", "pass", "given_before", "journal_of", "drawn")
)  # fmt: skip
"""All keys of the engine."""

SHARED = ("fingerprint", "epoch", "lanes", "changes")
"""What the states of all ranks have in common, wherever they found their data."""


class StateSection(Protocol):
    """Reads a section that a package outside the engine adds to the states of a run.

    With such a section, ranks may be at different positions.
    """

    @property
    def key(self) -> str:
        """Name of the section in a state."""
        ...

    def merge(self, states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the states of all ranks, each moved to the furthest position."""
        ...

    def open_items(self, state: Mapping[str, Any]) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return the unfinished items below the position of a merged state: the number of rows in
        an item, and the pass and number of each item."""
        ...


def foreign_keys(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the sections that packages outside the engine added to a state."""
    return frozenset(body) - _KEYS


def entries_of(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list of this name, empty where there is none."""
    found = body.get(name, [])
    if not isinstance(found, list):
        raise StateError(
            f"the state's {name!r} is a {type(found).__name__}, not a list; the state is damaged, "
            "load an earlier one"
        )
    return found  # pyright: ignore[reportUnknownVariableType]


def ranks_differ(state: Any, ranks: int) -> bool:
    """Return whether a load needs the states of all ranks: cursors of lanes, journals, sections."""
    if ranks == 1 or not isinstance(state, Mapping):
        return False
    body = cast("Mapping[str, Any]", state)
    return (
        "journal_of" in body
        or bool(foreign_keys(body))
        or ("lanes" in body and not has_all_lanes(body))
    )


def has_all_lanes(body: Mapping[str, Any]) -> bool:
    """Return whether a state has the cursors of all lanes: of one rank, or of ranks that each read
    all lanes."""
    return (
        isinstance(body["at"], Mapping)
        and len(cast("Mapping[str, Any]", body["at"])) == body["lanes"]
    )


def stand_of(body: Mapping[str, Any]) -> dict[str, Json]:
    """Return the position and data of a rank as small JSON, equal for all ranks of one step.

    The place is None where ranks may stand apart: with a section, or where lanes have ended. Where
    ranks differ, `share` says which share of the run it is, and `own` where that stands: processes
    of one share stand alike.
    """
    sections = [cast("Json", body[key]) for key in sorted(foreign_keys(body))]
    apart = bool(sections) or bool(body.get("ended"))
    place = None if apart else [body.get("epoch"), body.get("turn" if "lanes" in body else "at")]
    data = {name: compute_fingerprint(known_parts(facts)) for name, facts in body["data"].items()}
    stand: dict[str, Json] = {
        "place": place,
        "step": body.get("step"),
        "data": data,
        "run": _run_of(body),
    }
    if "lanes" not in body and not sections:
        return stand
    at, section = cast("Json", body.get("at")), sections[0] if sections else None
    share = (
        sorted(at)
        if isinstance(at, dict)
        else section.get("of")
        if isinstance(section, dict)
        else None
    )
    return {
        **stand,
        "share": compute_fingerprint(share),
        "own": compute_fingerprint([body.get("epoch"), body.get("turn"), at, section]),
    }


def _run_of(body: Mapping[str, Any]) -> dict[str, Json]:
    """Return what all ranks of a run have in common, each under the name that an error gives it."""
    run: dict[str, Json] = {
        name: compute_fingerprint(body.get(key)) for name, key in _OF_A_RUN.items()
    }
    records = entries_of(body, "records")
    return {
        **run,
        "steps (ranks, batches, remainder)": compute_fingerprint(_kind_of_steps(records[-1]))
        if records
        else None,
    }


def _kind_of_steps(record: Any) -> Json:
    return {name: record.get(name) for name in ("rows", "ranks", "remainder", "batches")}


def require_equal_stands(stands: Mapping[int, Mapping[str, Any]], unit: str = "rank") -> None:
    """Refuse the ranks of a checkpoint that stand at different steps, run different pipelines or
    read different data.

    All checkpoints of several ranks ask this, of what each rank says of itself (`stand_of`): when
    they are saved, where ranks can be asked, and when they are loaded. Where several processes are
    one rank (tensor parallelism), all processes are asked, and `unit` is "process".

    >>> place = {"place": [0, 16], "step": 4, "data": {}, "run": {}}
    >>> require_equal_stands({0: place, 1: {**place, "place": [0, 20], "step": 5}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    penstock.errors.StateError: the states are from different positions: rank 0 was at step 4, ...
    """
    for (first, one), (rank, other) in pairwise(stands.items()):
        if differ := [name for name, ours in one["run"].items() if ours != other["run"].get(name)]:
            raise StateError(
                f"{_PLURAL[unit]} {first} and {rank} are of different runs, with other "
                f"{' and '.join(differ)}; give all {_PLURAL[unit]} the same pipeline and options, "
                "and make changes on all after the same step"
            )
    placed = [rank for rank, one in stands.items() if one["place"] is not None]
    shares = {(one["share"], one["own"]) for one in stands.values() if "share" in one}
    apart = len(shares) > len(dict(shares))
    if apart or len({encode_canonical_json(stands[rank]["place"]) for rank in placed}) > 1:
        shown = [*stands] if apart else placed
        one_step = len({stands[rank]["step"] for rank in shown}) == 1 and not apart
        steps = list[str]()
        for rank in shown:
            where = f" of pass {stands[rank]['place'][0]}" if one_step else ""
            steps.append(
                f"{unit} {rank} {'was ' * (rank == shown[0])}at step {stands[rank]['step']}{where}"
            )
        told = ", ".join(steps[:_SHOWN]) + (
            f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
        )
        raise StateError(
            f"the states are from different positions: {told}; save on all {_PLURAL[unit]} after the "
            "same step, or use an earlier checkpoint"
        )
    for (first, one), (rank, other) in pairwise(stands.items()):
        ours, theirs = one["data"], other["data"]
        if differ := sorted(
            name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]
        ):
            raise StateError(
                f"{_PLURAL[unit]} {first} and {rank} read different data under the same names, "
                f"{join_first(differ)}; give all {_PLURAL[unit]} the same seed, as in .shuffle(seed=0), "
                "if each shuffles for itself"
            )


_OF_A_RUN = {
    "pipelines": "fingerprint",
    "lanes": "lanes",
    "changes (weights, skips, exclusions)": "changes",
}
_SHOWN = 8  # ranks that are named
_PLURAL = {"rank": "ranks", "process": "processes"}


def merged(
    bodies: Sequence[dict[str, Any]], section: StateSection | None = None
) -> tuple[dict[str, Any], dict[int, Json]]:
    """One state out of those of all ranks. `section` merges the section that they may have."""
    if len(bodies) > 1:
        require_equal_stands({rank: stand_of(body) for rank, body in enumerate(bodies)})
    keys = frozenset[str]().union(*map(foreign_keys, bodies))
    if section is not None and section.key in keys:
        bodies, keys = section.merge(bodies), keys - {section.key}
    if keys:
        raise StateError(
            f"the state has the sections {join_first(sorted(keys))}, which only a ps.Loader reads; "
            "load it into a loader of the pipeline that saved it"
        )
    body = bodies[0]
    cursors, last, latest = dict[int, Json](), dict[str, Json](), dict[str, Json]()
    for other in bodies:
        needed = (*NEEDED, *LANED) if any(name in other for name in LANED) else NEEDED
        if missing := [name for name in needed if name not in other]:
            raise StateError(f"the state lacks {missing}; it is damaged, load an earlier one")
        if isinstance(other["last"], Mapping):
            last |= other["last"]
        if isinstance(other["latest"], Mapping):
            latest |= other["latest"]
        for name in SHARED:
            if other.get(name) != body.get(name):
                raise StateError(
                    f"the states are from different positions or runs: {name} is {body.get(name)!r} "
                    f"in one, {other.get(name)!r} in another; pass states that all ranks saved "
                    "after the same step"
                )
        at = other.get("at")
        if "lanes" in other:
            if not isinstance(at, Mapping):
                raise StateError(
                    f"the state's cursors of lanes are {at!r}; the state is damaged, load an "
                    "earlier one"
                )
            cursors |= {parse_lane_number(lane): cursor for lane, cursor in at.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            cursors[0] = at
    if not cursors or ("lanes" not in body and cursors[0] is None):
        raise StateError(
            "the state has no cursor; it is damaged, or is not the state of a run: pass the "
            "result of state_dict()"
        )
    body = {
        **body,
        "last": last,
        "latest": latest,
        "step": max(parse_cursor_int(other["step"]) for other in bodies),
    }
    if "lanes" not in body:
        return body, cursors
    turns = [parse_cursor_int(other.get("turn")) for other in bodies]
    ended = [lane for other in bodies for lane in entries_of(other, "ended")]
    drawn = {"drawn": _drawn_by_all(bodies, max(turns))} if "drawn" in body else {}
    return {**body, "turn": max(turns), "ended": ended, **drawn}, cursors


def _drawn_by_all(bodies: Sequence[Mapping[str, Any]], turn: int) -> int:
    """Return how many items all ranks have drawn of a run with a limit.

    Where the states of some ranks are missing, the turn tells it. That goes beyond the limit where
    all of it is drawn.
    """
    drawn = {
        frozenset(cast("Mapping[str, Any]", body["at"])): parse_cursor_int(body.get("drawn"))
        for body in bodies
    }
    known = len(frozenset[str]().union(*drawn))
    return sum(drawn.values()) if known == bodies[0]["lanes"] else turn


def moment_of(body: Mapping[str, Any]) -> str:
    """Sixteen hex digits: eight of what the states of all ranks have in common, eight of where they
    stand. Ranks whose
    lanes end stand apart from then on: zeros, which go with every place.
    """
    place = (
        "0" * 8
        if body.get("ended")
        else compute_fingerprint({"at": body["turn" if "lanes" in body else "at"]})[:8]
    )
    return compute_fingerprint({name: body.get(name) for name in SHARED})[:8] + place


def check_lanes(
    body: Mapping[str, Any], cursors: Mapping[int, Json], lanes: int, mine: Sequence[int]
) -> None:
    """Refuse a state of other lanes, or one that has no cursors for ours; a run without lanes has
    none of its own."""
    found = parse_cursor_int(body.get("lanes", lanes))
    if mine and "lanes" not in body:
        raise StateError(
            "the run went from position to position, but this pipeline has no random access, so "
            "it is read in lanes; remove the step that prevents it, which ds.plan names"
        )
    if found != lanes:
        raise StateError(
            f"the run has {found} lanes and this loader {lanes}, but a run keeps its lanes; use "
            f"Loader(..., lanes={found})"
        )
    if missing := [lane for lane in mine if lane not in cursors]:
        raise StateError(
            f"the state has no cursor for lanes {missing[:8]}, so it belongs to another rank; "
            "pass the states of all ranks as a list"
        )


def of_another(saved: Any, now: Json) -> StateError:
    """The error for a state of another pipeline."""
    lines = difference(saved, now)
    shown = (
        "\n".join(f"  {line}" for line in lines[:20]) or "  (the saved description is not readable)"
    )
    return StateError(
        f"the state is of another pipeline:\n{shown}\n"
        "load it into the pipeline that saved it, or continue with this one by on_mismatch='adopt'"
    )


def logged_notes(notes: Sequence[str]) -> list[str]:
    """These notes on a state that was loaded, written to the log."""
    for note in notes:
        _LOG.warning("a state was loaded, but %s", note)
    return list(notes)
