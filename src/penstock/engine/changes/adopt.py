"""Adoption of another mixture during a run: the mixtures in a state, and the progress of their
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from ...errors import StateError
from ...types import Json, Path
from ..base.canonical_json import encode_canonical_json
from ..mixing import Adopt, MadeUp, Mixture, mixture_from_json, mixture_to_json
from ..mixing.rules import Past
from ..steps.batch import tail_of
from ..steps.mix import bind_mixtures, find_histories
from ..steps.mix_history import FURTHEST, History, bound, moved_draws
from ..steps.op import stands_below
from ..steps.step import Builder, Step
from .edits import Change, Edit, changed, events_from_json


class Stand(NamedTuple):
    """The position of a mixture in a run.

    It has the number of replays before; a pass, and the first place in it that was not delivered;
    and the first place that the slowest lane did not deliver. `held`: its documents are packed in
    windows, and one window was delivered in part.
    """

    lap: int
    at: int
    behind: int
    held: bool = False


Places = Callable[[Step], Mapping[Path, Stand]]
"""Where each mixture of a tree stands; mixtures of which that cannot be said are left out."""


def told(builder: Builder) -> list[Json]:
    """What a state tells of the mixtures of a tree: everything that their order depends on."""
    out = list[Json]()
    for path, found in {**find_histories(builder, True), **find_histories(builder, False)}.items():
        events: list[Json] = [[lap, event.to_json()] for lap, event in found.events]
        out.append(
            {"path": list(path), "mixture": mixture_to_json(found.mixture), "events": events}
        )
    return out


class Adopted(NamedTuple):
    """The edits by which mixtures take over, and of mixtures of streams the names that their inputs
    had: these go on by their cursors.
    """

    edits: tuple[Edit, ...]
    streams: dict[Path, tuple[str, ...]]


def adopted(base: Step, edits: Sequence[Edit], saved: Any, epoch: int, places: Places) -> Adopted:
    """Return how the mixtures of a tree continue a pass from the positions in a state, each input
    from its own position.
    """
    if any(isinstance(edit, Change) and isinstance(edit.event, MadeUp) for edit in edits):
        raise StateError(
            "the state has made-up draws for lost samples, so a mixture with count='settled' "
            "cannot be adopted; load it into the pipeline that saved it"
        )
    pasts = _pasts(saved, edits)
    builder = Builder(base)
    streams = find_histories(builder, indexed=False)
    now, moves = {**find_histories(builder, indexed=True), **streams}, dict[Path, tuple[str, ...]]()
    here = {_named(path): path for path in now}
    others = tuple(edit for edit in edits if not isinstance(edit, Change))
    kept, taken = list[Change](), dict[Path, tuple[Past, ...]]()
    for name, found in pasts.items():
        if (path := here.get(name)) is None:
            continue
        past = found[-1].mixture
        if encode_canonical_json(mixture_to_json(past)) == encode_canonical_json(
            mixture_to_json(now[path].mixture)
        ):
            kept += [replace(edit, path=path) for edit in _changes(edits, name)]
        elif path in streams:
            moves[path] = past.names
        else:
            taken[path] = found
    until = [Change(path, FURTHEST, Adopt(FURTHEST, {}), found) for path, found in taken.items()]
    until_then = changed(base, [*kept, *until, *others], epoch)
    stands: Mapping[Path, Stand] = places(until_then) if taken else {}
    made = list(kept)
    for path in sorted(
        taken, key=len, reverse=True
    ):  # inner mixtures first: their lengths are lengths of inputs
        if path not in stands:
            raise StateError(
                f"the mixture {'/'.join(_named(path)) or 'of the pipeline'} is shuffled as a "
                "whole, or a slice or limit above it gives its samples again, so it cannot be "
                "changed here; adopt at the end of a pass, or shuffle and slice its inputs instead"
            )
        if any(stand := stands[path]):
            then, names = taken[path][-1].mixture.names, now[path].mixture.names
            if stand.held and then != names:
                raise StateError(
                    "the names of the inputs decide the order of the rows in a window of "
                    "documents, and the run delivered a part of such a window; keep the names "
                    "and adopt at the end of a window (see pack(method='best_fit')) or of a pass"
                )
            made.append(_takeover(base, [*made, *others], path, taken[path], stand))
    return Adopted((*made, *others), moves)


def _takeover(
    base: Step, edits: Sequence[Edit], path: Path, pasts: tuple[Past, ...], stand: Stand
) -> Change:
    """Return the change by which the mixture at a path continues at the position of a pass where
    another one stops.
    """
    present = find_histories(Builder(changed(base, edits)), indexed=True)[path].mixture
    lap, at, behind, _ = stand
    then = History(present, (), tuple(bound(past, present) for past in pasts), None).at(lap)
    drawn_from: list[int] = then.at(np.arange(behind, at))[0].tolist()
    needed = {then.names[i] for i in drawn_from}
    if gone := sorted(needed - {*present.names}):
        raise StateError(
            f"the run still needs draws from input {', '.join(map(repr, gone))}, which the mixture "
            "no longer has; give it weight 0 instead of removing it"
        )
    counts = dict(
        zip(then.names, zip(then.counts(at).tolist(), then.sizes, strict=True), strict=True)
    )
    drawn = {
        name: moved_draws(*counts[name], size)
        for name, size in zip(present.names, present.sizes, strict=True)
        if name in counts
    }
    one_unit = (then.meters is None) == (present.meters is None)
    surplus = _carry(then.surplus(at), present) if one_unit else {}
    ended = replace(pasts[-1], lap=lap, at=at)
    return Change(path, lap, Adopt(at, drawn, surplus), (*pasts[:-1], ended))


def _carry(surplus: Mapping[str, float], present: Mixture) -> dict[str, float]:
    """Return the surplus of the inputs of a mixture that takes over. Inputs that left leave theirs
    to the others, by weight.
    """
    rest = fsum(n for name, n in surplus.items() if name not in present.names)
    weights = present.weights_at(0) if rest else {}
    return {name: surplus.get(name, 0.0) + rest * weights.get(name, 0.0) for name in present.names}


def _pasts(saved: Any, edits: Sequence[Edit]) -> dict[tuple[str, ...], tuple[Past, ...]]:
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
        name: (*(earlier[name][-1:] or [()])[0], Past(mixture, events, FURTHEST, FURTHEST))
        for name, (mixture, events) in found.items()
    }


def _changes(edits: Sequence[Edit], name: tuple[str, ...]) -> list[Change]:
    return [edit for edit in edits if isinstance(edit, Change) and _named(edit.path) == name]


def _named(path: Path) -> tuple[str, ...]:
    """A place without what only says that a slice lies there: a limit may come and go."""
    return tuple(str(place) for place in path if place != -1)


# ---------------------------------------------------------------- where mixtures stand


def standing(tree: Step, epoch: int, at: int) -> dict[Path, Stand]:
    """Where the mixtures of an indexed tree stand at a row of a pass."""
    builder = Builder(tree)
    op = builder.op(tail_of(tree).rows)
    found = stands_below(op, at + (0 if op.passes is None else op.passes.start(epoch)))
    places = {
        path: found[id(mix)] for path, mix in bind_mixtures(builder).items() if id(mix) in found
    }
    return {path: Stand(epoch, at, at, held) for path, (epoch, at, held) in places.items()}
