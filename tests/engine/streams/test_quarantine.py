"""Bad samples: what takes their places, on any number of ranks, after any resume, in the plan."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import numbers, through_json
from penstock.engine.base.seams import world
from penstock.engine.steps.read import Read
from penstock.types import Ints, Json
from trees import begun

Key = tuple[str, int, int]
BAD = frozenset({3, 17, 18, 19, 60})


class Numbers:
    """A source of numbers some of which cannot be read. `read_bad` counts how often each was tried."""

    def __init__(
        self, n: int, bad: frozenset[int], error: Callable[[str], Exception] = ValueError
    ) -> None:
        self.n, self.bad, self.error = n, bad, error
        self.tried = list[int]()

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Ints, /) -> list[Any]:
        for index in indices.tolist():
            if index in self.bad:
                self.tried.append(index)
                raise self.error(f"cannot read {index}")
        return indices.tolist()

    def lengths(self) -> Ints | None:
        return None

    def describe(self) -> Json:
        return {"rows": self.n}


class Documents(Numbers):
    """Documents of one to five tokens, all of them the document's number plus one."""

    def read(self, indices: Ints, /) -> list[Any]:
        return [np.full(1 + i % 5, i + 1) for i in super().read(indices)]

    def lengths(self) -> Ints:
        return 1 + np.arange(self.n) % 5


def source(n: int = 100, bad: frozenset[int] = BAD, name: str = "a") -> ps.Dataset:
    return ps.Dataset(Read(Numbers(n, bad), name))


def documents(n: int = 60, bad: frozenset[int] = BAD) -> ps.Dataset:
    return ps.Dataset(Read(Documents(n, bad), "docs"))


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda array: array.tolist()))


def loader(ds: ps.Dataset, **options: Any) -> ps.Loader:
    return ps.Loader(ds, **{"on_error": "quarantine", "max_errors": 2000, **options})


PIPELINES: dict[str, Callable[[], ps.Dataset]] = {
    "a bad row": lambda: source(bad=frozenset({7})).shuffle(seed=1).batch(2, collate=list),
    "several passes": lambda: (
        source(20, frozenset({3, 7})).shuffle(seed=1).repeat(3).batch(2, collate=list)
    ),
    "a mixture": lambda: ps.mix(
        {"a": source(), "b": source(50, frozenset(range(10)), "b").shuffle(seed=2)},
        {"a": 2, "b": 1},
    ).limit(120),
    "a run of bad rows": lambda: source(1000, frozenset(range(300, 400))).batch(10, collate=list),
    "a bad partner": lambda: (
        source(60).zip(source(60, frozenset({5, 6}), "b")).shuffle(seed=3).batch(2, collate=list)
    ),
    "a bad document": lambda: documents().shuffle(seed=5).pack(8).batch(2),
    "whole documents": lambda: documents().pack(8, "best_fit", bos=7, pad=-1).batch(2),
    "mixed documents": lambda: ps.mix(
        {"a": documents(), "b": documents(40, frozenset())}, stop="all_exhausted"
    ).pack(9),
    "functions": lambda: (
        source(40, frozenset()).map(refuse_sevens).map_with_index(indexed).batch(4, collate=list)
    ),
    "a mixture of tuples": lambda: ps.mix(
        {
            "a": source(60).zip(source(60, frozenset({5}), "b")),
            "c": source(30, frozenset({4}), "c"),
        },
        stop="all_exhausted",
    ),
    "tuples of mixtures": lambda: (
        ps.mix({"a": source(40, frozenset({3, 4, 5})), "b": source(40, frozenset(), "b")})
        .limit(60)
        .zip(source(60, frozenset({7, 8}), "c"))
        .shuffle(seed=1)
        .batch(2, collate=list)
    ),
}


def refuse_sevens(x: int) -> int:
    if x % 7 == 0:
        raise ValueError(f"no sevens: {x}")
    return x


def indexed(i: int, x: int) -> tuple[int, int]:
    return i, x


def steps(
    ds: ps.Dataset, ranks: int, cut: int | None = None, together: bool = True
) -> tuple[list[Any], list[Any]]:
    """Return values and keys of the ranks by step; new loaders resume after `cut` steps."""
    loaders = [loader(ds, rank=rank, world_size=ranks) for rank in range(ranks)]
    values, keys = list[Any](), list[Any]()
    runs = [iter(each) for each in loaders]
    while True:
        if len(values) == cut:
            states = [through_json(each.state_dict()) for each in loaders]
            loaders = [loader(ds, rank=rank, world_size=ranks) for rank in range(ranks)]
            for each in loaders:
                each.load_state_dict(states if together else states[0])
            runs = [iter(each) for each in loaders]
        try:
            values.append([plain(next(run)) for run in runs])
        except StopIteration:
            return values, keys
        keys.append([each.keys() for each in loaders])


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_bad_samples_are_replaced_alike_whatever_was_saved_and_loaded(
    name: str, ranks: int
) -> None:
    ds = PIPELINES[name]()
    values, keys = steps(ds, ranks)
    assert values
    for together in (True, False):
        assert steps(PIPELINES[name](), ranks, 3, together) == (values, keys)


