"""Sums of lengths that are kept: made by one scan, mapped by whoever comes later, made again where they are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base.bounded_dict import BoundedDict
from penstock.engine.steps import block_totals, tokens
from penstock.engine.steps.tokens import Lengths


class Hashed:
    """Documents of which nothing lies anywhere: lengths as a function of the index."""

    looked_up = 0

    def __init__(self, many: int, what: str = "hashed") -> None:
        self.many, self.what = many, what

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, i: int) -> Any:
        return np.full(int(self.length_of(np.asarray([i]))[0]), i, np.int64)

    def length_of(self, index: Any) -> Any:
        Hashed.looked_up += len(index)
        return 1 + (index * 2654435761 >> 7) % 90

    def digest(self) -> str:
        return self.what


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1_000)
    monkeypatch.setattr(tokens, "_SMALL", 0)
    return tmp_path


def packed(many: int = 5_000, what: str = "hashed", **options: Any) -> ps.Dataset:
    flow = ps.from_sequence(Hashed(many, what), name="h").shuffle(seed=1, **options).repeat()
    return ps.mix({"h": flow}, seed=2).pack(256)


def rows(ds: ps.Dataset, at: int) -> Any:
    return [sample.key for sample in ds.plan.at(at)]


@pytest.mark.parametrize("options", [{"buckets": 16}, {}])
def test_sums_are_made_once_and_found_by_others(options: Any, home: Path) -> None:
    made = rows(packed(**options), 1_200)
    files = list(home.rglob("sums"))
    assert len([file for file in files if file.is_file()]) == (
        1 if options else 2
    )  # a full shuffle: of each pass
    Hashed.looked_up = 0
    assert rows(packed(**options), 1_200) == made
    assert Hashed.looked_up < 5_000, "no scan"
    assert len(list(home.rglob("sums"))) == len(files)


def test_sums_of_a_split_are_cached(home: Path) -> None:
    def split(seed: int) -> ps.Dataset:
        train, _ = ps.from_sequence(Hashed(5_000), name="h").split(0.1, seed=seed)
        return ps.mix({"h": train.shuffle(seed=1).repeat()}, seed=2).pack(256)

    made = rows(split(1), 100)
    Hashed.looked_up = 0
    assert rows(split(1), 100) == made
    assert Hashed.looked_up < 1_000, "no scan"
    assert rows(split(2), 100) != made, "another split has sums of its own"


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The passes whose lengths are added up."""
    monkeypatch.setattr(block_totals, "MIN_CACHED_SAMPLES", 1 << 40)
    monkeypatch.setattr(block_totals, "_SHARED", BoundedDict[str, Any](8))
    passes, look_up = list[int](), tokens.Sums._looked_up

    def count(self: Any, epoch: int) -> Any:
        passes.append(epoch)
        return look_up(self, epoch)

    monkeypatch.setattr(tokens.Sums, "_looked_up", count)
    return passes


def stored(many: int, longest: int = 89, seed: int = 1, length: int = 256) -> Any:
    """The documents of a row of a small token store."""
    offsets = np.concatenate([[0], np.cumsum(1 + np.arange(many) % longest)])
    flow = ps.from_tokens(np.zeros(offsets[-1], np.uint8), offsets, name="h").shuffle(seed=seed)
    return rows(ps.mix({"h": flow.repeat()}, seed=2).pack(length), 1_200)


def test_a_process_adds_up_a_small_source_once(scans: list[int]) -> None:
    made = stored(5_000)
    assert scans and sorted(scans) == sorted(set(scans))
    scans.clear()
    assert stored(5_000) == made and not scans


def test_small_sources_do_not_share_sums_with_others(scans: list[int]) -> None:
    options: list[Any] = [(5_000,), (4_000,), (5_000, 30), (5_000, 89, 2)]
    shared = [stored(*each) for each in options]
    for each, found in zip(options, shared, strict=True):
        block_totals._SHARED.clear()
        assert stored(*each) == found
    assert len(set(map(str, shared))) == 4


