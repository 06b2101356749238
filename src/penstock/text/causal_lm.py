"""Fields of batches for language model trainers: ids, labels, positions, masks, boundaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ..arguments import check_choice, check_int
from ..arrays.dtypes import cast_array
from ..engine.packing.row import ADDED_COLUMNS, SOURCE_COLUMNS
from ..errors import ConfigError, DataError

Array: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int64]

Field: TypeAlias = Literal[
    "input_ids", "labels", "attention_mask", "position_ids", "segment_ids", "seq_idx", "cu_seqlens",
    "max_seqlen",
    "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv",
    "cu_seqlens_padded", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "use_cache",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
]  # fmt: skip
"""Name of a field that `CausalLM` makes from packed or padded rows, as models call it."""
PositionScope: TypeAlias = Literal["document", "row"]
IntegerDtype: TypeAlias = Literal["int64", "int32"]

FIELDS: tuple[Field, ...] = tuple(field for field in get_args(Field) if field != "use_cache")
"""All fields made from the rows."""

TRANSFORMERS: tuple[Field, ...] = (
    "input_ids", "labels", "position_ids",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache",
)  # fmt: skip
"""Fields with which `model(**batch)` of transformers keeps the documents of a row apart.

They work with all of its attentions, in models that use `position_ids`: not OPT, BLOOM, MPT and
Mamba."""


class CausalLM:
    """Add the fields that trainers want to batches of packed or `Padded` rows.

    Use it in `map` after `batch`. The batch has `segment_ids`, and `tokens` or `input_ids`; without
    these, the tokens are its only feature of integers (see `find_tokens`). It may have `loss_mask`
    (true for tokens that are learned) and `labels` (instead of the tokens themselves). Other
    features stay as they are. The fields, for `B` rows of `T`:

    - `input_ids`: `[B, T]`.
    - `labels`: `[B, T]`: the token itself, for models that shift (those of transformers do), or the
      next one with `shift`. `ignore` if `loss_mask` is false, or no token of the same document
      comes before it (with `shift`: after it).
    - `attention_mask`: `[B, T]`, 1 for tokens and 0 for padding. It does not separate documents:
      leave it out for packed rows.
    - `position_ids`: `[B, T]`, from 0 in every document, or in every row; 0 for padding in
      documents.
    - `segment_ids`: `[B, T]`, int32: 1, 2, ... for the documents of a row, 0 for padding.
    - `seq_idx`: `[B, T]`, int32: 0, 1, ... for the documents of a row, or of the flattened batch, as
      Mamba layers of hybrid models take them. Padding counts as a document.
    - `cu_seqlens`: int32, the starts of documents in the batch laid end to end, and its end, as
      flash-attn's varlen functions take it. Padding counts as a document. `max_seqlen` is the
      longest, an `int`.
    - `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k`: the transformers names of
      these.
    - `use_cache`: False. With a cache, their default, models of transformers ignore documents in
      `position_ids`.
    - `cu_seqlens_padded`: int32, the starts of documents, and the end of the batch, each document
      with the padding after it, as Transformer Engine takes rows of `pack(pad_to_multiple=)`.
      `cu_seqlens` is then without padding, with as many entries, and `max_seqlen` with it.
    - `cu_seqlens_q`, `cu_seqlens_kv`, `cu_seqlens_q_padded`, `cu_seqlens_kv_padded`,
      `max_seqlen_q`, `max_seqlen_kv`: the names of Megatron's `PackedSeqParams` for these.

    Args:
        fields: the fields to make.
        shift: make labels the next tokens.
        positions: restart `position_ids` in every "document" or every "row".
        flatten: lay rows end to end without padding, `[1, tokens]`, like
            `DataCollatorWithFlattening`.
        ignore: the label of tokens that are not learned.
        dtype: of ids, labels, positions and masks: torch's losses take int64, JAX has int32.

    Raises:
        ConfigError: for unknown fields and other unknown choices.
        DataError: for batches that are not rows with `segment_ids`.

    >>> import penstock as ps
    >>> rows = ps.from_sequence([[5, 6, 7], [8, 9]]).pack(6).batch(1)
    >>> batch = next(iter(rows.map(CausalLM(("labels", "cu_seqlens"), shift=True))))
    >>> batch["labels"].tolist(), batch["cu_seqlens"].tolist()
    ([[6, 7, -100, 9, -100, -100]], [0, 3, 5, 6])
    """

    def __init__(
        self,
        fields: Sequence[Field] = ("input_ids", "labels", "position_ids"),
        *,
        shift: bool = False,
        positions: PositionScope = "document",
        flatten: bool = False,
        ignore: int = -100,
        dtype: IntegerDtype = "int64",
    ) -> None:
        if isinstance(fields, str) or not fields:
            raise ConfigError(
                f"CausalLM(fields={fields!r}): give a tuple of names, such as ('input_ids', 'labels')"
            )
        for field in fields:
            check_choice(field, get_args(Field), "CausalLM(fields: {})")
        check_choice(positions, get_args(PositionScope), "CausalLM(positions={})")
        check_choice(dtype, get_args(IntegerDtype), "CausalLM(dtype={})")
        self.padded = any(field.endswith("_padded") for field in fields)
        if flatten and self.padded:
            raise ConfigError(
                "CausalLM(flatten=True): flattened rows have no padding: use cu_seqlens alone"
            )
        self.fields, self.shift, self.positions, self.flatten = (
            tuple(fields),
            shift,
            positions,
            flatten,
        )
        self.ignore, self.dtype = check_int(ignore, "CausalLM(ignore={})"), dtype
        settings = (
            f"{', '.join(self.fields)}; {shift=}, {positions=}, {flatten=}, {ignore=}, {dtype=}"
        )
        self.__qualname__ = f"CausalLM({settings})"

    def __call__(self, batch: Any) -> dict[str, Any]:
        rows = _Rows(*require_rows(batch, "CausalLM"), self)
        known = {rows.tokens_name, *_KNOWN}
        out = {name: value for name, value in rows.batch.items() if name not in known}
        if self.flatten:
            out = {name: rows.flattened(value) for name, value in out.items()}
        return out | {field: _MAKERS[field](rows) for field in self.fields}


class NamedRows(NamedTuple):
    """A batch of packed or padded rows, and the name of its tokens."""

    batch: Mapping[str, Any]
    tokens_name: str


def require_rows(batch: Any, owner: str) -> NamedRows:
    """Return packed or padded rows with the name of their tokens.

    Args:
        batch: a row, or a batch of rows.
        owner: the function that takes them, for the error.

    Raises:
        DataError: if the batch has no `segment_ids`, or no feature that must be the tokens.
    """
    fields = cast("Mapping[str, Any]", batch if isinstance(batch, Mapping) else {})
    name, segments = find_tokens(fields), cast("Any", fields.get("segment_ids"))
    if name is not None and np.ndim(segments) and np.shape(fields[name]) == np.shape(segments):
        return NamedRows(fields, name)
    names = _find_token_columns(fields)
    if name is None and names:
        raise DataError(
            f"{owner} takes rows with tokens or input_ids, or one feature of integers, not "
            f"{', '.join(names)}: name the tokens before, as in "
            f'.rename({{"{names[0]}": "input_ids"}}) after .pack(length)'
        )
    description = (
        f"one with {', '.join(fields)}" if fields else f"a {type(cast(object, batch)).__name__}"
    )
    raise DataError(
        f"{owner} takes batches with tokens (or input_ids) and segment_ids, not {description}: "
        "map over .pack(length).batch(n) or over .batch(n, collate=Padded())"
    )


def find_tokens(columns: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the name of the tokens of a row or a batch, or `None`.

    This is `tokens` or `input_ids`. Packed and padded rows may have another name: their only feature
    with an integer for every token, apart from fields that have a meaning, such as `labels`.

    Args:
        columns: field -> values.
        prefix: the beginning of the names, as "chosen_".

    >>> row = {"ids": np.arange(3), "labels": np.arange(3), "segment_ids": np.ones(3, np.int32)}
    >>> find_tokens(row), find_tokens({"ids": np.arange(3)})
    ('ids', None)
    """
    for name in _TOKEN_NAMES:
        if prefix + name in columns:
            return prefix + name
    names = _find_token_columns(columns) if not prefix else []
    return names[0] if len(names) == 1 else None


