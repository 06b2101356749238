"""Everything that the schema lists is written back: from a description, and from a dataset."""

from __future__ import annotations

import re
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
from penstock.mixture_files import Problem, check_round_trip, read_model
from penstock.mixture_files.keys import (
    MIXTURE,
    PACK_SECTION,
    SOURCE_SECTION,
    BlockSizeKind,
    DateKind,
    FractionKind,
    PartNameKind,
    PositionKind,
    ShareKind,
    SingleOrTableKind,
    SliceBoundKind,
    TokenKind,
)
from penstock.mixture_files.kinds import (
    FlagKind,
    ListKind,
    NoneKind,
    NumberKind,
    PlainKind,
    RawKind,
    ScalarKind,
    Section,
    Table,
    TextKind,
    ValueKind,
)

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
_COUNTED = {"tokenize": {"tokenizer": "t.json", "counted": True}}
_TOKENS = {"tokenize": {"tokenizer": "t.json"}}
_PACK = {"pack": {"length": 16}, **_TOKENS}
NEEDED: dict[Any, dict[str, Any]] = {
    ("unit", "tokens"): _COUNTED,
    "schedule": {"schedule": {"points": {0: {"a": 1, "b": 2}, 900: {"a": 2, "b": 2}}}},
    ("schedule.unit", "fraction"): {"horizon": {"samples": 30}},
    ("schedule.unit", "tokens"): _COUNTED,
    **dict.fromkeys([("unit", "loss_tokens"), ("schedule.unit", "loss_tokens")], _COUNTED),
    ("schedule.unit", "steps"): {"batch": {"size": 3}},
    "tokenize": _TOKENS,
    "chat": {"chat": {"tokenizer": "t.json", "template": "chatml", "max_length": 40}},
    "split": {"split": {"held_out": 5}},
    "stages": {
        "horizon": {"samples": 30},
        "stages": [{"until": "40%", "weights": {"a": 1, "b": 2}}, {"weights": {"a": 3}}],
    },
    "pack": _PACK,
    "pack.length": {
        "pack": {"length": {"points": {0: 16, 1: 32}}},
        "horizon": {"steps": 40},
        **_COUNTED,
    },
    "global_batch_size": {
        "global_batch_size": {"points": {0: 2, 1: 4}},
        "horizon": {"steps": 40},
    },
    ("global_batch_size.unit", "tokens"): {"pack": {"length": 16}, **_COUNTED},
    "pack.long": {"pack": {"length": 16, "method": "first_fit"}},
    "pack.overflow": {"pack": {"length": 16, "method": "best_fit"}},
    "batch": {"batch": {"size": 3}},
    "sources.a.tokenize": {"sources": {"a": _TOKENS}},
    "sources.a.chat": {"sources": {"a": {"chat": {"tokenizer": "t.json", "template": "chatml"}}}},
    "sources.a.split": {"sources": {"a": {"split": {"held_out": 5}}}},
    "sources.a.mix": {"sources": {"a": {"partition_by": "kind"}}},
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
    if value == "fraction" and path[0] == "schedule":
        points = file["schedule"]["points"]
        points[1] = points.pop(900)
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
    assert compute_fingerprint(again.tree.description()) == compute_fingerprint(
        ds.tree.description()
    )
    for got, wanted in zip(islice(again, rows), islice(ds, rows), strict=True) if rows else ():
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
    "provenance": st.booleans(),
    "untrained": st.sampled_from(["keep", "skip"]),
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
    if options.get("overflow") == "crop":
        options.pop("long", None)  # a file that names both is an error
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


@st.composite
def size_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw row lengths and global batches that change, by tables or by stages."""
    lengths, batches = st.integers(16, 48), st.integers(1, 9)
    file: dict[str, Any] = {"horizon": draw(st.sampled_from([{"steps": 40}, {"tokens": 9_000}]))}

    def table(numbers: st.SearchStrategy[int]) -> Any:
        unit = draw(st.sampled_from(["steps", "tokens", "fraction"]))
        most = {"steps": 50, "tokens": 10_000, "fraction": 1}[unit]
        place = st.floats(0, 1) if unit == "fraction" else st.integers(1, most)
        points = {0: draw(numbers), **draw(st.dictionaries(place, numbers, max_size=3))}
        return {"unit": unit, "points": points}

    if draw(st.booleans()):
        file |= {"pack": {"length": table(lengths)}, "global_batch_size": table(batches)}
        return file
    file |= {"pack": {"length": draw(lengths)}, "global_batch_size": draw(batches)}
    ends = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=4)))
    names = {"weights": {"a": 3}, "length": draw(lengths), "global_batch_size": draw(batches)}
    file["stages"] = [
        {
            "until": {"steps": end},
            **{
                key: names[key] for key in draw(st.sets(st.sampled_from(sorted(names)), min_size=1))
            },
        }
        for end in ends
    ]
    return file


@examples(60)
@given(sizes=size_settings(), collate=st.sampled_from(["stack", "list"]))
def test_drawn_sizes_of_steps_are_written_back(
    sizes: dict[str, Any], collate: str, folder: Path
) -> None:
    sources = {name: {"path": f"{name}.parquet", "lengths": "ids", "weight": 1} for name in "ab"}
    file = folder / "sizes.yaml"
    settings = {"sources": sources, "batch": {"collate": collate}}
    features = {"features": ["ids"], "unpacked": ["mask", "text", "kind"]}
    sizes["pack"] |= features
    file.write_text(yaml.safe_dump({**sizes, **settings}))
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


# ---------------------------------------------------------------- files drawn from the schema

NAMES = st.sampled_from(["a", "b", "text", "x y", "1", "no", "\u00e9"])
TEXTS = st.sampled_from(["text", "x", "a b", "1", "no", "null", "t.json", "a/b.c"])
SCALARS = st.one_of(
    st.integers(-5, 2_000),
    st.sampled_from(["py", "no", "1e5", "", "2024-01-02", "a: b", "$${X}", "~", "0x1f"]),
    st.booleans(),
    st.none(),
    st.floats(-10, 10, allow_nan=False),
)


def draw_value(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that a kind accepts by itself."""
    match kind:
        case FlagKind():
            return st.booleans()
        case BlockSizeKind():
            return st.just("global_step") | st.integers(1, 64)
        case TextKind(choices=choices):
            return st.sampled_from(choices) if choices else TEXTS
        case NumberKind():
            least = kind.least if kind.least is not None else 0 if kind.above is not None else -50
            most = min(kind.most or 1e6, 1e6)
            whole = st.integers(int(least) + (kind.above is not None), int(most))
            parts = st.floats(least, most, exclude_min=kind.above is not None)
            number = whole if kind.integer else whole | parts
            return number | st.none() if kind.null else number
        case NoneKind():
            return st.sampled_from(["none", None])
        case TokenKind():
            return st.integers(0, 99) | st.just("<s>") | st.just(True)
        case SliceBoundKind():
            return st.integers(-9, 9) | st.none() | st.sampled_from(["10%", "99.5%", "100%"])
        case ShareKind():
            return st.integers(1, 9) | st.sampled_from(["5%", "0.25%", 0.01, "0.5"])
        case FractionKind():
            return st.sampled_from(["5%", "100%", 0.01, 1, 1.0, "0.5"])
        case DateKind():
            return st.sampled_from(["2024-07-26", "1999-12-31"])
        case PositionKind():
            counts = {"steps": st.integers(1, 99)}, {"tokens": st.integers(1, 10**13)}
            return st.sampled_from(["40%", "99.5%"]) | st.one_of(
                *map(st.fixed_dictionaries, counts)
            )
        case SingleOrTableKind(single=single, each=each):
            return draw_value(single) | draw_value(Table(each))
        case ListKind(of=inner, one=one, most=most):
            values = st.lists(draw_value(inner), min_size=1, max_size=most or 3)
            return values | draw_value(inner) if one else values
        case Table(of=inner, pattern=pattern):
            numbers = st.sampled_from(["0", "5", "0.5", "1000", "1_000", "1e3"])
            keys = numbers if pattern else NAMES
            return st.dictionaries(keys, draw_value(inner), min_size=1, max_size=3)
        case PartNameKind():
            return SCALARS.map(
                lambda value: "x" if isinstance(value, str) and "$" in value else value
            )
        case ScalarKind():
            return SCALARS
        case PlainKind():
            inner = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS)
            return st.dictionaries(NAMES, inner, max_size=2)
        case RawKind(said="source"):
            return draw_section(SOURCE_SECTION, ("path",), ("mixture",))
        case Section():
            settings = draw_section(kind)
            return settings | draw_value(kind.short) if kind.short else settings
        case _:
            raise TypeError(kind)


