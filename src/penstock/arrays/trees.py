"""Trees of arrays: samples and batches as dicts, tuples and dataclasses with arrays as leaves.

A list has two meanings. In a sample it is a node (`map_leaves`, `iter_leaves`). In a batch it is a
column with one entry per row, as `collate` creates for values that are no numbers (`leading_size`,
`slice_batch`, `join_batches`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial, reduce
from itertools import islice
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ..errors import DataError
from .columnar import ColumnarSamples
from .dtypes import (
    NUMERIC_KINDS,
    InexactError,
    cast_to_common_dtype,
    concatenate,
    is_masked,
    make_exact_array,
    name_dtype_by_width,
    require_unmasked,
)
from .shared_buffers import allocate_shared

T = TypeVar("T")


class _TreeNode(NamedTuple):
    """Decomposed container: path suffix and value of each child, and a constructor."""

    names: list[str]
    values: list[Any]
    like: Callable[[Sequence[Any]], Any]


def _decompose_container(tree: Any, *, lists: bool) -> _TreeNode | None:
    """Decompose a container; return `None` for a leaf."""
    kind = cast("Any", type(tree))
    if isinstance(tree, Mapping):
        items = cast("Mapping[Any, Any]", tree)
        keys = list(items)
        return _TreeNode(
            [f".{key}" for key in keys], [items[key] for key in keys], partial(_build_dict, keys)
        )
    if isinstance(tree, tuple) or (lists and isinstance(tree, list)):
        values = [*cast("Sequence[Any]", tree)]
        named: tuple[str, ...] | None = getattr(kind, "_fields", None)
        if named is not None:
            return _TreeNode([f".{key}" for key in named], values, kind._make)
        return _TreeNode(
            [f"[{i}]" for i in range(len(values))],
            values,
            list if isinstance(tree, list) else tuple,
        )
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in fields(tree) if field.init]
        values = [getattr(tree, name) for name in names]
        return _TreeNode(
            [f".{name}" for name in names], values, partial(_replace_fields, tree, names)
        )
    return None


def _build_dict(keys: list[Any], values: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(keys, values, strict=True))


def _replace_fields(like: Any, names: list[str], values: Sequence[Any]) -> Any:
    return replace(like, **_build_dict(names, values))


def map_leaves(fn: Callable[[Any], Any], tree: Any, *, lists: bool = True) -> Any:
    """Apply a function to every leaf of a tree; with `lists=False` a list is a leaf.

    Nodes are dicts, tuples, lists, named tuples and dataclasses.

    >>> map_leaves(lambda x: x + 1, {"a": 1, "b": (2, [3])})
    {'a': 2, 'b': (3, [4])}
    """
    node = _decompose_container(tree, lists=lists)
    return (
        fn(tree)
        if node is None
        else node.like([map_leaves(fn, value, lists=lists) for value in node.values])
    )


def iter_leaves(tree: Any, *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Iterate over the leaves with their paths; with `lists=False` a list is a leaf.

    >>> list(iter_leaves({"a": 1, "b": (2, [3])}))
    [('a', 1), ('b[0]', 2), ('b[1][0]', 3)]
    """
    return ((path.removeprefix("."), leaf) for path, leaf in _iter_leaves(tree, "", lists))


def _iter_leaves(tree: Any, path: str, lists: bool) -> Iterator[tuple[str, Any]]:
    node = _decompose_container(tree, lists=lists)
    if node is None:
        yield path, tree
    else:
        for name, value in zip(node.names, node.values, strict=True):
            yield from _iter_leaves(value, path + name, lists)


# ---------------------------------------------------------------- batches: trees of columns


def leading_size(tree: Any) -> int:
    """Return the number of rows of a batch: the size of the leading axis, equal in all leaves.

    Raises:
        DataError: if a leaf has no leading axis, or another size.

    >>> leading_size({"x": np.zeros((4, 2)), "name": ["a", "b", "c", "d"]})
    4
    """
    size, owner = -1, ""
    for path, leaf in iter_leaves(tree, lists=False):
        rows = _count_leaf_rows(leaf)
        if rows is None:
            raise DataError(
                f"{_describe_field(path)} is a {type(leaf).__name__} without a leading axis; a batch has "
                "one row for each sample"
            )
        if size >= 0 and rows != size:
            raise DataError(
                f"{_describe_field(path)} has {rows} rows, {_describe_field(owner)} has {size}; give all fields of a "
                "batch the same number of rows"
            )
        size, owner = rows, path
    if size < 0:
        raise DataError("a batch without a single leaf has no rows")
    return size


