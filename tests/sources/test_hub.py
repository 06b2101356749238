"""Hugging Face datasets as they come from the Hub: map-style by index, streaming with states."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from helpers import through_json
from penstock.sources.digests import digest_few_rows
from penstock.sources.hub import HubStream, make_stored_row_reader
from penstock.testing import assert_covers, assert_resumes

datasets: Any = pytest.importorskip("datasets")
distributed: Any = pytest.importorskip("datasets.distributed")


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def table(count: int = 40) -> Any:
    return datasets.Dataset.from_dict(
        {"x": list(range(count)), "text": [f"ü{i}" for i in range(count)]}
    )


def loaded(folder: Path, *, streaming: bool) -> Any:
    """Return the result of `load_dataset` for the files of a repository."""
    for part in range(4):
        file = folder / "repository" / f"train-{part:05d}-of-00004.parquet"
        file.parent.mkdir(exist_ok=True)
        table().select(range(10 * part, 10 * part + 10)).to_parquet(file)
    files, cache = str(folder / "repository" / "*.parquet"), str(folder / "cache")
    return datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=streaming, cache_dir=cache
    )


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
            lambda lanes=lanes: ps.Loader(
                ps.from_iterable(data).batch(3, collate=list), lanes=lanes
            ),
            every=3,
        )


@pytest.mark.slow
def test_streams_with_steps_of_their_own_are_run_again_up_to_the_place() -> None:
    data = (
        table()
        .to_iterable_dataset(num_shards=4)
        .map(lambda row: {"y": -row["x"]})
        .shuffle(seed=5, buffer_size=7)
    )
    assert list(ps.from_iterable(data)) == list(data)
    assert_resumes(lambda: ps.Loader(ps.from_iterable(data), lanes=1), every=9)


def test_streams_are_mixed_with_files_by_any_workers(tmp_path: Path) -> None:
    table().to_json(tmp_path / "a.jsonl")
    inputs = {
        "files": ps.read(tmp_path / "a.jsonl"),
        "hub": ps.from_iterable(loaded(tmp_path, streaming=True)),
    }
    mixed = ps.mix(inputs, seed=1).batch(4, collate=list)
    runs = []
    for workers in (0, 2):
        executor = "threads" if workers else "inline"
        with ps.Loader(
            mixed, workers=workers, executor=executor, epoch_length=20, lanes=4
        ) as loader:
            runs.append(list(loader))
    assert runs[0] == runs[1] and len(runs[0]) == 20


# ---------------------------------------------------------------- shuffled without a seed


def resumed(make: Any, other: Any = None) -> ps.Loader:
    run = ps.Loader(make())
    next(iter(run))
    again = ps.Loader((other or make)())
    again.load_state_dict(through_json(run.state_dict()))
    return again


STREAM = {
    "shuffle": lambda data: data.shuffle(buffer_size=7),
    "interleave": lambda data: datasets.interleave_datasets([data, data], probabilities=[0.5, 0.5]),
    "below other steps": lambda data: (
        data.shuffle(buffer_size=7).map(lambda row: row).skip(1).take(9)
    ),
}
TABLE = {
    "shuffle": lambda data: data.shuffle(),
    "split": lambda data: data.train_test_split(test_size=0.2)["train"],
    "concatenate": lambda data: datasets.concatenate_datasets([data.shuffle(), data]),
    "select": lambda data: data.select(random.sample(range(40), 30)),
}


@pytest.mark.parametrize("how", TABLE)
def test_tables_in_another_order_are_refused(how: str) -> None:
    with pytest.raises(
        ps.StateError, match=r"'data': other rows\n.*seed a shuffle .* as in .shuffle\(seed=0\)"
    ):
        resumed(lambda: ps.from_sequence(TABLE[how](table())))


@pytest.mark.parametrize("how", STREAM)
def test_streams_in_another_order_are_refused(how: str) -> None:
    with pytest.raises(ps.StateError, match="'data': other steps"):
        resumed(lambda: ps.from_iterable(STREAM[how](table().to_iterable_dataset(num_shards=4))))


def test_a_stream_of_a_table_in_another_order_and_another_buffer_are_refused() -> None:
    stream = table().to_iterable_dataset(num_shards=4)
    with pytest.raises(ps.StateError, match="'data': other steps"):
        resumed(lambda: ps.from_iterable(table().shuffle().to_iterable_dataset(num_shards=4)))
    with pytest.raises(ps.StateError, match="'data': other steps"):
        resumed(
            lambda: ps.from_iterable(stream.shuffle(seed=1, buffer_size=7)),
            lambda: ps.from_iterable(stream.shuffle(seed=1, buffer_size=8)),
        )


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_streams_split_by_node_resume_at_every_position_and_on_their_node(shards: int) -> None:
    def node(rank: int) -> Any:
        stream = table().to_iterable_dataset(num_shards=shards)
        return distributed.split_dataset_by_node(stream, rank=rank, world_size=2)

    def seen(make: Any) -> ps.Dataset:
        return ps.from_iterable(make, name="rows")

    want = [row["x"] for row in node(1)]
    assert len(want) == 20
    for made in (node(1), lambda: node(1)):
        whole = [row["x"] for row in seen(made)]
        assert whole == want
        for at in (1, 7, 19):
            with ps.Loader(seen(made), lanes=1) as loader:
                for _, _ in zip(range(at), loader, strict=False):
                    pass
                state = loader.state_dict()
            with ps.Loader(seen(made), lanes=1) as loader:
                loader.load_state_dict(through_json(state))
                assert [row["x"] for row in loader] == want[at:]
    with ps.Loader(seen(node(1)), lanes=1) as loader:
        state = loader.state_dict()
    with (
        ps.Loader(seen(node(0)), lanes=1) as other,
        pytest.raises(ps.StateError, match="other steps"),
    ):
        other.load_state_dict(state)


def test_seeds_load_in_silence() -> None:
    stream = table().to_iterable_dataset(num_shards=4)
    for make in (
        lambda: ps.from_sequence(table().shuffle(seed=1)),
        lambda: ps.from_iterable(stream),
        lambda: ps.from_iterable(stream.shuffle(seed=1, buffer_size=7)),
        lambda: ps.from_iterable(
            datasets.interleave_datasets([stream, stream], probabilities=[0.5, 0.5], seed=1)
        ),
    ):
        assert resumed(make).warnings == []


def test_a_fingerprint_that_is_random_is_no_difference_where_rows_are_equal() -> None:
    def make() -> ps.Dataset:
        data = table()
        data._fingerprint = str(random.random())  # as datasets makes up for what it cannot hash
        return ps.from_sequence(data)

    (note,) = resumed(make).warnings
    assert (
        "its fingerprint differs from the fingerprint in the state" in note
        and "40 of the rows were compared and are equal" in note
    )


def test_rows_are_compared_as_they_are_stored() -> None:
    def fail(rows: Any) -> Any:
        raise AssertionError("nothing is decoded or transformed")

    data = table()
    assert digest_few_rows(
        make_stored_row_reader(data.with_transform(fail)), 40
    ) == digest_few_rows(make_stored_row_reader(data), 40)


def test_a_stream_of_a_function_is_named_and_compared(caplog: pytest.LogCaptureFixture) -> None:
    def rows() -> Any:
        yield from ({"x": x} for x in random.sample(range(10**9), 40))

    with pytest.raises(ps.StateError, match="in 'data' differs from the sample"):
        resumed(lambda: ps.from_iterable(datasets.IterableDataset.from_generator(rows)))
    assert "the order in which ['data'] gives its samples is unknown" in caplog.text


def keep(row: Any, least: int, rest: int = 0) -> bool:
    return row["x"] < least or row["x"] % 3 == rest


def tag(row: Any, tags: set[int]) -> Any:
    return {"y": row["x"] in tags}


def change(number: int) -> dict[str, Any]:
    """Return streams with functions that differ by a number, and give equal samples at first."""
    data = table().to_iterable_dataset(num_shards=4)

    def rows() -> Any:
        yield from ({"x": x} for x in range(40) if x < 9 or x > number)

    return {
        "partial": data.filter(functools.partial(keep, least=9, rest=number)),
        "closure": data.filter(lambda row: row["x"] < 9 or row["x"] > number),
        "keywords": data.map(tag, fn_kwargs={"tags": {number}}),
        "map below other steps": data.map(lambda row: {"y": number}).take(30).shuffle(seed=1),
        "batched map": data.map(lambda rows: {"y": [r + number * (r > 9) for r in rows["x"]]}, batched=True),
        "input of a mixture": datasets.interleave_datasets([data, data.map(lambda row: {"y": number})]),
        "generator": datasets.IterableDataset.from_generator(rows),
    }  # fmt: skip


NAMED = {"partial": "keep has", "keywords": "tag has", "generator": "change.<locals>.rows has"}


@pytest.mark.parametrize(
    "how",
    [
        "partial",
        "closure",
        "keywords",
        "map below other steps",
        "batched map",
        "input of a mixture",
        "generator",
    ],
)
def test_changed_functions_of_a_stream_are_noted(how: str) -> None:
    assert resumed(lambda: ps.from_iterable(change(1)[how])).warnings == []
    (note,) = resumed(
        lambda: ps.from_iterable(change(1)[how]), lambda: ps.from_iterable(change(2)[how])
    ).warnings
    assert "has changed; give the function a version to make this an error" in note
    assert f"the code of {NAMED.get(how, 'change.<locals>.')}" in note


def test_another_version_of_a_function_of_a_stream_is_an_error() -> None:
    def make(version: int) -> ps.Dataset:
        def double(row: Any) -> Any:
            return {"y": 2 * row["x"]}

        double.version = version  # pyright: ignore[reportFunctionMemberAccess]
        return ps.from_iterable(table().to_iterable_dataset().map(double))

    assert resumed(lambda: make(1)).warnings == []
    with pytest.raises(ps.StateError, match="'data': other steps"):
        resumed(lambda: make(1), lambda: make(2))


CHOOSING: dict[str, Any] = {
    "filter": lambda data: data.filter(lambda row: random.random() < 0.5),
    "batched map": lambda data: data.map(
        lambda rows: {"x": [x for x in rows["x"] if random.random() < 0.5]},
        batched=True,
        remove_columns=["text"],
    ),
}


@pytest.mark.parametrize("how", CHOOSING)
def test_a_function_that_chooses_samples_of_a_stream_is_named_and_compared(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def stream() -> Any:
        return CHOOSING[how](table(400).to_iterable_dataset())

    def run(seed: int, **options: Any) -> ps.Loader:
        random.seed(seed)
        return ps.Loader(ps.from_iterable(stream(), **options).batch(5, collate=list))

    for options in ({}, {"identity": "v1"}):
        caplog.clear()
        loader = run(1, **options)
        for _ in zip(range(12), loader, strict=False):
            pass
        state = through_json(loader.state_dict())
        named = "the order in which ['data'] gives its samples is unknown" in caplog.text
        assert named == (not options)
        if options:
            run(7, **options).load_state_dict(state)
        else:
            with pytest.raises(ps.StateError, match="in 'data' differs from the sample"):
                run(7, **options).load_state_dict(state)


def test_streams_without_functions_of_a_user_have_the_digest_of_before() -> None:
    data = table().to_iterable_dataset(num_shards=4)
    renamed = data.rename_column("x", "y").remove_columns(["text"])
    for stream in (data, renamed, data.shuffle(seed=1), data.skip(2), data.batch(2)):
        source = HubStream(stream)
        assert source.digest().keys() == {"steps"} and not source.unknown
    assert not HubStream(data.map(lambda row: row)).unknown


def test_states_from_before_functions_were_digested_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> ps.Loader:
        return ps.Loader(ps.from_iterable(change(1)["partial"]))

    with monkeypatch.context() as patch:
        steps = {"steps": HubStream(change(1)["partial"]).digest()["steps"]}
        patch.setattr(HubStream, "digest", lambda self: steps)
        patch.setattr(HubStream, "unknown", False)
        loader = make()
        for _ in zip(range(5), loader, strict=False):
            pass
        state = through_json(loader.state_dict())
    again = make()
    again.load_state_dict(state)
    assert again.warnings == [] and next(iter(again))["x"] == 5


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.date64(), pa.list_(pa.time64("ns"))])
def test_columns_that_datasets_cuts_off_are_refused(kind: Any) -> None:
    table = datasets.Dataset(pa.table({"x": pa.array([None, None], kind)}))
    for make in (
        lambda: ps.from_sequence(table),
        lambda: ps.from_iterable(table.to_iterable_dataset()),
    ):
        with pytest.raises(ps.ConfigError, match="'x' is .* truncates silently"):
            list(make())


@pytest.mark.parametrize("form", [None, "numpy", "torch", "arrow", "pandas"])
@pytest.mark.parametrize("nulls", [False, True])
def test_a_row_does_not_depend_on_the_rows_read_with_it(form: str | None, nulls: bool) -> None:
    pytest.importorskip({"arrow": "pyarrow"}.get(str(form), form or "datasets"))
    columns = {"big": [2**53 + 1, *range(20)], "f": [0.1] * 21, "flag": [True] * 21}
    data = datasets.Dataset.from_dict(
        columns | ({"some": [2**53 + 1, None] + [5] * 19} if nulls else {})
    ).with_format(form)
    rows = ps.from_sequence(data, name="rows")
    places = [0, 1, *range(5, 12), 3]  # single rows and a slice
    alone = [rows[place] for place in places]
    if form in ("arrow", "pandas"):
        assert all(row.equals(data[place]) for row, place in zip(alone, places, strict=True))
        assert all(a.equals(b) for a, b in zip(alone, rows[places], strict=True))
    else:
        assert repr(alone) == repr(rows[places]) == repr([list(rows)[place] for place in places])
        assert all(int(alone[0][name]) == 2**53 + 1 for name in ("big", "some")[: 1 + nulls])
