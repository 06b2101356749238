"""Which dtype holds numbers of several types without changing one of them.

NumPy makes floats of an unsigned 64-bit integer beside a signed one, and of an empty list; a
float64 holds integers up to 2^53 only. Whatever joins numbers (batches, packed rows, padding) asks
here instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .ints import held

Array = npt.NDArray[Any]

EXACT = 1 << 53
"""Every integer up to here is a float64."""

NUMERIC = "biufcmM"
"""The kinds of dtypes that count as numbers."""

_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)
_FLOAT64 = np.dtype(np.float64)
_FLOATS = (float, np.floating)
_NUMBERS = (int, float, complex, np.number, np.bool_, np.datetime64, np.ndarray)


class InexactError(ValueError):
    """A value that no dtype holds together with the others; `place` is the index of its array or
    sample."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def require_unmasked(values: Any, place: int = 0) -> None:
    """Raise `InexactError` for a masked array: what joins arrays would give what is below its mask
    as values.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise InexactError(
            "a masked array would lose its mask: give its `filled()` values and the mask apart",
            place,
        )


def _require_readable(values: Any) -> None:
    """Raise `InexactError` for the first tensor, or array of another library, that does not become
    a NumPy array."""
    listed = cast("Sequence[Any]", values if isinstance(values, list | tuple) else [values])
    for place, leaf in (
        (place, leaf) for place, value in enumerate(listed) for leaf in _leaves([value])
    ):
        try:
            np.asarray(leaf)
        except (TypeError, RuntimeError) as error:
            kind = f"{type(leaf).__name__} of {getattr(leaf, 'dtype', None)}"
            message = f"a {kind} does not become a NumPy array ({error}): change it in a map before"
            raise InexactError(message, place) from None


def common_dtype(arrays: Sequence[Array]) -> np.dtype[Any]:
    """Return the dtype that holds the values of all arrays unchanged; empty arrays count only among
    themselves.

    Integers get NumPy's common integer dtype. Where NumPy has none (uint64 beside signed integers),
    they get int64, or uint64 if a value needs it and none is negative. Integers beside floats get
    NumPy's common float dtype if it represents each of them.

    Raises:
        InexactError: if a value changes in the common dtype, or the types have none; for masked
            arrays.

    >>> common_dtype([np.array([1], np.uint64), np.array([-1])]), common_dtype([np.array([]), np.array([1])])
    (dtype('int64'), dtype('int64'))
    >>> common_dtype([np.array([0.5]), np.array([2**53 + 1])])
    Traceback (most recent call last):
    ...
    penstock.engine.base.dtypes.InexactError: 9007199254740993 beside float64 is no float64
    """
    for place, array in enumerate(arrays):
        require_unmasked(array, place)
    dtypes = {array.dtype for array in arrays if array.size}
    if not dtypes:
        return next((array for array in arrays if not is_untyped(array)), arrays[0]).dtype
    if len(dtypes) == 1:
        return dtypes.pop()
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= set("biu"):
        return _of_integers(arrays, np.result_type(*dtypes))
    try:
        found = np.result_type(*dtypes)
    except TypeError:
        found = None
    families = {"number" if kind in "biufcV" else kind for kind in kinds - {"O"}}
    records = any(dtype.names for dtype in dtypes)  # their integer fields may become floats
    if found is None or len(families) > 1 or records:
        first = next(array.dtype for array in arrays if array.size)
        place = next(i for i, array in enumerate(arrays) if array.size and array.dtype != first)
        raise InexactError(f"{arrays[place].dtype} and {first} have no common dtype", place)
    for place, array in enumerate(arrays):
        if not array.size or array.dtype == found:
            continue
        if array.dtype.kind in "iu" and found.kind in "fcV":
            require_exact(array, found, place)
        elif array.dtype.kind in "mM" and not np.array_equal(
            array.view(np.int64), array.astype(found).astype(array.dtype).view(np.int64)
        ):
            raise InexactError(f"{array.dtype} does not fit into {found}", place)
    return found


def _of_integers(arrays: Sequence[Array], found: np.dtype[Any]) -> np.dtype[Any]:
    if found.kind in "biu":
        return found
    ranges = [(int(array.min()), int(array.max())) if array.size else (0, 0) for array in arrays]
    if max(high for _, high in ranges) <= np.iinfo(_INT64).max:
        return _INT64
    for place, (low, _) in enumerate(ranges):
        if low < 0:
            raise InexactError(
                f"{low} beside integers over {np.iinfo(_INT64).max} fits into no integer dtype",
                place,
            )
    return _UINT64


def require_exact(integers: Array, dtype: np.dtype[Any], place: int = 0) -> None:
    """Raise `InexactError` if a float dtype does not represent each of these integers."""
    limit = 2 << int(np.finfo(dtype).nmant) if dtype.kind in "fc" else 0
    low, high = int(integers.min()), int(integers.max())
    if max(high, -low) <= limit:
        return
    if dtype.kind not in "fc":  # bfloat16 and its like, of which NumPy does not know the limit
        changed = integers[integers.astype(dtype).astype(_FLOAT64) != integers]
        if max(high, -low) <= EXACT and not changed.size:
            return
        low, high = (int(changed.min()), int(changed.max())) if changed.size else (low, high)
    value = high if high >= -low else low
    raise InexactError(f"{value} beside {dtype} is no {dtype}", place)


def exact_array(values: Any) -> Array:
    """Return `np.asarray(values)`, but with the value of every integer in nested lists; empty lists
    give int64.

    What holds something other than numbers, or integers of more than 64 bits, comes as NumPy makes
    it, mostly of dtype object.

    Raises:
        ValueError: for ragged lists.
        InexactError: if no dtype holds all numbers, for masked arrays, and for tensors that NumPy
            cannot read; `place` is the index in the outermost list.

    >>> exact_array([2**63 + 1, 5]), exact_array([])
    (array([9223372036854775809,                   5], dtype=uint64), array([], dtype=int64))
    """
    require_unmasked(values)
    try:
        found = np.asarray(values)
    except (
        TypeError,
        RuntimeError,
    ):  # by torch: for bfloat16, for gradients, for memory of a device
        _require_readable(values)
        raise
    kind = found.dtype.kind
    if isinstance(values, list | tuple) and (
        isinstance(next(_leaves(cast("Any", values)), None), np.ndarray)
        or (kind == "f" and bool(np.isnan(found).any()))
    ):  # of numbers, a masked one becomes NaN
        for place, value in enumerate(cast("Sequence[Any]", values)):
            for leaf in _leaves([value]):
                require_unmasked(leaf, place)
    if kind in "biuO" or not isinstance(values, list | tuple):
        return found
    if not found.size:
        typed = any(isinstance(leaf, np.ndarray) for leaf in _leaves(cast("Any", values)))
        return found if typed else found.astype(np.int64)
    if kind == "f":
        if found.ndim == 1 and set(map(type, cast("Any", values))) == {float}:
            return found
        small = bool((np.abs(found) < np.float64(EXACT)).all())  # as a float16, EXACT is infinite
        if small and isinstance(next(_leaves(cast("Any", values))), _FLOATS):
            return found
        leaves = cast(
            "Sequence[Any]", values if found.ndim == 1 else list(_leaves(cast("Any", values)))
        )
        is_float = [issubclass(each, _FLOATS) for each in set(map(type, leaves))]
        if all(is_float) or (small and any(is_float)):
            return found
    else:
        leaves = list(_leaves(cast("Any", values)))
        if not all(issubclass(each, _NUMBERS) for each in set(map(type, leaves))):
            return found
    try:
        return np.asarray(values, common_dtype([np.asarray(leaf) for leaf in leaves]))
    except InexactError as error:
        owners = [
            place for place, value in enumerate(cast("Any", values)) for _ in _leaves([value])
        ]
        raise InexactError(str(error), owners[error.place]) from None


def _leaves(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the leaves of nested lists and tuples, in order."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(cast("Sequence[Any]", value))
        else:
            yield value


def is_untyped(values: Any) -> bool:
    """Return whether values are an empty list, or the float64 vector that NumPy makes of one: both
    tell no dtype."""
    if isinstance(values, list | tuple):
        return not values
    if not isinstance(values, np.ndarray):
        return False
    array = cast("Array", values)
    return array.shape == (0,) and array.dtype == _FLOAT64


def exact_arrays(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays in their `common_dtype`."""
    dtype = common_dtype(arrays)
    return [array.astype(dtype, copy=False) for array in arrays]