# States store the former name of this function, and pickle looks it up by the same attribute.
leading_size.__qualname__ = "leading"
leading = leading_size


def _count_leaf_rows(value: Any) -> int | None:
    if isinstance(value, list):
        return len(cast("list[Any]", value))
    if isinstance(value, (np.ndarray, *_get_tensor_types())):
        shape = cast("Sequence[int]", value.shape)
        return shape[0] if len(shape) else None
    return None


def slice_batch(tree: Any, start: int, stop: int) -> Any:
    """Slice rows `start:stop` of a batch; arrays are views.

    >>> slice_batch({"x": np.arange(5), "name": list("abcde")}, 1, 3)
    {'x': array([1, 2]), 'name': ['b', 'c']}
    """
    node = _decompose_container(tree, lists=False)
    return (
        tree[start:stop]
        if node is None
        else node.like([slice_batch(value, start, stop) for value in node.values])
    )


def join_batches(trees: Sequence[Any]) -> Any:
    """Concatenate batches of one structure along axis 0; a single batch is returned as is.

    >>> join_batches([{"x": np.arange(2)}, {"x": np.arange(3)}])
    {'x': array([0, 1, 0, 1, 2])}
    """
    return trees[0] if len(trees) == 1 else _join_trees(trees, "")


def _join_trees(trees: Sequence[Any], path: str) -> Any:
    nodes = [_decompose_container(tree, lists=False) for tree in trees]
    node = next((node for node in nodes if node is not None), None)
    if node is not None:
        for other in nodes:
            if other is None or sorted(other.names) != sorted(node.names):
                names = "no container" if other is None else _format_field_names(other.names)
                raise DataError(
                    f"{_describe_field(path)} has {_format_field_names(node.names)} in one batch, {names} in another; "
                    "give the field one type in every sample by a map before batch(), or use batch(collate=list)"
                )
        if len({*node.names}) < len(node.names):
            raise DataError(
                f"{_describe_field(path)} has keys whose texts are equal: {_format_field_names(node.names)}"
            )
        tables = [dict(zip(o.names, o.values, strict=True)) for o in nodes if o is not None]
        return node.like(
            [_join_trees([table[name] for table in tables], path + name) for name in node.names]
        )
    try:
        if any(isinstance(tree, list) for tree in trees):
            return [row for tree in trees for row in tree]
        tensors = {isinstance(tree, _get_tensor_types()) for tree in trees}
        if len(tensors) > 1:
            raise TypeError("tensors beside arrays; give every sample the same type")
        if tensors == {True}:
            return cast("Any", sys.modules["torch"]).cat(cast_tensors_exactly(trees))
        return concatenate(trees)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{_describe_field(path)} cannot be joined along its leading axis: {error}"
        ) from error


# ---------------------------------------------------------------- collate


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples into a batch: arrays get a leading axis, other values become lists.

    Numbers become a vector of their natural dtype (int64, float64, bool). Arrays of equal shape,
    JAX's too, and lists of numbers are stacked. Dicts, tuples and dataclasses are collated field by
    field. Strings, bytes, `None` and other objects become a list. Integers keep their values, see
    `find_common_dtype`.

    Raises:
        DataError: if shapes, keys or types of a field differ, if an integer would change, or if
            samples are nested too deeply.

    >>> collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    if not samples:
        raise DataError("no samples to collate")
    try:
        return (
            samples.collated(_collate_values)
            if isinstance(samples, ColumnarSamples)
            else _collate_values(samples, "")
        )
    except RecursionError as error:
        raise DataError(
            "samples are nested too deeply to be stacked: flatten them in a map, or use collate=list"
        ) from error


def _collate_values(values: Sequence[Any], path: str) -> Any:
    try:
        return _collate_column(values, path)
    except InexactError as error:
        sample = f"sample {error.index} in the batch"
        at = f"{_describe_field(path)} of {sample}" if path else sample
        message = f"{at}: {error}; change that in a map before, or use collate=list"
        raise DataError(message, part=(error.index,)) from None


