"""Items as torch tensors: what shares memory, what is copied, what stays; equal streams, whoever computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.arrays.trees import iter_leaves
from penstock.integrations.torch_form import TorchForm
from shared_processes import shared_processes

FORM = TorchForm(None, False)

SHARED = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
KEPT = ["M8[s]", "m8[ns]", "U3", "S3", "O", "g", "V4", [("a", "i4")]]


def form(item: Any) -> Any:
    (found,) = FORM.values([item])
    return found


@pytest.mark.parametrize("dtype", SHARED)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
def test_arrays_of_numbers_are_tensors_over_the_same_memory(
    dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.ones(shape, dtype)
    tensor = form({"x": array})["x"]
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == shape and tensor.numpy().dtype == array.dtype
    assert np.shares_memory(tensor.numpy(), array) or not array.size


@pytest.mark.parametrize("dtype", KEPT, ids=str)
def test_what_torch_has_no_dtype_for_stays_as_it_is(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    assert form(array) is array


def test_what_cannot_be_shared_is_copied() -> None:
    fixed = np.arange(6)
    fixed.flags.writeable = False
    arrays = [
        fixed,
        np.arange(6)[::-1],
        np.arange(6, dtype=">i4"),
        np.broadcast_to(np.float32(3), (2, 2)),
    ]
    for array, tensor in zip(arrays, FORM.values([*arrays]), strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.tolist() == array.tolist()
        tensor.zero_()
    assert fixed.tolist() == [*range(6)], "what was read-only was not written to"


def test_a_masked_array_keeps_its_mask() -> None:
    masked = np.ma.masked_array([1, 2], [True, False])
    assert form(masked) is masked


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Record:
    x: Any
    name: str


def test_trees_keep_their_shape() -> None:
    one = np.arange(2)
    item = {"a": one, "b": (one, [one, "s", None]), "c": Pair(one, 3), "d": Record(one, "n")}
    found = form(item)
    assert (
        isinstance(found["c"], Pair)
        and isinstance(found["d"], Record)
        and isinstance(found["b"], tuple)
    )
    assert [path for path, _ in iter_leaves(found)] == [path for path, _ in iter_leaves(item)]
    for (_, before), (_, after) in zip(iter_leaves(item), iter_leaves(found), strict=True):
        assert (
            after.tolist() == before.tolist() if isinstance(before, np.ndarray) else after is before
        )


@examples(60)
@given(
    st.recursive(
        st.sampled_from(
            [np.arange(3), np.float32(2), "s", None, 4, np.array(["a"]), torch.ones(2)]
        ),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_tree_keeps_its_shape_and_values(item: Any) -> None:
    before, after = [*iter_leaves(item)], [*iter_leaves(form(item))]
    assert [path for path, _ in before] == [path for path, _ in after]
    for (_, old), (_, new) in zip(before, after, strict=True):
        if isinstance(old, np.ndarray) and old.dtype.kind == "i":
            assert isinstance(new, torch.Tensor) and new.tolist() == old.tolist()
        else:
            assert new is old


# ---------------------------------------------------------------- loaders


def row(x: Any) -> dict[str, Any]:
    return {"x": np.full(3, x, np.float32), "id": int(x), "name": f"n{x}"}


def words(x: int) -> np.ndarray[Any, Any]:
    return np.arange(x % 7 + 1)


numbers = ps.from_sequence(range(60)).shuffle(seed=1)
FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "batches": lambda: numbers.map(row).batch(4),
    "samples": lambda: numbers.map(row),
    "filtered": lambda: numbers.filter(lambda x: x % 3).map(row).batch(4),
    "packed": lambda: numbers.map(words).pack(16).batch(2),
    "mixed": lambda: (
        ps.mix({"a": numbers, "b": numbers.limit(30)}, {"a": 2, "b": 1}, seed=3)
        .limit(40)
        .map(row)
        .batch(4)
    ),
    "lists": lambda: numbers.map(row).batch(4, collate=list),
}


def plain(item: Any) -> list[Any]:
    return [
        (path, leaf.tolist() if hasattr(leaf, "tolist") else leaf)
        for path, leaf in iter_leaves(item)
    ]


def check(name: str, **options: Any) -> None:
    """A loader that gives tensors gives the same as one that does not, and stands where that one stands."""
    want = ps.Loader(FLOWS[name]())
    with ps.Loader(FLOWS[name](), to="torch", **options) as loader:
        for item, expected in zip(loader, want, strict=True):
            assert plain(item) == plain(expected)
            for (path, leaf), (_, other) in zip(
                iter_leaves(item), iter_leaves(expected), strict=True
            ):
                assert isinstance(leaf, torch.Tensor) == isinstance(other, np.ndarray), path
            assert loader.keys() == want.keys()
            assert loader.state_dict() == want.state_dict()


@pytest.mark.parametrize(
    "options", [{}, {"workers": 2}, {"device": "cpu"}, {"device": "cpu", "workers": 2}], ids=str
)
@pytest.mark.parametrize("name", FLOWS)
def test_the_stream_is_that_of_numpy(name: str, options: dict[str, Any]) -> None:
    check(name, **options)


@pytest.mark.slow
def test_the_stream_is_that_of_numpy_out_of_worker_processes() -> None:
    with shared_processes():
        for name in ("batches", "packed", "lists"):
            check(name, workers=2, executor="processes")
        check("packed", workers=2, executor="processes", device="cpu")
        nested = numbers.map(lambda x: {"ids": words(x), "id": x}).batch(
            4, collate=ps.jagged(["ids"])
        )
        with ps.Loader(nested, to="torch", workers=1, executor="processes") as loader:
            for item, expected in zip(loader, nested, strict=True):
                assert item["ids"].layout is torch.jagged
                assert [part.tolist() for part in item["ids"].unbind()] == [
                    part.tolist() for part in expected["ids"]
                ]
                assert item["id"].tolist() == expected["id"].tolist()


def test_what_is_padding_is_a_tensor_too() -> None:
    loader = ps.Loader(
        ps.from_sequence([{"x": i} for i in range(3)]).batch(2), remainder="pad", to="torch"
    )
    assert [
        item["valid"].tolist() for item in loader if isinstance(item["valid"], torch.Tensor)
    ] == [
        [True, True],
        [True, False],
    ]


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ps.ConfigError, match="choose 'numpy', 'torch' or 'jax'; did you mean 'torch'"
    ):
        ps.Loader(numbers, to="troch")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="use to='torch'"):
        ps.Loader(numbers, device="cpu")
    with pytest.raises(ps.ConfigError, match="use to='torch'"):
        ps.Loader(numbers, pin_memory=True)
    for device in ("gpu", "meta", "cuda:99", object()):
        with pytest.raises(ps.ConfigError, match="device="):
            ps.Loader(numbers, to="torch", device=device)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pinned_memory_without_an_accelerator_is_refused() -> None:
    with pytest.raises(ps.ConfigError, match="no.*accelerator|this machine has none"):
        ps.Loader(numbers, to="torch", pin_memory=True)


class Pinned(Exception):
    """A tensor was to be pinned."""


class Begun(Exception):
    """A copy was to begin."""


@pytest.mark.parametrize(
    "device, asked, pins", [("cuda:0", None, True), ("cuda:0", False, False), ("cpu", None, False)]
)
def test_copies_to_cuda_come_from_pinned_memory_unless_told_otherwise(
    device: str, asked: bool | None, pins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: its module is stubbed, up to where a copy to it would begin."""
    from penstock.integrations.torch_form import TorchForm

    class Module:
        Stream = staticmethod(lambda device: object())  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]

        def is_available(self) -> bool:
            return True

        def stream(self, stream: object) -> object:
            raise Begun

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        raise Pinned

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    form = TorchForm(device, asked)
    assert form.copies
    if device == "cpu":
        assert form.copy(torch.zeros(2))().tolist() == [0, 0]
        return
    with pytest.raises(Pinned if pins else Begun):
        form.copy(torch.zeros(2))


