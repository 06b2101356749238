"""A packed run with everything that happens to one, step by step against the plan: key by key, token by token."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import rounds
from helpers import through_json

ROW = 48
STEPS = rounds(80, 5_000)
SOURCES = {"code": 300, "math": 40, "text": 500}


def store(name: str, n: int) -> tuple[Any, Any]:
    """The tokens of a source, no two of them alike, and where its documents begin."""
    place = sorted(SOURCES).index(name)
    sizes = np.random.default_rng(place).lognormal(3, 1, n).astype(np.int64) + 1
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return place * 10**6 + np.arange(offsets[-1]), offsets


STORES = {name: store(name, n) for name, n in SOURCES.items()}


def flow(batch: int, unit: Any, options: dict[str, Any]) -> ps.Dataset:
    stores = {name: ps.from_tokens(*STORES[name], name=name).shuffle(seed=3) for name in SOURCES}
    first, last = {"code": 2, "math": 1, "text": 5}, {"code": 4, "math": 0, "text": 1}
    schedule = ps.Schedule([(0, first), (STEPS * 2, first), (STEPS * 6, last)], ["step", "cosine"])
    return (
        ps.mix(stores, schedule, seed=7, unit=unit).pack(ROW, **options).batch(batch, collate=list)
    )


def tokens_of(row: Any) -> list[int]:
    """The tokens that the plan says a row holds."""
    out = list[int]()
    for sample in row:
        tokens, offsets = STORES[sample.source]
        begin = int(offsets[sample.index])
        out += tokens[begin + sample.start : begin + sample.stop].tolist()
    return out


def run(
    ds: ps.Dataset, world: int, states: Any, steps: int, change: Any = None
) -> tuple[list[Any], Any]:
    """So many global steps on ranks: the keys and the rows of each, and the states afterwards."""
    out = list[Any]()
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(ps.Loader(ds, rank=rank, world_size=world)) for rank in range(world)
        ]
        for loader in loaders if states else ():
            loader.load_state_dict(states)
        runs = [iter(loader) for loader in loaders]
        for step in range(steps):
            if change and step == steps // 2:
                assert len({loader.set_weights(change) for loader in loaders}) == 1
            rows = [row for each in runs for row in next(each)]
            out.append((sorted(key for loader in loaders for key in loader.keys()), rows))
        return out, through_json([loader.state_dict() for loader in loaders])


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("samples", {}),
        ("tokens", {}),
        ("samples", {"method": "best_fit", "rows": 16}),
        ("tokens", {"method": "best_fit", "rows": 16}),
    ],
)
def test_every_step_is_what_the_plan_says(unit: Any, options: dict[str, Any]) -> None:
    """A schedule, weights set, samples excluded, steps skipped, other ranks, other batches."""
    part = STEPS // 4
    got, state = run(flow(4, unit, options), 1, None, part, {"code": 1, "math": 2, "text": 1})
    lives = [(4, got)]
    plan = flow(4, unit, options).plan.for_state(state)
    coming = [
        sample.key
        for row in range(plan.position + 8, plan.position + 40)
        for sample in plan.at(row)
    ]
    edited = plan.exclude(sorted({key for key in coming if key[0] == "text"})[:20]).skip(
        steps=range(part + 3, part + 6)
    )
    got, state = run(flow(2, unit, options), 2, edited.state, part)
    lives.append((4, got))
    got, state = run(flow(3, unit, options), 2, state, part, {"code": 3, "math": 1, "text": 3})
    lives.append((6, got))
    got, state = run(flow(1, unit, options), 3, state, STEPS - 3 * part)
    lives.append((3, got))

    plan, at = flow(1, unit, options).plan.for_state(state), 0
    assert plan.position == sum(rows * len(got) for rows, got in lives)
    for rows, got in lives:
        for keys, given in got:
            samples = [plan.at(row) for row in range(at, at + rows)]
            assert keys == sorted(sample.key for row in samples for sample in row)
            told = [tokens_of(row) for row in samples]
            found = [
                np.asarray(row["tokens"])[np.asarray(row["segment_ids"]) > 0].tolist()
                for row in given
            ]
            assert sorted(found) == sorted(told)
            at += rows
    counted = plan.counts(at, unit="tokens")
    assert sum(counted.values()) == sum(
        len(row) for row in map(tokens_of, (plan.at(p) for p in range(at)))
    )


@pytest.mark.parametrize("packed", [False, True])
def test_the_plan_of_a_run_refuses_files_that_were_written_again(
    packed: bool, tmp_path: Path
) -> None:
    """Otherwise it names, or replays, samples that the run never had."""

    def write(*lengths: int) -> ps.Dataset:
        tokens = [token for n in lengths for token in [*range(n, 2 * n), 0]]
        np.asarray(tokens, np.uint16).tofile(tmp_path / "a.bin")
        documents = ps.read(tmp_path / "a.bin", dtype="uint16", eos=0)
        return documents.pack(8, "concat_split") if packed else documents

    loader = ps.Loader(write(3, 9, 4, 5))
    next(iter(loader))
    ps.save(tmp_path / "run", loader)
    later = write(9, 3, 4, 5)
    for state in (loader.state_dict(), tmp_path / "run"):
        with pytest.raises(ps.StateError, match="'a': other rows"):
            later.plan.for_state(state)
    assert write(3, 9, 4, 5).plan.for_state(loader.state_dict()).position == 1
