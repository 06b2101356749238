"""Changes of a run: other weights from a position on, another mixture, excluded samples.

A change is data. It is kept in every later state, so that the run can be resumed, and replayed from
its beginning, without the one who made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...arguments import check_int, check_position
from ...errors import ConfigError, StateError
from ...schedule import Schedule
from ...types import Json
from ..base.passes import Passes
from ..mixing import Event, event_from_json, mixture_from_json, mixture_to_json
from ..mixing.rules import By, DrawChange, FormerMixture, Weighted
from ..orders import FixedSet, Repeat, RepeatEach, Replay, Skips
from ..steps.function_step import FunctionStep
from .build import Builder
from .history import FURTHEST
from .nodes import Flow, FormerPasses, Hold, Mix, Path, Read, Reorder, Without, inputs_of, under
from .tail import below_tail


@dataclass(frozen=True)
class Change:
    """An event in pass `lap` of the mixture at a path of mixture names; `()` is the outermost.
    `pasts` are the mixtures before it, if another mixture took over.
    """

    path: Path
    lap: int
    event: Event
    pasts: tuple[FormerMixture, ...] = ()

    def to_json(self) -> dict[str, Json]:
        pasts: dict[str, Json] = {"pasts": [*map(_past_to_json, self.pasts)]} if self.pasts else {}
        return {"path": list(self.path), "pass": self.lap, "event": self.event.to_json(), **pasts}

    @staticmethod
    def from_json(saved: Any) -> Change:
        try:
            pasts = tuple(map(_past_from_json, saved.get("pasts", [])))
            return Change(
                tuple(saved["path"]), _lap(saved["pass"]), event_from_json(saved["event"]), pasts
            )
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"a change in the state cannot be read ({error}); the state is damaged or of "
                "another version, load an earlier one or use the release that wrote it"
            ) from error


@dataclass(frozen=True)
class ChangedDraws:
    """Other draws of the mixture at a path, by a package outside the engine."""

    path: Path
    event: DrawChange

    def to_json(self) -> dict[str, Json]:
        return {"path": list(self.path), "pass": 0, "event": self.event.to_json()}


@dataclass(frozen=True)
class Skipped:
    """`count` rows left out of a run, from row `start` on; rows before the last batches."""

    start: int
    count: int

    def to_json(self) -> dict[str, Json]:
        return {"skip": self.start, "count": self.count}


@dataclass(frozen=True)
class Exclude:
    """Samples of a source left out from position `since` of its flow on: the next ones take their
    places. `replanned` are the passes from which on rows are planned that lack them.
    """

    source: str
    since: int
    indices: tuple[int, ...]
    replanned: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Json]:
        replanned: dict[str, Json] = {"replanned": list(self.replanned)} if self.replanned else {}
        return {
            "exclude": self.source,
            "since": self.since,
            "indices": list(self.indices),
            **replanned,
        }


@dataclass(frozen=True)
class Former:
    """The passes of a run before pass `until` had `sizes` rows, each from a pass on, of other
    data."""

    sizes: tuple[tuple[int, int], ...]
    until: int

    def to_json(self) -> dict[str, Json]:
        return {"former": [[*each] for each in self.sizes], "until": self.until}


Edit: TypeAlias = Change | ChangedDraws | Skipped | Exclude | Former
"""Whatever is noted in a state about changes on the way."""


def edit_from_json(saved: Any) -> Edit:
    """The change that `to_json` wrote."""
    try:
        if "skip" in saved:
            return Skipped(_number(saved["skip"]), _number(saved["count"]))
        if "former" in saved:
            sizes = tuple((_lap(epoch), _number(size)) for epoch, size in saved["former"])
            if [epoch for epoch, _ in sizes] != sorted({epoch for epoch, _ in sizes}):
                raise ValueError(f"passes {sizes}")
            return Former(sizes, _lap(saved["until"]))
        if "exclude" in saved:
            indices = tuple(map(_number, saved["indices"]))
            replanned = tuple(map(_lap, saved.get("replanned", [])))
            return Exclude(str(saved["exclude"]), _number(saved["since"]), indices, replanned)
        if (draw_change := DrawChange.classes.get(saved["event"]["event"])) is not None:
            return ChangedDraws(tuple(saved["path"]), draw_change.from_json(saved["event"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"an edit in the state cannot be read ({error}); the state is damaged, load an "
            "earlier one"
        ) from error
    return Change.from_json(saved)


def mixtures(flow: Flow, path: Path = ()) -> dict[Path, Mix]:
    """All weighted mixtures of a tree by their path of names."""
    match flow:
        case Read():
            return {}
        case Mix(_, _, rule):
            found = {path: flow} if isinstance(rule, Weighted) else {}
            for child, place in inputs_of(flow, path):
                found |= mixtures(child, place)
            return found
        case _:
            return mixtures(flow.flow, under(flow, path))


def _by_rule(flow: Flow) -> bool:
    """Whether a tree has a mixture of named inputs that is drawn by a rule of somebody's."""
    if isinstance(flow, Mix):
        return isinstance(flow.rule, By) or any(_by_rule(child) for child, _ in inputs_of(flow, ()))
    return not isinstance(flow, Read) and _by_rule(flow.flow)


