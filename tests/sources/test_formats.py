"""Datasets of other libraries: the rows that were written, in any order, alone and mixed, resumed, by any workers."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import numpy as np
import pytest

import foreign_formats
import penstock as ps
from example_counts import rounds
from foreign_formats import Made
from native_writers import TOOLS
from penstock.sources import open_files
from penstock.testing import assert_resumes
from penstock.testing.asserts import assert_same_events, describe_difference
from penstock.testing.parts import assert_source

FORMATS = {**foreign_formats.FORMATS, **TOOLS}


@pytest.fixture(scope="module", params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return FORMATS[request.param](tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    folder = tmp_path_factory.mktemp("every")
    found = dict[str, Made]()
    for name, write in FORMATS.items():
        try:
            found[name] = write(folder)
        except pytest.skip.Exception:  # its tool is not installed here
            continue
    return found


def read(made: Made, **options: Any) -> ps.Dataset:
    return ps.read(made.path, cache=made.path.parent / "cache", **{**made.options, **options})


def test_the_rows_are_those_that_were_written(made: Made) -> None:
    ds = read(made)
    assert len(ds) == len(made.rows)
    assert_same_events(list(ds), made.rows)
    asked = np.random.default_rng(0).integers(0, len(ds), 50)
    assert_same_events(ds[asked], [made.rows[index] for index in asked])
    assert_source(open_files(made.path, cache=made.path.parent / "cache", **made.options))


def test_shuffled_each_row_comes_once(made: Made) -> None:
    ds = read(made).shuffle(seed=3)
    order = [index for key in range(len(ds)) for _, _, index in [ds.plan.at(key)[0].key]]
    assert sorted(order) == list(range(len(made.rows))) != order
    assert_same_events(list(ds), [made.rows[index] for index in order])


def test_only_the_columns_that_are_asked_for(made: Made) -> None:
    if not isinstance(made.rows[0], dict):
        pytest.skip("rows without columns")
    column = list(made.rows[0])[-1]
    names = [
        name for name in made.rows[0] if name == column or name.startswith("__")
    ]  # of tars, with keys
    assert_same_events(
        list(read(made, columns=[column])),
        [{name: row[name] for name in names} for row in made.rows],
    )
    with pytest.raises(ValueError, match=f"{made.path.name}.*nowhere"):
        list(read(made, columns=["nowhere"]))


def test_a_state_knows_the_data(made: Made) -> None:
    source = open_files(made.path, cache=made.path.parent / "cache", **made.options)
    again = pickle.loads(pickle.dumps(source))
    assert_same_events(again.read(np.arange(len(again))), made.rows)
    assert again.digest() == source.digest() and set(source.digest()) == {"files", "rows"}
    assert source.name == made.path.name.partition(".")[0]


def test_it_goes_on_from_every_position(made: Made) -> None:
    few: Any = lambda: ps.Loader(read(made).shuffle(seed=1)[:6].batch(2, collate=list))  # noqa: E731
    assert_resumes(few, at_most=rounds(2, 64), same=lambda a, b: not describe_difference(a, b))


def mixed(every: dict[str, Made]) -> ps.Dataset:
    return ps.mix({name: read(one).shuffle() for name, one in every.items()}, seed=4).batch(
        3, collate=list
    )


def items(
    ds: ps.Dataset, executor: Literal["inline", "threads", "processes"], steps: int
) -> list[Any]:
    workers = 0 if executor == "inline" else 2
    with ps.Loader(ds, workers=workers, executor=executor, epoch_length=steps) as loader:
        return list(loader)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_all_of_them_mixed_are_the_same_by_any_workers(
    every: dict[str, Made], executor: Literal["threads", "processes"]
) -> None:
    ds = mixed(every)
    alone = items(ds, "inline", 60)
    assert_same_events(items(ds, executor, 60), alone)
    seen = dict.fromkeys(every, 0)
    for step, batch in enumerate(alone):
        for sample, row in zip(ds.plan.at(step), batch, strict=True):
            name, _, index = sample.key
            seen[str(name)] += 1
            assert not describe_difference(row, every[str(name)].rows[index])
    assert min(seen.values()) > 0


@pytest.mark.slow
def test_all_of_them_mixed_go_on_from_every_position(every: dict[str, Made]) -> None:
    assert_resumes(
        lambda: ps.Loader(mixed(every)),
        steps=rounds(8, 20),
        at_most=20,
        same=lambda a, b: not describe_difference(a, b),
    )
