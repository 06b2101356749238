"""LitData's optimized folders: chunks of items with an `index.json`; pickles are rejected.

A chunk begins with the number of its items and their offsets. An item is the sizes of its leaves,
followed by the leaves. The index states the format of each leaf, and the tree that the leaves form.
In chunks of tokens an item is its array.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ..errors import ConfigError, DataError
from . import file_versions, meta
from .arrays import UNNAMED_ARRAY_COLUMN
from .checksummed import ChecksummedFile, OpenRequest, open_checked_data
from .kinds import ColumnType, CompositeType
from .litdata_json import decode_value
from .mds import Decode, decode_value_list, pixels
from .records import RECORD_ERRORS, RecordFile, check_row_count, read_offsets

_ARROW_MAGIC = b"LDARW01\0"
_NUMPY_DTYPES = "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 ?".split()
_TORCH_DTYPES = "f4 f4 f8 f8 c8 c8 c16 c16 f2 f2 - u1 i1 i2 i2 i4 i4 i8 i8 ? u2".split()
_HEADERLESS_DTYPES = {"no_header_numpy": _NUMPY_DTYPES, "no_header_tensor": _TORCH_DTYPES}
_SEQUENCE_TYPES: Mapping[str, Callable[[Any], Any]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
}
_DICT_TYPES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


class Tree(NamedTuple):
    """Part of an item: the leaf with a number, or the result of `make` on its parts."""

    leaf: int
    make: Callable[[Any], Any] | None
    keys: list[str | int | float | None] | None
    parts: list[Tree]


class Index(NamedTuple):
    """The content of an `index.json`.

    `rows` maps chunks to their rows, `formats` are those of the leaves, and `tokens` is true for chunks
    of tokens.
    """

    rows: Mapping[str, int]
    formats: list[str]
    tree: Tree
    tokens: bool


def open_litdata(request: OpenRequest, /) -> RecordFile:
    """Open one chunk; its rows are items."""
    path, data, shared = request.path, request.data, request.shared
    index_path = path.with_name("index.json")
    if not index_path.is_file():
        raise ConfigError(
            f"{path}: the index.json beside it is missing, which describes chunks of LitData: copy "
            "it there"
        )
    index: Index = shared.decoded.get(
        ("index", index_path, file_versions.stat_file(index_path)),
        partial(
            _read_index, index_path, open_checked_data(index_path, shared.files, request.cache)
        ),
    )
    if path.name not in index.rows:
        raise DataError("the index.json beside it does not list it", where=str(path))
    rows, size = check_row_count(data, index.rows[path.name]), file_versions.stat_file(path).size
    if data.read(max(0, size - 8), min(size, 8)) == _ARROW_MAGIC:
        raise ConfigError(
            f"{path}: its rows are nested, and stored as Arrow inside the chunk, which Penstock "
            "does not read: write them as Arrow files"
        )
    parse = Items(index, request.columns, path)
    find = partial(shared.decoded.get, ("offsets", path), partial(_read_chunk_offsets, data, rows))
    return RecordFile(
        path,
        parse,
        rows=rows,
        offsets=find,
        data=data,
        origin=path,
        columns=request.columns,
        types=parse.types,
    )


def list_companions(path: Path) -> list[Path]:
    """Return the index of a chunk, which describes its rows."""
    return [path.with_name("index.json")]


def _read_chunk_offsets(data: ChecksummedFile, rows: int) -> tuple[int, Any]:
    offsets = read_offsets(data, rows)
    return offsets.nbytes, offsets


def _read_index(path: Path, data: ChecksummedFile) -> tuple[int, Index]:
    data.compare_all()
    content, location = meta.read(path), str(path)
    try:
        config = content["config"]
        for name in ("compression", "encryption", "ipc_compression"):
            if config.get(name):
                raise ConfigError(
                    f"{path}: chunks with {name} ({config[name]}) cannot be read: write them "
                    "without"
                )
        formats = [str(entry) for entry in config["data_format"]]
        spec = json.loads(config["data_spec"])[1]
        tree, leaves = _build_item_tree(spec, 0)
        if leaves != len(formats):
            raise ValueError(f"{len(formats)} formats for {leaves} leaves")
        chunks = {str(entry["filename"]): int(entry["chunk_size"]) for entry in content["chunks"]}
        tokens = any(entry.get("dim") is not None for entry in content["chunks"])
    except ConfigError:
        raise
    except (*RECORD_ERRORS, AttributeError) as error:
        raise DataError(f"it is no index of LitData: {error!r}", where=location) from error
    return file_versions.stat_file(path).size, Index(chunks, formats, tree, tokens)


def _build_item_tree(spec: Any, first: int) -> tuple[Tree, int]:
    """Return the tree of a specification, and the number of the next leaf."""
    node_type, parts = spec["type"], list[Tree]()
    if node_type is None:
        return Tree(first, None, None, []), first + 1
    for child in spec["children_spec"]:
        part, first = _build_item_tree(child, first)
        parts.append(part)
    if node_type in _DICT_TYPES:
        context = (
            json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
        )
        keys = list(context)  # with their types: litdata restores integers as integers, too
        if any(isinstance(key, list | dict) for key in keys):
            raise ValueError(f"{keys!r} are no keys of a dict")
        if len(keys) != len(parts):
            raise ValueError(f"{len(keys)} keys for {len(parts)} values")
        return Tree(-1, dict, keys, parts), first
    if node_type not in _SEQUENCE_TYPES:
        raise ValueError(f"items contain {node_type}; known are dict, list and tuple")
    return Tree(-1, _SEQUENCE_TYPES[node_type], None, parts), first


class Items:
    """Decoder of items; `columns` selects keys of dicts."""

    def __init__(self, index: Index, columns: Sequence[str] | None, origin: Path) -> None:
        self._tree = index.tree if columns is None else _select_columns(index.tree, columns, origin)
        self._count, self._tokens = len(index.formats), index.tokens
        self._decode = {
            leaf: make_leaf_decoder(index.formats[leaf], origin)
            for leaf in _list_leaf_numbers(self._tree)
        }
        keys, parts = (
            self._tree.keys or [UNNAMED_ARRAY_COLUMN],
            self._tree.parts if self._tree.keys else [self._tree],
        )
        self.types: dict[str, ColumnType] = {
            str(key): _describe_type(part, index.formats)
            for key, part in zip(keys, parts, strict=True)
        }

    def __call__(self, data: bytes) -> Any:
        if self._tokens:
            return self._decode[0](data)
        ends = [4 * self._count]
        for size in struct.unpack_from(f"<{self._count}I", data):
            ends.append(ends[-1] + size)
        if ends[-1] != len(data):
            raise ValueError(f"its leaves have {ends[-1]:,} bytes, it has {len(data):,}")
        return self._build(self._tree, data, ends)

    def _build(self, tree: Tree, data: bytes, ends: list[int]) -> Any:
        if tree.make is None:
            return self._decode[tree.leaf](data[ends[tree.leaf] : ends[tree.leaf + 1]])
        parts = [self._build(part, data, ends) for part in tree.parts]
        return tree.make(parts if tree.keys is None else zip(tree.keys, parts, strict=True))


def _select_columns(tree: Tree, columns: Sequence[str], origin: Path) -> Tree:
    keys = tree.keys or []
    numbers = {str(key): number for number, key in enumerate(keys)}
    # A text "0" precedes the number 0.
    numbers |= {key: number for number, key in enumerate(keys) if isinstance(key, str)}
    if missing := [column for column in columns if column not in numbers]:
        remark = (
            f"the columns are {', '.join(map(str, keys))}" if keys else "its items are no mappings"
        )
        raise ConfigError(f"{origin}: there is no column {missing[0]!r}; {remark}")
    chosen = [numbers[column] for column in columns]
    return tree._replace(
        keys=[keys[number] for number in chosen], parts=[tree.parts[number] for number in chosen]
    )


def _list_leaf_numbers(tree: Tree) -> list[int]:
    return (
        [tree.leaf]
        if tree.make is None
        else [leaf for part in tree.parts for leaf in _list_leaf_numbers(part)]
    )


def _describe_type(tree: Tree, formats: Sequence[str]) -> ColumnType:
    """Return the type of a part of items, as far as its values tell."""
    if tree.make is not None:
        names = [""] * len(tree.parts) if tree.keys is None else map(repr, tree.keys)
        parts = zip(names, (_describe_type(part, formats) for part in tree.parts), strict=True)
        return CompositeType(tree.make.__name__, tuple(parts))
    name, _, detail = formats[tree.leaf].partition(":")
    if name in _HEADERLESS_DTYPES:
        return f"{_find_dtype(int(detail), _HEADERLESS_DTYPES[name])}[*]"
    return _SHARED_TYPE_NAMES.get(_LEAF_DECODERS[name], name)


def make_leaf_decoder(format: str, origin: Path) -> Decode:
    """Return the decoder of a leaf.

    Pictures, sound and documents stay the bytes of their files; tensors become NumPy arrays.

    Raises:
        ConfigError: The format is unknown, or pickled.

    >>> make_leaf_decoder("no_header_numpy:1", Path("chunk-0-0.bin"))(bytes([1, 0, 2, 0]))
    array([1, 2], dtype=int16)
    """
    name, _, detail = format.partition(":")
    if name == "pickle" or detail == "pickle":
        raise ConfigError(
            f"{origin}: a leaf is pickled ({format}), and reading it may run any code: write plain "
            "values, or leave it out with columns="
        )
    if name in _HEADERLESS_DTYPES:
        try:
            return partial(np.frombuffer, dtype=_find_dtype(int(detail), _HEADERLESS_DTYPES[name]))
        except ValueError as error:
            raise ConfigError(f"{origin}: a leaf is written as {format!r}: {error}") from error
    if name not in _LEAF_DECODERS:
        raise ConfigError(
            f"{origin}: a leaf is written as {format!r}; known are {', '.join(_LEAF_DECODERS)}"
        )
    return _LEAF_DECODERS[name]


def _find_dtype(number: int, kinds: Sequence[str]) -> Any:
    if not 0 <= number < len(kinds) or kinds[number] == "-":
        raise ValueError(f"arrays have the type number {number}, which NumPy lacks")
    return np.dtype(kinds[number]).newbyteorder("<")


def _decode_array(kinds: Sequence[str], order: str, data: bytes) -> Any:
    """Decode type, axes, shape and values."""
    number, axes = struct.unpack_from(f"{order}2I", data)
    if 4 * axes > len(data):
        raise ValueError(f"{len(data)} bytes cannot hold {axes} axes")
    shape, dtype = struct.unpack_from(f"{order}{axes}I", data, 8), _find_dtype(number, kinds)
    if math.prod(shape) * dtype.itemsize != len(data) - 8 - 4 * axes:
        raise ValueError(f"{len(data)} bytes cannot be an array of shape {shape}")
    return np.frombuffer(data, dtype, offset=8 + 4 * axes).reshape(shape)


def _decode_number(kind: str, data: bytes) -> Any:
    (value,) = struct.unpack(kind, data)
    return value


def _decode_text(data: bytes) -> str:
    return data.decode()


_LEAF_DECODERS: dict[str, Decode] = {
    "bool": partial(_decode_number, "<?"),
    "int": partial(_decode_number, "<q"),
    "float": partial(_decode_number, "<d"),
    "str": _decode_text,
    "text": _decode_text,
    "json": decode_value,
    "bytes": bytes,
    "numpy": cast(Decode, partial(_decode_array, _NUMPY_DTYPES, "<")),
    "tensor": cast(Decode, partial(_decode_array, _TORCH_DTYPES, ">")),
    "pil": pixels,
    "jpeg_array": decode_value_list,
    **dict.fromkeys(
        ("jpeg", "image", "file", "audio", "video", "pdf", "tifffile", "nifti", "mesh"), bytes
    ),
}
_SHARED_TYPE_NAMES = {
    bytes: "bytes",
    _decode_text: "str",
    _LEAF_DECODERS["numpy"]: "array",
    _LEAF_DECODERS["tensor"]: "array",
}
"""Types with several encodings."""