def test_jagged_fields_of_which_torch_has_no_dtype_stay_as_they_are() -> None:
    rows = ps.from_sequence([{"x": np.ones(2, np.longdouble)}, {"x": np.ones(1, np.longdouble)}])
    (batch,) = ps.Loader(rows.batch(2, collate=ps.jagged(["x"])), to="torch")
    assert batch["x"][0].dtype == np.longdouble


HASHES = [2**63 + 1, 2**64 - 1, 2**63, 2**63 + 7]


def hash_samples(name: str, folder: Any) -> ps.Dataset:
    """Return samples with a hash, as each kind of input holds them."""
    if name == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"h": pa.array(HASHES, pa.uint64())}), folder / "h.parquet")
        return ps.read(folder / "h.parquet")
    if name == "jsonl":
        (folder / "h.jsonl").write_text("".join(f'{{"h": {one}}}\n' for one in HASHES))
        return ps.read(folder / "h.jsonl")
    make: dict[str, Callable[[int], Any]] = {
        "int": int,
        "list": lambda one: [one, one],
        "scalar": np.ulonglong,
        "array": lambda one: np.full(2, one, np.ulonglong),
        "other end": lambda one: np.full(2, one, np.dtype(np.ulonglong).newbyteorder()),
        "no axis": lambda one: np.array(one, np.ulonglong),
        "signed": lambda one: np.full(2, one - 2**63, np.longlong),
    }
    return ps.from_sequence([{"h": make[name](one)} for one in HASHES])


@pytest.mark.parametrize(
    "name",
    ["parquet", "jsonl", "int", "list", "scalar", "array", "other end", "no axis", "signed"],
)
def test_large_hashes_are_tensors_wherever_they_come_from(name: str, tmp_path: Any) -> None:
    ds = hash_samples(name, tmp_path)
    (batch,) = ds.batch(4)
    char = np.dtype(np.int64 if name == "signed" else np.uint64).char
    assert batch["h"].dtype.char == char
    wanted = [sample["h"] for sample in ds]
    wanted = [one if isinstance(one, int | list) else one.tolist() for one in wanted]
    assert batch["h"].tolist() == wanted
    if name != "other end":  # torch takes no foreign byte order
        assert torch.from_numpy(batch["h"]).tolist() == wanted
    for workers in (0, 2):
        (tensors,) = ps.Loader(ds.batch(4), to="torch", workers=workers)
        assert isinstance(tensors["h"], torch.Tensor) and tensors["h"].tolist() == wanted
    apart = [*ps.Loader(ds, to="torch")]
    if name in ("array", "other end", "no axis", "signed"):
        assert [sample["h"].tolist() for sample in apart] == wanted


def test_packed_and_padded_rows_of_large_hashes_are_tensors() -> None:
    from penstock.text import Padded

    ds = ps.from_sequence([{"h": np.full(2, one, np.ulonglong)} for one in HASHES])
    for dtype in (np.ulonglong, "uint64"):
        for batches in (
            ds.pack(4, dtype=dtype).batch(2),
            ds.batch(4, collate=Padded(dtype=dtype)),
        ):
            for batch in ps.Loader(batches, to="torch"):
                assert batch["h"].dtype == torch.uint64