@pytest.mark.parametrize("name", PIPELINES)
def test_a5_the_plan_of_a_run_knows_what_took_the_places_of_bad_samples(name: str) -> None:
    ds = PIPELINES[name]()
    run = loader(ds)
    keys = [run.keys() for _ in run]
    again = loader(ds)
    for _ in islice(again, len(keys)):
        pass
    plan = ds.plan.for_state(through_json(again.state_dict()))
    found = [[sample.key for sample in plan.at(position)] for position in range(len(keys))]
    assert found == keys
    for position in range(0, len(keys) + 1, 3):
        assert plan.counts(position) == begun(plan, position)
    for key in dict.fromkeys(chain(*keys[:10])):
        assert plan.find(key[0], key[2]) == [
            p for p, some in enumerate(keys) if any(k[::2] == key[::2] for k in some)
        ]


def test_a_bad_sample_is_replaced_by_one_of_its_own_source_and_slice() -> None:
    train = source(50, frozenset({3, 4}))[:25].shuffle(seed=1)
    with loader(train) as run:
        given = list(run)
        entries = {entry["index"]: entry["used"] for entry in run.journal}
    assert set(entries) == {3, 4} and not {3, 4} & set(given)
    assert max(given) < 25, "nothing of what the slice leaves out comes in"
    where = [train[i : i + 1] for i in range(25)]
    assert len(where) == len(given) == 25


def test_what_an_edit_left_out_takes_no_place_of_a_bad_sample() -> None:
    ds = source(30, frozenset({15, 16, 17})).shuffle().repeat(2)
    it = loader(ds.plan.exclude([("a", i) for i in range(12)]).dataset)
    found = list(it)
    assert len(found) == 60 and len(it.journal) >= 3
    assert min(found) >= 12 and not {15, 16, 17} & set(found)


def test_a_run_of_bad_rows_does_not_give_copies_of_one_neighbour() -> None:
    with loader(source(10_000, frozenset(range(4000, 5000)))) as run:
        given = list(run)
    stood_in = given[4000:5000]
    assert len(given) == 10_000 and not set(stood_in) & set(range(4000, 5000))
    assert len(set(stood_in)) > 900


def test_a_bad_partner_takes_its_tuple_with_it() -> None:
    ds = source(60, frozenset({5})).zip(source(60, frozenset({9}), "b"))
    with loader(ds) as run:
        pairs = list(run)
    assert len(pairs) == 60 and all(a == b for a, b in pairs)
    assert {5, 9}.isdisjoint(chain(*pairs))


def test_a_bad_partner_takes_its_tuple_with_it_where_no_input_ends() -> None:
    ds = source(6, frozenset({3})).repeat().zip(source(6, frozenset({2}), "b").repeat())
    with loader(ds) as run:
        pairs = list(islice(run, 30))
        plan = ds.plan.for_state(run.state_dict())
        assert run.journal
    assert all(len(pair) == 2 and pair[0] == pair[1] for pair in pairs)
    assert {2, 3}.isdisjoint(chain(*pairs))
    assert [tuple(sample.index for sample in plan.at(p)) for p in range(30)] == pairs


def test_a_bad_document_of_a_planned_pack_is_a_masked_hole_of_its_length() -> None:
    ds = documents(10, frozenset({3, 7})).pack(6, pad=-100)
    good = list(documents(10, frozenset()).pack(6, pad=-100))
    with loader(ds) as run:
        rows = list(run)
        assert [(entry["index"], entry["used"]) for entry in run.journal] == [(3, None), (7, None)]
    for row, full in zip(rows, good, strict=True):
        gone = np.isin(full["tokens"], (4, 8))
        assert np.array_equal(row["tokens"], np.where(gone, -100, full["tokens"]))
        assert np.array_equal(row["segment_ids"] == 0, gone | (full["segment_ids"] == 0))
        assert np.array_equal(row["positions"], np.where(gone, 0, full["positions"]))
        ids = row["segment_ids"][row["segment_ids"] > 0]
        assert list(dict.fromkeys(ids.tolist())) == list(range(1, len(set(ids.tolist())) + 1))


