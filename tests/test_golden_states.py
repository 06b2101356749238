"""Golden states: states that an earlier version saved load, and the run continues with the samples that it gave then.

`python tests/test_golden_states.py` saves them again. If a test here fails after a class, a function or a file was
renamed, its name entered a state: write the name down as a `KEY` instead. If the format of states changed on purpose,
label the change STATE in the CHANGELOG.
"""

from __future__ import annotations

import json
import logging
import tarfile
from collections.abc import Callable
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.tasks import DefaultTaskEncoder, TextSample
from penstock.text import CausalLM, Padded, Tokenize

FILE = Path(__file__).parent / "golden" / "states-v1.json"
BEFORE, AFTER = 7, 12


def double(x: int) -> int:
    return 2 * x


def jitter(x: int, rng: np.random.Generator) -> tuple[int, float]:
    return x, float(rng.random())


def doubles(some: list[int]) -> list[int]:
    return [2 * x for x in some]


def pair(i: int, x: int) -> tuple[int, int]:
    return int(i), x


def features(x: int) -> dict[str, Any]:
    return {"tokens": np.arange(1 + x % 7), "labels": np.arange(1 + x % 5)}


def is_even(x: int) -> bool:
    return x % 2 == 0


def copies(x: int) -> list[int]:
    return [x] * (x % 3)


def size(x: int) -> int:
    return 1 + x % 4


def document(x: int) -> dict[str, Any]:
    return {"tokens": np.arange(1 + x % 7, dtype=np.int64) + 10 * x}


def columns(x: int) -> dict[str, int]:
    return {"x": x}


def words(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


def texts(n: int) -> ps.Dataset:
    samples = [TextSample(__key__=f"k{i}", text=str(i)) for i in range(n)]
    return ps.from_sequence(samples, name="texts").shuffle(seed=1)


class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
    """A task encoder whose batches are lists of texts."""

    def batch(self, samples: list[Any]) -> list[str]:
        return [sample.text for sample in samples]


class GroupedTexts(Texts):
    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        return len(sample.text), None


class PackedTexts(Texts):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[i : i + 2] for i in range(0, len(samples), 2)]

    def preencode_sample(self, sample: Any) -> Any:
        return sample

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample(__key__="pack", text="+".join(sample.text for sample in samples))


class Reversed:
    """An order of a user: a pass from its end."""

    def size(self, below: int | None) -> int | None:
        return below

    def down(self, positions: Any, below: int | None, key: int) -> tuple[Any, None]:
        assert below is not None
        return positions // below * below + below - 1 - positions % below, None

    def up(self, positions: Any, below: int | None, key: int) -> Any:
        return self.down(positions, below, key)[0]

    def describe(self) -> Any:
        return {"reorder": "reversed"}


def numbers(n: int, name: str) -> ps.Dataset:
    return ps.from_sequence(range(n), name=name)


def stored(n: int, name: str) -> ps.Dataset:
    sizes = 1 + np.arange(n) * 7 % 9
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.repeat(np.arange(n), sizes), offsets, name=name)


def mixture(**options: Any) -> ps.Dataset:
    flows = {
        "a": numbers(40, "a").shuffle(),
        "b": numbers(25, "b"),
        "c": numbers(11, "c").shuffle(seed=4),
    }
    return ps.mix(flows, {"a": 3, "b": 2, "c": 1}, seed=1, **options)


def streamed() -> ps.Dataset:
    flows = {
        "a": numbers(40, "a").shuffle().filter(is_even),
        "b": numbers(25, "b").flat_map(copies),
    }
    return ps.mix(flows, {"a": 3, "b": 2}, seed=1)


def scheduled() -> ps.Dataset:
    schedule = ps.Schedule([(0, {"a": 1, "b": 3}), (30, {"a": 3, "b": 1})], interpolation="linear")
    return ps.mix({"a": numbers(40, "a").shuffle(), "b": numbers(25, "b")}, schedule, seed=2)


def mixed_by_tokens(**options: Any) -> ps.Dataset:
    return ps.mix(
        {"a": stored(40, "a").shuffle(), "b": stored(25, "b")},
        {"a": 2, "b": 1},
        unit="tokens",
        **options,
    )


