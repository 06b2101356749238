"""Parts from outside the package are resumed, elastic, asked and edited like those inside.

A source, an order, a mixing rule, a fold and a format, each written here as a user would, in about ten lines.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_covers, assert_elastic, assert_mixture, assert_resumes, assert_same_run

Make = Callable[[], ps.Dataset]


# ---------------------------------------------------------------- a source


class Documents:
    """Document i has i % 5 + 1 tokens, all of them i."""

    def __init__(self, n: int = 40) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Any) -> list[Any]:
        return [np.full(i % 5 + 1, i) for i in indices.tolist()]


class Measured(Documents):
    """The same, with lengths that are known."""

    def lengths(self) -> Any:
        return np.arange(self.n) % 5 + 1


# ---------------------------------------------------------------- an order


@dataclass(frozen=True)
class Evens:
    """Even places first, then odd ones."""

    def size(self, below: Any) -> Any:
        return below

    def down(self, positions: Any, below: Any, key: int) -> Any:
        epoch, place = np.divmod(positions, below)
        half = (below + 1) // 2
        return epoch * below + np.where(place < half, 2 * place, 2 * (place - half) + 1), None

    def up(self, positions: Any, below: Any, key: int) -> Any:
        epoch, place = np.divmod(positions, below)
        return epoch * below + place // 2 + place % 2 * ((below + 1) // 2)

    def describe(self) -> Any:
        return {"order": "evens first"}


# ---------------------------------------------------------------- a mixing rule


@dataclass(frozen=True)
class TwoToOne:
    """Two of the first, one of the second."""

    def size(self, sizes: Any) -> Any:
        return None

    def at(self, positions: Any) -> Any:
        turn, place = np.divmod(positions, 3)
        return np.where(place < 2, 0, 1), np.where(place < 2, 2 * turn + place, turn)

    def describe(self) -> Any:
        return {"rule": "two to one"}


class Backwards(TwoToOne):
    """The same, with its inverse."""

    def counts(self, position: int) -> Any:
        turn, place = divmod(position, 3)
        return np.array([2 * turn + min(place, 2), turn])

    def places(self, source: Any, k: Any) -> Any:
        return np.where(source == 0, k // 2 * 3 + k % 2, 3 * k + 2)


# ---------------------------------------------------------------- a fold


@dataclass(frozen=True)
class UpTo:
    """Neighbours whose sizes sum to at most `most`."""

    most: int

    def init(self, key: int) -> Any:
        return []

    def step(self, held: Any, item: Any) -> Any:
        if sum(other.size for other in held) + item.size > self.most:
            return [item], [held] if held else []
        return [*held, item], []

    def flush(self, held: Any) -> Any:
        return [held] if held else []

    def describe(self) -> Any:
        return {"fold": "up to", "most": self.most}


# ---------------------------------------------------------------- a format


class Fixed:
    """A file of numbers of four bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.stat().st_size // 4

    def read(self, indices: Any) -> list[int]:
        return np.memmap(self.path, "<u4", "r")[indices].tolist()


# ---------------------------------------------------------------- what holds for those inside


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("fixed")
    for part in range(3):
        np.arange(13 * part, 13 * part + 13, dtype="<u4").tofile(where / f"part-{part}.fixed")
    return where


def documents() -> ps.Dataset:
    return ps.from_sequence(Documents(), name="own").shuffle(seed=1)


def ordered() -> ps.Dataset:
    return ps.from_sequence(range(39), name="own").reorder(Evens())


def ruled() -> ps.Dataset:
    return ps.mix({"other": ps.from_sequence(range(100, 119)), "own": ps.from_sequence(range(39))}, rule=TwoToOne())


def folded() -> ps.Dataset:
    return ps.from_sequence(Measured(), name="own").fold(UpTo(9), build=np.concatenate)


def streamed() -> ps.Dataset:
    return ps.from_sequence(Documents(), name="own").fold(UpTo(9), build=np.concatenate)


def formatted(folder: Path) -> ps.Dataset:
    return ps.read(folder / "*.fixed", format=Fixed, name="own")


@pytest.fixture(params=["source", "order", "rule", "fold", "format"])
def make(request: pytest.FixtureRequest, folder: Path) -> Make:
    made: dict[str, Make] = {
        "source": documents,
        "order": ordered,
        "rule": lambda: ruled().limit(45),
        "fold": folded,
        "format": lambda: formatted(folder),
    }
    return made[request.param]


def test_resumed_at_every_position(make: Make) -> None:
    assert_resumes(lambda: ps.Loader(make().batch(9, collate=list)), at_most=5)
    assert_resumes(lambda: make().filter(lambda x: np.sum(x) % 7).shuffle_buffer(3), at_most=5)


def test_the_same_on_any_ranks_and_workers(make: Make) -> None:
    assert_elastic(lambda rank, world: ps.Loader(make(), rank=rank, world_size=world), worlds=(1, 2, 3))
    assert_same_run(lambda: ps.Loader(make().repeat()), lambda: ps.Loader(make().repeat(), workers=2), steps=70)


