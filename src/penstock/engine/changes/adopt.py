"""Adoption of another mixture during a run: the mixtures in a state, and the progress of their
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import fsum
from typing import Any, NamedTuple, cast

import numpy as np

from ...errors import PositionError, StateError
from ...schedule import Schedule
from ...types import Ints, Json, Path
from ..base.canonical_json import encode_canonical_json
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..mixing import Adopt, Mixture, SetWeights, mixture_from_json, mixture_to_json
from ..mixing.rules import FormerMixture, Weighted
from ..steps.batch import tail_of
from ..steps.mix import Mix, bind_mixtures, find_histories, find_mixtures
from ..steps.mix_history import FURTHEST, History, moved_draws, with_present_lengths
from ..steps.one_source import global_step_of
from ..steps.op import Op, find_progress_below
from ..steps.paths import format_path
from ..steps.reorder_gaps import pass_over_skips
from ..steps.step import Builder, Step
from ..steps.tally import make_removed_error
from .edits import (
    Change,
    ChangedDraws,
    Edit,
    Exclude,
    Skipped,
    changed,
    events_from_json,
    with_former,
)
from .reweigh import convert_later

_COMPARED = 3 << 16
"""Draws of a pass that are compared where a source has another number of rows."""

_ROWS_COMPARED = 3 << 10
"""Items of a pass that are compared there."""


class MixPosition(NamedTuple):
    """The position of a mixture in a run.

    It has the number of replays before; a pass, and the first place in it that was not delivered;
    and the first place that the slowest lane did not deliver.
    """

    epoch: int
    at: int
    behind: int


FindProgress = Callable[[Step], Mapping[Path, MixPosition]]
"""Positions of the mixtures of a tree; mixtures without a known position are left out."""


def describe_mixtures(builder: Builder) -> list[Json]:
    """Describe the mixtures of a tree for a state: everything that their order depends on."""
    out = list[Json]()
    for path, found in {**find_histories(builder, True), **find_histories(builder, False)}.items():
        events: list[Json] = [[epoch, event.to_json()] for epoch, event in found.events]
        out.append(
            {"path": list(path), "mixture": mixture_to_json(found.mixture), "events": events}
        )
    return out


class AdoptedState(NamedTuple):
    """The edits by which mixtures take over, and of mixtures of streams the names that their inputs
    had: these go on by their cursors.
    """

    edits: tuple[Edit, ...]
    streams: dict[Path, tuple[str, ...]]


def adopt_state(
    base: Step,
    edits: Sequence[Edit],
    saved: Any,
    epoch: int,
    find_progress: FindProgress,
    rows: Mapping[str, int],
) -> AdoptedState:
    """Return how the mixtures of a tree continue a pass from the positions in a state, each input
    from its own position. `rows` are the numbers of rows of the sources in that state.
    """
    require_own_draws(edits)
    builder = Builder(base)
    _require_rows_of_excluded(builder, edits, rows)
    unchanged, taken, moves = compare_mixtures(builder, edits, saved, rows)
    unmixed = tuple(edit for edit in edits if not isinstance(edit, Change))
    until = [Change(path, FURTHEST, Adopt(FURTHEST, {}), found) for path, found in taken.items()]
    until_then = changed(base, [*unchanged, *until, *unmixed], epoch)
    positions: Mapping[Path, MixPosition] = find_progress(until_then) if taken else {}
    made = list(unchanged)
    for path in sorted(
        taken, key=len, reverse=True
    ):  # inner mixtures first: their lengths are lengths of inputs
        if path not in positions:
            raise _make_out_of_order_error(path)
        if any(position := positions[path]):
            made += _adopt_mixture(base, [*made, *unmixed], path, taken[path], position)
    return AdoptedState((*made, *unmixed), moves)


def require_own_draws(edits: Sequence[Edit]) -> None:
    if any(isinstance(edit, ChangedDraws) for edit in edits):
        raise StateError(
            "the state has other draws than its mixture makes, such as replacements of lost "
            "samples, so it cannot be adopted; load it into the pipeline that saved it"
        )


def _require_rows_of_excluded(
    builder: Builder, edits: Sequence[Edit], rows: Mapping[str, int]
) -> None:
    """Refuse other numbers of rows of sources with excluded samples: positions count these rows."""
    excluded = {edit.source for edit in edits if isinstance(edit, Exclude)}
    if moved := sorted(excluded & builder.other_rows(rows).keys()):
        raise StateError(
            f"adopt: the run excluded samples of {', '.join(map(repr, moved))}, which has another "
            "number of rows now; add new rows as a separate input, or adopt at the end of a pass"
        )


class _Compared(NamedTuple):
    """The changes of the mixtures that stay, the former mixtures of those that take over, and the
    names that the inputs of those of streams had."""

    unchanged: list[Change]
    taken: dict[Path, tuple[FormerMixture, ...]]
    moves: dict[Path, tuple[str, ...]]


def compare_mixtures(
    builder: Builder, edits: Sequence[Edit], saved: Any, rows: Mapping[str, int]
) -> _Compared:
    """Compare the mixtures of a tree with those in a state."""
    edited = {edit.source for edit in edits if isinstance(edit, Exclude)}
    others = {k: n for k, n in builder.other_rows(rows).items() if k not in edited}
    streams, mixes = find_histories(builder, indexed=False), find_mixtures(builder.root)
    now, out = {**find_histories(builder, indexed=True), **streams}, _Compared([], {}, {})
    here = {_named(path): path for path in now}
    pasts = {
        name: tuple(_with_rows(past, here[name], others) for past in found)
        for name, found in _pasts(saved, edits).items()
        if name in here
    }
    for name, found in pasts.items():
        path, past = here[name], found[-1].mixture
        same = encode_canonical_json(mixture_to_json(past)) == encode_canonical_json(
            mixture_to_json(now[path].mixture)
        )
        if same and (path in streams or not _has_grown(builder, mixes[path], path, others)):
            out.unchanged.extend(replace(edit, path=path) for edit in _changes(edits, name))
        elif path in streams:
            out.moves[path] = past.names
        else:
            out.taken[path] = found
    return out


def keep_changes(
    edits: Sequence[Edit], saved: Sequence[Edit], row: int, base: Step
) -> tuple[Edit, ...]:
    """Return the changes of a run that continues with other global steps, whose mixtures take over.

    The weights that were set hold on; those set for later begin with a stretch.

    Args:
        edits: the changes by which the mixtures take over.
        saved: the changes in the state.
        row: the first row that was not delivered.
        base: the tree with the new global steps.

    Raises:
        StateError: if the run leaves out later rows, which are no whole steps any more.
    """
    if any(isinstance(edit, Skipped) and edit.start >= row for edit in saved):
        raise StateError(
            "the state leaves out later steps, and with another global batch they are no whole "
            "steps; load it with the same global batch, or skip steps of the new run instead"
        )
    out, rows = [*edits], global_step_of(base) or 1
    for edit in edits:
        if edit in saved or not isinstance(edit, Change) or not isinstance(edit.event, Adopt):
            continue
        begin = edit.epoch, edit.event.at
        events = edit.pasts[-1].events
        changes = [(epoch, event) for epoch, event in events if isinstance(event, SetWeights)]
        in_force = [event for epoch, event in changes if (epoch, event.at) <= begin][-1:]
        out += [Change(edit.path, edit.epoch, SetWeights(begin[1], e.weights)) for e in in_force]
        for epoch, event in changes:
            if (epoch, event.at) > begin:
                first = begin[1] if epoch == begin[0] else 0
                at = first - (first - event.at) // rows * rows
                out.append(Change(edit.path, epoch, SetWeights(at, event.weights)))
    return tuple(out)


def _with_rows(taken_over: FormerMixture, path: Path, rows: Mapping[str, int]) -> FormerMixture:
    """Return a past with the numbers of rows of the sources below it that have others now."""
    name = format_path(path)  # concat and zip add nothing to the names of sources
    mine = {source: n for source, n in rows.items() if not name or source.startswith(f"{name}/")}
    return replace(taken_over, rows=tuple(sorted({**mine, **dict(taken_over.rows)}.items())))


def _has_grown(builder: Builder, mix: Mix, path: Path, rows: Mapping[str, int]) -> bool:
    """Return true if an input of a mixture gives other samples of sources with these numbers of
    rows, in passes of its present length."""
    return any(mix.input_with_rows(builder, path, name, rows) is not None for name in mix.names)


def _adopt_mixture(
    base: Step,
    edits: Sequence[Edit],
    path: Path,
    pasts: tuple[FormerMixture, ...],
    now: MixPosition,
) -> list[Change]:
    """Return the changes by which the mixture at a path continues at the position of a pass where
    another one stops.
    """
    builder = Builder(changed(base, edits))
    present = find_histories(builder, indexed=True)[path].mixture
    epoch, at, behind = now
    history = History(
        present, (), tuple(with_present_lengths(past, present) for past in pasts), None
    )
    then = history.at(epoch)
    try:
        delivered = then.counts(at).tolist()
    except IndexError:  # a selection gave later places before
        raise _make_out_of_order_error(path) from None
    if gone := sorted(history.list_drawn(epoch, behind, at) - {*present.names}):
        raise make_removed_error(*gone)
    counts = dict(zip(then.names, zip(delivered, then.sizes, strict=True), strict=True))
    drawn = {
        name: moved_draws(*counts[name], size)
        for name, size in zip(present.names, present.sizes, strict=True)
        if name in counts
    }
    _require_same_order(
        builder, path, pasts[-1], {name: counts[name][0] for name in drawn if pasts[-1].rows}
    )
    _require_same_tokens(then, present)
    one_unit = (then.meters is None) == (present.meters is None)
    surplus = _carry(then.surplus(at), present) if one_unit else {}
    ended = replace(pasts[-1], epoch=epoch, at=at)
    changes = [Change(path, epoch, Adopt(at, drawn, surplus), (*pasts[:-1], ended))]
    weights = (rule := cast("Weighted", find_mixtures(base)[path].rule)).weights
    if isinstance(weights, Schedule) and present.size is None and not _agree(then, present, at):
        later = convert_later(rule, weights, then, at)
        if later is not weights:
            changes.append(Change(path, epoch, SetWeights(at, later)))
    return changes


def _make_out_of_order_error(path: Path) -> StateError:
    return StateError(
        f"the mixture {'/'.join(_named(path)) or 'of the pipeline'} is shuffled as a whole, or a "
        "slice, a limit or a shorter input beside it gives its samples again, so it cannot be "
        "changed here; adopt at the end of a pass, after its loop, or shuffle and slice its "
        "inputs instead"
    )


def _agree(then: Mixture, present: Mixture, at: int) -> bool:
    """Return whether two mixtures have equal weights up to a position, by their schedules."""

    def begun(mixture: Mixture) -> list[object]:
        weights = mixture.weights
        assert isinstance(weights, Schedule)
        spans = (span for span in weights.spans(weights.names) if span.begin < at)
        return [
            (span.begin, span.first.tolist(), span.last.tolist(), span.origin, span.interpolation)
            + ((span.target,) if not span.constant else ())
            for span in spans
        ]

    both = isinstance(then.weights, Schedule) and isinstance(present.weights, Schedule)
    return both and not then.log and then.names == present.names and begun(then) == begun(present)


def _require_same_tokens(then: Mixture, present: Mixture) -> None:
    """Refuse samples that count other tokens now, because the draws until now depend on them."""
    if then.meters is None or present.meters is None:
        return
    inputs = zip(present.names, present.sizes, present.lengths or (), strict=True)
    means = {(name, size): mean for name, size, mean in inputs}
    for name, size, mean in zip(then.names, then.sizes, then.lengths or (), strict=True):
        if means.get((name, size), mean) != mean:
            raise StateError(
                f"the samples of {name!r} count {means[name, size]:.6g} tokens each on average, and "
                f"{mean:.6g} in the saved run; keep the unit, and bos, eos and pad_to_multiple "
                "of its packing"
            )


def _require_same_order(
    builder: Builder, path: Path, then: FormerMixture, drawn: Mapping[str, int]
) -> None:
    """Refuse inputs whose order in a pass that has begun is another one over their present rows.

    `drawn` are the draws of each input, in passes of its length before.
    """
    mix, moved = find_mixtures(builder.root)[path], list[str]()
    for name, draws in drawn.items():
        former = mix.input_with_rows(builder, path, name, dict(then.rows))
        if former is None:
            continue
        op = builder.op(*mix.input_named(path, name))
        epoch, place = divmod(draws, former.size) if former.size else (0, draws)
        places = _some_below(place if op.size is None else min(place, op.size), _COMPARED)
        if not _give_equal(
            (former, places + epoch * (former.size or 0)), (op, places + epoch * (op.size or 0))
        ):
            moved.append(name)
    if moved:
        raise make_moved_error(moved)


def with_other_rows(
    base: Step,
    edits: Sequence[Edit],
    rows: Mapping[str, int],
    epoch: int,
    at: int,
    saved: Passes | None,
) -> tuple[Edit, ...]:
    """Return the changes of a run whose sources have other numbers of rows now.

    Args:
        base: the present tree.
        edits: the changes.
        rows: the numbers of rows of the sources in the state.
        epoch: the pass in which the run stands.
        at: the first row of it that was not delivered.
        saved: the passes of the run in the state.

    Raises:
        StateError: if the present tree gives other rows before that one.
    """
    tree = tail_of(changed(base, edits)).rows
    _require_rows_of_excluded(Builder(base), edits, rows)
    if not _is_past_equal(tree, rows, {epoch: at}):
        raise make_moved_error([])
    if not epoch or saved is None:
        return tuple(edits)
    now = Builder(tree).op(tree).passes
    whole = {each: saved.size(each) for each in (0, epoch - 1)}
    if now is not None and now.is_equal_before(saved, epoch) and _is_past_equal(tree, rows, whole):
        return tuple(edits)
    return with_former(edits, saved, epoch)


def _is_past_equal(tree: Step, rows: Mapping[str, int], ends: Mapping[int, int]) -> bool:
    """Compare the rows of a tree with those over sources with other numbers of rows: in each pass
    of `ends` those before a place."""
    builder = Builder(tree)
    others = builder.other_rows(rows)
    if not others or tree.has_exclusions:
        return True
    then, now = builder.with_rows(others).op(tree), builder.op(tree)
    for epoch, end in ends.items():
        places = _some_below(end, _ROWS_COMPARED)
        starts = [0 if op.passes is None else op.passes.start(epoch) for op in (then, now)]
        if not _give_equal((then, places + starts[0]), (now, places + starts[1])):
            return False
    return True


def _give_equal(then: tuple[Op, Ints], now: tuple[Op, Ints]) -> bool:
    """Compare the samples at positions of two ops, except draws of an input that was removed."""
    (op, at), (other, present) = then, now
    if at.size and 0 in (op.size, other.size):
        return False  # no position of a slice without rows has a sample
    try:
        before = op.locate(at)
    except StateError:
        first, rest = slice(len(at) // 2), slice(len(at) // 2, None)
        return len(at) == 1 or all(
            _give_equal((op, at[part]), (other, present[part])) for part in (first, rest)
        )
    with suppress(StateError):  # a source no longer has all rows that it gave
        return all(map(np.array_equal, _samples_of(before), _samples_of(other.locate(present))))
    return False


def _samples_of(rows: ProvenanceRows) -> tuple[Ints, ...]:
    return rows.leaf, rows.epoch, rows.index, rows.part, *rows.levels


def _some_below(stop: int, most: int) -> Ints:
    """Return all places below a number if they are few, else the first and the last, and some
    between."""
    if stop <= most:
        return np.arange(stop)
    third = most // 3
    between = np.linspace(third, stop - third, third, endpoint=False).astype(np.int64)
    return np.concatenate([np.arange(third), between, np.arange(stop - third, stop)])


def make_moved_error(sources: Sequence[str]) -> PositionError:
    """Make the error for another order of samples in a pass that has begun."""
    named = f" (sources: {', '.join(sorted(sources))})" if sources else ""
    return PositionError(
        f"adopt: the last delivered samples of this pass{named} differ in this pipeline, so "
        "samples would be repeated or lost: another step orders or counts them, a shuffled source "
        "grew or has another name, or delivered rows would be packed again; keep these steps and "
        "sources until the end of the pass, or adopt there, and add new rows as a separate input"
    )


def _carry(surplus: Mapping[str, float], present: Mixture) -> dict[str, float]:
    """Return the surplus of the inputs of a mixture that takes over. Inputs that left leave theirs
    to the others, by weight.
    """
    rest = fsum(n for name, n in surplus.items() if name not in present.names)
    weights = present.weights_at(0) if rest else {}
    return {name: surplus.get(name, 0.0) + rest * weights.get(name, 0.0) for name in present.names}


def _pasts(saved: Any, edits: Sequence[Edit]) -> dict[tuple[str, ...], tuple[FormerMixture, ...]]:
    """Return the mixtures in a state, by name; their changes say which mixtures they replaced."""
    try:
        found = {
            _named(tuple(entry["path"])): (
                mixture_from_json(entry["mixture"]),
                events_from_json(entry["events"]),
            )
            for entry in saved
        }
    except StateError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the mixtures in the state cannot be read ({error!r}); the state is damaged, load an "
            "earlier one"
        ) from error
    earlier = {name: [edit.pasts for edit in _changes(edits, name) if edit.pasts] for name in found}
    return {
        name: (*(earlier[name][-1:] or [()])[0], FormerMixture(mixture, events, FURTHEST, FURTHEST))
        for name, (mixture, events) in found.items()
    }


def _changes(edits: Sequence[Edit], name: tuple[str, ...]) -> list[Change]:
    return [edit for edit in edits if isinstance(edit, Change) and _named(edit.path) == name]


def _named(path: Path) -> tuple[str, ...]:
    """A place without what only says that a slice lies there: a limit may come and go."""
    return tuple(str(place) for place in path if place != -1)


# ---------------------------------------------------------------- where mixtures stand


def find_mixture_progress(tree: Step, epoch: int, at: int) -> dict[Path, MixPosition]:
    """Return the positions of the mixtures of an indexed tree at a row of a pass."""
    builder = Builder(tree)
    op = builder.op(tail_of(tree).rows)
    row = at + (0 if op.passes is None else op.passes.start(epoch))
    found = find_progress_below(*pass_over_skips(op, row))
    places = {
        path: found[id(mix)] for path, mix in bind_mixtures(builder).items() if id(mix) in found
    }
    return {path: MixPosition(epoch, at, at) for path, (epoch, at) in places.items()}