@st.composite
def draw_section(
    draw: st.DrawFn, section: Section, always: KeyPath = (), never: KeyPath = ()
) -> dict[str, Any]:
    """Draw the needed keys of a section, and up to four others."""
    keys = {key.name: key.kind for key in section.keys if key.name not in never}
    others = draw(st.lists(st.sampled_from(sorted(keys)), unique=True, max_size=4))
    names = dict.fromkeys([*section.needed, *always, *others])
    return {name: draw(draw_value(keys[name])) for name in names}


def remove_problems(file: dict[str, Any], problems: list[Problem]) -> None:
    """Remove the keys that problems name; others may then contradict no more."""
    for problem in problems:
        settings: Any = file
        *path, last = re.findall(r"[^.\[\]]+", problem.key) or [""]
        for name in path:
            inner = settings[int(name)] if isinstance(settings, list) else settings.get(name)
            if not isinstance(inner, dict | list):
                break
            settings = inner
        if isinstance(settings, dict):
            settings.pop(last, None)


@examples(400)
@given(file=draw_section(MIXTURE, never=("include",)))
def test_a_drawn_file_is_written_back(file: dict[str, Any], folder: Path) -> None:
    path = folder / "drawn.yaml"
    for _ in range(4):
        path.write_text(yaml.safe_dump(file, allow_unicode=True))
        model, problems = read_model(path)
        assert all(problem.line and problem.message for problem in problems)
        if not problems:
            assert model is not None and check_round_trip(model, path) == []
            return
        remove_problems(file, problems)
