"""A state knows its data and its functions: other content is refused by what differs, moved data accepted and told."""

from __future__ import annotations

import gzip
import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from helpers import through_json
from penstock.engine.runtime.seal import seal, unseal
from penstock.sources.digests import digest_code, digest_memory
from penstock.stores.storage import LocalStore


def states(make: Callable[[], ps.Dataset], steps: int = 3) -> dict[str, Any]:
    it = iter(make())
    for _ in range(steps):
        next(it)
    return through_json(it.state_dict())


def load(ds: ps.Dataset, state: dict[str, Any], **how: Any) -> ps.Loader:
    loader = ps.Loader(ds)
    loader.load_state_dict(state, **how)
    return loader


def written(folder: Path, rows: list[int], files: int, pack: str = "") -> Path:
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.asarray(rows), files)):
        text = "".join(json.dumps({"x": int(row)}) + "\n" for row in part).encode()
        name = folder / f"{number:03}.jsonl{pack}"
        name.write_bytes(gzip.compress(text) if pack else text)
    return folder


ROWS = list(range(1_000, 2_000))


# ---------------------------------------------------------------- other content is refused


def test_a10_all_rows_of_a_file_changed(tmp_path: Path) -> None:
    state = states(lambda: ps.read(written(tmp_path / "a", ROWS, 1), name="docs"))
    other = written(tmp_path / "b", ROWS[::-1], 1)
    with pytest.raises(
        ps.StateError,
        match="differs from the data of the state, under the same names:\n  'docs': other rows",
    ):
        load(ps.read(other, name="docs"), state)


