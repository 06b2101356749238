"""Loaders of held-out sets: equal steps on all ranks, every row once, and no sample of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.integrations.evaluation import find_drawn
from penstock.text import Padded
from trees import trees


def store(count: int, name: str = "docs", seed: int = 0) -> ps.Dataset:
    rng = np.random.default_rng(seed)
    ends = np.cumsum([0, *rng.integers(2, 9, count)])
    return ps.from_tokens(np.arange(int(ends[-1]), dtype=np.int32), ends, name=name)


def numbers(count: int, name: str = "numbers", start: int = 0) -> ps.Dataset:
    """Return a source of numbers; sources with the same numbers are the same data."""
    return ps.from_sequence(range(start, start + count), name=name)


# ---------------------------------------------------------------- loaders


@examples(40)
@given(
    count=st.integers(1, 40),
    rows=st.none() | st.integers(1, 50),
    world_size=st.integers(1, 4),
    each=st.integers(1, 5),
    how=st.sampled_from(["loader", "batch", "batch of all ranks"]),
)
def test_every_row_counts_once_on_any_ranks(
    count: int, rows: int | None, world_size: int, each: int, how: str
) -> None:
    documents = numbers(count).map(lambda i: {"ids": np.full(1 + i % 3, i)})
    collate = Padded(provenance=True)
    size = each * world_size
    options: dict[str, Any] = {}
    if how == "loader":
        held_out = numbers(count).map(lambda i: {"ids": np.full(3, i)})
        options["global_batch_size"] = size
    elif how == "batch":
        held_out = documents.batch(each, collate=collate)
    else:
        held_out = documents.batch(global_batch_size=size, collate=collate)
    found, steps = list[int](), set[int]()
    for rank in range(world_size):
        loader = ps.eval_loaders(
            {"numbers": held_out}, rows=rows, rank=rank, world_size=world_size, **options
        )["numbers"]
        passes = [
            [batch["ids"][batch["valid"]][:, 0].tolist() for batch in loader] for _ in range(2)
        ]
        assert passes[0] == passes[1] and len(passes[0]) == len(loader)
        steps.add(len(loader))
        found += [i for batch in passes[0] for i in batch]
    wanted = min(count, rows or count)
    assert sorted(found) == list(range(wanted)) and steps == {-(-wanted // size)}


def test_packed_rows_and_maps_above_batches_count_rows() -> None:
    rows = store(60).pack(16, provenance=True).batch(3).map(dict)
    loaders = ps.eval_loaders({"docs": rows}, rows=7, rank=0, world_size=1)
    assert [int(batch["valid"].sum()) for batch in loaders["docs"]] == [3, 3, 1]
    endless = store(60).shuffle().repeat().batch(4, collate=Padded())
    assert len(ps.eval_loaders({"docs": endless}, rows=10)["docs"]) == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.eval_loaders({"a": numbers(9).repeat()}), "'a' never ends; give rows="),
        (lambda: ps.eval_loaders({"a": numbers(9)[:0]}), "'a' is empty"),
        (lambda: ps.eval_loaders({"a": numbers(9).filter(bool)}), "'a' needs random access"),
        (lambda: ps.eval_loaders({"a": numbers(9)}, rows=0), "rows=0"),
        (
            lambda: ps.eval_loaders({"a": numbers(9)}, batch_size=3),  # pyright: ignore[reportCallIssue]
            "no argument 'batch_size'",
        ),
        (lambda: ps.eval_loaders({"a": [1, 2]}), "'a'"),  # pyright: ignore[reportArgumentType]
        (lambda: ps.eval_loaders(numbers(9)), "give the held-out sets by name"),  # pyright: ignore[reportArgumentType]
        (lambda: ps.eval_loaders({"a": numbers(9)}, train=[1]), "train"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_arguments_are_named(make: Any, said: str) -> None:
    with pytest.raises((ps.ConfigError, ps.IndexedError, TypeError), match=said):
        make()


# ---------------------------------------------------------------- what the run trains on


def check(held_out: ps.Dataset, train: ps.Dataset | ps.Loader, *said: str) -> None:
    """Assert that a set is an error with these words; without words, that it passes."""
    if not said:
        ps.eval_loaders({"held": held_out}, train=train, rows=1_000)
        return
    with pytest.raises(ps.ConfigError, match="that the run trains on") as raised:
        ps.eval_loaders({"held": held_out}, train=train, rows=1_000)
    for words in ("'held'", *said):
        assert words in str(raised.value)


def test_parts_of_a_split_pass_and_an_overlap_names_source_and_rows() -> None:
    train, held_out = store(100, "code").split("10%")
    others, _ = store(80, "text", 1).split("10%")
    run = ps.mix({"code": train.shuffle().repeat(), "text": others.shuffle().repeat()})
    run = run.pack(32, provenance=True).batch(4)
    packed = held_out.pack(32).batch(2)
    check(packed, run)
    check(packed, ps.Loader(run))
    check(store(100, "code")[5:8].pack(32), run, "3 samples", "as 'code'", "rows 5, 6, 7 of 'code'")
    check(train[:1], run, "1 sample that", f"row {train.plan.at(0)[0].index} of 'code'")
    whole = ps.mix({"code": store(100, "code").shuffle().repeat(), "text": others.repeat()})
    check(packed, whole.pack(32), "'code'")


def test_fixed_sets_of_a_mixture_are_exact() -> None:
    a, b = numbers(60, "a"), numbers(40, "b", 100)
    both = ps.mix({"a": a, "b": b}, stop="all_exhausted")
    train, held_out = both.split("20%")
    check(held_out, train.shuffle().repeat())
    check(held_out, both, "samples")
    train, held_out = ps.concat(a, b).split(12, by="position")
    check(held_out, train.shuffle().batch(4))
    check(a[50:], numbers(60, "other").limit(50))
    check(a[49:], numbers(60, "other").limit(50), "1 sample that", "as 'other'", "row 49 of 'a'")
    endless = ps.mix({"a": a.repeat(), "b": b.repeat()})
    check(a[50:], endless.limit(80))
    check(a[50:], endless, "10 samples")
    check(a[50:], endless.limit(10**12), "10 samples")


def test_streams_count_as_all_that_they_may_give() -> None:
    train, held_out = store(100).split("10%")
    check(held_out, train.shuffle().filter(len).pack(16).batch(2))
    check(held_out, train.shuffle_buffer(20).map(lambda x: x, may_skip=True))
    check(held_out, store(100).filter(len).pack(16), "10 samples")


def test_changes_of_a_run_are_part_of_it() -> None:
    run = ps.mix({"a": numbers(50, "a").repeat(), "b": numbers(50, "b", 100).repeat()}).batch(4)
    with ps.Loader(run) as loader:
        next(iter(loader))
        loader.set_weights({"a": 0, "b": 1})
        check(numbers(50, "a")[:2], loader, "2 samples")  # drawn before, or possible later
        check(numbers(70, "c")[60:], loader)


def write_lines(path: Path, rows: range) -> None:
    path.write_text(
        "".join(
            json.dumps({"n": n, "repo": f"repo {n % 7}", "even": n % 2 == 0}) + "\n" for n in rows
        )
    )


def test_rows_of_files_are_compared_by_their_place(tmp_path: Path) -> None:
    for number in range(3):
        write_lines(tmp_path / f"{number}.jsonl", range(40 * number, 40 * number + 40))
    pattern = str(tmp_path / "*.jsonl")
    train, held_out = ps.read(pattern, name="web").split("30%", column="repo")
    assert 0 < len(held_out) < 120
    check(held_out, train.shuffle().repeat())
    check(held_out, ps.read(pattern, name="all"), f"{len(held_out)} samples", "as 'all'")
    odd = ps.read(pattern, where={"even": False}, name="odd")
    check(odd, ps.read(pattern, where={"even": True}, name="even"))
    one = ps.read(str(tmp_path / "2.jsonl"), name="one")
    check(one, ps.read(pattern, name="all")[:80])
    check(one, ps.read(pattern, name="all")[:82], "2 samples", "rows 0, 1 of 'one'")
    check(one, ps.read(str(tmp_path / "0.jsonl"), name="other"))
    with pytest.raises(ps.ConfigError) as raised:
        ps.eval_loaders({"one": one}, train=ps.read(pattern))
    assert "2.jsonl, row 0" in raised.value.__notes__[0]


def test_columns_read_otherwise_are_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {i}" for i in range(30)], "n": range(30)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    path = str(tmp_path / "rows.parquet")
    check(ps.read(path, columns=["text"], name="texts")[25:], ps.read(path)[:25])
    check(ps.read(path, columns=["text"], name="texts")[24:], ps.read(path)[:25], "row 24")


def test_equal_data_in_memory_is_recognised() -> None:
    rows = [{"text": f"text {i}"} for i in range(20)]
    again = [{"text": f"text {i}"} for i in range(20)]
    other = [{"text": f"other {i}"} for i in range(20)]
    check(ps.from_sequence(rows, name="x")[3:5], ps.from_sequence(again, name="y"), "rows 3, 4")
    check(ps.from_sequence(rows, name="x")[3:5], ps.from_sequence(other, name="y"))
    check(ps.from_sequence(rows, name="x")[3:5], ps.from_iterable(lambda: iter(other)))


@examples(60)
@given(data=st.data(), count=st.integers(4, 30))
def test_drawn_samples_are_all_that_come_and_no_more_for_fixed_sets(
    data: st.DataObject, count: int
) -> None:
    def chain(ds: ps.Dataset) -> ps.Dataset:
        low = data.draw(st.integers(0, 3))
        for step in data.draw(st.lists(st.sampled_from(["slice", "shuffle", "split"]), max_size=3)):
            if step == "slice" and len(ds) > 3:
                ds = ds[low : max(low + 1, len(ds) - 1)]
            elif step == "split" and len(ds) > 3:
                ds = ds.split(0.3)[data.draw(st.integers(0, 1))]
            else:
                ds = ds.shuffle(seed=low)
        return ds

    parts = {name: chain(numbers(count, name, at)) for name, at in (("a", 0), ("b", 100))}
    parts = {name: part if len(part) else numbers(1, name) for name, part in parts.items()}
    kind = data.draw(st.sampled_from(["mix", "endless", "concat"]))
    if kind == "concat":
        ds = ps.concat(*parts.values())
    elif kind == "mix":
        ds = ps.mix(
            parts,
            {"a": 2, "b": 1},
            stop=data.draw(st.sampled_from(["all_exhausted", "first_exhausted"])),
        )
    else:
        ds = ps.mix({name: part.repeat() for name, part in parts.items()}, {"a": 2, "b": 1})
    limited = data.draw(st.booleans())
    if limited:
        ds = ds.limit(data.draw(st.integers(1, 40)))
    above = data.draw(st.sampled_from(["nothing", "batch", "shuffle"]))
    if above != "nothing":
        ds = ds.batch(3) if above == "batch" else ds.shuffle(window=5)
    plan = ds.plan
    seen = plan.at(slice(0, 60 * count if plan.size is None else 6 * max(plan.size, 1)))
    for number, name in enumerate(plan.sources):
        drawn = find_drawn(ds.compiled.op, number, np.arange(count)).tolist()
        wanted = {sample.index for sample in seen if sample.source == name}
        assert wanted <= set(drawn), name
        if limited or kind != "mix":
            assert wanted == set(drawn), name


@examples(60)
@given(ds=trees())
def test_drawn_samples_of_random_trees(ds: ps.Dataset) -> None:
    plan, root = ds.plan, ds.compiled.op
    if plan.size == 0:
        return
    count = 200 if plan.size is None else min(4 * plan.size, 600)
    seen = [(sample.source, sample.index) for sample in plan.at(slice(0, count))]
    for leaf in ds.compiled.builder.leaves:
        drawn = find_drawn(root, leaf.number, np.arange(len(cast("Any", leaf.source)))).tolist()
        wanted = {index for source, index in seen if source == leaf.name}
        assert wanted <= set(drawn)
        if root.repeats and root.size is not None and root.size <= count:
            assert wanted == set(drawn)


def join_batches(batches: list[Any]) -> dict[str, Any]:
    width = max(batch["tokens"].shape[1] for batch in batches)
    rows = [np.pad(row, (0, width - len(row))) for batch in batches for row in batch["tokens"]]
    return {"tokens": np.stack(rows)}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("by", ["bucket", "tokens", "limit", "repeat", "shuffle", "limit, batch"])
def test_rows_of_batches_below_other_steps_count_once(world_size: int, by: str) -> None:
    documents = store(30)
    batches = documents.batch(4, collate=Padded())
    groups = {
        "bucket": lambda: documents.bucket_by_length([4, 6], 4, collate=Padded()),
        "tokens": lambda: documents.batch_by_tokens(30, collate=Padded()),
        "limit": lambda: batches.limit(9),
        "repeat": lambda: batches.repeat(1),
        "shuffle": lambda: batches.shuffle(seed=1).map(dict),
        "limit, batch": lambda: batches.limit(9).batch(2, collate=join_batches),
    }[by]()
    rows = 0
    for rank in range(world_size):
        loaders = ps.eval_loaders({"docs": groups}, rank=rank, world_size=world_size)
        for batch in loaders["docs"]:
            assert batch["valid"].shape == batch["tokens"].shape[:1]
            assert batch["valid"].tolist() == loaders["docs"].loader.valid.tolist()
            rows += int(batch["valid"].sum())
    assert rows == 30
    with ps.Loader(groups) as loader:
        assert [loader.valid.tolist() for _ in loader] == [
            [True] * len(batch["tokens"]) for batch in groups
        ]


def test_a_limit_of_rows_counts_no_batches_of_similar_length() -> None:
    groups = store(30).bucket_by_length([4, 6], 4, collate=Padded())
    with pytest.raises(ps.ConfigError, match=r"limit the samples before: ds.limit\(8\)"):
        ps.eval_loaders({"docs": groups}, rows=8)
