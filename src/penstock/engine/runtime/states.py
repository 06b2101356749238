"""Saved states, decoded once after their checksum, and merged over all ranks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

from ...arguments import join_first
from ...errors import StateError
from ...types import MAX_POSITION, Json
from ..base.canonical_json import compute_fingerprint, encode_canonical_json, list_differences
from ..base.cursors import parse_cursor_int
from ..base.passes import Passes
from ..changes.edits import Edit
from ..steps.digests import known_parts
from ..steps.step import Step
from .seal import unseal

OnMismatch: TypeAlias = Literal["error", "adopt"]

MISMATCHES: tuple[OnMismatch, ...] = get_args(OnMismatch)

_LOG = logging.getLogger("penstock")


@dataclass(frozen=True)
class SavedState:
    """The contents of a state, checked by `decode_state`.

    In a run of positions, `at` is a position of a pass, `passes` has the lengths of passes, each
    from a pass on, and `records` is set. In a run in lanes, `at` has a cursor by lane, and `items`
    counts the items that were delivered; with a limit, `drawn` counts those of this rank. Of merged
    states, `lane_items` has the items by lane, which differ where lanes have ended. Lists
    and mixtures stay JSON, which their modules decode. `sections` belong to packages outside the
    engine.

    A resume applies `changes`; the events in `mixtures` are for adoption alone. The specification
    (docs/semantics.md, States) has the use of every key.
    """

    fingerprint: str
    pipeline: dict[str, Json]
    epoch: int
    step: int
    adopted: list[str]
    at: Any
    last: dict[str, Json]
    latest: dict[str, Any]
    data: dict[str, dict[str, Any]]
    code: list[Any]
    mixtures: Any
    given: int
    changes: list[Any]
    journal: list[Any]
    records: list[Any] | None = None
    passes: list[Any] | None = None
    given_before: list[Any] = field(default_factory=list[Any])
    journal_of: list[Any] | None = None
    lanes: int | None = None
    items: int = 0
    ended: list[int] = field(default_factory=list[int])
    drawn: int | None = None
    sections: dict[str, Json] = field(default_factory=dict[str, Json])
    lane_items: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def position(self) -> int:
        """The position in the pass, of a run of positions."""
        return parse_cursor_int(self.at)

    @property
    def row_counts(self) -> dict[str, int]:
        """The numbers of rows of the sources, where they are known."""
        known = {name: each.get("length") for name, each in self.data.items()}
        return {name: n for name, n in known.items() if type(n) is int}

    @property
    def pass_sizes(self) -> Passes | None:
        """The lengths of passes, of a run of positions that has some."""
        if self.passes is None:
            return None
        epochs = [epoch for epoch, _ in self.passes]
        if epochs[:1] != [0] or epochs != sorted({*epochs}):
            raise _make_invalid_error(f"'passes' is {str(self.passes)[:80]}")
        return Passes.of((epoch, size) for epoch, size in self.passes)

    @property
    def next_pass(self) -> int | None:
        """The pass that begins next, of a run of positions between two passes."""
        ends = (sizes := self.pass_sizes) is not None and self.position in (
            0,
            sizes.size(self.epoch),
        )
        return self.epoch + (self.position > 0) if ends else None

    @property
    def has_all_lanes(self) -> bool:
        """True for a run in lanes whose cursors are all in this state."""
        return self.lanes is not None and len(self.at) == self.lanes

    @property
    def differs_by_rank(self) -> bool:
        """True if a load needs the states of all ranks: cursors of lanes, journals, sections."""
        in_part = self.lanes is not None and not self.has_all_lanes
        return in_part or self.journal_of is not None or bool(self.sections)

    def to_json(self) -> dict[str, Json]:
        """Return the contents, to be sealed."""
        in_lanes = self.lanes is not None
        left_out = {"sections", "lane_items", *(("records", "passes") if in_lanes else _OF_LANES)}
        optional = {"given_before", "journal_of", "drawn"}
        body = {
            _JSON_NAME.get(name, name): value
            for name, value in vars(self).items()
            if name not in left_out and (value or name not in optional)
        }
        return body | self.sections


_OF_LANES = ("lanes", "items", "ended")
_JSON_NAME = {"items": "turn"}
_SEAL = ("penstock", "version", "order", "check", "tables")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_POSITION


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, cast("list[Any]", value)))


def _is_filled_dict(value: Any) -> bool:
    return isinstance(value, dict) and bool(cast("dict[str, Any]", value))


def _is_by_lane(value: Any) -> bool:
    return isinstance(value, dict) and all(map(str.isdecimal, map(str, cast("Any", value))))


_CHECK_BY_ANNOTATION: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a count", _is_count),
    "str": ("a text", lambda value: isinstance(value, str)),
    "list[Any]": ("a list", lambda value: isinstance(value, list)),
    "list[str]": ("a list of texts", _is_list_of(lambda value: isinstance(value, str))),
    "list[int]": ("a list of counts", _is_list_of(_is_count)),
    "dict[str, Json]": ("an object", lambda value: isinstance(value, dict)),
    "dict[str, Any]": ("an object", lambda value: isinstance(value, dict)),
    "dict[str, dict[str, Any]]": (
        "facts by source",
        lambda value: (
            isinstance(value, dict)
            and all(map(_is_filled_dict, cast("dict[str, Any]", value).values()))
        ),
    ),
    "Any": ("a value", lambda value: True),
}


_PARTS = [
    (
        part.name,
        _JSON_NAME.get(part.name, part.name),
        part.default is MISSING and part.default_factory is MISSING,
        str(part.type).endswith(" | None"),
        *_CHECK_BY_ANNOTATION[str(part.type).removesuffix(" | None")],
    )
    for part in fields(SavedState)[:-2]
]
"""Field, name in JSON, whether it is required, whether it may be null, description and check."""


def decode_state(state: Any) -> SavedState:
    """Check the seal of a state, and decode its contents.

    Raises:
        StateError: the state is corrupted, or has contents of other types.
    """
    body, values = unseal(state), dict[str, Any]()
    if (rows := body.pop("pass", None)) is not None:  # as earlier versions say it
        body["passes"] = [[0, rows]]
    for part, name, required, optional, words, fits in _PARTS:
        if name in body:
            value = values[part] = body.pop(name)
            if not fits(value) and not (optional and value is None):
                raise _make_invalid_error(f"{name!r} is {str(value)[:80]}, not {words}")
        elif required:
            raise _make_invalid_error(f"it lacks {name!r}")
    of_lanes = [name for name in _OF_LANES if name in values]
    if of_lanes and len(of_lanes) < len(_OF_LANES):
        raise _make_invalid_error(f"of a run in lanes, it has only {', '.join(of_lanes)}")
    if not (_is_by_lane(values["at"]) if of_lanes else values["at"] is not None):
        raise _make_invalid_error(f"its cursor is {str(values['at'])[:80]}")
    return SavedState(**values, sections={name: body[name] for name in body if name not in _SEAL})


def _make_invalid_error(problem: str) -> StateError:
    return StateError(
        f"the state is damaged, or is not the state of a run: {problem}; load an earlier state, or "
        "pass the result of state_dict()"
    )


class StateSection(Protocol):
    """Reader of a section that a package outside the engine adds to the states of a run.

    With such a section, ranks may be at different positions.
    """

    @property
    def key(self) -> str:
        """Name of the section in a state."""
        ...

    def merge(self, states: Sequence[SavedState]) -> list[SavedState]:
        """Return the states of all ranks, each moved to the furthest position."""
        ...

    def open_items(self, state: SavedState) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return the unfinished items below the position of a merged state: the number of rows in
        an item, and the pass and number of each item."""
        ...

    def replay(self, tree: Step, edits: Sequence[Edit], log: Sequence[Any]) -> tuple[Edit, ...]:
        """Return the changes of a run of a tree with all that its log says."""
        ...