def test_a10_one_file_of_ten_changed(tmp_path: Path) -> None:
    state = states(lambda: ps.read(written(tmp_path / "a", ROWS, 10), name="docs"))
    other = ROWS[:300] + ROWS[300:400][::-1] + ROWS[400:]
    with pytest.raises(ps.StateError, match="'docs': other rows"):
        load(ps.read(written(tmp_path / "b", other, 10), name="docs"), state)


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a10_one_value_of_an_array_changed(size: int) -> None:
    values = np.arange(size)
    state = states(lambda: ps.from_sequence(values))
    other = values.copy()
    other[size // 3] += 1
    with pytest.raises(ps.StateError, match="'data': other values"):
        load(ps.from_sequence(other), state)
    load(ps.from_sequence(values.copy()), state)


def test_a10_one_value_of_a_list_changed() -> None:
    texts: list[Any] = [{"x": [1, 2.0, "three", b"four", np.arange(3)]}, None, "five"] * 10
    state = states(lambda: ps.from_sequence(texts))
    for other in (
        [*texts[:-1], "six"],
        [{"x": [1, 2.0, "three", b"fear", np.arange(3)]}, *texts[1:]],
    ):
        with pytest.raises(ps.StateError, match="other values"):
            load(ps.from_sequence(other), state)
    load(ps.from_sequence(list(texts)), state)


def test_a10_other_offsets_with_equal_totals() -> None:
    tokens = np.arange(100, dtype=np.uint16)

    def store(*offsets: int) -> ps.Dataset:
        return ps.from_tokens(tokens, [0, *offsets, 100], name="web").pack(10)

    state = states(lambda: store(30, 50, 70))
    with pytest.raises(ps.StateError, match="'web': other offsets"):
        load(store(30, 51, 70), state)
    with pytest.raises(ps.StateError, match="'web': other tokens"):
        load(ps.from_tokens(tokens[::-1].copy(), [0, 30, 50, 70, 100], name="web").pack(10), state)


def test_of_objects_only_type_and_length_count() -> None:
    class Thing:
        pass

    assert digest_memory([Thing()]) == digest_memory([Thing()])
    assert digest_memory([Thing()]) != digest_memory(["x"])
    state = states(lambda: ps.from_sequence([Thing() for _ in range(9)]))
    load(ps.from_sequence([Thing() for _ in range(9)]), state)


def test_an_array_larger_than_what_is_hashed_whole_is_known_by_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.sources.digests.MAX_HASHED_BYTES", 1 << 20)
    values = np.arange(4_000_000)
    assert digest_memory(values) == digest_memory(values.copy())
    assert digest_memory(values) != digest_memory(values + 1)
    assert digest_memory(list(range(200_000))) != digest_memory(list(range(1, 200_001)))


class Own:
    """A source of the user's, with a digest of its own."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __len__(self) -> int:
        return 10

    def read(self, indices: Any, /) -> list[Any]:
        return indices.tolist()

    def lengths(self) -> None:
        return None

    def describe(self) -> Any:
        return {"type": "own", "rows": 10}

    def digest(self) -> str:
        return self.version


def test_a_source_of_ones_own_may_say_its_digest() -> None:
    state = states(lambda: ps.from_sequence(Own("1")))
    load(ps.from_sequence(Own("1")), state)
    with pytest.raises(ps.StateError, match="other digest"):
        load(ps.from_sequence(Own("2")), state)


def test_other_shards_are_refused() -> None:
    class Some:
        def __init__(self, *names: str) -> None:
            self._names = names

        def names(self) -> list[str]:
            return list(self._names)

        def open(self, name: str, row: int, /) -> Any:
            return iter(range(row, 5))

        def describe(self) -> Any:
            return {"type": "some"}

    state = states(lambda: ps.from_iterable(Some("x/a", "x/b")))
    load(ps.from_iterable(Some("y/a", "y/b")), state)
    with pytest.raises(ps.StateError, match="other shards"):
        load(ps.from_iterable(Some("x/a", "x/c")), state)


# ---------------------------------------------------------------- the same data elsewhere


@pytest.mark.parametrize("how", ["moved", "re-sharded", "compressed"])
def test_the_same_rows_elsewhere_are_accepted_with_a_note(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = states(lambda: ps.read(written(tmp_path / "a", ROWS, 10), name="docs").shuffle())
    if how == "moved":
        other = (tmp_path / "a").rename(tmp_path / "b")
    else:
        other = written(
            tmp_path / "b",
            ROWS,
            10 if how == "compressed" else 3,
            ".gz" if how == "compressed" else "",
        )
    with caplog.at_level(logging.WARNING, "penstock"):
        loader = load(ps.read(other, name="docs", cache=tmp_path / "cache").shuffle(), state)
    if how == "moved":
        assert loader.warnings == []
    else:
        assert "'docs': its files differ from the files of the state" in loader.warnings[0]
        assert "64 of the rows were compared" in caplog.text
    assert next(iter(loader)) == next(
        iter(load(ps.read(other, name="docs", cache=tmp_path / "cache").shuffle(), state))
    )


def test_parquet_compressed_anew_is_accepted(tmp_path: Path) -> None:
    table = pa.table({"x": ROWS, "words": [[row, row] for row in ROWS]})
    pq.write_table(table, tmp_path / "a.parquet", compression="snappy", row_group_size=100)
    pq.write_table(table, tmp_path / "b.parquet", compression="zstd", row_group_size=70)
    state = states(lambda: ps.read(tmp_path / "a.parquet", name="t"))
    assert len(load(ps.read(tmp_path / "b.parquet", name="t"), state).warnings) == 1


def test_other_data_can_be_adopted_and_that_is_told() -> None:
    state = states(lambda: ps.from_sequence(range(10)))
    loader = load(ps.from_sequence(range(1, 11)), state, on_mismatch="adopt")
    assert next(iter(loader)) == 4
    assert "other values than in the state" in loader.warnings[0]


def grown_list(n: int, first: int = 0) -> ps.Dataset:
    return ps.from_sequence([first, *range(1, n)], name="data")


def grown_store(n: int, first: int = 0) -> ps.Dataset:
    return ps.from_tokens(
        np.asarray([first, *range(1, 200)]), list(range(0, 2 * n + 1, 2)), name="data"
    )


def grown_files(folder: Path, n: int, first: int = 0) -> ps.Dataset:
    return ps.read(written(folder / f"{n} {first}", [first, *range(1, n)], 1), name="data")


@pytest.mark.parametrize("kind", ["list", "array", "store", "files"])
def test_data_that_grew_must_begin_as_before(kind: str, tmp_path: Path) -> None:
    def make(n: int, first: int = 0) -> ps.Dataset:
        match kind:
            case "list":
                return grown_list(n, first)
            case "array":
                return ps.from_sequence(np.asarray([first, *range(1, n)]), name="data")
            case "store":
                return grown_store(n, first)
            case _:
                return grown_files(tmp_path, n, first)

    state = states(lambda: make(40))
    loader = load(make(60), state, on_mismatch="adopt")
    next(iter(loader))
    assert loader.keys() == [("data", 0, 3)]
    assert (
        "'data' has grown from 40 rows to 60; the first 40 equal the rows of the state"
        in loader.warnings[0]
    )
    with pytest.raises(
        ps.StateError,
        match="its first 40 rows differ from the rows of the state .other (values|tokens|rows)",
    ):
        load(make(61, first=5), state, on_mismatch="adopt")
    with pytest.raises(ps.StateError, match="saved 40, now 60"):
        load(ps.from_sequence(list(range(60)), name="data"), states(lambda: grown_list(40)))


def test_data_that_grew_is_known_by_a_few_rows_where_only_reading_tells_what_it_holds() -> None:
    class Rows:
        def __init__(self, first: int, n: int) -> None:
            self.first, self.n = first, n

        def __len__(self) -> int:
            return self.n

        def __getitem__(self, i: int) -> int:
            return self.first + i

    loader = load(
        ps.from_sequence(Rows(0, 90)),
        states(lambda: ps.from_sequence(Rows(0, 50))),
        on_mismatch="adopt",
    )
    assert next(iter(loader)) == 3
    assert (
        "8 of the first 50 rows were compared and equal the rows of the state" in loader.warnings[0]
    )
    with pytest.raises(ps.StateError, match="its first 50 rows differ from the rows of the state"):
        load(
            ps.from_sequence(Rows(1, 90)),
            states(lambda: ps.from_sequence(Rows(0, 50))),
            on_mismatch="adopt",
        )


def test_files_are_read_for_their_digest_once_and_not_for_every_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = written(tmp_path / "a", ROWS, 4), list[str]()
    real = LocalStore.read

    def counting(self: Any, path: str, *rest: Any) -> bytes:
        read.append(path)
        return real(self, path, *rest)

    it = iter(ps.read(folder, cache=tmp_path / "cache"))
    next(it)
    it.state_dict()
    monkeypatch.setattr(LocalStore, "read", counting)
    it.state_dict()
    again = ps.read(folder, cache=tmp_path / "cache")
    read.clear()
    iter(again).state_dict()
    assert [path for path in read if path.endswith(".jsonl")] == []


def test_a_state_without_the_data_of_a_source_is_refused() -> None:
    state = states(lambda: ps.from_sequence(range(10)))
    body = unseal(state)
    for data in ({}, {"data": {}}, {"data": 3}, 3):
        with pytest.raises(ps.StateError, match="damaged"):
            load(ps.from_sequence(range(10)), seal({**body, "data": data}))


def test_states_of_500_sources_stay_small() -> None:
    flows = {f"source-{i:03}": ps.from_sequence(range(100 + i)) for i in range(500)}
    assert len(json.dumps(states(lambda: ps.mix(flows).batch(4, collate=list)))) < 150_000


# ---------------------------------------------------------------- the order


def test_a_right_position_in_a_wrong_order_does_not_pass() -> None:
    def make(n: int) -> ps.Dataset:
        return ps.from_sequence(range(100)).shuffle(seed=n).batch(4, collate=list)

    one, other = states(lambda: make(1)), states(lambda: make(2))
    forged = seal(
        {
            **unseal(one),
            "pipeline": unseal(other)["pipeline"],
            "fingerprint": unseal(other)["fingerprint"],
        }
    )
    loader = ps.Loader(make(2))
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(ps.StateError, match="the samples before it differ"):
        loader.load_state_dict(forged)
    assert loader.state_dict() == before


def test_a10_numbers_are_equal_however_they_are_written() -> None:
    def make(one: Any, three: Any) -> ps.Dataset:
        return ps.mix(
            {"a": ps.from_sequence(range(9)), "b": ps.from_sequence(range(9))},
            {"a": one, "b": three},
        )

    state = states(lambda: make(1, 3))
    for one, three in ((1.0, 3.0), (np.float32(1), np.int64(3))):
        load(make(one, three), state)


# ---------------------------------------------------------------- functions


def plus(n: Any) -> Callable[[int], int]:
    return lambda x: x + n


def test_c9_another_body_of_a_function_is_told() -> None:
    def first() -> Callable[[int], int]:
        def step(x: int) -> int:
            return x + 1

        return step

    def second() -> Callable[[int], int]:
        def step(x: int) -> int:
            return x + 2

        return step

    one, two = first(), second()
    two.__qualname__ = one.__qualname__
    state = states(lambda: ps.from_sequence(range(9)).map(one))
    assert load(ps.from_sequence(range(9)).map(first()), state).warnings == []
    (note,) = load(ps.from_sequence(range(9)).map(two), state).warnings
    assert "the code of" in note and "step" in note


def test_c9_what_a_function_closes_over_and_what_partial_holds_count() -> None:
    assert digest_code(plus(1)) == digest_code(plus(1)) != digest_code(plus(2))
    assert digest_code(plus({"x": {"y": 1}})) != digest_code(plus({"x": {"y": 2}}))
    within: dict[str, Any] = {}
    within["itself"] = within
    assert digest_code(plus(within)) == digest_code(plus(within))
    assert (
        digest_code(partial(pow, 2)) == digest_code(partial(pow, 2)) != digest_code(partial(pow, 3))
    )

    class Adds:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, x: int) -> int:
            return x + self.n

    assert digest_code(Adds(1)) == digest_code(Adds(1)) != digest_code(Adds(2))


def test_c9_another_version_of_a_function_is_refused() -> None:
    def clean(x: int) -> int:
        return x

    state = states(lambda: ps.from_sequence(range(9)).map(clean))
    clean.version = 2  # type: ignore[attr-defined]
    with pytest.raises(ps.StateError, match=r'map: saved ".*clean", now ".*clean version 2"'):
        load(ps.from_sequence(range(9)).map(clean), state)


def test_a10_another_size_function_is_refused() -> None:
    texts = ["a b", "c", "d e f"] * 4

    def words(text: str) -> int:
        return len(text.split())

    state = states(lambda: ps.from_sequence(texts).batch_by_tokens(9, size=len, collate=list), 1)
    with pytest.raises(ps.StateError, match='size: saved "len", now'):
        load(ps.from_sequence(texts).batch_by_tokens(9, size=words, collate=list), state)


RANK = """
import json, sys, time
import penstock as ps
from penstock.stores.storage import LocalStore
from penstock.sources import columnar

counts = {"read": 0, "footers": 0, "rank": sys.argv[3]}
read, footer = LocalStore.read, columnar.read_footer


def counted(self, path, *rest):
    counts["read"] += path.endswith(".parquet")
    return read(self, path, *rest)


def opened(path):
    counts["footers"] += 1
    return footer(path)


LocalStore.read, columnar.read_footer = counted, opened
began = time.process_time()
data = ps.read(sys.argv[1], cache=sys.argv[2])
iter(data).state_dict()
print(json.dumps({**counts, "seconds": time.process_time() - began}))
"""


@pytest.mark.slow  # four processes
def test_many_files_opened_by_four_processes_are_looked_into_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    table = pa.table({"x": [1, 2]})
    for number in range(1_000):
        pq.write_table(table, folder / f"{number:04}.parquet")
    command = [sys.executable, "-c", RANK, str(folder), str(tmp_path / "cache")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    found = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    assert sum(rank["footers"] >= 1_000 for rank in found) == 1
    assert (
        sum(rank["footers"] for rank in found) <= 1_064
    )  # the rows of the digest lie in 64 files at most
    assert sorted(rank["read"] > 0 for rank in found) == [False, False, False, True]
    assert sum(rank["read"] for rank in found) <= 16 * 3


# ---------------------------------------------------------------- inputs that are shuffled without a seed


class Rows:
    """A map-style dataset, as torch and Grain have them."""

    def __init__(self, rows: list[int]) -> None:
        self.rows, self.reads = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return {"x": self.rows[row], "image": np.full(3, self.rows[row])}


class OwnRows(Rows):
    """A source of the user's without a digest."""

    __getitem__ = None  # pyright: ignore[reportAssignmentType]

    def read(self, indices: Any, /) -> list[Any]:
        return [self.rows[row] for row in indices.tolist()]

    def lengths(self) -> None:
        return None

    def describe(self) -> Any:
        return {"type": "own", "rows": len(self.rows)}


def shuffled(make: Callable[[list[int]], ps.Dataset]) -> Callable[[], ps.Dataset]:
    return lambda: make(random.sample(range(1_000), 1_000))


KINDS: dict[str, Callable[[list[int]], ps.Dataset]] = {
    "list": ps.from_sequence,
    "array": lambda rows: ps.from_sequence(np.asarray(rows)),
    "rows of an array": lambda rows: ps.from_sequence(np.asarray(rows).reshape(-1, 2)),
    "Arrow table": lambda rows: ps.from_sequence(pa.table({"x": rows})),
    "objects": lambda rows: ps.from_sequence([Rows([row]) for row in rows]),
    "map-style dataset": lambda rows: ps.from_sequence(Rows(rows)),
    "source": lambda rows: ps.from_sequence(OwnRows(rows)),
    "set of strings": lambda rows: ps.from_sequence([{str(row), "x"} for row in rows]),
    "in a mixture": lambda rows: ps.mix(
        {"a": ps.from_sequence(Rows(rows)), "b": ps.from_sequence(range(9))}
    ),
    "below steps": lambda rows: (
        ps.from_sequence(Rows(rows)).shuffle(seed=1).map(str).batch(4, collate=list)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_another_order_are_refused_and_equal_rows_load_in_silence(kind: str) -> None:
    make = KINDS[kind]
    with pytest.raises(ps.StateError, match=r"other (rows|values)\n.*seed a shuffle"):
        load(shuffled(make)(), states(shuffled(make)))
    assert load(make([*range(1_000)]), states(lambda: make([*range(1_000)]))).warnings == []
    loader = load(shuffled(make)(), states(shuffled(make)), on_mismatch="adopt")
    assert "adopted anyway" in loader.warnings[0]


def test_rows_are_read_when_a_state_is_made_and_not_from_the_object_of_the_run() -> None:
    rows = Rows([*range(1_000)])
    it = iter(ps.from_sequence(rows))
    for _ in range(3):
        next(it)
    reads = rows.reads
    it.state_dict()
    it.state_dict()
    assert rows.reads == reads <= 16


def test_rows_that_cannot_be_compared_load_and_that_is_told() -> None:
    class Augmented(Rows):
        def __getitem__(self, row: int) -> Any:
            return self.rows[row], float(rng.random())

    class Bad(Rows):
        def __getitem__(self, row: int) -> Any:
            raise OSError("not now")

    rng = np.random.default_rng()
    for kind in (Augmented, Bad):
        state = states(lambda kind=kind: ps.from_sequence(kind([*range(50)])), steps=0)
        loader = load(ps.from_sequence(kind([*range(50)])), state)
        assert "its rows were not compared" in loader.warnings[0]


def test_torch_subsets_of_random_rows_are_told_apart() -> None:
    data = pytest.importorskip("torch.utils.data")
    rows: Any = Rows([*range(1_000)])
    for split in (
        lambda: data.Subset(rows, random.sample(range(1_000), 800)),
        lambda: data.random_split(rows, [800, 200])[0],
    ):
        with pytest.raises(ps.StateError, match="other rows"):
            load(ps.from_sequence(split()), states(lambda split=split: ps.from_sequence(split())))
    load(
        ps.from_sequence(data.Subset(rows, [3, 1, 2])),
        states(lambda: ps.from_sequence(data.Subset(rows, [3, 1, 2]))),
    )


def test_ranks_that_shuffle_for_themselves_are_refused_together(tmp_path: Path) -> None:
    ranks = [ps.Loader(shuffled(ps.from_sequence)(), rank=rank, world_size=2) for rank in range(2)]
    for loader in ranks:
        next(iter(loader))
    with pytest.raises(
        ps.StateError, match=r"ranks 0 and 1 read different data under the same names, \['data'\]"
    ):
        ranks[0].load_state_dict([loader.state_dict() for loader in ranks])
    ps.save(tmp_path, ranks[1])
    with pytest.raises(ps.StateError, match="ranks 0 and 1 read different data .* the same seed"):
        ps.save(tmp_path, ranks[0])
