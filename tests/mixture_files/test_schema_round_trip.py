"""Everything that the schema lists is written back: from a description, and from a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.base.canonical_json import compute_fingerprint
from penstock.engine.grouping.concat_split import LONG_CHOICES
from penstock.engine.packing import METHODS, OVERFLOWS, Packing
from penstock.mixture_files import check_round_trip, read_model
from penstock.mixture_files.keys import (
    MIXTURE,
    PACK_SECTION,
    SOURCE_SECTION,
    SingleOrTableKind,
    TokenKind,
)
from penstock.mixture_files.kinds import FlagKind, ListKind, Section, TextKind, ValueKind

KeyPath = tuple[str, ...]


def iter_choices(kind: ValueKind, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the words and flags of a kind, with the keys that lead to them."""
    match kind:
        case FlagKind():
            yield from ((path, value) for value in (True, False))
        case TokenKind():
            yield path, True
        case TextKind(choices=choices):
            yield from ((path, value) for value in choices)
        case ListKind(of=inner):
            yield from iter_choices(inner, path)
        case SingleOrTableKind(single=inner):
            yield from iter_choices(inner, path)
        case Section(keys=keys, short=short):
            if short is not None:
                yield from iter_choices(short, path)
            for key in keys:
                yield from iter_choices(key.kind, (*path, key.name))
        case _:
            pass


CHOICES = [*iter_choices(MIXTURE, ()), *iter_choices(SOURCE_SECTION, ("sources", "a"))]
_COUNTED = {"tokenise": {"tokenizer": "t.json", "counted": True}}
_TOKENS = {"tokenise": {"tokenizer": "t.json"}}
_PACK = {"pack": {"length": 16}, **_TOKENS}
NEEDED: dict[Any, dict[str, Any]] = {
    ("unit", "tokens"): _COUNTED,
    "schedule": {"schedule": {"points": {0: {"a": 1, "b": 2}, 900: {"a": 2, "b": 2}}}},
    ("schedule.unit", "tokens"): _COUNTED,
    ("schedule.unit", "steps"): {"batch": {"size": 3}},
    "tokenise": _TOKENS,
    "chat": {"chat": {"tokenizer": "t.json", "template": "chatml", "max_length": 40}},
    "split": {"split": {"held_out": 5}},
    "stages": {
        "horizon": {"samples": 30},
        "stages": [{"until": "40%", "weights": {"a": 1, "b": 2}}, {"weights": {"a": 3}}],
    },
    "pack": _PACK,
    "pack.long": {"pack": {"length": 16, "method": "first_fit"}},
    "pack.overflow": {"pack": {"length": 16, "method": "best_fit"}},
    "batch": {"batch": {"size": 3}},
    "sources.a.tokenise": {"sources": {"a": _TOKENS}},
    "sources.a.chat": {"sources": {"a": {"chat": {"tokenizer": "t.json", "template": "chatml"}}}},
    "sources.a.split": {"sources": {"a": {"split": {"held_out": 5}}}},
    "sources.a.dtype": {"sources": {"a": {"path": "a.bin", "format": "tokens"}}},
}
"""Settings that a key, or a key with a value, needs beside it."""

NEEDS_OTHER_DATA = {
    *("sources.a.format", "sources.a.dtype"),  # files of that format
    *(("pack.bos", True), ("pack.eos", True)),  # a tokenizer that names these tokens
}


