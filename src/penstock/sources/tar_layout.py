"""The index of a tar archive: offsets of samples and of their parts, and keys.

With it, reading a sample needs no header. All numbers are little-endian; keys are concatenated, and
each name of a part is stored once.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..types import Ints
from .chain import compute_offsets

_HEADER_BYTES = 3 * 8
_UNICODE_ERRORS = "surrogateescape"  # names need not be UTF-8


class TarContents(NamedTuple):
    """The contents of an archive, from one pass over its headers.

    Attributes:
        starts: Offset of each sample, and the end of the last.
        keys: Keys of the samples.
        first: Number of the first member of each sample, and the number of members.
        parts: Part of each member.
        data: Offset of the bytes of each member.
        sizes: Size of each member.
    """

    starts: list[int]
    keys: list[str]
    first: list[int]
    parts: list[str]
    data: list[int]
    sizes: list[int]


class TarIndex(NamedTuple):
    """The index as arrays over its bytes.

    `kinds` contains indices into `names`; `spelled` contains the end of each key in `keys`.
    """

    starts: Ints
    digests: npt.NDArray[np.uint64]
    first: Ints
    data: Ints
    sizes: Ints
    kinds: npt.NDArray[np.int32]
    spelled: Ints
    keys: bytes | memoryview
    names: list[str]

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        return str(self.keys[self.spelled[row] : self.spelled[row + 1]], "utf-8", _UNICODE_ERRORS)

    def spelt(self, rows: Ints) -> list[str]:
        """Return the keys of some samples."""
        keys, starts, stops = (
            self.keys,
            self.spelled[rows].tolist(),
            self.spelled[rows + 1].tolist(),
        )
        return [
            str(keys[start:stop], "utf-8", _UNICODE_ERRORS)
            for start, stop in zip(starts, stops, strict=True)
        ]

    def members(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the members of some samples, concatenated, and their number per sample."""
        low, counts = self.first[rows], self.first[rows + 1] - self.first[rows]
        offsets = np.repeat(low - compute_offsets(counts)[:-1], counts)
        return offsets + np.arange(len(offsets)), counts


def looks_merged(parts: Iterable[str], unique_parts: Container[str] = ()) -> bool:
    """Return whether the parts of a sample look like several samples with dotted names.

    Several parts may begin with a number: `23.0.jpg` and `23.1.jpg` become the parts `0.jpg` and
    `1.jpg` of the sample `23`. Or a part that no other sample has (`unique_parts`) accompanies one
    with the same extension.

    >>> looks_merged(["0.jpg", "1.jpg"]), looks_merged(["jpg", "seg.jpg", "json"])
    (True, False)
    >>> looks_merged(["left.jpg", "right.jpg"])
    False
    """
    split = [part.rpartition(".")[::2] for part in parts]
    numbered = {prefix for prefix, _ in split if prefix[:1].isdigit()}
    if len(numbered) > 1:
        return True
    undotted = {extension for prefix, extension in split if not prefix}
    dotted = [extension for prefix, extension in split if prefix]
    return any(
        (prefix in numbered and extension in undotted)
        or (f"{prefix}.{extension}" in unique_parts and dotted.count(extension) > 1)
        for prefix, extension in split
    )


def find_first_merged(index: TarIndex) -> int | None:
    """Return the first sample that looks like several, or `None`."""
    dotted = np.asarray(["." in name for name in index.names], np.bool_)
    if not dotted.any():
        return None
    counts = np.bincount(index.kinds, minlength=len(dotted))
    single = (counts == 1) & (len(index.digests) > 1)
    numbered = np.asarray([name[:1].isdigit() for name in index.names], np.bool_)
    suspicious = dotted & (single | numbered)
    unique_parts = {
        name
        for name, is_single in zip(index.names, (single & dotted).tolist(), strict=True)
        if is_single
    }
    rows = np.unique(
        np.searchsorted(index.first, np.flatnonzero(suspicious[index.kinds]), side="right") - 1
    )
    for row in rows.tolist():
        kinds: list[int] = index.kinds[index.first[row] : index.first[row + 1]].tolist()
        if looks_merged([index.names[kind] for kind in kinds], unique_parts):
            return row
    return None


