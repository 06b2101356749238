"""Counts of the samples that a `Chat` changed or dropped, of this process and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from logging import getLogger
from typing import NamedTuple

from ...engine.base.event_counts import EVENT_COUNTS
from ...engine.base.machine import get_pid

_NUMBERS = count()
_REPORTS = {
    "shortened": "samples over max_length, which were shortened",
    "too_long": "samples over max_length, which were dropped",
    "untrained": "samples in which no token carries loss",
    "changed_answers": "answers that the chat template changed or dropped; the loss covers what is "
    "left of them",
    "dropped_tools": "samples with schemas of tools, which the chat template, or a prompt that is a "
    "text, does not write",
    "dropped_calls": "tool calls, which the chat template does not write: choose another template, or "
    "leave such samples out",
    "dropped_messages": "messages that the chat template does not write: check their roles, or map "
    "them by roles=",
    "dropped_systems": "fields system, which are left out since they are no texts, or since the messages "
    "begin with another system message: leave one of them out",
    "dropped_nulls": "null keys of tool calls and tools, which are left out, since columnar files add "
    "such keys; arguments as JSON text keep theirs",
    "unknown_roles": "messages of roles that the chat template does not name, which are no answers: map "
    "them by roles=",
    "dropped_labels": "labels of empty steps, which have no token of their own: leave out empty steps",
    "control_tokens": "samples with control tokens in their text, which are encoded as text; "
    "allowed_special= would make them tokens",
}


class ChatStats(NamedTuple):
    """Counts of the samples that a `Chat` encoded in this process and its worker processes.

    A sample that is encoded again, such as after an error or a resume, counts again.

    Attributes:
        samples: samples that were read.
        shortened: samples that were truncated.
        too_long: samples that were dropped since they do not fit.
        untrained: samples in which no token carries loss, dropped or not.
        changed_answers: answers that the template dropped or changed in part.
        control_tokens: samples with control tokens in the data, encoded as text.
        dropped_tools: samples with schemas of tools, which the template does not write, or whose
            prompt is a text.
        dropped_calls: tool calls, which the template does not write.
        dropped_messages: messages of any role that the template does not write. Answers that are
            learned count in `changed_answers` instead.
        dropped_systems: fields `system` that are no texts, or beside another system message.
        dropped_nulls: null keys of tool calls and tools, which are left out.
        unknown_roles: messages of roles that neither `roles=` nor the template names.
        dropped_labels: labels of empty steps, whose token ends another step too, or is missing.
    """

    samples: int = 0
    shortened: int = 0
    too_long: int = 0
    untrained: int = 0
    changed_answers: int = 0
    control_tokens: int = 0
    dropped_tools: int = 0
    dropped_calls: int = 0
    dropped_messages: int = 0
    dropped_systems: int = 0
    dropped_nulls: int = 0
    unknown_roles: int = 0
    dropped_labels: int = 0


class SampleCounter:
    """Counts for one `Chat` and its copies in worker processes, which send what they count."""

    def __init__(self) -> None:
        self._name = f"chat {get_pid()}-{next(_NUMBERS)}"

    def totals(self) -> ChatStats:
        """Return the counts so far."""
        names = [f"{self._name} {field}" for field in ChatStats._fields]
        return ChatStats(*EVENT_COUNTS.totals(names).values())

    def add(self, news: Mapping[str, int]) -> None:
        """Add counts, and report each that has one digit more.

        Args:
            news: numbers by the fields of `ChatStats`.
        """
        for field, number in news.items():
            EVENT_COUNTS.add(f"{self._name} {field}", number)
        if any(news.get(field) for field in _REPORTS):
            totals = self.totals()
            for field, report in _REPORTS.items():
                after: int = getattr(totals, field)
                before = after - news.get(field, 0)
                if after and (not before or len(str(before)) < len(str(after))):
                    getLogger("penstock").warning(
                        "Chat: %s: %s, in %s samples so far",
                        report, f"{after:,}", f"{totals.samples:,}",
                    )  # fmt: skip
