"""Convert values to an Arrow array of a known type without losing anything.

Given a type, Arrow converts lossily: 1.5 becomes 1, and unknown keys disappear. So Arrow first
infers a type from the values. If it differs, the values must survive the conversion unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, cast

import numpy as np

from .columnar import import_arrow, list_content_errors
from .dtypes import is_untyped

ONE_TYPE = "give the field one type in all samples, or write format='jsonl'"


def to_lossless_array(values: Sequence[Any], arrow_type: Any) -> Any:
    """Return the values as an array of this type.

    Raises:
        Exception: one of `list_arrow_errors()`, if a value would change.

    >>> import pyarrow as pa
    >>> to_lossless_array([1, None], pa.float64()).to_pylist()
    [1.0, None]
    >>> to_lossless_array([1.5], pa.int64())
    Traceback (most recent call last):
    ...
    pyarrow.lib.ArrowInvalid: Float value 1.500000 was truncated converting to int64
    """
    require_same_kind(values, arrow_type)
    inferred = infer_array(values)
    if inferred.type.equals(arrow_type):
        return inferred
    for array in getattr(inferred, "chunks", [inferred]):  # long text makes several arrays
        require_lossless(array, arrow_type)
    return import_arrow().array(values, arrow_type)


def infer_array(values: Sequence[Any]) -> Any:
    """Return `pyarrow.array(values)`, with nanoseconds of pandas and integers from 2^63 on.

    >>> infer_array([{"id": 2**64 - 1}, None, {"id": 5}]).type
    StructType(struct<id: uint64>)
    """
    pa: Any = import_arrow()
    try:
        array = pa.array(values)
    except OverflowError:
        array, arrow_type = (
            None,
            _widen_type(
                values, pa.array([_replace_large_integers(value) for value in values]).type
            ),
        )
    except (*list_content_errors(), TypeError) as error:
        if any(map(_has_pairs, values)):
            raise ValueError(
                "it holds a list of pairs of two types, as a map column is read: make it two "
                "lists, or a mapping, in a map step before"
            ) from error
        if any(map(_has_matrices, values)):
            raise ValueError(
                "it holds an array of several axes: make it lists with array.tolist(), or one axis "
                "with array.ravel(), in a map step before"
            ) from error
        raise
    else:
        arrow_type = (
            _widen_type(values, array.type)
            if _matches_nested_type(array.type, ("is_timestamp", "is_duration"))
            else array.type
        )
    return (
        array
        if array is not None and array.type.equals(arrow_type)
        else pa.array(values, arrow_type)
    )


def _has_pairs(value: Any) -> bool:
    """Return whether a value is, or holds, a list of pairs whose members have two types."""
    if isinstance(value, Mapping):
        return any(map(_has_pairs, cast("Mapping[Any, Any]", value).values()))
    if not isinstance(value, list | tuple):
        return False
    items = cast("Sequence[Any]", value)
    pairs = cast("list[tuple[Any, ...]]", [item for item in items if isinstance(item, tuple)])
    return any(len(set(map(type, pair))) == len(pair) == 2 for pair in pairs) or any(
        map(_has_pairs, items)
    )


def _has_matrices(value: Any) -> bool:
    """Return whether a value is, or holds, an array of several axes."""
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value).ndim > 1
    if isinstance(value, Mapping):
        return any(map(_has_matrices, cast("Mapping[Any, Any]", value).values()))
    return isinstance(value, list | tuple) and any(map(_has_matrices, cast("Sequence[Any]", value)))


def _widen_type(values: Iterable[Any], arrow_type: Any) -> Any:
    """Return an inferred type with uint64 for large integers, and with nanoseconds if needed."""
    pa: Any = import_arrow()
    present = [value for value in values if value is not None]
    if pa.types.is_struct(arrow_type):
        fields = (
            (item.name, [value.get(item.name) for value in present], item.type)
            for item in arrow_type
        )
        return pa.struct(
            [(name, _widen_type(inner, inner_kind)) for name, inner, inner_kind in fields]
        )
    if pa.types.is_list(arrow_type):
        items = chain.from_iterable(
            item for item in present if not _is_typed(item) or item.dtype.kind == "u"
        )
        return pa.list_(_widen_type(items, arrow_type.value_type))
    if pa.types.is_integer(arrow_type):
        has_large = any(
            isinstance(value, int | np.integer) and value >= _MIN_LARGE_INTEGER for value in present
        )
        return pa.uint64() if has_large else arrow_type
    if pa.types.is_timestamp(arrow_type) and any(
        getattr(value, "nanosecond", 0) for value in present
    ):
        return pa.timestamp("ns", arrow_type.tz)
    if pa.types.is_duration(arrow_type) and any(
        getattr(value, "nanoseconds", 0) for value in present
    ):
        return pa.duration("ns")
    return arrow_type


def _replace_large_integers(value: Any) -> Any:
    """Return the value with 0 for integers from 2^63 on, for which Arrow infers no type."""
    if isinstance(value, int | np.integer):
        return 0 if value >= _MIN_LARGE_INTEGER else cast(Any, value)
    if isinstance(value, Mapping):
        return {
            name: _replace_large_integers(inner)
            for name, inner in cast("Mapping[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_replace_large_integers(inner) for inner in cast("Sequence[Any]", value)]
    return (
        np.zeros(value.shape, np.int64) if _is_typed(value) and value.dtype == np.uint64 else value
    )


def _matches_nested_type(kind: Any, tests: Sequence[str]) -> bool:
    return _matches_any_test(tests, kind) or any(
        _matches_nested_type(kind.field(index).type, tests)
        for index in range(kind.num_fields if _matches_any_test(_NESTED_TYPE_TESTS, kind) else 0)
    )


_MIN_LARGE_INTEGER = 1 << 63
_NESTED_TYPE_TESTS = ("is_struct", "is_list")


def to_native_order(value: Any) -> Any:
    """Return an array in native byte order, as Arrow requires; other values unchanged."""
    return (
        value.astype(value.dtype.newbyteorder("="))
        if _is_typed(value) and not value.dtype.isnative
        else value
    )


def normalize_empty(values: Sequence[Any]) -> list[Any]:
    """Return the values of a column; empty vectors without a dtype take the form of the others.

    Arrays are in native byte order.

    >>> normalize_empty([np.array([]), np.array([5], np.int32)])
    [array([], dtype=int32), array([5], dtype=int32)]
    """
    if not any(issubclass(kind, np.ndarray) for kind in set(map(type, values))):
        return list(values)
    values = [to_native_order(value) for value in values]
    untyped = [isinstance(value, np.ndarray) and is_untyped(value) for value in values]
    informative = [
        value
        for value, empty in zip(values, untyped, strict=True)
        if not empty and value is not None
    ]
    if not informative or not any(untyped):
        return list(values)
    like: Any = next((value for value in informative if _is_typed(value) and value.ndim == 1), None)
    empty: Any = [] if like is None else np.zeros(0, like.dtype)
    return [empty if is_empty else value for value, is_empty in zip(values, untyped, strict=True)]


def list_arrow_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of Arrow and Python for values that do not fit into a column.

    A lack of memory is none of them: no value is at fault.
    """
    return (*list_content_errors(), TypeError, ValueError, OverflowError)


