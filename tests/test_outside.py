"""Parts from outside the package are resumed, elastic, asked and edited like those inside.

A source, an order, a mixing rule, a fold and a format, each written here as a user would, in about ten lines.
"""

from __future__ import annotations

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
from example_counts import rounds
from helpers import through_json
from penstock.engine import grouping, orders
from penstock.testing import (
    assert_covers,
    assert_elastic,
    assert_fold,
    assert_mixture,
    assert_order,
    assert_resumes,
    assert_rule,
    assert_same_run,
    assert_source,
)

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
    """Documents with known lengths."""

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
    """The rule `TwoToOne` with its inverse."""

    def counts(self, position: int) -> Any:
        turn, place = divmod(position, 3)
        return np.array([2 * turn + min(place, 2), turn])

    def positions_of(self, source: Any, k: Any) -> Any:
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
    return ps.mix(
        {"other": ps.from_sequence(range(100, 119)), "own": ps.from_sequence(range(39))},
        rule=TwoToOne(),
    )


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
    assert_resumes(lambda: ps.Loader(make().batch(9, collate=list)), at_most=rounds(2, 8))
    assert_resumes(
        lambda: make().filter(lambda x: np.sum(x) % 7).shuffle_buffer(3), at_most=rounds(2, 8)
    )


def test_the_same_on_any_ranks_and_workers(make: Make) -> None:
    assert_elastic(
        lambda rank, world: ps.Loader(make(), rank=rank, world_size=world), worlds=(1, 2, 3)
    )
    assert_same_run(
        lambda: ps.Loader(make().repeat()), lambda: ps.Loader(make().repeat(), workers=2), steps=55
    )


def test_asked(make: Make) -> None:
    """The plan and its inverse name the delivered samples, and its counts are their sums."""
    ds = make().repeat()
    told = [sample.key for p in range(120) for sample in ds.plan.at(p)]
    with ps.Loader(ds) as loader:
        assert [key for _ in islice(loader, 120) for key in loader.keys()] == told
    for p in range(60, 100, 7):
        for sample in ds.plan.at(p):
            assert p in ds.plan.find(sample.source, sample.index, within=range(60, 100))
    counts = Counter(sample.source for p in range(50) for sample in ds.plan.at(p))
    assert {name: n for name, n in ds.plan.counts(50).items() if n} == counts
    assert isinstance(ds[7], type(make()[7])) and np.array_equal(ds[7], make()[7])


def test_edited(make: Make, request: pytest.FixtureRequest) -> None:
    """Positions skipped and samples left out in the middle of a run; the state has it."""
    by_rule = request.node.callspec.params["make"] == "rule"
    ds = ruled() if by_rule else make().repeat()  # samples of a limited mixture come again
    with ps.Loader(ds) as loader:
        _ = list(islice(loader, 10))
        run = ds.plan.for_state(loader.state_dict())
    last = run.at(14)[0]
    edited = run.skip(range(11, 13)).exclude([last])
    with ps.Loader(ds) as loader:
        loader.load_state_dict(through_json(edited.state))
        delivered = [list(dict.fromkeys(loader.keys())) for _ in islice(loader, 30)]
    assert delivered == [list(dict.fromkeys(s.key for s in edited.at(p))) for p in range(10, 40)]
    assert not any((last.source, last.index) == key[::2] for keys in delivered for key in keys)


def test_weighted_and_adopted(make: Make) -> None:
    """In a mixture: shares at every prefix, weights changed in the run, another input added."""
    others = {"x": ps.from_sequence(range(50)), "y": ps.from_sequence(range(60))}
    ds = ps.mix({"p": make().repeat(), "x": others["x"]}, {"p": 3, "x": 1})
    assert_mixture(
        [s.source.partition("/")[0] for p in range(200) for s in ds.plan.at(p)[:1]],
        {"p": 3, "x": 1},
    )
    with ps.Loader(ds) as loader:
        before = [loader.keys() for _ in islice(loader, 20)]
        assert loader.set_weights({"p": 1, "x": 1}) == 20
        before += [loader.keys() for _ in islice(loader, 20)]
        state = through_json(loader.state_dict())
    assert before == [[s.key for s in ds.plan.for_state(state).at(p)] for p in range(40)]
    more = ps.mix({"p": make().repeat(), **others}, {"p": 3, "x": 1, "y": 1})
    with ps.Loader(more) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        after = [loader.keys() for _ in islice(loader, 40)]
    own = [key for keys in before + after for key in keys if key[0].startswith("p")]
    assert (
        own
        == [s.key for p in range(len(own)) for s in ps.mix({"p": make().repeat()}).plan.at(p)][
            : len(own)
        ]
    )


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
    assert len(rows) == 12 and rows[0]["tokens"].shape == (
        10,
    )  # planned, because the lengths are known


def test_an_order_is_three_methods() -> None:
    assert list(ps.from_sequence(range(7)).reorder(Evens())) == [0, 2, 4, 6, 1, 3, 5]
    assert_covers(ordered(), range(39))
    assert pickle.loads(pickle.dumps(ordered()))[38] == 37


