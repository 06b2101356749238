"""Values have one spelling in every process: by what they hold, never by where they lie or how they are hashed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.sources.identity import content, value_digest


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Document:
    text: str
    cache: Any = dataclasses.field(default=None, compare=False)


class Page:
    def __init__(self, text: str) -> None:
        self.text, self._seen = text, object()

    @cached_property
    def size(self) -> int:
        return len(self.text)


class Slotted:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


PAIRS: list[tuple[Any, Any]] = [
    ({"a", "b"}, {"a", "c"}),
    (frozenset({1, (2, "x")}), frozenset({1, (2, "y")})),
    ({1: "a", "b": 2}, {1: "a", "b": 3}),
    ({("x", 1): [1]}, {("x", 2): [1]}),
    (Document("a"), Document("b")),
    (Page("a"), Page("b")),
    (Slotted("a"), Slotted("b")),
    (Color.RED, Color.BLUE),
    (Path("/data/a/1.jpg"), Path("/data/a/2.jpg")),
    (date(2026, 1, 1), date(2026, 1, 2)),
    (Decimal("1.0"), Decimal("1.1")),
    (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
    (np.longdouble(1), np.longdouble(2)),
    ([np.arange(3), b"x"], [np.arange(3), b"y"]),
    ({"nested": [{"deep": {3, 1}}]}, {"nested": [{"deep": {3, 2}}]}),
]


@pytest.mark.parametrize(("value", "other"), PAIRS, ids=lambda value: type(value).__name__)
def test_values_are_told_apart_by_what_they_hold(value: Any, other: Any) -> None:
    assert value_digest(value) == value_digest(value) != value_digest(other)


def test_equal_values_are_equal_whatever_their_order_their_caches_and_their_folder() -> None:
    assert value_digest({"a": 1, "b": 2}) == value_digest({"b": 2, "a": 1})
    page = Page("abc")
    before = value_digest(page)
    assert page.size == 3
    assert value_digest(page) == before == value_digest(Page("abc"))
    assert value_digest(Document("a", cache=object())) == value_digest(Document("a"))
    assert value_digest(Path("/here/a/1.jpg")) == value_digest(Path("/there/a/1.jpg"))


def test_what_holds_itself_or_holds_nothing_that_can_be_read_counts_by_its_type() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert value_digest(cycle) == value_digest(cycle)
    assert value_digest(object()) == value_digest(object()) != value_digest(lambda: 0)


def test_tensors_count_by_their_values() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert value_digest(one) == value_digest(one.clone()) != value_digest(one + 1)
    assert value_digest(one.t()) == value_digest(one.t().contiguous()) != value_digest(one)
    assert value_digest(torch.tensor(1.0, requires_grad=True)) != value_digest(torch.tensor(2.0))


def test_images_count_by_their_pixels() -> None:
    images = pytest.importorskip("PIL.Image")
    black, white = images.new("RGB", (2, 2)), images.new("RGB", (2, 2), "white")
    assert value_digest(black) == value_digest(black.copy()) != value_digest(white)


def test_a_list_of_objects_in_another_order_is_another_list() -> None:
    documents = [Document(str(i)) for i in range(100)]
    assert content(documents) == content([*documents]) != content(documents[::-1])


def test_many_objects_are_known_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.identity.WHOLE", 1 << 22)
    documents = [Document(str(i)) for i in range(5_000)]
    assert content(documents) == content([*documents]) != content(documents[::-1])


_CODE = (
    "import sys; sys.path[:0] = {path!r}; import test_values as t; print(*map(t.value_digest, [a for a, _ in t.PAIRS]))"
)


def test_another_process_spells_them_alike() -> None:
    code = _CODE.format(path=[str(Path(__file__).parent)])
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [value_digest(value) for value, _ in PAIRS]
