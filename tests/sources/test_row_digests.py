"""Rows by which data is known that only reading tells: few, without a trace, and the same in every process."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources.comparison import compare_row_digests
from penstock.sources.digests import copy_for_reading, digest_few_rows
from penstock.sources.memory import Memory
from penstock.types import Ints


def read_of(rows: Any) -> Any:
    return lambda indices: [rows[index] for index in indices.tolist()]


def test_few_rows_are_read_the_first_and_the_last_among_them() -> None:
    read = list[int]()

    def rows(indices: Ints) -> list[int]:
        read.extend(indices.tolist())
        return indices.tolist()

    assert len(digest_few_rows(rows, 1_000_000).split()) == 8
    assert {0, 999_999} <= set(read) and len(set(read)) == 8
    assert digest_few_rows(rows, 0) == "" and len(digest_few_rows(rows, 3).split()) == 3


def test_a_shuffle_shows() -> None:
    rows = list(range(200))
    other = random.Random(0).sample(rows, 200)
    assert compare_row_digests(
        digest_few_rows(read_of(rows), 200), digest_few_rows(read_of([*rows]), 200)
    )
    assert (
        compare_row_digests(
            digest_few_rows(read_of(rows), 200), digest_few_rows(read_of(other), 200)
        )
        is False
    )
    assert (
        compare_row_digests(
            digest_few_rows(read_of(rows), 200), digest_few_rows(read_of(rows), 199)
        )
        is False
    )


def test_random_details_are_drawn_alike_and_the_generators_stay_where_they_are() -> None:
    torch = pytest.importorskip("torch")

    def rows(indices: Ints) -> list[Any]:
        return [(indices.tolist(), random.random(), np.random.rand(), float(torch.rand(1)))]

    found = list[str]()
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found.append(digest_few_rows(rows, 50))
        drawn = random.random(), np.random.rand(), float(torch.rand(1))
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert drawn == (random.random(), np.random.rand(), float(torch.rand(1)))
    assert found[0] == found[1] and "-" not in found[0].split()


def test_rows_that_fail_or_are_others_each_time_are_not_compared() -> None:
    rng = np.random.default_rng()

    def rows(indices: Ints) -> list[Any]:
        if indices[0] == 0:
            raise ValueError("a bad row")
        return [float(rng.random())] if indices[0] == 9 else [int(indices[0])]

    one, other = digest_few_rows(rows, 10), digest_few_rows(rows, 10)
    assert one == other and one.split().count("-") == 2
    assert compare_row_digests(one, other)
    assert compare_row_digests("- - -", "- 1 -") is None
    assert compare_row_digests("1 - 2", "- 7 2") and compare_row_digests("1 - 2", "- 7 3") is False


class Inner:
    def __init__(self) -> None:
        self.count, self.rng = 0, np.random.default_rng(0)


class Outer:
    def __init__(self) -> None:
        self.inner, self.parts, self.file = Inner(), [Inner()], None

    def read(self) -> None:
        self.file = open(__file__)
        for inner in (self.inner, *self.parts):
            inner.count += 1
            inner.rng.random()


class Closing(Outer):
    closed = 0

    def __del__(self) -> None:
        Closing.closed += 1


def test_reading_from_a_copy_leaves_no_trace() -> None:
    rows = Outer()
    copy = copy_for_reading(rows)
    copy.read()
    copy.file.close()
    assert rows.file is None
    for inner in (rows.inner, *rows.parts):
        assert inner.count == 0
        assert inner.rng.random() == np.random.default_rng(0).random()


def test_what_has_a_destructor_is_not_copied() -> None:
    rows = Closing()
    assert copy_for_reading(rows) is rows
    assert Closing.closed == 0


def test_arrays_and_what_has_an_own_copy_are_not_copied(tmp_path: Any) -> None:
    class Heavy:
        def __init__(self) -> None:
            self.tokens = np.lib.format.open_memmap(tmp_path / "t.npy", "w+", np.int64, (9,))
            self.slow = Slow()

    class Slow:
        def __copy__(self) -> Any:
            raise AssertionError("it takes long")

        def __getstate__(self) -> Any:
            raise AssertionError("it takes long")

    rows = Heavy()
    copied = copy_for_reading(rows)
    assert copied is not rows and copied.tokens is rows.tokens
    assert type(copied.slow) is Slow


class Flipping:
    """Rows that a generator of their own turns over in half of all cases."""

    def __init__(self, rng: Any, rows: Any = range(100)) -> None:
        self.rng, self.rows = rng, [*rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], bool(self.rng.random() < 0.5)


def test_what_a_generator_of_the_object_draws_is_the_same_in_every_process() -> None:
    def rows_of(rows: Any, rng: Any) -> Any:
        return Memory(Flipping(rng, rows)).sample_digest()["rows"]

    for make in (random.Random, np.random.default_rng, np.random.RandomState):
        assert rows_of(range(100), make(1)) == rows_of(range(100), make(2))
        assert (
            compare_row_digests(
                rows_of(range(100), make(1)), rows_of(reversed(range(100)), make(2))
            )
            is False
        )
        used = make(1)
        rows_of(range(100), used)
        assert used.random() == make(1).random(), "reading leaves no trace"


def test_a_generator_of_torch_is_left_where_it_is() -> None:
    torch = pytest.importorskip("torch")

    class Drawing(Flipping):
        def __getitem__(self, index: int) -> Any:
            return self.rows[index], float(torch.rand(1, generator=self.rng))

    made = [torch.Generator().manual_seed(seed) for seed in (1, 2, 1)]
    first, second = (Memory(Drawing(rng)).sample_digest() for rng in made[:2])
    assert first == second and "-" not in first["rows"].split()
    assert torch.equal(made[0].get_state(), made[2].get_state())


class OutsideRng:
    """Draws from a generator that no copy reaches."""

    def random(self) -> float:
        return float(np.random.default_rng().random())

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError


def test_rows_that_are_turned_over_at_random_are_never_refused() -> None:
    for _ in range(60):
        with ps.Loader(ps.from_sequence(Flipping(OutsideRng()))) as loader:
            state = loader.state_dict()
        with ps.Loader(ps.from_sequence(Flipping(OutsideRng()))) as loader:
            loader.load_state_dict(state)


class Document:
    """Loads its text when it is asked for it."""

    def __init__(self, number: int) -> None:
        self.number, self.reads = number, 0
        self._text: str | None = None

    def text(self) -> str:
        self.reads += 1
        self._text = self._text or f"text {self.number}"
        return self._text


@pytest.mark.parametrize("wrapped", [False, True])
def test_objects_that_reading_changes_are_those_of_before_reading(wrapped: bool) -> None:
    def run() -> Any:
        documents = [Document(number) for number in range(40)]
        if wrapped:
            return ps.Loader(
                ps.from_sequence([{"doc": one} for one in documents]).map(
                    lambda row: row["doc"].text()
                )
            )
        return ps.Loader(ps.from_sequence(documents).map(Document.text))

    first = run()
    assert next(iter(first)) == "text 0"
    second = run()
    second.load_state_dict(first.state_dict())
    assert next(iter(second)) == "text 1"


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataset whose attributes cannot be set."""

    root: str

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> str:
        return f"{self.root}/{range(9)[index]}"


def test_frozen_datasets_are_read_from_a_copy() -> None:
    loader = ps.Loader(ps.from_sequence(Frozen("a")))
    assert next(iter(loader)) == "a/0"
    other = ps.Loader(ps.from_sequence(Frozen("a")))
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)) == "a/1"
