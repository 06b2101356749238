"""A document that is excluded during a run is never trained on again, in any pipeline of tokens.

The delivered tokens are the reference: a token tells its document. Each run is compared with one
without the exclusion, so other documents keep their places where the document is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import pick_cases, rounds
from helpers import numbers, through_json
from penstock.engine.orders import Stride
from penstock.text import CausalLM, Padded

LENGTH = 16
"""Tokens of a row."""
BEFORE, BETWEEN, AFTER = 9, 5, 120
"""Global steps before the exclusion, up to the resume, and after it."""
ROWS = 4
"""Rows of a global step."""

SIZES = {name: [1 + (7 * i + k) % 23 for i in range(17 + k)] for k, name in enumerate("abc")}
FIRST = {"a": 1_000, "b": 100_000, "c": 200_000}
"""The first token of each source. Document `i` has tokens from `FIRST + 100 * i` on."""


def tokens_of(source: str, index: int) -> list[int]:
    first = FIRST[source] + 100 * index
    return list(range(first, first + SIZES[source][index]))


def document_of(token: int) -> tuple[str, int]:
    source = max(name for name in FIRST if FIRST[name] <= token)
    return source, (token - FIRST[source]) // 100


def documents(name: str) -> ps.Dataset:
    tokens = [tokens_of(name, i) for i in range(len(SIZES[name]))]
    ends = np.cumsum([0, *map(len, tokens)])
    return ps.from_tokens(np.concatenate(tokens), ends, name=name).shuffle(seed=3)


def mixture(**options: Any) -> ps.Dataset:
    inputs = {name: documents(name) for name in "ab"}
    return ps.mix(inputs, {"a": 2, "b": 1}, seed=1, **options)


def nested(both: ps.Dataset) -> ps.Dataset:
    return ps.mix({"both": both, "c": documents("c")}, {"both": 2, "c": 1}, seed=2)


def lists(name: str) -> ps.Dataset:
    """Documents whose lengths are not known beforehand."""
    tokens = [tokens_of(name, i) for i in range(len(SIZES[name]))]
    return ps.from_sequence(tokens, name=name).shuffle(seed=3).filter(bool)


def generated() -> ps.Dataset:
    tokens = [tokens_of("a", i) for i in range(len(SIZES["a"]))]
    return ps.from_iterable(lambda: iter(tokens), name="a", identity="v1")


PIPELINES: dict[str, Callable[[], ps.Dataset]] = {
    "one source": lambda: documents("a").repeat().pack(LENGTH),
    "mixture": lambda: mixture().pack(LENGTH),
    "mixture by tokens": lambda: mixture(unit="tokens").pack(LENGTH),
    "nested finite mixture": lambda: nested(mixture(stop="first_exhausted")).pack(LENGTH),
    "nested slice of a mixture": lambda: nested(mixture()[5:44].repeat()).pack(LENGTH),
    "slice of a mixture": lambda: mixture()[5:44].repeat().pack(LENGTH),
    "shuffle of a mixture": lambda: mixture().limit(39).shuffle(seed=4).repeat().pack(LENGTH),
    "sample of a mixture": lambda: mixture().limit(50).sample(30, seed=4).repeat().pack(LENGTH),
    "repeat_each": lambda: documents("a").repeat_each(3).repeat().pack(LENGTH),
    "concat": lambda: documents("a").concat(documents("b")).shuffle(seed=4).repeat().pack(LENGTH),
    "best_fit in windows": lambda: mixture().pack(LENGTH, "best_fit", rows=12),
    "best_fit of a pass": lambda: (
        mixture(stop="first_exhausted").pack(LENGTH, "best_fit", overflow="never").repeat()
    ),
    "a source in each row": lambda: mixture().pack(LENGTH, rows=12, group_by="__source__"),
    "shuffled rows": lambda: mixture().pack(LENGTH).limit(30).shuffle(seed=5).repeat(),
    "mixture of rows": lambda: ps.mix(
        {name: documents(name).repeat().pack(LENGTH) for name in "ab"}, {"a": 1, "b": 1}, seed=1
    ),
    "stream, concat_split": lambda: lists("a").repeat().pack(LENGTH),
    "stream, first_fit": lambda: lists("a").repeat().pack(LENGTH, "first_fit"),
    "stream, best_fit": lambda: lists("a").repeat().pack(LENGTH, "best_fit", window=9),
    "stream of a mixture": lambda: ps.mix(
        {n: lists(n).repeat() for n in "ab"}, {"a": 1, "b": 1}, seed=1
    ).pack(LENGTH),
    "stream of documents, first_fit": lambda: (
        mixture().limit(39).repeat().pack(LENGTH, "first_fit")
    ),
    "stream of documents, best_fit": lambda: (
        mixture().limit(39).repeat().pack(LENGTH, "best_fit", overflow="never")
    ),
    "stream without indices": lambda: generated().repeat().pack(LENGTH),
}
PADDED: dict[str, Callable[[], ps.Dataset]] = {
    "padded": lambda: mixture(),
    "padded shuffle of a mixture": lambda: mixture().limit(39).shuffle(seed=4).repeat(),
    "padded stream": lambda: lists("a").repeat(),
}


NESTED = {name for name in PIPELINES if name.startswith("nested")}
MASKED = {name for name in (*PIPELINES, *PADDED) if "stream" in name} | {
    *("nested slice of a mixture", "slice of a mixture", "shuffle of a mixture"),
    *("sample of a mixture", "concat", "shuffled rows", "padded shuffle of a mixture"),
}
"""Pipelines in which documents cannot be replaced."""


def key_of(name: str, document: tuple[str, int]) -> tuple[str, int]:
    """Return source and index of a document, by the name that the source has in a pipeline."""
    source, index = document
    return (f"both/{source}" if name in NESTED and source != "c" else source, index)


def pipeline(name: str) -> ps.Dataset:
    if name in PADDED:
        return PADDED[name]().batch(global_batch_size=ROWS, collate=Padded())
    return PIPELINES[name]().batch(global_batch_size=ROWS)


def open_run(name: str, ranks: int) -> list[ps.Loader]:
    ds = pipeline(name)
    lanes = None if ds.tree.reason_not_indexed is None else ROWS
    return [ps.Loader(ds, rank=rank, world_size=ranks, lanes=lanes) for rank in range(ranks)]


Batch = dict[str, Any]


def steps_of(loaders: list[ps.Loader]) -> Iterator[list[Batch]]:
    """Yield the batches of all ranks, step by step."""
    return map(list, zip(*map(iter, loaders), strict=True))


def rows_of(steps: list[list[Batch]], feature: str) -> list[list[int]]:
    """Return the rows of steps without padding at their ends, sorted in each step: ranks share them."""
    return [
        row
        for step in steps
        for row in sorted(
            np.trim_zeros(row, "b").tolist() for batch in step for row in batch[feature]
        )
    ]


def trained_tokens(steps: list[list[Batch]]) -> set[int]:
    """The tokens that carry loss or are seen by attention, and all others but padding."""
    return {token for row in rows_of(steps, "tokens") for token in row if token}


def without(tokens: Any, gone: tuple[str, int]) -> Any:
    return np.where(np.isin(tokens, tokens_of(*gone)), 0, tokens)


def choose(before: list[list[Batch]], rest: list[list[Batch]]) -> tuple[str, int]:
    """Return a document that was delivered, is being delivered if possible, and will come often."""
    seen = {document_of(token) for token in trained_tokens(before)}
    coming = [document_of(token) for token in sorted(trained_tokens(rest))]
    first = [document_of(t) for row in rows_of(rest[:2], "tokens") for t in row if t]
    common = [document for document in first if document in seen and document[0] != "c"] or coming
    return max(common, key=lambda document: (SIZES[document[0]][document[1]], document))


@pytest.mark.parametrize(
    "name, ranks, later",
    pick_cases([(name, n, 3 - n) for n in (1, 2) for name in (*PIPELINES, *PADDED)], 3),
)
def test_an_excluded_document_is_never_trained_on_again(name: str, ranks: int, later: int) -> None:
    plain = steps_of(open_run(name, ranks))
    before, rest = [*islice(plain, BEFORE)], [*islice(plain, BETWEEN + AFTER)]
    gone = choose(before, rest)
    tokens = {*tokens_of(*gone)}
    assert tokens & trained_tokens(before) and tokens & trained_tokens(rest[BETWEEN:])

    loaders = open_run(name, ranks)
    run = steps_of(loaders)
    assert rows_of([*islice(run, BEFORE)], "tokens") == rows_of(before, "tokens")
    key = key_of(name, gone)
    answers = [loader.exclude([key]) for loader in loaders]
    assert len({*answers}) == 1 and [(one.source, one.index) for one in answers[0]] == [key]
    (removal,) = answers[0]
    assert removal.how == ("masked" if name in MASKED else "replaced")
    found = [*islice(run, BETWEEN)]
    states = through_json([loader.state_dict() for loader in loaders])

    resumed = open_run(name, later)
    for loader in resumed:
        loader.load_state_dict(states)
    again = [*islice(steps_of(resumed), AFTER)]
    assert rows_of(again, "tokens") == rows_of([*islice(run, AFTER)], "tokens")
    found += again
    assert not tokens & trained_tokens(found)
    for batch in (batch for step in found for batch in step):
        assert ((batch["tokens"] == 0) == (batch["segment_ids"] == 0)).all()
    if removal.how == "masked":
        hidden = [
            [{**batch, "tokens": without(batch["tokens"], gone)} for batch in s] for s in rest
        ]
        assert rows_of(found, "tokens") == rows_of(hidden, "tokens")
        ids = [CausalLM(("labels",))(batch)["labels"] for step in found for batch in step]
        assert not tokens & {token for labels in ids for token in labels.ravel().tolist()}
    if (reason := pipeline(name).tree.reason_not_indexed) is not None:
        assert "stream" in name, reason
        return
    assert removal.row == BEFORE * ROWS
    check_audit(name, key, [loader.state_dict() for loader in resumed])


def check_audit(name: str, gone: tuple[str, int], states: list[Any]) -> None:
    """The audit lists the document after the exclusion as masked, if at all."""
    plan = pipeline(name).plan.for_state(states)
    lines = plan.audit(range(BEFORE + BETWEEN + AFTER)).table().to_pylist()
    mine = [line for line in lines if (line["source"], line["index"]) == gone]
    assert any(line["step"] < BEFORE for line in mine)
    for line in lines:
        is_masked = line["step"] >= BEFORE and (line["source"], line["index"]) == gone
        assert line["masked"] == is_masked, line
    assert [(one.source, one.index) for one in plan.removals] == [gone]
    last = range(plan.position, plan.position + 40)
    for position in plan.find(*gone, within=last):
        for sample in plan.at(position):
            assert sample.masked == ((sample.source, sample.index) == gone)


@pytest.mark.parametrize("name", ["slice of a mixture", "mixture", "padded shuffle of a mixture"])
def test_the_plan_of_a_state_excludes_as_the_loader_does(name: str) -> None:
    (loader,) = open_run(name, 1)
    before = [*islice(steps_of([loader]), BEFORE)]
    gone = document_of(max(trained_tokens(before)))
    plan = pipeline(name).plan.for_state(through_json(loader.state_dict()))
    edited = plan.exclude([gone])
    assert edited.removals == loader.exclude([gone]) and not plan.removals
    assert loader.exclude([gone]) == () and edited.exclude([gone]).removals == edited.removals
    (other,) = open_run(name, 1)
    other.load_state_dict(through_json(edited.state))
    assert [*rows_of([*islice(steps_of([other]), AFTER)], "tokens")] == rows_of(
        [*islice(steps_of([loader]), AFTER)], "tokens"
    )
    assert other.state_dict() == loader.state_dict()
    rows = plan.rows().exclude([gone])
    assert rows.removals == edited.removals and rows.state == edited.state


@pytest.mark.parametrize("name", ["mixture", "shuffle of a mixture", "best_fit in windows"])
def test_a_run_that_goes_back_does_not_train_on_it(name: str) -> None:
    (loader,) = open_run(name, 1)
    before = [*islice(steps_of([loader]), BEFORE)]
    gone = document_of(int(before[2][0]["tokens"][0, 0]))
    loader.exclude([gone])
    rest = [*islice(steps_of([loader]), AFTER)]
    for target in (2, 1):
        loader.seek(target)
        again = [*islice(steps_of([loader]), BEFORE - target + AFTER)]
        hidden = [
            [{**batch, "tokens": without(batch["tokens"], gone)} for batch in s] for s in before
        ]
        assert rows_of(again, "tokens") == rows_of(hidden[target:] + rest, "tokens")
    plan = pipeline(name).plan.for_state(through_json(loader.state_dict()))
    assert [removal.row for removal in plan.removals] == [BEFORE * ROWS]
    lines = plan.audit(range(BEFORE + AFTER)).table().to_pylist()
    mine = [line for line in lines if (line["source"], line["index"]) == gone]
    assert mine and all(line["masked"] == (line["step"] >= 1) for line in mine)


GROUPED: dict[str, Callable[[], ps.Dataset]] = {
    "planned": lambda: (
        mixture().limit(39).shuffle(seed=4).batch_by_tokens(40, collate=Padded()).repeat()
    ),
    "in a stream": lambda: lists("a").repeat().bucket_by_length((6, 12), 3, collate=Padded()),
}


@pytest.mark.parametrize("name", GROUPED)
def test_documents_in_batches_by_length_are_masked(name: str) -> None:
    plain = [*islice(ps.Loader(GROUPED[name]()), 60)]
    gone = document_of(int(plain[20]["tokens"][0, 0]))
    with ps.Loader(GROUPED[name]()) as loader:
        run = iter(loader)
        before = [*islice(run, 20)]
        assert [one.how for one in loader.exclude([gone])] == ["masked"]
        rest = [*islice(run, 40)]
    for number, (batch, other) in enumerate(zip(before + rest, plain, strict=True)):
        hidden = np.isin(other["tokens"], tokens_of(*gone)) & (number >= 20)
        width = batch["tokens"].shape[1]  # of the longest document that is left
        for feature in ("tokens", "segment_ids"):
            kept = np.where(hidden, 0, other[feature])
            assert (batch[feature] == kept[:, :width]).all() and not kept[:, width:].any()
    assert gone in {document_of(token) for token in trained_tokens([plain[20:]])}


PREFETCHED = (
    *("shuffle of a mixture", "stream, best_fit", "stream of documents, first_fit"),
    "padded stream",
)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("name", [*PREFETCHED])
def test_rows_that_workers_prefetched_are_made_again(name: str, executor: Any) -> None:
    found = list[list[list[list[int]]]]()
    for workers in (0, 2):
        with ps.Loader(pipeline(name), workers=workers, executor=executor, prefetch=8) as loader:
            run = iter(loader)
            (*_, last) = islice(run, BEFORE)
            loader.exclude([document_of(int(last["tokens"][0, 0]))])
            found.append([batch["tokens"].tolist() for batch in islice(run, 40)])
    assert found[0] == found[1]


def test_all_documents_of_a_source_may_go() -> None:
    (loader,) = open_run("mixture", 1)
    run = steps_of([loader])
    next(run)
    removals = loader.exclude([("b", index) for index in range(len(SIZES["b"]))])
    assert {removal.how for removal in removals} == {"masked"}
    assert {document_of(token)[0] for token in trained_tokens([*islice(run, AFTER)])} == {"a"}


def test_a_sample_without_rows_to_mask_it_is_an_error() -> None:
    ds = mixture().limit(30).shuffle(seed=1).repeat()
    with ps.Loader(ds) as loader:
        (*_,) = islice(loader, 40)
        state = loader.state_dict()
        with pytest.raises(ps.ConfigError, match="excluded from the start only"):
            loader.exclude([("a", 1)])
        assert loader.state_dict() == state
    batches = {
        name: documents(name).limit(9).batch(ROWS, collate=Padded()).repeat() for name in "ab"
    }
    with ps.Loader(ps.mix(batches, {"a": 1, "b": 1}).limit(20).shuffle().repeat()) as loader:
        (*_,) = islice(loader, 40)
        with pytest.raises(ps.ConfigError, match="excluded from the start only"):
            loader.exclude([("a", 1)])
    with ps.Loader(lists("a").repeat()) as loader:
        next(iter(loader))
        with pytest.raises(ps.ConfigError, match=r"no pack\(\) or Padded builds rows"):
            loader.exclude([("a", 1)])


def test_another_pipeline_keeps_masks_or_says_that_it_cannot() -> None:
    (loader,) = open_run("shuffle of a mixture", 1)
    run = steps_of([loader])
    (*_,) = islice(run, BEFORE)
    (removal,) = loader.exclude([("a", 3)])
    assert removal.how == "masked"
    state = loader.state_dict()
    rows = mixture().limit(39).shuffle(seed=4).repeat()
    longer = ps.Loader(rows.pack(2 * LENGTH).batch(global_batch_size=ROWS))
    longer.load_state_dict(state, on_mismatch="adopt")
    found = [*islice(steps_of([longer]), AFTER)]
    assert not {*tokens_of("a", 3)} & trained_tokens(found)
    unpacked = ps.Loader(rows.batch(global_batch_size=ROWS, collate=list))
    with pytest.raises(ps.StateError, match="builds no rows that can"):
        unpacked.load_state_dict(state, on_mismatch="adopt")


def test_features_and_loss_masks_of_a_masked_document_are_padding() -> None:
    samples = [
        {"input_ids": tokens_of("a", i), "loss_mask": [1] * len(tokens_of("a", i))}
        for i in range(len(SIZES["a"]))
    ]
    ds = ps.from_sequence(samples, name="a").filter(bool).repeat()
    for build in (
        ds.pack(64, features=("input_ids", "loss_mask"), eos=9).batch(2),
        ds.batch(2, collate=Padded()),
    ):
        with ps.Loader(build) as loader:
            run = iter(loader)
            next(run)
            loader.exclude([("a", 5)])
            for batch in islice(run, 30):
                hidden = batch["segment_ids"] == 0
                assert not batch["loss_mask"][hidden].any()
                assert not batch["input_ids"][hidden].any()
                assert not np.isin(batch["input_ids"], tokens_of("a", 5)).any()


def test_a_mixture_file_over_token_files(tmp_path: Path) -> None:
    for name in "ab":
        tokens = [[*tokens_of(name, i), 1] for i in range(len(SIZES[name]))]
        np.save(tmp_path / f"{name}.npy", np.concatenate(tokens).astype(np.uint32))
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "seed: 1\npack: {length: 32}\nglobal_batch_size: 4\n"
        "sources:\n  a: {path: a.npy, eos: 1, weight: 2}\n  b: {path: b.npy, eos: 1, weight: 1}\n"
    )
    ds = ps.load(path)
    loaders = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
    run = steps_of(loaders)
    before = [*islice(run, BEFORE)]
    tokens = {token for row in rows_of(before, "tokens") for token in row if token > 1}
    gone = document_of(max(tokens))
    for loader in loaders:
        loader.exclude([gone])
    states = through_json([loader.state_dict() for loader in loaders])
    one = ps.Loader(ps.load(path))
    one.load_state_dict(states)
    rest = [*islice(steps_of([one]), AFTER)]
    assert not {*tokens_of(*gone)} & trained_tokens(rest)
    lines = ds.plan.for_state(one.state_dict()).audit(range(BEFORE, BEFORE + AFTER)).table()
    assert all(
        line["masked"] for line in lines.to_pylist() if (line["source"], line["index"]) == gone
    )


# ---------------------------------------------------------------- rows that still hold a document


def mixed_documents() -> ps.Dataset:
    """Many documents, so that some wait in open rows for long."""
    inputs = dict[str, ps.Dataset]()
    for name in "ab":
        tokens = [
            [*range(FIRST[name] + 100 * i, FIRST[name] + 100 * i + 5 + i % 11)] for i in range(40)
        ]
        bounds = np.cumsum([0, *map(len, tokens)])
        inputs[name] = ps.from_tokens(np.concatenate(tokens), bounds, name=name).shuffle()
    return ps.mix(inputs, {"a": 2, "b": 1}, seed=1).limit(60).repeat()


@pytest.mark.parametrize("method, index", [("first_fit", 8), ("best_fit", 33)])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_documents_that_wait_in_open_rows_are_masked(
    method: Any, index: int, is_resumed: bool
) -> None:
    ds = mixed_documents().pack(32, method, overflow="never" if method == "best_fit" else None)
    tokens = range(FIRST["a"] + 100 * index, FIRST["a"] + 100 * (index + 1))

    def holding(loader: ps.Loader, rows: int) -> list[int]:
        found = [row["tokens"][row["segment_ids"] > 0] for row in islice(loader, rows)]
        return [number for number, row in enumerate(found) if np.isin(row, tokens).any()]

    for before in range(0, 60, rounds(10, 3)):
        loader = ps.Loader(ds)
        holding(loader, before)
        loader.exclude([("a", index)])
        if is_resumed:
            state = through_json(loader.state_dict())
            loader = ps.Loader(ds)
            loader.load_state_dict(state)
        assert not holding(loader, 100)
    assert holding(ps.Loader(ds), 60)


@pytest.mark.parametrize("step, row", [(1, 4), (2, 6), (3, 10)])
def test_the_row_of_a_removal_is_after_copies_that_have_begun(step: int, row: int) -> None:
    ds = ps.from_sequence(range(10), name="a").repeat_each(2).batch(3, collate=list)
    with ps.Loader(ds) as loader:
        items = [*islice(loader, step)]
        (removal,) = loader.exclude([("a", items[-1][-1])])
        items += loader
    samples = [sample for item in items for sample in item]
    assert (removal.how, removal.row) == ("replaced", row)
    assert items[step - 1][-1] not in samples[row:] and samples[row - 1] == items[step - 1][-1]


def test_copies_of_a_rare_source_come_late() -> None:
    inputs = {
        "a": ps.from_sequence(range(10), name="a").repeat_each(3).repeat(),
        "b": numbers(5, "b"),
    }
    ds = ps.mix(inputs, {"a": 1, "b": 999}, seed=2)
    copies = ds.plan.find("a", 0, within=range(10_000))
    with ps.Loader(ds) as loader:
        (*_,) = islice(loader, copies[0] + 1)
        (removal,) = loader.exclude([("a", 0)])
    plan = ds.plan.for_state(loader.state_dict())
    assert plan.find("a", 0, within=range(20_000)) == [p for p in copies if p < (removal.row or 0)]


@pytest.mark.parametrize("skipped", [range(1, 4), range(3)])
@pytest.mark.parametrize("is_endless", [False, True])
def test_samples_after_a_skip_in_each_pass_are_excluded(skipped: range, is_endless: bool) -> None:
    numbered = numbers(10).shuffle(seed=1)
    ds = (numbered.repeat() if is_endless else numbered).plan.skip(skipped).dataset
    for before in range(1, 40):
        with ps.Loader(ds) as loader:
            passes = (item for _ in range(99) for item in loader)
            (*_,) = islice(passes, before)
            (removal,) = loader.exclude([("a", 5)])
            assert removal.row == before and 5 not in [*islice(passes, 40)]


def test_samples_of_a_stride_of_an_endless_source_cannot_be_excluded() -> None:
    ds = numbers(10).repeat().reorder(Stride(0, 3))
    with ps.Loader(ds) as loader:
        next(iter(loader))
        with pytest.raises(ps.ConfigError, match=r"put that step before repeat\(\)"):
            loader.exclude([("a", 5)])


# ---------------------------------------------------------------- bad samples


def refuse_thirds(document: list[int]) -> list[int]:
    if document_of(document[0])[1] % 3 == 1:
        raise ValueError("bad")
    return document


def bad_documents(name: str) -> ps.Dataset:
    tokens = [tokens_of(name, i) for i in range(12)]
    return ps.from_sequence(tokens, name=name).map(refuse_thirds)


def bad_mixture() -> ps.Dataset:
    both = ps.mix({name: bad_documents(name) for name in "ab"}, {"a": 2, "b": 1}, seed=1)
    return both.limit(36).shuffle(seed=1).repeat()


WITH_BAD: dict[str, Callable[[], ps.Dataset]] = {
    "samples": lambda: bad_documents("a").shuffle(seed=1).repeat(),
    "padded": lambda: bad_documents("a").shuffle(seed=1).repeat().batch(1, collate=Padded()),
    "padded mixture": lambda: bad_mixture().batch(1, collate=Padded()),
    "stream": lambda: bad_mixture().pack(LENGTH, "first_fit"),
}


def tokens_in(item: Any) -> set[int]:
    if isinstance(item, dict):
        return {*item["tokens"][item["segment_ids"] > 0].tolist()}
    return {*item}


@pytest.mark.parametrize("name", WITH_BAD)
@pytest.mark.parametrize("before", [1, 5, 11])
def test_an_excluded_sample_replaces_no_bad_one(name: str, before: int) -> None:
    replaced = 0
    for index in (2, 5, 8, 11):
        with ps.Loader(WITH_BAD[name](), on_error="quarantine", max_errors=99) as loader:
            run = iter(loader)
            (*_,) = islice(run, before)
            loader.exclude([("a", index)])
            again = ps.Loader(WITH_BAD[name](), on_error="quarantine", max_errors=99)
            again.load_state_dict(through_json(loader.state_dict()))
            gone = {*tokens_of("a", index)}
            items = [*islice(run, 20)]
            assert not any(gone & tokens_in(item) for item in items)
            assert [*map(tokens_in, islice(again, 20))] == [*map(tokens_in, items)]
            replaced += len(loader.journal)
    assert replaced


@pytest.mark.parametrize("name", ["padded mixture", "stream"])
def test_a_bad_document_may_be_masked(name: str) -> None:
    with ps.Loader(WITH_BAD[name](), on_error="quarantine", max_errors=99) as loader:
        run = iter(loader)
        (*_,) = islice(run, 3)
        assert {removal.how for removal in loader.exclude([("a", 1), ("a", 4)])} == {"masked"}
        assert all(tokens_in(item) is not None for item in islice(run, 60))


# ---------------------------------------------------------------- random pipelines

LATER = 45
"""Items that a random run delivers after the removal."""

Change = Callable[[ps.Dataset, int], ps.Dataset]


def keep_most(document: Any) -> bool:
    return int(document[0]) // 100 % 5 != 2


def halve(document: Any) -> list[Any]:
    middle = len(document) // 2
    return [document[:middle], document[middle:]] if middle else [document]


DOCUMENT_STEPS: dict[str, Change] = {
    "shuffle": lambda ds, n: ds.shuffle(seed=n),
    "window": lambda ds, n: ds.shuffle(seed=n, window=n),
    "repeat": lambda ds, n: ds.repeat(),
    "repeat twice": lambda ds, n: ds.repeat(2),
    "repeat the first pass": lambda ds, n: ds.repeat(2, reshuffle=False),
    "copies": lambda ds, n: ds.repeat_each(n),
    "limit": lambda ds, n: ds.limit(9 * n),
    "slice": lambda ds, n: ds[n : n + 9],
    "skip": lambda ds, n: ds.skip(n),
    "map": lambda ds, n: ds.map(np.asarray),
    "fixed": lambda ds, n: ds.limit(9 * n).shuffle(seed=n).repeat(),
    "select": lambda ds, n: ds.limit(9 * n).sample(5 * n, seed=n),
}
"""Steps that keep a dataset indexed."""
STREAM_STEPS: dict[str, Change] = {
    "filter": lambda ds, n: ds.filter(keep_most),
    "pieces": lambda ds, n: ds.flat_map(halve),
    "buffer": lambda ds, n: ds.shuffle_buffer(2 * n, seed=n),
}
ROW_BUILDERS: dict[str, Change] = {
    "concat_split": lambda ds, n: ds.pack(LENGTH),
    "segments": lambda ds, n: ds.pack(LENGTH, max_segments=n),
    "sources apart": lambda ds, n: ds.pack(LENGTH, group_by="__source__"),
    "first_fit": lambda ds, n: ds.pack(LENGTH, "first_fit", open_rows=n),
    "truncate": lambda ds, n: ds.pack(LENGTH, "first_fit", long="truncate"),
    "best_fit": lambda ds, n: ds.pack(LENGTH, "best_fit"),
    "windows": lambda ds, n: ds.pack(LENGTH, "best_fit", rows=4 + n),
    "never": lambda ds, n: ds.pack(LENGTH, "best_fit", overflow="never", window=5 * n),
    "crop": lambda ds, n: ds.pack(LENGTH, "best_fit", overflow="crop", window=5 * n),
    "nested": lambda ds, n: ds.pack(LENGTH, "first_fit").pack(3 * LENGTH, features=("tokens",)),
    "by tokens": lambda ds, n: ds.batch_by_tokens(40, collate=Padded()),
    "by length": lambda ds, n: ds.bucket_by_length((6, 12), n, collate=Padded()),
    "lists by tokens": lambda ds, n: ds.batch_by_tokens(40, collate=list),
    "lists by length": lambda ds, n: ds.bucket_by_length((6, 12), n, collate=list),
    "batches": lambda ds, n: ds.batch(n, collate=list).repeat_each(2),
    "padded batches": lambda ds, n: ds.batch(n, collate=Padded()).repeat_each(2),
    "documents": lambda ds, n: ds,
}
ROW_STEPS: dict[str, Change] = {
    "limit": lambda ds, n: ds.limit(10 * n),
    "shuffle": lambda ds, n: ds.shuffle(seed=n),
    "repeat": lambda ds, n: ds.repeat(),
    "copies": lambda ds, n: ds.repeat_each(n),
    "buffer": lambda ds, n: ds.shuffle_buffer(n, seed=n),
    "filter": lambda ds, n: ds.filter(lambda row: True),
}


class Pipeline(NamedTuple):
    """A dataset, its steps, and whether its items are batches of rows."""

    dataset: ps.Dataset
    steps: tuple[str, ...]
    are_batches: bool


def repeat(ds: ps.Dataset) -> ps.Dataset:
    """Return an endless dataset."""
    with suppress(ps.ConfigError):
        return ds.repeat()
    return ds


def apply(draw: Any, ds: ps.Dataset, steps: dict[str, Change], most: int) -> tuple[Any, list[str]]:
    """Return a dataset after some random steps that it can have, and their names."""
    names = list[str]()
    for name in draw(st.lists(st.sampled_from(sorted(steps)), max_size=most)):
        with suppress(ps.ConfigError, ps.IndexedError):
            ds = steps[name](ds, n := draw(st.integers(2, 4)))
            names.append(f"{name} {n}")
    return ds, names


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Random pipelines of documents: indexed ones, and streams."""
    is_stream = draw(st.booleans())
    steps = DOCUMENT_STEPS | STREAM_STEPS if is_stream else DOCUMENT_STEPS

    def source(name: str) -> tuple[ps.Dataset, list[str]]:
        kind = draw(st.sampled_from(["store", "store", "lists"]))
        tokens = [tokens_of(name, i) for i in range(9 + len(SIZES[name]) % 4)]
        store = ps.from_tokens(np.concatenate(tokens), np.cumsum([0, *map(len, tokens)]), name=name)
        ds = ps.from_sequence(tokens, name=name) if kind == "lists" else store
        ds, names = apply(draw, ds, steps, 2)
        return ds, [f"{name} = {kind}", *names]

    def mix(inputs: dict[str, tuple[ps.Dataset, list[str]]]) -> tuple[ps.Dataset, list[str]]:
        weights = {name: draw(st.integers(1, 4)) for name in inputs}
        stop: Any = draw(st.sampled_from(["restart", "first_exhausted", "all_exhausted"]))
        ds = ps.mix({name: ds for name, (ds, _) in inputs.items()}, weights, seed=1, stop=stop)
        return ds, [*(step for _, names in inputs.values() for step in names), f"{weights} {stop}"]

    def build(ds: ps.Dataset) -> ps.Dataset:
        with suppress(ps.ConfigError, ps.IndexedError):
            return ROW_BUILDERS[builder](ds, n)
        return ds.pack(LENGTH)

    shape = draw(st.sampled_from(["one", "mixture", "mixture", "nested", "mixture of rows"]))
    builder = draw(st.sampled_from(sorted(ROW_BUILDERS)))
    n = draw(st.integers(1, 4))
    ds, names = source("a")
    if shape == "mixture of rows":
        other, more = source("b")
        ds, names = mix({"a": (build(repeat(ds)), names), "b": (build(repeat(other)), more)})
    else:
        if shape != "one":
            ds, names = mix({"a": (ds, names), "b": source("b")})
        if shape == "nested":
            ds, more = apply(draw, ds, steps, 2)
            ds, names = mix({"both": (ds, names + more), "c": source("c")})
        ds, more = apply(draw, ds, steps, 3)
        ds = repeat(ds) if (is_repeated := draw(st.booleans())) else ds
        ds = build(ds)
        names += [*more, f"repeated {is_repeated}"]
    ds, more = apply(draw, ds, ROW_STEPS, 2)
    are_batches = draw(st.booleans())
    ds = ds.batch(n, collate=list) if are_batches else ds
    return Pipeline(ds, (*names, f"{builder} {n}", *more), are_batches)