def changed(flow: Flow, edits: Sequence[Edit], epoch: int = 0) -> Flow:
    """Return the tree with these changes made. Streams draw by the mixture of pass `epoch`."""
    flow = _remixed(
        flow, [edit for edit in edits if isinstance(edit, Change | ChangedDraws)], epoch
    )
    if excluded := [edit for edit in edits if isinstance(edit, Exclude)]:
        flow = _without(flow, Builder(flow), excluded)
    skips = Skips()
    for edit in edits:
        if isinstance(edit, Former):
            former = FormerPasses(edit.sizes, edit.until)
            flow = below_tail(flow, lambda rows, former=former: Reorder(rows, former))
        if isinstance(edit, Skipped):
            skips = skips.and_skip(edit.start, edit.count)
    return below_tail(flow, lambda rows: Reorder(rows, skips)) if skips.points else flow


def with_former(edits: Sequence[Edit], saved: Passes, until: int) -> tuple[Edit, ...]:
    """Return the changes of a run whose passes before `until` read other data."""
    kept = (
        edit
        for edit in edits
        if not isinstance(edit, Former)
        and not (isinstance(edit, Skipped) and edit.start < saved.start(until))
    )
    sizes = zip(saved.epochs, saved.sizes, strict=True)
    return (*kept, Former(tuple(each for each in sizes if each[0] < until), until))


def own_pass(flow: Flow, path: Path) -> bool:
    """Whether a pass of the run is one of the mixture at a path."""
    while isinstance(flow, FunctionStep | Hold) or (
        isinstance(flow, Reorder) and not isinstance(flow.order, FixedSet | Replay | Repeat)
    ):
        flow = flow.flow
    return path == () and isinstance(flow, Mix)


def _without(flow: Flow, builder: Builder, edits: Sequence[Exclude], path: Path = ()) -> Flow:
    """The samples left out at the top of what is a source and its orders only."""
    match flow:
        case Mix():
            return replace(
                flow,
                flows=tuple(
                    _without(child, builder, edits, place) for child, place in inputs_of(flow, path)
                ),
            )
        case Reorder(below, RepeatEach()):  # whole groups are left out
            return replace(flow, flow=_without(below, builder, edits, path))
        case Read() | Reorder() if (leaf := builder.only_leaf(flow, path)) is not None:
            mine = [edit for edit in edits if edit.source == leaf.name]
            left_out = Without(
                tuple(edit.since for edit in mine),
                tuple(edit.indices for edit in mine),
                tuple(sorted({epoch for edit in mine for epoch in edit.replanned})),
            )
            return Reorder(flow, left_out) if mine else flow
        case Read():
            return flow
        case _:
            return replace(flow, flow=_without(flow.flow, builder, edits, under(flow, path)))


def _remixed(
    flow: Flow, changes: Sequence[Change | ChangedDraws], now: int | None, path: Path = ()
) -> Flow:
    """The tree with these events in the logs of its mixtures. `now` is the pass, where it is one of
    the flow."""
    if not changes:
        return flow
    match flow:
        case Read():
            return flow
        case Mix(_, names, rule):
            inner = tuple(
                _remixed(child, changes, None, place) for child, place in inputs_of(flow, path)
            )
            mine = [change for change in changes if change.path == path]
            if mine and isinstance(rule, Weighted):
                rule = _with_events(rule, mine, now)
            return Mix(inner, names, rule)
        case Reorder(below, FixedSet() | Replay() | Repeat()):
            return replace(flow, flow=_remixed(below, changes, None, under(flow, path)))
        case _:
            return replace(flow, flow=_remixed(flow.flow, changes, now, under(flow, path)))