def concatenate(arrays: Sequence[Array]) -> Array:
    """Join arrays along axis 0 as `np.concatenate` does, in their `common_dtype`."""
    return np.concatenate(arrays, dtype=common_dtype(arrays), casting="unsafe")


TOKENS = np.dtype(np.int32)
"""The dtype of packed integers where nothing else is asked for."""


def packed_dtype(
    pieces: Sequence[Array], dtype: Any = None, integers: np.dtype[Any] | None = TOKENS
) -> np.dtype[Any]:
    """Return the dtype of one feature of a packed row, from the pieces of its documents; `dtype`
    overrides it.

    Vectors of integers, and single ones, become `integers`, whatever width they are stored in;
    other features get their common dtype. Empty pieces tell nothing, and where all are empty lists
    the row holds integers.

    >>> packed_dtype([np.array([1], np.uint16), np.array([])]), packed_dtype([np.array([0.5], np.float32)])
    (dtype('int32'), dtype('float32'))
    """
    if dtype is not None:
        return np.dtype(dtype)
    told = [piece for piece in pieces if piece.size] or [
        piece for piece in pieces if not is_untyped(piece)
    ]
    if not told:
        return integers or _INT64
    kinds = {piece.dtype.kind for piece in told}
    vectors = kinds <= set("biu") and kinds != {"b"} and told[0].ndim <= 1
    return integers if integers is not None and vectors else common_dtype(pieces)


def narrowed(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return integers in another dtype if it holds each of them; other values unchanged.

    Raises:
        OverflowError: for an integer that the dtype does not hold, and a finite float that would be
            infinite in it.

    >>> narrowed(np.array([1, 2]), np.dtype("uint16")).dtype, narrowed(np.array([1.5]), np.dtype("uint16")).dtype
    (dtype('uint16'), dtype('float64'))
    >>> narrowed(np.array([1, 70_000]), np.dtype("uint16"))
    Traceback (most recent call last):
    ...
    OverflowError: uint16 does not have 70000
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
    held(values.min(), dtype)
    held(values.max(), dtype)
    return values.astype(dtype)