def _collate_column(values: Sequence[Any], path: str) -> Any:
    if type(values[0]) is int or type(values[0]) is float:
        # Fast path: the dtype of one conversion shows if all values are numbers.
        try:
            numbers = make_exact_array(values)
            if numbers.ndim == 1 and numbers.dtype.kind in NUMERIC_KINDS:
                return numbers
        except ValueError:  # the values are not all numbers, or have no common dtype
            pass
    kinds: set[type[Any]] = set(map(type, values))
    if any(map(is_masked, kinds)):
        for place, value in enumerate(values):
            require_unmasked(value, place)
    families = {_classify_type(kind) for kind in kinds}
    if len(families) > 1:
        for time in (np.datetime64, np.timedelta64):
            if kinds == {time, NoneType}:
                return _collate_numbers([time("NaT") if x is None else x for x in values])
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"{_describe_field(path)} mixes {names}: give every sample the same type, or use collate=list"
        )
    match families.pop():
        case "number":
            return _collate_numbers(values)
        case "array":
            return _collate_arrays(values, path)
        case "tensor":
            return _collate_tensors(values, path)
        case "jax":
            return _collate_jax_arrays(values, path)
        case "mapping":
            return _collate_mappings(values, path)
        case "list":
            return _collate_lists(values, path)
        case "object":
            return list(values)
        case _:
            return _collate_records(values, path)


def _classify_type(kind: type[Any]) -> str:
    """Return the family of a type; a column has values of one family."""
    if issubclass(kind, np.ndarray):
        return "array"
    if issubclass(kind, (str, bytes)):
        return "object"
    if issubclass(kind, (int, float, complex, np.generic)):
        return "number"
    if issubclass(kind, list):
        return "list"
    if issubclass(kind, tuple) or is_dataclass(kind):
        return f"record {kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, Mapping):
        return "mapping"
    if issubclass(kind, _get_tensor_types()):
        return "tensor"
    return "jax" if issubclass(kind, _get_jax_types()) else "object"


def _get_tensor_types() -> tuple[type[Any], ...]:
    # No tensor exists before torch is imported, so this module never imports torch.
    torch: Any = sys.modules.get("torch")
    return () if torch is None else (torch.Tensor,)


def _get_jax_types() -> tuple[type[Any], ...]:
    # No array of JAX exists before it is imported.
    kind: Any = getattr(sys.modules.get("jax"), "Array", None)
    return () if kind is None else (kind,)


def _collate_jax_arrays(values: Sequence[Any], path: str) -> Any:
    """Stack arrays of JAX as NumPy arrays; random keys have no numbers and stay a list."""
    try:
        arrays = [np.asarray(value) for value in values]
    except TypeError:
        return list(values)
    return _collate_arrays(arrays, path)


def _collate_numbers(values: Sequence[Any]) -> Any:
    numbers = make_exact_array(list(values))
    return numbers if numbers.dtype.kind in NUMERIC_KINDS else list(values)


def _collate_arrays(values: Sequence[Any], path: str) -> Any:
    shape = values[0].shape
    if len({value.shape for value in values}) > 1:
        raise _make_ragged_error(path, [value.shape for value in values])
    if len({value.dtype for value in values}) > 1:
        values = cast_to_common_dtype(values)
    if not shape:
        return name_dtype_by_width(np.stack(values))
    # Faster than numpy.stack, which creates a view of every array first.
    stacked = np.concatenate(values, out=allocate_shared(values)).reshape(len(values), *shape)
    return name_dtype_by_width(stacked)


def _collate_tensors(values: Sequence[Any], path: str) -> Any:
    if len({value.shape for value in values}) > 1:
        raise _make_ragged_error(path, [tuple(value.shape) for value in values])
    try:
        return cast("Any", sys.modules["torch"]).stack(cast_tensors_exactly(values))
    except (RuntimeError, NotImplementedError) as error:  # dense and sparse, or unsupported types
        message = (
            f"{_describe_field(path)} has tensors that do not stack: {str(error).splitlines()[0]}; "
        )
        raise DataError(f"{message}change them in a map before, or use collate=list") from error


def cast_tensors_exactly(tensors: Sequence[Any]) -> list[Any]:
    """Convert tensors to torch's promoted dtype; raise `InexactError` if an integer changes."""
    torch: Any = sys.modules["torch"]
    dtypes = {tensor.dtype for tensor in tensors}
    if any(str(dtype).startswith(("torch.qint", "torch.quint")) for dtype in dtypes):
        raise InexactError("a quantized tensor would get the scale of another one", 0)
    if len(dtypes) == 1:
        return list(tensors)
    floats = [
        tensor.dtype
        for tensor in tensors
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex
    ]
    if floats and len(floats) < len(tensors):
        promoted = reduce(torch.promote_types, floats)
        limit = round(2 / torch.finfo(promoted).eps)
        for place, tensor in enumerate(tensors):
            if tensor.dtype in floats or tensor.dtype == torch.bool or not tensor.numel():
                continue
            low, high = int(tensor.min()), int(tensor.max())
            if max(high, -low) > limit:
                raise InexactError(
                    f"{high if high >= -low else low} beside {promoted} is no {promoted}", place
                )
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return [tensor.to(dtype) for tensor in tensors]


