"""Adoption between two passes, and what it needs within one: equal orders and later passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...errors import ConfigError, StateError
from ...types import Json, Path
from ..base.canonical_json import encode_canonical_text
from ..base.passes import Passes
from ..mixing import Adopt, SetWeights
from ..steps.batch import tail_of
from ..steps.mix import bind_mixtures
from ..steps.planned_lengths import is_limit
from ..steps.reorder_op import find_repeated_leaves
from ..steps.step import Builder, Step
from ..steps.tally import Tally, Uncountable
from .adopt import compare_mixtures, require_own_draws
from .edits import Change, Edit, Exclude, RowsBefore, changed, find_source_position, with_former


def begin_with_next_pass(
    base: Step,
    edits: Sequence[Edit],
    mixtures: Any,
    rows: Mapping[str, int],
    saved: Passes,
    until: int,
) -> tuple[Edit, ...]:
    """Return the changes of a run whose passes from `until` on are those of another pipeline.

    Its earlier passes are unknown then. Samples that were excluded stay excluded.
    """
    require_own_draws(edits)
    kept = compare_mixtures(Builder(base), edits, mixtures, rows).unchanged
    others = [edit for edit in edits if not isinstance(edit, Change | RowsBefore)]
    with_all = changed(base, [*kept, *(e for e in others if not isinstance(e, Exclude))])
    builder = Builder(tail_of(with_all).rows)
    op = builder.op(builder.root)
    start = 0 if op.passes is None else op.passes.start(until)
    leaves = {leaf.name: leaf.number for leaf in builder.leaves}

    def move(edit: Exclude) -> Exclude:
        try:
            since = find_source_position(op, leaves[edit.source], edit.source, start)
        except ConfigError as error:
            raise StateError(
                f"adopt: the run excluded samples of {edit.source!r}, and the new pipeline shuffles "
                "or repeats several sources together, so these samples would come again; shuffle "
                "and repeat its inputs instead"
            ) from error
        return replace(edit, since=since, replanned=(until,) if edit.replanned else ())

    out = [
        move(edit) if isinstance(edit, Exclude) and edit.source in leaves else edit
        for edit in others
    ]
    return with_former([*kept, *out], saved, until) if until else (*kept, *out)


def begin_streams_with_next_pass(
    base: Step, edits: Sequence[Edit], mixtures: Any, rows: Mapping[str, int]
) -> tuple[Edit, ...] | None:
    """Return the changes of a run of streams whose next pass is one of another pipeline.

    Return None if samples were excluded, because that was at positions of the former pipeline.
    """
    require_own_draws(edits)
    if any(isinstance(edit, Exclude) for edit in edits):
        return None
    kept = compare_mixtures(Builder(base), edits, mixtures, rows).unchanged
    return (*kept, *(edit for edit in edits if not isinstance(edit, Change)))


def require_adopted_passes(
    base: Step, edits: Sequence[Edit], before: Sequence[Edit], epoch: int
) -> None:
    """Raise `StateError` if passes after one hold other samples than those of an adopted pipeline.

    Args:
        base: the tree of that pipeline.
        edits: the changes with those that adopt its mixtures.
        before: the changes in the state.
        epoch: the pass in which the run stands.
    """
    paths = {
        edit.path
        for edit in edits
        if isinstance(edit, Change) and isinstance(edit.event, Adopt) and edit not in before
    }
    now = changed(base, edits)
    if paths:
        _require_inputs_later(now, epoch)
    if paths and not _give_equal_passes(now, changed(base, _without(edits, paths)), paths, epoch):
        raise StateError(
            f"adopt: {_OLD_LENGTH}; adopt at the end of a pass, after its loop, or shuffle, repeat and "
            "combine the inputs of the mixture instead"
        )


def require_reweighed_passes(base: Step, edits: Sequence[Edit], epoch: int) -> None:
    """Raise `ConfigError` if passes after one hold other samples than by the weights that the last
    change sets."""
    change = edits[-1]
    assert isinstance(change, Change) and isinstance(change.event, SetWeights)
    path = change.path
    fresh = changed(
        base, (*_without(edits, {path}), Change(path, 0, SetWeights(0, change.event.weights)))
    )
    if not (
        _give_equal_passes(changed(base, edits), fresh, {path}, epoch)
        and _selects_equally(base, fresh, path)
    ):
        raise ConfigError(
            f"set_weights: {_OLD_LENGTH}; end the mixture by stop='all_exhausted', or shuffle, "
            "repeat and combine its inputs instead"
        )


_OLD_LENGTH = (
    "the mixture would have another length, and a step above it (a shuffle, skip, repeat, zip, "
    "concat or another mixture that ends) would keep the old one in later passes, so samples "
    "would be lost or repeated"
)

_LISTED = 1 << 20
"""Samples of a pass that are listed at most, where arithmetic does not count them."""


def _without(edits: Sequence[Edit], paths: Collection[Path]) -> tuple[Edit, ...]:
    return tuple(edit for edit in edits if not (isinstance(edit, Change) and edit.path in paths))


def _selects_equally(base: Step, fresh: Step, path: Path) -> bool:
    """Return false if a slice or skip was made for a mixture of another length."""
    builder, other = (Builder(_indexed_part(tail_of(each).rows)) for each in (base, fresh))
    step = builder.root
    if step.reason_not_indexed is not None:
        return True
    while step.is_elementwise and step.only_input is not None:
        step = step.only_input
    if is_limit(step.describe()) or not find_repeated_leaves(builder.op(builder.root)):
        return True
    return bind_mixtures(builder)[path].size == bind_mixtures(other)[path].size


def _give_equal_passes(tree: Step, fresh: Step, paths: Collection[Path], epoch: int) -> bool:
    """Return whether passes after one have equal lengths and samples by source in two trees with
    other mixtures at some paths."""
    builder, other = (Builder(_indexed_part(tail_of(each).rows)) for each in (tree, fresh))
    if builder.root.reason_not_indexed is not None:
        return True
    op, mixtures = builder.op(builder.root), bind_mixtures(builder)
    if all(mixtures[path].size is None for path in paths) or op.passes is None:
        return True
    # A limit gives what it gave in its first pass, each position by the mixture of the time.
    repeated = {*find_repeated_leaves(op)}
    by_source = not all(repeated.issuperset(mixtures[path].leaves) for path in paths)
    return _describe_passes(builder, epoch, by_source) == _describe_passes(other, epoch, by_source)


def _require_inputs_later(tree: Step, epoch: int) -> None:
    """Raise `StateError` if a pass after one draws from an input that the pipeline no longer has."""
    builder = Builder(_indexed_part(tail_of(tree).rows))
    op = builder.op(builder.root)
    if builder.root.reason_not_indexed is None and op.passes is not None:
        start, tally = op.passes.start(epoch + 1), Tally(len(builder.leaves), most=_LISTED)
        with suppress(Uncountable):
            op.count(tally, start, start + op.passes.size(epoch + 1))
        tally.require_inputs()


def _indexed_part(step: Step) -> Step:
    """Return the part of a tree below its last step whose samples depend on the data."""
    while step.reason_not_indexed is not None and step.only_input is not None:
        step = step.only_input
    return step


def _describe_passes(
    builder: Builder, epoch: int, by_source: bool
) -> list[tuple[int, dict[str, int]]]:
    """Return the lengths of two passes after one, and their samples by source."""
    op, out = builder.op(builder.root), list[tuple[int, dict[str, int]]]()
    assert op.passes is not None
    for later in (epoch + 1, epoch + 2):
        start, size = op.passes.start(later), op.passes.size(later)
        tally = Tally(len(builder.leaves), most=_LISTED)
        if by_source:
            with suppress(Uncountable):
                op.count(tally, start, start + size)
        counts = zip(builder.leaves, tally.samples.tolist(), strict=True)
        out.append((size, {leaf.name: n for leaf, n in counts if n}))
    return out


# ---------------------------------------------------------------- orders


_MOVABLE = frozenset({"slice", "repeat", "replay", "repeat_each", "gap", "skips"})
"""Orders that do not depend on the names of sources.