def describe_position(state: SavedState) -> dict[str, Json]:
    """Return the position and data of a rank as small JSON, equal for all ranks of one step.

    The place is None where ranks may stand apart: with a section, or where lanes have ended. Where
    ranks differ, `share` says which share of the run it is, and `own` where that stands: processes
    of one share stand alike.
    """
    sections = [state.sections[key] for key in sorted(state.sections)]
    in_lanes = state.lanes is not None
    apart = bool(sections or state.ended)
    stand: dict[str, Json] = {
        "place": None if apart else [state.epoch, state.items if in_lanes else state.at],
        "step": state.step,
        "data": {
            name: compute_fingerprint(known_parts(facts)) for name, facts in state.data.items()
        },
        "run": _run_of(state),
    }
    if not in_lanes and not sections:
        return stand
    section = sections[0] if sections else None
    of = section.get("of") if isinstance(section, dict) else None
    return {
        **stand,
        "share": compute_fingerprint(sorted(state.at) if in_lanes else of),
        "own": compute_fingerprint(
            [state.epoch, state.items if in_lanes else None, state.at, section]
        ),
    }


def _run_of(state: SavedState) -> dict[str, Json]:
    """Return what all ranks of a run have in common, each under the name that an error gives it."""
    steps = ("rows", "ranks", "remainder", "batches")
    last = state.records[-1] if state.records else None
    return {
        "pipelines": compute_fingerprint(state.fingerprint),
        "lanes": compute_fingerprint(state.lanes),
        "changes (weights, skips, exclusions)": compute_fingerprint(state.changes),
        "steps (ranks, batches, remainder)": last
        and compute_fingerprint({name: last.get(name) for name in steps}),
    }


