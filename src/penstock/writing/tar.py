"""Encode samples as WebDataset tar archives: adjacent members `key.part`.

Equal samples give equal bytes: every header has the time 0, no owner, and one mode.
"""

from __future__ import annotations

import io
import operator
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from ..arrays.dtypes import make_exact_array
from ..arrays.trees import iter_leaves
from ..errors import DataError
from ..sources.tar import TAR_BLOCK_BYTES, TarMember, parse_sample_part, round_to_blocks
from .lines import encode_json

# The fields of a header: name, owner and mode, size, time, checksum, rest. Only name, size and
# checksum differ.
_BLANK_HEADER = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_SECOND, _FOURTH, _REST = _BLANK_HEADER[100:124], _BLANK_HEADER[136:148], _BLANK_HEADER[155:]
# The checksum is computed with its own field blank.
_FIXED_CHECKSUM = sum(_SECOND) + sum(_FOURTH) + sum(_REST) + 7 * ord(" ")
_MAX_USTAR_BYTES = 8**11 - 1

_INTEGER_EXTENSIONS = ("cls", "cls2", "index", "inx", "id")


class TarEncoder:
    """Encoder of mappings as members of an archive.

    Values are bytes, or values that the extension of their name defines. The key is `__key__`, or
    else the position; other names in double underscores are not written.

    >>> encoder = TarEncoder()
    >>> encoder(7, {"txt": "a cat", "json": {"height": 3}})[1], encoder.end
    (2048, 1024)
    """

    suffix = "tar"
    end = 2 * TAR_BLOCK_BYTES

    def __init__(self) -> None:
        self._keys = set[str]()

    def __call__(self, position: int, sample: Any) -> tuple[bytes, int]:
        """Return the members of one sample and their size in bytes."""
        if not isinstance(sample, Mapping):
            raise DataError(
                f"it is a {type(sample).__name__}; a tar takes mappings of parts: {{'txt': text}}, "
                "say",
                where=f"sample {position}",
            )
        mapping = cast("Mapping[Any, Any]", sample)
        key = str(mapping.get("__key__", f"{position:012d}"))
        if key in self._keys:
            raise DataError(
                f"the key {key!r} is a duplicate: leave out '__key__' to number the samples",
                where=key,
            )
        self._keys.add(key)
        parts = [(name, value) for name, value in mapping.items() if not _is_reserved(name)]
        if not parts:
            raise DataError("it has no part to write", where=f"sample {position}")
        members = b"".join(_encode_member(key, name, value) for name, value in parts)
        return members, len(members)

    def file(self, pieces: Sequence[Any]) -> bytes:
        """Return the archive of these members."""
        return b"".join([*pieces, bytes(self.end)])


def _is_reserved(name: Any) -> bool:
    """Return whether a name is reserved, like `__key__`."""
    return (
        isinstance(name, str) and len(name) >= 4 and name.startswith("__") and name.endswith("__")
    )


def _encode_member(key: str, part: Any, value: Any) -> bytes:
    name = f"{key}.{part}"
    try:
        data = _encode_part(str(part).rpartition(".")[2].lower(), value)
        if "\0" in name or parse_sample_part(
            TarMember(name, "0", 0, TAR_BLOCK_BYTES, len(data)), name
        ) != (key, part):
            raise ValueError(
                "readers would find another key or part in this name: a key has no dot after its "
                "last slash"
            )
        head = encode_header(name, len(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"it cannot be written: {error}", where=name) from error
    return head + data + bytes(round_to_blocks(len(data)) - len(data))


def encode_header(name: str, size: int) -> bytes:
    """Return the header of a member, with a PAX header first for a long or non-ASCII name.

    >>> len(encode_header("a.txt", 5)), len(encode_header("é.txt", 5))
    (512, 1536)
    """
    if len(name) <= 100 and size <= _MAX_USTAR_BYTES and name.isascii():
        name_field, size_field = name.encode().ljust(100, b"\0"), b"%011o\0" % size
        return b"".join(
            (
                name_field,
                _SECOND,
                size_field,
                _FOURTH,
                b"%06o\0" % (sum(name_field) + sum(size_field) + _FIXED_CHECKSUM),
                _REST,
            )
        )
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _to_savable_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array that NumPy reads back unchanged.

    Raises:
        TypeError: if it would be read as another array.
    """
    array = make_exact_array(value)
    if np.dtype(descr_to_dtype(dtype_to_descr(array.dtype))) != array.dtype:
        raise TypeError(
            f"an .npy file does not hold {array.dtype}; convert it in a map step before"
        )
    is_container = isinstance(value, list | tuple | Mapping)
    if (
        is_container
        and array.dtype.kind in "SU"
        and not all(isinstance(leaf, str | bytes) for _, leaf in iter_leaves(value))
    ):
        raise TypeError(
            "an array has one type, so numbers beside text would become text; use .json for both"
        )
    return array


def is_encodable(part: str, value: Any) -> bool:
    """Return whether a part of a sample can be written.

    >>> is_encodable("png", b"..."), is_encodable("cls", 3), is_encodable("label", 3)
    (True, True, False)
    """
    try:
        _encode_part(part.rpartition(".")[2].lower(), value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _encode_part(extension: str, value: Any) -> bytes:
    """Return a part as bytes that `penstock.media.decode_part` decodes to the same value."""
    if isinstance(value, bytes):
        return value
    if extension in ("json", "jsn"):
        return encode_json(value)
    if extension in _INTEGER_EXTENSIONS:
        try:
            return b"%d" % operator.index(value)
        except TypeError as error:
            raise TypeError(
                f"a .{extension} holds a whole number, and this is a {type(value).__name__}; "
                "rename it to .txt or .json"
            ) from error
    if extension == "npy":
        file = io.BytesIO()
        np.save(file, _to_savable_array(value), allow_pickle=False)
        return file.getvalue()
    if isinstance(value, str):
        return value.encode()
    raise TypeError(
        f"a {type(value).__name__} is not bytes; name the part .txt, .json, .npy or .cls to "
        "encode other values, or write Arrow files"
    )
