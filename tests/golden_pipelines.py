"""Pipelines whose states, data and indexes of each release lie under `tests/goldens/VERSION/`.

`tools/write_goldens.py` writes a folder once, `tests/test_goldens.py` reads all of them. A pipeline
here is never changed or removed: later versions of Penstock must resume its states. If the API
changes, rewrite the pipeline so that it means what it meant. New pipelines join at the end.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

BEFORE, AFTER = 11, 15
DOCUMENTS = [list(range(10 * i + 1, 10 * i + 2 + i % 7)) for i in range(60)]


def write_data(folder: Path) -> None:
    """Write the small files that pipelines read, in formats of other tools."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"n": i, "text": "word " * (i % 5 + 1)}) for i in range(60)]
    (folder / "lines.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "rows.csv").write_text("n,text\n" + "".join(f"{i},row {i}\n" for i in range(60)))
    table = pa.table({"n": list(range(80)), "text": [f"text {i}" for i in range(80)]})
    pq.write_table(table, folder / "table.parquet", row_group_size=20, compression="none")
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for i in range(20):
            member = tarfile.TarInfo(f"{i:03}.txt")
            member.size = len(data := f"sample {i}".encode())
            tar.addfile(member, BytesIO(data))
    ids = [*DOCUMENTS[0], 0]
    for document in DOCUMENTS[1:]:
        ids += [*document, 0]
    np.array(ids, "<u2").tofile(folder / "tokens.bin")
    (folder / "nested.yaml").write_text(
        "seed: 3\nsources:\n  table: {path: table.parquet, weight: 1}\n"
        "  rows: {path: rows.csv, weight: 1}\n"
    )
    (folder / "plain.yaml").write_text(
        "seed: 1\nhorizon: {steps: 60}\nglobal_batch_size: 4\nbatch: {collate: list}\n"
        "sources:\n  lines: {path: lines.jsonl, weight: 2, max_epochs: 9}\n"
        "  nested: {mixture: nested.yaml, weight: 1}\n"
    )
    (folder / "packed.yaml").write_text(
        "seed: 2\nhorizon: {steps: 50}\nglobal_batch_size: 2\npack: {length: 16}\n"
        "sources: {tokens: {path: tokens.bin, dtype: uint16, eos: 0, weight: 1}}\n"
    )
    (folder / "stages.yaml").write_text(
        "seed: 4\nhorizon: {steps: 60}\nglobal_batch_size: 2\nbatch: {collate: list}\n"
        "sources:\n  lines: {path: lines.jsonl, weight: 1, where: {n: {min: 5}}}\n"
        "  rows: {path: rows.csv, columns: [text], weight: 3, shuffle: none}\n"
        "stages:\n  - {until: {steps: 20}}\n  - {weights: {lines: 3, rows: 1}}\n"
    )


def write_made(data: Path) -> None:
    """Write the folders that Penstock itself makes: shards of a dataset."""
    documents = ps.read(data / "tokens.bin", dtype="uint16", eos=0).shuffle(seed=1)
    ps.write(documents, data / "written-arrow", shard=25)
    ps.write(ps.read(data / "lines.jsonl"), data / "written-jsonl", format="jsonl", shard=25)


def numbers(count: int, name: str) -> ps.Dataset:
    """Return a dataset of numbers."""
    return ps.from_sequence(range(count), name=name)


def documents(data: Path) -> ps.Dataset:
    """Return the documents of the token store."""
    return ps.read(data / "tokens.bin", dtype="uint16", eos=0, name="tokens")


def three_sources() -> dict[str, ps.Dataset]:
    """Return three small sources."""
    return {
        "a": numbers(40, "a").shuffle(),
        "b": numbers(25, "b"),
        "c": numbers(11, "c").shuffle(seed=4),
    }


def is_even(x: int) -> bool:
    """Return whether a number is even."""
    return x % 2 == 0


def repeat_number(x: int) -> list[int]:
    """Return a number zero to two times."""
    return [x] * (x % 3)


def add_noise(x: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return a number and a random one."""
    return x, int(rng.integers(1 << 30))


def make_document(x: int) -> dict[str, Any]:
    """Return a document whose length is not known before."""
    return {"tokens": np.arange(1 + x % 7, dtype=np.int64) + 10 * x}


def mix_streams() -> ps.Dataset:
    """Return a mixture of two streams."""
    inputs = {
        "a": numbers(40, "a").shuffle().filter(is_even),
        "b": numbers(25, "b").flat_map(repeat_number),
    }
    return ps.mix(inputs, {"a": 3, "b": 2}, seed=1)


def mix_on_a_schedule() -> ps.Dataset:
    """Return a mixture whose weights move."""
    points = [(0, {"a": 1, "b": 3, "c": 1}), (30, {"a": 3, "b": 1, "c": 2})]
    return ps.mix(three_sources(), ps.Schedule(points, interpolation="linear"), seed=2)


def mix_by_tokens(data: Path) -> ps.Dataset:
    """Return a mixture with shares of tokens."""
    inputs = {"whole": documents(data).shuffle(), "part": documents(data)[:20]}
    return ps.mix(inputs, {"whole": 2, "part": 1}, seed=5, unit="tokens")


WEIGHTS = {"a": 3, "b": 2, "c": 1}
PIPELINES: dict[str, Callable[[Path], ps.Dataset]] = {
    "shuffle": lambda _: numbers(40, "a").shuffle(seed=3).repeat(),
    "block shuffle": lambda _: numbers(90, "a").shuffle(seed=3, block=(8, 4)).repeat(),
    "window shuffle": lambda _: numbers(40, "a").shuffle(seed=3, window=8).repeat(),
    "shuffle buffer": lambda _: numbers(60, "a").filter(is_even).shuffle_buffer(6, seed=3).repeat(),
    "random map": lambda _: numbers(40, "a").shuffle().random_map(add_noise, name="noise"),
    "filter": lambda _: numbers(60, "a").shuffle(seed=1).filter(is_even),
    "flat map": lambda _: numbers(60, "a").flat_map(repeat_number).repeat(),
    "split and slice": lambda _: numbers(90, "a").split(0.4)[0].shuffle(seed=1)[3:60:2].repeat(),
    "concat and zip": lambda _: (
        numbers(25, "a")
        .concat(numbers(30, "b").shuffle(seed=2))
        .zip(numbers(70, "c").shuffle(seed=3))
    ),
    "mix": lambda _: ps.mix(three_sources(), WEIGHTS, seed=1),
    "mix in blocks": lambda _: ps.mix(
        three_sources(), WEIGHTS, seed=1, block_size=12, stop="all_exhausted"
    ),
    "mix with caps": lambda _: ps.mix(
        three_sources(), WEIGHTS, seed=9, max_epochs={"a": 0.4, "c": 1}
    ),
    "mix of mixtures": lambda _: ps.mix(
        {"m": ps.mix(three_sources(), WEIGHTS, seed=1), "d": numbers(30, "d")},
        {"m": 2, "d": 1},
        seed=8,
    ),
    "mix on a schedule": lambda _: mix_on_a_schedule(),
    "mix of streams": lambda _: mix_streams().batch(2),
    "mix by tokens": lambda data: mix_by_tokens(data).batch(2, collate=list),
    "joined rows": lambda data: documents(data).shuffle(seed=2).pack(16).repeat(),
    "best fit": lambda data: documents(data).shuffle(seed=2).pack(16, "best_fit").repeat(),
    "rows of unknown lengths": lambda _: numbers(300, "a").map(make_document).pack(16),
    "bucket by length": lambda _: numbers(190, "a").bucket_by_length(
        [2, 3], 4, size=lambda x: 1 + x % 4
    ),
    "lines": lambda data: ps.read(data / "lines.jsonl", name="lines").shuffle(seed=1).repeat(),
    "table": lambda data: ps.read(data / "table.parquet", columns=["n"], name="table").batch(3),
    "archive": lambda data: ps.read(data / "shard.tar", name="archive").shuffle(seed=1).repeat(),
    "written shards": lambda data: ps.read(data / "written-arrow", name="written").pack(8),
    "written lines": lambda data: ps.read(data / "written-jsonl", name="lines").shuffle(seed=6),
    "mixture file": lambda data: ps.load(data / "plain.yaml"),
    "mixture file, packed": lambda data: ps.load(data / "packed.yaml"),
    "mixture file, stages": lambda data: ps.load(data / "stages.yaml"),
}


def to_json(value: Any) -> Any:
    """Return a sample as JSON holds it."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.decode() if isinstance(value, bytes) else value


def save_run(name: str, data: Path) -> dict[str, Any]:
    """Return the state of a pipeline after its first items, and the items after them."""
    with ps.Loader(PIPELINES[name](data)) as loader:
        items = iter(loader)
        for _ in islice(items, BEFORE):
            pass
        state = loader.state_dict()
        return {"state": state, "next": [to_json(item) for item in islice(items, AFTER)]}


def resume_run(name: str, data: Path, state: Any) -> list[Any]:
    """Return the items after a state."""
    with ps.Loader(PIPELINES[name](data)) as loader:
        loader.load_state_dict(state)
        return [to_json(item) for item in islice(loader, AFTER)]
