"""Cached segments of the token clock: equal to computed ones, kept apart, and never trusted blindly."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import penstock as ps
from draw_lengths import Lengths
from example_counts import examples
from penstock.engine.mixing import Mixture, SetWeights, timeline
from penstock.engine.steps import block_totals
from penstock.types import Ints


class Cache:
    """A cache in memory."""

    def __init__(self) -> None:
        self.stored = dict[str, Ints]()

    def __call__(self, key: Any, make: Callable[[], Ints]) -> Ints:
        name = json.dumps(key, sort_keys=True)
        if name not in self.stored:
            self.stored[name] = make()
        return self.stored[name]


def ramps(seed: int, sources: int = 3, points: int = 14, apart: int = 90) -> ps.Schedule:
    dice = np.random.default_rng(seed)
    names = "abcdefgh"[:sources]
    steps = {
        i * apart: dict(zip(names, dice.integers(0, 9, sources).tolist(), strict=True)) | {"a": 3}
        for i in range(points)
    }
    return ps.Schedule(steps, interpolation="linear")


def mixture(cache: Cache | None, seed: int = 1, **options: Any) -> Mixture:
    dice = np.random.default_rng(seed + 100)
    sizes = [dice.integers(1, 30, int(dice.integers(150, 400))).tolist() for _ in range(3)]
    lengths = tuple(map(Lengths, sizes))
    rest: dict[str, Any] = {
        "weights": ramps(seed),
        "sizes": tuple(map(len, sizes)),
        "lengths": tuple(float(each.sizes.mean()) for each in lengths),
        "meters": lengths,
    }
    return Mixture(names=("a", "b", "c"), **{**rest, **options}, cache=cache)


def answers(found: Mixture) -> Any:
    end = min(found.size or 3_000, 3_000)
    source, k = found.at(np.arange(end))
    few = np.arange(0, 700, 17)
    places = found.positions_of(np.repeat(np.arange(3), len(few)), np.tile(few, 3))
    far = [found.surplus(at) for at in range(0, end, 311)]
    return found.size, source.tolist(), k.tolist(), places.tolist(), far


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The positions whose segments are computed and not loaded."""
    positions, compute = list[int](), timeline.Timeline._compute_next

    def count(self: Any, states: Any, state: Any) -> Any:
        positions.append(state.position)
        return compute(self, states, state)

    monkeypatch.setattr(timeline.Timeline, "_compute_next", count)
    yield positions


@examples(40)
@given(
    seed=st.integers(0, 1 << 20),
    stop=st.sampled_from([None, *timeline.STOPS]),
    max_epochs=st.sampled_from([None, 1, 2]),
)
def test_loaded_segments_equal_computed_ones(seed: int, stop: Any, max_epochs: Any) -> None:
    cache = Cache()
    options: Any = {"max_epochs": max_epochs} if stop in (None, "restart") else {"stop": stop}
    try:
        want = answers(mixture(None, seed, **options))
    except ps.ConfigError as error:
        assert "start only later" in str(error)
        reject()  # all sources with weight end before the others begin
    assert answers(mixture(cache, seed, **options)) == want
    assert answers(mixture(cache, seed, **options)) == want
    assert len(cache.stored) < 2


def test_a_second_process_computes_only_the_first_segments(computed: list[int]) -> None:
    cache = Cache()
    found = mixture(cache)
    found.at(np.arange(1_200))
    assert len(computed) > 20
    computed.clear()
    mixture(cache).at(np.arange(1_200))
    assert len(computed) == timeline._UNCACHED


def test_few_segments_are_not_cached() -> None:
    cache = Cache()
    weights = ps.Schedule(dict(ramps(1, points=4).points))
    mixture(cache, weights=weights).at(np.arange(1_200))
    assert not cache.stored


OTHERS: list[dict[str, Any]] = [
    {"weights": ramps(2)},
    {"weights": ramps(1, apart=91)},
    {"weights": ps.Schedule(dict(ramps(1).points), interpolation="cosine")},
    {"key": 7},
    {"block_size": 64},
    {"max_epochs": 3},
    {"stop": "first_exhausted"},
    {"lengths": (1.0, 2.0, 3.0)},
    {"sizes": (100, 200, 100)},
]


@pytest.mark.parametrize("options", OTHERS, ids=[next(iter(each)) for each in OTHERS])
def test_mixtures_do_not_share_segments_with_other_mixtures(options: dict[str, Any]) -> None:
    cache, most = Cache(), {"max_epochs": 4}
    if "stop" not in options:
        options = most | options
    answers(mixture(cache, **most))
    assert answers(mixture(cache, **options)) == answers(mixture(None, **options))
    assert len(cache.stored) == 2


def test_segments_after_a_change_are_computed() -> None:
    cache = Cache()
    event = SetWeights(300, {"a": 1, "b": 9, "c": 1})
    changed = mixture(cache).with_event(event)
    assert answers(changed) == answers(mixture(None).with_event(event))
    assert len(cache.stored) == 1, "those before the change"


