"""`mix(unit="loss_tokens")`: shares of the tokens that carry loss, by masks that are added up once."""

from __future__ import annotations

import time
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
from penstock.sources import loss_counts
from penstock.types import LossCounts


def draw_documents(seed: int, number: int, share: float, size: int = 40) -> list[dict[str, Any]]:
    """Return documents with masks; at least one token of them carries loss."""
    rng = np.random.default_rng(seed)
    documents = [
        {
            "tokens": np.arange(n, dtype=np.int32),
            "loss_mask": rng.random(n) < rng.choice([0.0, share, 1.0], p=[0.2, 0.6, 0.2]),
        }
        for n in rng.integers(1, size, number).tolist()
    ]
    documents[0] = {"tokens": np.arange(2, dtype=np.int32), "loss_mask": np.ones(2, np.bool_)}
    return documents


def count_loss(document: dict[str, Any]) -> int:
    return int(document["loss_mask"][1:].sum())


def open_table(documents: list[dict[str, Any]]) -> ps.Dataset:
    return ps.read(pa.Table.from_pylist(documents), lengths="tokens", name="documents")


def plain_of_counts(documents: list[dict[str, Any]]) -> ps.Dataset:
    """Return a token store whose lengths are the loss tokens of documents."""
    offsets = np.cumsum([0, *map(count_loss, documents)])
    return ps.from_tokens(np.zeros(offsets[-1], np.int32), offsets, name="documents")


def list_draws(ds: ps.Dataset, number: int) -> list[tuple[str, int]]:
    return [(sample.source, sample.index) for sample in ds.plan.at(slice(0, number))]


@examples(60)
@given(seed=st.integers(0, 1000), data=st.data())
def test_the_order_is_that_of_documents_with_as_many_tokens(seed: int, data: st.DataObject) -> None:
    documents = {
        name: draw_documents(seed + i, data.draw(st.integers(2, 60)), share)
        for i, (name, share) in enumerate((("a", 0.1), ("b", 0.5), ("c", 0.9)))
    }
    weights = {name: data.draw(st.integers(1, 9)) for name in documents}
    kind = data.draw(st.sampled_from(["weights", "caps", "temperature", "schedule", "ends"]))
    options: dict[str, Any] = {"seed": seed, "block_size": data.draw(st.sampled_from([1, 4]))}
    points: dict[str, Any] = {}
    if kind == "caps":
        options["max_epochs"] = {"a": 1.5, "c": 2}
    elif kind == "temperature":
        options["temperature"] = 2.0
    elif kind == "ends":
        options["stop"] = "all_exhausted"
    elif kind == "schedule":
        points = {
            "points": [(0, weights), (data.draw(st.integers(200, 3000)), {**weights, "a": 0})]
        }
        points["interpolation"] = data.draw(st.sampled_from(["step", "linear"]))

    def mix(inputs: dict[str, ps.Dataset], unit: Any, unit_of_points: Any) -> ps.Dataset:
        given = ps.Schedule(**points, unit=unit_of_points) if points else weights
        given = None if kind == "temperature" else given
        return ps.mix(inputs, given, unit=unit, **options)

    masked = {name: open_table(rows).shuffle(seed=2) for name, rows in documents.items()}
    plain = {name: plain_of_counts(rows).shuffle(seed=2) for name, rows in documents.items()}
    by = data.draw(st.sampled_from(["weights", "points"])) if points else "weights"
    unit, other = ("loss_tokens", "tokens") if by == "weights" else ("samples", "samples")
    found = list_draws(mix(masked, unit, "loss_tokens"), 400)
    assert found == list_draws(mix(plain, other, "tokens"), 400)
    if kind == "weights":  # the shares are exact to about a document
        held = dict.fromkeys(documents, 0)
        for name, index in found:
            held[name] += count_loss(documents[name][index])
        total = sum(held.values())
        for name, weight in weights.items():
            assert abs(held[name] - total * weight / sum(weights.values())) <= 3 * 40


