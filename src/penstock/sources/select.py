"""Rows by the values of their columns: found once, kept as a list of row numbers, so that the
source stays indexed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.hints import near
from ..engine.base.progress import Progress
from ..engine.base.random import keys_of
from ..errors import ConfigError, DataError
from ..stores import Reach
from ..types import Ints, Json, Sizes
from . import sidecar
from .chain import Asked, Chain, Counts, Decoding, File
from .identity import Digest, content, file_digest, row_digest
from .kinds import Kind, Typed
from .rows import arrow
from .sizes import Listed

Mask = npt.NDArray[np.bool_]
Where = Mapping[str, Any]
"""Column -> a value, a list of values, or a range: a mapping of `min`, `max`, `above`, `below`,
`not`, `hash`."""

_RANGES = {"min": "greater_equal", "max": "less_equal", "above": "greater", "below": "less"}
_ROWS = 1 << 16
_VERSION = 3
_ODD = (
    OverflowError,
    UnicodeError,
    TypeError,
)  # of numbers over 64 bits, and texts that are not Unicode


class Selected:
    """Some rows of a source of files, in their order. What `open_files` returns with `where`."""

    def __init__(self, chain: Chain, rows: Ints, where: Where) -> None:
        self.name = chain.name
        self.asked: Asked | None = None
        self.as_columns = False
        self._digest: Digest | None = None
        self._chain, self._rows, self._where = chain, rows, where

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self._chain!r}>"

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices` of the selection."""
        return self._chain.read(self._rows[indices])

    @property
    def chain(self) -> Chain:
        """The source that the rows are of."""
        return self._chain

    @property
    def counts(self) -> Counts | None:
        """What makes as many tokens of the rows as are known of them."""
        return self._chain.counts

    @property
    def types(self) -> Mapping[str, Kind]:
        """The types of the columns."""
        return self._chain.types

    @property
    def columnar(self) -> bool:
        """Whether rows can be had as columns."""
        return self._chain.columnar

    def decoding(self) -> Decoding | None:
        """What a row costs where whole groups of rows are decoded for it."""
        return self._chain.decoding()

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """The same rows, where they can be as columns of which no row was made yet."""
        return self._chain.block(self._rows[indices])

    @property
    def paths(self) -> Sequence[Path]:
        """The files that the rows were chosen from."""
        return self._chain.paths

    def lying(self, indices: Ints, /) -> tuple[Ints, Ints]:
        """The number of the file that each row lies in, and which row of it that is."""
        return self._chain.lying(self._rows[indices])

    def foresees(self, reach: Reach, /) -> int:
        """How many rows may be fetched ahead, none where it is of no use to those who read."""
        return self._chain.foresees(reach)

    def ahead(self, indices: Ints, /) -> bool:
        """Begin to fetch what rows need that are read soon; whether there was room for that."""
        return self._chain.ahead(self._rows[indices])

    def lengths(self) -> Sizes | None:
        """The sizes of these rows, where those of the files are known."""
        lengths = self._chain.lengths()
        return None if lengths is None else lengths[self._rows]

    def digest(self) -> Digest:
        """What the files hold, and which rows were chosen."""
        if self._digest is None:
            chain = self._chain
            spelled = f"{content(self._rows)}{json.dumps(self.describe(), default=str)}"
            self._digest = file_digest(
                chain.paths, chain.stats, self.read, len(self), spelled, chain.cache
            )
        return self._digest

    def digest_of(self, rows: int, /) -> Digest:
        """What the first rows hold."""
        return {"rows": row_digest(self.read, rows)}

    def describe(self) -> Json:
        """The description of the files, how many rows were chosen, and by what."""
        whole = cast("dict[str, Json]", self._chain.describe())
        return {
            **whole,
            "of_rows": whole["rows"],
            "rows": len(self),
            "where": cast(Json, self._where),
        }


def normal(where: Where) -> dict[str, Any]:
    """One spelling of a selection: a list of values, or a range.

    >>> normal({"lang": "python", "stars": {"min": 10, "not": 11}})
    {'lang': ['python'], 'stars': {'min': 10, 'not': [11]}}
    """
    if not where:
        raise ConfigError("where is empty: name a column and what it must hold, or leave it out")
    return {column: _condition(column, condition) for column, condition in where.items()}


