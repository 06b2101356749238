"""Token ids with their loss mask, from one encoded text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .encoding import Encoded, mask_tokens
from .rendering import LearnedText

_IGNORED_LABEL = -100


class EncodedRow:
    """The features of one encoded text.

    Args:
        prepared: the text and its spans.
        encoded: its tokens.
    """

    def __init__(self, prepared: LearnedText, encoded: Encoded) -> None:
        self.size, self._expansion = len(encoded.ids), prepared.expansion
        self._ids: npt.NDArray[np.int32] = np.array(encoded.ids, np.int32)
        text = prepared.encoder_input.text
        self.mask = mask_tokens(encoded, text, prepared.spans)
        self._labels: npt.NDArray[np.int32] | None = None
        if prepared.labels is not None:
            self._labels = np.full(self.size, _IGNORED_LABEL, np.int32)
            for position, label in prepared.labels:
                token = mask_tokens(encoded, text, [(0, position + 1)]).sum() - 1
                self._labels[token] = label
            self.mask = self._labels != _IGNORED_LABEL

    @property
    def has_media(self) -> bool:
        """True if tokens stand for media, which cannot be cut."""
        return self._expansion is not None and len(self._expansion.texts) > 0

    def cut(self, limit: int, is_left: bool) -> EncodedRow:
        """Keep the tokens at one end.

        Args:
            limit: the number of tokens to keep.
            is_left: whether the first tokens are cut off, instead of the last.
        """
        part = slice(self.size - limit if self.size > limit else 0, None)
        part = part if is_left else slice(limit)
        self._ids, self.mask = self._ids[part], self.mask[part]
        self._labels = None if self._labels is None else self._labels[part]
        self.size = len(self._ids)
        return self

    def features(self) -> dict[str, Any]:
        """Return the arrays by name."""
        arrays: dict[str, Any] = {"tokens": self._ids, "loss_mask": self.mask}
        if self._labels is not None:
            arrays["labels"] = self._labels
        if self._expansion is not None:
            arrays |= self._expansion.select_features(self._ids)
        return arrays