def find_culprit(values: Sequence[Any]) -> int | None:
    """Return the index of the first value that no column can hold; `None` if values only differ."""
    for index, value in enumerate(values):
        try:
            infer_array([value])
        except list_arrow_errors():
            return index
    return None


def require_same_kind(values: Iterable[Any], arrow_type: Any) -> None:
    """Raise `ValueError` for values that Arrow converts silently to another kind.

    Examples are truth values as numbers, numbers as times, text as bytes, and times without a zone
    as times with one.
    """
    types: Any = import_arrow("pyarrow.types")
    present = [value for value in values if value is not None]
    if types.is_struct(arrow_type):
        for field in arrow_type:
            require_same_kind(
                [cast(Any, item).get(field.name) for item in present if isinstance(item, Mapping)],
                field.type,
            )
        return
    if types.is_list(arrow_type):
        _require_types(present, arrow_type, (object,), (set, frozenset, np.ma.MaskedArray))
        require_same_kind(
            chain.from_iterable(item for item in present if not _is_typed(item)),
            arrow_type.value_type,
        )
        dtypes: set[Any] = {item.dtype for item in present if _is_typed(item)}
        if len({dtype for dtype in dtypes if dtype.kind in "mM"}) > 1:
            raise ValueError("arrays of times differ in their unit")
        require_same_kind(
            [np.zeros((), dtype)[()] for dtype in dtypes], arrow_type.value_type
        )  # one value represents its dtype
        return
    for name, (takes, excluded) in _ACCEPTED_TYPES.items():
        if getattr(types, name)(arrow_type):
            _require_types(present, arrow_type, takes, excluded)
            break
    if types.is_timestamp(arrow_type) or types.is_time(arrow_type):
        zone = getattr(arrow_type, "tz", None) is not None
        if {item.tzinfo is not None for item in present if isinstance(item, datetime | time)} - {
            zone
        }:
            raise ValueError(
                f"times {'without a' if zone else 'with a'} zone do not go into {arrow_type}"
            )