def test_a_row_of_nothing_but_holes_keeps_its_form() -> None:
    ds = documents(5, frozenset({4})).pack(5)
    with loader(ds) as run:
        rows = list(run)
    assert [row["tokens"].dtype.kind for row in rows] == ["i"] * len(rows)
    assert sum(int((row["segment_ids"] > 0).sum()) for row in rows) == 10


def test_the_form_of_a_hole_at_the_beginning_is_that_of_what_follows() -> None:
    with loader(documents(5, frozenset({0})).pack(1, method="concat_split")) as run:
        rows = list(run)
    assert [row["tokens"].dtype.kind for row in rows] == ["i"] * 15
    assert [int((row["segment_ids"] > 0).sum()) for row in rows] == [0] + [1] * 14


def test_functions_over_batches_and_packs_raise() -> None:
    def refuse(value: Any) -> Any:
        raise ValueError("a bad group")

    for ds in (
        source(9, frozenset()).batch(3).map(refuse),
        documents(9, frozenset()).pack(4).map(refuse),
    ):
        with loader(ds) as run, pytest.raises(ValueError, match="a bad group") as caught:
            list(run)
        assert "of a batch or packed row cannot be replaced" in caught.value.__notes__[0]


def test_a_known_bad_sample_is_not_read_again() -> None:
    ds = source(100)
    with loader(ds) as run:
        head = list(islice(run, 50))
        state = run.state_dict()
    again = source(100)
    with loader(again) as run:
        run.load_state_dict(state)
        rest = list(run)
    with loader(source(100)) as run:
        assert head + rest == list(run)
    tried: Any = again.tree
    assert set(tried.source.tried) <= {60}


def test_samples_of_streams_are_left_out() -> None:
    ds = ps.from_iterable(lambda: iter(range(30)), name="s").map(refuse_sevens)
    for workers in (0, 2):
        with loader(ds, workers=workers, lanes=1) as run:
            assert list(run) == [x for x in range(30) if x % 7]
            assert [(entry["index"], entry["used"]) for entry in run.journal] == [
                (i, None) for i in range(0, 30, 7)
            ]


