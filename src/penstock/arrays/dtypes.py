"""Exact dtype promotion: a common dtype that changes no number.

NumPy promotes uint64 and int64 to float64, which holds integers up to 2^53 only, and makes floats
of an empty list. Batches, packed rows and padding use these functions instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..types import MAX_EXACT_FLOAT_INT

Array = npt.NDArray[Any]

NUMERIC_KINDS = "biufcmM"
"""The kinds of dtypes that count as numbers."""

_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)
_FLOAT64 = np.dtype(np.float64)
_FLOAT_TYPES = (float, np.floating)
_NUMBER_TYPES = (int, float, complex, np.number, np.bool_, np.datetime64, np.ndarray)


class InexactError(ValueError):
    """Value without a common dtype with the others; `index` is the index of its array or sample."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


def is_masked(kind: type[Any]) -> bool:
    """Return whether values of a type are masked arrays, without loading `numpy.ma`."""
    return "numpy.ma" in sys.modules and issubclass(kind, np.ma.MaskedArray)


def require_unmasked(values: Any, index: int = 0) -> None:
    """Raise `InexactError` for a masked array, as joining would deliver the masked values."""
    if is_masked(cast("type[Any]", type(values))):
        raise InexactError(
            "a masked array would lose its mask: give its `filled()` values and the mask apart",
            index,
        )


def _require_readable(values: Any) -> None:
    """Raise `InexactError` for the first tensor or foreign array that NumPy cannot convert."""
    listed = cast("Sequence[Any]", values if isinstance(values, list | tuple) else [values])
    for index, leaf in (
        (index, leaf) for index, value in enumerate(listed) for leaf in _iter_leaves([value])
    ):
        try:
            np.asarray(leaf)
        except (TypeError, RuntimeError) as error:
            kind = f"{type(leaf).__name__} of {getattr(leaf, 'dtype', None)}"
            message = f"a {kind} does not become a NumPy array ({error}): change it in a map before"
            raise InexactError(message, index) from None


