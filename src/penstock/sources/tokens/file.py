"""Memory-mapped token files, whose documents are views."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.base.sizes import ConcatenatedLengths
from ...engine.base.spans import DocumentSpans
from ...errors import DataError, convert_storage_errors
from ...stores import ByteRange, is_remote
from ...types import Ints, Sizes
from .. import derived_files, file_versions
from ..cached_integers import VersionedEnds
from ..chain import IndexedFile, MeasuredFile, merge_row_ranges
from ..checksummed import ChecksummedFile, ensure_checksums, open_checked_data
from ..derived_files import DerivedFile, Kind
from ..lru import LRUCache, SharedCaches
from ..rows import map_file
from .forms import HEAD_BYTES, TokenIdOptions, TokenLayout, detect_layout, list_companions

_MAX_COMPARED_ENDS = 1 << 20  # document ends to compare


class SingleDocumentEnd:
    """The end of a file that is one document."""

    def __init__(self, count: int) -> None:
        self._ends = np.asarray([count], np.int64)
        self.version = str(count)

    def __len__(self) -> int:
        return 1

    def get(self) -> Ints:
        """Return the end of every document."""
        return self._ends


class IndexedEnds:
    """Document ends in a derived file, memory-mapped and checked on use.

    `version` identifies them: it is the header of that file.
    """

    def __init__(
        self, path: Path, origin: Path, tokens: tuple[Path, int] | None, cache: LRUCache
    ) -> None:
        self._path, self._origin, self._tokens, self._cache = path, origin, tokens, cache
        self._header, ends = cache.get(path, self._mapped)
        self._count, self.version = len(ends), self._header.encode().hex()

    def __len__(self) -> int:
        return self._count

    def get(self) -> Ints:
        """Return the end of every document."""
        header, ends = self._cache.get(self._path, self._mapped)
        if header[2:] != self._header[2:]:
            raise DataError(
                "its documents end elsewhere since it was opened: open it again, and keep data "
                "still during a run",
                where=str(self._origin),
            )
        return ends

    def _mapped(self) -> tuple[int, tuple[derived_files.Header, Ints]]:
        origin = self._origin
        file = DerivedFile(Kind.DOCUMENT_ENDS, origin, self._path, self._path)
        header, body = derived_files.read(file, self._path)
        file_versions.require_unchanged(origin, header.data, name=str(origin))
        ends = np.frombuffer(body, "<i8", header.total)
        if self._tokens is not None and ends.size and int(ends[-1]) > self._tokens[1]:
            path, count = self._tokens
            raise DataError(
                f"the documents end at token {int(ends[-1]):,} according to {self._origin}, but "
                f"the file has {count:,} tokens: it was cut off, or {self._path} was made for "
                "another file",
                where=str(path),
            )
        return 1, (header, ends)


class RemoteTokens:
    """The first tokens of a remote file; slicing fetches them."""

    def __init__(self, data: ChecksummedFile, form: TokenLayout, length: int) -> None:
        self._data, self._form, self._length = data, form, length

    def __len__(self) -> int:
        return self._length

    def until(self, length: int) -> RemoteTokens:
        """Return the first `length` tokens."""
        return RemoteTokens(self._data, self._form, length)

    def __getitem__(self, span: slice) -> npt.NDArray[Any]:
        start, stop, _ = span.indices(self._length)
        width = self._form.dtype.itemsize
        data = self._data.read(self._form.begin + start * width, (stop - start) * width)
        return np.frombuffer(data, self._form.dtype)


class TokenFile:
    """Documents concatenated in one file; only its mapping is kept in memory."""

    columns = None

    def __init__(
        self,
        path: Path,
        form: TokenLayout,
        ends: SingleDocumentEnd | IndexedEnds,
        shared: SharedCaches,
        data: ChecksummedFile,
    ) -> None:
        self._data = data
        self._path, self._form, self._ends, self._shared = (
            path,
            form._replace(find=None),
            ends,
            shared,
        )
        self.dtype, self._stat = form.dtype, file_versions.stat_file(path)

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """Return the documents at `indices`, as views."""
        tokens, (starts, stops) = self._tokens(), compute_document_bounds(self._ends.get(), indices)
        self._compare(starts, stops)
        return [
            tokens[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    def spans(self, indices: Ints, /) -> DocumentSpans | None:
        """Return the documents at `indices` as spans of the file; `None` for a remote file."""
        tokens = self._tokens()
        if isinstance(tokens, RemoteTokens):
            return None
        starts, stops = compute_document_bounds(self._ends.get(), indices)
        self._compare(starts, stops)
        return DocumentSpans([tokens], np.zeros(len(indices), np.int64), starts, stops)

    def lengths(self) -> Sizes:
        """Return the number of tokens of every document, computed on access."""
        return VersionedEnds(self._ends.get, len(self), self._ends.version)

    def joined(self) -> npt.NDArray[Any] | RemoteTokens:
        """Return the tokens of all documents, concatenated, as a view."""
        ends = self._ends.get()
        tokens, count = self._tokens(), int(ends[-1]) if ends.size else 0
        if not is_remote(self._path):
            self._data.compare_all()
        return tokens.until(count) if isinstance(tokens, RemoteTokens) else tokens[:count]

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the byte ranges that these documents need; none for a local file."""
        return (
            self.ranges_between(*compute_document_bounds(self._ends.get(), indices))
            if is_remote(self._path)
            else []
        )

    def ranges_between(self, starts: Ints, stops: Ints) -> list[ByteRange]:
        """Return the byte ranges of these tokens."""
        width = self._form.dtype.itemsize
        return merge_row_ranges(
            self._path, self._form.begin + starts * width, self._form.begin + stops * width
        )

    def _tokens(self) -> npt.NDArray[Any] | RemoteTokens:
        file_versions.require_unchanged(self._path, self._stat, name=str(self._path))
        if is_remote(self._path):
            return RemoteTokens(self._data, self._form, self._form.tokens)
        return self._shared.files.get(self._path, self._mapped)

    def _compare(self, starts: Ints, stops: Ints) -> None:
        """Raise if tokens differ from their checksums."""
        if self._data.known() and not is_remote(self._path) and starts.size and self._form.tokens:
            with convert_storage_errors(self._path):
                mapping = memoryview(map_file(self._path))
            for byte_range in self.ranges_between(starts, stops):
                self._data.compare(byte_range.start, byte_range.stop, mapping)

    def _mapped(self) -> tuple[int, npt.NDArray[Any]]:
        form = self._form
        if not form.tokens:
            return 1, np.zeros(0, form.dtype)
        with convert_storage_errors(self._path):
            buffer = map_file(self._path)
        # Checked after mapping: the mapping keeps its bytes even if the file is replaced.
        file_versions.require_unchanged(self._path, self._stat, name=str(self._path))
        return 1, np.frombuffer(buffer, form.dtype, form.tokens, form.begin)