def _find_token_columns(columns: Mapping[str, Any]) -> list[str]:
    """Return the features of packed rows that could be tokens under another name."""
    shape = np.shape(cast("Any", columns.get("segment_ids")))
    return [
        name
        for name, value in columns.items()
        if shape
        and name not in _KNOWN | SOURCE_COLUMNS
        and getattr(value, "shape", None) == shape
        and np.asarray(value).dtype.kind in "iu"
    ]


class _DocumentBounds(NamedTuple):
    """Starts and sizes of documents in rows laid end to end; padding is a document too."""

    starts: Ints
    sizes: Ints


class _Rows:
    """A batch of rows with derived document boundaries."""

    def __init__(self, batch: Mapping[str, Any], tokens_name: str, config: CausalLM) -> None:
        self.batch, self.tokens_name, self.config = batch, tokens_name, config
        self.ids: Array = np.asarray(batch["segment_ids"])

    @cached_property
    def documents(self) -> _DocumentBounds:
        begins = np.ones(self.ids.shape, np.bool_)
        np.not_equal(self.ids[..., 1:], self.ids[..., :-1], out=begins[..., 1:])
        starts = np.flatnonzero(begins)
        return _DocumentBounds(starts, np.diff(starts, append=self.ids.size))

    @cached_property
    def padded(self) -> tuple[Ints, Ints]:
        """Return the tokens of each document, without and with the padding after it.

        Padding at the start of a row is a document without tokens.
        """
        starts, sizes = self.documents
        is_padding = self.ids.reshape(-1)[starts] == 0
        after = is_padding & (starts % self.ids.shape[-1] != 0)
        sizes = np.where(is_padding, 0, sizes)
        return sizes[~after], np.diff(starts[~after], append=self.ids.size)

    def flattened(self, value: Any) -> Any:
        """Return per-token values end to end without padding, and other values unchanged."""
        array = cast("Array", value)
        if not isinstance(value, np.ndarray) or array.shape[: self.ids.ndim] != self.ids.shape:
            return array
        return array[self.ids > 0][None]

    def output(self, values: Array, dtype: str | None = None) -> Array:
        """Return per-token values in the configured dtype and form."""
        typed = self.typed(values, dtype or self.config.dtype)
        return self.flattened(typed) if self.config.flatten else typed

    def typed(self, values: Array, dtype: str) -> Array:
        """Return values in another dtype.

        Raises:
            DataError: if the dtype does not hold a value.
        """
        try:
            return cast_array(values, np.dtype(dtype)).astype(dtype, copy=False)
        except OverflowError as error:
            raise DataError(f"CausalLM(dtype={dtype!r}): {error}") from None

    def feature(self, name: str, kinds: str = "biu") -> Array | None:
        """Return a feature with one number per token; `None` if the batch has none of this name."""
        if name not in self.batch:
            return None
        values: Array = np.asarray(self.batch[name])
        if values.shape != self.ids.shape or values.dtype.kind not in kinds:
            shape, actual = list(self.ids.shape), f"{values.dtype}{list(values.shape)}"
            raise DataError(
                f"CausalLM: {name!r} is {actual}, and must be a number for every token, {shape}"
            )
        return values

    def tokens(self) -> Array:
        """Return the token ids; `require_rows` checked that they exist."""
        return cast("Array", self.feature(self.tokens_name))

    def labels(self) -> Array:
        ignore, provided = self.config.ignore, self.feature("labels")
        labels = self.typed(
            self.tokens() if provided is None else provided, self.config.dtype
        ).astype(self.config.dtype, order="C")
        labels.reshape(-1)[self.documents.starts] = ignore
        labels[self.ids == 0] = ignore
        if (mask := self.feature("loss_mask", "biuf")) is not None:
            labels[mask == 0] = ignore
        if self.config.shift:
            labels[..., :-1] = labels[..., 1:]
            labels[..., -1] = ignore
        return self.output(labels)

    def positions(self) -> Array:
        if self.config.positions == "row":
            positions: Array = np.empty(self.ids.shape, self.config.dtype)
            positions[...] = np.arange(self.ids.shape[-1])
            return self.output(positions)
        starts, sizes = self.documents
        positions = np.arange(self.ids.size, dtype=self.config.dtype)
        positions -= np.repeat(starts.astype(self.config.dtype), sizes)
        positions = positions.reshape(self.ids.shape)
        positions[self.ids == 0] = 0
        return self.output(positions)

    def sequence_numbers(self) -> Array:
        """Return the number of the document of each token, within its row or the flattened batch."""
        starts, sizes = self.documents
        if self.config.flatten:
            numbers = cast("Ints", np.cumsum(self.ids.reshape(-1)[starts] > 0) - 1)
        else:
            rows = starts // self.ids.shape[-1]
            numbers = cast("Ints", np.arange(len(starts)) - np.searchsorted(rows, rows))
        return self.output(np.repeat(numbers, sizes).reshape(self.ids.shape), "int32")

    def sizes(self) -> Ints:
        """Return the sizes of the documents laid end to end."""
        starts, sizes = self.documents
        if self.config.padded:
            return self.padded[0]
        return sizes[self.ids.reshape(-1)[starts] > 0] if self.config.flatten else sizes

    def boundaries(self) -> Array:
        return _accumulate_sizes(self.sizes())

    def padded_boundaries(self) -> Array:
        return _accumulate_sizes(self.padded[1])

    def longest(self) -> int:
        return int((self.padded[1] if self.config.padded else self.sizes()).max(initial=0))


def _accumulate_sizes(sizes: Ints) -> Array:
    out = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=out[1:])
    return out


_MAKERS: dict[Field, Callable[[_Rows], Any]] = {
    "input_ids": lambda rows: rows.output(rows.tokens()),
    "labels": _Rows.labels,
    "attention_mask": lambda rows: rows.output(rows.ids > 0),
    "position_ids": _Rows.positions,
    "segment_ids": lambda rows: rows.output(rows.ids, "int32"),
    "seq_idx": _Rows.sequence_numbers,
    "use_cache": lambda rows: False,
    **dict.fromkeys(
        ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_kv"),
        _Rows.boundaries,
    ),
    **dict.fromkeys(
        ("cu_seqlens_padded", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"),
        _Rows.padded_boundaries,
    ),
    **dict.fromkeys(
        ("max_seqlen", "max_length_q", "max_length_k", "max_seqlen_q", "max_seqlen_kv"),
        _Rows.longest,
    ),
}
_TOKEN_NAMES = ("tokens", "input_ids")
_KNOWN = {"tokens", "loss_mask", *ADDED_COLUMNS, *get_args(Field)}
