"""What trainers of language models want of a batch: ids, labels, positions, masks, and where
documents begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ..engine.base.dtypes import narrowed
from ..engine.base.hints import chosen
from ..engine.base.ints import whole
from ..engine.packing.row import OWN
from ..errors import ConfigError, DataError

Array: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int64]

Field: TypeAlias = Literal[
    "input_ids", "labels", "attention_mask", "position_ids", "segment_ids", "cu_seqlens", "max_seqlen",
    "cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv",
    "cu_seqlens_padded", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "use_cache",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
]  # fmt: skip
Positions: TypeAlias = Literal["document", "row"]
Integers: TypeAlias = Literal["int64", "int32"]

FIELDS: tuple[Field, ...] = tuple(field for field in get_args(Field) if field != "use_cache")
"""The fields that are made of the rows."""

TRANSFORMERS: tuple[Field, ...] = (
    "input_ids", "labels", "position_ids",
    "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "use_cache",
)  # fmt: skip
"""The fields by which `model(**batch)` of transformers keeps documents of a row apart, with any of
its attentions, in
models that look at `position_ids`: not OPT, BLOOM, MPT and Mamba."""


class CausalLM:
    """Batches of packed rows, or of `Padded` documents, with the fields that trainers want; for
    `map` after `batch`.

    The batch has `tokens` or `input_ids`, `segment_ids`, and perhaps `loss_mask` (true for tokens
    that are learned) and `labels` (instead of the tokens themselves); other features stay as they
    are. The fields, for `B` rows of `T`:

    - `input_ids`: `[B, T]`.
    - `labels`: `[B, T]`: the token itself where models shift (those of transformers do), the next
      one with `shift`; `ignore` wherever no token of the same document comes before it (with
      `shift`: after it), and where `loss_mask` is false.
    - `attention_mask`: `[B, T]`, 1 for tokens and 0 for padding. It knows no documents: leave it
      out for packed rows.
    - `position_ids`: `[B, T]`, from 0 in every document, or in every row; 0 for padding in
      documents.
    - `segment_ids`: `[B, T]`, int32: 1, 2, ... for the documents of a row, 0 for padding.
    - `cu_seqlens`: int32, where documents begin in the batch laid end to end, and its end, as
      flash-attn's varlen functions take it. Padding counts as a document. `max_seqlen` is the
      longest of them, an `int`.
    - `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k`: the same under the names of
      transformers.
    - `use_cache`: False. With a cache, their default, models of transformers look for no documents
      in `position_ids`.
    - `cu_seqlens_padded`: int32, where documents begin, and the end of the batch, each document
      with the padding after it, as Transformer Engine takes rows of `pack(pad_to_multiple=)`.
      `cu_seqlens` is then without padding, with as many entries, and `max_seqlen` with it.
    - `cu_seqlens_q`, `cu_seqlens_kv`, `cu_seqlens_q_padded`, `cu_seqlens_kv_padded`,
      `max_seqlen_q`, `max_seqlen_kv`: the same under the names of Megatron's `PackedSeqParams`.

    Args:
        fields: the fields to make.
        shift: whether labels are the next tokens.
        positions: whether `position_ids` begin anew with every "document" or every "row".
        flatten: rows end to end without padding, `[1, tokens]`, as `DataCollatorWithFlattening`
            gives them.
        ignore: the label of what is not learned.
        dtype: of ids, labels, positions and masks: torch's losses take int64, JAX has int32.

    Raises:
        ConfigError: for unknown fields and other choices that there are not.
        DataError: for batches that are not of rows with `segment_ids`.

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
        positions: Positions = "document",
        flatten: bool = False,
        ignore: int = -100,
        dtype: Integers = "int64",
    ) -> None:
        if isinstance(fields, str) or not fields:
            raise ConfigError(
                f"CausalLM(fields={fields!r}): a tuple of names, such as ('input_ids', 'labels')"
            )
        for field in fields:
            chosen(field, get_args(Field), "CausalLM(fields: {})")
        chosen(positions, get_args(Positions), "CausalLM(positions={})")
        chosen(dtype, get_args(Integers), "CausalLM(dtype={})")
        self.padded = any(field.endswith("_padded") for field in fields)
        if flatten and self.padded:
            raise ConfigError(
                "CausalLM(flatten=True): nothing is padded there, so ask for cu_seqlens alone"
            )
        self.fields, self.shift, self.positions, self.flatten = (
            tuple(fields),
            shift,
            positions,
            flatten,
        )
        self.ignore, self.dtype = whole(ignore, "CausalLM(ignore={})"), dtype
        told = f"{', '.join(self.fields)}; {shift=}, {positions=}, {flatten=}, {ignore=}, {dtype=}"
        self.__qualname__ = f"CausalLM({told})"

    def __call__(self, batch: Any) -> dict[str, Any]:
        rows = _Rows(_read(batch), self)
        out = {name: value for name, value in rows.batch.items() if name not in _KNOWN}
        if self.flatten:
            out = {name: rows.laid(value) for name, value in out.items()}
        return out | {field: _MADE[field](rows) for field in self.fields}


def _read(batch: Any) -> Mapping[str, Any]:
    """The batch, if it is one of rows."""
    found = cast("Mapping[str, Any]", batch if isinstance(batch, Mapping) else {})
    lead = found.get("tokens", found.get("input_ids"))
    ids = cast("Array", found.get("segment_ids"))
    if lead is None or np.shape(lead) != np.shape(ids) or not np.ndim(ids):
        given = (
            f"one with {', '.join(found)}" if found else f"a {type(cast(object, batch)).__name__}"
        )
        raise DataError(
            f"CausalLM takes batches with tokens (or input_ids) and segment_ids, not {given}: "
            "map over .pack(length).batch(n) or over .batch(n, collate=Padded())"
        )
    return found


