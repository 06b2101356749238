"""Token ids with their loss mask, from one encoded text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ..offset_tokenizers import Encoded, mask_tokens
from .rendering import LearnedText, StepLabel

_IGNORED_LABEL = -100


class EncodedRow:
    """The features of one encoded text.

    Args:
        prepared: the text and its spans.
        encoded: its tokens.

    Attributes:
        dropped_labels: the number of labels of empty steps that have no token.

    Raises:
        DataError: if a step that is not empty has no token for its label.
    """

    def __init__(self, prepared: LearnedText, encoded: Encoded) -> None:
        self.size, self._expansion = len(encoded.ids), prepared.expansion
        self._ids: npt.NDArray[np.int32] = np.array(encoded.ids, np.int32)
        text = prepared.encoder_input.text
        self.mask = mask_tokens(encoded, text, prepared.spans)
        self._labels: npt.NDArray[np.int32] | None = None
        self.dropped_labels = 0
        if prepared.labels is not None:
            places = _place_labels(encoded, prepared.labels)
            self._labels = np.full(self.size, _IGNORED_LABEL, np.int32)
            self._labels[[*places]] = [*places.values()]
            self.mask = self._labels != _IGNORED_LABEL
            self.dropped_labels = len(prepared.labels) - len(places)

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


def _place_labels(encoded: Encoded, labels: list[StepLabel]) -> dict[int, int]:
    """Return labels by the last token of their steps.

    A token such as "\\n\\n" may end a step and the empty ones behind it. It has the label of the
    step with a text.

    Raises:
        DataError: if a step with a text has no token, or ends in one token with another.
    """
    places, texts = dict[int, int](), dict[int, int]()
    for number, ((start, stop), label, is_empty) in enumerate(labels):
        token, (first, before) = encoded.find(stop)[0] - 1, encoded.find(start)
        has_token = token >= first or (token >= 0 and before < start)
        if is_empty:
            if has_token and token not in texts:
                places[token] = label
        elif not has_token or token in texts:
            other = f"step {texts[token]} ends in the same" if has_token else "it has no"
            raise DataError(
                f"step {number} of the sample cannot have its label, since {other} token: join such "
                "steps in a map before"
            )
        else:
            places[token], texts[token] = label, number
    return places
