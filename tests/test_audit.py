"""Audits, line by line, against what loaders deliver."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.base.batch_size import BatchSize
from penstock.engine.base.passes import Passes
from penstock.engine.runtime.step_log import StepLog, StepRecord
from penstock.engine.streams.rank_sharding import REMAINDERS
from penstock.stores.outputs import ENDINGS

Flow = Callable[[], ps.Dataset]


def documents(name: str, rows: int) -> ps.Dataset:
    rng = np.random.default_rng(rows)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 30, rows))])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def mixed(batch: int) -> ps.Dataset:
    flows = {
        "a": ps.from_sequence(range(50), name="a").shuffle(),
        "b": ps.from_sequence(range(9), name="b").shuffle(),
    }
    return ps.mix(flows, {"a": 3, "b": 1}, seed=4).batch(batch)


FLOWS: dict[str, Flow] = {
    "mixed": lambda: mixed(6),
    "one": lambda: mixed(1),
    "ends": lambda: (
        ps.from_sequence(range(83), name="ends").shuffle().batch(4, drop_remainder=False)
    ),
    "drops": lambda: ps.from_sequence(range(83), name="ends").batch(4),
    "packed": lambda: (
        ps.mix({"a": documents("a", 40), "b": documents("b", 7)}, {"a": 1, "b": 1})
        .pack(16)
        .batch(3)
    ),
    "whole": lambda: documents("a", 90).shuffle().pack(32, method="best_fit").batch(2),
    "unbatched": lambda: ps.from_sequence(range(30), name="x").shuffle(),
    "nested": lambda: mixed(2).batch(3),
}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("name", FLOWS)
def test_every_line_is_what_a_rank_has_in_its_row(name: str, world: int) -> None:
    steps = 9
    lines = FLOWS[name]().plan.audit(range(steps), world_size=world).table().to_pylist()
    for rank in range(world):
        with ps.Loader(FLOWS[name](), rank=rank, world_size=world) as loader:
            for step, _ in zip(range(steps), loader, strict=False):
                mine = [line for line in lines if (line["step"], line["rank"]) == (step, rank)]
                assert [
                    (line["source"], line["epoch"], line["index"]) for line in mine
                ] == loader.keys()
                assert [line["row"] for line in mine] == sorted(line["row"] for line in mine)
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)


def test_a_state_tells_of_the_steps_that_it_made_on_other_ranks(tmp_path: Path) -> None:
    def lived(ranks: int, steps: int, last: bool = False) -> list[list[Any]]:
        loaders = [ps.Loader(mixed(4), rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            ps.restore(tmp_path, loader)
        seen = list[list[Any]]()
        for rank, loader in enumerate(loaders):
            given = iter(loader)
            seen.append(
                [(next(given), [(rank, *key) for key in loader.keys()])[1] for _ in range(steps)]
            )
        for loader in loaders:
            ps.save(tmp_path, loader, step=last_step[0] + steps)
            loader.close()
        last_step[0] += steps
        return [[key for rank in seen for key in rank[step]] for step in range(steps)]

    last_step = [0]
    given = [*lived(2, 5), *lived(1, 4), *lived(3, 3)]
    audit = mixed(4).plan.for_state(tmp_path).audit(range(len(given)))
    lines = audit.table().to_pylist()
    told = [
        [(d["rank"], d["source"], d["epoch"], d["index"]) for d in lines if d["step"] == s]
        for s in range(12)
    ]
    assert told == given
    with pytest.raises(ps.ConfigError, match="plan.audit: the run stores the number of ranks"):
        mixed(4).plan.for_state(tmp_path).audit(range(3), world_size=2)


def test_files_rows_and_keys_are_where_samples_lie(tmp_path: Path) -> None:
    for part, rows in enumerate((5, 1, 7)):
        column = [f"u{part}/{row}" for row in range(rows)]
        pq.write_table(pa.table({"url": column, "x": range(rows)}), tmp_path / f"{part}.parquet")
    whole = ps.read(tmp_path / "*.parquet", columns=["x"])
    some = ps.read(tmp_path / "*.parquet", where={"x": {"above": 2}})
    ds = ps.mix({"whole": whole.shuffle(), "some": some, "own": ps.from_sequence("abc")}, seed=1)
    for line in ds.plan.audit(range(60), key="url").table().to_pylist():
        if line["source"] == "own":
            assert (line["file"], line["row_in_file"], line["key"]) == (None, None, None)
            continue
        row = pq.read_table(line["file"]).to_pylist()[line["row_in_file"]]
        assert row["url"] == line["key"]
        assert row["x"] > 2 or line["source"] == "whole"


def test_every_form_holds_the_same_lines(tmp_path: Path) -> None:
    audit = FLOWS["packed"]().plan.audit(range(5, 40), world_size=2)
    lines = audit.table().to_pylist()
    for ending in ENDINGS:
        assert audit.write(tmp_path / f"x{ending}") == len(lines) == len(audit.table())
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == lines
    assert pa.ipc.open_file(str(tmp_path / "x.arrow")).read_all().to_pylist() == lines
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == lines
    read: Any = csv.read_csv(tmp_path / "x.csv")
    for column in ("step", "rank", "row", "source", "epoch", "index", "start", "stop"):
        assert read[column].to_pylist() == [line[column] for line in lines]
    with pytest.raises(ps.ConfigError, match="use one of .parquet"):
        audit.write(tmp_path / "x.txt")


def test_what_is_cut_off_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = mixed(64).plan.audit(range(5_000))
    made = audit._batch
    calls = iter([False, False, True])

    def cut(taken: Any) -> Any:
        if next(calls):
            raise KeyboardInterrupt
        return made(taken)

    monkeypatch.setattr(audit, "_batch", cut)
    (tmp_path / "x.parquet").write_text("before")
    with pytest.raises(KeyboardInterrupt):
        audit.write(tmp_path / "x.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]
    assert (tmp_path / "x.parquet").read_text() == "before"


def test_what_is_no_range_of_steps_is_refused() -> None:
    plan = mixed(2).plan
    for steps, wrong in (
        (range(0, 4, 2), ps.ConfigError),
        (range(-1, 4), IndexError),
        (4, ps.ConfigError),
    ):
        with pytest.raises(wrong):
            plan.audit(steps)  # pyright: ignore[reportArgumentType]
    assert len(plan.audit(range(3, 3)).table()) == 0


@given(st.data())
def test_many_steps_are_what_each_of_them_is(data: st.DataObject) -> None:
    number = lambda most: data.draw(st.integers(1, most))  # noqa: E731
    sizes = data.draw(st.lists(st.integers(8, 60), max_size=4))
    passes = Passes.of(enumerate(sizes)) if sizes else None
    records, step, row = list[StepRecord](), 0, 0
    for _ in range(number(4)):
        ranks, batch = number(4), BatchSize(number(2), data.draw(st.booleans()))
        remainder = data.draw(st.sampled_from(REMAINDERS))
        records.append(StepRecord(step, row, ranks * batch.n, ranks, remainder, (batch,)))
        step, row = step + number(9), row + number(90)
    first = data.draw(st.integers(0, 40))
    steps = range(first, first + number(40))
    log = StepLog(tuple(records), passes)
    starts, stops, _ = log.padded_rows_of(steps)
    each = [log.padded_rows(step) for step in steps]
    assert [range(a, max(a, b)) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)] == [
        range(one.start, max(one.start, one.stop)) for one in each
    ]