def _with_events(
    rule: Weighted, changes: Sequence[Change | ChangedDraws], now: int | None
) -> Weighted:
    """The rule with these events in its log."""
    mine = [change for change in changes if isinstance(change, Change)]
    if draw_changes := [change.event for change in changes if isinstance(change, ChangedDraws)]:
        if len(changes) > 1 or type(draw_changes[0]) is not type(rule.draw_change):
            raise StateError(
                f"the state has other draws ({draw_changes[0].to_json()['event']}) than this mixture "
                "makes; load it into the pipeline that saved it"
            )
        changed = replace(rule, draw_change=draw_changes[0])
        vars(changed)["compiled"] = rule.compiled  # the mixture itself is unchanged
        return changed
    last = max((i for i, change in enumerate(mine) if change.pasts), default=0)
    events = tuple((change.lap, change.event) for change in mine[last:])
    return rule.with_changes(events, mine[last].pasts, now)


def mixture_below_functions(flow: Flow) -> Mix | None:
    """Return the mixture of a tree that has only functions above it, if there is one."""
    while isinstance(flow, FunctionStep) and flow.keeps_positions:
        flow = flow.flow
    return flow if isinstance(flow, Mix) else None


def locate_mixture(flow: Flow, weights: Any) -> Path:
    """The path of the mixture whose inputs these weights name."""
    asked = set(weights.names) if isinstance(weights, Schedule) else set(weights)
    found = mixtures(flow)
    if not found and _by_rule(flow):
        raise ConfigError(
            "set_weights: mix(rule=) draws by a rule without weights; use ps.mix({name: "
            "dataset}, weights)"
        )
    if not found:
        raise ConfigError(
            "set_weights: the pipeline has no mixture; make one with ps.mix({name: dataset}, "
            "weights)"
        )
    exact = [path for path, mix in found.items() if set(mix.names) == asked]
    if len(exact) == 1 or (not exact and len(found) == 1):
        path = (exact or list(found))[0]
        if isinstance(rule := found[path].rule, Weighted) and rule.draw_change is not None:
            options = ", ".join(
                f"{key}={value!r}" for key, value in rule.draw_change.describe().items()
            )
            raise ConfigError(
                f"set_weights: mix({options}) keeps its weights for the whole run; give it a Schedule"
            )
        return path
    listed = "; ".join(
        "/".join(map(str, path)) + ": " + ", ".join(mix.names) for path, mix in found.items()
    )
    raise ConfigError(
        f"set_weights names {sorted(asked)}, which fits {len(exact)} of the mixtures of the "
        f"pipeline; name all inputs of exactly one mixture ({listed})"
    )


def _past_to_json(past: FormerMixture) -> Json:
    events: list[Json] = [[lap, event.to_json()] for lap, event in past.events]
    mixture = mixture_to_json(past.mixture)
    rows: dict[str, Json] = {"rows": dict(past.rows)} if past.rows else {}
    return {"mixture": mixture, "events": events, "pass": past.lap, "at": past.at, **rows}


def _past_from_json(saved: Any) -> FormerMixture:
    events = events_from_json(saved["events"])
    lap, at = _lap(saved["pass"]), _number(saved["at"])
    rows = tuple((str(name), _number(rows)) for name, rows in saved.get("rows", {}).items())
    return FormerMixture(mixture_from_json(saved["mixture"]), events, lap, at, rows)


def events_from_json(saved: Any) -> tuple[tuple[int, Event], ...]:
    """What happened to a mixture in which pass, in order."""
    events = tuple((_lap(lap), event_from_json(event)) for lap, event in saved)
    if [lap for lap, _ in events] != sorted(lap for lap, _ in events):
        raise StateError(
            "the changes of a mixture in the state are not in order; "
            "the state is damaged, load an earlier one"
        )
    return events


def _lap(saved: Any) -> int:
    if type(saved) is not int or not 0 <= saved < FURTHEST:
        raise StateError(
            f"a change in the state names pass {saved!r}; the state is damaged, load an earlier one"
        )
    return saved


def _number(saved: Any) -> int:
    """A position or a count that was saved."""
    number = check_int(saved, "{}", 0)
    check_position(number)
    return number
