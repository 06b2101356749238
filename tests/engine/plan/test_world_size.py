"""A number of ranks is for questions about steps alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps

PLAN = ps.from_sequence(range(40), name="numbers").batch(4).plan

QUESTIONS: dict[str, Callable[[], Any]] = {
    "at": lambda: PLAN.at(3, world_size=2),  # pyright: ignore[reportCallIssue, reportArgumentType]
    "at, of a slice": lambda: PLAN.at(slice(0, 3), world_size=2),  # pyright: ignore[reportCallIssue, reportArgumentType]
    "find": lambda: PLAN.find("numbers", 3, world_size=2),
    "find, in a range": lambda: PLAN.find("numbers", 3, range(4), world_size=2),
    "iter_find": lambda: list(PLAN.iter_find("numbers", 3, world_size=2)),
    "counts": lambda: PLAN.counts(3, world_size=2),
    "seen": lambda: PLAN.seen(3, world_size=2),
    "seen, of all": lambda: PLAN.seen(world_size=2),
}


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_about_positions_refuses_it(ask: Callable[[], Any]) -> None:
    with pytest.raises(ps.ConfigError, match="ask about a step, or leave out world_size"):
        ask()


def test_seen_takes_a_position_or_a_step() -> None:
    with pytest.raises(ps.ConfigError, match="either a position or a step"):
        PLAN.seen(3, step=1)


def test_the_remedy_works() -> None:
    assert [sample.index for sample in PLAN.at(step=3, world_size=2)] == list(range(24, 32))
    assert PLAN.find("numbers", 3, steps=range(4), world_size=2) == [0]
    assert PLAN.counts(step=3, world_size=2) == {"numbers": 24}
    assert PLAN.seen(step=3, world_size=2).samples == {"numbers": 24}
