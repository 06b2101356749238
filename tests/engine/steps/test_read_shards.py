"""Streams of functions that nothing identifies: named when a run starts, and refused where they give other samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest

import penstock as ps
from helpers import through_json
from penstock.engine.steps.read_shards import Sharded
from penstock.engine.streams.function_call import Leaf
from penstock.sources.digests import digest_value
from penstock.sources.memory import Iterable


def unseeded() -> Iterator[int]:
    yield from random.sample(range(300), 300)


def seeded() -> Iterator[int]:
    yield from random.Random(0).sample(range(300), 300)


def state(ds: ps.Dataset, steps: int = 30, **how: Any) -> dict[str, Any]:
    run = ps.Loader(ds, **how)
    list(islice(run, steps))
    return through_json(run.state_dict())


STEPS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "alone": lambda ds: ds,
    "filtered": lambda ds: ds.filter(lambda x: x % 3).batch(2, collate=list),
    "buffered": lambda ds: ds.shuffle_buffer(4, seed=1),
    "packed": lambda ds: ds.map(lambda x: [x] * 3).pack(8),
    "in passes": lambda ds: ds.repeat(),
    "mixed": lambda ds: ps.mix(
        {"g": ds, "other": ps.from_sequence(range(9)).filter(bool)}, {"g": 1, "other": 2}
    ),
}


@pytest.mark.parametrize("lanes", [1, 6])
@pytest.mark.parametrize("how", STEPS)
def test_another_order_is_refused_when_the_state_is_loaded(how: str, lanes: int) -> None:
    make = STEPS[how]
    saved = state(make(ps.from_iterable(unseeded, "g")), lanes=lanes)
    again = ps.Loader(make(ps.from_iterable(unseeded, "g")), lanes=lanes)
    before = again.state_dict()
    with pytest.raises(
        ps.StateError, match=r"sample \d+ of shard 'stream' in 'g' differs from.*seed=.*identity="
    ):
        again.load_state_dict(saved)
    assert again.state_dict() == before
    again.load_state_dict(saved, on_mismatch="adopt")
    next(iter(again))


@pytest.mark.parametrize("lanes", [1, 6])
@pytest.mark.parametrize("how", STEPS)
def test_the_same_order_is_gone_on_in(how: str, lanes: int) -> None:
    def make() -> ps.Loader:
        return ps.Loader(STEPS[how](ps.from_iterable(seeded, "g")), lanes=lanes)

    for steps in (1, 7, 30):
        whole = [str(item) for item in islice(make(), steps + 20)]
        run, again = make(), make()
        list(islice(run, steps))
        saved = through_json(run.state_dict())
        again.load_state_dict(saved)
        assert again.state_dict() == saved
        assert [str(item) for item in islice(again, 20)] == whole[steps:]
        list(islice(run, 20))
        assert again.state_dict() == run.state_dict()


def test_a_stream_that_never_ends_is_compared_too() -> None:
    def forever(start: int) -> ps.Dataset:
        return ps.from_iterable(lambda: count(start), "g")

    saved = state(forever(0), 500, lanes=1)
    again = ps.Loader(forever(0), lanes=1)
    again.load_state_dict(saved)
    assert next(iter(again)) == 500
    with pytest.raises(ps.StateError, match="sample 448 of shard 'stream'"):
        ps.Loader(forever(1), lanes=1).load_state_dict(saved)


def test_an_identity_takes_the_place_of_the_comparison(caplog: pytest.LogCaptureFixture) -> None:
    def augmented() -> Iterator[Any]:
        yield from ((i, random.random()) for i in range(300))

    def make(identity: Any) -> ps.Dataset:
        return ps.from_iterable(augmented, "g", identity=identity)

    saved = state(make("v1"))
    again = ps.Loader(make("v1"))
    again.load_state_dict(saved)
    assert next(iter(again))[0] == 30
    assert not caplog.records
    with pytest.raises(ps.StateError, match="'g': other identity"):
        ps.Loader(make("v2")).load_state_dict(saved)
    with pytest.raises(ps.ConfigError, match=r"a method digest\(\)"):
        ps.from_iterable(Iterable(seeded), identity=1)


def test_a_run_names_them_once_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    ds = ps.mix(
        {
            "a": ps.from_iterable(seeded),
            "b": ps.from_sequence(range(9)),
            "c": ps.from_iterable(seeded),
        }
    )
    first, second = (ps.Loader(ds, rank=rank, world_size=2, lanes=2) for rank in range(2))
    assert "is unknown" not in caplog.text
    for loader in (first, second, first):
        next(iter(loader))
    (told,) = [record.getMessage() for record in caplog.records if "is unknown" in record.message]
    assert "['a', 'c'] give their samples" in told and "identity='v1'" in told


def test_few_samples_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()

    def digest(value: Any) -> str:
        seen.append(value)
        return digest_value(value)

    monkeypatch.setattr("penstock.sources.digests.digest_value", digest)
    list(ps.Loader(ps.from_iterable(seeded), lanes=1))
    assert len(seen) == 8 + 4
    list(ps.Loader(ps.from_iterable(seeded, identity=1), lanes=1))
    assert len(seen) == 12


def test_a_resume_makes_the_stream_once() -> None:
    made = list[int]()

    def rows() -> Iterator[int]:
        made.append(0)
        yield from range(1_000)

    for lanes in (1, 6):
        saved = state(ps.from_iterable(rows, "g"), 500, lanes=lanes)
        made.clear()
        again = ps.Loader(ps.from_iterable(rows, "g"), lanes=lanes)
        again.load_state_dict(saved)
        assert next(iter(again)) == 500
        assert len(made) == 1


def test_what_was_refused_is_refused_again() -> None:
    leaf = Leaf(0, "g", 0, Iterable(unseeded))
    stream, again = Sharded(leaf), Sharded(leaf)
    stream.pull(30)
    again.seek(0, stream.cursor())
    for _ in range(2):
        with pytest.raises(ps.StateError, match="differs from the sample in the run"):
            again.pull(1)


def test_an_object_that_throws_when_it_is_looked_at_breaks_no_run() -> None:
    class Odd:
        @property
        def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
            raise RuntimeError("not now")

    assert digest_value(Odd()) == digest_value(Odd())
    make = ps.from_iterable(lambda: (Odd() for _ in range(99)), "g")
    ps.Loader(make).load_state_dict(state(make))