def open_tokens(
    path: Path,
    ids: TokenIdOptions,
    cache: str | Path | None,
    shared: SharedCaches,
    rebuild: bool = False,
    checksum: bool = False,
) -> TokenFile:
    """Open a token file; its document ends are found once and kept beside it or in `cache`.

    Args:
        path: The file.
        ids: dtype and end token that the user gave.
        cache: Cache folder.
        shared: Caches of mapped files.
        rebuild: Find the document ends again.
        checksum: Make checksums too.
    """
    files = [path, *list_companions(path)]
    if checksum:
        for file in files:
            ensure_checksums(file, cache, rebuild)
    data, *companions = [open_checked_data(file, shared.files, cache) for file in files]
    data.compare(0, min(HEAD_BYTES, file_versions.stat_file(path).size))
    for companion in companions:
        companion.compare_all()
    form = detect_layout(path, ids)
    if form.find is None:
        return TokenFile(path, form, SingleDocumentEnd(form.tokens), shared, data)
    ends = load_document_ends(
        form.origin, form.what, form.find, (path, form.tokens), cache, shared, rebuild
    )
    if (recorded_form := form.recorded) is not None and recorded_form.find is not None:
        recorded = load_document_ends(
            recorded_form.origin,
            recorded_form.what,
            recorded_form.find,
            (path, recorded_form.tokens),
            cache,
            shared,
            rebuild,
        )
        if _have_different_ends(ends.get(), recorded.get()) and shared.files.is_first("eos"):
            warnings.warn(
                f"{path}: eos={ids.eos} makes {len(ends):,} documents, but "
                f"{recorded_form.origin.name} lists {len(recorded):,} that end elsewhere: leave "
                "out eos= to read those",
                stacklevel=2,
            )
    return TokenFile(path, form._replace(recorded=None), ends, shared, data)


def _have_different_ends(ends: Ints, recorded: Ints) -> bool:
    """Return whether document ends differ; very long lists are compared in part."""
    step = 1 + len(ends) // _MAX_COMPARED_ENDS
    return len(ends) != len(recorded) or bool((ends[::step] != recorded[::step]).any())


def load_document_ends(
    origin: Path,
    what: str,
    find: Callable[[], Ints],
    tokens: tuple[Path, int] | None,
    cache: str | Path | None,
    shared: SharedCaches,
    rebuild: bool,
) -> IndexedEnds:
    """Return the document ends according to `origin`, stored or found now.

    Args:
        origin: File that determines the ends.
        what: Ending of the name of the stored ends.
        find: Finds the ends.
        tokens: Token file and its number of tokens, to check the ends against.
        cache: Cache folder.
        shared: Caches of mapped files.
        rebuild: Find the ends again.
    """

    def make() -> tuple[int, bytes]:
        ends = find()
        return len(ends), ends.astype("<i8").tobytes()

    file = derived_files.place_index(Kind.DOCUMENT_ENDS, origin, what, cache)
    path = derived_files.ensure(file, make, rebuild=rebuild)
    return IndexedEnds(path, origin, tokens, shared.files)


def compute_document_bounds(ends: Ints, indices: Ints) -> tuple[Ints, Ints]:
    """Return the starts and the ends of documents."""
    return np.where(indices > 0, ends[indices - 1], 0), ends[indices]


def require_same_dtype(file: IndexedFile, first: IndexedFile, first_path: Path, path: Path) -> None:
    """Raise if the tokens of a file have another dtype than those of the first file."""
    if (
        isinstance(file, MeasuredFile)
        and isinstance(first, MeasuredFile)
        and file.dtype != first.dtype
    ):
        raise DataError(
            f"its tokens are {file.dtype}, those of {first_path} are {first.dtype}: read them as "
            "two sources",
            where=str(path),
        )


def read_file_lengths(files: Sequence[IndexedFile]) -> Sizes:
    """Return the number of tokens of every document of these files."""
    lengths = list[Sizes]()
    for file in files:
        assert isinstance(file, MeasuredFile)
        lengths.append(file.lengths())
    return lengths[0] if len(lengths) == 1 else ConcatenatedLengths(tuple(lengths))
