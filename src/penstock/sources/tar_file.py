"""Samples of a tar archive by index: each part read from where it lies, neighbours in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..stores import Range, is_remote
from ..types import Ints
from . import sidecar, tar_index
from .chain import gap_of
from .checked import Checked
from .held import Held
from .tar_headers import MERGED, ByHeaders, foreign, none_of, warn_of_merged
from .tar_places import Places, decode, merged, near

_BLOCK = (
    4 << 20
)  # bytes read together where each read costs much: from a store, or compared with checksums
_FEW = 64 << 10  # elsewhere
_ALONE = (
    16 << 10
)  # bytes of a part from which on it is cheaper to read it by itself than to copy it


class Tar:
    """One archive. A sample is a dict: `__key__`, `__shard__` (the name of the archive), and its
    parts as bytes.

    With `columns` only these parts are read, those that a sample has of them; a sample that has
    none is an error. No open file is held between reads.
    """

    def __init__(
        self,
        path: Path,
        *,
        index: Path,
        origin: Path,
        shard: str,
        columns: Sequence[str] | None,
        held: Held,
        data: Checked,
    ) -> None:
        self.columns = columns
        self.shard = shard
        self._path, self._index, self._origin, self._held, self._data = (
            path,
            index,
            origin,
            held,
            data,
        )
        self._stat, self._far = sidecar.stat(path), is_remote(path)
        places = self._places()
        self._rows = len(places.digests)
        if (row := merged(places)) is not None and held.once(MERGED):
            kinds: list[int] = places.kinds[places.first[row] : places.first[row + 1]].tolist()
            warn_of_merged(str(origin), places.key(row), [places.names[kind] for kind in kinds])

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`; neighbours are read together."""
        with sidecar.still(self._path, self._stat, name=str(self._origin)):
            if indices.size < 2 or bool((indices[1:] >= indices[:-1]).all()):
                return self._samples(indices)
            order = np.argsort(indices, kind="stable")
            out: list[Any] = [None] * len(order)
            for place, sample in zip(order.tolist(), self._samples(indices[order]), strict=True):
                out[place] = sample
            return out

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the archive these samples need; none where it lies on this machine."""
        if not self._far or not indices.size:
            return []
        members, _ = self._wanted(np.sort(indices))
        starts, ends, _ = self._near(members)
        return [
            Range(str(self._path), low, high)
            for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def find(self, keys: Iterable[str]) -> dict[str, int]:
        """The indices of those of these keys that are here."""
        wanted, places = list(dict.fromkeys(keys)), self._places()
        order = np.argsort(places.digests)
        asked = tar_index.digests(wanted)
        found: dict[str, int] = {}
        spots = np.searchsorted(places.digests, asked, sorter=order)
        for key, digest, spot in zip(wanted, asked.tolist(), spots.tolist(), strict=True):
            for row in (
                row for row in order[spot : spot + 4].tolist() if int(places.digests[row]) == digest
            ):
                if places.key(row) == key:
                    found[key] = row
        return found

    def _places(self) -> Places:
        """What the index holds."""
        return self._held.get(self._index, self._loaded)

    def _loaded(self) -> tuple[int, Places]:
        rows, body = sidecar.body(self._index, sidecar.TAR, self._origin, now=True)
        try:
            return len(body), decode(rows, body, self._stat.size)
        except (ValueError, TypeError, RecursionError) as error:
            raise foreign(self._index, self._origin) from error

    def _samples(self, rows: Ints) -> list[Any]:
        """Samples in the order of the archive."""
        places = self._places()
        members, counts = self._wanted(rows)
        bodies, names, kinds = self._parts(members), places.names, places.kinds[members].tolist()
        shard, out, at = self.shard, list[Any](), 0
        for key, count in zip(places.spelt(rows), counts.tolist(), strict=True):
            sample: dict[str, Any] = {"__key__": key, "__shard__": shard}
            for member in range(at, at + count):
                sample[names[kinds[member]]] = bodies[member]
            at += count
            out.append(sample)
        return out

    def _wanted(self, rows: Ints) -> tuple[Ints, Ints]:
        """The members that are wanted of these samples, and how many of each."""
        places = self._places()
        members, counts = places.members(rows)
        if self.columns is None:
            return members, counts
        codes = [code for code, name in enumerate(places.names) if name in self.columns]
        keep = np.isin(places.kinds[members], codes)
        some = np.bincount(np.repeat(np.arange(len(rows)), counts)[keep], minlength=len(rows))
        if len(rows) and not some.all():
            row = int(rows[some.argmin()])
            there: list[int] = places.kinds[places.first[row] : places.first[row + 1]].tolist()
            parts = [places.names[code] for code in there]
            raise none_of(self.columns, parts, f"{self._origin}, {places.key(row)}")
        return members[keep], some

    def _near(self, members: Ints) -> tuple[Ints, Ints, Ints]:
        places = self._places()
        starts, sizes = places.data[members], places.sizes[members]
        if self._far or self._data.known():
            return near(starts, sizes, gap_of(self._path), _BLOCK, _BLOCK)
        return near(starts, sizes, _ALONE, _ALONE, _FEW)

    def _parts(self, members: Ints) -> list[bytes]:
        """The bytes of members, which stand in the order of the archive."""
        if not members.size:
            return []
        lows, highs, counts = self._near(members)
        bodies = self._data.many(lows.tolist(), (highs - lows).tolist())
        if len(lows) == len(members):
            return bodies
        places = self._places()
        at, starts, sizes, out = (
            0,
            places.data[members].tolist(),
            places.sizes[members].tolist(),
            list[bytes](),
        )
        for body, low, count in zip(bodies, lows.tolist(), counts.tolist(), strict=True):
            if count == 1:
                out.append(body)
            else:
                spans = zip(starts[at : at + count], sizes[at : at + count], strict=True)
                out += [body[start - low : start - low + size] for start, size in spans]
            at += count
        return out


class Without:
    """An archive without some of its samples."""

    def __init__(self, file: Tar, rows: Iterable[int]) -> None:
        self.columns = file.columns
        self._file = file
        self._rows: Ints = np.setdiff1d(
            np.arange(len(file), dtype=np.int64), np.asarray(list(rows), np.int64)
        )

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`, counting only those that are left."""
        return self._file.read(self._rows[indices])

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the archive these samples need."""
        return self._file.ranges(self._rows[indices])


def open_tar(
    path: Path,
    origin: Path,
    *,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    held: Held,
    shard: str = "",
    rebuild: bool = False,
    data: Checked | None = None,
) -> Tar:
    """The samples of one archive; `path` is where it can be read as it is, `origin` the file the
    user meant."""
    index = tar_index.make(path, origin, cache=cache, rebuild=rebuild)
    data = data or Checked(path, origin, held)
    return Tar(
        path,
        index=index,
        origin=origin,
        shard=shard or origin.name,
        columns=columns,
        held=held,
        data=data,
    )


def open_indexed(
    path: Path,
    *,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    held: Held,
    shard: str = "",
    data: Checked | None = None,
) -> Tar | ByHeaders:
    """As `open_tar` does; the index that Energon left serves where there is none of ours yet."""
    index = None
    if not sidecar.place(path, cache, "tar").exists():
        index = tar_index.foreign(path, sidecar.stat(path))
    if index is None:
        return open_tar(path, path, columns=columns, cache=cache, held=held, shard=shard, data=data)
    data = data or Checked(path, path, held)
    return ByHeaders(
        path, index=index, shard=shard or path.name, columns=columns, held=held, data=data
    )
