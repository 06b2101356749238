"""HDF5 files and Zarr folders, written by their own packages."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError, DataError
from penstock.sources import arrays as reader
from penstock.sources import index_and_count_rows, open_files
from penstock.testing.asserts import describe_difference

Write = Callable[[Path, dict[str, Any]], Path]


def hdf5(path: Path, arrays: dict[str, Any], **options: Any) -> Path:
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)
    return path.with_suffix(".h5")


def zarr2(path: Path, arrays: dict[str, Any]) -> Path:
    return zarr(path, arrays, zarr_format=2)


def zarr(path: Path, arrays: dict[str, Any], **options: Any) -> Path:
    module: Any = pytest.importorskip("zarr")
    group = module.open_group(str(path.with_suffix(".zarr")), mode="w", **options)
    for name, values in arrays.items():
        group.create_array(name, data=np.asarray(values), chunks=(7, *np.shape(values)[1:]))
    return path.with_suffix(".zarr")


both = pytest.mark.parametrize("write", [hdf5, zarr, zarr2])


def rows(path: Path | list[Path], **options: Any) -> list[Any]:
    source = open_files(path, **options)
    return source.read(np.arange(len(source)))


@both
@pytest.mark.parametrize("kind", ["u1", "<i4", ">i2", "i8", "f2", "f4", "f8", "c8", "?"])
def test_numbers_of_every_kind(write: Write, kind: str, tmp_path: Path) -> None:
    values = np.arange(40).astype(kind)
    path = write(tmp_path / "a", {"one": values, "two": values.reshape(20, 2).repeat(2, 0)})
    found = rows(path)
    assert [row["one"] for row in found] == values.tolist() and type(found[3]["one"]) is type(
        values[:1].tolist()[0]
    )
    assert not describe_difference(
        [row["two"] for row in found],
        list(values.astype(values.dtype.newbyteorder("=")).reshape(20, 2).repeat(2, 0)),
    )


@both
def test_any_order_and_repeats(write: Write, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 30, (50, 3))
    source = open_files(write(tmp_path / "a", {"x": values}))
    asked = np.random.default_rng(1).integers(0, 50, 200)
    assert not describe_difference([row["x"] for row in source.read(asked)], list(values[asked]))
    assert source.read(np.zeros(0, np.int64)) == []


@both
def test_groups_columns_and_lengths_that_differ(write: Write, tmp_path: Path) -> None:
    path = write(
        tmp_path / "a",
        {"in/x": np.arange(9), "in/y": np.arange(9), "z": np.arange(4), "scalar": [1]},
    )
    assert rows(path, columns=["in/y", "in/x"])[8] == {"in/y": 8, "in/x": 8}
    assert rows(path, columns=["z"]) == [{"z": i} for i in range(4)]
    with pytest.raises(
        ConfigError,
        match=r"must have equal numbers of rows, at least one: in/x has 9, in/y has 9, scalar has 1, z has",
    ):
        open_files(path)
    with pytest.raises(ConfigError, match=r"there is no array 'in' with rows"):
        open_files(path, columns=["in"])
    with pytest.raises(ConfigError, match="carry their own index"):
        index_and_count_rows(path)


@both
def test_several_of_them_are_one_source(write: Write, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{part}", {"x": np.arange(5) + 5 * part}) for part in range(3)]
    pattern = str(tmp_path / f"*{paths[0].suffix}")
    assert [row["x"] for row in rows(Path(pattern))] == list(range(15))
    other = write(tmp_path / "9", {"y": np.arange(5)})
    with pytest.raises(DataError, match=f"{other.name}.*its columns are y"):
        open_files(pattern)


def test_texts_of_hdf5(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    path = hdf5(
        tmp_path / "a", {"t": np.array(["ü", "", "abc"], dtype=object)}, dtype=h5py.string_dtype()
    )
    assert rows(path) == [{"t": "ü"}, {"t": ""}, {"t": "abc"}]
    with h5py.File(path, "a") as file:
        file.create_dataset("r", (3,), dtype=h5py.vlen_dtype("i4"))
        file["r"][1] = [1, 2]
    assert [row["r"].tolist() for row in rows(path, columns=["r"])] == [[], [1, 2], []]


def test_what_leads_out_of_an_hdf5_file_is_not_followed(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    secret = hdf5(tmp_path / "secret", {"x": np.arange(3)})
    (tmp_path / "raw").write_bytes(bytes(24))
    path = hdf5(tmp_path / "a", {"y": np.arange(3)})
    with h5py.File(path, "a") as file:
        file["link"], file["soft"] = h5py.ExternalLink(str(secret), "/x"), h5py.SoftLink("/y")
    assert rows(path) == [{"y": 0}, {"y": 1}, {"y": 2}]
    with h5py.File(path, "a") as file:
        file.create_dataset("out", (3,), "i8", external=[(str(tmp_path / "raw"), 0, 24)])
    with pytest.raises(
        ConfigError,
        match=r"a\.h5: the data of 'out' lies in other files, which Penstock does not read",
    ):
        open_files(path)
    with h5py.File(path, "a") as file:
        del file["out"]
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource(str(secret), "x", (3,))
        file.create_virtual_dataset("out", layout)
    with pytest.raises(ConfigError, match="the data of 'out' lies in other files"):
        open_files(path)
    assert len(open_files(path, columns=["y"])) == 3


def test_a_group_that_holds_itself_ends(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    path = hdf5(tmp_path / "a", {"g/x": np.arange(3)})
    with h5py.File(path, "a") as file:
        file["g/again"] = file["g"]
    with pytest.raises(DataError, match=r"a\.h5: cannot be read: more than 32 nested groups"):
        open_files(path)


def test_what_zarr_would_unpickle_is_refused(tmp_path: Path) -> None:
    path = zarr2(tmp_path / "a", {"x": np.arange(3)})
    metadata = path / "x" / ".zarray"
    whole = metadata.read_text()
    metadata.write_text(
        whole.replace('"filters": null', '"filters": [{"id": "pickle", "protocol": 5}]')
    )
    with pytest.raises(
        ConfigError, match=r"\.zarray: its values are pickled, which may run any code"
    ):
        open_files(path)


def test_an_array_alone_and_one_in_shards(tmp_path: Path) -> None:
    module: Any = pytest.importorskip("zarr")
    array = module.create_array(
        str(tmp_path / "a.zarr"), shape=(30, 2), chunks=(3, 2), shards=(12, 2), dtype="i4"
    )
    array[:] = np.arange(60).reshape(30, 2)
    source = open_files(tmp_path / "a.zarr")
    assert source.name == "a" and source.read(np.array([29, 4]))[0]["values"].tolist() == [58, 59]


def test_a_state_knows_the_chunks_of_zarr(tmp_path: Path) -> None:
    path = zarr(tmp_path / "a", {"x": np.arange(30)})
    before = open_files(path, cache=tmp_path / "cache").digest()
    zarr(tmp_path / "a", {"x": 1 + np.arange(30) // 29})
    after = open_files(path, cache=tmp_path / "cache").digest()
    assert before["files"] != after["files"] and before["rows"] != after["rows"]
    with pytest.raises(ConfigError, match="where= does not support Zarr"):
        open_files(path, where={"x": 1})


def test_rows_of_hdf5_are_chosen_by_their_values(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a", {"x": np.arange(30)})
    assert rows(path, where={"x": {"min": 27}}, cache=tmp_path / "cache") == [
        {"x": 27},
        {"x": 28},
        {"x": 29},
    ]


def test_rows_of_other_lengths_are_not_shared_with_who_reads_next(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "v.h5", "w") as file:
        made = file.create_dataset("v", (20,), dtype=h5py.vlen_dtype(np.int32))
        for row in range(20):
            made[row] = np.arange(row % 4)
    source = open_files(tmp_path / "v.h5")
    for row in source.read(np.arange(20)):
        row["v"] += 100
    assert [row["v"].tolist() for row in source.read(np.arange(20))] == [
        [*range(row % 4)] for row in range(20)
    ]


@both
def test_an_array_is_opened_once_and_may_be_written_anew(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(rows: int) -> Path:
        found = {"x": np.arange(rows), "y": np.arange(rows)}
        return (
            hdf5(tmp_path / "a", found, chunks=(1,))
            if write is hdf5
            else write(tmp_path / "a", found)
        )

    path = made(40)
    opened = list[str]()
    for name in ("_open_hdf5_dataset", "_open_zarr_array"):
        plain = getattr(reader, name)

        def counted(data: Any, name: str, plain: Any = plain) -> Any:
            opened.append(name)
            return plain(data, name)

        monkeypatch.setattr(reader, name, counted)
    source = open_files(path)
    for row in range(0, 40, 9):
        assert source.read(np.array([row])) == [{"x": row, "y": row}]
    assert opened == ["x", "y"]
    if write is hdf5:
        made(50)
        with pytest.raises(DataError, match="changed"):
            source.read(np.array([0]))
        assert rows(path)[49] == {"x": 49, "y": 49}


@both
def test_open_arrays_do_not_travel(write: Write, tmp_path: Path) -> None:
    source = open_files(write(tmp_path / "a", {"x": np.arange(40)}))
    assert source.read(np.array([3])) == [{"x": 3}]
    assert pickle.loads(pickle.dumps(source)).read(np.array([39])) == [{"x": 39}]


def test_a_file_of_hdf5_that_ends_too_early_is_no_garbage(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    with reader._UnlockedFile(path) as file, pytest.raises(OSError, match="7 bytes too early"):  # pyright: ignore[reportPrivateUsage]
        file.readinto(bytearray(10))


@both
def test_arrays_of_other_types_and_shapes_are_refused(write: Write, tmp_path: Path) -> None:
    grid = np.ones((2, 3), np.int32)
    first = write(tmp_path / "a", {"n": np.ones(2, np.int32), "x": grid})
    wider = write(tmp_path / "b", {"n": np.full(2, 2, np.uint64), "x": grid.astype(">i4")})
    found = rows([first, wider], columns=["n"])
    assert [row["n"] for row in found] == [1, 1, 2, 2] and len(rows([first, wider])) == 4
    for name, other, said in (
        ("c", {"n": np.ones(2), "x": grid}, r"'n' holds float, in .* it holds int:"),
        (
            "d",
            {"n": np.ones(2, int), "x": grid.astype(np.float32)},
            r"'x' holds float32\[3\], in .* it holds int32\[3\]:",
        ),
        (
            "e",
            {"n": np.ones(2, int), "x": np.ones((2, 4), np.int32)},
            r"'x' holds int32\[4\], in .* it holds int32\[3\]:",
        ),
    ):
        path = write(tmp_path / name, other)
        with pytest.raises(DataError, match=rf"{name}\..*: its column {said}"):
            open_files([first, path], columns=["n", "x"])


def test_rows_of_other_lengths_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    h5py: Any = pytest.importorskip("h5py")
    for name, kind in (("a", "i4"), ("b", ">i4"), ("c", "f4")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", (2,), h5py.vlen_dtype(np.dtype(kind)))[0] = [1, 2]
            file.create_dataset("s", data=np.array([name * len(kind), ""], "S"))
    assert len(open_files([tmp_path / "a.h5", tmp_path / "b.h5"])) == 4
    with pytest.raises(
        DataError, match=r"c\.h5: its column 'x' holds float32\[\*\], in .* it holds int32\[\*\]"
    ):
        open_files(tmp_path / "*.h5")


@both
def test_chunks_that_are_not_there_are_said_once(write: Write, tmp_path: Path) -> None:
    paths = [write(tmp_path / name, {"x": np.arange(1, 31)}) for name in ("a", "b")]
    for path in paths:
        if path.suffix == ".h5":
            with h5py_file(path) as file:
                del file["x"]
                file.create_dataset("x", (30,), "i8", chunks=(6,))[:24] = np.arange(1, 25)
        else:
            max(path.rglob("[0-9]*"), key=lambda each: int(each.name)).unlink()
    with pytest.warns(
        UserWarning, match=r"a\..*, x: 1 of \d+ chunks are missing and read as the fill value"
    ) as said:
        found = rows(paths)
    assert len(said) == 1 and len(found) == 60 and found[0]["x"] == 1 and found[29]["x"] == 0


def test_a_dataset_that_was_never_written_is_said(tmp_path: Path) -> None:
    with h5py_file(tmp_path / "a.h5") as file:
        file["x"] = np.arange(3)
        file.create_dataset("y", (3,), "f4")
    with pytest.warns(UserWarning, match="a.h5, y: 1 of 1 chunks are missing"):
        assert rows(tmp_path / "a.h5")[2] == {"x": 2, "y": 0.0}
    assert rows(tmp_path / "a.h5", columns=["x"])[2] == {"x": 2}


def h5py_file(path: Path) -> Any:
    h5py: Any = pytest.importorskip("h5py")
    return h5py.File(path, "a")


@pytest.mark.parametrize("write", [hdf5, zarr], ids=["hdf5", "zarr"])
def test_a_row_that_would_take_too_much_memory_is_not_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x", {"wide": np.zeros((2, 1000), "i4"), "n": np.arange(2)})
    monkeypatch.setattr(reader, "DECODED", 3_999)
    with pytest.raises(DataError, match="a row of the array 'wide' takes"):
        open_files(path)
    assert open_files(path, columns=["n"]).read(np.arange(2)) == [{"n": 0}, {"n": 1}]
