"""Masking of documents that a run cannot replace: which it can mask, and the tree that does."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...errors import StateError
from ...types import Path
from ..steps.batch import change_rows
from ..steps.mask import DocumentMask, MaskDocuments
from ..steps.step import Builder, Step


def find_maskable_sources(tree: Step, builder: Builder) -> frozenset[str]:
    """Return the sources whose documents can be masked: a pack or `Padded` builds their rows."""
    is_stream = tree.reason_not_indexed is not None

    def find(step: Step, path: Path, is_top: bool, is_built: bool) -> Iterator[str]:
        is_top = is_top and step.in_tail
        if (group := _find_documents(step)) is not None:
            # Batches of single samples mask them only as the last batches, or in a stream.
            is_built = is_built or is_stream or is_top or not group.in_tail
        if not step.children and is_built:
            yield builder.leaf(step, path).name
        for child, place in step.child_paths(path):
            yield from find(child, place, is_top, is_built)

    return frozenset(find(tree, (), True, False))


def _find_documents(step: Step) -> Step | None:
    """Return the groups of documents that a step builds into rows, if it can mask documents."""
    if not any(getattr(function, "masks_documents", False) for function in step.functions):
        return None
    (builder,) = step.functions
    for _ in range(builder.document_level):
        (step,) = step.children
    return step


def mask_documents(tree: Step, masks: tuple[DocumentMask, ...]) -> Step:
    """Return the tree with documents masked; streams mask them before they form rows."""
    if tree.reason_not_indexed is None:
        return change_rows(tree, lambda rows: MaskDocuments(rows, masks))

    # A changed stream reads again what its buffers hold, so the masks cover that too.
    def mask(step: Step, group: Step | None) -> Step:
        group = _find_documents(step) or group
        if step is group:
            return step.with_children(
                tuple(MaskDocuments(below, masks, by_row=False) for below in step.children)
            )
        return step.with_children(tuple(mask(child, group) for child in step.children))

    return mask(tree, None)


def require_maskable(tree: Step, builder: Builder, sources: Collection[str]) -> None:
    """Raise `StateError` if a tree that continues a run cannot mask documents of these sources."""
    names = {leaf.name for leaf in builder.leaves}.intersection(sources)
    if names and (unmasked := sorted(names - find_maskable_sources(tree, builder))):
        raise StateError(
            f"the run masks documents of {unmasked[0]!r}, and this pipeline builds no rows that "
            "can: use pack(), or batch(n, collate=Padded()), over this source"
        )
