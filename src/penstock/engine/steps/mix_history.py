"""Mixtures over the passes of a run. What is changed in one pass holds in the later ones, and in
none before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...errors import ConfigError
from ...schedule import Schedule, check_names
from ...types import MAX_POSITION, IdentifiesLengths, Ints, Json, Path, Sizes
from ..base.random import derive_key
from ..mixing import Event, IntegerCache, Meter, Mixture, SetWeights
from ..mixing.rules import FormerMixture, MixtureByPass, Weighted
from ..orders import Repeat
from . import block_totals
from .mix_eras import Era, ErasOp, FormerInput, RemovedInput
from .mix_op import MixOp
from .op import Op
from .paths import names_in_keys
from .reorder_op import OrderOp
from .tokens import Lengths

MixtureOp: TypeAlias = MixOp | ErasOp

FURTHEST = MAX_POSITION
"""No position of a mixture lies there, and no pass has that number."""


class MixtureEra(NamedTuple):
    """The mixture of a run from place `place` of pass `epoch` on.

    `rows` has the sources that had another number of rows then.
    """

    epoch: int
    place: int
    mixture: Mixture
    rows: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class History:
    """A mixture, what happened to it in which pass, and the mixtures that it took over from. `now`
    is the pass in which a run of streams stands.
    """

    mixture: Mixture
    events: tuple[tuple[int, Event], ...]
    pasts: tuple[FormerMixture, ...]
    now: int | None
    known: MixtureByPass | None = None
    """The mixtures after the first of the events, worked out earlier."""

    @cached_property
    def changed(self) -> MixtureByPass:
        """The mixture of each pass, without those it took over from."""
        if self.known is None or not self.known.begins(self.events):
            return MixtureByPass.of(self.mixture, self.events)
        return self.known.and_then(self.events[len(self.known.events) :])

    @cached_property
    def eras(self) -> tuple[MixtureEra, ...]:
        """The eras of the mixture in a run."""
        epoch, place, eras = 0, 0, list[MixtureEra]()
        for past in self.pasts:
            eras = _continued(eras, epoch, place, past.changed, past.rows)
            epoch, place = past.epoch, past.at
        return tuple(eras if epoch == FURTHEST else _continued(eras, epoch, place, self.changed))

    @property
    def goes_on(self) -> bool:
        """True if every input continued at its next draw wherever a mixture took over."""
        return all(
            era.epoch != later.epoch
            or not later.place
            or _continues(era.mixture, later.mixture, later.place)
            for era, later in pairwise(self.eras)
        )

    @property
    def present(self) -> Mixture:
        """The mixture of the pass in which the run stands."""
        return self.at(self.now or 0)

    def at(self, epoch: int) -> Mixture:
        """Return the mixture at the end of a pass."""
        return self.eras[bisect_right(self.eras, epoch, key=lambda era: era.epoch) - 1].mixture

    def list_drawn(self, epoch: int, start: int, stop: int) -> set[str]:
        """Return the inputs that places `start` to `stop - 1` of a pass draw from."""
        drawn, end = set[str](), (epoch, stop)
        for era, later in zip(self.eras, [*(each[:2] for each in self.eras[1:]), end], strict=True):
            first = max(start, era.place if era.epoch == epoch else 0)
            last = min(later, end)[1] if min(later, end)[0] == epoch else 0
            if era.epoch <= epoch and first < last:
                sources = era.mixture.at(np.arange(first, last))[0]
                drawn |= {era.mixture.names[i] for i in np.unique(sources).tolist()}
        return drawn


def _continued(
    eras: list[MixtureEra],
    epoch: int,
    place: int,
    changed: MixtureByPass,
    rows: tuple[tuple[str, int], ...] = (),
) -> list[MixtureEra]:
    """Return eras that another mixture continues from a place of a pass on."""
    later = [
        MixtureEra(at, 0, each, rows) for at, each in sorted(changed.passes.items()) if at > epoch
    ]
    before = [era for era in eras if era[:2] < (epoch, place)]
    return [*before, MixtureEra(epoch, place, changed.at(epoch), rows), *later]


def moved_draws(draws: int, size: int | None, now: int | None) -> int:
    """Return the number of draws up to the same sample of the same pass of an input whose passes
    had `size` samples, and have another number now."""
    return draws if not size or not now else draws // size * now + draws % size


def _continues(before: Mixture, after: Mixture, place: int) -> bool:
    try:
        counts = before.counts(place).tolist()
    except IndexError:  # the earlier mixture ends before that
        return False
    now = dict(zip(after.names, after.counts(place).tolist(), strict=True))
    sizes = dict(zip(after.names, after.sizes, strict=True))
    return all(
        moved_draws(k, size, sizes[name]) == now[name]
        for name, size, k in zip(before.names, before.sizes, counts, strict=True)
        if name in now
    )


def with_present_lengths(past: FormerMixture, present: Mixture) -> FormerMixture:
    """The past with the lengths of the present, where it was timed by a clock."""
    found = past.mixture.with_meters(present)
    return past if found is past.mixture else replace(past, mixture=found)


def find_integer_cache(inputs: Sequence[Op], lengths: Lengths) -> IntegerCache | None:
    """Return the cache, in the largest source, of integers that follow from the draws of inputs.

    None if the sources are small, or if nothing identifies the order or the lengths of an input.
    """
    sources, orders = list[IdentifiesLengths](), list[Json]()
    for op in inputs:
        if type(op) is OrderOp and isinstance(op.order, Repeat):
            op = op.input
        source, order = op.known() or (None, None)
        if not isinstance(source, IdentifiesLengths):
            return None
        sources.append(source)
        orders.append([len(source), op.size, order])
    if sum(map(len, sources)) < block_totals.MIN_CACHED_SAMPLES:
        return None
    largest = max(sources, key=len)

    def load_or_make(key: Mapping[str, Json], make: Callable[[], Ints]) -> Sizes | None:
        versions = [source.lengths_version() for source in sources]
        if None in versions:
            return None
        draws: Json = [versions, orders, lengths.described]
        return largest.cached_integers({**key, "draws": draws}, make)

    return load_or_make


def compile_history(
    rule: Weighted,
    names: tuple[str, ...],
    sizes: tuple[int | None, ...],
    path: Path,
    inputs: tuple[object, ...] = (),
    meters: tuple[Meter, ...] | None = None,
    cache: IntegerCache | None = None,
) -> History:
    """Return the mixture of a weighted mix, with its changes.

    With `meters`, of these inputs, shares of tokens go by the clock.
    """
    key = names, sizes, path, tuple(map(id, inputs)) if meters else ()
    if key not in rule.compiled:
        made = _history(rule, names, sizes, path, meters, cache)
        if rule.events:
            _, known = rule.changed.get(key, (inputs, None))
            made = replace(made, known=known)
            rule.changed[key] = inputs, made.changed
        rule.compiled[key] = inputs, made  # inputs are kept for their identities
    return rule.compiled[key][1]


def _history(
    rule: Weighted,
    names: tuple[str, ...],
    sizes: tuple[int | None, ...],
    path: Path,
    meters: tuple[Meter, ...] | None,
    cache: IntegerCache | None,
) -> History:
    weights: Any = dict(rule.weights) if isinstance(rule.weights, tuple) else rule.weights
    means = rule.means_by_unit()
    lengths = means.get(rule.unit)

    def in_samples(weights: Any) -> Any:
        if not isinstance(weights, Schedule) or (counted := means.get(weights.unit)) is None:
            return weights
        check_names(weights.names, names, "the schedule")
        return weights.in_tokens(counted, lengths is not None, weighed=lengths)

    def counted(event: Event) -> Event:
        if not isinstance(event, SetWeights) or not isinstance(event.weights, Schedule):
            return event
        return replace(event, weights=in_samples(event.weights))

    events = tuple((epoch, counted(event)) for epoch, event in rule.events)
    mixture = Mixture(
        names=names,
        weights=in_samples(weights),
        sizes=sizes,
        block_size=rule.block_size,
        stop=rule.stop,
        max_epochs=dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else rule.max_epochs,
        temperature=rule.temperature,
        key=derive_key(rule.seed, *names_in_keys(path), "mix"),
        lengths=tuple(lengths[name] for name in names) if lengths else None,
        meters=meters,
        one_source_per=rule.stretch,
        cache=cache,
    )
    pasts = tuple(with_present_lengths(past, mixture) for past in rule.pasts)
    return History(mixture, events, pasts, rule.now)


def mixture_op(
    found: History,
    inputs: tuple[Op, ...],
    leaves: int,
    at: Path,
    with_rows: Callable[[str, Mapping[str, int]], Op | None],
) -> MixtureOp:
    """Return the op of a mixture, with its eras. Each input continues at its next draw.

    `with_rows` returns an input over sources with other numbers of rows; None if it has none of
    these sources.
    """
    ops, eras = dict(zip(found.mixture.names, inputs, strict=True)), list[Era]()
    for i, (epoch, place, mixture, rows) in enumerate(found.eras):
        drawn = np.zeros(len(mixture.names), np.int64)
        if i:
            earlier, before = eras[-1], found.eras[i - 1].mixture
            drawn = _convert_draws(earlier.mix.drawn(epoch - earlier.epoch), before, mixture)
        mine = [
            _as_former(ops.get(name), name, size, with_rows(name, dict(rows)) if rows else None)
            for name, size in zip(mixture.names, mixture.sizes, strict=True)
        ]
        eras.append(Era(epoch, place, MixOp(mine, mixture, leaves, at, base=drawn)))
    sizes = {era.epoch: era.mix.size for era in eras}
    ends = [epoch for epoch, size in sizes.items() if size is not None]
    if ends and len(ends) < len(sizes):
        raise ConfigError(
            f"the mixture of {', '.join(found.mixture.names)} ends, but the change would make it "
            f"endless in pass {min({*sizes} - {*ends})}; limit the input that has no end"
        )
    if not ends:  # one pass that never ends
        eras = [era for era in eras if not era.epoch]
    return ErasOp(eras) if len(eras) > 1 else eras[0].mix


def _convert_draws(drawn: Ints, before: Mixture, after: Mixture) -> Ints:
    """Return the draws of each input of a mixture, from those of the mixture before it."""
    then = dict(zip(before.names, zip(drawn.tolist(), before.sizes, strict=True), strict=True))
    return np.asarray(
        [
            moved_draws(*then[name], size) if name in then else 0
            for name, size in zip(after.names, after.sizes, strict=True)
        ],
        np.int64,
    )


def _as_former(op: Op | None, name: str, size: int | None, then: Op | None) -> Op:
    """Return an input as it was in an era; `then` is the one over the rows of that era."""
    if then is not None and then.size == size:
        return then
    if op is None:
        return RemovedInput(name, size)
    return op if size is None or op.size == size else FormerInput(op, size)