@pytest.mark.parametrize("unit", ["tokens", "loss_tokens"])
def test_points_may_count_another_unit_of_tokens(unit: Any) -> None:
    documents = {
        name: draw_documents(i, 300, share)
        for i, (name, share) in enumerate((("a", 0.1), ("b", 0.8)))
    }
    inputs = {name: open_table(rows).shuffle(seed=1) for name, rows in documents.items()}
    other: Any = "tokens" if unit == "loss_tokens" else "loss_tokens"
    sizes: dict[str, Any] = {
        "loss_tokens": count_loss,
        "tokens": lambda document: len(document["tokens"]),
    }
    begins, passed, last = 9_000, 0, 0
    points = ps.Schedule([(0, {"a": 1, "b": 1}), (begins, {"a": 0, "b": 1})], unit=other)
    mixed = ps.mix(inputs, points, unit=unit, seed=4)
    held = dict.fromkeys("ab", 0)
    for name, index in list_draws(mixed, 3_000):
        last = passed if name == "a" else last
        passed += sizes[other](documents[name][index])
        if passed < begins - 400:
            held[name] += sizes[unit](documents[name][index])
    assert abs(last - begins) < 400 and passed > 2 * begins
    assert held["a"] / sum(held.values()) == pytest.approx(0.5, abs=0.02)
    again: Any = mixed.tree.with_saved_lengths(mixed.tree.description())
    assert again.description() == mixed.tree.description()
    batches = iter(loader := ps.Loader(mixed.batch(5, collate=list)))
    for _ in range(7):
        next(batches)
    resumed = ps.Loader(mixed.batch(5, collate=list))
    resumed.load_state_dict(loader.state_dict())
    np.testing.assert_equal(next(iter(resumed)), next(batches))


def test_documents_without_masks_count_all_tokens_but_the_first() -> None:
    inputs = {
        "plain": ps.from_tokens(np.arange(1000), np.arange(0, 1001, 5), name="plain").shuffle(),
        "chats": open_table(draw_documents(0, 50, 0.3)).shuffle(),
    }
    mixed = ps.mix(inputs, unit="loss_tokens")
    rule: Any = mixed.tree
    assert dict(rule.rule.lengths)["plain"] == 4
    assert "loss_tokens" in repr(mixed)


def write_chats(path: Path, documents: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(documents), path, row_group_size=7)


def test_masks_of_files_are_read_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()
    count = loss_counts._count_file_masks

    def counting(file: Any, columns: Any) -> LossCounts:
        calls.append(file.path.name)
        return count(file, columns)

    monkeypatch.setattr(loss_counts, "_count_file_masks", counting)
    documents = {name: draw_documents(i, 90, 0.4) for i, name in enumerate("ab")}

    def mix() -> ps.Dataset:
        inputs = {
            name: ps.read(tmp_path / f"{name}.parquet", lengths="tokens", name=name).shuffle(seed=1)
            for name in documents
        }
        return ps.mix(inputs, {"a": 1, "b": 2}, unit="loss_tokens")

    for name, rows in documents.items():
        write_chats(tmp_path / f"{name}.parquet", rows)
    first = list_draws(mix(), 300)
    assert sorted(calls) == ["a.parquet", "b.parquet"]
    assert list_draws(mix(), 300) == first and len(calls) == 2
    documents["a"] = draw_documents(9, 90, 0.4)
    write_chats(tmp_path / "a.parquet", documents["a"])
    assert list_draws(mix(), 300) != first and calls[2:] == ["a.parquet"]
    inputs = {name: open_table(rows).shuffle(seed=1) for name, rows in documents.items()}
    tables = ps.mix(inputs, {"a": 1, "b": 2}, unit="loss_tokens")
    assert [mix().plan.at(i)[0].index for i in range(5)] != [] and len(calls) == 3
    assert sum(name == "a" for name, _ in list_draws(tables, 300)) > 0


def test_selected_rows_count_as_they_are(tmp_path: Path) -> None:
    documents = [{**row, "kind": i % 3} for i, row in enumerate(draw_documents(3, 60, 0.5))]
    write_chats(tmp_path / "a.parquet", documents)
    some = ps.read(tmp_path / "a.parquet", lengths="tokens", where={"kind": 1})
    source: Any = some.tree
    counts = source.source.loss_counts()
    assert counts.count.tolist() == [count_loss(row) for row in documents if row["kind"] == 1]


def test_index_files_adds_up_masks_beforehand(tmp_path: Path) -> None:
    from penstock.sources import index_files

    write_chats(tmp_path / "a.parquet", draw_documents(3, 60, 0.5))
    index_files([tmp_path / "a.parquet"], lengths="tokens")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert any("loss-loss_mask" in name for name in names), names


