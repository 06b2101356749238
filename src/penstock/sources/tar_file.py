"""Samples of a tar archive by index: files of one key next to each other, read in one go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..stores import Range, is_far
from ..types import Ints
from . import sidecar, tar_index
from .chain import gap_of, in_file_order, ranges_of
from .checked import Checked
from .held import Held
from .tar import Get, Members, sample_part
from .tar_index import Window

_BLOCK = 4 << 20  # bytes of samples read together
_WHOLE = 64 << 10  # a sample up to this size is read whole, also where only some of its parts are wanted


class Tar:
    """One archive. A sample is a dict: `__key__`, `__shard__` (the name of the archive), and its parts as bytes.

    With `columns` only these parts are read, those that a sample has of them; a sample that has none is an error. No
    open file is held between reads.
    """

    def __init__(
        self,
        path: Path,
        *,
        index: Path,
        ours: bool,
        origin: Path,
        shard: str,
        columns: Sequence[str] | None,
        held: Held,
        data: Checked | None,
    ) -> None:
        self.columns = columns
        self.shard = shard
        self._path, self._index, self._ours, self._origin, self._held = path, index, ours, origin, held
        self._stat = sidecar.stat(path)
        self._data = data or Checked(path, origin, held)
        self._rows = sidecar.body(index, sidecar.TAR, origin)[0] if ours else sidecar.stat(index).size // 8 - 1

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`; neighbours are read together."""
        sidecar.unchanged(self._path, self._stat, name=str(self._origin))
        if not indices.size:
            return []
        offsets: Ints = self._held.get(self._index, self._offsets)
        starts, ends = offsets[indices], offsets[indices + 1]
        if bool((starts >= ends).any()) or int(ends.max()) > self._stat.size:
            raise self._foreign()
        return in_file_order(starts, ends, self._samples)

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the archive these samples need; none where only some parts of them are read, or where it lies
        on this machine."""
        if not is_far(self._path) or self.columns is not None:
            return []
        offsets: Ints = self._held.get(self._index, self._offsets)
        return ranges_of(self._path, offsets[indices], offsets[indices + 1])

    def find(self, keys: Iterable[str]) -> dict[str, int]:
        """The indices of those of these keys that are here."""
        wanted = list(dict.fromkeys(keys))
        digests = self._numbers()[self._rows + 1 :]
        order = np.argsort(digests)
        asked = tar_index.digests(wanted)
        places = np.searchsorted(digests, asked, sorter=order)
        found: dict[str, int] = {}
        for key, digest, place in zip(wanted, asked.tolist(), places.tolist(), strict=True):
            for row in (row for row in order[place : place + 4] if int(digests[row]) == digest):
                if self.read(np.asarray([row]))[0]["__key__"] == key:
                    found[key] = int(row)
        return found

    def _offsets(self) -> tuple[int, Ints]:
        """Where the samples begin, and the end."""
        found = self._numbers()[: self._rows + 1].astype(np.int64)
        return found.nbytes, found

    def _numbers(self) -> npt.NDArray[np.uint64]:
        """What the index holds: the offsets, and in ours the digests of the keys behind them."""
        if not self._ours:
            return tar_index.foreign_offsets(self._index).view(np.uint64)
        rows, found = sidecar.body(self._index, sidecar.TAR, self._origin)
        if rows != self._rows or len(found) != 8 * (2 * rows + 1):
            raise self._foreign()
        return np.frombuffer(found, "<u8")

    def _samples(self, starts: Ints, ends: Ints) -> Iterator[dict[str, Any]]:
        """Samples in the order of the archive, a block of neighbours at a time."""
        apart = (starts[1:] > ends[:-1] + gap_of(self._path)) | (starts[1:] // _BLOCK != starts[:-1] // _BLOCK)
        cuts = [0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]
        firsts, lasts = starts.tolist(), ends.tolist()
        for low, high in pairwise(cuts):
            base, stop = firsts[low], lasts[high - 1]
            if self.columns is not None and stop - base > _WHOLE:
                for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                    yield self._sample(Window(self._path, read=self._upto_end), self._data.read, first, last)
                continue
            block = self._data.read(base, stop - base)

            def get(at: int, length: int, block: bytes = block, base: int = base) -> bytes:
                return block[at - base : at - base + length]

            for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                yield self._sample(get, get, first, last)

    def _sample(self, headers: Get, data: Get, start: int, stop: int) -> dict[str, Any]:
        name, wanted = str(self._origin), self.columns
        members = Members(headers, start, stop, name)
        sample: dict[str, Any] = {"__key__": None, "__shard__": self.shard}
        parts: list[str] = []
        try:
            for member in members:
                found = sample_part(member, name)
                if found is None:
                    continue
                key, part = found
                if sample["__key__"] not in (None, key) or part in sample:
                    raise self._foreign()
                sample["__key__"] = key
                parts.append(part)
                if wanted is None or part in wanted:
                    sample[part] = data(member.data, member.size)
        except DataError as error:
            raise error if self._ours else self._foreign() from error
        if members.at != stop or not parts or not (self._ours or self._ends(stop, sample["__key__"])):
            raise self._foreign()
        if wanted is not None and len(sample) == 2:
            raise DataError(
                f"none of the parts {', '.join(wanted)} is in this sample, which has {', '.join(parts)}",
                where=f"{name}, {sample['__key__']}",
            )
        return sample

    def _ends(self, stop: int, key: str) -> bool:
        """Whether what begins at `stop` is of another sample, or the end."""
        name = str(self._origin)
        behind = (sample_part(one, name) for one in Members(Window(self._path), stop, self._stat.size, name))
        following = next(filter(None, behind), None)
        return following is None or following[0] != key

    def _upto_end(self, at: int, length: int) -> bytes:
        return self._data.read(at, min(length, self._stat.size - at))

    def _foreign(self) -> DataError:
        return DataError(
            f"the offsets in {self._index} are not those of this archive: run `penstock index --rebuild "
            f"{self._origin}`, or delete {self._index}",
            where=str(self._origin),
        )


class Without:
    """An archive without some of its samples."""

    def __init__(self, file: Tar, rows: Iterable[int]) -> None:
        self.columns = file.columns
        self._file = file
        self._rows: Ints = np.setdiff1d(np.arange(len(file), dtype=np.int64), np.asarray(list(rows), np.int64))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`, counting only those that are left."""
        return self._file.read(self._rows[indices])


def open_tar(
    path: Path,
    origin: Path,
    *,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    held: Held,
    shard: str = "",
    keyed: bool = False,
    rebuild: bool = False,
    data: Checked | None = None,
) -> Tar:
    """The samples of one archive; `path` is where it can be read as it is, `origin` the file the user meant.

    Energon's index serves where there is none of ours yet, unless samples are to be found by key.
    """
    index = None
    if path == origin and not keyed and not sidecar.place(origin, cache, "tar").exists():
        index = tar_index.foreign(path, sidecar.stat(path))
    ours = index is None
    index = index or tar_index.make(path, origin, cache=cache, rebuild=rebuild)
    return Tar(
        path, index=index, ours=ours, origin=origin, shard=shard or origin.name, columns=columns, held=held, data=data
    )