def test_asked(make: Make) -> None:
    """What the plan says is what is delivered, backwards too, and its counts are the sums."""
    ds = make().repeat()
    told = [sample.key for p in range(120) for sample in ds.plan.at(p)]
    with ps.Loader(ds) as loader:
        assert [key for _ in islice(loader, 120) for key in loader.keys()] == told
    for p in range(60, 100, 7):
        for sample in ds.plan.at(p):
            assert p in ds.plan.find(sample.source, sample.index, within=range(60, 100))
    counts = Counter(sample.source for p in range(50) for sample in ds.plan.at(p))
    assert {name: n for name, n in ds.plan.counts(50).items() if n} == counts
    assert isinstance(ds[7], type(make()[7])) and np.array_equal(ds.sample(7), make()[7])


def test_edited(make: Make) -> None:
    """Positions skipped and samples left out in the middle of a run; the state has it."""
    ds = make().repeat()
    with ps.Loader(ds) as loader:
        _ = list(islice(loader, 10))
        run = ds.plan.after(loader.state_dict())
    last = run.at(14)[0]
    edited = run.skip(range(11, 13)).exclude([last])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(json.loads(json.dumps(edited.state)))
        delivered = [list(dict.fromkeys(loader.keys())) for _ in islice(loader, 30)]
    assert delivered == [list(dict.fromkeys(s.key for s in edited.at(p))) for p in range(10, 40)]
    assert not any((last.source, last.index) == key[::2] for keys in delivered for key in keys)


def test_weighted_and_adopted(make: Make) -> None:
    """In a mixture: shares at every prefix, weights changed in the run, another input added."""
    others = {"x": ps.from_sequence(range(50)), "y": ps.from_sequence(range(60))}
    ds = ps.mix({"p": make().repeat(), "x": others["x"]}, {"p": 3, "x": 1})
    assert_mixture([s.source.partition("/")[0] for p in range(200) for s in ds.plan.at(p)[:1]], {"p": 3, "x": 1})
    with ps.Loader(ds) as loader:
        before = [loader.keys() for _ in islice(loader, 20)]
        assert loader.set_weights({"p": 1, "x": 1}) == 20
        before += [loader.keys() for _ in islice(loader, 20)]
        state = json.loads(json.dumps(loader.state_dict()))
    assert before == [[s.key for s in ds.plan.after(state).at(p)] for p in range(40)]
    more = ps.mix({"p": make().repeat(), **others}, {"p": 3, "x": 1, "y": 1})
    with ps.Loader(more) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        after = [loader.keys() for _ in islice(loader, 40)]
    own = [key for keys in before + after for key in keys if key[0].startswith("p")]
    assert own == [s.key for p in range(len(own)) for s in ps.mix({"p": make().repeat()}).plan.at(p)][: len(own)]


def test_another_part_is_another_pipeline(make: Make) -> None:
    with ps.Loader(make()) as loader:
        _ = list(islice(loader, 3))
        state = loader.state_dict()
    with ps.Loader(ps.from_sequence(range(39), name="own")) as loader, pytest.raises(ps.StateError):
        loader.load_state_dict(state)


# ---------------------------------------------------------------- each part by itself


def test_a_source_is_two_methods() -> None:
    ds = documents()
    assert len(ds) == 40 and ds[3].tolist() == documents()[3].tolist()
    assert_covers(ds, range(40), key=lambda document: int(document[0]))
    rows = ps.from_sequence(Measured()).pack(10)
    assert len(rows) == 12 and rows[0]["tokens"].shape == (10,)  # planned, because the lengths are known


def test_an_order_is_three_methods() -> None:
    assert list(ps.from_sequence(range(7)).reorder(Evens())) == [0, 2, 4, 6, 1, 3, 5]
    assert_covers(ordered(), range(39))
    assert pickle.loads(pickle.dumps(ordered()))[38] == 37


def test_a_rule_is_two_methods() -> None:
    assert list(ruled().limit(6)) == [100, 101, 0, 102, 103, 1]
    streams = {"a": ps.from_sequence(range(9)).filter(bool), "b": ps.from_sequence(range(9)).filter(bool)}
    with ps.Loader(ps.mix(streams, rule=TwoToOne()), lanes=1) as loader:
        assert list(loader) == [1, 2, 1, 3, 4, 2, 5, 6, 3, 7, 8, 4]  # the first input that ends, ends all


def test_a_rule_with_an_inverse_is_asked_at_once() -> None:
    inputs = {name: ps.from_sequence(range(n)).shuffle() for name, n in (("a", 7), ("b", 30))}
    plain, quick = ps.mix(inputs, rule=TwoToOne()).plan, ps.mix(inputs, rule=Backwards()).plan
    assert plain.counts(101) == quick.counts(101) == {"a": 68, "b": 33}
    for name, index in (("a", 3), ("b", 17)):
        assert plain.find(name, index, within=range(200)) == quick.find(name, index, within=range(200))
    far = 10**12
    assert quick.counts(3 * far) == {"a": 2 * far, "b": far}
    (where,) = quick.find("b", 17, within=range(far, far + 90))
    assert [sample.key[::2] for sample in quick.at(where)] == [("b", 17)]