def _is_typed(value: Any) -> bool:
    """Return whether a value is an array with a dtype other than object."""
    return isinstance(value, np.ndarray) and cast(Any, value).dtype != object


def _require_types(
    values: Iterable[Any], kind: Any, accepted: ValueTypes, excluded: ValueTypes
) -> None:
    others = [
        type_
        for type_ in set(map(type, values))
        if not issubclass(type_, accepted) or issubclass(type_, excluded)
    ]
    if others:
        raise ValueError(
            f"a value of the type {min(type_.__name__ for type_ in others)} does not go into {kind}"
        )


ValueTypes = tuple[type, ...]
_NUMBER_TYPES = (int, float, np.integer, np.float32)
_ACCEPTED_TYPES: Mapping[
    str, tuple[ValueTypes, ValueTypes]
] = {  # Arrow kind -> accepted types, excluded types
    "is_boolean": ((bool, np.bool_), ()),
    "is_integer": (_NUMBER_TYPES, (bool, np.timedelta64)),
    "is_float16": ((*_NUMBER_TYPES, np.float16), (bool, np.timedelta64, np.uint64)),
    # Large uint64 values would become negative.
    "is_floating": (_NUMBER_TYPES, (bool, np.timedelta64, np.uint64)),
    "is_decimal": ((Decimal, int), (bool,)),
    "is_string": ((str,), ()),
    "is_binary": ((bytes, bytearray, memoryview), ()),
    "is_date": ((date, np.datetime64), (datetime,)),
    "is_timestamp": ((datetime, np.datetime64), ()),
    "is_time": ((time,), ()),
    "is_duration": ((timedelta, np.timedelta64), ()),
}


def require_lossless(array: Any, kind: Any) -> None:
    """Raise `ValueError` for an array whose values this type cannot hold unchanged."""
    array_type, types = array.type, import_arrow("pyarrow.types")
    if array_type.equals(kind) or types.is_null(array_type):
        return
    common_kind = next(
        (
            name
            for name, tests in _KIND_TESTS.items()
            if _matches_any_test(tests, array_type) and _matches_any_test(tests, kind)
        ),
        None,
    )
    if common_kind == "struct":
        types_by_name = {field.name: field.type for field in kind}
        for index, field in enumerate(array_type):
            if field.name not in types_by_name:
                raise ValueError(f"it has the key {field.name!r}, which the others lack")
            require_lossless(array.field(index), types_by_name[field.name])
    elif common_kind == "list":
        require_lossless(array.values, kind.value_type)
    elif common_kind == "number":
        before, after = (
            converted.drop_null().to_numpy(zero_copy_only=False)
            for converted in (array, array.cast(kind).cast(array_type))
        )
        same_signs = np.array_equal(np.signbit(before), np.signbit(after))  # 0.0 equals -0.0
        if not (same_signs and np.array_equal(before, after, equal_nan=True)):
            raise ValueError(f"values of {array_type} would lose digits in {kind}")
    elif common_kind == "timestamp" and (array_type.tz is None) != (kind.tz is None):
        raise ValueError(f"its type is {array_type}")
    elif common_kind is not None:
        array.cast(kind)  # raises if a value would be rounded
    elif not (
        types.is_decimal(kind) and (types.is_decimal(array_type) or types.is_integer(array_type))
    ):
        raise ValueError(f"its type is {array_type}")


_KIND_TESTS = {
    "struct": ("is_struct",),
    "list": ("is_list", "is_large_list"),
    "text": ("is_string", "is_large_string"),
    "bytes": ("is_binary", "is_large_binary"),
    "number": ("is_integer", "is_floating"),
    "timestamp": ("is_timestamp",),
    "time": ("is_time",),
    "duration": ("is_duration",),
}


def _matches_any_test(tests: Sequence[str], kind: Any) -> bool:
    return any(getattr(import_arrow("pyarrow.types"), test)(kind) for test in tests)