def _condition(column: str, condition: Any) -> Any:
    if not isinstance(condition, Mapping):
        if values := _values(condition):
            return values
        raise ConfigError(
            f"where: {column!r} may have no value at all, so that no row would be left; name those "
            "that it may have"
        )
    given = cast("Mapping[str, Any]", condition)
    if unknown := sorted(set(given) - {*_RANGES, "not", "hash"}):
        raise ConfigError(
            f"where: {column!r} has {unknown}; known are {', '.join(_RANGES)}, not and hash"
        )
    if not given:
        raise ConfigError(
            f"where: {column!r} has an empty range; give min, max, above, below, not or hash"
        )
    if "hash" in given:
        _between(given["hash"])
    if missing := [name for name, value in given.items() if value is None and name != "not"]:
        raise ConfigError(
            f"where: {column!r} has {missing[0]}: None, which nothing is compared with; leave it "
            "out"
        )
    return {
        name: _values(value) if name == "not" else _plain(value) for name, value in given.items()
    }


def _values(value: Any) -> list[Any]:
    return [
        *map(_plain, cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else [value])
    ]


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which are no texts."""
    if isinstance(value, np.timedelta64) or not isinstance(value, np.number | np.bool_):
        return cast(Any, value)
    return cast(Any, value).item()


def select(
    chain: Chain,
    files: Sequence[File],
    paths: Sequence[Path],
    where: Where,
    cache: str | Path | None,
) -> Selected:
    """The rows of `chain` that fit; `files` are its files with all their columns."""
    rows: list[Ints] = [np.zeros(0, np.int64)]
    chosen = normal(where)
    begin, named = 0, np.zeros(len(chosen), np.int64)
    for path, file in zip(paths, files, strict=True):
        have, fit = _kept(file, path, chosen, cache)
        rows.append(fit + begin)
        begin, named = begin + len(file), named + have
    if begin and not named.all():
        _refuse(sorted(chosen)[int(named.argmin())], files, paths)
    return Selected(chain, np.concatenate(rows), chosen)


def _refuse(column: str, files: Sequence[File], paths: Sequence[Path]) -> NoReturn:
    """Say that no row has a column, and what the first one has."""
    path, file = next((path, file) for path, file in zip(paths, files, strict=True) if len(file))
    (row,) = file.read(np.zeros(1, np.int64))
    has = list(map(str, cast("dict[Any, Any]", row))) if isinstance(row, dict) else []
    said = f"the first has {', '.join(has[:20])}" if has else "the first is no mapping"
    raise ConfigError(f"{path}: where: no row has {column!r}; {said}{near(column, has)}")


def _kept(file: File, path: Path, where: Where, cache: str | Path | None) -> tuple[Ints, Ints]:
    """Return how many rows of one file have each of the columns (by name), and those that fit; kept
    in the cache, and found again when the file or the types of its columns change, as files that
    are read with it may give other types.
    """
    types = (
        {column: str(file.types.get(column)) for column in where}
        if isinstance(file, Typed)
        else None
    )
    spelled = json.dumps([_VERSION, where, types], sort_keys=True, default=str)
    digest = hashlib.blake2b(spelled.encode(), digest_size=8).hexdigest()
    kept = sidecar.cached(path, cache, f".{path.name}.{digest}.penstock-rows")

    def make(_: bool) -> tuple[int, bytes]:
        mask, have = np.ones(len(file), np.bool_), list[int]()
        for column in sorted(where):
            fits, named = _mask(file, path, column, where[column])
            mask &= fits
            have.append(named)
        rows = np.flatnonzero(mask)
        return len(rows), np.concatenate([have, rows]).astype("<i8").tobytes()

    found = np.frombuffer(sidecar.again(kept, sidecar.ROWS, path, make), "<i8").astype(np.int64)
    return found[: len(where)], found[len(where) :]


def _mask(file: File, path: Path, column: str, condition: Any) -> tuple[Mask, int]:
    """Which rows fit, and how many have the column at all."""
    pa, named = arrow(), 0
    masks: list[Mask] = [np.zeros(0, np.bool_)]
    with Progress(f"choose rows by {column} of {path.name}", len(file), "rows") as progress:
        for piece, have in _column(file, path, column):
            named += have
            if pa.types.is_dictionary(piece.type):
                piece = piece.dictionary_decode()
            try:
                masks.append(_fits(piece, condition))
            except (pa.ArrowException, *_ODD) as error:
                raise ConfigError(
                    f"{path}: where: the column {column!r} holds {piece.type} and cannot be "
                    f"compared with {condition!r}"
                ) from error
            progress.more(len(piece))
    return np.concatenate(masks), named


def _column(file: File, path: Path, column: str) -> Iterator[tuple[Any, int]]:
    """One column as Arrow arrays, some rows at a time, and how many of these have it. A row of
    lines without it has a null there.
    """
    if isinstance(file, Listed):
        yield from ((piece, len(piece)) for piece in file.column(column))
        return
    pa = arrow()
    for start in range(0, len(file), _ROWS):
        rows: list[Any] = file.read(np.arange(start, min(start + _ROWS, len(file)), dtype=np.int64))
        mappings = [cast("dict[str, Any]", row) if isinstance(row, dict) else {} for row in rows]
        try:
            yield (
                pa.array([row.get(column) for row in mappings]),
                sum(column in row for row in mappings),
            )
        except (pa.ArrowException, *_ODD) as error:
            where = f"{path}, rows {start} to {start + len(rows) - 1}"
            what = (
                "of several types"
                if isinstance(error, pa.ArrowException)
                else "that no column can hold"
            )
            raise DataError(
                f"the column {column!r} holds values {what}: {error}", where=where
            ) from error


def _fits(values: Any, condition: Any) -> Mask:
    pa, pc = arrow(), arrow("pyarrow.compute")

    def scalar(value: Any) -> Any:
        if isinstance(value, int) and str(values.type) == "uint64" and value >= 0:
            return pa.scalar(value, values.type)  # what is narrower is compared with any number
        made = _exact(value, values.type)
        # Dates and times are written as texts.
        return (
            made.cast(values.type) if isinstance(value, str) and not _is_text(values.type) else made
        )

    def one_of(asked: list[Any]) -> Any:
        some = [scalar(value) for value in asked if value is not None]
        fits = pc.is_null(values) if None in asked else None
        for each in some:
            same = pc.fill_null(pc.equal(values, each), False)
            fits = same if fits is None else pc.or_(fits, same)
        return fits

    if isinstance(condition, list):
        return one_of(cast("list[Any]", condition)).to_numpy(zero_copy_only=False)
    mask: Mask = np.ones(len(values), np.bool_)
    for name, bound in cast("dict[str, Any]", condition).items():
        if name == "hash":
            mask &= _hashed(values, *_between(bound))
        elif name == "not":
            mask &= ~one_of(bound).to_numpy(zero_copy_only=False)
        else:
            fits = pc.fill_null(getattr(pc, _RANGES[name])(values, scalar(bound)), False)
            mask &= fits.to_numpy(zero_copy_only=False)
    return mask


def _exact(value: Any, kind: Any) -> Any:
    """A value as Arrow has it; the times of pandas to the nanosecond, of which Arrow itself would
    keep less."""
    pa = arrow()
    if hasattr(value, "nanosecond"):
        made = pa.scalar(
            value.value,
            pa.timestamp("ns", None if value.tz is None else getattr(kind, "tz", None) or "UTC"),
        )
    elif hasattr(value, "nanoseconds"):
        made = pa.scalar(value.value, pa.duration("ns"))
    else:
        made = pa.scalar(value)
        if not isinstance(value, np.datetime64 | np.timedelta64):
            return made
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return made.cast(kind)  # a column of seconds may lie beyond all nanoseconds
    return made


def _between(bounds: Any) -> tuple[int, int]:
    """From which hash on and before which one values are wanted, of 2^64."""
    try:
        low, high = (Fraction(repr(float(bound))) for bound in bounds)
    except (TypeError, ValueError, OverflowError):
        low = high = Fraction(0)
    if not 0 <= low < high <= 1:
        raise ConfigError(
            f"where: hash is {bounds!r}; two ascending numbers from 0 to 1, such as [0, 0.01]"
        )
    return int(low * (1 << 64)), int(high * (1 << 64))


def _hashed(values: Any, low: int, high: int) -> Mask:
    """The values whose hash lies between; nulls have that of the empty text, numbers that of how
    they are written."""
    texts = arrow("pyarrow.compute").fill_null(values.cast(arrow().large_string()), "")
    # Each different value is hashed once.
    coded = texts.dictionary_encode()
    hashes = keys_of(coded.dictionary.to_pylist())[coded.indices.to_numpy()]
    return (hashes >= low) & (hashes <= high - 1)


def _is_text(kind: Any) -> bool:
    types = arrow("pyarrow.types")
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))
