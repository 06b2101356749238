"""Samples as tar archives, in the way of WebDataset: the parts of a sample next to each other, named by its key.

The same samples give the same bytes: every header has the time 0, no owner and one mode.
"""

from __future__ import annotations

import io
import operator
import tarfile
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ..errors import DataError
from ..sources.tar import BLOCK, Member, padded, sample_part
from .lines import as_json

_NUMBERS = ("cls", "cls2", "index", "inx", "id")


class TarEncoder:
    """Samples as members of an archive: mappings of parts, which are bytes or what their extension says.

    The key is that of `__key__`, or else the position; other names in double underscores are not written.

    >>> encoder = TarEncoder()
    >>> len(encoder(7, {"txt": "a cat", "json": {"height": 3}})), encoder.end.count(0)
    (2048, 1024)
    """

    suffix = "tar"
    end = bytes(2 * BLOCK)

    def __init__(self) -> None:
        self._keys = set[str]()

    def __call__(self, position: int, sample: Any) -> bytes:
        """The members of one sample."""
        if not isinstance(sample, Mapping):
            raise DataError(
                f"it is a {type(sample).__name__}; a tar takes mappings of parts: {{'txt': text}}, say",
                where=f"sample {position}",
            )
        given = cast("Mapping[Any, Any]", sample)
        key = str(given.get("__key__", f"{position:012d}"))
        if key in self._keys:
            raise DataError(f"the key {key!r} comes again: leave out '__key__' to number the samples", where=key)
        self._keys.add(key)
        parts = [(name, value) for name, value in given.items() if not _own(name)]
        if not parts:
            raise DataError("it has no part that could be written", where=f"sample {position}")
        return b"".join(_member(key, name, value) for name, value in parts)


def _own(name: Any) -> bool:
    """Whether a name is the reader's or the run's."""
    return isinstance(name, str) and len(name) >= 4 and name.startswith("__") and name.endswith("__")


def _member(key: str, part: Any, value: Any) -> bytes:
    name = f"{key}.{part}"
    try:
        data = _data(str(part).rpartition(".")[2].lower(), value)
        if "\0" in name or sample_part(Member(name, "0", 0, BLOCK, len(data)), name) != (key, part):
            raise ValueError("what is read of this name is another key or part: a key has no dot in its last piece")
        about = tarfile.TarInfo(name)
        about.size = len(data)
        head = about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"it cannot be written: {error}", where=name) from error
    return head + data + bytes(padded(len(data)) - len(data))


def _data(extension: str, value: Any) -> bytes:
    """A part as bytes, such that `penstock.images.decode_part` gives it back."""
    if isinstance(value, bytes):
        return value
    if extension in ("json", "jsn"):
        return as_json(value)
    if extension in _NUMBERS:
        return b"%d" % operator.index(value)
    if extension == "npy":
        file = io.BytesIO()
        np.save(file, np.asarray(value), allow_pickle=False)
        return file.getvalue()
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a {type(value).__name__} is not bytes; the names .txt, .json, .npy and .cls say how others are")
