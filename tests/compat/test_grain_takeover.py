"""Random pipelines in Grain's order against Grain: workers, shards, states of Grain in mid-run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import penstock.compat.grain as ours
from example_counts import rounds
from grain_pipelines import INLINE, Built, Loader, take
from penstock.errors import StateError


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """Grain with workers that are threads, as on an interpreter without the lock: same records."""
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    from grain._src.python.dataset import dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "is_in_free_threaded_python", lambda: True)
        yield grain


@pytest.mark.parametrize("seed", range(rounds(12, 300)))
def test_random_loaders_continue_where_grain_stopped(seed: int, theirs: Any) -> None:
    theirs_made, ours_made = Loader(theirs, seed), Loader(ours, seed, order="grain")
    wanted = iter(theirs_made.loader)
    before = take(wanted, theirs_made.position)
    state = wanted.get_state()
    rest = take(wanted, 25)
    it = iter(ours_made.loader)
    assert take(it, len(before)) == before
    assert take(it, 25) == rest
    taken_over = iter(ours_made.loader)
    taken_over.set_state(state)
    resumed = iter(theirs_made.loader)
    resumed.set_state(state)
    rest = take(resumed, 25)
    assert take(taken_over, 3) == rest[:3]
    again = iter(ours_made.loader)
    again.set_state(taken_over.get_state())
    assert take(again, 22) == rest[3:]


@pytest.mark.parametrize("seed", range(1000, 1000 + rounds(8, 200)))
def test_random_pipelines_continue_where_grain_stopped(seed: int, theirs: Any) -> None:
    inline = theirs.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    position = random.Random(seed).randrange(20)
    other = iter(Built(seed, theirs, {}, inline).line())
    mine = iter(Built(seed, ours, {"order": "grain"}, INLINE).line())
    assert take(mine, position) == take(other, position)
    state = other.get_state()
    rest = take(other, 25)
    assert take(mine, 25) == rest
    mine.set_state(state)
    assert take(mine, 3) == rest[:3]
    again = iter(Built(seed, ours, {"order": "grain"}, INLINE).line())
    again.set_state(mine.get_state())
    assert take(again, 22) == rest[3:]
    assert take(mine, 22) == rest[3:]


def test_states_of_grain_that_do_not_fit() -> None:
    ds = ours.MapDataset.range(9, order="grain").shuffle(seed=1)
    it = iter(ds.to_iter_dataset())
    first = next(it)
    for state, message in (
        ({"next_index": 10}, "of 9 elements"),
        ({"next_index": -1}, "of 9 elements"),
        ({"next_index": "1"}, "of 9 elements"),
        ({"parent": {"next_index": 1}, "counter": 1}, "of 9 elements"),
    ):
        with pytest.raises(StateError, match=message):
            it.set_state(state)
    assert [first, *it] == list(ds)
    with pytest.raises(StateError, match="order='grain'"):
        iter(ours.MapDataset.range(9).to_iter_dataset()).set_state({"next_index": 1})
    counted = iter(ds.to_iter_dataset().map_with_index(lambda i, x: x))
    with pytest.raises(StateError, match="has no counter"):
        counted.set_state({"next_index": 1})
    flat = ours.experimental.LimitIterDataset(ds.to_iter_dataset(), 4)
    with pytest.raises(StateError, match="does not convert"):
        iter(flat).set_state({"next_index": 1})
    it.set_state({"next_index": 9})
    assert list(it) == []
