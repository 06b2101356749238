"""One batch of all ranks together: the same steps on any number of ranks, in a loader, the plan and a mixture file."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from cli_world import Penstock, mixture, penstock
from helpers import through_json
from penstock.mixture_files import read_model

__all__ = ["mixture", "penstock"]


def numbers(rows: int = 50) -> ps.Dataset:
    return ps.from_sequence(range(rows), name="x").shuffle()


def steps_of(
    ds: ps.Dataset, ranks: int, most: int = 100, states: Any = None, **options: Any
) -> tuple[list[Any], Any]:
    """The samples of global steps, and the states after them."""
    loaders = [ps.Loader(ds, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
    for loader in loaders if states else ():
        loader.load_state_dict(states)
    out = list[Any]()
    for batches in islice(zip(*loaders, strict=True), most):
        assert len({len(batch) for batch in batches}) == 1
        out.append(sorted(x for batch in batches for x in batch))
    return out, through_json([loader.state_dict() for loader in loaders])


def test_steps_are_the_same_on_any_number_of_ranks() -> None:
    ds = numbers().batch(global_batch_size=12, collate=list)
    want, _ = steps_of(ds, 1)
    assert len(want) == 4  # the last, short step is left out everywhere
    for ranks in (2, 3, 4, 6, 12):
        assert steps_of(ds, ranks)[0] == want
        assert len(ps.Loader(ds, rank=0, world_size=ranks)) == 4
    assert [
        sorted(s.index for s in ds.plan.at(step=step, world_size=3)) for step in range(4)
    ] == want
    assert [sorted(ds[step]) for step in range(4)] == want
    lines = ds.plan.audit(range(4), world_size=3).table().to_pylist()
    assert {(line["rank"], line["row"]) for line in lines} == {
        (rank, row) for rank in range(3) for row in range(4)
    }


def test_a_run_goes_on_with_its_steps_on_other_ranks() -> None:
    ds = numbers().repeat().batch(global_batch_size=12, collate=list)
    want, _ = steps_of(ds, 1, 9)
    found, states = list[Any](), None
    for ranks in (2, 6, 1):
        more, states = steps_of(ds, ranks, 3, states)
        found += more
    assert found == want
    plan = ds.plan.for_state(states)
    assert plan.position == plan.next_step == 9
    assert [(record.rows, record.ranks) for record in plan.records] == [(12, 2), (12, 6), (12, 1)]


def test_a_loader_batches_what_has_no_batches() -> None:
    want, _ = steps_of(numbers().batch(global_batch_size=12, collate=list), 2)
    loaders = [
        ps.Loader(numbers(), rank=rank, world_size=2, global_batch_size=12) for rank in range(2)
    ]
    found = [sorted(np.concatenate(batches).tolist()) for batches in zip(*loaders, strict=True)]
    assert found == want
    packed = ps.from_tokens(np.arange(900), np.arange(0, 901, 9)).pack(16)
    with ps.Loader(packed, rank=1, world_size=4, global_batch_size=8) as loader:
        assert next(iter(loader))["tokens"].shape == (2, 16)


def test_maps_over_batches_and_other_remainders() -> None:
    ds = (
        numbers(14)
        .batch(global_batch_size=4, collate=list)
        .map(lambda batch: [x * 10 for x in batch])
    )
    assert [len(step) for step in steps_of(ds, 2)[0]] == [4, 4, 4]
    assert [len(step) for step in steps_of(ds, 1, remainder="keep")[0]] == [4, 4, 4, 2]
    assert [len(step) for step in steps_of(ds, 2, remainder="pad")[0]] == [4, 4, 4, 4]
    assert [len(batch) for batch in ds] == [4, 4, 4, 2]


def test_what_one_rank_leaves_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        ps.Loader(numbers(14), rank=0, world_size=1, global_batch_size=4) as loader,
    ):
        list(loader)
    assert "omits its last 2 of 14 rows" in caplog.text


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_pass_without_a_step_is_refused_on_any_number_of_ranks(rows: int, ranks: int) -> None:
    source = ps.from_sequence(range(rows))
    options: Any
    for options in ({"global_batch_size": 4}, {"global_batch_size": 4, "epoch_length": 2}):
        with ps.Loader(source, rank=0, world_size=ranks, **options) as loader:
            for _ in range(2):
                with pytest.raises(
                    ps.ConfigError, match=rf"a pass has {rows} rows, and .* 4 a step, so no rank"
                ):
                    list(loader)
    for remainder in ("keep", "pad") if rows else ():
        with ps.Loader(
            source, rank=0, world_size=ranks, global_batch_size=4, remainder=remainder
        ) as loader:
            assert len(list(loader)) == 1


def test_a_short_rest_of_a_pass_after_smaller_batches_only_ends_it() -> None:
    source = ps.from_sequence(range(3))
    with ps.Loader(source, global_batch_size=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with ps.Loader(source, global_batch_size=4) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
        with pytest.raises(ps.ConfigError, match="a pass has 3 rows, and one rank takes 4 a step"):
            list(loader)


@pytest.mark.parametrize(
    ("make", "needle"),
    [
        (
            lambda: ps.Loader(numbers(), rank=0, world_size=5, global_batch_size=12),
            "divides it: 1, 2, 3, 4, 6, 12$",
        ),
        (
            lambda: ps.Loader(numbers().batch(global_batch_size=8), rank=0, world_size=3),
            "not a multiple of world_size=3",
        ),
        (
            lambda: ps.Loader(numbers().batch(4), rank=0, world_size=2, global_batch_size=12),
            "have 8 rows on 2 ranks",
        ),
        (
            lambda: ps.Loader(
                numbers().batch(global_batch_size=8), rank=0, world_size=2, global_batch_size=4
            ),
            "8 rows",
        ),
        (
            lambda: ps.Loader(numbers().batch(global_batch_size=8).limit(2), rank=0, world_size=2),
            "put it last",
        ),
        (
            lambda: numbers().batch(global_batch_size=8).batch(global_batch_size=2),
            "has global batches already",
        ),
        (
            lambda: ps.Loader(numbers(), rank=0, world_size=2, global_batch_size=8).lease(1),
            "global_batch_size divides",
        ),
        (
            lambda: ps.Loader(numbers().batch(4), global_batch_size=4).lease(1),
            "global_batch_size divides",
        ),
        (lambda: numbers().batch(), "give either n"),
        (lambda: numbers().batch(2, global_batch_size=4), "give either n"),
        (lambda: ps.Loader(numbers(), global_batch_size=0), "global_batch_size=0"),
        (
            lambda: numbers().batch(global_batch_size=8).plan.at(step=0, world_size=3),
            "not a multiple of world_size=3",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make: Any, needle: str) -> None:
    with pytest.raises(ps.ConfigError, match=needle):
        make()


def test_batches_of_a_rank_that_fit_are_taken() -> None:
    with ps.Loader(numbers().batch(6), rank=0, world_size=2, global_batch_size=12) as loader:
        assert len(next(iter(loader))) == 6


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_batches_of_a_rank_that_fit_make_the_same_steps_on_one_rank(
    ranks: int, mapped: bool
) -> None:
    ds = numbers().batch(12 // ranks, collate=list)
    ds = ds.map(list) if mapped else ds
    assert (
        steps_of(ds, ranks, global_batch_size=12)[0]
        == steps_of(numbers().batch(12, True, collate=list), 1)[0]
    )
    assert len(ps.Loader(ds, rank=0, world_size=ranks, global_batch_size=12, remainder="keep")) == 5


def test_the_plan_of_what_a_loader_batched_is_named() -> None:
    with ps.Loader(numbers(), rank=0, world_size=2, global_batch_size=12) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(ps.StateError, match=r"ds\.batch\(global_batch_size=12\)\.plan"):
        numbers().plan.for_state(state)
    assert numbers().batch(global_batch_size=12).plan.for_state(state).next_step == 1


def test_a_mixture_file_says_it(mixture: Path, penstock: Penstock, tmp_path: Path) -> None:
    text = mixture.read_text()
    mixture.write_text(
        text.replace(
            "batch: {size: 8, collate: list}", "global_batch_size: 8\nbatch: {collate: list}"
        )
    )
    ds = ps.load(mixture)
    assert [len(next(iter(ps.Loader(ds, rank=0, world_size=ranks)))) for ranks in (1, 2, 8)] == [
        8,
        4,
        1,
    ]
    ps.dump(ds, tmp_path / "again.yaml")
    assert "global_batch_size: 8" in (tmp_path / "again.yaml").read_text()
    assert len(ps.load(tmp_path / "again.yaml")) == len(ds) == 300
    loaders = [ps.Loader(ds, rank=rank, world_size=4) for rank in range(4)]
    its = list(map(iter, loaders))
    for _ in range(7):
        for it in its:
            next(it)
    keys = sorted(key for loader in loaders for key in loader.keys())
    for loader in loaders:
        ps.save(tmp_path / "run", loader)
    result = penstock("at", mixture, 6, "--state", tmp_path / "run", "--json")
    samples = json.loads(result.stdout)["samples"]
    assert (
        sorted((s["source"], s["epoch"], s["index"]) for s in samples) == keys and not result.stderr
    )


def test_an_audit_of_a_file_shows_the_ranks_that_are_named(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    text = mixture.read_text()
    mixture.write_text(
        text.replace(
            "batch: {size: 8, collate: list}", "global_batch_size: 8\nbatch: {collate: list}"
        )
    )
    loaders = [ps.Loader(ps.load(mixture), rank=rank, world_size=4) for rank in range(4)]
    given = [
        [loader.keys() for loader in loaders]
        for _ in zip(*(islice(one, 3) for one in loaders), strict=True)
    ]
    told = [[list[Any]() for _ in loaders] for _ in given]
    for line in map(
        json.loads, penstock("audit", mixture, "--steps", "0:3", "--ranks", 4).stdout.splitlines()
    ):
        told[line["step"]][line["rank"]].append((line["source"], line["epoch"], line["index"]))
    assert told == given
    assert (
        "not a multiple of world_size=3"
        in penstock("audit", mixture, "--steps", "0:3", "--ranks", 3).output
    )
    (state := tmp_path / "one.json").write_text(json.dumps(loaders[0].state_dict()))
    assert "remove --ranks" in penstock("audit", mixture, "--ranks", 4, "--state", state).output
    mixture.write_text(text.replace("size: 8", "size: 4, ranks: 2"))
    assert "batch.ranks: 2" in penstock("audit", mixture, "--ranks", 4).output


@pytest.mark.parametrize(
    ("settings", "needle"),
    [
        ("batch: {collate: list}\n", "give size, or global_batch_size"),
        ("global_batch_size: 8\nbatch: {size: 4}\n", "remove this key"),
        ("global_batch_size: 8\nbatch: {ranks: 4}\n", "remove this key"),
        ("global_batch_size: 0\n", "global_batch_size"),
    ],
)
def test_a_mixture_file_that_says_it_twice_is_refused(
    settings: str, needle: str, mixture: Path
) -> None:
    text = mixture.read_text().replace("batch: {size: 8, collate: list}\n", settings)
    mixture.write_text(text)
    _, problems = read_model(mixture)
    assert any(needle in f"{problem.key}: {problem.message}" for problem in problems), problems


def test_a_command_says_once_that_the_run_has_other_steps(
    mixture: Path, penstock: Penstock, tmp_path: Path
) -> None:
    mixture.write_text(mixture.read_text().replace("horizon: {steps: 300}\n", ""))
    with ps.Loader(ps.load(mixture), rank=0, world_size=1) as loader:
        next(iter(loader))
        ps.save(tmp_path / "run", loader)
    assert penstock("at", mixture, 0, "--state", tmp_path / "run").stderr == ""
    text = mixture.read_text()
    for other, said in (
        ("batch: {size: 4, ranks: 2", "2 ranks with 4 rows each"),
        ("global_batch_size: 4\nbatch: {", "global_batch_size: 4"),
    ):
        mixture.write_text(text.replace("batch: {size: 8", other).replace("{,", "{"))
        result = penstock("at", mixture, 0, "--state", tmp_path / "run")
        assert result.exit_code == 0, result.output
        assert result.stderr.count("answers are those of the run") == 1 and said in result.stderr