def name_by_width(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of 64-bit integers that torch knows, for an equal one of C's `long long`.

    NumPy makes `ulonglong` of Python integers from 2^63 on.

    >>> name_by_width(np.dtype(np.ulonglong)).char == np.dtype(np.uint64).char
    True
    """
    return np.dtype(dtype.str) if dtype.char in "qQ" else dtype


def name_dtype_by_width(array: Array) -> Array:
    """Return an array over the same memory, with the dtype of `name_by_width`."""
    return array.view(name_by_width(array.dtype)) if array.dtype.char in "qQ" else array


def find_common_dtype(arrays: Sequence[Array]) -> np.dtype[Any]:
    """Return the dtype that holds the values of all arrays unchanged.

    Empty arrays are ignored, unless all are empty.
    Integers get NumPy's common integer dtype. Where NumPy has none (uint64 beside signed integers),
    they get int64, or uint64 if a value needs it and none is negative. Integers beside floats get
    NumPy's common float dtype if it represents each of them.

    Raises:
        InexactError: if a value changes in the common dtype, if the types have none, or for masked
            arrays.

    >>> find_common_dtype([np.array([1], np.uint64), np.array([-1])]), find_common_dtype([np.array([]), np.array([1])])
    (dtype('int64'), dtype('int64'))
    >>> find_common_dtype([np.array([0.5]), np.array([2**53 + 1])])
    Traceback (most recent call last):
    ...
    penstock.arrays.dtypes.InexactError: 9007199254740993 beside float64 is no float64
    """
    for index, array in enumerate(arrays):
        require_unmasked(array, index)
    dtypes = {name_by_width(array.dtype) for array in arrays if array.size}
    if not dtypes:
        typed = next((array for array in arrays if not is_untyped(array)), arrays[0])
        return name_by_width(typed.dtype)
    if len(dtypes) == 1:
        return dtypes.pop()
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= set("biu"):
        return _promote_integers(arrays, np.result_type(*dtypes))
    try:
        common = np.result_type(*dtypes)
    except TypeError:
        common = None
    families = {"number" if kind in "biufcV" else kind for kind in kinds - {"O"}}
    records = any(dtype.names for dtype in dtypes)  # their integer fields may become floats
    if common is None or len(families) > 1 or records:
        first = next(array.dtype for array in arrays if array.size)
        index = next(i for i, array in enumerate(arrays) if array.size and array.dtype != first)
        raise InexactError(f"{arrays[index].dtype} and {first} have no common dtype", index)
    for index, array in enumerate(arrays):
        if not array.size or array.dtype == common:
            continue
        if array.dtype.kind in "iu" and common.kind in "fcV":
            require_exact(array, common, index)
        elif array.dtype.kind in "mM" and not np.array_equal(
            array.view(np.int64), array.astype(common).astype(array.dtype).view(np.int64)
        ):
            raise InexactError(f"{array.dtype} does not fit into {common}", index)
    return common


def _promote_integers(arrays: Sequence[Array], promoted: np.dtype[Any]) -> np.dtype[Any]:
    if promoted.kind in "biu":
        return name_by_width(promoted)
    ranges = [(int(array.min()), int(array.max())) if array.size else (0, 0) for array in arrays]
    if max(high for _, high in ranges) <= np.iinfo(_INT64).max:
        return _INT64
    for index, (low, _) in enumerate(ranges):
        if low < 0:
            raise InexactError(
                f"{low} beside integers over {np.iinfo(_INT64).max} fits into no integer dtype",
                index,
            )
    return _UINT64


def require_exact(integers: Array, dtype: np.dtype[Any], index: int = 0) -> None:
    """Raise `InexactError` if a float dtype does not represent each of these integers."""
    limit = 2 << int(np.finfo(dtype).nmant) if dtype.kind in "fc" else 0
    low, high = int(integers.min()), int(integers.max())
    if max(high, -low) <= limit:
        return
    if dtype.kind not in "fc":  # bfloat16 and similar dtypes, whose limit NumPy does not know
        changed = integers[integers.astype(dtype).astype(_FLOAT64) != integers]
        if max(high, -low) <= MAX_EXACT_FLOAT_INT and not changed.size:
            return
        low, high = (int(changed.min()), int(changed.max())) if changed.size else (low, high)
    value = high if high >= -low else low
    raise InexactError(f"{value} beside {dtype} is no {dtype}", index)


def make_exact_array(values: Any) -> Array:
    """Return `np.asarray(values)`, but keep every integer in nested lists exact.

    Empty lists become int64. Values other than numbers, and integers of more than 64 bits, are
    converted as by NumPy, mostly to dtype object.

    Raises:
        ValueError: if lists are ragged.
        InexactError: if no dtype holds all numbers, for masked arrays, and for tensors that NumPy
            cannot convert; `index` is the index in the outermost list.

    >>> make_exact_array([2**63 + 1, 5]), make_exact_array([])
    (array([9223372036854775809,                   5], dtype=uint64), array([], dtype=int64))
    """
    require_unmasked(values)
    try:
        array = np.asarray(values)
    except (TypeError, RuntimeError):  # by torch: bfloat16, gradients, device memory
        _require_readable(values)
        raise
    kind = array.dtype.kind
    if isinstance(values, list | tuple) and (
        isinstance(next(_iter_leaves(cast("Any", values)), None), np.ndarray)
        or (kind == "f" and bool(np.isnan(array).any()))
    ):  # NumPy converts a masked number to NaN
        for index, value in enumerate(cast("Sequence[Any]", values)):
            for leaf in _iter_leaves([value]):
                require_unmasked(leaf, index)
    if kind in "biuO" or not isinstance(values, list | tuple):
        return name_dtype_by_width(array)
    if not array.size:
        typed = any(isinstance(leaf, np.ndarray) for leaf in _iter_leaves(cast("Any", values)))
        return array if typed else array.astype(np.int64)
    if kind == "f":
        if array.ndim == 1 and set(map(type, cast("Any", values))) == {float}:
            return array
        small = bool(
            (np.abs(array) < np.float64(MAX_EXACT_FLOAT_INT)).all()
        )  # as a float16, EXACT is infinite
        if small and isinstance(next(_iter_leaves(cast("Any", values))), _FLOAT_TYPES):
            return array
        leaves = cast(
            "Sequence[Any]", values if array.ndim == 1 else list(_iter_leaves(cast("Any", values)))
        )
        is_float = [issubclass(leaf_type, _FLOAT_TYPES) for leaf_type in set(map(type, leaves))]
        if all(is_float) or (small and any(is_float)):
            return array
    else:
        leaves = list(_iter_leaves(cast("Any", values)))
        if not all(issubclass(leaf_type, _NUMBER_TYPES) for leaf_type in set(map(type, leaves))):
            return array
    try:
        return np.asarray(values, find_common_dtype([np.asarray(leaf) for leaf in leaves]))
    except InexactError as error:
        owners = [
            index for index, value in enumerate(cast("Any", values)) for _ in _iter_leaves([value])
        ]
        raise InexactError(str(error), owners[error.index]) from None


def _iter_leaves(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the leaves of nested lists and tuples, in order."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _iter_leaves(cast("Sequence[Any]", value))
        else:
            yield value


def is_untyped(values: Any) -> bool:
    """Return whether values imply no dtype: an empty list, or NumPy's float64 vector of one."""
    if isinstance(values, list | tuple):
        return not values
    if not isinstance(values, np.ndarray):
        return False
    array = cast("Array", values)
    return array.shape == (0,) and array.dtype == _FLOAT64


def cast_to_common_dtype(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays in their `find_common_dtype`."""
    dtype = find_common_dtype(arrays)
    return [array.astype(dtype, copy=False) for array in arrays]


def concatenate(arrays: Sequence[Array]) -> Array:
    """Join arrays along axis 0 as `np.concatenate` does, in their `find_common_dtype`."""
    return np.concatenate(arrays, dtype=find_common_dtype(arrays), casting="unsafe")


TOKEN_DTYPE = np.dtype(np.int32)
"""The default dtype of packed integers."""


def choose_packed_dtype(
    pieces: Sequence[Array], dtype: Any = None, integers: np.dtype[Any] | None = TOKEN_DTYPE
) -> np.dtype[Any]:
    """Return the dtype of a feature of a packed row: `dtype`, or a dtype from its pieces.

    Vectors of integers, and single integers, become `integers`, whatever width they are stored in.
    Other features get their common dtype. Empty pieces are ignored; if all are empty lists, the row
    holds integers.

    >>> choose_packed_dtype([np.array([1], np.uint16), np.array([])])
    dtype('int32')
    >>> choose_packed_dtype([np.array([0.5], np.float32)])
    dtype('float32')
    """
    if dtype is not None:
        return name_by_width(np.dtype(dtype))
    typed = [piece for piece in pieces if piece.size] or [
        piece for piece in pieces if not is_untyped(piece)
    ]
    if not typed:
        return integers or _INT64
    kinds = {piece.dtype.kind for piece in typed}
    vectors = kinds <= set("biu") and kinds != {"b"} and typed[0].ndim <= 1
    return integers if integers is not None and vectors else find_common_dtype(pieces)


def cast_array(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert integers to another dtype that holds each of them; return other values unchanged.

    Raises:
        OverflowError: if the dtype cannot hold an integer, or if a finite float would be infinite
            in it.

    >>> cast_array(np.array([1, 2]), np.dtype("uint16")).dtype, cast_array(np.array([1.5]), np.dtype("uint16")).dtype
    (dtype('uint16'), dtype('float64'))
    >>> cast_array(np.array([1, 70_000]), np.dtype("uint16"))
    Traceback (most recent call last):
    ...
    OverflowError: 70000 does not fit into uint16
    """
    if values.dtype.kind in "fc" and dtype.kind in "fc" and not np.can_cast(values.dtype, dtype):
        largest = np.abs(values[np.isfinite(values)]).max(initial=0)
        if largest > np.finfo(dtype).max:
            raise OverflowError(f"{largest:g} would be infinite as {dtype}")
    if values.dtype.kind not in "iu" or not values.size or values.dtype == dtype:
        return values
    if dtype.kind in "fc":
        try:
            require_exact(values, dtype)
        except InexactError as error:
            raise OverflowError(str(error)) from None
    if dtype.kind not in "iu" or np.can_cast(values.dtype, dtype):
        return values
    cast_scalar(values.min(), dtype)
    cast_scalar(values.max(), dtype)
    return values.astype(dtype)


def cast_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a number to a dtype; raise `OverflowError` if an integer dtype cannot hold it.

    NumPy checks only Python integers.

    >>> cast_scalar(np.int64(3), np.dtype("uint8")), cast_scalar(2.0, np.dtype("int32"))
    (3, 2)
    >>> cast_scalar(np.int64(300), np.dtype("uint8"))
    Traceback (most recent call last):
    ...
    OverflowError: 300 does not fit into uint8
    """
    return _to_int(value, dtype) if dtype.kind in "biu" else value


@lru_cache(1024, typed=True)
def _to_int(value: Any, dtype: np.dtype[Any]) -> int:
    number = cast("float", value.item() if isinstance(value, np.generic) else value)  # pyright: ignore[reportUnknownMemberType]
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (low <= number <= high and number == int(number)):  # a NaN fails the comparison
        raise OverflowError(f"{value} does not fit into {dtype}")
    return int(number)
