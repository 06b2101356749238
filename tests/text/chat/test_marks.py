"""Marks: the quick readers of renderings give what the general one gives."""

from __future__ import annotations

import random

from penstock.text.chat import marks
from penstock.text.chat.marks import (
    DATA,
    GENERATION_END,
    GENERATION_START,
    Rendering,
    mark_part,
    read_marks,
)


def random_rendering(rng: random.Random) -> str:
    pieces = list[str]()
    kinds = rng.choice([("text",), ("block",), ("part",), ("block", "part"), ("block", "data")])
    for _ in range(rng.randint(0, 6)):
        text = rng.choice(["", "yes", " two words ", "\n", "ünï", "你好"])
        match rng.choice(kinds):
            case "block":
                pieces.append(f"{GENERATION_START}{text}{GENERATION_END}")
            case "part":
                pieces.append(mark_part(text, rng.choice([0, 3, 17, 300])))
            case "data":
                pieces.append(f"<{DATA}s>")
            case _:
                pieces.append(text)
        pieces.append(rng.choice(["", "|", " and "]))
    if rng.random() < 0.2:  # a template that cuts a text
        pieces = ["".join(pieces)[: rng.randint(0, 20)], "rest"]
    return "".join(pieces)


def test_all_readers_agree() -> None:
    rng, quick = random.Random(5), 0
    for _ in range(2000):
        marked = random_rendering(rng)
        expected: Rendering = marks._read_any_marks(marked)
        assert read_marks(marked) == expected
        quick += any(mark in marked for mark in marks._MARKS) and bool(marks._read_pairs(marked))
    assert quick > 500
