"""`random_map`: draws follow from the seed, the step, the source, the pass and the sample."""

from __future__ import annotations

import numpy as np

import penstock as ps
from helpers import numbers


def draw(_: object, rng: np.random.Generator) -> float:
    return float(rng.random())


def test_draws_belong_to_samples_and_passes() -> None:
    ds = numbers(8)
    first = list(ds.random_map(draw))
    order = [sample.index for i in range(8) for sample in ds.shuffle().plan.at(i)]
    assert [first[i] for i in order] == list(ds.shuffle().random_map(draw))
    with ps.Loader(ds.random_map(draw)) as loader:
        assert list(loader) == first != list(loader)


def test_steps_are_told_apart_by_number_or_name() -> None:
    ds = numbers(4)
    pair = ds.random_map(lambda x, rng: (draw(x, rng),)).random_map(
        lambda x, rng: (*x, draw(x, rng))
    )
    assert all(a != b for a, b in pair)
    named = list(ds.random_map(draw, name="noise"))
    assert named != list(ds.random_map(draw))
    assert named == list(ds.random_map(lambda x, rng: x).random_map(draw, name="noise"))


def test_a_seed_is_that_of_the_step_or_of_the_dataset() -> None:
    ds = numbers(4)
    assert list(ds.random_map(draw, seed=5)) == list(ds.seed(5).random_map(draw))
    assert list(ds.random_map(draw, seed=5)) == list(ds.random_map(draw, seed=5).seed(6))
    assert list(ds.random_map(draw, seed=5)) != list(ds.random_map(draw))
