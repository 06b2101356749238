"""Tokens that carry loss: the plan's number against counts of everything that all ranks deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from penstock.integrations.losses import count_loss_tokens
from penstock.text import CausalLM, Padded, Tokenize

STEPS = 20  # of each run: 25 examples of two runs make 1,000 steps and more


class Documents:
    """Documents of random lengths, with masks and labels as `columns` names them."""

    def __init__(self, seed: int, size: int, longest: int, columns: Sequence[str]) -> None:
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(1, longest + 1, size)
        self.rows = list[dict[str, Any]]()
        for length in self.lengths.tolist():
            row: dict[str, Any] = {"input_ids": rng.integers(1, 90, length)}
            if "loss_mask" in columns:
                row["loss_mask"] = (rng.random(length) < rng.choice([0, 0.5, 1])).astype(np.int8)
            if "labels" in columns:
                kept = rng.random(length) < 0.7
                row["labels"] = np.where(kept, row["input_ids"], -100)
            self.rows.append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def count_in_rows(batch: dict[str, Any], valid: Any = None) -> int:
    """Count slowly, place by place, in packed or padded rows without `CausalLM`."""
    count = 0
    segments = batch["segment_ids"]
    for row in range(len(segments)):
        if valid is not None and not valid[row]:
            continue
        for at in range(1, segments.shape[1]):
            if segments[row, at] == 0 or segments[row, at] != segments[row, at - 1]:
                continue
            if "loss_mask" in batch and batch["loss_mask"][row, at] == 0:
                continue
            count += "labels" not in batch or batch["labels"][row, at] != -100
    return count


def make_rows(pick: Callable[..., Any]) -> ps.Dataset:
    """Return a random dataset of batches of rows."""
    columns = pick([], ["loss_mask"], ["labels"], ["labels", "loss_mask"])
    seed, sources = pick(*range(1000)), dict[str, ps.Dataset]()
    for number in range(pick(1, 2)):
        documents = Documents(seed + number, 40 + 7 * number, 14, columns)
        sources[f"s{number}"] = ps.from_sequence(documents).shuffle(seed=seed)
    ds = ps.mix(sources, seed=3, stop="all_exhausted")
    form = pick("split", "never", "windows", "truncate", "padded")
    if form not in ("never", "truncate") and pick(True, False):
        ds = ds.repeat()
    batch = 6 * pick(1, 2)
    if form == "padded":
        return ds.batch(global_batch_size=batch, collate=Padded(multiple=4))
    options: dict[str, Any] = {"features": ("input_ids", *columns), "pad": 0}
    if "labels" in options["features"]:
        options["pad"] = {"labels": -100}
    for name in ("bos", "eos"):
        token = pick(None, 95, {"input_ids": 95})
        if isinstance(token, dict) and "loss_mask" in options["features"]:
            token = {**token, "loss_mask": pick(0, 1)}
        options[name] = token
    options["untrained"] = pick("keep", "skip")
    if form == "split":
        ds = ds.pack(13, **options)
    elif form == "windows":
        ds = ds.pack(16, "best_fit", overflow="split", rows=4, **options)
    elif form == "never":
        ds = ds.pack(24, "best_fit", overflow="never", **options)
    else:
        ds = ds.pack(9, "best_fit", long="truncate", **options)
    return ds.batch(global_batch_size=batch)


def count_in_batch(batch: dict[str, Any]) -> int:
    """Count what a batch trains on, and compare with the function for training loops."""
    valid = batch.get("valid", np.ones(len(batch["labels" if "labels" in batch else "positions"])))
    if "positions" in batch:
        count = count_in_rows(batch, valid)
    else:
        count = int((batch["labels"][valid > 0] != -100).sum())
    assert int(count_loss_tokens(batch)) == count
    return count


@examples(100)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_number_equals_a_count_of_the_batches_of_all_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    ds = make_rows(pick)
    if pick(True, False):
        ds = ds.map(CausalLM(("input_ids", "labels"), shift=pick(True, False)))
    options: dict[str, Any] = {"remainder": pick("drop", "pad", "keep")}
    if options["remainder"] == "drop" and pick(True, False):
        options["balance"] = "tokens"
    if ds.plan.size is not None and not len(ps.Loader(ds, rank=0, world_size=3, **options)):
        options = {"remainder": "pad"}  # a pass has fewer rows than a step
    state: Any = None
    for _ in range(2):  # the second run resumes the first on other ranks
        ranks = pick(1, 2, 3)
        loaders = [ps.Loader(ds, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
        if state:
            for loader in loaders:
                loader.load_state_dict(state)
        iterators, expected, counts = [iter(loader) for loader in loaders], [], list[int]()
        while len(counts) < STEPS + 3:
            steps = pick(1, 2, 3)
            [number] = {loader.loss_tokens(steps=steps) for loader in loaders}
            batches = [next(iterator, None) for iterator in iterators]
            if all(batch is None for batch in batches):
                iterators = [iter(loader) for loader in loaders]
                continue
            expected.append((steps, number))
            counts.append(sum(count_in_batch(batch) for batch in batches if batch is not None))
            state = loaders[0].state_dict()
            if len(counts) == STEPS and pick(True, False):
                break
        for at, (steps, number) in enumerate(expected):
            if at + steps <= len(counts):
                assert number == sum(counts[at : at + steps])


@pytest.fixture
def store() -> ps.Dataset:
    return ps.from_tokens(np.arange(90), np.arange(0, 91, 9))  # ten documents of nine tokens


def test_masks_are_read_from_files(tmp_path: Path) -> None:
    documents = Documents(3, 60, 20, ["loss_mask"])
    rows = [{name: value.tolist() for name, value in row.items()} for row in documents.rows]
    for number in range(2):
        table = pa.Table.from_pylist(rows[30 * number : 30 * number + 30])
        pq.write_table(table, tmp_path / f"{number}.parquet")
    ds = ps.read(str(tmp_path / "*.parquet"), lengths="input_ids").shuffle(seed=1).repeat()
    loaders = [ps.Loader(ds.pack(32).batch(3), rank=rank, world_size=2) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for _ in range(20):
        number = loaders[1].loss_tokens()
        assert number == sum(count_in_batch(next(iterator)) for iterator in iterators)


def test_windows_and_plain_tokens_count_all_predicted_tokens(store: ps.Dataset) -> None:
    assert ps.Loader(ps.windows(store, 5).batch(3)).loss_tokens(2) == 30
    batches = ps.windows(store, 5).batch(3)
    assert int(count_loss_tokens(next(iter(batches)))) == 15
    grouped = store.batch_by_tokens(30, collate=Padded())
    assert ps.Loader(grouped).loss_tokens() == count_in_batch(next(iter(grouped)))
    loader = ps.Loader(store.batch(2, collate=Padded()))
    assert (loader.loss_tokens(0), loader.loss_tokens(), loader.loss_tokens(6)) == (0, 16, 96)


def spell(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def test_texts_that_are_tokenized_when_they_are_read_are_learned_whole(tmp_path: Path) -> None:
    texts = [{"text": "a" * (1 + i % 7), "loss_mask": "none of tokens"} for i in range(30)]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "texts.parquet")
    tokenize = Tokenize(spell)
    ds = ps.read(str(tmp_path / "texts.parquet"), lengths=tokenize).map(tokenize)
    loader = ps.Loader(ds.pack(16, "best_fit").batch(2))
    assert loader.loss_tokens() == count_in_batch(next(iter(loader)))


def test_later_weights_count_from_their_position_on() -> None:
    names = {"a": ["loss_mask"], "b": list[str]()}
    sources = {}
    for name, columns in names.items():
        documents = Documents(5, 50, 12, columns)
        for row in documents.rows:
            row["loss_mask"] = np.full(len(row["input_ids"]), name == "a", np.int8)
        sources[name] = ps.from_sequence(documents).repeat()
    loader = ps.Loader(ps.mix(sources, {"a": 1, "b": 1}).pack(16).batch(4))
    iterator = iter(loader)
    next(iterator)
    loader.set_weights({"a": 1, "b": 0})
    for _ in range(4):
        number = loader.loss_tokens()
        assert number == count_in_batch(next(iterator))


def test_what_no_plan_knows_names_the_reduction(store: ps.Dataset) -> None:
    masked = ps.from_sequence(Documents(1, 40, 9, ["loss_mask"]))

    def change(batch: Any) -> Any:
        return batch

    ds = masked.pack(16).batch(2).map(change)
    with pytest.raises(ps.ConfigError, match="change.* may change which tokens carry loss"):
        ps.Loader(ds).loss_tokens()
    change.keeps_loss = True  # type: ignore[attr-defined]
    assert ps.Loader(ds).loss_tokens() == count_in_batch(next(iter(ds)))
    unknown = {
        "needs the lengths": masked.map(change).pack(16).batch(2),
        "tuple may change": store.zip(store).batch(2),
        "below a mixture": ps.mix({"a": store.pack(9), "b": store.pack(9)}).batch(2),
        "samples are not known": ps.from_sequence(range(9), name="numbers").batch(3),
        "may ignore any token": masked.pack(16).batch(2).map(CausalLM(ignore=0)),
    }
    for reason, ds in unknown.items():
        with pytest.raises(ps.ConfigError, match=f"{reason}.*reduce_loss_tokens"):
            ps.Loader(ds).loss_tokens()
    with pytest.raises(ps.ConfigError, match="replaces bad samples"):
        ps.Loader(store.pack(9), on_error="quarantine").loss_tokens()
    loader = ps.Loader(store.pack(9))
    loader.lease(1)
    with pytest.raises(ps.ConfigError, match="leased items"):
        loader.loss_tokens()
    with pytest.raises(ps.ConfigError, match="steps=-1"):
        ps.Loader(store.pack(9)).loss_tokens(-1)


MASKING: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "replaced": lambda ds: ds.repeat().pack(20).batch(2),
    "below a shuffle": lambda ds: ps.mix({"t": ds}).limit(90).shuffle().repeat().pack(20).batch(2),
    "best fit": lambda ds: ds.repeat().pack(20, "best_fit").batch(2),
    "shuffled rows": lambda ds: ds.pack(20).shuffle().batch(2),
    "padded": lambda ds: ds.repeat().batch(2, collate=Padded()),
}


@pytest.mark.parametrize("kind", MASKING)
def test_masked_documents_carry_no_loss(kind: str) -> None:
    documents = ps.from_tokens(np.arange(1, 901), np.arange(0, 901, 9), name="t").shuffle()
    ds = MASKING[kind](documents)
    loader = ps.Loader(ds)
    for _, _ in zip(range(3), loader, strict=False):
        pass
    removed = {(name, index) for name, _, index in loader.keys()}
    removed |= {(s.source, s.index) for s in ds.plan.at(4)}
    loader.exclude(sorted(removed))
    planned = [loader.loss_tokens(steps=k) for k in range(9)]
    counts = [count_loss_tokens(batch) for _, batch in zip(range(8), loader, strict=False)]
    assert planned == [sum(counts[:k]) for k in range(9)]


def test_a_class_for_each_document_is_no_mask() -> None:
    table = pa.table({"input_ids": [[3] * 4, [3] * 5], "labels": [0, 1]})
    ds = ps.read(table, lengths="input_ids", name="t").batch(2, collate=Padded())
    with pytest.raises(ps.ConfigError, match="'labels' of 't' has one value for each document"):
        ps.Loader(ds).loss_tokens()


@pytest.mark.parametrize("mask", [None, [1, None, 0]])
def test_a_mask_without_a_value_is_named_with_its_file(tmp_path: Path, mask: Any) -> None:
    table = pa.table({"input_ids": [[3] * 3] * 3, "loss_mask": [[1, 1, 0], mask, [0, 1, 1]]})
    pq.write_table(table, tmp_path / "m.parquet")
    ds = ps.read(tmp_path / "m.parquet", lengths="input_ids").pack(6).batch(1)
    for ask in (ds.plan.packing, ps.Loader(ds).loss_tokens):
        with pytest.raises(ps.DataError, match="m.parquet.*'loss_mask' has rows or tokens without"):
            ask()
