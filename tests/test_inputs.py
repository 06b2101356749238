"""Where datasets begin, and bad input: every refusal names the thing and the remedy."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from helpers import numbers, through_json
from penstock.errors import UnknownLengthError
from penstock.testing import assert_resumes, recipes

NAN, INF = float("nan"), float("inf")
WRONG: Any = [1, 2]  # where a dataset or a function belongs
HALF: Any = 1.5


def stream(n: int = 5) -> ps.Dataset:
    return ps.from_iterable(lambda: iter(range(n)), name="feed")


def refused(act: Callable[[], Any], *words: str, kind: type[Exception] = ps.ConfigError) -> None:
    """The call is refused by this kind of error, and its message has all these words."""
    with pytest.raises(kind) as caught:
        act()
    lacking = [word for word in words if word not in str(caught.value)]
    assert not lacking, f"{str(caught.value)!r} does not say {lacking}"


# ---------------------------------------------------------------- mixtures

BAD_MIXTURES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("negative weight", {"weights": {"a": -1, "b": 1}}, ["'a'", "-1", "0 or more"]),
    ("NaN weight", {"weights": {"a": 1, "b": NAN}}, ["'b'", "nan", "finite"]),
    ("infinite weight", {"weights": {"a": INF, "b": 1}}, ["'a'", "inf", "finite"]),
    ("weight that is no number", {"weights": {"a": "much", "b": 1}}, ["'a'", "'much'", "number"]),
    (
        "weights of sum zero",
        {"weights": {"a": 0, "b": 0}},
        ["all weights are 0", "'a'", "give at least one"],
    ),
    ("missing weight", {"weights": {"a": 1}}, ["'b' is missing"]),
    ("extra weight", {"weights": {"a": 1, "b": 1, "c": 1}}, ["'c' is unknown"]),
    ("no weights", {"weights": {}}, ["no weights", "{name: weight"]),
    ("unknown stop rule", {"stop": "never"}, ["'never'", "restart", "all_exhausted_oversample"]),
    ("unknown unit", {"unit": "bytes"}, ["unit='bytes'", "'tokens' or 'loss_tokens'"]),
    ("block size 0", {"block_size": 0}, ["block_size", "0", "from 1"]),
    ("block size negative", {"block_size": -5}, ["block_size", "-5", "from 1"]),
    ("block size 1.5", {"block_size": 1.5}, ["block_size", "1.5", "integer"]),
    ("max_epochs 0", {"max_epochs": 0}, ["max_epochs of 'a' is 0", "above 0"]),
    ("max_epochs negative", {"max_epochs": {"b": -2}}, ["max_epochs of 'b' is -2", "above 0"]),
    ("max_epochs NaN", {"max_epochs": NAN}, ["max_epochs of 'a' is nan"]),
    ("max_epochs of nobody", {"max_epochs": {"z": 1}}, ["max_epochs", "['z']", "['a', 'b']"]),
    ("temperature 0", {"temperature": 0}, ["temperature is 0", "above 0"]),
    ("temperature NaN", {"temperature": NAN}, ["temperature is nan"]),
    (
        "temperature and weights",
        {"temperature": 2, "weights": {"a": 1, "b": 1}},
        ["temperature", "not both"],
    ),
    (
        "schedule in steps",
        {"weights": ps.Schedule([(0, {"a": 1, "b": 1})], unit="steps")},
        ["steps", "in_samples("],
    ),
    (
        "schedule of others",
        {"weights": ps.Schedule([(0, {"a": 1, "c": 1})])},
        ["'b' is missing", "'c' is unknown"],
    ),
]


@pytest.mark.parametrize("inputs", ["sequences", "streams"])
@pytest.mark.parametrize(
    "options,words", [(o, w) for _, o, w in BAD_MIXTURES], ids=[n for n, _, _ in BAD_MIXTURES]
)
def test_bad_mixtures_are_refused_when_they_are_described(
    inputs: str, options: Any, words: list[str]
) -> None:
    make = numbers if inputs == "sequences" else stream
    refused(lambda: ps.mix({"a": make(5), "b": make(5)}, **options), *words)


def test_the_same_mixtures_without_the_fault_are_taken() -> None:
    """The test above can fail: what it refuses is refused for its one fault."""
    for make in (numbers, stream):
        ps.mix(
            {"a": make(5), "b": make(5)},
            {"a": 0, "b": 1},
            stop="restart",
            block_size=1,
            max_epochs={"b": 1},
        )


def test_inputs_of_mixtures_are_checked() -> None:
    refused(lambda: ps.mix({}), "give at least one", "{name: dataset")
    refused(lambda: ps.mix({"a": numbers(3), "hole": numbers(0)}), "'hole'", "empty", "weight 0")
    refused(lambda: ps.mix({"a": WRONG}), "'a'", "list", "ps.from_sequence")
    late = ps.Schedule([(0, {"a": 1, "hole": 0}), (99, {"a": 1, "hole": 1})])
    refused(lambda: ps.mix({"a": numbers(3), "hole": numbers(0)}, late), "'hole'", "empty")
    ds = ps.mix(
        {"a": numbers(3), "hole": numbers(0)},
        {"a": 1, "hole": 0},
        stop="all_exhausted",
        block_size=1,
    )
    assert list(ds) == [0, 1, 2]
    refused(
        lambda: ps.mix({"a": numbers(9)}, max_epochs=0.01),
        "'a'",
        "9 samples",
        "less than one sample",
    )
    refused(lambda: ps.mix({"a": stream()}, temperature=2), "temperature", "['a']", "give weights")
    odd = numbers(9).filter(lambda x: x % 2)
    mixed = {"a": odd, "b": numbers(3)}
    refused(lambda: ps.mix(mixed, temperature=2), "['a']", "filter()", "give weights")
    refused(
        lambda: ps.mix(mixed, max_epochs={"b": 1.5}), "'b'", "an input", "whole number of passes"
    )
    assert len(list(ps.mix(mixed, max_epochs={"a": 1, "b": 2}))) == 4 + 6
    refused(lambda: ps.mix({"a": numbers(3)}, unit="tokens"), "unit='tokens'", "'a'", "int")


def test_a_stream_cannot_be_capped_at_a_fraction_and_this_is_said() -> None:
    refused(
        lambda: next(iter(ps.mix({"a": stream()}, max_epochs=1.5))),
        "max_epochs of 'a'",
        "whole number of passes",
    )


@pytest.mark.parametrize("weights", [[1, 2], 3, "ab"], ids=repr)
def test_weights_that_are_no_mapping_are_refused(weights: Any) -> None:
    refused(lambda: ps.mix({"a": numbers(5), "b": numbers(5)}, weights), "weights", "{name: weight")


def test_a_list_of_datasets_is_refused() -> None:
    refused(lambda: ps.mix(WRONG), "{name: dataset")


BAD_SCHEDULES: list[tuple[str, tuple[Any, ...], list[str]]] = [
    (
        "unknown interpolation",
        ([(0, {"a": 1})], "quadratic"),
        ["'quadratic'", "'step', 'linear' or 'cosine'"],
    ),
    ("unknown unit", ([(0, {"a": 1})], "step", "bytes"), ["'bytes'", "samples"]),
    ("negative weight", ([(0, {"a": 1}), (9, {"a": -1})],), ["step 9", "'a'", "-1"]),
    ("NaN weight", ([(0, {"a": NAN})],), ["step 0", "'a'", "nan"]),
    ("zero sum", ([(0, {"a": 0, "b": 0})],), ["step 0", "all weights are 0"]),
    (
        "differing names",
        ([(0, {"a": 1}), (9, {"b": 1})],),
        ["step 9", "'a' is missing", "'b' is unknown"],
    ),
    ("no points", ([],), ["at least one point"]),
    ("two points at a step", ([(3, {"a": 1}), (3, {"a": 2})],), ["step 3", "keep one"]),
    ("negative step", ([(-1, {"a": 1})],), ["-1", "0 or more"]),
    ("step 0.5", ([(0.5, {"a": 1})],), ["0.5", "integer"]),
]


@pytest.mark.parametrize(
    "args,words", [(a, w) for _, a, w in BAD_SCHEDULES], ids=[n for n, _, _ in BAD_SCHEDULES]
)
def test_bad_schedules_are_refused(args: Any, words: list[str]) -> None:
    refused(lambda: ps.Schedule(*args), *words)


# ---------------------------------------------------------------- files


def lines(path: Path, rows: int, bad: tuple[int, ...] = (), name: str = "x") -> Path:
    """JSON lines `{"x": i}` in a fixed width, some of them cut off."""
    text = "".join(
        f'{{"{name}": {i:4}\n' if i in bad else f'{{"{name}": {i:4}}}\n' for i in range(rows)
    )
    path.write_text(text)
    return path


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "code.parquet"
    pq.write_table(pa.table({"x": list(range(1000))}), path)
    assert ps.read(path)[999] == {"x": 999}
    whole = path.read_bytes()
    for keep in (0, 3, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        refused(lambda: ps.read(path), str(path), "cannot be read", kind=ps.DataError)


def test_paths_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "code.jsonl").write_text('{"x": 1}\n')
    refused(lambda: ps.read(tmp_path / "prose.jsonl"), "prose.jsonl", "missing", "holds code.jsonl")
    refused(
        lambda: ps.read(f"{tmp_path}/*.parquet"), "*.parquet", "matches no file", "holds code.jsonl"
    )
    refused(lambda: ps.read(f"{tmp_path}/part-{{0..2}}.jsonl"), "part-0.jsonl", "missing")
    refused(lambda: ps.read([]), "no paths")
    unchecked: Any = ps
    refused(lambda: unchecked.read(tmp_path / "code.jsonl", format="toml"), "'toml'", "jsonl")
    refused(lambda: ps.read(tmp_path / "code.jsonl", columns=[]), "columns", "[]")


def test_a_line_that_does_not_parse_is_named_with_file_and_line(tmp_path: Path) -> None:
    ds = ps.read(lines(tmp_path / "code.jsonl", 20, bad=(7,)))
    assert ds[6] == {"x": 6}
    refused(lambda: ds[7], "code.jsonl, line 8", "not valid JSON", kind=ps.DataError)
    it = iter(ds)
    assert [row["x"] for row in islice(it, 7)] == list(range(7)), (
        "what comes before it is given first"
    )
    refused(lambda: next(it), "code.jsonl, line 8", kind=ps.DataError)
    with ps.Loader(ds.shuffle(seed=1), workers=2) as loader:
        refused(lambda: list(loader), "code.jsonl, line 8", kind=ps.DataError)


def poisoned(folder: Path, bad: tuple[int, ...]) -> ps.Dataset:
    """A mixture of lines, some bad, and of another source."""
    folder.mkdir(exist_ok=True)
    code = ps.read(lines(folder / "code.jsonl", 20, bad)).shuffle()
    other = ps.from_sequence([{"x": -i} for i in range(1, 31)]).shuffle()
    return ps.mix(
        {"code": code, "other": other},
        {"code": 1, "other": 2},
        stop="all_exhausted",
        block_size=7,
        seed=3,
    )


def run(loader: ps.Loader, n: int | None = None) -> list[tuple[tuple[str, int, int], int]]:
    return [(loader.keys()[0], row["x"]) for row in islice(loader, n)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bad", [(7,), (0, 19), (4, 5, 6), (19,)], ids=str)
def test_under_quarantine_a_bad_line_is_journalled_and_another_of_its_source_takes_its_place(
    tmp_path: Path, workers: int, bad: tuple[int, ...]
) -> None:
    with ps.Loader(poisoned(tmp_path / "good", ())) as loader:
        want = [*run(loader), *run(loader)]
    with ps.Loader(
        poisoned(tmp_path / "bad", bad), on_error="quarantine", workers=workers
    ) as loader:
        got = [*run(loader), *run(loader)]
        journal = loader.journal
        assert loader.stats()["errors"] == 2 * len(bad)

    used = {(entry["epoch"], entry["index"]): entry["used"] for entry in journal}
    assert not set(bad) & set(used.values())
    assert len(got) == len(want) == 100
    for (key, x), ((source, epoch, index), good) in zip(got, want, strict=True):
        hit = source == "code" and index in bad
        assert key == (source, epoch, used[epoch, index] if hit else index)
        assert x == (used[epoch, index] if hit else good)
    assert (
        Counter(key[0] for key, _ in got)
        == Counter(key[0] for key, _ in want)
        == {"code": 40, "other": 60}
    )
    noted = [(entry["source"], entry["epoch"], entry["index"]) for entry in journal]
    assert noted == [("code", epoch, i) for epoch in (0, 1) for i in sorted(bad)]
    for entry in journal:
        assert f"code.jsonl, line {entry['index'] + 1}" in entry["error"]


@pytest.mark.parametrize("at", [0, 1, 9, 17, 25, 40, 49, 50])
def test_quarantine_is_the_same_after_a_resume(tmp_path: Path, at: int) -> None:
    ds = poisoned(tmp_path, (4, 5, 13))
    with ps.Loader(ds, on_error="quarantine") as loader:
        want = run(loader)
        journal = loader.journal
    with ps.Loader(ds, on_error="quarantine", workers=2) as loader:
        run(loader, at)
        state = through_json(loader.state_dict())
        seen = loader.journal
    with ps.Loader(ds, on_error="quarantine") as loader:
        loader.load_state_dict(state)
        assert loader.journal == seen
        rest = run(loader)
        assert rest == want[at:] or (at == 50 and len(rest) == 0)
        assert loader.journal == journal
    assert len(journal) == 3


def test_quarantine_gives_up_beyond_max_errors_and_says_where(tmp_path: Path) -> None:
    ds = ps.read(lines(tmp_path / "code.jsonl", 20, bad=(3, 9, 12)))
    with ps.Loader(ds, on_error="quarantine", max_errors=3) as loader:
        assert len(list(loader)) == 20
    with ps.Loader(ds, on_error="quarantine", max_errors=2) as loader:
        refused(lambda: list(loader), "max_errors=2", "line 13", "code", kind=ps.DataError)


def test_a_file_of_bad_lines_does_not_pass(tmp_path: Path) -> None:
    ds = ps.read(lines(tmp_path / "code.jsonl", 5, bad=(0, 1, 2, 3, 4)))
    with (
        ps.Loader(ds, on_error="quarantine", max_errors=1000) as loader,
        pytest.raises(ps.DataError),
    ):
        list(loader)


def test_a_sidecar_older_than_its_data_is_made_again(tmp_path: Path) -> None:
    path = lines(tmp_path / "code.jsonl", 20)
    assert ps.read(path)[3] == {"x": 3}
    kept = [file for file in tmp_path.iterdir() if file != path]
    assert len(kept) == 1
    later = path.stat().st_mtime_ns + 5_000_000_000
    lines(path, 20, name="y")  # as long as before: only the time tells
    os.utime(path, ns=(later, later))
    assert ps.read(path)[3] == {"y": 3}


def test_data_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "code.jsonl", 20)
    ds = ps.read(path)
    assert ds[3] == {"x": 3}
    later = path.stat().st_mtime_ns + 5_000_000_000
    os.utime(path, ns=(later, later))
    refused(
        lambda: ds[3], str(path), "changed while it was in use", "open it again", kind=ps.DataError
    )


# ---------------------------------------------------------------- sequences


class Torch:
    """A map-style dataset."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, str]:
        assert isinstance(index, int)
        return index, str(index)


