"""Sums in memory and in a file are equal; a file is opened without reading it, and compared on use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.steps import block_totals
from penstock.engine.steps.block_totals import BlockSums, BlockTotals, CachedTotals
from penstock.sources import identity, open_files
from penstock.sources.cached_integers import CachedIntegers


class Counting:
    """Makes sums, and counts how often."""

    def __init__(self, sums: np.ndarray) -> None:
        self.sums, self.made = sums, 0

    def __call__(self) -> BlockSums:
        self.made += 1
        return BlockSums(self.sums, 3)


def mapped(folder: Path, make: Counting, run: int) -> CachedTotals:
    return CachedTotals(
        CachedIntegers({"key": 1}, lambda: CachedTotals.encode(make(), run), folder)
    )


@examples(200)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_sums_before_blocks_and_blocks_of_tokens(each: list[tuple[int, int]], run: int) -> None:
    sums = np.asarray(each)
    begins = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(sums, axis=0)])
    found = BlockTotals(BlockSums(sums, 0), run)
    assert len(found) == len(each) and found.total.tolist() == begins[-1].tolist()
    for block in range(len(each) + 1):
        assert found.before(block).tolist() == begins[block].tolist()
    tokens = begins.sum(axis=1)
    for token in range(int(tokens[-1]) + 2):
        block, before = found.holding(token)
        assert before == tokens[block] <= token
        assert block == len(each) or tokens[block + 1] > token


def test_a_file_holds_the_same_and_is_made_once(tmp_path: Path) -> None:
    make = Counting(np.random.default_rng(1).integers(0, 1 << 40, (5_003, 1)))
    held, there, again = (
        BlockTotals(make(), 70),
        mapped(tmp_path, make, 70),
        mapped(tmp_path, make, 70),
    )
    assert make.made == 2
    for totals in (there, again):
        assert totals.least == 3 and totals.run == 70 and totals.total == held.total
        assert np.array_equal(totals.runs, held.runs)
        for start, stop in ((0, 5_003), (600, 601), (5_000, 6_000), (7, 7)):
            assert np.array_equal(totals.some(start, stop), held.some(start, stop))
        assert totals.holding(1 << 50) == held.holding(1 << 50)


def test_damage_is_found_where_it_is_looked_at_and_made_good(tmp_path: Path) -> None:
    make = Counting(np.random.default_rng(2).integers(0, 1 << 40, (40_000, 1)))
    mapped(tmp_path, make, 1024)
    (path,) = tmp_path.rglob("sums")
    held = path.read_bytes()
    for byte, expected in ((8, 1), (4096 + 30, 1), (len(held) - 4096, 0), (len(held) - 1, 0)):
        # Written anew: another process still maps what was there.
        torn = bytearray(held)
        torn[byte] ^= 16
        (tmp_path / "torn").write_bytes(torn)
        (tmp_path / "torn").replace(path)
        make.made = 0
        totals = mapped(tmp_path, make, 1024)
        assert make.made == expected, "opened: what says how much there is, and the sums of runs"
        assert np.array_equal(totals.some(0, 20_000), make.sums[:20_000])
        assert make.made == expected, "nothing else was looked at"
        assert np.array_equal(totals.some(39_000, 40_000), make.sums[39_000:])
        assert make.made == 1
        assert path.read_bytes() == held


# ---------------------------------------------------------------- what they are derived from


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """Cache the sums of sources of any size; return the folder."""
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1)
    return home / ".cache" / "penstock"


def segments(source: ps.Dataset, **names: Any) -> list[list[int]]:
    """Return the segments of some rows, which are found by the sums."""
    packed = source.shuffle(seed=1).pack(16, "concat_split", **names)
    return [packed[n]["segment_ids"].tolist() for n in range(len(packed) - 1, 0, -99)]


def test_sums_of_one_column_are_not_taken_for_another(tmp_path: Path, cache: Path) -> None:
    columns = {"a": [[1] * (1 + n % 5) for n in range(5_000)], "b": [[1] * 3 for _ in range(5_000)]}
    for name in ("x", "y"):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    pack = lambda name, a, b: segments(  # noqa: E731
        ps.read(tmp_path / f"{name}.parquet", lengths=a, name="x"), features=[a], unpacked=[b]
    )
    pack("x", "b", "a")
    assert pack("x", "a", "b") == pack("y", "a", "b")
    assert len(list(cache.rglob("sums"))) == 2


def test_sums_are_made_again_for_documents_that_end_elsewhere(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of a file covers a few of its rows: it may stay when documents change."""
    monkeypatch.setattr(identity, "digest_sampled_rows", lambda read, n: "equal")
    monkeypatch.setattr(identity, "_hash_file_blocks", lambda paths, stats: "equal")
    path, rows = tmp_path / "x.bin", list[list[list[int]]]()
    for lengths in (np.tile([3, 5], 5_000), np.repeat([3, 5], 5_000)):
        tokens = np.ones(40_000, np.uint16)
        tokens[np.cumsum(lengths) - 1] = 0
        tokens.tofile(path)
        rows.append(segments(ps.read(path, format="tokens", dtype="uint16", eos=0)))
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1 << 20)
    assert rows[0] != rows[1]
    assert rows[1] == segments(ps.read(path, format="tokens", dtype="uint16", eos=0))


def test_row_numbers_and_token_counts_are_those_of_the_format(tmp_path: Path, home: Path) -> None:
    """A file of JSON lines read as text has other rows."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n{"text": "a b"}\n')
    assert list(ps.read(path, where={"text": ["a"]})) == [{"text": "a"}]
    assert list(ps.read(path, format="text", where={"text": ['{"text": "a"}']}))
    assert not list(ps.read(path, format="text", where={"text": ["a"]}))
    counter = Words()
    for format, expected in (("jsonl", [1, 2]), ("text", [2, 3])):
        source = open_files(path, format=format, lengths=counter)
        assert np.asarray(source.lengths()).tolist() == expected


class Words:
    """Counts the words of texts."""

    counted, lasting = "words", True

    def counts(self, samples: list[Any]) -> list[int]:
        return [len(sample["text"].split()) for sample in samples]