def test_runs_resume_and_change_their_weights() -> None:
    documents = {name: draw_documents(i, 200, 0.4) for i, name in enumerate("ab")}
    inputs = {name: open_table(rows).shuffle(seed=1) for name, rows in documents.items()}
    ds = ps.mix(inputs, {"a": 1, "b": 3}, unit="loss_tokens").batch(4, collate=list)
    loader = ps.Loader(ds)
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    loader.set_weights(ps.Schedule([(0, {"a": 3, "b": 1})], unit="loss_tokens"))
    resumed = ps.Loader(ds)
    resumed.load_state_dict(loader.state_dict())
    plan = ds.plan.for_state(loader.state_dict())
    later = iter(resumed)
    for _ in range(100):
        np.testing.assert_equal(next(later), next(batches))
    held = dict.fromkeys("ab", 0)
    for position in range(20, 1020):
        for sample in plan.at(position):
            held[sample.source] += count_loss(documents[sample.source][sample.index])
    assert held["a"] / sum(held.values()) == pytest.approx(0.75, abs=0.01)
    plain = ps.mix(inputs, {"a": 1, "b": 3}, unit="tokens").batch(4, collate=list)
    with pytest.raises(ps.StateError, match="keep the unit"):
        ps.Loader(plain).load_state_dict(loader.state_dict(), on_mismatch="adopt")


def test_distant_positions_are_located_quickly() -> None:
    rng = np.random.default_rng(0)
    masks = {name: rng.random(400_000) < share for name, share in (("a", 0.2), ("b", 0.8))}
    offsets = np.arange(0, 400_001, 40)
    inputs = {}
    for name, mask in masks.items():
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(mask))
        tokens = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(np.zeros(400_000, np.int32))
        )
        table = pa.table({"tokens": tokens, "loss_mask": column})
        inputs[name] = ps.read(table, lengths="tokens", name=name).shuffle(seed=1)
    rows = ps.mix(inputs, {"a": 1, "b": 1}, unit="loss_tokens").pack(512)
    rows.plan.at(10**7)
    start = time.perf_counter()
    for row in (10**6, 3 * 10**7, 10**9):
        rows.plan.at(row)
    assert time.perf_counter() - start < 1.0
    counts = rows.plan.counts(10**5, unit="tokens")
    assert counts["a"] / counts["b"] == pytest.approx(4, rel=0.02)


def test_what_is_not_known_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    documents = draw_documents(0, 9, 0.5)
    known = open_table(documents)
    for unknown in (ps.from_sequence(documents), known.map(dict)):
        with pytest.raises(ps.ConfigError, match="the lengths of the samples of 'b' are not known"):
            ps.mix({"a": known, "b": unknown}, unit="loss_tokens")
    stream = ps.from_iterable(lambda: iter(documents))
    with pytest.raises(ps.ConfigError, match=r"mix\(unit='loss_tokens'\) needs inputs with random"):
        ps.mix({"a": known, "b": stream}, unit="loss_tokens")
    nothing = open_table([{"tokens": [1, 2], "loss_mask": [1, 0]}])
    with pytest.raises(ps.ConfigError, match="no token of 'b' carries loss; leave the input out"):
        ps.mix({"a": known, "b": nothing}, unit="loss_tokens")
    with pytest.raises(ps.ConfigError, match="leave packed out"):
        ps.mix({"a": known}, unit="loss_tokens", packed={"length": 8})
    rows = known.shuffle().repeat()
    with pytest.raises(ps.ConfigError, match="give numbers by steps or tokens"):
        rows.pack(ps.Schedule({0: 8, 90: 16}, unit="loss_tokens"))


class Documents(list[dict[str, Any]]):
    """Documents in memory that know their lengths."""

    def lengths(self) -> list[int]:
        return [len(row["tokens"]) for row in self]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_class_for_each_document_is_an_error(in_memory: bool) -> None:
    rows = [{"tokens": [3] * size, "labels": size % 2} for size in range(2, 9)]
    table = pa.Table.from_pylist(rows)
    ds = ps.from_sequence(Documents(rows), name="t") if in_memory else open_table(rows)
    with pytest.raises(ps.ConfigError, match="'labels' of '.*' has no value for each token"):
        ps.mix({"t": ds}, unit="loss_tokens").limit(3).plan.at(0)
    bare = ps.read(table.select(["tokens"]), lengths="tokens", name="t")
    assert ps.mix({"t": bare}, unit="loss_tokens").plan.at(0)