def test_a_fold_is_three_functions() -> None:
    assert [row.tolist() for row in folded()[:2]] == [row.tolist() for row in islice(folded(), 2)]
    assert_covers((token for row in folded() for token in np.unique(row).tolist()), range(40))
    assert_resumes(lambda: ps.Loader(streamed(), lanes=2))  # of unknown lengths: with items in its memory
    assert_elastic(lambda r, w: ps.Loader(streamed().repeat(), rank=r, world_size=w, lanes=4), worlds=(1, 2), steps=20)


def test_a_format_is_two_methods(folder: Path) -> None:
    ds = formatted(folder)
    assert list(ds) == list(range(39)) and list(pickle.loads(pickle.dumps(ds))) == list(ds)
    assert list(ps.read(folder / "part-1.fixed", format=lambda path: np.fromfile(path, "<u4"))) == list(range(13, 26))
    with pytest.raises(ps.ConfigError, match="names no format.*format="):
        ps.read(folder / "*.fixed")


def test_a_format_may_know_lengths(tmp_path: Path) -> None:
    class Lines(Measured):
        def __init__(self, path: Path) -> None:
            super().__init__(int(path.read_text()))

    for part in range(2):
        (tmp_path / f"{part}.lines").write_text("20")
    rows = ps.read(tmp_path / "*.lines", format=Lines).pack(10)
    assert len(rows) == 12 and rows[11]["tokens"][-1] == 19


def test_a_file_of_data_that_changed_is_another(tmp_path: Path) -> None:
    np.arange(20, dtype="<u4").tofile(tmp_path / "a.fixed")
    with ps.Loader(ps.read(tmp_path / "a.fixed", format=Fixed)) as loader:
        _ = list(islice(loader, 3))
        state = loader.state_dict()
    np.arange(20, dtype="<u4")[::-1].tofile(tmp_path / "a.fixed")
    with ps.Loader(ps.read(tmp_path / "a.fixed", format=Fixed)) as loader, pytest.raises(ps.StateError, match="a"):
        loader.load_state_dict(state)


# ---------------------------------------------------------------- refused at the door

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: ps.from_sequence("abc").reorder(Evens), r"Evens is a class; give an object, Evens\(\.\.\.\)"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.from_sequence("abc").reorder(UpTo(3)), r"reorder\(\): UpTo has no size, down, up; see Order"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.from_sequence("abc").filter(bool).reorder(Evens()), r"reorder\(\) needs random access"),
    (lambda: ps.from_sequence("abc").fold(Evens()), r"fold\(\): Evens has no init, step, flush; see Fold"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.mix({"a": ps.from_sequence("a")}, rule=Evens()), r"Evens has no at; see Mixing"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.mix({"a": ps.from_sequence("a")}, {"a": 1}, rule=TwoToOne()), "the rule decides alone"),
    (lambda: ps.mix({"a": ps.from_sequence("a")}, seed=4, rule=TwoToOne()), "the rule decides alone"),
    (lambda: ps.mix({}, rule=TwoToOne()), "no datasets|no inputs"),
    (lambda: ps.mix({"a": ps.from_sequence("a")}, rule=TwoToOne())[2], "TwoToOne draws from input 1 at"),
    (lambda: ps.Loader(ruled()).set_weights({"other": 1, "own": 1}), "no mixture"),
    (lambda: ps.read(__file__, format=Fixed, columns=["x"]), "columns= does not go with a format of your own: Fixed"),
    (lambda: ps.read(__file__, format=lambda path: 7), "int is no sequence"),
    (lambda: ps.from_sequence(iter("abc")), "no __len__"),
]  # fmt: skip


@pytest.mark.parametrize("act,words", WRONG, ids=range(len(WRONG)))
def test_wrong_parts_are_refused(act: Callable[[], Any], words: str) -> None:
    with pytest.raises((ps.ConfigError, ps.IndexedError, ps.DataError), match=words):
        act()


class Few(Documents):
    """Every index is read once, however often it was asked for."""

    def read(self, indices: Any) -> list[Any]:
        return super().read(np.unique(indices))


def test_a_source_that_gives_too_few_is_no_silent_shift() -> None:
    twice = ps.from_sequence(Few(10), name="few").map(lambda x: x).batch(20, collate=list)
    rows = ps.from_sequence(Few(10), name="few")
    with pytest.raises(ps.DataError, match="few.*gave 1 samples for 2 indices"):
        rows.__getitems__([3, 3])
    with pytest.raises(ps.DataError, match=r"few.*read\(\) gave . samples for . indices"):
        ps.mix({"few": rows, "x": ps.from_sequence("ab")}, stop="all_exhausted").__getitems__([0, 0, 1, 1, 2, 2, 3, 3])
    assert len(twice[0]) == 10
