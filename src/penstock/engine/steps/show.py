"""Descriptions of pipelines for people: a short tree of steps, sources, rows and shares.

No data is read, and broken pipelines can be shown too, because people look at those most.
"""

from __future__ import annotations

from ..base.shown import Shown, attempt, counted
from .compiled import Compiled
from .step import Step, Written, iter_steps

_LINES = 12
_STEPS = 10  # of a chain
_INPUTS = 64  # more are not compiled to be shown


def shown(head: str, step: Step) -> Shown:
    """Return a title and a tree: in one line for a chain over one source.

    >>> from penstock.engine.orders import Shuffle
    >>> from penstock.engine.steps.read import Read
    >>> from penstock.engine.steps.reorder import Reorder
    >>> print(shown("Dataset", Reorder(Read(range(3), "words"), Shuffle(), seed=1)))
    Dataset: words (3 rows) -> shuffle(seed=1)
    """
    tree = attempt(lambda: _show_tree(step, "", _LINES - 1), Shown(f"{type(step).__name__}?"))
    return Shown(head, (tree,)) if tree.below else Shown(f"{head}: {tree.text}")


def length(compiled: Compiled) -> str:
    """Return the length of a pass in words, if it is known without reads and soon."""
    return attempt(lambda: _length(compiled), ", length unknown")


def _length(compiled: Compiled) -> str:
    if "size" not in vars(compiled):
        inputs = _count_inputs(compiled.tree)
        if inputs is not None and compiled.tree.reason_not_indexed:
            return ", not indexed"
        if compiled.tree.is_endless:
            return ", endless"
        if inputs is None or inputs > _INPUTS:
            return ", length not computed yet"
    return ", endless" if compiled.size is None else f" of {counted(compiled.size, 'item')}"


def _count_inputs(tree: Step) -> int | None:
    """Return the number of inputs of mixtures; None if the length may need reads."""
    inputs = 0
    for step, _ in iter_steps(tree):
        if step.needs_lengths:
            return None
        inputs += len(step.children) if step.only_input is None else 0
    return inputs


def _show_tree(step: Step, name: str, room: int) -> Shown:
    """Return a tree in at most `room` lines."""
    calls, root = _split_chain(step)
    shown = attempt(
        lambda: root.show_root(name, room - 1, _show_tree), Shown(f"{type(root).__name__}?")
    )
    return Shown(_join([shown.text, *calls]), shown.below)


def _split_chain(step: Step) -> tuple[list[str], Step]:
    """Return the calls over a source or a mixture, in the order of the code, and that."""
    calls = list[str]()
    while True:
        below = attempt(lambda step=step: step.only_input, None)
        broken = Written(f"{type(step).__name__}?", below) if below else None
        if (written := attempt(step.write, broken)) is None:
            return calls[::-1], step
        calls += [written.text] if written.text else []
        step = written.input


def stage(step: Step) -> str:
    """Return a step as the user wrote it."""
    written = attempt(step.write, None)
    return written.text if written and written.text else "zip()"


def _join(calls: list[str]) -> str:
    if len(calls) > _STEPS:
        head, tail = _STEPS // 2, _STEPS - _STEPS // 2 - 1
        calls = [*calls[:head], f"... {len(calls) - head - tail} more steps", *calls[-tail:]]
    return " -> ".join(calls)