@dataclass(frozen=True)
class Turned(Evens):
    """Every pass begins at a random place."""

    def down(self, positions: Any, below: Any, key: int) -> Any:
        return positions // below * below + (positions + key % below) % below, None

    def up(self, positions: Any, below: Any, key: int) -> Any:
        return positions // below * below + (positions - key % below) % below


def test_an_order_may_be_random() -> None:
    assert_order(Turned())
    ds = ps.from_sequence(range(40), name="own").reorder(Turned(), seed=3)
    assert (
        list(ds)
        == list(ps.from_sequence(range(40), name="own").seed(3).reorder(Turned()))
        != list(range(40))
    )
    part = ps.from_sequence(range(40), name="own").reorder(Turned())[
        :5
    ]  # settled here, wherever it is put
    mixed = ps.mix({"part": part, "rest": ps.from_sequence([99] * 9)}, seed=8, stop="all_exhausted")
    assert [x for x in mixed if x < 99] == list(part)


def test_a_rule_is_two_methods() -> None:
    assert list(ruled().limit(6)) == [100, 101, 0, 102, 103, 1]
    streams = {
        "a": ps.from_sequence(range(9)).filter(bool),
        "b": ps.from_sequence(range(9)).filter(bool),
    }
    with ps.Loader(ps.mix(streams, rule=TwoToOne()), lanes=1) as loader:
        assert list(loader) == [
            1,
            2,
            1,
            3,
            4,
            2,
            5,
            6,
            3,
            7,
            8,
            4,
        ]  # the first input that ends, ends all


def test_a_rule_with_an_inverse_is_asked_at_once() -> None:
    inputs = {name: ps.from_sequence(range(n)).shuffle() for name, n in (("a", 7), ("b", 30))}
    plain, quick = ps.mix(inputs, rule=TwoToOne()).plan, ps.mix(inputs, rule=Backwards()).plan
    assert plain.counts(101) == quick.counts(101) == {"a": 68, "b": 33}
    for name, index in (("a", 3), ("b", 17)):
        assert plain.find(name, index, within=range(200)) == quick.find(
            name, index, within=range(200)
        )
    far = 10**12
    assert quick.counts(3 * far) == {"a": 2 * far, "b": far}
    (where,) = quick.find("b", 17, within=range(far, far + 90))
    assert [sample.key[::2] for sample in quick.at(where)] == [("b", 17)]


def test_a_fold_is_three_functions() -> None:
    assert [row.tolist() for row in folded()[:2]] == [row.tolist() for row in islice(folded(), 2)]
    assert_covers((token for row in folded() for token in np.unique(row).tolist()), range(40))
    assert_resumes(
        lambda: ps.Loader(streamed(), lanes=2)
    )  # of unknown lengths: with items in its memory
    assert_elastic(
        lambda r, w: ps.Loader(streamed().repeat(), rank=r, world_size=w, lanes=4),
        worlds=(1, 2),
        steps=20,
    )


def test_a_format_is_two_methods(folder: Path) -> None:
    ds = formatted(folder)
    assert list(ds) == list(range(39)) and list(pickle.loads(pickle.dumps(ds))) == list(ds)
    assert list(
        ps.read(folder / "part-1.fixed", format=lambda path: np.fromfile(path, "<u4"))
    ) == list(range(13, 26))
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
    with (
        ps.Loader(ps.read(tmp_path / "a.fixed", format=Fixed)) as loader,
        pytest.raises(ps.StateError, match="a"),
    ):
        loader.load_state_dict(state)


# ---------------------------------------------------------------- refused at the door

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: ps.from_sequence("abc").reorder(Evens), r"Evens is a class; give an object, Evens\(\.\.\.\)"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.from_sequence("abc").reorder(UpTo(3)), r"reorder\(\): UpTo has no size, down, up; see Order"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.from_sequence("abc").filter(bool).reorder(Evens()), r"reorder\(\) needs random access"),
    (lambda: ps.from_sequence("abc").fold(Evens()), r"fold\(\): Evens has no init, step, flush; see Fold"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.mix({"a": ps.from_sequence("a")}, rule=Evens()), r"Evens has no at; see Mixing"),  # pyright: ignore[reportArgumentType]
    (lambda: ps.mix({"a": ps.from_sequence("a")}, {"a": 1}, rule=TwoToOne()), "a rule replaces all other options"),
    (lambda: ps.mix({"a": ps.from_sequence("a")}, seed=4, rule=TwoToOne()), "a rule replaces all other options"),
    (lambda: ps.mix({}, rule=TwoToOne()), "no datasets|no inputs"),
    (lambda: ps.mix({"a": ps.from_sequence("a")}, rule=TwoToOne())[2], "TwoToOne draws from input 1 at"),
    (lambda: ps.Loader(ruled()).set_weights({"other": 1, "own": 1}), "by a rule without weights"),
    (lambda: ps.read(__file__, format=Fixed, columns=["x"]), "columns= does not apply to a custom format: the function Fixed"),
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
        ps.mix({"few": rows, "x": ps.from_sequence("ab")}, stop="all_exhausted").__getitems__(
            [0, 0, 1, 1, 2, 2, 3, 3]
        )
    assert len(twice[0]) == 10