def merge(first: Any, second: Any) -> Any:
    """Return nested settings; those of the second win."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    both = {name: merge(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **both}


def make_file(path: KeyPath, value: Any) -> dict[str, Any]:
    """Return a mixture file that has a value at a path, and what else it needs."""
    file: dict[str, Any] = {
        "seed": 3,
        "sources": {name: {"path": f"{name}.parquet"} for name in "ab"},
    }
    keys = [".".join(path[: end + 1]) for end in range(len(path))]
    for needed in (*keys, (keys[-1], str(value))):
        file = merge(file, NEEDED.get(needed, {}))
    if keys[-1] == "sources.a.format":
        file["sources"]["a"]["path"] = f"a.{value}"
    if path[0] == "stages":
        file["stages"][1][path[1]] = value
        return file
    setting = value
    for name in reversed(path):
        setting = {name: setting}
    return merge(file, setting)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a.parquet` and `b.parquet` with texts, tokens and their kinds; a tokenizer `t.json`."""
    pytest.importorskip("tokenizers")
    from chat_cases import bpe

    folder = tmp_path_factory.mktemp("schema")
    bpe().save(str(folder / "t.json"))
    for name, count in (("a", 25), ("b", 40)):
        sizes = [1 + i % 7 for i in range(count)]
        rows = [
            {"text": f"{name} {i} " * n, "ids": [i] * n, "mask": [i % 2] * n, "kind": f"k{i % 3}"}
            for i, n in enumerate(sizes)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


def assert_loads_again(ds: ps.Dataset, folder: Path, rows: int = 0) -> None:
    ps.dump(ds, folder / "again.yaml")
    again = ps.load(folder / "again.yaml")
    assert compute_fingerprint(again.flow.description()) == compute_fingerprint(
        ds.flow.description()
    )
    for got, wanted in zip(islice(again, rows), islice(ds, rows), strict=True):
        np.testing.assert_equal(got, wanted)


@pytest.mark.parametrize(("path", "value"), CHOICES)
def test_each_word_is_written_back(path: KeyPath, value: Any, folder: Path) -> None:
    file = folder / "mixture.yaml"
    file.write_text(yaml.safe_dump(make_file(path, value)))
    model, problems = read_model(file)
    assert model is not None and not problems
    assert check_round_trip(model, file) == []
    if NEEDS_OTHER_DATA.isdisjoint((".".join(path), (".".join(path), value))):
        assert_loads_again(ps.load(file), folder)


PACK_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "length": st.integers(16, 48),
    "method": st.sampled_from(METHODS),
    "long": st.sampled_from(LONG_CHOICES),
    "max_segments": st.integers(1, 4),
    "features": st.sampled_from([["ids"], ["ids", "mask"], ["mask", "ids"]]),
    "unpacked": st.sampled_from([["kind"], ["kind", "text"], ["mask", "kind", "text"]]),
    "pad": st.sampled_from([0, 1, -100, 2.5, {"ids": 3}, {"mask": -1, "ids": 2}]),
    "bos": st.sampled_from([0, 7, {"ids": 4}, {"ids": 5, "mask": 0}]),
    "eos": st.sampled_from([0, 7, {"ids": 4}, {"ids": 5, "mask": 0}]),
    "dtype": st.sampled_from(["int32", "int64", "uint16", "float32", {"ids": "int64"}]),
    "open_rows": st.integers(1, 9),
    "window": st.integers(1, 30),
    "overflow": st.sampled_from(OVERFLOWS),
    "rows": st.integers(6, 12),
    "pad_to_multiple": st.integers(1, 4),
    "group_by": st.sampled_from(["__source__", "kind"]),
}


@st.composite
def pack_options(draw: st.DrawFn) -> dict[str, Any]:
    """Draw some options in any order; leave out those that contradict the ones before."""
    options: dict[str, Any] = {name: draw(PACK_VALUES[name]) for name in ("length", "method")}
    others = sorted(PACK_VALUES.keys() - options.keys())
    for name in draw(st.lists(st.sampled_from(others), unique=True)):
        more = {**options, name: draw(PACK_VALUES[name])}
        try:
            Packing(**more)
        except ps.ConfigError:
            continue
        options = more
    return options


@examples(150)
@given(
    pack=pack_options(),
    with_lengths=st.booleans(),
    batch=st.sampled_from([{}, {"batch": {"size": 2}}, {"global_batch_size": 3}]),
)
def test_drawn_options_of_packing_are_written_back(
    pack: dict[str, Any], with_lengths: bool, batch: dict[str, Any], folder: Path
) -> None:
    assert PACK_VALUES.keys() == {key.name for key in PACK_SECTION.keys}
    lengths = {"lengths": "ids"} if with_lengths else {}
    sources = {name: {"path": f"{name}.parquet", **lengths} for name in "ab"}
    file = folder / "packed.yaml"
    file.write_text(
        yaml.safe_dump({"stop": "all_exhausted", "sources": sources, "pack": pack, **batch})
    )
    model, problems = read_model(file)
    assert model is not None and not problems
    assert check_round_trip(model, file) == []
    assert_loads_again(ps.load(file), folder)


@pytest.mark.parametrize("token", ["<|im_end|>", {"tokens": "<|im_end|>"}, 3, {"tokens": 3}])
@pytest.mark.parametrize("option", ["bos", "eos"])
def test_tokens_around_documents_are_written_back(option: str, token: Any, folder: Path) -> None:
    file = folder / "mixture.yaml"
    settings = {"pack": {"length": 16, option: token}, "stop": "all_exhausted"}
    file.write_text(yaml.safe_dump(make_file(("pack", option), token) | settings))
    assert_loads_again(ps.load(file), folder, rows=3)