They may change during the first pass: the last samples show if they moved those before.
"""


def find_reordered_sources(saved: Json, now: Json, *, movable: bool) -> list[str]:
    """Return the sources that two pipelines shuffle or select differently.

    Args:
        saved: the description of the pipeline in a state.
        now: the description of the present pipeline.
        movable: whether slices and repetitions may differ.
    """
    ignored = _MOVABLE if movable else frozenset[str]()
    before, after = (
        {path[:-1]: orders for path, orders in _list_orders(each, ignored)} for each in (saved, now)
    )
    moved = [place for place in before.keys() & after.keys() if before[place] != after[place]]
    return sorted({"/".join(place) or _list_names(now)[-1] for place in moved})


def have_same_orders(before: Any, now: Any) -> bool:
    """Return whether two pipelines order samples alike in every pass.

    Functions may differ, and the weighted mixtures, because a run records their changes.
    """
    shared = {*_list_names(before)} & {*_list_names(now)}
    return _describe_orders(before, shared) == _describe_orders(now, shared)


def _describe_orders(step: Any, shared: Collection[str]) -> Json:
    """Return the description of everything that orders samples; of weighted mixtures, only the
    orders of shared inputs."""
    while not ({"order", "limit", "mix", "fold", "read"} & step.keys()):
        step = step["of"]
    below: Any = step.get("of")
    if below is None:
        return step["read"]
    if step.get("mix") == "weighted":
        return [
            [name, _describe_orders(below[name], shared)] for name in sorted(below.keys() & shared)
        ]
    children = list(below.values()) if "mix" in step else [below]
    if "order" in step:
        step = {**_mark_rest({**step, "of": None}, _count_rows(below)), "of": below}
    elif step.get("fold") == "concat_split":  # a run records its row lengths
        step = {**step, "length": None, "lengths": None}
    return [
        {**step, "of": _list_deciding_names(step)},
        [_describe_orders(child, shared) for child in children],
    ]


def _list_deciding_names(step: Any) -> Json:
    """Return the names of the sources below a step if its order depends on them."""
    return (
        _list_names(step["of"])
        if step.get("group_by") or step.get("order", "slice") not in _MOVABLE
        else None
    )


def _count_rows(step: Any) -> Any:
    return step.get("rows", _count_rows(step["of"]) if "of" in step and "mix" not in step else None)


def _list_names(pipeline: Any) -> list[str]:
    """Return the names of the sources of a pipeline, with those of the inputs that lead to them."""
    return [name for path, _ in _list_orders(pipeline, ()) for name in path]


def without_last_limit(description: Any) -> Json:
    """Return the part of a pipeline below its last order, if that is a limit."""
    step = description
    while not ({"order", "limit", "mix"} & step.keys()) and isinstance(step.get("of"), dict):
        step = step["of"]
    return step["of"] if is_limit(step) else description


def _list_orders(
    step: Any,
    ignored: Collection[str],
    inputs: tuple[str, ...] = (),
    seed: int = 0,
    orders: tuple[Json, ...] = (),
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each source by its inputs, with the orders over it.

    `seed` is the one that orders without a seed use.
    """
    below: Any = step.get("of")
    names = _list_deciding_names(step)
    if names or ("order" in step and step["order"] not in ignored):
        orders = (*orders, {"order": None, "seed": seed, **_keep_orders(step), "names": names})
    if "mix" in step:
        seed = step.get("seed", seed)  # a weighted mixture seeds its inputs
        for name, child in below.items():
            yield from _list_orders(child, ignored, (*inputs, name), seed, orders)
    elif below is not None:
        yield from _list_orders(below, ignored, inputs, seed, orders)
    else:
        rows = step.get("rows")
        kept: Json = [_mark_rest(each, rows) for each in orders]
        yield (*inputs, str(step.get("read"))), encode_canonical_text(kept)


def _mark_rest(order: Any, rows: Any) -> dict[str, Json]:
    """Return the description of orders over a source in which a slice up to its last row has no
    length, so that it is the same when the source grows."""
    below = {"of": _mark_rest(order["of"], rows)} if order.get("of") else {}
    if order["order"] == "slice" and order["step"] == 1 and order["start"] + order["count"] == rows:
        return {**order, "count": None, **below}
    return {**order, **below}


def _keep_orders(step: Mapping[str, Any]) -> dict[str, Json]:
    """Return the orders of a description, down to a source or a mixture."""
    if "read" in step or "mix" in step:
        return {}
    below = _keep_orders(step["of"])
    return {**step, "of": below} if "order" in step else below