def encode(contents: TarContents, digests: npt.NDArray[np.uint64]) -> bytes:
    """Encode the body of an index.

    >>> contents = TarContents([0, 1024], ["a"], [0, 1], ["txt"], [512], [3])
    >>> decode(1, encode(contents, np.zeros(1, np.uint64)), 2048).key(0)
    'a'
    """
    names = list(dict.fromkeys(contents.parts))
    codes = {name: code for code, name in enumerate(names)}
    keys = [key.encode("utf-8", _UNICODE_ERRORS) for key in contents.keys]
    names_json = json.dumps(names).encode()
    arrays = [
        np.asarray([len(contents.parts), sum(map(len, keys)), len(names_json)], "<i8"),
        *(
            np.asarray(contents.starts, "<i8"),
            digests.astype("<u8"),
            np.asarray(contents.first, "<i8"),
        ),
        *(
            np.asarray(contents.data, "<i8"),
            np.asarray(contents.sizes, "<i8"),
            compute_offsets([*map(len, keys)]).astype("<i8"),
        ),
        np.asarray([codes[part] for part in contents.parts], "<i4"),
    ]
    return b"".join([*(array.tobytes() for array in arrays), *keys, names_json])


def decode(rows: int, body: bytes | memoryview, size: int) -> TarIndex:
    """Decode an index of `rows` samples of an archive of `size` bytes.

    Raises:
        ValueError: The index is damaged, or belongs to another archive.
    """
    members, keys, names_size = np.frombuffer(body[:_HEADER_BYTES], "<i8").tolist()
    counts, offset, arrays = (
        (rows + 1, rows, rows + 1, members, members, rows + 1),
        _HEADER_BYTES,
        list[Any](),
    )
    if (
        min(members, keys, names_size) < 0
        or len(body) != _HEADER_BYTES + 8 * sum(counts) + 4 * members + keys + names_size
    ):
        raise ValueError("the index has another size")
    for count, dtype in zip(counts, ("<i8", "<u8", "<i8", "<i8", "<i8", "<i8"), strict=True):
        arrays.append(np.frombuffer(body, dtype, count, offset))
        offset += 8 * count
    starts, digests, first, data, sizes, spelled = arrays
    kinds = np.frombuffer(body, "<i4", members, offset)
    offset += 4 * members
    names = json.loads(bytes(body[offset + keys :]))
    ascending = ((first, members), (spelled, keys), (starts, size))
    is_ascending = all(
        array[0] >= 0 and array[-1] <= limit and bool((array[1:] >= array[:-1]).all())
        for array, limit in ascending
    )
    is_inside = members == 0 or (
        min(data.min(), sizes.min()) >= 0 and max(data.max(), sizes.max()) <= size
    )
    is_inside = is_inside and bool((data + sizes <= size).all())
    has_names = members == 0 or 0 <= int(kinds.min()) <= int(kinds.max()) < len(names)
    if not (
        is_ascending
        and is_inside
        and has_names
        and int(first[-1]) == members
        and all(isinstance(name, str) for name in names)
    ):
        raise ValueError("the index belongs to another archive")
    return TarIndex(
        starts, digests, first, data, sizes, kinds, spelled, body[offset : offset + keys], names
    )


def group_reads(
    starts: Ints, sizes: Ints, gap: int, alone: int, limit: int
) -> tuple[Ints, Ints, Ints]:
    """Group nearby parts into reads; return start, end and number of parts of each read.

    A read joins parts less than `gap` bytes apart and smaller than `alone`, about `limit` bytes in all.

    >>> group_reads(np.array([0, 10, 900]), np.array([5, 5, 5]), 100, 1000, 1000)
    (array([  0, 900]), array([ 15, 905]), array([2, 1]))
    """
    ends = starts + sizes
    starts_read = (
        (starts[1:] > ends[:-1] + gap)
        | (starts[1:] < ends[:-1])
        | (starts[1:] // limit != starts[:-1] // limit)
    )
    large = sizes >= alone
    firsts = np.flatnonzero(np.concatenate([[True], starts_read | large[1:] | large[:-1]]))
    lasts = np.concatenate([firsts[1:], [len(starts)]])
    return starts[firsts], ends[lasts - 1], lasts - firsts
