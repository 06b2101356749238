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
from ...types import Json, Path
from ..base.passes import Passes
from ..mixing import Event, event_from_json, mixture_from_json, mixture_to_json
from ..mixing.rules import DrawChange, FormerMixture, Weighted
from ..orders import Skips
from ..steps.batch import change_rows
from ..steps.exclude import ExcludeSamples
from ..steps.former_passes import FormerPasses
from ..steps.group import with_earlier_lengths
from ..steps.mask import DocumentMask
from ..steps.mix import find_mixtures, has_custom_rule, replace_rules
from ..steps.mix_history import FURTHEST
from ..steps.op import Op
from ..steps.read import single_source
from ..steps.reorder import Reorder
from ..steps.step import Builder, Step
from .masking import mask_documents


@dataclass(frozen=True)
class Change:
    """An event in pass `epoch` of the mixture at a path of mixture names; `()` is the outermost.
    `pasts` are the mixtures before it, if another mixture took over.
    """

    path: Path
    epoch: int
    event: Event
    pasts: tuple[FormerMixture, ...] = ()

    def to_json(self) -> dict[str, Json]:
        pasts: dict[str, Json] = {"pasts": [*map(_past_to_json, self.pasts)]} if self.pasts else {}
        return {"path": list(self.path), "pass": self.epoch, "event": self.event.to_json(), **pasts}

    @staticmethod
    def from_json(saved: Any) -> Change:
        try:
            pasts = tuple(map(_past_from_json, saved.get("pasts", [])))
            return Change(
                tuple(saved["path"]),
                _decode_epoch(saved["pass"]),
                event_from_json(saved["event"]),
                pasts,
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
    """Samples of a source left out from position `since` of its order on: the next ones take their
    places. `replanned` are the passes from which on rows are planned that lack them. `row` is the
    first row that was not delivered at the change.
    """

    source: str
    since: int
    indices: tuple[int, ...]
    replanned: tuple[int, ...] = ()
    row: int | None = None

    def to_json(self) -> dict[str, Json]:
        known: dict[str, Json] = {"replanned": list(self.replanned)} if self.replanned else {}
        if self.row is not None:
            known["row"] = self.row
        return {"exclude": self.source, "since": self.since, "indices": list(self.indices), **known}


@dataclass(frozen=True)
class Former:
    """The passes of a run before pass `until` had `sizes` rows, each from a pass on, of other
    data."""

    sizes: tuple[tuple[int, int], ...]
    until: int

    def to_json(self) -> dict[str, Json]:
        return {"former": [[*each] for each in self.sizes], "until": self.until}


@dataclass(frozen=True)
class RowsBefore:
    """Packed rows before row `until`, counted over all passes, had `length` tokens."""

    until: int
    length: int

    def to_json(self) -> dict[str, Json]:
        return {"packed": self.length, "until": self.until}


Edit: TypeAlias = Change | ChangedDraws | Skipped | Exclude | DocumentMask | Former | RowsBefore
"""The kinds of changes that a state stores, applied by `changed` in their order.

A new kind is a frozen dataclass here with `to_json`, a branch of `edit_from_json`, its effect on the
tree in `changed`, and a method of the plan; sessions, adoption and states take it as it is.
`Exclude` is the model of a change of one source.
"""


def edit_from_json(saved: Any) -> Edit:
    """The change that `to_json` wrote."""
    try:
        if "skip" in saved:
            return Skipped(_number(saved["skip"]), _number(saved["count"]))
        if "packed" in saved:
            return RowsBefore(_number(saved["until"]), check_int(saved["packed"], "{}", 1))
        if "former" in saved:
            sizes = tuple((_decode_epoch(epoch), _number(size)) for epoch, size in saved["former"])
            if [epoch for epoch, _ in sizes] != sorted({epoch for epoch, _ in sizes}):
                raise ValueError(f"passes {sizes}")
            return Former(sizes, _decode_epoch(saved["until"]))
        if "exclude" in saved:
            indices = tuple(map(_number, saved["indices"]))
            replanned = tuple(map(_decode_epoch, saved.get("replanned", [])))
            row = None if saved.get("row") is None else _number(saved["row"])
            return Exclude(str(saved["exclude"]), _number(saved["since"]), indices, replanned, row)
        if "mask" in saved:
            indices = tuple(map(_number, saved["indices"]))
            return DocumentMask(str(saved["mask"]), _number(saved["row"]), indices)
        if (draw_change := DrawChange.classes.get(saved["event"]["event"])) is not None:
            return ChangedDraws(tuple(saved["path"]), draw_change.from_json(saved["event"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"an edit in the state cannot be read ({error}); the state is damaged, load an "
            "earlier one"
        ) from error
    return Change.from_json(saved)


def changed(tree: Step, edits: Sequence[Edit], epoch: int = 0) -> Step:
    """Return the tree with these changes made. Streams draw by the mixture of pass `epoch`."""
    if changes := [edit for edit in edits if isinstance(edit, Change | ChangedDraws)]:
        tree = _with_changes(tree, changes, epoch)
    if excluded := [edit for edit in edits if isinstance(edit, Exclude)]:
        tree = _without(tree, Builder(tree), excluded)
    lengths = tuple((edit.until, edit.length) for edit in edits if isinstance(edit, RowsBefore))
    if lengths:
        if [row for row, _ in lengths] != sorted(row for row, _ in lengths):
            raise StateError(
                "the row lengths in the state are not in order; the state is damaged, load an "
                "earlier one"
            )
        tree = change_rows(tree, lambda rows: with_earlier_lengths(rows, lengths))
    for edit in edits:
        if isinstance(edit, Former):
            tree = change_rows(
                tree, lambda rows, former=edit: FormerPasses(rows, former.sizes, former.until)
            )
    skips = Skips.of((edit.start, edit.count) for edit in edits if isinstance(edit, Skipped))
    if skips.points:
        tree = change_rows(tree, lambda rows: Reorder(rows, skips))
    masks = tuple(edit for edit in edits if isinstance(edit, DocumentMask))
    return mask_documents(tree, masks) if masks else tree


def find_masked_sources(edits: Sequence[Edit]) -> set[str]:
    """Return the sources with documents that are masked for good, not just until others come."""
    replaced = {
        (edit.source, i) for edit in edits if isinstance(edit, Exclude) for i in edit.indices
    }
    masks = [edit for edit in edits if isinstance(edit, DocumentMask)]
    return {
        mask.source for mask in masks if any((mask.source, i) not in replaced for i in mask.indices)
    }


def mask_from(edits: Sequence[Edit], row: int) -> tuple[DocumentMask, ...]:
    """Return the masks that are missing in a run that goes back to a row before removals."""
    masks = [edit for edit in edits if isinstance(edit, DocumentMask)]
    known = {(mask.source, i) for mask in masks if mask.row <= row for i in mask.indices}
    return tuple(
        replace(mask, row=row)
        for mask in masks
        if mask.row > row and any((mask.source, i) not in known for i in mask.indices)
    )


def with_former(edits: Sequence[Edit], saved: Passes, until: int) -> tuple[Edit, ...]:
    """Return the changes of a run whose passes before `until` read other data."""
    kept = (
        edit
        for edit in edits
        if not isinstance(edit, Former)
        and not (isinstance(edit, Skipped) and edit.start < saved.start(until))
        and not (isinstance(edit, RowsBefore) and edit.until <= saved.start(until))
    )
    sizes = zip(saved.epochs, saved.sizes, strict=True)
    return (*kept, Former(tuple(each for each in sizes if each[0] < until), until))


def find_source_position(
    root: Op, leaf: int, name: str, position: int, top: bool = True, pending: bool = False
) -> int:
    """Return the position of a source after which nothing was delivered.

    `top`: a pass of the run takes one pass of the root. At the beginning of a pass of a mixture, each
    input is at the beginning of a pass of its own (`Op.before`). `pending`: return the position
    before which nothing will be delivered instead.
    """
    if position == 0:
        return 0
    if root.leaf is not None and not root.keeps_order:
        return position
    for below in root.before(position):
        if leaf not in below.op.leaves or below.first or below.again:
            continue
        if top or not below.replays:
            start, top = below.position - below.pending * pending, top and root.one_pass
            return find_source_position(below.op, leaf, name, start, top, pending)
    raise ConfigError(
        f"plan.exclude: a shuffle over several sources changes the order of {name!r}, or a slice, "
        "a limit or a shorter input beside it gives its samples again, so they can be excluded "
        "from the start only; edit the plan before the run begins"
    )


def own_pass(tree: Step, path: Path) -> bool:
    """Return whether a pass of the run is one of the mixture at a path."""
    while tree.keeps_passes:
        (tree,) = tree.children
    return path == () and len(tree.children) > 0 and tree.only_input is None


def _without(step: Step, builder: Builder, edits: Sequence[Exclude], path: Path = ()) -> Step:
    """Return the tree without samples, which the outermost orders of single sources leave out."""
    if step.is_order and not step.excludes_below and (found := single_source(step, path)):
        source = builder.leaf(*found).name
        mine = [edit for edit in edits if edit.source == source]
        if not mine:
            return step
        since, indices = tuple(edit.since for edit in mine), tuple(edit.indices for edit in mine)
        replanned = tuple(sorted({epoch for edit in mine for epoch in edit.replanned}))
        return ExcludeSamples(step, since, indices, replanned)
    children = tuple(
        _without(child, builder, edits, place) for child, place in step.child_paths(path)
    )
    return step.with_children(children)


def _with_changes(tree: Step, changes: Sequence[Change | ChangedDraws], epoch: int) -> Step:
    """Return the tree with these events in the logs of its mixtures."""

    def change(path: Path, rule: Weighted, epoch: int | None) -> Weighted:
        mine = [change for change in changes if change.path == path]
        return _with_events(rule, mine, epoch) if mine else rule

    return replace_rules(tree, change, epoch)


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
    events = tuple((change.epoch, change.event) for change in mine[last:])
    return rule.with_changes(events, mine[last].pasts, now)


def locate_mixture(tree: Step, weights: Any) -> Path:
    """Return the path of the mixture whose inputs these weights name."""
    asked = set(weights.names) if isinstance(weights, Schedule) else set(weights)
    found = find_mixtures(tree)
    if not found and has_custom_rule(tree):
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
        rule = found[path].weighted
        if rule is not None and rule.draw_change is not None:
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
    events: list[Json] = [[epoch, event.to_json()] for epoch, event in past.events]
    mixture = mixture_to_json(past.mixture)
    rows: dict[str, Json] = {"rows": dict(past.rows)} if past.rows else {}
    return {"mixture": mixture, "events": events, "pass": past.epoch, "at": past.at, **rows}


def _past_from_json(saved: Any) -> FormerMixture:
    events = events_from_json(saved["events"])
    epoch, at = _decode_epoch(saved["pass"]), _number(saved["at"])
    rows = tuple((str(name), _number(rows)) for name, rows in saved.get("rows", {}).items())
    return FormerMixture(mixture_from_json(saved["mixture"]), events, epoch, at, rows)


def events_from_json(saved: Any) -> tuple[tuple[int, Event], ...]:
    """Decode the events of a mixture with their passes, in order."""
    events = tuple((_decode_epoch(epoch), event_from_json(event)) for epoch, event in saved)
    if [epoch for epoch, _ in events] != sorted(epoch for epoch, _ in events):
        raise StateError(
            "the changes of a mixture in the state are not in order; "
            "the state is damaged, load an earlier one"
        )
    return events


def _decode_epoch(saved: Any) -> int:
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