class Many(Torch):
    """One that takes many indices at once, and says how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitems__(self, indices: list[int]) -> list[tuple[int, str]]:
        assert all(type(index) is int for index in indices)
        self.calls += 1
        return [(index, str(index)) for index in indices]


class HuggingFace:
    """Like a `datasets.Dataset`: rows by number, columns by a list of numbers, rows again by `__getitems__`."""

    def __init__(self) -> None:
        self.columns = {"text": list("abcdef"), "n": list(range(6))}
        self.asked = list[str]()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: Any) -> Any:
        self.asked.append(type(key).__name__)
        if isinstance(key, list):
            return {name: [column[i] for i in key] for name, column in self.columns.items()}
        return {name: column[key] for name, column in self.columns.items()}

    def __getitems__(self, keys: list[int]) -> list[Any]:
        self.asked.append("many")
        batch = {name: [column[i] for i in keys] for name, column in self.columns.items()}
        return [{name: batch[name][i] for name in batch} for i in range(len(keys))]


SEQUENCES: list[tuple[str, Callable[[], Any]]] = [
    ("list", lambda: list("abcdef")),
    ("tuple", lambda: tuple("abcdef")),
    ("str", lambda: "abcdef"),
    ("list of None", lambda: [None] * 6),
    ("range", lambda: range(3, 21, 3)),
    ("range backwards", lambda: range(6, 0, -1)),
    ("array", lambda: np.arange(6) * 2),
    ("array of floats", lambda: np.arange(6) / 4),
    ("matrix", lambda: np.arange(12).reshape(6, 2)),
    ("torch", Torch),
    ("many", Many),
    ("hugging face", HuggingFace),
]


@pytest.mark.parametrize(
    "make", [make for _, make in SEQUENCES], ids=[name for name, _ in SEQUENCES]
)
def test_any_sequence_gives_its_elements(make: Callable[[], Any]) -> None:
    seq = make()
    ds = ps.from_sequence(seq)
    want = [seq[i] for i in range(6)]

    def same(a: Any, b: Any) -> bool:
        return bool(np.array_equal(a, b)) if isinstance(b, np.ndarray) else a == b

    assert len(ds) == 6
    assert all(same(a, b) for a, b in zip(ds, want, strict=True))
    assert all(same(ds[i], want[i]) for i in range(-6, 6))
    order = list(ps.from_sequence(range(6)).shuffle(seed=2))
    assert all(same(a, want[i]) for a, i in zip(ds.shuffle(seed=2), order, strict=True))
    assert all(same(a, want[i]) for a, i in zip(ds[::-2], [5, 3, 1], strict=True))
    assert all(same(a, want[i]) for a, i in zip(ds.__getitems__([4, 0, 4]), [4, 0, 4], strict=True))


def test_many_rows_are_asked_for_at_once() -> None:
    many, hf = Many(), HuggingFace()
    list(ps.from_sequence(many).batch(3, collate=list))
    assert 1 <= many.calls <= 2
    list(ps.from_sequence(hf).batch(3, collate=list))
    assert set(hf.asked) == {"many"}


def test_numbers_of_arrays_are_plain_and_rows_are_views() -> None:
    assert [type(x) for x in ps.from_sequence(np.arange(3))] == [int] * 3
    matrix = np.arange(6).reshape(3, 2)
    assert all(np.shares_memory(row, matrix) for row in ps.from_sequence(matrix))


@pytest.mark.parametrize(
    "thing,words",
    [({1, 2}, ["set", "no __getitem__"]), (3, ["int", "no __len__"]), (None, ["None"])],
    ids=repr,
)
def test_what_is_no_sequence_is_refused(thing: Any, words: list[str]) -> None:
    refused(lambda: ps.from_sequence(thing), *words, "from_iterable")


def test_a_generator_is_refused_with_the_remedy() -> None:
    refused(lambda: ps.from_sequence(x for x in [1, 2]), "from_iterable")


# ---------------------------------------------------------------- streams


def test_a_stream_starts_again_and_resumes() -> None:
    made = list[int]()

    def factory() -> Iterator[int]:
        made.append(len(made))
        return iter(range(7))

    ds = ps.from_iterable(factory, name="feed")
    assert list(ds) == list(ds) == list(range(7))
    assert len(made) >= 2
    with ps.Loader(ds) as loader:
        assert [list(loader), list(loader)] == [list(range(7))] * 2
    it = iter(ds)
    assert list(islice(it, 4)) == [0, 1, 2, 3]
    state = through_json(it.state_dict())
    assert it.keys() == [("feed", 0, 3)]
    again = iter(ds)
    again.load_state_dict(state)
    assert list(again) == [4, 5, 6]
    assert_resumes(lambda: ps.Loader(ds.map(recipes.double)))


def test_a_stream_with_skip_is_not_read_again() -> None:
    class Skipping:
        read = 0

        def __init__(self, first: int = 0) -> None:
            self.first = first

        def skip(self, n: int) -> Skipping:
            return Skipping(self.first + n)

        def __iter__(self) -> Iterator[int]:
            for i in range(self.first, 1000):
                Skipping.read += 1
                yield i

    ds = ps.from_iterable(Skipping)
    it = iter(ds)
    list(islice(it, 900))
    state = it.state_dict()
    Skipping.read = 0
    again = iter(ds)
    again.load_state_dict(state)
    assert next(again) == 900
    assert Skipping.read < 100


def test_bad_streams_are_refused() -> None:
    refused(lambda: ps.from_iterable(WRONG), "list", "no function", "ps.from_sequence(samples)")
    refused(lambda: ps.from_iterable(iter(WRONG)), "no function", "lambda")
    sizes = chain([9], repeat(3))
    ds = ps.from_iterable(lambda: iter(range(next(sizes))))
    it = iter(ds)
    list(islice(it, 5))
    state = it.state_dict()
    again = iter(ds)
    refused(
        lambda: (again.load_state_dict(state), next(again)),
        "ended after 3",
        "same samples every time",
        kind=ps.DataError,
    )


def test_the_package_lists_its_public_names() -> None:
    public = [name for name in dir(ps) if not name.startswith("__")]
    assert public == sorted(name for name in ps.__all__)


# ---------------------------------------------------------------- token stores


def test_a_token_store_gives_documents_with_known_lengths() -> None:
    tokens = np.arange(10, dtype=np.uint16)
    ds = ps.from_tokens(tokens, [0, 4, 4, 10], name="store")
    assert [doc.tolist() for doc in ds] == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9]]
    assert all(doc.dtype == np.uint16 and np.shares_memory(doc, tokens) for doc in ds if len(doc))
    assert len(ds.pack(5)) == 2
    assert [row["tokens"].tolist() for row in ds.pack(5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert ds.pack(5)[1]["positions"].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "tokens,offsets,kind,words",
    [
        (np.arange(10), [0, 12], ps.DataError, ["offsets", "to 12", "10 tokens"]),
        (np.arange(10), [-1, 5], ps.DataError, ["offsets", "from -1"]),
        (np.arange(10), [0, 5, 3], ps.DataError, ["document 1", "must not decrease"]),
        (np.zeros((2, 2)), [0, 1], ps.ConfigError, ["flat array", "(2, 2)"]),
        (np.arange(4), [0.0, 4.0], ps.ConfigError, ["integer offset", "float64"]),
        (np.arange(4), [], ps.ConfigError, ["one integer offset more"]),
        (np.arange(4), [[0, 4]], ps.ConfigError, ["(1, 2)"]),
        ([[1, 2], [3]], [0, 1], ps.ConfigError, ["flat arrays", "np.concatenate"]),
        ([1, 2], [[0], [1, 2]], ps.ConfigError, ["flat arrays", "np.cumsum"]),
    ],
)
def test_bad_token_stores_are_refused(
    tokens: Any, offsets: Any, kind: Any, words: list[str]
) -> None:
    refused(lambda: ps.from_tokens(tokens, offsets), *words, kind=kind)


# ---------------------------------------------------------------- names


def mapped(n: int, name: str = "own") -> ps.Dataset:
    return ps.from_sequence([{"x": i} for i in range(n)], name=name)


def test_with_source_names_the_way_through_nested_mixtures() -> None:
    inner = ps.mix({"web": mapped(6), "books": mapped(4).shuffle()}, stop="all_exhausted")
    outer = ps.mix({"text": inner, "code": mapped(5)}, stop="all_exhausted")
    rows = list(outer.with_source())
    assert Counter(row["__source__"] for row in rows) == {"text/web": 6, "text/books": 4, "code": 5}
    assert all(row["__index__"] == row["x"] and row["__epoch__"] == 0 for row in rows)
    it = iter(outer)
    keys = [it.keys()[0] for _ in it]
    assert keys == [(row["__source__"], row["__epoch__"], row["__index__"]) for row in rows]


def test_with_source_below_a_mixture_through_slices_and_streams() -> None:
    inner = ps.mix(
        {"web": mapped(6).with_source().filter(lambda x: x["x"] != 2)}, stop="all_exhausted"
    )
    rows = list(
        ps.mix({"text": inner.limit(4), "code": mapped(5)[1:].with_source()}, stop="all_exhausted")
    )
    assert Counter(row["__source__"] for row in rows) == {"text/web": 4, "code": 4}
    assert sorted(row["__index__"] for row in rows if row["__source__"] == "code") == [1, 2, 3, 4]


def test_with_source_outside_a_mixture_and_in_later_passes() -> None:
    assert mapped(2, "wiki").with_source()[1] == {
        "x": 1,
        "__source__": "wiki",
        "__epoch__": 0,
        "__index__": 1,
    }
    assert [row["__epoch__"] for row in mapped(2).shuffle().repeat(2).with_source()] == [0, 0, 1, 1]
    sample = {"x": 1}
    assert ps.from_sequence([sample]).with_source()[0] != sample
    assert sample == {"x": 1}, "the input is not changed"
    refused(
        lambda: list(numbers(3, "ints").with_source()),
        "with_source()",
        "'ints'",
        "int",
        "map it to a dict",
    )


def test_two_sources_of_one_name_are_told_apart() -> None:
    it = iter(mapped(2, "wiki").concat(mapped(2, "wiki")))
    assert len({it.keys()[0][0] for _ in it}) == 2


# ---------------------------------------------------------------- methods

BAD_CALLS: list[tuple[str, Callable[[ps.Dataset], Any], list[str]]] = [
    ("batch(0)", lambda ds: ds.batch(0), ["batch(0)", "at least 1"]),
    ("batch(-1)", lambda ds: ds.batch(-1), ["batch(-1)"]),
    ("rebatch(0)", lambda ds: ds.rebatch(0), ["rebatch(0)", "at least 1"]),
    ("shuffle_buffer(0)", lambda ds: ds.shuffle_buffer(0), ["shuffle_buffer", "n", "at least 1"]),
    ("shuffle(block)", lambda ds: ds.shuffle(block=(0, 2)), ["block=(0, 2)", "at least 1"]),
    (
        "endless shuffle",
        lambda ds: ds.repeat().shuffle(),
        ["shuffle()", "endless", "before .repeat()"],
    ),
    ("endless repeat", lambda ds: ds.repeat().repeat(2), ["repeat()", "endless already"]),
    ("repeat(-1)", lambda ds: ds.repeat(-1), ["repeat(-1)", "at least 0"]),
    ("endless slice", lambda ds: ds.repeat()[3:], ["slice of an endless", "needs a stop"]),
    (
        "endless slice backwards",
        lambda ds: ds.repeat()[9:0:-1],
        ["slice of an endless", "forwards"],
    ),
    ("shard(3, 3)", lambda ds: ds.shard(3, 3), ["shard(index=3, count=3)", "0 to count - 1"]),
    ("shard(-1, 3)", lambda ds: ds.shard(-1, 3), ["shard(index=-1, count=3)"]),
    ("shard(0, 0)", lambda ds: ds.shard(0, 0), ["shard(index=0, count=0)"]),
    ("limit(-1)", lambda ds: ds.limit(-1), ["limit(-1)", "at least 0"]),
    (
        "bucket_by_length",
        lambda ds: ds.bucket_by_length([9, 3], 2),
        ["bucket_by_length", "ascending", "(9, 3)"],
    ),
    (
        "batch_by_tokens(0)",
        lambda ds: ds.batch_by_tokens(0),
        ["batch_by_tokens", "max_tokens", "at least 1"],
    ),
    ("pack(0)", lambda ds: ds.pack(0), ["pack", "length", "at least 1"]),
    ("pack by magic", lambda ds: cast(Any, ds).pack(4, "magic"), ["pack", "'magic'", "best_fit"]),
    ("endless concat", lambda ds: ds.repeat().concat(ds), ["concat", "endless", "limit it"]),
    (
        "concat after an endless stream",
        lambda ds: ds.filter(bool).repeat().concat(ds),
        ["concat", "endless", "limit it"],
    ),
    (
        "concat after a mixture that restarts",
        lambda ds: ps.concat(ds, ps.mix({"a": ds}), ds),
        ["concat", "endless", "limit it"],
    ),
    ("concat a list", lambda ds: ds.concat(WRONG), ["list is not a dataset", "ps.from_sequence"]),
    ("zip a list", lambda ds: ds.zip(WRONG), ["list is not a dataset", "ps.from_sequence"]),
]


@pytest.mark.parametrize(
    "call,words", [(c, w) for _, c, w in BAD_CALLS], ids=[n for n, _, _ in BAD_CALLS]
)
def test_bad_arguments_are_refused_by_name(call: Any, words: list[str]) -> None:
    refused(lambda: call(numbers(5)), *words)


WRONG_TYPES: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda x: numbers(9).batch(x), "3", "batch('3')"),
    (lambda x: numbers(9).batch(x), True, "batch(True)"),
    (lambda x: numbers(9).batch(2, collate=x), 3, "collate(3): give a function"),
    (lambda x: numbers(9).limit(x), 2.5, "limit(2.5)"),
    (lambda x: stream().limit(x), 2.5, "limit(2.5)"),
    (lambda x: numbers(9).repeat(x), 1.5, "repeat(1.5)"),
    (lambda x: numbers(9).shard(x, 2), "0", "shard('0', ...)"),
    (lambda x: numbers(9).shuffle(seed=x), 1.5, "seed=1.5"),
    (lambda x: numbers(9).shuffle(window=x), "3", "shuffle(window='3')"),
    (lambda x: numbers(9).shuffle(block=x), 3, "shuffle(block=3): give a pair"),
    (lambda x: numbers(9).shuffle_buffer(x), "3", "shuffle_buffer(n='3')"),
    (lambda x: numbers(9).seed(x), "x", "seed('x')"),
    (lambda x: numbers(9).bucket_by_length(x, 2), 3, "bucket_by_length(3)"),
    (lambda x: numbers(9).bucket_by_length([x], 2), "a", "the bound 'a'"),
    (lambda x: numbers(9).map(x), None, "map(None): give a function"),
    (lambda x: numbers(9).flat_map(x), 3, "flat_map(3): give a function"),
    (lambda x: numbers(9).random_map(x), "f", "random_map('f'): give a function"),
    (lambda x: ps.mix({"a": numbers(9)}, seed=x), 1.5, "mix(seed=1.5)"),
    (lambda x: ps.mix({x: numbers(9)}), 1, "the name 1 is a int"),
    (lambda x: ps.mix({"a": numbers(9)}, {"a": x}), "1", "the weight of 'a' is '1'"),
    (
        lambda x: ps.mix({"a": numbers(9), "b": numbers(9)}, {"a": x, "b": x}),
        1e308,
        "scale all weights",
    ),
    (lambda x: ps.Schedule(x), None, "Schedule(None)"),
    (lambda x: ps.Schedule([x]), (0,), "the point (0,)"),
    (lambda x: ps.Loader(x), [1, 2], "Loader: list is not a dataset"),
    (lambda x: ps.Loader(numbers(9), workers=x), 1.5, "workers=1.5"),
    (lambda x: ps.Loader(numbers(9), lanes=x), "2", "lanes='2'"),
    (lambda x: ps.Loader(numbers(9), rank=x, world_size=2), "0", "rank='0'"),
    (lambda x: ps.Loader(ps.mix({"a": numbers(9)})).set_weights(x), [1], "set_weights([1])"),
    (
        lambda x: ps.Loader(ps.mix({"a": numbers(9)})).set_weights({"a": 1}, at=x),
        1.5,
        "set_weights(at=1.5)",
    ),
    (lambda x: iter(numbers(9)).seek(x), 1.5, "seek(1.5)"),
    (lambda x: ps.read(x), None, "read(None)"),
    (lambda x: ps.read([x]), 3, "3 is no path"),
]


@pytest.mark.parametrize(
    "call,wrong,words", WRONG_TYPES, ids=[words for _, _, words in WRONG_TYPES]
)
def test_an_argument_of_the_wrong_type_is_named(
    call: Callable[[Any], Any], wrong: Any, words: str
) -> None:
    refused(lambda: call(wrong), words)


@pytest.mark.parametrize(
    "call", [call for call, _, _ in WRONG_TYPES], ids=[words for _, _, words in WRONG_TYPES]
)
@pytest.mark.parametrize(
    "wrong", [[{"a": "b" * 900}] * 90, "c" * 9000, {"d": np.ones(99)}], ids=["list", "text", "dict"]
)
def test_no_message_quotes_all_of_what_was_given(call: Callable[[Any], Any], wrong: Any) -> None:
    try:
        call(wrong)
    except (ps.PenstockError, TypeError) as error:
        assert len(str(error)) < 2700
    else:
        assert isinstance(wrong, str), "a long name is a name"


def test_a_long_message_keeps_its_ends() -> None:
    for kind in (ps.ConfigError, ps.StorageError, ps.DataError):
        for error in (
            kind("first" + 9000 * "." + "last"),
            pickle.loads(pickle.dumps(kind("first" + 9000 * "." + "last"))),
        ):
            assert (
                str(error).startswith("first")
                and str(error).endswith("last")
                and "7,009 char" in str(error)
            ), error
    assert str(ps.Skip()) == "" and str(ps.DataError("x" * 2400, where="y")) == f"y: {'x' * 2400}"


@pytest.mark.parametrize(
    "given,words",
    [
        ([{"a": 1}], "read([...]): {'a': 1} is no path"),
        ({"a": [1, 2]}, "for columns write ps.read(pyarrow.table(columns))"),
        (
            pa.array([1]),
            "is no path; give texts or pathlib.Path, one or a list of them; for samples in memory",
        ),
        (b"a.jsonl", "read(b'a.jsonl'): b'a.jsonl' is no path"),
        ("a\0b.jsonl", "'a\\x00b.jsonl': no file can have this name"),
        (["x.jsonl", Path("a\ud800")], "'a\\ud800': no file can have this name"),
    ],
    ids=["samples", "columns", "array", "bytes", "zero", "half a character"],
)
def test_what_is_no_path_is_refused_with_what_to_do(given: Any, words: str) -> None:
    refused(lambda: ps.read(given), words)


def test_files_are_sorted_however_they_are_given(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"name": name}))
    paths = [str(tmp_path / f"{name}.jsonl") for name in "cab"]
    for given in (paths, set(paths), tuple(paths)):
        assert [row["name"] for row in ps.read(cast(Any, given))] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have_are_refused_everywhere(name: str, tmp_path: Path) -> None:
    good, mixture = tmp_path / "a.jsonl", tmp_path / "mix.yaml"
    good.write_text('{"a": 1}\n')
    said = "no file can have this name"
    refused(lambda: ps.read(good, cache=name), said)
    refused(lambda: ps.write(ps.read(good), name), said)
    refused(lambda: ps.load(name), said)
    for path, more in ((name, {}), ("a.jsonl", {"include": name})):
        mixture.write_text(json.dumps({"sources": {"a": {"path": path, "weight": 1}}} | more))
        refused(lambda: ps.load(mixture), said if name == "a\0b" else "found invalid Unicode")


def test_weights_and_caps_of_numpy_are_numbers() -> None:
    each = {"a": numbers(40), "b": numbers(40)}
    given: Any = {"a": np.float64(0.25), "b": np.int64(2)}
    caps: Any = {"a": np.float64(1.5), "b": np.int64(2)}
    ours = ps.mix(each, given, max_epochs=caps, stop="all_exhausted", seed=1)
    plain = ps.mix(
        each, {"a": 0.25, "b": 2}, max_epochs={"a": 1.5, "b": 2}, stop="all_exhausted", seed=1
    )
    loader = ps.Loader(ours)
    rows = iter(loader)
    first = [next(rows) for _ in range(7)]
    weights: Any = {"a": np.float32(0.5), "b": np.int64(1)}
    loader.set_weights(weights)
    state = through_json(loader.state_dict())
    again = ps.Loader(plain)
    again.load_state_dict(state)
    assert first + list(again) == first + list(rows)


def test_numbers_of_numpy_are_numbers() -> None:
    three: Any = np.int64(3)
    same = [
        ps.mix({"a": numbers(40), "b": numbers(40)}, seed=n, block_size=n)
        .shuffle_buffer(n, seed=n)
        .batch(n)
        .limit(n)
        for n in (3, three)
    ]
    states = [
        ps.Loader(ds, lanes=n, epoch_length=n).state_dict()
        for ds, n in zip(same, (3, three), strict=True)
    ]
    assert json.dumps(states[0]) == json.dumps(states[1])
    assert [batch.tolist() for batch in same[0]] == [batch.tolist() for batch in same[1]]


def test_concat_and_zip_are_named_as_the_user_wrote_them() -> None:
    refused(lambda: numbers(3).concat(WRONG), "concat")
    refused(lambda: numbers(3).zip(WRONG), "zip")


def test_a_size_that_is_no_integer_is_refused() -> None:
    refused(lambda: numbers(10).batch(HALF), "batch(1.5)")


@pytest.mark.parametrize("place", [1.5, "x"])
def test_a_place_that_is_no_integer_is_refused(place: Any) -> None:
    with pytest.raises(TypeError):
        numbers(10)[place]


def test_an_endless_stream_is_not_repeated() -> None:
    refused(lambda: stream().repeat().repeat(2), "endless already")


UNINDEXED: list[tuple[str, Callable[[], ps.Dataset], str]] = [
    ("filter", lambda: numbers(9).filter(bool), "filter()"),
    ("flat_map", lambda: numbers(9).flat_map(recipes.twice), "flat_map()"),
    ("stream", stream, "source 'feed'"),
    ("shuffle_buffer", lambda: numbers(9).shuffle_buffer(3), "shuffle_buffer() needs"),
    (
        "mapped pack",
        lambda: numbers(9).map(recipes.document).pack(8).map(recipes.mapping),
        "pack() needs",
    ),
    (
        "a mixture of one",
        lambda: ps.mix({"a": numbers(3), "b": numbers(3).filter(bool)}),
        "filter()",
    ),
    ("a batch of it", lambda: numbers(9).filter(bool).batch(2), "filter()"),
]


@pytest.mark.parametrize(
    "make,step", [(m, s) for _, m, s in UNINDEXED], ids=[n for n, _, _ in UNINDEXED]
)
def test_what_is_not_indexed_says_which_step_and_what_to_do(
    make: Callable[[], ps.Dataset], step: str
) -> None:
    ds = make()
    needs = [
        (lambda: len(ds), "len()", "count with sum(1 for _ in ds)"),
        (lambda: ds[3], "ds[3]", "write ds.head(n), or iterate"),
        (lambda: ds[1:3], "slice", ".limit(n)"),
        (lambda: ds.shard(0, 2), "slice", "before that step"),
        (lambda: ds.shuffle(), "shuffle()", ".shuffle_buffer(n)"),
        (lambda: ds.repeat(2, reshuffle=False), "repeat(reshuffle=False)", "before that step"),
        (lambda: ds.__getitems__([0]), "__getitems__", "iterate over the dataset instead"),
    ]
    for act, what, remedy in needs:
        refused(act, what, step, remedy, kind=ps.IndexedError)
    assert "not indexed" in repr(ds)
    assert next(iter(ds)) is not None, "and it can be iterated"


def test_places_outside_are_index_errors() -> None:
    for ds, place in [
        (numbers(5), 5),
        (numbers(5), -6),
        (numbers(0), 0),
        (numbers(5).repeat(), -1),
    ]:
        with pytest.raises(IndexError, match=str(place)):
            ds[place]
    assert numbers(5)[-1] == 4
    assert numbers(5).repeat()[7] == 2
    refused(lambda: len(numbers(5).repeat()), "endless", ".limit(n)", kind=ps.IndexedError)


def test_many_places_at_once_are_those_one_by_one() -> None:
    ds = ps.mix({"a": numbers(9).shuffle(), "b": numbers(5)}, stop="all_exhausted").map(
        recipes.double
    )
    places = [3, 0, 13, 3, 7]
    assert ds.__getitems__(places) == [ds[i] for i in places]
    assert numbers(3).__getitems__([]) == []


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1],
        (3, 1),
        range(3, 0, -2),
        np.asarray([3, 1], np.uint8),
        [np.int32(3), -4],
        np.asarray([3, -4]),
    ],
)
def test_samples_are_asked_for_by_a_list(indices: Any) -> None:
    ds = numbers(5).map(str)
    assert ds[indices] == ["3", "1"]
    assert list(ds.select(indices)) == ["3", "1"]
    assert ds[[]] == list(ds.select([])) == list(ds.select(np.zeros(0, int))) == []


@pytest.mark.parametrize(
    "indices,words",
    [
        ([True, False], "a mask; give indices, np.flatnonzero(mask)"),
        (np.ones(5, bool), "np.flatnonzero(mask)"),
        ([1.0, 2.0], "give a vector of whole numbers"),
        ([[1, 2], [3]], "give a vector of whole numbers"),
        (np.ones((2, 2), int), "give a vector of whole numbers"),
        (["1"], "give a vector of whole numbers"),
    ],
)
def test_a_list_of_what_is_no_place_is_refused(indices: Any, words: str) -> None:
    for ask, name in (
        (lambda: numbers(5)[indices], "ds["),
        (lambda: numbers(5).select(indices), "select("),
    ):
        with pytest.raises(ps.ConfigError, match=re.escape(words)) as error:
            ask()
        assert str(error.value).startswith(name)


def test_a_bad_sample_among_many_is_named() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        _ = numbers(5, "some").map(lambda x: 1 // (x - 3))[[0, 3]]
    assert "index 3 of source some" in error.value.__notes__[0]


def test_joined_datasets_are_those_of_the_methods() -> None:
    a, b = numbers(4), numbers(3, "b").shuffle(seed=1)
    for found, want in (
        (ps.concat(a, b), a.concat(b)),
        (ps.zip(a, b), a.zip(b)),
        (ps.interleave(a, b, width=1), a.interleave(b, width=1)),
    ):
        assert list(ps.Loader(found, lanes=1)) == list(ps.Loader(want, lanes=1))
    assert list(ps.concat(a)) == list(a)


@pytest.mark.parametrize("name", ["concat", "zip", "interleave"])
def test_a_list_of_datasets_is_given_with_a_star(name: str) -> None:
    a: Any = numbers(3)
    for call in (lambda: getattr(ps, name)([a, a]), lambda: getattr(a, name)([a, a])):
        with pytest.raises(ps.ConfigError, match=re.escape(f"unpack the list: {name}(*datasets)")):
            call()
    with pytest.raises(ps.ConfigError, match="at least one"):
        getattr(ps, name)()
    with pytest.raises(ps.ConfigError, match="range is not a dataset"):
        getattr(ps, name)(a, range(3))


def test_keys_are_renamed() -> None:
    ds = ps.from_sequence([{"a": 1, "b": 2, "c": 3}])
    assert list(ds.rename({"a": "b", "b": "a"})[0].items()) == [("b", 1), ("a", 2), ("c", 3)]
    assert ds.rename({})[0] == ds[0]
    for names, words in (
        ({"x": "y"}, "rename: the sample has no key 'x'; name one that it has: ['a', 'b', 'c']"),
        ({"a": "c"}, "rename: two keys would be 'c', and the sample has ['a', 'b', 'c']"),
        ({"a": "z", "b": "z"}, "rename: two keys would be 'z'"),
    ):
        with pytest.raises(ps.ConfigError, match=re.escape(words)):
            next(iter(ds.rename(names)))
    with pytest.raises(ps.ConfigError, match="the sample is a int, not a mapping"):
        _ = numbers(3).rename({"a": "b"})[0]
    with pytest.raises(ps.ConfigError, match="a mapping"):
        ds.rename("ab")  # pyright: ignore[reportArgumentType]
    state = iter(ds.rename({"a": "z"})).state_dict()
    with pytest.raises(ps.StateError, match=re.escape("rename(a=z)")):
        iter(ds.rename({"a": "y"})).load_state_dict(state)


def test_a_function_of_many_gives_what_that_of_one_gives() -> None:
    sizes = list[int]()

    def many(some: list[int]) -> list[int]:
        sizes.append(len(some))
        return [x * x for x in some]

    ds = numbers(100).shuffle(seed=1).map(many, batched=8)
    want = [x * x for x in numbers(100).shuffle(seed=1)]
    assert list(ds) == ds[range(100)] == [ds[i] for i in range(100)] == want
    assert max(sizes) == 8
    with ps.Loader(ds.batch(5, collate=list), workers=2) as loader:
        assert [x for batch in loader for x in batch] == want
    stream = ps.from_iterable(lambda: iter(range(100))).map(many, batched=8)
    assert list(ps.Loader(stream, lanes=1)) == [x * x for x in range(100)]


def test_a_function_of_many_gives_columns() -> None:
    ds = numbers(5).map(
        lambda some: {"x": np.asarray(some) * 2, "text": [str(x) for x in some]}, batched=3
    )
    assert list(ds) == [{"x": 2 * i, "text": str(i)} for i in range(5)]
    assert type(ds[0]["x"]) is int


@pytest.mark.parametrize(
    "fn,words",
    [
        (lambda some: [x for x in some if x != 3], "results for"),
        (lambda some: [*some, 0], "results for"),
        (lambda some: {"x": some, "y": some[1:]}, "results of 'y' for"),
        (lambda some: None, "gave a NoneType"),
        (lambda some: "abc"[: len(some)], "gave a str"),
        (lambda some: {}, "results for"),
        (lambda some: {"x": 3}, "gave a int of 'x'"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_another_number_of_results_is_refused(fn: Any, words: str, on_error: Any) -> None:
    with ps.Loader(numbers(20).map(fn, batched=4), on_error=on_error) as loader:
        with pytest.raises(ps.ConfigError, match=words) as error:
            list(loader)
        assert "map(batched=4)" in str(error.value) and not loader.journal


def test_a_bad_sample_among_many_is_told_from_its_neighbours() -> None:
    def many(some: list[int]) -> list[int]:
        return [1 // (x - 3) for x in some]

    with ps.Loader(numbers(20, "some").map(many, batched=8), on_error="quarantine") as loader:
        assert len(list(loader)) == 20
        assert [(entry["source"], entry["index"]) for entry in loader.journal] == [("some", 3)]


def test_a_function_of_many_drops_none() -> None:
    with pytest.raises(ps.ConfigError, match="may_skip=True"):
        numbers(5).map(list, may_skip=True, batched=2)
    with pytest.raises(ps.ConfigError, match=re.escape("map(batched=0)")):
        numbers(5).map(list, batched=0)


def test_no_places_of_a_mixture_are_nothing() -> None:
    assert ps.mix({"a": numbers(9), "b": numbers(5)}).__getitems__([]) == []


@pytest.mark.parametrize("place", [10, -11, -1])
def test_many_places_outside_are_refused_or_count_from_the_end(place: int) -> None:
    ds = numbers(10).shuffle(seed=3)
    if place == -1:
        got = ds.map_with_index(recipes.split_by_position).__getitems__([0, -1])
        assert got == [(0, ds[0]), (9, ds[-1])]
    else:
        with pytest.raises(IndexError):
            ds.__getitems__([0, place])


# ---------------------------------------------------------------- pickles

PICKLED: list[tuple[str, Callable[[], ps.Dataset]]] = [
    ("indexed", lambda: numbers(20).shuffle(seed=3).map(recipes.double).batch(3, collate=list)),
    ("random", lambda: numbers(6).random_map(recipes.noisy).seed(9)),
    ("seeded before", lambda: numbers(20).seed(5)),
    ("mixture", lambda: ps.mix({"a": numbers(9).shuffle(), "b": numbers(5)}, {"a": 2, "b": 1}, stop="all_exhausted")),
    ("schedule", lambda: ps.mix({"a": numbers(9), "b": numbers(5)}, ps.Schedule([(0, {"a": 1, "b": 1})])).limit(9)),
    ("folds", lambda: numbers(20).filter(recipes.most).shuffle_buffer(4)),
    ("rebatched", lambda: numbers(20).batch(4, collate=list).rebatch(3)),
    ("pack", lambda: numbers(9).map(recipes.document).pack(8).map(recipes.number)),
    ("tokens", lambda: ps.from_tokens(np.arange(50), np.arange(0, 51, 5)).pack(8, "best_fit").map(recipes.number)),
]  # fmt: skip


@pytest.mark.parametrize("make", [make for _, make in PICKLED], ids=[name for name, _ in PICKLED])
def test_a_pickled_dataset_gives_equal_items(make: Callable[[], ps.Dataset]) -> None:
    ds = make()
    fresh = pickle.loads(pickle.dumps(ds))
    want = list(ds)
    assert list(fresh) == want
    assert want, "there is something to compare"
    used = pickle.loads(pickle.dumps(ds))  # after it was used
    assert list(used) == want
    assert list(used.shuffle_buffer(3)) == list(ds.shuffle_buffer(3)), "and its seed came along"


def test_a_pickled_file_gives_equal_items(tmp_path: Path) -> None:
    ds = ps.read(lines(tmp_path / "code.jsonl", 20)).shuffle(seed=1)
    want = list(ds)
    assert list(pickle.loads(pickle.dumps(ds))) == want


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos": 0}, "give the length of a row too"),
        ({"lenght": 16}, "did you mean 'length'"),
        ([("length", 16)], "give a dict by name"),
    ],
)
def test_options_of_pack_that_are_wrong_name_the_remedy(options: Any, message: str) -> None:
    with pytest.raises(ps.ConfigError, match=message):
        ps.mix({"a": ps.from_sequence([1])}, packed=options)


def test_a_name_is_an_option_of_pack_too() -> None:
    options = {"length": 4, "eos": 9, "name": "rows"}
    store = {"a": ps.from_tokens(np.arange(6), [0, 3, 6], name="a")}
    rows = ps.mix(store, unit="tokens", packed=options).pack(**options)
    assert rows[0]["tokens"].tolist() == [0, 1, 2, 9]


@pytest.mark.parametrize("join", [ps.concat, ps.zip])
def test_an_empty_list_of_datasets_is_an_error_with_its_remedy(join: Any) -> None:
    with pytest.raises(ps.ConfigError, match=r"give at least one dataset: \w+\(\*datasets\)"):
        join([])


def test_a_function_of_a_stream_that_returns_no_iterable_is_named() -> None:
    with pytest.raises(ps.ConfigError, match="the function must return an iterable, not int"):
        list(ps.from_iterable(lambda: 3))  # pyright: ignore[reportArgumentType, reportUnknownLambdaType]


def test_a_step_number_in_place_of_a_range_is_corrected() -> None:
    with pytest.raises(ps.ConfigError, match=r"write plan\.audit\(range\(5, 6\)\)"):
        ps.from_sequence("abc").plan.audit(cast(Any, 5))


def test_a_pack_over_batches_names_the_order_of_the_steps() -> None:
    rows = ps.from_sequence([[1, 2], [3, 4]], name="rows").batch(2).pack(4)
    with pytest.raises(ps.IndexedError, match="pack before batch"):
        rows[0]


def test_an_unknown_length_is_a_public_error() -> None:
    with pytest.raises(UnknownLengthError, match="endless") as caught:
        len(ps.from_sequence("abc").repeat())
    assert isinstance(caught.value, ps.IndexedError)
