"""Stop in the middle, go on with another number of workers: the same batches."""

import numpy as np

import penstock as ps


def encode(x: int, rng: np.random.Generator) -> np.ndarray:
    """A random map: its numbers are keyed by the sample, so they are the same in every run."""
    return np.asarray([x, rng.integers(1_000)])


def pipeline() -> ps.Dataset:
    return ps.from_sequence(range(10_000)).shuffle(seed=1).random_map(encode).batch(32)


with ps.Loader(pipeline(), workers=2) as loader:
    steps = iter(loader)
    for _ in range(100):
        next(steps)
    ps.save("states", loader)
    expected = [next(steps) for _ in range(50)]

with ps.Loader(pipeline(), workers=1) as loader:
    print("resumed after step", ps.restore("states", loader))
    steps = iter(loader)
    resumed = [next(steps) for _ in range(50)]

assert all(np.array_equal(a, b) for a, b in zip(expected, resumed, strict=True))
print("50 batches equal after resuming")
