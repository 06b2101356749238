"""`Packing`: the options of `pack`, validated when the pipeline is described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import numpy as np

from ...arguments import check_choice, check_int
from ...arrays.dtypes import TOKEN_DTYPE, cast_scalar
from ...arrays.trees import collate
from ...errors import ConfigError, DataError
from ...schedule import Schedule
from ...types import MAX_POSITION, Fold, Json, Sizer
from ..base.rows import compute_bounds
from ..base.step_plan import parse_number_plan
from ..grouping.concat_split import LONG_CHOICES, LONG_IN_STATES, ConcatSplit, Long, Overflow, Piece
from ..grouping.grouped_by_key import SOURCE, Apart
from ..grouping.row_lengths import LengthPlan
from ..grouping.whole_documents import BestFit, FirstFit
from .plan import PlannedPieces
from .row import Array, RowBuilder, RowFormat, build_rows

Method: TypeAlias = Literal["concat_split", "first_fit", "best_fit"]

DType: TypeAlias = np.dtype[Any] | type[Any] | str | None

METHODS: tuple[Method, ...] = get_args(Method)

_ONLY_IF_GIVEN = ("provenance", "untrained")
"""Options that a description names only if they are given."""

Untrained: TypeAlias = Literal["keep", "skip"]
"""Handling of documents without a token that carries loss."""

UNTRAINED: tuple[Untrained, ...] = get_args(Untrained)


@dataclass(frozen=True)
class Packing(RowBuilder):
    """Options of packing documents into rows of `length` tokens.

    `method`, `long`, `max_segments`, `open_rows` (64 for first_fit, 4 for best_fit), `window`
    (1,000, or 4,000 to crop), `overflow` and `rows` (three for best_fit) choose the fold, see
    `ConcatSplit`, `FirstFit`, `BestFit`. The others define how a row is built:

    - Documents are arrays or lists of numbers, named `tokens` in the row, or mappings of features.
      `features` (default: all) are packed along axis 0. `unpacked` features are collected in a list
      with one entry per segment. Other features are an error. The first feature counts the tokens;
      the others must have the same length.
    - `pad` is the padding value, or `{feature: value}` with 0 for the rest. Give labels the value
      that the loss ignores, often -100.
    - `bos` and `eos` add a token before and after every document, and count as tokens. A split
      document has BOS only at its start and EOS only at its end; `long="truncate"` drops EOS. An
      id goes to the first feature; the others get their padding, so the loss ignores it.
      `{feature: value}` gives each feature its own.
    - `pad_to_multiple` pads each document in a row to a multiple, and counts as tokens. The length
      of a row is a multiple of it.
    - Documents with different values of the key `group_by` are in different rows; `__source__` is
      the source.
    - `provenance` adds `source_ids`, the number of the source of each token, -1 in padding. With
      `max_segments`, it adds `segment_sources`, the source of each document, padded with -1.
    - `untrained="skip"` leaves out documents without a token that carries loss in their rows: by
      `loss_mask` or `labels`, with BOS and EOS, and without what `long="truncate"` cuts off.
    - `dtype` is one for all, or `{feature: dtype}`. By default vectors of integers become int32,
      whatever the sources store, and other features get the common dtype of the documents. An
      integer that the dtype cannot hold is an error.

    >>> packing = Packing(6, eos=0, dtype="int32")
    >>> packing.size([5, 6, 7]), packing.extra
    (3, 1)
    >>> from penstock.types import Item
    >>> packing.build([Item(0, 4, [5, 6, 7])])["tokens"]
    array([5, 6, 7, 0, 0, 0], dtype=int32)
    """

    length: int
    method: Method = "concat_split"
    long: Long = "split"
    max_segments: int | None = None
    features: Sequence[str] | None = None
    unpacked: Sequence[str] = ()
    pad: float | dict[str, float] = 0
    bos: int | dict[str, int] | None = None
    eos: int | dict[str, int] | None = None
    dtype: DType | dict[str, DType] = None
    open_rows: int | None = None
    window: int | None = None
    overflow: Overflow | None = None
    rows: int | None = None
    pad_to_multiple: int = 1
    group_by: str | None = None
    provenance: bool = False
    untrained: Untrained = "keep"

    document_level: ClassVar[int] = 1
    masks_documents: ClassVar[bool] = True
    """True for functions that take `Missing` in the place of a document."""

    def __post_init__(self) -> None:
        check_choice(self.method, METHODS, "pack(method={})")
        check_choice(self.long, LONG_CHOICES, "pack(long={})")
        check_choice(self.untrained, UNTRAINED, "pack(untrained={})")
        self._check_unused()
        if self.group_by is not None and not isinstance(self.group_by, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"pack(group_by={self.group_by!r}): give a key of the documents, or {SOURCE!r} for "
                "their sources"
            )
        self.fold()
        self._check_length()
        if isinstance(self.features, str | Mapping) or isinstance(self.unpacked, str | Mapping):
            raise ConfigError(
                "pack: features and unpacked are tuples of names, such as ('input_ids',), not one "
                "name"
            )
        names = None if self.features is None else list(self.features)
        added = self._format.added_columns
        if names is not None and (
            not names or added & {*names, *self.unpacked} or {*names} & {*self.unpacked}
        ):
            raise ConfigError(
                f"pack: features={names} must name at least one feature, none of "
                f"unpacked={list(self.unpacked)}, and not {' or '.join(sorted(added))}, which "
                "packing adds"
            )
        for option in ("pad", "bos", "eos", "dtype"):
            setting = getattr(self, option)
            table = cast("dict[str, Any]", setting) if isinstance(setting, dict) else {"": setting}
            for name in sorted(set(table) - {"", *(names or table)}):
                raise ConfigError(
                    f"pack: {option} names {name!r}, which is not in features={names}"
                )
            if setting is not None or option == "pad":
                for value in table.values():
                    _check_value(option, value)
        if not isinstance(self.dtype, dict):
            for option in ("bos", "eos"):
                self._check_id(option, getattr(self, option))

    def _check_id(self, option: str, value: Any) -> None:
        """Raise `ConfigError` if the dtype of the tokens cannot hold BOS or EOS."""
        kind = self.token_dtype
        if isinstance(value, int | np.integer):
            try:
                cast_scalar(value, kind)
            except OverflowError as error:
                raise ConfigError(
                    f"pack({option}={value}): {error}; pass a dtype= that does"
                ) from None

    def _check_unused(self) -> None:
        fits = self.method != "concat_split"
        if self.open_rows is not None and not fits:
            raise ConfigError(
                "pack: open_rows is for first_fit and best_fit; concat_split has one row open"
            )
        if self.window is not None and self.method != "best_fit":
            raise ConfigError(
                f"pack: window is for best_fit; {self.method} places each document as it comes"
            )
        planned = [
            name
            for name in ("open_rows", "window", "max_segments")
            if getattr(self, name) is not None
        ]
        if isinstance(self.overflow, str) and self.overflow == "crop":  # pyright: ignore[reportUnnecessaryIsInstance]
            self._check_crop()
        for option in ("overflow", "rows"):
            windows = option == "rows" and self.method == "concat_split" and self.group_by == SOURCE
            if getattr(self, option) is not None and self.method != "best_fit" and not windows:
                raise ConfigError(f"pack: {option} is for best_fit, not for {self.method}")
        if self.rows is not None and self.method == "concat_split":
            check_int(self.rows, "pack(rows={})", 4)
        if planned and "split" in (self.overflow, self.rows and "split"):
            raise ConfigError(
                f"pack: {planned[0]} is for overflow='never', which plans rows one after the other"
            )
        if self.rows is not None and self.overflow == "never":
            raise ConfigError(
                "pack: rows is for overflow='split', which packs that many rows at a time"
            )
        if self.long != "split" and not fits:
            raise ConfigError(
                f"pack: long={self.long!r} is for first_fit and best_fit; concat_split splits "
                "documents"
            )

    def _check_crop(self) -> None:
        for option in ("open_rows", "max_segments", "group_by", "rows"):
            if getattr(self, option) is not None:
                raise make_crop_error(option)
        if self.long != "split":
            raise make_crop_error("long")

    def _check_length(self) -> None:
        check_int(self.length, "pack({})", 1, MAX_POSITION)
        multiple = check_int(self.pad_to_multiple, "pack(pad_to_multiple={})", 1)
        if self.length % multiple:
            raise ConfigError(
                f"pack({self.length}, pad_to_multiple={multiple}): the length of a row must be a "
                f"multiple of {multiple}, such as {-(-self.length // multiple) * multiple}"
            )
        if self.truncates and self.length <= self.extra:
            option = "overflow='crop'" if self.overflow == "crop" else "long='truncate'"
            raise ConfigError(
                f"pack({self.length}, {option}): with bos and eos a row of {self.length} has no "
                "room for a token of "
                "a document; use a longer row, or long='split'"
            )

    def fold(self) -> Fold:
        """The fold that decides which documents share a row."""
        return (
            self._fold() if self.group_by is None else Apart(self._fold(), self.group_by, self.rows)
        )

    def plan_fold(self, plan: LengthPlan) -> Fold:
        """Return the fold of rows whose length changes by a plan, which ends with this length."""
        if not isinstance(fold := self.fold(), ConcatSplit) or self.max_segments is not None:
            raise ConfigError(
                "pack(Schedule(...)) is for method='concat_split' without max_segments and group_by"
            )
        for _, length in plan.points:
            replace(self, length=length)  # checks it
        return replace(fold, plan=plan)

    def _fold(self) -> Fold:
        if self.method == "concat_split":
            return ConcatSplit(self.length, self.max_segments)
        if self.method == "first_fit":
            return FirstFit(
                self.length, _apply_default(self.open_rows, 64), self.max_segments, self.long
            )
        rows, window = (
            _apply_default(self.open_rows, 4),
            _apply_default(self.window, 4000 if self.overflow == "crop" else 1000),
        )
        return BestFit(
            self.length, rows, self.max_segments, self.long, window, self._overflow, self.rows
        )

    @property
    def _overflow(self) -> Overflow:
        """The overflow option, with its default.

        The default is "never" for several features, such as tokens with a mask or labels, and if
        options of a planned fold are given.
        """
        planned = (
            self.open_rows is not None or self.window is not None or self.max_segments is not None
        )
        several = self.features is not None and len(self.features) > 1
        return self.overflow or ("never" if planned or (several and self.rows is None) else "split")

    @property
    def extra(self) -> int:
        """The number of tokens that `bos` and `eos` add to a document; folds see `size + extra`."""
        return (self.bos is not None) + (self.eos is not None)

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """The dtype of documents that are vectors of integers."""
        dtype: Any = self.dtype.get("tokens") if isinstance(self.dtype, dict) else self.dtype
        return TOKEN_DTYPE if dtype is None else np.dtype(dtype)

    @property
    def _listed(self) -> Sequence[str]:
        """The features collected in a list, with the key of `group_by`."""
        by = self.group_by
        named = by is None or by == SOURCE or by in self.unpacked or by in (self.features or ())
        return self.unpacked if named else (*self.unpacked, cast("str", by))

    @property
    def sizer(self) -> Sizer:
        """The size of a document for folds."""
        return Sizer(self.size, self.extra, multiple=self.pad_to_multiple)

    @property
    def truncates(self) -> bool:
        """True if documents longer than a row lose their ends."""
        return self.long == "truncate" or self.overflow == "crop"

    def size(self, sample: Any) -> int:
        """Return the tokens of a document without `extra`: the length of its first feature."""
        value, name = sample, "tokens"
        if isinstance(sample, Mapping):
            doc = cast("Mapping[str, Any]", sample)
            names = self.features or [
                key for key in doc if key not in self._listed and not key.startswith("__")
            ]
            if not names or names[0] not in doc:
                raise DataError(
                    f"the document has no feature {names[0]!r} to pack"
                    if names
                    else "an empty document"
                )
            value, name = doc[names[0]], names[0]
        try:
            if not isinstance(value, (str, bytes)):
                return len(value)
        except TypeError:
            pass
        raise DataError(
            f"feature {name!r} has type {type(value).__name__}, not a sequence of tokens: tokenize it in "
            "a map before pack (penstock.text.Tokenize), or name it in unpacked= to keep it beside "
            "the tokens of other features"
        )

    def __call__(self, parts: Sequence[Piece]) -> dict[str, Any]:
        return self.build(parts)

    def build(self, parts: Sequence[Piece], sources: Array | None = None) -> dict[str, Any]:
        """Build the row of these parts."""
        return self.many([parts], sources)[0]

    def many(
        self, groups: Sequence[Sequence[Piece]], sources: Array | None = None
    ) -> list[dict[str, Any]]:
        """Build the rows of many groups; faster than `build` of each for plain documents.

        `sources` has the number of the source of each piece.
        """
        if (stacks := self.stack(groups, [1] * len(groups), sources)) is None:
            parts = split_sources(groups, sources)
            return [self.build(group, part) for group, part in zip(groups, parts, strict=True)]
        return [{name: column[0] for name, column in row.items()} for row in stacks]

    build_with_sources = many

    def stack(
        self, groups: Sequence[Sequence[Piece]], sizes: Sequence[int], sources: Array | None = None
    ) -> list[dict[str, Any]] | None:
        """Build stacks of `sizes` rows, see `build_rows`; None if rows differ in their lengths."""
        form = self._format
        if groups and isinstance(first := groups[0], PlannedPieces) and first.row_length:
            lengths = {cast("PlannedPieces", group).row_length for group in groups}
            if len(lengths) > 1:
                return None
            form = replace(form, length=first.row_length)
        return build_rows(groups, form, sizes, sources)

    @cached_property
    def _format(self) -> RowFormat:
        return RowFormat(
            self.length,
            self.features,
            self._listed,
            self.pad,
            self.bos,
            self.eos,
            self.dtype,
            self.pad_to_multiple,
            self.max_segments,
            self.provenance,
            self.truncates,
        )

    def describe(self) -> Json:
        """Return the options as plain JSON, for fingerprints; some only if they are given."""
        return {
            field.name: _convert_to_json(getattr(self, field.name), field.name)
            for field in fields(self)
            if field.name not in _ONLY_IF_GIVEN or getattr(self, field.name) != field.default
        }


@dataclass(frozen=True)
class PackedBatches:
    """Builder of batches of packed rows in place, without a copy for collation."""

    packing: Packing

    document_level: ClassVar[int] = 2
    masks_documents: ClassVar[bool] = True

    @property
    def provenance(self) -> bool:
        return self.packing.provenance

    def __call__(self, groups: list[Sequence[Piece]]) -> dict[str, Any]:
        return self.many([groups])[0]

    def many(
        self, batches: list[list[Sequence[Piece]]], sources: Array | None = None
    ) -> list[dict[str, Any]]:
        """Build the batches of many lists of groups; `sources` has the source of each piece."""
        groups, sizes = [group for batch in batches for group in batch], [*map(len, batches)]
        stacks = self.packing.stack(groups, sizes, sources) if len(groups) > 1 else None
        if stacks is None or any(isinstance(column, list) for column in stacks[0].values()):
            parts = split_sources(groups, sources)
            edges = compute_bounds(np.asarray(sizes, np.int64)).tolist()
            return [self._collate(groups[a:b], parts[a:b]) for a, b in pairwise(edges)]
        return stacks

    build_with_sources = many

    def _collate(
        self, groups: list[Sequence[Piece]], sources: Sequence[Array | None]
    ) -> dict[str, Any]:
        rows = list[dict[str, Any]]()
        for row, (group, part) in enumerate(zip(groups, sources, strict=True)):
            try:
                rows.append(self.packing.build(group, part))
            except DataError as error:
                error.part = (row, *error.part)
                raise
        return collate(rows)


def split_sources(
    groups: Sequence[Sequence[Piece]], sources: Array | None
) -> Sequence[Array | None]:
    """Return the sources of the pieces of each group; None without sources."""
    if sources is None:
        return [None] * len(groups)
    return np.split(sources, np.cumsum([*map(len, groups)])[:-1])


def make_crop_error(option: str) -> ConfigError:
    """Return the error for an option of packing that does not go with cropping."""
    return ConfigError(
        f"pack: {option} does not go with overflow='crop', which fills every row: leave it out, or "
        "use overflow='never'"
    )


def make_length_plan(schedule: Schedule) -> LengthPlan:
    """Return the row lengths of a schedule.

    Raises:
        ConfigError: if it is no schedule of numbers by steps or tokens.
    """
    plan = parse_number_plan(schedule, "pack(Schedule(...))", "{0: 512, 10_000: 8192}")
    return LengthPlan(plan.points, plan.unit)


def _apply_default(value: int | None, default: int) -> int:
    return default if value is None else value


def _convert_to_json(value: Any, option: str) -> Json:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return {name: _convert_to_json(table[name], option) for name in sorted(table)}
    if isinstance(value, (list, tuple)):
        return list(cast("Sequence[str]", value))
    if option == "long":
        return LONG_IN_STATES.get(value, value)
    if option == "dtype" and value is not None:
        return np.dtype(value).name
    return cast("Json", value.item() if isinstance(value, np.generic) else value)


def _check_value(option: str, value: Any) -> None:
    if option != "dtype":
        if not isinstance(value, (int, float, np.number)):
            raise ConfigError(
                f"pack: {option} must be a number or a dict {{feature: number}}, not {value!r}"
            )
        return
    check_dtype(value, "pack")


def check_dtype(value: Any, step: str) -> None:
    """Raise `ConfigError` unless a value is a NumPy dtype of numbers."""
    try:
        kind = np.dtype(value).kind
    except (TypeError, UnicodeEncodeError):
        raise ConfigError(f"{step}: dtype {value!r} is no NumPy dtype") from None
    if kind in "OSUmM":
        raise ConfigError(f"{step}: dtype {value!r} is not numeric: give one such as 'int32'")
