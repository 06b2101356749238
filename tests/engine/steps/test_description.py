"""Descriptions and fingerprints: equal for equal pipelines, different for what changes the data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import penstock as ps
from example_counts import examples
from helpers import numbers
from penstock.engine.base.canonical_json import (
    compute_fingerprint,
    encode_canonical_json,
    list_differences,
)
from penstock.testing import build, pipelines, recipes


def docs() -> ps.Dataset:
    return numbers().map(recipes.document)


def mixed(weights: Any = None, **options: Any) -> ps.Dataset:
    return ps.mix({"a": numbers(), "b": numbers(9, "b")}, weights or {"a": 1, "b": 2}, **options)


def printed(ds: ps.Dataset) -> str:
    return compute_fingerprint(ds.tree.description())


def lines(path: Path, rows: int = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(rows)))
    return path


# Each group: pipelines of which no two may have one fingerprint.
KINDS: dict[str, list[Callable[[], ps.Dataset]]] = {
    "sources": [
        lambda: numbers(20),
        lambda: numbers(21),
        lambda: numbers(20, "b"),
        lambda: ps.from_sequence(list(range(20)), name="a"),
        lambda: ps.from_sequence(np.arange(20), name="a"),
        lambda: ps.from_iterable(lambda: range(20), name="a"),
        lambda: ps.from_tokens(np.arange(20), np.arange(21), name="a"),
        lambda: ps.from_tokens(np.arange(20, dtype=np.int32), np.arange(21), name="a"),
    ],
    "orders": [
        lambda: numbers(),
        lambda: numbers().shuffle(),
        lambda: numbers().shuffle(seed=1),
        lambda: numbers().shuffle(seed=2),
        lambda: numbers().shuffle(seed=1, block=(2, 3)),
        lambda: numbers().shuffle(seed=1, block=(3, 2)),
        lambda: numbers().shuffle(seed=1).shuffle(seed=1),
        lambda: numbers().repeat(2),
        lambda: numbers().repeat(3),
        lambda: numbers().repeat(),
        lambda: numbers().repeat(2, reshuffle=False),
        lambda: numbers()[1:9],
        lambda: numbers()[1:10],
        lambda: numbers()[1:9:2],
        lambda: numbers().shard(0, 2),
        lambda: numbers().shard(1, 2),
    ],
    "functions": [
        lambda: numbers().map(recipes.double),
        lambda: numbers().map(recipes.paired),
        lambda: numbers().map(recipes.double).map(recipes.double),
        lambda: numbers().filter(recipes.even),
        lambda: numbers().filter(recipes.most),
        lambda: numbers().flat_map(recipes.spread),
        lambda: numbers().map(recipes.spread),
        lambda: numbers().random_map(recipes.noisy),
        lambda: numbers().random_map(recipes.noisy, seed=1),
        lambda: numbers().map_with_index(recipes.split_by_position),
        lambda: numbers().map(recipes.mapping),
        lambda: numbers().map(recipes.mapping).with_source(),
    ],
    "groups": [
        lambda: numbers().batch(3),
        lambda: numbers().batch(4),
        lambda: numbers().batch(3, drop_remainder=True),
        lambda: numbers().batch(3, collate=list),
        lambda: numbers().batch(3).rebatch(2),
        lambda: numbers().batch(3).rebatch(2, drop_remainder=True),
        lambda: numbers().shuffle_buffer(3),
        lambda: numbers().shuffle_buffer(4),
        lambda: numbers().shuffle_buffer(3, seed=1),
        lambda: numbers().bucket_by_length([3], 2, size=recipes.size),
        lambda: numbers().bucket_by_length([4], 2, size=recipes.size),
        lambda: numbers().bucket_by_length([3], 3, size=recipes.size),
        lambda: numbers().batch_by_tokens(9, size=recipes.size),
        lambda: numbers().batch_by_tokens(8, size=recipes.size),
        lambda: numbers().batch_by_tokens(9, size=recipes.size, padded=True),
    ],
    "packing": [
        lambda: docs().pack(8),
        lambda: docs().pack(9),
        lambda: docs().pack(8, "first_fit"),
        lambda: docs().pack(8, "best_fit"),
        lambda: docs().pack(8, "best_fit", window=500),
        lambda: docs().pack(8, "best_fit", open_rows=2),
        lambda: docs().pack(8, "best_fit", long="truncate"),
        lambda: docs().pack(8, pad=-1),
        lambda: docs().pack(8, eos=0),
        lambda: docs().pack(8, bos=0),
        lambda: docs().pack(8, bos=1),
        lambda: docs().pack(8, max_segments=2),
        lambda: docs().pack(8, features=("tokens",)),
        lambda: docs().pack(8, dtype="int32"),
        lambda: docs().pack(8, dtype="int16"),
        lambda: docs().pack(8).batch(2),
        lambda: docs().pack(8).batch(3),
    ],
    "weaves": [
        lambda: mixed(),
        lambda: mixed({"a": 1, "b": 3}),
        lambda: mixed(ps.Schedule([(0, {"a": 1, "b": 2})])),
        lambda: mixed(ps.Schedule([(0, {"a": 1, "b": 2}), (9, {"a": 1, "b": 1})])),
        lambda: mixed(ps.Schedule([(0, {"a": 1, "b": 2}), (9, {"a": 1, "b": 1})], "linear")),
        lambda: mixed(seed=1),
        lambda: mixed(block_size=2),
        lambda: mixed(stop="all_exhausted"),
        lambda: mixed(max_epochs=2),
        lambda: mixed(max_epochs={"a": 2}),
        lambda: ps.mix({"a": numbers(), "b": numbers(9, "b")}, temperature=2),
        lambda: ps.mix({"a": numbers(), "b": numbers(9, "b")}),
        lambda: ps.mix({"a": numbers(), "c": numbers(9, "b")}, {"a": 1, "c": 2}),
        lambda: numbers().concat(numbers(9, "b")),
        lambda: numbers().zip(numbers(9, "b")),
        lambda: numbers(9, "b").concat(numbers()),
        lambda: numbers().concat(numbers(9, "b")).seed(1).shuffle(),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_the_data_changes_the_fingerprint(kind: str) -> None:
    found = dict[str, int]()
    for number, make in enumerate(KINDS[kind]):
        mark = printed(make())
        assert mark not in found, (
            f"{found[mark]} and {number} have one fingerprint: {make().tree.description()}"
        )
        found[mark] = number


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_pipeline_has_the_same_fingerprint_and_description(kind: str) -> None:
    for make in KINDS[kind]:
        described = make().tree.description()
        assert described == make().tree.description()
        assert json.loads(json.dumps(described, allow_nan=False)) == described, (
            "plain JSON, and equal after it"
        )
        assert re.fullmatch("[0-9a-f]{16}", printed(make()))


@examples(100)
@given(pipelines())
def test_random_pipelines_are_described_in_plain_json(recipe: Any) -> None:
    described = build(recipe).tree.description()
    assert json.loads(encode_canonical_json(described)) == described
    assert (
        list_differences(
            json.loads(encode_canonical_json(described)), build(recipe).tree.description()
        )
        == []
    )


def test_addresses_do_not_get_in() -> None:
    class Fn:
        def __call__(self, x: Any) -> Any:
            return x

    made = [numbers().map(Fn()), numbers().map(lambda x: x), numbers().map(recipes.double)]
    assert not re.search("0x[0-9a-f]{6}", "".join(map(str, (ds.tree.description() for ds in made))))
    assert printed(numbers().map(Fn())) == printed(numbers().map(Fn()))


def test_another_process_finds_the_same() -> None:
    code = (
        "import penstock as ps\n"
        "from penstock.engine.base.canonical_json import compute_fingerprint\n"
        "ds = ps.mix({'b': ps.from_sequence(range(9)), 'a': ps.from_sequence(range(5))}, {'a': 1, 'b': 2})\n"
        "print(compute_fingerprint(ds.map(str).batch(3, collate=list).tree.description()))"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert done[0] == done[1]
    assert re.fullmatch("[0-9a-f]{16}\n", done[0])


@pytest.mark.parametrize("name", ["code.jsonl", "notes.txt"])
def test_the_place_of_the_files_does_not_matter_but_their_rows_do(
    tmp_path: Path, name: str
) -> None:
    here, there = (
        ps.read(lines(tmp_path / "here" / name)),
        ps.read(lines(tmp_path / "far" / "there" / name)),
    )
    assert printed(here) == printed(there)
    assert str(tmp_path) not in json.dumps(here.tree.description())
    assert printed(ps.read(lines(tmp_path / "more" / name, rows=10))) != printed(here)
    assert printed(ps.read(lines(tmp_path / "other" / name), name="other")) != printed(here)
    assert printed(here.map(recipes.double)) == printed(there.map(recipes.double)) != printed(here)


def test_columns_that_are_read_do_matter(tmp_path: Path) -> None:
    path = tmp_path / "code.jsonl"
    path.write_text('{"x": 1, "y": 2}\n')
    marks = {
        printed(ps.read(path, columns=columns)) for columns in (None, ["x"], ["y"], ["x", "y"])
    }
    assert len(marks) == 4


def test_workers_and_ranks_do_not_matter(tmp_path: Path) -> None:
    ds = ps.read(lines(tmp_path / "code.jsonl", 24)).shuffle(seed=1).batch(2, collate=list)
    alike: list[dict[str, Any]] = [
        {},
        {"workers": 2},
        {"workers": 1, "prefetch": 7},
        {"rank": 0, "world_size": 1},
    ]
    states = []
    more: list[dict[str, Any]] = [*alike, {"executor": "inline"}]
    for options in more:
        with ps.Loader(ds, **options) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    with ps.Loader(ds, rank=1, world_size=2) as loader:
        assert (
            loader.state_dict()["fingerprint"]
            == states[0]["fingerprint"]
            == compute_fingerprint(ds.tree.identity())
        )


@pytest.mark.parametrize("other", [
    lambda ds: ds.batch(8, collate=list), lambda ds: ds.batch(3, collate=list, drop_remainder=True),
])  # fmt: skip
def test_the_size_of_the_last_batches_is_no_part_of_a_run(other: Any) -> None:
    ds = mixed(stop="all_exhausted").batch(2, collate=list)
    assert (
        ds.batch(3, collate=list).map(recipes.size).tree.identity()
        == (other(ds).map(recipes.size).tree).identity()
    )
    assert (
        ds.batch(3, collate=list).shuffle().tree.identity() != other(ds).shuffle().tree.identity()
    )


def test_a_seed_for_all_is_that_seed_for_each() -> None:
    after, before = numbers().shuffle().seed(4), numbers().seed(4).shuffle()
    assert printed(after) == printed(before) == printed(numbers().shuffle(seed=4))
    assert printed(numbers().shuffle().seed(4)) != printed(numbers().shuffle().seed(5))


def test_a_weight_may_be_written_in_any_order_of_names() -> None:
    assert printed(mixed({"a": 1, "b": 2})) == printed(mixed({"b": 2, "a": 1}))


# ---------------------------------------------------------------- differences


def lines_between(saved: ps.Dataset, now: ps.Dataset) -> list[str]:
    return list_differences(saved.tree.description(), now.tree.description())


def test_equal_pipelines_have_no_difference() -> None:
    assert lines_between(mixed().batch(3), mixed().batch(3)) == []
    assert list_differences({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}) == []


@pytest.mark.parametrize(
    "saved,now,words",
    [
        (lambda: numbers().batch(3), lambda: numbers().batch(4), ["batch: saved 3, now 4"]),
        (lambda: numbers(20), lambda: numbers(21), ["rows: saved 20, now 21"]),
        (lambda: numbers(20, "a"), lambda: numbers(20, "b"), ['read: saved "a", now "b"']),
        (
            lambda: mixed({"a": 1, "b": 2}),
            lambda: mixed({"a": 1, "b": 5}),
            ["weights.b: saved 2, now 5"],
        ),
        (lambda: mixed(seed=1), lambda: mixed(seed=2), ["seed: saved 1, now 2"]),
        (
            lambda: numbers().map(recipes.double),
            lambda: numbers().map(recipes.paired),
            ['map: saved "double", now "paired"'],
        ),
    ],
    ids=["batch", "rows", "name", "weight", "seed", "function"],
)
def test_a_difference_is_one_line_that_says_where(saved: Any, now: Any, words: list[str]) -> None:
    found = lines_between(saved(), now())
    text = "\n".join(found)
    assert all(word in text for word in words), text
    assert len(found) == 1, f"one change, one line: {found}"


def test_another_length_of_a_pack_is_shown() -> None:
    assert "pack.length: saved 8, now 9" in lines_between(docs().pack(8), docs().pack(9))


@pytest.mark.parametrize(
    ("saved", "now", "lines"),
    [
        (lambda ds: ds.limit(8), lambda ds: ds, ["limit: saved 8, now none"]),
        (lambda ds: ds.limit(8), lambda ds: ds.limit(9), ["limit: saved 8, now 9"]),
        (lambda ds: ds, lambda ds: ds.skip(3), ["skip: saved none, now 3"]),
        (lambda ds: ds, lambda ds: ds.shuffle(seed=1), ["shuffle(): not in the saved run"]),
        (lambda ds: ds.batch(2), lambda ds: ds, ["batch(2): only in the saved run"]),
        (
            lambda ds: ds.limit(8),
            lambda ds: ds.map(recipes.double),
            ["limit: saved 8, now none", "map(double): not in the saved run"],
        ),
        (
            lambda ds: ds,
            lambda ds: ps.concat(ds, numbers(9, "b")),
            [
                "concat(): not in the saved run",
                "read(a): only in the saved run",
                "inputs(+0, +1): not in the saved run",
            ],
        ),
    ],
)
def test_a_step_that_came_or_went_is_named_by_its_method(saved: Any, now: Any, lines: Any) -> None:
    assert lines_between(saved(numbers()), now(numbers())) == lines


def test_a_new_pack_is_one_line() -> None:
    assert lines_between(docs(), docs().pack(8)) == ["pack(): not in the saved run"]


def test_a_source_that_came_or_went_is_named() -> None:
    two, three = (
        {"a": numbers(), "b": numbers(9, "b")},
        {"a": numbers(), "b": numbers(9, "b"), "new": numbers(5, "n")},
    )
    found = lines_between(ps.mix(two), ps.mix(three))
    assert len(found) == 1
    assert found[0].startswith("new: new, ")
    gone = lines_between(ps.mix(three), ps.mix(two))
    assert len(gone) == 1
    assert gone[0].startswith("new: removed, was ")


def test_the_place_is_the_way_through_names_and_long_values_are_cut() -> None:
    def deep(n: int) -> ps.Dataset:
        return ps.mix(
            {"text": ps.mix({"web": numbers(n, "w"), "books": numbers()}), "code": numbers()}
        ).batch(2)

    assert lines_between(deep(5), deep(6)) == ["text.web.rows: saved 5, now 6"]
    assert all(len(line) < 200 for line in list_differences({"a": "x" * 1000}, {"a": "y" * 1000}))
    assert list_differences([1], [2]) == ["pipeline: saved [1], now [2]"]


def test_a_loader_shows_the_difference_and_stays_where_it_is() -> None:
    with (
        ps.Loader(mixed({"a": 1, "b": 2}).batch(3, collate=list)) as saved,
        ps.Loader(mixed({"a": 1, "b": 3}).batch(4, collate=list)) as loader,
    ):
        next(iter(saved))
        before = loader.state_dict()
        with pytest.raises(ps.StateError) as caught:
            loader.load_state_dict(saved.state_dict())
        assert "batch" not in str(caught.value)
        assert "weights.b: saved 2, now 3" in str(caught.value)
        assert "on_mismatch='adopt'" in str(caught.value)
        assert loader.state_dict() == before


def test_a_state_of_batches_differs_from_one_of_samples() -> None:
    for saved, now, line in (
        (numbers().batch(2), numbers(), "batch(): only in the saved run"),
        (numbers(), numbers().batch(2), "batch(): not in the saved run"),
    ):
        loader = ps.Loader(saved)
        next(iter(loader))
        with pytest.raises(ps.StateError, match=re.escape(line)):
            ps.Loader(now).load_state_dict(loader.state_dict())


def test_a_difference_of_the_only_source_names_it() -> None:
    for name in ("wiki", "code"):
        saved, now = numbers(10, name).shuffle().batch(2), numbers(12, name).shuffle().batch(2)
        assert lines_between(saved, now) == [f"{name}.rows: saved 10, now 12"]