def test_objects_of_the_user_share_no_sums(scans: list[int]) -> None:
    rows(packed(), 700)
    scans.clear()
    rows(packed(), 700)
    assert scans


def test_lengths_that_change_in_place_are_added_up_again(scans: list[int]) -> None:
    sizes = 1 + np.arange(600) % 9

    def tokens_before(position: int) -> int:
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        flow = ps.from_tokens(np.zeros(offsets[-1], np.uint8), offsets).shuffle(seed=1)
        found = np.zeros(1, np.int64)
        flow.compiled.op.tokens(position, flow.compiled.builder.lengths, found)
        return int(found[0])

    assert tokens_before(600) == sizes.sum() and tokens_before(300) > 0
    assert scans == [0]
    sizes[:] = 3
    assert tokens_before(300) == 900
    assert scans == [0, 0]


def test_the_mean_of_a_split_is_cached() -> None:
    def mean(seed: int, share: float = 0.1, many: int = 5_000) -> float:
        train, _ = ps.from_sequence(Hashed(many), name="h").split(share, seed=seed)
        mean = train.tree.mean_tokens()
        assert mean is not None
        return mean

    def add_up(seed: int) -> float:
        train, _ = ps.from_sequence(Hashed(5_000), name="h").split(0.1, seed=seed)
        return float(np.mean([len(sample) for sample in train]))

    made = mean(1)
    assert made == pytest.approx(add_up(1), rel=1e-12)
    Hashed.looked_up = 0
    assert mean(1) == made
    assert Hashed.looked_up == 0
    assert mean(2) == pytest.approx(add_up(2), rel=1e-12)
    assert len({made, mean(2), mean(1, 0.2), mean(1, many=4_999)}) == 4


def test_others_are_kept_apart_and_what_is_damaged_is_made_again(home: Path) -> None:
    made, other = rows(packed(buckets=16), 700), rows(packed(4_000, buckets=16), 700)
    assert made != other
    first, *_ = (
        file
        for file in sorted(home.rglob("sums"), key=lambda file: file.stat().st_mtime_ns)
        if file.is_file()
    )
    held = bytearray(first.read_bytes())
    held[200] ^= 1
    first.write_bytes(held)
    assert rows(packed(buckets=16), 700) == made
    held[200] ^= 1
    assert first.read_bytes()[96:] == held[96:]


def test_what_does_not_say_what_it_is_is_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Hashed, "digest")
    rows(packed(buckets=16), 700)
    assert not list(home.rglob("sums"))


def test_without_a_place_they_are_held_in_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rows(packed(buckets=16), 700)
    blocked = home / "file"
    blocked.write_text("")
    monkeypatch.setenv("HOME", str(blocked))
    assert rows(packed(buckets=16), 700) == made


@pytest.mark.parametrize("threads", [1, 3])
def test_work_in_order(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[int]()
    monkeypatch.setattr("penstock.engine.base.machine.count_cores", lambda: threads)
    monkeypatch.setattr(block_totals.Progress, "tell", lambda _, done: told.append(done))
    assert list(block_totals.in_order("add", 25, lambda a, b: (a, b), 10)) == [
        (0, 10),
        (10, 20),
        (20, 25),
    ]
    assert told == [10, 20, 25]


def test_sums_equal_those_of_lengths_in_memory() -> None:
    source = Hashed(5_000)
    ds = ps.from_sequence(source, name="h").shuffle(seed=1, buckets=16).repeat()
    flow: Any = ds.compiled.op
    found, want = np.zeros(1, np.int64), np.zeros(1, np.int64)
    flow.tokens(7_777, ds.compiled.builder.lengths, found)
    flow.tokens(7_777, Lengths([source.length_of(np.arange(5_000))]), want)
    assert found == want