def _collate_mappings(values: Sequence[Any], path: str) -> Any:
    keys = values[0].keys()
    for number, value in enumerate(values):
        if value.keys() != keys:
            missing = [key for key in keys if key not in value]
            extra = [key for key in value if key not in values[0]]
            differences = " and ".join(
                [f"lacks {key!r}" for key in missing] + [f"has also {key!r}" for key in extra]
            )
            at = f"{_describe_field(path)} of sample {number}" if path else f"sample {number}"
            raise DataError(
                f"{at} in the batch {differences}, compared with sample 0: give all samples the same "
                "keys by columns= or a map, or use collate=list"
            )
    return {key: _collate_values([value[key] for value in values], f"{path}.{key}") for key in keys}


def _collate_records(values: Sequence[Any], path: str) -> Any:
    nodes = [cast("_TreeNode", _decompose_container(value, lists=False)) for value in values]
    first = nodes[0]
    for node in nodes:
        if len(node.values) != len(first.values):
            raise DataError(
                f"{_describe_field(path)} has {len(first.values)} entries in one sample, {len(node.values)} "
                "in another"
            )
    columns = zip(*(node.values for node in nodes), strict=True)
    return first.like(
        [
            _collate_values(column, path + name)
            for name, column in zip(first.names, columns, strict=True)
        ]
    )


def _collate_lists(values: Sequence[Any], path: str) -> Any:
    kinds = [cast("type[Any]", type(value)) for value in islice(_iter_scalars(values), 1)]
    if kinds and _classify_type(kinds[0]) not in ("number", "array"):
        return list(values)
    try:
        return _collate_numbers(values)
    except InexactError:
        raise
    except ValueError:
        raise _make_ragged_error(path, [_compute_shape(value) for value in values]) from None


def _iter_scalars(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _iter_scalars(value)
        else:
            yield value


def _compute_shape(value: Any) -> tuple[int, ...]:
    try:
        return np.asarray(value).shape
    except ValueError:
        return (len(value),)


def _make_ragged_error(path: str, shapes: list[tuple[int, ...]]) -> DataError:
    different = list(dict.fromkeys(shapes))
    shown = ", ".join(map(str, different[:4])) + (", ..." if len(different) > 4 else "")
    name = path.removeprefix(".")
    pad = f"collate=ps.pad({{{name or 'x'!r}: 0}})"
    pad = pad if name else f".map(lambda x: {{'x': x}}) and {pad}"
    if () in shapes or len({shape[1:] for shape in shapes}) > 1 or {".", "["} & set(name):
        pad = "a map before"
    return DataError(
        f"{_describe_field(path)} has shapes {shown}, which do not stack: pad them with {pad}, use "
        "pack() for documents of tokens, Padded(join=) to lay them end to end beside padded tokens, or "
        "collate=list to get a list"
    )


def _describe_field(path: str) -> str:
    return f"field {path.removeprefix('.')!r}" if path else "the batch"


def _format_field_names(names: list[str]) -> str:
    return "the fields " + ", ".join(sorted(name.removeprefix(".") for name in names))


# ---------------------------------------------------------------- persistent lists


def append_chunked(chunks: Sequence[list[T]], item: T, width: int) -> list[list[T]]:
    """Append an entry to a persistent list, stored in chunks of `width`; the input is unchanged.

    With `width` near the square root of the length, an append copies two short lists.

    >>> append_chunked([[1, 2], [3]], 4, width=2)
    [[1, 2], [3, 4]]
    """
    if chunks and len(chunks[-1]) < width:
        return [*chunks[:-1], [*chunks[-1], item]]
    return [*chunks, [item]]


def build_chunks(entries: Sequence[T], width: int) -> list[list[T]]:
    """Build the chunks that repeated `append_chunked` would build.

    >>> build_chunks([1, 2, 3, 4, 5], width=2)
    [[1, 2], [3, 4], [5]]
    """
    return [list(entries[i : i + width]) for i in range(0, len(entries), width)]
