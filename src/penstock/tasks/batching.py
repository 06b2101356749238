"""How values become a batch: stacked, padded, listed, concatenated. Tensors and NumPy arrays
alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from ..engine.base.dtypes import InexactError, exact_arrays
from ..engine.base.tree import exact_tensors
from ..errors import ConfigError, DataError


def batch_list(values: Sequence[Any]) -> list[Any]:
    """The values, in a list.

    >>> batch_list(("a", "b"))
    ['a', 'b']
    """
    return list(values)


def batch_stack(values: Sequence[Any]) -> Any:
    """Arrays of one shape, one above the other: `(n, *shape)`. `DataError` where shapes differ.

    >>> batch_stack([np.zeros((2, 3)), np.ones((2, 3))]).shape
    (2, 2, 3)
    """
    shapes = [_shape(value, "batch_stack") for value in values]
    if len(set(shapes)) > 1:
        raise DataError(
            f"batch_stack: shapes differ ({_shapes(shapes)}); batch_pad_stack pads them with zeros"
        )
    return _library(values[0]).stack(_of_one_dtype(values, "batch_stack"))


def batch_pad_stack(values: Sequence[Any]) -> Any:
    """Arrays of any shapes but one number of axes, padded with zeros behind to the longest, one
    above the other.

    >>> batch_pad_stack([np.array([1]), np.array([2, 3])])
    array([[1, 0],
           [2, 3]])
    """
    shapes = [_shape(value, "batch_pad_stack") for value in values]
    values = _of_one_dtype(values, "batch_pad_stack")
    if len(set(shapes)) == 1:
        return _library(values[0]).stack(values)
    if len({len(shape) for shape in shapes}) > 1:
        raise DataError(f"batch_pad_stack: the numbers of axes differ ({_shapes(shapes)})")
    out = _zeros(values[0], (len(values), *map(max, zip(*shapes, strict=True))))
    for i, value in enumerate(values):
        out[(i, *(slice(0, n) for n in value.shape))] = value
    return out


def concat_pad(values: Sequence[Any]) -> Any:
    """Arrays one behind the other along axis 0; the other axes are padded with zeros to the
    longest.

    >>> concat_pad([np.array([[1]]), np.array([[2, 3], [4, 5]])])
    array([[1, 0],
           [2, 3],
           [4, 5]])
    """
    shapes = [_shape(value, "concat_pad") for value in values]
    if len({len(shape) for shape in shapes}) > 1 or not shapes[0]:
        raise DataError(
            "concat_pad: arrays of one number of axes, at least one, are needed "
            f"({_shapes(shapes)})"
        )
    values = _of_one_dtype(values, "concat_pad")
    if len({shape[1:] for shape in shapes}) == 1:
        library = _library(values[0])
        return library.concatenate(values) if library is np else library.cat(values)
    rows = sum(shape[0] for shape in shapes)
    out = _zeros(values[0], (rows, *map(max, zip(*(shape[1:] for shape in shapes), strict=True))))
    at = 0
    for value in values:
        out[(slice(at, at + len(value)), *(slice(0, n) for n in value.shape[1:]))] = value
        at += len(value)
    return out


def generic_batch(values: Sequence[Any]) -> Any:
    """Tensors and arrays padded and stacked, mappings and records field by field, anything else in
    a list.

    >>> generic_batch([{"x": np.array([1]), "name": "a"}, {"x": np.array([2]), "name": "b"}])
    {'x': array([[1],
           [2]]), 'name': ['a', 'b']}
    """
    if all(map(is_array, values)):
        return batch_pad_stack(values)
    found = _fields("generic_batch", values, generic_batch)
    return list(values) if found is None else found


def generic_concat(values: Sequence[Any]) -> Any:
    """Batches as one: tensors and arrays by `concat_pad`, lists and tuples end to end, mappings and
    records field by field, anything else in a list.

    >>> generic_concat([{"x": np.array([1]), "name": ["a"]}, {"x": np.array([2]), "name": ["b"]}])
    {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    first = values[0]
    if all(is_array(value) and len(value.shape) for value in values):
        return concat_pad(values)
    if type(first) in (list, tuple) and all(type(value) is type(first) for value in values):
        return type(first)(entry for value in values for entry in value)
    found = _fields("generic_concat", values, generic_concat)
    return list(values) if found is None else found


def homogeneous_concat_mix(batches: Sequence[Any]) -> Any:
    """Batches of one type as one batch of that type: see `generic_concat`. `ConfigError` where
    types differ.

    >>> homogeneous_concat_mix([{"caption": ["a"]}, {"caption": ["b", "c"]}])
    {'caption': ['a', 'b', 'c']}
    """
    kinds = sorted({type(batch).__name__ for batch in batches})
    if len(kinds) > 1:
        raise ConfigError(
            f"homogeneous_concat_mix: the batches are of types {' and '.join(kinds)}; give "
            "batch_mix_fn a function that makes one type of them"
        )
    return generic_concat(batches)


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array or a torch tensor.

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


def _of_one_dtype(values: Sequence[Any], step: str) -> list[Any]:
    """Arrays in the dtype that holds the numbers of all, or tensors as they are, if torch keeps
    their numbers."""
    try:
        return exact_tensors(values) if _is_tensor(values[0]) else exact_arrays(values)
    except InexactError as error:
        raise DataError(f"{step}: value {error.place}: {error}; give all one type before") from None


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return like.new_zeros(shape) if _is_tensor(like) else np.zeros(shape, like.dtype)


def _shape(value: Any, step: str) -> tuple[int, ...]:
    if not is_array(value):
        raise DataError(
            f"{step}: a {type(value).__name__} among the values; tensors or NumPy arrays are needed"
        )
    return tuple(value.shape)


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, sorted(set(shapes))[:4]))


def _fields(step: str, values: Sequence[Any], join: Callable[[list[Any]], Any]) -> Any:
    """Mappings and records of one type, joined field by field; None where the values are
    neither."""
    first: Any = values[0]
    kind = cast("Any", type(first))
    if any(type(value) is not kind for value in values):
        return None
    if isinstance(first, Mapping):
        names = [*cast("Mapping[Any, Any]", first)]
        if any(value.keys() != first.keys() for value in values):
            raise DataError(
                f"{step}: a mapping lacks a key that another one has; the first has {names}"
            )
        return {name: join([value[name] for value in values]) for name in names}
    if hasattr(kind, "_fields"):
        return kind(*(join(list(column)) for column in zip(*values, strict=True)))
    if is_dataclass(first) and kind is not type:
        names = [field.name for field in fields(first) if field.init]
        return kind(**{name: join([getattr(value, name) for value in values]) for name in names})
    return None
