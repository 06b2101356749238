"""Values have one spelling in every process: by what they hold, never by where they lie or how they are hashed."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from penstock.sources import digests
from penstock.sources.digests import digest_memory, digest_value


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


class Named(dict[str, int]):
    """A dict with attributes, and one whose attributes are its keys."""

    def __init__(self, name: str, *, keys: bool = False) -> None:
        super().__init__(size=1)
        if keys:
            self.__dict__ = self
        self.name = name


class Numbered(list[int]):
    def __init__(self, number: int) -> None:
        super().__init__([1])
        self.number = number


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
    (Named("a"), Named("b")),
    (Named("a", keys=True), Named("b", keys=True)),
    ({"row": [Numbered(1)]}, {"row": [Numbered(2)]}),
    (Document("a").__repr__, Document("b").__repr__),
    ("a".upper, "b".upper),
    (max, min),
    (np.ma.masked_equal([1, 2], 1), np.ma.masked_equal([1, 2], 2)),
]


@pytest.mark.parametrize(("value", "other"), PAIRS, ids=lambda value: type(value).__name__)
def test_values_are_told_apart_by_what_they_hold(value: Any, other: Any) -> None:
    assert digest_value(value) == digest_value(value) != digest_value(other)


def test_series_of_pandas_count_by_their_labels_too() -> None:
    series: Any = pytest.importorskip("pandas").Series
    assert digest_value(series([1, 2], index=[5, 6])) != digest_value(series([1, 2], index=[6, 5]))


def test_equal_values_are_equal_whatever_their_order_their_caches_and_their_folder() -> None:
    assert digest_value({"a": 1, "b": 2}) == digest_value({"b": 2, "a": 1})
    page = Page("abc")
    before = digest_value(page)
    assert page.size == 3
    assert digest_value(page) == before == digest_value(Page("abc"))
    assert digest_value(Document("a", cache=object())) == digest_value(Document("a"))
    assert digest_value(Path("/here/a/1.jpg")) == digest_value(Path("/there/a/1.jpg"))


def test_what_holds_itself_or_holds_nothing_that_can_be_read_counts_by_its_type() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert digest_value(cycle) == digest_value(cycle)
    assert digest_value(object()) == digest_value(object()) != digest_value(lambda: 0)


def test_tensors_count_by_their_values() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert digest_value(one) == digest_value(one.clone()) != digest_value(one + 1)
    assert digest_value(one.t()) == digest_value(one.t().contiguous()) != digest_value(one)
    assert digest_value(torch.tensor(1.0, requires_grad=True)) != digest_value(torch.tensor(2.0))


def test_images_count_by_their_pixels() -> None:
    images = pytest.importorskip("PIL.Image")
    black, white = images.new("RGB", (2, 2)), images.new("RGB", (2, 2), "white")
    assert digest_value(black) == digest_value(black.copy()) != digest_value(white)


def test_a_list_of_objects_in_another_order_is_another_list() -> None:
    documents = [Document(str(i)) for i in range(100)]
    assert digest_memory(documents) == digest_memory([*documents]) != digest_memory(documents[::-1])


def test_many_objects_are_known_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.digests.MAX_HASHED_BYTES", 1 << 22)
    documents = [Document(str(i)) for i in range(5_000)]
    assert digest_memory(documents) == digest_memory([*documents]) != digest_memory(documents[::-1])


_CODE = "import sys; sys.path[:0] = {path!r}; import test_canonical_values as t; print(*map(t.digest_value, [a for a, _ in t.PAIRS]))"


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
    assert found.stdout.split() == [digest_value(value) for value, _ in PAIRS]


# ---------------------------------------------------------------- what hides what it holds, and what holds much


class Private:
    def __init__(self, index: int) -> None:
        self._index, self._file = index, object()


class Words:
    """A document as text libraries have it: all that it holds is in a private list."""

    def __init__(self, index: int) -> None:
        self._words = [str(index), "end"]


class Wrapped:
    def __init__(self, index: int) -> None:
        self._below = Words(index)


def remembering(index: int) -> Any:
    return lambda step=1: index * step


HIDING = {
    "private attributes": Private,
    "private lists": Words,
    "private objects": Wrapped,
    "expressions": lambda index: re.compile(f"a{{{index}}}"),
    "generators": np.random.default_rng,
    "slices": slice,
    "elements": lambda index: ElementTree.fromstring(f"<a>{index}</a>"),
    "streams of bytes": lambda index: io.BytesIO(bytes([index])),
    "errors": lambda index: ValueError(str(index)),
    "functions": remembering,
    "partials": lambda index: partial(print, index),
    "tables": lambda index: pytest.importorskip("pyarrow").table({"a": [index]}),
    "frames": lambda index: pytest.importorskip("pandas").DataFrame({"a": [index]}),
    "series": lambda index: pytest.importorskip("pandas").Series([index]),
}


@pytest.mark.parametrize("kind", HIDING)
def test_objects_without_public_attributes_in_another_order_are_another_list(kind: str) -> None:
    make = HIDING[kind]
    one, other = ([make(index) for index in range(40)] for _ in range(2))
    assert digest_memory(one) == digest_memory(other) != digest_memory(other[::-1])


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ((1, 2), [1, 2]),
        (np.float32(1), 1.0),
        (np.float32(1), np.float64(1)),
        ({1: 2}, {"1": 2}),
        (True, 1),
    ],
)
def test_another_type_is_another_value(value: Any, other: Any) -> None:
    assert digest_memory([value]) == digest_memory([value]) != digest_memory([other])
    assert digest_value({"a": value}) != digest_value({"a": other})


class Node:
    def __init__(self, index: int, near: Any) -> None:
        self.index, self.near = index, near


@pytest.mark.parametrize("kind", [list, set])
def test_objects_that_refer_to_each_other_are_spelled_in_bounded_time(kind: Any) -> None:
    def graph() -> list[Node]:
        nodes = [Node(index, kind()) for index in range(60)]
        for node in nodes:
            node.near = kind(nodes)
        return nodes

    before = time.process_time()
    one, other = graph(), graph()
    assert digest_memory(one) == digest_memory(other) != digest_memory(other[::-1])
    assert time.process_time() - before < 10


def test_a_large_item_is_looked_through_whole() -> None:
    rows = [[index, index] for index in range(5_000)]
    item = {1: "a key that is no text", "rows": rows}
    assert digest_value(item) != digest_value({**item, "rows": [*rows[:-1], [0, 0]]})


def test_bytes_count_as_what_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()
    monkeypatch.setattr("penstock.sources.digests.MAX_HASHED_BYTES", 1 << 20)
    original = digests.digest_memory
    monkeypatch.setattr(
        "penstock.sources.digests.digest_memory", lambda x: [hashed.append(1), original(x)][1]
    )
    digests._hash_items(digests.HashBuilder(), [bytes(10_000)] * 10_000)  # pyright: ignore[reportPrivateUsage]
    assert len(hashed) < 2_000


def test_bytes_that_hold_no_value_do_not_count() -> None:
    def records(fill: int) -> Any:
        rows = np.frombuffer(
            bytes([fill]) * 320, np.dtype([("a", "i1"), ("b", "f8")], align=True)
        ).copy()
        rows["a"], rows["b"] = 1, 2
        return rows

    assert digest_memory(records(0)) == digest_memory(records(7))
    changed = records(0)
    changed["b"][3] = 5
    assert digest_memory(changed) != digest_memory(records(0))

    def third(fill: int, number: int = 1) -> Any:
        values = np.frombuffer(bytes([fill]) * 64, np.longdouble).copy()
        values[:] = np.longdouble(number) / 3
        return values

    assert digest_memory(third(0)) == digest_memory(third(7)) != digest_memory(third(0, 2))


def test_a_part_that_cannot_be_read_does_not_hide_the_others() -> None:
    class Failing:
        @property
        def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
            raise RuntimeError("it is closed")

    assert digest_value({"id": 1, "x": Failing()}) != digest_value({"id": 2, "x": Failing()})


def test_lazy_and_nested_tensors_count_by_their_values() -> None:
    torch = pytest.importorskip("torch")

    def nested(number: int) -> Any:
        return torch.nested.nested_tensor(
            [torch.ones(2) * number, torch.ones(3)], layout=torch.jagged
        )

    def conjugate(number: int) -> Any:
        return torch.tensor([complex(1, number)]).conj()

    for make in (nested, conjugate, lambda number: conjugate(number).imag):
        assert digest_value(make(1)) == digest_value(make(1)) != digest_value(make(2))


def test_empty_tensors_and_views_of_one_element_hide_nothing() -> None:
    torch = pytest.importorskip("torch")
    for part in (torch.zeros(0, 4), torch.arange(6).reshape(2, 3)[:1, 1]):
        assert digest_value({"id": 1, "x": part}) != digest_value({"id": 2, "x": part})
    assert digest_value(torch.zeros(0, 4)) != digest_value(torch.zeros(0, 5))


def test_palettes_count() -> None:
    images = pytest.importorskip("PIL.Image")

    def painted(color: int) -> Any:
        image = images.new("P", (2, 2))
        image.putpalette([color] * 768)
        return image

    assert digest_value(painted(1)) == digest_value(painted(1)) != digest_value(painted(2))


class Sealed:
    def __init__(self, value: Any) -> None:
        self._data = [value]
        self._id = 1


class Filled(Sealed):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._hash = hash("text")
        self._rng = np.random.default_rng()
        self._read_cache: dict[str, Any] = {}
        self._lazy_words: list[str] = []

    def words(self) -> list[str]:
        self._lazy_words.append("a")
        self._read_cache["b"] = 1
        return self._lazy_words


class Narrow:
    __slots__ = ("_array", "_name")

    def __init__(self, value: int) -> None:
        self._array, self._name = np.array([value]), "name"


class Shorter(Document):
    def __init__(self, body: str) -> None:
        super().__init__("text")
        self.body = body


class Turns(Sequence[Any]):
    def __init__(self, *turns: str) -> None:
        self.name, self._turns = "chat", turns

    def __len__(self) -> int:
        return len(self._turns)

    def __getitem__(self, index: Any) -> Any:
        return self._turns[index]


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (Sealed(1), Sealed(2)),
        (Filled(1), Filled(2)),
        (Sealed([1]), Sealed((1,))),
        (Sealed({1: 1}), Sealed({"1": 1})),
        (Narrow(1), Narrow(2)),
        (Shorter("a"), Shorter("b")),
        (Turns("a"), Turns("b")),
        (SimpleNamespace(_a=1, _b=[1]), SimpleNamespace(_a=1, _b=[2])),
        (namedtuple("Pair", "a b")(1, 2), namedtuple("Pair", "a c")(1, 2)),
        ([[[[[(1,)]]]]], [[[[[[1]]]]]]),
        ([1] * 20 + [(1,)], [1] * 20 + [[1]]),
        ({"a": {"b": {"c": {"d": {1: 2}}}}}, {"a": {"b": {"c": {"d": {"1": 2}}}}}),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x in {"a", "b", "c"}, lambda x: x in {"a", "b", "d"}),
        (np.datetime64(1, "ns"), np.datetime64(1, "ps")),
        (
            np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
            np.array([(1, 2)], [("b", "i4"), ("a", "i4")]),
        ),
        (pa.table({"a": [1]}), pa.table({"b": [1]})),
    ],
)
def test_nothing_that_an_object_holds_hides_the_rest(value: Any, other: Any) -> None:
    assert digest_memory([value]) == digest_memory([value])
    assert digest_memory([value]) != digest_memory([other])


def test_tables_of_pandas_count_by_names_labels_and_categories() -> None:
    pd: Any = pytest.importorskip("pandas")
    for value, other in (
        (pd.Series([1], name="a"), pd.Series([1], name="b")),
        (
            pd.Series(pd.Categorical(["a"], ["a", "b"])),
            pd.Series(pd.Categorical(["a"], ["b", "a"])),
        ),
        (pd.DataFrame({"a": [1]}).rename_axis("a"), pd.DataFrame({"a": [1]}).rename_axis("b")),
        (pd.DataFrame({1: [1]}), pd.DataFrame({"1": [1]})),
    ):
        assert digest_memory([value]) == digest_memory([value]) != digest_memory([other])


class Public(Sealed):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.kind, self.lock = "text", None


def test_public_attributes_hide_no_private_ones() -> None:
    assert digest_memory([Public(1)]) == digest_memory([Public(1)]) != digest_memory([Public(2)])


def test_caches_generators_and_hashes_of_objects_do_not_count() -> None:
    read = Filled(1)
    read.words()
    read._hash += 1
    assert digest_memory([read]) == digest_memory([Filled(1)])


def test_values_of_attrs_pydantic_and_torch_count_by_all_that_they_hold() -> None:
    attrs, pydantic, torch = map(pytest.importorskip, ("attrs", "pydantic", "torch"))
    sample = attrs.make_class("Sample", ["key", "_body"])
    model = pydantic.create_model("Open", __config__=pydantic.ConfigDict(extra="allow"), key=int)
    assert (
        digest_memory([sample(1, [1])])
        == digest_memory([sample(1, [1])])
        != digest_memory([sample(1, [2])])
    )
    assert (
        digest_memory([model(key=1, more=1)])
        == digest_memory([model(key=1, more=1)])
        != digest_memory([model(key=1, more=2)])
    )
    empty = torch.empty(2, device="meta")
    assert (
        digest_memory([empty])
        == digest_memory([empty])
        != digest_memory([torch.empty(2, device="meta", dtype=torch.int32)])
    )


class _FileSystem:
    """As those of fsspec: a token of the process and the thread, and what makes it again."""

    def __init__(self, root: str) -> None:
        self.root, self.token = root, object()
        self.name = f"of process {id(self.token)}"

    def __reduce__(self) -> Any:
        return _FileSystem, (self.root,)


def test_objects_that_say_what_makes_them_again_count_by_that() -> None:
    assert digest_value([_FileSystem("a")]) == digest_value([_FileSystem("a")])
    assert digest_value([_FileSystem("a")]) != digest_value([_FileSystem("b")])
