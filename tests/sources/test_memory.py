from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, DataError, StateError
from penstock.sources.digests import digest_data, digest_memory
from penstock.sources.memory import Iterable, Memory, Tokens
from penstock.types import Shards, Source


class Plain:
    """A map-style dataset as torch users write them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> str:
        assert type(index) is int
        return f"row {index}"


class Many(Plain):
    """A sequence with the interface of Hugging Face datasets."""

    def __init__(self, lose: int = 0) -> None:
        self.lose, self.calls = lose, 0

    def __getitems__(self, indices: list[int]) -> list[str]:
        self.calls += 1
        return [self[index] for index in indices][: len(indices) - self.lose]


class Store:
    """An array on disk that insists on increasing indices, as h5py does."""

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: list[int]) -> npt.NDArray[Any]:
        assert indices == sorted(set(indices))
        return self.rows[indices]


ORDER = np.array([7, 0, 7, 3, 9])


@pytest.mark.parametrize(
    "seq",
    [
        range(5, 105, 10),
        range(0, -10, -1),
        range(1 << 80, (1 << 80) + 10),
        list("abcdefghij"),
        tuple("abcdefghij"),
        "abcdefghij",
        np.arange(10) * 2,
        np.arange(10) / 2,
        np.arange(10) > 4,
        np.array(list("abcdefghij")),
        np.array([None, *range(9)], object),
        np.arange(10).astype("datetime64[ns]"),
        Plain(),
        Many(),
    ],
    ids=lambda x: type(x).__name__,
)
def test_any_sequence_is_read_as_by_index(seq: Any) -> None:
    source = Memory(seq)
    assert isinstance(source, Source)
    assert len(source) == 10
    assert source.read(ORDER) == [seq[index] for index in ORDER.tolist()]
    assert source.read(np.zeros(0, np.int64)) == []
    assert source.lengths() is None
    again = pickle.loads(pickle.dumps(source))
    assert again.read(ORDER) == source.read(ORDER)


def test_scalars_are_those_of_python() -> None:
    assert [
        type(Memory(seq).read(np.array([1]))[0])
        for seq in (range(3), np.arange(3), np.ones(3), np.ones(3) > 0)
    ] == [
        int,
        int,
        float,
        bool,
    ]


def test_rows_of_arrays_are_views() -> None:
    array = np.arange(20).reshape(10, 2)
    rows = Memory(array).read(ORDER)
    assert [row.tolist() for row in rows] == array[ORDER].tolist()
    assert all(np.shares_memory(row, array) for row in rows)


def test_many_rows_are_asked_for_at_once() -> None:
    many = Many()
    Memory(many).read(ORDER)
    assert many.calls == 1
    with pytest.raises(
        DataError, match=r"test_memory\.Many: __getitems__ returned 3 samples for 5 indices"
    ):
        Memory(Many(lose=2)).read(ORDER)


def test_array_stores_get_increasing_indices() -> None:
    rows = np.arange(20).reshape(10, 2)
    assert [row.tolist() for row in Memory(Store(rows)).read(ORDER)] == rows[ORDER].tolist()

    class Short(Store):
        def __getitem__(self, indices: list[int]) -> npt.NDArray[Any]:
            return self.rows[indices[1:]]

    with pytest.raises(DataError, match="returned 3 samples for 4 indices"):
        Memory(Short(rows)).read(ORDER)


def test_tables_give_rows() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    schema = pa.schema({"n": pa.int64(), "t": pa.list_(pa.int8())})
    parts = ({"n": [part, part + 1], "t": [[1] * part, None]} for part in range(0, 10, 2))
    table = pa.concat_tables(pa.table(part, schema) for part in parts)
    source = Memory(table)
    rows = source.read(ORDER)
    assert [row["n"] for row in rows] == ORDER.tolist()
    assert rows[1]["t"].tolist() == [] and rows[0]["t"] is None
    assert [row["n"] for row in pickle.loads(pickle.dumps(source)).read(ORDER)] == ORDER.tolist()


def test_record_batches_give_rows() -> None:
    """Their `[i]` is a column, so two columns came as two samples."""
    pa: Any = pytest.importorskip("pyarrow")
    batch = pa.record_batch({"n": list(range(10)), "m": list(range(10, 20))})
    source = Memory(batch)
    assert source.read(ORDER) == pa.Table.from_batches([batch]).take(ORDER).to_pylist()
    assert pickle.loads(pickle.dumps(source)).read(ORDER) == source.read(ORDER)
    assert source.digest_of(3) == Memory(pa.Table.from_batches([batch])).digest_of(3)


def test_two_columns_of_one_name_are_refused() -> None:
    pa: Any = pytest.importorskip("pyarrow")
    arrays, names = [pa.array([1]), pa.array([2])], ["a", "a"]
    for table in (pa.table(arrays, names), pa.record_batch(arrays, names)):
        with pytest.raises(ConfigError, match=r"has the column 'a' more than once.*rename"):
            Memory(table)


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        (iter("abc"), "has no __len__ and no __getitem__"),
        ({"a": 1}, "For columns give pyarrow.table"),
        (SimpleNamespace(__len__=len, __getitem__=getattr, dtypes=()), "for a series its to_list"),
        ({1, 2}, "has no __getitem__"),
        (5, "from_iterable"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_sequence_is_refused(thing: Any, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{type(thing).__qualname__} is no sequence(: | of samples: ).*{reason}"
    ):
        Memory(thing)


def test_errors_of_the_object_are_its_own() -> None:
    class Broken(Plain):
        def __getitem__(self, index: int) -> str:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        Memory(Broken()).read(ORDER)


def test_lengths() -> None:
    class Sized(Plain):
        def __init__(self, lengths: Any) -> None:
            self.lengths = lengths

    for good in ([1] * 10, np.ones(10, np.uint8), lambda: np.ones(10, np.int32)):
        lengths = Memory(Sized(good)).lengths()
        assert (
            lengths is not None and lengths[:].dtype == np.int64 and lengths[:].tolist() == [1] * 10
        )
    assert Memory(Sized(None)).lengths() is None
    for bad in ([1] * 9, [1.5] * 10, [-1] * 10, [[1]] * 10):
        with pytest.raises(DataError, match="return 10 integers, none negative"):
            Memory(Sized(bad)).lengths()


def test_describe_names_the_type() -> None:
    assert Memory(range(4)).describe() == {"type": "builtins.range", "rows": 4}
    assert Memory(Plain()).describe() == {"type": f"{__name__}.Plain", "rows": 10}


# ---------------------------------------------------------------- tokens


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 3), st.data())
def test_documents_are_slices(sizes: list[int], lead: int, data: st.DataObject) -> None:
    offsets = lead + np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))]).astype(np.int64)
    tokens = np.arange(offsets[-1] + 2, dtype=np.uint16)
    source = Tokens(tokens, offsets)
    assert isinstance(source, Source)
    order = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=30)) if sizes else []
    got = source.read(np.asarray(order, np.int64))
    assert [doc.tolist() for doc in got] == [
        tokens[offsets[i] : offsets[i + 1]].tolist() for i in order
    ]
    assert all(doc.base is tokens for doc in got)
    assert source.lengths()[:].tolist() == sizes
    assert source.describe() == {
        "type": "tokens",
        "rows": len(sizes),
        "tokens": sum(sizes),
        "dtype": "uint16",
    }


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([0, 5, 4, 6], "document 1 ends before it begins"),
        ([-1, 5], "from -1 to 5, but there are 10 tokens"),
        ([0, 11], "from 0 to 11, but there are 10 tokens"),
        (np.array([0, 2**64 - 1], np.uint64), "document 0 ends before it begins"),
    ],
)
def test_wrong_offsets_are_refused(offsets: Any, reason: str) -> None:
    with pytest.raises(DataError, match=f"offsets: .*{reason}"):
        Tokens(np.zeros(10), offsets)


@pytest.mark.parametrize(
    ("tokens", "offsets"),
    [
        (np.zeros((5, 2)), [0, 5]),
        (np.zeros(5), [[0, 5]]),
        (np.zeros(5), [0.0, 5.0]),
        (np.zeros(5), np.zeros(0, int)),
    ],
)
def test_wrong_shapes_are_refused(tokens: Any, offsets: Any) -> None:
    with pytest.raises(ConfigError, match="Tokens needs a flat array"):
        Tokens(tokens, offsets)


def test_mapped_arrays_are_pickled_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(1_000_000, dtype=np.uint16))
    np.save(tmp_path / "offsets.npy", np.arange(0, 1_000_001, 1000))
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("tokens", "offsets")]
    source = Tokens(*mapped)
    body = pickle.dumps(source)
    assert len(body) < 2000
    again = pickle.loads(body)
    docs = again.read(np.array([999, 3]))
    assert [(int(doc[0]), len(doc)) for doc in docs] == [(999_000 % 65_536, 1000), (3000, 1000)]
    assert type(docs[0]) is np.ndarray
    for array in (mapped[0], np.asfortranarray(mapped[0])):
        seq = Memory(array.reshape(1000, 1000))
        assert (pickle.loads(pickle.dumps(seq)).read(np.array([5]))[0] == array[5000:6000]).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_whole_mappings_and_slices_of_them_come_back_equal(tmp_path: Path, order: Any) -> None:
    whole = np.memmap(tmp_path / "x.bin", np.int32, "w+", 40, (6, 4), order)
    whole[:] = np.arange(24).reshape(6, 4)
    whole.flush()
    copied = np.memmap(tmp_path / "x.bin", np.int32, "c", 40, (6, 4), order)
    copied[0, 0] = 99
    for array in (whole, whole[2:], whole[::2], whole.T, copied):
        again = pickle.loads(pickle.dumps(Memory(array)))
        indices = np.arange(len(array))
        assert [row.tolist() for row in again.read(indices)] == np.asarray(array).tolist()


def test_threads_read_tokens_at_once() -> None:
    source = Tokens(np.arange(10_000), np.arange(0, 10_001, 10))

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 1000, 500)
        return all(
            doc[0] == 10 * index
            for doc, index in zip(source.read(order), order.tolist(), strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(20)))


# ---------------------------------------------------------------- iterables


def test_a_stream_is_one_shard() -> None:
    stream = Iterable(lambda: range(5))
    assert isinstance(stream, Shards)
    assert list(stream.names()) == ["stream"]
    assert [list(stream.open("stream", row)) for row in (0, 2, 5)] == [
        [0, 1, 2, 3, 4],
        [2, 3, 4],
        [],
    ]
    assert stream.describe() == {"type": "iterable"}


def test_a_stream_that_got_shorter_is_refused() -> None:
    with pytest.raises(
        DataError, match="it ended after 5 samples, before row 6 of the saved state"
    ):
        Iterable(lambda: range(5)).open("stream", 6)


def test_skip_is_used_where_there_is_one() -> None:
    class Skipping:
        def __init__(self, start: int = 0) -> None:
            self.start = start

        def __iter__(self) -> Iterator[int]:
            assert self.start == 3, "rows were made to be thrown away"
            return iter(range(self.start, 5))

        def skip(self, count: int) -> Skipping:
            return Skipping(self.start + count)

    assert list(Iterable(Skipping).open("stream", 3)) == [3, 4]


def test_an_iterator_is_no_factory() -> None:
    with pytest.raises(ConfigError, match=r"list_iterator is no function: .*from_iterable\(lambda"):
        Iterable(iter([1, 2]))  # pyright: ignore[reportArgumentType]


def test_arrays_of_jax_are_read() -> None:
    numpy = pytest.importorskip("jax.numpy")
    rows = Memory(numpy.arange(6).reshape(3, 2)).read(np.array([2, 0, 2]))
    assert [row.tolist() for row in rows] == [[4, 5], [0, 1], [4, 5]]


def test_large_arrays_are_identified_by_pages() -> None:
    array = np.arange(2_000_000).reshape(1_000, 2_000)
    digest = digest_data(array)
    assert digest == digest_data(np.asfortranarray(array)) != digest_data(array.reshape(-1))
    assert digest != digest_data(array.astype(np.uint64)) and digest != digest_data(array[:-1])
    for place in ((0, 0), (-1, -1)):
        changed = array.copy()
        changed[place] += 1
        assert digest_data(changed) != digest
    assert digest_data(array + 1) != digest
    small = array[:100]
    assert digest_data(small) == digest_memory(small)


def test_a_state_over_a_large_array_notices_other_values() -> None:
    array = np.arange(1_000_000)
    loader = ps.Loader(ps.from_sequence(array).batch(4))
    next(iter(loader))
    state = loader.state_dict()
    ps.Loader(ps.from_sequence(array.copy()).batch(4)).load_state_dict(state)
    with pytest.raises(StateError):
        ps.Loader(ps.from_sequence(array[::-1]).batch(4)).load_state_dict(state)
