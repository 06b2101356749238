"""Changes to a run while it goes on: other weights from a position on, another mixture altogether, samples left out.

A change is data. It is kept in every later state, so that the run can be resumed, and replayed from its beginning,
without the one who made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from .build import Builder, has_tail
from .draws import mixture
from .errors import ConfigError, StateError
from .mix import Adopt, Event, event_from_json
from .nodes import Before, Each, Flow, Hold, Mix, Path, Read, Reorder, Weighted, Without, inputs_of, under
from .order import Gap
from .recipe import describe
from .schedule import Schedule
from .types import Json


@dataclass(frozen=True)
class Change:
    """An event of the mixture at a path of mixture names; `()` is the outermost. `before` is the mixture that it put
    an end to.
    """

    path: Path
    event: Event
    before: Before | None = None

    def to_json(self) -> dict[str, Json]:
        before = None if self.before is None else before_to_json(self.before)
        return {
            "path": list(self.path),
            "event": self.event.to_json(),
            **({} if before is None else {"before": before}),
        }

    @staticmethod
    def from_json(saved: Any) -> Change:
        try:
            before = before_from_json(saved["before"]) if "before" in saved else None
            return Change(tuple(saved["path"]), event_from_json(saved["event"]), before)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"a change in the state cannot be read ({error}); it is damaged or of another version"
            ) from error


@dataclass(frozen=True)
class Skip:
    """Positions left out of each pass: `count` from `start` on, counted below the last batches."""

    start: int
    count: int

    def to_json(self) -> dict[str, Json]:
        return {"skip": self.start, "count": self.count}


@dataclass(frozen=True)
class Exclude:
    """Samples of a source left out from position `since` of its flow on: the next ones take their places."""

    source: str
    since: int
    indices: tuple[int, ...]

    def to_json(self) -> dict[str, Json]:
        return {"exclude": self.source, "since": self.since, "indices": list(self.indices)}


Edit: TypeAlias = Change | Skip | Exclude
"""Whatever is noted in a state about changes on the way."""


def edit_from_json(saved: Any) -> Edit:
    """The change that `to_json` wrote."""
    try:
        if "skip" in saved:
            return Skip(int(saved["skip"]), int(saved["count"]))
        if "exclude" in saved:
            return Exclude(str(saved["exclude"]), int(saved["since"]), tuple(map(int, saved["indices"])))
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"an edit in the state cannot be read ({error}); it is damaged") from error
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


def changed(flow: Flow, edits: Sequence[Edit]) -> Flow:
    """The tree with these changes made."""
    flow = _remixed(flow, [edit for edit in edits if isinstance(edit, Change)])
    if excluded := [edit for edit in edits if isinstance(edit, Exclude)]:
        flow = _without(flow, Builder(flow), excluded)
    for edit in edits:
        if isinstance(edit, Skip):
            flow = _below_batches(flow, Gap(edit.start, edit.count))
    return flow


def _below_batches(flow: Flow, order: Gap) -> Flow:
    """The order put below the batches that come last, where positions are those of the run."""
    match flow:
        case Hold(below) | Each(below, "map" | "random" | "source") if has_tail(flow):
            return replace(flow, flow=_below_batches(below, order))
        case _:
            return Reorder(flow, order)


def _without(flow: Flow, builder: Builder, edits: Sequence[Exclude], path: Path = ()) -> Flow:
    """The samples left out at the top of what is a source and its orders only."""
    match flow:
        case Mix():
            return replace(
                flow, flows=tuple(_without(child, builder, edits, place) for child, place in inputs_of(flow, path))
            )
        case Read() | Reorder() if (leaf := builder.only_leaf(flow, path)) is not None:
            mine = [edit for edit in edits if edit.source == leaf.name]
            left_out = Without(tuple(edit.since for edit in mine), tuple(edit.indices for edit in mine))
            return Reorder(flow, left_out) if mine else flow
        case Read():
            return flow
        case _:
            return replace(flow, flow=_without(flow.flow, builder, edits, under(flow, path)))


def _remixed(flow: Flow, changes: Sequence[Change], path: Path = ()) -> Flow:
    """The tree with these events in the logs of its mixtures."""
    if not changes:
        return flow
    match flow:
        case Read():
            return flow
        case Mix(_, names, rule):
            inner = tuple(_remixed(child, changes, place) for child, place in inputs_of(flow, path))
            mine = [change for change in changes if change.path == path]
            if mine and isinstance(rule, Weighted):
                last = max((i for i, change in enumerate(mine) if change.before), default=0)
                events = tuple(change.event for change in mine[last:])
                rule = replace(rule, events=events, before=mine[last].before)
            return Mix(inner, names, rule)
        case _:
            return replace(flow, flow=_remixed(flow.flow, changes, under(flow, path)))


def locate_mixture(flow: Flow, weights: Any) -> Path:
    """The path of the mixture whose inputs these weights name."""
    asked = set(weights.names) if isinstance(weights, Schedule) else set(weights)
    found = mixtures(flow)
    if not found:
        raise ConfigError("set_weights: the pipeline has no mixture; make one with ps.mix({name: dataset}, weights)")
    exact = [path for path, mix in found.items() if set(mix.names) == asked]
    if len(exact) == 1 or (not exact and len(found) == 1):
        return (exact or list(found))[0]
    listed = "; ".join("/".join(map(str, path)) + ": " + ", ".join(mix.names) for path, mix in found.items())
    raise ConfigError(
        f"set_weights names {sorted(asked)}, which fits {len(exact)} of the mixtures of the pipeline ({listed})"
    )


# ---------------------------------------------------------------- adopting another mixture


def old_mixtures(description: Any, changes: Sequence[Change]) -> dict[Path, Before]:
    """The weighted mixtures that a saved description tells of, with the changes made to them."""
    found = dict[Path, Before]()

    def walk(node: Any, path: Path) -> None:
        inner = node.get("of")
        if "mix" not in node:
            if inner is not None:
                walk(inner, (*path, -1) if node.get("order") == "slice" else path)
            return
        for i, (name, child) in enumerate(inner.items()):
            walk(child, (*path, name if node["mix"] in ("weighted", "interleave", "by") else i))
        if node["mix"] == "weighted":
            rule = rule_from_json(node)
            mine = [change for change in changes if change.path == path]
            last = max((i for i, change in enumerate(mine) if change.before), default=0)
            events = tuple(change.event for change in mine[last:])
            rule = replace(rule, events=events, before=mine[last].before if mine else None)
            found[path] = Before(rule, tuple(inner), tuple(size_of(child) for child in inner.values()))

    try:
        walk(description, ())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StateError(f"the pipeline saved in the state cannot be read ({error}); it cannot be adopted") from error
    return found


def adopted(changes: Sequence[Change], path: Path, old: Before, new: Mix, at: int) -> tuple[Change, ...]:
    """The changes by which a new mixture goes on at a position where an old one stops, each input where it was."""
    counts = mixture(old.rule, old.names, old.sizes, path).counts(at)
    held = {name: int(count) for name, count in zip(old.names, counts.tolist(), strict=True) if name in new.names}
    return (*(change for change in changes if change.path != path), Change(path, Adopt(at, held), old))


def size_of(node: Any) -> int | None:
    """The length of a pass of a described flow, as far as the description tells."""
    if "read" in node:
        return node.get("rows")
    if "mix" in node:
        sizes = [size_of(child) for child in node["of"].values()]
        known = [size for size in sizes if size is not None]
        return sum(known) if node["mix"] == "concat" and len(known) == len(sizes) else None
    if {"may_skip", "filter", "flat"} & set(node):
        return None
    below = size_of(node["of"])
    if node.get("order") == "slice":
        return node["count"]
    if node.get("order") == "gap":
        return Gap(node["start"], node["count"]).size(below)
    if node.get("order") in ("repeat", "replay"):
        return None if below is None or node["epochs"] is None else below * node["epochs"]
    if "batch" in node:
        n = node["batch"]
        return None if below is None else below // n if node["drop_remainder"] else -(-below // n)
    return below if {"map", "index", "random", "source", "order"} & set(node) else None


def rule_from_json(node: Mapping[str, Any]) -> Weighted:
    """The rule of a described mixture."""
    weights, caps = node["weights"], node["max_epochs"]
    if isinstance(weights, Mapping):
        found = cast("Mapping[str, Any]", weights)
        weights = Schedule.from_json(found) if "points" in found else tuple(found.items())
    caps = tuple(cast("Mapping[str, float]", caps).items()) if isinstance(caps, Mapping) else caps
    return Weighted(weights, node["seed"], node["block_size"], node["stop"], node["unit"], caps, node["temperature"])


def before_to_json(before: Before) -> dict[str, Json]:
    """A mixture of the past as JSON."""
    inputs = {name: {"read": name, "rows": size} for name, size in zip(before.names, before.sizes, strict=True)}
    bare = Mix((), (), before.rule)
    saved: dict[str, Json] = {
        **describe(bare),
        "of": inputs,
        "events": [event.to_json() for event in before.rule.events],
    }
    if before.rule.before is not None:
        saved["before"] = before_to_json(before.rule.before)
    return saved


def before_from_json(saved: Any) -> Before:
    """The mixture of the past that was saved."""
    events = tuple(map(event_from_json, saved["events"]))
    earlier = before_from_json(saved["before"]) if "before" in saved else None
    rule = replace(rule_from_json(saved), events=events, before=earlier)
    return Before(rule, tuple(saved["of"]), tuple(child["rows"] for child in saved["of"].values()))