# ---------------------------------------------------------------- parts that are wrong, told by name


def test_parts_by_the_book_pass(folder: Path) -> None:
    assert_source(Documents())
    assert_source(Measured(), size=len)
    assert_source(Fixed(folder / "part-0.fixed"))
    assert_source(range(0))
    assert_order(Evens())
    for rule in (TwoToOne(), Backwards()):
        assert_rule(rule, (7, 30))
    assert_fold(UpTo(9))
    for order in (
        orders.Shuffle(),
        orders.BlockShuffle(4, 2),
        orders.WindowShuffle(3),
        orders.Gap(2, 3),
    ):
        assert_order(order)
    for fold in (
        grouping.BatchByTokens(9),
        grouping.BucketByLength((3,), 2),
        grouping.ShuffleBuffer(3),
    ):
        assert_fold(fold)


class Moody(Documents):
    def read(self, indices: Any) -> list[Any]:
        return sorted(super().read(indices), key=len)


class Mismeasured(Measured):
    def lengths(self) -> Any:
        return np.arange(self.n) % 5


class NotBack(Evens):
    def up(self, positions: Any, below: Any, key: int) -> Any:
        return positions


class Twice(Evens):
    def down(self, positions: Any, below: Any, key: int) -> Any:
        return positions // 2 * 2, None


class Away(Evens):
    def down(self, positions: Any, below: Any, key: int) -> Any:
        return positions + 1, None


class Lazy(Evens):
    def down(self, positions: Any, below: Any, key: int) -> Any:
        return positions.tolist(), None


class Skips(TwoToOne):
    def at(self, positions: Any) -> Any:
        source, k = super().at(positions)
        return source, k + (k > 3)


class Again(TwoToOne):
    def at(self, positions: Any) -> Any:
        source, k = super().at(positions)
        return source, np.minimum(k, 3)


class Third(TwoToOne):
    def at(self, positions: Any) -> Any:
        return positions % 3, positions // 3


class Miscounts(Backwards):
    def counts(self, position: int) -> Any:
        return super().counts(position + 1)


class Misplaces(Backwards):
    def positions_of(self, source: Any, k: Any) -> Any:
        return super().positions_of(source, k) + source


class Loses(UpTo):
    def flush(self, held: Any) -> Any:
        return []


class Doubles(UpTo):
    def flush(self, held: Any) -> Any:
        return [held, held]


class Changes(UpTo):
    def step(self, held: Any, item: Any) -> Any:
        held.append(item)
        return held, []


class Remembers(UpTo):
    def step(self, held: Any, item: Any) -> Any:
        return np.array([1]), [[item]]


class Nameless(Evens):
    def describe(self) -> Any:
        return {"order": object()}


BROKEN: list[tuple[Callable[[], Any], str]] = [
    (lambda: assert_source(Few()), "Few.read gave 16 samples for 32 indices"),
    (lambda: assert_source(Moody()), "Moody.read gives another sample of index"),
    (lambda: assert_source(Mismeasured(), size=len), "Mismeasured.lengths says 0 of index 0, its size is 1|says . of"),
    (lambda: assert_order(NotBack()), "NotBack.up is not the inverse of down: position 1 comes from 2 of a pass of 7"),
    (lambda: assert_order(Twice()), "Twice.down returns index . of a pass of . more than once|leaves the pass"),
    (lambda: assert_order(Away()), "Away.down leaves the pass: position 0 .* comes from 1"),
    (lambda: assert_order(Lazy()), "Lazy.down returned list of shape None for 3 positions"),
    (lambda: assert_order(Nameless()), "Nameless.describe does not return JSON"),
    (lambda: assert_rule(Skips(), (9, 9)), "Skips.at skips a draw: position 6 is draw 5 of input 0, where draw 4"),
    (lambda: assert_rule(Again(), (9, 9)), "Again.at makes a draw twice: position 6 is draw 3 of input 0"),
    (lambda: assert_rule(Third(), (9, 9)), "Third.at draws from input 2 of 2 at position 2"),
    (lambda: assert_rule(Miscounts(), (9, 9)), r"Miscounts.counts\(1\) is \[2, 0\], but \[1, 0\] were drawn"),
    (lambda: assert_rule(Misplaces(), (9, 9)), "Misplaces.positions_of is not the inverse of at: draw 0 of input 1 is made at 2"),
    (lambda: assert_fold(Loses(9)), "Loses loses item . of 10"),
    (lambda: assert_fold(Doubles(9)), r"Doubles returns item . of size . as \[\("),
    (lambda: assert_fold(Changes(9)), "Changes.step changed its argument `carry` at item 0"),
    (lambda: assert_fold(Remembers(9)), "Remembers.step puts a ndarray into the carry, which a state cannot store"),
]  # fmt: skip


@pytest.mark.parametrize("check,words", BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_part_is_told_by_name(check: Callable[[], Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check()
