"""Facts that a change of a plan needs: the progress of each source, and the samples meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ...arguments import check_int, join_first, suggest_names
from ...errors import ConfigError
from ..changes.edits import Edit, Exclude
from ..steps.mask import DocumentMask
from .records import Removal, RemovalKind, Sample


def list_removals(edits: Iterable[Edit]) -> tuple[Removal, ...]:
    """Return the samples that changes of a run exclude, in the order of the changes."""
    found = dict[tuple[str, int], Removal]()
    for edit in edits:
        if isinstance(edit, Exclude | DocumentMask):
            how: RemovalKind = "replaced" if isinstance(edit, Exclude) else "masked"
            for index in edit.indices:
                found.setdefault((edit.source, index), Removal(edit.source, index, how, edit.row))
    return tuple(found.values())


def group_by_source(keys: Iterable[Any], sizes: dict[str, int]) -> dict[str, list[int]]:
    """Group keys by source. A key is (source, index), (source, epoch, index) or a `Sample`."""
    if isinstance(keys, str | Sample) or not isinstance(keys, Iterable) or _is_key(keys):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"plan.exclude({keys!r}): give a list, even of one key: [(source, index)]"
        )
    out = dict[str, list[int]]()
    for key in keys:
        source, index = (key.source, key.index) if isinstance(key, Sample) else _pair(key)
        if source not in sizes:
            hint = suggest_names(source, sizes) or f"; the plan has {join_first(sizes)}"
            raise ConfigError(f"plan.exclude: no source {source!r}{hint}")
        if not 0 <= index < sizes[source]:
            raise IndexError(
                f"plan.exclude: {source!r} has no sample {index}; give an index below "
                f"{sizes[source]}"
            )
        out.setdefault(source, []).append(int(index))
    return out


def _is_key(keys: Iterable[Any]) -> bool:
    return isinstance(keys, tuple | list) and len(keys) in (2, 3) and isinstance(keys[0], str)  # pyright: ignore[reportUnknownArgumentType]


def _pair(key: Any) -> tuple[str, int]:
    """Return source and index of a key with two or three parts."""
    if not isinstance(key, tuple | list) or len(cast("tuple[Any, ...]", key)) not in (2, 3):
        raise ConfigError(
            f"plan.exclude: {key!r} is not a key; give (source, index), or a result of "
            "Loader.keys() or plan.at()"
        )
    source, *_, index = cast("tuple[Any, ...]", key)
    return source, check_int(index, "plan.exclude: {}")