@pytest.mark.parametrize("limits", [{"_MOST_CACHED": 12 * 10}, {"_MOST_TOGETHER": 12}])
def test_too_many_segments_are_not_stored(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(timeline, name, limit)
    want, cache = answers(mixture(None)), Cache()
    assert answers(mixture(cache)) == want
    assert [len(stored) for stored in cache.stored.values()] == [1]
    computed.clear()
    assert answers(mixture(cache)) == want
    assert len(computed) == len(set(computed)), "none is computed twice"


def test_segments_of_very_many_sources_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST_CACHED", 10 * timeline._UNCACHED)
    cache = Cache()
    assert answers(mixture(cache)) == answers(mixture(None))
    assert not cache.stored


def test_an_error_comes_at_its_own_position() -> None:
    points = {20 * i: {"a": 1.0, "b": 0.0, "c": 1.0 + i} for i in range(14)}
    weights = ps.Schedule(points | {1_200: {"a": 0.0, "b": 1.0, "c": 0.0}})
    cache = Cache()
    for each in (None, cache, cache):
        found = mixture(each, weights=weights, sizes=(200, 200, 150), max_epochs=1)
        found._segment(300)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ps.ConfigError, match="at position 350 all sources"):
            found.at(np.arange(400))
    assert [len(stored) for stored in cache.stored.values()] == [1]


def test_segments_have_the_version_of_their_cache() -> None:
    cache = Cache()
    mixture(cache).at(np.arange(1_200))
    (integers,) = cache.stored.values()
    known = timeline.Known.decode(integers, 3)
    rows = [[state.position, *state.counts.tolist()] for state in known.states]
    digest = blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()
    assert (timeline._CACHE_VERSION, digest) == (1, "fd18ed3254485c39"), "raise _CACHE_VERSION"


# ---------------------------------------------------------------- on disk


class Data:
    """Three token stores, a cache folder, and the rows of their mixture."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"

    def write(self, seed: int) -> None:
        for name in "abc":
            dice = np.random.default_rng([seed, ord(name)])
            ends = np.cumsum(dice.integers(1, 40, 500)).astype("<u8")
            store = self.folder / name
            store.mkdir(exist_ok=True)
            for path, data in {
                "0.ds.index": ends.tobytes(),
                "0.ds": bytes(2 * int(ends[-1])),
                "0.ds.metadata": f"gpt2|2\n{int(ends[-1])}\n".encode(),
            }.items():
                (store / path).write_bytes(data)

    def rows(self, seed: int = 1, split: int = 1) -> list[Any]:
        inputs = {
            name: ps.read(self.folder / name, cache=self.folder / "indexes")
            .split(0.1, seed=split)[0]
            .shuffle(seed=seed)
            .repeat()
            for name in "abc"
        }
        ds = ps.mix(inputs, weights=ramps(1), unit="tokens", seed=seed)
        return [sample.key for at in range(0, 1_500, 7) for sample in ds.plan.at(at)]

    def files(self) -> list[Path]:
        """Return the cached segments, which are the largest of the cached integers."""
        files = [path for path in self.cache.rglob("sums") if path.is_file()]
        return [path for path in files if path.stat().st_size > 1 << 11]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1_000)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    made = Data(tmp_path)
    made.write(1)
    return made


def test_rows_are_equal_with_and_without_cached_segments(
    data: Data, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.rows()
    assert len(data.files()) == 1 and len(computed) > 20
    computed.clear()
    assert data.rows() == first and len(computed) == timeline._UNCACHED
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1 << 40)
    assert data.rows() == first and len(computed) > 30


@pytest.mark.parametrize("options", [{"seed": 2}, {"split": 2}])
def test_other_seeds_have_segments_of_their_own(data: Data, options: dict[str, int]) -> None:
    data.rows()
    other = data.rows(**options)
    assert len(data.files()) == 2
    shutil.rmtree(data.cache)
    assert data.rows(**options) == other


def test_segments_of_rewritten_files_are_not_used(data: Data, computed: list[int]) -> None:
    before = data.rows()
    data.write(2)
    computed.clear()
    after = data.rows()
    assert after != before and len(computed) > 20
    shutil.rmtree(data.cache)
    assert data.rows() == after


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [_truncate, _empty, _flip, _remove])
def test_damaged_segments_are_computed_again(
    data: Data, damage: Callable[[Path], None], computed: list[int]
) -> None:
    first = data.rows()
    (path,) = data.files()
    stored = path.read_bytes()
    damage(path)
    assert data.rows() == first
    assert path.read_bytes() == stored
    computed.clear()
    assert data.rows() == first and len(computed) == timeline._UNCACHED


def test_segments_are_computed_if_no_folder_takes_them(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data.rows()
    shutil.rmtree(data.cache)
    data.cache.write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(data.cache))
    assert data.rows() == first
