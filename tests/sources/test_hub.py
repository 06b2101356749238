"""Hugging Face datasets as they come from the Hub: map-style by index, streaming with states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.testing import assert_covers, assert_resumes

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def table(count: int = 40) -> Any:
    return datasets.Dataset.from_dict({"x": list(range(count)), "text": [f"ü{i}" for i in range(count)]})


def loaded(folder: Path, *, streaming: bool) -> Any:
    """What `load_dataset` gives of files as a repository of the Hub holds them."""
    for part in range(4):
        file = folder / "repository" / f"train-{part:05d}-of-00004.parquet"
        file.parent.mkdir(exist_ok=True)
        table().select(range(10 * part, 10 * part + 10)).to_parquet(file)
    files, cache = str(folder / "repository" / "*.parquet"), str(folder / "cache")
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=streaming, cache_dir=cache)


def test_map_style_is_indexed_and_resumes(tmp_path: Path) -> None:
    data = loaded(tmp_path, streaming=False)
    ds = ps.from_sequence(data)
    assert len(ds) == 40 and list(ds) == list(table()) and ds[[7, 3]] == [table()[7], table()[3]]
    assert_resumes(lambda: ps.Loader(ps.from_sequence(data).shuffle(seed=2).batch(5, collate=list)))


def test_streams_give_every_row_and_resume_at_every_position(tmp_path: Path) -> None:
    data = loaded(tmp_path, streaming=True)
    assert list(ps.Loader(ps.from_iterable(data), lanes=1)) == list(table())
    assert_covers((row["x"] for row in ps.from_iterable(data)), range(40))
    for lanes in (1, 3):
        assert_resumes(
            lambda lanes=lanes: ps.Loader(ps.from_iterable(data).batch(3, collate=list), lanes=lanes), every=3
        )


def test_streams_with_steps_of_their_own_are_run_again_up_to_the_place() -> None:
    data = table().to_iterable_dataset(num_shards=4).map(lambda row: {"y": -row["x"]}).shuffle(seed=5, buffer_size=7)
    assert list(ps.from_iterable(data)) == list(data)
    assert_resumes(lambda: ps.Loader(ps.from_iterable(data), lanes=1), every=9)


def test_streams_are_mixed_with_files_by_any_workers(tmp_path: Path) -> None:
    table().to_json(tmp_path / "a.jsonl")
    inputs = {"files": ps.read(tmp_path / "a.jsonl"), "hub": ps.from_iterable(loaded(tmp_path, streaming=True))}
    mixed = ps.mix(inputs, seed=1).batch(4, collate=list)
    runs = []
    for workers in (0, 2):
        executor = "threads" if workers else "inline"
        with ps.Loader(mixed, workers=workers, executor=executor, epoch_length=20, lanes=4) as loader:
            runs.append(list(loader))
    assert runs[0] == runs[1] and len(runs[0]) == 20
