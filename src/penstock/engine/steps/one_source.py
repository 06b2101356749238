"""`mix(one_source_per=)`: the rows of the global steps of a run, and packing below the mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import is_
from typing import cast

from ...errors import ConfigError, StateError
from ..base.step_plan import RowsByStep
from .compiled import Compiled
from .mean_lengths import weigh_tokens
from .mix import Mix, mixture_in_line, rule_by_step, with_rule_by_step
from .planned_lengths import find_end, with_rows_per_step
from .step import Step, iter_steps


def global_step_of(step: Step) -> int | None:
    """Return the rows of a global step that the mixtures of a tree count with, if any counts."""
    rules = (rule_by_step(below) for below, _ in iter_steps(step))
    return next((rule.global_step for rule in rules if rule is not None), None)


def with_global_step(step: Step, rows: int, repeated: bool = False) -> Step:
    """Return the tree that gives the rows of a run, with mixtures of one source per global step.

    Args:
        step: the tree, without the batches of its tail.
        rows: the rows of a global step.
        repeated: whether passes of the tree follow one another without a new step.

    Raises:
        ConfigError: if the rows of a global step are not neighbours in such a mixture.
    """
    if not any(rule_by_step(below) for below, _ in iter_steps(step)):
        return step
    if not step.keeps_stretches(rows, repeated):
        written = step.write()
        what = "a mixture, concat or zip" if written is None else written.text
        raise ConfigError(
            f"{what} comes after mix(one_source_per='global_step'), and changes which rows share a "
            "global step; put it before the mixture, on its inputs, or give the rows as a number, "
            "one_source_per=<rows>"
        )
    change = partial(with_global_step, rows=rows, repeated=repeated or not step.keeps_passes)
    children = tuple(map(change, step.children))
    if not all(map(is_, children, step.children)):
        step = step.with_children(children)
    return with_rule_by_step(step, rows)


def with_steps_of(present: Step, saved: Compiled, lanes: tuple[int, int] | None) -> Compiled:
    """Return the tree of a saved run with the global steps of this one.

    Args:
        present: the tree of this run.
        saved: the tree of the saved run.
        lanes: the lanes of both runs; None for runs of positions.

    Raises:
        StateError: if streams would give other samples to the steps of this run.
    """
    rows = global_step_of(present)
    same = rows == global_step_of(saved.tree)
    if rows is None or (same and (lanes is None or lanes[0] == lanes[1])):
        return saved
    if lanes is not None:
        raise StateError(
            f"the state has {lanes[0]} lanes and this run has {lanes[1]}, or other batches, and "
            "mix(one_source_per='global_step') of streams would give other samples to its steps; "
            "continue on as many ranks, with batches of the same size"
        )
    return saved.of(with_rows_of_step(saved.tree, ((0, rows),)))


def with_rows_of_step(step: Step, rows: RowsByStep) -> Step:
    """Return a tree of a run with global steps of so many rows."""
    if not step.in_tail:
        (_, first), *later = rows
        if later and any(rule_by_step(below) for below, _ in iter_steps(step)):
            raise ConfigError(
                "global_batch_size=Schedule(...): mix(one_source_per='global_step') draws a source "
                "for each step, and its steps would change; give the rows as a number, "
                "one_source_per=<rows>"
            )
        return with_rows_per_step(with_global_step(step, first), rows, find_end(step))
    (below,) = step.children
    changed = with_rows_of_step(below, rows)
    return step if changed is below else step.with_children((changed,))


def pack_each_source(step: Step, pack: Callable[[Step], Step]) -> Step:
    """Return a packed tree. The inputs of a mixture with `one_source_per` are packed each by itself.

    Args:
        step: the documents.
        pack: returns the rows of a tree.

    Raises:
        ConfigError: if a function between the mixture and the rows depends on other inputs.
    """
    mix, between = mixture_in_line(step), step
    if mix is None or mix.weighted is None or mix.weighted.one_source_per == 1:
        return pack(step)
    while between.is_elementwise:
        (between,) = between.children
    if between is not mix:
        written = between.write()
        raise ConfigError(
            f"pack() packs each input of mix(one_source_per=) by itself, and cannot move "
            f"{'a step' if written is None else written.text} below the mixture; pack the inputs, "
            "ps.mix({name: ds.pack(...)}, one_source_per=...)"
        )

    def documents_of(above: Step, child: Step) -> Step:
        if above is mix:
            return child
        return above.with_children((documents_of(above.children[0], child),))

    inputs = tuple(pack_each_source(documents_of(step, child), pack) for child in mix.inputs)
    # A row has the tokens that it has, whatever its documents would take in other rows.
    rule = replace(mix.weighted, sizer=None, lengths=None, clock=False)
    packed = replace(mix, inputs=inputs, rule=rule)
    known = cast("Mix", with_global_step(packed, 1))
    if packed.reason_not_indexed is not None:
        known.draws(())  # raises now for options that streams do not have
        return packed
    return replace(packed, rule=weigh_tokens(known, rule))
