"""Layouts of token files: dtype, first token, and document ends.

Token ids are stored little-endian in one flat array, optionally after a header of NumPy or llm.c.
Document ends are listed in a file beside it, as Megatron (`.idx`), datatrove (`.ds.index`) and OLMo
(`.csv.gz`) write it, or marked by an end token.
"""

from __future__ import annotations

import gzip
import io
import struct
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...arguments import check_choice, check_int
from ...arrays.columnar import import_arrow, list_content_errors
from ...engine.base.progress import Progress
from ...errors import ConfigError, DataError, convert_storage_errors
from ...stores import storage
from ...stores.limits import METADATA, read_within
from ...types import Ints
from .. import file_versions
from ..paths import TOKEN_TYPES, TokenType
from ..rows import map_file

_SCAN_BYTES = 16 << 20  # bytes that a scan reads at once
HEAD_BYTES = 1 << 16
"""Bytes at the beginning of a file that may identify its format."""
_NPY_MAGIC = b"\x93NUMPY"
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_DTYPES: dict[int, TokenType] = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    8: "uint16",
}
_MEGATRON_HEADER = struct.Struct("<9sQBQQ")
_NO_ENDS = np.zeros(0, np.int64)
_HEADERS_BY_MAGIC: dict[int, tuple[str, dict[int, TokenType]]] = {
    20240520: ("llm.c or modded-nanogpt", {1: "uint16"}),
    20240801: ("llm.c", {7: "uint32"}),
    278895051: ("NeMo Automodel", {1: "uint16"}),  # unless its fourth number sets the width
}
"""Tools whose files begin with 256 int32, by the first of these.

The second number is a version, which determines the dtype of the tokens.
"""
_LLMC_HEADER_BYTES = 256 * 4
_LLMC_EVALUATION_MAGIC = 20240522  # of llm.c: questions with several answers
_DTYPES_BY_WIDTH: dict[int, TokenType] = {2: "uint16", 4: "uint32"}
_FOREIGN_MAGICS = {
    b"PK\x03\x04": "a ZIP archive (.npz, or a checkpoint of PyTorch)",
    b"\x1f\x8b\x08\x00": "gzip data",
    b"\x1f\x8b\x08\x08": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"\xfd7zXZ\x00": "xz data",
    b"PAR1": "Parquet",
    b"ARROW1\x00\x00": "Arrow",
    b"\x89HDF\r\n": "HDF5",
    b"MMIDIDX\x00": "an index of Megatron",
}
"""First bytes of files that are no raw tokens, whatever their names."""


class TokenIdOptions(NamedTuple):
    """The user's description of token ids: their dtype, and the token that ends a document."""

    dtype: TokenType | None = None
    eos: int | None = None

    def checked(self) -> TokenIdOptions:
        """Return the validated description."""
        if self.dtype is not None:
            check_choice(self.dtype, TOKEN_TYPES, "read(dtype={})")
        return (
            self if self.eos is None else self._replace(eos=check_int(self.eos, "read(eos={})", 0))
        )


class TokenLayout(NamedTuple):
    """The layout of a token file: `tokens` tokens from byte `begin` on.

    `find` finds the document ends with the help of the file `origin`; they are stored under the name
    `what`. Without it the file is one document. `recorded` is the layout according to a file beside it,
    if the user gave another end token.
    """

    dtype: np.dtype[Any]
    begin: int
    tokens: int
    origin: Path
    what: str = ""
    find: Callable[[], Ints] | None = None
    recorded: TokenLayout | None = None


def detect_layout(path: Path, ids: TokenIdOptions) -> TokenLayout:
    """Determine the layout from the name, the first bytes, the files beside it, and else `ids`."""
    size = file_versions.stat_file(path).size
    beside = _find_ends_file(path)
    if beside is not None and beside.suffix == ".idx":
        form = _read_megatron_layout(path, size, beside)
    elif beside is not None and beside.suffix == ".index":
        form = _read_datatrove_layout(path, size, beside, ids)
    else:
        form = _read_plain_layout(path, size, ids)
        if beside is not None:
            form = form._replace(
                origin=beside,
                what="documents",
                find=partial(_read_olmo_ends, beside, path, form.tokens),
            )
    name = form.dtype.name
    if ids.dtype not in (None, name):
        raise ConfigError(
            f"{path}: dtype={ids.dtype!r} does not fit, the file holds {name}: leave out dtype="
        )
    if ids.eos is None:
        return form
    if ids.eos > np.iinfo(form.dtype).max:
        raise ConfigError(
            f"{path}: eos={ids.eos} exceeds {name}, so that no token can equal it: give another id"
        )
    find = partial(_find_eos_ends, path, form._replace(find=None), ids.eos)
    recorded = None if form.find is None else form
    return form._replace(
        origin=path, what=f"documents-{name}-{ids.eos}", find=find, recorded=recorded
    )


