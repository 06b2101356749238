"""A file of tokens: mapped, its documents views of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ...engine.base.sizes import Chained, Ends
from ...engine.base.spans import Spans
from ...errors import DataError
from ...stores import Range, is_remote
from ...types import Ints, Sizes
from .. import sidecar
from ..chain import File, ranges_of
from ..checked import Checked, make, of_data
from ..held import Held, Shared
from ..rows import mapped
from .forms import HEAD, Form, Ids, files_of, form_of

_LOOKED_AT = 1 << 20  # ends of documents that are compared


class OneEnd:
    """The end of the only document of a file."""

    def __init__(self, count: int) -> None:
        self._ends = np.asarray([count], np.int64)

    def __len__(self) -> int:
        return 1

    def get(self) -> Ints:
        """The end of every document."""
        return self._ends


class KeptEnds:
    """Where documents end, in a file that was made once; mapped, and compared with its digest, when
    it is needed."""

    def __init__(
        self, path: Path, origin: Path, tokens: tuple[Path, int] | None, held: Held
    ) -> None:
        self._path, self._origin, self._tokens, self._held = path, origin, tokens, held
        self._count = len(self.get())

    def __len__(self) -> int:
        return self._count

    def get(self) -> Ints:
        """The end of every document."""
        return self._held.get(self._path, self._mapped)

    def _mapped(self) -> tuple[int, Ints]:
        count, body = sidecar.body(self._path, sidecar.DOCUMENTS, self._origin, now=True)
        ends = np.frombuffer(body, "<i8", count)
        if self._tokens is not None and ends.size and int(ends[-1]) > self._tokens[1]:
            path, count = self._tokens
            raise DataError(
                f"the documents end at token {int(ends[-1]):,}, as {self._origin} tells, and "
                f"{count:,} are there: the "
                f"file was cut off, or {self._path} was made for another one",
                where=str(path),
            )
        return 1, ends


@runtime_checkable
class Measured(Protocol):
    """A file that knows how long its rows are, and what its tokens are stored as."""

    dtype: np.dtype[Any]

    def lengths(self) -> Sizes: ...


class FarTokens:
    """The first tokens of a file in a store; a slice fetches them."""

    def __init__(self, data: Checked, form: Form, length: int) -> None:
        self._data, self._form, self._length = data, form, length

    def __len__(self) -> int:
        return self._length

    def until(self, length: int) -> FarTokens:
        """Only so many of them."""
        return FarTokens(self._data, self._form, length)

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        start, stop, _ = wanted.indices(self._length)
        width = self._form.dtype.itemsize
        data = self._data.read(self._form.begin + start * width, (stop - start) * width)
        return np.frombuffer(data, self._form.dtype)


class TokenFile:
    """Documents that lie end to end in a file. Nothing of it is held but its mapping."""

    columns = None

    def __init__(
        self, path: Path, form: Form, ends: OneEnd | KeptEnds, shared: Shared, data: Checked
    ) -> None:
        self._data = data
        self._path, self._form, self._ends, self._shared = (
            path,
            form._replace(find=None),
            ends,
            shared,
        )
        self.dtype, self._stat = form.dtype, sidecar.stat(path)

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """The documents at `indices`, as views."""
        tokens, (starts, stops) = self._tokens(), bounds(self._ends.get(), indices)
        self._compare(starts, stops)
        return [tokens[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]

    def spans(self, indices: Ints, /) -> Spans | None:
        """The documents at `indices`, as places in the file; None where it lies in a store."""
        tokens = self._tokens()
        if isinstance(tokens, FarTokens):
            return None
        starts, stops = bounds(self._ends.get(), indices)
        self._compare(starts, stops)
        return Spans([tokens], np.zeros(len(indices), np.int64), starts, stops)

    def lengths(self) -> Sizes:
        """The number of tokens of every document; none is held."""
        return Ends(self._ends.get, len(self))

    def joined(self) -> npt.NDArray[Any] | FarTokens:
        """The tokens of all documents end to end, as a view."""
        ends = self._ends.get()
        tokens, many = self._tokens(), int(ends[-1]) if ends.size else 0
        if not is_remote(self._path):
            self._data.whole()
        return tokens.until(many) if isinstance(tokens, FarTokens) else tokens[:many]

    def ranges(self, indices: Ints, /) -> list[Range]:
        """Which bytes of the file these documents need; none where it lies on this machine."""
        return (
            self.ranges_between(*bounds(self._ends.get(), indices)) if is_remote(self._path) else []
        )

    def ranges_between(self, starts: Ints, stops: Ints) -> list[Range]:
        """Which bytes these tokens are."""
        width = self._form.dtype.itemsize
        return ranges_of(
            self._path, self._form.begin + starts * width, self._form.begin + stops * width
        )

    def _tokens(self) -> npt.NDArray[Any] | FarTokens:
        sidecar.unchanged(self._path, self._stat, name=str(self._path))
        if is_remote(self._path):
            return FarTokens(self._data, self._form, self._form.tokens)
        return self._shared.files.get(self._path, self._mapped)

    def _compare(self, starts: Ints, stops: Ints) -> None:
        """Refuse tokens that are not what they were when checksums of them were made."""
        if self._data.known() and not is_remote(self._path) and starts.size and self._form.tokens:
            with sidecar.storage(self._path):
                whole = memoryview(mapped(self._path))
            for one in self.ranges_between(starts, stops):
                self._data.compare(one.start, one.stop, whole)

    def _mapped(self) -> tuple[int, npt.NDArray[Any]]:
        form = self._form
        if not form.tokens:
            return 1, np.zeros(0, form.dtype)
        with sidecar.storage(self._path):
            found = mapped(self._path)
        sidecar.unchanged(
            self._path, self._stat, name=str(self._path)
        )  # what is mapped stays, also if replaced
        return 1, np.frombuffer(found, form.dtype, form.tokens, form.begin)


def open_tokens(
    path: Path,
    ids: Ids,
    cache: str | Path | None,
    shared: Shared,
    rebuild: bool = False,
    checksum: bool = False,
) -> TokenFile:
    """A file of tokens; where its documents end is found out once, and kept beside it or in
    `cache`."""
    files = files_of(path)
    if checksum:
        for one in files:
            make(one, cache, rebuild)
    data, *others = [of_data(one, shared.files, cache) for one in files]
    data.compare(0, min(HEAD, sidecar.stat(path).size))
    for other in others:
        other.whole()
    form = form_of(path, ids)
    if form.find is None:
        return TokenFile(path, form, OneEnd(form.tokens), shared, data)
    ends = kept_ends(form.origin, form.what, form.find, (path, form.tokens), cache, shared, rebuild)
    if (told := form.recorded) is not None and told.find is not None:
        recorded = kept_ends(
            told.origin, told.what, told.find, (path, told.tokens), cache, shared, rebuild
        )
        if _differ(ends.get(), recorded.get()) and shared.files.once("eos"):
            warnings.warn(
                f"{path}: eos={ids.eos} makes {len(ends):,} documents, {told.origin.name} tells of "
                f"{len(recorded):,} "
                "that end elsewhere: leave out eos= to read those",
                stacklevel=2,
            )
    return TokenFile(path, form._replace(recorded=None), ends, shared, data)


def _differ(ends: Ints, recorded: Ints) -> bool:
    """Return whether document ends differ; of very many, a part is compared."""
    step = 1 + len(ends) // _LOOKED_AT
    return len(ends) != len(recorded) or bool((ends[::step] != recorded[::step]).any())


def kept_ends(
    origin: Path,
    what: str,
    find: Callable[[], Ints],
    tokens: tuple[Path, int] | None,
    cache: str | Path | None,
    shared: Shared,
    rebuild: bool,
) -> KeptEnds:
    """Return the ends of documents that `origin` tells, kept or found now. `tokens` are a file and
    their number."""

    def make(_: bool) -> tuple[int, bytes]:
        ends = find()
        return len(ends), ends.astype("<i8").tobytes()

    cached, place = sidecar.index(origin, cache, what), sidecar.place(origin, cache, what)
    kept = sidecar.kept(place, sidecar.DOCUMENTS, origin, make, otherwise=cached, rebuild=rebuild)
    return KeptEnds(kept, origin, tokens, shared.files)


def bounds(ends: Ints, indices: Ints) -> tuple[Ints, Ints]:
    """Where documents begin and end."""
    return np.where(indices > 0, ends[indices - 1], 0), ends[indices]


def of_one_type(file: File, first: File, first_path: Path, path: Path) -> None:
    """Refuse a file whose tokens are of another type than those of the first."""
    if isinstance(file, Measured) and isinstance(first, Measured) and file.dtype != first.dtype:
        raise DataError(
            f"its tokens are {file.dtype}, those of {first_path} are {first.dtype}: read them as "
            "two sources",
            where=str(path),
        )


def lengths_of_files(files: Sequence[File]) -> Sizes:
    """The number of tokens of every document of these files."""
    found = list[Sizes]()
    for file in files:
        assert isinstance(file, Measured)
        found.append(file.lengths())
    return found[0] if len(found) == 1 else Chained(tuple(found))