class _Documents(NamedTuple):
    """Where the documents of rows laid end to end begin, and how long they are; padding is one
    more."""

    starts: Ints
    sizes: Ints


class _Rows:
    """A batch of rows, and what follows from where their documents begin."""

    def __init__(self, batch: Mapping[str, Any], to: CausalLM) -> None:
        self.batch, self.to = batch, to
        self.ids: Array = np.asarray(batch["segment_ids"])

    @cached_property
    def documents(self) -> _Documents:
        begins = np.ones(self.ids.shape, np.bool_)
        np.not_equal(self.ids[..., 1:], self.ids[..., :-1], out=begins[..., 1:])
        starts = np.flatnonzero(begins)
        return _Documents(starts, np.diff(starts, append=self.ids.size))

    @cached_property
    def padded(self) -> tuple[Ints, Ints]:
        """Of each document its tokens, and those with the padding after it; padding that begins a
        row is a document."""
        starts, sizes = self.documents
        after = (self.ids.reshape(-1)[starts] == 0) & (starts % self.ids.shape[-1] != 0)
        return sizes[~after], np.diff(starts[~after], append=self.ids.size)

    def laid(self, value: Any) -> Any:
        """What has an entry for every token, end to end without padding; all else as it is."""
        array = cast("Array", value)
        if not isinstance(value, np.ndarray) or array.shape[: self.ids.ndim] != self.ids.shape:
            return array
        return array[self.ids > 0][None]

    def told(self, values: Array, dtype: str | None = None) -> Array:
        """An entry for every token, as it is given out."""
        typed = self.typed(values, dtype or self.to.dtype)
        return self.laid(typed) if self.to.flatten else typed

    def typed(self, values: Array, dtype: str) -> Array:
        """The values in another dtype, if it holds each of them."""
        try:
            return narrowed(values, np.dtype(dtype)).astype(dtype, copy=False)
        except OverflowError as error:
            raise DataError(f"CausalLM(dtype={dtype!r}): {error}") from None

    def feature(self, name: str, kinds: str = "biu") -> Array | None:
        """A feature with a number for every token; None where there is none of that name."""
        if name not in self.batch:
            return None
        values: Array = np.asarray(self.batch[name])
        if values.shape != self.ids.shape or values.dtype.kind not in kinds:
            shape, found = list(self.ids.shape), f"{values.dtype}{list(values.shape)}"
            raise DataError(
                f"CausalLM: {name!r} is {found}, and must be a number for every token, {shape}"
            )
        return values

    def tokens(self) -> Array:
        """The ids of the tokens; `_read` saw to it that there are some."""
        found = self.feature("tokens")
        return cast("Array", self.feature("input_ids") if found is None else found)

    def labels(self) -> Array:
        ignore, given = self.to.ignore, self.feature("labels")
        labels = self.typed(self.tokens() if given is None else given, self.to.dtype).astype(
            self.to.dtype, order="C"
        )
        labels.reshape(-1)[self.documents.starts] = ignore
        labels[self.ids == 0] = ignore
        if (mask := self.feature("loss_mask", "biuf")) is not None:
            labels[mask == 0] = ignore
        if self.to.shift:
            labels[..., :-1] = labels[..., 1:]
            labels[..., -1] = ignore
        return self.told(labels)

    def positions(self) -> Array:
        if self.to.positions == "row":
            places: Array = np.empty(self.ids.shape, self.to.dtype)
            places[...] = np.arange(self.ids.shape[-1])
            return self.told(places)
        starts, sizes = self.documents
        places = np.arange(self.ids.size, dtype=self.to.dtype)
        places -= np.repeat(starts.astype(self.to.dtype), sizes)
        places = places.reshape(self.ids.shape)
        places[self.ids == 0] = 0
        return self.told(places)

    def sizes(self) -> Ints:
        """The tokens of the documents that are laid end to end."""
        starts, sizes = self.documents
        if self.to.padded:
            return self.padded[0]
        return sizes[self.ids.reshape(-1)[starts] > 0] if self.to.flatten else sizes

    def borders(self) -> Array:
        return _ends(self.sizes())

    def padded_borders(self) -> Array:
        return _ends(self.padded[1])

    def longest(self) -> int:
        return int((self.padded[1] if self.to.padded else self.sizes()).max(initial=0))


def _ends(sizes: Ints) -> Array:
    out = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=out[1:])
    return out


_MADE: dict[Field, Callable[[_Rows], Any]] = {
    "input_ids": lambda rows: rows.told(rows.tokens()),
    "labels": _Rows.labels,
    "attention_mask": lambda rows: rows.told(rows.ids > 0),
    "position_ids": _Rows.positions,
    "segment_ids": lambda rows: rows.told(rows.ids, "int32"),
    "use_cache": lambda rows: False,
    **dict.fromkeys(
        ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_kv"),
        _Rows.borders,
    ),
    **dict.fromkeys(
        ("cu_seqlens_padded", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"), _Rows.padded_borders
    ),
    **dict.fromkeys(
        ("max_seqlen", "max_length_q", "max_length_k", "max_seqlen_q", "max_seqlen_kv"),
        _Rows.longest,
    ),
}
_KNOWN = {"tokens", "loss_mask", *OWN, *get_args(Field)}
