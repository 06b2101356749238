"""What our index of a tar archive holds: where samples begin, digests of their keys, and where each
part of them lies.

With it a sample is read without looking at a header. All numbers are little-endian; the keys stand
one after the other, the names of the parts once.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..types import Ints
from .chain import starts_of

_HEAD = 3 * 8
_TAIL = "surrogateescape"  # names need not be UTF-8


class Found(NamedTuple):
    """What one pass over the headers found: where samples begin and the last one ends, their keys,
    the first member of each and how many there are, and of each member its part and where its bytes
    lie."""

    starts: list[int]
    keys: list[str]
    first: list[int]
    parts: list[str]
    data: list[int]
    sizes: list[int]


class Places(NamedTuple):
    """What is found, as arrays over the bytes of an index: `kinds` counts in `names`, `spelled`
    tells where each key ends in `keys`."""

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
        """The key of a sample."""
        return str(self.keys[self.spelled[row] : self.spelled[row + 1]], "utf-8", _TAIL)

    def spelt(self, rows: Ints) -> list[str]:
        """The keys of some samples."""
        keys, starts, stops = (
            self.keys,
            self.spelled[rows].tolist(),
            self.spelled[rows + 1].tolist(),
        )
        return [
            str(keys[start:stop], "utf-8", _TAIL) for start, stop in zip(starts, stops, strict=True)
        ]

    def members(self, rows: Ints) -> tuple[Ints, Ints]:
        """The members of some samples, one sample after the other, and how many each has."""
        low, counts = self.first[rows], self.first[rows + 1] - self.first[rows]
        each = np.repeat(low - starts_of(counts)[:-1], counts)
        return each + np.arange(len(each)), counts


def merges(parts: Iterable[str], alone: Container[str] = ()) -> bool:
    """Return whether the parts of a sample look like several samples with dotted names.

    So they do where a part begins with a number (`23.0.jpg` and `23.1.jpg` are the parts `0.jpg`
    and `1.jpg` of the sample `23`), or where a part that no other sample has (`alone`) comes beside
    one with the same ending.

    >>> merges(["0.jpg", "1.jpg"]), merges(["jpg", "seg.jpg", "json"]), merges(["left.jpg", "right.jpg"])
    (True, False, False)
    """
    split = [part.rpartition(".")[::2] for part in parts]
    numbered = {before for before, _ in split if before[:1].isdigit()}
    if len(numbered) > 1:
        return True
    plain = {ending for before, ending in split if not before}
    dotted = [ending for before, ending in split if before]
    return any(
        (before in numbered and ending in plain)
        or (f"{before}.{ending}" in alone and dotted.count(ending) > 1)
        for before, ending in split
    )


def merged(places: Places) -> int | None:
    """The first sample that looks like several, if there is one."""
    dotted = np.asarray(["." in name for name in places.names], np.bool_)
    if not dotted.any():
        return None
    counts = np.bincount(places.kinds, minlength=len(dotted))
    single = (counts == 1) & (len(places.digests) > 1)
    numbered = np.asarray([name[:1].isdigit() for name in places.names], np.bool_)
    odd = dotted & (single | numbered)
    alone = {
        name for name, one in zip(places.names, (single & dotted).tolist(), strict=True) if one
    }
    rows = np.unique(
        np.searchsorted(places.first, np.flatnonzero(odd[places.kinds]), side="right") - 1
    )
    for row in rows.tolist():
        kinds: list[int] = places.kinds[places.first[row] : places.first[row + 1]].tolist()
        if merges([places.names[kind] for kind in kinds], alone):
            return row
    return None


def encode(found: Found, digests: npt.NDArray[np.uint64]) -> bytes:
    """The body of an index.

    >>> found = Found([0, 1024], ["a"], [0, 1], ["txt"], [512], [3])
    >>> decode(1, encode(found, np.zeros(1, np.uint64)), 2048).key(0)
    'a'
    """
    names = list(dict.fromkeys(found.parts))
    codes = {name: code for code, name in enumerate(names)}
    keys = [key.encode("utf-8", _TAIL) for key in found.keys]
    said = json.dumps(names).encode()
    arrays = [
        np.asarray([len(found.parts), sum(map(len, keys)), len(said)], "<i8"),
        *(np.asarray(found.starts, "<i8"), digests.astype("<u8"), np.asarray(found.first, "<i8")),
        *(
            np.asarray(found.data, "<i8"),
            np.asarray(found.sizes, "<i8"),
            starts_of([*map(len, keys)]).astype("<i8"),
        ),
        np.asarray([codes[part] for part in found.parts], "<i4"),
    ]
    return b"".join([*(array.tobytes() for array in arrays), *keys, said])


def decode(rows: int, body: bytes | memoryview, size: int) -> Places:
    """What an index of so many samples says of an archive of `size` bytes; a `ValueError` where
    that cannot be."""
    members, keys, said = np.frombuffer(body[:_HEAD], "<i8").tolist()
    counts, at, arrays = (rows + 1, rows, rows + 1, members, members, rows + 1), _HEAD, list[Any]()
    if (
        min(members, keys, said) < 0
        or len(body) != _HEAD + 8 * sum(counts) + 4 * members + keys + said
    ):
        raise ValueError("an index of another size")
    for count, kind in zip(counts, ("<i8", "<u8", "<i8", "<i8", "<i8", "<i8"), strict=True):
        arrays.append(np.frombuffer(body, kind, count, at))
        at += 8 * count
    starts, digests, first, data, sizes, spelled = arrays
    kinds = np.frombuffer(body, "<i4", members, at)
    at += 4 * members
    names = json.loads(bytes(body[at + keys :]))
    rising = ((first, members), (spelled, keys), (starts, size))
    fits = all(
        of[0] >= 0 and of[-1] <= most and bool((of[1:] >= of[:-1]).all()) for of, most in rising
    )
    inside = members == 0 or (
        min(data.min(), sizes.min()) >= 0 and max(data.max(), sizes.max()) <= size
    )
    inside = inside and bool((data + sizes <= size).all())
    known = members == 0 or 0 <= int(kinds.min()) <= int(kinds.max()) < len(names)
    if not (
        fits
        and inside
        and known
        and int(first[-1]) == members
        and all(isinstance(name, str) for name in names)
    ):
        raise ValueError("an index of another archive")
    return Places(starts, digests, first, data, sizes, kinds, spelled, body[at : at + keys], names)


def near(starts: Ints, sizes: Ints, gap: int, alone: int, most: int) -> tuple[Ints, Ints, Ints]:
    """What is read together: parts less than `gap` bytes apart and smaller than `alone`, about
    `most` bytes at a time. Where each such run begins and ends in the file, and how many parts it
    has.

    >>> near(np.array([0, 10, 900]), np.array([5, 5, 5]), 100, 1000, 1000)
    (array([  0, 900]), array([ 15, 905]), array([2, 1]))
    """
    ends = starts + sizes
    apart = (
        (starts[1:] > ends[:-1] + gap)
        | (starts[1:] < ends[:-1])
        | (starts[1:] // most != starts[:-1] // most)
    )
    large = sizes >= alone
    cuts = np.flatnonzero(np.concatenate([[True], apart | large[1:] | large[:-1]]))
    lasts = np.concatenate([cuts[1:], [len(starts)]])
    return starts[cuts], ends[lasts - 1], lasts - cuts
