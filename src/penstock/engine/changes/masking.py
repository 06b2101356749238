"""Masking of documents that a run cannot replace: which it can mask, and the tree that does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...errors import StateError
from ...types import Path
from ..steps.batch import Batch, change_rows
from ..steps.function_step import FunctionStep
from ..steps.group import Group
from ..steps.mask import DocumentMask, MaskDocuments
from ..steps.step import Builder, Step


def find_maskable_sources(tree: Step, builder: Builder) -> frozenset[str]:
    """Return the sources whose documents can be masked: a pack or `Padded` builds their rows."""
    return frozenset(_maskable(tree, (), builder, False))


def _maskable(step: Step, path: Path, builder: Builder, is_built: bool) -> Iterator[str]:
    if not step.children:
        if is_built:
            yield builder.leaf(step, path).name
        return
    is_built = is_built or _builder_input(step) is not None
    for child, place in step.child_paths(path):
        yield from _maskable(child, place, builder, is_built)


def _builder_input(step: Step) -> Group | Batch | None:
    """Return the groups whose documents a step builds into rows, if it can mask them."""
    if not isinstance(step, FunctionStep) or not getattr(step.fn, "masks_documents", False):
        return None
    below = step.input
    if isinstance(below, Batch) and isinstance(below.input, Group):
        return below.input
    if isinstance(below, Group):
        return below
    if isinstance(below, Batch) and step.in_tail and not below.input.in_tail:
        return below
    return None


def mask_documents(tree: Step, masks: Sequence[DocumentMask]) -> Step:
    """Return the tree with documents masked; streams mask them where they form rows."""
    if tree.reason_not_indexed is None:
        return change_rows(tree, lambda rows: MaskDocuments(rows, tuple(masks)))
    return _mask_streams(tree, tuple(masks))


def _mask_streams(step: Step, masks: tuple[DocumentMask, ...]) -> Step:
    if not step.children:
        return step
    below = _builder_input(step)
    if isinstance(below, Group):
        return _replace_group(step, below, replace(below, masks=(*below.masks, *masks)))
    if isinstance(below, Batch):
        batch = replace(below, input=MaskDocuments(below.input, masks))
        return step.with_children((batch,))
    return step.with_children(tuple(_mask_streams(child, masks) for child in step.children))


def _replace_group(step: Step, group: Group, masked: Group) -> Step:
    """Return a step with another group below it."""
    children = tuple(
        masked if child is group else _replace_group(child, group, masked)
        for child in step.children
    )
    return step.with_children(children)


def require_maskable(tree: Step, builder: Builder, masks: Sequence[DocumentMask]) -> None:
    """Raise `StateError` if a tree that continues a run cannot mask what the run masks."""
    names = {leaf.name for leaf in builder.leaves}
    masked = {mask.source for mask in masks}
    if masked and (unmasked := sorted(masked & names - find_maskable_sources(tree, builder))):
        raise StateError(
            f"the run masks documents of {unmasked[0]!r}, and this pipeline builds no rows that "
            "can: use pack(), or batch(n, collate=Padded()), over this source"
        )
