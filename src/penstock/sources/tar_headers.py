"""Samples of a tar archive by an index that knows where they begin, and no more: their headers are
read with them.

So are archives read for which Energon left an index; what that says is compared with what lies
there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..stores import Range, is_remote
from ..types import Ints
from . import sidecar, tar_index
from .chain import gap_of, in_file_order, ranges_of
from .checked import Checked
from .held import Held
from .tar import Get, Members, sample_part
from .tar_index import Window
from .tar_places import merges

_BLOCK = 4 << 20  # bytes of samples read together
_WHOLE = (
    64 << 10
)  # a sample up to this size is read whole, also where only some of its parts are wanted


class ByHeaders:
    """One archive, as `Tar` gives it, whose samples begin where `index` says."""

    def __init__(
        self,
        path: Path,
        *,
        index: Path,
        shard: str,
        columns: Sequence[str] | None,
        held: Held,
        data: Checked,
    ) -> None:
        self.columns = columns
        self.shard = shard
        self._path, self._index, self._held, self._data = path, index, held, data
        self._stat = sidecar.stat(path)
        self._rows = sidecar.stat(index).size // 8 - 1

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`; neighbours are read together."""
        with sidecar.still(self._path, self._stat, name=str(self._path)):
            if not indices.size:
                return []
            offsets: Ints = self._held.get(self._index, self._offsets)
            starts, ends = offsets[indices], offsets[indices + 1]
            if bool((starts >= ends).any()) or int(ends.max()) > self._stat.size:
                raise self._foreign()
            return in_file_order(starts, ends, self._samples)

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the archive these samples need; none where only some parts of them are
        read, or where it lies on this machine."""
        if not is_remote(self._path) or self.columns is not None:
            return []
        offsets: Ints = self._held.get(self._index, self._offsets)
        return ranges_of(self._path, offsets[indices], offsets[indices + 1])

    def _offsets(self) -> tuple[int, Ints]:
        """Where the samples begin, and the end."""
        found = tar_index.foreign_offsets(self._index)
        return found.nbytes, found

    def _samples(self, starts: Ints, ends: Ints) -> Iterator[dict[str, Any]]:
        """Samples in the order of the archive, a block of neighbours at a time."""
        apart = (starts[1:] > ends[:-1] + gap_of(self._path)) | (
            starts[1:] // _BLOCK != starts[:-1] // _BLOCK
        )
        cuts = [0, *(apart.nonzero()[0] + 1).tolist(), len(starts)]
        firsts, lasts = starts.tolist(), ends.tolist()
        for low, high in pairwise(cuts):
            base, stop = firsts[low], lasts[high - 1]
            if self.columns is not None and stop - base > _WHOLE:
                for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                    yield self._sample(
                        Window(self._path, read=self._upto_end), self._data.read, first, last
                    )
                continue
            block = self._data.read(base, stop - base)

            def get(at: int, length: int, block: bytes = block, base: int = base) -> bytes:
                return block[at - base : at - base + length]

            for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                yield self._sample(get, get, first, last)

    def _sample(self, headers: Get, data: Get, start: int, stop: int) -> dict[str, Any]:
        name, wanted = str(self._path), self.columns
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
            raise self._foreign() from error
        if members.at != stop or not parts or not self._ends(stop, sample["__key__"]):
            raise self._foreign()
        if merges(parts) and self._held.once(MERGED):
            warn_of_merged(name, sample["__key__"], parts)
        if wanted is not None and len(sample) == 2:
            raise none_of(wanted, parts, f"{name}, {sample['__key__']}")
        return sample

    def _ends(self, stop: int, key: str) -> bool:
        """Whether what begins at `stop` is of another sample, or the end."""
        name = str(self._path)
        after = (
            sample_part(one, name)
            for one in Members(Window(self._path), stop, self._stat.size, name)
        )
        following = next(filter(None, after), None)
        return following is None or following[0] != key

    def _upto_end(self, at: int, length: int) -> bytes:
        return self._data.read(at, min(length, self._stat.size - at))

    def _foreign(self) -> DataError:
        return foreign(self._index, self._path)


def foreign(index: Path, origin: Path) -> DataError:
    """What is raised where an index is not that of the archive."""
    return DataError(
        f"the offsets in {index} are not those of this archive: run `penstock index --rebuild "
        f"{origin}`, or delete "
        f"{index}",
        where=str(origin),
    )


def none_of(wanted: Sequence[str], parts: Sequence[str], where: str) -> DataError:
    """What is raised where a sample has none of the parts that are wanted."""
    return DataError(
        f"none of the parts {', '.join(wanted)} is in this sample, which has {', '.join(parts)}",
        where=where,
    )


MERGED = "merged keys"
"""Notices that a source gives once."""


def warn_of_merged(name: str, key: str, parts: Sequence[str]) -> None:
    """Warn that the files of several samples may be one."""
    files = ", ".join(f"{key}.{part}" for part in parts[:4])
    warnings.warn(
        f"{name}: the sample {key!r} is made of {files}{', ...' if len(parts) > 4 else ''}: a key "
        "ends at the first "
        "dot of a name, so if these are samples of their own, name them without it",
        stacklevel=2,
    )
