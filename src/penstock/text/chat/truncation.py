"""Truncation of conversations by their oldest turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Literal, TypeAlias, TypeVar, get_args

from .conversation import Conversation

Prepared = TypeVar("Prepared")
Truncate: TypeAlias = Literal["turns", "right", "left", "drop", "error"]
TRUNCATE: tuple[Truncate, ...] = get_args(Truncate)


def list_shorter(conversation: Conversation) -> list[Conversation]:
    """Return a conversation without its oldest turn, without its two oldest, and so on.

    A turn is a question and all that follows until the next one. System messages at the start stay,
    and so does the last turn. Of a prompt that must stay in front of its answer, only the prompt is
    shortened.

    Args:
        conversation: the conversation.
    """
    messages, prompt_length = conversation.messages, conversation.prompt_length
    head = len([*takewhile(lambda message: message["role"] in ("system", "developer"), messages)])
    starts = [i for i in range(head + 1, len(messages)) if messages[i]["role"] == "user"]
    if prompt_length:
        starts = [start for start in starts if start < prompt_length]
    return [
        Conversation(
            messages[:head] + messages[start:],
            conversation.tools,
            head + prompt_length - start if prompt_length else 0,
        )
        for start in starts
    ]


def drop_turns(
    sequences: Sequence[object], prepare: Callable[[list[Conversation]], Prepared | None]
) -> Prepared | None:
    """Return the longest conversations that fit, without the fewest oldest turns.

    Both sides of a preference pair lose the same turns of their common prompt.

    Args:
        sequences: one conversation, or both of a pair; other sequences have no turns.
        prepare: encodes conversations; returns `None` if one is too long.
    """
    choices = [
        list_shorter(sequence) for sequence in sequences if isinstance(sequence, Conversation)
    ]
    if len(choices) < len(sequences):
        return None
    low, high, best = 0, min(map(len, choices)), None
    while low < high:
        middle = (low + high) // 2
        prepared = prepare([shorter[middle] for shorter in choices])
        if prepared is None:
            low = middle + 1
        else:
            best, high = prepared, middle
    return best