def read_rows(pipeline: Pipeline, item: Any) -> list[set[tuple[str, int]]]:
    """Return the documents with tokens in each row of an item that carry loss."""

    def tokens(value: Any) -> Iterator[int]:
        if isinstance(value, dict):
            yield from value["tokens"][value["segment_ids"] > 0].ravel().tolist()
        elif isinstance(value, list | np.ndarray):
            for each in value:
                yield from tokens(each)
        else:
            yield int(value)

    rows = item if pipeline.are_batches else [item]
    return [{document_of(token) for token in tokens(row) if token} for row in rows]


def deliver(pipeline: Pipeline, loader: ps.Loader, items: int) -> list[list[set[tuple[str, int]]]]:
    """Return the documents in the rows of the next items, over passes; fewer if the run ends."""
    found = list[list[set[tuple[str, int]]]]()
    with suppress(ps.ConfigError):  # a limited run ends with its first pass
        for _ in range(items):  # passes
            found += [read_rows(pipeline, item) for item in islice(loader, items - len(found))]
            if len(found) == items:
                break
    return found


@pytest.mark.hypothesis  # `make soak` runs what is marked so
@given(pipelines(), st.integers(1, 12), st.booleans(), st.data())
def test_no_row_from_the_named_one_on_has_a_removed_document(
    pipeline: Pipeline, before: int, several: bool, data: st.DataObject
) -> None:
    ds = pipeline.dataset
    is_indexed = ds.tree.reason_not_indexed is None
    lanes = None if is_indexed else data.draw(st.sampled_from([1, 1, 3]))
    note(f"{pipeline.steps} {lanes}")
    loader, plain = ps.Loader(ds, lanes=lanes), ps.Loader(ds, lanes=lanes)
    try:
        past = deliver(pipeline, loader, before)
        without_removal = deliver(pipeline, plain, before + LATER)
    except ps.DataError:  # a mixture without a sample
        return
    documents = sorted({one for item in without_removal for row in item for one in row})
    if len(past) < before or len(without_removal) < before + 2 or not documents:
        return
    near = sorted(
        {one for item in without_removal[before - 2 : before + 3] for row in item for one in row}
    )
    chosen = st.sampled_from(near or documents)
    gone = data.draw(st.lists(chosen, min_size=1, max_size=4 if several else 1, unique=True))
    names = {name.rsplit("/")[-1]: name for name in ds.sources}
    state = loader.state_dict()
    try:
        removals = loader.exclude([(names[source], index) for source, index in gone])
    except ps.ConfigError:
        event("an error")
        assert loader.state_dict() == state
        return
    found = deliver(pipeline, loader, 2)
    resumed = ps.Loader(ds, lanes=lanes)
    resumed.load_state_dict(through_json(loader.state_dict()))
    found += (rest := deliver(pipeline, loader, LATER - len(found)))
    assert deliver(pipeline, resumed, len(rest)) == rest

    begin = sum(map(len, past)) if is_indexed else before
    rows = (
        [row for item in found for row in item]
        if is_indexed
        else [{one for row in item for one in row} for item in found]
    )
    for removal in removals:
        document, first = (removal.source.rsplit("/")[-1], removal.index), removal.row
        assert first is not None
        holding = [begin + i for i, row in enumerate(rows) if document in row]
        event(f"{'indexed' if is_indexed else 'stream'}, {removal.how}, {first > begin}")
        assert all(row < first for row in holding), (removal, begin, holding)
        assert first in (begin, *(row + 1 for row in holding)), (removal, begin, holding)
    keys = {(names[source], index) for source, index in gone}
    assert {(removal.source, removal.index) for removal in removals} == keys

    if {removal.how for removal in removals} == {"masked"} and "nested" not in str(pipeline.steps):
        others = [[row - {*gone} for row in item] for item in without_removal[before:]]
        assert found == others[: len(found)]
    if is_indexed:
        plan = ds.plan.for_state(through_json(loader.state_dict())).rows()
        assert plan.removals == removals
        is_whole = not {"crop", "truncate"}.intersection(" ".join(pipeline.steps).split())
        for position, row in enumerate(rows, begin):
            samples = [sample for sample in plan.at(position) if not sample.masked]
            planned = {(one.source.rsplit("/")[-1], one.index) for one in samples}
            assert row == planned if is_whole else row <= planned
        last = begin + len(rows)
        for removal in removals:
            within = range(min(removal.row or 0, last), last)
            for position in plan.find(removal.source, removal.index, within=within):
                assert all(
                    s.masked
                    for s in plan.at(position)
                    if s.key[::2] == (removal.source, removal.index)
                )
