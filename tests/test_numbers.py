"""Numbers keep their value and their kind on every way from a source to a batch.

The rule is that of docs/semantics.md, "Numbers": a batch holds every integer exactly, or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrays.trees import collate, join_batches
from penstock.tasks.batching import batch_pad_stack, concat_pad
from penstock.text import Padded
from penstock.writing.rows import write_rows

EXACT, SIGNED, UNSIGNED = 2**53, 2**63, 2**64
WIDTHS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

edges = st.sampled_from(
    [0, 1, -1, EXACT, EXACT + 1, -EXACT - 1, SIGNED - 1, -SIGNED, SIGNED, SIGNED + 1, UNSIGNED - 1]
)
integers = edges | st.integers(-SIGNED, UNSIGNED - 1) | st.integers(-9, 9)
floats = st.floats(allow_nan=False, width=32)


@st.composite
def of_numpy(draw: st.DrawFn) -> Any:
    kind = np.dtype(draw(st.sampled_from(WIDTHS)))
    limits = np.iinfo(kind)
    inside = edges.filter(lambda value: limits.min <= value <= limits.max)
    return kind.type(draw(inside | st.integers(int(limits.min), int(limits.max))))


@st.composite
def columns(draw: st.DrawFn) -> list[Any]:
    """A column of numbers: of one type, or of several beside each other."""
    kinds = [integers, of_numpy(), floats, st.booleans(), floats.map(np.float32)]
    some = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=2))
    return draw(st.lists(st.one_of(*some), min_size=1, max_size=6))


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def may_be_refused(values: Sequence[Any]) -> bool:
    """Return whether no dtype holds these numbers together."""
    whole = [value for value in map(plain, values) if type(value) is int]
    if any(type(value) is float for value in map(plain, values)):
        return any(abs(value) > EXACT for value in whole)
    return any(value >= SIGNED for value in whole) and any(value < 0 for value in whole)


def assert_kept(found: np.ndarray[Any, Any], values: Sequence[Any]) -> None:
    """The numbers are those that were given, and integers are integers."""
    assert found.reshape(-1).tolist() == [
        plain(value) for value in values
    ]  # Python compares exactly
    kinds = {type(plain(value)) for value in values}
    wanted = "f" if float in kinds else "iu" if int in kinds else "b" if kinds else "iu"
    assert found.dtype.kind in wanted, (found.dtype, values)


def of_collate(values: list[Any]) -> Any:
    return collate([{"x": value} for value in values])["x"]


def of_lists(values: list[Any]) -> Any:
    return collate([{"x": [value]} for value in values])["x"]


def of_nested_lists(values: list[Any]) -> Any:
    return collate([[values]])


def of_arrays(values: list[Any]) -> Any:
    return collate([np.asarray([value]) for value in values])


def of_loader(values: list[Any]) -> Any:
    (batch,) = ps.Loader(ps.from_sequence([{"x": value} for value in values]).batch(len(values)))
    return batch["x"]


def of_small_batches(values: list[Any]) -> Any:
    return join_batches(list(ps.from_sequence(values).batch(2)))


def of_rebatch(values: list[Any]) -> Any:
    ds = ps.from_sequence([np.asarray([value]) for value in values]).rebatch(len(values))
    (batch,) = ps.Loader(ds, lanes=1)
    return batch


def of_columns(values: list[Any]) -> Any:
    ds = ps.from_sequence(range(len(values))).map(
        lambda rows: {"x": [values[row] for row in rows]}, batched=4
    )
    (batch,) = ds.batch(len(values))
    return batch["x"]


def of_pad(values: list[Any]) -> Any:
    rows = [{"x": [value]} for value in values]
    return ps.from_sequence([{"x": []}, *rows]).batch(len(values) + 1, collate=ps.pad({"x": 0}))[0][
        "x"
    ][1:]


def of_jagged(values: list[Any]) -> Any:
    rows = [{"x": []}, *({"x": [value]} for value in values), {"x": []}]
    return ps.from_sequence(rows).batch(len(rows), collate=ps.jagged(["x"]))[0]["x"].values


def of_one_row(values: list[Any]) -> Any:
    return (
        ps.from_sequence([{"x": values}, {"x": []}])
        .batch(2, collate=ps.jagged(["x"]))[0]["x"]
        .values
    )


def of_task(values: list[Any]) -> Any:
    return concat_pad([np.asarray([value]) for value in values])


def of_padded_task(values: list[Any]) -> Any:
    found = batch_pad_stack([*(np.asarray([value]) for value in values), np.zeros(2, np.bool_)])
    return found[:-1, 0]


WAYS: list[Callable[[list[Any]], Any]] = [
    of_collate, of_lists, of_nested_lists, of_arrays, of_loader, of_small_batches, of_rebatch, of_columns, of_pad,
    of_jagged, of_one_row, of_task, of_padded_task,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@given(values=columns())
def test_a_batch_holds_every_number_or_is_refused(
    way: Callable[[list[Any]], Any], values: list[Any]
) -> None:
    try:
        found = way(values)
    except ps.DataError:
        assert may_be_refused(values), values
        return
    assert_kept(found, values)


@given(values=columns(), dtype=st.sampled_from([None, "int64", "uint64"]), packed=st.booleans())
def test_packed_integers_are_int32_or_what_is_asked_for(
    values: list[Any], dtype: Any, packed: bool
) -> None:
    documents = [{"x": []}, *({"x": [value]} for value in values), {"x": []}]
    ds = ps.from_sequence(documents)
    made = (
        ds.pack(8, dtype=dtype, eos={"x": 1}, max_segments=8)
        if packed
        else ds.pack_features({"x": 8}, dtype=dtype)
    )
    try:
        (row, *_) = ps.Loader(made, lanes=1)
    except ps.DataError:
        limits = np.iinfo(dtype or "int32")
        kinds = {type(plain(value)) for value in values}
        large = any(not limits.min <= plain(value) <= limits.max for value in values)
        assert (
            may_be_refused(values) or (large and float not in kinds) or (dtype and float in kinds)
        ), values
        return
    there = row["x"][row["segment_ids" if packed else "x_segment_ids"] > 0]
    if packed:  # an EOS after each, that of the empty one first
        there, values = there[1::2], values[:4]
    assert there[: len(values)].tolist() == [*map(plain, values)]
    kinds = {type(plain(value)) for value in values}
    if dtype or (int in kinds and float not in kinds):
        assert row["x"].dtype == np.dtype(dtype or "int32")


# ---------------------------------------------------------------- files


@given(values=st.lists(integers | floats | st.none(), min_size=1, max_size=5))
def test_json_numbers_are_those_of_the_file(values: list[Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(json.dumps({"x": value}) + "\n" for value in values))
    assert [row["x"] for row in ps.read(path)] == values
    try:
        (batch,) = ps.Loader(ps.read(path).batch(len(values)))
    except ps.DataError:
        assert may_be_refused([value for value in values if value is not None]) or None in values
        return
    if values == [None] * len(values):
        assert batch["x"] == values
    else:
        assert_kept(batch["x"], values)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
def test_columns_of_every_width_are_kept(
    format: str, width: str, data: st.DataObject, tmp_path_factory: Any
) -> None:
    limits = np.iinfo(width)
    inside = (
        st.integers(int(limits.min), int(limits.max))
        | st.just(int(limits.max))
        | st.just(int(limits.min))
    )
    nulls = st.none() if data.draw(st.booleans()) else st.nothing()
    values = data.draw(st.lists(inside | nulls, min_size=1, max_size=6))
    lists = data.draw(
        st.lists(
            st.lists(inside | nulls, max_size=3) | nulls, min_size=len(values), max_size=len(values)
        )
    )
    kind = getattr(pa, width)()
    table = pa.table({"x": pa.array(values, kind), "l": pa.array(lists, pa.list_(kind))})
    folder = tmp_path_factory.mktemp("tables")
    if format == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=2)
    else:
        with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
            writer.write_table(table, 2)
    rows = list(ps.read(folder))
    assert [row["x"] for row in rows] == values
    assert [row["l"] if row["l"] is None else [*map(plain, row["l"])] for row in rows] == lists
    assert all(
        row["l"].dtype == np.dtype(width) for row in rows if isinstance(row["l"], np.ndarray)
    )
    found = dict[str, list[Any]](x=[], l=[])

    def look(columns: Any) -> list[int]:
        for name in found:
            found[name] += list(columns[name])
        if isinstance(columns["x"], np.ndarray):
            assert columns["x"].dtype == np.dtype(width)
        return [0] * len(columns["x"])

    list(ps.read(folder, rows="columns").map(look, batched=3))
    assert [*map(plain, found["x"])] == values
    if None not in values:
        (batch,) = ps.read(folder, columns=["x"]).batch(len(values))
        assert_kept(batch["x"], values)


@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
@given(
    values=st.lists(
        st.none() | columns().map(lambda column: np.asarray([*map(plain, column)])),
        min_size=1,
        max_size=4,
    )
)
def test_rows_that_are_written_and_read_keep_their_numbers(
    format: Any, values: list[Any], tmp_path_factory: Any
) -> None:
    values = [value for value in values if value is None or value.dtype != object]
    rows = [{"n": 0, "x": value} for value in [np.array([]), *values, np.array([])]]
    folder = tmp_path_factory.mktemp("written")
    try:
        write_rows(rows, folder, format)
    except ps.DataError:
        return  # a column has one type: it is refused, not rounded
    for row, again in zip(rows, ps.read(folder), strict=True):
        assert (None if again["x"] is None else [*map(plain, again["x"])]) == (
            None if row["x"] is None else row["x"].tolist()
        )


def test_integers_of_csv_with_missing_values_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n{EXACT + 1},1\n,2\n{SIGNED - 1},3\n")
    assert [row["x"] for row in ps.read(tmp_path / "a.csv")] == [EXACT + 1, None, SIGNED - 1]
    with pytest.raises(ps.DataError, match="mixes NoneType and int"):
        list(ps.read(tmp_path / "a.csv").batch(3))


# ---------------------------------------------------------------- single faults, by name


def test_an_integer_that_a_float_would_round_is_named() -> None:
    with pytest.raises(
        ps.DataError,
        match=r"field 'id' of sample 1 in the batch: 9007199254740993 .* is no float64",
    ) as error:
        list(ps.Loader(ps.from_sequence([{"id": 0.5}, {"id": EXACT + 1}], name="ids").batch(2)))
    assert any("at sample ids[1]" in note for note in error.value.__notes__)


def test_batches_joined_keep_a_list_a_list() -> None:
    found = join_batches([{"x": np.arange(2)}, {"x": ["a", None]}])
    assert found == {"x": [0, 1, "a", None]}


def test_dates_of_several_units_are_kept_or_refused() -> None:
    days, times = np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-01T00:00:00.5"], "M8[ms]")
    assert collate([days, times]).tolist() == [[days[0].astype("M8[ms]").item()], [times[0].item()]]
    far, fine = np.array(["9999-01-01"], "M8[D]"), np.array([1], "M8[ns]")
    with pytest.raises(
        ps.DataError,
        match=r"sample 0 in the batch: datetime64\[D\] does not fit into datetime64\[ns\]",
    ):
        collate([far, fine])
    with pytest.raises(ps.DataError, match="no common dtype"):
        collate([np.array([1]), np.array([1], "m8[s]")])


def test_padded_documents_are_int32_whatever_they_are_stored_in() -> None:
    documents = [
        np.array([1, 2], np.uint16),
        [3],
        [],
        np.array([], np.float64),
        np.array([4], np.int64),
    ]
    assert Padded()(documents)["tokens"].dtype == np.int32
    assert Padded(dtype="int64")(documents)["tokens"].tolist() == [
        [1, 2],
        [3, 0],
        [0, 0],
        [0, 0],
        [4, 0],
    ]
    assert Padded(multiple=2)([[], []])["tokens"].dtype == np.int32
    features = [
        {"tokens": [1], "reward": np.array([0.5], np.float32)},
        {"tokens": [], "reward": []},
    ]
    batch = Padded()(features)
    assert batch["reward"].dtype == np.float32 and batch["tokens"].dtype == np.int32


def test_tensors_keep_their_integers() -> None:
    torch = pytest.importorskip("torch")
    whole, half = torch.tensor([2**24 + 1]), torch.tensor([0.5])
    with pytest.raises(
        ps.DataError,
        match=r"sample 0 in the batch: 16777217 beside torch.float32 is no torch.float32",
    ):
        collate([whole, half])
    assert collate([torch.tensor([3]), half]).tolist() == [[3.0], [0.5]]
    assert collate([torch.tensor([3], dtype=torch.int32), whole]).tolist() == [[3], [2**24 + 1]]


def test_half_floats_are_batched_without_a_warning() -> None:
    """Warnings are errors here: 2^53 overflowed as a float16."""
    found = ps.from_sequence([{"x": np.float16(0.5)}, {"x": np.float16(-3)}]).batch(2)[0]["x"]
    assert found.dtype == np.float16 and found.tolist() == [0.5, -3]
