"""Samples that a chat drops, as rows without tokens: each position still gives exactly one item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from ...errors import Skip
from .chat import Chat

DROPPED_KEY = "__dropped__"
"""Key of a dropped row, with the reason."""


def can_drop(chat: Chat) -> bool:
    """Return whether a chat may drop a sample.

    Args:
        chat: the chat.
    """
    is_cut = chat.max_length is not None and chat.truncate in ("turns", "drop")
    return is_cut or chat.untrained == "skip"


class MarkDropped:
    """Encode samples by a chat, which gives a row without tokens for a sample that it drops.

    So a mixture of chats stays indexed: `remove_dropped` behind it removes these rows.

    Args:
        chat: the chat.
    """

    def __init__(self, chat: Chat) -> None:
        self.chat = self.__wrapped__ = chat  # whose counts `loader.stats()` shows
        self.__qualname__ = f"MarkDropped({chat.__qualname__})"

    def __call__(self, sample: Any) -> dict[str, Any]:
        """Return the tokens and the loss mask of a sample, or a row that says why there are none."""
        (row,) = self.many([sample])
        return row

    def many(self, samples: list[Any]) -> list[dict[str, Any]]:
        """Return the rows of samples, from one call of the tokenizer.

        Args:
            samples: samples in the format of the chat.
        """
        return [
            _make_empty_row(row) if isinstance(row, Skip) else row
            for row in self.chat.many(samples)
        ]


def _make_empty_row(skip: Skip) -> dict[str, Any]:
    empty = {"tokens": np.zeros(0, np.int32), "loss_mask": np.zeros(0, np.bool_)}
    return {**empty, DROPPED_KEY: skip.reason}


def find_drop_reason(row: Any) -> str | None:
    """Return why a row was dropped; `None` for other rows.

    Args:
        row: a result of `MarkDropped`, or any other sample.
    """
    return cast("Mapping[str, Any]", row).get(DROPPED_KEY) if isinstance(row, Mapping) else None


def remove_dropped(row: Any) -> Any:
    """Return a row, for `map(remove_dropped, may_skip=True)`.

    Args:
        row: a result of `MarkDropped`.

    Raises:
        Skip: for a dropped row.
    """
    if (reason := find_drop_reason(row)) is not None:
        raise Skip(reason=reason)
    return row
