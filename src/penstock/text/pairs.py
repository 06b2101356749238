"""Padded batches of preference pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ..arguments import check_choice, check_int
from ..arrays.dtypes import cast_array, concatenate, make_exact_array
from ..errors import ConfigError, DataError
from .causal_lm import IntegerDtype
from .padding import pad_columns

Array: TypeAlias = npt.NDArray[Any]
PairField: TypeAlias = Literal[
    "input_ids", "attention_mask", "completion_mask", "labels", "position_ids"
]

SIDES = ("chosen", "rejected")
_SIDE_FEATURES = tuple(f"{side}_{name}" for side in SIDES for name in ("tokens", "loss_mask"))


class PaddedPairs:
    """Collate preference pairs to one padded batch, as TRL's `DPOTrainer` takes it.

    The pairs are those of `Chat`: `chosen_tokens`, `chosen_loss_mask`, `rejected_tokens` and
    `rejected_loss_mask`. A batch of `B` pairs has `2 * B` rows: first the chosen ones, then the
    rejected ones in the same order, all padded on the right to the longest. The fields:

    - `input_ids`: the tokens.
    - `attention_mask`: 1 for tokens, 0 for padding.
    - `completion_mask`: 1 for tokens that are learned.
    - `labels`: the tokens that are learned, and -100 for all others, for models that shift.
    - `position_ids`: positions from 0 in every row, and 0 for padding.

    Other fields of the pairs, with one value a pair, are collated as usual.

    Args:
        fields: the fields to make.
        pad: the id of padding in `input_ids`.
        multiple: pad row lengths to a multiple of this.
        dtype: of all fields: "int64", or "int32" for JAX.

    Raises:
        ConfigError: for unknown fields and other unknown choices.
        DataError: for samples that are not pairs, and tokens without one mask value for each.

    >>> pair = {
    ...     "chosen_tokens": [1, 2, 3], "chosen_loss_mask": [0, 0, 1],
    ...     "rejected_tokens": [1, 2, 4, 5], "rejected_loss_mask": [0, 0, 1, 1],
    ... }
    >>> batch = PaddedPairs()([pair])
    >>> batch["input_ids"].tolist(), batch["completion_mask"].tolist()
    ([[1, 2, 3, 0], [1, 2, 4, 5]], [[0, 0, 1, 0], [0, 0, 1, 1]])
    """

    def __init__(
        self,
        fields: Sequence[PairField] = ("input_ids", "attention_mask", "completion_mask"),
        *,
        pad: int = 0,
        multiple: int = 1,
        dtype: IntegerDtype = "int64",
    ) -> None:
        if isinstance(fields, str) or not fields:
            raise ConfigError(
                f"PaddedPairs(fields={fields!r}): give a tuple of names, such as ('input_ids',)"
            )
        for field in fields:
            check_choice(field, get_args(PairField), "PaddedPairs(fields: {})")
        check_choice(dtype, get_args(IntegerDtype), "PaddedPairs(dtype={})")
        self.fields, self.dtype = tuple(fields), dtype
        self.pad = check_int(pad, "PaddedPairs(pad={})", 0)
        self.multiple = check_int(multiple, "PaddedPairs(multiple={})", 1)
        self.__qualname__ = f"PaddedPairs({', '.join(self.fields)}; {pad=}, {multiple=}, {dtype=})"

    def __call__(self, pairs: Sequence[Any]) -> dict[str, Any]:
        sides = [_read_side(pair, side) for side in SIDES for pair in pairs]
        lengths = np.array([len(tokens) for tokens, _ in sides])
        width = -(-int(lengths.max(initial=1)) // self.multiple) * self.multiple
        is_token = np.arange(width) < lengths[:, None]
        tokens: Array = np.full(is_token.shape, self.pad, self.dtype)
        try:
            tokens[is_token] = cast_array(
                concatenate([ids for ids, _ in sides]), np.dtype(self.dtype)
            )
        except OverflowError as error:
            raise DataError(f"PaddedPairs(dtype={self.dtype!r}): {error}") from None
        is_learned = np.zeros(is_token.shape, np.bool_)
        is_learned[is_token] = np.concatenate([mask for _, mask in sides])
        made: dict[PairField, Array] = {
            "input_ids": tokens,
            "attention_mask": is_token.astype(self.dtype),
            "completion_mask": is_learned.astype(self.dtype),
            "labels": np.where(is_learned, tokens, np.asarray(-100, self.dtype)),
            "position_ids": np.where(is_token, np.arange(width), 0).astype(self.dtype),
        }
        others = [
            {name: value for name, value in pair.items() if name not in _SIDE_FEATURES}
            for pair in pairs
        ]
        collated = pad_columns(others) if any(others) else {}
        return {**collated, **{field: made[field] for field in self.fields}}


def pair_length(pair: Mapping[str, Any]) -> int:
    """Return the tokens of the longer side of a pair, to which both sides are padded.

    For `size=` of `bucket_by_length` and `batch_by_tokens`.

    Args:
        pair: a pair of `Chat`.

    Raises:
        DataError: for a sample that is no pair.

    >>> pair_length({"chosen_tokens": [1, 2, 3], "rejected_tokens": [1, 2]})
    3
    """
    return max(len(_require_pair(pair, f"{side}_tokens")) for side in SIDES)


def _require_pair(pair: Any, name: str) -> Any:
    """Return a feature of a pair.

    Raises:
        DataError: if the sample does not have it.
    """
    fields = cast("Mapping[str, Any]", pair if isinstance(pair, Mapping) else {})
    if name not in fields:
        description = ", ".join(map(str, fields)) or f"a {type(cast(object, pair)).__name__}"
        raise DataError(
            f"a preference pair has {', '.join(_SIDE_FEATURES)}, and the sample has {description}: "
            "make pairs with .map(Chat(tokenizer, 'preference'))"
        )
    return fields[name]


def _read_side(pair: Any, side: str) -> tuple[Array, Array]:
    """Return the tokens of one side, and which of them are learned.

    Raises:
        DataError: if they are not vectors of one length.
    """
    tokens = make_exact_array(_require_pair(pair, f"{side}_tokens"))
    mask = np.asarray(_require_pair(pair, f"{side}_loss_mask"))
    if tokens.ndim != 1 or mask.shape != tokens.shape or tokens.dtype.kind not in "iu":
        raise DataError(
            f"{side}_tokens is {tokens.dtype}{list(tokens.shape)} and {side}_loss_mask is "
            f"{mask.dtype}{list(mask.shape)}: give a vector of ids, and a mask of the same length"
        )
    return tokens, mask != 0
