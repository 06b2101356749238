"""Samples as tar archives, in the way of WebDataset: the parts of a sample next to each other,
named by its key.

The same samples give the same bytes: every header has the time 0, no owner and one mode.
"""

from __future__ import annotations

import io
import operator
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from ..engine.base.dtypes import exact_array
from ..engine.base.tree import leaves
from ..errors import DataError
from ..sources.tar import BLOCK, Member, padded, sample_part
from .lines import as_json

# A header in its pieces: name, owner and mode, size, time, checksum, the rest. Of these only three
# differ.
_PLAIN = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_SECOND, _FOURTH, _REST = _PLAIN[100:124], _PLAIN[136:148], _PLAIN[155:]
_SUM = (
    sum(_SECOND) + sum(_FOURTH) + sum(_REST) + 7 * ord(" ")
)  # while it is summed the checksum is blank
_LARGEST = 8**11 - 1

_NUMBERS = ("cls", "cls2", "index", "inx", "id")


class TarEncoder:
    """Samples as members of an archive: mappings of parts, which are bytes or what their extension
    says.

    The key is that of `__key__`, or else the position; other names in double underscores are not
    written.

    >>> encoder = TarEncoder()
    >>> encoder(7, {"txt": "a cat", "json": {"height": 3}})[1], encoder.end
    (2048, 1024)
    """

    suffix = "tar"
    end = 2 * BLOCK

    def __init__(self) -> None:
        self._keys = set[str]()

    def __call__(self, position: int, sample: Any) -> tuple[bytes, int]:
        """The members of one sample, and their bytes."""
        if not isinstance(sample, Mapping):
            raise DataError(
                f"it is a {type(sample).__name__}; a tar takes mappings of parts: {{'txt': text}}, "
                "say",
                where=f"sample {position}",
            )
        given = cast("Mapping[Any, Any]", sample)
        key = str(given.get("__key__", f"{position:012d}"))
        if key in self._keys:
            raise DataError(
                f"the key {key!r} comes again: leave out '__key__' to number the samples", where=key
            )
        self._keys.add(key)
        parts = [(name, value) for name, value in given.items() if not _own(name)]
        if not parts:
            raise DataError("it has no part that could be written", where=f"sample {position}")
        members = b"".join(_member(key, name, value) for name, value in parts)
        return members, len(members)

    def file(self, pieces: Sequence[Any]) -> bytes:
        """The archive of so many samples."""
        return b"".join([*pieces, bytes(self.end)])


def _own(name: Any) -> bool:
    """Whether a name is the reader's or the run's."""
    return (
        isinstance(name, str) and len(name) >= 4 and name.startswith("__") and name.endswith("__")
    )


def _member(key: str, part: Any, value: Any) -> bytes:
    name = f"{key}.{part}"
    try:
        data = _data(str(part).rpartition(".")[2].lower(), value)
        if "\0" in name or sample_part(Member(name, "0", 0, BLOCK, len(data)), name) != (key, part):
            raise ValueError(
                "what is read of this name is another key or part: a key has no dot in its last "
                "piece"
            )
        head = header(name, len(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"it cannot be written: {error}", where=name) from error
    return head + data + bytes(padded(len(data)) - len(data))


def header(name: str, size: int) -> bytes:
    """The header of a member, with what goes before it where a name is long or not plain.

    >>> len(header("a.txt", 5)), len(header("é.txt", 5))
    (512, 1536)
    """
    if len(name) <= 100 and size <= _LARGEST and name.isascii():
        first, third = name.encode().ljust(100, b"\0"), b"%011o\0" % size
        return b"".join(
            (first, _SECOND, third, _FOURTH, b"%06o\0" % (sum(first) + sum(third) + _SUM), _REST)
        )
    about = tarfile.TarInfo(name)
    about.size = size
    return about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _saved_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as the array that is read again; what would be read as another one is a
    `TypeError`."""
    array = exact_array(value)
    if np.dtype(descr_to_dtype(dtype_to_descr(array.dtype))) != array.dtype:
        raise TypeError(f"an .npy file does not hold {array.dtype}; change it in a map before")
    listed = isinstance(value, list | tuple | Mapping)
    if (
        listed
        and array.dtype.kind in "SU"
        and not all(isinstance(leaf, str | bytes) for _, leaf in leaves(value))
    ):
        raise TypeError(
            "an array has one type: numbers beside text would become text; .json holds both"
        )
    return array


def _data(extension: str, value: Any) -> bytes:
    """A part as bytes, such that `penstock.media.decode_part` gives it back."""
    if isinstance(value, bytes):
        return value
    if extension in ("json", "jsn"):
        return as_json(value)
    if extension in _NUMBERS:
        return b"%d" % operator.index(value)
    if extension == "npy":
        file = io.BytesIO()
        np.save(file, _saved_array(value), allow_pickle=False)
        return file.getvalue()
    if isinstance(value, str):
        return value.encode()
    raise TypeError(
        f"a {type(value).__name__} is not bytes; the names .txt, .json, .npy and .cls say how "
        "others are"
    )
