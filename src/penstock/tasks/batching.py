"""Functions that make a batch of values: stack, pad, list, concatenate.

They work on torch tensors and NumPy arrays alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from ..arrays.dtypes import InexactError, cast_to_common_dtype
from ..arrays.trees import cast_tensors_exactly
from ..errors import ConfigError, DataError


def batch_list(values: Sequence[Any]) -> list[Any]:
    """Return the values as a list.

    Args:
        values: the values of one field.

    >>> batch_list(("a", "b"))
    ['a', 'b']
    """
    return list(values)


def batch_stack(values: Sequence[Any]) -> Any:
    """Stack arrays of one shape into `(n, *shape)`.

    Args:
        values: arrays or tensors of one shape.

    Returns:
        The stacked array.

    Raises:
        DataError: if shapes differ.

    >>> batch_stack([np.zeros((2, 3)), np.ones((2, 3))]).shape
    (2, 2, 3)
    """
    shapes = [_shape(value, "batch_stack") for value in values]
    if len(set(shapes)) > 1:
        raise DataError(
            f"batch_stack: shapes differ ({_shapes(shapes)}): use batch_pad_stack, which pads with "
            "zeros"
        )
    return _library(values[0]).stack(_with_common_dtype(values, "batch_stack"))


def batch_pad_stack(values: Sequence[Any]) -> Any:
    """Stack arrays with the same number of axes, zero-padded at the end to the longest.

    Args:
        values: arrays or tensors.

    Returns:
        The stacked array.

    Raises:
        DataError: if the numbers of axes differ.

    >>> batch_pad_stack([np.array([1]), np.array([2, 3])])
    array([[1, 0],
           [2, 3]])
    """
    shapes = [_shape(value, "batch_pad_stack") for value in values]
    values = _with_common_dtype(values, "batch_pad_stack")
    if len(set(shapes)) == 1:
        return _library(values[0]).stack(values)
    if len({len(shape) for shape in shapes}) > 1:
        raise DataError(
            f"batch_pad_stack: the numbers of axes differ ({_shapes(shapes)}): reshape the values "
            "first"
        )
    out = _zeros(values[0], (len(values), *map(max, zip(*shapes, strict=True))))
    for i, value in enumerate(values):
        out[(i, *(slice(0, n) for n in value.shape))] = value
    return out


def concat_pad(values: Sequence[Any]) -> Any:
    """Concatenate arrays along axis 0, with the other axes zero-padded to the longest.

    Args:
        values: arrays or tensors.

    Returns:
        The concatenated array.

    Raises:
        DataError: if the numbers of axes differ, or are 0.

    >>> concat_pad([np.array([[1]]), np.array([[2, 3], [4, 5]])])
    array([[1, 0],
           [2, 3],
           [4, 5]])
    """
    shapes = [_shape(value, "concat_pad") for value in values]
    if len({len(shape) for shape in shapes}) > 1 or not shapes[0]:
        raise DataError(
            "concat_pad: give arrays with the same number of axes, at least one "
            f"({_shapes(shapes)})"
        )
    values = _with_common_dtype(values, "concat_pad")
    if len({shape[1:] for shape in shapes}) == 1:
        library = _library(values[0])
        return library.concatenate(values) if library is np else library.cat(values)
    rows = sum(shape[0] for shape in shapes)
    out = _zeros(values[0], (rows, *map(max, zip(*(shape[1:] for shape in shapes), strict=True))))
    start = 0
    for value in values:
        out[(slice(start, start + len(value)), *(slice(0, n) for n in value.shape[1:]))] = value
        start += len(value)
    return out


def generic_batch(values: Sequence[Any]) -> Any:
    """Pad and stack arrays; batch mappings and records field by field; list other values.

    Args:
        values: values of one type.

    Returns:
        The batch.

    >>> generic_batch([{"x": np.array([1]), "name": "a"}, {"x": np.array([2]), "name": "b"}])
    {'x': array([[1],
           [2]]), 'name': ['a', 'b']}
    """
    if all(map(is_array, values)):
        return batch_pad_stack(values)
    batch = _join_fields("generic_batch", values, generic_batch)
    return list(values) if batch is None else batch


def generic_concat(values: Sequence[Any]) -> Any:
    """Concatenate batches: arrays by `concat_pad`, lists end to end, records field by field.

    Other values go into a list.

    Args:
        values: batches of one type.

    Returns:
        One batch.

    >>> generic_concat([{"x": np.array([1]), "name": ["a"]}, {"x": np.array([2]), "name": ["b"]}])
    {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    first = values[0]
    if all(is_array(value) and len(value.shape) for value in values):
        return concat_pad(values)
    if type(first) in (list, tuple) and all(type(value) is type(first) for value in values):
        return type(first)(entry for value in values for entry in value)
    batch = _join_fields("generic_concat", values, generic_concat)
    return list(values) if batch is None else batch


def homogeneous_concat_mix(batches: Sequence[Any]) -> Any:
    """Concatenate batches of one type into one batch of that type: see `generic_concat`.

    Args:
        batches: batches of one type.

    Returns:
        One batch.

    Raises:
        ConfigError: if types differ.

    >>> homogeneous_concat_mix([{"caption": ["a"]}, {"caption": ["b", "c"]}])
    {'caption': ['a', 'b', 'c']}
    """
    type_names = sorted({type(batch).__name__ for batch in batches})
    if len(type_names) > 1:
        raise ConfigError(
            f"homogeneous_concat_mix: the batches have types {' and '.join(type_names)}: pass a "
            "batch_mix_fn that converts them to one type"
        )
    return generic_concat(batches)


def is_array(value: Any) -> bool:
    """Return whether a value is a NumPy array or a torch tensor.

    >>> is_array(np.zeros(1)), is_array([0.0])
    (True, False)
    """
    return isinstance(value, np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    # A tensor cannot exist before torch is imported, so torch is never imported here.
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _library(value: Any) -> Any:
    return sys.modules["torch"] if _is_tensor(value) else np


def _with_common_dtype(values: Sequence[Any], step: str) -> list[Any]:
    """Convert arrays to a dtype that represents all values exactly; check tensors likewise."""
    try:
        return (
            cast_tensors_exactly(values) if _is_tensor(values[0]) else cast_to_common_dtype(values)
        )
    except InexactError as error:
        raise DataError(
            f"{step}: value {error.index}: {error}; convert all values to one dtype first"
        ) from None


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if _is_tensor(like) else np.zeros(shape, like.dtype)


def _shape(value: Any, step: str) -> tuple[int, ...]:
    if not is_array(value):
        raise DataError(
            f"{step}: got a {type(value).__name__} among the values; give tensors or NumPy arrays"
        )
    return tuple(value.shape)


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, sorted(set(shapes))[:4]))


def _join_fields(step: str, values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Join mappings or records of one type field by field; return None for other values."""
    first: Any = values[0]
    record_type = cast("Any", type(first))
    if any(type(value) is not record_type for value in values):
        return None
    if isinstance(first, Mapping):
        names = [*cast("Mapping[Any, Any]", first)]
        if any(value.keys() != first.keys() for value in values):
            raise DataError(f"{step}: the mappings have different keys; the first has {names}")
        return {name: join([value[name] for value in values]) for name in names}
    if hasattr(record_type, "_fields"):
        return record_type(*(join(list(column)) for column in zip(*values, strict=True)))
    if is_dataclass(first) and record_type is not type:
        names = [field.name for field in fields(first) if field.init]
        return record_type(
            **{name: join([getattr(value, name) for value in values]) for name in names}
        )
    return None