def lines(folder: Path) -> ps.Dataset:
    (folder / "lines.jsonl").write_text(
        "".join(f'{{"n": {n}, "text": "{"word " * (n % 5 + 1)}"}}\n' for n in range(60))
    )
    return ps.read(str(folder / "lines.jsonl"), name="lines")


def rows(folder: Path) -> ps.Dataset:
    (folder / "rows.csv").write_text("n,text\n" + "".join(f"{n},row {n}\n" for n in range(60)))
    return ps.read(str(folder / "rows.csv"), name="rows")


def archive(folder: Path) -> ps.Dataset:
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for n in range(60):
            member = tarfile.TarInfo(f"{n:03}.txt")
            data = f"sample {n}".encode()
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    return ps.read(str(folder / "shard.tar"), name="archive")


PIPELINES: dict[str, Callable[[Path], ps.Dataset]] = {
    "sequence": lambda _: numbers(40, "a"),
    "iterable": lambda _: ps.from_iterable(partial(iter, range(40)), name="a", identity="v1"),
    "shuffle": lambda _: numbers(40, "a").shuffle(seed=3).repeat(),
    "block shuffle": lambda _: numbers(90, "a").shuffle(seed=3, block=(8, 4)).repeat(),
    "window shuffle": lambda _: numbers(40, "a").shuffle(seed=3, window=8).repeat(),
    "shuffle buffer": lambda _: numbers(40, "a").filter(is_even).shuffle_buffer(6, seed=3).repeat(),
    "order of a user": lambda _: numbers(40, "a").reorder(Reversed()).repeat(),
    "map": lambda _: numbers(40, "a").map(double),
    "random map": lambda _: numbers(40, "a").random_map(jitter, seed=5),
    "named random map": lambda _: numbers(40, "a").shuffle().random_map(jitter, name="jitter"),
    "filter": lambda _: numbers(60, "a").shuffle(seed=1).filter(is_even),
    "flat map": lambda _: numbers(60, "a").flat_map(copies).repeat(),
    "map with index": lambda _: numbers(40, "a").shuffle(seed=1).map_with_index(pair),
    "rename": lambda _: numbers(40, "a").map(columns).rename({"x": "y"}),
    "batched map": lambda _: numbers(40, "a").map(doubles, batched=4),
    "interleave": lambda _: numbers(40, "a").interleave(numbers(20, "b"), width=3),
    "split": lambda _: numbers(90, "a").split(0.2)[0].shuffle(seed=1),
    "shard": lambda _: numbers(90, "a").shuffle(seed=1).shard(1, 3),
    "pack features": lambda _: (
        numbers(90, "a").map(features).pack_features({"tokens": 8, "labels": 8})
    ),
    "with source": lambda _: numbers(40, "a").map(columns).with_source(),
    "slice and selection": lambda _: (
        numbers(90, "a").shuffle(seed=3)[10:70:2].select([*range(29, 0, -1)])
    ),
    "concat": lambda _: numbers(5, "a").concat(numbers(30, "b").shuffle(seed=2)),
    "zip": lambda _: numbers(40, "a").zip(numbers(40, "b").shuffle(seed=2)),
    "repeat each": lambda _: numbers(40, "a").repeat_each(2),
    "skip and limit": lambda _: numbers(60, "a").filter(is_even).skip(3).limit(25),
    "batch": lambda _: numbers(90, "a").shuffle(seed=3).batch(4),
    "rebatch": lambda _: numbers(90, "a").batch(5, collate=list).rebatch(3),
    "bucket by length": lambda _: numbers(90, "a").bucket_by_length([2, 3], 4, size=size),
    "batch by tokens": lambda _: numbers(90, "a").batch_by_tokens(9, size=size),
    "mix": lambda _: mixture(),
    "mix in blocks": lambda _: mixture(block_size=12, stop="all_exhausted"),
    "mix with caps": lambda _: mixture(max_epochs={"a": 1.5, "c": 1}),
    "mix of mixtures": lambda _: ps.mix(
        {"m": mixture(), "d": numbers(30, "d")}, {"m": 2, "d": 1}, seed=8
    ),
    "mix on a schedule": lambda _: scheduled(),
    "mix of streams": lambda _: streamed(),
    "mix by tokens": lambda _: mixed_by_tokens(),
    "concat_split, packed": lambda _: stored(300, "a").shuffle(seed=2).pack(16),
    "concat_split of a mixture, in batches": lambda _: mixed_by_tokens().pack(16).batch(2),
    "first_fit, packed": lambda _: stored(300, "a").shuffle(seed=2).pack(16, "first_fit"),
    "best_fit, packed": lambda _: (
        stored(300, "a").shuffle(seed=2).pack(16, "best_fit", window=16).repeat()
    ),
    "packed, of unknown lengths": lambda _: numbers(300, "a").map(document).pack(16),
    "first_fit of unknown lengths": lambda _: numbers(300, "a").map(document).pack(16, "first_fit"),
    "padded": lambda _: numbers(90, "a").map(document).batch(4, collate=Padded(0)),
    "causal language model": lambda _: stored(300, "a").pack(16).batch(2).map(CausalLM()),
    "lines of JSON, tokenized": lambda folder: lines(folder).map(Tokenize(words)).pack(8),
    "padded fields": lambda _: (
        numbers(90, "a").map(document).batch(4, collate=ps.pad({"tokens": 0}))
    ),
    "jagged fields": lambda _: numbers(90, "a").map(document).batch(4, collate=ps.jagged("tokens")),
    "task encoder": lambda _: Texts().build(texts(60), batch_size=2),
    "task encoder, grouped": lambda _: GroupedTexts().build(texts(60), batch_size=2),
    "task encoder, packed": lambda _: PackedTexts().build(
        texts(90), batch_size=2, packing_buffer_size=6
    ),
    "rows of CSV": lambda folder: rows(folder).shuffle(seed=1).repeat(),
    "archive": lambda folder: archive(folder).shuffle(seed=1).repeat(),
    "mix of files": lambda folder: ps.mix(
        {"a": lines(folder).shuffle(), "b": rows(folder)}, {"a": 2, "b": 1}, seed=1
    ),
}
LOADERS: dict[str, Callable[[], ps.Loader]] = {
    "loader of two lanes": lambda: ps.Loader(streamed().batch(2), lanes=2),
    "second of two ranks": lambda: ps.Loader(mixture().batch(2), rank=1, world_size=2),
}


