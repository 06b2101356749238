"""Values as an Arrow array of a type that was found before, with nothing lost.

Told a type, Arrow cuts what it is given: 1.5 becomes 1, a key that the type lacks goes. So it is asked what it finds
in the values by itself, and where that is another type, only what comes back equal may go into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, cast

import numpy as np

from ..sources.rows import arrow


def exact(values: Sequence[Any], kind: Any) -> Any:
    """The values as an array of this type; an error of Arrow or of Python where something would be lost.

    >>> import pyarrow as pa
    >>> exact([1, None], pa.float64()).to_pylist()
    [1.0, None]
    >>> exact([1.5], pa.int64())
    Traceback (most recent call last):
    ...
    pyarrow.lib.ArrowInvalid: Float value 1.500000 was truncated converting to int64
    """
    alike(values, kind)
    found = arrow().array(values)
    if found.type.equals(kind):
        return found
    for array in getattr(found, "chunks", [found]):  # more text than one array takes is several
        _keeps(array, kind)
    return arrow().array(values, kind)


def unfit() -> tuple[type[Exception], ...]:
    """What Arrow raises for values that are no column of one type, its own errors and those of Python."""
    return (arrow().ArrowException, TypeError, ValueError, OverflowError)


def culprit(values: Sequence[Any]) -> int | None:
    """Which of the values no column can hold, whatever the others are; None, if they only differ."""
    for place, value in enumerate(values):
        try:
            arrow().array([value])
        except unfit():
            return place
    return None


def alike(values: Iterable[Any], kind: Any) -> None:
    """Refuse values that Arrow takes for those of a type without a word, though they are others: texts as bytes, times
    as days, times of no zone as those of one.
    """
    types: Any = arrow("pyarrow.types")
    if not _delicate(kind):
        return
    held = [value for value in values if value is not None]
    if types.is_struct(kind):
        for field in kind:
            alike([cast(Any, each).get(field.name) for each in held if isinstance(each, Mapping)], field.type)
    elif types.is_list(kind):
        alike(chain.from_iterable(each for each in held if not isinstance(each, np.ndarray)), kind.value_type)
    else:
        wrong = _OTHERS[next(name for name in _OTHERS if getattr(types, name)(kind))]
        if others := {each for each in set(map(type, held)) if issubclass(each, wrong)}:
            raise ValueError(f"a value of the type {min(each.__name__ for each in others)} does not go into {kind}")
        if types.is_timestamp(kind):
            zones = {each.tzinfo is not None for each in held if isinstance(each, datetime)}
            if zones - {kind.tz is not None}:
                raise ValueError(f"times {'without a' if kind.tz else 'with a'} zone do not go into {kind}")


def _delicate(kind: Any) -> bool:
    """Whether there is, in values of this type, something that Arrow may have taken for what it is not."""
    types: Any = arrow("pyarrow.types")
    if types.is_struct(kind):
        return any(_delicate(field.type) for field in kind)
    if types.is_list(kind):
        return _delicate(kind.value_type)
    return any(getattr(types, name)(kind) for name in _OTHERS)


_OTHERS: Mapping[str, tuple[type, ...]] = {
    "is_binary": (str,),
    "is_date": (datetime, int),
    "is_timestamp": (int,),
    "is_time": (int,),
    "is_duration": (int,),
}


def _keeps(array: Any, kind: Any) -> None:
    """Refuse an array whose values this type cannot hold as they are."""
    found, types = array.type, arrow("pyarrow.types")
    if found.equals(kind) or types.is_null(found):
        return
    both = next((name for name, tests in _KINDS.items() if _any(tests, found) and _any(tests, kind)), None)
    if both == "struct":
        known = {field.name: field.type for field in kind}
        for place, field in enumerate(found):
            if field.name not in known:
                raise ValueError(f"it has the key {field.name!r}, which the first samples have not")
            _keeps(array.field(place), known[field.name])
    elif both == "list":
        _keeps(array.values, kind.value_type)
    elif both == "number":
        back = array.cast(kind).cast(found).drop_null().to_numpy(zero_copy_only=False)
        if not np.array_equal(array.drop_null().to_numpy(zero_copy_only=False), back, equal_nan=True):
            raise ValueError(f"values of {found} would lose digits in {kind}")
    elif both == "timestamp" and (found.tz is None) != (kind.tz is None):
        raise ValueError(f"what it holds is {found}")
    elif both is not None:
        array.cast(kind)  # an error, where it would be rounded
    elif not (types.is_decimal(kind) and (types.is_decimal(found) or types.is_integer(found))):
        raise ValueError(f"what it holds is {found}")


_KINDS = {
    "struct": ("is_struct",),
    "list": ("is_list",),
    "number": ("is_integer", "is_floating"),
    "timestamp": ("is_timestamp",),
    "time": ("is_time",),
    "duration": ("is_duration",),
}


def _any(tests: Sequence[str], kind: Any) -> bool:
    return any(getattr(arrow("pyarrow.types"), test)(kind) for test in tests)