def require_equal_positions(stands: Mapping[int, Mapping[str, Any]], unit: str = "rank") -> None:
    """Raise `StateError` if the ranks of a checkpoint differ in position, pipeline or data.

    Checkpoints of several ranks call it with `describe_position` of each rank, when they are saved,
    if ranks can communicate, and when they are loaded. If several processes form one rank (tensor
    parallelism), all processes are compared, and `unit` is "process".

    >>> place = {"place": [0, 16], "step": 4, "data": {}, "run": {}}
    >>> require_equal_positions({0: place, 1: {**place, "place": [0, 20], "step": 5}})  # doctest: +ELLIPSIS
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


_SHOWN = 8  # ranks that are named
_PLURAL = {"rank": "ranks", "process": "processes"}


def merge_states(
    states: Sequence[SavedState], section: StateSection | None = None
) -> tuple[SavedState, dict[int, Json]]:
    """Merge the states of all ranks; return the state of the run, and the cursors by lane.

    A run of positions has one cursor, under 0. `section` merges the section that states may have.
    """
    if len(states) > 1:
        require_equal_positions(
            {rank: describe_position(state) for rank, state in enumerate(states)}
        )
    keys = frozenset[str]().union(*(state.sections for state in states))
    if section is not None and section.key in keys:
        states, keys = section.merge(states), keys - {section.key}
    if keys:
        raise StateError(
            f"the state has the sections {join_first(sorted(keys))}, which only a ps.Loader reads; "
            "load it into a loader of the pipeline that saved it"
        )
    first = states[0]
    for state in states:
        for name in ("fingerprint", "epoch", "lanes", "changes"):
            if (value := getattr(state, name)) != (expected := getattr(first, name)):
                raise StateError(
                    f"the states are from different positions or runs: {name} is {expected!r} in "
                    f"one, {value!r} in another; pass states that all ranks saved after the same "
                    "step"
                )
    merged = replace(
        first,
        step=max(state.step for state in states),
        last={lane: key for state in states for lane, key in state.last.items()},
        latest={lane: keys for state in states for lane, keys in state.latest.items()},
        journal=[entry for state in states for entry in state.journal],
    )
    if first.lanes is None:
        return merged, {0: first.at}
    cursors = {int(lane): cursor for state in states for lane, cursor in state.at.items()}
    items = max(state.items for state in states)
    ended = [lane for state in states for lane in state.ended]
    drawn = None if first.drawn is None else _drawn_by_all(states, items)
    by_lane = {int(lane): state.items for state in states for lane in state.at}
    return replace(merged, items=items, ended=ended, drawn=drawn, lane_items=by_lane), cursors


def _drawn_by_all(states: Sequence[SavedState], items: int) -> int:
    """Return how many items all ranks have drawn of a run with a limit.

    Where the states of some ranks are missing, the items of the run tell it. That goes beyond the limit where
    all of it is drawn.
    """
    drawn = {frozenset[str](state.at): state.drawn or 0 for state in states}
    known = len(frozenset[str]().union(*drawn))
    return sum(drawn.values()) if known == states[0].lanes else items


def compute_state_tag(state: SavedState) -> str:
    """Return sixteen hex digits: eight of what all ranks have in common, eight of their position.

    Ranks whose lanes end stand apart from then on: zeros, which go with every place.
    """
    shared = {name: getattr(state, name) for name in ("fingerprint", "epoch", "lanes", "changes")}
    at = state.at if state.lanes is None else state.items
    place = "0" * 8 if state.ended else compute_fingerprint({"at": at})[:8]
    return compute_fingerprint(shared)[:8] + place


def check_lanes(
    state: SavedState, cursors: Mapping[int, Json], lanes: int, mine: Sequence[int]
) -> None:
    """Raise `StateError` for a state with other lanes, or without cursors for some of these lanes."""
    if mine and state.lanes is None:
        raise StateError(
            "the run went from position to position, but this pipeline has no random access, so "
            "it is read in lanes; remove the step that prevents it, which ds.plan names"
        )
    if state.lanes not in (None, lanes):
        raise StateError(
            f"the run has {state.lanes} lanes and this loader {lanes}, but a run keeps its lanes; "
            f"use Loader(..., lanes={state.lanes})"
        )
    if missing := [lane for lane in mine if lane not in cursors]:
        raise StateError(
            f"the state has no cursor for lanes {missing[:8]}, so it belongs to another rank; "
            "pass the states of all ranks as a list"
        )


def make_other_pipeline_error(saved: Any, now: Json) -> StateError:
    """Return the error for a state of another pipeline."""
    lines = list_differences(saved, now)
    shown = (
        "\n".join(f"  {line}" for line in lines[:20]) or "  (the saved description is not readable)"
    )
    return StateError(
        f"the state is of another pipeline:\n{shown}\n"
        "load it into the pipeline that saved it, or adopt it by ps.restore(..., "
        "on_mismatch='adopt') or load_state_dict: "
        + (_PACKING_IS_ADOPTED if _list_other_packing(saved, now) else _MIXTURES_ARE_ADOPTED)
    )


_MIXTURES_ARE_ADOPTED = (
    "weights, inputs, functions, and a last limit or horizon may change at any step; a shuffle, "
    "its seed, or a limit before it only at the end of a pass"
)
_PACKING_IS_ADOPTED = (
    "the row length of concat_split over known lengths may change at any step; any other packing "
    "only at the end of a pass, which a repeated or endless dataset never reaches"
)


def _list_other_packing(saved: Any, now: Json) -> list[str]:
    """Return the differences of two pipelines by which they pack other rows."""
    lines = list_differences(saved, now)
    packs = re.compile(r"(\S*\.)?pack(:|\(|\.(?!pad\b|dtype:|provenance:))")
    return [line for line in lines if packs.match(line)]


def require_same_packing(saved: Any, now: Json, other_lengths: bool) -> None:
    """Raise an error that names the differences of two pipelines by which they pack other rows.

    Args:
        saved: description of the pipeline in a state.
        now: description of the present pipeline.
        other_lengths: whether rows may have another length from the position of the state on.
    """
    lines = _list_other_packing(saved, now)
    if other_lengths and all(re.match(r"pack\.lengths?\b", line) for line in lines):
        return
    if lines:
        raise StateError(
            f"adopt: the run packs other rows ({', '.join(lines)}), so tokens of this pass would "
            "be repeated or lost: keep the packing, or start a new run; " + _PACKING_IS_ADOPTED
        )


def log_notes(notes: Sequence[str]) -> list[str]:
    """Log notes on a loaded state, and return them."""
    for note in notes:
        _LOG.warning("a state was loaded, but %s", note)
    return list(notes)