def plain(x: Any) -> Any:
    """A sample as JSON holds it."""
    if isinstance(x, dict):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    if isinstance(x, np.ndarray | np.generic):
        return x.tolist()
    if hasattr(x, "offsets"):  # a jagged field
        return [plain(row) for row in x]
    return x.decode() if isinstance(x, bytes) else x


def save(name: str, folder: Path) -> dict[str, Any]:
    """The state of a pipeline after its first items, and the items after them."""
    run = LOADERS[name]() if name in LOADERS else None
    items: Any = iter(run if run is not None else PIPELINES[name](folder))
    for _ in islice(items, BEFORE):
        pass
    state = (run if run is not None else items).state_dict()
    return {"state": state, "next": [plain(item) for item in islice(items, AFTER)]}


def resume(name: str, folder: Path, state: Any) -> list[Any]:
    """The items that follow a state that was saved earlier."""
    run: Any = LOADERS[name]() if name in LOADERS else iter(PIPELINES[name](folder))
    run.load_state_dict(state)
    return [plain(item) for item in islice(iter(run), AFTER)]


def write(folder: Path) -> None:
    saved = {}
    for number, name in enumerate([*PIPELINES, *LOADERS]):
        (place := folder / str(number)).mkdir()
        saved[name] = save(name, place)
    text = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}"
        for name, entry in saved.items()
    )
    FILE.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*PIPELINES, *LOADERS])
def test_a_state_of_an_earlier_version_continues_its_run(
    name: str, golden: dict[str, Any], tmp_path: Path
) -> None:
    entry = golden[name]
    assert len(entry["next"]) > 0
    assert resume(name, tmp_path, entry["state"]) == entry["next"]


if __name__ == "__main__":
    import tempfile

    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
