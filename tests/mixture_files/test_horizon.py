"""The horizon ends the dataset, its plan, the loader and `penstock run`, in every unit, packed or not."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.mixture_files import lint, read_model
from penstock.report import open_target

SOURCES = "sources: {a: {path: a.parquet, lengths: ids, weight: 2}, b: {path: b.parquet, lengths: ids, weight: 1}}\n"


@pytest.fixture
def tokens(data: Path) -> Path:
    """Two sources of 200 documents of 1 to 12 tokens."""
    for seed, name in enumerate("ab"):
        lengths = np.random.default_rng(seed).integers(1, 13, 200).tolist()
        pq.write_table(
            pa.table({"ids": [list(range(n)) for n in lengths]}), data / f"{name}.parquet"
        )
    return data


def said(path: Path) -> list[Any]:
    """The items of a run, which are those that the loader gives."""
    ds = ps.load(path)
    with ps.Loader(ds) as loader:
        return list(loader)


def held(items: list[Any]) -> int:
    return sum(len(row["ids"]) for row in items)


def test_in_samples_and_passes(tokens: Path, write: Any) -> None:
    whole = ps.load(write(SOURCES))
    for horizon, samples in (
        ("samples: 90", 90),
        ("epochs: 0.5", 200),
        ("epochs: 2", 800),
        ("samples: 1.5k", 1500),
    ):
        path = write(f"{SOURCES}horizon: {{{horizon}}}")
        rows = said(path)
        assert len(rows) == samples == ps.load(path).plan.size == open_target(path).horizon(None)
        for row, other in zip(rows, islice(whole, samples), strict=True):
            np.testing.assert_equal(row, other)


def test_in_steps_of_all_ranks(tokens: Path, write: Any) -> None:
    path = write(f"{SOURCES}horizon: {{steps: 7}}\nbatch: {{size: 4, ranks: 3, collate: list}}")
    assert [len(batch) for batch in said(path)] == [4] * 21
    ranks = [list(ps.Loader(ps.load(path), rank=rank, world_size=3)) for rank in range(3)]
    assert [len(items) for items in ranks] == [7, 7, 7] and open_target(path).horizon(None) == 7


def test_in_tokens_that_are_not_packed(tokens: Path, write: Any) -> None:
    rows = said(write(f"unit: tokens\n{SOURCES}horizon: {{tokens: 1_000}}"))
    # Within a pass the plan counts with the mean length.
    assert abs(held(rows) - 1_000) < 100
    once = said(
        write(
            "sources: {a: {path: a.parquet, lengths: ids}}\nhorizon: {tokens: 1e9}\nstop: all_exhausted"
        )
    )
    assert len(once) == 200, "the data ends before"


@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
@pytest.mark.parametrize("stop", ["restart", "all_exhausted"])
def test_packed_rows_end_there(tokens: Path, write: Any, method: str, stop: str) -> None:
    """Before, `restart` with `pack` went on three times too long."""
    rest = f"stop: {stop}\npack: {{length: 16, method: {method}}}\nbatch: {{size: 2, ranks: 2}}\n"
    for horizon in ("steps: 15", "tokens: 960", "tokens: 0.95k"):
        path = write(f"{SOURCES}{rest}horizon: {{{horizon}}}")
        assert sum(len(batch["ids"]) for batch in said(path)) == 60, "15 steps of 4 rows"
        target = open_target(path)
        if target.indexed:
            assert target.horizon(None) == 15 and target.horizon(20) == 15
        else:  # rows are packed while it runs: about as many samples as 60 rows hold
            assert 100 < target.horizon(None) < 200
    path = write(f"{SOURCES}{rest}horizon: {{samples: 40}}")
    assert sum(int((batch["segment_ids"] > 0).sum()) for batch in said(path)) == held(
        list(ps.load(write(f"{SOURCES}stop: {stop}\nhorizon: {{samples: 40}}")))
    )


def test_a_longer_horizon_goes_on_with_a_run(tokens: Path, write: Any) -> None:
    text = f"{SOURCES}batch: {{size: 4, collate: list}}\n"
    short, long = (ps.load(write(f"{text}horizon: {{steps: {n}}}", f"{n}.yaml")) for n in (10, 20))
    loader = ps.Loader(short)
    seen = list(islice(loader, 6))
    other = ps.Loader(long)
    other.load_state_dict(loader.state_dict(), on_mismatch="adopt")
    np.testing.assert_equal([*seen, *other], list(long))


@pytest.mark.parametrize(
    ("text", "number"),
    [("15T", 15 * 10**12), ("1.5e12", 15 * 10**11), ("2.5 k", 2_500), ("3B", 3 * 10**9)],
)
def test_large_numbers_as_people_write_them(write: Any, text: str, number: int) -> None:
    model, problems = read_model(
        write(f"sources: {{a: {{path: code, tokens: {text}}}}}\nhorizon: {{tokens: {text}}}")
    )
    assert model is not None and not problems
    assert model.horizon == ("tokens", number) and model.sources[0].tokens == number


@pytest.mark.parametrize("text", ["15X", "T", "1.2345k", "0", "-3M"])
def test_and_those_that_are_none(write: Any, text: str) -> None:
    problems = lint(write(f"sources: {{a: {{path: code}}}}\nhorizon: {{tokens: {text}}}"))
    assert any(
        "horizon.tokens: expected a whole number at least 1, not" in str(problem)
        for problem in problems
    )


@pytest.mark.parametrize(
    "rest",
    ["", "pack: {length: 16}\n", "pack: {length: 16}\nbatch: {size: 4}\n", "batch: {size: 4}\n"],
)
@pytest.mark.parametrize("horizon", ["samples: 33", "steps: 6", "tokens: 400", "epochs: 1.5"])
def test_it_comes_back(tokens: Path, write: Any, rest: str, horizon: str) -> None:
    ds = ps.load(write(f"{SOURCES}{rest}horizon: {{{horizon}}}"))
    ps.dump(ds, tokens / "again.yaml")
    assert ps.load(tokens / "again.yaml").tree.description() == ds.tree.description()
    assert "horizon" in (tokens / "again.yaml").read_text()


@pytest.mark.parametrize(
    ("settings", "key", "remedy"),
    [
        ("horizon: {tokens: 1k}", "horizon", "horizon: {samples: N}"),
        ("unit: tokens", "unit", "unit: samples"),
        ("unit: tokens\ntemperature: 2", "unit", "unit: samples"),
        (
            "schedule: {unit: tokens, points: {0: {a: 1}}}",
            "schedule",
            "schedule: {unit: samples}",
        ),
    ],
)
def test_texts_without_a_tokenizer_name_the_key_of_the_file(
    data: Path, write: Any, settings: str, key: str, remedy: str
) -> None:
    """Before, the message spoke of `mix(unit='tokens')`, which the file does not have."""
    (data / "a.jsonl").write_text('{"text": "a b"}\n' * 9)
    path = write(f"sources: {{a: {{path: a.jsonl}}}}\n{settings}")
    with pytest.raises(ps.ConfigError, match=f"{key}: counts tokens") as caught:
        ps.load(path)
    message = str(caught.value)
    assert "tokenize: {tokenizer: PATH}" in message and remedy in message
    assert "mix(" not in message


@pytest.mark.parametrize("horizon", ["horizon: {steps: 6}", "horizon: {tokens: 192}"])
def test_ranks_that_pack_samples_of_unknown_lengths_end_at_one_step(
    tokens: Path, write: Any, horizon: str
) -> None:
    sources = SOURCES.replace(", lengths: ids", "")
    path = write(f"{sources}{horizon}\npack: {{length: 8, method: best_fit}}\nglobal_batch_size: 4")
    (alone,) = ([batch["ids"] for batch in run] for run in [ps.Loader(ps.load(path), lanes=2)])
    ranks = [
        [batch["ids"] for batch in ps.Loader(ps.load(path), rank=rank, world_size=2, lanes=2)]
        for rank in range(2)
    ]
    assert [len(run) for run in [alone, *ranks]] == [6, 6, 6]
    for step, *parts in zip(alone, *ranks, strict=True):
        assert sorted(map(tuple, step.tolist())) == sorted(
            map(tuple, np.concatenate(parts).tolist())
        )


@pytest.mark.parametrize(
    "method", ["concat_split", "best_fit", "best_fit, overflow: never", "first_fit"]
)
@pytest.mark.parametrize("tokens", [1, 3_000, 20_000, 60_000, 80_000])
def test_packed_rows_end_where_documents_with_these_loss_tokens_are_complete(
    data: Path, write: Any, method: str, tokens: int
) -> None:
    lengths = np.random.default_rng(0).integers(20, 200, 2_000)
    documents = [
        {"ids": np.full(n, i + 1), "loss_mask": np.arange(n) >= n // 2}
        for i, n in enumerate(lengths)
    ]
    ps.from_sequence(documents).write(data / "chats.parquet")
    text = "sources: {a: {path: chats.parquet, lengths: ids}}\nmax_epochs: 2\nbatch: {size: 4}\n"
    text += f"pack: {{length: 256, method: {method}}}\n"
    batches = [batch["ids"] for batch in said(write(f"{text}horizon: {{loss_tokens: {tokens}}}"))]
    left, completed = dict(enumerate(lengths.tolist(), 1)), list[int]()
    for batch in batches:
        completed.append(completed[-1] if completed else 0)
        for document, count in Counter(batch[batch > 0].tolist()).items():
            left[document] -= count
            if not left[document]:
                completed[-1] += int(lengths[document - 1] - lengths[document - 1] // 2)
    assert completed[-1] >= tokens
    assert len(completed) == 1 or completed[-2] < tokens