def list_companions(path: Path) -> list[Path]:
    """Return the files beside a token file that describe it."""
    beside, metadata = _find_ends_file(path), path.with_name(f"{path.name}.metadata")
    metadata_files = (
        [metadata]
        if beside is not None and beside.suffix == ".index" and metadata.is_file()
        else []
    )
    return [*([] if beside is None else [beside]), *metadata_files]


def _find_ends_file(path: Path) -> Path | None:
    """Return the file that lists the document ends of this one, if it exists."""
    path_beside = {
        ".bin": path.with_suffix(".idx"),
        ".ds": path.with_name(f"{path.name}.index"),
        ".npy": path.with_suffix(".csv.gz"),
    }.get(path.suffix)
    return path_beside if path_beside is not None and path_beside.is_file() else None


def _read_plain_layout(path: Path, size: int, ids: TokenIdOptions) -> TokenLayout:
    """Return the layout of a NumPy array or of raw tokens; both use `.npy` and `.bin`."""
    with convert_storage_errors(path):
        head = storage.world.store.read(
            str(path), 0, HEAD_BYTES if path.suffix == ".npy" else _LLMC_HEADER_BYTES
        )
        if head.startswith(_NPY_MAGIC) and len(head) < min(HEAD_BYTES, size):
            head = storage.world.store.read(str(path), 0, HEAD_BYTES)
    if head.startswith(_NPY_MAGIC):
        return _read_npy_layout(path, size, head)
    if (form := _read_llmc_layout(path, size, head[:_LLMC_HEADER_BYTES])) is not None:
        return form
    if foreign := next(
        (name for magic, name in _FOREIGN_MAGICS.items() if head.startswith(magic)), None
    ):
        raise DataError(
            f"the file holds {foreign}, no raw tokens: give its format=, or another file",
            where=str(path),
        )
    if ids.dtype is None:
        raise ConfigError(
            f"{path}: a file of raw tokens does not store their dtype: give dtype='uint16' "
            "(nanoGPT, OLMo, and other vocabularies up to 65,536) or dtype='uint32'"
        )
    width = np.dtype(ids.dtype).itemsize
    if size % width:
        raise DataError(
            f"{size:,} bytes are no whole number of {ids.dtype}: it was cut off, or holds "
            "something else",
            where=str(path),
        )
    return TokenLayout(_require_little_endian(ids.dtype), 0, size // width, path)


def _read_llmc_layout(path: Path, size: int, head: bytes) -> TokenLayout | None:
    """Return the layout of a file with llm.c's header, or `None` for any other file.

    The header is 256 int32: a magic number, a version, the number of tokens, zeros.
    """
    magic = int.from_bytes(head[:4], "little")
    if magic == _LLMC_EVALUATION_MAGIC and head[16:] == bytes(_LLMC_HEADER_BYTES - 16):
        raise DataError(
            "the file holds evaluation questions in the format of llm.c, not documents: give a "
            "file of documents",
            where=str(path),
        )
    if magic not in _HEADERS_BY_MAGIC:
        token_count = int.from_bytes(head[8:12], "little")
        if (
            token_count
            and head[12:] == bytes(_LLMC_HEADER_BYTES - 12)
            and size - _LLMC_HEADER_BYTES in (2 * token_count, 4 * token_count)
        ):
            raise DataError(
                f"its header of 256 int32 is of no known tool (it begins with {magic}): write its "
                f"{token_count:,} tokens to a file without the header",
                where=str(path),
            )
        return None
    tool, versions = _HEADERS_BY_MAGIC[magic]
    if len(head) < _LLMC_HEADER_BYTES:
        raise DataError(
            f"{size:,} bytes are too few for the header of {tool}: it was cut off", where=str(path)
        )
    _, version, tokens, width = np.frombuffer(head, "<i4", 4).tolist()
    name = versions.get(version)
    if name is None or (width and width not in _DTYPES_BY_WIDTH):
        known = ", ".join(map(str, versions))
        raise DataError(
            f"version {version} of {tool}'s tokens is unknown; known is {known}", where=str(path)
        )
    dtype = _require_little_endian(_DTYPES_BY_WIDTH.get(width, name))
    if tokens < 0 or _LLMC_HEADER_BYTES + tokens * dtype.itemsize != size:
        raise DataError(
            f"{size:,} bytes do not match the {tokens:,} tokens ({dtype}) of its header ({tool}): "
            "the file was cut off, or something was appended",
            where=str(path),
        )
    return TokenLayout(dtype, _LLMC_HEADER_BYTES, tokens, path)


def _read_npy_layout(path: Path, size: int, head: bytes) -> TokenLayout:
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = header(file)
    except Exception as error:  # NumPy evaluates the header as Python, which may raise anything
        raise DataError(f"a damaged header: {error}", where=str(path)) from error
    if dtype.kind not in "iu" or len(shape) != 1:
        raise DataError(
            f"it holds {dtype} of shape {shape}, and tokens are one row of integers: read other "
            "arrays with ps.from_sequence(np.load(path, mmap_mode='r'))",
            where=str(path),
        )
    if dtype.str[0] == ">":
        raise DataError(
            f"its tokens are big-endian ({dtype.str}): save it again as "
            f"{dtype.newbyteorder('<').str}",
            where=str(path),
        )
    if file.tell() + shape[0] * dtype.itemsize != size:
        raise DataError(
            f"{size:,} bytes do not match the {shape[0]:,} tokens of its header: the file was cut "
            "off",
            where=str(path),
        )
    return TokenLayout(_require_little_endian(dtype.name), file.tell(), shape[0], path)


def _read_megatron_layout(path: Path, size: int, index: Path) -> TokenLayout:
    with convert_storage_errors(index):
        head = storage.world.store.read(str(index), 0, _MEGATRON_HEADER.size)
    if len(head) < _MEGATRON_HEADER.size or not head.startswith(_MEGATRON_MAGIC):
        raise DataError(
            "it is no index of Megatron, but lies beside a token file (.bin): remove it, or rename "
            "the token file",
            where=str(index),
        )
    _, version, code, sequences, documents = _MEGATRON_HEADER.unpack(head)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise DataError(
            f"version {version} and type {code} of Megatron's index are unknown; known are version "
            "1 and integers",
            where=str(index),
        )
    expected, index_size = (
        _MEGATRON_HEADER.size + 12 * sequences + 8 * documents,
        file_versions.stat_file(index).size,
    )
    # Indexes of several modalities have one more byte per sequence, its mode.
    if index_size not in (expected, expected + sequences):
        raise DataError(
            f"{index_size:,} bytes, {expected:,} were expected: it was cut off", where=str(index)
        )
    width = np.dtype(_MEGATRON_DTYPES[code]).itemsize
    if size % width:
        raise DataError(
            f"{size:,} bytes are no whole number of {_MEGATRON_DTYPES[code]}: it was cut off",
            where=str(path),
        )
    find = partial(_read_megatron_ends, index, sequences, documents, size, width)
    return TokenLayout(
        _require_little_endian(_MEGATRON_DTYPES[code]), 0, size // width, index, "documents", find
    )


def _read_megatron_ends(index: Path, sequences: int, documents: int, size: int, width: int) -> Ints:
    """Return the ends of Megatron's documents, each of one or more sequences."""
    buffer: Any = map_file(index)
    lengths = np.frombuffer(buffer, "<i4", sequences, _MEGATRON_HEADER.size)
    pointers = np.frombuffer(buffer, "<i8", sequences, _MEGATRON_HEADER.size + 4 * sequences)
    cuts = np.frombuffer(buffer, "<i8", documents, _MEGATRON_HEADER.size + 12 * sequences)
    ends = np.cumsum(lengths, dtype=np.int64)
    is_contiguous = (lengths >= 0).all() and (pointers == (ends - lengths) * width).all()
    if not is_contiguous or (int(ends[-1]) if sequences else 0) * width != size:
        raise DataError(
            f"it is damaged, or not the index of {index.with_suffix('.bin').name}", where=str(index)
        )
    if not documents or cuts[0] != 0 or cuts[-1] != sequences or (cuts[1:] < cuts[:-1]).any():
        raise DataError(
            "its documents do not cover its sequences: the index is damaged", where=str(index)
        )
    return np.append(np.zeros(1, np.int64), ends)[cuts[1:]]


def _read_datatrove_layout(path: Path, size: int, index: Path, ids: TokenIdOptions) -> TokenLayout:
    if (length := file_versions.stat_file(index).size) > 8 * size + 8:
        raise DataError(
            f"its {length:,} bytes list more documents than {path.name} has tokens: write both "
            "again",
            where=str(index),
        )
    if length % 8:
        raise DataError(
            f"{length:,} bytes are no whole number of offsets: it was cut off", where=str(index)
        )
    with convert_storage_errors(index):
        last = storage.world.store.read(str(index), length - 8, 8) if length else bytes(8)
    count, dtype = (
        int.from_bytes(last, "little"),
        _require_little_endian(ids.dtype or _read_datatrove_dtype(path)),
    )
    if dtype.itemsize * count != size:
        raise DataError(
            f"{size:,} bytes do not match the {count:,} tokens ({dtype}) of {index.name}: one of "
            "the files was cut off",
            where=str(path),
        )
    return TokenLayout(
        dtype, 0, count, index, "documents", partial(_read_datatrove_ends, index, count)
    )


def _read_datatrove_dtype(path: Path) -> TokenType:
    """Return the dtype of datatrove's tokens, from the first line of their `.metadata`.

    The line ends with the bytes per token.
    """
    beside = path.with_name(f"{path.name}.metadata")
    if not beside.is_file():
        raise ConfigError(
            f"{path}: {beside.name}, which states the dtype of its tokens, is missing: give "
            "dtype='uint16', or dtype='uint32' for vocabularies over 65,536"
        )
    with convert_storage_errors(beside):
        line = storage.world.store.read(str(beside), 0, HEAD_BYTES).partition(b"\n")[0]
    names: dict[bytes, TokenType] = {b"2": "uint16", b"4": "uint32"}
    if (width := line.rpartition(b"|")[2]) not in names:
        raise DataError(
            "its first line does not end with the bytes of a token, 2 or 4: give dtype=",
            where=str(beside),
        )
    return names[width]


def _read_datatrove_ends(index: Path, count: int) -> Ints:
    with convert_storage_errors(index):
        ends = np.frombuffer(storage.world.store.read(str(index)), "<u8")
    if ends.size and int(ends.max()) > count:
        raise DataError("a document ends after the last token: it is damaged", where=str(index))
    return _require_ascending(ends.astype(np.int64), index)


def _read_olmo_ends(table: Path, path: Path, count: int) -> Ints:
    """Return the document ends of an OLMo table.

    The first two columns of each line are `start,end`.
    """
    csv: Any = import_arrow("pyarrow.csv")
    try:
        with convert_storage_errors(table):
            packed = read_within(str(table), METADATA, pinned=True)  # opened while data is in use
        if not packed:
            raise EOFError("it is empty")
        with gzip.open(io.BytesIO(packed)) as unpacked:
            text = unpacked.read(METADATA + 1)
        if len(text) > METADATA:
            raise ValueError(f"unpacked it has more than {METADATA:,} bytes")
        if not text.strip():
            if count:
                raise EOFError(f"it is empty, and there are {count:,} tokens")
            return _NO_ENDS
        read = csv.ReadOptions(autogenerate_column_names=True)
        convert = csv.ConvertOptions(
            include_columns=["f0", "f1"], column_types={"f0": "int64", "f1": "int64"}
        )
        columns = csv.read_csv(
            import_arrow().BufferReader(text), read_options=read, convert_options=convert
        )
        starts, ends = (columns.column(name).to_numpy() for name in ("f0", "f1"))
    except (
        EOFError,
        ValueError,
        KeyError,
        zlib.error,
        gzip.BadGzipFile,
        *list_content_errors(),
    ) as error:
        raise DataError(
            f"it does not list the starts and ends of the documents of {path.name}: {error}",
            where=str(table),
        ) from error
    if starts.dtype != np.int64 or starts[0] != 0 or (starts[1:] != ends[:-1]).any():
        raise DataError(
            f"its documents do not cover {path.name} without gaps: it is damaged, or belongs to "
            "another file",
            where=str(table),
        )
    if ends[-1] != count:
        raise DataError(
            f"its documents have {ends[-1]:,} tokens, {path.name} has {count:,}: one of the files "
            "was cut off, or dtype= is wrong",
            where=str(table),
        )
    return _require_ascending(ends, table)


def _require_ascending(ends: Ints, origin: Path) -> Ints:
    if (np.diff(ends, prepend=0) < 0).any():
        raise DataError("a document ends before it begins: it is damaged", where=str(origin))
    return ends


def _find_eos_ends(path: Path, form: TokenLayout, eos: int) -> Ints:
    """Return the ends of documents marked by an end token.

    Tokens after the last mark are a document too.
    """
    dtype = form.dtype
    end_token, step = dtype.type(eos), _SCAN_BYTES // dtype.itemsize
    ends_found = list[Ints]()
    with Progress(
        f"find where documents end in {path.name}", form.tokens * dtype.itemsize, "bytes"
    ) as progress:
        for start in range(0, form.tokens, step):
            count = min(step, form.tokens - start)
            with convert_storage_errors(path):
                data = storage.world.store.read(
                    str(path), form.begin + start * dtype.itemsize, count * dtype.itemsize
                )
            if len(data) != count * dtype.itemsize:
                raise DataError("the file was cut off while it was read", where=str(path))
            ends_found.append(np.flatnonzero(np.frombuffer(data, dtype) == end_token) + (start + 1))
            progress.more(len(data))
    ends = np.concatenate([_NO_ENDS, *ends_found])
    is_complete = not form.tokens or (ends.size > 0 and int(ends[-1]) == form.tokens)
    return ends if is_complete else np.append(ends, form.tokens)


def _require_little_endian(name: str) -> np.dtype[Any]:
    if sys.byteorder != "little":
        raise ConfigError("token stores are little-endian: this machine is not")
    return np.dtype(name)
