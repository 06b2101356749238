"""Values as an Arrow array of a type that was found before, with nothing lost.

Told a type, Arrow cuts what it is given: 1.5 becomes 1, a key that the type lacks goes. So it is
    asked what it finds
in the values by itself, and where that is another type, only what comes back equal may go into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, cast

import numpy as np

from ..engine.base.dtypes import is_untyped
from ..sources.rows import arrow


def exact(values: Sequence[Any], kind: Any) -> Any:
    """The values as an array of this type; an error of Arrow or of Python where something would be
    lost.

    >>> import pyarrow as pa
    >>> exact([1, None], pa.float64()).to_pylist()
    [1.0, None]
    >>> exact([1.5], pa.int64())
    Traceback (most recent call last):
    ...
    pyarrow.lib.ArrowInvalid: Float value 1.500000 was truncated converting to int64
    """
    alike(values, kind)
    found = typed(values)
    if found.type.equals(kind):
        return found
    for array in getattr(found, "chunks", [found]):  # more text than one array takes is several
        keeps(array, kind)
    return arrow().array(values, kind)


def typed(values: Sequence[Any]) -> Any:
    """Return `pyarrow.array(values)`, but with the nanoseconds of pandas and integers from 2^63 on.

    >>> typed([{"id": 2**64 - 1}, None, {"id": 5}]).type
    StructType(struct<id: uint64>)
    """
    pa: Any = arrow()
    try:
        found = pa.array(values)
    except OverflowError:
        found, kind = None, _with_all(values, pa.array([_small(value) for value in values]).type)
    except (pa.ArrowException, TypeError) as error:
        if any(map(_has_pairs, values)):
            raise ValueError(
                "it holds a list of pairs of two types, as a map column is read: make it two "
                "lists, or a mapping, in a "
                "map before"
            ) from error
        raise
    else:
        kind = (
            _with_all(values, found.type)
            if _any_within(found.type, ("is_timestamp", "is_duration"))
            else found.type
        )
    return found if found is not None and found.type.equals(kind) else pa.array(values, kind)


def _has_pairs(value: Any) -> bool:
    """Return whether a value is, or holds, a list of pairs whose members have two types."""
    if isinstance(value, Mapping):
        return any(map(_has_pairs, cast("Mapping[Any, Any]", value).values()))
    if not isinstance(value, list | tuple):
        return False
    held = cast("Sequence[Any]", value)
    pairs = cast("list[tuple[Any, ...]]", [each for each in held if isinstance(each, tuple)])
    return any(len(set(map(type, pair))) == len(pair) == 2 for pair in pairs) or any(
        map(_has_pairs, held)
    )


def _with_all(values: Iterable[Any], kind: Any) -> Any:
    """The type that Arrow found in values, with uint64 for large integers, and nanoseconds where
    values have any."""
    pa: Any = arrow()
    held = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        fields = ((each.name, [value.get(each.name) for value in held], each.type) for each in kind)
        return pa.struct(
            [(name, _with_all(inner, inner_kind)) for name, inner, inner_kind in fields]
        )
    if pa.types.is_list(kind):
        inside = chain.from_iterable(
            each for each in held if not _is_typed(each) or each.dtype.kind == "u"
        )
        return pa.list_(_with_all(inside, kind.value_type))
    if pa.types.is_integer(kind):
        large = any(isinstance(value, int | np.integer) and value >= _LARGE for value in held)
        return pa.uint64() if large else kind
    if pa.types.is_timestamp(kind) and any(getattr(value, "nanosecond", 0) for value in held):
        return pa.timestamp("ns", kind.tz)
    if pa.types.is_duration(kind) and any(getattr(value, "nanoseconds", 0) for value in held):
        return pa.duration("ns")
    return kind


def _small(value: Any) -> Any:
    """The value with 0 for the integers from 2^63 on, for which Arrow finds no type."""
    if isinstance(value, int | np.integer):
        return 0 if value >= _LARGE else cast(Any, value)
    if isinstance(value, Mapping):
        return {name: _small(inner) for name, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_small(inner) for inner in cast("Sequence[Any]", value)]
    return (
        np.zeros(value.shape, np.int64) if _is_typed(value) and value.dtype == np.uint64 else value
    )


def _any_within(kind: Any, tests: Sequence[str]) -> bool:
    return _any(tests, kind) or any(
        _any_within(kind.field(place).type, tests)
        for place in range(kind.num_fields if _any(_NESTED, kind) else 0)
    )


_LARGE = 1 << 63
_NESTED = ("is_struct", "is_list")


def native(value: Any) -> Any:
    """Return an array in the byte order of this machine, the only one that Arrow takes; other
    values unchanged."""
    return (
        value.astype(value.dtype.newbyteorder("="))
        if _is_typed(value) and not value.dtype.isnative
        else value
    )


def retyped(values: Sequence[Any]) -> list[Any]:
    """Return the values of a column: arrays in this machine's byte order, and empty vectors that
    tell no dtype in the form of the others.

    >>> retyped([np.array([]), np.array([5], np.int32)])
    [array([], dtype=int32), array([5], dtype=int32)]
    """
    values = [native(value) for value in values]
    untyped = [isinstance(value, np.ndarray) and is_untyped(value) for value in values]
    told = [
        value
        for value, empty in zip(values, untyped, strict=True)
        if not empty and value is not None
    ]
    if not told or not any(untyped):
        return list(values)
    like: Any = next((value for value in told if _is_typed(value) and value.ndim == 1), None)
    empty: Any = [] if like is None else np.zeros(0, like.dtype)
    return [empty if is_empty else value for value, is_empty in zip(values, untyped, strict=True)]


def unfit() -> tuple[type[Exception], ...]:
    """What Arrow raises for values that are no column of one type, its own errors and those of
    Python."""
    return (arrow().ArrowException, TypeError, ValueError, OverflowError)


def culprit(values: Sequence[Any]) -> int | None:
    """Which of the values no column can hold, whatever the others are; None, if they only
    differ."""
    for place, value in enumerate(values):
        try:
            typed([value])
        except unfit():
            return place
    return None


def alike(values: Iterable[Any], kind: Any) -> None:
    """Refuse values that Arrow takes for those of a type without a word, though they are others:
    truths as numbers, numbers as times, texts as bytes, times of no zone as those of one.
    """
    types: Any = arrow("pyarrow.types")
    held = [value for value in values if value is not None]
    if types.is_struct(kind):
        for field in kind:
            alike(
                [cast(Any, each).get(field.name) for each in held if isinstance(each, Mapping)],
                field.type,
            )
        return
    if types.is_list(kind):
        _of_types(held, kind, (object,), (set, frozenset, np.ma.MaskedArray))
        alike(chain.from_iterable(each for each in held if not _is_typed(each)), kind.value_type)
        dtypes: set[Any] = {each.dtype for each in held if _is_typed(each)}
        if len({dtype for dtype in dtypes if dtype.kind in "mM"}) > 1:
            raise ValueError("arrays of times are not all of one unit")
        alike(
            [np.zeros((), dtype)[()] for dtype in dtypes], kind.value_type
        )  # one value speaks for all of its type
        return
    for name, (takes, but) in _TAKES.items():
        if getattr(types, name)(kind):
            _of_types(held, kind, takes, but)
            break
    if types.is_timestamp(kind) or types.is_time(kind):
        zone = getattr(kind, "tz", None) is not None
        if {each.tzinfo is not None for each in held if isinstance(each, datetime | time)} - {zone}:
            raise ValueError(
                f"times {'without a' if zone else 'with a'} zone do not go into {kind}"
            )


def _is_typed(value: Any) -> bool:
    """Whether it is an array that says of all its values what they are."""
    return isinstance(value, np.ndarray) and cast(Any, value).dtype != object


def _of_types(held: Iterable[Any], kind: Any, takes: Types, but: Types) -> None:
    others = [
        each
        for each in set(map(type, held))
        if not issubclass(each, takes) or issubclass(each, but)
    ]
    if others:
        raise ValueError(
            f"a value of the type {min(each.__name__ for each in others)} does not go into {kind}"
        )


Types = tuple[type, ...]
_NUMBERS = (int, float, np.integer, np.float32)
_TAKES: Mapping[str, tuple[Types, Types]] = {  # of which types values may be, and of which not
    "is_boolean": ((bool, np.bool_), ()),
    "is_integer": (_NUMBERS, (bool, np.timedelta64)),
    "is_float16": ((*_NUMBERS, np.float16), (bool, np.timedelta64, np.uint64)),
    "is_floating": (
        _NUMBERS,
        (bool, np.timedelta64, np.uint64),
    ),  # of which large ones become negative
    "is_decimal": ((Decimal, int), (bool,)),
    "is_string": ((str,), ()),
    "is_binary": ((bytes, bytearray, memoryview), ()),
    "is_date": ((date, np.datetime64), (datetime,)),
    "is_timestamp": ((datetime, np.datetime64), ()),
    "is_time": ((time,), ()),
    "is_duration": ((timedelta, np.timedelta64), ()),
}


def keeps(array: Any, kind: Any) -> None:
    """Refuse an array whose values this type cannot hold as they are."""
    found, types = array.type, arrow("pyarrow.types")
    if found.equals(kind) or types.is_null(found):
        return
    both = next(
        (name for name, tests in _KINDS.items() if _any(tests, found) and _any(tests, kind)), None
    )
    if both == "struct":
        known = {field.name: field.type for field in kind}
        for place, field in enumerate(found):
            if field.name not in known:
                raise ValueError(f"it has the key {field.name!r}, which the others have not")
            keeps(array.field(place), known[field.name])
    elif both == "list":
        keeps(array.values, kind.value_type)
    elif both == "number":
        there, back = (
            each.drop_null().to_numpy(zero_copy_only=False)
            for each in (array, array.cast(kind).cast(found))
        )
        signs = np.array_equal(np.signbit(there), np.signbit(back))  # of zeros, which are equal
        if not (signs and np.array_equal(there, back, equal_nan=True)):
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