@pytest.mark.parametrize(
    "shuffled", [lambda ds: ds.shuffle_buffer(4), lambda ds: ds.shuffle(window=4)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_over_shuffled_streams_has_single_samples(
    shuffled: Callable[[ps.Dataset], ps.Dataset], workers: int
) -> None:
    """They counted as groups, so one bad sample ended the run."""
    stream = shuffled(ps.from_iterable(lambda: iter(range(30)), name="s"))
    with ps.Loader(stream, lanes=1) as run:
        expected = [x for x in run if x % 7]
    with loader(stream.map(refuse_sevens), workers=workers, lanes=1) as run:
        assert list(islice(run, 9)) == expected[:9]
        state = through_json(run.state_dict())
    with loader(stream.map(refuse_sevens), lanes=1) as run:
        run.load_state_dict(state)
        assert list(run) == expected[9:]
        assert {entry["index"] for entry in run.journal} == set(range(0, 30, 7))


def test_partners_in_a_zip_of_streams_are_never_shifted() -> None:
    a, b = (ps.from_iterable(lambda: iter(range(30)), name=name) for name in "ab")
    with (
        loader(a.map(refuse_sevens).zip(b), lanes=1) as run,
        pytest.raises(ValueError, match="no sevens") as raised,
    ):
        list(run)
    assert "(pass 0); in a zip of streams" in raised.value.__notes__[0]
    with loader(a.zip(b).map(lambda pair: refuse_sevens(pair[0])), lanes=1) as run:
        assert list(run) == [x for x in range(30) if x % 7]


STREAMS_UNDER_FUNCTIONS: dict[str, Callable[[], ps.Dataset]] = {
    "limit": lambda: streamed("s", 30).map(str).map(int).limit(22).map(refuse_sevens),
    "zip": lambda: (
        streamed("a", 30)
        .map(str)
        .zip(numbers(25, "b"))
        .map(lambda pair: refuse_sevens(int(pair[0])) * 100 + pair[1])
    ),
    "mixture": lambda: ps.mix(
        {"a": streamed("a", 30).map(int), "b": numbers(30, "b").filter(lambda _: True)},
        stop="all_exhausted",
    ).map(refuse_sevens),
    "indexed inputs beside streams": lambda: (
        numbers(20, "a").repeat_each(2).concat(streamed("b", 20)).map(refuse_sevens)
    ),
}


def streamed(name: str, n: int) -> ps.Dataset:
    return ps.from_iterable(partial(range, n), name=name)


@pytest.mark.parametrize("name", STREAMS_UNDER_FUNCTIONS)
def test_what_a_function_over_a_stream_drops_is_dropped_at_that_function_after_a_resume(
    name: str,
) -> None:
    ds = STREAMS_UNDER_FUNCTIONS[name]().repeat()
    for lanes in (1, 2):
        with loader(ds, lanes=lanes) as run:
            uninterrupted = list(islice(run, 60))
        for stop in range(0, 30, 3):
            with loader(ds, lanes=lanes) as run:
                head = list(islice(run, stop))
                state = through_json(run.state_dict())
            with loader(ds, lanes=lanes) as run:
                run.load_state_dict(state)
                assert head + list(islice(run, 60 - stop)) == uninterrupted


def test_the_limit_counts_samples_not_passes() -> None:
    ds = source(20, frozenset({3, 7})).repeat(5)
    with loader(ds, max_errors=2) as run:
        assert len(list(run)) == 100
        assert len(run.journal) >= 10
    with loader(ds, max_errors=1) as run:
        for _ in range(2):
            with pytest.raises(ps.DataError, match=r"2 samples failed, more than max_errors=1"):
                list(run)


def test_a_source_of_bad_samples_does_not_pass() -> None:
    with (
        loader(source(50, frozenset(range(50)))) as run,
        pytest.raises(ps.DataError, match="tried as a replacement"),
    ):
        list(run)


def test_a16_the_journals_of_all_ranks_are_one_and_missing_ones_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ds = PIPELINES["a run of bad rows"]()
    loaders = [loader(ds, rank=rank, world_size=3) for rank in range(3)]
    runs = [iter(each) for each in loaders]
    for _ in range(20):
        for run in runs:
            next(run)
    states = [each.state_dict() for each in loaders]
    whole = loader(ds)
    whole.load_state_dict(states)
    noted = {entry["index"] for each in loaders for entry in each.journal}
    assert noted and {entry["index"] for entry in whole.journal} == noted
    assert not caplog.records
    whole.load_state_dict(states[1])
    assert "ranks 0, 2" in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
@pytest.mark.parametrize(
    "error", [MemoryError, lambda text: OSError(5, text), ps.StorageError, TimeoutError]
)
def test_e1_storage_that_fails_is_tried_again_then_raised(
    monkeypatch: pytest.MonkeyPatch, on_error: str, error: Callable[[str], Exception]
) -> None:
    naps = list[float]()
    monkeypatch.setattr(world.sched, "sleep", naps.append)
    failing = Numbers(20, frozenset({3}), error)
    ds = ps.Dataset(Read(failing, "a"))
    with ps.Loader(ds, on_error=on_error) as run:  # type: ignore[arg-type]
        it = iter(run)
        with pytest.raises((OSError, MemoryError)):
            list(it)
        assert run.journal == [] and len(naps) >= 2 and naps[0] < naps[1]
        failing.bad = frozenset()
        assert next(iter(run)) == 3, (
            "it stays before the sample, and goes on when the storage is back"
        )


def test_storage_that_comes_back_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Numbers(20, frozenset({3}), lambda text: OSError(5, text))
    monkeypatch.setattr(world.sched, "sleep", lambda _: setattr(failing, "bad", frozenset()))
    for workers in (0, 2):
        failing.bad = frozenset({3})
        with ps.Loader(ps.Dataset(Read(failing, "a")), workers=workers) as run:
            assert list(run) == list(range(20))


def test_a_decoder_that_calls_bad_data_an_oserror_is_no_storage() -> None:
    def decode(x: int) -> int:
        if x == 3:
            raise OSError("image file is truncated")
        return x

    with loader(source(20, frozenset()).map(decode)) as run:
        assert len(list(run)) == 20 and [entry["index"] for entry in run.journal] == [3]


def stream_that_fails_once() -> Callable[[], Iterator[int]]:
    failures = [OSError(5, "disk")]

    def numbers() -> Iterator[int]:
        for i in range(20):
            if i == 7 and failures:
                raise failures.pop()
            yield i

    return numbers


def test_a_stream_is_opened_again_where_storage_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.sched, "sleep", lambda _: None)
    with ps.Loader(ps.from_iterable(stream_that_fails_once(), name="s"), lanes=1) as run:
        assert list(run) == list(range(20))


class Wordless(Exception):
    """An error without a message, since its `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_error_whose_str_raises_is_quarantined(executor: Any) -> None:
    def fail(x: int) -> int:
        if x == 5:
            raise Wordless
        return x

    ds = ps.from_sequence(range(8), name="n").map(fail)
    workers = int(executor != "inline")
    with ps.Loader(ds, on_error="quarantine", executor=executor, workers=workers) as loader:
        assert len(list(loader)) == 8
        assert "Wordless" in json.dumps(loader.state_dict())
