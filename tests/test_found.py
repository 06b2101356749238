"""Bugs reported by outsiders, in pipelines that the random tests do not draw."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import is_soak


def store(lengths: list[int], name: str = "s") -> ps.Dataset:
    offsets = np.cumsum([0, *lengths])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def rows_of(length: int, name: str) -> ps.Dataset:
    return ps.from_sequence(range(length), name=name)


@pytest.mark.parametrize("lanes", [1, 4, 48])
@pytest.mark.parametrize("rows,length", [(100, 37), (5, 7)])
def test_a_mixture_of_streams_ends_with_its_schedule(rows: int, length: int, lanes: int) -> None:
    """Its draws were asked for beyond its end."""
    schedule = ps.Schedule([(0, {"x": 1, "y": 1}), (37, {"x": 0, "y": 1})])

    def mixed(make: Callable[[int, str], ps.Dataset]) -> list[Any]:
        both = {"x": make(rows, "b"), "y": make(2, "a")}
        return list(ps.Loader(ps.mix(both, schedule, stop="all_exhausted"), lanes=lanes))

    assert len(mixed(rows_of)) == length
    streams = mixed(lambda length, name: rows_of(length, name).filter(lambda x: True))
    assert len(streams) == length if lanes == 1 else 0 < len(streams) <= 37


def test_rows_of_empty_documents_are_had_in_any_order() -> None:
    """The one that a row begins with was looked for among documents behind it."""
    rows = store([0, 8]).pack(8).repeat()
    wanted = [row["tokens"].tolist() for row in islice(rows, 4)]
    for order in ([1, 3], [3, 2], [0], [2, 1, 0, 3]):
        assert [row["tokens"].tolist() for row in rows[order]] == [wanted[place] for place in order]


def test_passes_in_the_same_order_have_no_end_either() -> None:
    again = store([13, 2, 8, 5]).repeat(reshuffle=False)
    first = next(iter(again.pack(8, "first_fit")))
    assert first["tokens"].tolist() == list(range(8))
    with pytest.raises(ps.ConfigError, match="endless already"):
        again.filter(len).repeat()
    with ps.Loader(again.filter(len), rank=0, world_size=2) as loader:
        assert len(next(iter(loader))) == 13


@pytest.mark.slow
@pytest.mark.skipif(not is_soak(), reason="33,000 passes: `make soak`")
def test_a_stream_has_an_index_in_every_one_of_many_passes() -> None:
    """The index counted over all passes, and was too large for a number in the 32,768th."""
    indexed = ps.from_iterable(partial(iter, range(1)), name="s").map_with_index(
        lambda i, x: (i, x)
    )
    run = ps.Loader(indexed.repeat(), lanes=1)
    assert set(islice(run, 33_000)) == {(0, 0)}
    mixed = ps.mix({"a": indexed, "b": rows_of(5, "b")}, stop="all_exhausted_oversample")
    with ps.Loader(mixed, lanes=1) as loader:
        assert list(loader) == list(loader)


def test_an_empty_input_of_packed_rows_is_named() -> None:
    with pytest.raises(ps.ConfigError, match="the source 'a' is empty"):
        ps.mix({"a": store([8]).pack(12).skip(4), "b": store([8], "b")}, unit="tokens")


def test_a_filter_that_a_lane_never_passes_is_an_error() -> None:
    """It waited for good: a lane is dealt every n-th position, and of 1,000 rows always even ones, say."""
    ds = rows_of(1_000, "s").repeat().filter(lambda x: x % 2)
    with pytest.raises(ps.DataError, match="samples in a row gave nothing"):
        next(iter(ps.Loader(ds, lanes=48)))
    for mended in (
        rows_of(1_000, "s").filter(lambda x: x % 2).repeat(),
        rows_of(1_000, "s").shuffle().repeat(),
    ):
        assert len(list(islice(mended.filter(lambda x: x % 2), 100))) == 100


def test_lengths_are_no_offsets() -> None:
    with pytest.raises(ps.ConfigError, match="the first offset is 5"):
        ps.from_tokens(np.arange(10), [5, 5])


@pytest.mark.parametrize("given", [{"WORLD_SIZE": "4"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_half_of_a_place_is_refused(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process was rank 0 of 4, and read the same quarter."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ps.ConfigError, match="set both to numbers or neither"):
        ps.Loader(rows_of(4, "s"))
