"""Exclusion of samples from a running session, and from the saved states of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...types import MAX_POSITION, is_source
from ..changes.edits import Edit, edit_from_json
from ..changes.masking import find_maskable_sources
from ..runtime.seal import seal
from ..runtime.session import Session
from ..runtime.states import decode_state, make_other_pipeline_error, merge_states
from ..steps.compiled import Compiled
from ..steps.mask import DocumentMask
from .edit import group_by_source, list_removals
from .plan import Keys, Plan
from .records import Removal


def exclude_from_run(session: Session, keys: Keys) -> tuple[Removal, ...]:
    """Exclude samples from the next item of a run on; return what became of each.

    Raises:
        ConfigError: a source does not exist; or no step can replace or mask its samples.
        IndexError: an index does not exist.
    """
    before = session.changes
    if session.group is None:
        changes = _mask_in_stream(session.compiled_base, before, session.step, keys)
    else:
        plan = Plan(session.compiled_base, lambda flow: flow, section=session.section)
        changes = plan.find_exclusions(session.state(), keys)
    if changes:
        session.add_changes(changes)
    return _list_new(before, changes)


def mask_in_states(
    compiled: Compiled, states: Sequence[Mapping[str, Any]], keys: Keys
) -> tuple[list[dict[str, Any]], tuple[Removal, ...]]:
    """Return the states of all ranks of a stream with documents masked, and the new removals.

    Raises:
        ConfigError: a source does not exist, or no step can mask its samples.
        StateError: the states are damaged, or of another pipeline.
    """
    bodies = [decode_state(state) for state in states]
    merged, _ = merge_states(bodies)
    base = compiled.remembered(merged.pipeline)
    if merged.pipeline != base.description:
        raise make_other_pipeline_error(merged.pipeline, base.description)
    before = tuple(map(edit_from_json, merged.changes))
    changes = _mask_in_stream(compiled, before, merged.step, keys)
    added = [change.to_json() for change in changes]
    edited = [{**body.to_json(), "changes": [*body.changes, *added]} for body in bodies]
    return [seal(body) for body in edited], _list_new(before, changes)


def _list_new(before: Sequence[Edit], changes: Sequence[Edit]) -> tuple[Removal, ...]:
    """Return the removals by the last changes."""
    return list_removals([*before, *changes])[len(list_removals(before)) :]


def _mask_in_stream(
    compiled: Compiled, before: Sequence[Edit], step: int, keys: Keys
) -> tuple[DocumentMask, ...]:
    """Return the masks of documents of a pipeline that is no function of positions."""
    sources = {leaf.name: leaf.source for leaf in compiled.builder.leaves}
    sizes = {
        name: len(source) if is_source(source) else MAX_POSITION for name, source in sources.items()
    }
    asked = group_by_source(keys, sizes)
    maskable = find_maskable_sources(compiled.flow, compiled.builder)
    if unmasked := sorted(asked.keys() - maskable):
        raise ConfigError(
            f"exclude: the samples of {unmasked[0]!r} come as a stream, and no pack() or Padded "
            "builds rows of them that could mask them; leave them out by filter() in a new run"
        )
    removed = {(removal.source, removal.index) for removal in list_removals(before)}
    left = {
        source: tuple(sorted({index for index in indices if (source, index) not in removed}))
        for source, indices in asked.items()
    }
    return tuple(DocumentMask(source, step, indices) for source, indices in left.items() if indices)
