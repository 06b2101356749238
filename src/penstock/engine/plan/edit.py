"""Facts that a change of a plan needs: the progress of each source, and the samples meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...arguments import check_int, join_first, suggest_names
from ...errors import ConfigError
from ...types import MAX_POSITION
from ..changes.edits import Edit, Exclude, find_source_position
from ..steps.mask import DocumentMask
from ..steps.op import Op
from .journaled_rows import JournaledRows
from .records import Removal, RemovalKind, Sample

_FAR = 1 << 16  # rows that are searched where no position tells what is pending


def list_removals(edits: Iterable[Edit]) -> tuple[Removal, ...]:
    """Return the samples that changes of a run exclude, in the order of the changes."""
    found = dict[tuple[str, int], Removal]()
    for edit in edits:
        if isinstance(edit, Exclude | DocumentMask):
            how: RemovalKind = "replaced" if isinstance(edit, Exclude) else "masked"
            for index in edit.indices:
                found.setdefault((edit.source, index), Removal(edit.source, index, how, edit.row))
    return tuple(found.values())


def split_by_first_row(edit: Exclude, rows: JournaledRows, leaf: int) -> list[Exclude]:
    """Return the exclusion in parts: the samples that rows from its row on still hold come later."""
    first = edit.row or 0
    stop = _find_settled_row(rows.op, leaf, edit, first)
    parts = dict[int, list[int]]()
    for index in edit.indices:
        drawn = rows.op.find(leaf, np.asarray([index]), first, stop)
        found = rows.find(leaf, index, drawn, range(first, stop))
        parts.setdefault(int(found[-1]) + 1 if len(found) else first, []).append(index)
    return [replace(edit, row=row, indices=tuple(part)) for row, part in sorted(parts.items())]


def _find_settled_row(rows: Op, leaf: int, edit: Exclude, first: int) -> int:
    """Return a row from which on nothing that was drawn before an exclusion is delivered."""

    def pending(row: int) -> int:
        try:
            return find_source_position(rows, leaf, edit.source, row, pending=True)
        except ConfigError:  # within a pass of a shuffle of several sources
            return -1

    row, more = first, 1
    while (start := pending(row)) < edit.since:
        if start < 0 and rows.passes is not None:
            row = rows.passes.at(row).stop
            start = pending(row)
        if start >= edit.since or more > (_FAR if start < 0 else MAX_POSITION >> 2):
            break
        row, more = first + more, 2 * more
    return row


def group_by_source(keys: Iterable[Any], sizes: dict[str, int]) -> dict[str, list[int]]:
    """Group keys by source. A key is (source, index), (source, epoch, index) or a `Sample`."""
    if isinstance(keys, str | Sample) or not isinstance(keys, Iterable) or _is_key(keys):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"exclude({keys!r}): give a list, even of one key: [(source, index)]")
    out = dict[str, list[int]]()
    for key in keys:
        source, index = (key.source, key.index) if isinstance(key, Sample) else _pair(key)
        if source not in sizes:
            hint = suggest_names(source, sizes) or f"; the plan has {join_first(sizes)}"
            raise ConfigError(f"exclude: no source {source!r}{hint}")
        if not 0 <= index < sizes[source]:
            raise IndexError(
                f"exclude: {source!r} has no sample {index}; give an index below {sizes[source]}"
            )
        out.setdefault(source, []).append(int(index))
    return out


def _is_key(keys: Iterable[Any]) -> bool:
    return isinstance(keys, tuple | list) and len(keys) in (2, 3) and isinstance(keys[0], str)  # pyright: ignore[reportUnknownArgumentType]


def _pair(key: Any) -> tuple[str, int]:
    """Return source and index of a key with two or three parts."""
    if not isinstance(key, tuple | list) or len(cast("tuple[Any, ...]", key)) not in (2, 3):
        raise ConfigError(
            f"exclude: {key!r} is not a key; give (source, index), or a result of "
            "Loader.keys() or plan.at()"
        )
    source, *_, index = cast("tuple[Any, ...]", key)
    return source, check_int(index, "exclude: {}")
