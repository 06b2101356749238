"""Other weights during a run: the mixture that changes, and the position from which it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import NoReturn, cast

from ...arguments import check_int, check_position
from ...errors import ConfigError, StateError
from ...schedule import Schedule, check_names, convert_to_json_number
from ...types import Path
from ..mixing import Mixture, SetWeights
from ..mixing.rules import Weighted
from ..steps.mix import bind_mixtures, find_histories, find_mixtures
from ..steps.step import Builder, Step
from .edits import Change, Edit, locate_mixture

Place = tuple[int, int]
"""A pass of a mixture, and a position in it."""


def reweighed(
    base: Step,
    edits: Sequence[Edit],
    weights: Mapping[str, float] | Schedule,
    at: int | None,
    alone: bool,
    builder: Builder,
    reached: Callable[[Path], Place],
) -> tuple[int, Change]:
    """The position of a mixture from which on it has other weights, and the change by which it
    does. `reached` is the first place of a mixture that was not given yet; where a rank is not
    `alone` the position must be named.
    """
    if not isinstance(weights, Mapping | Schedule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"set_weights({weights!r}): give a mapping, {{name: weight, ...}}, or a Schedule"
        )
    if isinstance(weights, Mapping):
        weights = {name: convert_to_json_number(weight) for name, weight in weights.items()}
    path = locate_mixture(base, weights)
    if at is None and not alone:
        raise ConfigError(
            "set_weights on several ranks that run lanes or lease() needs at=, because ranks "
            "cannot see each other; give the same at= on all ranks"
        )
    events = [
        (edit.epoch, edit.event.at)
        for edit in edits
        if isinstance(edit, Change) and edit.path == path
    ]
    here = reached(path)
    furthest = position_in(builder, path, *max([here, *events]))
    position = furthest if at is None else check_int(at, "set_weights(at={})")
    check_position(position)
    if position < furthest:
        raise ConfigError(
            f"set_weights(at={at}): the run has already drawn samples or set weights up to "
            f"position {furthest}, and the past cannot change; give a later position"
        )
    epoch, place = place_in(builder, path, position, here[0])
    histories = {**find_histories(builder, True), **find_histories(builder, False)}
    found = histories.get(path)
    if found is not None and (rest := found.at(epoch).event_position(place) - place):
        position += rest  # a stretch of one source has one weight
        epoch, place = place_in(builder, path, position, here[0])
    found = found if path in bind_mixtures(builder) else None
    if isinstance(weights, Schedule) and found is not None and epoch == here[0]:
        rule = cast("Weighted", find_mixtures(base)[path].rule)
        weights = convert_later(rule, weights, found.at(epoch), place)
    return position, Change(path, epoch, SetWeights(place, weights))


def convert_later(rule: Weighted, schedule: Schedule, before: Mixture, at: int) -> Schedule:
    """Return a schedule of tokens in samples, behind the draws of an endless mixture before `at`.

    Its later points keep their places in the tokens of the run, whatever the weights were before.
    """
    by_unit = rule.means_by_unit()
    if (means := by_unit.get(schedule.unit)) is None or not at or before.size is not None:
        return schedule
    check_names(schedule.names, tuple(means), "the schedule")
    usual, own = fsum(means.values()) / len(means), schedule.unit == rule.unit
    known = (own and before.lengths) or tuple(means.get(name, usual) for name in before.names)
    drawn: list[int] = before.counts(at).tolist()
    meters = (before.meters or ()) if own else ()
    try:
        exact = [meter.tokens(n) for meter, n in zip(meters, drawn, strict=True)]
    except (StateError, ValueError):  # without meters, or an input that is gone
        exact = [n * mean for n, mean in zip(drawn, known, strict=True)]
    weighed = by_unit.get(rule.unit)
    total = int(fsum(exact) + 0.5)
    return schedule.in_tokens(means, weighed is not None, (at, total), weighed)


def position_in(builder: Builder, path: Path, epoch: int, place: int) -> int:
    """The position of a mixture, over all its passes, that a place of a pass is; of streams it is
    that place."""
    op = bind_mixtures(builder).get(path)
    return place if op is None else op.position(epoch, place)


def place_in(builder: Builder, path: Path, position: int, epoch: int) -> Place:
    """The pass and the place of a position; of streams it is one of the pass `epoch`."""
    if (op := bind_mixtures(builder).get(path)) is None:
        return epoch, position
    part, first, position = op.era_at(position)
    epoch, place = divmod(position, part.size) if part.size else (epoch - first, position)
    return first + epoch, place


def ends(builder: Builder, path: Path) -> bool:
    """Return whether a mixture is known to end."""
    op = bind_mixtures(builder).get(path)
    return op is not None and op.size is not None


def refused_inside() -> NoReturn:
    """Raise the error for a mixture without a known position."""
    raise ConfigError(
        "set_weights cannot change a mixture that is shuffled as a whole, repeated by a slice, a "
        "limit or a shorter input beside it (which give the same samples in every pass), or "
        "repeated above a step whose number of samples depends on the data; shuffle, limit or "
        "repeat its inputs instead"
    )
